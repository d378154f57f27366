//! The vocabulary of Todana: what travels between the protocols, the database and the engines.
//!
//! ```text
//! bytes --protocol--> Operation --todana--> visit(record) --engine--> memory or disk
//! bytes <--protocol-- Reply   <---------- outcome
//! ```
//!
//! Here are the words only: [`Operation`] and [`Reply`], [`Record`] and its [`Attributes`], the [`Visitor`]
//! through which every write goes, and the [`Engine`] trait. Nothing here does I/O, reads a clock, or
//! knows a wire format.
#![forbid(unsafe_code)]

mod checkpointed;
pub mod decimal;
mod durable;
mod engine;
mod error;
mod operation;
mod ordered;
mod record;
mod reply;

pub use checkpointed::Checkpointed;
pub use durable::{ContentsToken, Durable, FrozenContent, FrozenFile, FrozenKind, Usage};
pub use engine::{
    Action, Bounded, Buffer, Engine, Index, MemoryLimit, Order, Perishable, Place, SizeClass, Status, Survey,
    Surveyed, SweepAim, Swept, Visitor, WhenFull,
};
pub use error::{Error, ErrorKind, Result};
pub use operation::{
    Arithmetic, Delete, Direction, Family, Get, Inspect, Needs, Operation, RefusedStore, Store, StoreMode,
    Touch, Ttl,
};
pub use ordered::Ordered;
pub use record::{
    Access, Attributes, Expiry, LONG_VALUE_LEN, Marks, Record, Shared, SharedBytes, UnixSeconds,
};
pub use reply::{Hit, Inspection, Number, Prefix, Recache, Refusal, Reply, Stored};
