//! The greeting of a replica in Todana's own protocol. After it, the connection is passed to a
//! thread of its own (`replica::native`).

use super::login::{ConnectionLogin, LoginOutcome};
use super::wake::{WakeReason, WakeTicket};
use super::worker_context::WorkerContext;
use super::{NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::transport::output::ConnectionOutput;
use todana_protocol::ReplySink;
use todana_protocol::replication::{FrameDecoder, GREETING, MasterWelcome, ReplicaHello, VERSION};

/// The longest greeting in bytes, with room for all databases and their paths.
const GREETING_LEN_MAX: usize = 192 << 10;

/// The connection of a replica, until its greeting is complete and its login is admitted.
#[derive(Default)]
pub(crate) struct ReplicaSession {
    frames: FrameDecoder,
    has_greeted: bool,
    /// The number of bytes that have arrived.
    len: usize,
    hello: Option<ReplicaHello>,
    login: ConnectionLogin,
    ticket: Option<WakeTicket>,
    is_admitted: bool,
}

impl ReplicaSession {
    /// Returns the greeting, if the replica may follow this server.
    pub(crate) fn into_hello(self) -> Option<ReplicaHello> {
        self.hello.filter(|_| self.is_admitted)
    }

    /// Reads the greeting. Returns the number of consumed bytes, and what follows.
    fn read(
        &mut self,
        context: &mut WorkerContext,
        input: &[u8],
        output: &mut ConnectionOutput,
    ) -> (usize, NextAction) {
        let mut consumed = 0;
        if !self.has_greeted {
            let Some(greeting) = input.first_chunk::<{ GREETING.len() }>() else {
                return (0, NextAction::READ);
            };
            if greeting[..7] != GREETING[..7] {
                return (0, NextAction::Fail);
            }
            if greeting[7] != VERSION {
                let why = format!(
                    "the replica speaks version {} of the protocol, its master version {VERSION}",
                    greeting[7]
                );
                return (input.len(), refuse(&why, output));
            }
            self.has_greeted = true;
            consumed = GREETING.len();
        }
        if self.hello.is_none() {
            self.len += input.len() - consumed;
            if self.len > GREETING_LEN_MAX {
                return (consumed, NextAction::Fail);
            }
            self.frames.push(&input[consumed..]);
            consumed = input.len();
            match self.frames.next_content().map(|content| content.map(ReplicaHello::read)) {
                Ok(None) => return (consumed, NextAction::READ),
                Ok(Some(Ok(hello))) => self.hello = Some(hello),
                Ok(Some(Err(_))) | Err(_) => return (consumed, NextAction::Fail),
            }
        }
        (consumed, self.log_in(context, output))
    }

    fn log_in(&mut self, context: &mut WorkerContext, output: &mut ConnectionOutput) -> NextAction {
        let Some(hello) = &self.hello else { return NextAction::Fail };
        let outcome = self.login.decided().unwrap_or_else(|| {
            let logins = &context.shared.logins;
            logins.admit_replica(&hello.user, &hello.password, &mut self.login, &mut context.waits)
        });
        match outcome {
            LoginOutcome::Pending(ticket) => {
                self.ticket = Some(ticket);
                NextAction::Wait
            }
            LoginOutcome::Admitted => {
                self.is_admitted = true;
                NextAction::Close
            }
            LoginOutcome::Refused | LoginOutcome::Challenge => {
                refuse("the login of the replica is wrong or missing", output)
            }
        }
    }
}

fn refuse(why: &str, output: &mut ConnectionOutput) -> NextAction {
    let mut bytes = Vec::new();
    MasterWelcome::put_refusal(why, &mut bytes);
    output.put(&bytes);
    NextAction::Close
}

impl Session for ReplicaSession {
    type Worker = ();

    fn advance(&mut self, _worker: &mut (), turn: &mut SessionTurn<'_>, input: &[u8]) -> SessionProgress {
        let (consumed, next) = self.read(turn.context, input, turn.output);
        SessionProgress { consumed, next }
    }

    fn wake(&mut self, _wake: WakeReason, context: &mut WorkerContext) -> bool {
        if let Some(ticket) = self.ticket.take() {
            context.waits.leave(ticket);
        }
        true
    }

    fn is_waiting(&self) -> bool {
        self.login.is_waiting()
    }

    fn has_work(&self) -> bool {
        self.ticket.is_none() && self.hello.is_some()
    }

    fn retained(&self) -> RetainedMemory {
        RetainedMemory { own: self.frames.kept_len(), of_engine: 0 }
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        if let Some(ticket) = self.ticket.take() {
            context.waits.leave(ticket);
        }
    }
}
