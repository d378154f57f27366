//! The login of a client of the proxy.

use crate::session::login::{ConnectionLogin, LoginOutcome};
use crate::session::wake::{WaitingConnections, WakeReason, WakeTicket};
use crate::shared::SharedState;
use todana_core::{RefusalReason, Reply};
use todana_protocol::memcached::{LoginCredentials, MemcachedDecoder, ReplyForm, encode};

/// The login of a client.
#[derive(Default)]
pub(super) struct ClientLogin {
    login: ConnectionLogin,
    /// The check of a password that is under way, and the form of its reply.
    pending: Option<Box<(WakeTicket, ReplyForm<'static>)>>,
}

impl ClientLogin {
    /// Returns true while a password is checked. No request may be decoded meanwhile.
    pub(super) fn is_waiting(&self) -> bool {
        self.login.is_waiting()
    }

    /// Returns true if [`end`](Self::end) must be called.
    pub(super) fn is_decided(&self) -> bool {
        self.pending.is_some() && !self.is_waiting()
    }

    /// Handles a message of a login. Returns the reply, unless a password has to be checked first.
    pub(super) fn begin(
        &mut self,
        message: &LoginCredentials<'_>,
        form: &ReplyForm<'_>,
        decoder: &mut MemcachedDecoder,
        (shared, waits): (&SharedState, &mut WaitingConnections),
    ) -> Option<Vec<u8>> {
        match shared.logins.authenticate(message, &mut self.login, waits) {
            LoginOutcome::Pending(ticket) => {
                self.pending = Some(Box::new((ticket, form.detached())));
                None
            }
            outcome => Some(reply_to(&outcome, form, decoder)),
        }
    }

    /// Returns the reply to a login whose password has been checked.
    pub(super) fn end(&mut self, decoder: &mut MemcachedDecoder) -> Option<Vec<u8>> {
        if self.is_waiting() {
            return None;
        }
        let (_, form) = *self.pending.take()?;
        let outcome = self.login.decided().unwrap_or(LoginOutcome::Refused);
        Some(reply_to(&outcome, &form, decoder))
    }

    /// Notes a wake-up. Returns true if the session needs a turn.
    pub(super) fn wake(&mut self, wake: WakeReason, waits: &mut WaitingConnections) -> bool {
        let is_ready = |ticket: WakeTicket| wake == WakeReason::Ready(ticket);
        let Some(pending) = self.pending.as_ref().filter(|pending| is_ready(pending.0)) else { return false };
        waits.leave(pending.0);
        true
    }

    /// Ends the wait for a check, because the connection closes.
    pub(super) fn leave(&mut self, waits: &mut WaitingConnections) {
        if let Some(pending) = self.pending.take() {
            waits.leave(pending.0);
        }
    }
}

fn reply_to(outcome: &LoginOutcome, form: &ReplyForm<'_>, decoder: &mut MemcachedDecoder) -> Vec<u8> {
    let reply = match outcome {
        LoginOutcome::Admitted => {
            decoder.accept_login();
            Reply::Authenticated
        }
        LoginOutcome::Challenge => {
            decoder.revoke_login();
            Reply::Challenge(b"")
        }
        LoginOutcome::Refused | LoginOutcome::Pending(_) => {
            decoder.revoke_login();
            Reply::Refused(RefusalReason::NotAuthenticated)
        }
    };
    let mut bytes = Vec::new();
    encode(form, &reply, &mut bytes);
    bytes
}
