//! Sessions: requests decoded, executed and answered, by dialect.
//!
//! ```text
//! dispatch          calls of a connection's session, in any dialect
//! detected_dialect  detection of the dialect by the first bytes
//! wake              tickets, deadlines, and the queue of wake-ups of each worker
//! announced_keys    keys of several requests, whose records are fetched together
//! pending_replies   replies of executors that have not come yet
//! background_jobs   long work on threads of their own
//! worker_context    the state that the sessions of one worker share
//! login             logins, for all dialects
//! echo              the smallest dialect, in tests only: the parts of a new one
//! memcached         memcached's dialects; watchers and exports, which begin there
//! kyoto             Kyoto Tycoon's protocols, and memcached's in the form of its plug-in
//! tyrant            Tokyo Tyrant's protocol
//! replica_session   the greeting of a replica in Todana's own protocol
//! proxy             memcached's text and meta dialects, passed on to other servers
//! ```
//!
//! A worker reads, passes the bytes to the session of their connection, does what [`NextAction`]
//! says, and sends the output that the session has written. A dialect is a type that implements
//! [`Session`], a variant of [`AnySession`], and a row in `detected_dialect`.
//!
//! Invariants: a session never blocks its worker; replies leave in the order of their requests.
//! Not here: sockets (`transport`), the effect of operations (`execution`).

mod announced_keys;
pub(crate) mod background_jobs;
mod detected_dialect;
pub(crate) mod dispatch;
#[cfg(test)]
mod echo;
pub(crate) mod kyoto;
pub(crate) mod login;
pub(crate) mod memcached;
pub(crate) mod pending_replies;
pub(crate) mod proxy;
mod replica_session;
pub(crate) mod tyrant;
pub(crate) mod wake;
pub(crate) mod worker_context;

use crate::databases::pending_commits::DatabaseCommits;
use crate::observation::connection_table::ConnectionState;
use crate::transport::output::ConnectionOutput;
use kyoto::{KyotoSession, PluginSession};
use memcached::export::ExportSession;
use memcached::session::MemcachedSession;
use memcached::upload::ValueUpload;
use memcached::watcher::WatcherSession;
use proxy::ProxySession;
use replica_session::ReplicaSession;
use todana_core::RefusalReason;
use tyrant::TyrantSession;
use wake::WakeReason;
use worker_context::WorkerContext;

/// The number of requests decoded before the first one is executed, so that their records are
/// fetched into the cache together.
pub(crate) const BATCH: usize = 16;

/// One connection's conversation in one dialect.
pub(crate) trait Session {
    /// The state of a worker for all its sessions of this dialect, such as buffers.
    type Worker;

    /// Notes that a turn of the connection begins.
    fn begin_turn(&mut self) {}

    /// Continues unfinished work and serves `input`: decodes requests, executes them, and writes
    /// replies to the turn's output.
    fn advance(
        &mut self,
        worker: &mut Self::Worker,
        turn: &mut SessionTurn<'_>,
        input: &[u8],
    ) -> SessionProgress;

    /// Ends a wait. Returns true if the connection needs a turn.
    fn wake(&mut self, _wake: WakeReason, _context: &mut WorkerContext) -> bool {
        false
    }

    /// Returns true if the session waits for a wake-up and does nothing before that.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Returns true if the session has work to do before more bytes are read.
    fn has_work(&self) -> bool {
        false
    }

    /// Returns true if the current work is useful only to the peer, and ends with the connection.
    fn ends_with_peer(&self) -> bool {
        false
    }

    /// Returns true if the session's wait ends when the peer resets the connection, because the
    /// result of the wait is then useless, or could go to another connection.
    fn ends_with_reset(&self) -> bool {
        false
    }

    /// Returns the state of the connection for the connection table, if it is not one of the usual
    /// states of a session that serves requests.
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
    /// the next bytes are sent.
    fn take_changes(&mut self) -> DatabaseCommits {
        DatabaseCommits::default()
    }

    /// Writes an error for changes that could not be made durable, if the dialect allows errors
    /// outside of replies.
    fn refuse(&self, _refusal: RefusalReason, _output: &mut ConnectionOutput) {}

    /// Writes the reply to an incomplete request whose peer has closed its sending side.
    fn cut_short(&self, _worker: &mut Self::Worker, _output: &mut ConnectionOutput) {}

    /// Returns the memory that the session retains.
    fn retained(&self) -> RetainedMemory {
        RetainedMemory::default()
    }

    /// Releases shared resources when the connection closes.
    fn leave(&mut self, _context: &mut WorkerContext) {}
}

/// The session of a connection, by dialect.
pub(crate) enum AnySession {
    /// The dialect is not known yet. It is one of memcached's, unless the first bytes are those of
    /// another protocol.
    Undetected(MemcachedSession),
    Memcached(MemcachedSession),
    Watcher(WatcherSession),
    Export(Box<ExportSession>),
    Kyoto(Box<KyotoSession>),
    /// memcached's dialect in the form of Kyoto Tycoon's plug-in.
    Plugin(PluginSession),
    Tyrant(Box<TyrantSession>),
    Proxy(Box<ProxySession>),
    /// The greeting of a replica in Todana's own protocol. A thread of its own continues after it.
    Replica(Box<ReplicaSession>),
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
    pub(crate) output: &'t mut ConnectionOutput,
}

/// The progress of a session with its input.
pub(crate) struct SessionProgress {
    /// The number of bytes that the session has consumed.
    pub(crate) consumed: usize,
    pub(crate) next: NextAction,
}

/// The action that a session requests for its connection.
pub(crate) enum NextAction {
    /// Serve the next request.
    Continue,
    /// Read: all complete requests are served, and the next one needs at least this many more
    /// bytes.
    Read { at_least: usize },
    /// Serve other connections first, because the share of this turn is used up.
    Yield,
    /// Send output first, because the peer must accept some of it before more is written.
    Flush,
    /// Wait for a wake-up.
    Wait,
    /// Continue with another session in place of this one.
    Become(Box<AnySession>),
    /// Close the connection.
    Close,
    /// Close the connection because its input is not a request.
    Fail,
}

impl NextAction {
    /// Read, however many bytes are available.
    pub(crate) const READ: NextAction = NextAction::Read { at_least: 0 };

    pub(crate) fn is_read(&self) -> bool {
        matches!(self, NextAction::Read { .. })
    }

    pub(crate) fn is_last(&self) -> bool {
        matches!(self, NextAction::Close | NextAction::Fail)
    }
}

/// The memory that a session retains: its own memory, and memory of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetainedMemory {
    pub(crate) own: usize,
    pub(crate) of_engine: usize,
}
