//! Lists the slow and large requests.

use crate::shared::SharedState;
use serde_json::{Value, json};

pub(super) fn list(shared: &SharedState) -> Value {
    let log = &shared.observation.slow_requests;
    let (mut requests, skipped) = log.all();
    if !shared.options.limits.dump_allowed {
        for request in requests.iter_mut().filter_map(Value::as_object_mut) {
            request.retain(|name, _| name != "key" && name != "id");
        }
    }
    let options = log.options();
    json!({
        "requests": requests,
        "skipped": skipped,
        "slow_ms": options.slow_from.map(|from| from.as_millis() as u64),
        "large_bytes": options.large_from,
    })
}
