//! The embeddable database for C: `include/todana.h`, which is made from these files (`cargo xtask header`), and docs/c.md.
//!
//! ```text
//! C --numbers, bytes--> a function of this crate --Home: the handle, the thread's transaction--> todana::Records
//! C <---code, message-- answer(): every error, every panic <------------------------------------ Result
//! ```
//!
//! Always true: a handle is a number that is looked up, never an address, so one that was closed is an error and not a crash; no panic
//! leaves this crate; whatever is given away was made by `malloc`. `raw` is the only file that follows a pointer; the others stand
//! between `#[unsafe(no_mangle)]` and safe code.
#![deny(unsafe_code)]

pub mod answer;
pub mod attributes;
pub mod cursors;
pub mod database;
mod handles;
pub mod home;
pub mod iterators;
pub mod key_orders;
pub mod map_reduce;
pub mod matches;
#[allow(unsafe_code, reason = "the one place that follows pointers: SAFETY.md")]
pub mod raw;
pub mod records;
pub mod snapshots;
pub mod transactions;
pub mod visitors;
