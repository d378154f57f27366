//! A sample of the records, of which more is known than leaves tell: as `mem_hash` has it, by the hashes of keys. It is the whole tree's,
//! as records go from one partition to another. For statistics alone: a tree without size classes has none, and pays nothing.

use crate::arena::Budget;
use crate::mem_hash::EvictionObserver;
use crate::mem_hash::sample::{Sample, Seen};
use parking_lot::{RwLock, RwLockWriteGuard};
use rapidhash::v3::RapidSecrets;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use todana_core::{Expiry, RecordSample, SampledRecord};

/// So that those who write side by side rarely meet.
const SHARDS: usize = 8;

/// What has happened to a record.
#[derive(Clone, Copy)]
pub(super) enum Happening {
    Nothing,
    /// It was looked at, and stays.
    Used,
    /// It was put in, with this plain size.
    Stored {
        plain: usize,
    },
    Removed,
}

pub(super) struct Sampled {
    /// By the highest bits of the hash. Held within a partition's lock.
    shards: [RwLock<Sample>; SHARDS],
    secrets: RapidSecrets,
    budget: Arc<Budget>,
    is_wanted: bool,
    pub(super) observer: Option<Arc<dyn EvictionObserver>>,
}

impl Sampled {
    pub(super) fn new(
        budget: Arc<Budget>,
        is_wanted: bool,
        observer: Option<Arc<dyn EvictionObserver>>,
    ) -> Sampled {
        let seed = RandomState::new().hash_one(std::process::id());
        let shards = std::array::from_fn(|_| RwLock::default());
        Sampled { shards, secrets: RapidSecrets::seed(seed), budget, is_wanted, observer }
    }

    /// What a key is sampled by; `None` if nothing is.
    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> Option<u64> {
        self.is_wanted.then(|| rapidhash::v3::rapidhash_v3_seeded(key, &self.secrets))
    }

    #[inline]
    fn takes(&self, hash: u64) -> bool {
        hash as u32 & self.budget.sample_mask() == 0
    }

    fn shard(&self, hash: u64) -> &RwLock<Sample> {
        &self.shards[(hash >> 61) as usize]
    }

    /// A shard, after it has followed the others.
    fn to_change(&self, hash: u64) -> RwLockWriteGuard<'_, Sample> {
        let mut shard = self.shard(hash).write();
        let mask = self.budget.sample_mask();
        if !shard.is_by(mask) {
            shard.thin(mask);
        }
        shard
    }

    // Only differences count.
    pub(super) fn now(&self) -> u32 {
        self.budget.now().0 as u32
    }

    /// Notes a read. What has expired is not read, though it is looked at.
    #[inline]
    pub(super) fn read(&self, key: &[u8], expiry: Expiry) {
        if let Some(hash) = self.hash(key)
            && self.takes(hash)
            && expiry.is_live(self.budget.now())
        {
            self.shard(hash).read().used(hash as u32, self.now());
        }
    }

    /// What is known of the record of this hash.
    pub(super) fn seen(&self, hash: u64) -> Option<Seen> {
        if self.takes(hash) { self.shard(hash).read().get(hash as u32) } else { None }
    }

    /// Notes what has happened to the record of this hash.
    #[inline]
    pub(super) fn note(&self, hash: u64, happening: Happening) {
        if !self.takes(hash) {
            return;
        }
        match happening {
            Happening::Nothing => {}
            Happening::Used => self.shard(hash).read().used(hash as u32, self.now()),
            Happening::Removed => self.to_change(hash).gone(hash as u32),
            Happening::Stored { plain } => {
                let mut shard = self.to_change(hash);
                // The mask may have changed since it was asked.
                if shard.takes(hash as u32) && shard.stored(hash as u32, plain, self.now()) {
                    let mask = self.budget.thin_sample(shard.mask());
                    shard.thin(mask);
                }
            }
        }
    }

    /// There are no records: all that come are in the sample again.
    pub(super) fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.write().clear());
        self.budget.widen_sample();
    }

    /// Whether some records are left out.
    pub(super) fn is_thinned(&self) -> bool {
        self.is_wanted && self.budget.sample_mask() != 0
    }

    /// Returns the records of the sample. Queues are not kept.
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
