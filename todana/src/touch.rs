//! The visitor of touch, which sets a new time to live.

use crate::access::AccessTracking;
use crate::expiry::resolve;
use todana_core::{Action, Attributes, Record, Touch, UnixSeconds, Visitor};

pub(crate) struct TouchVisitor<'v> {
    pub(crate) touch: &'v Touch<'v>,
    pub(crate) now: UnixSeconds,
    pub(crate) tracking: &'v AccessTracking,
    pub(crate) found: bool,
}

impl Visitor for TouchVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.found = old.is_some();
        match old {
            None => Action::Keep,
            Some(old) => Action::Retag(Attributes {
                expiry: resolve(self.touch.ttl, self.now),
                access: self.tracking.on_read(self.now),
                ..old.attributes
            }),
        }
    }

    fn reads_shared(&self) -> bool {
        true
    }
}
