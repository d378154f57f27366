//! Stores a hash on disk: a log of records in segments, and an index in memory through which each
//! record is found with one read.
//!
//! ```text
//! key -> hash -> shard (lock) -> page -> slot: 21 more bits of the hash, size class, segment, offset
//!                                          |
//! segments of the log (docs/format/disk-hash.md): mapped | block cache and file | unwritten end
//! ```
//!
//! A write appends an entry to the log and changes the index so that it points to the entry. The
//! previous entry of the key becomes garbage. Compaction copies the live entries of a segment to
//! the end of the log and then removes the segment. The index costs about ten bytes per record and
//! holds no keys. A miss is answered from the index alone, except in about one of several thousand
//! cases. A hit reads one place of the log.
//!
//! This module starts no threads. The owner calls [`Engine::maintain`] periodically. Each call does
//! a bounded step of one of these tasks: writing idle data to the files, compaction, or writing the
//! checkpoint of the index. The owner calls [`DurableEngine::sync`] when a write must be on disk.
//!
//! Invariants: the last entry of a key in the log is the valid one; the index points to it; every
//! entry that the index points to lies in a live segment.

mod batch;
mod cache;
mod changed_bit;
mod cold_reads;
mod compaction;
mod compression;
mod copy;
mod dictionary;
mod entry;
mod examination;
mod file_order;
mod index_file;
mod log;
mod memory_size;
mod opening;
mod options;
mod page;
mod prefetch;
mod recent_entries;
mod refused_writes;
mod salvage;
mod scan;
mod scratch;
mod segment;
mod shard;
mod simple_entry;
mod skipped_records;
mod sweep;
mod training;
mod walk;

use crate::disk::Disk;
use crate::mapped_buffer::MappedBuffer;
use crate::raw;
pub use cold_reads::PendingReads;
use compaction::MaintenanceState;
use compression::{ThreadCached, ValueCompressor, ValueDecompressor};
use dictionary::DictionarySet;
use entry::EntryHead;
use log::{AppendedEntry, FetchedEntry, RecordLog};
pub use options::DiskHashOptions;
use page::{IndexSlot, class_of, least_len, tag_of};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use salvage::{HashDamage, HashSalvage};
use scan::ScanScope;
use scratch::{ScratchBuffers, ThreadScratch};
use segment::{Segment, SegmentTable};
use shard::{IndexPart, IndexShard, PAGES, SHARDS, page_of, shard_of};
use skipped_records::SkippedRecord;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{
    Action, Attributes, ContentsToken, DiskUsage, DurableEngine, Engine, EngineStatus, Error, ErrorKind,
    Expiry, FrozenFile, IndexStatus, Record, RecordRead, Result, ScanPosition, SharedBytes, SweepableEngine,
    ValueBuffer, Visitor,
};
use training::DictionaryTraining;
pub use training::ValueCompression;

const KEY_LEN_MAX: usize = 1 << 28;
const VALUE_LEN_MAX: usize = 1 << 30;

/// A value whose alignment keeps the locks of neighbouring shards in separate cache lines.
#[repr(align(128))]
struct PaddedShard(RwLock<IndexShard>);

/// The hash on disk.
///
/// ```
/// use todana_core::{Action, Attributes, DurableEngine, Engine, Record, Visitor};
/// use todana_engine::{DiskHash, DiskHashOptions};
///
/// struct Set<'a>(&'a [u8]);
/// impl Visitor for Set<'_> {
///     fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
///         Action::Put(Record::new(self.0, Attributes::default()))
///     }
/// }
///
/// # let directory = std::env::temp_dir().join(format!("todana-doc-{}", std::process::id()));
/// let hash = DiskHash::open(&directory, DiskHashOptions::default())?;
/// hash.visit(b"hello", &mut Set(b"world"))?;
/// hash.sync()?;
/// drop(hash);
///
/// let hash = DiskHash::open(&directory, DiskHashOptions::default())?;
/// let mut found = Vec::new();
/// assert!(hash.view(b"hello", &mut |record| found.extend_from_slice(record.value))?);
/// assert_eq!(found, b"world");
/// # drop(hash);
/// # std::fs::remove_dir_all(&directory).unwrap();
/// # Ok::<(), todana_core::Error>(())
/// ```
pub struct DiskHash {
    shards: Box<[PaddedShard]>,
    log: RecordLog,
    secrets: rapidhash::v3::RapidSecrets,
    maintenance: Mutex<MaintenanceState>,
    /// The error that keeps maintenance from its work. The error has a lock of its own because
    /// `maintenance` stays locked during waits for the disk, and readers of the error must not
    /// wait.
    maintenance_error: Mutex<Option<Error>>,
    /// The number of damaged records that were overwritten or removed, and the error of the last of
    /// them.
    damaged_records: Mutex<Option<(u64, Error)>>,
    /// Damaged records that scans have skipped.
    skipped: Mutex<Vec<SkippedRecord>>,
    is_closed: AtomicBool,
    /// True if everything is on disk, including the checkpoint of the index.
    is_index_written: Mutex<bool>,
    space_factor: f64,
    checkpoint_bytes: u64,
    dictionaries: DictionarySet,
    /// The state of training; `None` if values are not compressed.
    training: Option<DictionaryTraining>,
    notes: Vec<String>,
    contents_found: Option<ContentsToken>,
    /// The lock on the directory, which is released when this value is dropped.
    _lock: Box<dyn Send + Sync>,
}

/// A record that was found: its index in the page, its slot, and its entry.
struct FoundRecord<'s> {
    index: usize,
    slot: IndexSlot,
    entry: FetchedEntry<'s>,
}

impl FoundRecord<'_> {
    /// Returns the index of the record in its page and the length of its entry.
    #[inline]
    fn place(&self) -> (usize, usize) {
        (self.index, self.entry.head.len)
    }
}

/// A damaged record: its index in the page, its slot, and the error.
struct DamagedRecord {
    index: usize,
    slot: IndexSlot,
    error: Error,
}

impl DamagedRecord {
    /// Returns the index of the record in its page and a lower bound of the length of its entry.
    /// The true length is unknown. The lower bound is the minimum length of the size class, so the
    /// count of live bytes of the segment never becomes too low; the remainder stays counted until
    /// the segment is removed.
    fn place(&self) -> (usize, usize) {
        (self.index, least_len(self.slot.class()))
    }
}

/// The value that a visit stores, which is kept until the visitor has seen it.
enum StoredValue<'v> {
    /// The value is a part of the entry in the scratch buffers.
    Entry,
    /// The value is shared with the caller, and is written to the log from the caller's memory.
    Shared(SharedBytes),
    /// The value is compressed within the entry in the scratch buffers. The plain value is shared
    /// with the caller; with `None` it is in the scratch buffers.
    Compressed(Option<SharedBytes>),
    /// The value is the old value.
    Unchanged(&'v [u8]),
}

impl DiskHash {
    /// Opens the database in a directory. Creates the directory and the database if they are
    /// missing. Fails with `Busy` if another process has the database open, and with `Corrupt` if
    /// the files are damaged; the message names the file and the offset.
    pub fn open(directory: &Path, options: DiskHashOptions) -> Result<DiskHash> {
        opening::open(directory, options)
    }

    /// Reads a segment without opening its database and checks every checksum. Returns the number
    /// of records in the segment, including records that were replaced or removed later. `number`
    /// is the number in the file name. Fails with `Corrupt`, naming the file and the offset, if
    /// anything is damaged, or if values in the segment need a dictionary that is missing.
    pub fn examine_segment(disk: &dyn Disk, path: &Path, number: u64) -> Result<u64> {
        examination::examine(disk, path, number)
    }

    /// Reads the segments in a directory, which must not be open and may be damaged, and replays
    /// their intact entries into `into`, an empty engine. Without an engine, the function only
    /// reports the damage. It changes nothing in the directory. `may_be_torn` states that the last
    /// segment may have a torn tail, as a crash leaves it; the torn tail is then not counted as
    /// damage. `progress` is called now and then with the number of bytes read. Fails with
    /// `Corrupt` if no segment is readable, with `Unavailable` on a read error, and with the errors
    /// of the engine.
    pub fn salvage(
        disk: &dyn Disk,
        directory: &Path,
        may_be_torn: bool,
        into: Option<&dyn Engine>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<HashSalvage> {
        salvage::salvage(disk, directory, may_be_torn, into, progress)
    }

    /// Returns true if a directory contains an index file, intact or damaged.
    pub fn has_index(disk: &dyn Disk, directory: &Path) -> bool {
        index_file::exists(disk, directory)
    }

    /// Reads a dictionary without opening its database and checks its checksums. Returns the ID of
    /// the database. Fails with `Corrupt` if the dictionary is damaged.
    pub fn examine_dictionary(disk: &dyn Disk, path: &Path, number: u64) -> Result<[u8; 16]> {
        examination::examine_dictionary(disk, path, number)
    }

    /// Returns the ID of the database to which a segment belongs. `segment` must hold the first 64
    /// bytes of the segment.
    pub fn database_of(segment: &[u8]) -> Option<[u8; 16]> {
        examination::database_of(segment)
    }

    /// Returns how often the database had been opened when a segment was created. `segment` must
    /// hold the first 64 bytes of the segment.
    pub fn openings_of(segment: &[u8]) -> Option<u32> {
        examination::openings_of(segment)
    }

    /// Returns messages about the opening for the user, such as a torn tail that was cut off or an
    /// index that was rebuilt.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the error that keeps maintenance from its work, such as a full disk or damage that
    /// compaction has met. Returns `None` while maintenance succeeds.
    pub fn maintenance_error(&self) -> Option<Error> {
        let maintenance_error = self.maintenance_error.lock().clone();
        maintenance_error.or_else(|| self.training.as_ref().and_then(DictionaryTraining::last_error))
    }

    /// Returns the number of damaged records that were overwritten or removed since the opening,
    /// and the error of the last of them.
    pub fn damaged_records(&self) -> Option<(u64, Error)> {
        self.damaged_records.lock().clone()
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets)
    }

    /// Locks a shard for reading, and updates its table of segments if that is outdated.
    #[inline]
    fn read_shard(&self, index: usize) -> RwLockReadGuard<'_, IndexShard> {
        loop {
            let shard = self.shards[index].0.read();
            if shard.version == self.log.version() {
                return shard;
            }
            drop(shard);
            drop(self.lock_shard(index));
        }
    }

    /// Locks a shard for writing, and updates its table of segments if that is outdated.
    #[inline]
    fn lock_shard(&self, index: usize) -> RwLockWriteGuard<'_, IndexShard> {
        let mut shard = self.shards[index].0.write();
        self.refresh(&mut shard);
        shard
    }

    #[inline]
    fn refresh(&self, shard: &mut IndexShard) {
        if shard.version != self.log.version() {
            (shard.table, shard.version) = self.log.table();
        }
    }

    /// Finds the record of a key. Its entry is in `old` afterwards, unless the segment is mapped.
    /// If no intact record is found, `damage` receives a damaged record that matches all 33 bits of
    /// the hash that the index knows. Such a record almost certainly belongs to the key.
    #[inline]
    fn find<'t>(
        &self,
        part: &IndexPart,
        table: &'t SegmentTable,
        hash: u64,
        key: &[u8],
        old: &mut Vec<u8>,
        damage: &mut Option<DamagedRecord>,
    ) -> Result<Option<FoundRecord<'t>>> {
        let (page, tag) = (&part.pages[page_of(hash)], tag_of(hash));
        let mut next = page.first(tag);
        while let Some(index) = next {
            let slot = page.get(index);
            let at = slot.location();
            let segment = table.get(at.slot).ok_or_else(missing_segment_error)?;
            match self.log.fetch(segment, at.unit, slot.class(), old) {
                Ok(entry) if entry.head.kind == entry::PUT && entry.head.key(entry.bytes(old)) == key => {
                    return Ok(Some(FoundRecord { index, slot, entry }));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    *damage = Some(DamagedRecord { index, slot, error })
                }
                Err(error) => return Err(error),
            }
            next = page.next(tag, index + 1);
        }
        Ok(None)
    }

    /// Calls `see` with the record of an entry. `segment` and `unit` are the location of the entry.
    #[inline]
    fn show<T>(
        &self,
        segment: &Segment,
        unit: u32,
        head: &EntryHead,
        entry: &[u8],
        see: impl FnOnce(Record<'_>) -> T,
    ) -> Result<T> {
        if head.encoding.is_none() {
            return Ok(see(Record::new(head.value(entry), head.attributes)));
        }
        let mut decompressor = None;
        let value = self.value(segment, unit, head, entry, &mut decompressor)?;
        Ok(see(Record::new(value, head.attributes)))
    }

    /// Returns the value of an entry, decompressed if necessary. `segment` and `unit` are the
    /// location of the entry. Fails with `Corrupt` if the value cannot be decompressed.
    #[inline]
    fn value<'v>(
        &self,
        segment: &Segment,
        unit: u32,
        head: &EntryHead,
        entry: &'v [u8],
        decompressor: &'v mut Option<ThreadCached<ValueDecompressor>>,
    ) -> Result<&'v [u8]> {
        let stored = head.value(entry);
        let Some(encoding) = head.encoding else { return Ok(stored) };
        let decompressor = decompressor.get_or_insert_with(ThreadCached::take);
        let value = decompressor.decompress(stored, encoding, self.dictionaries.get(encoding.dictionary));
        value.map_err(|wrong| wrong.at(|what| segment.corrupt(u64::from(unit) * 8, what)))
    }

    /// Appends the put entry of a record. `new` holds the entry without CRC and padding. If the
    /// value is shared, `new` ends after the key and `value` follows.
    fn append_put(&self, new: &[u8], value: Option<&[u8]>, expiry: Expiry) -> Result<AppendedEntry> {
        let len = entry::padded(new.len() + value.map_or(0, <[u8]>::len));
        self.refuse_if_full(len)?;
        let mut appender = self.log.lock();
        let appended = appender.prepare(len, len).and_then(|()| match value {
            None if !appender.is_long(len) => {
                Ok(appender.append_small(|buffer| buffer.extend_from_slice(new)))
            }
            value => appender.append_long(new, &[], value.unwrap_or_default()),
        });
        let appended = appended.and_then(|appended| appender.flush_if_exposed().map(|()| appended));
        let appended = appended.inspect_err(|error| self.log.refused_writes.note(error, len))?;
        appender.segment().note_expiry(expiry);
        Ok(appended)
    }

    /// Stores a record and enters it into the index, in place of `old` if that is given. `new`
    /// holds the entry of the record up to the end of the value, or up to the end of the key if the
    /// value is shared.
    fn put(
        &self,
        part: &mut IndexPart,
        hash: u64,
        new: &[u8],
        stored: &StoredValue<'_>,
        expiry: Expiry,
        old: Option<(usize, usize)>,
    ) -> Result<()> {
        let value = match stored {
            StoredValue::Shared(bytes) => bytes.plain(),
            StoredValue::Entry | StoredValue::Compressed(_) | StoredValue::Unchanged(_) => None,
        };
        let appended = self.append_put(new, value, expiry)?;
        let slot = IndexSlot::new(tag_of(hash), class_of(appended.len), appended.at);
        part.enter(hash, slot, appended.len, old);
        Ok(())
    }

    /// Stores a record without attributes. `entry` is complete except for its CRC.
    #[inline]
    fn put_simple(
        &self,
        part: &mut IndexPart,
        hash: u64,
        entry: &mut [u8],
        old: Option<(usize, usize)>,
    ) -> Result<()> {
        self.refuse_if_full(entry.len())?;
        let mut appender = self.log.lock();
        let appended =
            appender.prepare(entry.len(), entry.len()).and_then(|()| match appender.is_long(entry.len()) {
                true => appender.append_long(entry, &[], &[]),
                false => Ok(appender.append_padded(entry)),
            });
        let appended = appended.and_then(|appended| appender.flush_if_exposed().map(|()| appended));
        drop(appender);
        let appended = appended.inspect_err(|error| self.log.refused_writes.note(error, entry.len()))?;
        let slot = IndexSlot::new(tag_of(hash), class_of(appended.len), appended.at);
        part.enter(hash, slot, appended.len, old);
        Ok(())
    }

    /// Removes the record at `place`, which is its index in the page and the length of its entry.
    fn remove(&self, part: &mut IndexPart, hash: u64, key: &[u8], place: (usize, usize)) -> Result<()> {
        let mut appender = self.log.lock();
        let len = entry::padded(10 + key.len());
        appender.prepare(len, 0).inspect_err(|error| self.log.refused_writes.note(error, len))?;
        let appended = appender.append_small(|buffer| entry::put_remove(buffer, key));
        appender.flush_if_exposed().inspect_err(|error| self.log.refused_writes.note(error, len))?;
        appender.segment().remove_bytes.fetch_add(appended.len as u64, Ordering::Relaxed);
        drop(appender);
        part.remove_slot(hash, place.0, place.1);
        Ok(())
    }

    /// Counts a damaged record that was overwritten or removed. Its segment may be compacted again.
    fn note_damage(&self, damage: Option<DamagedRecord>, table: &SegmentTable) {
        let Some(DamagedRecord { slot, error, .. }) = damage else { return };
        if let Some(segment) = table.get(slot.location().slot) {
            segment.has_damage.store(false, Ordering::Relaxed);
        }
        self.count_damaged(error);
    }

    fn refuse_if_closed(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "the database is closed"));
        }
        Ok(())
    }

    /// Encodes the entry of a record with new attributes and the stored value.
    fn encode_retagged(
        &self,
        key: &[u8],
        old: &[u8],
        found: &FoundRecord<'_>,
        attributes: todana_core::Attributes,
        new: &mut Vec<u8>,
    ) {
        new.clear();
        let head = &found.entry.head;
        let value = head.value(found.entry.bytes(old));
        entry::put_head(new, key.len(), value.len(), &attributes, head.encoding);
        new.extend_from_slice(key);
        new.extend_from_slice(value);
    }

    /// Encodes the entry of a record up to the end of its value. If the value is shared and not
    /// compressed, the entry is encoded only up to the end of its key. If the value is compressed
    /// and not shared, `given` receives a copy of the plain value.
    fn encode(
        &self,
        key: &[u8],
        record: &Record<'_>,
        new: &mut Vec<u8>,
        given: &mut Vec<u8>,
    ) -> Result<StoredValue<'static>> {
        check_lengths(key, record.value.len())?;
        new.clear();
        if let Some(training) = &self.training {
            let mut compressor = ThreadCached::<ValueCompressor>::take();
            let compressed = compressor.compress(record.value, &self.dictionaries);
            training.note(
                record.value.len(),
                compressed.map_or(record.value.len(), |(_, compressed)| compressed.len()),
            );
            if let Some((encoding, compressed)) = compressed {
                entry::put_head(new, key.len(), compressed.len(), &record.attributes, Some(encoding));
                new.extend_from_slice(key);
                new.extend_from_slice(compressed);
                if record.plain_shared().is_none() {
                    given.clear();
                    given.extend_from_slice(record.value);
                }
                return Ok(StoredValue::Compressed(record.plain_shared().map(Arc::clone)));
            }
        }
        entry::put_head(new, key.len(), record.value.len(), &record.attributes, None);
        new.extend_from_slice(key);
        if let Some(shared) = record.plain_shared() {
            return Ok(StoredValue::Shared(Arc::clone(shared)));
        }
        new.extend_from_slice(record.value);
        Ok(StoredValue::Entry)
    }

    /// Does what `view` does, for records of any layout.
    #[inline(never)]
    fn view_any(
        &self,
        shard: &IndexShard,
        hash: u64,
        key: &[u8],
        see: &mut dyn FnMut(Record<'_>),
    ) -> Result<bool> {
        let (page, tag) = (&shard.pages[page_of(hash)], tag_of(hash));
        let mut next = page.first(tag);
        let mut damage = None;
        while let Some(index) = next {
            let slot = page.get(index);
            let at = slot.location();
            let segment = shard.table.get(at.slot).ok_or_else(missing_segment_error)?;
            let seen = self.log.view(segment, at.unit, slot.class(), true, |head, entry| {
                let is_it = head.kind == entry::PUT && head.key(entry) == key;
                if is_it {
                    self.show(segment, at.unit, head, entry, &mut *see)?;
                }
                Ok(is_it)
            });
            match seen.flatten() {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                // The damaged entry may belong to another key.
                Err(error) if error.kind() == ErrorKind::Corrupt => damage = Some(error),
                Err(error) => return Err(error),
            }
            next = page.next(tag, index + 1);
        }
        damage.map_or(Ok(false), Err)
    }
}

/// Encodes the entry of a record without compression.
fn put_plain(key: &[u8], record: &Record<'_>, new: &mut Vec<u8>) {
    new.clear();
    entry::put_head(new, key.len(), record.value.len(), &record.attributes, None);
    new.extend_from_slice(key);
    new.extend_from_slice(record.value);
}

fn check_lengths(key: &[u8], value_len: usize) -> Result<()> {
    if key.len() > KEY_LEN_MAX || value_len > VALUE_LEN_MAX {
        let (what, len) = if key.len() > KEY_LEN_MAX { ("key", key.len()) } else { ("value", value_len) };
        return Err(Error::new(ErrorKind::Invalid, format!("{what} of {len} bytes is too long")));
    }
    Ok(())
}

/// Returns the error of a slot that points to a damaged record.
#[cold]
fn damaged(table: &SegmentTable, slot: IndexSlot) -> Error {
    let at = slot.location();
    table.get(at.slot).map_or_else(missing_segment_error, |segment| {
        segment.corrupt(u64::from(at.unit) * 8, "the checksum of the entry differs")
    })
}

/// Returns the error of an index that points to a missing segment, which should never happen.
fn missing_segment_error() -> Error {
    Error::new(ErrorKind::Corrupt, "the index points to a missing segment")
}

impl Engine for DiskHash {
    #[inline]
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let hash = self.hash(key);
        let shard = self.read_shard(shard_of(hash));
        let (page, tag) = (&shard.pages[page_of(hash)], tag_of(hash));
        match simple_entry::find_in_page(page, tag, &shard.table, key, true) {
            Some(None) => Ok(false),
            Some(Some((_, found))) => {
                see(Record::new(found.value, Attributes::default()));
                Ok(true)
            }
            None => self.view_any(&shard, hash, key, see),
        }
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.refuse_if_closed()?;
        let hash = self.hash(key);
        let mut guard = self.lock_shard(shard_of(hash));
        let IndexShard { part, table, .. } = &mut *guard;
        let mut scratch = ThreadScratch::take();
        let ScratchBuffers { old, new, plain_value, .. } = &mut *scratch;
        let (mut damage, mut decompressor) = (None, None);
        let mut found = None;
        let mut unchecked = None;
        let checks = !visitor.ignores_value();
        let (page, tag) = (&part.pages[page_of(hash)], tag_of(hash));
        let (place, record) = match simple_entry::find_in_page(page, tag, table, key, checks) {
            Some(None) => (None, None),
            Some(Some((index, simple_entry))) => {
                unchecked = (!checks).then(|| (page.get(index), simple_entry));
                (
                    Some((index, simple_entry.len())),
                    Some(Record::new(simple_entry.value, Attributes::default())),
                )
            }
            None => {
                found = self.find(part, table, hash, key, old, &mut damage)?;
                let mut value: &[u8] = &[];
                if let Some(FoundRecord { index, slot, entry }) = &found {
                    let at = slot.location();
                    let segment = table.get(at.slot).ok_or_else(missing_segment_error)?;
                    match self.value(segment, at.unit, &entry.head, entry.bytes(old), &mut decompressor) {
                        Ok(there) => value = there,
                        Err(error) if error.kind() == ErrorKind::Corrupt => {
                            damage = Some(DamagedRecord { index: *index, slot: *slot, error });
                            found = None;
                        }
                        Err(error) => return Err(error),
                    }
                }
                damage = damage.filter(|_| found.is_none());
                if let Some(damage) = damage.as_ref().filter(|_| !visitor.overwrites()) {
                    return Err(damage.error.clone());
                }
                let place =
                    found.as_ref().map(FoundRecord::place).or(damage.as_ref().map(DamagedRecord::place));
                let record = found.as_ref().map(|found| Record::new(value, found.entry.head.attributes));
                (place, record)
            }
        };
        let (stored, attributes, value_len) = match visitor.visit(record) {
            Action::Keep => return Ok(()),
            Action::Remove => {
                let Some(place) = place else { return Ok(()) };
                self.remove(part, hash, key, place)?;
                self.note_damage(damage, table);
                visitor.applied(None);
                return Ok(());
            }
            Action::Put(record)
                if self.training.is_none()
                    && record.plain_shared().is_none()
                    && record.attributes == Attributes::default()
                    && simple_entry::put(new, key, record.value) =>
            {
                let value_len = record.value.len();
                self.put_simple(part, hash, new, place)?;
                self.note_damage(damage, table);
                let at = simple_entry::value_at(key.len(), value_len);
                visitor.applied(Some(Record::new(&new[at..at + value_len], Attributes::default())));
                return Ok(());
            }
            Action::Put(record) => {
                let stored = self.encode(key, &record, new, plain_value)?;
                (stored, record.attributes, record.value.len())
            }
            Action::Retag(attributes) => {
                let Some(record) = record else { return Ok(()) };
                if let Some((slot, _)) = unchecked.filter(|(_, simple_entry)| !simple_entry.is_intact()) {
                    // The visitor ignores the value. A damaged value must still not be written
                    // again, because it would then have a valid checksum.
                    return Err(damaged(table, slot));
                }
                match &found {
                    Some(found) => self.encode_retagged(key, old, found, attributes, new),
                    None => put_plain(key, &Record { attributes, ..record }, new),
                }
                (StoredValue::Unchanged(record.value), attributes, record.value.len())
            }
        };
        self.put(part, hash, new, &stored, attributes.expiry, place)?;
        self.note_damage(damage, table);
        let now = match &stored {
            StoredValue::Entry => Record::new(&new[new.len() - value_len..], attributes),
            StoredValue::Compressed(None) => Record::new(plain_value, attributes),
            StoredValue::Unchanged(value) => Record::new(value, attributes),
            StoredValue::Shared(shared) | StoredValue::Compressed(Some(shared)) => {
                Record { value: shared.plain().unwrap_or_default(), shared: Some(shared), attributes }
            }
        };
        visitor.applied(Some(now));
        Ok(())
    }

    fn wait_for_visits(&self) {
        self.shards.iter().for_each(|shard| drop(shard.0.write()));
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_from(from, &ScanScope::default(), see)
    }

    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_from(from, &ScanScope { skips_damage: true, ..ScanScope::default() }, see)
    }

    fn read_all(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.read_in_file_order(from, see)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        self.refuse_if_closed()?;
        // All shards are locked at once, so that no write reaches one shard before the others are
        // cleared.
        let mut shards: Vec<_> = (0..SHARDS).map(|index| self.lock_shard(index)).collect();
        let mut appender = self.log.lock();
        appender.prepare(8, 0).inspect_err(|error| self.log.refused_writes.note(error, 8))?;
        appender.append_small(|buffer| entry::put_other(buffer, entry::CLEAR, &[]));
        appender.flush_if_exposed().inspect_err(|error| self.log.refused_writes.note(error, 8))?;
        drop(appender);
        shards.iter_mut().for_each(|shard| shard.clear());
        cleared();
        Ok(())
    }

    fn status(&self) -> EngineStatus {
        let mut status = EngineStatus::default();
        for shard in &self.shards {
            let shard = shard.0.read();
            status.records += shard.records;
            status.live_bytes += shard.live_bytes();
            status.index.bytes += shard.bytes();
        }
        status.index.bytes += raw::share_of_free_bytes(status.index.bytes);
        status.index.buckets = (SHARDS * PAGES) as u64;
        status.index = IndexStatus { is_growing: false, ..status.index };
        status.committed_bytes = status.index.bytes + self.log.cache.bytes() + self.log.buffer_bytes();
        let blocks = |segment: &Arc<Segment>| size_of_val(&*segment.blocks) as u64;
        status.committed_bytes += self.log.table().0.slots.iter().flatten().map(blocks).sum::<u64>();
        status.committed_bytes += self.dictionaries.bytes();
        status
    }

    fn has_cold_records(&self) -> bool {
        self.log.exceeds_memory()
    }

    fn prefetch_all(&self, keys: &[&[u8]]) {
        self.prefetch_records(keys);
    }

    fn await_read(&self, key: &[u8], may_start: bool) -> RecordRead {
        if self.log.exceeds_memory() { self.await_entry(key, may_start) } else { RecordRead::Ready }
    }

    /// If values are compressed, a few of these calls in the life of a database train a dictionary.
    /// Training takes about 0.1 s and holds no lock on records.
    fn maintain(&self) -> bool {
        let has_more = self.run_maintenance();
        self.train_if_due();
        has_more
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        check_lengths(&[], len)?;
        Ok(Box::new(MappedBuffer::new(len)?))
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        MappedBuffer::room(buffer, len)
    }

    fn durable(&self) -> Option<&dyn DurableEngine> {
        Some(self)
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        Some(self)
    }
}

impl DurableEngine for DiskHash {
    fn flush(&self) -> Result<()> {
        self.log.flush()
    }

    fn sync(&self) -> Result<()> {
        self.log.sync()
    }

    fn apply(&self, changes: &[(&[u8], Action<'_>)]) -> Result<()> {
        self.refuse_if_closed()?;
        self.apply_batch(changes)
    }

    fn copy(&self, to: &Path) -> Result<()> {
        self.copy_to(to)
    }

    fn freeze(&self) -> Result<Vec<FrozenFile>> {
        self.freeze_files()
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::SeqCst);
        let mut is_index_written = self.is_index_written.lock();
        if !*is_index_written {
            self.write_index()?;
            *is_index_written = true;
        }
        Ok(())
    }

    fn open_count(&self) -> u32 {
        self.log.opening.count
    }

    fn contents_token(&self) -> ContentsToken {
        self.log.contents()
    }

    fn contents_token_at_open(&self) -> Option<ContentsToken> {
        self.contents_found
    }

    fn open_notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn remove_damaged(&self, count_max: u64) -> Result<u64> {
        self.refuse_if_closed()?;
        self.remove_skipped(count_max)
    }

    fn maintenance_error(&self) -> Option<Error> {
        DiskHash::maintenance_error(self)
    }

    fn refused_write_error(&self) -> Option<Error> {
        self.refusal_reason()
    }

    fn damaged_records(&self) -> Option<(u64, Error)> {
        DiskHash::damaged_records(self)
    }

    fn disk_usage(&self) -> DiskUsage {
        let (table, _) = self.log.table();
        let live_bytes = self.shards.iter().map(|shard| shard.0.read().live_bytes()).sum();
        let bytes = self.log.bytes() + self.log.dropped_bytes.load(Ordering::Relaxed);
        DiskUsage { bytes, live_bytes, files: table.slots.iter().flatten().count() as u64 }
    }
}

impl Drop for DiskHash {
    fn drop(&mut self) {
        // No caller can receive an error here. At worst, data that cannot be written becomes a torn
        // tail.
        let _ = self.close();
        // A write that began before `close` may have finished after it.
        if self.log.sync().is_ok() {
            self.log.remove_recent();
        }
    }
}
