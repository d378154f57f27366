//! Walks over the records in the order of their keys: those in the active front, in the frozen
//! front and in LMDB together.
//!
//! A walk consists of steps. Each step holds a snapshot and the locks for some hundred records at
//! most. The next step continues after the last key of the previous one. A slow walk therefore
//! blocks no page and no writer for long, and there is no cursor that a write could invalidate.

use super::front::{ChangeFront, FrontEntry};
use super::long_key_group::{self, LongKeyGroup};
use super::record;
use super::record_block::{self, BlockRecords};
use super::store::{SnapshotReader, TreeStore};
use super::stored::ChecksumMode;
use super::{TreeLayers, place};
use crate::raw::{LmdbSnapshot, LmdbTable};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow, Range};
use todana_core::{ErrorKind, Record, Result};

/// The number of keys after which a step ends.
const STEP_KEYS: usize = 256;
/// The number of bytes of values after which a step ends.
const STEP_BYTES: usize = 1 << 20;
/// The number of changes that are taken from a front at first. Most walks are short; a longer walk
/// then takes more changes at a time.
const FIRST_CHANGES: usize = 8;
const MORE_CHANGES: usize = 64;

/// A function that is called with each record of a walk.
pub(super) type RecordCallback<'s> = dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()> + 's;

/// The reason why a step has ended.
pub(super) enum WalkEnd {
    /// There are no more records.
    Done,
    /// The callback has ended the walk.
    Broken,
    /// The walk continues after this key.
    Further(Vec<u8>),
}

/// Compares two keys in the direction of the walk.
#[inline]
fn along(upwards: bool, a: &[u8], b: &[u8]) -> Ordering {
    if upwards { a.cmp(b) } else { b.cmp(a) }
}

/// The options of a walk.
#[derive(Clone, Copy)]
pub(super) struct WalkOptions {
    pub(super) upwards: bool,
    /// If true, damaged records are skipped. Otherwise the walk fails with `Corrupt` at the first
    /// damaged record.
    pub(super) skips_damaged: bool,
}

/// Does one step: shows the records from a bound on.
pub(super) fn walk_step(
    layers: &TreeLayers,
    store: &TreeStore,
    from: Bound<&[u8]>,
    WalkOptions { upwards, skips_damaged }: WalkOptions,
    see: &mut RecordCallback<'_>,
) -> Result<WalkEnd> {
    let mut active = FrontChanges::new(from, upwards, |from, count, into| {
        layers.active.read().next(from, upwards, count, into);
    });
    let mut frozen = FrontChanges::new(from, upwards, |from, count, into| {
        if let Some(frozen) = &layers.frozen {
            ChangeFront::next(frozen, from, upwards, count, into);
        }
    });
    store.read(|SnapshotReader { snapshot, records, .. }| {
        let mut base = BaseRecords::new(snapshot, records, store, from, upwards, layers.is_wiped)?;
        base.skips_damaged = skips_damaged;
        let (mut keys, mut bytes) = (0, 0);
        loop {
            base.fill()?;
            let change = match (active.peek(), frozen.peek()) {
                (Some(newer), Some(older)) => match along(upwards, newer.key(), older.key()) {
                    Ordering::Less => active.pop(),
                    Ordering::Greater => frozen.pop(),
                    Ordering::Equal => {
                        frozen.pop();
                        active.pop()
                    }
                },
                (Some(_), None) => active.pop(),
                (None, _) => frozen.pop(),
            };
            keys += 1;
            let Some(change) = change else {
                // All remaining records of this step are in LMDB.
                loop {
                    let Some((key, record)) = base.head() else { return Ok(WalkEnd::Done) };
                    bytes += record.value.len();
                    if see(key, record).is_break() {
                        return Ok(WalkEnd::Broken);
                    }
                    if keys >= STEP_KEYS || bytes >= STEP_BYTES {
                        return Ok(WalkEnd::Further(key.to_vec()));
                    }
                    keys += 1;
                    base.advance();
                    base.fill()?;
                }
            };
            // Shows the LMDB records before the change, and skips the record that the change
            // replaces.
            while let Some((key, record)) = base.head() {
                match along(upwards, key, change.key()) {
                    Ordering::Greater => break,
                    Ordering::Equal => {
                        base.advance();
                        break;
                    }
                    Ordering::Less => {}
                }
                (keys, bytes) = (keys + 1, bytes + record.value.len());
                if see(key, record).is_break() {
                    return Ok(WalkEnd::Broken);
                }
                if keys >= STEP_KEYS || bytes >= STEP_BYTES {
                    return Ok(WalkEnd::Further(key.to_vec()));
                }
                base.advance();
                base.fill()?;
            }
            if let Some(record) = change.record() {
                bytes += record.value.len();
                if see(change.key(), record).is_break() {
                    return Ok(WalkEnd::Broken);
                }
            }
            if keys >= STEP_KEYS || bytes >= STEP_BYTES {
                return Ok(WalkEnd::Further(change.key().to_vec()));
            }
        }
    })
}

/// The changes of a front in order. Some changes are taken at a time, so that no lock is held while
/// they are shown.
struct FrontChanges<'f, F> {
    taken: VecDeque<FrontEntry>,
    more: Vec<FrontEntry>,
    /// The point at which the next changes begin; `None` if there are no more changes.
    from: Option<ResumePoint<'f>>,
    count: usize,
    take: F,
    upwards: bool,
}

enum ResumePoint<'f> {
    Bound(Bound<&'f [u8]>),
    After(FrontEntry),
}

impl<'f, F: FnMut(Bound<&[u8]>, usize, &mut Vec<FrontEntry>)> FrontChanges<'f, F> {
    fn new(from: Bound<&'f [u8]>, upwards: bool, take: F) -> Self {
        let from = Some(ResumePoint::Bound(from));
        FrontChanges { taken: VecDeque::new(), more: Vec::new(), from, count: FIRST_CHANGES, take, upwards }
    }

    fn peek(&mut self) -> Option<&FrontEntry> {
        if self.taken.is_empty() {
            match self.from.take()? {
                ResumePoint::Bound(bound) => (self.take)(bound, self.count, &mut self.more),
                ResumePoint::After(last) => {
                    (self.take)(Bound::Excluded(last.key()), self.count, &mut self.more)
                }
            }
            debug_assert!(self.more.is_sorted_by(|a, b| along(self.upwards, a.key(), b.key()).is_lt()));
            if self.more.len() == self.count {
                self.from = self.more.last().cloned().map(ResumePoint::After);
            }
            self.count = MORE_CHANGES;
            self.taken.extend(self.more.drain(..));
        }
        self.taken.front()
    }

    fn pop(&mut self) -> Option<FrontEntry> {
        self.peek()?;
        self.taken.pop_front()
    }
}

/// The next LMDB entries in the direction of the walk.
type LmdbEntries<'t> = Box<dyn Iterator<Item = heed::Result<(&'t [u8], &'t [u8])>> + 't>;

/// The records of LMDB in order, including records in groups of long keys.
struct BaseRecords<'t> {
    /// The entries that follow; `None` if there are no more.
    entries: Option<LmdbEntries<'t>>,
    store: &'t TreeStore,
    /// The bound from which records are shown. The first group may begin before this bound.
    from: Bound<&'t [u8]>,
    upwards: bool,
    skips_damaged: bool,
    head: Option<BaseHead<'t>>,
    group: LongKeyGroupRest<'t>,
    /// The place of a record in a group.
    place: Vec<u8>,
    block: BlockRest<'t>,
}

/// The remaining records of a block.
#[derive(Default)]
struct BlockRest<'t> {
    /// The block as LMDB has it, if it is not compressed.
    plain: Option<&'t [u8]>,
    /// The records of a compressed block.
    buffer: Vec<u8>,
    keys: Vec<u8>,
    records: Vec<BlockSpan>,
    remaining: Range<usize>,
}

/// The places of a key in `keys`, and of its record in the block.
struct BlockSpan {
    key: Range<usize>,
    stored: Range<usize>,
}

/// The remaining records of a group: the common beginning of their places, and for each record the
/// remainder of its place and its bytes.
#[derive(Default)]
struct LongKeyGroupRest<'t> {
    at: &'t [u8],
    records: VecDeque<long_key_group::GroupedRecord<'t>>,
    checksums: Option<ChecksumMode>,
}

enum BaseHead<'t> {
    Plain(&'t [u8], Record<'t>),
    /// A record in a group. Its place is in the field `place`.
    InGroup(Record<'t>),
    /// A record in a block, with its number there.
    InBlock(usize),
}

impl<'t> BaseRecords<'t> {
    fn new(
        snapshot: &'t LmdbSnapshot,
        records: &LmdbTable,
        store: &'t TreeStore,
        from: Bound<&'t [u8]>,
        upwards: bool,
        is_wiped: bool,
    ) -> Result<BaseRecords<'t>> {
        if store.is_in_blocks() {
            return BaseRecords::in_blocks(snapshot, records, store, from, upwards, is_wiped);
        }
        let places = from.map(place::of_key);
        // The bound may lie within a group, so begin with that group.
        let start = match &places {
            Bound::Included(place) => Bound::Included(place::split(place).0),
            Bound::Excluded(place) => match place::split(place) {
                (at, Some(_)) => Bound::Included(at),
                (at, None) => Bound::Excluded(at),
            },
            Bound::Unbounded => Bound::Unbounded,
        };
        let range = match upwards {
            true => (start, Bound::Unbounded),
            false => (Bound::Unbounded, start),
        };
        let entries: Option<LmdbEntries<'t>> = match (is_wiped, upwards) {
            (true, _) => None,
            (false, true) => {
                Some(Box::new(records.range(snapshot, &range).map_err(|error| store.lmdb_error(&error))?))
            }
            (false, false) => {
                Some(Box::new(records.rev_range(snapshot, &range).map_err(|error| store.lmdb_error(&error))?))
            }
        };
        Ok(BaseRecords::new_with(entries, store, from, upwards))
    }

    fn in_blocks(
        snapshot: &'t LmdbSnapshot,
        records: &LmdbTable,
        store: &'t TreeStore,
        from: Bound<&'t [u8]>,
        upwards: bool,
        is_wiped: bool,
    ) -> Result<BaseRecords<'t>> {
        // The bound may lie within a block, so begin with that block.
        let start = match from {
            Bound::Included(key) | Bound::Excluded(key) => store.block_of(snapshot, records, key)?,
            Bound::Unbounded => None,
        };
        let start = start.map_or(Bound::Unbounded, |(fence, _)| Bound::Included(fence));
        let range = if upwards { (start, Bound::Unbounded) } else { (Bound::Unbounded, start) };
        let entries: Option<LmdbEntries<'t>> = match (is_wiped, upwards) {
            (true, _) => None,
            (false, true) => {
                Some(Box::new(records.range(snapshot, &range).map_err(|error| store.lmdb_error(&error))?))
            }
            (false, false) => {
                Some(Box::new(records.rev_range(snapshot, &range).map_err(|error| store.lmdb_error(&error))?))
            }
        };
        Ok(BaseRecords::new_with(entries, store, from, upwards))
    }

    fn new_with(
        entries: Option<LmdbEntries<'t>>,
        store: &'t TreeStore,
        from: Bound<&'t [u8]>,
        upwards: bool,
    ) -> BaseRecords<'t> {
        let (group, place, block) = (LongKeyGroupRest::default(), Vec::new(), BlockRest::default());
        BaseRecords { entries, store, from, upwards, skips_damaged: false, head: None, group, place, block }
    }

    /// Returns the next record. The caller must have called `fill` since the last `advance`.
    #[inline]
    fn head(&self) -> Option<(&[u8], Record<'_>)> {
        match &self.head {
            None => None,
            Some(BaseHead::Plain(key, record)) => Some((*key, *record)),
            Some(BaseHead::InGroup(record)) => Some((place::to_key(&self.place), *record)),
            Some(BaseHead::InBlock(number)) => self.block.get(*number),
        }
    }

    #[inline]
    fn advance(&mut self) {
        self.head = None;
    }

    #[inline]
    fn fill(&mut self) -> Result<()> {
        while self.head.is_none() {
            let records = &mut self.group.records;
            if let Some((rest, stored)) = if self.upwards { records.pop_front() } else { records.pop_back() }
            {
                self.place.clear();
                self.place.extend_from_slice(self.group.at);
                self.place.extend_from_slice(rest);
                let key = place::to_key(&self.place);
                let is_in = match self.from {
                    Bound::Unbounded => true,
                    Bound::Included(from) => along(self.upwards, key, from).is_ge(),
                    Bound::Excluded(from) => along(self.upwards, key, from).is_gt(),
                };
                if is_in {
                    let record = long_key_group::decode(self.group.checksums, key, stored);
                    self.head = self.if_intact(key, record)?.map(BaseHead::InGroup);
                }
                continue;
            }
            let remaining = &mut self.block.remaining;
            if let Some(number) = if self.upwards { remaining.next() } else { remaining.next_back() } {
                self.head = Some(BaseHead::InBlock(number));
                return Ok(());
            }
            let Some(entries) = &mut self.entries else { return Ok(()) };
            let Some(entry) = entries.next() else {
                self.entries = None;
                return Ok(());
            };
            let (at, value) = entry.map_err(|error| self.store.lmdb_error(&error))?;
            if self.store.is_in_blocks() {
                match self.block.load(self.store, (at, value), (self.from, self.upwards)) {
                    Err(error) if error.kind() == ErrorKind::Corrupt && self.skips_damaged => {}
                    outcome => outcome?,
                }
            } else if at.len() < place::PLACE_LEN_MAX {
                let key = place::to_key(at);
                let record = self.store.checksums().decode(key, value);
                self.head = self.if_intact(key, record)?.map(|record| BaseHead::Plain(key, record));
            } else {
                match self.store.group(at, value) {
                    Ok(group) => self.group = LongKeyGroupRest::of(at, group),
                    Err(error) if error.kind() == ErrorKind::Corrupt && self.skips_damaged => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Returns the record. Returns `None` if the record is damaged and damage is skipped.
    #[inline]
    fn if_intact(&self, key: &[u8], record: Option<Record<'t>>) -> Result<Option<Record<'t>>> {
        match record {
            Some(record) => Ok(Some(record)),
            None => self.damaged(key).map(|()| None),
        }
    }

    #[cold]
    fn damaged(&self, key: &[u8]) -> Result<()> {
        let error = self.store.damaged(key);
        if self.skips_damaged { Ok(()) } else { Err(error) }
    }
}

impl<'t> BlockRest<'t> {
    /// Replaces the block by the next one. Records before the bound are left out.
    fn load(
        &mut self,
        store: &TreeStore,
        (fence, value): (&'t [u8], &'t [u8]),
        (from, upwards): (Bound<&[u8]>, bool),
    ) -> Result<()> {
        self.keys.clear();
        self.records.clear();
        self.remaining = 0..0;
        let plain = store.block_records(fence, value, &mut self.buffer)?;
        let mut records = BlockRecords::new(plain);
        while let Some(stored) = records.next().map_err(|_| store.damaged_block(fence))? {
            match (from, upwards) {
                (Bound::Included(from), true) if records.key() < from => continue,
                (Bound::Excluded(from), true) if records.key() <= from => continue,
                (Bound::Included(from), false) if records.key() > from => break,
                (Bound::Excluded(from), false) if records.key() >= from => break,
                _ => {}
            }
            if record::decode(stored).is_none() {
                return Err(store.damaged_block(fence));
            }
            let at = stored.as_ptr() as usize - plain.as_ptr() as usize;
            let key = self.keys.len()..self.keys.len() + records.key().len();
            self.keys.extend_from_slice(records.key());
            self.records.push(BlockSpan { key, stored: at..at + stored.len() });
        }
        let plain_len = plain.len();
        self.plain = match record_block::is_compressed(value) {
            true => None,
            false => Some(&value[value.len() - plain_len..]),
        };
        self.remaining = 0..self.records.len();
        Ok(())
    }

    /// Returns the key and the record with this number.
    #[inline]
    fn get(&self, number: usize) -> Option<(&[u8], Record<'_>)> {
        let span = self.records.get(number)?;
        let stored = &self.plain.unwrap_or(&self.buffer)[span.stored.clone()];
        Some((&self.keys[span.key.clone()], record::decode(stored)?))
    }
}

impl<'t> LongKeyGroupRest<'t> {
    fn of(at: &'t [u8], group: LongKeyGroup<'t>) -> LongKeyGroupRest<'t> {
        let checksums = group.checksums();
        LongKeyGroupRest { at, records: group.records.into(), checksums }
    }
}
