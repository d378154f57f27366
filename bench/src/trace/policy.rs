//! What every contestant of a replay can do: our engine and the references in `lru`, `s3_fifo` and `sieve`.

/// A cache of objects without bytes, bounded by their number.
pub(crate) trait Policy {
    /// Asks for an object; true if it was there. A miss brings it in, and may cost another its place.
    fn request(&mut self, id: u32) -> bool;
}

/// Replays requests; returns how many missed.
#[cfg(test)]
pub(crate) fn misses(policy: &mut dyn Policy, ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().filter(|&id| !policy.request(id)).collect()
}
