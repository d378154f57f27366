//! Defines a watcher: a connection that receives events and serves no more requests (`watch`).

use crate::observation::connection_table::ConnectionState;
use crate::session::wake::{WakeReason, WakeTicket};
use crate::session::worker_context::WorkerContext;
use crate::session::{NextAction, Session, SessionProgress, SessionTurn};
use crate::transport::output::ConnectionOutput;
use todana_core::{RefusalReason, Reply};
use todana_protocol::memcached::{ReplyForm, WatchStreams, encode};

/// A connection that watches events. Bytes that its client sends are discarded.
pub(crate) struct WatcherSession {
    descriptor: i32,
    /// The ticket that is ready when there are events to send.
    ticket: WakeTicket,
}

impl WatcherSession {
    /// Registers the connection that is being served as a watcher of these events. Returns `None`
    /// if there are too many watchers.
    pub(super) fn start(context: &mut WorkerContext, streams: WatchStreams) -> Option<WatcherSession> {
        let handle = context.waits.enter_new();
        let watcher = WatcherSession { descriptor: context.descriptor, ticket: handle.ticket };
        if context.shared.observation.observers.watch(watcher.descriptor, handle, streams) {
            return Some(watcher);
        }
        context.waits.leave(watcher.ticket);
        None
    }
}

impl Session for WatcherSession {
    type Worker = ();

    fn advance(&mut self, _worker: &mut (), turn: &mut SessionTurn<'_>, input: &[u8]) -> SessionProgress {
        turn.context.shared.observation.observers.watchers.move_to(self.descriptor, turn.output);
        SessionProgress { consumed: input.len(), next: NextAction::READ }
    }

    fn wake(&mut self, wake: WakeReason, _context: &mut WorkerContext) -> bool {
        wake == WakeReason::Ready(self.ticket)
    }

    fn has_work(&self) -> bool {
        true
    }

    fn refuse(&self, refusal: RefusalReason, output: &mut ConnectionOutput) {
        // Events are sent as complete lines, so that an error line may follow.
        encode(&ReplyForm::LINE, &Reply::Refused(refusal), output);
    }

    fn shown_as(&self) -> Option<ConnectionState> {
        Some(ConnectionState::Watching)
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        context.waits.leave(self.ticket);
        context.shared.observation.observers.unwatch(self.descriptor);
    }
}
