//! Checkpoints: files with all records, so that a restart reads only the part of the update log
//! that was written after the newest checkpoint (docs/format/checkpoint.md).
//!
//! ```text
//! engine --scan of some records--> columns --one block: compress, checksum--> file    writer
//!        --copy of some buckets--> image
//!            under a shard's lock               under no lock
//! file --blocks, divided among threads--> checksum, decompress --> records --> engine  reader
//!                                                              --> buckets -->
//! ```
//!
//! A checkpoint is portable, or an image: an engine with buckets copies these as they lie in
//! memory, and takes them over as they are. Other engines read the records of an image one by one.
//!
//! Invariants: a file gets the name of a checkpoint only when the complete file is on disk, and the
//! log is on disk up to the file's `until`. No record of a block is used before the block's
//! checksum has been verified.

mod columns;
mod frame;
mod keeper;
mod reader;
mod salvage;
mod store;
mod transfer;
mod writer;

use crate::update_log::LogPosition;
use std::path::PathBuf;
use std::time::Duration;
use todana_core::{ErrorKind, Result};

pub use keeper::{CheckpointKeeper, KeeperOutcome};
pub(crate) use reader::{CheckpointFailure, CheckpointReader, cancelled};
pub(crate) use salvage::{SalvagedCheckpoint, salvage_checkpoint};
pub(crate) use store::{CheckpointStore, FileHold, LoadedCheckpoint};
pub use store::{DiskFootprint, HeldBytes, LogHold};
pub use transfer::{CheckpointDecoder, CheckpointTarget, TransferredCheckpoint, send_checkpoint};
pub(crate) use writer::{CheckpointSink, WorkPacer, write, write_empty};

/// The most bytes of changes that should wait in memory if the engine writes them to disk only by
/// checkpoints ([`todana_core::CheckpointedEngine`]). Above this limit, threads wait for a
/// checkpoint before they make more changes.
pub const FRONT_BYTES_MAX: u64 = 128 << 20;

/// Options for writing checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// How records are stored.
    pub form: CheckpointForm,
    /// The compression of blocks.
    pub compression: CheckpointCompression,
    /// A checkpoint is due when the log has grown by more than this since the last checkpoint, and
    /// by more than the size of that checkpoint.
    pub log_len_min: u64,
    /// How many bytes of the newest log to keep although no checkpoint needs them. A backup can
    /// then be restored to a point in time.
    pub log_kept_len: u64,
    /// The maximum age of log that is kept because of `log_kept_len`. A checkpoint removes segments
    /// that ended longer ago than this.
    pub log_kept_age: Duration,
    /// The length of the pauses while a checkpoint is written, as a multiple of the working time
    /// between them. Pauses leave time for requests.
    pub rests: u32,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        CheckpointOptions {
            form: CheckpointForm::Image,
            compression: CheckpointCompression::Zstd(1),
            log_len_min: 64 << 20,
            log_kept_len: 0,
            log_kept_age: Duration::MAX,
            rests: 1,
        }
    }
}

/// How the records of a checkpoint are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointForm {
    /// As an image, if the engine has images: its buckets as they lie in memory. Otherwise
    /// portable.
    Image,
    /// One by one. Every version of this program can read this form.
    Portable,
}

/// How blocks are stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointCompression {
    /// Without compression.
    None,
    /// Compressed by zstd at this level, if that makes the block smaller.
    Zstd(i32),
}

/// The checkpoints since a data directory was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointHistory {
    /// The number of checkpoints written.
    pub written: u64,
    /// The newest checkpoint. If it was loaded instead of written, the time that writing took is
    /// unknown, and 0 here.
    pub failed: u64,
    /// The newest checkpoint. For one that was loaded, the time that it took to write is unknown,
    /// and 0.
    pub last: Option<CheckpointInfo>,
}

impl CheckpointHistory {
    pub(crate) fn add(&mut self, made: &Result<CheckpointInfo>) {
        match made {
            Ok(made) => {
                self.written += 1;
                self.last = Some(made.clone());
            }
            Err(error) if error.kind() == ErrorKind::Closed => {}
            Err(_) => self.failed += 1,
        }
    }
}

/// Describes a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// The position from which a reader must replay the log.
    pub path: PathBuf,
    /// The log must reach this position at least.
    pub start: LogPosition,
    /// The number of its records.
    pub until: LogPosition,
    /// The number of records in it.
    pub records: u64,
    /// When writing began, as Unix time in milliseconds.
    pub len: u64,
    /// How long writing or loading took.
    pub created_ms: u64,
    /// How long it took to write or to load.
    pub took: Duration,
}
