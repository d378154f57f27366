//! What is left of a damaged hash on disk, or of the damaged backup of one: each entry has a checksum of its own, so those that are
//! whole can be told, and done again in another database.
//!
//! ```text
//! newest segment_list --> which segments count --> their whole entries, oldest first --> another engine
//! ```
//!
//! Where an entry is damaged, those behind it are looked for at every multiple of 8. If one bit of it has changed, that is found by its
//! checksum and mended. Else what it said is missing_segment_error, and where its beginning tells a key, and its end where the next one begins, the
//! record of that key goes, too: an older value that had been replaced should not come back as if it had not. That key may be
//! what is damaged, and often none can be told: then older values come back, and removed records.
//!
//! Nothing of what is read is changed.

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

/// So many damages are listed one by one; all are counted.
const LISTED_MAX: usize = 1000;
/// So many keys of damaged entries are kept to report_damage which of them are missing_segment_error in the end.
const KEYS_MAX: usize = 1 << 20;
/// In one segment so many bytes are checked at most to find where entries go on.
const SEARCH_MAX: u64 = 4 << 30;
/// So many entries are done again between two looks at what the engine has to do.
const MAINTAINED_EVERY: u64 = 1 << 10;
/// Looked through at once.
const WINDOW: usize = 256 << 10;
/// In entries up to this length a bit that has changed is looked for.
const MENDED_MAX: u64 = 16 << 20;
/// A header that is missing_segment_error is guessed from those beside it: so many numbers of openings are tried behind the one before it, and as many before the
/// one behind it.
const OPENINGS_TRIED: u32 = 1 << 10;

/// What was found in the files of a damaged hash on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashSalvage {
    /// What is damaged or missing, oldest segment first; the first thousand.
    pub damages: Vec<HashDamage>,
    /// How many damages there are.
    pub damaged: u64,
    /// How many of them are mended: nothing is missing_segment_error by these.
    pub mended: u64,
    /// Bytes of files that are damaged or missing, and not mended.
    pub lost_bytes: u64,
    /// Records that are missing_segment_error by what the damaged entries report_damage: the key of one seems to be readable, and nothing later tells of it.
    pub lost_records: u64,
    /// Damaged places of which not even that can be told: whatever they said is missing_segment_error, and what they replaced or removed may be back.
    pub unclear: u64,
    /// What a crash has left at the end, if that may be: it is no damage.
    pub torn: Option<HashDamage>,
    /// Whole entries.
    pub entries: u64,
    /// The highest count of openings that a header tells.
    pub openings: u32,
}

/// A place that is damaged, or a file that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashDamage {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// So many bytes cannot be used.
    pub len: u64,
    /// What is wrong with them, and what was in them as far as that can be told.
    pub what: String,
    /// What they said is known all the same.
    pub is_mended: bool,
}

/// Reads the segments in a directory that nobody has open, and does again in an empty engine, `into`, what their whole entries say.
/// `may_be_torn`: the last one may end as a crash leaves it. `progress` is told the bytes read. Fails with `Corrupt` where
/// nothing can be told of any segment, and as the engine does.
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
    let known = whole.or_else(|| sources.iter().rev().find_map(SegmentSource::told)).copied();
    let Some(FileHeader { identity, .. }) = known else {
        return Err(nothing_left(disk, directory, numbers.last().copied()));
    };
    let newest = sources.last().map_or(0, |source| source.number);
    // The index that a closed hash has names all of its segments, and how far they were on disk.
    let (until, named) = match index_file::load(disk, directory, Some(identity), &|_| None) {
        Ok(Some(index)) => (index.until, index.segments.into_keys().collect()),
        _ => (LogPosition::default(), Vec::new()),
    };
    let torn_from = may_be_torn.then_some(LogPosition { number: newest, offset: 0 }.max(until));
    let mut salvager = HashSalvager {
        into,
        found: HashSalvage::default(),
        doubtful: HashSet::new(),
        torn_from,
        dictionaries: Vec::new(),
    };
    let dictionaries = names.iter().filter_map(|name| dictionary_number(name)).max().unwrap_or_default();
    salvager.load_dictionaries(disk, directory, identity, &sources, dictionaries)?;
    for at in 0..sources.len() {
        let openings = openings_around(&sources, at);
        let source = &mut sources[at];
        if let Err(what) = &source.header {
            let what = format!("{what}; what it said is told by the rest");
            if source.mended.is_none() {
                source.guess_header(identity, &openings, dictionaries as u32);
            }
            if source.mended.is_some() {
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
        let what = "the segment is missing: the index names it";
        salvager.report_loss(&directory.join(file_name(number)), 0, 0, what.into());
    }
    let mut found = salvager.found;
    found.lost_records = salvager.doubtful.len() as u64;
    found.damages.sort_by(|one, other| (&one.path, one.offset).cmp(&(&other.path, other.offset)));
    found.openings = sources
        .iter()
        .filter_map(SegmentSource::told)
        .map(|header| header.openings)
        .max()
        .unwrap_or_default();
    Ok(found)
}

/// Why nothing can be salvaged. `newest`: the last of the segments that are there, none of which can be read.
fn nothing_left(disk: &dyn Disk, directory: &Path, newest: Option<u64>) -> Error {
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

/// A segment's file, whatever is left of it.
struct SegmentSource {
    number: u64,
    path: PathBuf,
    len: u64,
    segment: Segment,
    /// And the CRC of it; else what is wrong.
    header: std::result::Result<(FileHeader, u32), String>,
    /// What it was before it was damaged, if that can be told.
    mended: Option<(FileHeader, u32)>,
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
            header = Err(format!("it is segment {}, by what it says", found.number));
        }
        let mended = header.as_ref().err().and_then(|_| with_a_bit_changed(bytes, number));
        let seed = header.as_ref().ok().or(mended.as_ref()).map_or(0, |(_, seed)| *seed);
        let segment = Segment::new((number, 0), path.clone(), file, seed, 0, false);
        Ok(SegmentSource { number, path, len, segment, header, mended })
    }

    /// The last segment with the entries that a killed process has left beside it.
    fn with_recent(mut self, disk: &dyn Disk, directory: &Path) -> Result<SegmentSource> {
        if self.told().is_some()
            && let Some(patch) = recent_entries::after_damage(disk, directory, &self.segment, self.len)?
        {
            self.len = patch.len;
            self.segment.file = Box::new(PatchedFile::new(self.segment.file, Arc::new(patch)));
        }
        Ok(self)
    }

    /// What its header says, or said before it was damaged.
    fn told(&self) -> Option<&FileHeader> {
        self.header.as_ref().ok().or(self.mended.as_ref()).map(|(header, _)| header)
    }

    /// A header is right if the segment_list behind it is, whose checksum goes on from the header's.
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
                (self.segment.seed, self.mended) = (seed, Some((header, seed)));
                return;
            }
        }
    }

    /// What its first entry says, if that is whole: the older segments that count, and how long they are.
    fn segment_list(&self) -> Result<Option<HashMap<u64, u64>>> {
        let mut segment_list = None;
        if self.told().is_some() {
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

    /// Whether a whole entry begins there.
    fn is_intact_at(&self, at: u64, limit: u64) -> Result<bool> {
        let mut is_intact = false;
        walk(&self.segment, at, limit, 4 << 10, &mut |_, _, _| {
            is_intact = true;
            Ok(false)
        })?;
        Ok(is_intact)
    }

    /// What the beginning of an entry says, if all of that may be: it ends before the limit, and with zeros.
    fn plausible(&self, at: u64, bytes: &[u8], limit: u64) -> Result<Option<EntryHead>> {
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

    /// The entry that was between these offsets before one of its bits changed, if that is all.
    fn mended_entry(&self, at: u64, end: u64) -> Result<Option<(EntryHead, Vec<u8>)>> {
        if end - at > MENDED_MAX || end - at < entry::ALIGN as u64 {
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

    /// Where entries go on behind a damaged one, and what that seems to say; the limit if they do not.
    fn resume(&self, damaged: u64, limit: u64) -> Result<(u64, Option<EntryHead>)> {
        let mut window = vec![0; WINDOW];
        let got = self.segment.read_at(damaged, &mut window[..HEAD_MAX])?;
        let told = self.plausible(damaged, &window[..got], limit)?;
        let told_end = told.map(|head| damaged + head.len as u64);
        let (mut from, mut searched) = (damaged + entry::ALIGN as u64, 0);
        while from < limit {
            let got = self.segment.read_at(from, &mut window)?;
            let mut at = 0;
            while at < got && from + (at as u64) < limit {
                let place = from + at as u64;
                // The beginning of one may lie in the next window.
                if got - at < HEAD_MAX && place + (HEAD_MAX as u64) <= limit && at > 0 {
                    break;
                }
                at += entry::ALIGN;
                let bytes = &window[at - entry::ALIGN..got];
                // What has never been written is no entry.
                if bytes.iter().take(entry::ALIGN).all(|&byte| byte == 0) {
                    continue;
                }
                let Some(head) = self.plausible(place, bytes, limit)? else { continue };
                let end = place + head.len as u64;
                let is_told = told_end == Some(place);
                if !is_told && end < limit {
                    let mut bytes = [0; HEAD_MAX];
                    let got = self.segment.read_at(end, &mut bytes)?;
                    if self.plausible(end, &bytes[..got], limit)?.is_none() {
                        continue;
                    }
                }
                searched += head.len as u64;
                if searched > SEARCH_MAX {
                    return Ok((limit, None));
                }
                // One that is right by accident is hardly followed by another one.
                if self.is_intact_at(place, limit)?
                    && (is_told || end == limit || self.is_intact_at(end, limit)?)
                {
                    return Ok((place, told.filter(|_| is_told)));
                }
            }
            from += at.max(entry::ALIGN) as u64;
        }
        Ok((limit, told.filter(|_| told_end == Some(limit))))
    }
}

/// The header that it was before one of its bits changed.
fn with_a_bit_changed(bytes: [u8; HEADER_LEN], number: u64) -> Option<(FileHeader, u32)> {
    let changed = (0..HEADER_LEN * 8).filter_map(|bit| {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        FileHeader::decode(&bytes, SEGMENT_MAGIC).ok()
    });
    changed.into_iter().find(|(header, _)| header.number == number)
}

/// Which counts of openings a segment's header may report_damage, by those of its neighbours. These may be millions apart: what has been restored goes on
/// from a count that nothing before came near.
fn openings_around(sources: &[SegmentSource], at: usize) -> Vec<u32> {
    let openings = |source: &SegmentSource| source.told().map(|header| header.openings);
    let before = sources[..at].iter().rev().find_map(openings);
    let behind = sources[at + 1..].iter().find_map(openings);
    openings_between(before.unwrap_or_default(), behind)
}

fn openings_between(before: u32, behind: Option<u32>) -> Vec<u32> {
    let end = before.saturating_add(OPENINGS_TRIED).min(behind.unwrap_or(u32::MAX));
    let far = behind.map(|behind| behind.saturating_sub(OPENINGS_TRIED).max(end.saturating_add(1))..=behind);
    (before..=end).chain(far.into_iter().flatten()).collect()
}

/// Which segments count, as far as that is told.
#[derive(Default)]
struct CountedSegments {
    /// By the newest segment_list that is whole, and how long they are.
    lens: HashMap<u64, u64>,
    /// The segment that tells so; all behind it count.
    by: u64,
    dropped: HashSet<u64>,
}

impl CountedSegments {
    fn counts(&self, number: u64) -> bool {
        (number >= self.by || self.lens.contains_key(&number)) && !self.dropped.contains(&number)
    }
}

fn newest_segment_list(sources: &[SegmentSource], identity: DatabaseIdentity) -> Result<CountedSegments> {
    let mut listed = CountedSegments::default();
    for source in sources.iter().rev() {
        if source.told().is_none_or(|header| header.identity != identity) {
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
                at = source.resume(at, source.len)?.0;
            }
        }
        if let Some(lens) = source.segment_list()? {
            (listed.lens, listed.by) = (lens, source.number);
            break;
        }
    }
    Ok(listed)
}

/// Does again what whole entries say.
struct HashSalvager<'e> {
    into: Option<&'e dyn Engine>,
    found: HashSalvage,
    /// Keys of damaged entries of which nothing later is known.
    doubtful: HashSet<Vec<u8>>,
    /// What is not whole behind this, and has nothing whole behind it, is what a crash has left.
    torn_from: Option<LogPosition>,
    /// By number; `None` for one that is damaged or missing.
    dictionaries: Vec<Option<ValueDictionary>>,
}

impl HashSalvager<'_> {
    /// Those that the headers count, and that are whole.
    fn load_dictionaries(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        identity: DatabaseIdentity,
        sources: &[SegmentSource],
        there: usize,
    ) -> Result<()> {
        let told = sources.iter().filter_map(SegmentSource::told).map(|header| header.extra as usize).max();
        let count = told.unwrap_or_default().max(there).min(dictionary::DICTIONARIES_MAX);
        for number in 1..=count {
            let path = directory.join(dictionary::dictionary_name(number));
            let read = dictionary::read(disk, &path, number);
            let loaded = match read {
                Ok((found, content)) if found == identity => Some(ValueDictionary::new(path, content)?),
                Ok(_) => {
                    self.report_loss(&path, 0, 0, "the dictionary is another database's".into());
                    None
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    // One that no header counts was never used.
                    if told.is_some_and(|told| number <= told) {
                        self.report_loss(
                            &path,
                            0,
                            0,
                            "the dictionary is damaged or missing; what is compressed with it is lost".into(),
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

    /// `len`: how long the next segments say that it is.
    fn read(&mut self, source: &SegmentSource, identity: DatabaseIdentity, len: Option<u64>) -> Result<()> {
        let len = len.unwrap_or(source.len).min(OFFSET_MAX + source.len);
        let what = match (&source.header, source.told()) {
            (_, Some(header)) if header.identity == identity => None,
            (Ok(_), _) => Some("it is another database's".into()),
            (Err(what), _) => Some(format!("{what}, so nothing of it can be told")),
        };
        if let Some(what) = what {
            if source.header.is_ok() || !self.is_torn(source, 0, source.len) {
                self.report_loss(&source.path, 0, len, what);
            }
            return Ok(());
        }
        let limit = len.min(source.len);
        let mut at = HEADER_LEN as u64;
        // The entry in which the file ends is damage enough.
        let mut is_cut_told = false;
        while at < limit {
            let mut is_unfinished = false;
            at = walk(&source.segment, at, limit, CHUNK, &mut |at, head, bytes| {
                is_unfinished = head.kind == BATCH
                    && at + head.len as u64 + EntryHead::number(bytes).min(OFFSET_MAX) > limit;
                if !is_unfinished {
                    self.found.entries += 1;
                    self.apply(source, at, head, bytes)?;
                    if let Some(into) =
                        self.into.filter(|_| self.found.entries.is_multiple_of(MAINTAINED_EVERY))
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
                let what = "a batch that does not end in the file: all of it is left out".into();
                self.report_loss(&source.path, at, limit - at, what);
                is_cut_told = true;
                break;
            }
            let (next, told) = source.resume(at, limit)?;
            if source.mended_entry(at, next)?.is_none() && self.is_torn(source, at, next) {
                return Ok(());
            }
            self.skip_damage(source, at, next, told)?;
            at = next;
            is_cut_told = at == limit;
        }
        if limit < len && !is_cut_told {
            self.report_loss(&source.path, limit, len - limit, "the file is cut off".into());
        }
        Ok(())
    }

    /// Whether what lies between these offsets is what a crash has left.
    fn is_torn(&mut self, source: &SegmentSource, at: u64, end: u64) -> bool {
        let place = LogPosition { number: source.number, offset: at };
        if end < source.len || self.torn_from.is_none_or(|from| place < from) {
            return false;
        }
        let what = "a torn tail, as a crash leaves it".into();
        let (path, len) = (source.path.clone(), end - at);
        self.found.torn = Some(HashDamage { path, offset: at, len, what, is_mended: false });
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

    /// A record whose key is known, and whose value cannot be had. Older values do not come back.
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
        let what = format!("the value of \"{shown}\" is compressed, and cannot be expanded");
        self.report_damage(&source.path, at, head.len as u64, what, false);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.doubtful.remove(key);
        self.into.map_or(Ok(()), |into| into.visit(key, &mut ApplyAction(Action::Remove)))
    }

    /// Passes over damage up to where entries go on. `told`: what the entry there seems to say.
    fn skip_damage(
        &mut self,
        source: &SegmentSource,
        at: u64,
        next: u64,
        told: Option<EntryHead>,
    ) -> Result<()> {
        let wrong = "the checksum of the entry differs";
        if let Some((head, entry)) = source.mended_entry(at, next)? {
            self.report_damage(
                &source.path,
                at,
                next - at,
                format!("{wrong}: a bit has changed, which is mended"),
                true,
            );
            self.found.entries += 1;
            return self.apply(source, at, &head, &entry);
        }
        let Some(head) =
            told.filter(|head| matches!(head.kind, PUT | REMOVE) && self.doubtful.len() < KEYS_MAX)
        else {
            self.report_loss(
                &source.path,
                at,
                next - at,
                format!("{wrong}, and what it said cannot be told"),
            );
            return Ok(());
        };
        let mut bytes = vec![0; head.key_at + head.key_len];
        source.segment.read_at(at, &mut bytes)?;
        let key = head.key(&bytes);
        self.remove(key)?;
        let shown = String::from_utf8_lossy(&key[..key.len().min(64)]).escape_debug().to_string();
        let what = if head.kind == PUT { "its key" } else { "what it removes" };
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

    /// What nothing can be told of.
    fn report_loss(&mut self, path: &Path, offset: u64, len: u64, what: String) {
        self.found.unclear += 1;
        self.report_damage(path, offset, len, what, false);
    }

    fn report_damage(&mut self, path: &Path, offset: u64, len: u64, what: String, is_mended: bool) {
        self.found.damaged += 1;
        self.found.mended += u64::from(is_mended);
        self.found.lost_bytes += if is_mended { 0 } else { len };
        if self.found.damages.len() < LISTED_MAX {
            self.found.damages.push(HashDamage { path: path.into(), offset, len, what, is_mended });
        }
    }
}

/// Does this, whatever is there.
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
    fn the_openings_that_are_tried_lie_beside_those_that_are_known_and_are_few() {
        assert_eq!(openings_between(3, Some(3)), [3]);
        assert_eq!(openings_between(3, Some(6)), [3, 4, 5, 6]);
        assert_eq!(openings_between(u32::MAX, None), [u32::MAX]);
        assert_eq!(openings_between(5, Some(4)), [0; 0]);
        let close = openings_between(7, Some(7 + OPENINGS_TRIED + 2));
        assert!(close.iter().copied().eq(7..=7 + OPENINGS_TRIED + 2));
        // The one behind was restored in the meantime.
        let far = openings_between(7, Some(28_000_000));
        assert_eq!(far.len() as u32, 2 * (OPENINGS_TRIED + 1));
        assert!([7, 8, 27_999_999, 28_000_000].iter().all(|openings| far.contains(openings)));
        assert_eq!(openings_between(7, None).len() as u32, OPENINGS_TRIED + 1);
    }
}
