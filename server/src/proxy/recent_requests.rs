//! Finds keys that were requested three times within a short time.
//!
//! A table has the last two requests of some keys. Of several keys at the same place, the last one
//! remains, so among very many keys a frequent one may need more than three requests. A key that
//! was requested less often is found only if two hashes of 30 bits are equal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

const PLACES: usize = 1 << 14;
/// Times are counted up to this number, and then again from 1; 0 is no time.
const TIMES: u64 = (1 << TIME_BITS) - 1;
const TIME_BITS: u32 = 24;

/// The last requests of keys.
pub(super) struct RecentRequests {
    /// The unit of times: a time to live has at most some thousand of them.
    unit_ms: u64,
    ttl_units: u64,
    /// The upper 16 bits of the hash of a key, the time of its last request, and the time of the
    /// request before.
    places: Box<[AtomicU64]>,
}

impl RecentRequests {
    pub(super) fn new(ttl: Duration) -> RecentRequests {
        let ttl_ms = ttl.as_millis() as u64;
        let unit_ms = (ttl_ms >> 12).max(1);
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        RecentRequests { unit_ms, ttl_units: ttl_ms / unit_ms, places }
    }

    /// Notes a request. Returns true if it is at least the third one for the key within the time.
    pub(super) fn note(&self, key: &[u8], now_ms: u64) -> bool {
        let hash = xxh3_64(key);
        let place = &self.places[hash as usize % PLACES];
        let now = now_ms / self.unit_ms % TIMES + 1;
        let tag = hash >> (2 * TIME_BITS);
        let known = place.load(Ordering::Relaxed);
        let is_same = known >> (2 * TIME_BITS) == tag;
        let (last, before) = if is_same { (known >> TIME_BITS & TIMES, known & TIMES) } else { (0, 0) };
        // A request of another worker that is lost between these lines only delays a copy.
        place.store(tag << (2 * TIME_BITS) | now << TIME_BITS | last, Ordering::Relaxed);
        before != 0 && (now + TIMES - before) % TIMES < self.ttl_units
    }
}
