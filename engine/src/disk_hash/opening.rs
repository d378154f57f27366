//! Opens a hash on disk: reads the checkpoint of the index, and the log from the position of the
//! checkpoint on (docs/format/disk-hash.md, section 3).
//!
//! An attempt to open reads everything and changes nothing. If an attempt finds a torn tail, the
//! tail is cut off and a new attempt begins.

use super::changed_bit::flipped_bit;
use super::compaction::MaintenanceState;
use super::dictionary::{self, DICTIONARIES_MAX, DictionarySet, ValueDictionary, dictionary_number};
use super::entry::{self, BATCH, CLEAR, DROPPED, EntryHead, PUT, REMOVE, SEGMENT_LIST};
use super::index_file;
use super::log::{LogOptions, RecordLog, read_entry};
use super::memory_size;
use super::page::{EntryLocation, IndexSlot, class_of, least_len, tag_of};
use super::recent_entries;
use super::segment::{
    DatabaseIdentity, DatabaseOpening, FileHeader, HEADER_LEN, LogPosition, OFFSET_MAX, SEGMENT_MAGIC,
    SEGMENTS_MAX, Segment, SegmentTable, corrupt, file_name, number_of, read_error, write_error,
};
use super::shard::{IndexShard, SHARDS, page_of, shard_of};
use super::training::DictionaryTraining;
use super::walk::{CHUNK, furthest_mark, walk};
use super::{DiskHash, DiskHashOptions, PaddedShard};
use crate::disk::{Disk, File, busy};
use crate::recent;
use crate::reserve::{Reserve, ReserveDisk};
use parking_lot::{Mutex, RwLock};
use rapidhash::v3::RapidSecrets;
use std::collections::{HashMap, HashSet};
use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{ContentsToken, Error, ErrorKind, Result};

pub(super) fn open(directory: &Path, options: DiskHashOptions) -> Result<DiskHash> {
    let disk = Arc::clone(&options.disk);
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && disk.list(path).is_err();
    let missing: Vec<&Path> = directory.ancestors().take_while(is_missing).collect();
    disk.make_directory(directory).map_err(|error| write_error(directory, &error))?;
    for made in missing {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        disk.sync_directory(above).map_err(|error| write_error(above, &error))?;
    }
    let lock_path = directory.join("lock");
    let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => Error::new(ErrorKind::Busy, busy(&*disk, directory, &lock_path)),
        _ => write_error(&lock_path, &error),
    })?;
    let reserve = Reserve::find(Arc::clone(&disk), directory);
    let segment_disk = ReserveDisk { disk, reserve: Arc::clone(&reserve) };
    let disk: Arc<dyn Disk> = Arc::new(segment_disk.clone());
    append_recent(&*disk, directory)?;
    let mut notes = Vec::new();
    let found = loop {
        let attempt = OpeningAttempt {
            disk: &*disk,
            directory,
            seed: options.seed,
            is_mapped: options.is_mapped,
            notes: Vec::new(),
        };
        match attempt.run()? {
            OpeningOutcome::Torn(at) => notes.push(cut_torn_tail(&*disk, directory, at)?),
            OpeningOutcome::Found(found) => break *found,
        }
    };
    let contents_found = found.contents()?;
    notes.extend(found.notes);

    // The files that were found are synced before anything is built on them. Dropped files are
    // removed only after that.
    for segment in found.table.slots.iter().flatten().filter(|segment| segment.number >= found.synced.number)
    {
        segment.file.sync().map_err(|error| write_error(&segment.path, &error))?;
    }
    disk.sync_directory(directory).map_err(|error| write_error(directory, &error))?;
    for path in found.leftovers {
        // A file that cannot be removed now is removed by a later opening.
        let _ = disk.remove(&path);
    }
    let is_read_only = disk.is_read_only();
    let log_options = LogOptions {
        cache_bytes: options.cache_bytes,
        buffer_len: options.buffer_bytes,
        segment_min: options.segment_bytes_min.clamp(4096, OFFSET_MAX),
        segment_max: options.segment_bytes_max.clamp(4096, OFFSET_MAX),
        is_mapped: options.is_mapped,
        memory_bytes: options.memory_bytes.unwrap_or_else(memory_size::cacheable_bytes),
        recent_bytes: options.recent_bytes,
        reserve_bytes: options.reserve_bytes,
        replayed: found.replayed,
        dictionaries: found.dictionaries.len(),
    };
    let count = found.openings.saturating_add(1).max(options.openings_min);
    reserve.hold(options.reserve_bytes);
    let log = RecordLog::new(
        segment_disk,
        directory.to_path_buf(),
        DatabaseOpening { identity: found.identity, count, nonce: random() as u32 },
        found.table,
        found.last,
        log_options,
    )?;
    // The header with the number of this opening must be on disk, because no two openings may ever
    // have the same number.
    log.sync()?;
    // If there is disk space again, recreate the reserve that this opening has used.
    log.reserve.hold(options.reserve_bytes);
    let has_dictionary = !found.dictionaries.is_empty();
    let training = options
        .compression
        .map(|compression| DictionaryTraining::new(compression, has_dictionary, log.bytes()));
    Ok(DiskHash {
        shards: found.shards.into_iter().map(|shard| PaddedShard(RwLock::new(shard))).collect(),
        log,
        secrets: RapidSecrets::seed(found.identity.seed),
        maintenance: Mutex::new(MaintenanceState::default()),
        maintenance_error: Mutex::new(None),
        damaged_records: Mutex::new(None),
        skipped: Mutex::new(Vec::new()),
        is_closed: AtomicBool::new(false),
        // A read-only database never writes its index.
        is_index_written: Mutex::new(is_read_only),
        space_factor: options.space_factor.max(1.05),
        checkpoint_bytes: options.checkpoint_bytes.max(1),
        dictionaries: DictionarySet::new(found.dictionaries),
        training,
        notes,
        contents_found,
        _lock: lock,
    })
}

/// Appends the entries that a killed process has left in the ring to the last segment. Changes
/// nothing if that segment is damaged.
fn append_recent(disk: &dyn Disk, directory: &Path) -> Result<()> {
    if !recent::has_recent(disk, directory).map_err(|error| read_error(directory, &error))? {
        return Ok(());
    }
    let names = disk.list(directory).map_err(|error| read_error(directory, &error))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    let (number, OpenedSegment { path, file, len, .. }, seed) = loop {
        let Some(number) = numbers.pop() else { return Ok(()) };
        let opened = open_segment(disk, directory, number)?;
        match opened.header {
            Ok((_, seed)) => break (number, opened, seed),
            // The header is incomplete because the creation of the segment failed. The log
            // continued in the segment before it.
            Err(_) if opened.len < HEADER_LEN as u64 => {}
            Err(_) => return Ok(()),
        }
    };
    let segment = Segment::new((number, 0), path, file, seed, len, false);
    let Some(patch) = recent_entries::patch_at_end(disk, directory, &segment, len)? else { return Ok(()) };
    let written = segment.file.write_at(patch.offset, &mut [IoSlice::new(&patch.bytes)]);
    written.and_then(|()| segment.file.sync()).map_err(|error| write_error(&segment.path, &error))
}

/// Removes everything that a crash has left after a position. Removes later segments first,
/// beginning with the last one. If this is interrupted, the log still ends at the same position.
fn cut_torn_tail(disk: &dyn Disk, directory: &Path, at: LogPosition) -> Result<String> {
    let list = || disk.list(directory).map_err(|error| read_error(directory, &error));
    let mut numbers: Vec<u64> = list()?.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    // A segment that contains no more than a header is removed too.
    let goes = |number: u64| number > at.number || number == at.number && at.offset <= HEADER_LEN as u64;
    for number in numbers.into_iter().rev().filter(|&number| goes(number)) {
        let path = directory.join(file_name(number));
        disk.remove(&path).map_err(|error| write_error(&path, &error))?;
        disk.sync_directory(directory).map_err(|error| write_error(directory, &error))?;
    }
    let path = directory.join(file_name(at.number));
    if !goes(at.number) {
        let file = disk.open(&path, true).map_err(|error| read_error(&path, &error))?;
        let outcome = file.set_len(at.offset).and_then(|()| file.sync());
        outcome.map_err(|error| write_error(&path, &error))?;
    }
    Ok(format!("{}, offset {}: a torn tail left by a crash was cut off", path.display(), at.offset))
}

enum OpeningOutcome {
    Torn(LogPosition),
    Found(Box<FoundDatabase>),
}

struct FoundDatabase {
    identity: DatabaseIdentity,
    openings: u32,
    table: SegmentTable,
    /// The highest segment number.
    last: u64,
    shards: Vec<IndexShard>,
    /// Everything before this position was already on disk before this opening.
    synced: LogPosition,
    leftovers: Vec<PathBuf>,
    dictionaries: Vec<ValueDictionary>,
    /// The number of bytes of the log that were read.
    replayed: u64,
    notes: Vec<String>,
}

impl FoundDatabase {
    /// Returns the token of the contents that were found, or `None` if there were none.
    fn contents(&self) -> Result<Option<ContentsToken>> {
        let Some(last) = self.table.slots.iter().flatten().find(|segment| segment.number == self.last) else {
            return Ok(None);
        };
        let mut nonce = [0; 4];
        last.read_at(HEADER_LEN as u64 + NONCE_AT, &mut nonce)?;
        let opening = DatabaseOpening {
            identity: self.identity,
            count: self.openings,
            nonce: u32::from_le_bytes(nonce),
        };
        Ok(Some(opening.contents_at(LogPosition { number: last.number, offset: last.len() })))
    }
}

/// The offset, within a segment list, of the random number of the opening.
const NONCE_AT: u64 = 12;

struct OpeningAttempt<'a> {
    disk: &'a dyn Disk,
    directory: &'a Path,
    seed: Option<u64>,
    is_mapped: bool,
    notes: Vec<String>,
}

/// The file of a segment and its decoded header.
struct OpenedSegment {
    path: PathBuf,
    file: Box<dyn File>,
    len: u64,
    header: std::result::Result<(FileHeader, u32), String>,
}

fn open_segment(disk: &dyn Disk, directory: &Path, number: u64) -> Result<OpenedSegment> {
    let path = directory.join(file_name(number));
    let file = disk.open(&path, true).map_err(|error| read_error(&path, &error))?;
    let len = file.len().map_err(|error| read_error(&path, &error))?;
    let mut bytes = [0; HEADER_LEN];
    let read = file.read_at(0, &mut bytes).map_err(|error| read_error(&path, &error))?;
    let header = FileHeader::decode(&bytes[..read], SEGMENT_MAGIC);
    Ok(OpenedSegment { path, file, len, header })
}

impl OpeningAttempt<'_> {
    fn run(mut self) -> Result<OpeningOutcome> {
        let names = self.disk.list(self.directory).map_err(|error| read_error(self.directory, &error))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable();
        let Some(&last) = numbers.last() else { return self.new_database(&names) };

        let opened = self.open_segment(last)?;
        let (header, seed) = match &opened.header {
            Ok(header) => *header,
            Err(what) => return self.classify_bad_header(&opened, last, &numbers, what),
        };
        let identity = header.identity;
        let mut table = SegmentTable::default();
        let segment = self.segment(opened, last, 0, seed);
        let Some(segment_list) = self.segment_list(&segment)? else {
            return self.classify_end(
                &segment,
                LogPosition { number: last, offset: 0 },
                Some(identity),
                &numbers,
            );
        };
        let mut missing = HashSet::new();
        let mut short = HashMap::new();
        for &(number, len) in &segment_list {
            if numbers.binary_search(&number).is_err() {
                missing.insert(number);
                continue;
            }
            let opened = self.open_segment(number)?;
            let (found, seed) = match &opened.header {
                Ok(header) => *header,
                // A crash may leave a later segment on disk without this one.
                Err(what) => return self.classify_bad_header(&opened, number, &numbers, what),
            };
            if found.identity != identity || found.number != number {
                return Err(corrupt(
                    &opened.path,
                    0,
                    "belongs to another database, or the number in the header differs from the file name",
                ));
            }
            if opened.len < len {
                short.insert(number, opened.len);
            }
            let slot = table.free_slot().expect("a segment list is no longer than the table");
            let segment = self.segment(opened, number, slot, seed);
            segment.len.store(len, Ordering::Relaxed);
            segment.flushed.store(len, Ordering::Relaxed);
            segment.is_sealed.store(true, Ordering::Relaxed);
            table.put(Arc::new(segment));
        }
        let slot = table.free_slot().expect("a segment list leaves room for one more");
        let segment = Segment { slot, ..segment };
        segment.is_sealed.store(true, Ordering::Relaxed);
        table.put(Arc::new(segment));

        let slots: HashMap<u64, u32> =
            table.slots.iter().flatten().map(|segment| (segment.number, segment.slot)).collect();
        let loaded = index_file::load(self.disk, self.directory, Some(identity), &|number| {
            slots.get(&number).copied()
        });
        let loaded = loaded.unwrap_or_else(|what| {
            self.notes.push(format!("{what}; the complete log was read instead"));
            None
        });
        let has_index = names.iter().any(|name| name == "index");
        let mut replay = LogReplay::new(&table, identity.seed);
        let (mut synced, mut start) = (LogPosition::default(), LogPosition::default());
        if let Some(loaded) = loaded {
            synced = loaded.until;
            start = loaded.positions.iter().copied().min().unwrap_or_default();
            let end =
                LogPosition { number: last, offset: table.get(slot).map_or(0, |segment| segment.len()) };
            if synced > end {
                let path = self.directory.join(file_name(synced.number));
                return Err(corrupt(
                    &path,
                    end.offset,
                    "the log ends before the position that the index says was on disk",
                ));
            }
            // The checkpoint lists the segments that were live. If another segment was dropped, its
            // "dropped" entry may lie before the part of the log that is replayed.
            let counted_until = loaded.segments.keys().copied().max().unwrap_or_default();
            let counts = |number: u64| loaded.segments.contains_key(&number) || number > counted_until;
            replay
                .dropped
                .extend(segment_list.iter().map(|(number, _)| *number).filter(|&number| !counts(number)));
            for segment in table.slots.iter().flatten() {
                if let Some(note) = loaded.segments.get(&segment.number) {
                    segment.remove_bytes.store(note.remove_bytes, Ordering::Relaxed);
                    segment.earliest_expiry.store(note.earliest_expiry, Ordering::Relaxed);
                }
            }
            (replay.shards, replay.positions) = (loaded.shards, loaded.positions);
        }
        let mut replayed = 0;
        for segment in table.by_age() {
            let there = short.get(&segment.number).copied().unwrap_or(segment.len());
            if segment.number < start.number {
                if there < segment.len() {
                    return Err(segment.corrupt(there, "the segment is cut off"));
                }
                continue;
            }
            let from = if segment.number == start.number { start.offset } else { 0 };
            let from = from.max(HEADER_LEN as u64);
            replayed += there.saturating_sub(from);
            let end = replay.run(&segment, from, there)?;
            if end < segment.len() {
                let at = LogPosition { number: segment.number, offset: end };
                return self.classify_bad_entry(&segment, at, replay.entries_end, synced, &numbers);
            }
        }
        if let Some(&number) = missing.iter().filter(|number| !replay.dropped.contains(number)).min() {
            let torn = LogPosition { number, offset: 0 };
            if synced.max(self.marked_after(number, &numbers)?) > torn {
                let path = self.directory.join(file_name(number));
                return Err(corrupt(&path, 0, "the segment is missing"));
            }
            // A crash may leave the name of a later segment on disk without the name of this one.
            return Ok(OpeningOutcome::Torn(torn));
        }
        let LogReplay { shards, dropped, damaged, .. } = replay;
        if !has_index && replayed > 0 {
            self.notes.push(format!(
                "{}: no index, as after an early crash or a restore; all {replayed} bytes of the log were read instead",
                self.directory.display()
            ));
        }
        if damaged > 0 {
            self.notes.push(format!(
                "{}: {damaged} damaged entries were ignored, because later entries seem to replace them",
                self.directory.display()
            ));
        }
        let mut shards = shards;
        let dropped_slots: Vec<u32> = table
            .slots
            .iter()
            .flatten()
            .filter(|segment| dropped.contains(&segment.number))
            .map(|segment| segment.slot)
            .collect();
        forget_segments(&mut shards, &dropped_slots);
        dropped_slots.iter().for_each(|&slot| table.take(slot));
        let counts = |number: &u64| table.slots.iter().flatten().any(|segment| segment.number == *number);
        let mut leftovers: Vec<PathBuf> = numbers
            .iter()
            .filter(|number| !counts(number))
            .map(|&number| self.directory.join(file_name(number)))
            .collect();
        leftovers.extend(
            names.iter().filter(|name| name.ends_with(".partial")).map(|name| self.directory.join(name)),
        );
        let dictionaries = self.dictionaries(last, &header)?;
        let is_unused =
            |name: &&String| dictionary_number(name).is_some_and(|number| number > dictionaries.len());
        leftovers.extend(names.iter().filter(is_unused).map(|name| self.directory.join(name)));
        Ok(OpeningOutcome::Found(Box::new(FoundDatabase {
            identity,
            openings: header.openings,
            table,
            last,
            shards,
            synced,
            leftovers,
            dictionaries,
            replayed,
            notes: self.notes,
        })))
    }

    /// Loads the dictionaries that the last segment declares. No entry refers to a dictionary
    /// beyond these.
    fn dictionaries(&self, last: u64, header: &FileHeader) -> Result<Vec<ValueDictionary>> {
        let count = header.extra as usize;
        if count > DICTIONARIES_MAX {
            let path = self.directory.join(file_name(last));
            return Err(corrupt(&path, 56, &format!("impossible number of dictionaries: {count}")));
        }
        dictionary::load(self.disk, self.directory, header.identity, count)
    }

    fn new_database(self, names: &[String]) -> Result<OpeningOutcome> {
        if names.iter().any(|name| name == "index") {
            return Err(corrupt(&self.directory.join(file_name(1)), 0, "there is an index, but no segment"));
        }
        if names.iter().any(|name| dictionary_number(name).is_some()) {
            let path = self.directory.join(file_name(1));
            return Err(corrupt(&path, 0, "there is a dictionary, but no segment"));
        }
        if self.disk.is_read_only() {
            let message = format!(
                "{}: no database to read; open it for writing to create one",
                self.directory.display()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let seed = self.seed.unwrap_or_else(random);
        let mut database_id = [0; 16];
        database_id[..8].copy_from_slice(&random().to_le_bytes());
        database_id[8..].copy_from_slice(&random().to_le_bytes());
        Ok(OpeningOutcome::Found(Box::new(FoundDatabase {
            identity: DatabaseIdentity { database_id, seed },
            openings: 0,
            table: SegmentTable::default(),
            last: 0,
            shards: (0..SHARDS).map(|_| IndexShard::new()).collect(),
            synced: LogPosition::default(),
            leftovers: Vec::new(),
            dictionaries: Vec::new(),
            replayed: 0,
            notes: self.notes,
        })))
    }

    fn open_segment(&self, number: u64) -> Result<OpenedSegment> {
        open_segment(self.disk, self.directory, number)
    }

    fn segment(&self, opened: OpenedSegment, number: u64, slot: u32, seed: u32) -> Segment {
        let OpenedSegment { path, file, len, .. } = opened;
        let segment = Segment::new((number, slot), path, file, seed, len, self.is_mapped);
        segment.len.store(len, Ordering::Relaxed);
        segment.flushed.store(len, Ordering::Relaxed);
        segment
    }

    /// Returns the segment list of a segment, or `None` if its first entry is not intact.
    fn segment_list(&self, segment: &Segment) -> Result<Option<Vec<(u64, u64)>>> {
        let mut segment_list = None;
        walk(segment, HEADER_LEN as u64, segment.len(), 4 << 10, &mut |_, head, bytes| {
            if head.kind == SEGMENT_LIST && bytes.len() >= head.len {
                let list = bytes[16..head.len].chunks_exact(16);
                segment_list =
                    Some(list.map(|each| (entry::u64_at(each, 0), entry::u64_at(each, 8))).collect());
            }
            Ok(false)
        })?;
        let Some(segment_list) = segment_list else { return Ok(None) };
        let segment_list: Vec<(u64, u64)> = segment_list;
        let is_sound = segment_list.is_sorted_by(|one, next| one.0 < next.0)
            && segment_list.last().is_none_or(|last| last.0 < segment.number)
            && segment_list.len() < SEGMENTS_MAX;
        if !is_sound {
            return Err(segment.corrupt(HEADER_LEN as u64, "the segment list is inconsistent"));
        }
        Ok(Some(segment_list))
    }

    /// Decides whether the bad header of a segment is damage or the result of a crash.
    fn classify_bad_header(
        &self,
        opened: &OpenedSegment,
        number: u64,
        numbers: &[u64],
        what: &str,
    ) -> Result<OpeningOutcome> {
        let damage = || Err(corrupt(&opened.path, 0, what));
        let mut bytes = [0; HEADER_LEN];
        let read = opened.file.read_at(0, &mut bytes).map_err(|error| read_error(&opened.path, &error))?;
        // Each of these is a candidate for the CRC of the original header: the stored CRC, the CRC
        // of the stored bytes, and the CRCs of headers that could follow the previous segment.
        let mut seeds = vec![entry::u32_at(&bytes, 60), crc32c::crc32c(&bytes[..60])];
        let mut identity = None;
        if let Some(before) = numbers.iter().rfind(|&&before| before < number)
            && let Ok((header, _)) = self.open_segment(*before)?.header
        {
            identity = Some(header.identity);
            for openings in [header.openings, header.openings.wrapping_add(1)] {
                for extra in [header.extra, header.extra.wrapping_add(1)] {
                    let guess = FileHeader { openings, number, extra, ..header }.encode(SEGMENT_MAGIC);
                    seeds.push(entry::u32_at(&guess, 60));
                }
            }
        }
        for seed in seeds {
            let segment = self.segment(self.open_segment(number)?, number, 0, seed);
            if read == HEADER_LEN && self.segment_list(&segment)?.is_some() {
                return damage();
            }
            let mark = furthest_mark(&*segment.file, HEADER_LEN as u64, seed);
            if mark.map_err(|error| read_error(&opened.path, &error))?.number >= number {
                return damage();
            }
        }
        let known = self.position_by_index(identity).max(self.marked_after(number, numbers)?);
        let torn = LogPosition { number, offset: 0 };
        if known > torn { damage() } else { Ok(OpeningOutcome::Torn(torn)) }
    }

    /// Returns the furthest synced position that the marks in later segments state.
    fn marked_after(&self, number: u64, numbers: &[u64]) -> Result<LogPosition> {
        let mut known = LogPosition::default();
        for &later in numbers.iter().filter(|&&later| later > number) {
            let opened = self.open_segment(later)?;
            if let Ok((_, seed)) = opened.header {
                let mark = furthest_mark(&*opened.file, HEADER_LEN as u64, seed);
                known = known.max(mark.map_err(|error| read_error(&opened.path, &error))?);
            }
        }
        Ok(known)
    }

    /// Returns the synced position that the checkpoint states.
    fn position_by_index(&self, identity: Option<DatabaseIdentity>) -> LogPosition {
        match index_file::load(self.disk, self.directory, identity, &|_| None) {
            Ok(Some(loaded)) => loaded.until,
            _ => LogPosition::default(),
        }
    }

    fn classify_end(
        &self,
        segment: &Segment,
        at: LogPosition,
        identity: Option<DatabaseIdentity>,
        numbers: &[u64],
    ) -> Result<OpeningOutcome> {
        self.classify_bad_entry(segment, at, HEADER_LEN as u64, self.position_by_index(identity), numbers)
    }

    /// Decides whether a bad entry is damage or the result of a crash. Everything before `synced`
    /// was on disk. `bad` is the offset of the entry. If the entry belongs to a batch, `at` is the
    /// offset of the batch.
    fn classify_bad_entry(
        &self,
        segment: &Segment,
        at: LogPosition,
        bad: u64,
        synced: LogPosition,
        numbers: &[u64],
    ) -> Result<OpeningOutcome> {
        let mark = furthest_mark(&*segment.file, at.offset.max(HEADER_LEN as u64), segment.seed);
        let mark = mark.map_err(|error| read_error(&segment.path, &error))?;
        if synced.max(mark).max(self.marked_after(segment.number, numbers)?) > at {
            return Err(segment.corrupt(at.offset, "the entry is damaged, or cut off"));
        }
        if let Some(flipped) = flipped_bit(segment, bad)? {
            return Err(segment.corrupt(bad, &format!("one bit of the byte at offset {flipped} has changed")));
        }
        Ok(OpeningOutcome::Torn(at))
    }
}

/// Removes the records in these segments from the index.
fn forget_segments(shards: &mut [IndexShard], dropped_segment_slots: &[u32]) {
    if dropped_segment_slots.is_empty() {
        return;
    }
    for shard in shards {
        for page in &mut shard.pages {
            page.retain(|entry| !dropped_segment_slots.contains(&entry.location().slot));
        }
        shard.records = shard.pages.iter().map(|page| page.len() as u64).sum();
        for &slot in dropped_segment_slots {
            if let Some(live) = shard.live.get_mut(slot as usize) {
                *live = 0;
            }
        }
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// The index, rebuilt from the log up to the current position.
struct LogReplay<'t> {
    table: &'t SegmentTable,
    secrets: RapidSecrets,
    shards: Vec<IndexShard>,
    /// For each shard, the position up to which it is complete.
    positions: Vec<LogPosition>,
    dropped: HashSet<u64>,
    /// The number of damaged records that were treated as older versions of later entries.
    damaged: u64,
    /// The offset at which the valid entries of the last segment end.
    entries_end: u64,
    scratch: Vec<u8>,
}

/// Changes that were read but not applied yet, because their slots are being prefetched or their
/// batch is incomplete.
#[derive(Default)]
struct PendingChanges {
    /// The offset, the decoded head, the hash of the key, and the range of the key in `keys`, for
    /// each change.
    entries: Vec<(u64, EntryHead, u64, Range<usize>)>,
    keys: Vec<u8>,
}

/// The number of changes that are collected before they are applied, so that their slots can be
/// prefetched.
const PENDING_MAX: usize = 32;

impl PendingChanges {
    fn push(&mut self, offset: u64, head: &EntryHead, hash: u64, key: &[u8]) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        self.entries.push((offset, *head, hash, start..self.keys.len()));
    }
}

impl<'t> LogReplay<'t> {
    fn new(table: &'t SegmentTable, seed: u64) -> LogReplay<'t> {
        LogReplay {
            table,
            secrets: RapidSecrets::seed(seed),
            shards: (0..SHARDS).map(|_| IndexShard::new()).collect(),
            positions: vec![LogPosition::default(); SHARDS],
            dropped: HashSet::new(),
            damaged: 0,
            entries_end: 0,
            scratch: Vec::new(),
        }
    }

    /// Replays the entries of a segment. Returns the offset up to which the entries are valid.
    fn run(&mut self, segment: &Segment, from: u64, limit: u64) -> Result<u64> {
        // The beginning and the end of the current batch.
        let mut batch: Option<(u64, u64)> = None;
        let mut pending = PendingChanges::default();
        let mut remove_bytes = 0;
        let end = walk(segment, from, limit, CHUNK, &mut |offset, head, bytes| {
            let behind = offset + head.len as u64;
            remove_bytes += if head.kind == REMOVE { head.len as u64 } else { 0 };
            let is_change = matches!(head.kind, PUT | REMOVE);
            if let Some((_, end)) = batch {
                if behind > end || !is_change {
                    return Ok(false);
                }
                batch = batch.filter(|_| behind < end);
            } else if head.kind == BATCH {
                // Changes before the batch are valid even if the batch is incomplete.
                self.apply_pending(segment, &mut pending)?;
                let end = behind.checked_add(EntryHead::number(bytes));
                batch = Some((offset, end.unwrap_or(u64::MAX)));
                return Ok(true);
            }
            if is_change {
                let key = head.key(bytes);
                let hash = rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets);
                self.shards[shard_of(hash)].prefetch(hash);
                pending.push(offset, head, hash, key);
                if pending.entries.len() < PENDING_MAX || batch.is_some() {
                    return Ok(true);
                }
                return self.apply_pending(segment, &mut pending).map(|()| true);
            }
            self.apply_pending(segment, &mut pending)?;
            self.apply_other(segment, offset, head, bytes);
            Ok(true)
        })?;
        if batch.is_none() {
            self.apply_pending(segment, &mut pending)?;
        }
        segment.remove_bytes.fetch_max(remove_bytes, Ordering::Relaxed);
        self.entries_end = end;
        Ok(batch.map_or(end, |(start, _)| start))
    }

    fn apply_pending(&mut self, segment: &Segment, pending: &mut PendingChanges) -> Result<()> {
        for (offset, head, hash, key) in pending.entries.drain(..) {
            self.apply(segment, offset, &head, hash, &pending.keys[key])?;
        }
        pending.keys.clear();
        Ok(())
    }

    fn apply_other(&mut self, segment: &Segment, offset: u64, head: &EntryHead, bytes: &[u8]) {
        let position = LogPosition { number: segment.number, offset };
        match head.kind {
            DROPPED => {
                self.dropped.insert(EntryHead::number(bytes));
            }
            CLEAR => {
                let shards = self.shards.iter_mut().zip(&self.positions);
                shards.filter(|(_, done)| **done <= position).for_each(|(shard, _)| shard.clear());
            }
            _ => {}
        }
    }

    fn apply(
        &mut self,
        segment: &Segment,
        offset: u64,
        head: &EntryHead,
        hash: u64,
        key: &[u8],
    ) -> Result<()> {
        if head.kind == PUT {
            segment.note_expiry(head.attributes.expiry);
        }
        if (LogPosition { number: segment.number, offset }) < self.positions[shard_of(hash)] {
            return Ok(());
        }
        let old = self.find(hash, key)?;
        let shard = &mut self.shards[shard_of(hash)];
        if head.kind == PUT {
            let at = EntryLocation { slot: segment.slot, unit: (offset / 8) as u32 };
            shard.enter(hash, IndexSlot::new(tag_of(hash), class_of(head.len), at), head.len, old);
        } else if let Some((index, len)) = old {
            shard.remove_slot(hash, index, len);
        }
        Ok(())
    }

    /// Returns the index of the key's slot in its page and the length of its entry. If no intact
    /// entry matches, returns the last damaged one with the same tag, because the writer did so
    /// too; the length is then a lower bound.
    fn find(&mut self, hash: u64, key: &[u8]) -> Result<Option<(usize, usize)>> {
        let (page, tag) = (&self.shards[shard_of(hash)].pages[page_of(hash)], tag_of(hash));
        let mut next = page.first(tag);
        let mut damaged = None;
        while let Some(index) = next {
            let slot = page.get(index);
            let at = slot.location();
            let segment = self.table.get(at.slot).ok_or_else(super::missing_segment_error)?;
            match read_entry(segment, at.unit, slot.class(), &mut self.scratch) {
                Ok(head) if head.key(&self.scratch) == key => return Ok(Some((index, head.len))),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    damaged = Some((index, least_len(slot.class())));
                }
                Err(error) => return Err(error),
            }
            next = page.next(tag, index + 1);
        }
        self.damaged += u64::from(damaged.is_some());
        Ok(damaged)
    }
}
