//! Records that leave without being told to by a client: what has expired, and what makes room.

use super::super::leaf::{Body, Entry, Item, Leaf, NewLeaf};
use super::{At, Partition, whole};
use crate::arena::{Handle, Need, NoRoom};
use crate::mem_hash::{Cause, EvictionObserver};
use crate::mem_tree::survey::Happening;
use crate::mem_tree::uses::Uses;
use crate::record::Elsewhere;
use todana_core::{Expiry, SweepAim};

/// At most one of so many records of a leaf goes when its turn comes, unless none has been used.
const SHARE_AT_ONCE: usize = 4;

/// Above all counts of uses.
const SPARED: u8 = u8::MAX;

/// What a look at one leaf has found.
pub(in crate::mem_tree) struct Looked {
    pub(in crate::mem_tree) seen: u64,
    pub(in crate::mem_tree) any_over: bool,
    /// Where the next leaf begins.
    pub(in crate::mem_tree) next: Option<Vec<u8>>,
}

impl Partition {
    pub(super) fn expiry_of(&self, leaf: Leaf<'_>, entry: &Entry) -> Expiry {
        match &entry.body {
            Body::Whole(parts) => parts.expiry(leaf.bytes()),
            Body::Stub { elsewhere: Elsewhere::Block(block), .. } => {
                let bytes = self.arena.bytes(Handle(*block));
                whole(bytes).expiry(bytes)
            }
            Body::Stub { elsewhere: Elsewhere::Huge(index), .. } => self.huge.get(*index).attributes.expiry,
        }
    }

    /// Looks for what is over in the leaf of this key.
    pub(in crate::mem_tree) fn look_at_expiries(
        &self,
        slot: u32,
        key: &[u8],
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Looked {
        let at = self.at(slot, key);
        let mut looked = Looked { seen: 0, any_over: false, next: self.segment(slot).end_of(at.leaf) };
        if !at.handle.is_none() {
            self.with_leaf(at.handle, |leaf| {
                for at in leaf.places() {
                    looked.seen += 1;
                    if leaf.is_plain(at) {
                        continue;
                    }
                    let expiry = self.expiry_of(leaf, &leaf.entry(at));
                    looked.any_over |= expiry != Expiry::Never && is_over(expiry);
                }
            });
        }
        looked
    }

    /// Removes what is over from the leaf of this key; returns how many records that were.
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
            SweepAim::Tidiness => Cause::Swept,
            SweepAim::Room => Cause::Displaced,
        };
        let leaf = self.leaf(at.handle);
        let mut over = |entry: &Entry| {
            let expiry = self.expiry_of(leaf, entry);
            (expiry != Expiry::Never && is_over(expiry)).then_some(cause)
        };
        let causes: Vec<Option<Cause>> = leaf.entries().map(|entry| over(&entry)).collect();
        self.purge(key, at, &causes, Need::Upkeep).map_or(0, |(count, _)| count)
    }

    /// Has the leaf of this key give up what has expired, and what has been used least. Returns how many bytes that were, and
    /// where the next leaf begins.
    pub(in crate::mem_tree) fn evict(
        &mut self,
        slot: u32,
        key: &[u8],
        uses: &Uses,
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
            causes.push(is_over.then_some(Cause::Displaced));
            self.key_of(leaf, &entry, &mut own);
            let is_spared = spare.is_some_and(|spare| spare == own);
            counts.push(if is_spared { SPARED } else { uses.passed(&own) });
        }
        let cause = Some(Cause::Evicted { by_write: spare.is_some() });
        if causes.iter().all(Option::is_none) {
            let least = counts.iter().copied().min().unwrap_or(0);
            let most = if least == 0 { counts.len().div_ceil(SHARE_AT_ONCE) } else { 1 };
            let goes = |count: u8| count == least && count != SPARED;
            let unused = counts.iter().enumerate().filter(|(_, count)| goes(**count));
            for (index, _) in unused.take(most) {
                causes[index] = cause;
            }
        }
        self.tell_evicted(at.handle, causes.iter().map(|of| *of == cause), observer);
        if let Ok((_, bytes)) = self.purge(key, at, &causes, Need::Growth) {
            return (bytes, next);
        }
        // There is not even a smaller block for the others: they go too.
        let mut others = vec![false; causes.len()];
        for ((cause_of, count), goes_too) in causes.iter_mut().zip(&counts).zip(&mut others) {
            if cause_of.is_none() && *count != SPARED {
                *cause_of = cause;
                *goes_too = true;
            }
        }
        self.tell_evicted(at.handle, others.into_iter(), observer);
        (self.purge(key, at, &causes, Need::Upkeep).map_or(0, |(_, bytes)| bytes), next)
    }

    /// Tells whoever listens of records of an open leaf that are about to go. Their bytes are gone afterwards; so in the rare case that the system
    /// then refuses the smaller block, and that of a spared one, too, one is told that stays.
    fn tell_evicted(
        &self,
        handle: Handle,
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

    /// Removes the records of a leaf that have a cause to go; returns how many, and how many bytes they had. Without a
    /// smaller block for the others all stay.
    fn purge(
        &mut self,
        key: &[u8],
        At { slot, leaf: leaf_index, handle }: At,
        causes: &[Option<Cause>],
        need: Need,
    ) -> Result<(u64, usize), NoRoom> {
        let leaf = self.leaf(handle);
        let (mut items, mut gone, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for (entry, cause) in leaf.entries().zip(causes) {
            match cause {
                None => items.push(Item { bytes: leaf.bytes(), entry, prefix: leaf.prefix() }),
                Some(cause) => {
                    let plain = self.plain_size(leaf, &entry);
                    let expires = self.expiry_of(leaf, &entry) != Expiry::Never;
                    self.key_of(leaf, &entry, &mut own);
                    let hash = self.sampled.hash(&own);
                    gone.push((*cause, (plain, hash), expires, entry));
                }
            }
        }
        if gone.is_empty() {
            return Ok((0, 0));
        }
        let images = if items.is_empty() {
            Vec::new()
        } else {
            let mut new = NewLeaf::default();
            new.build(&items);
            vec![new.image]
        };
        drop(items);
        if images.is_empty() {
            self.remove_leaf(slot, leaf_index);
        } else {
            self.replace(slot, leaf_index..leaf_index + 1, &images, &[], need)?;
        }
        let (count, mut bytes) = (gone.len() as u64, 0);
        for (cause, (plain, hash), expires, entry) in gone {
            bytes += entry.len;
            if let Body::Stub { elsewhere, .. } = entry.body {
                bytes += plain;
                self.free_elsewhere(elsewhere);
            }
            self.count_leaving(cause, (plain, hash), expires);
        }
        if !images.is_empty() {
            self.join_if_sparse(slot, leaf_index);
        }
        self.close_some(key);
        if self.arena.is_sparse() {
            self.compact(self.arena.effort());
        }
        Ok((count, bytes))
    }

    /// `hash`: what its key is sampled by.
    fn count_leaving(&mut self, cause: Cause, (plain, hash): (usize, Option<u64>), expires: bool) {
        let seen = hash.and_then(|hash| self.sampled.seen(hash));
        hash.into_iter().for_each(|hash| self.sampled.note(hash, Happening::Removed));
        self.records -= 1;
        self.classes.remove(plain);
        let (now, observer) = (self.sampled.now(), self.sampled.observer.as_deref());
        self.departures.count(observer, (plain, cause, expires), seen, now);
    }
}
