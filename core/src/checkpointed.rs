//! Defines engines whose files are a checkpoint of an update log that is kept elsewhere.

use crate::{Error, Result};
use std::path::Path;

/// An engine that collects writes in memory and writes them to disk in checkpoints. The update log,
/// which belongs to the database and not to the engine, makes the writes durable between
/// checkpoints.
///
/// The files always hold the state as of one moment, together with the log position of that moment.
/// After a crash the log must be replayed from that position. Log entries record outcomes, so
/// replaying from an earlier position is harmless.
pub trait CheckpointedEngine: Send + Sync {
    /// Returns the log position of the last checkpoint, or 0 before the first checkpoint.
    fn log_position(&self) -> u64;

    /// Sets the database whose update log the positions refer to. The next checkpoint stores the ID
    /// on disk. Fails with `Corrupt` if the files belong to another database, because the position
    /// in the files then has no meaning in this log.
    fn bind_to_log(&self, database_id: [u8; 16]) -> Result<()>;

    /// Returns the bytes of memory held by changes that no checkpoint contains yet.
    fn pending_bytes(&self) -> u64;

    /// Returns true if enough changes are pending to write a checkpoint.
    fn is_due(&self) -> bool;

    /// Writes all changes made before the cut to disk, together with their log position, as one
    /// atomic step. Returns when the checkpoint is on disk. Reads and writes continue meanwhile,
    /// except during the cut.
    ///
    /// `cut` is called once, while no visit is in progress, and returns the log position: the
    /// checkpoint contains exactly the changes whose visitor's `applied` has run. `cut` must be
    /// brief and must not call the engine. Then `ready` is called without any lock. It must return
    /// only when the log is on disk up to that position: if the checkpoint became durable earlier,
    /// a crash could leave changes that the log does not contain. If `ready` or the disk fails,
    /// nothing changes on disk and the changes stay pending.
    fn checkpoint_at(
        &self,
        cut: &mut dyn FnMut() -> u64,
        ready: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()>;

    /// Runs [`checkpoint_at`](Self::checkpoint_at) with a log position that is already known. The
    /// log must be on disk up to this position.
    fn checkpoint(&self, mark: u64) -> Result<()> {
        self.checkpoint_at(&mut || mark, &mut |_| Ok(()))
    }

    /// Returns the number of damaged records found since the engine was opened, and the error of
    /// the last damaged record. Each record is counted once. Never waits for the disk.
    fn damaged_records(&self) -> Option<(u64, Error)> {
        None
    }

    /// Returns the size of the files in bytes.
    fn file_bytes(&self) -> u64;

    /// Copies the state on disk, as of one moment, to `directory` and returns the log position of
    /// the copy. The copy can be opened like the original. The directory must be empty or absent.
    /// Reads and writes continue meanwhile.
    fn copy(&self, directory: &Path) -> Result<u64>;
}
