//! The visitor of delete, and of the meta commands that remove only a part of a record.

use crate::expiry::resolve;
use crate::versions::{VersionCounter, equals};
use todana_core::{Action, Attributes, Delete, Expiry, Record, Reply, StaleMarks, UnixSeconds, Visitor};

pub(crate) struct DeleteVisitor<'v> {
    pub(crate) delete: &'v Delete<'v>,
    pub(crate) now: UnixSeconds,
    pub(crate) versions: &'v VersionCounter,
    pub(crate) outcome: Reply<'static>,
}

impl Visitor for DeleteVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let Some(old) = old else {
            self.outcome = Reply::NotFound;
            // There is no record to remove, but the update log may need an entry.
            return Action::Remove;
        };
        let delete = self.delete;
        if delete.compare.is_some_and(|wanted| !equals(old.attributes.version, wanted)) {
            self.outcome = Reply::Exists;
            return Action::Keep;
        }
        self.outcome = Reply::Deleted;
        if !delete.mark_stale && !delete.drop_value {
            return Action::Remove;
        }
        let mut attributes = old.attributes;
        if delete.drop_value {
            attributes = Attributes {
                flags: delete.flags.unwrap_or(0),
                expiry: Expiry::Never,
                access: old.attributes.access,
                version: old.attributes.version,
                ..Attributes::default()
            };
        }
        if let Some(ttl) = delete.ttl {
            attributes.expiry = resolve(ttl, self.now);
        }
        if delete.version.is_some() || delete.mark_stale {
            attributes.version = self.versions.for_write(delete.version, delete.mark_stale);
        }
        if delete.mark_stale {
            attributes.marks = StaleMarks { stale: true, token_sent: false };
        }
        if delete.drop_value { Action::Put(Record::new(b"", attributes)) } else { Action::Retag(attributes) }
    }

    fn overwrites(&self) -> bool {
        let Delete { compare, mark_stale, drop_value, .. } = self.delete;
        compare.is_none() && !mark_stale && !drop_value
    }

    fn reads_shared(&self) -> bool {
        true
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        // The record existed, but could not be read.
        if now.is_none() {
            self.outcome = Reply::Deleted;
        }
    }
}
