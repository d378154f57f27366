//! Replication in Kyoto Tycoon's protocol: its servers can be replicas and masters of this one.
//!
//! ```text
//! options            the master of this server, and its server ID
//! replica_stream     a connection that a thread of its own has taken over from its worker
//! outgoing_changes   the logs of all databases, merged into one stream of messages
//! replica_table      a thread for each replica that follows this server
//! connected_replica  the figures of such a replica
//! master_link        the thread that follows a master
//! position           the file with the position in the master's log
//! ```
//!
//! `todana::replication` defines the time stamps of this server's log, and
//! `todana_protocol::kyoto::replication` the bytes of messages.

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
