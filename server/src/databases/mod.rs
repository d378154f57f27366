//! The databases of a server: named, configured, observed and shared.
//!
//! memcached's protocols use the first one. Each has one owner, [`todana::OpenDatabase`], which
//! opens it, loads its records, keeps them on disk and closes it. [`opening`] chooses the options
//! and logs the outcome.

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
use todana::{CommitPoint, Database, Name};
use todana_core::{Error, ErrorKind, Result};

pub(crate) use served::ServedDatabase;
pub(crate) use shutdown_deadline::has_ended;

/// All databases of a server, in their order.
pub(crate) struct Databases {
    all: Vec<ServedDatabase>,
}

impl Databases {
    /// Fails if two databases conflict with each other. There must be at least one.
    pub(crate) fn new(all: Vec<ServedDatabase>) -> Result<Databases> {
        Name::expect_distinct(all.iter().map(|one| &one.name))?;
        Ok(Databases { all })
    }

    /// Returns the number of the database with the name that a client gave.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|one| one.name.is_meant_by(name))
    }

    /// Returns the first database, which memcached's protocols use.
    #[inline]
    pub(crate) fn primary(&self) -> &ServedDatabase {
        &self.all[0]
    }

    /// Requests that a database becomes durable to this point, if it is kept on disk.
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

impl Deref for Databases {
    type Target = [ServedDatabase];

    #[inline]
    fn deref(&self) -> &[ServedDatabase] {
        &self.all
    }
}

/// The state of keeping the databases on disk and of copying them.
pub(crate) struct Persistence {
    /// Running checkpoints, backups and logs for clients.
    pub(crate) exports: Arc<ExportTable>,
    /// Outcomes of snapshots.
    pub(crate) snapshots: SnapshotHistory,
    /// Progress of the disk of the databases.
    pub(crate) disk_progress: Arc<DiskProgress>,
}

impl Persistence {
    pub(crate) fn new(disk_progress: Arc<DiskProgress>) -> Persistence {
        Persistence { exports: Arc::default(), snapshots: SnapshotHistory::default(), disk_progress }
    }
}

/// Converts the error of a database.
pub(crate) fn failed(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::Closed => io::ErrorKind::Interrupted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
