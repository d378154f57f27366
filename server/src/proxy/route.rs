//! Defines the routes that need more than the choice of a server in one pool.

use super::near_cache::NearCache;
use crate::options::{OptionsError, ReplicaRead, ReplicaWrite, RouteTree, ShadowedRequests};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// The route of a request: filters, and then the pools that answer.
pub(crate) struct Route {
    /// The filters in their order.
    pub(crate) filters: Vec<RouteFilter>,
    pub(crate) pools: PoolRoute,
}

/// A part of a route that limits, copies or answers requests on their way to the pools.
#[derive(Clone)]
pub(crate) enum RouteFilter {
    /// Times to live are limited.
    Ttl { max_s: u32 },
    /// The number of requests in a second is limited.
    Limit(Arc<RequestLimit>),
    /// Another pool gets copies of some requests.
    Shadow { pool: usize, share_ppm: u32, requests: ShadowedRequests },
    /// Copies in the proxy answer reads.
    Near(Arc<NearCache>),
}

/// The pools of a route, by their numbers.
pub(crate) enum PoolRoute {
    /// The request is an error.
    Refuse,
    /// The request is a miss.
    Null,
    /// One pool.
    Pool(usize),
    /// The first pool, and the next ones after an error.
    Failover { pools: Vec<usize>, on_miss: bool, ttl_s: u32 },
    /// Copies of each record.
    Replicate {
        pools: Vec<usize>,
        copies: usize,
        read: ReplicaRead,
        write: ReplicaWrite,
        on_miss: bool,
        repairs: bool,
    },
    /// A new pool that is filled from an old one.
    WarmUp { new: usize, old: usize, ttl_s: Option<u32> },
    /// A move of keys from an old pool to a new one. The hash of a key decides about its time.
    Migrate { new: usize, old: usize, start_ms: u64, over: Duration },
}

impl Route {
    /// Resolves the names of the pools of a route: `number` returns the number of a pool, and
    /// `kept` the cache or limit of a tree at this depth. Fails if one of them does.
    pub(super) fn new(
        tree: &RouteTree,
        number: &dyn Fn(&str) -> Result<usize, OptionsError>,
        kept: &mut dyn FnMut(&RouteTree, usize) -> Result<RouteFilter, OptionsError>,
    ) -> Result<Route, OptionsError> {
        let mut filters = Vec::new();
        let mut rest = tree;
        loop {
            let (filter, with) = match rest {
                RouteTree::Ttl { max, with } => (RouteFilter::Ttl { max_s: seconds(*max) }, with),
                RouteTree::Limit { with, .. } | RouteTree::Near { with, .. } => {
                    (kept(rest, filters.len())?, with)
                }
                RouteTree::Shadow { pool, share_ppm, requests, with } => {
                    let (pool, share_ppm, requests) = (number(pool)?, *share_ppm, *requests);
                    (RouteFilter::Shadow { pool, share_ppm, requests }, with)
                }
                _ => return Ok(Route { filters, pools: PoolRoute::new(rest, number)? }),
            };
            filters.push(filter);
            rest = with;
        }
    }
}

impl PoolRoute {
    fn new(
        tree: &RouteTree,
        number: &dyn Fn(&str) -> Result<usize, OptionsError>,
    ) -> Result<PoolRoute, OptionsError> {
        let numbers = |pools: &[String]| pools.iter().map(|pool| number(pool)).collect::<Result<_, _>>();
        Ok(match tree {
            RouteTree::Pool(pool) => PoolRoute::Pool(number(pool)?),
            RouteTree::Failover { pools, on_miss, ttl } => {
                PoolRoute::Failover { pools: numbers(pools)?, on_miss: *on_miss, ttl_s: seconds(*ttl) }
            }
            RouteTree::Replicate { pools, copies, read, write, on_miss, repair } => PoolRoute::Replicate {
                pools: numbers(pools)?,
                copies: *copies,
                read: *read,
                write: *write,
                on_miss: *on_miss,
                repairs: *repair,
            },
            RouteTree::WarmUp { new, old, ttl } => {
                PoolRoute::WarmUp { new: number(new)?, old: number(old)?, ttl_s: ttl.map(seconds) }
            }
            RouteTree::Migrate { new, old, start_ms, over } => {
                PoolRoute::Migrate { new: number(new)?, old: number(old)?, start_ms: *start_ms, over: *over }
            }
            RouteTree::Null => PoolRoute::Null,
            // `Route::new` has taken off the filters.
            _ => PoolRoute::Refuse,
        })
    }

    /// Returns the number of the first pool that answers requests.
    pub(crate) fn first_number(&self) -> Option<usize> {
        match self {
            PoolRoute::Refuse | PoolRoute::Null => None,
            PoolRoute::Pool(pool) | PoolRoute::WarmUp { new: pool, .. } => Some(*pool),
            PoolRoute::Migrate { new: pool, .. } => Some(*pool),
            PoolRoute::Failover { pools, .. } | PoolRoute::Replicate { pools, .. } => pools.first().copied(),
        }
    }

    /// Returns the numbers of the pools that answer requests.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        match self {
            PoolRoute::Refuse | PoolRoute::Null => Vec::new(),
            PoolRoute::Pool(pool) => vec![*pool],
            PoolRoute::Failover { pools, .. } | PoolRoute::Replicate { pools, .. } => pools.clone(),
            PoolRoute::WarmUp { new, old, .. } | PoolRoute::Migrate { new, old, .. } => vec![*new, *old],
        }
    }
}

/// Returns a duration in seconds, at least one.
fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX).max(1)
}

/// Returns true if a key belongs to a share of all keys, in millionths.
pub(crate) fn is_in_share(key: &[u8], share_ppm: u32) -> bool {
    xxh3_64(key) % 1_000_000 < u64::from(share_ppm)
}

/// Returns true if a key has moved at this time: each key has its own moment in the duration, which
/// is the same in all proxies.
pub(crate) fn has_moved(key: &[u8], now_ms: u64, start_ms: u64, over: Duration) -> bool {
    let over_ms = (over.as_millis() as u64).max(1);
    now_ms >= start_ms.saturating_add(xxh3_64(key) % over_ms)
}

/// Counts the requests of each second.
pub(crate) struct RequestLimit {
    per_second: u32,
    started: Instant,
    /// The second since `started` in the upper half, and the number of its requests in the lower.
    count: AtomicU64,
}

impl RequestLimit {
    pub(crate) fn new(per_second: u32) -> RequestLimit {
        RequestLimit { per_second, started: Instant::now(), count: AtomicU64::new(0) }
    }

    /// Counts a request. Returns false if the second has had all its requests.
    pub(crate) fn takes(&self, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.started).as_secs() << 32;
        let update = |count: u64| {
            let used = if count & !u64::from(u32::MAX) == second { count as u32 } else { 0 };
            (used < self.per_second).then(|| second | u64::from(used + 1))
        };
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_holds_for_each_second() {
        let limit = RequestLimit::new(2);
        let start = limit.started;
        let later = start + Duration::from_secs(1);
        assert_eq!(
            [start, start, start, later, later, later].map(|at| limit.takes(at)),
            [true, true, false, true, true, false]
        );
    }

    #[test]
    fn keys_move_in_the_course_of_the_duration() {
        let keys: Vec<String> = (0..1000).map(|number| format!("key:{number}")).collect();
        let moved = |now_ms| {
            let over = Duration::from_secs(100);
            keys.iter().filter(|key| has_moved(key.as_bytes(), now_ms, 1000, over)).count()
        };
        assert_eq!((moved(999), moved(101_000)), (0, 1000));
        assert!((400..600).contains(&moved(51_000)), "{}", moved(51_000));
        let copied = keys.iter().filter(|key| is_in_share(key.as_bytes(), 250_000)).count();
        assert!((200..300).contains(&copied), "{copied}");
    }
}
