//! The visitor of memcached's `me`, which shows the attributes of a record for debugging.

use crate::versions::VersionCounter;
use todana_core::{Action, Attributes, Inspect, Record, RecordDetails, Reply, UnixSeconds, Visitor};

pub(crate) struct InspectVisitor<'v> {
    pub(crate) inspect: &'v Inspect<'v>,
    pub(crate) now: UnixSeconds,
    pub(crate) versions: &'v VersionCounter,
    pub(crate) outcome: Reply<'static>,
}

impl Visitor for InspectVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let Some(old) = old else {
            self.outcome = Reply::Miss;
            return Action::Keep;
        };
        let attributes = old.attributes;
        let version = if attributes.version == 0 { self.versions.fresh() } else { attributes.version };
        self.outcome = Reply::Inspection(RecordDetails {
            expiry: attributes.expiry,
            access: attributes.access,
            version,
            flags: attributes.flags,
            key_len: self.inspect.key.len() as u64,
            value_len: old.value.len() as u64,
            further_values: 0,
            now: self.now,
        });
        // The reply shows the version, so the record must be stored with it.
        if version == attributes.version {
            Action::Keep
        } else {
            Action::Retag(Attributes { version, ..attributes })
        }
    }

    fn reads_shared(&self) -> bool {
        true
    }
}
