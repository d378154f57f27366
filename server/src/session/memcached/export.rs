//! An export: a checkpoint, a backup or the update log, sent while it is created. Further requests
//! of its client are served after it.

use super::session::MemcachedSession;
use crate::databases::exports::ExportReceiver;
use crate::observation::connection_table::ConnectionState;
use crate::session::context::WorkerContext;
use crate::session::wake::{Wake, WakeTicket};
use crate::session::{AnySession, Next, RetainedMemory, Session, SessionTurn, Step};
use crate::transport::output::{OUTPUT_MAX, Output};
use todana_core::{RefusalReason, Reply};
use todana_protocol::memcached::ExportRequest;
use todana_protocol::memcached::{ReplyForm, encode};

/// The end of an export if the server stops first.
const STOPPING: &str = "SERVER_ERROR the server is stopping";

/// A connection that receives an export.
pub(crate) struct ExportSession {
    receiving: ExportReceiver,
    /// Ready when there is more to send.
    ticket: WakeTicket,
    /// The session that continues after the export.
    after: MemcachedSession,
    is_cancelled: bool,
    /// True once a part of the export has been written ...
    has_begun: bool,
    /// ... and its value when the connection began to wait for the update log.
    is_amid_reply: bool,
}

impl ExportSession {
    /// Starts an export to the connection of this session, or returns the reason for the refusal.
    pub(super) fn start(
        context: &mut WorkerContext,
        export: ExportRequest,
        session: &mut MemcachedSession,
    ) -> Result<ExportSession, &'static str> {
        let handle = context.waits.enter_new();
        let ticket = handle.ticket;
        let shared = &context.shared;
        let database = shared.databases.get(export.database as usize).map(|served| &served.database);
        let started = shared.persistence.exports.start(export, handle, database);
        let receiving = started.inspect_err(|_| context.waits.leave(ticket))?;
        Ok(ExportSession {
            receiving,
            ticket,
            after: session.take(),
            is_cancelled: false,
            has_begun: false,
            is_amid_reply: false,
        })
    }
}

impl Session for ExportSession {
    type Worker = ();

    fn begin_turn(&mut self) {
        self.is_amid_reply = self.has_begun;
    }

    fn advance(&mut self, _worker: &mut (), turn: &mut SessionTurn<'_>, _input: &[u8]) -> Step {
        let step = |next| Step { consumed: 0, next };
        if self.is_cancelled {
            encode(&ReplyForm::LINE, &Reply::Faulty(STOPPING), turn.output);
            return step(Next::Close);
        }
        if self.receiving.is_cut_off() {
            return step(Next::Close);
        }
        let (at, before) = (turn.output.end(), turn.output.len());
        if self.receiving.take(turn.output, OUTPUT_MAX) {
            let context = &mut *turn.context;
            if context.logs_requests {
                let sent = turn.output.copied_from(at);
                context.shared.observation.log_request(|entry| entry.end_of_export(context.descriptor, sent));
            }
            context.waits.leave(self.ticket);
            return step(Next::Become(Box::new(AnySession::Memcached(self.after.take()))));
        }
        self.has_begun |= turn.output.len() > before;
        step(if turn.output.is_empty() { Next::Wait } else { Next::Flush })
    }

    fn wake(&mut self, wake: Wake, _context: &mut WorkerContext) -> bool {
        let is_new = wake == Wake::Cancelled && !std::mem::replace(&mut self.is_cancelled, true);
        is_new || wake == Wake::Ready(self.ticket)
    }

    fn has_work(&self) -> bool {
        true
    }

    fn ends_with_peer(&self) -> bool {
        true
    }

    fn refuse(&self, refusal: RefusalReason, output: &mut Output) {
        if !self.is_amid_reply {
            encode(&ReplyForm::LINE, &Reply::Refused(refusal), output);
        }
    }

    fn shown_as(&self) -> Option<ConnectionState> {
        Some(ConnectionState::Sending)
    }

    fn retained(&self) -> RetainedMemory {
        self.after.retained()
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        context.waits.leave(self.ticket);
    }
}
