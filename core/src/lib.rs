//! The shared types of Todana, which pass between the protocols, the database and the engines.
//!
//! ```text
//! bytes --protocol--> Operation --todana--> visit(record) --engine--> memory or disk
//! bytes <--protocol-- Reply   <---------- outcome
//! ```
//!
//! This crate holds only types and traits: [`Operation`] and [`Reply`], [`Record`] and its
//! [`Attributes`], the [`Visitor`] through which every write passes, and the [`Engine`] trait.
//! Nothing here does I/O, reads a clock, or knows a wire format.
#![forbid(unsafe_code)]

mod checkpointed;
pub mod decimal;
mod durable;
mod engine;
mod error;
mod image;
mod indexed;
mod numbered;
mod operation;
mod ordered;
mod owned;
mod record;
mod reply;
mod value_list;

pub use checkpointed::CheckpointedEngine;
pub use durable::{ContentsToken, DiskUsage, DurableEngine, FrozenContent, FrozenFile, FrozenKind};
pub use engine::{
    Action, BoundedEngine, EncodingStatus, Engine, EngineStatus, IndexStatus, MemoryLimit, RecordLoad,
    RecordRead, RecordSample, SampledRecord, ScanOrder, ScanPosition, SizeClass, SweepAim, SweepProgress,
    SweepableEngine, ValueBuffer, Visitor, WhenFull,
};
pub use error::{Error, ErrorKind, Result};
pub use image::{CopiedBuckets, ImageForm, ImagedEngine};
pub use indexed::{ColumnIndex, IndexEntry, IndexKind, IndexRange, IndexedEngine, RowNumbers};
pub use numbered::{NumberedEngine, key_of_number, number_of_key};
pub use operation::{
    Arithmetic, ArithmeticDirection, CommandSyntax, Delete, Get, Inspect, Modify, Operation, RefusedStore,
    ReplyNeeds, Store, StoreMode, Touch, Ttl, ValueChange,
};
pub use ordered::OrderedEngine;
pub use owned::{NOT_EXECUTED, OwnedOperation, OwnedReply};
pub use record::{
    Attributes, Expiry, LONG_VALUE_LEN, LastAccess, LongBytes, Record, SharedBytes, SharedValue, StaleMarks,
    UnixSeconds, plain_value,
};
pub use reply::{
    ArithmeticReply, HitReply, PrefixCounters, RecacheState, RecordDetails, RefusalReason, Reply, StoredReply,
};
pub use value_list::RecordValues;
