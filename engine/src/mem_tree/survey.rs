//! Keeps a sample of the records with additional data for statistics. The hash of a key decides
//! whether its record is in the sample, as in `mem_hash`. There is one sample for the complete tree
//! because records move between partitions. A tree without size classes has no sample, and
//! therefore no cost of one.

use crate::arena::MemoryBudget;
use crate::mem_hash::EvictionObserver;
use crate::mem_hash::sample::{SampledUse, UseSample};
use parking_lot::{RwLock, RwLockWriteGuard};
use rapidhash::v3::RapidSecrets;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use todana_core::{Expiry, RecordSample, SampledRecord};

/// The number of locks. There are several, so that concurrent writers rarely wait for each other.
const SHARDS: usize = 8;

/// The effect of a visit on the statistics.
#[derive(Clone, Copy)]
pub(super) enum VisitEffect {
    Nothing,
    /// A record was read and stays in the tree.
    Used,
    /// A record of this plain size was stored.
    Stored {
        plain: usize,
    },
    Removed,
}

pub(super) struct TreeSample {
    /// The parts of the sample, selected by the highest bits of the hash. Their locks are taken
    /// within the lock of a partition.
    shards: [RwLock<UseSample>; SHARDS],
    secrets: RapidSecrets,
    budget: Arc<MemoryBudget>,
    is_wanted: bool,
    pub(super) observer: Option<Arc<dyn EvictionObserver>>,
}

impl TreeSample {
    pub(super) fn new(
        budget: Arc<MemoryBudget>,
        is_wanted: bool,
        observer: Option<Arc<dyn EvictionObserver>>,
    ) -> TreeSample {
        let seed = RandomState::new().hash_one(std::process::id());
        let shards = std::array::from_fn(|_| RwLock::default());
        TreeSample { shards, secrets: RapidSecrets::seed(seed), budget, is_wanted, observer }
    }

    /// Returns the hash by which a key is sampled, or `None` if the tree has no sample.
    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> Option<u64> {
        self.is_wanted.then(|| rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets))
    }

    #[inline]
    fn takes(&self, hash: u64) -> bool {
        hash as u32 & self.budget.sample_mask() == 0
    }

    fn shard(&self, hash: u64) -> &RwLock<UseSample> {
        &self.shards[(hash >> 61) as usize]
    }

    /// Locks a part of the sample for writing. If the mask has changed, the part is reduced first.
    fn to_change(&self, hash: u64) -> RwLockWriteGuard<'_, UseSample> {
        let mut shard = self.shard(hash).write();
        let mask = self.budget.sample_mask();
        if !shard.is_by(mask) {
            shard.thin(mask);
        }
        shard
    }

    // The low bits suffice, because only differences of times are used.
    pub(super) fn now(&self) -> u32 {
        self.budget.now().0 as u32
    }

    /// Notes a read. A view of an expired record does not count as a read.
    #[inline]
    pub(super) fn read(&self, key: &[u8], expiry: Expiry) {
        if let Some(hash) = self.hash(key)
            && self.takes(hash)
            && expiry.is_live(self.budget.now())
        {
            self.shard(hash).read().used(hash as u32, self.now());
        }
    }

    /// Returns the data of the record with this hash, if the record is in the sample.
    pub(super) fn seen(&self, hash: u64) -> Option<SampledUse> {
        if self.takes(hash) { self.shard(hash).read().get(hash as u32) } else { None }
    }

    /// Notes the effect of a visit on the record with this hash.
    #[inline]
    pub(super) fn note(&self, hash: u64, effect: VisitEffect) {
        if !self.takes(hash) {
            return;
        }
        match effect {
            VisitEffect::Nothing => {}
            VisitEffect::Used => self.shard(hash).read().used(hash as u32, self.now()),
            VisitEffect::Removed => self.to_change(hash).removed(hash as u32),
            VisitEffect::Stored { plain } => {
                let mut shard = self.to_change(hash);
                // The mask may have changed since it was read.
                if shard.takes(hash as u32) && shard.stored(hash as u32, plain, self.now()) {
                    let mask = self.budget.thin_sample(shard.mask());
                    shard.thin(mask);
                }
            }
        }
    }

    /// Empties the sample. From then on it includes all new records.
    pub(super) fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.write().clear());
        self.budget.widen_sample();
    }

    /// Returns true if the sample leaves out some records.
    pub(super) fn is_thinned(&self) -> bool {
        self.is_wanted && self.budget.sample_mask() != 0
    }

    /// Returns the sampled records. `is_kept` is not set, because the tree has no queues.
    pub(super) fn survey(&self) -> RecordSample {
        let (now, mask) = (self.now(), self.budget.sample_mask());
        let mut survey = RecordSample::default();
        for shard in &self.shards {
            let shard = shard.read();
            let of_sample = shard.iter().filter(|(hash, _)| hash & mask == 0);
            survey.records.extend(of_sample.map(|(_, seen)| SampledRecord {
                plain_size: seen.plain_size,
                idle_s: seen.idle_s(now),
                is_kept: false,
            }));
        }
        survey
    }
}
