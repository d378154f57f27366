//! The hash on disk: a log of records in segments, and an index in memory that finds each with one read.
//!
//! ```text
//! key -> hash -> shard (lock) -> page -> slot: 21 more bits of the hash, size class, segment, offset
//!                                          |
//! segments of the log (docs/format/disk-hash.md): mapped | block cache and file | the end that is not written yet
//! ```
//!
//! A write appends a record and turns the index to it; what was there before is garbage until compaction has written the
//! rest of its segment once more. The index costs about ten bytes a record and holds no keys: a miss is answered by
//! it lock_shard but once in some thousands, a hit reads one place.
//!
//! There are no threads in here. Whoever owns it calls [`Engine::maintain`] again and again: that hands what was written to the
//! system once it has come to rest, compacts, and writes the index down, a bounded step each; and [`Durable::sync`] where a write is to be on disk.
//!
//! Always true: of a key's entries the last in the log counts; the index leads to it; an entry that the index leads to lies in a
//! segment that counts.

mod batch;
mod cache;
mod changed_bit;
mod compaction;
mod compression;
mod copy;
mod dictionary;
mod entry;
mod examination;
mod index_file;
mod log;
mod opening;
mod options;
mod page;
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
use crate::raw;
use crate::value_buffer::ValueBuffer;
use compaction::MaintenanceState;
use compression::{ThreadCached, ValueCompressor, ValueDecompressor};
use dictionary::DictionarySet;
use entry::EntryHead;
use log::{AppendedEntry, FetchedEntry, RecordLog};
pub use options::DiskHashOptions;
use page::{IndexSlot, class_of, least_len, tag_of};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use salvage::{HashDamage, HashSalvage};
use scratch::{ScratchBuffers, ThreadScratch};
use segment::{Segment, SegmentTable};
use shard::{IndexPart, IndexShard, PAGES, SHARDS, page_of, shard_of};
use skipped_records::SkippedRecord;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{
    Action, Attributes, Buffer, ContentsToken, Durable, Engine, Error, ErrorKind, Expiry, FrozenFile, Index,
    Perishable, Place, Record, Result, SharedBytes, Status, Usage, Visitor,
};
use training::DictionaryTraining;
pub use training::ValueCompression;

const KEY_LEN_MAX: usize = 1 << 28;
const VALUE_LEN_MAX: usize = 1 << 30;

/// Keeps the locks of neighbouring shards off each other's cache lines.
#[repr(align(128))]
struct PaddedShard(RwLock<IndexShard>);

/// The hash on disk.
///
/// ```
/// use todana_core::{Action, Attributes, Durable, Engine, Record, Visitor};
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
    /// What housekeeping could not do. Its own lock is held while it waits for the disk, which whoever asks shall not.
    trouble: Mutex<Option<Error>>,
    /// Damaged records that were overwritten or removed.
    damaged_records: Mutex<Option<(u64, Error)>>,
    /// Damaged records that a scan has skipped over.
    skipped: Mutex<Vec<SkippedRecord>>,
    is_closed: AtomicBool,
    /// All is on disk, and the index written down.
    is_settled: Mutex<bool>,
    space_factor: f64,
    checkpoint_bytes: u64,
    dictionaries: DictionarySet,
    /// Of one that compresses.
    training: Option<DictionaryTraining>,
    notes: Vec<String>,
    contents_found: Option<ContentsToken>,
    /// Ends with the value.
    _lock: Box<dyn Send + Sync>,
}

/// A record that was found: where in its page, the slot there, and its entry.
struct FoundRecord<'s> {
    index: usize,
    slot: IndexSlot,
    entry: FetchedEntry<'s>,
}

impl FoundRecord<'_> {
    /// Where in its page, and how long its entry is.
    #[inline]
    fn place(&self) -> (usize, usize) {
        (self.index, self.entry.head.len)
    }
}

/// A record that is damaged: where in its page, the slot there, and what is wrong.
struct DamagedRecord {
    index: usize,
    slot: IndexSlot,
    error: Error,
}

impl DamagedRecord {
    /// Where in its page. How long its entry was cannot be told: what its size class tells at least takes nothing from what its neighbours
    /// count; the rest stays counted until its segment goes.
    fn place(&self) -> (usize, usize) {
        (self.index, least_len(self.slot.class()))
    }
}

/// The value that a visit stores, until its visitor has been shown it.
enum StoredValue<'v> {
    /// In the room's entry.
    Entry,
    /// Shared with whoever gave it, and written from there.
    Shared(SharedBytes),
    /// In the room's entry, compressed; shared with whoever gave it, or in the room as it was given.
    Compressed(Option<SharedBytes>),
    /// As it was.
    Unchanged(&'v [u8]),
}

impl DiskHash {
    /// Opens the database in a directory, made if need be. Fails with `Busy` if another process has it open, with `Corrupt` if
    /// what was on disk has changed since: the message names file and offset.
    pub fn open(directory: &Path, options: DiskHashOptions) -> Result<DiskHash> {
        opening::open(directory, options)
    }

    /// Reads a segment of a database by itself, which nobody needs to have open, and checks every checksum; returns how many records are in
    /// it, also those that have been replaced or removed since. `number`: that of its name. Fails with `Corrupt`, naming file and
    /// offset, if anything is damaged, and naming a dictionary if one is missing beside it that values in it are compressed with.
    pub fn examine_segment(disk: &dyn Disk, path: &Path, number: u64) -> Result<u64> {
        examination::examine(disk, path, number)
    }

    /// Reads the segments in a directory, which nobody has open and nobody needs to be able to open, and does again in an empty engine,
    /// `into`, what is whole in them; only tells what is damaged where there is none. Nothing in the directory is changed. `may_be_torn`: it
    /// may end as a crash leaves it, which is no damage. `progress` is told the bytes read, now and then. Fails with `Corrupt` if nothing can be told of any segment, with `Unavailable` if they
    /// cannot be read, and as the engine does.
    pub fn salvage(
        disk: &dyn Disk,
        directory: &Path,
        may_be_torn: bool,
        into: Option<&dyn Engine>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<HashSalvage> {
        salvage::salvage(disk, directory, may_be_torn, into, progress)
    }

    /// Returns true if a directory holds the file of an index, damaged or not.
    pub fn has_index(disk: &dyn Disk, directory: &Path) -> bool {
        index_file::is_there(disk, directory)
    }

    /// Reads a dictionary of a database by itself, and checks its checksums; returns the database that it is of. Fails with `Corrupt` if it is damaged.
    pub fn examine_dictionary(disk: &dyn Disk, path: &Path, number: u64) -> Result<[u8; 16]> {
        examination::examine_dictionary(disk, path, number)
    }

    /// The database that a segment is of, by its first 64 bytes.
    pub fn database_of(segment: &[u8]) -> Option<[u8; 16]> {
        examination::database_of(segment)
    }

    /// How often its database had been opened when a segment was made, by its first 64 bytes.
    pub fn openings_of(segment: &[u8]) -> Option<u32> {
        examination::openings_of(segment)
    }

    /// What the opening has found that its user should know: a torn tail that was cut off, an index that had to be made anew.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What housekeeping could not do, and why: compaction has met damage, or the disk is full. `None` while all is well.
    pub fn trouble(&self) -> Option<Error> {
        let trouble = self.trouble.lock().clone();
        trouble.or_else(|| self.training.as_ref().and_then(DictionaryTraining::trouble))
    }

    /// How many damaged records have been overwritten or removed since the opening, and what was wrong with the last of them.
    pub fn damaged_records(&self) -> Option<(u64, Error)> {
        self.damaged_records.lock().clone()
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets)
    }

    /// A shard that knows the segments there are.
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

    /// The same, to oneself.
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

    /// Finds the record of a key; its entry may be in `old` then. If there is none, but one that is damaged and may have been it,
    /// that is in `damage`: it has all 33 bits of the hash that the index knows, so it is hardly ever another's.
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

    /// Shows the entry of a record, which is in a segment at a place.
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

    /// The value of an entry, which is in a segment at a place. Fails with `Corrupt` if it is compressed and cannot be expanded.
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

    /// Appends the put of a record, which is in `new` but for CRC and padding, or its beginning and key if the value is shared.
    fn append_put(&self, new: &[u8], value: Option<&[u8]>, expiry: Expiry) -> Result<AppendedEntry> {
        let len = entry::padded(new.len() + value.map_or(0, <[u8]>::len));
        self.refuse_if_disk_full(len)?;
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

    /// Puts the record of a key that is where `found` says; `room.new` is its entry up to and with its value, or up to its key
    /// if the value is shared.
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
            StoredValue::Shared(bytes) => Some((**bytes).as_ref()),
            StoredValue::Entry | StoredValue::Compressed(_) | StoredValue::Unchanged(_) => None,
        };
        let appended = self.append_put(new, value, expiry)?;
        let slot = IndexSlot::new(tag_of(hash), class_of(appended.len), appended.at);
        part.enter(hash, slot, appended.len, old);
        Ok(())
    }

    /// The same for a record without attributes, whose entry is there but for its CRC.
    #[inline]
    fn put_simple(
        &self,
        part: &mut IndexPart,
        hash: u64,
        entry: &mut [u8],
        old: Option<(usize, usize)>,
    ) -> Result<()> {
        self.refuse_if_disk_full(entry.len())?;
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

    /// `place`: where in its page the record is, and how long its entry.
    fn remove(&self, part: &mut IndexPart, hash: u64, key: &[u8], place: (usize, usize)) -> Result<()> {
        let mut appender = self.log.lock();
        let len = entry::padded(10 + key.len());
        appender.prepare(len, 0).inspect_err(|error| self.log.refused_writes.note(error, len))?;
        let appended = appender.append_small(|buffer| entry::put_remove(buffer, key));
        appender.flush_if_exposed().inspect_err(|error| self.log.refused_writes.note(error, len))?;
        appender.segment().remove_bytes.fetch_add(appended.len as u64, Ordering::Relaxed);
        drop(appender);
        part.leave(hash, place.0, place.1);
        Ok(())
    }

    /// Counts a damaged record that was overwritten or removed. Its segment may be compacted now.
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

    /// Writes the entry of a record whose value stays as it is stored.
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

    /// Writes the entry of a record up to its value, or up to its key where the value is better not copied.
    /// A value that is compressed is in `given` then, if it is not shared.
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
                if record.shared.is_none() {
                    given.clear();
                    given.extend_from_slice(record.value);
                }
                return Ok(StoredValue::Compressed(record.shared.map(Arc::clone)));
            }
        }
        entry::put_head(new, key.len(), record.value.len(), &record.attributes, None);
        new.extend_from_slice(key);
        if let Some(shared) = record.shared {
            return Ok(StoredValue::Shared(Arc::clone(shared)));
        }
        new.extend_from_slice(record.value);
        Ok(StoredValue::Entry)
    }

    /// As `view`, whatever the record is like.
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
                // Perhaps it is another's.
                Err(error) if error.kind() == ErrorKind::Corrupt => damage = Some(error),
                Err(error) => return Err(error),
            }
            next = page.next(tag, index + 1);
        }
        damage.map_or(Ok(false), Err)
    }
}

/// The entry of a record as it is.
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

/// The record that a slot leads to is damaged.
#[cold]
fn damaged(table: &SegmentTable, slot: IndexSlot) -> Error {
    let at = slot.location();
    table.get(at.slot).map_or_else(missing_segment_error, |segment| {
        segment.corrupt(u64::from(at.unit) * 8, "the checksum of the entry differs")
    })
}

/// What cannot be: the index leads to a segment that does not count.
fn missing_segment_error() -> Error {
    Error::new(ErrorKind::Corrupt, "the index leads to a segment that is not there")
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
        let ScratchBuffers { old, new, other, .. } = &mut *scratch;
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
                    && record.shared.is_none()
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
                let stored = self.encode(key, &record, new, other)?;
                (stored, record.attributes, record.value.len())
            }
            Action::Retag(attributes) => {
                let Some(record) = record else { return Ok(()) };
                if let Some((slot, _)) = unchecked.filter(|(_, simple_entry)| !simple_entry.is_intact()) {
                    // It said that the value was nothing to it; yet no damage is to be written anew as if it were none.
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
            StoredValue::Compressed(None) => Record::new(other, attributes),
            StoredValue::Unchanged(value) => Record::new(value, attributes),
            StoredValue::Shared(shared) | StoredValue::Compressed(Some(shared)) => {
                Record { value: (**shared).as_ref(), shared: Some(shared), attributes }
            }
        };
        visitor.applied(Some(now));
        Ok(())
    }

    fn fence(&self) {
        self.shards.iter().for_each(|shard| drop(shard.0.write()));
    }

    fn scan(
        &self,
        from: Option<Place>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Place>> {
        self.scan_from(from, false, see)
    }

    fn scan_whole(
        &self,
        from: Option<Place>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Place>> {
        self.scan_from(from, true, see)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        self.refuse_if_closed()?;
        // All at once: nobody shall write to the one while the other is not cleared yet.
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

    fn status(&self) -> Status {
        let mut status = Status::default();
        for shard in &self.shards {
            let shard = shard.0.read();
            status.records += shard.records;
            status.live_bytes += shard.live_bytes();
            status.index.bytes += shard.bytes();
        }
        status.index.bytes += raw::free_beside(status.index.bytes);
        status.index.buckets = (SHARDS * PAGES) as u64;
        status.index = Index { is_growing: false, ..status.index };
        status.committed_bytes = status.index.bytes + self.log.cache.bytes() + self.log.buffer_bytes();
        status.committed_bytes += self.dictionaries.bytes();
        status
    }

    /// Where values are compressed it trains a dictionary a few times in a database's life, which takes some 0.1 s; no lock on a record is held.
    fn maintain(&self) -> bool {
        let has_more = self.run_maintenance();
        self.train_if_due();
        has_more
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn Buffer>> {
        check_lengths(&[], len)?;
        Ok(Box::new(ValueBuffer::new(len)?))
    }

    fn room<'b>(&self, buffer: &'b mut dyn Buffer, len: usize) -> Result<&'b mut [u8]> {
        ValueBuffer::room(buffer, len)
    }

    fn durable(&self) -> Option<&dyn Durable> {
        Some(self)
    }

    fn perishable(&self) -> Option<&dyn Perishable> {
        Some(self)
    }
}

impl Durable for DiskHash {
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
        let mut is_settled = self.is_settled.lock();
        if !*is_settled {
            self.write_index()?;
            *is_settled = true;
        }
        Ok(())
    }

    fn openings(&self) -> u32 {
        self.log.opening.count
    }

    fn contents(&self) -> ContentsToken {
        self.log.contents()
    }

    fn contents_found(&self) -> Option<ContentsToken> {
        self.contents_found
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn remove_damaged(&self, count_max: u64) -> Result<u64> {
        self.refuse_if_closed()?;
        self.remove_skipped(count_max)
    }

    fn trouble(&self) -> Option<Error> {
        DiskHash::trouble(self)
    }

    fn refused_write(&self) -> Option<Error> {
        self.refusal_reason()
    }

    fn damaged_records(&self) -> Option<(u64, Error)> {
        DiskHash::damaged_records(self)
    }

    fn usage(&self) -> Usage {
        let (table, _) = self.log.table();
        let live_bytes = self.shards.iter().map(|shard| shard.0.read().live_bytes()).sum();
        let bytes = self.log.bytes() + self.log.dropped_bytes.load(Ordering::Relaxed);
        Usage { bytes, live_bytes, files: table.slots.iter().flatten().count() as u64 }
    }
}

impl Drop for DiskHash {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure; what cannot be written now is a torn tail at worst.
        let _ = self.close();
        // A write that had begun before it was closed may have come to its end since.
        if self.log.sync().is_ok() {
            self.log.remove_recent();
        }
    }
}
