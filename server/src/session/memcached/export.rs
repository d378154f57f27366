//! Defines a session that receives an export: a checkpoint, a backup or the update log, which is
//! sent while it is created. The client's next requests are served after the export.

use super::session::MemcachedSession;
use crate::databases::exports::ExportReceiver;
use crate::observation::connection_table::ConnectionState;
use crate::session::wake::{WakeReason, WakeTicket};
use crate::session::worker_context::WorkerContext;
use crate::session::{AnySession, NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::transport::output::{ConnectionOutput, OUTPUT_MAX};
use std::sync::Arc;
use todana_core::{RefusalReason, Reply};
use todana_protocol::memcached::{ExportKind, ExportRequest};
use todana_protocol::memcached::{ReplyForm, encode};

/// The line that ends an export if the server stops before the export is complete.
const STOPPING: &str = "SERVER_ERROR the server is stopping";

/// A connection that receives an export.
pub(crate) struct ExportSession {
    receiving: ExportReceiver,
    /// The ticket that is ready when there is more to send.
    ticket: WakeTicket,
    /// The session that continues after the export.
    after: MemcachedSession,
    is_cancelled: bool,
    /// True once a part of the export has been written.
    has_begun: bool,
    /// The value of `has_begun` when the connection began to wait for the update log.
    is_reply_begun: bool,
}

impl ExportSession {
    /// Starts an export to the connection of this session. Returns the reason if the export is
    /// refused.
    pub(super) fn start(
        context: &mut WorkerContext,
        export: ExportRequest,
        session: &mut MemcachedSession,
    ) -> Result<ExportSession, &'static str> {
        let handle = context.waits.enter_new();
        let ticket = handle.ticket;
        let shared = &context.shared;
        let database = shared.databases.get(export.database as usize).map(|served| &served.database);
        let exports = &shared.persistence.exports;
        let started = match export.what {
            ExportKind::Promotion { is_forced } => {
                let its_own = Arc::clone(shared);
                let promote = move || {
                    let outcome = its_own.master_link.promote(&its_own, is_forced);
                    outcome.unwrap_or_else(|why| format!("SERVER_ERROR {why}"))
                };
                exports.start_call(export, handle, &shared.databases.primary().database, promote)
            }
            _ => exports.start(export, handle, database),
        };
        let receiving = started.inspect_err(|_| context.waits.leave(ticket))?;
        Ok(ExportSession {
            receiving,
            ticket,
            after: session.take(),
            is_cancelled: false,
            has_begun: false,
            is_reply_begun: false,
        })
    }
}

impl Session for ExportSession {
    type Worker = ();

    fn begin_turn(&mut self) {
        self.is_reply_begun = self.has_begun;
    }

    fn advance(&mut self, _worker: &mut (), turn: &mut SessionTurn<'_>, _input: &[u8]) -> SessionProgress {
        let step = |next| SessionProgress { consumed: 0, next };
        if self.is_cancelled {
            encode(&ReplyForm::LINE, &Reply::Faulty(STOPPING), turn.output);
            return step(NextAction::Close);
        }
        if self.receiving.is_cut_off() {
            return step(NextAction::Close);
        }
        let (at, before) = (turn.output.end(), turn.output.len());
        if self.receiving.take(turn.output, OUTPUT_MAX) {
            let context = &mut *turn.context;
            if context.logs_requests {
                let sent = turn.output.copied_from(at);
                context.shared.observation.log_request(|entry| entry.end_of_export(context.descriptor, sent));
            }
            context.waits.leave(self.ticket);
            return step(NextAction::Become(Box::new(AnySession::Memcached(self.after.take()))));
        }
        self.has_begun |= turn.output.len() > before;
        step(if turn.output.is_empty() { NextAction::Wait } else { NextAction::Flush })
    }

    fn wake(&mut self, wake: WakeReason, _context: &mut WorkerContext) -> bool {
        let is_new = wake == WakeReason::Cancelled && !std::mem::replace(&mut self.is_cancelled, true);
        is_new || wake == WakeReason::Ready(self.ticket)
    }

    fn has_work(&self) -> bool {
        true
    }

    fn ends_with_peer(&self) -> bool {
        true
    }

    fn refuse(&self, refusal: RefusalReason, output: &mut ConnectionOutput) {
        if !self.is_reply_begun {
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
