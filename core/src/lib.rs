//! The vocabulary of Todana: what travels between the protocols, the database and the engines.
//!
//! ```text
//! bytes --protocol--> Command --todana--> visit(record) --engine--> memory or disk
//! bytes <--protocol-- Reply   <---------- outcome
//! ```
//!
//! Here are the words only: [`Command`] and [`Reply`], [`Record`] and its [`Attributes`], the [`Visitor`]
//! through which every write goes, and the [`Engine`] trait. Nothing here does I/O, reads a clock, or
//! knows a wire format.
#![forbid(unsafe_code)]

mod administration;
mod checkpointed;
mod command;
pub mod decimal;
mod durable;
mod engine;
mod error;
mod ordered;
mod record;
mod reply;

pub use administration::{ClassSet, Crawler, Export, Exported, List, LogStart, Streams};
pub use checkpointed::Checkpointed;
pub use command::{
    Arithmetic, Authenticate, ClockShift, Command, Delete, Direction, Family, Get, Inspect, Needs,
    RefusedStore, Store, StoreMode, Touch, Ttl,
};
pub use durable::{ContentsToken, Durable, FrozenContent, FrozenFile, FrozenKind, Usage};
pub use engine::{
    Action, Bounded, Buffer, Engine, Index, MemoryLimit, Order, Perishable, Place, SizeClass, Status, Survey,
    Surveyed, SweepAim, Swept, Visitor, WhenFull,
};
pub use error::{Error, ErrorKind, Result};
pub use ordered::Ordered;
pub use record::{
    Access, Attributes, Expiry, LONG_VALUE_LEN, Marks, Record, Shared, SharedBytes, UnixSeconds,
};
pub use reply::{Hit, Inspection, Number, Prefix, Recache, Refusal, Reply, Stored};
