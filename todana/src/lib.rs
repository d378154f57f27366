//! The embeddable database: operations as visitors, expiry, statistics. No sockets, no wire
//! formats.
//!
//! ```text
//! Operation --Database::execute--> a visitor for each kind of operation --Engine::visit--> memory
//! Reply   <--------------------- its outcome
//! ```
//!
//! `expiry` wraps every visitor, so that expired records do not exist for commands. `counters`
//! counts outcomes by worker, `flush` holds the one pending flush, `access` knows whether access
//! times are requested, and `sweep` removes expired records that nobody reads.
//!
//! ```
//! use std::sync::Arc;
//! use todana::disk::SystemDisk;
//! use todana::{Database, EngineOptions, DatabaseName, SystemClock};
//! use todana_core::{Get, Operation, Reply, Store};
//!
//! let name = DatabaseName::parse("mem:hash")?;
//! let engine = name.open_engine(Arc::new(SystemDisk), EngineOptions::default())?;
//! let database = Database::new(engine, Arc::new(SystemClock));
//! let worker_counters = database.worker_counters();
//! let set = Operation::Store(Store { key: b"hello", value: b"world", ..Store::default() });
//! database.execute(&worker_counters, &set, &mut |reply| assert!(matches!(reply, Reply::Stored(_))));
//! let get = Operation::Get(Get { key: b"hello", ..Get::default() });
//! let mut value = Vec::new();
//! database.execute(&worker_counters, &get, &mut |reply| {
//!     if let Reply::Hit(hit) = reply {
//!         value.extend_from_slice(hit.record.value);
//!     }
//! });
//! assert_eq!(value, b"world");
//! # Ok::<(), todana_core::Error>(())
//! ```
#![forbid(unsafe_code)]

mod access;
mod arithmetic;
mod background_thread;
pub mod backup;
pub mod checkpoint;
mod classes;
mod clock;
mod counters;
mod data_directory;
mod database;
mod db;
mod delete;
mod detached;
mod durability;
mod expiry;
mod file_header;
mod flush;
mod get;
mod inspect;
mod key_order;
pub mod kyoto;
mod long_value;
mod map_reduce;
mod modify;
pub mod moment;
mod open;
mod records;
pub mod replication;
mod reset_baseline;
mod restoration;
mod salvage;
mod store;
mod sweep;
pub mod table;
mod touch;
mod transaction;
pub mod tsv;
pub mod tyrant;
pub mod update_log;
mod upkeep;
mod versions;

pub use todana_engine::{EvictionGoal, ExaminedTree, disk};

pub use clock::{CachedClock, Clock, ManualClock, SystemClock};
pub use counters::{ClassCounters, Counters, WorkerCounters};
pub use data_directory::{
    DataDirectory, DataOptions, EPOCHS_MAX, EpochHistory, EpochRole, LastSource, LoadProgress,
    NewestCheckpoint, OpeningReport, SalvagedLog, VerificationReport, common_place, refuse_overlap, seed_of,
    verify,
};
pub use database::{CountedOperation, Database, OverwriteVisitor};
pub use db::{
    Db, DbOptions, DumpedValues, IterKeys, IterRecords, KeySymbols, LoadSummary, MergePolicy, RecordCursor,
    RecordIter, Snapshot,
};
pub use detached::{DetachedChange, execute_detached};
pub use durability::{CommitPoint, Durability, DurabilityHealth, EngineDurability, LatestCommit};
pub use key_order::KeyOrder;
pub use kyoto::IncrementOrigin;
pub use map_reduce::{MapReduce, PairEmitter, ReduceValues};
pub use modify::ModifyVisitor;
pub use open::contents::{begins_at, holds_hash, is_reserved};
pub use open::{
    ClusterName, DataPurpose, DatabaseKind, DatabaseName, DatabaseStorage, DatabaseTuning, EngineOptions,
    LoadedData, OpenDatabase, OpenOptions, cabinet_file_problem,
};
pub use records::{CompareOutcome, OwnedRecord, Records, RecordsHandle, ScanDirection, UpdateAction};
pub use restoration::{RestorationReport, RestoreInto, RestoreOptions, restore};
pub use salvage::{FoundDamage, SalvageReport, salvage};
pub use sweep::{SweepCounters, SweepRound};
pub use todana_core::{
    Action, Error, ErrorKind, Expiry, Record, Result, Ttl, UnixSeconds, Visitor, WhenFull,
};
pub use transaction::{Transaction, TransactionHolder};
pub use upkeep::{DatabaseUpkeep, TICK};

/// Compiles and runs the programs in the guide as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embedding.md")]
struct Guide;
