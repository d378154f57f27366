//! Defines the options of the databases: their names, data directories, snapshots and replication.

use super::OptionsError;
use crate::databases::snapshots::SnapshotOptions;
use crate::observation::slow_requests;
use crate::replica::{MasterProtocol, REPLICA_POSITION, ReplicationOptions};
use std::path::PathBuf;
use std::time::Duration;
use todana::checkpoint::CheckpointOptions;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{DataPurpose, DatabaseName, DatabaseStorage};
use todana_core::WhenFull;
use todana_protocol::replication::NAME_LEN_MAX;

/// The databases of a server, and where their data is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseOptions {
    /// The name of the first database, which memcached's protocols use. `None` stands for
    /// `mem:hash`.
    pub database: Option<DatabaseName>,
    /// The data directory of the first database. With `None`, the records of a database in memory
    /// are lost when the process ends; a database on disk keeps its own files.
    pub data: Option<DataDirectoryOptions>,
    /// The databases after the first.
    pub further: Vec<DatabaseSpec>,
    /// When a write counts as durable, for engines that keep records in files of their own.
    pub sync: SyncPolicy,
    /// The snapshots of databases in memory, like those of Kyoto Tycoon. With `None` there are
    /// none.
    pub snapshots: Option<SnapshotOptions>,
    /// The server ID in a replication chain, and the master that this server follows.
    pub replication: ReplicationOptions,
    /// True if databases in memory store nothing: changes are logged for replicas and then dropped.
    pub stores_nothing: bool,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        DatabaseOptions {
            database: None,
            data: None,
            further: Vec::new(),
            sync: LogOptions::default().sync,
            snapshots: None,
            replication: ReplicationOptions::default(),
            stores_nothing: false,
        }
    }
}

/// A database, as the options describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSpec {
    /// The kind, path and tuning of the database.
    pub name: DatabaseName,
    /// The data directory of the database, as in [`DatabaseOptions::data`].
    pub data: Option<DataDirectoryOptions>,
}

/// A data directory, and the way in which the server uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDirectoryOptions {
    /// The path of the directory. The server creates it if it is missing.
    pub directory: PathBuf,
    /// When a write counts as durable.
    pub sync: SyncPolicy,
    /// The length of a segment in bytes, at which the update log begins a new segment.
    pub segment_len: u64,
    /// The age of a segment at which the update log begins a new one, unless the segment is empty.
    pub segment_age: Duration,
    /// The way and the intervals in which checkpoints are created, and how much of the log before
    /// them is kept.
    pub checkpoints: CheckpointOptions,
    /// True if the directory holds only the update log of a hash on disk for replicas, and no
    /// records.
    pub is_for_replicas: bool,
}

impl DataDirectoryOptions {
    /// Returns the purpose of the directory.
    pub(crate) fn purpose(&self) -> DataPurpose {
        if self.is_for_replicas { DataPurpose::Replicas } else { DataPurpose::Records }
    }

    /// Returns true if the server uses a file or folder of this name in a data directory, so that a
    /// further database cannot have this name.
    pub fn reserves(name: &str) -> bool {
        todana::is_reserved(name) || name == REPLICA_POSITION || slow_requests::has_file(name)
    }

    /// Returns the options of a directory with the default segments and checkpoints.
    pub fn new(directory: PathBuf, sync: SyncPolicy) -> DataDirectoryOptions {
        let LogOptions { segment_len, segment_age, .. } = LogOptions::default();
        let checkpoints = CheckpointOptions::default();
        DataDirectoryOptions {
            directory,
            sync,
            segment_len,
            segment_age,
            checkpoints,
            is_for_replicas: false,
        }
    }
}

impl DatabaseOptions {
    /// Returns all databases, including the first one, in the order of their numbers.
    pub fn all(&self) -> Vec<DatabaseSpec> {
        let default = || DatabaseName::parse("mem:hash").expect("`mem:hash` is the name of a kind");
        let first =
            DatabaseSpec { name: self.database.clone().unwrap_or_else(default), data: self.data.clone() };
        std::iter::once(first).chain(self.further.iter().cloned()).collect()
    }

    /// Checks that each database has a place for its data, and that its kind supports the options.
    /// `refuses` is true if writes fail at the memory limit instead of evicting records.
    /// `has_queues` is true if the first database holds message queues.
    pub(super) fn validate(&self, refuses: bool, has_queues: bool) -> Result<(), OptionsError> {
        let databases = self.all();
        let wrong = |text: String| Err(OptionsError(text));
        if let Err(error) = DatabaseName::expect_distinct(databases.iter().map(|database| &database.name)) {
            return wrong(error.to_string());
        }
        let ReplicationOptions { server_id, master, protocol, native, .. } = &self.replication;
        if *server_id == 0 && master.is_some() && matches!(protocol, MasterProtocol::Tyrant { .. }) {
            return wrong(
                "server ID 0: a master of Tokyo Tyrant's protocol refuses it; use 1 to 65535".into(),
            );
        }
        if let Some(login) = &native.login {
            let fits = |text: &str| text.len() <= NAME_LEN_MAX;
            if !fits(&login.user) || !login.password.as_deref().is_none_or(fits) {
                return wrong(format!("login of the replica: longer than {NAME_LEN_MAX} bytes"));
            }
        }
        let when_full = if refuses { WhenFull::Refuse } else { WhenFull::Evict };
        for DatabaseSpec { name, data } in &databases {
            let directory = data.as_ref().map(|place| (&*place.directory, place.purpose()));
            name.check(directory, when_full).map_err(|error| OptionsError(error.to_string()))?;
            self.expect_no_cluster_needs(name, data.is_some(), has_queues)?;
            if name.kind.storage() == DatabaseStorage::FilesAndLog && data.is_none() {
                return wrong(format!(
                    "database \"{name}\": a tree needs its own path as its data directory"
                ));
            }
            if name.tuning.read_only && self.replication.master.is_some() {
                return wrong(format!(
                    "database \"{name}\": read-only, but replication changes it; leave out mode=r or the master"
                ));
            }
            if name.tuning.read_only && has_queues {
                return wrong(format!("database \"{name}\": queues cannot be read-only (-plex opts=q)"));
            }
        }
        let places: Vec<_> = databases.iter().filter_map(|database| database.data.as_ref()).collect();
        let is_twice = |at: usize| places[..at].iter().any(|place| place.directory == places[at].directory);
        if let Some(at) = (1..places.len()).find(|&at| is_twice(at)) {
            return wrong(format!(
                "data directory {}: given for two databases",
                places[at].directory.display()
            ));
        }
        Ok(())
    }

    /// Fails if a database on a cluster is given something that only a database of this process can
    /// have.
    fn expect_no_cluster_needs(
        &self,
        name: &DatabaseName,
        has_data: bool,
        has_queues: bool,
    ) -> Result<(), OptionsError> {
        if name.cluster.is_none() {
            return Ok(());
        }
        let problem = if !cfg!(feature = "cassandra") {
            "this build cannot connect to a cluster; build it with --features cassandra"
        } else if has_data {
            "the cluster keeps the records; leave out the data directory"
        } else if self.replication.master.is_some() || self.replication.position_file.is_some() {
            "the cluster replicates its records; leave out the master and its position file"
        } else if self.snapshots.is_some() {
            "a cluster gives no snapshot; leave out the snapshots"
        } else if has_queues {
            "a cluster holds no queues (-plex opts=q)"
        } else {
            return Ok(());
        };
        Err(OptionsError(format!("database \"{name}\": {problem}")))
    }
}
