//! The options of a hash on disk.

#[cfg(doc)]
use super::DiskHash;
use super::training::ValueCompression;
use crate::disk::{Disk, SystemDisk};
use std::sync::Arc;

/// The options with which a [`DiskHash`] is opened.
#[derive(Clone)]
pub struct DiskHashOptions {
    /// The hash seed of a new database. With `None` the seed is random, which protects against keys
    /// that were chosen to collide.
    pub seed: Option<u64>,
    /// If true, the files are read through memory mappings, without system calls or copies; a
    /// failing disk then ends the process. If false, and on file systems without mappings, the
    /// files are read into a cache of blocks; a failing disk then causes an error.
    pub is_mapped: bool,
    /// The memory in which the system can cache the files. If the files are longer, batches of
    /// reads bypass its cache, with many reads at the same time. `None` stands for the memory of
    /// the machine, or of the control group if that is less.
    pub memory_bytes: Option<u64>,
    /// The memory for the cache of blocks, which is used only without mappings. It is allocated as
    /// needed.
    pub cache_bytes: u64,
    /// The number of bytes that are collected before they are written to a file.
    pub buffer_bytes: usize,
    /// The size of the ring, a buffer in memory that is shared with a file: bytes in the ring
    /// survive the death of the process. If the file system does not support this, each write goes
    /// to the segment at once.
    pub recent_bytes: u64,
    /// The disk space that is reserved for removals and for the next opening, in case the disk
    /// becomes full. 0 reserves none.
    pub reserve_bytes: u64,
    /// The minimum length of a segment. Between this minimum and the maximum, a segment has a 24th
    /// of the length of the log.
    pub segment_bytes_min: u64,
    /// The maximum length of a segment (at most 128 MiB).
    pub segment_bytes_max: u64,
    /// Compaction begins when the files are this many times as large as their live contents. With
    /// the default of 1.52, the files stay below 1.6 times their live contents. A lower value
    /// causes more writing.
    pub space_factor: f64,
    /// A checkpoint of the index is written after this number of bytes was appended to the log, or
    /// after one and a half times the size of the index if that is more. This bounds the part of
    /// the log that an opening reads after a crash.
    pub checkpoint_bytes: u64,
    /// The minimum of the number that this opening gets. Openings are numbered, and the versions of
    /// records are derived from these numbers. If another copy of the files may have been opened
    /// more often than these files record, a higher number keeps versions unique.
    pub openings_min: u32,
    /// If set, values are compressed where compression makes them shorter, with a dictionary once
    /// there is enough data to train one. Existing values are readable regardless of this option.
    pub compression: Option<ValueCompression>,
    /// The file system that holds the files.
    pub disk: Arc<dyn Disk>,
}

impl Default for DiskHashOptions {
    fn default() -> Self {
        DiskHashOptions {
            seed: None,
            is_mapped: true,
            memory_bytes: None,
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
