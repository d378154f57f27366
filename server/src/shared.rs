//! The state that all threads of a server share, in parts by concern, so that each function gets
//! only the parts that it needs.

use crate::databases::memory::MemoryBudget;
use crate::databases::{Databases, Persistence};
use crate::lifecycle::Lifecycle;
use crate::observation::Observation;
use crate::options::{KyotoMode, ServerOptions};
use crate::replica::{MasterLink, ReplicaTable};
use crate::session::kyoto::{KyotoState, STALL};
use crate::session::login::Logins;
use crate::session::wake::WakeQueues;
use crate::transport::tls::Tls;
use std::sync::Arc;
use std::time::Duration;
use todana::CachedClock;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits};

/// The state that all threads of a server share.
pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) clock: Arc<CachedClock>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) databases: Databases,
    pub(crate) persistence: Persistence,
    pub(crate) memory: MemoryBudget,
    pub(crate) observation: Observation,
    pub(crate) logins: Logins,
    /// The queues that wake waiting connections.
    pub(crate) wake_queues: Arc<WakeQueues>,
    pub(crate) kyoto: KyotoState,
    /// The replicas that follow this server.
    pub(crate) replicas: ReplicaTable,
    /// The master that this server follows.
    pub(crate) master_link: MasterLink,
    pub(crate) listening: ListeningAddresses,
}

/// The addresses where clients can connect.
pub(crate) struct ListeningAddresses {
    pub(crate) tcp_port: u16,
    pub(crate) udp_port: u16,
    /// The addresses in the form in which users write them.
    pub(crate) names: Vec<String>,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl Shared {
    /// Returns the dialect of connections that arrive at a listener with this choice. Where clients
    /// have to log in, the kind of login decides instead, so that no listener admits clients
    /// through another dialect without a login.
    pub(crate) fn choice(&self, of_listener: Option<DialectChoice>) -> DialectChoice {
        self.logins.limits(of_listener.unwrap_or(self.options.protocols.protocol)).choice
    }

    /// Returns true if the listener speaks Kyoto Tycoon's protocols beside memcached's. A listener
    /// that is restricted to one of memcached's dialects does not. Clients that have to log in may
    /// do so over HTTP, whichever of memcached's dialects the login allows.
    pub(crate) fn speaks_kyoto(&self, of_listener: Option<DialectChoice>) -> bool {
        let asked = of_listener.unwrap_or(self.options.protocols.protocol);
        self.options.protocols.kyoto.spoken == KyotoMode::Beside && asked == DialectChoice::Auto
    }

    /// Returns the limits of requests. No value is long enough to be received as an upload.
    pub(crate) fn limits(&self) -> MemcachedLimits {
        MemcachedLimits {
            item_size_max: self.options.limits.item_size_max,
            flush_allowed: self.options.limits.flush_allowed,
            negative_is_sliding: self.options.protocols.negative_is_sliding,
            debug_commands: self.options.protocols.debug_commands,
            ..self.logins.limits(self.options.protocols.protocol)
        }
    }

    /// Returns how long a reader of a long answer may read nothing while others wait for its
    /// memory. Returns `None` if nobody waits.
    pub(crate) fn stall_limit(&self) -> Option<Duration> {
        self.kyoto.answers.is_wanted().then_some(STALL)
    }

    /// Measures the memory of the process and sets the limits of the engines.
    pub(crate) fn measure_memory(&self) {
        self.memory.measure(&self.databases, self.kyoto.answers.taken());
    }
}
