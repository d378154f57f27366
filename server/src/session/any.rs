//! The session of a connection, of whichever dialect: an enum, so that the hot path makes no dynamic call.

use super::flow::{Execute, Pause};
use super::kyoto::{PluginSession, Session as KyotoSession};
use super::memcached::service::Service;
use super::memcached::session::{Advance, MemcachedSession, Turn};
use super::tickets::Ticket;
use crate::databases::awaits::Changes;
use crate::options::Kyoto;
use crate::shared::Shared;
use crate::transport::output::Output;
use todana_protocol::kyoto::binary::Hello;
use todana_protocol::kyoto::{self, Beginning};
use todana_protocol::memcached::Choice;

/// What a connection speaks.
pub(crate) enum AnySession {
    /// Not known yet: memcached's dialect, or one of Kyoto Tycoon's protocols, as its first bytes say.
    Undecided(MemcachedSession),
    Memcached(MemcachedSession),
    Kyoto(Box<KyotoSession>),
    /// memcached's dialect as Kyoto Tycoon's plug-in speaks it.
    Plugin(PluginSession),
}

/// What a connection shows of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Requests,
    Watches,
    Exports,
}

/// Memory that a session keeps: of its own, and of the engine's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retained {
    pub(crate) own: usize,
    pub(crate) of_engine: usize,
}

impl AnySession {
    /// Creates the session of a connection that has come where this dialect is spoken; `None`: any.
    pub(crate) fn new(shared: &Shared, of_listener: Option<Choice>) -> AnySession {
        let memcached = || MemcachedSession::new(shared.choice(of_listener));
        match shared.options.protocols.kyoto.spoken {
            Kyoto::Only if of_listener.is_some() => AnySession::Plugin(PluginSession::default()),
            Kyoto::Only => AnySession::Kyoto(Box::default()),
            _ if shared.speaks_kyoto(of_listener) => AnySession::Undecided(memcached()),
            _ => AnySession::Memcached(memcached()),
        }
    }

    /// Answers a request that has begun, and of which no more comes.
    pub(crate) fn cut_short(&self, service: &mut Service, output: &mut Output) {
        if let AnySession::Kyoto(session) = self {
            service.kyoto.cut_short(session, output);
        }
    }

    /// Calls off the script that it waits for, which ends soon and answers; returns false if it waits for anything else.
    pub(crate) fn hastens_script(&self) -> bool {
        matches!(self, AnySession::Kyoto(session) if session.hastens_script())
    }

    /// Returns true if the waiting of a ticket is over, and it was not signalled in the last moment.
    pub(crate) fn gives_up(&self, ticket: Ticket, service: &Service) -> bool {
        match self {
            AnySession::Kyoto(session) => service.kyoto.gives_up(session, ticket),
            _ => true,
        }
    }

    /// Gives back what others can have again; returns the greeting of a replica, whose connection lives on elsewhere.
    pub(crate) fn leave(self, service: &mut Service) -> Option<Hello> {
        match self {
            AnySession::Undecided(_) | AnySession::Memcached(_) => None,
            AnySession::Kyoto(session) => {
                service.kyoto.leave(&session);
                session.follows
            }
            AnySession::Plugin(session) => {
                service.kyoto.leave_plugin(session);
                None
            }
        }
    }

    fn memcached(&self) -> Option<&MemcachedSession> {
        match self {
            AnySession::Undecided(session) | AnySession::Memcached(session) => Some(session),
            _ => None,
        }
    }

    /// Returns memcached's session, if it is one.
    #[inline]
    pub(crate) fn memcached_mut(&mut self) -> Option<&mut MemcachedSession> {
        match self {
            AnySession::Undecided(session) | AnySession::Memcached(session) => Some(session),
            _ => None,
        }
    }

    /// Serves `data`, and goes on with what is under way.
    #[inline]
    pub(crate) fn advance<E: Execute>(&mut self, data: &[u8], turn: &mut Turn<'_, E>) -> Advance {
        if let AnySession::Undecided(session) = self {
            match kyoto::begins(data) {
                Beginning::Kyoto => *self = AnySession::Kyoto(Box::default()),
                Beginning::Unsure => return Advance { consumed: 0, wanted: 0, pause: Pause::NeedsInput },
                Beginning::Other => {
                    let session = std::mem::replace(session, MemcachedSession::new(session.choice));
                    *self = AnySession::Memcached(session);
                }
            }
        }
        let room = turn.limits.unfinished_len_max;
        let (consumed, wanted, pause) = match self {
            AnySession::Undecided(session) | AnySession::Memcached(session) => {
                return session.advance(data, turn);
            }
            AnySession::Kyoto(session) => {
                turn.service.converse(session, data, room, turn.budget, turn.output)
            }
            AnySession::Plugin(session) => {
                turn.service.converse_as_plugin(session, data, room, turn.budget, turn.output)
            }
        };
        Advance { consumed, wanted, pause }
    }

    /// Notes that a turn begins.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        if let Some(session) = self.memcached_mut() {
            session.begin_turn();
        }
    }

    /// Returns true if an error can be sent outside of any reply.
    pub(crate) fn can_be_told(&self) -> bool {
        self.memcached().is_some_and(MemcachedSession::can_be_told)
    }

    pub(crate) fn activity(&self) -> Activity {
        match self.memcached() {
            Some(session) if session.watches => Activity::Watches,
            Some(session) if session.export.is_some() => Activity::Exports,
            _ => Activity::Requests,
        }
    }

    /// Returns true if a long value is being received.
    pub(crate) fn is_receiving(&self) -> bool {
        self.memcached().is_some_and(|session| session.upload.is_some())
    }

    /// Returns true if there is something to do before anything is read.
    pub(crate) fn has_work(&self) -> bool {
        self.memcached().is_some_and(MemcachedSession::has_work)
    }

    /// Returns true if a password, a signal, a message or a background call has to come first.
    pub(crate) fn is_waiting(&self) -> bool {
        match self {
            AnySession::Undecided(session) | AnySession::Memcached(session) => session.is_waiting(),
            AnySession::Kyoto(session) => session.is_waiting(),
            AnySession::Plugin(session) => session.is_waiting(),
        }
    }

    /// Returns true if it waits for something that is lost if its peer has gone: a message of a queue.
    pub(crate) fn waits_for_message(&self) -> bool {
        matches!(self, AnySession::Plugin(session) if session.is_waiting())
    }

    /// Ends the waiting that a ticket names; returns false if it does not wait with it.
    pub(crate) fn end_wait(&mut self, ticket: Ticket, was_signalled: bool) -> bool {
        match self {
            AnySession::Undecided(_) | AnySession::Memcached(_) => false,
            AnySession::Kyoto(session) => session.end_wait(ticket, was_signalled),
            AnySession::Plugin(session) => session.end_wait(ticket, was_signalled),
        }
    }

    /// Returns true if it waits for something that is of use to nobody but its peer.
    pub(crate) fn waits_for_its_peer_alone(&self) -> bool {
        matches!(self, AnySession::Kyoto(session) if session.waits_for_its_peer_alone())
    }

    /// Returns what other threads have changed for it, once: it has to be settled before more is sent.
    pub(crate) fn take_changes(&mut self) -> Changes {
        match self {
            AnySession::Kyoto(session) => session.take_changes(),
            _ => Changes::default(),
        }
    }

    /// Returns the memory that it keeps.
    pub(crate) fn retained(&self) -> Retained {
        match self {
            AnySession::Undecided(session) | AnySession::Memcached(session) => {
                let (own, of_engine) = session.upload.as_ref().map_or((0, 0), |upload| upload.held());
                Retained { own, of_engine }
            }
            AnySession::Kyoto(session) => Retained { own: session.kept_len(), of_engine: 0 },
            AnySession::Plugin(session) => Retained { own: session.kept_len(), of_engine: 0 },
        }
    }
}
