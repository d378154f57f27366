//! Scans of rows and of index entries.

use super::terms::term_len;
use super::{ENTRY, ROW, TableEngine, row_key};
use std::ops::{Bound, ControlFlow};
use todana_core::{
    Action, Engine, Expiry, IndexEntry, IndexKind, IndexRange, OrderedEngine, Record, Result, ScanPosition,
    SweepAim, SweepProgress, SweepableEngine, Visitor,
};

type SeeRecord<'s> = dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()> + 's;

/// Scans the rows with a scan of the inner engine, whose positions are keys.
pub(super) fn scan(
    from: Option<ScanPosition>,
    see: &mut SeeRecord<'_>,
    inner: impl FnOnce(Option<ScanPosition>, &mut SeeRecord<'_>) -> Result<Option<ScanPosition>>,
) -> Result<Option<ScanPosition>> {
    let mut is_past_rows = false;
    let position = inner(from, &mut |key, record| match key.split_first() {
        Some((&ROW, key)) => see(key, record),
        _ => {
            is_past_rows = true;
            ControlFlow::Break(())
        }
    })?;
    Ok(position.filter(|_| !is_past_rows))
}

/// Appends entries of an index to `found`.
pub(super) fn entries(
    inner: &dyn OrderedEngine,
    (number, kind): (u16, IndexKind),
    (from, to): IndexRange<'_>,
    is_descending: bool,
    entries_max: usize,
    found: &mut Vec<IndexEntry>,
) -> Result<()> {
    if entries_max == 0 {
        return Ok(());
    }
    let [high, low] = number.to_be_bytes();
    let start = [ENTRY, high, low];
    let placed = |position: &[u8]| [&start, position].concat();
    let end_max = found.len() + entries_max;
    let mut see = |key: &[u8], _: Record<'_>| {
        let Some(position) = key.strip_prefix(&start) else { return ControlFlow::Break(()) };
        let is_within = if is_descending { is_above(position, from) } else { is_below(position, to) };
        if !is_within {
            return ControlFlow::Break(());
        }
        found.push(IndexEntry { position: position.to_vec(), term_len: term_len(kind, position) });
        if found.len() == end_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    if is_descending {
        let first = match to {
            Bound::Included(to) => Bound::Included(placed(to)),
            Bound::Excluded(to) => Bound::Excluded(placed(to)),
            Bound::Unbounded => Bound::Excluded(after_index(number)),
        };
        inner.descend(first.as_ref().map(Vec::as_slice), &mut see)
    } else {
        let first = match from {
            Bound::Included(from) => Bound::Included(placed(from)),
            Bound::Excluded(from) => Bound::Excluded(placed(from)),
            Bound::Unbounded => Bound::Included(start.to_vec()),
        };
        inner.ascend(first.as_ref().map(Vec::as_slice), &mut see)
    }
}

/// Returns the first key after all entries of an index.
fn after_index(number: u16) -> Vec<u8> {
    match number.checked_add(1) {
        Some(next) => [&[ENTRY], &next.to_be_bytes()[..]].concat(),
        None => vec![ENTRY + 1],
    }
}

fn is_below(position: &[u8], bound: Bound<&[u8]>) -> bool {
    match bound {
        Bound::Included(to) => position <= to,
        Bound::Excluded(to) => position < to,
        Bound::Unbounded => true,
    }
}

fn is_above(position: &[u8], bound: Bound<&[u8]>) -> bool {
    match bound {
        Bound::Included(from) => position >= from,
        Bound::Excluded(from) => position > from,
        Bound::Unbounded => true,
    }
}

/// Passes rows on until `see` breaks or the last row was shown.
fn rows_only(see: &mut SeeRecord<'_>) -> impl FnMut(&[u8], Record<'_>) -> ControlFlow<()> {
    move |key, record| match key.split_first() {
        Some((&ROW, key)) => see(key, record),
        _ => ControlFlow::Break(()),
    }
}

/// Rows are ordered by their keys.
impl OrderedEngine for TableEngine {
    fn ascend(&self, from: Bound<&[u8]>, see: &mut SeeRecord<'_>) -> Result<()> {
        let from = match from {
            Bound::Included(key) => Bound::Included(row_key(key)),
            Bound::Excluded(key) => Bound::Excluded(row_key(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        self.rows_in_order().ascend(from.as_ref().map(Vec::as_slice), &mut rows_only(see))
    }

    fn descend(&self, from: Bound<&[u8]>, see: &mut SeeRecord<'_>) -> Result<()> {
        let from = match from {
            Bound::Included(key) => Bound::Included(row_key(key)),
            Bound::Excluded(key) => Bound::Excluded(row_key(key)),
            Bound::Unbounded => Bound::Excluded(vec![ROW + 1]),
        };
        self.rows_in_order().descend(from.as_ref().map(Vec::as_slice), &mut rows_only(see))
    }
}

/// Removes a row if it is still expired.
struct ExpireRow<'o> {
    is_over: &'o mut dyn FnMut(Expiry) -> bool,
    is_removed: bool,
}

impl Visitor for ExpireRow<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_removed = false;
        let expiry = old.map_or(Expiry::Never, |old| old.attributes.expiry);
        if expiry != Expiry::Never && (self.is_over)(expiry) { Action::Remove } else { Action::Keep }
    }

    fn applied(&mut self, _now: Option<Record<'_>>) {
        self.is_removed = true;
    }
}

/// A walk over all rows, which is skipped if no row expires. The inner engine is not swept, because
/// the entries of a row have to be removed with it.
impl SweepableEngine for TableEngine {
    fn sweep(
        &self,
        from: Option<ScanPosition>,
        records_max: usize,
        _aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Result<SweepProgress> {
        let mut progress = SweepProgress::default();
        if self.totals.expiring() == 0 {
            return Ok(progress);
        }
        let mut expired: Vec<Vec<u8>> = Vec::new();
        let mut see = |key: &[u8], record: Record<'_>| {
            progress.seen += 1;
            if record.attributes.expiry != Expiry::Never && is_over(record.attributes.expiry) {
                expired.push(key.to_vec());
            }
            if progress.seen < records_max as u64 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        // Only files can be damaged. Only memory has compressed values, which need not be
        // decompressed for a sweep.
        let next = match self.inner.checkpointed() {
            Some(_) => self.scan_skipping_damaged(from, &mut see)?,
            None => self.scan_shared(from, &mut see)?,
        };
        progress.next = next;
        for key in expired {
            let mut expire = ExpireRow { is_over, is_removed: false };
            self.visit(&key, &mut expire)?;
            progress.removed += u64::from(expire.is_removed);
        }
        Ok(progress)
    }
}
