//! The interface of the reference caches in `lru`, `s3_fifo` and `sieve`.

/// A cache of objects without contents, bounded by their number.
pub(crate) trait CachePolicy {
    /// Requests an object. Returns true if the cache held it; otherwise the cache adds it and
    /// may evict another.
    fn request(&mut self, id: u32) -> bool;
}

/// Replays requests and returns those that missed.
#[cfg(test)]
pub(crate) fn misses(policy: &mut dyn CachePolicy, ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|&id| !policy.request(id)).collect()
}
