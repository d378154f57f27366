//! Removes records by a decision of the engine: expired records, and records to be evicted.

use super::super::leaf::{Leaf, LeafBuilder, LeafEntry, LeafEntryBody, LeafItem};
use super::{LeafLocation, Partition, inline_record};
use crate::arena::{BlockHandle, MemoryNeed, NoRoom};
use crate::mem_hash::{DepartureCause, EvictionObserver};
use crate::mem_tree::survey::VisitEffect;
use crate::mem_tree::uses::UseCounters;
use crate::record::RecordReference;
use todana_core::{Expiry, SweepAim};

/// If some records of a leaf are unused, eviction removes one of this number of records at a time,
/// rounded up.
const SHARE_AT_ONCE: usize = 4;

/// The count of a record that must not be evicted. It is higher than every count of uses.
const SPARED: u8 = u8::MAX;

/// The result of reading one leaf.
pub(in crate::mem_tree) struct LeafScan {
    pub(in crate::mem_tree) seen: u64,
    pub(in crate::mem_tree) any_over: bool,
    /// The lowest possible key of the next leaf.
    pub(in crate::mem_tree) next: Option<Vec<u8>>,
}

impl Partition {
    pub(super) fn expiry_of(&self, leaf: Leaf<'_>, entry: &LeafEntry) -> Expiry {
        match &entry.body {
            LeafEntryBody::Inline(parts) => parts.expiry(leaf.bytes()),
            LeafEntryBody::Stub { reference: RecordReference::Block(block), .. } => {
                let bytes = self.arena.bytes(BlockHandle(*block));
                inline_record(bytes).expiry(bytes)
            }
            LeafEntryBody::Stub { reference: RecordReference::Huge(index), .. } => {
                self.huge.get(*index).attributes.expiry
            }
        }
    }

    /// Reads the leaf of this key for expired records.
    pub(in crate::mem_tree) fn scan_expiries(
        &self,
        slot: u32,
        key: &[u8],
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> LeafScan {
        let at = self.at(slot, key);
        let mut scanned = LeafScan { seen: 0, any_over: false, next: self.segment(slot).end_of(at.leaf) };
        if !at.handle.is_none() {
            self.with_leaf(at.handle, |leaf| {
                for at in leaf.places() {
                    scanned.seen += 1;
                    if leaf.is_plain(at) {
                        continue;
                    }
                    let expiry = self.expiry_of(leaf, &leaf.entry(at));
                    scanned.any_over |= expiry != Expiry::Never && is_over(expiry);
                }
            });
        }
        scanned
    }

    /// Removes the expired records from the leaf of this key. Returns the number of removed
    /// records.
    pub(in crate::mem_tree) fn clean(
        &mut self,
        slot: u32,
        key: &[u8],
        aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> u64 {
        let Ok(at) = self.open_at(slot, key) else { return 0 };
        if at.handle.is_none() {
            return 0;
        }
        let cause = match aim {
            SweepAim::Tidiness => DepartureCause::Swept,
            SweepAim::Room => DepartureCause::Displaced,
        };
        let leaf = self.leaf(at.handle);
        let mut over = |entry: &LeafEntry| {
            let expiry = self.expiry_of(leaf, entry);
            (expiry != Expiry::Never && is_over(expiry)).then_some(cause)
        };
        let causes: Vec<Option<DepartureCause>> = leaf.entries().map(|entry| over(&entry)).collect();
        self.purge(key, at, &causes, MemoryNeed::Upkeep).map_or(0, |(count, _)| count)
    }

    /// Removes the expired records of the leaf of this key. If there are none, evicts the least
    /// used records. Returns the number of bytes freed and the lowest possible key of the next
    /// leaf.
    pub(in crate::mem_tree) fn evict(
        &mut self,
        slot: u32,
        key: &[u8],
        uses: &UseCounters,
        spare: Option<&[u8]>,
        observer: Option<&dyn EvictionObserver>,
    ) -> (usize, Option<Vec<u8>>) {
        let leaf = self.at(slot, key).leaf;
        let next = self.segment(slot).end_of(leaf);
        let Ok(at) = self.open_at(slot, key) else { return (0, next) };
        if at.handle.is_none() {
            return (0, next);
        }
        let now = self.budget.now();
        let leaf = self.leaf(at.handle);
        let (mut causes, mut counts, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for entry in leaf.entries() {
            let expiry = self.expiry_of(leaf, &entry);
            let is_over = expiry != Expiry::Never && !expiry.is_live(now);
            causes.push(is_over.then_some(DepartureCause::Displaced));
            self.key_of(leaf, &entry, &mut own);
            let is_spared = spare.is_some_and(|spare| spare == own);
            counts.push(if is_spared { SPARED } else { uses.passed(&own) });
        }
        let cause = Some(DepartureCause::Evicted { by_write: spare.is_some() });
        if causes.iter().all(Option::is_none) {
            let least = counts.iter().copied().min().unwrap_or(0);
            let most = if least == 0 { counts.len().div_ceil(SHARE_AT_ONCE) } else { 1 };
            let goes = |count: u8| count == least && count != SPARED;
            let unused = counts.iter().enumerate().filter(|(_, count)| goes(**count));
            for (index, _) in unused.take(most) {
                causes[index] = cause;
            }
        }
        self.report_evicted(at.handle, causes.iter().map(|of| *of == cause), observer);
        if let Ok((_, bytes)) = self.purge(key, at, &causes, MemoryNeed::Growth) {
            return (bytes, next);
        }
        // The system refuses even a smaller block for the other records, so they are evicted too.
        let mut others = vec![false; causes.len()];
        for ((cause_of, count), goes_too) in causes.iter_mut().zip(&counts).zip(&mut others) {
            if cause_of.is_none() && *count != SPARED {
                *cause_of = cause;
                *goes_too = true;
            }
        }
        self.report_evicted(at.handle, others.into_iter(), observer);
        (self.purge(key, at, &causes, MemoryNeed::Upkeep).map_or(0, |(_, bytes)| bytes), next)
    }

    /// Reports records of an open leaf to the observer before they are evicted, because their bytes
    /// are gone afterwards. If the system then refuses even the smaller block, which is rare, the
    /// reported records stay.
    fn report_evicted(
        &self,
        handle: BlockHandle,
        goes: impl Iterator<Item = bool>,
        observer: Option<&dyn EvictionObserver>,
    ) {
        let Some(observer) = observer else { return };
        let (leaf, mut key) = (self.leaf(handle), Vec::new());
        for (entry, _) in leaf.entries().zip(goes).filter(|(_, goes)| *goes) {
            self.key_of(leaf, &entry, &mut key);
            observer.evicted(&key, self.record(leaf, &entry, &mut [0; 20]), false);
        }
    }

    /// Removes those records of a leaf for which `causes` has a cause. Returns the number of
    /// removed records and of their bytes. Changes nothing if there is no memory for a smaller
    /// block.
    fn purge(
        &mut self,
        key: &[u8],
        LeafLocation { slot, leaf: leaf_index, handle }: LeafLocation,
        causes: &[Option<DepartureCause>],
        need: MemoryNeed,
    ) -> Result<(u64, usize), NoRoom> {
        let leaf = self.leaf(handle);
        let (mut items, mut removed, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for (entry, cause) in leaf.entries().zip(causes) {
            match cause {
                None => items.push(LeafItem { bytes: leaf.bytes(), entry, prefix: leaf.prefix() }),
                Some(cause) => {
                    let plain = self.plain_size(leaf, &entry);
                    let expires = self.expiry_of(leaf, &entry) != Expiry::Never;
                    self.key_of(leaf, &entry, &mut own);
                    let hash = self.sample.hash(&own);
                    removed.push((*cause, (plain, hash), expires, entry));
                }
            }
        }
        if removed.is_empty() {
            return Ok((0, 0));
        }
        let images = if items.is_empty() {
            Vec::new()
        } else {
            let mut new = LeafBuilder::default();
            new.build(&items);
            vec![new.image]
        };
        drop(items);
        if images.is_empty() {
            self.remove_leaf(slot, leaf_index);
        } else {
            self.replace(slot, leaf_index..leaf_index + 1, &images, &[], need)?;
        }
        let (count, mut bytes) = (removed.len() as u64, 0);
        for (cause, (plain, hash), expires, entry) in removed {
            bytes += entry.len;
            if let LeafEntryBody::Stub { reference, .. } = entry.body {
                bytes += plain;
                self.free_referenced(reference);
            }
            self.count_departure(cause, (plain, hash), expires);
        }
        if !images.is_empty() {
            self.join_if_sparse(slot, leaf_index);
        }
        self.close_excess(key);
        if self.arena.is_sparse() {
            self.compact(self.arena.effort());
        }
        Ok((count, bytes))
    }

    /// Counts a record that has left. `hash` is the hash by which its key is sampled, or `None`
    /// without a sample.
    fn count_departure(&mut self, cause: DepartureCause, (plain, hash): (usize, Option<u64>), expires: bool) {
        let seen = hash.and_then(|hash| self.sample.seen(hash));
        hash.into_iter().for_each(|hash| self.sample.note(hash, VisitEffect::Removed));
        self.records -= 1;
        self.classes.remove(plain);
        let (now, observer) = (self.sample.now(), self.sample.observer.as_deref());
        self.departures.count(observer, (plain, cause, expires), seen, now);
    }
}
