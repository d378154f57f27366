//! HTTP's logins: each request says a name and a password, in the same bytes again and again, so a connection remembers those
//! that it was let in for.
//!
//! What is remembered holds until the file of users is read again, so that who is taken out of it is out with the next request.

use super::{ConnectionLogin, LoginOutcome, Logins};
use crate::session::wake::{WaitingConnections, WakeTicket};
use std::hint::black_box;
use todana_protocol::kyoto::BasicCredentials;

/// How far a connection has come with the request at hand, and what it was let in for.
#[derive(Default)]
pub(crate) struct BasicLogin {
    login: ConnectionLogin,
    /// The users, by their number, that are asked whether the password is right.
    asked: u64,
    remembered: Option<AdmittedLogin>,
}

struct AdmittedLogin {
    /// The users, by their number, that were asked.
    generation: u64,
    authorization: Box<[u8]>,
}

/// Whether a request may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginVerdict {
    /// By what is remembered.
    Known,
    /// By what has been found out.
    Admitted,
    /// Its name and password are not right.
    Refused,
    /// It has none.
    Nameless,
    /// It is being found out; this ticket is ready then.
    Pending(WakeTicket),
}

impl BasicLogin {
    /// A password is still being checked.
    pub(crate) fn is_waiting(&self) -> bool {
        self.login.is_waiting()
    }

    /// Returns the ticket of the password that is being checked, or has just been.
    pub(crate) fn ticket(&self) -> Option<WakeTicket> {
        self.login.attempt.as_ref().map(|attempt| attempt.ticket())
    }

    /// Memory that it keeps.
    pub(crate) fn kept_len(&self) -> usize {
        self.remembered.as_ref().map_or(0, |remembered| remembered.authorization.len())
    }
}

impl Logins {
    /// Returns whether a request with this `Authorization` may come in, on the connection that is being served. After
    /// [`LoginVerdict::Pending`] it is to be called with the same again once the ticket is ready.
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

/// Takes the same time wherever the two of one length differ.
fn are_equal(one: &[u8], other: &[u8]) -> bool {
    let differ = |found: u8, (one, other): (&u8, &u8)| black_box(found | (one ^ other));
    one.len() == other.len() && one.iter().zip(other).fold(0, differ) == 0
}
