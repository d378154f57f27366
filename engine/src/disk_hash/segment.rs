//! Defines a segment of the log (its header, its file and its statistics) and the table of live
//! segments.

use super::entry::{u32_at, u64_at};
use super::page::{SLOT_BITS, class_bound};
use crate::disk::{File, MappedFile};
use crate::raw;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use todana_core::{ContentsToken, Error, ErrorKind, Expiry, Result};

pub(crate) const HEADER_LEN: usize = 64;
pub(crate) const VERSION: u32 = 1;
/// The maximum number of live segments.
pub(crate) const SEGMENTS_MAX: usize = 1 << SLOT_BITS;
/// The number of slots that are kept free for compaction, removals and openings. Each of these may
/// need a new segment before it can drop another.
const SLOTS_KEPT: usize = 64;
/// Entries begin before this offset.
pub(crate) const OFFSET_MAX: u64 = 8 << super::page::UNIT_BITS;
/// The unit in which segments are cached.
pub(crate) const BLOCK_LEN: u64 = 8 << 10;
/// The number of bytes of an entry that are prefetched if all of it will be read.
pub(crate) const PREFETCHED_MAX: usize = 768;

/// A position in the log: the number of a segment and an offset in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogPosition {
    pub(crate) number: u64,
    pub(crate) offset: u64,
}

/// The database to which a file belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseIdentity {
    pub(crate) database_id: [u8; 16],
    /// The seed of the hash of the keys.
    pub(crate) seed: u64,
}

/// One opening of a database. Each opening writes its part of the log in sequence and never changes
/// what it has written, so an opening and a position together identify the contents of the
/// database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseOpening {
    pub(crate) identity: DatabaseIdentity,
    /// The number of openings up to and including this one.
    pub(crate) count: u32,
    /// A random number, which is needed because two copies of the same files may have been opened
    /// equally often.
    pub(crate) nonce: u32,
}

impl DatabaseOpening {
    /// Returns the token of the contents that the database has at a position.
    pub(crate) fn contents_at(&self, end: LogPosition) -> ContentsToken {
        let mut token = [0; 40];
        token[..16].copy_from_slice(&self.identity.database_id);
        token[16..20].copy_from_slice(&self.count.to_le_bytes());
        token[20..24].copy_from_slice(&self.nonce.to_le_bytes());
        token[24..32].copy_from_slice(&end.number.to_le_bytes());
        token[32..].copy_from_slice(&end.offset.to_le_bytes());
        ContentsToken(token)
    }
}

/// The header of a segment, a dictionary or an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) identity: DatabaseIdentity,
    pub(crate) openings: u32,
    pub(crate) number: u64,
    /// The field at offset 56, whose meaning depends on the kind of file.
    pub(crate) extra: u32,
}

impl FileHeader {
    pub(crate) fn encode(&self, magic: &[u8; 8]) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(magic);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(HEADER_LEN as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.identity.database_id);
        bytes[36..40].copy_from_slice(&self.openings.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.number.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.identity.seed.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.extra.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header. Returns the header with its CRC, or a description of the damage.
    pub(crate) fn decode(bytes: &[u8], magic: &[u8; 8]) -> std::result::Result<(FileHeader, u32), String> {
        if bytes.len() < HEADER_LEN {
            return Err("the header is cut off".into());
        }
        let crc = u32_at(bytes, 60);
        if crc32c::crc32c(&bytes[..60]) != crc {
            return Err("the checksum of the header differs".into());
        }
        if bytes[..8] != *magic {
            return Err("wrong magic number".into());
        }
        if u32_at(bytes, 8) != VERSION {
            return Err(format!("format version {}; this program knows version {VERSION}", u32_at(bytes, 8)));
        }
        if u32_at(bytes, 12) as usize != HEADER_LEN || u32_at(bytes, 32) != 0 {
            return Err(format!("the header is not a valid one of version {VERSION}"));
        }
        let database_id = bytes[16..32].try_into().expect("sixteen bytes");
        let identity = DatabaseIdentity { database_id, seed: u64_at(bytes, 48) };
        let header = FileHeader {
            identity,
            openings: u32_at(bytes, 36),
            number: u64_at(bytes, 40),
            extra: u32_at(bytes, 56),
        };
        Ok((header, crc))
    }
}

pub(crate) const SEGMENT_MAGIC: &[u8; 8] = b"TODANADH";

/// Returns the file name of a segment.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:010}.segment")
}

/// Returns the number in the file name of a segment, or `None` if the name is not that of a
/// segment.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number: u64 = name.strip_suffix(".segment")?.parse().ok()?;
    (number > 0 && file_name(number) == name).then_some(number)
}

/// A file of the log. Only its end changes.
pub(crate) struct Segment {
    /// A number that no other segment of this process has.
    pub(crate) id: u64,
    pub(crate) number: u64,
    pub(crate) slot: u32,
    pub(crate) path: PathBuf,
    pub(crate) file: Box<dyn File>,
    /// The file, opened for direct reads at the first of them; `None` if that is not possible.
    pub(crate) direct_file: OnceLock<Option<std::fs::File>>,
    /// The mapping of the file, if there is one.
    pub(crate) map: Option<MappedFile>,
    /// The CRC of the header, from which the CRCs of the entries are computed.
    pub(crate) seed: u32,
    /// The length of the segment, including bytes that are not written yet.
    pub(crate) len: AtomicU64,
    /// Bytes before this offset are readable from the file.
    pub(crate) flushed: AtomicU64,
    /// True if the segment will not grow any more.
    pub(crate) is_sealed: AtomicBool,
    /// A lower bound of the bytes of remove entries. The replay counts some entries that the
    /// checkpoint has counted too, so opening takes the larger of the two counts. The value is 0
    /// only if there are no remove entries.
    pub(crate) remove_bytes: AtomicU64,
    /// No record in the segment expires earlier than this. The value is `u64::MAX` if no record
    /// expires.
    pub(crate) earliest_expiry: AtomicU64,
    /// True if the segment contains a damaged entry that may be live. Such a segment cannot be
    /// compacted.
    pub(crate) has_damage: AtomicBool,
    /// True if the count of live bytes may be too low, because the length of some garbage was taken
    /// from the head of an entry without a check of its CRC.
    pub(crate) is_live_estimated: AtomicBool,
    /// True if the file has been removed.
    pub(crate) is_removed: AtomicBool,
    /// For each block of the segment, the index of the frame of the cache that last held it, plus
    /// 1. Empty if the segment is mapped.
    pub(crate) blocks: Box<[AtomicU32]>,
}

impl Segment {
    /// Creates the state of a segment. `capacity` is the expected length of the file. `is_mapped`
    /// requests a mapping, which may fail.
    pub(crate) fn new(
        (number, slot): (u64, u32),
        path: PathBuf,
        file: Box<dyn File>,
        seed: u32,
        capacity: u64,
        is_mapped: bool,
    ) -> Segment {
        let map = if is_mapped { file.map(capacity) } else { None };
        // A mapped segment is not cached.
        let blocks = if map.is_some() { 0 } else { capacity.min(OFFSET_MAX).div_ceil(BLOCK_LEN) };
        static SEGMENTS: AtomicU64 = AtomicU64::new(0);
        Segment {
            id: SEGMENTS.fetch_add(1, Ordering::Relaxed),
            number,
            slot,
            path,
            file,
            direct_file: OnceLock::new(),
            map,
            seed,
            len: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            is_sealed: AtomicBool::new(false),
            remove_bytes: AtomicU64::new(0),
            earliest_expiry: AtomicU64::new(u64::MAX),
            has_damage: AtomicBool::new(false),
            // The counts of an earlier opening may be estimates.
            is_live_estimated: AtomicBool::new(true),
            is_removed: AtomicBool::new(false),
            blocks: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    #[inline]
    pub(crate) fn seed_at(&self, offset: u64) -> u32 {
        self.seed ^ (offset / 8) as u32
    }

    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Notes that the segment contains a record with this expiry.
    #[inline]
    pub(crate) fn note_expiry(&self, expiry: Expiry) {
        if let Some(at) = expiry.at() {
            self.earliest_expiry.fetch_min(at.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn corrupt(&self, offset: u64, what: &str) -> Error {
        corrupt(&self.path, offset, what)
    }

    /// Returns the mapped bytes from an offset on.
    #[inline]
    pub(crate) fn mapped(&self, offset: u64) -> Option<&[u8]> {
        let map = self.map.as_ref()?;
        let end = self.flushed.load(Ordering::Acquire).min(map.capacity() as u64);
        if offset < end { map.get(offset as usize..end as usize) } else { None }
    }

    /// Returns true if the segment is mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        self.map.is_some()
    }

    /// Prefetches the cache lines of an entry of this size class, at most `len_max` bytes.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64, class: u32, len_max: usize) {
        if let Some(bytes) = self.mapped(offset) {
            let len = class_bound(class).unwrap_or(len_max).min(len_max).min(bytes.len());
            bytes[..len].iter().step_by(64).for_each(raw::prefetch);
        }
    }

    /// Returns the mapped bytes from `offset` to `limit` after reading all of them from the disk.
    /// Returns `None` if that is not possible.
    pub(crate) fn populated(&self, offset: u64, limit: u64) -> Option<&[u8]> {
        let map = self.map.as_ref()?;
        let range = offset as usize..limit as usize;
        if limit > self.flushed.load(Ordering::Acquire) || !map.populate(range.clone()) {
            return None;
        }
        map.get(range)
    }

    /// Returns the file for reads that bypass the system's cache.
    pub(crate) fn direct_file(&self) -> Option<&std::fs::File> {
        self.direct_file.get_or_init(|| self.file.open_direct()).as_ref()
    }

    /// Returns true if a few bytes, from a page boundary on, are in the system's cache. Without a
    /// mapping, this is assumed.
    pub(crate) fn is_resident(&self, start: u64, end: u64) -> bool {
        // `cachestat` takes 0.24 us, and `mincore` 0.5 to 1.5 (2026-11-28, Xeon of generation 4).
        if self.map.is_some()
            && let Some(pages) =
                self.direct_file().and_then(|file| raw::cached_pages(file, start, end - start))
        {
            return pages == (end - start).div_ceil(raw::SYSTEM_PAGE as u64);
        }
        self.map.as_ref().is_none_or(|map| map.is_resident(start as usize..end as usize))
    }

    /// Requests that the system reads these bytes into its cache.
    pub(crate) fn will_need(&self, start: u64, end: u64) {
        if let Some(map) = &self.map {
            map.will_need(start as usize..end as usize);
        }
    }

    /// Reads bytes at an offset, up to the length of `into`.
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, into).map_err(|error| read_error(&self.path, &error))
    }
}

pub(crate) fn corrupt(path: &Path, offset: u64, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}, offset {offset}: {what}", path.display()))
}

pub(crate) fn read_error(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{}: cannot read it: {error}", path.display()))
}

/// Returns the error of a refused write. Its kind is `Full` if there is no disk space or no file
/// descriptor.
pub(crate) fn write_error(path: &Path, error: &std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let kind = match error.kind() {
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge | Io::WriteZero => ErrorKind::Full,
        _ if is_out_of_descriptors(error) => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    Error::refused_write(kind, format!("{}: cannot write to it: {error}", path.display()))
}

/// Returns true if a file could not be opened because this process or the system has too many open
/// files.
pub(crate) fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// The live segments, indexed by their slots.
#[derive(Clone, Default)]
pub(crate) struct SegmentTable {
    pub(crate) slots: Vec<Option<Arc<Segment>>>,
    /// True if the segments are longer than the memory in which the system could cache them.
    pub(crate) exceeds_memory: bool,
}

impl SegmentTable {
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Arc<Segment>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Returns all live segments, oldest first.
    pub(crate) fn by_age(&self) -> Vec<Arc<Segment>> {
        let mut segments: Vec<Arc<Segment>> = self.slots.iter().flatten().map(Arc::clone).collect();
        segments.sort_unstable_by_key(|segment| segment.number);
        segments
    }

    /// Returns a slot that has no segment.
    pub(crate) fn free_slot(&self) -> Option<u32> {
        match self.slots.iter().position(Option::is_none) {
            Some(slot) => Some(slot as u32),
            None => (self.slots.len() < SEGMENTS_MAX).then_some(self.slots.len() as u32),
        }
    }

    /// Returns true if the remaining slots are kept for compaction, removals and openings.
    pub(crate) fn has_few_free_slots(&self) -> bool {
        self.slots.iter().flatten().count() >= SEGMENTS_MAX - SLOTS_KEPT
    }

    pub(crate) fn put(&mut self, segment: Arc<Segment>) {
        let slot = segment.slot as usize;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        self.slots[slot] = Some(segment);
    }

    pub(crate) fn take(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
    }
}

#[cfg(test)]
mod tests {
    use crate::disk_hash::{DiskHash, DiskHashOptions};
    use todana_core::Engine;

    #[test]
    fn only_segments_without_mapping_note_cached_blocks() {
        for is_mapped in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let options = DiskHashOptions { is_mapped, ..DiskHashOptions::default() };
            let hash = DiskHash::open(folder.path(), options).unwrap();
            let segment = hash.log.table().0.by_age().pop().unwrap();
            assert_eq!(segment.blocks.is_empty(), segment.is_mapped());
            let status = hash.status();
            let other = status.index.bytes + hash.log.cache.bytes() + hash.log.buffer_bytes();
            assert_eq!(status.committed_bytes - other, 4 * segment.blocks.len() as u64);
        }
    }
}
