//! The databases of a server: named, configured, observed and shared.
//!
//! The first is the one that memcached's protocols use. Each has one owner, [`todana::OpenDatabase`], which opens it, brings its records
//! back, keeps them on disk and closes it; [`opening`] says how, and logs the outcome.

pub(crate) mod awaits;
pub(crate) mod exports;
pub(crate) mod janitor;
pub(crate) mod memory;
pub(crate) mod opening;
pub(crate) mod patience;
mod served;
pub(crate) mod shards;
pub(crate) mod snapshots;

use crate::databases::exports::Exports;
use crate::databases::patience::Pulse;
use crate::databases::snapshots::History;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use todana::{CommitPoint, Database, Name};
use todana_core::{Error, ErrorKind, Result};

pub(crate) use patience::has_ended;
pub(crate) use served::Served;

/// All databases of a server, in their order.
pub(crate) struct Databases {
    all: Vec<Served>,
}

impl Databases {
    /// Fails if the databases cannot stand beside each other. There is at least one.
    pub(crate) fn new(all: Vec<Served>) -> Result<Databases> {
        Name::expect_distinct(all.iter().map(|one| &one.name))?;
        Ok(Databases { all })
    }

    /// Returns the number of the database that a client means by this name.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|one| one.name.is_meant_by(name))
    }

    /// Returns the first database, that memcached's protocols use.
    #[inline]
    pub(crate) fn primary(&self) -> &Served {
        &self.all[0]
    }

    /// Has a database brought to disk up to this point, where anything vouches for its changes.
    #[inline]
    pub(crate) fn request_durability(&self, number: usize, point: CommitPoint) {
        if let Some(durability) = self.all[number].database.durability() {
            durability.request(point);
        }
    }

    /// Does this to each database.
    pub(crate) fn each(&self, act: impl Fn(&Database)) {
        self.all.iter().for_each(|served| act(&served.database));
    }
}

impl Deref for Databases {
    type Target = [Served];

    #[inline]
    fn deref(&self) -> &[Served] {
        &self.all
    }
}

/// What keeps the databases of a server on disk, and takes copies of them.
pub(crate) struct Persistence {
    /// Checkpoints, backups and logs under way to clients.
    pub(crate) exports: Arc<Exports>,
    /// Outcomes of snapshots.
    pub(crate) snapshots: History,
    /// Of the disk of the databases.
    pub(crate) pulse: Arc<Pulse>,
}

impl Persistence {
    pub(crate) fn new(pulse: Arc<Pulse>) -> Persistence {
        Persistence { exports: Arc::default(), snapshots: History::default(), pulse }
    }
}

/// The error of a database.
pub(crate) fn failed(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::Closed => io::ErrorKind::Interrupted,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
