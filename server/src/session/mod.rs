//! Sessions: requests decoded, executed and answered, by dialect.
//!
//! ```text
//! dispatch    calls of a connection's session, in any dialect
//! detect      detection of the dialect by the first bytes
//! wake        tickets, deadlines, and the queue of wake-ups of each worker
//! pending     replies of executors that have not come yet
//! background  long work on threads of their own
//! context     the state that the sessions of one worker share
//! login       logins, for all dialects
//! echo        the smallest dialect, in tests only: the parts of a new one
//! memcached   memcached's dialects; watchers and exports, which begin there
//! kyoto       Kyoto Tycoon's protocols, and memcached's in the form of its plug-in
//! ```
//!
//! A worker reads, passes the bytes to the session of their connection, does what [`Next`] says,
//! and sends the output that the session has written. A dialect is a type that implements
//! [`Session`], a variant of [`AnySession`], and a row in `detect`.
//!
//! Invariants: a session never blocks its worker; replies leave in the order of their requests.
//! Not here: sockets (`transport`), the effect of operations (`execution`).

pub(crate) mod background;
pub(crate) mod context;
mod detect;
pub(crate) mod dispatch;
#[cfg(test)]
mod echo;
pub(crate) mod kyoto;
pub(crate) mod login;
pub(crate) mod memcached;
pub(crate) mod pending;
pub(crate) mod wake;

use crate::databases::pending_commits::Changes;
use crate::observation::connection_table::ConnectionState;
use crate::transport::output::Output;
use context::WorkerContext;
use kyoto::{KyotoSession, PluginSession};
use memcached::export::ExportSession;
use memcached::session::MemcachedSession;
use memcached::upload::ValueUpload;
use memcached::watcher::WatcherSession;
use todana_core::RefusalReason;
use wake::Wake;

/// The number of requests decoded before the first one is executed, so that their records are
/// fetched into the cache together.
pub(crate) const BATCH: usize = 16;

/// One connection's conversation in one dialect.
pub(crate) trait Session {
    /// The state of a worker for all its sessions of this dialect, such as buffers.
    type Worker;

    /// Notes the begin of a turn.
    fn begin_turn(&mut self) {}

    /// Continues unfinished work and serves `input`: decodes requests, executes them, and writes
    /// replies to the turn's output.
    fn advance(&mut self, worker: &mut Self::Worker, turn: &mut SessionTurn<'_>, input: &[u8]) -> Step;

    /// Ends a wait; returns true if the connection gets a turn.
    fn wake(&mut self, _wake: Wake, _context: &mut WorkerContext) -> bool {
        false
    }

    /// Returns true if the session waits for a wake-up and does nothing before that.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Returns true if there is work to do before anything is read.
    fn has_work(&self) -> bool {
        false
    }

    /// Returns true if the work under way is of use to the peer alone, and ends with it.
    fn ends_with_peer(&self) -> bool {
        false
    }

    /// Returns true if the wait ends when the connection is reset, because its result is of use to
    /// others or to nobody.
    fn ends_with_reset(&self) -> bool {
        false
    }

    /// Returns the state for the connection table, if the session serves no requests.
    fn shown_as(&self) -> Option<ConnectionState> {
        None
    }

    /// Returns true if a long value is being received.
    fn is_receiving(&self) -> bool {
        false
    }

    /// Returns the long value that is being received into memory of its own, and its database.
    fn upload(&mut self) -> Option<(&mut ValueUpload, usize)> {
        None
    }

    /// Takes the changes that other threads have made for this session. They must be durable before
    /// more is sent.
    fn take_changes(&mut self) -> Changes {
        Changes::default()
    }

    /// Writes that changes could not be made durable, if that is possible outside of any reply.
    fn refuse(&self, _refusal: RefusalReason, _output: &mut Output) {}

    /// Answers an incomplete request whose peer sends no more.
    fn cut_short(&self, _worker: &mut Self::Worker, _output: &mut Output) {}

    /// Returns the memory that the session retains.
    fn retained(&self) -> RetainedMemory {
        RetainedMemory::default()
    }

    /// Releases shared resources when the connection closes.
    fn leave(&mut self, _context: &mut WorkerContext) {}
}

/// The session of a connection, by dialect.
pub(crate) enum AnySession {
    /// The dialect is still open: one of memcached's, unless the first bytes say otherwise.
    Undetected(MemcachedSession),
    Memcached(MemcachedSession),
    Watcher(WatcherSession),
    Export(Box<ExportSession>),
    Kyoto(Box<KyotoSession>),
    /// memcached's dialect in the form of Kyoto Tycoon's plug-in.
    Plugin(PluginSession),
    #[cfg(test)]
    Echo(echo::EchoSession),
}

/// The resources that a turn lends to its session.
pub(crate) struct SessionTurn<'t> {
    pub(crate) context: &'t mut WorkerContext,
    /// The number of bytes of an incomplete request that may be kept.
    pub(crate) room: usize,
    /// The number of requests left in the connection's share.
    pub(crate) budget: &'t mut u32,
    pub(crate) output: &'t mut Output,
}

/// The progress of a session with its input.
pub(crate) struct Step {
    /// The number of bytes that are no longer needed.
    pub(crate) consumed: usize,
    pub(crate) next: Next,
}

/// The next action for a connection.
pub(crate) enum Next {
    /// Serve the next request.
    Continue,
    /// Read: all complete requests are served, and the next one needs at least this many more
    /// bytes.
    Read { at_least: usize },
    /// Serve the others first: the share of this turn is used up.
    Yield,
    /// Send first: the peer has to take some output.
    Flush,
    /// Wait for a wake-up.
    Wait,
    /// Continue with another session.
    Become(Box<AnySession>),
    /// Close the connection.
    Close,
    /// Close the connection because its input is not a request.
    Fail,
}

impl Next {
    /// Read any further input.
    pub(crate) const READ: Next = Next::Read { at_least: 0 };

    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Next::Read { .. })
    }

    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Next::Close | Next::Fail)
    }
}

/// The memory that a session retains: its own, and the engine's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetainedMemory {
    pub(crate) own: usize,
    pub(crate) of_engine: usize,
}
