//! Checkpoints: all records in one file, so that a restart reads no more of the update log than what came since
//! (docs/format/checkpoint.md).
//!
//! ```text
//! engine --scan, some records at a time--> columns --a block: compress, checksum--> file     writer
//!            under a shard's lock                    under no lock
//! file --blocks, each thread its own--> checksum, decompress --> records --> engine          reader
//! ```
//!
//! Always true: a file with the name of a checkpoint was on disk as a whole, and the log to its `until`, when it got that
//! name. No record of a block is used before the block's checksum has been found right.

mod columns;
mod frame;
mod keeper;
mod reader;
mod salvage;
mod shelf;
mod writer;

use crate::update_log::LogPosition;
use std::path::PathBuf;
use std::time::Duration;
use todana_core::{ErrorKind, Result};

pub use keeper::CheckpointKeeper;
pub(crate) use reader::{CheckpointFailure, CheckpointReader, called_off};
pub(crate) use salvage::{Saved, salvage_checkpoint};
pub(crate) use shelf::{BroughtBack, HoldFiles, Shelf};
pub use shelf::{DiskFootprint, HeldBytes, LogHold};
pub(crate) use writer::{Sink, write, write_empty};

/// So many bytes of changes may wait in memory where an engine brings them to disk by checkpoints ([`todana_core::CheckpointedEngine`]); then
/// whoever makes more waits for one.
pub const FRONT_BYTES_MAX: u64 = 128 << 20;

/// How checkpoints are made, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// How they are kept.
    pub compression: CheckpointCompression,
    /// One is due when the log has grown since the last one by more than this and by more than that one's size.
    pub log_len_min: u64,
    /// Of the log that no checkpoint needs any longer so many bytes are kept, the newest ones, for whoever restores a backup to a
    /// point in time.
    pub log_kept_len: u64,
    /// But nothing that ended longer ago than this when a checkpoint is made.
    pub log_kept_age: Duration,
    /// For each moment at work on one, so many moments of rest, for the sake of requests.
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

/// How blocks are kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointCompression {
    /// As they are.
    None,
    /// Compressed by zstd at this level where that makes them smaller.
    Zstd(i32),
}

/// What has become of the checkpoints since a data directory was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointHistory {
    /// How many were made.
    pub made: u64,
    /// How many could not be made; those that were called off are not among them.
    pub failed: u64,
    /// The newest one. Of one that was brought back nobody knows how long it took to make, and that is 0.
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

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// The file.
    pub path: PathBuf,
    /// The log has to be read again from here.
    pub start: LogPosition,
    /// The log has to go to here at least.
    pub until: LogPosition,
    /// How many records it has.
    pub records: u64,
    /// Its length in bytes.
    pub len: u64,
    /// When it was begun, Unix time in milliseconds.
    pub created_ms: u64,
    /// How long it took to make, or to bring back.
    pub took: Duration,
}
