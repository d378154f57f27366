//! The two visitors that suffice for most tests and benchmarks.

use todana_core::{Action, Attributes, Record, Visitor};

/// Stores this value without attributes.
pub(crate) struct Set<'v>(pub(crate) &'v [u8]);

impl Visitor for Set<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn ignores_value(&self) -> bool {
        true
    }
}

/// Removes the record, if any.
pub(crate) struct Remove;

impl Visitor for Remove {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Remove
    }
}
