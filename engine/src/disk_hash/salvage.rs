//! What is left of a damaged hash on disk, or of the damaged backup of one: each entry has a checksum of its own, so those that are
//! whole can be told, and done again in another database.
//!
//! ```text
//! newest census --> which segments count --> their whole entries, oldest first --> another engine
//! ```
//!
//! Where an entry is damaged, those behind it are looked for at every multiple of 8. If one bit of it has changed, that is found by its
//! checksum and mended. Else what it said is lost, and where its beginning tells a key, and its end where the next one begins, the
//! record of that key goes, too: an older value that had been replaced should not come back as if it had not. That key may be
//! what is damaged, and often none can be told: then older values come back, and removed records.
//!
//! Nothing of what is read is changed.

use super::dictionary::{self, Dictionary, dictionary_number};
use super::entry::{self, BATCH, CENSUS, CLEAR, DROPPED, HEAD_MAX, Head, PUT, REMOVE};
use super::flip::changed_bit;
use super::index_file;
use super::packing::{Lent, Unpacker};
use super::recent_entries;
use super::segment::{
    HEADER_LEN, Header, Identity, OFFSET_MAX, Position, SEGMENT_MAGIC, Segment, file_name, number_of,
    unreadable,
};
use super::walk::{CHUNK, walk};
use crate::disk::{Disk, PatchedFile};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Action, Engine, Error, ErrorKind, Record, Result, Visitor};

/// So many damages are listed one by one; all are counted.
const LISTED_MAX: usize = 1000;
/// So many keys of damaged entries are kept to tell which of them are lost in the end.
const KEYS_MAX: usize = 1 << 20;
/// In one segment so many bytes are checked at most to find where entries go on.
const SEARCH_MAX: u64 = 4 << 30;
/// So many entries are done again between two looks at what the engine has to do.
const MAINTAINED_EVERY: u64 = 1 << 10;
/// Looked through at once.
const WINDOW: usize = 256 << 10;
/// In entries up to this length a bit that has changed is looked for.
const MENDED_MAX: u64 = 16 << 20;
/// A header that is lost is guessed from those beside it: so many numbers of openings are tried behind the one before it, and as many before the
/// one behind it.
const OPENINGS_TRIED: u32 = 1 << 10;

/// What was found in the files of a damaged hash on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashSalvage {
    /// What is damaged or missing, oldest segment first; the first thousand.
    pub damages: Vec<HashDamage>,
    /// How many damages there are.
    pub damaged: u64,
    /// How many of them are mended: nothing is lost by these.
    pub mended: u64,
    /// Bytes of files that are damaged or missing, and not mended.
    pub lost_bytes: u64,
    /// Records that are lost by what the damaged entries tell: the key of one seems to be readable, and nothing later tells of it.
    pub lost_records: u64,
    /// Damaged places of which not even that can be told: whatever they said is lost, and what they replaced or removed may be back.
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
    let names = disk.list(directory).map_err(|error| unreadable(directory, &error))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    let mut ruins =
        numbers.iter().map(|&number| Ruin::open(disk, directory, number)).collect::<Result<Vec<Ruin>>>()?;
    let whole = ruins.iter().rev().find_map(|ruin| ruin.header.as_ref().ok().map(|(header, _)| header));
    let known = whole.or_else(|| ruins.iter().rev().find_map(Ruin::told)).copied();
    let Some(Header { identity, .. }) = known else {
        return Err(nothing_left(disk, directory, numbers.last().copied()));
    };
    let newest = ruins.last().map_or(0, |ruin| ruin.number);
    // The index that a closed hash has names all of its segments, and how far they were on disk.
    let (until, named) = match index_file::load(disk, directory, Some(identity), &|_| None) {
        Ok(Some(index)) => (index.until, index.segments.into_keys().collect()),
        _ => (Position::default(), Vec::new()),
    };
    let torn_from = may_be_torn.then_some(Position { number: newest, offset: 0 }.max(until));
    let mut salvager = Salvager {
        into,
        found: HashSalvage::default(),
        doubtful: HashSet::new(),
        torn_from,
        dictionaries: Vec::new(),
    };
    let dictionaries = names.iter().filter_map(|name| dictionary_number(name)).max().unwrap_or_default();
    salvager.load_dictionaries(disk, directory, identity, &ruins, dictionaries)?;
    for at in 0..ruins.len() {
        let openings = openings_around(&ruins, at);
        let ruin = &mut ruins[at];
        if let Err(what) = &ruin.header {
            let what = format!("{what}; what it said is told by the rest");
            if ruin.mended.is_none() {
                ruin.guess_header(identity, &openings, dictionaries as u32);
            }
            if ruin.mended.is_some() {
                salvager.tell(&ruin.path, 0, HEADER_LEN as u64, what, true);
            }
        }
    }
    if may_be_torn && let Some(newest) = ruins.pop() {
        ruins.push(newest.with_recent(disk, directory)?);
    }
    let listed = newest_census(&ruins, identity)?;
    let mut done = 0;
    for ruin in ruins.iter().filter(|ruin| listed.counts(ruin.number)) {
        let synced = (until.number == ruin.number).then_some(until.offset.max(ruin.len));
        salvager.read(ruin, identity, listed.lens.get(&ruin.number).copied().or(synced))?;
        done += ruin.len;
        progress(done);
    }
    for (&number, &len) in &listed.lens {
        if numbers.binary_search(&number).is_err() && listed.counts(number) {
            salvager.lose(&directory.join(file_name(number)), 0, len, "the segment is missing".into());
        }
    }
    for number in named.into_iter().filter(|&number| number > newest) {
        let what = "the segment is missing: the index names it";
        salvager.lose(&directory.join(file_name(number)), 0, 0, what.into());
    }
    let mut found = salvager.found;
    found.lost_records = salvager.doubtful.len() as u64;
    found.damages.sort_by(|one, other| (&one.path, one.offset).cmp(&(&other.path, other.offset)));
    found.openings =
        ruins.iter().filter_map(Ruin::told).map(|header| header.openings).max().unwrap_or_default();
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
struct Ruin {
    number: u64,
    path: PathBuf,
    len: u64,
    segment: Segment,
    /// And the CRC of it; else what is wrong.
    header: std::result::Result<(Header, u32), String>,
    /// What it was before it was damaged, if that can be told.
    mended: Option<(Header, u32)>,
}

impl Ruin {
    fn open(disk: &dyn Disk, directory: &Path, number: u64) -> Result<Ruin> {
        let path = directory.join(file_name(number));
        let file = disk.open(&path, false).map_err(|error| unreadable(&path, &error))?;
        let len = file.len().map_err(|error| unreadable(&path, &error))?;
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(0, &mut bytes).map_err(|error| unreadable(&path, &error))?;
        let mut header = Header::decode(&bytes[..got], SEGMENT_MAGIC);
        if let Ok((found, _)) = &header
            && found.number != number
        {
            header = Err(format!("it is segment {}, by what it says", found.number));
        }
        let mended = header.as_ref().err().and_then(|_| with_a_bit_changed(bytes, number));
        let seed = header.as_ref().ok().or(mended.as_ref()).map_or(0, |(_, seed)| *seed);
        let segment = Segment::new((number, 0), path.clone(), file, seed, 0, false);
        Ok(Ruin { number, path, len, segment, header, mended })
    }

    /// The last segment with the entries that a killed process has left beside it.
    fn with_recent(mut self, disk: &dyn Disk, directory: &Path) -> Result<Ruin> {
        if self.told().is_some()
            && let Some(patch) = recent_entries::after_damage(disk, directory, &self.segment, self.len)?
        {
            self.len = patch.len;
            self.segment.file = Box::new(PatchedFile::new(self.segment.file, Arc::new(patch)));
        }
        Ok(self)
    }

    /// What its header says, or said before it was damaged.
    fn told(&self) -> Option<&Header> {
        self.header.as_ref().ok().or(self.mended.as_ref()).map(|(header, _)| header)
    }

    /// A header is right if the census behind it is, whose checksum goes on from the header's.
    fn guess_header(&mut self, identity: Identity, openings: &[u32], dictionaries: u32) {
        let mut bytes = vec![0; HEAD_MAX];
        let at = HEADER_LEN as u64;
        let got = self.segment.read_at(at, &mut bytes).unwrap_or(0);
        let Some(head) = entry::parse(&bytes[..got]).filter(|head| head.kind == CENSUS) else { return };
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
            let header = Header { identity, openings, number: self.number, extra };
            let seed = entry::four(&header.encode(SEGMENT_MAGIC), 60);
            if entry::is_whole(&bytes, seed ^ (at / 8) as u32) {
                (self.segment.seed, self.mended) = (seed, Some((header, seed)));
                return;
            }
        }
    }

    /// What its first entry says, if that is whole: the older segments that count, and how long they are.
    fn census(&self) -> Result<Option<HashMap<u64, u64>>> {
        let mut census = None;
        if self.told().is_some() {
            walk(&self.segment, HEADER_LEN as u64, self.len, 4 << 10, &mut |_, head, bytes| {
                if head.kind == CENSUS && bytes.len() >= head.len {
                    let list = bytes[16..head.len].chunks_exact(16);
                    census = Some(list.map(|each| (entry::eight(each, 0), entry::eight(each, 8))).collect());
                }
                Ok(false)
            })?;
        }
        Ok(census)
    }

    /// Whether a whole entry begins there.
    fn is_whole_at(&self, at: u64, limit: u64) -> Result<bool> {
        let mut is_whole = false;
        walk(&self.segment, at, limit, 4 << 10, &mut |_, _, _| {
            is_whole = true;
            Ok(false)
        })?;
        Ok(is_whole)
    }

    /// What the beginning of an entry says, if all of that may be: it ends before the limit, and with zeros.
    fn plausible(&self, at: u64, bytes: &[u8], limit: u64) -> Result<Option<Head>> {
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
    fn mended_entry(&self, at: u64, end: u64) -> Result<Option<(Head, Vec<u8>)>> {
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
            entry::parse(&bytes).filter(|head| head.len == bytes.len() && entry::is_whole(&bytes, seed));
        Ok(head.map(|head| (head, bytes)))
    }

    /// Where entries go on behind a damaged one, and what that seems to say; the limit if they do not.
    fn resume(&self, damaged: u64, limit: u64) -> Result<(u64, Option<Head>)> {
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
                if self.is_whole_at(place, limit)?
                    && (is_told || end == limit || self.is_whole_at(end, limit)?)
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
fn with_a_bit_changed(bytes: [u8; HEADER_LEN], number: u64) -> Option<(Header, u32)> {
    let changed = (0..HEADER_LEN * 8).filter_map(|bit| {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        Header::decode(&bytes, SEGMENT_MAGIC).ok()
    });
    changed.into_iter().find(|(header, _)| header.number == number)
}

/// Which counts of openings a segment's header may tell, by those of its neighbours. These may be millions apart: what has been restored goes on
/// from a count that nothing before came near.
fn openings_around(ruins: &[Ruin], at: usize) -> Vec<u32> {
    let openings = |ruin: &Ruin| ruin.told().map(|header| header.openings);
    let before = ruins[..at].iter().rev().find_map(openings);
    let behind = ruins[at + 1..].iter().find_map(openings);
    openings_between(before.unwrap_or_default(), behind)
}

fn openings_between(before: u32, behind: Option<u32>) -> Vec<u32> {
    let end = before.saturating_add(OPENINGS_TRIED).min(behind.unwrap_or(u32::MAX));
    let far = behind.map(|behind| behind.saturating_sub(OPENINGS_TRIED).max(end.saturating_add(1))..=behind);
    (before..=end).chain(far.into_iter().flatten()).collect()
}

/// Which segments count, as far as that is told.
#[derive(Default)]
struct Listed {
    /// By the newest census that is whole, and how long they are.
    lens: HashMap<u64, u64>,
    /// The segment that tells so; all behind it count.
    by: u64,
    dropped: HashSet<u64>,
}

impl Listed {
    fn counts(&self, number: u64) -> bool {
        (number >= self.by || self.lens.contains_key(&number)) && !self.dropped.contains(&number)
    }
}

fn newest_census(ruins: &[Ruin], identity: Identity) -> Result<Listed> {
    let mut listed = Listed::default();
    for ruin in ruins.iter().rev() {
        if ruin.told().is_none_or(|header| header.identity != identity) {
            continue;
        }
        let mut at = HEADER_LEN as u64;
        while at < ruin.len {
            at = walk(&ruin.segment, at, ruin.len, CHUNK, &mut |_, head, bytes| {
                if head.kind == DROPPED {
                    listed.dropped.insert(Head::number(bytes));
                }
                Ok(true)
            })?;
            if at < ruin.len {
                at = ruin.resume(at, ruin.len)?.0;
            }
        }
        if let Some(lens) = ruin.census()? {
            (listed.lens, listed.by) = (lens, ruin.number);
            break;
        }
    }
    Ok(listed)
}

/// Does again what whole entries say.
struct Salvager<'e> {
    into: Option<&'e dyn Engine>,
    found: HashSalvage,
    /// Keys of damaged entries of which nothing later is known.
    doubtful: HashSet<Vec<u8>>,
    /// What is not whole behind this, and has nothing whole behind it, is what a crash has left.
    torn_from: Option<Position>,
    /// By number; `None` for one that is damaged or missing.
    dictionaries: Vec<Option<Dictionary>>,
}

impl Salvager<'_> {
    /// Those that the headers count, and that are whole.
    fn load_dictionaries(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        identity: Identity,
        ruins: &[Ruin],
        there: usize,
    ) -> Result<()> {
        let told = ruins.iter().filter_map(Ruin::told).map(|header| header.extra as usize).max();
        let count = told.unwrap_or_default().max(there).min(dictionary::DICTIONARIES_MAX);
        for number in 1..=count {
            let path = directory.join(dictionary::dictionary_name(number));
            let read = dictionary::read(disk, &path, number);
            let loaded = match read {
                Ok((found, content)) if found == identity => Some(Dictionary::new(path, content)?),
                Ok(_) => {
                    self.lose(&path, 0, 0, "the dictionary is another database's".into());
                    None
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    // One that no header counts was never used.
                    if told.is_some_and(|told| number <= told) {
                        self.lose(
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
    fn read(&mut self, ruin: &Ruin, identity: Identity, len: Option<u64>) -> Result<()> {
        let len = len.unwrap_or(ruin.len).min(OFFSET_MAX + ruin.len);
        let what = match (&ruin.header, ruin.told()) {
            (_, Some(header)) if header.identity == identity => None,
            (Ok(_), _) => Some("it is another database's".into()),
            (Err(what), _) => Some(format!("{what}, so nothing of it can be told")),
        };
        if let Some(what) = what {
            if ruin.header.is_ok() || !self.is_torn(ruin, 0, ruin.len) {
                self.lose(&ruin.path, 0, len, what);
            }
            return Ok(());
        }
        let limit = len.min(ruin.len);
        let mut at = HEADER_LEN as u64;
        // The entry in which the file ends is damage enough.
        let mut is_cut_told = false;
        while at < limit {
            let mut is_unfinished = false;
            at = walk(&ruin.segment, at, limit, CHUNK, &mut |at, head, bytes| {
                is_unfinished =
                    head.kind == BATCH && at + head.len as u64 + Head::number(bytes).min(OFFSET_MAX) > limit;
                if !is_unfinished {
                    self.found.entries += 1;
                    self.apply(ruin, at, head, bytes)?;
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
                if self.is_torn(ruin, at, limit) {
                    return Ok(());
                }
                let what = "a batch that does not end in the file: all of it is left out".into();
                self.lose(&ruin.path, at, limit - at, what);
                is_cut_told = true;
                break;
            }
            let (next, told) = ruin.resume(at, limit)?;
            if ruin.mended_entry(at, next)?.is_none() && self.is_torn(ruin, at, next) {
                return Ok(());
            }
            self.pass(ruin, at, next, told)?;
            at = next;
            is_cut_told = at == limit;
        }
        if limit < len && !is_cut_told {
            self.lose(&ruin.path, limit, len - limit, "the file is cut off".into());
        }
        Ok(())
    }

    /// Whether what lies between these offsets is what a crash has left.
    fn is_torn(&mut self, ruin: &Ruin, at: u64, end: u64) -> bool {
        let place = Position { number: ruin.number, offset: at };
        if end < ruin.len || self.torn_from.is_none_or(|from| place < from) {
            return false;
        }
        let what = "a torn tail, as a crash leaves it".into();
        let (path, len) = (ruin.path.clone(), end - at);
        self.found.torn = Some(HashDamage { path, offset: at, len, what, is_mended: false });
        true
    }

    fn apply(&mut self, ruin: &Ruin, at: u64, head: &Head, bytes: &[u8]) -> Result<()> {
        match head.kind {
            PUT => {
                let key = head.key(bytes);
                self.doubtful.remove(key);
                if self.into.is_none() && head.packing.is_none() {
                    return Ok(());
                }
                let mut whole = Vec::new();
                let value = if bytes.len() >= head.len {
                    head.value(bytes)
                } else {
                    whole.resize(head.len, 0);
                    ruin.segment.read_at(at, &mut whole)?;
                    head.value(&whole)
                };
                let mut unpacker = Lent::<Unpacker>::take();
                let value = match head.packing {
                    None => value,
                    Some(packing) => {
                        let at_number = usize::from(packing.dictionary).checked_sub(1);
                        let dictionary = at_number.and_then(|at| self.dictionaries.get(at)?.as_ref());
                        match unpacker.unpack(value, packing, dictionary) {
                            Ok(plain) => plain,
                            Err(wrong) => {
                                let error = wrong.at(|what| ruin.segment.corrupt(at, what));
                                if error.kind() != ErrorKind::Corrupt {
                                    return Err(error);
                                }
                                return self.lose_value(ruin, at, head, key);
                            }
                        }
                    }
                };
                let Some(into) = self.into else { return Ok(()) };
                into.visit(key, &mut Do(Action::Put(Record::new(value, head.attributes))))
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
    fn lose_value(&mut self, ruin: &Ruin, at: u64, head: &Head, key: &[u8]) -> Result<()> {
        self.remove(key)?;
        if self.doubtful.len() < KEYS_MAX {
            self.doubtful.insert(key.to_vec());
        }
        let shown = String::from_utf8_lossy(&key[..key.len().min(64)]).escape_debug().to_string();
        let what = format!("the value of \"{shown}\" is compressed, and cannot be expanded");
        self.tell(&ruin.path, at, head.len as u64, what, false);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.doubtful.remove(key);
        self.into.map_or(Ok(()), |into| into.visit(key, &mut Do(Action::Remove)))
    }

    /// Passes over damage up to where entries go on. `told`: what the entry there seems to say.
    fn pass(&mut self, ruin: &Ruin, at: u64, next: u64, told: Option<Head>) -> Result<()> {
        let wrong = "the checksum of the entry differs";
        if let Some((head, entry)) = ruin.mended_entry(at, next)? {
            self.tell(
                &ruin.path,
                at,
                next - at,
                format!("{wrong}: a bit has changed, which is mended"),
                true,
            );
            self.found.entries += 1;
            return self.apply(ruin, at, &head, &entry);
        }
        let Some(head) =
            told.filter(|head| matches!(head.kind, PUT | REMOVE) && self.doubtful.len() < KEYS_MAX)
        else {
            self.lose(&ruin.path, at, next - at, format!("{wrong}, and what it said cannot be told"));
            return Ok(());
        };
        let mut bytes = vec![0; head.key_at + head.key_len];
        ruin.segment.read_at(at, &mut bytes)?;
        let key = head.key(&bytes);
        self.remove(key)?;
        let shown = String::from_utf8_lossy(&key[..key.len().min(64)]).escape_debug().to_string();
        let what = if head.kind == PUT { "its key" } else { "what it removes" };
        if head.kind == PUT {
            self.doubtful.insert(key.to_vec());
        }
        self.tell(&ruin.path, at, next - at, format!("{wrong}; {what} seems to be \"{shown}\""), false);
        Ok(())
    }

    /// What nothing can be told of.
    fn lose(&mut self, path: &Path, offset: u64, len: u64, what: String) {
        self.found.unclear += 1;
        self.tell(path, offset, len, what, false);
    }

    fn tell(&mut self, path: &Path, offset: u64, len: u64, what: String, is_mended: bool) {
        self.found.damaged += 1;
        self.found.mended += u64::from(is_mended);
        self.found.lost_bytes += if is_mended { 0 } else { len };
        if self.found.damages.len() < LISTED_MAX {
            self.found.damages.push(HashDamage { path: path.into(), offset, len, what, is_mended });
        }
    }
}

/// Does this, whatever is there.
struct Do<'a>(Action<'a>);

impl Visitor for Do<'_> {
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
