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

pub(crate) use basic::{BasicLogin, LoginVerdict};

use crate::options::AuthenticationMode;
use crate::session::wake::{WaitingConnections, WakeTicket};
use current::ReloadableFile;
use passwords::{PasswordFile, QuickVerdict};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_protocol::memcached::Authenticate;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits};
use tokens::LoginTokens;
use verifier::{LoginAttempt, PasswordVerifier};

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
    Sasl(Box<SaslLogin>),
    Text {
        path: PathBuf,
        tokens: ReloadableFile<LoginTokens>,
    },
}

pub(crate) struct SaslLogin {
    path: PathBuf,
    passwords: ReloadableFile<PasswordFile>,
    /// Those who speak the text dialect may log in too.
    takes_tokens: bool,
    verifier: PasswordVerifier,
}

/// How far a connection has come.
#[derive(Default)]
pub(crate) struct ConnectionLogin {
    /// The mechanism is chosen, the password to follow.
    has_begun: bool,
    /// Waiting to be decided, or to be answered.
    attempt: Option<Arc<LoginAttempt>>,
}

/// What comes of a message from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginOutcome {
    Admitted,
    Refused,
    /// The client is to say more.
    Challenge,
    /// It is being found out; this ticket is ready then.
    Pending(WakeTicket),
}

impl ConnectionLogin {
    /// Its password is still being checked.
    pub(crate) fn is_waiting(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.verdict().is_none())
    }

    /// Returns the outcome of its attempt, once; `None` if it has made none.
    pub(crate) fn decided(&mut self) -> Option<LoginOutcome> {
        let attempt = self.attempt.as_ref()?;
        let outcome = match attempt.verdict() {
            Some(true) => LoginOutcome::Admitted,
            Some(false) => LoginOutcome::Refused,
            None => return Some(LoginOutcome::Pending(attempt.ticket())),
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
                let passwords = ReloadableFile::new(PasswordFile::read(path).map_err(wrong)?);
                let takes_tokens = matches!(authentication, AuthenticationMode::Passwords(_));
                let (path, verifier) = (path.clone(), PasswordVerifier::default());
                Logins::Sasl(Box::new(SaslLogin { path, passwords, takes_tokens, verifier }))
            }
            AuthenticationMode::Text(path) => {
                let tokens = ReloadableFile::new(LoginTokens::read(path).map_err(wrong)?);
                Logins::Text { path: path.clone(), tokens }
            }
        })
    }

    /// Reads the file again. If it cannot be used the old users stay.
    pub(crate) fn reload(&self) {
        let (path, outcome) = match self {
            Logins::Off => return,
            Logins::Sasl(sasl) => {
                (&sasl.path, PasswordFile::read(&sasl.path).map(|new| sasl.passwords.replace(new)))
            }
            Logins::Text { path, tokens } => (path, LoginTokens::read(path).map(|new| tokens.replace(new))),
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

    /// Takes a message of the client whose connection is being served. After [`LoginOutcome::Pending`] its login is
    /// [decided](ConnectionLogin::decided) once the ticket is ready.
    pub(crate) fn authenticate(
        &self,
        message: &Authenticate<'_>,
        login: &mut ConnectionLogin,
        waits: &mut WaitingConnections,
    ) -> LoginOutcome {
        match self {
            Logins::Off => LoginOutcome::Refused,
            Logins::Sasl(sasl) => sasl.authenticate(message, login, waits),
            Logins::Text { tokens, .. } => {
                let tokens = tokens.get();
                let admitted = message.token().is_some_and(|(user, password)| tokens.admits(user, password));
                if admitted { LoginOutcome::Admitted } else { LoginOutcome::Refused }
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

impl SaslLogin {
    fn authenticate(
        &self,
        message: &Authenticate<'_>,
        login: &mut ConnectionLogin,
        waits: &mut WaitingConnections,
    ) -> LoginOutcome {
        let has_begun = std::mem::take(&mut login.has_begun);
        // The text dialect knows no mechanisms.
        let token = message.token().filter(|_| self.takes_tokens && message.mechanism.is_empty());
        let token = token.filter(|_| !message.continues);
        if token.is_some() {
            // It has all that is needed.
        } else if message.continues {
            if !has_begun {
                return LoginOutcome::Refused;
            }
        } else if !message.mechanism.eq_ignore_ascii_case(MECHANISM.as_bytes()) {
            return LoginOutcome::Refused;
        } else if message.response.is_empty() {
            login.has_begun = true;
            return LoginOutcome::Challenge;
        }
        let Some((user, password)) = token.or_else(|| message.plain()) else { return LoginOutcome::Refused };
        self.check(user, password, login, waits)
    }

    /// Finds out whether a user has this password.
    fn check(
        &self,
        user: &[u8],
        password: &[u8],
        login: &mut ConnectionLogin,
        waits: &mut WaitingConnections,
    ) -> LoginOutcome {
        match self.passwords.get().glance(user, password) {
            QuickVerdict::Known => return LoginOutcome::Admitted,
            QuickVerdict::Unknown => return LoginOutcome::Refused,
            QuickVerdict::Unsure => {}
        }
        let handle = waits.enter_new();
        let ticket = handle.ticket;
        let attempt = LoginAttempt::new(user, password, handle);
        if !self.verifier.submit(&attempt) {
            tracing::warn!("a login is refused unchecked: too many wait already");
            waits.leave(ticket);
            return LoginOutcome::Refused;
        }
        login.attempt = Some(attempt);
        LoginOutcome::Pending(ticket)
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
