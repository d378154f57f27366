//! The embeddable database for C. The header `include/todana.h` is generated from these files
//! (`cargo xtask header`), and docs/c.md is the guide.
//!
//! ```text
//! C -- numbers, bytes --> a function of this crate
//!     -- RegisteredDatabase, the transaction of the thread --> todana::Records
//! C <-- code, message -- answer(): every error and every panic <-- Result
//! ```
//!
//! Invariants:
//! - A handle is a number that is looked up, and never an address. The use of a closed handle is an
//!   error and not a crash.
//! - No panic leaves this crate.
//! - `malloc` allocates all memory that the caller must free.
//! - `raw` is the only file that dereferences pointers. The other files translate between
//!   `#[unsafe(no_mangle)]` functions and safe code.
#![deny(unsafe_code)]

pub mod answer;
pub mod attributes;
pub mod cursors;
pub mod database;
mod handles;
pub mod iterators;
pub mod key_orders;
pub mod map_reduce;
pub mod matches;
pub mod open_database;
pub mod queries;
#[allow(unsafe_code, reason = "the one place that follows pointers: SAFETY.md")]
pub mod raw;
pub mod records;
pub mod snapshots;
pub mod tables;
pub mod transactions;
pub mod values;
pub mod visitors;
