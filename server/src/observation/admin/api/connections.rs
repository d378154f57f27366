//! Lists the open connections.

use super::ApiResult;
use super::query::ApiQuery;
use crate::shared::SharedState;
use serde_json::json;

/// The number of connections in an answer, unless the request gives another one.
const LIMIT: u64 = 200;

pub(super) fn list(shared: &SharedState, query: &ApiQuery) -> ApiResult {
    let limit = query.number("limit", LIMIT)? as usize;
    let now = todana::Clock::now(&*shared.clock).0;
    let all = shared.observation.connection_table.connections();
    let count = all.len();
    let shown = all.into_iter().take(limit).map(|info| {
        json!({
            "descriptor": info.descriptor,
            "address": info.peer.to_string(),
            "listener": info.local.to_string(),
            "state": info.state().name(),
            "idle_s": now.saturating_sub(info.last_command_at()),
        })
    });
    Ok(json!({ "connections": shown.collect::<Vec<_>>(), "count": count }))
}
