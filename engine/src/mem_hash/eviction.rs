//! Evicts records by the algorithm S3-FIFO (Yang et al., SOSP 2023), applied to one bucket at a
//! time.
//!
//! The records of a bucket form two queues, the small and the main queue. A clock hand visits the
//! buckets of the shard. The hand stops at a bucket in proportion to the number of its records, so
//! that every record is considered equally often. At each stop one record is evicted. If the small
//! queue exceeds its share, its oldest record is evicted, unless that record was used since it
//! arrived; then it moves to the main queue. If the small queue is within its share, the main queue
//! loses its oldest record that was not used since the hand last considered it. A ghost is the
//! trace of an evicted key. A key that returns while the bucket has a ghost of it counts as used.
//!
//! The size of the small queue adapts to returning keys. If a key from the small queue returns, the
//! small queue is too small; if a key from the main queue returns, the small queue is too large (as
//! ARC does with its two lists; Megiddo and Modha, FAST 2003). All constants are those that
//! performed best over several traces; see docs/engines.md, "Eviction".
//!
//! A use of a record in the newest quarter of the small queue does not count: it often belongs
//! together with the arrival, as several reads of a page do.
//!
//! Expired records are removed first, then records of the small queue that have an expiry.
//!
//! If the records of a shard have different sizes, those with the least credit are evicted instead
//! (see `credit`), unless hits shall be counted in bytes. Large records are few in a bucket, so the
//! records of some neighbouring buckets are compared. A bucket keeps the marks that it has until
//! the hand visits it.

use super::credit;
use super::departures::DepartureCause;
use super::group::{self, BucketIndex, RecordPlace, RecordReference};
use super::key::Key;
use super::layout;
use super::queue::{BucketTail, MarkForm, Marking, UseMark, marked, put_tail, tail_len};
use super::quotient::BucketAddress;
use super::row::{self, BucketRow, KeyBuffer, RowKey};
use super::shard::{HashShard, RecordLocation};
use super::uses::{NotedUse, UseKind};
use crate::arena::{Arena, BlockHandle, BlockKind, CompactionEffort, MemoryNeed, NoRoom};
use fastrand::Rng;
use std::ops::Range;
use todana_core::Expiry;

/// The fraction of a bucket that the small queue may use: at first, at least and at most.
const SMALL_FIRST: f32 = 0.2;
const SMALL_LEAST: f32 = 0.1;
const SMALL_MOST: f32 = 0.5;
/// The change of that fraction when the key of one ghost returns, multiplied by the number of
/// records of the shard.
const STEP: f32 = 30.0;

/// The part of the small queue, counted from its newest record, in which uses do not count.
const WINDOW: f32 = 0.25;
/// A group with fewer records of the small queue has no window, because their relative positions
/// say too little about their age.
const WINDOW_GROUP_MIN: usize = 4;

/// The squared ratio of the standard deviation of sizes to their mean, above which records are
/// evicted by their credit, and below which they are not. In between, the form of marks stays.
const MIXED_LEAST: f64 = 0.35;
const ALIKE_MOST: f64 = 0.25;
/// The number of evictions between two looks at the sizes.
const FORM_INTERVAL: u32 = 1024;

/// The difference between two successive sizes of blocks of up to 256 bytes.
const BLOCK_STEP: usize = 8;

/// The maximum number of buckets that get their first marks for one newcomer.
const CONVERSIONS_MAX: u64 = 2;
/// The maximum number of records that are evicted for one newcomer to repay the debt.
const REPAYMENTS_MAX: usize = 64;

/// The number of new records of a shard that are spared while their bucket has others.
const NEWEST_SPARED: usize = 8;

/// The number of records of which the one with the least credit is evicted, and the maximum number
/// of buckets that have them.
const COMPARED_RECORDS: usize = 32;
const COMPARED_BUCKETS: usize = 8;

/// The purpose of evictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionGoal {
    /// As many requests as possible find their record. Of records that are used alike, the largest
    /// is evicted.
    #[default]
    Objects,
    /// As many bytes as possible are read from records that are found. Sizes are ignored.
    Bytes,
}

/// The eviction state of a shard.
pub(super) struct EvictionState {
    pub(super) goal: EvictionGoal,
    /// The form of new marks.
    form: MarkForm,
    /// The number of evictions until the form is chosen again.
    form_due: u32,
    random: Rng,
    /// The low bits of the hashes of the last new records, which are spared. The age of a record is
    /// only estimated if its bucket has several groups.
    newest: [u32; NEWEST_SPARED],
    newest_at: usize,
    /// The bucket at which the clock hand is.
    hand: usize,
    /// The number of records that the hand has passed without an eviction.
    passed_records: f32,
    /// The fraction of a bucket that the small queue may use.
    small_share: f32,
    /// The fractions of recent evictions that came from each queue (moving averages).
    from_small: f32,
    from_main: f32,
    /// The bytes by which the blocks of buckets have grown since memory became scarce, but not more
    /// than memory lacks when the next record is added. Negative if they have become smaller.
    debt: isize,
    /// The number of evictions that gave a bucket its first marks.
    conversions: u64,
    /// True while the evictions are for maintenance rather than for a write.
    pub(super) is_background: bool,
    /// The records that were passed over in the current bucket. The second element is true if the
    /// record was in the small queue.
    passed: Vec<(EvictionCandidate, bool)>,
    /// The records of the current bucket that will remain.
    candidates: Vec<EvictionCandidate>,
}

/// A record of the current bucket.
#[derive(Clone, Copy)]
struct EvictionCandidate {
    /// The index of its row.
    row: u32,
    mark: UseMark,
}

/// The data of a record that are accounted for when the record leaves its bucket.
pub(super) struct DepartingRecord {
    pub(super) plain: usize,
    pub(super) expires: bool,
    /// The low bits of the hash of the record's key.
    pub(super) hash: u32,
    reference: Option<RecordReference>,
}

impl EvictionState {
    pub(super) fn new(goal: EvictionGoal) -> EvictionState {
        EvictionState {
            goal,
            form: MarkForm::Queues,
            form_due: 0,
            random: Rng::with_seed(1),
            newest: [0; NEWEST_SPARED],
            newest_at: 0,
            hand: 0,
            passed_records: 0.0,
            small_share: SMALL_FIRST,
            from_small: 0.5,
            from_main: 0.5,
            debt: 0,
            conversions: 0,
            is_background: false,
            passed: Vec::new(),
            candidates: Vec::new(),
        }
    }

    fn step(&self, records: u64) -> f32 {
        STEP / records.max(1) as f32
    }

    /// Adapts the size of the small queue when a key returns that was evicted. `was_main` states
    /// that it was evicted from the main queue.
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

    /// Returns the index of the record to evict. Records that are passed over on the way move to
    /// the end. `pass` is called for each of them, with true if the record was in the small queue.
    fn choose(
        slots: &mut Vec<EvictionCandidate>,
        small_share: f32,
        expires: impl Fn(EvictionCandidate) -> bool,
        mut pass: impl FnMut(EvictionCandidate, bool),
    ) -> usize {
        let small_max = (small_share * slots.len() as f32).max(1.0);
        loop {
            let smalls = slots.iter().filter(|slot| !slot.mark.is_main()).count();
            let takes_small = smalls == slots.len() || smalls as f32 >= small_max;
            if takes_small {
                let unused = |slot: &&EvictionCandidate| !slot.mark.is_main() && slot.mark.uses() == 0;
                if let Some(at) = slots.iter().position(|slot| unused(&slot) && expires(*slot)) {
                    return at;
                }
            }
            let oldest = slots.iter().position(|slot| slot.mark.is_main() != takes_small);
            // The fallback is never used: the small queue is chosen only if it has a record, and
            // otherwise the main queue has one.
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

    /// Notes a new record, which the next evictions spare.
    fn spare(&mut self, hash: u32) {
        self.newest[self.newest_at % NEWEST_SPARED] = hash;
        self.newest_at += 1;
    }

    /// Chooses the form of new marks by the variation of sizes.
    fn choose_form(&mut self, variation: f64) {
        self.form_due = FORM_INTERVAL;
        if self.goal == EvictionGoal::Objects && variation > MIXED_LEAST {
            self.form = MarkForm::Credits;
        } else if self.goal == EvictionGoal::Bytes || variation < ALIKE_MOST {
            self.form = MarkForm::Queues;
        }
    }

    /// Returns the index of the record with the least credit. Of several, it is one with an expiry
    /// if there is one, and the oldest of them.
    fn least_credit(slots: &[EvictionCandidate], expires: impl Fn(EvictionCandidate) -> bool) -> usize {
        let worth = |slot: &EvictionCandidate| (slot.mark.credit(), !expires(*slot));
        (0..slots.len()).min_by_key(|&at| worth(&slots[at])).unwrap_or(0)
    }
}

impl HashShard {
    /// Returns true if uses of records are noted. That is the case once memory has become scarce
    /// and something may be evicted.
    #[inline]
    pub(super) fn notes_uses(&self) -> bool {
        self.capacity.is_limited() || self.budget.notes_uses()
    }

    /// Counts a use of the record of this key. `stores` states that the record has a new value,
    /// which is unread.
    pub(super) fn enter_use(&mut self, key: &Key<'_>, stores: bool) {
        let bucket = self.directory.bucket_of(key.hash);
        let location = self.find(bucket, key);
        if let Some(of) = self.use_at(bucket, &location) {
            self.enter(of);
        }
        if stores {
            self.mark_stored(bucket, &location);
        }
    }

    /// Returns the use of the record at this location, or `None` if the use would not change the
    /// mark of the record.
    #[inline]
    pub(super) fn use_at(&self, bucket: usize, location: &RecordLocation) -> Option<NotedUse> {
        let place = location.place()?;
        let bytes = self.bytes_of(bucket);
        let of_place = group::index_of(bytes, &self.address(bucket), place);
        let BucketIndex { index, end, records, .. } = of_place;
        let tail = BucketTail::read(bytes, end);
        let form = tail.marking.form().unwrap_or(self.eviction.form);
        if tail.marking == Marking::None {
            // A bucket gets its first marks when a record is evicted from it, or now if its block
            // has space for them.
            let tail_len = tail_len(form, records);
            if tail_len == 1 || size(end + tail_len) != size(end + 1) {
                return None;
            }
        }
        let mark = tail.mark(index);
        let kind = match form {
            MarkForm::Queues => {
                let is_early = !mark.is_main() && is_in_window(&of_place, tail);
                let is_counted = !is_early && mark.used().is_some();
                if !is_counted && mark.is_read() {
                    return None;
                }
                if is_counted { UseKind::Counted } else { UseKind::Read }
            }
            MarkForm::Credits => {
                let size = self.size_at(location)?;
                if !credit::is_news(mark, size) {
                    return None;
                }
                UseKind::OfSize(size)
            }
        };
        Some(NotedUse { bucket, end, index, kind })
    }

    /// Enters the uses that readers have noted. A writer must call this before anything else after
    /// locking the shard.
    #[inline]
    pub(super) fn enter_noted_uses(&mut self) {
        if !self.uses.is_empty() {
            self.enter_all();
        }
    }

    fn enter_all(&mut self) {
        while let Some(of) = self.uses.take() {
            self.enter(of);
        }
    }

    /// Enters a use that was noted. The bucket has not changed since then, except for its marks.
    fn enter(&mut self, NotedUse { bucket, end, index, kind }: NotedUse) {
        let handle = self.directory.get(bucket);
        let bytes = self.arena.bytes(handle);
        let tail = BucketTail::read(bytes, end);
        if tail.marking == Marking::None {
            self.begin_marks(bucket, end);
        }
        let bytes = self.arena.bytes(handle);
        let tail = BucketTail::read(bytes, end);
        let mark = tail.mark(index);
        let mark = match (tail.marking, kind) {
            (Marking::Queues(_), UseKind::Counted) => mark.used(),
            (Marking::Queues(_), UseKind::Read) => Some(mark.read()),
            (Marking::Credits, UseKind::OfSize(size)) => {
                Some(credit::used(mark, size, &mut self.eviction.random))
            }
            _ => None,
        };
        if let Some(mark) = mark {
            let (at, byte) = marked(bytes, end, index, mark);
            self.arena.write(handle, at, &[byte]);
        }
    }

    /// Adds marks to a bucket that has none, whose records end at `end`, and whose block has space
    /// for them. The records stay where they are, because notes of uses refer to them.
    pub(super) fn begin_marks(&mut self, bucket: usize, end: usize) {
        self.collect_rows(bucket);
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        content.extend_from_slice(&self.bytes_of(bucket)[..end]);
        let marking = self.convert_marks(Marking::None, self.eviction.form);
        put_tail(&mut content, marking, self.rows.iter().map(|row| row.mark));
        let _ = self.put_content(bucket, (end, end + 1), (end, &content), MemoryNeed::Upkeep);
        self.content = content;
    }

    /// Gives the collected rows marks of this form instead of those that they have.
    fn convert_marks(&mut self, from: Marking, to: MarkForm) -> Marking {
        if from.form() == Some(to) {
            return from;
        }
        let mut rows = std::mem::take(&mut self.rows);
        for row in &mut rows {
            row.mark = self.converted_mark(row, from, to);
        }
        self.rows = rows;
        Marking::first(to)
    }

    /// Returns the mark of a row in another form.
    pub(super) fn converted_mark(&self, row: &BucketRow, from: Marking, to: MarkForm) -> UseMark {
        let mark = row.mark;
        match (to, from) {
            (MarkForm::Queues, Marking::Credits) => mark.queued(),
            (MarkForm::Credits, Marking::None | Marking::Queues(_)) => {
                credit::fresh(mark.uses(), mark.is_read(), self.stored_size(row))
            }
            _ => mark,
        }
    }

    /// Replaces the contents of a bucket. `old` is the offset at which its records end, and its
    /// length; `new` are those of the new contents, which are empty if there are no records.
    pub(super) fn put_content(
        &mut self,
        bucket: usize,
        (old_end, old_len): (usize, usize),
        (new_end, content): (usize, &[u8]),
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let handle = self.directory.get(bucket);
        let new = if content.is_empty() {
            if !handle.is_none() {
                self.arena.free(handle, old_len, BlockKind::Bucket);
            }
            BlockHandle::NONE
        } else {
            self.replace(handle, old_len, content, need)?
        };
        if self.notes_uses() {
            let block = |len: usize| if len == 0 { 0 } else { size(len) as isize };
            self.eviction.debt += block(content.len()) - block(old_len);
        }
        if new != handle {
            self.directory.set(bucket, new);
        }
        self.bucket_bytes = self.bucket_bytes + new_end - old_end;
        Ok(())
    }

    /// Rewrites a bucket with the records in `rows`, which are in the order of their arrival. They
    /// lie in the bucket or in `new`, and have marks of this form.
    pub(super) fn rewrite(
        &mut self,
        bucket: usize,
        marking: Marking,
        new: &[u8],
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let (mut rows, mut content) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.content));
        let bytes = self.bytes_of(bucket);
        let address = self.address(bucket);
        let (old_end, old_len) = len_of(bytes, &address);
        content.clear();
        layout::put_bucket(&mut rows, [bytes, &[], new], &address, &mut content);
        let new_end = content.len();
        put_end(&mut content, marking, &rows);
        let outcome = self.put_content(bucket, (old_end, old_len), (new_end, &content), need);
        (self.rows, self.content) = (rows, content);
        outcome
    }

    /// Replaces the contents of a block, or moves them to a new block of the right size.
    pub(super) fn replace(
        &mut self,
        old: BlockHandle,
        old_len: usize,
        content: &[u8],
        need: MemoryNeed,
    ) -> Result<BlockHandle, NoRoom> {
        let new = if !old.is_none() && size(old_len) == size(content.len()) {
            old
        } else {
            let need = if content.len() > old_len { need } else { MemoryNeed::Upkeep };
            let new = self.arena.alloc(content.len(), BlockKind::Bucket, need)?;
            if !old.is_none() {
                self.arena.free(old, old_len, BlockKind::Bucket);
            }
            new
        };
        self.arena.write(new, 0, content);
        Ok(new)
    }

    /// Collects the records of a bucket in `rows`, group by group. Returns the form of their marks.
    pub(super) fn collect_rows(&mut self, bucket: usize) -> Marking {
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        let bytes = self.bytes_of(bucket);
        let mut marking = Marking::None;
        if !bytes.is_empty() {
            marking = row::take_apart(bytes, &self.address(bucket), 0, &mut rows).1.marking;
        }
        self.rows = rows;
        marking
    }

    /// Adds a new record to its bucket. The record lies in `new`. If the bucket has a ghost of the
    /// key, the record counts as used.
    pub(super) fn insert(
        &mut self,
        bucket: usize,
        key: &Key<'_>,
        new_row: BucketRow,
        new: &[u8],
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        self.eviction.spare(key.hash as u32);
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        let bytes = self.bytes_of(bucket);
        let address = self.address(bucket);
        let appended = layout::append(bytes, &address, &new_row, new, &mut content);
        let Some(layout::AppendedRow { index, old_end }) = appended else {
            self.content = content;
            return self.insert_anew(bucket, key, new_row, new, need);
        };
        let tail = if bytes.is_empty() { BucketTail::PLAIN } else { BucketTail::read(bytes, old_end) };
        let old_len = if bytes.is_empty() { 0 } else { old_end + BucketTail::len_at(bytes, old_end) };
        let new_end = content.len();
        let mut marking = if bytes.is_empty() { self.first_marking() } else { tail.marking };
        let records = match marking {
            Marking::None => 0,
            _ => group::measure(&content, &address).1,
        };
        let (mark, returned) = self.mark_of_newcomer(&mut marking, key, &new_row);
        let marks = (0..records).map(|number| match number.cmp(&index) {
            std::cmp::Ordering::Less => tail.mark(number),
            std::cmp::Ordering::Equal => mark,
            std::cmp::Ordering::Greater => tail.mark(number - 1),
        });
        put_tail(&mut content, marking, marks);
        self.note_return(returned);
        let outcome = self.put_content(bucket, (old_end, old_len), (new_end, &content), need);
        self.content = content;
        outcome
    }

    /// Returns the marking of an empty bucket that gets a record.
    fn first_marking(&self) -> Marking {
        if self.notes_uses() { Marking::first(self.eviction.form) } else { Marking::None }
    }

    /// Adds a new record to a bucket in which no group takes it.
    fn insert_anew(
        &mut self,
        bucket: usize,
        key: &Key<'_>,
        new_row: BucketRow,
        new: &[u8],
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let mut marking = self.collect_rows(bucket);
        row::sort_by_age(&mut self.rows);
        if self.rows.is_empty() {
            marking = self.first_marking();
        }
        let (mark, returned) = self.mark_of_newcomer(&mut marking, key, &new_row);
        self.note_return(returned);
        self.rows.push(BucketRow { mark, ..new_row });
        self.rewrite(bucket, marking, new, need)
    }

    /// Returns the mark of a new record. If the bucket has a ghost of its key, removes the ghost
    /// and returns the queue from which the key was evicted: true for the main queue.
    fn mark_of_newcomer(
        &self,
        marking: &mut Marking,
        key: &Key<'_>,
        row: &BucketRow,
    ) -> (UseMark, Option<bool>) {
        match marking {
            Marking::None => (UseMark::default(), None),
            Marking::Queues(ghosts) => {
                let returned = ghosts.take(key.hash as u32);
                // A key that was evicted from the main queue still starts in the small queue.
                let mark = returned.map_or_else(UseMark::default, |was_main| UseMark::new(1, !was_main));
                (mark, returned)
            }
            Marking::Credits => (credit::fresh(0, false, self.stored_size(row)), None),
        }
    }

    /// Adapts the size of the small queue to a key that has returned.
    fn note_return(&mut self, returned: Option<bool>) {
        if let Some(was_main) = returned {
            self.eviction.returned(was_main, self.records);
        }
    }

    /// Replaces or removes the record at this place. A new record lies in `new`.
    pub(super) fn replace_row(
        &mut self,
        bucket: usize,
        place: RecordPlace,
        new_row: Option<BucketRow>,
        new: &[u8],
        need: MemoryNeed,
    ) -> Result<(), NoRoom> {
        let BucketIndex { index, .. } = group::index_of(self.bytes_of(bucket), &self.address(bucket), place);
        let marking = self.collect_rows(bucket);
        match new_row {
            Some(row) => {
                let old = &mut self.rows[index];
                *old = BucketRow { mark: old.mark, age: old.age, ..row };
            }
            None => drop(self.rows.remove(index)),
        }
        row::sort_by_age(&mut self.rows);
        self.rewrite(bucket, marking, new, need)
    }

    /// Clears the read mark of the record at this location, because its value is new, and gives it
    /// the credit of its new size.
    fn mark_stored(&mut self, bucket: usize, location: &RecordLocation) {
        let (Some(place), Some(size)) = (location.place(), self.size_at(location)) else { return };
        let handle = self.directory.get(bucket);
        let bytes = self.arena.bytes(handle);
        let BucketIndex { index, end, .. } = group::index_of(bytes, &self.address(bucket), place);
        let tail = BucketTail::read(bytes, end);
        if tail.marking != Marking::None {
            let mark = tail.mark(index);
            let mark = match tail.marking {
                Marking::Credits => credit::fresh(mark.uses(), false, size),
                _ => mark.stored(),
            };
            let (at, byte) = marked(bytes, end, index, mark);
            self.arena.write(handle, at, &[byte]);
        }
    }

    /// Evicts as many bytes as were added, before a newcomer of this plain size is added while
    /// memory is scarce. Returns true if any record was evicted; earlier locations in buckets are
    /// then invalid.
    ///
    /// When memory becomes scarce, all buckets have to get marks, which need the space of many
    /// evicted records. Each newcomer does a bounded part of that work.
    pub(super) fn evict_for_newcomer(&mut self, plain: usize) -> bool {
        let records = self.records;
        let conversions = self.eviction.conversions;
        // What grew while there was room needs no eviction.
        self.eviction.debt = self.eviction.debt.min(self.budget.scarce_bytes() as isize);
        for evicted in 0..2 * self.directory.len() {
            let is_full = self.is_full_for(plain);
            // With a memory limit, evictions repay the debt.
            let is_in_debt = self.eviction.debt > 0 && evicted < REPAYMENTS_MAX && self.budget.is_tight();
            let may_convert = self.eviction.conversions < conversions + CONVERSIONS_MAX;
            if !(is_full || is_in_debt && may_convert) {
                break;
            }
            if self.evict_next().is_none() {
                break;
            }
        }
        // If more was evicted than added, the difference is not kept, because other writers have
        // used that memory.
        self.eviction.debt = self.eviction.debt.max(0);
        self.records != records
    }

    /// Moves the hand to the next bucket where a record must be evicted, and evicts one there.
    /// Returns the number of bytes freed, or `None` if there is nothing to evict.
    fn evict_next(&mut self) -> Option<usize> {
        let buckets = self.directory.len();
        let per_bucket = self.records as f32 / buckets as f32;
        if self.records == 0 {
            return None;
        }
        // Each step passes records on average, so the number of steps is bounded.
        for _ in 0..4 * buckets + 64 {
            if self.eviction.passed_records >= per_bucket && !self.directory.get(self.hand()).is_none() {
                self.eviction.passed_records -= per_bucket;
                let hand = self.hand();
                let bucket = self.with_least_credit(hand);
                return self.evict_from(bucket);
            }
            self.eviction.hand = (self.hand() + 1) % buckets;
            let hand = self.eviction.hand;
            self.eviction.passed_records += group::measure(self.bytes_of(hand), &self.address(hand)).1 as f32;
            // The bucket after this one will be visited soon.
            self.prefetch_bucket((self.eviction.hand + 1) % buckets);
        }
        None
    }

    /// Returns the neighbours of a bucket, with the bucket: about `COMPARED_RECORDS` records, of
    /// which those with the least credit are evicted.
    fn neighbours(&self, bucket: usize) -> Range<usize> {
        let buckets = self.directory.len();
        let wanted = (COMPARED_RECORDS * buckets).div_ceil(self.records.max(1) as usize);
        let count = wanted.next_power_of_two().min(COMPARED_BUCKETS);
        let first = bucket / count * count;
        first..(first + count).min(buckets)
    }

    /// Returns the neighbour of a bucket that has the record with the least credit. Returns the
    /// bucket itself if it has an expired record, or has no credits.
    fn with_least_credit(&mut self, bucket: usize) -> usize {
        if self.eviction.form != MarkForm::Credits {
            return bucket;
        }
        self.collect_rows(bucket);
        let (bytes, now) = (self.bytes_of(bucket), self.budget.now());
        if self.rows.iter().any(|row| !self.expiry_of(bytes, row).is_live(now)) {
            return bucket;
        }
        let neighbours = self.neighbours(bucket);
        neighbours.clone().for_each(|near| self.prefetch_bucket(near));
        let least = |near: usize| {
            let (records, end) = self.credits(near)?;
            let tail = BucketTail::read(self.bytes_of(near), end);
            (0..records).map(|index| tail.mark(index).credit()).min()
        };
        let Some(here) = least(bucket) else { return bucket };
        let others = neighbours.filter(|&near| near != bucket);
        let found = others.filter_map(|near| Some((least(near)?, near))).min();
        found.filter(|&(credit, _)| credit < here).map_or(bucket, |(_, near)| near)
    }

    /// Returns the number of records of a bucket and the offset at which they end, if they have
    /// credits.
    fn credits(&self, bucket: usize) -> Option<(usize, usize)> {
        let bytes = self.bytes_of(bucket);
        if bytes.is_empty() {
            return None;
        }
        let (end, records) = group::measure(bytes, &self.address(bucket));
        (BucketTail::read(bytes, end).marking == Marking::Credits).then_some((records, end))
    }

    /// Subtracts the credit of an evicted record from those of the neighbours of its bucket.
    fn age_neighbours(&mut self, bucket: usize, evicted: UseMark) {
        for near in self.neighbours(bucket).filter(|&near| near != bucket) {
            let Some((records, end)) = self.credits(near) else { continue };
            let handle = self.directory.get(near);
            for index in 0..records {
                let bytes = self.arena.bytes(handle);
                let mark = BucketTail::read(bytes, end).mark(index);
                let aged = credit::after_eviction(mark, evicted, &mut self.eviction.random);
                if aged != mark {
                    let (at, byte) = marked(bytes, end, index, aged);
                    self.arena.write(handle, at, &[byte]);
                }
            }
        }
    }

    fn hand(&self) -> usize {
        // The directory may have shrunk, so the hand may be beyond its end.
        self.eviction.hand % self.directory.len()
    }

    /// Removes all expired records of a bucket. If there are none, evicts one record. Returns the
    /// number of bytes freed. Returns `None` if the system refuses even a smaller block; the bucket
    /// is then unchanged.
    fn evict_from(&mut self, bucket: usize) -> Option<usize> {
        if self.eviction.form_due == 0 {
            self.eviction.choose_form(self.classes.variation());
        }
        self.eviction.form_due -= 1;
        let existing = self.collect_rows(bucket);
        self.eviction.conversions += u64::from(existing == Marking::None);
        let mut marking = self.convert_marks(existing, self.eviction.form);
        row::sort_by_age(&mut self.rows);
        let rows = std::mem::take(&mut self.rows);
        let mut slots = std::mem::take(&mut self.eviction.candidates);
        let mut passed = std::mem::take(&mut self.eviction.passed);
        let mut content = std::mem::take(&mut self.content);
        let address = self.address(bucket);
        let (old_end, old_len) = len_of(self.bytes_of(bucket), &address);
        let now = self.budget.now();
        let mut gone = Vec::new();
        slots.clear();
        passed.clear();
        for (number, row) in rows.iter().enumerate() {
            let slot = EvictionCandidate { row: number as u32, mark: row.mark };
            let is_live = self.expiry_of(self.bytes_of(bucket), row).is_live(now);
            if is_live { &mut slots } else { &mut gone }.push(slot);
        }
        let expired = gone.len();
        // Evict one record. Evict more if the bucket gets its first marks and these need the space.
        let must_fit = self.budget.notes_uses();
        let mut space = size(old_len);
        if existing == Marking::None {
            // If all blocks were full now, no block would become smaller soon.
            space -= self.eviction.random.usize(0..BLOCK_STEP);
        }
        let mut kept = Vec::with_capacity(rows.len());
        let mut wanted = usize::from(gone.is_empty());
        let new_end = loop {
            for _ in 0..wanted {
                let victim = self.take_victim(bucket, &rows, &mut slots, &mut passed, &mut marking);
                gone.push(victim);
            }
            kept.clear();
            kept.extend(slots.iter().map(|slot| BucketRow { mark: slot.mark, ..rows[slot.row as usize] }));
            content.clear();
            layout::put_bucket(&mut kept, [self.bytes_of(bucket), &[], &[]], &address, &mut content);
            let end = content.len();
            put_end(&mut content, marking, &kept);
            let excess = content.len().saturating_sub(space);
            if slots.is_empty() || !must_fit || excess == 0 {
                break end;
            }
            // As many as probably suffice, because each attempt lays out the whole bucket.
            wanted = (excess * slots.len() / content.len()).clamp(1, slots.len());
        };
        for (slot, was_small) in passed.drain(..) {
            let plain = self.size_of(self.bytes_of(bucket), &rows[slot.row as usize]);
            self.departures.count_passed(self.observer.as_deref(), plain, was_small);
        }
        let bytes = self.bytes_of(bucket);
        let departing: Vec<DepartingRecord> =
            gone.iter().map(|slot| self.departing_record(bytes, &rows[slot.row as usize])).collect();
        self.report_evicted(bytes, &rows, &gone[expired..]);
        let outcome = self.put_content(bucket, (old_end, old_len), (new_end, &content), MemoryNeed::Upkeep);
        (self.rows, self.content) = (rows, content);
        (self.eviction.candidates, self.eviction.passed) = (slots, passed);
        outcome.ok()?;
        let evicted = DepartureCause::Evicted { by_write: !self.eviction.is_background };
        let mut freed = old_end.saturating_sub(new_end);
        for (number, departing) in departing.iter().enumerate() {
            freed += if departing.reference.is_some() { departing.plain } else { 0 };
            let cause = if number < expired { DepartureCause::Displaced } else { evicted };
            self.count_departure(departing, cause);
            self.discard(departing);
        }
        Some(freed)
    }

    /// Chooses the record of a bucket to evict, and removes it from `slots`, which must not be
    /// empty. Records that are passed over are appended to `passed`, with true for those in the
    /// small queue.
    fn take_victim(
        &mut self,
        bucket: usize,
        rows: &[BucketRow],
        slots: &mut Vec<EvictionCandidate>,
        passed: &mut Vec<(EvictionCandidate, bool)>,
        marking: &mut Marking,
    ) -> EvictionCandidate {
        let (share, bytes) = (self.eviction.small_share, self.bytes_of(bucket));
        let expires =
            |slot: EvictionCandidate| self.expiry_of(bytes, &rows[slot.row as usize]) != Expiry::Never;
        let mut spared = Vec::new();
        let (at, hash) = loop {
            let at = match marking {
                Marking::Credits => EvictionState::least_credit(slots, expires),
                _ => EvictionState::choose(slots, share, expires, |slot, was_small| {
                    passed.push((slot, was_small));
                }),
            };
            let hash = rows[slots[at].row as usize].low_hash(bytes, self.context()) as u32;
            if slots.len() == 1 || !self.eviction.newest.contains(&hash) {
                break (at, hash);
            }
            spared.push(slots.remove(at));
        };
        let victim = slots.remove(at);
        slots.append(&mut spared);
        if let Marking::Queues(ghosts) = marking {
            let was_main = victim.mark.is_main();
            ghosts.push(hash, was_main);
            self.eviction.gone(was_main, self.records);
        } else {
            for other in slots {
                other.mark = credit::after_eviction(other.mark, victim.mark, &mut self.eviction.random);
            }
            self.age_neighbours(bucket, victim.mark);
        }
        victim
    }

    /// Reports records to a listening observer before they are evicted, because their bytes are
    /// gone afterwards. If the system then refuses the smaller block, which is rare, the reported
    /// records stay.
    fn report_evicted(&self, bytes: &[u8], rows: &[BucketRow], slots: &[EvictionCandidate]) {
        let Some(observer) = self.observer.as_deref().filter(|observer| observer.is_listening()) else {
            return;
        };
        for slot in slots {
            let is_read = slot.mark.is_read();
            let mut buffer = KeyBuffer::default();
            self.view_row(bytes, &rows[slot.row as usize], &mut buffer, &mut |key, record| {
                observer.evicted(key, record, is_read);
            });
        }
    }

    /// Returns the data that must be accounted for when this record leaves its bucket.
    pub(super) fn departing_record(&self, bytes: &[u8], row: &BucketRow) -> DepartingRecord {
        let reference = match row.key {
            RowKey::Stub { reference, .. } => Some(reference),
            _ => None,
        };
        DepartingRecord {
            plain: self.size_of(bytes, row),
            expires: self.expiry_of(bytes, row) != Expiry::Never,
            hash: row.low_hash(bytes, self.context()) as u32,
            reference,
        }
    }

    /// Accounts for a record that has left its bucket, and frees memory outside of the bucket.
    pub(super) fn discard(&mut self, departing: &DepartingRecord) {
        self.records -= 1;
        self.classes.remove(departing.plain);
        if let Some(reference) = departing.reference {
            self.free_referenced(reference);
        }
    }

    /// Frees memory without evicting records. Returns true if any memory was freed.
    pub(super) fn pack(&mut self) -> bool {
        self.compact(CompactionEffort::Leisurely) || self.arena.trim()
    }

    /// Frees memory that takes few moves, without evicting records. Returns true if any was freed.
    pub(super) fn compact_sparse(&mut self) -> bool {
        self.compact(CompactionEffort::Thorough) || self.arena.trim()
    }

    /// Evicts records until at least `bytes` are freed, and then compacts sparse memory. Returns
    /// the number of bytes freed.
    pub(super) fn evict(&mut self, bytes: usize) -> usize {
        let mut freed = 0;
        while freed < bytes {
            let Some(gone) = self.evict_next() else { break };
            freed += gone;
        }
        for _ in 0..4 {
            if !self.compact(CompactionEffort::Thorough) {
                break;
            }
        }
        self.arena.trim();
        freed
    }
}

/// Returns true if the record at a place belongs to the newest part of the small queue, whose uses
/// do not count. Only the records of the same group are looked at: all groups begin and end at
/// about the same ages.
#[inline]
fn is_in_window(of_place: &BucketIndex, tail: BucketTail<'_>) -> bool {
    let BucketIndex { index, ref group, .. } = *of_place;
    let is_small = |other: &usize| !tail.mark(*other).is_main();
    let newer = (index + 1..group.end).filter(is_small).count();
    let all = newer + (group.start..=index).filter(is_small).count();
    all >= WINDOW_GROUP_MIN && newer as f32 + 0.5 < all as f32 * WINDOW
}

fn size(len: usize) -> usize {
    Arena::block_size(len, BlockKind::Bucket)
}

/// Returns the offset at which the records of a bucket end, and the length of the bucket. Both are
/// 0 if the bucket is empty.
pub(super) fn len_of(bytes: &[u8], address: &BucketAddress) -> (usize, usize) {
    if bytes.is_empty() {
        return (0, 0);
    }
    let (end, _) = group::measure(bytes, address);
    (end, end + BucketTail::len_at(bytes, end))
}

/// Appends the tail of a bucket with these records. A bucket without records has none.
pub(super) fn put_end(content: &mut Vec<u8>, marking: Marking, rows: &[BucketRow]) {
    if !rows.is_empty() {
        put_tail(content, marking, rows.iter().map(|row| row.mark));
    }
}
