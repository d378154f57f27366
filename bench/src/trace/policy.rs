//! Defines the interface of the reference caches in `lru`, `s3_fifo` and `sieve`.

/// A cache of objects without contents. Its capacity is a number of objects.
pub(crate) trait CachePolicy {
    /// Requests an object. Returns true if the cache held the object. Otherwise adds the object,
    /// and may evict another object.
    fn request(&mut self, id: u32) -> bool;
}

/// Replays requests and returns the IDs of the requests that missed.
#[cfg(test)]
pub(crate) fn misses(policy: &mut dyn CachePolicy, ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|&id| !policy.request(id)).collect()
}
