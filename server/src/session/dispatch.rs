//! Calls of a connection's session in any dialect. An enum, so that the hot path makes no dynamic
//! call.

use super::context::WorkerContext;
use super::detect::{DetectedDialect, detect};
use super::kyoto::{KyotoWorker, PluginSession};
use super::memcached::session::{MemcachedSession, MemcachedWorker};
use super::memcached::upload::ValueUpload;
use super::wake::Wake;
use super::{AnySession, Next, RetainedMemory, Session, SessionTurn, Step};
use crate::databases::pending_commits::Changes;
use crate::observation::connection_table::ConnectionState;
use crate::options::KyotoMode;
use crate::shared::Shared;
use crate::transport::output::Output;
use todana_core::RefusalReason;
use todana_protocol::kyoto::binary::ReplicaRequest;
use todana_protocol::memcached::DialectChoice;

/// The state of a worker for the sessions of each dialect.
pub(crate) struct DialectWorkers {
    memcached: MemcachedWorker,
    kyoto: KyotoWorker,
    none: (),
}

impl DialectWorkers {
    pub(crate) fn new(context: &WorkerContext) -> DialectWorkers {
        DialectWorkers {
            memcached: MemcachedWorker::new(&context.shared),
            kyoto: KyotoWorker::new(context),
            none: (),
        }
    }
}

/// Calls a method of the session, with the worker's state for its dialect if that is asked for.
macro_rules! dispatch {
    ($any:expr, $session:ident => $call:expr) => {
        match $any {
            AnySession::Undetected($session) | AnySession::Memcached($session) => $call,
            AnySession::Watcher($session) => $call,
            AnySession::Export($session) => $call,
            AnySession::Kyoto($session) => $call,
            AnySession::Plugin($session) => $call,
            #[cfg(test)]
            AnySession::Echo($session) => $call,
        }
    };
    ($any:expr, $workers:ident, $session:ident, $worker:ident => $call:expr) => {{
        let DialectWorkers { memcached, kyoto, none } = $workers;
        match $any {
            AnySession::Undetected($session) | AnySession::Memcached($session) => {
                let $worker = memcached;
                $call
            }
            AnySession::Watcher($session) => {
                let $worker = none;
                $call
            }
            AnySession::Export($session) => {
                let $worker = none;
                $call
            }
            AnySession::Kyoto($session) => {
                let $worker = kyoto;
                $call
            }
            AnySession::Plugin($session) => {
                let $worker = kyoto;
                $call
            }
            #[cfg(test)]
            AnySession::Echo($session) => {
                let $worker = none;
                $call
            }
        }
    }};
}

impl AnySession {
    /// Creates the session of a connection to a listener of this dialect; `None` is any dialect.
    pub(crate) fn new(shared: &Shared, of_listener: Option<DialectChoice>) -> AnySession {
        let memcached = || MemcachedSession::new(shared.choice(of_listener));
        match shared.options.protocols.kyoto.spoken {
            KyotoMode::Only if of_listener.is_some() => AnySession::Plugin(PluginSession::default()),
            KyotoMode::Only => AnySession::Kyoto(Box::default()),
            _ if shared.speaks_kyoto(of_listener) => AnySession::Undetected(memcached()),
            _ => AnySession::Memcached(memcached()),
        }
    }

    /// Chooses the dialect if it is still open; returns false if more bytes are needed.
    fn is_detected(&mut self, input: &[u8]) -> bool {
        if let AnySession::Undetected(session) = self {
            match detect(input) {
                DetectedDialect::Unsure => return false,
                DetectedDialect::Kyoto => *self = AnySession::Kyoto(Box::default()),
                DetectedDialect::Memcached => *self = AnySession::Memcached(session.take()),
                #[cfg(test)]
                DetectedDialect::Echo => *self = AnySession::Echo(super::echo::EchoSession),
            }
        }
        true
    }

    /// Continues unfinished work, and serves `input`.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        workers: &mut DialectWorkers,
        turn: &mut SessionTurn<'_>,
        input: &[u8],
    ) -> Step {
        if !self.is_detected(input) {
            return Step { consumed: 0, next: Next::READ };
        }
        let mut step = dispatch!(self, workers, session, worker => session.advance(worker, turn, input));
        if let Next::Become(session) = step.next {
            *self = *session;
            step.next = Next::Flush;
        }
        step
    }

    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        dispatch!(self, session => session.begin_turn());
    }

    pub(crate) fn wake(&mut self, wake: Wake, context: &mut WorkerContext) -> bool {
        dispatch!(self, session => session.wake(wake, context))
    }

    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        dispatch!(self, session => session.is_waiting())
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        dispatch!(self, session => session.has_work())
    }

    pub(crate) fn ends_with_peer(&self) -> bool {
        dispatch!(self, session => session.ends_with_peer())
    }

    pub(crate) fn ends_with_reset(&self) -> bool {
        dispatch!(self, session => session.ends_with_reset())
    }

    #[inline]
    pub(crate) fn shown_as(&self) -> Option<ConnectionState> {
        dispatch!(self, session => session.shown_as())
    }

    #[inline]
    pub(crate) fn is_receiving(&self) -> bool {
        dispatch!(self, session => session.is_receiving())
    }

    #[inline]
    pub(crate) fn upload(&mut self) -> Option<(&mut ValueUpload, usize)> {
        dispatch!(self, session => session.upload())
    }

    #[inline]
    pub(crate) fn take_changes(&mut self) -> Changes {
        dispatch!(self, session => session.take_changes())
    }

    pub(crate) fn refuse(&self, refusal: RefusalReason, output: &mut Output) {
        dispatch!(self, session => session.refuse(refusal, output));
    }

    pub(crate) fn cut_short(&self, workers: &mut DialectWorkers, output: &mut Output) {
        dispatch!(self, workers, session, worker => session.cut_short(worker, output));
    }

    #[inline]
    pub(crate) fn retained(&self) -> RetainedMemory {
        dispatch!(self, session => session.retained())
    }

    /// Releases shared resources; returns the greeting of a replica, whose connection continues on
    /// another thread.
    pub(crate) fn leave(mut self, context: &mut WorkerContext) -> Option<ReplicaRequest> {
        dispatch!(&mut self, session => session.leave(context));
        match &self {
            AnySession::Kyoto(session) => session.replica(),
            _ => None,
        }
    }
}
