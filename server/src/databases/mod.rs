//! Holds the databases of a server, with their names, options, figures and shared state.
//!
//! memcached's protocols use the first database. Each database has one owner,
//! [`todana::OpenDatabase`], which opens it, loads its records, keeps them on disk and closes it.
//! [`opening`] chooses the options and logs the outcome.

pub(crate) mod exports;
pub(crate) mod maintenance;
pub(crate) mod memory;
pub(crate) mod opening;
pub(crate) mod pending_commits;
mod served;
pub(crate) mod shards;
pub(crate) mod shutdown_deadline;
pub(crate) mod snapshots;

use crate::databases::exports::ExportTable;
use crate::databases::shutdown_deadline::DiskProgress;
use crate::databases::snapshots::SnapshotHistory;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use todana::{CommitPoint, Database, DatabaseName};
use todana_core::{Error, ErrorKind, Result};

pub(crate) use served::ServedDatabase;
pub(crate) use shutdown_deadline::has_ended;

/// The number of the first database. memcached's and Tokyo Tyrant's protocols use only this one.
pub(crate) const PRIMARY_DATABASE: usize = 0;

/// All databases of a server, in the order of their numbers.
pub(crate) struct ServedDatabases {
    all: Vec<ServedDatabase>,
}

impl ServedDatabases {
    /// Creates the list of databases, which must not be empty. Fails if two databases conflict with
    /// each other.
    pub(crate) fn new(all: Vec<ServedDatabase>) -> Result<ServedDatabases> {
        DatabaseName::expect_distinct(all.iter().map(|one| &one.name))?;
        Ok(ServedDatabases { all })
    }

    /// Returns the number of the database with the name that a client gave.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|one| one.name.is_meant_by(name))
    }

    /// Returns the first database.
    #[inline]
    pub(crate) fn primary(&self) -> &ServedDatabase {
        &self.all[PRIMARY_DATABASE]
    }

    /// Requests that a database becomes durable up to this point. Has no effect on a database that
    /// is not kept on disk.
    #[inline]
    pub(crate) fn request_durability(&self, number: usize, point: CommitPoint) {
        if let Some(durability) = self.all[number].database.durability() {
            durability.request(point);
        }
    }

    /// Calls `act` for each database.
    pub(crate) fn each(&self, act: impl Fn(&Database)) {
        self.all.iter().for_each(|served| act(&served.database));
    }
}

impl Deref for ServedDatabases {
    type Target = [ServedDatabase];

    #[inline]
    fn deref(&self) -> &[ServedDatabase] {
        &self.all
    }
}

/// The state of the work that keeps databases on disk and copies them.
pub(crate) struct PersistenceState {
    /// The checkpoints, backups and logs that are being sent to clients.
    pub(crate) exports: Arc<ExportTable>,
    /// The outcomes of snapshots.
    pub(crate) snapshots: SnapshotHistory,
    /// The progress of the disk that holds the databases.
    pub(crate) disk_progress: Arc<DiskProgress>,
}

impl PersistenceState {
    pub(crate) fn new(disk_progress: Arc<DiskProgress>) -> PersistenceState {
        PersistenceState { exports: Arc::default(), snapshots: SnapshotHistory::default(), disk_progress }
    }
}

/// Converts an error of a database to an I/O error.
pub(crate) fn failed(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::Closed => io::ErrorKind::Interrupted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
