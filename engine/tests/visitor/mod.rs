//! The two writes that most tests and benchmarks make do with.

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

/// Removes whatever is there.
pub(crate) struct Remove;

impl Visitor for Remove {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Remove
    }
}
