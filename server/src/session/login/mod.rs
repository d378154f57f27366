//! Logins: the known users, the password checks, and the login state of each connection.
//!
//! ```text
//! tokens           names and passwords for the text dialect (-Y)
//! passwords        names and hashed passwords for SASL, and for tokens beside it (-S)
//! password         one hashed password
//! digest           keyed digests, which are compared instead of passwords
//! verifier         slow checks, on a thread of their own
//! basic            HTTP's logins, which come with each request
//! reloadable_file  values that are replaced while others use them
//! ```
//!
//! Invariants: a worker never computes a slow hash; neither the answer nor its time reveals if the
//! user exists. Not here: the requests that are allowed without a login, which the dialects know.

mod basic;
mod digest;
mod password;
mod passwords;
mod reloadable_file;
mod tokens;
mod verifier;

pub(crate) use basic::{BasicLogin, LoginVerdict, are_equal};

use crate::options::AuthenticationMode;
use crate::session::wake::{WaitingConnections, WakeTicket};
use passwords::{PasswordFile, QuickVerdict};
use reloadable_file::ReloadableFile;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_protocol::memcached::LoginCredentials;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits};
use tokens::LoginTokens;
use verifier::{LoginAttempt, PasswordVerifier};

/// The only SASL mechanism. Mechanisms that do not send the password require that the server stores
/// it in plain text; TLS protects it better.
const MECHANISM: &str = "PLAIN";

/// The maximum length of a file of users.
const FILE_LEN_MAX: u64 = 16 << 20;

/// The error of a file of users; the text names the reason.
#[derive(Debug)]
pub struct LoginError(String);

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoginError {}

/// The users that may log in.
pub(crate) enum LoginAuthenticator {
    /// No login is required.
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
    /// True if clients of the text dialect may log in, too.
    takes_tokens: bool,
    verifier: PasswordVerifier,
}

/// The login state of a connection.
#[derive(Default)]
pub(crate) struct ConnectionLogin {
    /// True if the mechanism is chosen and the password must follow.
    has_begun: bool,
    /// The attempt whose password is being checked, or whose outcome has not been sent.
    attempt: Option<Arc<LoginAttempt>>,
}

/// The outcome of a client's login message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginOutcome {
    Admitted,
    Refused,
    /// The client must send more.
    Challenge,
    /// The check is running. When it ends, this ticket becomes ready.
    Pending(WakeTicket),
}

impl ConnectionLogin {
    /// Returns true while the password is being checked.
    pub(crate) fn is_waiting(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.verdict().is_none())
    }

    /// Takes the outcome of the attempt. Returns `None` if there is no attempt or no outcome yet.
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

impl LoginAuthenticator {
    /// Reads the file of users, if there is one.
    pub(crate) fn open(authentication: &AuthenticationMode) -> io::Result<LoginAuthenticator> {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        Ok(match authentication {
            AuthenticationMode::None => LoginAuthenticator::Off,
            AuthenticationMode::Sasl(path) | AuthenticationMode::Passwords(path) => {
                let passwords = ReloadableFile::new(PasswordFile::read(path).map_err(wrong)?);
                let takes_tokens = matches!(authentication, AuthenticationMode::Passwords(_));
                let (path, verifier) = (path.clone(), PasswordVerifier::default());
                LoginAuthenticator::Sasl(Box::new(SaslLogin { path, passwords, takes_tokens, verifier }))
            }
            AuthenticationMode::Text(path) => {
                let tokens = ReloadableFile::new(LoginTokens::read(path).map_err(wrong)?);
                LoginAuthenticator::Text { path: path.clone(), tokens }
            }
        })
    }

    /// Reads the file again. If it cannot be read, the old users stay valid.
    pub(crate) fn reload(&self) {
        let (path, outcome) = match self {
            LoginAuthenticator::Off => return,
            LoginAuthenticator::Sasl(sasl) => {
                (&sasl.path, PasswordFile::read(&sasl.path).map(|new| sasl.passwords.replace(new)))
            }
            LoginAuthenticator::Text { path, tokens } => {
                (path, LoginTokens::read(path).map(|new| tokens.replace(new)))
            }
        };
        match outcome {
            Ok(()) => tracing::info!("{}: users reloaded", path.display()),
            Err(error) => tracing::error!("{error}; the old users stay in force"),
        }
    }

    /// Returns the limits of requests for connections that are not logged in. `protocol` is the
    /// dialect of the server if no login is required.
    pub(crate) fn limits(&self, protocol: DialectChoice) -> MemcachedLimits {
        match self {
            LoginAuthenticator::Off => MemcachedLimits { choice: protocol, ..MemcachedLimits::default() },
            LoginAuthenticator::Sasl(sasl) if sasl.takes_tokens => MemcachedLimits {
                choice: protocol,
                sasl: true,
                text_login: true,
                ..MemcachedLimits::default()
            },
            LoginAuthenticator::Sasl(_) => {
                MemcachedLimits { choice: DialectChoice::Binary, sasl: true, ..MemcachedLimits::default() }
            }
            LoginAuthenticator::Text { .. } => MemcachedLimits {
                choice: DialectChoice::Text,
                text_login: true,
                ..MemcachedLimits::default()
            },
        }
    }

    /// Returns the names of the SASL mechanisms.
    pub(crate) fn mechanisms(&self) -> Option<&'static str> {
        matches!(self, LoginAuthenticator::Sasl(_)).then_some(MECHANISM)
    }

    /// Handles a login message of the connection that is being served. After
    /// [`LoginOutcome::Pending`], call [`decided`](ConnectionLogin::decided) for its outcome once
    /// the ticket is ready.
    pub(crate) fn authenticate(
        &self,
        message: &LoginCredentials<'_>,
        login: &mut ConnectionLogin,
        waits: &mut WaitingConnections,
    ) -> LoginOutcome {
        match self {
            LoginAuthenticator::Off => LoginOutcome::Refused,
            LoginAuthenticator::Sasl(sasl) => sasl.authenticate(message, login, waits),
            LoginAuthenticator::Text { tokens, .. } => {
                let tokens = tokens.get();
                let admitted = message.token().is_some_and(|(user, password)| tokens.admits(user, password));
                if admitted { LoginOutcome::Admitted } else { LoginOutcome::Refused }
            }
        }
    }

    /// Checks the login of a replica, on the connection that is being served. After
    /// [`LoginOutcome::Pending`], call [`decided`](ConnectionLogin::decided) for its outcome once
    /// the ticket is ready.
    pub(crate) fn admit_replica(
        &self,
        user: &[u8],
        password: &[u8],
        login: &mut ConnectionLogin,
        waits: &mut WaitingConnections,
    ) -> LoginOutcome {
        match self {
            LoginAuthenticator::Off => LoginOutcome::Admitted,
            LoginAuthenticator::Sasl(sasl) => sasl.check(user, password, login, waits),
            LoginAuthenticator::Text { tokens, .. } => match tokens.get().admits(user, password) {
                true => LoginOutcome::Admitted,
                false => LoginOutcome::Refused,
            },
        }
    }

    /// Returns true if a login is required.
    pub(crate) fn are_wanted(&self) -> bool {
        !matches!(self, LoginAuthenticator::Off)
    }

    /// Returns true if [`verify_all`](Self::verify_all) must run on a thread.
    pub(crate) fn are_slow(&self) -> bool {
        matches!(self, LoginAuthenticator::Sasl(_))
    }

    /// Checks passwords until [`close`](Self::close) is called.
    pub(crate) fn verify_all(&self) {
        if let LoginAuthenticator::Sasl(sasl) = self {
            sasl.verifier.run(&sasl.passwords);
        }
    }

    pub(crate) fn close(&self) {
        if let LoginAuthenticator::Sasl(sasl) = self {
            sasl.verifier.close();
        }
    }
}

impl SaslLogin {
    fn authenticate(
        &self,
        message: &LoginCredentials<'_>,
        login: &mut ConnectionLogin,
        waits: &mut WaitingConnections,
    ) -> LoginOutcome {
        let has_begun = std::mem::take(&mut login.has_begun);
        // The text dialect has no mechanisms.
        let token = message.token().filter(|_| self.takes_tokens && message.mechanism.is_empty());
        let token = token.filter(|_| !message.continues);
        if token.is_some() {
            // The last part of the login has arrived.
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

    /// Checks whether a user has this password. Starts a slow check if one is needed.
    fn check(
        &self,
        user: &[u8],
        password: &[u8],
        login: &mut ConnectionLogin,
        waits: &mut WaitingConnections,
    ) -> LoginOutcome {
        match self.passwords.get().check_quickly(user, password) {
            QuickVerdict::Known => return LoginOutcome::Admitted,
            QuickVerdict::Unknown => return LoginOutcome::Refused,
            QuickVerdict::Unsure => {}
        }
        let handle = waits.enter_new();
        let ticket = handle.ticket;
        let attempt = LoginAttempt::new(user, password, handle);
        if !self.verifier.submit(&attempt) {
            tracing::warn!("login: refused unchecked, because too many logins wait");
            waits.leave(ticket);
            return LoginOutcome::Refused;
        }
        login.attempt = Some(attempt);
        LoginOutcome::Pending(ticket)
    }
}

/// Returns a line of a password file: the user, and the password hashed with a new salt. Fails if
/// the name of the user cannot be part of a line.
///
/// ```
/// let line = todana_server::password_line("alice", b"secret")?;
/// assert!(line.starts_with("alice:$argon2id$"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn password_line(user: &str, password: &[u8]) -> io::Result<String> {
    let is_strange = |c: char| c == ':' || c.is_control();
    if user.is_empty() || user.starts_with('#') || user.contains(is_strange) {
        let text = format!(
            "user {user:?}: the name must not be empty, begin with #, or contain a colon or control characters"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(format!("{user}:{}", password::hash(password)?))
}

/// Reads a file of users.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_LEN_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "file is too long"));
    }
    Ok(text)
}

/// Returns the lines without their ends. The last line may lack its end.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        line.strip_suffix(b"\r").unwrap_or(line)
    })
}
