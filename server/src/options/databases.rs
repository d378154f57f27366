//! Which databases there are, where their data is kept, and which changes are born here.

use super::OptionsError;
use crate::databases::snapshots::SnapshotOptions;
use crate::replica::ReplicationOptions;
use std::path::PathBuf;
use std::time::Duration;
use todana::checkpoint::CheckpointOptions;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{DataPurpose, Name, Storage};
use todana_core::WhenFull;

/// Which databases there are, and where their data is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseOptions {
    /// What keeps the records of the first database, the one that memcached's protocols use; `None` is `mem:hash`.
    pub database: Option<Name>,
    /// Where the data of the first database is kept; `None`: it is gone with the process, or lies in files of its engine's own.
    pub data: Option<DataDirectoryOptions>,
    /// More databases.
    pub further: Vec<DatabaseSpec>,
    /// When a write counts as made where an engine keeps it in files of its own.
    pub sync: SyncPolicy,
    /// Snapshots of databases in memory, as Kyoto Tycoon makes them; `None`: none.
    pub snapshots: Option<SnapshotOptions>,
    /// Which changes are born here, and which master is followed.
    pub replication: ReplicationOptions,
    /// Databases in memory store nothing: what is written is logged for replicas, and gone.
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

/// A database besides the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSpec {
    /// What keeps its records.
    pub name: Name,
    /// Where its data is kept, as in [`DatabaseOptions::data`].
    pub data: Option<DataDirectoryOptions>,
}

/// Where and how data is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDirectoryOptions {
    /// The data directory; it is made if it is not there.
    pub directory: PathBuf,
    /// When a write counts as made.
    pub sync: SyncPolicy,
    /// A segment of the update log that has grown to so many bytes is followed by a new one.
    pub segment_len: u64,
    /// So is one that is so old and not empty.
    pub segment_age: Duration,
    /// How checkpoints are made, when, and what is kept of the log behind them.
    pub checkpoints: CheckpointOptions,
    /// It holds an update log for replicas, of a hash on disk, and no records.
    pub is_for_replicas: bool,
}

impl DataDirectoryOptions {
    /// Returns what the directory is for.
    pub(crate) fn purpose(&self) -> DataPurpose {
        if self.is_for_replicas { DataPurpose::Replicas } else { DataPurpose::Records }
    }

    /// A directory that is kept as usual.
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
    /// The databases in their order, and where the data of each is kept.
    pub fn all(&self) -> Vec<DatabaseSpec> {
        let default = || Name::parse("mem:hash").expect("it is the plain name of a kind");
        let first =
            DatabaseSpec { name: self.database.clone().unwrap_or_else(default), data: self.data.clone() };
        std::iter::once(first).chain(self.further.iter().cloned()).collect()
    }

    /// Checks the databases: each has its place, and is not asked for what it cannot do. `refuses`: nothing is evicted; `has_queues`:
    /// there are queues of messages.
    pub(super) fn validate(&self, refuses: bool, has_queues: bool) -> Result<(), OptionsError> {
        let databases = self.all();
        let wrong = |text: String| Err(OptionsError(text));
        if let Err(error) = Name::expect_distinct(databases.iter().map(|database| &database.name)) {
            return wrong(error.to_string());
        }
        let when_full = if refuses { WhenFull::Refuse } else { WhenFull::Evict };
        for DatabaseSpec { name, data } in &databases {
            let directory = data.as_ref().map(|place| (&*place.directory, place.purpose()));
            name.check(directory, when_full).map_err(|error| OptionsError(error.to_string()))?;
            if name.kind.storage() == Storage::FilesAndLog && data.is_none() {
                return wrong(format!(
                    "database \"{name}\": a tree needs its own path as its data directory"
                ));
            }
            if name.tuning.read_only && self.replication.master.is_some() {
                return wrong(format!(
                    "database \"{name}\": a replica changes its databases; leave out mode=r, or the master"
                ));
            }
            if name.tuning.read_only && has_queues {
                return wrong(format!(
                    "database \"{name}\": queues cannot be for reading only (-plex opts=q)"
                ));
            }
        }
        let places: Vec<_> = databases.iter().filter_map(|database| database.data.as_ref()).collect();
        let is_twice = |at: usize| places[..at].iter().any(|place| place.directory == places[at].directory);
        if let Some(at) = (1..places.len()).find(|&at| is_twice(at)) {
            return wrong(format!(
                "two databases would keep their data in {}",
                places[at].directory.display()
            ));
        }
        Ok(())
    }
}
