//! `stats cachedump CLASS LIMIT`: some keys of a class.

use crate::observation::measurements::classes;
use crate::session::memcached::listing::{KeyRoom, ListingKind};
use crate::shared::Shared;
use todana_protocol::memcached::ClassSet;

/// One more than the highest class number that is accepted.
const CLASSES: u32 = 64;
/// The most bytes of the answer.
const BYTES_MAX: usize = 2 << 20;

/// Returns the walk that produces the answer, or the error message.
pub(super) fn walk(
    shared: &Shared,
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
    // Tools ask for every possible class. Walking over all records for an empty class would take
    // long each time.
    let is_empty = !classes(shared).iter().any(|held| held.number == class as usize && held.records() > 0);
    let records = match limit {
        _ if is_empty => 0,
        0 => u64::MAX,
        limit => limit.into(),
    };
    let chosen = ClassSet::NONE.with(class as usize);
    Ok(ListingKind::Items { classes: chosen, room: KeyRoom { records, bytes: BYTES_MAX } })
}

fn number(word: &[u8]) -> Option<u32> {
    std::str::from_utf8(word).ok().filter(|word| !word.starts_with('+'))?.parse().ok()
}
