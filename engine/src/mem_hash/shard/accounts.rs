//! What is counted of a shard, for statistics: what its records come to, by class, and a sample of when they were used.

use super::write::Plan;
use super::{Shard, Spot, low_hash};
use crate::arena::{Handle, Need};
use crate::mem_hash::departures::Cause;
use crate::mem_hash::evict::Leaving;
use crate::mem_hash::key::Key;
use crate::mem_hash::queue::Tail;
use crate::mem_hash::record::{self, Body};
use todana_core::{EngineStatus, Expiry, RecordSample, SampledRecord};

/// What a visit comes to.
#[derive(Clone, Copy)]
pub(super) enum Happening {
    Nothing,
    /// A record was looked at, and stays.
    Used,
    /// A record of this plain size has been put in.
    Stored {
        plain: usize,
    },
    Removed,
}

impl Shard {
    fn now(&self) -> u32 {
        // Only differences count.
        self.budget.now().0 as u32
    }

    /// Whether the sample has records of this hash, after it has followed those of the other shards.
    #[inline]
    fn is_sampled(&mut self, hash: u32) -> bool {
        let mask = self.budget.sample_mask();
        if !self.sample.is_by(mask) {
            self.sample.thin(mask);
        }
        self.sample.takes(hash)
    }

    /// Notes a read in the sample. What has expired is not read, though it is looked at.
    #[inline]
    pub(super) fn sample_read(&self, hash: u32, expiry: Expiry) {
        if self.sample.takes(hash) && expiry.is_live(self.budget.now()) {
            self.sample.used(hash, self.now());
        }
    }

    /// What a plan will have come to, and the plain size of the record that it ends if that has expired.
    #[inline]
    pub(super) fn foresee(
        &self,
        key: &Key<'_>,
        handle: Handle,
        spot: &Spot,
        plan: &Plan,
    ) -> (Happening, Option<usize>) {
        let is_there = !matches!(spot, Spot::Nowhere { .. });
        let happening = match plan {
            Plan::Nothing if !is_there => Happening::Nothing,
            Plan::Nothing | Plan::RetagHuge(..) | Plan::Put { need: Need::Upkeep, .. } => Happening::Used,
            Plan::Put { plain, .. } => Happening::Stored { plain: *plain },
            Plan::PutHuge(record) => Happening::Stored { plain: record.plain_size() },
            Plan::Remove => Happening::Removed,
        };
        let ends = matches!(happening, Happening::Stored { .. } | Happening::Removed);
        let expiry = match spot {
            Spot::Nowhere { .. } => Expiry::Never,
            _ if !ends => Expiry::Never,
            Spot::Here { at } => {
                let bytes = self.arena.bytes(handle);
                if record::has_attributes(bytes[*at]) {
                    record::whole(bytes, *at).expiry(bytes)
                } else {
                    Expiry::Never
                }
            }
            Spot::Elsewhere { elsewhere, .. } => {
                self.record_elsewhere(*elsewhere, &mut [0; 20]).attributes.expiry
            }
        };
        let has_expired = expiry != Expiry::Never && !expiry.is_live(self.budget.now());
        (happening, has_expired.then(|| self.plain_size(handle, spot, key)).flatten())
    }

    /// Counts what `foresee` has foreseen.
    pub(super) fn count_visit(&mut self, key: &Key<'_>, (happening, expired): (Happening, Option<usize>)) {
        let hash = key.hash as u32;
        let is_sampled = self.is_sampled(hash);
        if let Some(plain) = expired {
            let seen = if is_sampled { self.sample.get(hash) } else { None };
            let now = self.now();
            self.departures.count(self.observer.as_deref(), (plain, Cause::Ended, true), seen, now);
        }
        if !is_sampled {
            return;
        }
        let now = self.now();
        match happening {
            Happening::Nothing => {}
            Happening::Used => self.sample.used(hash, now),
            Happening::Removed => self.sample.gone(hash),
            Happening::Stored { plain } => {
                if self.sample.stored(hash, plain, now) {
                    let mask = self.budget.thin_sample(self.sample.mask());
                    self.sample.thin(mask);
                }
            }
        }
    }

    /// Counts a record that has left its bucket.
    pub(in crate::mem_hash) fn count_leaving(&mut self, leaving: &Leaving, cause: Cause) {
        let seen = if self.is_sampled(leaving.hash) { self.sample.get(leaving.hash) } else { None };
        self.sample.gone(leaving.hash);
        let (now, left) = (self.now(), (leaving.plain, cause, leaving.expires));
        self.departures.count(self.observer.as_deref(), left, seen, now);
    }

    /// As `evict`, for nobody's write.
    pub(in crate::mem_hash) fn evict_in_background(&mut self, bytes: usize) -> usize {
        self.evictor.is_housekeeping = true;
        let freed = self.evict(bytes);
        self.evictor.is_housekeeping = false;
        freed
    }

    pub(in crate::mem_hash) fn add_to(&self, status: &mut EngineStatus) {
        status.records += self.records;
        status.live_bytes += (self.bucket_bytes + self.block_bytes + self.huge.bytes()) as u64;
        self.departures.add_to(status);
        status.index.buckets += self.directory.len() as u64;
        status.index.bytes += self.directory.bytes() as u64;
        status.index.is_growing |= self.budget.now().0.saturating_sub(self.grew_at) <= 1 && self.grew_at > 0;
        status.blocks_moved += self.blocks_moved;
        status.pages_emptied += self.pages_emptied;
        self.classes.add_to(&mut status.classes);
    }

    /// Adds what the sample tells.
    pub(in crate::mem_hash) fn survey(&self, survey: &mut RecordSample) {
        let now = self.now();
        let mask = self.budget.sample_mask();
        for (hash, seen) in self.sample.iter().filter(|(hash, _)| hash & mask == 0) {
            survey.records.push(SampledRecord {
                plain_size: seen.plain_size,
                idle_s: seen.idle_s(now),
                is_kept: self.is_kept(hash),
            });
        }
    }

    /// Whether the record of this hash is in the main queue of its bucket.
    fn is_kept(&self, hash: u32) -> bool {
        let handle = self.directory.get(self.directory.bucket_of(hash.into()));
        if handle.is_none() {
            return false;
        }
        let bytes = self.arena.bytes(handle);
        let tail = Tail::read(bytes, record::end(bytes, 0));
        if matches!(tail, Tail::Plain) {
            return false;
        }
        let (mut at, mut index) = (0, 0);
        while let Some(entry) = record::entry(bytes, at) {
            if low_hash(&self.seeds, bytes, &entry) as u32 == hash {
                return tail.mark(index).is_main();
            }
            at += entry.len;
            index += 1;
        }
        false
    }

    /// The hash of an entry's key, by which it is sampled.
    pub(in crate::mem_hash) fn sampled_by(&self, bytes: &[u8], entry: &record::Entry) -> u32 {
        match &entry.body {
            Body::Stub { fingerprint, .. } => *fingerprint,
            Body::Whole(_) => low_hash(&self.seeds, bytes, entry) as u32,
        }
    }
}
