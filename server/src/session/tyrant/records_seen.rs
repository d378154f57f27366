//! Searches through all records, in steps between which they can be cancelled.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use todana::{Database, ScanDirection};
use todana_core::{Error, ErrorKind, Record, Result};

/// The number of records between two checks for cancellation.
pub(super) const SCAN_STEP: usize = 2048;

/// Shows the live records until `see` breaks: in an ordered database those from `from` on, in the
/// order of their keys, else all. Fails with `Closed` once the search is cancelled.
pub(super) fn see_records(
    database: &Database,
    from: &[u8],
    is_cancelled: &AtomicBool,
    see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let is_ordered = database.engine().ordered().is_some();
    let is_table = database.engine().indexed().is_some();
    let (mut from, mut place) = (Bound::Included(from.to_vec()), None);
    loop {
        let (mut seen, mut has_broken, mut last) = (0, false, None);
        let mut step = |key: &[u8], record: Record<'_>| {
            // A scan may show more records after a break. If only the step is over, they count.
            if has_broken {
                return ControlFlow::Break(());
            }
            // The definitions of a table's indexes are not a row.
            let is_shown = !(key.is_empty() && is_table);
            has_broken = is_shown && see(key, record).is_break();
            seen += 1;
            if !has_broken && seen < SCAN_STEP {
                return ControlFlow::Continue(());
            }
            last = is_ordered.then(|| key.to_vec());
            ControlFlow::Break(())
        };
        let is_over = if is_ordered {
            database.walk(ScanDirection::Up, from.as_ref().map(Vec::as_slice), &mut step)?;
            let is_over = last.is_none();
            from = last.map_or(Bound::Unbounded, Bound::Excluded);
            is_over
        } else {
            place = database.scan(place, &mut step)?;
            place.is_none()
        };
        if is_over || has_broken {
            return Ok(());
        }
        if is_cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "the call was cancelled"));
        }
    }
}
