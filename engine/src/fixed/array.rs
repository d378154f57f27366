//! The array: each record is in the slot of its number.
//!
//! ```text
//! number - 1 = region (upper bits) | segment (9 bits) | slot (11 bits)
//! ```
//!
//! A region is a table of segments, each with a lock. Regions are created by the first visit of one
//! of their numbers, and stay. The memory of a segment is allocated with its first record and
//! released with its last one.
//!
//! Records are never evicted, because the numbers bound the memory. If the memory has a limit, a
//! record that needs a new segment, or memory for attributes, is refused at the limit.

use super::segment::{ATTRIBUTES_BYTES, SLOTS, Segment, WIDTH_MAX, segment_bytes};
use super::{number_of, too_long, visit_no_number};
use parking_lot::{Mutex, RwLock};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{
    Action, Attributes, Engine, EngineStatus, Error, ErrorKind, Expiry, IndexStatus, NumberedEngine, Record,
    Result, ScanPosition, SweepAim, SweepProgress, SweepableEngine, Visitor, key_of_number,
};

const SEGMENTS: usize = 512;
const REGION: u64 = (SEGMENTS * SLOTS) as u64;
/// The number of slots that are read under one lock.
const GROUP: usize = 64;

type Region = [RwLock<Segment>; SEGMENTS];

/// The options with which a [`FixedArray`] is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedArrayOptions {
    /// The largest length of a value: 1 to 64.
    pub width: usize,
    /// The largest number: 1 to 2^32.
    pub number_max: u64,
    /// The largest amount of memory; `None`: no limit but the one that follows from the numbers.
    pub bytes_max: Option<u64>,
}

impl FixedArrayOptions {
    /// Returns true if an array can have these options. Otherwise a [`FixedTree`](super::FixedTree)
    /// is the right engine.
    pub fn are_possible(width: usize, number_max: u64) -> bool {
        (1..=WIDTH_MAX).contains(&width) && (1..=1 << 32).contains(&number_max)
    }
}

/// An array of short values in memory. A record without attributes costs the width and one bit.
///
/// ```
/// use todana_core::{Action, Attributes, Engine, NumberedEngine, Record, Visitor};
/// use todana_engine::{FixedArray, FixedArrayOptions};
///
/// struct Set<'a>(&'a [u8]);
/// impl Visitor for Set<'_> {
///     fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
///         Action::Put(Record::new(self.0, Attributes::default()))
///     }
/// }
///
/// let options = FixedArrayOptions { width: 8, number_max: 1_000_000, bytes_max: None };
/// let array = FixedArray::new(options)?;
/// array.visit(b"17", &mut Set(b"seen"))?;
/// assert!(array.view(b"17", &mut |record| assert_eq!(record.value, b"seen"))?);
/// assert!(array.visit(b"user", &mut Set(b"seen")).is_err());
/// assert!(array.visit(b"17", &mut Set(b"more than 8")).is_err());
/// # Ok::<(), todana_core::Error>(())
/// ```
pub struct FixedArray {
    width: usize,
    number_max: u64,
    bytes_max: u64,
    regions: Box<[OnceLock<Box<Region>>]>,
    /// Held while a region is created, and while no region may be.
    creating: Mutex<()>,
    records: AtomicU64,
    with_expiry: AtomicU64,
    bytes: AtomicU64,
    index_bytes: AtomicU64,
    /// No record has a higher number.
    highest: AtomicU64,
}

impl FixedArray {
    /// Creates an empty array. Fails with `Invalid` if the options are outside their ranges.
    pub fn new(options: FixedArrayOptions) -> Result<FixedArray> {
        let FixedArrayOptions { width, number_max, bytes_max } = options;
        if !FixedArrayOptions::are_possible(width, number_max) {
            let message =
                format!("array: width {width} must be 1 to {WIDTH_MAX}, number {number_max} 1 to 2^32");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(FixedArray {
            width,
            number_max,
            bytes_max: bytes_max.unwrap_or(u64::MAX),
            regions: (0..number_max.div_ceil(REGION)).map(|_| OnceLock::new()).collect(),
            creating: Mutex::new(()),
            records: AtomicU64::new(0),
            with_expiry: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            index_bytes: AtomicU64::new(0),
            highest: AtomicU64::new(0),
        })
    }

    /// Returns the segment of the record with this index, which is its number minus 1.
    #[inline]
    fn segment(&self, index: u64) -> Option<&RwLock<Segment>> {
        let region = self.regions[(index / REGION) as usize].get()?;
        Some(&region[(index % REGION) as usize / SLOTS])
    }

    #[cold]
    fn create_region(&self, index: u64) -> Result<()> {
        let _alone = self.creating.lock();
        let region = &self.regions[(index / REGION) as usize];
        if region.get().is_none() {
            self.reserve(size_of::<Region>())?;
            self.index_bytes.fetch_add(size_of::<Region>() as u64, Ordering::Relaxed);
            let segments: Box<[RwLock<Segment>]> = (0..SEGMENTS).map(|_| RwLock::default()).collect();
            region.get_or_init(|| segments.try_into().unwrap_or_else(|_| unreachable!("it has this length")));
        }
        Ok(())
    }

    /// Counts memory that is about to be allocated. Fails with `Full` at the limit.
    #[cold]
    fn reserve(&self, bytes: usize) -> Result<()> {
        let bytes = bytes as u64;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.bytes_max {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Error::new(
                ErrorKind::Full,
                "array: no memory for another segment or for attributes",
            ));
        }
        Ok(())
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Counts the memory of attributes that a record is about to get. Fails with `Full` at the
    /// limit.
    fn reserve_attributes(&self, old: Attributes, new: Attributes) -> Result<()> {
        let is_first = old == Attributes::default() && new != Attributes::default();
        if is_first { self.reserve(ATTRIBUTES_BYTES) } else { Ok(()) }
    }

    /// Replaces the attributes of a record, for which memory has been reserved.
    #[cold]
    fn set_attributes(&self, segment: &mut Segment, slot: usize, old: Attributes, new: Attributes) {
        match (old.expiry != Expiry::Never, new.expiry != Expiry::Never) {
            (false, true) => drop(self.with_expiry.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.with_expiry.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        if old != Attributes::default() && new == Attributes::default() {
            self.release(ATTRIBUTES_BYTES);
        }
        segment.set_attributes(slot, new);
    }

    /// Removes an existing record.
    fn remove(&self, segment: &mut Segment, slot: usize, old: Attributes) {
        if old != Attributes::default() {
            self.set_attributes(segment, slot, old, Attributes::default());
        }
        segment.remove(slot, self.width);
        segment.records -= 1;
        self.records.fetch_sub(1, Ordering::Relaxed);
        if segment.records == 0 {
            segment.release();
            self.release(segment_bytes(self.width));
        }
    }

    /// Stores a record in a slot.
    #[inline]
    fn put(&self, segment: &mut Segment, index: u64, old: Option<Attributes>, new: Record<'_>) -> Result<()> {
        if new.value.len() > self.width {
            return Err(too_long(index + 1, new.value.len(), self.width));
        }
        let needs_segment = !segment.is_allocated();
        if needs_segment {
            self.reserve(segment_bytes(self.width))?;
        }
        if let Err(error) = self.reserve_attributes(old.unwrap_or_default(), new.attributes) {
            if needs_segment {
                self.release(segment_bytes(self.width));
            }
            return Err(error);
        }
        let slot = index as usize % SLOTS;
        segment.put(slot, self.width, new.value);
        if old.is_none() {
            segment.records += 1;
            self.records.fetch_add(1, Ordering::Relaxed);
            if self.highest.load(Ordering::Relaxed) <= index {
                self.highest.fetch_max(index + 1, Ordering::Relaxed);
            }
        }
        let old = old.unwrap_or_default();
        if old != new.attributes {
            self.set_attributes(segment, slot, old, new.attributes);
        }
        Ok(())
    }

    fn visit_index(&self, index: u64, visitor: &mut dyn Visitor) -> Result<()> {
        let segment = match self.segment(index) {
            Some(segment) => segment,
            None => {
                self.create_region(index)?;
                self.segment(index).expect("it was created above")
            }
        };
        let mut segment = segment.write();
        let slot = index as usize % SLOTS;
        // The visitor sees a copy, because its action may borrow from the old record.
        let mut buffer = [0; WIDTH_MAX];
        let old = segment.record(slot, self.width).map(|old| {
            let value = &mut buffer[..old.value.len()];
            value.copy_from_slice(old.value);
            Record::new(&*value, old.attributes)
        });
        let attributes = old.map(|old| old.attributes);
        match (visitor.visit(old), attributes) {
            (Action::Put(record), attributes) => self.put(&mut segment, index, attributes, record)?,
            (Action::Retag(new), Some(old)) => {
                self.reserve_attributes(old, new)?;
                self.set_attributes(&mut segment, slot, old, new);
            }
            (Action::Remove, Some(old)) => self.remove(&mut segment, slot, old),
            (Action::Keep, _) | (_, None) => return Ok(()),
        }
        visitor.applied(segment.record(slot, self.width));
        Ok(())
    }

    /// Shows the records with indexes in a range of at most one group, under one lock. Returns the
    /// flow, and the number of slots without a record that follow at least.
    fn see_group(
        &self,
        (from, to): (u64, u64),
        is_descending: bool,
        see: &mut dyn FnMut(u64, Record<'_>) -> ControlFlow<()>,
    ) -> (ControlFlow<()>, u64) {
        let Some(segment) = self.segment(from) else { return (ControlFlow::Continue(()), REGION) };
        let segment = segment.read();
        if segment.records == 0 {
            return (ControlFlow::Continue(()), SLOTS as u64);
        }
        for step in 0..=to - from {
            let index = if is_descending { to - step } else { from + step };
            if let Some(record) = segment.record(index as usize % SLOTS, self.width)
                && see(index + 1, record).is_break()
            {
                return (ControlFlow::Break(()), 0);
            }
        }
        (ControlFlow::Continue(()), 0)
    }

    /// Shows the records with numbers in a range, until `see` breaks.
    fn walk(
        &self,
        numbers: RangeInclusive<u64>,
        is_descending: bool,
        see: &mut dyn FnMut(u64, Record<'_>) -> ControlFlow<()>,
    ) {
        let group = GROUP as u64;
        let (Some(mut from), highest) =
            (numbers.start().max(&1).checked_sub(1), self.highest.load(Ordering::Relaxed))
        else {
            return;
        };
        let Some(mut to) = (*numbers.end()).min(highest).checked_sub(1) else { return };
        while from <= to {
            // The first or last index of the group that is next, and the slots known to be empty.
            let part = if is_descending {
                (from.max(to / group * group), to)
            } else {
                (from, to.min(from | (group - 1)))
            };
            let (flow, empty) = self.see_group(part, is_descending, see);
            if flow.is_break() {
                return;
            }
            let empty = empty.max(1);
            if is_descending {
                let Some(below) = (part.0 / empty * empty).min(part.0).checked_sub(1) else { return };
                to = below;
            } else {
                from = (part.1 / empty * empty + empty).max(part.1 + 1);
            }
        }
    }
}

impl Engine for FixedArray {
    #[inline]
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let Some(number) = number_of(key, self.number_max) else { return Ok(false) };
        let Some(segment) = self.segment(number - 1) else { return Ok(false) };
        let segment = segment.read();
        let record = segment.record((number - 1) as usize % SLOTS, self.width);
        Ok(record.map(see).is_some())
    }

    #[inline]
    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        match number_of(key, self.number_max) {
            Some(number) => self.visit_index(number - 1, visitor),
            None => visit_no_number(key, self.number_max, visitor),
        }
    }

    fn wait_for_visits(&self) {
        let regions = self.regions.iter().filter_map(OnceLock::get);
        regions.flat_map(|region| region.iter()).for_each(|segment| drop(segment.write()));
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let (mut text, mut next) = ([0; 20], None);
        let from = from.map_or(1, |from| from.number());
        self.walk(from..=self.number_max, false, &mut |number, record| {
            let flow = see(key_of_number(number, &mut text), record);
            next = flow.is_break().then_some(number + 1);
            flow
        });
        Ok(next.map(ScanPosition::Number))
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        let _no_new_region = self.creating.lock();
        let regions = self.regions.iter().filter_map(OnceLock::get);
        let mut segments: Vec<_> =
            regions.flat_map(|region| region.iter()).map(|segment| segment.write()).collect();
        segments.iter_mut().for_each(|segment| segment.release());
        self.records.store(0, Ordering::Relaxed);
        self.with_expiry.store(0, Ordering::Relaxed);
        self.bytes.store(self.index_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.highest.store(0, Ordering::Relaxed);
        cleared();
        Ok(())
    }

    fn status(&self) -> EngineStatus {
        let (records, bytes) = (self.records.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let index_bytes = self.index_bytes.load(Ordering::Relaxed);
        EngineStatus {
            records,
            live_bytes: records * self.width as u64,
            committed_bytes: bytes,
            index: IndexStatus { buckets: 0, bytes: index_bytes, is_growing: false },
            ..EngineStatus::default()
        }
    }

    fn numbered(&self) -> Option<&dyn NumberedEngine> {
        Some(self)
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        Some(self)
    }
}

impl NumberedEngine for FixedArray {
    fn width(&self) -> usize {
        self.width
    }

    fn number_max(&self) -> u64 {
        self.number_max
    }

    fn walk_numbers(
        &self,
        numbers: RangeInclusive<u64>,
        is_descending: bool,
        see: &mut dyn FnMut(u64, Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.walk(numbers, is_descending, see);
        Ok(())
    }
}

/// A pass over the tables of attributes. Positions are numbers of segments.
impl SweepableEngine for FixedArray {
    fn sweep(
        &self,
        from: Option<ScanPosition>,
        records_max: usize,
        _aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Result<SweepProgress> {
        let mut progress = SweepProgress::default();
        if self.with_expiry.load(Ordering::Relaxed) == 0 {
            return Ok(progress);
        }
        let first = from.map_or(0, |from| from.number());
        let segments = self.highest.load(Ordering::Relaxed).div_ceil(SLOTS as u64);
        for number in first..segments {
            if progress.seen >= records_max as u64 {
                progress.next = Some(ScanPosition::Number(number));
                break;
            }
            let Some(segment) = self.segment(number * SLOTS as u64) else { continue };
            progress.seen += u64::from(segment.read().records).max(1);
            if segment.read().attributes.is_none() {
                continue;
            }
            let mut segment = segment.write();
            let with_attributes = segment.attributes.iter().flat_map(|table| table.by_slot.iter());
            let expired: Vec<(u16, Attributes)> = with_attributes
                .filter(|(_, attributes)| attributes.expiry != Expiry::Never && is_over(attributes.expiry))
                .map(|(slot, attributes)| (*slot, *attributes))
                .collect();
            for (slot, attributes) in expired {
                self.remove(&mut segment, usize::from(slot), attributes);
                progress.removed += 1;
            }
        }
        Ok(progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Do(Action<'static>);

    impl Visitor for Do {
        fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
            self.0
        }
    }

    fn array(width: usize, number_max: u64, bytes_max: Option<u64>) -> FixedArray {
        FixedArray::new(FixedArrayOptions { width, number_max, bytes_max }).unwrap()
    }

    fn put(array: &FixedArray, number: u64, value: &'static [u8]) -> Result<()> {
        let record = Record::new(value, Attributes::default());
        array.visit(number.to_string().as_bytes(), &mut Do(Action::Put(record)))
    }

    fn numbers(array: &FixedArray, range: RangeInclusive<u64>, is_descending: bool) -> Vec<u64> {
        let mut found = Vec::new();
        array.walk(range, is_descending, &mut |number, _| {
            found.push(number);
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn values_of_all_lengths_are_distinguished() {
        for width in [1, 2, 8, 63, 64] {
            let array = array(width, 1 << 32, None);
            let value: &'static [u8] = &[7; 65];
            for len in 0..=width {
                for number in [1, 64, 2048, 2049, 1 << 20, (1 << 20) + 1, 1 << 32] {
                    put(&array, number, &value[..len]).unwrap();
                    let mut seen = None;
                    array
                        .view(number.to_string().as_bytes(), &mut |record| seen = Some(record.value.len()))
                        .unwrap();
                    assert_eq!(seen, Some(len));
                }
            }
            assert_eq!(put(&array, 1, &value[..width + 1]).unwrap_err().kind(), ErrorKind::Invalid);
            assert_eq!(array.status().records, 7);
        }
    }

    #[test]
    fn array_walks_over_gaps_in_both_directions() {
        let array = array(8, 10 << 20, None);
        let all = [1, 2, 64, 65, 2048, 2049, 5000, 1 << 20, (1 << 20) + 1, 3 << 20, (9 << 20) + 77];
        all.iter().for_each(|&number| put(&array, number, b"v").unwrap());
        for from in [0, 1, 2, 3, 64, 2049, 1 << 20, (9 << 20) + 78] {
            for to in [0, 1, 64, 2048, 4999, (1 << 20) + 1, u64::MAX] {
                let mut expected: Vec<u64> = all.into_iter().filter(|n| (from..=to).contains(n)).collect();
                assert_eq!(numbers(&array, from..=to, false), expected, "{from} to {to}");
                expected.reverse();
                assert_eq!(numbers(&array, from..=to, true), expected, "{to} down to {from}");
            }
        }
    }

    #[test]
    fn keys_that_are_no_numbers_are_refused() {
        let array = array(8, 5000, None);
        for key in [&b""[..], b"0", b"07", b"x", b"7x", b"min", b"5001", b"18446744073709551617"] {
            let record = Record::new(b"v", Attributes::default());
            let error = array.visit(key, &mut Do(Action::Put(record))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(!array.view(key, &mut |_| ()).unwrap());
            array.visit(key, &mut Do(Action::Remove)).unwrap();
        }
        put(&array, 5000, b"v").unwrap();
        assert_eq!(array.status().records, 1);
    }

    #[test]
    fn eight_byte_values_cost_under_8_2_bytes() {
        let array = array(8, 1 << 24, None);
        let count = 3 << 20;
        (1..=count).for_each(|number| put(&array, number, b"12345678").unwrap());
        let per_record = array.status().committed_bytes as f64 / count as f64;
        assert!(per_record <= 8.2, "{per_record}");
        (1..=count)
            .for_each(|number| array.visit(number.to_string().as_bytes(), &mut Do(Action::Remove)).unwrap());
        let status = array.status();
        assert_eq!(
            (status.records, status.committed_bytes),
            (0, status.index.bytes),
            "segments are released"
        );
    }

    #[test]
    fn array_refuses_new_segments_at_its_limit() {
        let limit = size_of::<Region>() + 2 * segment_bytes(8);
        let array = array(8, 1 << 20, Some(limit as u64));
        (1..=4096).for_each(|number| put(&array, number, b"v").unwrap());
        assert_eq!(put(&array, 4097, b"v").unwrap_err().kind(), ErrorKind::Full);
        put(&array, 5, b"again").unwrap();
        (1..=2048)
            .for_each(|number| array.visit(number.to_string().as_bytes(), &mut Do(Action::Remove)).unwrap());
        put(&array, 4097, b"v").unwrap();
        assert_eq!(array.status().records, 2049);
    }

    /// Flags and expiries of existing records once took about 80 times the limit.
    #[test]
    fn array_refuses_attributes_at_its_limit() {
        let limit = (size_of::<Region>() + segment_bytes(1) + 3 * ATTRIBUTES_BYTES) as u64;
        let array = array(1, 1 << 20, Some(limit));
        (1..=2048).for_each(|number| put(&array, number, b"v").unwrap());
        let flagged = Attributes { flags: 7, ..Attributes::default() };
        let put_flagged = |number: u64| {
            let record = Record::new(b"w", flagged);
            array.visit(number.to_string().as_bytes(), &mut Do(Action::Put(record)))
        };
        let retag = |number: u64, attributes| {
            array.visit(number.to_string().as_bytes(), &mut Do(Action::Retag(attributes)))
        };
        put_flagged(1).unwrap();
        put_flagged(2).unwrap();
        retag(3, flagged).unwrap();
        assert_eq!(put_flagged(4).unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(retag(5, flagged).unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(put_flagged(2049).unwrap_err().kind(), ErrorKind::Full);
        assert_eq!((array.status().records, array.status().committed_bytes), (2048, limit));
        let mut seen = Vec::new();
        array
            .view(b"4", &mut |record| seen = [record.value, &[record.attributes.flags as u8]].concat())
            .unwrap();
        assert_eq!(seen, b"v\0");
        retag(1, Attributes::default()).unwrap();
        put_flagged(4).unwrap();
    }

    #[test]
    fn descent_starts_at_the_end_after_clear() {
        let array = array(8, 1 << 20, None);
        put(&array, 900_000, b"v").unwrap();
        array.clear(&mut || ()).unwrap();
        put(&array, 3, b"v").unwrap();
        assert_eq!(numbers(&array, 1..=u64::MAX, true), [3]);
    }
}
