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

mod connected;
mod link;
mod master;
mod options;
mod outgoing;
mod position;
mod wire;

pub(crate) use connected::ConnectedReplica;
pub(crate) use link::{Link, Standing};
pub(crate) use master::Replicas;
pub use options::{MasterAddress, Replication};
