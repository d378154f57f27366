//! Replication between Todana servers in their own protocol (docs/protocol/replication.md).
//!
//! ```text
//! replica_side   bytes of a master in, changes of databases out
//! master_side    logs of databases in, bytes for a replica out
//! reached_place  how much of its master a database has
//! positions      the file with the positions of a replica
//! branch         the epochs of masters, and the changes that only a former master has
//! promotion      the beginnings of epochs, and servers that are masters no more
//! follower       the thread that follows a master
//! master_stream  its connection to the master
//! served         the thread that serves a replica
//! simulation     tests of both sides over a simulated network
//! ```
//!
//! A replica receives the bytes of the update log as they lie on the disk of the master, so it gets
//! every attribute of a record. A replica that is new or too late first receives a checkpoint.

mod branch;
mod follower;
mod master_side;
mod master_stream;
mod positions;
mod promotion;
mod reached_place;
mod replica_side;
mod served;
#[cfg(test)]
mod simulation;

pub(super) use follower::NativeFollower;
pub(crate) use promotion::server_epoch;
pub(super) use promotion::{promote_former_master, refuse_former_master};
pub(super) use replica_side::FollowedDatabase;
pub(super) use served::serve;
