//! Which record goes when memory is scarce: S3-FIFO (Yang et al., SOSP 2023) inside one bucket at a time.
//!
//! A hand goes round the buckets of the shard, in proportion to how many records each holds, so that every record's turn
//! comes equally often. Where it stops, one record goes: the oldest of the small queue, unless it has been used since it
//! came (then it moves to the main queue), or the oldest of the main queue that has not been used since it was last
//! passed over. A key that returns while the bucket remembers it as a ghost counts as used.
//!
//! How many records the small queue holds back follows what returns: a ghost of the small queue says that it is too small,
//! one of the main queue that it is too large (as ARC does with its two lists, Megiddo and Modha, FAST 2003).
//! All constants are those that did best over several traces; see docs/engines.md, "Eviction".
//!
//! Expired records go first, then those of the small queue that expire at all.

use super::departures::Cause;
use super::key::Key;
use super::queue::{Ghosts, Mark, Tail, marked, put_tail, tail_len};
use super::record::{self, Body, END, Elsewhere};
use super::shard::{Shard, Spot, low_hash};
use super::uses::Use;
use crate::arena::{Arena, Effort, Handle, Kind, Need, NoRoom};
use todana_core::Expiry;

/// The share of a bucket that the small queue may keep, at first and at the extremes.
const SMALL_FIRST: f32 = 0.2;
const SMALL_LEAST: f32 = 0.1;
const SMALL_MOST: f32 = 0.5;
/// How far one ghost's return moves that share, times the records of the shard.
const STEP: f32 = 30.0;

/// What a shard knows of its evictions.
pub(super) struct Evictor {
    /// The bucket that the hand is at.
    hand: usize,
    /// Records that the hand has passed and nobody has gone for yet.
    credit: f32,
    /// The share of a bucket that the small queue may keep.
    small_share: f32,
    /// Of the recent evictions, the shares from either queue (moving averages).
    from_small: f32,
    from_main: f32,
    /// Bytes that buckets have grown by since memory became scarce, and nothing has gone for yet; below zero: more has
    /// gone.
    debt: isize,
    /// It works for housekeeping, and for nobody's write.
    pub(super) is_housekeeping: bool,
    /// Those passed over in the bucket at hand, and whether they were in the small queue.
    passed: Vec<(Slot, bool)>,
    /// The records of the bucket at hand, and what is left of them.
    pub(super) slots: Vec<Slot>,
    content: Vec<u8>,
}

/// A record of the bucket at hand.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    at: u32,
    len: u32,
    mark: Mark,
}

/// A record that leaves its bucket, as far as it has to be accounted for.
pub(super) struct Leaving {
    pub(super) plain: usize,
    pub(super) expires: bool,
    /// The low bits of its key's hash.
    pub(super) hash: u32,
    elsewhere: Option<Elsewhere>,
}

impl Evictor {
    pub(super) fn new() -> Evictor {
        Evictor {
            hand: 0,
            credit: 0.0,
            small_share: SMALL_FIRST,
            from_small: 0.5,
            from_main: 0.5,
            debt: 0,
            is_housekeeping: false,
            passed: Vec::new(),
            slots: Vec::new(),
            content: Vec::new(),
        }
    }

    fn step(&self, records: u64) -> f32 {
        STEP / records.max(1) as f32
    }

    /// A key has returned that went from this queue.
    fn returned(&mut self, was_main: bool, records: u64) {
        let (small, main) = (self.from_small.max(0.01), self.from_main.max(0.01));
        let change = if was_main { -(small / main).max(1.0) } else { (main / small).max(1.0) };
        self.small_share = (self.small_share + change * self.step(records)).clamp(SMALL_LEAST, SMALL_MOST);
    }

    fn gone(&mut self, was_main: bool, records: u64) {
        let rate = 1.0 / records.max(1) as f32;
        let toward =
            |average: &mut f32, is_it: bool| *average += rate * (f32::from(u8::from(is_it)) - *average);
        toward(&mut self.from_small, !was_main);
        toward(&mut self.from_main, was_main);
    }

    /// Finds the slot that goes and returns its number; those passed over on the way move to the end, each told of together
    /// with whether it was in the small queue.
    fn choose(
        slots: &mut Vec<Slot>,
        small_share: f32,
        expires: impl Fn(Slot) -> bool,
        mut pass: impl FnMut(Slot, bool),
    ) -> usize {
        let small_max = (small_share * slots.len() as f32).max(1.0);
        loop {
            let smalls = slots.iter().filter(|slot| !slot.mark.is_main()).count();
            let takes_small = smalls == slots.len() || smalls as f32 >= small_max;
            if takes_small {
                let unused = |slot: &&Slot| !slot.mark.is_main() && slot.mark.uses() == 0;
                if let Some(at) = slots.iter().position(|slot| unused(&slot) && expires(*slot)) {
                    return at;
                }
            }
            let oldest = slots.iter().position(|slot| slot.mark.is_main() != takes_small);
            // There is one: of the main queue, as not all are in the small one.
            let at = oldest.unwrap_or(0);
            let uses = slots[at].mark.uses();
            if uses == 0 {
                return at;
            }
            let mut passed = slots.remove(at);
            pass(passed, takes_small);
            passed.mark = passed.mark.passed(if takes_small { 0 } else { uses - 1 });
            slots.push(passed);
        }
    }
}

impl Shard {
    /// Whether uses are to be noted: memory has become scarce, and something may go.
    #[inline]
    pub(super) fn notes_uses(&self) -> bool {
        self.records_max != u64::MAX || self.budget.notes_uses()
    }

    /// Enters that the record of this key has been used; `stores`: by being given another value, which nobody has read.
    pub(super) fn enter_use(&mut self, key: &Key<'_>, stores: bool) {
        let bucket = self.directory.bucket_of(key.hash);
        let spot = self.find(self.directory.get(bucket), key);
        if let Some(of) = self.use_at(bucket, &spot) {
            self.enter(of);
        }
        if let (true, Spot::Here { at } | Spot::Elsewhere { at, .. }) = (stores, spot) {
            self.mark_stored(bucket, at);
        }
    }

    /// The use of what is at the spot, if that would be news.
    #[inline]
    pub(super) fn use_at(&self, bucket: usize, spot: &Spot) -> Option<Use> {
        let (Spot::Here { at } | Spot::Elsewhere { at, .. }) = *spot else { return None };
        let bytes = self.arena.bytes(self.directory.get(bucket));
        let (mut index, mut here) = (0, 0);
        while here < at {
            here = record::next(bytes, here);
            index += 1;
        }
        let end = record::end(bytes, here);
        let is_news = match Tail::read(bytes, end) {
            tail @ Tail::Queue { .. } => tail.mark(index).used().is_some(),
            // A bucket gets its tail with the next change to it, unless there is room for one: reads must not make it
            // grow.
            Tail::Plain => {
                let tail_len = tail_len(records_in(bytes));
                tail_len > 1 && size(end + tail_len) == size(end + 1)
            }
        };
        is_news.then_some(Use { bucket, end, index })
    }

    /// Enters what reads have noted. Whoever gets the shard alone does so before anything else.
    #[inline]
    pub(super) fn settle(&mut self) {
        if !self.uses.is_empty() {
            self.enter_all();
        }
    }

    fn enter_all(&mut self) {
        while let Some(of) = self.uses.take() {
            self.enter(of);
        }
    }

    /// Enters a use. The bucket is as it was when the use was noted, but for its marks.
    fn enter(&mut self, Use { bucket, end, index }: Use) {
        let handle = self.directory.get(bucket);
        let bytes = self.arena.bytes(handle);
        debug_assert_eq!(record::end(bytes, 0), end);
        match Tail::read(bytes, end) {
            tail @ Tail::Queue { .. } => {
                if let Some(mark) = tail.mark(index).used() {
                    let (at, byte) = marked(bytes, end, index, mark);
                    self.arena.write(handle, at, &[byte]);
                }
            }
            Tail::Plain => {
                self.gather(handle);
                let mark = &mut self.evictor.slots[index].mark;
                *mark = mark.used().unwrap_or(*mark);
                let _ = self.rewrite(bucket, Some(Ghosts::default()), None);
            }
        }
    }

    /// Lists the records of a bucket with their marks; returns its ghosts, if it remembers any uses at all.
    pub(super) fn gather(&mut self, handle: Handle) -> Option<Ghosts> {
        self.evictor.slots.clear();
        if handle.is_none() {
            return None;
        }
        let bytes = self.arena.bytes(handle);
        let mut at = 0;
        while let Some(entry) = record::entry(bytes, at) {
            let slot = Slot { at: at as u32, len: entry.len as u32, mark: Mark::default() };
            self.evictor.slots.push(slot);
            at += entry.len;
        }
        let tail = Tail::read(bytes, at);
        for (index, slot) in self.evictor.slots.iter_mut().enumerate() {
            slot.mark = tail.mark(index);
        }
        match tail {
            Tail::Plain => None,
            Tail::Queue { ghosts, .. } => Some(ghosts),
        }
    }

    /// Writes the bucket anew: the slots, in their order, and a newcomer behind them. Without ghosts it remembers nothing.
    pub(super) fn rewrite(
        &mut self,
        bucket: usize,
        ghosts: Option<Ghosts>,
        newcomer: Option<(&[u8], Mark)>,
    ) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let mut content = std::mem::take(&mut self.evictor.content);
        content.clear();
        let (bytes, old_end, old_len) = if handle.is_none() {
            (&[][..], 0, 0)
        } else {
            let bytes = self.arena.bytes(handle);
            let end = record::end(bytes, 0);
            (bytes, end, end + Tail::len_at(bytes, end))
        };
        for slot in &self.evictor.slots {
            content.extend_from_slice(&bytes[slot.at as usize..][..slot.len as usize]);
        }
        if let Some((record, mark)) = newcomer {
            let slot = Slot { at: 0, len: record.len() as u32, mark };
            content.extend_from_slice(record);
            self.evictor.slots.push(slot);
        }
        let new_end = content.len();
        let outcome = if self.evictor.slots.is_empty() {
            if !handle.is_none() {
                self.arena.free(handle, old_len, Kind::Bucket);
            }
            Ok(Handle::NONE)
        } else {
            match ghosts {
                Some(ghosts) => {
                    put_tail(&mut content, ghosts, self.evictor.slots.iter().map(|slot| slot.mark))
                }
                None => content.push(END),
            }
            let need = if newcomer.is_some() { Need::Growth } else { Need::Upkeep };
            self.replace(handle, old_len, &content, need)
        };
        self.evictor.content = content;
        let new = outcome?;
        let new_len = if new.is_none() { 0 } else { self.evictor.content.len() };
        self.evictor.debt += new_len as isize - old_len as isize;
        if new != handle {
            self.directory.set(bucket, new);
        }
        self.bucket_bytes = self.bucket_bytes + new_end - old_end;
        Ok(())
    }

    /// Puts these bytes into the place of a block, or into a new one.
    pub(super) fn replace(
        &mut self,
        old: Handle,
        old_len: usize,
        content: &[u8],
        need: Need,
    ) -> Result<Handle, NoRoom> {
        let new = if !old.is_none() && size(old_len) == size(content.len()) {
            old
        } else {
            let need = if content.len() > old_len { need } else { Need::Upkeep };
            let new = self.arena.alloc(content.len(), Kind::Bucket, need)?;
            if !old.is_none() {
                self.arena.free(old, old_len, Kind::Bucket);
            }
            new
        };
        self.arena.write(new, 0, content);
        Ok(new)
    }

    /// Puts a record that is not there behind the others of its bucket, remembered or not.
    pub(super) fn put_newcomer(&mut self, bucket: usize, key: &Key<'_>, bytes: &[u8]) -> Result<(), NoRoom> {
        let mut ghosts = self.gather(self.directory.get(bucket)).unwrap_or_default();
        let mark = match ghosts.take(key.hash as u32) {
            Some(was_main) => {
                self.evictor.returned(was_main, self.records);
                // One that comes back late waits once more in the small queue.
                Mark::new(1, !was_main)
            }
            None => Mark::default(),
        };
        self.rewrite(bucket, Some(ghosts), Some((bytes, mark)))
    }

    /// Notes that nobody has read the record at `at`.
    fn mark_stored(&mut self, bucket: usize, at: usize) {
        let handle = self.directory.get(bucket);
        let bytes = self.arena.bytes(handle);
        let (mut index, mut here) = (0, 0);
        while here < at {
            here = record::next(bytes, here);
            index += 1;
        }
        let end = record::end(bytes, at);
        let tail = Tail::read(bytes, end);
        if let Tail::Queue { .. } = tail {
            let (at, byte) = marked(bytes, end, index, tail.mark(index).stored());
            self.arena.write(handle, at, &[byte]);
        }
    }

    /// Removes the record at `at` of a bucket that remembers uses.
    pub(super) fn remove_marked(&mut self, bucket: usize, at: usize) -> Result<(), NoRoom> {
        let ghosts = self.gather(self.directory.get(bucket));
        self.evictor.slots.retain(|slot| slot.at as usize != at);
        self.rewrite(bucket, ghosts, None)
    }

    /// Before a newcomer is put in where memory is scarce: lets as much go as has come. True if any record went, so
    /// that what was known of a bucket no longer holds.
    pub(super) fn make_way(&mut self) -> bool {
        let records = self.records;
        for _ in 0..2 * self.directory.len() {
            let is_full = self.records >= self.records_max;
            // A hash that is bounded by bytes pays back what it has taken; when there is room again, all is forgiven.
            let is_in_debt = self.evictor.debt > 0 && self.budget.is_tight();
            if !is_full && !is_in_debt {
                break;
            }
            if self.evict_next().is_none() {
                break;
            }
        }
        if !self.budget.is_tight() {
            self.evictor.debt = 0;
        }
        // What has gone besides is not for later: it has been filled by others.
        self.evictor.debt = self.evictor.debt.max(0);
        self.records != records
    }

    /// Moves the hand on to the next record's turn; returns how many bytes went, `None` if there is nothing.
    fn evict_next(&mut self) -> Option<usize> {
        let buckets = self.directory.len();
        let per_bucket = self.records as f32 / buckets as f32;
        if self.records == 0 {
            return None;
        }
        // Each step but the last brings some credit on average.
        for _ in 0..4 * buckets + 64 {
            if self.evictor.credit >= per_bucket && !self.directory.get(self.hand()).is_none() {
                self.evictor.credit -= per_bucket;
                let bucket = self.hand();
                return self.evict_from(bucket);
            }
            self.evictor.hand = (self.hand() + 1) % buckets;
            let handle = self.directory.get(self.evictor.hand);
            if !handle.is_none() {
                self.evictor.credit += records_in(self.arena.bytes(handle)) as f32;
            }
            // The next one is looked at soon.
            self.prefetch_bucket((self.evictor.hand + 1) % buckets);
        }
        None
    }

    fn hand(&self) -> usize {
        // The directory may have shrunk meanwhile.
        self.evictor.hand % self.directory.len()
    }

    /// Lets one record of a bucket go, or all that have expired; returns the bytes that they took. `None`: the system
    /// refuses even a smaller block, and all stays.
    fn evict_from(&mut self, bucket: usize) -> Option<usize> {
        let handle = self.directory.get(bucket);
        let mut ghosts = self.gather(handle).unwrap_or_default();
        let mut slots = std::mem::take(&mut self.evictor.slots);
        let now = self.budget.now();
        let mut gone = Vec::new();
        slots.retain(|slot| {
            let has_expired = !self.expiry_at(handle, *slot).is_live(now);
            if has_expired {
                gone.push(*slot);
            }
            !has_expired
        });
        let expired = gone.len();
        let bytes = self.arena.bytes(handle);
        let old_end = record::end(bytes, 0);
        let old_size = size(old_end + Tail::len_at(bytes, old_end));
        let mut end = old_end - gone.iter().map(|slot| slot.len as usize).sum::<usize>();
        // One, or as many as it takes to make room for the bucket's first tail.
        let grows = |end: usize, records: usize| size(end + tail_len(records)) > old_size;
        let must_fit = self.budget.notes_uses();
        let mut passed = std::mem::take(&mut self.evictor.passed);
        passed.clear();
        while !slots.is_empty() && (gone.is_empty() || must_fit && grows(end, slots.len())) {
            let share = self.evictor.small_share;
            let expires = |slot| self.expiry_at(handle, slot) != Expiry::Never;
            let at =
                Evictor::choose(&mut slots, share, expires, |slot, was_small| passed.push((slot, was_small)));
            let slot = slots.remove(at);
            let bytes = self.arena.bytes(handle);
            let entry = record::entry(bytes, slot.at as usize).expect("gathered from this bucket");
            let was_main = slot.mark.is_main();
            ghosts.push(low_hash(&self.seeds, bytes, &entry) as u32, was_main);
            self.evictor.gone(was_main, self.records);
            end -= slot.len as usize;
            gone.push(slot);
        }
        for (slot, was_small) in passed.drain(..) {
            let plain = self.leaving(handle, slot).plain;
            self.departures.count_passed(self.observer.as_deref(), plain, was_small);
        }
        self.evictor.passed = passed;
        let leaving: Vec<Leaving> = gone.iter().map(|slot| self.leaving(handle, *slot)).collect();
        self.tell_evicted(handle, &gone[expired..]);
        let evicted = Cause::Evicted { by_write: !self.evictor.is_housekeeping };
        let mut freed = old_end - end;
        self.evictor.slots = slots;
        self.rewrite(bucket, Some(ghosts), None).ok()?;
        for (number, leaving) in leaving.iter().enumerate() {
            freed += if leaving.elsewhere.is_some() { leaving.plain } else { 0 };
            let cause = if number < expired { Cause::Displaced } else { evicted };
            self.count_leaving(leaving, cause);
            self.forget(leaving);
        }
        Some(freed)
    }

    /// Tells the observer, if it listens, of records that are about to go. Their bytes are gone afterwards; so in the rare
    /// case that the system then refuses the smaller block, one is told that stays.
    fn tell_evicted(&self, handle: Handle, slots: &[Slot]) {
        let Some(observer) = self.observer.as_deref().filter(|observer| observer.is_listening()) else {
            return;
        };
        for slot in slots {
            let is_read = slot.mark.is_read();
            self.view_at(handle, slot.at as usize, &mut |key, record| observer.evicted(key, record, is_read));
        }
    }

    /// What is to be accounted for when this record leaves its bucket.
    pub(super) fn leaving(&self, handle: Handle, slot: Slot) -> Leaving {
        let bytes = self.arena.bytes(handle);
        let entry = record::entry(bytes, slot.at as usize).expect("gathered from this bucket");
        let (plain, expires) = self.nature_of(handle, &entry);
        let hash = self.sampled_by(bytes, &entry);
        let elsewhere = match entry.body {
            Body::Stub { elsewhere, .. } => Some(elsewhere),
            Body::Whole(_) => None,
        };
        Leaving { plain, expires, hash, elsewhere }
    }

    /// Accounts for a record that has left its bucket, and frees what lies elsewhere.
    pub(super) fn forget(&mut self, leaving: &Leaving) {
        self.records -= 1;
        self.classes.remove(leaving.plain);
        if let Some(elsewhere) = leaving.elsewhere {
            self.free_elsewhere(elsewhere);
        }
    }

    pub(super) fn expiry_at(&self, handle: Handle, slot: Slot) -> Expiry {
        let bytes = self.arena.bytes(handle);
        record::entry(bytes, slot.at as usize).map_or(Expiry::Never, |entry| self.expiry_of(bytes, &entry))
    }

    /// Gives back what can be without a record going; true if something was won.
    pub(super) fn pack(&mut self) -> bool {
        self.compact(Effort::Leisurely) || self.arena.trim()
    }

    /// Lets records go until `bytes` or more are free, then returns what memory that leaves sparse. Returns the bytes
    /// freed.
    pub(super) fn evict(&mut self, bytes: usize) -> usize {
        let mut freed = 0;
        while freed < bytes {
            let Some(gone) = self.evict_next() else { break };
            freed += gone;
        }
        for _ in 0..4 {
            if !self.compact(Effort::Thorough) {
                break;
            }
        }
        self.arena.trim();
        freed
    }
}

fn size(len: usize) -> usize {
    Arena::block_size(len, Kind::Bucket)
}

/// How many records a bucket holds.
pub(super) fn records_in(bytes: &[u8]) -> usize {
    let (mut records, mut at) = (0, 0);
    let end = record::end(bytes, 0);
    while at < end {
        at = record::next(bytes, at);
        records += 1;
    }
    records
}
