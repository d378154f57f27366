//! The server: sockets, workers, sessions, statistics.
//!
//! ```text
//! transport    sockets, workers, connections: bytes in and out
//! session      requests decoded, executed and answered, by dialect
//! execution    where operations go: the databases of this process
//! observation  counters, statistics, metrics, logs, watchers
//! databases    opened, kept, maintained, copied, closed; the memory limit
//! replica      masters and replicas
//! options, shared, server   what is asked for, what all threads share, and the whole
//! ```
//!
//! Its threads:
//!
//! ```text
//! acceptor --connections in turn--> worker: one readiness loop, no locks shared with other workers
//!   readable -> read once -> decode all that is there -> execute inline -> one write
//! udp: one thread for all datagrams, where they are asked for
//! verifier: slow checks of passwords (session/login/)
//! exports: a thread for each checkpoint, backup or update log that a client has requested
//! syncing: a thread for each database whose engine has files of its own, which syncs them
//! maintenance: expiry, compaction, and the memory limit of the process
//! snapshots: Kyoto Tycoon's files of databases in memory, made by a thread now and then
//! admin: /metrics, /healthz, /readyz over HTTP, on a port and in a thread of their own
//! ```
//!
//! Always true: an idle connection holds no buffer; a connection whose peer does not read is not
//! read from either; nothing that a client sends makes the server keep more than its own request
//! and a bounded output. Not here: what commands mean (`todana`), how they are written
//! (`protocol`), where records lie (`engine`).
#![forbid(unsafe_code)]

mod databases;
mod execution;
mod handle;
mod lifecycle;
mod observation;
mod options;
mod pid_file;
mod process;
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
pub use observation::log_file::{LogFile, LogKinds, LogWriter};
pub use observation::logging::{LogFormat, NOTICE, init_logging, init_logging_with_notices};
pub use options::{
    AdminOptions, AuthenticationMode, CompatiblePort, DataDirectoryOptions, DatabaseOptions, DatabaseSpec,
    KyotoMode, KyotoOptions, LimitOptions, ListenOptions, MemoryOptions, ObservationOptions, OptionsError,
    ProtocolOptions, ServerOptions,
};
pub use pid_file::PidFile;
pub use replica::{MasterAddress, ReplicationOptions};
pub use server::Server;
pub use session::kyoto::VERSION as KYOTO_VERSION;
pub use session::login::{LoginError, password_line};
pub use todana::checkpoint::{CheckpointCompression, CheckpointOptions};
pub use todana::update_log::SyncPolicy;
pub use todana::{Kind, Name, Opened, Progress, Storage};
pub use todana_protocol::memcached::DialectChoice;
pub use transport::listener::{ListenError, Transport};
pub use transport::tls::{Tls, TlsError, TlsOptions};
