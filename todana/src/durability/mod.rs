//! Durability: whether a change is durable, waiting until it is, and whether changes can be
//! written.
//!
//! ```text
//! Database::execute -> CommitPoint -> Durability::{is_durable, wait_while, wait}
//!     Log     changes are durable when the update log is on disk
//!     Files   changes are durable when the engine's own files are on disk
//! ```

mod engine_files;

pub use crate::update_log::DurabilityHealth;
pub(crate) use engine_files::{EngineFiles, start_sync_thread};

use crate::update_log::{LogPosition, SyncPolicy, UpdateLog};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{DurableEngine, RefusalReason, Result};

/// A point in the order of all changes of a database. A reply waits until the database is durable
/// up to such a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitPoint(u64);

impl CommitPoint {
    /// The commit point if there was no change, or if changes are never durable. A reply does not
    /// wait for it.
    pub const NONE: CommitPoint = CommitPoint(0);

    /// Returns true if a reply does not wait for this point.
    #[inline]
    pub fn is_none(self) -> bool {
        self == CommitPoint::NONE
    }
}

impl From<CommitPoint> for LogPosition {
    /// Returns the position in the update log up to which the log must be on disk, if the log makes
    /// changes durable.
    #[inline]
    fn from(point: CommitPoint) -> LogPosition {
        LogPosition(point.0)
    }
}

impl From<LogPosition> for CommitPoint {
    #[inline]
    fn from(position: LogPosition) -> CommitPoint {
        CommitPoint(position.0)
    }
}

/// The latest commit point for which no reply waits yet. Only one thread at a time may add and
/// take.
#[derive(Debug, Default)]
pub struct LatestCommit(AtomicU64);

impl LatestCommit {
    /// Adds a commit point.
    #[inline]
    pub fn note(&self, point: CommitPoint) {
        if !point.is_none() {
            self.0.store(point.0.max(self.0.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Removes and returns the latest commit point, if there is one.
    #[inline]
    pub fn take(&self) -> Option<CommitPoint> {
        let point = self.0.load(Ordering::Relaxed);
        if point == 0 {
            return None;
        }
        self.0.store(0, Ordering::Relaxed);
        Some(CommitPoint(point))
    }
}

/// The mechanism that makes the changes of a database durable
/// ([`Database::durability`](crate::Database::durability)).
#[derive(Clone, Copy)]
pub enum Durability<'d> {
    /// The update log.
    Log(&'d UpdateLog),
    /// The files of the engine. If there is an update log, only replicas use it.
    Files(EngineDurability<'d>),
}

/// The files of an engine that make its changes durable.
#[derive(Clone, Copy)]
pub struct EngineDurability<'d> {
    pub(crate) files: &'d EngineFiles,
    pub(crate) engine: &'d dyn DurableEngine,
    pub(crate) log: Option<&'d UpdateLog>,
}

impl EngineDurability<'_> {
    /// Returns true if a reply to a change is sent only after the files are synced.
    pub(crate) fn is_synced_for_each_reply(&self) -> bool {
        self.files.sync() == SyncPolicy::Always
    }
}

impl Durability<'_> {
    /// Returns true if a reply that waits for this point may be sent. Costs a few loads of atomics.
    pub fn is_durable(self, point: CommitPoint) -> bool {
        match self {
            Durability::Log(log) => log.is_durable(LogPosition(point.0)),
            Durability::Files(durability) => durability.files.is_durable(point),
        }
    }

    /// Requests the sync thread to make the changes up to this point durable.
    pub fn request(self, point: CommitPoint) {
        if let Durability::Files(durability) = self {
            durability.files.request(point);
        }
    }

    /// Registers a callback for every progress and every change of the health. It is called by the
    /// thread that writes or syncs, so it must be brief.
    pub fn on_progress(self, call: impl Fn() + Send + Sync + 'static) {
        let call: Arc<dyn Fn() + Send + Sync> = Arc::new(call);
        let log = match self {
            Durability::Log(log) => Some(log),
            Durability::Files(EngineDurability { files, log, .. }) => {
                files.on_progress(Arc::clone(&call));
                log
            }
        };
        if let Some(log) = log {
            log.on_progress(move || call());
        }
    }

    /// Waits until a change is durable. If necessary, syncs the engine's files in this thread.
    /// Fails with `Unavailable` if the change cannot be written; a crash may then lose the change.
    pub fn wait(self, point: CommitPoint) -> Result<()> {
        match self {
            _ if point.is_none() => Ok(()),
            Durability::Log(log) => log.wait(LogPosition(point.0)),
            Durability::Files(durability) => durability.files.wait(point, durability.engine),
        }
    }

    /// Waits until a change is durable that was [requested](Self::request). `goes_on` is called
    /// regularly. Returns false if `goes_on` returns false, or if the change will never be durable.
    pub fn wait_while(self, point: CommitPoint, goes_on: &dyn Fn() -> bool) -> bool {
        match self {
            Durability::Log(log) => {
                log.wait_while(LogPosition(point.0), goes_on).is_ok_and(|is_over| is_over)
            }
            Durability::Files(durability) => durability.files.wait_while(point, goes_on),
        }
    }

    /// Returns true if changes can be written.
    pub fn takes_changes(self) -> bool {
        match self {
            Durability::Log(log) => log.takes_changes(),
            Durability::Files(EngineDurability { files, log, .. }) => {
                files.takes_changes() && log.is_none_or(UpdateLog::takes_changes)
            }
        }
    }

    /// Returns true if too many changes wait to be written. This never happens to an engine's own
    /// files.
    pub fn is_backlogged(self) -> bool {
        match self {
            Durability::Log(log) => log.is_backlogged(),
            Durability::Files(durability) => durability.log.is_some_and(UpdateLog::is_backlogged),
        }
    }

    /// Returns the state of the log or the files, with the reason if changes cannot be written.
    pub fn health(self) -> DurabilityHealth {
        match self {
            Durability::Log(log) => log.health(),
            Durability::Files(durability) => {
                match (durability.files.health(), durability.engine.refused_write_error()) {
                    (DurabilityHealth::Well, Some(why)) => DurabilityHealth::Stuck(why.to_string()),
                    (health, _) => health,
                }
            }
        }
    }

    /// Returns the reply to a change that cannot be written.
    pub fn refusal(self) -> RefusalReason {
        match self {
            Durability::Log(_) => RefusalReason::LogUnwritable,
            Durability::Files(_) => RefusalReason::FilesUnwritable,
        }
    }
}
