//! Answers `stats cachedump CLASS LIMIT` with some keys of a class.

use crate::observation::measurements::classes;
use crate::session::memcached::listing::{ListingKind, ListingRoom};
use crate::shared::SharedState;
use todana_protocol::memcached::ClassSet;

/// One more than the highest class number that is accepted.
const CLASSES: u32 = 64;
/// The maximum length of the answer in bytes.
const BYTES_MAX: usize = 2 << 20;

/// Returns the walk that writes the answer. Returns the error message if the request is refused.
pub(super) fn walk(
    shared: &SharedState,
    class: Option<&[u8]>,
    limit: Option<&[u8]>,
) -> Result<ListingKind, &'static str> {
    if !shared.options.limits.dump_allowed {
        return Err("CLIENT_ERROR stats cachedump not allowed");
    }
    let (Some(class), Some(limit)) = (class, limit) else { return Err("CLIENT_ERROR bad command line") };
    let (Some(class), Some(limit)) = (number(class), number(limit)) else {
        return Err("CLIENT_ERROR bad command line format");
    };
    if class >= CLASSES {
        return Err("CLIENT_ERROR Illegal slab id");
    }
    // Tools request every possible class. For an empty class, a walk over all records would take
    // long and find nothing.
    let is_empty = !classes(shared).iter().any(|held| held.number == class as usize && held.records() > 0);
    let records = match limit {
        _ if is_empty => 0,
        0 => u64::MAX,
        limit => limit.into(),
    };
    let chosen = ClassSet::NONE.with(class as usize);
    Ok(ListingKind::Items { classes: chosen, room: ListingRoom { records, bytes: BYTES_MAX } })
}

fn number(word: &[u8]) -> Option<u32> {
    std::str::from_utf8(word).ok().filter(|word| !word.starts_with('+'))?.parse().ok()
}
