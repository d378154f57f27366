//! The visitor of a row: remembers the old and the new value, from which the entries follow.

use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Action, Expiry, Record, Visitor};

/// Passes a visit on and remembers what it changes.
pub(super) struct RowVisitor<'v> {
    visitor: &'v mut dyn Visitor,
    needs_values: bool,
    old: RowVersion,
    new: RowVersion,
    is_applied: bool,
}

/// A row before or after a visit. The value is kept only if it is needed.
#[derive(Default)]
struct RowVersion {
    exists: bool,
    expires: bool,
    value: Vec<u8>,
}

impl RowVersion {
    fn set(&mut self, record: Option<Record<'_>>, needs_value: bool) {
        self.exists = record.is_some();
        self.expires = record.is_some_and(|record| record.attributes.expiry != Expiry::Never);
        self.value.clear();
        if let Some(record) = record.filter(|_| needs_value) {
            self.value.extend_from_slice(record.value);
        }
    }

    fn value(&self) -> Option<&[u8]> {
        self.exists.then_some(&self.value)
    }
}

/// The value of a row before and after a visit; `None` if there is no row.
#[derive(Clone, Copy)]
pub(super) struct RowChange<'c> {
    pub(super) old: Option<&'c [u8]>,
    pub(super) new: Option<&'c [u8]>,
}

impl<'v> RowVisitor<'v> {
    pub(super) fn new(visitor: &'v mut dyn Visitor, needs_values: bool) -> RowVisitor<'v> {
        let (old, new) = (RowVersion::default(), RowVersion::default());
        RowVisitor { visitor, needs_values, old, new, is_applied: false }
    }

    /// Returns the change, if values are needed and the value has changed.
    pub(super) fn change(&self) -> Option<RowChange<'_>> {
        let change = RowChange { old: self.old.value(), new: self.new.value() };
        (self.is_applied && self.needs_values && change.old != change.new).then_some(change)
    }
}

impl Visitor for RowVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_applied = false;
        self.old.set(old, self.needs_values);
        self.visitor.visit(old)
    }

    fn overwrites(&self) -> bool {
        self.visitor.overwrites()
    }

    fn ignores_value(&self) -> bool {
        !self.needs_values && self.visitor.ignores_value()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.is_applied = true;
        self.new.set(now, self.needs_values);
        self.visitor.applied(now);
    }
}

/// The number of rows, and of those that expire.
#[derive(Default)]
pub(super) struct RowTotals {
    rows: AtomicU64,
    expiring: AtomicU64,
}

impl RowTotals {
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    pub(super) fn expiring(&self) -> u64 {
        self.expiring.load(Ordering::Relaxed)
    }

    pub(super) fn reset(&self) {
        self.set(0, 0);
    }

    pub(super) fn set(&self, rows: u64, expiring: u64) {
        self.rows.store(rows, Ordering::Relaxed);
        self.expiring.store(expiring, Ordering::Relaxed);
    }

    /// Counts the effect of a visit.
    pub(super) fn add(&self, row: &RowVisitor<'_>) {
        if row.is_applied {
            count(&self.rows, row.old.exists, row.new.exists);
            count(&self.expiring, row.old.expires, row.new.expires);
        }
    }
}

fn count(counter: &AtomicU64, was: bool, is: bool) {
    match (was, is) {
        (false, true) => drop(counter.fetch_add(1, Ordering::Relaxed)),
        (true, false) => drop(counter.fetch_sub(1, Ordering::Relaxed)),
        _ => {}
    }
}
