//! What engines offer whose data on disk is a checkpoint of somebody else's log.

use crate::{Error, Result};
use std::path::Path;

/// An engine that gathers writes in memory and brings them to disk in large steps, while an update log that is not its
/// own vouches for them.
///
/// On disk is always the state as of one moment, together with the mark that belongs to it: the place in the log from
/// which it has to be read again. Entries tell outcomes, so reading it from an earlier place does no harm.
pub trait CheckpointedEngine: Send + Sync {
    /// The mark of what is on disk; 0 before the first one.
    fn log_position(&self) -> u64;

    /// Says whose log the marks are of. From the next checkpoint on that is on disk too. Fails with `Corrupt` if what is on disk was made
    /// for another database's log: its mark means nothing in this one.
    fn bind_to_log(&self, database_id: [u8; 16]) -> Result<()>;

    /// Bytes of memory held by changes that are not on disk yet.
    fn pending_bytes(&self) -> u64;

    /// True when so much is pending that it is time for a checkpoint.
    fn is_due(&self) -> bool;

    /// Brings all changes to disk that were made before the cut, and the mark with them, in one step that happens as a whole or
    /// not at all; returns once that is on disk. Reads and writes go on meanwhile, except during the cut.
    ///
    /// `cut` is called once, at a moment when no visit is under way, and returns the mark: every change whose visitor has been
    /// told (`applied`) is in, no other. It must be brief and must not call the engine. `ready` is called then, without any
    /// lock, and returns once everything before the mark is on disk where the mark leads to: until then nothing of
    /// this must be durable, or a crash could leave changes that the log does not know. An error of its own, or one of the disk's, leaves all as it
    /// was, and the changes pending.
    fn checkpoint_at(
        &self,
        cut: &mut dyn FnMut() -> u64,
        ready: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()>;

    /// [`checkpoint_at`](Self::checkpoint_at) for whoever knows the mark beforehand: the log is on disk, and has to be read
    /// again from there.
    fn checkpoint(&self, mark: u64) -> Result<()> {
        self.checkpoint_at(&mut || mark, &mut |_| Ok(()))
    }

    /// How many damaged records were met since the opening, each counted once, and what was wrong with the last one. Never waits for the
    /// disk.
    fn damaged_records(&self) -> Option<(u64, Error)> {
        None
    }

    /// Bytes of the files.
    fn file_bytes(&self) -> u64;

    /// Makes a copy of what is on disk, as of one moment, in a directory of its own that can be opened like this one, and
    /// returns its mark. The directory must be empty or not be there. Reads and writes go on meanwhile.
    fn copy(&self, directory: &Path) -> Result<u64>;
}
