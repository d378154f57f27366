//! Defines the state that all threads of a server share. It is divided by concern, so that each
//! function gets only the parts that it needs.

use crate::databases::memory::MemoryBudget;
use crate::databases::{PersistenceState, ServedDatabases};
use crate::lifecycle::ServerLifecycle;
use crate::observation::ServerObservation;
use crate::options::{KyotoMode, ServerOptions, TyrantMode};
use crate::proxy::LiveProxy;
use crate::replica::{MasterLink, ReplicaAcks, ReplicaTable};
use crate::session::kyoto::{KyotoState, STALL};
use crate::session::login::LoginAuthenticator;
use crate::session::tyrant::TyrantState;
use crate::session::wake::WakeQueues;
use crate::transport::tls::Tls;
use std::sync::Arc;
use std::time::Duration;
use todana::CachedClock;
use todana_core::Reply;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits};
use todana_protocol::tyrant;

/// The state that all threads of a server share.
pub(crate) struct SharedState {
    pub(crate) options: ServerOptions,
    pub(crate) clock: Arc<CachedClock>,
    pub(crate) lifecycle: ServerLifecycle,
    pub(crate) databases: ServedDatabases,
    pub(crate) persistence: PersistenceState,
    pub(crate) memory: MemoryBudget,
    pub(crate) observation: ServerObservation,
    pub(crate) logins: LoginAuthenticator,
    /// The queues that wake waiting connections.
    pub(crate) wake_queues: Arc<WakeQueues>,
    pub(crate) kyoto: KyotoState,
    pub(crate) tyrant: TyrantState,
    /// The replicas that follow this server.
    pub(crate) replicas: ReplicaTable,
    /// The changes that they have confirmed.
    pub(crate) acks: ReplicaAcks,
    /// The master that this server follows.
    pub(crate) master_link: MasterLink,
    pub(crate) listening: ListeningAddresses,
    /// True if the workers use io_uring.
    pub(crate) uses_rings: bool,
    /// The pools, if this server is a proxy.
    pub(crate) proxy: Option<Arc<LiveProxy>>,
}

/// The addresses where clients can connect.
pub(crate) struct ListeningAddresses {
    pub(crate) tcp_port: u16,
    pub(crate) udp_port: u16,
    /// The same addresses as text, in the form in which users write them.
    pub(crate) names: Vec<String>,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl ListeningAddresses {
    /// Reads the files of certificates again, and passes the reply to the client that asked for it
    /// to `reply`.
    pub(crate) fn refresh_certificates(&self, reply: &mut dyn FnMut(Reply<'_>)) {
        match self.tls.as_deref().map(Tls::refresh) {
            None => reply(Reply::Faulty("Error TLS not enabled")),
            Some(Ok(())) => reply(Reply::Done),
            Some(Err(error)) => reply(Reply::Faulty(&error.to_string())),
        }
    }
}

impl SharedState {
    /// Returns the dialect for connections to a listener with this choice. If clients must log in,
    /// the kind of login decides the dialect instead, so that no listener serves clients in a
    /// dialect that has no login.
    pub(crate) fn choice(&self, of_listener: Option<DialectChoice>) -> DialectChoice {
        self.logins.limits(of_listener.unwrap_or(self.options.protocols.protocol)).choice
    }

    /// Returns true if the records are in other servers.
    pub(crate) fn is_proxy(&self) -> bool {
        self.proxy.is_some()
    }

    /// Returns true if the listener speaks Kyoto Tycoon's protocols in addition to memcached's. A
    /// listener that is restricted to one of memcached's dialects does not. If the login restricts
    /// memcached's dialects, clients may still log in over HTTP.
    pub(crate) fn speaks_kyoto(&self, of_listener: Option<DialectChoice>) -> bool {
        let asked = of_listener.unwrap_or(self.options.protocols.protocol);
        self.options.protocols.kyoto.spoken == KyotoMode::Beside && asked == DialectChoice::Auto
    }

    /// Returns true if the listener speaks Tokyo Tyrant's protocols in addition to memcached's.
    /// These protocols have no login, so the result is false if clients must log in.
    pub(crate) fn speaks_tyrant(&self, of_listener: Option<DialectChoice>) -> bool {
        let asked = of_listener.unwrap_or(self.options.protocols.protocol);
        self.options.protocols.tyrant.spoken != TyrantMode::Off
            && asked == DialectChoice::Auto
            && !self.logins.are_wanted()
    }

    /// Returns true if a request that begins with this byte belongs to Tokyo Tyrant's protocols, on
    /// a listener that speaks them.
    #[inline]
    pub(crate) fn begins_tyrant(&self, first: u8) -> bool {
        first == tyrant::FIRST_BYTE
            || self.options.protocols.tyrant.spoken == TyrantMode::All && tyrant::begins_http(first)
    }

    /// Returns the limits of requests. No announced value is long enough to be received as an
    /// upload.
    pub(crate) fn limits(&self) -> MemcachedLimits {
        MemcachedLimits {
            item_size_max: self.options.limits.item_size_max,
            flush_allowed: self.options.limits.flush_allowed,
            negative_is_sliding: self.options.protocols.negative_is_sliding,
            debug_commands: self.options.protocols.debug_commands,
            ..self.logins.limits(self.options.protocols.protocol)
        }
    }

    /// Returns the time for which a client that receives a long answer may read nothing, if other
    /// answers wait for the memory of this one. Returns `None` if no answer waits.
    pub(crate) fn stall_limit(&self) -> Option<Duration> {
        self.kyoto.answers.is_wanted().then_some(STALL)
    }

    /// Measures the memory of the process and sets the limits of the engines.
    pub(crate) fn measure_memory(&self) {
        self.memory.measure(&self.databases, self.kyoto.answers.taken());
    }
}
