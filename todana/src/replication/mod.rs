//! The update log as replicas of another make want it: as messages with time stamps that grow.
//!
//! ```text
//! stamps   a position of the log, and the time that its marks tell -> a time stamp
//! feed     the log of one database from a time stamp on
//! ```
//!
//! Nothing is kept of replicas: a time stamp comes from the log alone, so a replica's place is found again by the last one that it
//! has seen, after a restart of either side as well.

mod feed;
mod stamps;

pub use feed::{FeedStart, ReplicationFeed};
pub use stamps::{NANOS, first_of_second};
