//! What engines offer whose records outlive the process.

use crate::{Action, Error, Result};
use std::path::Path;
use std::sync::Arc;

/// An engine that keeps its records in files of its own, as they are written.
pub trait DurableEngine: Send + Sync {
    /// Hands all that was written so far to the system: it then outlives the process, not the machine. Fails with `Full` when
    /// there is no space; it can be read and is kept in memory then, and the next write, flush or sync tries again.
    fn flush(&self) -> Result<()>;

    /// Returns once all that was written before the call is on disk. Whoever calls while another thread waits for the disk
    /// shares the next wait with all others that came meanwhile. After a sync that failed nothing is written any more until
    /// the engine is opened again: what the disk has kept cannot be known.
    fn sync(&self) -> Result<()>;

    /// Does all of these or none, also across a crash, and no reader sees some of them without the others per key; of several
    /// about one key the last counts. Fails with `Invalid` when a key or value, or all of them together, are too long.
    fn apply(&self, changes: &[(&[u8], Action<'_>)]) -> Result<()>;

    /// Makes a copy of everything in a directory that is not there yet, as of one moment during the call, while work goes
    /// on. It is on disk when this returns; it is opened as the original is.
    fn copy(&self, to: &Path) -> Result<()>;

    /// The files that hold everything as of one moment during the call, for whoever copies them at a pace of their own. They can be
    /// read for as long as this is held, whatever is written, removed or compacted meanwhile, and take their room on disk until then.
    fn freeze(&self) -> Result<Vec<FrozenFile>>;

    /// Puts everything on disk, and what makes the next opening fast. Writes fail with `Closed` from here on.
    fn close(&self) -> Result<()>;

    /// How often the engine has been opened, this time included: whoever numbers things within an opening can make them
    /// unlike any of another one.
    fn open_count(&self) -> u32;

    /// Returns a token of what the files hold now. Equal tokens stand for files that hold the same, whatever has been copied, restored or
    /// written in between, and whatever the clock says.
    fn contents_token(&self) -> ContentsToken;

    /// Returns the token of what the opening has found; `None` if the files were new.
    fn contents_token_at_open(&self) -> Option<ContentsToken>;

    /// What the opening has found that whoever opened it should know, as sentences for a log: what was cut off, passed over or made anew.
    fn open_notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Removes at most so many records that are damaged, and that [`Engine::scan_skipping_damaged`](crate::Engine::scan_skipping_damaged) has passed over; returns how many
    /// went. Nothing says what they were: whoever keeps to a limit has others go for new ones, and these are as good as gone.
    fn remove_damaged(&self, count_max: u64) -> Result<u64> {
        let _ = count_max;
        Ok(0)
    }

    /// What it takes on disk.
    fn disk_usage(&self) -> DiskUsage;

    /// What housekeeping could not do, and why: compaction has met damage, or the disk is full. `None` while all is well. Never waits for the disk.
    fn maintenance_error(&self) -> Option<Error> {
        None
    }

    /// Returns why the files do not take every change: the first one that was refused. `None` once housekeeping has found that they take
    /// such a change again. Never waits for the disk.
    fn refused_write_error(&self) -> Option<Error> {
        None
    }

    /// How many damaged records have been overwritten or removed since the opening, and what was wrong with the last of them. Never waits
    /// for the disk.
    fn damaged_records(&self) -> Option<(u64, Error)> {
        None
    }
}

/// Names the exact contents of an engine's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentsToken(pub [u8; 40]);

/// What an engine takes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of the files that hold records.
    pub bytes: u64,
    /// Of those, what records take that count.
    pub live_bytes: u64,
    /// Files that hold records.
    pub files: u64,
}

/// A file of an engine's, as long as it was at some moment.
#[derive(Clone)]
pub struct FrozenFile {
    /// What is in it. Those with records come first.
    pub kind: FrozenKind,
    /// What its name is made of; files of a kind ascend by it.
    pub number: u64,
    /// Bytes of it that count.
    pub len: u64,
    /// What is in it.
    pub content: Arc<dyn FrozenContent>,
}

/// What is in a [`FrozenFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrozenKind {
    /// Records.
    Records,
    /// What values of records are compressed with.
    Dictionary,
}

/// The content of a [`FrozenFile`].
pub trait FrozenContent: Send + Sync {
    /// Reads from an offset on, up to the length of the buffer; returns how much there was. Fails with `Unavailable` if it cannot be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Where it is, for messages.
    fn path(&self) -> &Path;

    /// Whether it still has its name there: what has none any more takes its room on disk for those alone who hold it.
    fn has_name(&self) -> bool {
        true
    }
}
