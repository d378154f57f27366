//! Sessions: requests decoded, executed and answered, by dialect.
//!
//! ```text
//! dispatch    calls of the session of a connection, whichever it is
//! detect      which dialect a connection speaks, by its first bytes
//! wake        tickets, deadlines, and the queue of wake-ups of each worker
//! pending     replies of executors that have not come yet
//! background  long work on threads of its own
//! context     what the sessions of one worker share
//! login       who may log in, for all dialects
//! echo        the smallest dialect, in tests only: what a new one needs
//! memcached   memcached's dialects; watchers and exports, which begin there
//! kyoto       Kyoto Tycoon's protocols, and memcached's as its plug-in speaks it
//! ```
//!
//! A worker reads, gives the bytes to the session of their connection, does what [`Next`] says, and sends what the session has
//! written. A dialect is a type that implements [`Session`], a variant of [`AnySession`], and a row in `detect`.
//!
//! Invariants: a session never blocks its worker; replies leave in the order of their requests.
//! Not here: sockets (`transport`), what operations do (`execution`).

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

use crate::databases::awaits::Changes;
use crate::observation::connection_table::ConnectionState;
use crate::transport::output::Output;
use context::WorkerContext;
use kyoto::{KyotoSession, PluginSession};
use memcached::export::ExportSession;
use memcached::session::MemcachedSession;
use memcached::upload::Upload;
use memcached::watcher::Watcher;
use todana_core::RefusalReason;
use wake::Wake;

/// Requests decoded before the first is executed, so that their records can be fetched into the cache together.
pub(crate) const BATCH: usize = 16;

/// One connection's conversation in one dialect.
pub(crate) trait Session {
    /// What a worker keeps for all its sessions of this dialect, such as buffers.
    type Worker;

    /// Notes that a turn begins.
    fn begin_turn(&mut self) {}

    /// Goes on with what is under way, and serves `input`: decodes requests, executes them, and writes replies to the turn's output.
    fn advance(&mut self, worker: &mut Self::Worker, turn: &mut Turn<'_>, input: &[u8]) -> Step;

    /// Ends a wait; returns true if the connection gets a turn.
    fn wake(&mut self, _wake: Wake, _context: &mut WorkerContext) -> bool {
        false
    }

    /// Returns true if a wake-up has to come before anything else is done.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Returns true if there is something to do before anything is read.
    fn has_work(&self) -> bool {
        false
    }

    /// Returns true if its work is of use to its peer alone, and ends with it.
    fn ends_with_peer(&self) -> bool {
        false
    }

    /// Returns true if its wait ends as soon as the connection is reset: what it waits for is of use to others, or to nobody.
    fn ends_with_reset(&self) -> bool {
        false
    }

    /// Returns what the connection table shows of it, if it serves no requests.
    fn shown_as(&self) -> Option<ConnectionState> {
        None
    }

    /// Returns true if a long value is being received.
    fn is_receiving(&self) -> bool {
        false
    }

    /// Returns the long value that is being received, whose bytes go to memory of their own, and the database that it is for.
    fn upload(&mut self) -> Option<(&mut Upload, usize)> {
        None
    }

    /// Returns what other threads have changed for it, once: it must be settled before more is sent.
    fn take_changes(&mut self) -> Changes {
        Changes::default()
    }

    /// Writes that changes could not be made durable, if that can be said outside of any reply.
    fn refuse(&self, _refusal: RefusalReason, _output: &mut Output) {}

    /// Answers a request that has begun, and of which no more comes.
    fn cut_short(&self, _worker: &mut Self::Worker, _output: &mut Output) {}

    /// Returns the memory that it keeps.
    fn retained(&self) -> Retained {
        Retained::default()
    }

    /// Returns what others can have again, as the connection closes.
    fn leave(&mut self, _context: &mut WorkerContext) {}
}

/// What a connection speaks.
pub(crate) enum AnySession {
    /// Not known yet: memcached's dialect, unless its first bytes say otherwise.
    Undetected(MemcachedSession),
    Memcached(MemcachedSession),
    Watcher(Watcher),
    Export(Box<ExportSession>),
    Kyoto(Box<KyotoSession>),
    /// memcached's dialect as Kyoto Tycoon's plug-in speaks it.
    Plugin(PluginSession),
    #[cfg(test)]
    Echo(echo::EchoSession),
}

/// What a turn lends its session.
pub(crate) struct Turn<'t> {
    pub(crate) context: &'t mut WorkerContext,
    /// How many bytes of an incomplete request may be kept.
    pub(crate) room: usize,
    /// Requests that are left of the connection's share.
    pub(crate) budget: &'t mut u32,
    pub(crate) output: &'t mut Output,
}

/// How far a session has come with its input.
pub(crate) struct Step {
    /// Bytes that are done with.
    pub(crate) consumed: usize,
    pub(crate) next: Next,
}

/// What happens next with a connection.
pub(crate) enum Next {
    /// The next request is served.
    Continue,
    /// All complete requests are served; the next one needs at least so many bytes more.
    Read { at_least: usize },
    /// Its share of this turn is used up.
    Yield,
    /// Its peer has to read first.
    Flush,
    /// A wake-up has to come first.
    Wait,
    /// It goes on as another session.
    Become(Box<AnySession>),
    /// It is closed.
    Close,
    /// It is closed because its input is no request.
    Fail,
}

impl Next {
    /// Asks for any further input.
    pub(crate) const READ: Next = Next::Read { at_least: 0 };

    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Next::Read { .. })
    }

    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Next::Close | Next::Fail)
    }
}

/// Memory that a session keeps: its own, and the engine's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retained {
    pub(crate) own: usize,
    pub(crate) of_engine: usize,
}
