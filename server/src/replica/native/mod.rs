//! Replication between Todana servers in their own protocol (docs/protocol/replication.md).
//!
//! ```text
//! replica_side   bytes of a master in, changes of databases out
//! master_side    logs of databases in, bytes for a replica out
//! positions      the file with the positions of a replica
//! follower       the thread that follows a master
//! master_stream  its connection to the master
//! served         the thread that serves a replica
//! simulation     tests of both sides over a simulated network
//! ```
//!
//! A replica receives the bytes of the update log as they lie on the disk of the master, so it gets
//! every attribute of a record. A replica that is new or too late first receives a checkpoint.

mod follower;
mod master_side;
mod master_stream;
mod positions;
mod replica_side;
mod served;
#[cfg(test)]
mod simulation;

pub(super) use follower::NativeFollower;
pub(super) use replica_side::FollowedDatabase;
pub(super) use served::serve;
