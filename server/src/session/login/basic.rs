//! Checks HTTP logins. Each request carries the name and the password. A connection remembers the
//! bytes of the last admitted login, so that the same bytes need no second check.
//!
//! They are remembered until the file of users is read again, so that a removed user is refused at
//! the next request.

use super::{ConnectionLogin, LoginAuthenticator, LoginOutcome};
use crate::session::wake::{WaitingConnections, WakeTicket};
use std::hint::black_box;
use todana_protocol::kyoto::BasicCredentials;

/// The login of a connection: the running check, and the admitted bytes.
#[derive(Default)]
pub(crate) struct BasicLogin {
    login: ConnectionLogin,
    /// The generation of the file of users with which the running check was started.
    asked: u64,
    remembered: Option<AdmittedLogin>,
}

struct AdmittedLogin {
    /// The generation of the file of users that admitted this login.
    generation: u64,
    authorization: Box<[u8]>,
}

/// The verdict about a request's login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginVerdict {
    /// The same bytes were admitted before.
    Known,
    /// A check has admitted the login.
    Admitted,
    /// The name or the password is wrong.
    Refused,
    /// The request carries no login.
    Nameless,
    /// The check is running. When it ends, this ticket becomes ready.
    Pending(WakeTicket),
}

impl BasicLogin {
    /// Returns true while a password is being checked.
    pub(crate) fn is_waiting(&self) -> bool {
        self.login.is_waiting()
    }

    /// Returns the ticket of the password check that is running or has just ended.
    pub(crate) fn ticket(&self) -> Option<WakeTicket> {
        self.login.attempt.as_ref().map(|attempt| attempt.ticket())
    }

    /// Returns the memory that the login keeps.
    pub(crate) fn kept_len(&self) -> usize {
        self.remembered.as_ref().map_or(0, |remembered| remembered.authorization.len())
    }
}

impl LoginAuthenticator {
    /// Returns the verdict about a request with this `Authorization` header, on the connection that
    /// is being served. After [`LoginVerdict::Pending`], call it again with the same value once the
    /// ticket is ready.
    pub(crate) fn pass(
        &self,
        authorization: Option<&[u8]>,
        basic: &mut BasicLogin,
        waits: &mut WaitingConnections,
    ) -> LoginVerdict {
        let Some(authorization) = authorization else { return LoginVerdict::Nameless };
        let is_same = |remembered: &AdmittedLogin| {
            remembered.generation == self.generation() && are_equal(&remembered.authorization, authorization)
        };
        if basic.remembered.as_ref().is_some_and(is_same) {
            return LoginVerdict::Known;
        }
        basic.remembered = None;
        let outcome = basic.login.decided().unwrap_or_else(|| {
            basic.asked = self.generation();
            match (self, BasicCredentials::read(authorization)) {
                (LoginAuthenticator::Off, _) | (_, None) => LoginOutcome::Refused,
                (LoginAuthenticator::Sasl(sasl), Some(said)) => {
                    sasl.check(said.user(), said.password(), &mut basic.login, waits)
                }
                (LoginAuthenticator::Text { tokens, .. }, Some(said)) => {
                    let is_right = tokens.get().admits(said.user(), said.password());
                    if is_right { LoginOutcome::Admitted } else { LoginOutcome::Refused }
                }
            }
        });
        match outcome {
            LoginOutcome::Admitted => {
                basic.remembered =
                    Some(AdmittedLogin { generation: basic.asked, authorization: authorization.into() });
                LoginVerdict::Admitted
            }
            LoginOutcome::Pending(ticket) => LoginVerdict::Pending(ticket),
            LoginOutcome::Refused | LoginOutcome::Challenge => LoginVerdict::Refused,
        }
    }

    fn generation(&self) -> u64 {
        match self {
            LoginAuthenticator::Off => 0,
            LoginAuthenticator::Sasl(sasl) => sasl.passwords.generation(),
            LoginAuthenticator::Text { tokens, .. } => tokens.generation(),
        }
    }
}

/// Compares in constant time if both values have the same length.
pub(crate) fn are_equal(one: &[u8], other: &[u8]) -> bool {
    let differ = |found: u8, (one, other): (&u8, &u8)| black_box(found | (one ^ other));
    one.len() == other.len() && one.iter().zip(other).fold(0, differ) == 0
}
