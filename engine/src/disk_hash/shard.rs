//! A part of the index: 64 pages, and what its records take in each segment.

use super::page::{EntryLocation, IndexPage, IndexSlot, tag_of};
use super::segment::SegmentTable;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Parts of the index; the highest 6 bits of the hash.
pub(crate) const SHARDS: usize = 64;
/// Pages of a part; the next 6 bits.
pub(crate) const PAGES: usize = 64;

#[inline]
pub(crate) fn shard_of(hash: u64) -> usize {
    (hash >> 58) as usize
}

#[inline]
pub(crate) fn page_of(hash: u64) -> usize {
    (hash >> 52) as usize & (PAGES - 1)
}

/// A part of the index, and the segments that it leads to.
pub(crate) struct IndexShard {
    pub(crate) part: IndexPart,
    /// The segments, as of so many changes of their table.
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

/// Which records there are, and where.
pub(crate) struct IndexPart {
    pub(crate) pages: Vec<IndexPage>,
    /// Bytes of the entries that count, by the slot of their segment.
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
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        let pages: usize = self.pages.iter().map(|page| page.bytes() + size_of::<IndexPage>()).sum();
        (pages + self.live.capacity() * 8) as u64
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live.iter().sum()
    }

    #[inline]
    pub(crate) fn gain(&mut self, slot: u32, len: usize) {
        let slot = slot as usize;
        if self.live.len() <= slot {
            self.live.resize(slot + 1, 0);
        }
        self.live[slot] += len as u64;
    }

    #[inline]
    pub(crate) fn lose(&mut self, slot: u32, len: usize) {
        if let Some(live) = self.live.get_mut(slot as usize) {
            *live = live.saturating_sub(len as u64);
        }
    }

    /// Says that the slots of this hash will be read soon.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.pages[page_of(hash)].prefetch(tag_of(hash));
    }

    /// The index of the slot that leads to this very place.
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

    /// Enters a record, in the place of the one at `index` if there is one, whose entry was `old_len` long.
    #[inline]
    pub(crate) fn enter(&mut self, hash: u64, slot: IndexSlot, len: usize, old: Option<(usize, usize)>) {
        match old {
            Some((index, old_len)) => {
                let page = &mut self.pages[page_of(hash)];
                let old_slot = page.get(index).location().slot;
                page.replace(index, slot);
                self.lose(old_slot, old_len);
            }
            None => {
                self.pages[page_of(hash)].insert(slot);
                self.records += 1;
            }
        }
        self.gain(slot.location().slot, len);
    }

    /// Turns the slot at an index of a page to where the record is now; its entries were and are of these lengths.
    #[inline]
    pub(crate) fn enter_at(
        &mut self,
        (page, index): (usize, usize),
        slot: IndexSlot,
        len: usize,
        old_len: usize,
    ) {
        let page = &mut self.pages[page];
        let old_slot = page.get(index).location().slot;
        page.replace(index, slot);
        self.lose(old_slot, old_len);
        self.gain(slot.location().slot, len);
    }

    /// Takes out the record at `index`, whose entry was `len` long.
    pub(crate) fn leave(&mut self, hash: u64, index: usize, len: usize) {
        let page = &mut self.pages[page_of(hash)];
        let slot = page.get(index).location().slot;
        page.remove(index);
        self.records -= 1;
        self.lose(slot, len);
    }

    pub(crate) fn clear(&mut self) {
        self.pages.iter_mut().for_each(|page| *page = IndexPage::default());
        self.live.clear();
        self.records = 0;
    }
}
