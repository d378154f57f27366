//! Calls the session of a connection in whatever dialect it has. The session is an enum, so that
//! the hot path makes no dynamic call.

use super::detected_dialect::{DetectedDialect, detect};
use super::kyoto::{KyotoWorker, PluginSession};
use super::memcached::session::{MemcachedSession, MemcachedWorker};
use super::memcached::upload::ValueUpload;
use super::proxy::{ProxySession, ProxySessionWorker};
use super::replica_session::ReplicaSession;
use super::tyrant::TyrantWorker;
use super::wake::WakeReason;
use super::worker_context::WorkerContext;
use super::{AnySession, NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::databases::pending_commits::DatabaseCommits;
use crate::observation::connection_table::ConnectionState;
use crate::options::{KyotoMode, ListenerProtocol};
use crate::replica::{ReplicaGreeting, ReplicaRequest};
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use crate::transport::refused_replies::ReplyDialect;
use todana_core::RefusalReason;
use todana_protocol::memcached::DialectChoice;

/// The state of a worker for the sessions of each dialect.
pub(crate) struct DialectWorkers {
    memcached: MemcachedWorker,
    kyoto: KyotoWorker,
    tyrant: TyrantWorker,
    proxy: ProxySessionWorker,
    none: (),
}

impl DialectWorkers {
    pub(crate) fn new(context: &WorkerContext) -> DialectWorkers {
        DialectWorkers {
            memcached: MemcachedWorker::new(&context.shared),
            kyoto: KyotoWorker::new(context),
            tyrant: TyrantWorker::default(),
            proxy: ProxySessionWorker::new(&context.shared),
            none: (),
        }
    }
}

/// Calls a method of the session, with the worker's state for its dialect if the caller needs it.
macro_rules! dispatch {
    ($any:expr, $session:ident => $call:expr) => {
        match $any {
            AnySession::Undetected($session) | AnySession::Memcached($session) => $call,
            AnySession::Watcher($session) => $call,
            AnySession::Export($session) => $call,
            AnySession::Kyoto($session) => $call,
            AnySession::Plugin($session) => $call,
            AnySession::Tyrant($session) => $call,
            AnySession::Proxy($session) => $call,
            AnySession::Replica($session) => $call,
            #[cfg(test)]
            AnySession::Echo($session) => $call,
        }
    };
    ($any:expr, $workers:ident, $session:ident, $worker:ident => $call:expr) => {{
        let DialectWorkers { memcached, kyoto, tyrant, proxy, none } = $workers;
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
            AnySession::Tyrant($session) => {
                let $worker = tyrant;
                $call
            }
            AnySession::Proxy($session) => {
                let $worker = proxy;
                $call
            }
            AnySession::Replica($session) => {
                let $worker = none;
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
    /// Creates the session of a connection to a listener of this dialect; `None` means that the
    /// listener accepts any dialect. `listener` is the number of the listener.
    pub(crate) fn new(
        shared: &SharedState,
        of_listener: Option<DialectChoice>,
        listener: usize,
    ) -> AnySession {
        if let Some(proxy) = &shared.proxy {
            return match proxy.state().protocol_of(listener) {
                ListenerProtocol::Memcached => {
                    AnySession::Proxy(Box::new(ProxySession::of_listener(listener)))
                }
                ListenerProtocol::Kyoto => AnySession::Kyoto(Box::default()),
                ListenerProtocol::Tyrant => AnySession::Tyrant(Box::default()),
            };
        }
        let memcached = || MemcachedSession::of_listener(shared, of_listener);
        match shared.options.protocols.kyoto.spoken {
            KyotoMode::Only if of_listener.is_some() => AnySession::Plugin(PluginSession::default()),
            KyotoMode::Only => AnySession::Kyoto(Box::default()),
            _ if shared.speaks_kyoto(of_listener) || shared.speaks_tyrant(of_listener) => {
                AnySession::Undetected(memcached())
            }
            _ => AnySession::Memcached(memcached()),
        }
    }

    /// Chooses the dialect if that has not happened yet. Returns false if more bytes are needed.
    fn is_detected(&mut self, shared: &SharedState, input: &[u8]) -> bool {
        if let AnySession::Undetected(session) = self {
            match detect(shared, input) {
                DetectedDialect::Unsure => return false,
                DetectedDialect::Kyoto => *self = AnySession::Kyoto(Box::default()),
                DetectedDialect::Tyrant => *self = AnySession::Tyrant(Box::default()),
                DetectedDialect::Replica => *self = AnySession::Replica(Box::<ReplicaSession>::default()),
                DetectedDialect::Memcached => *self = AnySession::Memcached(session.take()),
                #[cfg(test)]
                DetectedDialect::Echo => *self = AnySession::Echo(super::echo::EchoSession),
            }
        }
        true
    }

    /// Continues unfinished work, and then serves the requests in `input`.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        workers: &mut DialectWorkers,
        turn: &mut SessionTurn<'_>,
        input: &[u8],
    ) -> SessionProgress {
        if !self.is_detected(&turn.context.shared, input) {
            return SessionProgress { consumed: 0, next: NextAction::READ };
        }
        let mut step = dispatch!(self, workers, session, worker => session.advance(worker, turn, input));
        if let NextAction::Become(session) = step.next {
            *self = *session;
            step.next = NextAction::Flush;
        }
        step
    }

    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        dispatch!(self, session => session.begin_turn());
    }

    pub(crate) fn wake(&mut self, wake: WakeReason, context: &mut WorkerContext) -> bool {
        dispatch!(self, session => session.wake(wake, context))
    }

    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        dispatch!(self, session => session.is_waiting())
    }

    /// Returns true if requests wait for replies of other servers, which are sent even if the
    /// client sends no more.
    #[inline]
    pub(crate) fn has_replies_to_come(&self) -> bool {
        matches!(self, AnySession::Proxy(session) if session.has_waiting())
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
    pub(crate) fn take_changes(&mut self) -> DatabaseCommits {
        dispatch!(self, session => session.take_changes())
    }

    pub(crate) fn refuse(&self, refusal: RefusalReason, output: &mut ConnectionOutput) {
        dispatch!(self, session => session.refuse(refusal, output));
    }

    /// Returns the form of the session's replies.
    pub(crate) fn reply_dialect(&self) -> ReplyDialect {
        match self {
            AnySession::Undetected(session) | AnySession::Memcached(session)
                if session.dialect.is_binary() =>
            {
                ReplyDialect::Packets
            }
            AnySession::Kyoto(_) => ReplyDialect::Kyoto,
            AnySession::Tyrant(_) => ReplyDialect::Tyrant,
            _ => ReplyDialect::Lines,
        }
    }

    pub(crate) fn cut_short(&self, workers: &mut DialectWorkers, output: &mut ConnectionOutput) {
        dispatch!(self, workers, session, worker => session.cut_short(worker, output));
    }

    #[inline]
    pub(crate) fn retained(&self) -> RetainedMemory {
        dispatch!(self, session => session.retained())
    }

    /// Ends the session and releases shared resources. If the client is a replica, returns its
    /// greeting, because the connection continues on another thread.
    pub(crate) fn leave(mut self, context: &mut WorkerContext) -> Option<ReplicaGreeting> {
        dispatch!(&mut self, session => session.leave(context));
        match self {
            AnySession::Kyoto(session) => {
                session.replica().map(|request| ReplicaGreeting::Stamped(ReplicaRequest::Kyoto(request)))
            }
            AnySession::Tyrant(session) => session.replica().map(ReplicaGreeting::Stamped),
            AnySession::Replica(session) => session.into_hello().map(ReplicaGreeting::Native),
            _ => None,
        }
    }
}
