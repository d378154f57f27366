//! Salvages a damaged hash on disk, or a damaged backup of one. Each entry has a checksum of its
//! own, so intact entries are recognised and replayed into another engine.
//!
//! ```text
//! newest segment list --> live segments --> their intact entries, oldest first --> another engine
//! ```
//!
//! After a damaged entry, the next intact entry is searched for at every multiple of 8. If a single
//! bit has changed, the checksum identifies the bit and the entry is repaired. Otherwise the
//! contents of the entry are lost. If the beginning of the entry still contains a key, and the
//! length in it leads to the beginning of the next entry, the record of that key is removed,
//! because an older value of the record should not come back. But the key itself may be damaged,
//! and often no key is readable. Then older values and removed records may come back.
//!
//! The files that are read are never changed.

use super::changed_bit::changed_bit;
use super::compression::{ThreadCached, ValueDecompressor};
use super::dictionary::{self, ValueDictionary, dictionary_number};
use super::entry::{self, BATCH, CLEAR, DROPPED, EntryHead, HEAD_MAX, PUT, REMOVE, SEGMENT_LIST};
use super::index_file;
use super::recent_entries;
use super::segment::{
    DatabaseIdentity, FileHeader, HEADER_LEN, LogPosition, OFFSET_MAX, SEGMENT_MAGIC, Segment, file_name,
    number_of, read_error,
};
use super::walk::{CHUNK, walk};
use crate::disk::{Disk, PatchedFile};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Action, Engine, Error, ErrorKind, Record, Result, Visitor};

/// The number of damages that are listed individually. All are counted.
const LISTED_MAX: usize = 1000;
/// The number of keys of damaged entries that are kept, to decide at the end which records are
/// lost.
const KEYS_MAX: usize = 1 << 20;
/// The search for the next intact entry after damage computes checksums of at most this many bytes.
const SEARCH_MAX: u64 = 4 << 30;
/// The engine does maintenance each time this number of entries has been replayed.
const MAINTAINED_EVERY: u64 = 1 << 10;
/// The length of the piece of a segment that is searched at once.
const WINDOW: usize = 256 << 10;
/// A changed bit is searched for only in entries up to this length.
const REPAIRED_MAX: u64 = 16 << 20;
/// A lost header is reconstructed from the headers of its neighbours: this many numbers of openings
/// are tried after that of the previous segment and before that of the next segment.
const OPENINGS_TRIED: u32 = 1 << 10;

/// The result of reading the files of a damaged hash on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashSalvage {
    /// The first thousand damages, ordered by file.
    pub damages: Vec<HashDamage>,
    /// The number of damages.
    pub damaged: u64,
    /// The number of damages that were repaired without loss.
    pub mended: u64,
    /// The number of damaged or missing bytes that were not repaired.
    pub lost_bytes: u64,
    /// The number of records that were lost in damaged entries. An entry is counted if its key is
    /// apparently readable and no later entry mentions that key.
    pub lost_records: u64,
    /// The number of damaged places without a readable key. Records that were replaced or removed
    /// by an entry at such a place may have come back.
    pub unclear: u64,
    /// The torn tail that a crash has left, if the caller allows one. It is not counted as damage.
    pub torn: Option<HashDamage>,
    /// The number of intact entries.
    pub entries: u64,
    /// The highest number of openings in the headers.
    pub openings: u32,
}

/// A damaged place, or a damaged file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashDamage {
    /// The file.
    pub path: PathBuf,
    /// The offset in the file.
    pub offset: u64,
    /// The number of unusable bytes.
    pub len: u64,
    /// A description of the damage, and of the contents that were lost if these are known.
    pub what: String,
    /// True if the damage was repaired without loss.
    pub is_mended: bool,
}

/// Reads the segments in a directory, which must not be open, and replays their intact entries into
/// `into`, an empty engine. `may_be_torn` states that the last segment may have a torn tail, as a
/// crash leaves it. `progress` is called with the number of bytes read. Fails with `Corrupt` if no
/// segment is readable, and with the errors of the engine.
pub(super) fn salvage(
    disk: &dyn Disk,
    directory: &Path,
    may_be_torn: bool,
    into: Option<&dyn Engine>,
    progress: &mut dyn FnMut(u64),
) -> Result<HashSalvage> {
    let names = disk.list(directory).map_err(|error| read_error(directory, &error))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    let mut sources = numbers
        .iter()
        .map(|&number| SegmentSource::open(disk, directory, number))
        .collect::<Result<Vec<SegmentSource>>>()?;
    let whole = sources.iter().rev().find_map(|source| source.header.as_ref().ok().map(|(header, _)| header));
    let known = whole.or_else(|| sources.iter().rev().find_map(SegmentSource::known_header)).copied();
    let Some(FileHeader { identity, .. }) = known else {
        return Err(unsalvageable_error(disk, directory, numbers.last().copied()));
    };
    let newest = sources.last().map_or(0, |source| source.number);
    // After a clean close, the index names all segments and the synced position.
    let (until, named) = match index_file::load(disk, directory, Some(identity), &|_| None) {
        Ok(Some(index)) => (index.until, index.segments.into_keys().collect()),
        _ => (LogPosition::default(), Vec::new()),
    };
    let torn_from = may_be_torn.then_some(LogPosition { number: newest, offset: 0 }.max(until));
    let mut salvager = HashSalvager {
        into,
        report: HashSalvage::default(),
        doubtful: HashSet::new(),
        torn_from,
        dictionaries: Vec::new(),
    };
    let dictionaries = names.iter().filter_map(|name| dictionary_number(name)).max().unwrap_or_default();
    salvager.load_dictionaries(disk, directory, identity, &sources, dictionaries)?;
    for at in 0..sources.len() {
        let openings = candidate_openings(&sources, at);
        let source = &mut sources[at];
        if let Err(what) = &source.header {
            let what = format!("{what}; the header was reconstructed from the rest of the segment");
            if source.repaired_header.is_none() {
                source.guess_header(identity, &openings, dictionaries as u32);
            }
            if source.repaired_header.is_some() {
                salvager.report_damage(&source.path, 0, HEADER_LEN as u64, what, true);
            }
        }
    }
    if may_be_torn && let Some(newest) = sources.pop() {
        sources.push(newest.with_recent(disk, directory)?);
    }
    let listed = newest_segment_list(&sources, identity)?;
    let mut done = 0;
    for source in sources.iter().filter(|source| listed.counts(source.number)) {
        let synced = (until.number == source.number).then_some(until.offset.max(source.len));
        salvager.read(source, identity, listed.lens.get(&source.number).copied().or(synced))?;
        done += source.len;
        progress(done);
    }
    for (&number, &len) in &listed.lens {
        if numbers.binary_search(&number).is_err() && listed.counts(number) {
            salvager.report_loss(&directory.join(file_name(number)), 0, len, "the segment is missing".into());
        }
    }
    for number in named.into_iter().filter(|&number| number > newest) {
        let what = "the segment is missing, but the index names it";
        salvager.report_loss(&directory.join(file_name(number)), 0, 0, what.into());
    }
    let mut found = salvager.report;
    found.lost_records = salvager.doubtful.len() as u64;
    found.damages.sort_by(|one, other| (&one.path, one.offset).cmp(&(&other.path, other.offset)));
    found.openings = sources
        .iter()
        .filter_map(SegmentSource::known_header)
        .map(|header| header.openings)
        .max()
        .unwrap_or_default();
    Ok(found)
}

/// Returns the error that explains why nothing can be salvaged. `newest` is the number of the last
/// segment; `None` means that there are no segments. No segment is readable.
fn unsalvageable_error(disk: &dyn Disk, directory: &Path, newest: Option<u64>) -> Error {
    let index = index_file::load(disk, directory, None, &|_| None).ok().flatten();
    let named = index.and_then(|index| Some((index.segments.len(), *index.segments.keys().max()?)));
    let what = match (newest, named) {
        (Some(_), _) => "no segment of a hash can be read".into(),
        (None, None) => "no segment of the hash is left".into(),
        (None, Some((count, last))) => {
            let last = directory.join(file_name(last));
            format!("no segment of the hash is left; the index names {count}, to {}", last.display())
        }
    };
    Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {what}", directory.display()))
}

/// The file of a segment, which may be damaged.
struct SegmentSource {
    number: u64,
    path: PathBuf,
    len: u64,
    segment: Segment,
    /// The header and its CRC, or a description of the damage.
    header: std::result::Result<(FileHeader, u32), String>,
    /// The header as it was before the damage, if it could be reconstructed.
    repaired_header: Option<(FileHeader, u32)>,
}

impl SegmentSource {
    fn open(disk: &dyn Disk, directory: &Path, number: u64) -> Result<SegmentSource> {
        let path = directory.join(file_name(number));
        let file = disk.open(&path, false).map_err(|error| read_error(&path, &error))?;
        let len = file.len().map_err(|error| read_error(&path, &error))?;
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(0, &mut bytes).map_err(|error| read_error(&path, &error))?;
        let mut header = FileHeader::decode(&bytes[..got], SEGMENT_MAGIC);
        if let Ok((found, _)) = &header
            && found.number != number
        {
            header = Err(format!("the header has the number {} of another segment", found.number));
        }
        let repaired_header = header.as_ref().err().and_then(|_| repair_changed_bit(bytes, number));
        let seed = header.as_ref().ok().or(repaired_header.as_ref()).map_or(0, |(_, seed)| *seed);
        let segment = Segment::new((number, 0), path.clone(), file, seed, 0, false);
        Ok(SegmentSource { number, path, len, segment, header, repaired_header })
    }

    /// Adds to the last segment the entries that a killed process has left in the ring.
    fn with_recent(mut self, disk: &dyn Disk, directory: &Path) -> Result<SegmentSource> {
        if self.known_header().is_some()
            && let Some(patch) = recent_entries::patch_near_end(disk, directory, &self.segment, self.len)?
        {
            self.len = patch.len;
            self.segment.file = Box::new(PatchedFile::new(self.segment.file, Arc::new(patch)));
        }
        Ok(self)
    }

    /// Returns the intact header, or the reconstructed one.
    fn known_header(&self) -> Option<&FileHeader> {
        self.header.as_ref().ok().or(self.repaired_header.as_ref()).map(|(header, _)| header)
    }

    /// Tries possible headers. A header is correct if the segment list that follows it is intact
    /// with this header, because the checksum of the list starts from the CRC of the header.
    fn guess_header(&mut self, identity: DatabaseIdentity, openings: &[u32], dictionaries: u32) {
        let mut bytes = vec![0; HEAD_MAX];
        let at = HEADER_LEN as u64;
        let got = self.segment.read_at(at, &mut bytes).unwrap_or(0);
        let Some(head) = entry::parse(&bytes[..got]).filter(|head| head.kind == SEGMENT_LIST) else { return };
        if head.len as u64 > self.len.saturating_sub(at) {
            return;
        }
        bytes.resize(head.len, 0);
        if !self.segment.read_at(at, &mut bytes).is_ok_and(|got| got == head.len) {
            return;
        }
        for (openings, extra) in
            openings.iter().flat_map(|&openings| (0..=dictionaries).map(move |extra| (openings, extra)))
        {
            let header = FileHeader { identity, openings, number: self.number, extra };
            let seed = entry::u32_at(&header.encode(SEGMENT_MAGIC), 60);
            if entry::is_intact(&bytes, seed ^ (at / 8) as u32) {
                (self.segment.seed, self.repaired_header) = (seed, Some((header, seed)));
                return;
            }
        }
    }

    /// Returns the numbers of the older live segments and their lengths, from the segment list.
    /// Returns `None` if the list is not intact.
    fn segment_list(&self) -> Result<Option<HashMap<u64, u64>>> {
        let mut segment_list = None;
        if self.known_header().is_some() {
            walk(&self.segment, HEADER_LEN as u64, self.len, 4 << 10, &mut |_, head, bytes| {
                if head.kind == SEGMENT_LIST && bytes.len() >= head.len {
                    let list = bytes[16..head.len].chunks_exact(16);
                    segment_list =
                        Some(list.map(|each| (entry::u64_at(each, 0), entry::u64_at(each, 8))).collect());
                }
                Ok(false)
            })?;
        }
        Ok(segment_list)
    }

    /// Returns true if an intact entry begins at this offset.
    fn is_intact_at(&self, at: u64, limit: u64) -> Result<bool> {
        let mut is_intact = false;
        walk(&self.segment, at, limit, 4 << 10, &mut |_, _, _| {
            is_intact = true;
            Ok(false)
        })?;
        Ok(is_intact)
    }

    /// Decodes the beginning of an entry. Returns `None` if these bytes cannot be an entry, because
    /// it would exceed the limit or its padding is not zero.
    fn decode_if_plausible(&self, at: u64, bytes: &[u8], limit: u64) -> Result<Option<EntryHead>> {
        let Some(head) = entry::parse(bytes).filter(|head| head.len as u64 <= limit - at) else {
            return Ok(None);
        };
        if head.key_at == 0 {
            return Ok(Some(head));
        }
        let content = head.key_at + head.key_len + head.value_len;
        let mut padding = [0; entry::ALIGN];
        let got = self.segment.read_at(at + content as u64, &mut padding[..head.len - content])?;
        Ok((got == head.len - content && padding == [0; entry::ALIGN]).then_some(head))
    }

    /// Returns the original entry between two offsets if only one bit of it has changed.
    fn repaired_entry(&self, at: u64, end: u64) -> Result<Option<(EntryHead, Vec<u8>)>> {
        if end - at > REPAIRED_MAX || end - at < entry::ALIGN as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; (end - at) as usize];
        if self.segment.read_at(at, &mut bytes)? < bytes.len() {
            return Ok(None);
        }
        let seed = self.segment.seed_at(at);
        let Some(bit) = changed_bit(&bytes, seed) else { return Ok(None) };
        bytes[bit / 8] ^= 1 << (bit % 8);
        let head =
            entry::parse(&bytes).filter(|head| head.len == bytes.len() && entry::is_intact(&bytes, seed));
        Ok(head.map(|head| (head, bytes)))
    }

    /// Finds the next intact entry after a damaged one. Returns the offset of the intact entry, or
    /// the limit if there is none. Also returns the decoded head of the damaged entry if the length
    /// in that head leads exactly to the returned offset.
    fn find_next_intact(&self, damaged: u64, limit: u64) -> Result<(u64, Option<EntryHead>)> {
        let mut window = vec![0; WINDOW];
        let got = self.segment.read_at(damaged, &mut window[..HEAD_MAX])?;
        let guessed = self.decode_if_plausible(damaged, &window[..got], limit)?;
        let guessed_end = guessed.map(|head| damaged + head.len as u64);
        let (mut from, mut searched) = (damaged + entry::ALIGN as u64, 0);
        while from < limit {
            let got = self.segment.read_at(from, &mut window)?;
            let mut at = 0;
            while at < got && from + (at as u64) < limit {
                let place = from + at as u64;
                // The beginning of an entry may continue in the next window, so begin that window
                // here.
                if got - at < HEAD_MAX && place + (HEAD_MAX as u64) <= limit && at > 0 {
                    break;
                }
                at += entry::ALIGN;
                let bytes = &window[at - entry::ALIGN..got];
                // Space that was never written contains no entry.
                if bytes.iter().take(entry::ALIGN).all(|&byte| byte == 0) {
                    continue;
                }
                let Some(head) = self.decode_if_plausible(place, bytes, limit)? else { continue };
                let end = place + head.len as u64;
                let is_at_guessed_end = guessed_end == Some(place);
                if !is_at_guessed_end && end < limit {
                    let mut bytes = [0; HEAD_MAX];
                    let got = self.segment.read_at(end, &mut bytes)?;
                    if self.decode_if_plausible(end, &bytes[..got], limit)?.is_none() {
                        continue;
                    }
                }
                searched += head.len as u64;
                if searched > SEARCH_MAX {
                    return Ok((limit, None));
                }
                // Other bytes can match a checksum by accident, but such a wrong entry is hardly
                // ever followed by another intact entry.
                if self.is_intact_at(place, limit)?
                    && (is_at_guessed_end || end == limit || self.is_intact_at(end, limit)?)
                {
                    return Ok((place, guessed.filter(|_| is_at_guessed_end)));
                }
            }
            from += at.max(entry::ALIGN) as u64;
        }
        Ok((limit, guessed.filter(|_| guessed_end == Some(limit))))
    }
}

/// Returns the original header if only one bit of it has changed.
fn repair_changed_bit(bytes: [u8; HEADER_LEN], number: u64) -> Option<(FileHeader, u32)> {
    let changed = (0..HEADER_LEN * 8).filter_map(|bit| {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        FileHeader::decode(&bytes, SEGMENT_MAGIC).ok()
    });
    changed.into_iter().find(|(header, _)| header.number == number)
}

/// Returns candidates for the number of openings in the lost header of a segment, from the headers
/// of its neighbours. The numbers of two neighbours may be millions apart, because a restored
/// database continues from a much higher number.
fn candidate_openings(sources: &[SegmentSource], at: usize) -> Vec<u32> {
    let openings = |source: &SegmentSource| source.known_header().map(|header| header.openings);
    let before = sources[..at].iter().rev().find_map(openings);
    let behind = sources[at + 1..].iter().find_map(openings);
    openings_between(before.unwrap_or_default(), behind)
}

fn openings_between(before: u32, behind: Option<u32>) -> Vec<u32> {
    let end = before.saturating_add(OPENINGS_TRIED).min(behind.unwrap_or(u32::MAX));
    let far = behind.map(|behind| behind.saturating_sub(OPENINGS_TRIED).max(end.saturating_add(1))..=behind);
    (before..=end).chain(far.into_iter().flatten()).collect()
}

/// The segments that are known to be live.
#[derive(Default)]
struct CountedSegments {
    /// The lengths of the segments in the newest intact segment list.
    lens: HashMap<u64, u64>,
    /// The number of the segment that contains this list. All later segments are live.
    listed_by: u64,
    dropped: HashSet<u64>,
}

impl CountedSegments {
    fn counts(&self, number: u64) -> bool {
        (number >= self.listed_by || self.lens.contains_key(&number)) && !self.dropped.contains(&number)
    }
}

fn newest_segment_list(sources: &[SegmentSource], identity: DatabaseIdentity) -> Result<CountedSegments> {
    let mut listed = CountedSegments::default();
    for source in sources.iter().rev() {
        if source.known_header().is_none_or(|header| header.identity != identity) {
            continue;
        }
        let mut at = HEADER_LEN as u64;
        while at < source.len {
            at = walk(&source.segment, at, source.len, CHUNK, &mut |_, head, bytes| {
                if head.kind == DROPPED {
                    listed.dropped.insert(EntryHead::number(bytes));
                }
                Ok(true)
            })?;
            if at < source.len {
                at = source.find_next_intact(at, source.len)?.0;
            }
        }
        if let Some(lens) = source.segment_list()? {
            (listed.lens, listed.listed_by) = (lens, source.number);
            break;
        }
    }
    Ok(listed)
}

/// Replays intact entries into an engine and collects a report.
struct HashSalvager<'e> {
    into: Option<&'e dyn Engine>,
    report: HashSalvage,
    /// Keys of damaged entries that no later entry mentions.
    doubtful: HashSet<Vec<u8>>,
    /// Damage after this position that no intact entry follows is the result of a crash.
    torn_from: Option<LogPosition>,
    /// The dictionaries by number. An element is `None` if the dictionary is damaged or missing.
    dictionaries: Vec<Option<ValueDictionary>>,
}

impl HashSalvager<'_> {
    /// Loads the intact ones of the dictionaries that the headers declare.
    fn load_dictionaries(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        identity: DatabaseIdentity,
        sources: &[SegmentSource],
        there: usize,
    ) -> Result<()> {
        let declared =
            sources.iter().filter_map(SegmentSource::known_header).map(|header| header.extra as usize).max();
        let count = declared.unwrap_or_default().max(there).min(dictionary::DICTIONARIES_MAX);
        for number in 1..=count {
            let path = directory.join(dictionary::dictionary_name(number));
            let read = dictionary::read(disk, &path, number);
            let loaded = match read {
                Ok((found, content)) if found == identity => Some(ValueDictionary::new(path, content)?),
                Ok(_) => {
                    self.report_loss(&path, 0, 0, "the dictionary belongs to another database".into());
                    None
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    // A dictionary that no header declares was never used.
                    if declared.is_some_and(|declared| number <= declared) {
                        self.report_loss(
                            &path,
                            0,
                            0,
                            "the dictionary is damaged or missing; the values compressed with it are lost"
                                .into(),
                        );
                    }
                    None
                }
                Err(error) => return Err(error),
            };
            self.dictionaries.push(loaded);
        }
        Ok(())
    }

    /// Replays a segment. `len` is the length of the segment according to later segments.
    fn read(&mut self, source: &SegmentSource, identity: DatabaseIdentity, len: Option<u64>) -> Result<()> {
        let len = len.unwrap_or(source.len).min(OFFSET_MAX + source.len);
        let what = match (&source.header, source.known_header()) {
            (_, Some(header)) if header.identity == identity => None,
            (Ok(_), _) => Some("belongs to another database".into()),
            (Err(what), _) => Some(format!("{what}; nothing in the segment is readable")),
        };
        if let Some(what) = what {
            if source.header.is_ok() || !self.is_torn(source, 0, source.len) {
                self.report_loss(&source.path, 0, len, what);
            }
            return Ok(());
        }
        let limit = len.min(source.len);
        let mut at = HEADER_LEN as u64;
        // An entry that the end of the file cuts off is reported only once.
        let mut is_cut_reported = false;
        while at < limit {
            let mut is_unfinished = false;
            at = walk(&source.segment, at, limit, CHUNK, &mut |at, head, bytes| {
                is_unfinished = head.kind == BATCH
                    && at + head.len as u64 + EntryHead::number(bytes).min(OFFSET_MAX) > limit;
                if !is_unfinished {
                    self.report.entries += 1;
                    self.apply(source, at, head, bytes)?;
                    if let Some(into) =
                        self.into.filter(|_| self.report.entries.is_multiple_of(MAINTAINED_EVERY))
                    {
                        into.maintain();
                    }
                }
                Ok(!is_unfinished)
            })?;
            if at >= limit {
                break;
            }
            if is_unfinished {
                if self.is_torn(source, at, limit) {
                    return Ok(());
                }
                let what = "incomplete batch: all of it is omitted".into();
                self.report_loss(&source.path, at, limit - at, what);
                is_cut_reported = true;
                break;
            }
            let (next, guessed) = source.find_next_intact(at, limit)?;
            if source.repaired_entry(at, next)?.is_none() && self.is_torn(source, at, next) {
                return Ok(());
            }
            self.skip_damage(source, at, next, guessed)?;
            at = next;
            is_cut_reported = at == limit;
        }
        if limit < len && !is_cut_reported {
            self.report_loss(&source.path, limit, len - limit, "the file is cut off".into());
        }
        Ok(())
    }

    /// Returns true if the bytes between two offsets are the result of a crash. Notes that in the
    /// report.
    fn is_torn(&mut self, source: &SegmentSource, at: u64, end: u64) -> bool {
        let place = LogPosition { number: source.number, offset: at };
        if end < source.len || self.torn_from.is_none_or(|from| place < from) {
            return false;
        }
        let what = "a torn tail left by a crash".into();
        let (path, len) = (source.path.clone(), end - at);
        self.report.torn = Some(HashDamage { path, offset: at, len, what, is_mended: false });
        true
    }

    fn apply(&mut self, source: &SegmentSource, at: u64, head: &EntryHead, bytes: &[u8]) -> Result<()> {
        match head.kind {
            PUT => {
                let key = head.key(bytes);
                self.doubtful.remove(key);
                if self.into.is_none() && head.encoding.is_none() {
                    return Ok(());
                }
                let mut whole = Vec::new();
                let value = if bytes.len() >= head.len {
                    head.value(bytes)
                } else {
                    whole.resize(head.len, 0);
                    source.segment.read_at(at, &mut whole)?;
                    head.value(&whole)
                };
                let mut decompressor = ThreadCached::<ValueDecompressor>::take();
                let value = match head.encoding {
                    None => value,
                    Some(encoding) => {
                        let at_number = usize::from(encoding.dictionary).checked_sub(1);
                        let dictionary = at_number.and_then(|at| self.dictionaries.get(at)?.as_ref());
                        match decompressor.decompress(value, encoding, dictionary) {
                            Ok(plain) => plain,
                            Err(wrong) => {
                                let error = wrong.at(|what| source.segment.corrupt(at, what));
                                if error.kind() != ErrorKind::Corrupt {
                                    return Err(error);
                                }
                                return self.report_lost_value(source, at, head, key);
                            }
                        }
                    }
                };
                let Some(into) = self.into else { return Ok(()) };
                into.visit(key, &mut ApplyAction(Action::Put(Record::new(value, head.attributes))))
            }
            REMOVE => self.remove(head.key(bytes)),
            CLEAR => {
                self.doubtful.clear();
                self.into.map_or(Ok(()), |into| into.clear(&mut || ()))
            }
            _ => Ok(()),
        }
    }

    /// Reports that the value of a record cannot be decompressed, and removes the record so that no
    /// older value comes back.
    fn report_lost_value(
        &mut self,
        source: &SegmentSource,
        at: u64,
        head: &EntryHead,
        key: &[u8],
    ) -> Result<()> {
        self.remove(key)?;
        if self.doubtful.len() < KEYS_MAX {
            self.doubtful.insert(key.to_vec());
        }
        let shown = String::from_utf8_lossy(&key[..key.len().min(64)]).escape_debug().to_string();
        let what = format!("the value of \"{shown}\" cannot be decompressed");
        self.report_damage(&source.path, at, head.len as u64, what, false);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.doubtful.remove(key);
        self.into.map_or(Ok(()), |into| into.visit(key, &mut ApplyAction(Action::Remove)))
    }

    /// Reports the damage from `at` to `next`, or repairs it. `guessed` is the decoded head of the
    /// damaged entry, if there is one.
    fn skip_damage(
        &mut self,
        source: &SegmentSource,
        at: u64,
        next: u64,
        guessed: Option<EntryHead>,
    ) -> Result<()> {
        let wrong = "the checksum of the entry differs";
        if let Some((head, entry)) = source.repaired_entry(at, next)? {
            self.report_damage(
                &source.path,
                at,
                next - at,
                format!("{wrong}: one changed bit was repaired"),
                true,
            );
            self.report.entries += 1;
            return self.apply(source, at, &head, &entry);
        }
        let Some(head) =
            guessed.filter(|head| matches!(head.kind, PUT | REMOVE) && self.doubtful.len() < KEYS_MAX)
        else {
            self.report_loss(&source.path, at, next - at, format!("{wrong}; its contents are lost"));
            return Ok(());
        };
        let mut bytes = vec![0; head.key_at + head.key_len];
        source.segment.read_at(at, &mut bytes)?;
        let key = head.key(&bytes);
        self.remove(key)?;
        let shown = String::from_utf8_lossy(&key[..key.len().min(64)]).escape_debug().to_string();
        let what = if head.kind == PUT { "its key" } else { "the key that it removes" };
        if head.kind == PUT {
            self.doubtful.insert(key.to_vec());
        }
        self.report_damage(
            &source.path,
            at,
            next - at,
            format!("{wrong}; {what} seems to be \"{shown}\""),
            false,
        );
        Ok(())
    }

    /// Reports damage without a readable key.
    fn report_loss(&mut self, path: &Path, offset: u64, len: u64, what: String) {
        self.report.unclear += 1;
        self.report_damage(path, offset, len, what, false);
    }

    fn report_damage(&mut self, path: &Path, offset: u64, len: u64, what: String, is_mended: bool) {
        self.report.damaged += 1;
        self.report.mended += u64::from(is_mended);
        self.report.lost_bytes += if is_mended { 0 } else { len };
        if self.report.damages.len() < LISTED_MAX {
            self.report.damages.push(HashDamage { path: path.into(), offset, len, what, is_mended });
        }
    }
}

/// A visitor that returns a fixed action for any old record.
struct ApplyAction<'a>(Action<'a>);

impl Visitor for ApplyAction<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        self.0
    }

    fn overwrites(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_openings_are_few_and_near_known_ones() {
        assert_eq!(openings_between(3, Some(3)), [3]);
        assert_eq!(openings_between(3, Some(6)), [3, 4, 5, 6]);
        assert_eq!(openings_between(u32::MAX, None), [u32::MAX]);
        assert_eq!(openings_between(5, Some(4)), [0; 0]);
        let close = openings_between(7, Some(7 + OPENINGS_TRIED + 2));
        assert!(close.iter().copied().eq(7..=7 + OPENINGS_TRIED + 2));
        // The next segment was written after a restore.
        let far = openings_between(7, Some(28_000_000));
        assert_eq!(far.len() as u32, 2 * (OPENINGS_TRIED + 1));
        assert!([7, 8, 27_999_999, 28_000_000].iter().all(|openings| far.contains(openings)));
        assert_eq!(openings_between(7, None).len() as u32, OPENINGS_TRIED + 1);
    }
}
