//! Writes and reads the checkpoint of the index (docs/format/disk-hash.md, section 4). The
//! checkpoint is written one part at a time during normal operation, and read by an opening.

use super::DiskHash;
use super::compaction::MaintenanceState;
use super::entry::{u32_at, u64_at};
use super::page::{CLASS_MAX, EntryLocation, IndexPage, IndexSlot};
use super::segment::{
    DatabaseIdentity, FileHeader, HEADER_LEN, LogPosition, SEGMENTS_MAX, corrupt, read_error, write_error,
};
use super::shard::{IndexShard, PAGES, SHARDS};
use crate::disk::{Disk, File};
use std::collections::HashMap;
use std::io::IoSlice;
use std::path::Path;
use std::sync::atomic::Ordering;
use todana_core::Result;

const MAGIC: &[u8; 8] = b"TODANADX";
const END_MAGIC: &[u8; 8] = b"TODANAXE";
const NAME: &str = "index";
const PARTIAL: &str = "index.partial";
const PART_HEAD: usize = 32;
const FOOTER_HEAD: usize = 24;
const SEGMENT_ENTRY: usize = 24;

/// A checkpoint that is being written.
pub(super) struct IndexWriter {
    file: Box<dyn File>,
    len: u64,
    seed: u32,
    next: usize,
    /// The latest of the log positions at which the parts were written.
    until: LogPosition,
    appended: u64,
}

fn put_position(position: LogPosition, into: &mut Vec<u8>) {
    into.extend_from_slice(&position.number.to_le_bytes());
    into.extend_from_slice(&position.offset.to_le_bytes());
}

fn position_at(bytes: &[u8], at: usize) -> LogPosition {
    LogPosition { number: u64_at(bytes, at), offset: u64_at(bytes, at + 8) }
}

impl IndexWriter {
    fn write(&mut self, bytes: &[u8], path: &Path) -> Result<()> {
        let written = self.file.write_at(self.len, &mut [IoSlice::new(bytes)]);
        written.map_err(|error| write_error(path, &error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn seal(&self, index: usize, bytes: &mut [u8]) {
        let crc = crc32c::crc32c_append(self.seed ^ index as u32, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
}

impl DiskHash {
    /// Continues the checkpoint of the index, or begins one if it is due. Returns true if there is
    /// more to do. After a failure the next checkpoint waits for the usual amount of writing.
    pub(super) fn index_step(&self, maintenance: &mut MaintenanceState) -> Result<bool> {
        let is_full = self.log.reserve.is_spent();
        if is_full && maintenance.index.is_none() {
            return Ok(false);
        }
        let outcome = if is_full { Ok(false) } else { self.write_index_step(maintenance) };
        if is_full || outcome.is_err() {
            // An incomplete file must not take space that the log needs.
            maintenance.index = None;
            maintenance.indexed_bytes = self.log.appended();
            self.remove_partial_index();
        }
        outcome
    }

    fn write_index_step(&self, maintenance: &mut MaintenanceState) -> Result<bool> {
        let Some(mut writer) = maintenance.index.take() else {
            let since = self.log.appended().saturating_sub(maintenance.indexed_bytes);
            if since < self.checkpoint_bytes {
                return Ok(false);
            }
            let index_bytes: u64 = self.shards.iter().map(|shard| shard.0.read().bytes()).sum();
            if since < index_bytes + index_bytes / 2 {
                return Ok(false);
            }
            maintenance.index = Some(self.begin_index()?);
            return Ok(true);
        };
        if writer.next < SHARDS {
            self.write_part(&mut writer)?;
            maintenance.index = Some(writer);
            return Ok(true);
        }
        let appended = writer.appended;
        self.finish_index(writer)?;
        maintenance.indexed_bytes = appended;
        Ok(false)
    }

    /// Syncs the log and writes the complete index. If the disk is full, the next opening needs the
    /// space more than the index, so only the log is synced.
    pub(super) fn write_index(&self) -> Result<()> {
        self.log.sync()?;
        let mut maintenance = self.maintenance.lock();
        maintenance.index = None;
        if self.log.reserve.is_spent() {
            self.remove_partial_index();
            return Ok(());
        }
        let write = || {
            let mut writer = self.begin_index()?;
            while writer.next < SHARDS {
                self.write_part(&mut writer)?;
            }
            self.finish_index(writer)
        };
        write().inspect_err(|_| self.remove_partial_index())
    }

    fn remove_partial_index(&self) {
        let _ = self.log.disk.remove(&self.log.directory.join(PARTIAL));
    }

    fn begin_index(&self) -> Result<IndexWriter> {
        let path = self.log.directory.join(PARTIAL);
        self.remove_partial_index();
        let file = self.log.disk.create(&path).map_err(|error| write_error(&path, &error))?;
        let header = FileHeader {
            identity: self.log.opening.identity,
            openings: self.log.opening.count,
            number: 0,
            extra: SHARDS as u32,
        };
        let bytes = header.encode(MAGIC);
        let (seed, until) = (u32_at(&bytes, 60), LogPosition::default());
        let mut writer = IndexWriter { file, len: 0, seed, next: 0, until, appended: self.log.appended() };
        writer.write(&bytes, &path)?;
        Ok(writer)
    }

    fn write_part(&self, writer: &mut IndexWriter) -> Result<()> {
        let mut bytes = vec![0; PART_HEAD];
        {
            let shard = self.read_shard(writer.next);
            let position = self.log.end();
            writer.until = writer.until.max(position);
            bytes.reserve(shard.records as usize * 8 + PAGES * 4);
            let mut count = 0u32;
            // The checkpoint must list every segment that a slot points to, even if its count of
            // live bytes is 0: a record in an unlisted segment would be lost.
            let mut is_used: Vec<bool> = shard.live.iter().map(|&live| live > 0).collect();
            is_used.resize(shard.table.slots.len(), false);
            for slot in shard.pages.iter().flat_map(IndexPage::iter) {
                is_used
                    .get_mut(slot.location().slot as usize)
                    .into_iter()
                    .for_each(|is_used| *is_used = true);
            }
            for (slot, _) in is_used.iter().enumerate().filter(|(_, is_used)| **is_used) {
                let Some(segment) = shard.table.get(slot as u32) else { continue };
                let live = shard.live.get(slot).copied().unwrap_or(0);
                bytes.extend_from_slice(&segment.number.to_le_bytes());
                bytes.extend_from_slice(&live.to_le_bytes());
                bytes.extend_from_slice(&(slot as u32).to_le_bytes());
                bytes.extend_from_slice(&[0; 4]);
                count += 1;
            }
            bytes[4..8].copy_from_slice(&count.to_le_bytes());
            bytes[8..16].copy_from_slice(&shard.records.to_le_bytes());
            bytes[16..24].copy_from_slice(&position.number.to_le_bytes());
            bytes[24..32].copy_from_slice(&position.offset.to_le_bytes());
            for page in &shard.pages {
                bytes.extend_from_slice(&(page.len() as u32).to_le_bytes());
            }
            for slot in shard.pages.iter().flat_map(IndexPage::iter) {
                bytes.extend_from_slice(&slot.0.to_le_bytes());
            }
        }
        writer.seal(writer.next, &mut bytes);
        writer.write(&bytes, &self.log.directory.join(PARTIAL))?;
        writer.next += 1;
        Ok(())
    }

    fn finish_index(&self, mut writer: IndexWriter) -> Result<()> {
        let (table, _) = self.log.table();
        let mut segments = Vec::new();
        for segment in table.by_age() {
            segments.extend_from_slice(&segment.number.to_le_bytes());
            segments.extend_from_slice(&segment.remove_bytes.load(Ordering::Relaxed).to_le_bytes());
            segments.extend_from_slice(&segment.earliest_expiry.load(Ordering::Relaxed).to_le_bytes());
        }
        // The entries that the parts point to must be on disk before the checkpoint, and so must
        // the entries that drop unlisted segments.
        if self.log.synced() < writer.until.max(self.log.end()) {
            self.log.sync()?;
        }
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&((segments.len() / SEGMENT_ENTRY) as u32).to_le_bytes());
        put_position(self.log.synced(), &mut bytes);
        bytes.extend_from_slice(&segments);
        bytes.extend_from_slice(END_MAGIC);
        writer.seal(SHARDS, &mut bytes);
        let (partial, path) = (self.log.directory.join(PARTIAL), self.log.directory.join(NAME));
        writer.write(&bytes, &partial)?;
        writer.file.sync().map_err(|error| write_error(&partial, &error))?;
        drop(writer);
        self.log.disk.rename(&partial, &path).map_err(|error| write_error(&path, &error))?;
        self.log.disk.sync_directory(&self.log.directory).map_err(|error| write_error(&path, &error))
    }
}

/// The fields of a segment in a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentSummary {
    pub(super) remove_bytes: u64,
    pub(super) earliest_expiry: u64,
}

/// A checkpoint that was read. Its slots have been translated to the current table of segments.
pub(super) struct LoadedIndex {
    pub(super) shards: Vec<IndexShard>,
    pub(super) positions: Vec<LogPosition>,
    pub(super) until: LogPosition,
    pub(super) segments: HashMap<u64, SegmentSummary>,
}

/// Returns true if there is a file whose beginning is that of a checkpoint.
pub(super) fn exists(disk: &dyn Disk, directory: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    let read = disk.open(&directory.join(NAME), false).and_then(|file| file.read_at(0, &mut magic));
    read.is_ok() && magic == *MAGIC
}

/// Reads the checkpoint if there is one. `slot_of` returns the slot of a live segment from the
/// segment's number. Records in segments that are not live are left out, because the log contains
/// the entries that replaced them. Returns a description if the file is damaged.
pub(super) fn load(
    disk: &dyn Disk,
    directory: &Path,
    identity: Option<DatabaseIdentity>,
    slot_of: &dyn Fn(u64) -> Option<u32>,
) -> std::result::Result<Option<LoadedIndex>, String> {
    let path = directory.join(NAME);
    let file = match disk.open(&path, false) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_error(&path, &error).to_string()),
    };
    let wrong = |offset, what: &str| corrupt(&path, offset, what).to_string();
    let mut reader = IndexReader {
        len: file.len().map_err(|error| read_error(&path, &error).to_string())?,
        file: &*file,
        at: 0,
    };
    let header = reader.take(HEADER_LEN).ok_or_else(|| wrong(0, "the header is cut off"))?;
    let (header, seed) = FileHeader::decode(&header, MAGIC).map_err(|what| wrong(0, &what))?;
    if identity.is_some_and(|identity| header.identity != identity) || header.extra as usize != SHARDS {
        return Err(wrong(0, "belongs to another database"));
    }
    let (mut shards, mut positions) = (Vec::new(), Vec::new());
    for index in 0..SHARDS {
        let start = reader.at;
        let part = reader.part(seed ^ index as u32, |head| {
            let (segments, records) = (u64::from(u32_at(head, 4)), u64_at(head, 8));
            (segments * SEGMENT_ENTRY as u64)
                .checked_add(PAGES as u64 * 4)?
                .checked_add(records.checked_mul(8)?)
        });
        let part = part.ok_or_else(|| wrong(start, "the checksum of a part differs"))?;
        let shard = read_shard(&part, slot_of).ok_or_else(|| wrong(start, "a part is inconsistent"))?;
        shards.push(shard);
        positions.push(position_at(&part, 16));
    }
    let start = reader.at;
    let footer = reader.footer(seed ^ SHARDS as u32);
    let footer = footer.ok_or_else(|| wrong(start, "the checksum of the footer differs"))?;
    let segments = footer[FOOTER_HEAD..footer.len() - 8].chunks_exact(SEGMENT_ENTRY).map(|bytes| {
        (
            u64_at(bytes, 0),
            SegmentSummary { remove_bytes: u64_at(bytes, 8), earliest_expiry: u64_at(bytes, 16) },
        )
    });
    Ok(Some(LoadedIndex { shards, positions, until: position_at(&footer, 8), segments: segments.collect() }))
}

struct IndexReader<'f> {
    file: &'f dyn File,
    at: u64,
    len: u64,
}

impl IndexReader<'_> {
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        if self.len - self.at < len as u64 {
            return None;
        }
        let mut bytes = vec![0; len];
        let read = self.file.read_at(self.at, &mut bytes).ok()?;
        self.at += len as u64;
        (read == len).then_some(bytes)
    }

    /// Reads a part, whose head gives the length of the remainder. Returns `None` if this length is
    /// impossible or the checksum is wrong.
    fn part(&mut self, seed: u32, rest_len: impl Fn(&[u8]) -> Option<u64>) -> Option<Vec<u8>> {
        let start = self.at;
        let head = self.take(PART_HEAD)?;
        let rest = rest_len(&head).filter(|&rest| rest <= self.len - self.at)?;
        self.at = start;
        let bytes = self.take(PART_HEAD + rest as usize)?;
        (crc32c::crc32c_append(seed, &bytes[4..]) == u32_at(&bytes, 0)).then_some(bytes)
    }

    fn footer(&mut self, seed: u32) -> Option<Vec<u8>> {
        let rest = usize::try_from(self.len - self.at).ok()?;
        const EMPTY: usize = FOOTER_HEAD + 8;
        if !(EMPTY..=EMPTY + SEGMENTS_MAX * SEGMENT_ENTRY).contains(&rest) {
            return None;
        }
        let bytes = self.take(rest)?;
        let is_right = crc32c::crc32c_append(seed, &bytes[4..]) == u32_at(&bytes, 0)
            && bytes.ends_with(END_MAGIC)
            && rest == FOOTER_HEAD + 8 + u32_at(&bytes, 4) as usize * SEGMENT_ENTRY;
        is_right.then_some(bytes)
    }
}

fn read_shard(part: &[u8], slot_of: &dyn Fn(u64) -> Option<u32>) -> Option<IndexShard> {
    let count = u32_at(part, 4) as usize;
    let mut shard = IndexShard::new();
    let mut slots: Vec<Option<u32>> = Vec::new();
    let (segments, rest) = part[PART_HEAD..].split_at(count * SEGMENT_ENTRY);
    for bytes in segments.chunks_exact(SEGMENT_ENTRY) {
        let stored = u32_at(bytes, 16) as usize;
        if stored >= SEGMENTS_MAX {
            return None;
        }
        if let Some(slot) = slot_of(u64_at(bytes, 0)) {
            shard.add_live(slot, u64_at(bytes, 8) as usize);
            slots.resize(slots.len().max(stored + 1), None);
            slots[stored] = Some(slot);
        }
    }
    let (counts, mut rest) = rest.split_at(PAGES * 4);
    let mut sorted = Vec::new();
    for (index, count) in counts.chunks_exact(4).enumerate() {
        let len = u32_at(count, 0) as usize * 8;
        let (page, behind) = rest.split_at_checked(len)?;
        rest = behind;
        sorted.clear();
        for bytes in page.chunks_exact(8) {
            let stored = IndexSlot(u64_at(bytes, 0));
            let at = stored.location();
            debug_assert!(stored.class() <= CLASS_MAX);
            if let Some(slot) = slots.get(at.slot as usize).copied().flatten() {
                sorted.push(
                    IndexSlot::new(stored.tag(), stored.class(), EntryLocation { slot, unit: at.unit }).0,
                );
            }
        }
        if !sorted.is_sorted_by_key(|&bits: &u64| IndexSlot(bits).tag()) {
            return None;
        }
        shard.records += sorted.len() as u64;
        shard.pages[index] = IndexPage::from_sorted(&sorted);
    }
    rest.is_empty().then_some(shard)
}
