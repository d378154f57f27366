//! `stats items`: what memcached tells of the queues of each class. Here is one, which is said to be the cold one: nothing
//! moves between queues, and nothing is known of when a record was last used unless somebody asks for that.

use super::{Writer, classes};
use crate::server::Shared;
use todana_protocol::memcached::ITEM_OVERHEAD_BYTES;

pub(super) fn put(shared: &Shared, w: &mut Writer<'_, '_>) {
    for class in classes(shared) {
        let (held, happened) = (class.held, class.happened);
        if held.records == 0 && held.evictions == 0 && happened.store_no_memory == 0 {
            continue;
        }
        let mut put = |name: &str, value: u64| w.put_in("items:", class.number, name, value);
        put("number", held.records);
        put("number_hot", 0);
        put("number_warm", 0);
        put("number_cold", held.records);
        for name in ["age_hot", "age_warm", "age"] {
            put(name, 0);
        }
        put("mem_requested", held.plain_bytes + held.records * ITEM_OVERHEAD_BYTES);
        put("evicted", held.evictions);
        put("evicted_nonzero", 0);
        put("evicted_time", 0);
        put("outofmemory", happened.store_no_memory);
        for name in [
            "tailrepairs",
            "reclaimed",
            "expired_unfetched",
            "evicted_unfetched",
            "evicted_active",
            "crawler_reclaimed",
            "crawler_items_checked",
            "lrutail_reflocked",
            "moves_to_cold",
            "moves_to_warm",
            "moves_within_lru",
            "direct_reclaims",
            "hits_to_hot",
            "hits_to_warm",
        ] {
            put(name, 0);
        }
        put("hits_to_cold", happened.get_hits);
        put("hits_to_temp", 0);
    }
}
