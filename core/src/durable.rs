//! Defines engines whose records survive the process.

use crate::{Action, Error, Result};
use std::path::Path;
use std::sync::Arc;

/// An engine that writes its records to its own files as they change.
pub trait DurableEngine: Send + Sync {
    /// Passes all earlier writes to the operating system, so that they survive the death of the
    /// process (but not a crash of the machine). Fails with `Full` when there is no space. The
    /// writes then stay readable in memory, and the next write, flush or sync tries again.
    fn flush(&self) -> Result<()>;

    /// Returns when all writes made before the call are on disk. Concurrent callers share one wait
    /// for the disk. After a failed sync the engine refuses all writes until it is opened again,
    /// because the state of the disk is unknown.
    fn sync(&self) -> Result<()>;

    /// Applies all changes or none, also across a crash. A reader never sees a partly changed
    /// record. If several changes name the same key, the last change counts. Fails with `Invalid`
    /// if a key or a value is too long, or if all changes together are too long.
    fn apply(&self, changes: &[(&[u8], Action<'_>)]) -> Result<()>;

    /// Copies all records, as of one moment during the call, to the directory `to`, which must not
    /// exist. Reads and writes continue meanwhile. The copy is on disk when this returns and can be
    /// opened like the original.
    fn copy(&self, to: &Path) -> Result<()>;

    /// Returns the files that hold all records as of one moment during the call, so that a caller
    /// can copy them at its own pace. The files stay readable and keep their disk space while the
    /// caller holds them, even if their records are overwritten or compacted.
    fn freeze(&self) -> Result<Vec<FrozenFile>>;

    /// Writes all records to disk, and the data that makes the next opening fast. Later writes fail
    /// with `Closed`.
    fn close(&self) -> Result<()>;

    /// Returns how often the engine has been opened, including this time. Callers use the number to
    /// make IDs unique across openings.
    fn open_count(&self) -> u32;

    /// Returns a token of the current contents of the files. Equal tokens mean equal contents, also
    /// after copies and restores, and independent of the clock.
    fn contents_token(&self) -> ContentsToken;

    /// Returns the token of the contents that the engine found when it was opened, or `None` if the
    /// files were new.
    fn contents_token_at_open(&self) -> Option<ContentsToken>;

    /// Returns log messages about the opening: damage that was cut off or skipped, and files that
    /// were created again.
    fn open_notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Removes up to `count_max` damaged records that
    /// [`Engine::scan_skipping_damaged`](crate::Engine::scan_skipping_damaged) has skipped, and
    /// returns the number removed. The keys of damaged records are unknown, so an eviction cannot
    /// choose such a record. Damaged records count against a limit until they are removed here.
    fn remove_damaged(&self, count_max: u64) -> Result<u64> {
        let _ = count_max;
        Ok(0)
    }

    /// Returns the disk space in use.
    fn disk_usage(&self) -> DiskUsage;

    /// Returns the error that stops maintenance, such as damage found by compaction or a full disk.
    /// Returns `None` if maintenance works. Never waits for the disk.
    fn maintenance_error(&self) -> Option<Error> {
        None
    }

    /// Returns the error of the first change that the files refused. Returns `None` after
    /// maintenance has found that the files accept such a change again. Never waits for the disk.
    fn refused_write_error(&self) -> Option<Error> {
        None
    }

    /// Returns the number of damaged records that were overwritten or removed since the engine was
    /// opened, and the error of the last such record. Never waits for the disk.
    fn damaged_records(&self) -> Option<(u64, Error)> {
        None
    }
}

/// Identifies the exact contents of an engine's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentsToken(pub [u8; 40]);

impl ContentsToken {
    /// Returns an ID of the database and its last opening for writing. It changes with each
    /// opening, and if older files are put in place of the database's own.
    pub fn opening_id(&self) -> [u8; 16] {
        // The first 16 bytes are the ID of the database. The next 8 number its openings.
        let mut id = *self.0.first_chunk::<16>().expect("a token is longer");
        id[8..].iter_mut().zip(&self.0[16..24]).for_each(|(byte, opening)| *byte ^= opening);
        id
    }
}

/// The disk space that an engine uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of the files that hold records.
    pub bytes: u64,
    /// The part of `bytes` that live records use.
    pub live_bytes: u64,
    /// The number of files that hold records.
    pub files: u64,
}

/// A file of an engine, with the length that the file had at one moment.
#[derive(Clone)]
pub struct FrozenFile {
    /// The kind of the content. Files with records come first.
    pub kind: FrozenKind,
    /// The number in the file's name. Newer files of the same kind have greater numbers.
    pub number: u64,
    /// The length of the file at that moment, in bytes. Later bytes do not belong to the frozen
    /// state.
    pub len: u64,
    /// Reads the content.
    pub content: Arc<dyn FrozenContent>,
}

/// The kind of a [`FrozenFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrozenKind {
    /// A file with records.
    Records,
    /// A dictionary for the compression of values.
    Dictionary,
}

/// The content of a [`FrozenFile`].
pub trait FrozenContent: Send + Sync {
    /// Reads from `offset` until `into` is full or the content ends, and returns the number of
    /// bytes read. Fails with `Unavailable` if the file cannot be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Returns the path of the file, for messages.
    fn path(&self) -> &Path;

    /// Returns true if the file still exists under its path. A removed file keeps its disk space
    /// only while it is held.
    fn has_name(&self) -> bool {
        true
    }
}
