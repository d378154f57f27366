//! A part of the index: 64 pages, and what its records take in each segment.

use super::page::{Location, Page, Slot, tag_of};
use super::segment::Table;
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
pub(crate) struct Shard {
    pub(crate) part: Part,
    /// The segments, as of so many changes of their table.
    pub(crate) table: Arc<Table>,
    pub(crate) version: u64,
}

impl Deref for Shard {
    type Target = Part;

    #[inline]
    fn deref(&self) -> &Part {
        &self.part
    }
}

impl DerefMut for Shard {
    #[inline]
    fn deref_mut(&mut self) -> &mut Part {
        &mut self.part
    }
}

/// Which records there are, and where.
pub(crate) struct Part {
    pub(crate) pages: Vec<Page>,
    /// Bytes of the entries that count, by the slot of their segment.
    pub(crate) live: Vec<u64>,
    pub(crate) records: u64,
}

impl Shard {
    pub(crate) fn new() -> Shard {
        let pages = (0..PAGES).map(|_| Page::default()).collect();
        Shard { part: Part { pages, live: Vec::new(), records: 0 }, table: Arc::default(), version: 0 }
    }
}

impl Part {
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        let pages: usize = self.pages.iter().map(|page| page.bytes() + size_of::<Page>()).sum();
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
    pub(crate) fn slot_at(&self, hash: u64, at: Location) -> Option<usize> {
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
    pub(crate) fn enter(&mut self, hash: u64, slot: Slot, len: usize, old: Option<(usize, usize)>) {
        match old {
            Some((index, old_len)) => {
                let page = &mut self.pages[page_of(hash)];
                let gone = page.get(index).location().slot;
                page.replace(index, slot);
                self.lose(gone, old_len);
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
    pub(crate) fn enter_at(&mut self, (page, index): (usize, usize), slot: Slot, len: usize, old_len: usize) {
        let page = &mut self.pages[page];
        let gone = page.get(index).location().slot;
        page.replace(index, slot);
        self.lose(gone, old_len);
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
        self.pages.iter_mut().for_each(|page| *page = Page::default());
        self.live.clear();
        self.records = 0;
    }
}
