//! The update log for replicas of another make: messages with increasing time stamps.
//!
//! ```text
//! stamps   a position in the log and the time of its marks -> a time stamp
//! feed     the log of one database from a time stamp on
//! ```
//!
//! No state is kept for replicas: a time stamp is computed from the log alone, so the position of a
//! replica is found by the last time stamp that it has seen, even after a restart of either side.

mod feed;
mod stamps;

pub use feed::{FeedStart, ReplicationFeed};
pub use stamps::{STAMPS_PER_SECOND, first_of_second};
