//! Options of replication.

use std::path::PathBuf;
use std::time::Duration;

/// The address of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddress {
    /// A host name or an IP address.
    pub host: String,
    /// The port, which serves all protocols.
    pub port: u16,
}

/// Options of replication in Kyoto Tycoon's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationOptions {
    /// The server ID that marks the changes of this server's clients. It must differ between all
    /// servers of a replication chain.
    pub server_id: u16,
    /// The master to follow. `None` follows nobody until a client names a master.
    pub master: Option<MasterAddress>,
    /// The file with the position in the master's log: 20 digits and a line end. With `None`, each
    /// start begins with all changes of the master, and no client can choose another master.
    pub position_file: Option<PathBuf>,
    /// The pause between two requests for changes, once all of them have been applied.
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
