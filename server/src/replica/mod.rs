//! Implements replication in the protocols of Kyoto Tycoon and Tokyo Tyrant. Their servers can be
//! replicas and masters of this server.
//!
//! ```text
//! options            the master of this server, and its server ID
//! replica_stream     a connection that a thread of its own has taken over from its worker
//! replica_request    the request of a replica, and the messages to it, in one of the protocols
//! outgoing_changes   the logs of all databases, merged into one stream of messages
//! replica_table      a thread for each replica that follows this server
//! connected_replica  the figures of such a replica
//! replica_acks       the changes that replicas have confirmed
//! master_link        the master of this server, and the position in its log
//! master_follower    the thread that follows it
//! applied_message    the result of applying a message of the master
//! kyoto_master       the stream of a master in Kyoto Tycoon's protocol
//! tyrant_master      the stream of a master in Tokyo Tyrant's protocol
//! native             Todana's own protocol
//! served_target      a database as the target of commands from a log
//! freshness          whether the records are as new as a reader requires
//! position           the file with the position in the master's log
//! ```
//!
//! `todana::replication` defines the time stamps of this server's log, and
//! `todana_protocol::{kyoto, tyrant}::replication` the bytes of messages.

mod applied_message;
mod connected_replica;
pub(crate) mod freshness;
mod kyoto_master;
mod master_follower;
mod master_link;
mod native;
mod options;
mod outgoing_changes;
mod position;
mod replica_acks;
mod replica_request;
mod replica_stream;
mod replica_table;
mod served_target;
mod tyrant_master;

pub(crate) use connected_replica::ConnectedReplica;
pub(crate) use master_link::{FollowState, MasterLink};
pub(crate) use native::server_epoch;
pub(crate) use options::REPLICA_POSITION;
pub use options::{MasterAddress, MasterProtocol, NativeReplicaOptions, ReplicationOptions};
pub(crate) use replica_acks::ReplicaAcks;
pub(crate) use replica_request::ReplicaRequest;
pub(crate) use replica_table::{ReplicaGreeting, ReplicaTable};
pub(crate) use served_target::ServedTarget;
