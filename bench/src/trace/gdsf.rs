//! Implements GDSF (Cherkasova, HP Labs report HPL-98-69R1, 1998) with one order of all objects.
//! The credit of an object is its number of uses divided by its size, plus the credit of the last
//! evicted object. The object with the least credit is evicted; of several, the one that was used
//! first.

use super::policy::CachePolicy;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A cache with the GDSF policy.
pub(crate) struct GdsfCache {
    /// The objects that the cache holds: their places and IDs.
    order: BTreeSet<(ObjectPlace, u32)>,
    /// The places of all objects; `None` for those that the cache does not hold.
    places: Vec<Option<ObjectPlace>>,
    uses: Vec<u32>,
    sizes: Arc<[u32]>,
    capacity: u64,
    held: u64,
    /// The credit of the last evicted object.
    floor: f64,
    requests: u64,
}

/// The place of an object among the others: the bits of its credit, which are ordered like the
/// credit, and the number of its last request.
type ObjectPlace = (u64, u64);

impl GdsfCache {
    /// Creates a cache for objects of these sizes.
    pub(crate) fn new(capacity: u64, sizes: &Arc<[u32]>) -> GdsfCache {
        GdsfCache {
            order: BTreeSet::new(),
            places: vec![None; sizes.len()],
            uses: vec![0; sizes.len()],
            sizes: Arc::clone(sizes),
            capacity,
            held: 0,
            floor: 0.0,
            requests: 0,
        }
    }

    fn remove(&mut self, id: u32) -> Option<ObjectPlace> {
        let place = self.places[id as usize].take()?;
        self.order.remove(&(place, id));
        self.held -= u64::from(self.sizes[id as usize]);
        Some(place)
    }
}

impl CachePolicy for GdsfCache {
    fn request(&mut self, id: u32) -> bool {
        let size = u64::from(self.sizes[id as usize]);
        if size > self.capacity {
            return false;
        }
        let hit = self.remove(id).is_some();
        while self.held + size > self.capacity {
            let Some(&(place, evicted)) = self.order.first() else { break };
            self.floor = f64::from_bits(place.0);
            self.remove(evicted);
        }
        let uses = &mut self.uses[id as usize];
        *uses = if hit { *uses + 1 } else { 1 };
        let credit = self.floor + f64::from(*uses) / size.max(1) as f64;
        self.requests += 1;
        let place = (credit.to_bits(), self.requests);
        self.places[id as usize] = Some(place);
        self.order.insert((place, id));
        self.held += size;
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::policy::{equal_sizes, misses};

    #[test]
    fn least_used_object_is_evicted() {
        // 3 evicts 1, which was used once and before 2, and gets its credit of 1 in addition. When
        // 1 returns, it evicts 2.
        let mut cache = GdsfCache::new(3, &equal_sizes(4));
        assert_eq!(misses(&mut cache, &[0, 0, 1, 2, 3, 0, 1]), [0, 1, 2, 3, 1]);
        assert_eq!(cache.order.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [3, 1, 0]);
    }

    #[test]
    fn large_objects_leave_before_small_ones() {
        let sizes: Arc<[u32]> = Arc::new([10, 1, 1, 4, 100]);
        let mut cache = GdsfCache::new(12, &sizes);
        // 0 leaves for 3, although it was used last and twice. 4 is larger than the cache.
        assert_eq!(misses(&mut cache, &[1, 2, 0, 0, 3, 4, 1, 2, 3]), [1, 2, 0, 3, 4]);
        assert_eq!((cache.held, cache.floor), (6, 0.2));
    }
}
