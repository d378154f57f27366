//! Logging in: who may, how they say so, and how far each connection has come with it.
//!
//! ```text
//! tokens     names and passwords for the text dialect (-Y)
//! passwords  names and hashed passwords for SASL, and for tokens beside it (-S)
//! password   one hashed password
//! digest     what is compared in the place of passwords
//! verifier   slow checks, on a thread of their own
//! basic      HTTP's logins, which come with each request
//! current    what is read again
//! ```
//!
//! Always true: a worker never computes a slow hash; who fails learns neither from the answer nor from its time whether
//! the user exists. Not here: which requests a stranger may make, which the dialects know.

mod basic;
mod current;
mod digest;
mod password;
mod passwords;
mod tokens;
mod verifier;

pub(crate) use basic::{Basic, Passage};

use crate::options::AuthenticationMode;
use crate::session::wake::{Ticket, Waits};
use current::Current;
use passwords::{Glance, Passwords};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_protocol::memcached::Authenticate;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits};
use tokens::Tokens;
use verifier::{Attempt, Verifier};

/// The one SASL mechanism. Those that keep the password off the wire need it in plain on the server; TLS does better.
const MECHANISM: &str = "PLAIN";

/// A file of users is not longer than this.
const FILE_LEN_MAX: u64 = 16 << 20;

/// A file of users that cannot be used; the text says why.
#[derive(Debug)]
pub struct LoginError(String);

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoginError {}

/// Who may log in.
pub(crate) enum Logins {
    /// Nobody has to.
    Off,
    Sasl(Box<Sasl>),
    Text {
        path: PathBuf,
        tokens: Current<Tokens>,
    },
}

pub(crate) struct Sasl {
    path: PathBuf,
    passwords: Current<Passwords>,
    /// Those who speak the text dialect may log in too.
    takes_tokens: bool,
    verifier: Verifier,
}

/// How far a connection has come.
#[derive(Default)]
pub(crate) struct Login {
    /// The mechanism is chosen, the password to follow.
    has_begun: bool,
    /// Waiting to be decided, or to be answered.
    attempt: Option<Arc<Attempt>>,
}

/// What comes of a message from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Refused,
    /// The client is to say more.
    Challenge,
    /// It is being found out; this ticket is ready then.
    Pending(Ticket),
}

impl Login {
    /// Its password is still being checked.
    pub(crate) fn is_waiting(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.verdict().is_none())
    }

    /// Returns the outcome of its attempt, once; `None` if it has made none.
    pub(crate) fn decided(&mut self) -> Option<Outcome> {
        let attempt = self.attempt.as_ref()?;
        let outcome = match attempt.verdict() {
            Some(true) => Outcome::Admitted,
            Some(false) => Outcome::Refused,
            None => return Some(Outcome::Pending(attempt.ticket())),
        };
        self.attempt = None;
        Some(outcome)
    }
}

impl Logins {
    /// Reads the file of users, if there is one.
    pub(crate) fn open(authentication: &AuthenticationMode) -> io::Result<Logins> {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        Ok(match authentication {
            AuthenticationMode::None => Logins::Off,
            AuthenticationMode::Sasl(path) | AuthenticationMode::Passwords(path) => {
                let passwords = Current::new(Passwords::read(path).map_err(wrong)?);
                let takes_tokens = matches!(authentication, AuthenticationMode::Passwords(_));
                let (path, verifier) = (path.clone(), Verifier::default());
                Logins::Sasl(Box::new(Sasl { path, passwords, takes_tokens, verifier }))
            }
            AuthenticationMode::Text(path) => {
                let tokens = Current::new(Tokens::read(path).map_err(wrong)?);
                Logins::Text { path: path.clone(), tokens }
            }
        })
    }

    /// Reads the file again. If it cannot be used the old users stay.
    pub(crate) fn reload(&self) {
        let (path, outcome) = match self {
            Logins::Off => return,
            Logins::Sasl(sasl) => {
                (&sasl.path, Passwords::read(&sasl.path).map(|new| sasl.passwords.replace(new)))
            }
            Logins::Text { path, tokens } => (path, Tokens::read(path).map(|new| tokens.replace(new))),
        };
        match outcome {
            Ok(()) => tracing::info!("{}: users read again", path.display()),
            Err(error) => tracing::error!("{error}; the users stay as they were"),
        }
    }

    /// The limits by which the dialects hold back strangers. `protocol`: what connections speak where nobody has to log in.
    pub(crate) fn limits(&self, protocol: DialectChoice) -> MemcachedLimits {
        match self {
            Logins::Off => MemcachedLimits { choice: protocol, ..MemcachedLimits::default() },
            Logins::Sasl(sasl) if sasl.takes_tokens => MemcachedLimits {
                choice: protocol,
                sasl: true,
                text_login: true,
                ..MemcachedLimits::default()
            },
            Logins::Sasl(_) => {
                MemcachedLimits { choice: DialectChoice::Binary, sasl: true, ..MemcachedLimits::default() }
            }
            Logins::Text { .. } => MemcachedLimits {
                choice: DialectChoice::Text,
                text_login: true,
                ..MemcachedLimits::default()
            },
        }
    }

    /// The names of the SASL mechanisms.
    pub(crate) fn mechanisms(&self) -> Option<&'static str> {
        matches!(self, Logins::Sasl(_)).then_some(MECHANISM)
    }

    /// Takes a message of the client whose connection is being served. After [`Outcome::Pending`] its login is
    /// [decided](Login::decided) once the ticket is ready.
    pub(crate) fn authenticate(
        &self,
        message: &Authenticate<'_>,
        login: &mut Login,
        waits: &mut Waits,
    ) -> Outcome {
        match self {
            Logins::Off => Outcome::Refused,
            Logins::Sasl(sasl) => sasl.authenticate(message, login, waits),
            Logins::Text { tokens, .. } => {
                let tokens = tokens.get();
                let admitted = message.token().is_some_and(|(user, password)| tokens.admits(user, password));
                if admitted { Outcome::Admitted } else { Outcome::Refused }
            }
        }
    }

    /// Whether anybody has to log in.
    pub(crate) fn are_wanted(&self) -> bool {
        !matches!(self, Logins::Off)
    }

    /// Whether [`verify_all`](Self::verify_all) has to run.
    pub(crate) fn are_slow(&self) -> bool {
        matches!(self, Logins::Sasl(_))
    }

    /// Checks passwords until [`close`](Self::close).
    pub(crate) fn verify_all(&self) {
        if let Logins::Sasl(sasl) = self {
            sasl.verifier.run(&sasl.passwords);
        }
    }

    pub(crate) fn close(&self) {
        if let Logins::Sasl(sasl) = self {
            sasl.verifier.close();
        }
    }
}

impl Sasl {
    fn authenticate(&self, message: &Authenticate<'_>, login: &mut Login, waits: &mut Waits) -> Outcome {
        let has_begun = std::mem::take(&mut login.has_begun);
        // The text dialect knows no mechanisms.
        let token = message.token().filter(|_| self.takes_tokens && message.mechanism.is_empty());
        let token = token.filter(|_| !message.continues);
        if token.is_some() {
            // It has all that is needed.
        } else if message.continues {
            if !has_begun {
                return Outcome::Refused;
            }
        } else if !message.mechanism.eq_ignore_ascii_case(MECHANISM.as_bytes()) {
            return Outcome::Refused;
        } else if message.response.is_empty() {
            login.has_begun = true;
            return Outcome::Challenge;
        }
        let Some((user, password)) = token.or_else(|| message.plain()) else { return Outcome::Refused };
        self.check(user, password, login, waits)
    }

    /// Finds out whether a user has this password.
    fn check(&self, user: &[u8], password: &[u8], login: &mut Login, waits: &mut Waits) -> Outcome {
        match self.passwords.get().glance(user, password) {
            Glance::Known => return Outcome::Admitted,
            Glance::Unknown => return Outcome::Refused,
            Glance::Unsure => {}
        }
        let handle = waits.enter_new();
        let ticket = handle.ticket;
        let attempt = Attempt::new(user, password, handle);
        if !self.verifier.submit(&attempt) {
            tracing::warn!("a login is refused unchecked: too many wait already");
            waits.leave(ticket);
            return Outcome::Refused;
        }
        login.attempt = Some(attempt);
        Outcome::Pending(ticket)
    }
}

/// A line of a password file: the user, and the password hashed with a salt of its own. Fails where the user's name
/// cannot stand in a line.
///
/// ```
/// let line = todana_server::password_line("alice", b"secret")?;
/// assert!(line.starts_with("alice:$argon2id$"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn password_line(user: &str, password: &[u8]) -> io::Result<String> {
    let is_strange = |c: char| c == ':' || c.is_control();
    if user.is_empty() || user.starts_with('#') || user.contains(is_strange) {
        let text = format!("the user {user:?} cannot be: it must not be empty, begin with # or hold a colon");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(format!("{user}:{}", password::hash(password)?))
}

/// Reads a file of users.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_LEN_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long for a list of users"));
    }
    Ok(text)
}

/// Its lines without their ends; the last may lack its own.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        line.strip_suffix(b"\r").unwrap_or(line)
    })
}
