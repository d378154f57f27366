//! The options of a hash on disk.

#[cfg(doc)]
use super::DiskHash;
use super::training::ValueCompression;
use crate::disk::{Disk, SystemDisk};
use std::sync::Arc;

/// The options with which a [`DiskHash`] is opened.
#[derive(Clone)]
pub struct DiskHashOptions {
    /// The hash seed of a new database. `None` takes a random one, which protects against keys
    /// chosen to collide.
    pub seed: Option<u64>,
    /// Reads the files through memory mappings, without system calls or copies. Without mappings,
    /// and on file systems that have none, the files are read into a cache of blocks. A failing
    /// disk then causes an error; with mappings it ends the process.
    pub is_mapped: bool,
    /// Memory for the cache of blocks, which is used without mappings. Allocated as needed.
    pub cache_bytes: u64,
    /// The number of bytes that are gathered before they are written to a file.
    pub buffer_bytes: usize,
    /// The size of the ring that keeps unwritten bytes when the process dies. Where the file system
    /// does not support it, each write goes to the file at once.
    pub recent_bytes: u64,
    /// The disk space that is reserved for removals and for the next opening, in case the disk
    /// becomes full; 0 for none.
    pub reserve_bytes: u64,
    /// The minimum length of a segment. A segment is a 24th of the database, within the limits.
    pub segment_bytes_min: u64,
    /// The maximum length of a segment (at most 128 MiB).
    pub segment_bytes_max: u64,
    /// Compaction begins when the files are this many times as large as their live contents. With
    /// the default of 1.52 they stay below 1.6 times. A lower value causes more writing.
    pub space_factor: f64,
    /// A checkpoint of the index is written after this many bytes, but not before one and a half
    /// times the size of the index. This bounds the part of the log that an opening reads after a
    /// crash.
    pub checkpoint_bytes: u64,
    /// The minimum number of this opening. Versions of records are derived from the number of
    /// openings. If a copy of the files has had more openings than these files record, a higher
    /// number keeps versions unique.
    pub openings_min: u32,
    /// Compresses values where that makes them shorter, with a dictionary when there is enough data
    /// to train one. Existing values are readable regardless of this option.
    pub compression: Option<ValueCompression>,
    /// The file system.
    pub disk: Arc<dyn Disk>,
}

impl Default for DiskHashOptions {
    fn default() -> Self {
        DiskHashOptions {
            seed: None,
            is_mapped: true,
            cache_bytes: 64 << 20,
            buffer_bytes: 256 << 10,
            recent_bytes: 1 << 20,
            reserve_bytes: 2 << 20,
            segment_bytes_min: 1 << 20,
            segment_bytes_max: 128 << 20,
            space_factor: 1.52,
            checkpoint_bytes: 128 << 20,
            openings_min: 0,
            compression: None,
            disk: Arc::new(SystemDisk),
        }
    }
}
