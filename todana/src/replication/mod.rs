//! Reads the update log for replicas that use Kyoto Tycoon's protocol, whose messages have
//! increasing time stamps.
//!
//! ```text
//! stamps   computes a time stamp from a position in the log and the time of its marks
//! feed     reads the log of one database from a time stamp on
//! origin   the servers that a change has passed
//! undo     the former records of keys that a replica has changed since it stored its position
//! ```
//!
//! The master stores nothing about its replicas. A time stamp is computed from the log alone, so
//! the position of a replica is found by the last time stamp that it has received, even after a
//! restart of either server.

mod feed;
mod origin;
mod stamps;
mod undo;

pub use feed::{FeedStart, ReplicationFeed};
pub use origin::ChangeOrigin;
pub use stamps::{STAMPS_PER_SECOND, StampAssigner, StampScheme, first_of_second};
pub use undo::{RestorableKeys, UndoLog};
