//! What a server is told of replication.

use std::path::PathBuf;
use std::time::Duration;

/// A master to be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddress {
    /// A name or an address.
    pub host: String,
    /// Its port, for all protocols.
    pub port: u16,
}

/// What a server is told of replication as Kyoto Tycoon does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationOptions {
    /// What changes that are born here are told by; different at each server that changes reach.
    pub server_id: u16,
    /// Whom to follow; `None`: nobody, until a client says so.
    pub master: Option<MasterAddress>,
    /// Where the position in the master's log is kept: 20 digits and a line end. `None`: each start begins with all that the master
    /// has, and no client can choose another master.
    pub position_file: Option<PathBuf>,
    /// How long whatever the master has is waited with, once all has been taken.
    pub interval: Duration,
}

impl Default for ReplicationOptions {
    fn default() -> Self {
        ReplicationOptions {
            server_id: 1,
            master: None,
            position_file: None,
            interval: Duration::from_millis(40),
        }
    }
}
