//! The embeddable database for C: `include/todana.h`, which is generated from these files (`cargo
//! xtask header`), and docs/c.md.
//!
//! ```text
//! C --numbers, bytes--> a function of this crate --OpenDatabase, the thread's transaction--> todana::Records
//! C <---code, message-- answer(): every error, every panic <--------------------------------- Result
//! ```
//!
//! Invariants: a handle is a number that is looked up, never an address, so a closed one is an
//! error and not a crash. No panic leaves this crate. All memory that is given to the caller was
//! allocated by `malloc`. `raw` is the only file that dereferences pointers; the others translate
//! between `#[unsafe(no_mangle)]` functions and safe code.
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
#[allow(unsafe_code, reason = "the one place that follows pointers: SAFETY.md")]
pub mod raw;
pub mod records;
pub mod snapshots;
pub mod transactions;
pub mod visitors;
