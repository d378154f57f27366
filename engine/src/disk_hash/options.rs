//! How a hash on disk is opened.

#[cfg(doc)]
use super::DiskHash;
use super::training::ValueCompression;
use crate::disk::{Disk, SystemDisk};
use std::sync::Arc;

/// How a [`DiskHash`] is opened.
#[derive(Clone)]
pub struct DiskHashOptions {
    /// The hash seed of a database that is made; `None` takes a random one, as whoever faces strangers should.
    pub seed: Option<u64>,
    /// Reads what is in files where the system keeps it, without a call or a copy. Without, and on file systems that cannot, it is read
    /// into a cache of blocks; then a disk that does not give back what it holds is an error, which otherwise ends the process.
    pub is_mapped: bool,
    /// Without a mapping: memory for blocks of the files, so that reads of what is hot need no system call. Taken as it is needed.
    pub cache_bytes: u64,
    /// What is written is gathered up to so many bytes before it is handed to the system.
    pub buffer_bytes: usize,
    /// So many bytes that are not handed over yet are kept in memory that outlives the process; where the file system has none, each write
    /// is handed over at once.
    pub recent_bytes: u64,
    /// So many bytes of the disk are kept free for removals and for the next opening, should the disk be full; 0 for none.
    pub reserve_bytes: u64,
    /// Segments are a 24th of the whole, but not shorter than this ...
    pub segment_bytes_min: u64,
    /// ... nor longer than this (at most 128 MiB).
    pub segment_bytes_max: u64,
    /// Compaction begins when the files are so many times as large as what counts in them: 1.52 is the default, with which they stay below 1.6 times. Less costs
    /// more writing.
    pub space_factor: f64,
    /// The index is written down when so many bytes have been written since, and half as many again as the index takes: so
    /// much is read at an opening after a crash.
    pub checkpoint_bytes: u64,
    /// The opening counts as this one at least, however many there have been: versions of records that are numbered by openings are
    /// then not made again where more of them were made than these files know of.
    pub openings_min: u32,
    /// Values are stored compressed where that makes them shorter, with a dictionary once there is enough to make one from. What is there
    /// is read in any case, however it was written.
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
