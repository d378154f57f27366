//! Creates the caches and limits of routes, and keeps those of equal routes when the configuration
//! is read again.

use super::near_cache::{NearCache, NearSettings};
use super::route::{RequestLimit, RouteFilter};
use crate::options::{OptionsError, RouteTree};
use std::sync::Arc;

/// The caches and limits of a state of the proxy.
#[derive(Default)]
pub(super) struct KeptFilters(Vec<KeptFilter>);

struct KeptFilter {
    /// The routes of a listener, and the place in them. A shared cache has no place.
    table: String,
    place: Option<(String, usize)>,
    tree: RouteTree,
    filter: RouteFilter,
}

impl KeptFilters {
    /// Returns the cache or limit of a route. It is that of `before` if the route was the same
    /// there. `place` is the prefix or command of the route, and its depth. Fails if there is no
    /// memory.
    pub(super) fn filter(
        &mut self,
        before: Option<&KeptFilters>,
        table: &str,
        place: (String, usize),
        tree: &RouteTree,
    ) -> Result<RouteFilter, OptionsError> {
        let is_shared = matches!(tree, RouteTree::Near { is_shared: true, .. });
        let place = (!is_shared).then_some(place);
        let is_same = |kept: &&KeptFilter| kept.table == table && kept.place == place && kept.tree == *tree;
        if let Some(kept) = self.0.iter().find(is_same) {
            return Ok(kept.filter.clone());
        }
        let kept = before.and_then(|before| before.0.iter().find(is_same));
        let filter = match (kept, tree) {
            (Some(kept), _) => kept.filter.clone(),
            (None, RouteTree::Near { ttl, bytes_max, records_max, hot, coalesce, .. }) => {
                let cache = NearCache::new(NearSettings {
                    ttl: *ttl,
                    bytes_max: *bytes_max,
                    records_max: *records_max,
                    hot: *hot,
                    coalesces: *coalesce,
                });
                let cache = cache.map_err(|error| OptionsError::new(format!("near: {error}")))?;
                RouteFilter::Near(Arc::new(cache))
            }
            (None, RouteTree::Limit { per_second, .. }) => {
                RouteFilter::Limit(Arc::new(RequestLimit::new(*per_second)))
            }
            (None, _) => return Err(OptionsError::new("a route has neither cache nor limit".into())),
        };
        let (table, tree) = (table.to_string(), tree.clone());
        self.0.push(KeptFilter { table, place, tree, filter: filter.clone() });
        Ok(filter)
    }
}
