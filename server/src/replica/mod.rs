//! Replication as Kyoto Tycoon does it: its servers can be our replicas and our masters.
//!
//! ```text
//! options    who is whose replica
//! wire       a connection that a thread of its own has taken over from its worker
//! outgoing   the logs of all databases, merged into one stream of messages
//! master     a thread for each replica that follows this server
//! connected  what is known of such a replica
//! link       the thread that follows a master
//! position   the file that keeps how far it has come
//! ```
//!
//! What the time stamps of our own log are, `todana::replication` knows; the bytes, `todana_protocol::kyoto::replication`.

mod connected_replica;
mod master_link;
mod options;
mod outgoing_changes;
mod position;
mod replica_stream;
mod replica_table;

pub(crate) use connected_replica::ConnectedReplica;
pub(crate) use master_link::{FollowState, MasterLink};
pub use options::{MasterAddress, ReplicationOptions};
pub(crate) use replica_table::ReplicaTable;
