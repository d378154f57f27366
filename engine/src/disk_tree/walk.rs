//! Walks in the order of the keys, over the front, the frozen front and LMDB at once.
//!
//! A walk goes in stretches. Each has a snapshot and the locks for some hundred records at most; the next goes on behind the last key that
//! the one before has come to. So whoever walks slowly keeps no page and no writer for long, and there is no cursor that a
//! write could disturb.

use super::front::{Entry, Front};
use super::sheaf::{self, Sheaf};
use super::store::Store;
use super::stored::Checksums;
use super::{Layers, place};
use crate::raw::{LmdbSnapshot, LmdbTable};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use todana_core::{ErrorKind, Record, Result};

/// A stretch ends when it has come over so many keys ...
const STRETCH_KEYS: usize = 256;
/// ... or has shown so many bytes.
const STRETCH_BYTES: usize = 1 << 20;
/// So many changes are taken from a front at a time: those first, as most walks are short, then more.
const FIRST_CHANGES: usize = 8;
const MORE_CHANGES: usize = 64;

/// Who is shown the records of a walk.
pub(super) type See<'s> = dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()> + 's;

/// How a stretch has ended.
pub(super) enum End {
    /// There are no more records.
    Done,
    /// It was told to break.
    Broken,
    /// It goes on behind this key.
    Further(Vec<u8>),
}

/// Compares keys in the direction of the walk.
#[inline]
fn along(upwards: bool, a: &[u8], b: &[u8]) -> Ordering {
    if upwards { a.cmp(b) } else { b.cmp(a) }
}

/// How a walk goes.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    pub(super) upwards: bool,
    /// Damaged records are passed over; else the walk fails at the first with `Corrupt`.
    pub(super) skips_damaged: bool,
}

/// Shows records from a bound on, for one stretch.
pub(super) fn stretch(
    layers: &Layers,
    store: &Store,
    from: Bound<&[u8]>,
    Manner { upwards, skips_damaged }: Manner,
    see: &mut See<'_>,
) -> Result<End> {
    let mut active = Changes::new(from, upwards, |from, count, into| {
        layers.active.read().next(from, upwards, count, into);
    });
    let mut frozen = Changes::new(from, upwards, |from, count, into| {
        if let Some(frozen) = &layers.frozen {
            Front::next(frozen, from, upwards, count, into);
        }
    });
    store.read(|snapshot, records| {
        let mut base = Base::new(snapshot, records, store, from, upwards, layers.wiped)?;
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
                // Nothing but LMDB from here on to the end of the stretch.
                loop {
                    let Some((key, record)) = base.head() else { return Ok(End::Done) };
                    bytes += record.value.len();
                    if see(key, record).is_break() {
                        return Ok(End::Broken);
                    }
                    if keys >= STRETCH_KEYS || bytes >= STRETCH_BYTES {
                        return Ok(End::Further(key.to_vec()));
                    }
                    keys += 1;
                    base.advance();
                    base.fill()?;
                }
            };
            // What is before the change comes first, and what the change takes the place of not at all.
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
                    return Ok(End::Broken);
                }
                if keys >= STRETCH_KEYS || bytes >= STRETCH_BYTES {
                    return Ok(End::Further(key.to_vec()));
                }
                base.advance();
                base.fill()?;
            }
            if let Some(record) = change.record() {
                bytes += record.value.len();
                if see(change.key(), record).is_break() {
                    return Ok(End::Broken);
                }
            }
            if keys >= STRETCH_KEYS || bytes >= STRETCH_BYTES {
                return Ok(End::Further(change.key().to_vec()));
            }
        }
    })
}

/// Changes of a front in order, taken from it some at a time, so that no lock is held while they are shown.
struct Changes<'f, F> {
    taken: VecDeque<Entry>,
    more: Vec<Entry>,
    /// Where to go on; `None` when there are no more.
    from: Option<From<'f>>,
    count: usize,
    take: F,
    upwards: bool,
}

enum From<'f> {
    Bound(Bound<&'f [u8]>),
    Behind(Entry),
}

impl<'f, F: FnMut(Bound<&[u8]>, usize, &mut Vec<Entry>)> Changes<'f, F> {
    fn new(from: Bound<&'f [u8]>, upwards: bool, take: F) -> Self {
        let from = Some(From::Bound(from));
        Changes { taken: VecDeque::new(), more: Vec::new(), from, count: FIRST_CHANGES, take, upwards }
    }

    fn peek(&mut self) -> Option<&Entry> {
        if self.taken.is_empty() {
            match self.from.take()? {
                From::Bound(bound) => (self.take)(bound, self.count, &mut self.more),
                From::Behind(last) => (self.take)(Bound::Excluded(last.key()), self.count, &mut self.more),
            }
            debug_assert!(self.more.is_sorted_by(|a, b| along(self.upwards, a.key(), b.key()).is_lt()));
            if self.more.len() == self.count {
                self.from = self.more.last().cloned().map(From::Behind);
            }
            self.count = MORE_CHANGES;
            self.taken.extend(self.more.drain(..));
        }
        self.taken.front()
    }

    fn pop(&mut self) -> Option<Entry> {
        self.peek()?;
        self.taken.pop_front()
    }
}

/// The next LMDB entries in the direction of the walk.
type Entries<'t> = Box<dyn Iterator<Item = heed::Result<(&'t [u8], &'t [u8])>> + 't>;

/// Records of LMDB in order, those of sheaves among them.
struct Base<'t> {
    /// `None` once there are no more.
    entries: Option<Entries<'t>>,
    store: &'t Store,
    /// A sheaf may begin before the bound.
    from: Bound<&'t [u8]>,
    upwards: bool,
    skips_damaged: bool,
    head: Option<Head<'t>>,
    sheaf: SheafRest<'t>,
    /// The place of a record in a sheaf.
    place: Vec<u8>,
}

/// What is left of a sheaf: the beginning of its places, and the rest of each with its record.
#[derive(Default)]
struct SheafRest<'t> {
    at: &'t [u8],
    stalks: VecDeque<sheaf::Stalk<'t>>,
    checksums: Option<Checksums>,
}

enum Head<'t> {
    Plain(&'t [u8], Record<'t>),
    /// Its place is in `place`.
    InSheaf(Record<'t>),
}

impl<'t> Base<'t> {
    fn new(
        snapshot: &'t LmdbSnapshot,
        records: &LmdbTable,
        store: &'t Store,
        from: Bound<&'t [u8]>,
        upwards: bool,
        wiped: bool,
    ) -> Result<Base<'t>> {
        let places = from.map(place::of_key);
        // In a sheaf both sides of the bound may lie.
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
        let entries: Option<Entries<'t>> = match (wiped, upwards) {
            (true, _) => None,
            (false, true) => {
                Some(Box::new(records.range(snapshot, &range).map_err(|error| store.trouble(&error))?))
            }
            (false, false) => {
                Some(Box::new(records.rev_range(snapshot, &range).map_err(|error| store.trouble(&error))?))
            }
        };
        let (sheaf, place) = (SheafRest::default(), Vec::new());
        Ok(Base { entries, store, from, upwards, skips_damaged: false, head: None, sheaf, place })
    }

    /// The next record, if `fill` was called since the last `advance`.
    #[inline]
    fn head(&self) -> Option<(&[u8], Record<'t>)> {
        match &self.head {
            None => None,
            Some(Head::Plain(key, record)) => Some((*key, *record)),
            Some(Head::InSheaf(record)) => Some((place::to_key(&self.place), *record)),
        }
    }

    #[inline]
    fn advance(&mut self) {
        self.head = None;
    }

    #[inline]
    fn fill(&mut self) -> Result<()> {
        while self.head.is_none() {
            let stalks = &mut self.sheaf.stalks;
            if let Some((rest, stored)) = if self.upwards { stalks.pop_front() } else { stalks.pop_back() } {
                self.place.clear();
                self.place.extend_from_slice(self.sheaf.at);
                self.place.extend_from_slice(rest);
                let key = place::to_key(&self.place);
                let is_in = match self.from {
                    Bound::Unbounded => true,
                    Bound::Included(from) => along(self.upwards, key, from).is_ge(),
                    Bound::Excluded(from) => along(self.upwards, key, from).is_gt(),
                };
                if is_in {
                    let record = sheaf::decode(self.sheaf.checksums, key, stored);
                    self.head = self.whole(key, record)?.map(Head::InSheaf);
                }
                continue;
            }
            let Some(entries) = &mut self.entries else { return Ok(()) };
            let Some(entry) = entries.next() else {
                self.entries = None;
                return Ok(());
            };
            let (at, value) = entry.map_err(|error| self.store.trouble(&error))?;
            if at.len() < place::PLACE_LEN_MAX {
                let key = place::to_key(at);
                let record = self.store.checksums().decode(key, value);
                self.head = self.whole(key, record)?.map(|record| Head::Plain(key, record));
            } else {
                match self.store.sheaf(at, value) {
                    Ok(sheaf) => self.sheaf = SheafRest::of(at, sheaf),
                    Err(error) if error.kind() == ErrorKind::Corrupt && self.skips_damaged => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// The record, unless it is damaged and to be passed over.
    #[inline]
    fn whole(&self, key: &[u8], record: Option<Record<'t>>) -> Result<Option<Record<'t>>> {
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

impl<'t> SheafRest<'t> {
    fn of(at: &'t [u8], sheaf: Sheaf<'t>) -> SheafRest<'t> {
        let checksums = sheaf.checksums();
        SheafRest { at, stalks: sheaf.stalks.into(), checksums }
    }
}
