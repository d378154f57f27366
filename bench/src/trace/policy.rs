//! Defines the interface of the reference caches in `lru`, `s3_fifo`, `sieve` and `gdsf`.

use std::sync::Arc;

/// A cache of objects without contents. Its capacity limits the sum of their sizes. If all sizes
/// are 1, this is a number of objects.
pub(crate) trait CachePolicy {
    /// Requests an object. Returns true if the cache held the object. Otherwise adds the object,
    /// unless it is larger than the capacity, and evicts others for it as needed.
    fn request(&mut self, id: u32) -> bool;
}

/// Returns the sizes of this many objects if the capacity is a number of objects.
pub(crate) fn equal_sizes(objects: usize) -> Arc<[u32]> {
    vec![1; objects].into()
}

/// Replays requests and returns the IDs of the requests that missed.
#[cfg(test)]
pub(crate) fn misses(policy: &mut dyn CachePolicy, ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|&id| !policy.request(id)).collect()
}
