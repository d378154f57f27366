//! Searches through all records, in steps between which they can be cancelled.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use todana::{Database, ScanDirection};
use todana_core::{Attributes, Error, ErrorKind, Record, Result};

/// Shows the live records until `see` breaks: in an ordered database those from `from` on, in the
/// order of their keys, else all. Fails with `Closed` once the search is cancelled.
pub(super) fn see_records(
    database: &Database,
    from: &[u8],
    is_cancelled: &AtomicBool,
    see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> Result<()> {
    see_groups(database, from, is_cancelled, false, see)
}

/// Does the same, but shows only keys, so that no value is decompressed unless the database is
/// ordered.
pub(super) fn see_keys(
    database: &Database,
    from: &[u8],
    is_cancelled: &AtomicBool,
    see: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<()> {
    see_groups(database, from, is_cancelled, true, &mut |key, _| see(key))
}

/// Shows groups of records. With `omits_values`, values may be empty.
fn see_groups(
    database: &Database,
    from: &[u8],
    is_cancelled: &AtomicBool,
    omits_values: bool,
    see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let is_ordered = database.engine().ordered().is_some();
    let is_table = database.engine().indexed().is_some();
    let (mut from, mut place) = (Bound::Included(from.to_vec()), None);
    loop {
        let mut has_broken = false;
        let mut step = |key: &[u8], record: Record<'_>| {
            // A scan may show more records after a break. The definitions of a table's indexes are
            // not a row.
            let is_shown = !(has_broken || key.is_empty() && is_table);
            has_broken |= is_shown && see(key, record).is_break();
            if has_broken { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let is_over = if is_ordered {
            let last = database.walk_group(ScanDirection::Up, from.as_ref().map(Vec::as_slice), &mut step)?;
            let is_over = last.is_none();
            from = last.map_or(Bound::Unbounded, Bound::Excluded);
            is_over
        } else {
            place = if omits_values {
                let see = &mut |key: &[u8], attributes: &Attributes| step(key, Record::new(&[], *attributes));
                database.scan_keys_group(place, see)?
            } else {
                database.scan_group(place, &mut step)?
            };
            place.is_none()
        };
        if is_over || has_broken {
            return Ok(());
        }
        expect_wanted(is_cancelled)?;
    }
}

/// Fails with `Closed` if the search is cancelled.
pub(super) fn expect_wanted(is_cancelled: &AtomicBool) -> Result<()> {
    if is_cancelled.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Closed, "the call was cancelled"));
    }
    Ok(())
}
