//! Implements the engines, which store the records of a database. They know records and visitors,
//! but not commands, clocks, logs or networks.
//!
//! `raw` is the only place with `unsafe` code. [`MemHash`] and [`MemTree`] store their records in
//! an `arena` of movable blocks, [`DiskHash`] in files of its own, [`DiskTree`] in LMDB.
//! [`FixedArray`] stores short values in the slots of their numbers. [`TableEngine`] and
//! [`FixedTree`] store rows and numbered records in a tree. The engine [`Void`] stores nothing.
#![deny(unsafe_code)]

mod arena;
pub mod dictionary;
pub mod disk;
mod disk_hash;
mod disk_tree;
mod fixed;
mod hex_digits;
mod huge;
pub mod key_shape;
mod mapped_buffer;
mod mem_hash;
mod mem_tree;
mod raw;
pub mod recent;
mod record;
pub mod reserve;
pub mod table;
#[cfg(test)]
#[path = "../tests/visitor/mod.rs"]
mod visitor;
mod void;
pub mod waiting;

pub use disk_hash::{DiskHash, DiskHashOptions, HashDamage, HashSalvage, PendingReads, ValueCompression};
pub use disk_tree::{
    DamagedPlace, DiskTree, DiskTreeOptions, ExaminedTree, TreeDamage, TreeExamination, TreeSalvage,
};
pub use fixed::{FixedArray, FixedArrayOptions, FixedLayout, FixedTree};
pub use mem_hash::{
    ClassBounds, Departure, DepartureCause, EvictionGoal, EvictionObserver, MemHash, MemHashOptions,
    expect_bucket_format, read_bucket_block,
};
pub use mem_tree::{Compression, MemTree, MemTreeOptions};
pub use raw::{
    RECEIVE_LEN, ReceiveEnd, ReceivedBytes, RingEvent, SEND_LEN_MAX, SocketRing, UnsentBytes,
    bound_allocator, trim_allocator,
};
pub use table::TableEngine;
pub use void::Void;
