//! `stats slabs`: what memcached tells of the memory of each class.

use super::{Writer, classes};
use crate::shared::Shared;
use todana_protocol::memcached::{CHUNK_SIZES, ITEM_OVERHEAD_BYTES};

/// memcached's slab pages, by which `stats slabs` counts.
const SLAB_PAGE: u64 = 1 << 20;

pub(super) fn put(shared: &Shared, w: &mut Writer<'_, '_>) {
    let mut active = 0;
    let mut total = 0;
    for class in classes(shared) {
        let (held, happened) = (class.held, class.happened);
        let chunk = u64::from(CHUNK_SIZES[class.number - 1]);
        let per_page = SLAB_PAGE / chunk;
        let bytes = held.plain_bytes + held.records * ITEM_OVERHEAD_BYTES;
        let chunks = held.records.max(bytes.div_ceil(chunk));
        let pages = chunks.div_ceil(per_page);
        active += u64::from(pages > 0);
        total += pages * SLAB_PAGE;
        let mut put = |name: &str, value: u64| w.put_in("", class.number, name, value);
        put("chunk_size", chunk);
        put("chunks_per_page", per_page);
        put("total_pages", pages);
        put("total_chunks", pages * per_page);
        put("used_chunks", chunks);
        put("free_chunks", pages * per_page - chunks);
        put("free_chunks_end", 0);
        put("get_hits", happened.get_hits);
        put("cmd_set", happened.cmd_set);
        put("delete_hits", happened.delete_hits);
        put("incr_hits", happened.incr_hits);
        put("decr_hits", happened.decr_hits);
        put("cas_hits", happened.cas_hits);
        put("cas_badval", happened.cas_badval);
        put("touch_hits", happened.touch_hits);
    }
    w.put("active_slabs", active);
    w.put("total_malloced", total);
}
