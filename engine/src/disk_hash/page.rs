//! Defines a page of the index: a table of slots in the order of their hashes, which is searched by
//! interpolation.
//!
//! ```text
//! slot = 21 bits of the hash | 5 bits size class | 14 bits segment slot | 24 bits offset / 8      0: empty
//! ```
//!
//! A page uses linear probing, but keeps the slots in the order of the hashes. The home of a hash
//! is its proportional position in the table. A slot is stored at its home or after it, without a
//! gap between the two. A table can therefore grow by an eighth in one pass, which keeps the table
//! at least three quarters full, and a search ends at the first greater hash.
//!
//! Invariants: nonempty slots ascend by hash; each lies at its home or after it, without an empty
//! slot between.

use crate::raw::{self, WINDOW, WordTable};

/// The location of an entry: the slot of its segment, and its offset in units of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryLocation {
    pub(crate) slot: u32,
    pub(crate) unit: u32,
}

pub(crate) const SLOT_BITS: u32 = 14;
pub(crate) const UNIT_BITS: u32 = 24;
const CLASS_BITS: u32 = 5;
const TAG_BITS: u32 = 64 - SLOT_BITS - UNIT_BITS - CLASS_BITS;
const TAG_SHIFT: u32 = 64 - TAG_BITS;
/// The class of all entries that are too long for the other classes.
pub(crate) const CLASS_MAX: u32 = (1 << CLASS_BITS) - 1;

/// Returns the maximum length of an entry of a class; `None` for the last class.
#[inline]
pub(crate) fn class_bound(class: u32) -> Option<usize> {
    if class >= CLASS_MAX {
        return None;
    }
    let power = 32usize << (class / 2);
    // 92,681 is the square root of 2, multiplied by 2 to the power of 16.
    Some(if class.is_multiple_of(2) { power } else { (power * 92_681) >> 16 & !7 })
}

/// Returns the minimum length of an entry of a class.
pub(crate) fn least_len(class: u32) -> usize {
    class.checked_sub(1).and_then(class_bound).map_or(8, |bound| bound / 8 * 8 + 8)
}

/// Returns the class of an entry of this length.
#[inline]
pub(crate) fn class_of(len: usize) -> u32 {
    if len <= 32 {
        return 0;
    }
    // The search begins with the power of two below `len` and goes up by at most two classes.
    let power = (len - 1).ilog2();
    let class = ((power - 5) * 2 + 1).min(CLASS_MAX);
    match class_bound(class) {
        Some(bound) if len > bound => class + 1,
        _ => class,
    }
}

/// A slot of the table, as it is stored in memory and in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexSlot(pub(crate) u64);

impl IndexSlot {
    #[inline]
    pub(crate) fn new(tag: u32, class: u32, at: EntryLocation) -> IndexSlot {
        IndexSlot(
            u64::from(tag) << TAG_SHIFT
                | u64::from(class) << (SLOT_BITS + UNIT_BITS)
                | u64::from(at.slot) << UNIT_BITS
                | u64::from(at.unit),
        )
    }

    #[inline]
    pub(crate) fn tag(self) -> u32 {
        (self.0 >> TAG_SHIFT) as u32
    }

    #[inline]
    pub(crate) fn class(self) -> u32 {
        (self.0 >> (SLOT_BITS + UNIT_BITS)) as u32 & CLASS_MAX
    }

    #[inline]
    pub(crate) fn location(self) -> EntryLocation {
        EntryLocation {
            slot: (self.0 >> UNIT_BITS) as u32 & ((1 << SLOT_BITS) - 1),
            unit: self.0 as u32 & ((1 << UNIT_BITS) - 1),
        }
    }
}

/// Returns the part of a hash that a page uses: the 21 bits after the 12 bits that select the page.
#[inline]
pub(crate) fn tag_of(hash: u64) -> u32 {
    (hash << 12 >> TAG_SHIFT) as u32
}

/// The number of slots that are added after the last home.
const OVERFLOW_SLOTS: usize = 8;

/// A page of the index.
#[derive(Default)]
pub(crate) struct IndexPage {
    slots: WordTable,
    /// The number of homes. There may be more slots than homes, because slots may follow the last
    /// home.
    homes: u32,
    count: u32,
}

impl IndexPage {
    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * u64::from(self.homes)) >> TAG_BITS) as usize
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns the memory that the page uses.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * 8
    }

    /// Prefetches the slots of a tag.
    #[inline]
    pub(crate) fn prefetch(&self, tag: u32) {
        if let Some(slot) = self.slots.get(self.home(tag)) {
            raw::prefetch(slot);
        }
    }

    /// Returns the index of the first slot with this tag.
    #[inline]
    pub(crate) fn first(&self, tag: u32) -> Option<usize> {
        let mut from = self.home(tag);
        // Empty slots have the same bits as slots of tag 0.
        if tag == 0 || self.slots.len() < WINDOW {
            return self.first_linear(tag, from);
        }
        loop {
            // No slot before the home has this tag, so the window may begin earlier.
            from = from.min(self.slots.len() - WINDOW);
            let window = self.slots[from..].first_chunk()?;
            let found = raw::equal(window, TAG_SHIFT, u64::MAX, tag.into());
            if found != 0 {
                return Some(from + found.trailing_zeros() as usize);
            }
            let last = window[WINDOW - 1];
            from += WINDOW;
            if last == 0 || IndexSlot(last).tag() > tag || from >= self.slots.len() {
                return None;
            }
        }
    }

    fn first_linear(&self, tag: u32, from: usize) -> Option<usize> {
        for (index, &bits) in self.slots.iter().enumerate().skip(from) {
            let found = IndexSlot(bits).tag();
            if bits == 0 || found > tag {
                return None;
            }
            if found == tag {
                return Some(index);
            }
        }
        None
    }

    /// Returns `index` if the slot at `index` has the tag, otherwise `None`. The slot before it
    /// must have the tag.
    #[inline]
    pub(crate) fn next(&self, tag: u32, index: usize) -> Option<usize> {
        let bits = *self.slots.get(index)?;
        (bits != 0 && IndexSlot(bits).tag() == tag).then_some(index)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> IndexSlot {
        IndexSlot(self.slots[index])
    }

    /// Replaces a slot by another slot with the same tag.
    #[inline]
    pub(crate) fn replace(&mut self, index: usize, slot: IndexSlot) {
        debug_assert_eq!(IndexSlot(self.slots[index]).tag(), slot.tag());
        self.slots[index] = slot.0;
    }

    pub(crate) fn insert(&mut self, slot: IndexSlot) {
        if u64::from(self.count) * 8 >= u64::from(self.homes) * 7 {
            self.rebuild((self.homes + self.homes / 8 + 1).max(8));
        }
        self.count += 1;
        let mut index = self.home(slot.tag());
        if self.slots.len() >= WINDOW {
            let from = index.min(self.slots.len() - WINDOW);
            if let Some(window) = self.slots[from..].first_chunk_mut() {
                let (behind, empty) = raw::greater_or_zero(window, TAG_SHIFT, slot.tag().into());
                let at = (behind & u32::MAX << (index - from)).trailing_zeros();
                let gap = (empty & u32::MAX.checked_shl(at).unwrap_or(0)).trailing_zeros() as usize;
                if gap < WINDOW {
                    raw::insert(window, at as usize, gap, slot.0);
                    return;
                }
            }
        }
        while index < self.slots.len()
            && self.slots[index] != 0
            && IndexSlot(self.slots[index]).tag() <= slot.tag()
        {
            index += 1;
        }
        let gap = self.slots[index..].iter().position(|&bits| bits == 0);
        match gap {
            Some(gap) => {
                self.slots.copy_within(index..index + gap, index + 1);
                self.slots[index] = slot.0;
            }
            None => {
                let end = self.slots.len();
                self.slots = grown(&self.slots);
                self.slots.copy_within(index..end, index + 1);
                self.slots[index] = slot.0;
            }
        }
    }

    pub(crate) fn remove(&mut self, index: usize) {
        let mut end = index + 1;
        while end < self.slots.len()
            && self.slots[end] != 0
            && self.home(IndexSlot(self.slots[end]).tag()) < end
        {
            end += 1;
        }
        self.slots.copy_within(index + 1..end, index);
        self.slots[end - 1] = 0;
        self.count -= 1;
        if self.homes > 8 && self.count < self.homes / 2 {
            self.rebuild((self.count + self.count * 2 / 5 + 1).max(8));
        }
    }

    /// Appends the slots that point to a segment, with their indices, in order.
    pub(crate) fn slots_of_segment(&self, segment: u32, into: &mut Vec<(usize, IndexSlot)>) {
        let (windows, rest) = self.slots.as_chunks();
        let mut note = |index: usize| {
            if self.slots[index] != 0 {
                into.push((index, IndexSlot(self.slots[index])));
            }
        };
        for (nth, window) in windows.iter().enumerate() {
            let mut found = raw::equal(window, UNIT_BITS, (1 << SLOT_BITS) - 1, segment.into());
            while found != 0 {
                note(nth * WINDOW + found.trailing_zeros() as usize);
                found &= found - 1;
            }
        }
        let start = windows.len() * WINDOW;
        let leads = |(_, bits): &(usize, &u64)| IndexSlot(**bits).location().slot == segment;
        rest.iter().enumerate().filter(leads).for_each(|(index, _)| note(start + index));
    }

    /// Returns the slots in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = IndexSlot> + Clone + '_ {
        self.slots.iter().filter(|&&bits| bits != 0).map(|&bits| IndexSlot(bits))
    }

    /// Creates a page from slots in ascending order of their tags.
    pub(crate) fn from_sorted(sorted: &[u64]) -> IndexPage {
        let mut page = IndexPage::default();
        if !sorted.is_empty() {
            let count = sorted.len() as u32;
            page.fill((count + count / 4 + 1).max(8), sorted);
        }
        page
    }

    /// Removes the slots for which `is_wanted` returns false.
    pub(crate) fn retain(&mut self, mut is_wanted: impl FnMut(IndexSlot) -> bool) {
        let kept: Vec<u64> = self.iter().filter(|&slot| is_wanted(slot)).map(|slot| slot.0).collect();
        if kept.len() != self.len() {
            *self = IndexPage::from_sorted(&kept);
        }
    }

    fn rebuild(&mut self, homes: u32) {
        let old = std::mem::take(&mut self.slots);
        self.fill(homes, &old);
    }

    /// Fills a new table with the nonempty slots of `sorted`.
    fn fill(&mut self, homes: u32, sorted: &[u64]) {
        let mut slots = WordTable::zeroed(homes as usize + OVERFLOW_SLOTS);
        (self.homes, self.count) = (homes, 0);
        let (mut free, mut count) = (0, 0);
        for &bits in sorted {
            // An empty slot is copied to the next free position. The copy changes nothing and
            // avoids an unpredictable branch.
            let index = self.home(IndexSlot(bits).tag()).max(free);
            if index == slots.len() {
                slots = grown(&slots);
            }
            slots[index] = bits;
            let is_there = bits != 0;
            free = index + usize::from(is_there);
            count += u32::from(is_there);
        }
        (self.slots, self.count) = (slots, count);
    }
}

/// Returns a table with the same slots and additional space after the last one.
#[cold]
fn grown(slots: &[u64]) -> WordTable {
    let mut grown = WordTable::zeroed(slots.len() + OVERFLOW_SLOTS);
    grown[..slots.len()].copy_from_slice(slots);
    grown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn size_class_bounds_are_tight() {
        for len in (8..300_000).step_by(8) {
            let class = class_of(len);
            assert!(class_bound(class).is_none_or(|bound| len <= bound), "{len} in {class}");
            assert!(class == 0 || class_bound(class - 1).unwrap() < len, "{len} in {class}");
        }
        assert_eq!(class_of(usize::MAX / 2), CLASS_MAX);
        assert_eq!(class_of(1 << 30), CLASS_MAX);
    }

    #[test]
    fn a_slot_gives_back_its_parts() {
        let at = EntryLocation { slot: (1 << SLOT_BITS) - 1, unit: (1 << UNIT_BITS) - 2 };
        let slot = IndexSlot::new((1 << TAG_BITS) - 1, 17, at);
        assert_eq!((slot.tag(), slot.class(), slot.location()), ((1 << TAG_BITS) - 1, 17, at));
    }

    fn assert_in_order(page: &IndexPage) {
        let mut last = None;
        for (index, &bits) in page.slots.iter().enumerate() {
            if bits == 0 {
                continue;
            }
            let tag = IndexSlot(bits).tag();
            assert!(last.is_none_or(|last| last <= tag));
            assert!(
                page.home(tag) <= index && page.slots[page.home(tag)..index].iter().all(|&bits| bits != 0)
            );
            last = Some(tag);
        }
        assert_eq!(page.iter().count(), page.len());
    }

    #[test]
    fn page_agrees_with_a_set() {
        let mut random = fastrand::Rng::with_seed(7);
        for spread in [1 << TAG_BITS, 50, 1] {
            let (mut page, mut model) = (IndexPage::default(), BTreeSet::new());
            for step in 0..6000u32 {
                let grows = step < 2500 || (4000..5000).contains(&step);
                if grows || random.u8(..) < 60 {
                    let tag = if spread == 50 {
                        random.u32(..spread)
                    } else {
                        (1 << TAG_BITS) - 1 - random.u32(..spread)
                    };
                    let slot = IndexSlot::new(tag, 3, EntryLocation { slot: 1, unit: step + 8 });
                    page.insert(slot);
                    model.insert(slot.0);
                } else if let Some(&bits) = model.iter().nth(random.usize(..model.len().max(1))) {
                    let mut index = page.first(IndexSlot(bits).tag()).unwrap();
                    while page.get(index).0 != bits {
                        index = page.next(IndexSlot(bits).tag(), index + 1).unwrap();
                    }
                    page.remove(index);
                    model.remove(&bits);
                }
                if step % 97 == 0 {
                    assert_in_order(&page);
                    for &bits in &model {
                        let (slot, mut next) = (IndexSlot(bits), page.first(IndexSlot(bits).tag()));
                        while next.is_some_and(|index| page.get(index) != slot) {
                            next = page.next(slot.tag(), next.unwrap() + 1);
                        }
                        assert!(next.is_some(), "{slot:?}");
                        let absent = slot.tag().wrapping_sub(1) & ((1 << TAG_BITS) - 1);
                        let is_there = model.iter().any(|&bits| IndexSlot(bits).tag() == absent);
                        assert_eq!(page.first(absent).is_some(), is_there);
                    }
                }
            }
            assert_eq!(page.iter().map(|slot| slot.0).collect::<BTreeSet<_>>(), model);
            for segment in 0..3 {
                let mut found = Vec::new();
                page.slots_of_segment(segment, &mut found);
                assert_eq!(found.len(), if segment == 1 { model.len() } else { 0 });
                assert!(found.iter().all(|&(index, slot)| page.get(index) == slot));
            }
            page.retain(|slot| slot.location().unit.is_multiple_of(2));
            model.retain(|&bits| IndexSlot(bits).location().unit.is_multiple_of(2));
            assert_in_order(&page);
            assert_eq!(page.iter().map(|slot| slot.0).collect::<BTreeSet<_>>(), model);
        }
    }
}
