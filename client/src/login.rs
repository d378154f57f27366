//! Performs a login over the text dialect, by memcached's token of user and password.

use crate::{Error, RefusedRequest};
use std::fmt;
use std::io::{self, Read, Write};

/// The reply to any request of a client without a login.
const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated";
/// The longest reply line, in bytes.
const LINE_LEN_MAX: usize = 4096;

/// A user and a password. `Debug` omits the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    user: String,
    password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The error for a user or password that a token cannot carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidLogin(&'static str);

impl fmt::Display for InvalidLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidLogin {}

impl Login {
    /// Creates a login. Fails if a token cannot carry the user and the password: the user must not
    /// contain a blank, the password must not begin or end with a blank, and both must have bytes
    /// and no line end.
    pub fn new(user: &str, password: &str) -> Result<Login, InvalidLogin> {
        let is_line = |text: &str| !text.is_empty() && !text.contains(['\r', '\n', '\0']);
        if !is_line(user) || user.contains(' ') {
            return Err(InvalidLogin("a user's name must not be empty, or have a blank in it"));
        }
        if !is_line(password) || password.starts_with(' ') || password.ends_with(' ') {
            return Err(InvalidLogin("a password must be a line of text, with no blanks around it"));
        }
        Ok(Login { user: user.into(), password: password.into() })
    }

    /// Returns the user.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the password.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Logs in on a new connection if the server requires it. The password is not sent to a server
    /// without logins, because such a server would store it as a record.
    pub fn log_in(&self, stream: &mut (impl Read + Write)) -> Result<(), Error> {
        let first = ask(stream, b"version\r\n").map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => io::Error::new(
                error.kind(),
                "the server closed the connection before a login; it may speak the binary protocol alone",
            ),
            _ => error,
        })?;
        if first.starts_with(b"VERSION ") {
            return Ok(());
        }
        if first != UNAUTHENTICATED {
            return Err(Error::Unexpected(text(&first)));
        }
        let token = format!("{} {}", self.user, self.password);
        let answer = ask(stream, format!("set login 0 0 {}\r\n{token}\r\n", token.len()).as_bytes())?;
        if answer == b"STORED" {
            return Ok(());
        }
        let kind = todana_protocol::memcached::client::RefusalKind::Client;
        Err(Error::Refused(RefusedRequest { kind, line: text(&answer) }))
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

/// Sends a request and waits for the reply, which must be exactly one line.
fn ask(stream: &mut (impl Read + Write), request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    stream.flush()?;
    let mut line = Vec::new();
    let mut buffer = [0; 512];
    while !line.ends_with(b"\r\n") {
        let len = match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            outcome => outcome?,
        };
        line.extend_from_slice(&buffer[..len]);
        if line.len() > LINE_LEN_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer to a login has no end"));
        }
    }
    line.truncate(line.len() - 2);
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A server that answers each request by the next of these lines.
    struct ScriptedServer {
        answers: VecDeque<&'static [u8]>,
        asked: Vec<u8>,
    }

    impl Read for ScriptedServer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.answers.pop_front().unwrap_or_default().read(buffer)
        }
    }

    impl Write for ScriptedServer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn said(answers: &[&'static [u8]]) -> (Result<(), String>, String) {
        let mut script = ScriptedServer { answers: answers.iter().copied().collect(), asked: Vec::new() };
        let outcome = Login::new("alice", "two words").unwrap().log_in(&mut script);
        (outcome.map_err(|error| error.to_string()), String::from_utf8(script.asked).unwrap())
    }

    #[test]
    fn password_is_not_sent_without_need() {
        assert_eq!(said(&[b"VERSION 1.6.45\r\n"]), (Ok(()), "version\r\n".into()));
    }

    #[test]
    fn text_token_is_sent_when_requested() {
        let token = "version\r\nset login 0 0 15\r\nalice two words\r\n".to_string();
        let wants: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";
        assert_eq!(said(&[wants, b"STO", b"RED\r\n"]), (Ok(()), token.clone()));
        let refusal = "the server says: CLIENT_ERROR authentication failure".to_string();
        assert_eq!(said(&[wants, b"CLIENT_ERROR authentication failure\r\n"]), (Err(refusal), token));
        let closed =
            "the server closed the connection before a login; it may speak the binary protocol alone";
        assert_eq!(said(&[]).0, Err(closed.to_string()));
    }

    #[test]
    fn unsendable_token_is_refused_without_showing_the_password() {
        for (user, password) in
            [("", "p"), ("a b", "p"), ("a", ""), ("a", " p"), ("a", "p "), ("a", "p\r\nq")]
        {
            assert!(Login::new(user, password).is_err(), "{user:?} {password:?}");
        }
        assert_eq!(format!("{:?}", Login::new("alice", "s3cret").unwrap()), "Login { user: \"alice\", .. }");
    }
}
