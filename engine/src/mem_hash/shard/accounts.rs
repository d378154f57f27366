//! Keeps the statistics of a shard: counts of its records by class, and a sample of their uses.

use super::write::WritePlan;
use super::{HashShard, InlineRecord, RecordLocation};
use crate::arena::MemoryNeed;
use crate::mem_hash::departures::DepartureCause;
use crate::mem_hash::eviction::DepartingRecord;
use crate::mem_hash::key::Key;
use crate::mem_hash::queue::Marking;
use crate::mem_hash::row;
use todana_core::{EngineStatus, Expiry, RecordSample, SampledRecord};

/// The effect of a visit on the statistics.
#[derive(Clone, Copy)]
pub(super) enum VisitEffect {
    Nothing,
    /// A record was read and stays in the shard.
    Used,
    /// A record of this plain size was stored.
    Stored {
        plain: usize,
    },
    Removed,
}

impl HashShard {
    fn now(&self) -> u32 {
        // The low bits suffice, because only differences of times are used.
        self.budget.now().0 as u32
    }

    /// Returns true if the sample includes this hash. If other shards have changed the mask, this
    /// shard's sample is reduced first.
    #[inline]
    fn is_sampled(&mut self, hash: u32) -> bool {
        let mask = self.budget.sample_mask();
        if !self.sample.is_by(mask) {
            self.sample.thin(mask);
        }
        self.sample.takes(hash)
    }

    /// Notes a read in the sample. A view of an expired record does not count as a read.
    #[inline]
    pub(super) fn sample_read(&self, hash: u32, expiry: Expiry) {
        if self.sample.takes(hash) && expiry.is_live(self.budget.now()) {
            self.sample.used(hash, self.now());
        }
    }

    /// Returns the effect that a plan will have. If the plan replaces or removes an expired record,
    /// also returns the plain size of that record.
    #[inline]
    pub(super) fn predict_effect(
        &self,
        key: &Key<'_>,
        bucket: usize,
        location: &RecordLocation,
        plan: &WritePlan,
    ) -> (VisitEffect, Option<usize>) {
        let is_there = !matches!(location, RecordLocation::Absent);
        let effect = match plan {
            WritePlan::Nothing if !is_there => VisitEffect::Nothing,
            WritePlan::Nothing
            | WritePlan::RetagHuge(..)
            | WritePlan::Put { need: MemoryNeed::Upkeep, .. }
            | WritePlan::PutBlock { need: MemoryNeed::Upkeep, .. } => VisitEffect::Used,
            WritePlan::Put { plain, .. } | WritePlan::PutBlock { plain, .. } => {
                VisitEffect::Stored { plain: *plain }
            }
            WritePlan::PutHuge(record) => VisitEffect::Stored { plain: record.plain_size() },
            WritePlan::Remove => VisitEffect::Removed,
        };
        let ends = matches!(effect, VisitEffect::Stored { .. } | VisitEffect::Removed);
        let expiry = match location {
            RecordLocation::Absent => Expiry::Never,
            _ if !ends => Expiry::Never,
            RecordLocation::Inline(InlineRecord { attributes, .. }) => {
                if attributes.has_expiry() {
                    attributes.expiry(self.bytes_of(bucket))
                } else {
                    Expiry::Never
                }
            }
            RecordLocation::Indirect { reference, .. } => self.referenced_expiry(*reference),
        };
        let has_expired = expiry != Expiry::Never && !expiry.is_live(self.budget.now());
        (effect, has_expired.then(|| self.plain_size(bucket, location, key)).flatten())
    }

    /// Counts the effect that `predict_effect` returned.
    pub(super) fn count_visit(&mut self, key: &Key<'_>, (effect, expired): (VisitEffect, Option<usize>)) {
        let hash = key.hash as u32;
        let is_sampled = self.is_sampled(hash);
        if let Some(plain) = expired {
            let seen = if is_sampled { self.sample.get(hash) } else { None };
            let now = self.now();
            self.departures.count(self.observer.as_deref(), (plain, DepartureCause::Ended, true), seen, now);
        }
        if !is_sampled {
            return;
        }
        let now = self.now();
        match effect {
            VisitEffect::Nothing => {}
            VisitEffect::Used => self.sample.used(hash, now),
            VisitEffect::Removed => self.sample.removed(hash),
            VisitEffect::Stored { plain } => self.add_to_sample(hash, plain, now),
        }
    }

    /// Notes a record that was stored without a visit.
    #[inline]
    pub(super) fn sample_stored(&mut self, hash: u32, plain: usize) {
        if self.is_sampled(hash) {
            self.add_to_sample(hash, plain, self.now());
        }
    }

    fn add_to_sample(&mut self, hash: u32, plain: usize, now: u32) {
        if self.sample.stored(hash, plain, now) {
            let mask = self.budget.thin_sample(self.sample.mask());
            self.sample.thin(mask);
        }
    }

    /// Counts a record that has left its bucket.
    pub(in crate::mem_hash) fn count_departure(
        &mut self,
        departing: &DepartingRecord,
        cause: DepartureCause,
    ) {
        let seen = if self.is_sampled(departing.hash) { self.sample.get(departing.hash) } else { None };
        self.sample.removed(departing.hash);
        let (now, left) = (self.now(), (departing.plain, cause, departing.expires));
        self.departures.count(self.observer.as_deref(), left, seen, now);
    }

    /// Evicts `bytes` for maintenance rather than for a write.
    pub(in crate::mem_hash) fn evict_in_background(&mut self, bytes: usize) -> usize {
        self.eviction.is_background = true;
        let freed = self.evict(bytes);
        self.eviction.is_background = false;
        freed
    }

    pub(in crate::mem_hash) fn add_to(&self, status: &mut EngineStatus) {
        status.records += self.records;
        status.live_bytes += self.stored_bytes();
        self.huge.add_to(&mut status.encoding);
        self.departures.add_to(status);
        status.index.buckets += self.directory.len() as u64;
        status.index.bytes += self.directory.bytes() as u64;
        status.index.is_growing |= self.budget.now().0.saturating_sub(self.grew_at) <= 1 && self.grew_at > 0;
        status.blocks_moved += self.blocks_moved;
        status.pages_emptied += self.pages_emptied;
        self.classes.add_to(&mut status.classes);
    }

    /// Adds the sampled records of this shard to a survey.
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

    /// Returns true if the record of this hash is in the main queue of its bucket, or has been used
    /// if there are no queues.
    fn is_kept(&self, hash: u32) -> bool {
        let bucket = self.directory.bucket_of(hash.into());
        let bytes = self.bytes_of(bucket);
        if bytes.is_empty() {
            return false;
        }
        let mut rows = Vec::new();
        let (_, tail) = row::take_apart(bytes, &self.address(bucket), 0, &mut rows);
        let of_hash = rows.iter().find(|row| row.low_hash(bytes, self.context()) as u32 == hash);
        of_hash.is_some_and(|row| match tail.marking {
            Marking::Credits => row.mark.uses() > 0,
            _ => row.mark.is_main(),
        })
    }
}
