//! The server: sockets, workers, sessions, statistics.
//!
//! ```text
//! transport    sockets, workers, connections: bytes in and out
//! session      requests decoded, executed and answered, by dialect
//! execution    executes operations on the databases of this process
//! observation  counters, statistics, metrics, logs, watchers
//! databases    opened, kept, maintained, copied, closed; the memory limit
//! replica      masters and replicas
//! options, shared, server   the configuration, the state of all threads, and the server itself
//! ```
//!
//! Its threads:
//!
//! ```text
//! acceptor --connections in turn--> worker: one readiness loop, no locks shared with other workers
//!   readable -> read once -> decode all complete requests -> execute inline -> one write
//! udp: one thread for all datagrams, if UDP is enabled
//! verifier: slow checks of passwords (session/login/)
//! exports: a thread for each checkpoint, backup or update log that a client has requested
//! syncing: a thread for each database whose engine has files of its own, which syncs them
//! maintenance: expiry, compaction, and the memory limit of the process
//! snapshots: Kyoto Tycoon's files of databases in memory, written at intervals
//! admin: /metrics, /healthz, /readyz over HTTP, on a port and in a thread of their own
//! ```
//!
//! Invariants: an idle connection holds no buffer. The server does not read from a client that does
//! not read its replies. For each client the server keeps at most its current request and a bounded
//! output. Not here: the meaning of commands (`todana`), their encoding (`protocol`), the storage
//! of records (`engine`).
#![forbid(unsafe_code)]

mod databases;
mod execution;
mod handle;
mod lifecycle;
mod observation;
mod options;
mod pid_file;
mod process;
mod proxy;
mod replica;
mod server;
mod session;
mod shared;
mod transport;

pub use databases::snapshots::{
    SnapshotCompression, SnapshotError, SnapshotOptions, SnapshotWriter, decompressed, read_snapshot,
};
pub use handle::ServerHandle;
pub use observation::admin::AdminError;
pub use observation::log_file::{LogFile, LogKinds, LogStyle, LogWriter};
pub use observation::logging::{LogFormat, NOTICE, init_logging, init_logging_with_notices};
pub use options::{
    AdminOptions, AuthenticationMode, CollectorAddress, CollectorAddressError, DataDirectoryOptions,
    DatabaseOptions, DatabaseSpec, IoMode, KyotoMode, KyotoOptions, LimitOptions, ListenOptions,
    ListenerPlace, ListenerProtocol, MemoryOptions, NutcrackerStatsOptions, ObservationOptions, OptionsError,
    PeriodicCall, PluginOptions, PoolLogin, PoolOptions, PoolProtocol, PoolTlsOptions, PoolVbuckets,
    ProtocolOptions, ProxyListener, ProxyName, ProxyOptions, ProxyRoutes, ProxyVersion, ReplicaRead,
    ReplicaWrite, RouteTree, ScriptText, ServerOptions, ShadowedRequests, SlowRequestOptions, TraceOptions,
    TyrantMode, TyrantOptions, WhenDown,
};
pub use pid_file::PidFile;
pub use proxy::{ProxyReloader, check_proxy};
pub use replica::{MasterAddress, MasterProtocol, NativeReplicaOptions, ReplicationOptions};
pub use server::Server;
pub use session::kyoto::VERSION as KYOTO_VERSION;
pub use session::login::{LoginError, password_line};
pub use session::tyrant::{
    LIBRARY_VERSION as TYRANT_LIBRARY_VERSION, PROTOCOL_VERSION as TYRANT_PROTOCOL_VERSION,
    VERSION as TYRANT_VERSION,
};
pub use todana::checkpoint::{CheckpointCompression, CheckpointOptions};
pub use todana::update_log::SyncPolicy;
pub use todana::{DatabaseKind, DatabaseName, DatabaseStorage, EvictionGoal, LoadProgress, OpeningReport};
pub use todana_protocol::memcached::DialectChoice;
pub use todana_protocol::tyrant::CommandMask;
pub use transport::listener::{ListenError, Transport};
pub use transport::tls::{Tls, TlsError, TlsOptions};
