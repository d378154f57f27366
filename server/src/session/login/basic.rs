//! HTTP logins. Each request carries a name and a password in the same bytes, so a connection
//! remembers the bytes that were admitted.
//!
//! They stay admitted until the file of users is read again, so that a removed user is refused with
//! the next request.

use super::{ConnectionLogin, LoginOutcome, Logins};
use crate::session::wake::{WaitingConnections, WakeTicket};
use std::hint::black_box;
use todana_protocol::kyoto::BasicCredentials;

/// The login of a connection: the check under way, and the admitted bytes.
#[derive(Default)]
pub(crate) struct BasicLogin {
    login: ConnectionLogin,
    /// The generation of the file of users that checks the password.
    asked: u64,
    remembered: Option<AdmittedLogin>,
}

struct AdmittedLogin {
    /// The generation of the file of users that admitted it.
    generation: u64,
    authorization: Box<[u8]>,
}

/// The verdict about a request's login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginVerdict {
    /// Admitted before, with the same bytes.
    Known,
    /// Admitted by a check.
    Admitted,
    /// The name or the password is wrong.
    Refused,
    /// The request carries no login.
    Nameless,
    /// The check is under way; this ticket becomes ready.
    Pending(WakeTicket),
}

impl BasicLogin {
    /// Returns true while a password is being checked.
    pub(crate) fn is_waiting(&self) -> bool {
        self.login.is_waiting()
    }

    /// Returns the ticket of the password check under way or just completed.
    pub(crate) fn ticket(&self) -> Option<WakeTicket> {
        self.login.attempt.as_ref().map(|attempt| attempt.ticket())
    }

    /// Returns the memory that it keeps.
    pub(crate) fn kept_len(&self) -> usize {
        self.remembered.as_ref().map_or(0, |remembered| remembered.authorization.len())
    }
}

impl Logins {
    /// Returns the verdict about a request with this `Authorization` on the connection that is
    /// being served. After [`LoginVerdict::Pending`], call it again with the same value once the
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
                (Logins::Off, _) | (_, None) => LoginOutcome::Refused,
                (Logins::Sasl(sasl), Some(said)) => {
                    sasl.check(said.user(), said.password(), &mut basic.login, waits)
                }
                (Logins::Text { tokens, .. }, Some(said)) => {
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
            Logins::Off => 0,
            Logins::Sasl(sasl) => sasl.passwords.generation(),
            Logins::Text { tokens, .. } => tokens.generation(),
        }
    }
}

/// Compares in constant time for values of one length.
fn are_equal(one: &[u8], other: &[u8]) -> bool {
    let differ = |found: u8, (one, other): (&u8, &u8)| black_box(found | (one ^ other));
    one.len() == other.len() && one.iter().zip(other).fold(0, differ) == 0
}
