//! Checkpoints: all records in one file, so that a restart reads only the part of the update log
//! that was written since (docs/format/checkpoint.md).
//!
//! ```text
//! engine --scan, some records at a time--> columns --a block: compress, checksum--> file     writer
//!            under a shard's lock                    under no lock
//! file --blocks, each thread its own--> checksum, decompress --> records --> engine          reader
//! ```
//!
//! Invariants: a file gets the name of a checkpoint only when all of it is on disk, and the log up
//! to its `until`. No record of a block is used before the block's checksum has been verified.

mod columns;
mod frame;
mod keeper;
mod reader;
mod salvage;
mod store;
mod writer;

use crate::update_log::LogPosition;
use std::path::PathBuf;
use std::time::Duration;
use todana_core::{ErrorKind, Result};

pub use keeper::CheckpointKeeper;
pub(crate) use reader::{CheckpointFailure, CheckpointReader, called_off};
pub(crate) use salvage::{SalvagedCheckpoint, salvage_checkpoint};
pub(crate) use store::{CheckpointStore, FileHold, LoadedCheckpoint};
pub use store::{DiskFootprint, HeldBytes, LogHold};
pub(crate) use writer::{CheckpointSink, write, write_empty};

/// Bytes of changes that may wait in memory if the engine writes them to disk by checkpoints
/// ([`todana_core::CheckpointedEngine`]). At this limit, threads that make more changes wait for a
/// checkpoint.
pub const FRONT_BYTES_MAX: u64 = 128 << 20;

/// Options for writing checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// The compression of blocks.
    pub compression: CheckpointCompression,
    /// A checkpoint is due when the log has grown since the last one by more than this and by more
    /// than the size of that checkpoint.
    pub log_len_min: u64,
    /// Bytes of log that are kept although no checkpoint needs them, the newest ones, so that a
    /// backup can be restored to a point in time.
    pub log_kept_len: u64,
    /// The kept log never includes segments that ended longer ago than this when a checkpoint is
    /// written.
    pub log_kept_age: Duration,
    /// The time of rest for each unit of time at work on a checkpoint, in favour of requests.
    pub rests: u32,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        CheckpointOptions {
            compression: CheckpointCompression::Zstd(1),
            log_len_min: 64 << 20,
            log_kept_len: 0,
            log_kept_age: Duration::MAX,
            rests: 1,
        }
    }
}

/// How blocks are stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointCompression {
    /// Without compression.
    None,
    /// Compressed by zstd at this level if that makes them smaller.
    Zstd(i32),
}

/// The checkpoints since a data directory was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointHistory {
    /// The number of checkpoints written.
    pub made: u64,
    /// The number of checkpoints that failed, without those that were aborted.
    pub failed: u64,
    /// The newest checkpoint. For one that was loaded, the time that it took to write is unknown,
    /// and 0.
    pub last: Option<CheckpointInfo>,
}

impl CheckpointHistory {
    pub(crate) fn add(&mut self, made: &Result<CheckpointInfo>) {
        match made {
            Ok(made) => {
                self.made += 1;
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
    /// Path of the file.
    pub path: PathBuf,
    /// A reader must replay the log from here.
    pub start: LogPosition,
    /// The log must reach at least to here.
    pub until: LogPosition,
    /// The number of records in it.
    pub records: u64,
    /// Its length in bytes.
    pub len: u64,
    /// When it was begun, as Unix time in milliseconds.
    pub created_ms: u64,
    /// How long it took to write or to load.
    pub took: Duration,
}
