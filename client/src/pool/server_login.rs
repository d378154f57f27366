//! Logs in at a server over a connection that does not block.

use super::server_connection::LossReason;
use std::fmt;
use todana_protocol::memcached::client::{
    ClientResponse, LoginReply, NotSpoken, ServerDialect, binary_reply_len, decode, decode_login_reply,
    packet_opaque, put_login,
};

/// The reply of a text server to any request before a login.
const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated";
/// The longest reply to a login.
const REPLY_LEN_MAX: usize = 4096;

/// A user and a password for servers. `Debug` omits them.
pub struct ServerLogin {
    dialect: ServerDialect,
    request: Vec<u8>,
}

impl fmt::Debug for ServerLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLogin").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

impl ServerLogin {
    /// Creates a login. Fails if a login of this dialect cannot contain the user or the password.
    pub fn new(dialect: ServerDialect, user: &str, password: &str) -> Result<ServerLogin, NotSpoken> {
        let mut request = Vec::new();
        put_login(dialect, user.as_bytes(), password.as_bytes(), &mut request)?;
        Ok(ServerLogin { dialect, request })
    }
}

/// The progress of a login on one connection.
#[derive(Debug, Default)]
pub(super) struct LoginProgress {
    /// True once the password is sent.
    is_sent: bool,
    /// The bytes of an incomplete reply.
    input: Vec<u8>,
}

impl LoginProgress {
    /// Writes the first request. A text server is asked whether it needs a login, because a server
    /// without logins would store the password as a record.
    pub(super) fn begin(&mut self, login: &ServerLogin, out: &mut Vec<u8>) {
        self.is_sent = login.dialect == ServerDialect::Binary;
        out.extend_from_slice(if self.is_sent { &login.request } else { b"version\r\n" });
    }

    /// Accepts bytes of the server, and writes the next request. Returns true if the login has
    /// ended.
    pub(super) fn receive(
        &mut self,
        login: &ServerLogin,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, LossReason> {
        self.input.extend_from_slice(bytes);
        let not_understood = |_| LossReason::NotUnderstood;
        let len = match login.dialect {
            ServerDialect::Binary => {
                let opaque = packet_opaque(&login.request);
                binary_reply_len(&self.input, opaque, REPLY_LEN_MAX).map_err(not_understood)?
            }
            ServerDialect::Text | ServerDialect::Meta => {
                decode(&self.input, 0).map_err(not_understood)?.map(|(len, _)| len)
            }
        };
        match len {
            // The server has sent more than was asked for.
            Some(len) if len != self.input.len() => return Err(LossReason::NotUnderstood),
            None if self.input.len() > REPLY_LEN_MAX => return Err(LossReason::NotUnderstood),
            None => return Ok(false),
            Some(_) => {}
        }
        let reply = std::mem::take(&mut self.input);
        if self.is_sent {
            let reply = decode_login_reply(login.dialect, &reply).map_err(not_understood)?;
            return if reply == LoginReply::Accepted { Ok(true) } else { Err(LossReason::LoginFailed) };
        }
        match decode(&reply, 0) {
            Ok(Some((_, ClientResponse::Refused(refusal)))) if refusal.line == UNAUTHENTICATED => {
                self.is_sent = true;
                out.extend_from_slice(&login.request);
                Ok(false)
            }
            Ok(Some((_, ClientResponse::Line(line)))) if line.starts_with(b"VERSION ") => Ok(true),
            _ => Err(LossReason::NotUnderstood),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_sent_only_on_demand() {
        let login = ServerLogin::new(ServerDialect::Text, "web", "pw").unwrap();
        let begun = || {
            let (mut progress, mut out) = (LoginProgress::default(), Vec::new());
            progress.begin(&login, &mut out);
            assert_eq!(out, b"version\r\n");
            progress
        };
        let mut out = Vec::new();
        assert_eq!(begun().receive(&login, b"VERSION 1.6.45\r\n", &mut out), Ok(true));
        assert_eq!(out, b"");
        for (reply, outcome) in [
            (&b"STORED\r\n"[..], Ok(true)),
            (b"CLIENT_ERROR authentication failure\r\n", Err(LossReason::LoginFailed)),
            (b"STORED\r\nSTORED\r\n", Err(LossReason::NotUnderstood)),
        ] {
            let mut progress = begun();
            assert_eq!(progress.receive(&login, b"CLIENT_ERROR unau", &mut out), Ok(false));
            assert_eq!(progress.receive(&login, b"thenticated\r\n", &mut out), Ok(false));
            assert_eq!(std::mem::take(&mut out), b"set login 0 0 6\r\nweb pw\r\n");
            assert_eq!(progress.receive(&login, reply, &mut out), outcome);
        }
        assert!(!format!("{login:?}").contains("pw"));
    }

    #[test]
    fn binary_login_is_one_packet() {
        let login = ServerLogin::new(ServerDialect::Binary, "web", "pw").unwrap();
        for (status, outcome) in [(0, Ok(true)), (0x20, Err(LossReason::LoginFailed))] {
            let (mut progress, mut out) = (LoginProgress::default(), Vec::new());
            progress.begin(&login, &mut out);
            assert_eq!(out[..2], *b"\x80\x21");
            let mut reply = [0; 24];
            (reply[0], reply[1], reply[7]) = (0x81, 0x21, status);
            assert_eq!(progress.receive(&login, &reply, &mut out), outcome);
        }
    }
}
