//! Defines a shard of the index: 64 pages, and the number of live bytes of their records in each
//! segment.

use super::page::{EntryLocation, IndexPage, IndexSlot, tag_of};
use super::segment::SegmentTable;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The number of shards. The highest 6 bits of the hash select the shard.
pub(crate) const SHARDS: usize = 64;
/// The number of pages in a shard. The next 6 bits of the hash select the page.
pub(crate) const PAGES: usize = 64;

#[inline]
pub(crate) fn shard_of(hash: u64) -> usize {
    (hash >> 58) as usize
}

#[inline]
pub(crate) fn page_of(hash: u64) -> usize {
    (hash >> 52) as usize & (PAGES - 1)
}

/// A shard of the index, with the table of the segments to which it points.
pub(crate) struct IndexShard {
    pub(crate) part: IndexPart,
    /// The table of segments as it was at `version`.
    pub(crate) table: Arc<SegmentTable>,
    pub(crate) version: u64,
}

impl Deref for IndexShard {
    type Target = IndexPart;

    #[inline]
    fn deref(&self) -> &IndexPart {
        &self.part
    }
}

impl DerefMut for IndexShard {
    #[inline]
    fn deref_mut(&mut self) -> &mut IndexPart {
        &mut self.part
    }
}

/// The pages of a shard, with the locations of its records.
pub(crate) struct IndexPart {
    pub(crate) pages: Vec<IndexPage>,
    /// The number of live bytes in each segment, indexed by the slot of the segment.
    pub(crate) live: Vec<u64>,
    pub(crate) records: u64,
}

impl IndexShard {
    pub(crate) fn new() -> IndexShard {
        let pages = (0..PAGES).map(|_| IndexPage::default()).collect();
        IndexShard {
            part: IndexPart { pages, live: Vec::new(), records: 0 },
            table: Arc::default(),
            version: 0,
        }
    }
}

impl IndexPart {
    /// Returns the memory that this part uses.
    pub(crate) fn bytes(&self) -> u64 {
        let pages: usize = self.pages.iter().map(|page| page.bytes() + size_of::<IndexPage>()).sum();
        (pages + self.live.capacity() * 8) as u64
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live.iter().sum()
    }

    #[inline]
    pub(crate) fn add_live(&mut self, slot: u32, len: usize) {
        let slot = slot as usize;
        if self.live.len() <= slot {
            self.live.resize(slot + 1, 0);
        }
        self.live[slot] += len as u64;
    }

    #[inline]
    pub(crate) fn subtract_live(&mut self, slot: u32, len: usize) {
        if let Some(live) = self.live.get_mut(slot as usize) {
            *live = live.saturating_sub(len as u64);
        }
    }

    /// Prefetches the slots of this hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.pages[page_of(hash)].prefetch(tag_of(hash));
    }

    /// Returns the index of the slot that points to this location.
    pub(crate) fn slot_at(&self, hash: u64, at: EntryLocation) -> Option<usize> {
        let (page, tag) = (&self.pages[page_of(hash)], tag_of(hash));
        let mut next = page.first(tag);
        while let Some(index) = next {
            if page.get(index).location() == at {
                return Some(index);
            }
            next = page.next(tag, index + 1);
        }
        None
    }

    /// Enters a record into the index. `old` is the index of the slot to replace and the length of
    /// its entry.
    #[inline]
    pub(crate) fn enter(&mut self, hash: u64, slot: IndexSlot, len: usize, old: Option<(usize, usize)>) {
        match old {
            Some((index, old_len)) => {
                let page = &mut self.pages[page_of(hash)];
                let old_slot = page.get(index).location().slot;
                page.replace(index, slot);
                self.subtract_live(old_slot, old_len);
            }
            None => {
                self.pages[page_of(hash)].insert(slot);
                self.records += 1;
            }
        }
        self.add_live(slot.location().slot, len);
    }

    /// Changes a slot to point to the new location of its record. The old and the new entry of the
    /// record have the given lengths.
    #[inline]
    pub(crate) fn move_entry(
        &mut self,
        (page, index): (usize, usize),
        slot: IndexSlot,
        len: usize,
        old_len: usize,
    ) {
        let page = &mut self.pages[page];
        let old_slot = page.get(index).location().slot;
        page.replace(index, slot);
        self.subtract_live(old_slot, old_len);
        self.add_live(slot.location().slot, len);
    }

    /// Removes the slot at `index`. The entry of its record has a length of `len` bytes.
    pub(crate) fn remove_slot(&mut self, hash: u64, index: usize, len: usize) {
        let page = &mut self.pages[page_of(hash)];
        let slot = page.get(index).location().slot;
        page.remove(index);
        self.records -= 1;
        self.subtract_live(slot, len);
    }

    pub(crate) fn clear(&mut self) {
        self.pages.iter_mut().for_each(|page| *page = IndexPage::default());
        self.live.clear();
        self.records = 0;
    }
}
