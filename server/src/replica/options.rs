//! Defines the options of replication.

use crate::options::{PoolLogin, PoolTlsOptions};
use std::path::PathBuf;
use std::time::Duration;
use todana::replication::StampScheme;

/// The name of the file with the positions of a replica in the data directory.
pub(crate) const REPLICA_POSITION: &str = "replica-position";

/// The address of a master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterAddress {
    /// A host name or an IP address.
    pub host: String,
    /// The port of the master, which serves all its protocols.
    pub port: u16,
}

/// The protocol of a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MasterProtocol {
    /// Kyoto Tycoon's, which Todana's servers speak too.
    #[default]
    Kyoto,
    /// Tokyo Tyrant's.
    Tyrant {
        /// True stops following at the first change whose outcome differs from that at the master.
        checks_outcomes: bool,
    },
    /// Todana's own.
    Native,
}

impl MasterProtocol {
    /// Returns the time stamps of the master's log.
    pub(crate) fn stamps(self) -> StampScheme {
        match self {
            MasterProtocol::Kyoto | MasterProtocol::Native => StampScheme::default(),
            MasterProtocol::Tyrant { .. } => StampScheme::Changes,
        }
    }
}

/// Options of replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationOptions {
    /// The server ID with which the changes of this server's clients are marked. All servers of a
    /// replication chain must have different IDs. Tokyo Tyrant's protocol needs another one than 0.
    pub server_id: u16,
    /// The master to follow. With `None`, the server follows no master until a client names one.
    pub master: Option<MasterAddress>,
    /// The protocol of the master.
    pub protocol: MasterProtocol,
    /// The path of the file with the position in the master's log: 20 digits (Kyoto Tycoon's
    /// protocol) or 16 (Tokyo Tyrant's) and a line end, or lines of text (Todana's own). With
    /// `None`, each start applies all changes of the master again, and no client can choose another
    /// master.
    pub position_file: Option<PathBuf>,
    /// The pause between two requests for changes, once all of them have been applied.
    pub interval: Duration,
    /// The options of Todana's own protocol.
    pub native: NativeReplicaOptions,
    /// The number of replicas that must have a change before it is acknowledged.
    pub acks: usize,
    /// The time within which they must confirm it.
    pub ack_time_max: Duration,
}

/// The options of a replica in Todana's own protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeReplicaOptions {
    /// True if clients may change records although the server follows a master, for two servers
    /// that follow each other.
    pub accepts_writes: bool,
    /// TLS to the master. `None` means a connection without TLS.
    pub tls: Option<PoolTlsOptions>,
    /// The login at the master.
    pub login: Option<PoolLogin>,
    /// The number of the only database of the master that the first database of this server
    /// follows. With `None`, each database follows the one with its number.
    pub database: Option<u16>,
}

impl ReplicationOptions {
    /// Returns true if clients cannot change the database with this index, because it follows a
    /// master in Todana's own protocol.
    pub(crate) fn makes_replica(&self, index: usize) -> bool {
        let is_followed = self.native.database.is_none() || index == 0;
        self.master.is_some()
            && self.protocol == MasterProtocol::Native
            && !self.native.accepts_writes
            && is_followed
    }
}

impl Default for ReplicationOptions {
    fn default() -> Self {
        ReplicationOptions {
            server_id: 1,
            master: None,
            protocol: MasterProtocol::Kyoto,
            position_file: None,
            interval: Duration::from_millis(40),
            native: NativeReplicaOptions::default(),
            acks: 0,
            ack_time_max: Duration::from_secs(1),
        }
    }
}
