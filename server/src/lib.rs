//! The server: sockets, workers, sessions, statistics.
//!
//! ```text
//! acceptor --connections in turn--> worker: one readiness loop, no locks shared with other workers
//!   readable -> read once -> decode all that is there -> execute inline -> one write
//! udp: one thread for all datagrams, where they are asked for
//! verifier: slow checks of passwords (login/)
//! exports: a thread for each checkpoint, backup or reading of the update log that a client has asked for
//! syncing: a thread for each database whose engine keeps records in files of its own, which brings them to disk
//! janitor: expiry, compaction, and the memory limit of the process
//! kyoto: Kyoto Tycoon's protocols
//! snapshots: its files of databases in memory, made by a thread now and then
//! admin: /metrics, /healthz, /readyz over HTTP, on a port and in a thread of their own
//! ```
//!
//! Always true: an idle connection holds no buffer; a connection whose peer does not read is not read from either;
//! nothing that a client sends makes the server keep more than its own request and a bounded output.
//! Not here: what commands mean (`todana`), how they are written (`protocol`), where records lie (`engine`).
#![forbid(unsafe_code)]

mod acceptor;
mod addresses;
mod admin;
mod awaits;
mod connection;
mod conversation_log;
mod counters;
mod crawler;
mod databases;
mod descriptors;
mod exports;
mod flow;
mod handle;
mod idle;
mod janitor;
mod kyoto;
mod ledger;
mod lifecycle;
mod listener;
mod listing;
mod log_file;
mod logging;
mod login;
mod memory;
mod observation;
mod observers;
mod options;
mod output;
mod patience;
mod pid_file;
mod prefixes;
mod process;
mod replica;
mod roster;
mod server;
mod service;
mod settling;
mod shards;
mod shared;
mod snapshots;
mod statistics;
mod syncing;
mod tls;
mod udp;
mod upload;
mod watchers;
mod worker;

pub use admin::AdminError;
pub use handle::Handle;
pub use kyoto::VERSION as KYOTO_VERSION;
pub use listener::{ListenError, Transport};
pub use log_file::{LogFile, LogKinds, LogWriter};
pub use logging::{LogFormat, NOTICE, init_logging, init_logging_with_notices};
pub use login::{LoginError, password_line};
pub use options::{
    AdminOptions, Authentication, CompatiblePort, DataPlace, DatabaseOptions, Further, Kyoto, KyotoOptions,
    LimitOptions, ListenOptions, MemoryOptions, ObservationOptions, Options, OptionsError, ProtocolOptions,
};
pub use pid_file::PidFile;
pub use replica::{MasterAddress, Replication};
pub use server::Server;
pub use snapshots::{Packing, SnapshotError, SnapshotOptions, SnapshotWriter, decompressed, read_snapshot};
pub use tls::{Tls, TlsError, TlsOptions};
pub use todana::checkpoint::{CheckpointOptions, Compression};
pub use todana::update_log::Sync;
pub use todana::{Kind, Name, Opened, Progress};
pub use todana_protocol::memcached::Choice;
