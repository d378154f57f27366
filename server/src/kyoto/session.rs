//! What a connection keeps besides its bytes.

use super::reach::Reach;
use super::signals::Ticket;
use std::collections::BTreeMap;
use todana::Cursor;
use todana_protocol::kyoto::Dialect;

/// A session, which is a connection.
#[derive(Default)]
pub(crate) struct Session {
    pub(super) dialect: Dialect,
    /// By number.
    pub(super) cursors: BTreeMap<u64, Cursor<Reach>>,
    /// Of the bulk request under way.
    pub(super) bulk: Progress,
    pub(super) wait: Wait,
}

/// How far a bulk request has come.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) hits: u32,
    /// What has been found; it goes out behind its number, which is known at the end.
    pub(super) found: Vec<u8>,
    pub(super) has_failed: bool,
}

/// Whether the request at hand waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    #[default]
    No,
    /// For a signal of this name.
    For { name: Vec<u8>, ticket: Ticket },
    /// It has waited, and was signalled.
    Signalled,
    /// It has waited, and was not.
    TimedOut,
}

impl Session {
    /// It waits for a signal: no further request is looked at.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.wait, Wait::For { .. })
    }

    /// What it waits for.
    pub(crate) fn waits_for(&self) -> Option<(&[u8], Ticket)> {
        match &self.wait {
            Wait::For { name, ticket } => Some((name, *ticket)),
            _ => None,
        }
    }

    /// The waiting that a ticket names has come to its end; false if it is not at that.
    pub(crate) fn end_wait(&mut self, ticket: Ticket, was_signalled: bool) -> bool {
        let is_it = self.waits_for().is_some_and(|(_, other)| other == ticket);
        if is_it {
            self.wait = if was_signalled { Wait::Signalled } else { Wait::TimedOut };
        }
        is_it
    }

    /// Memory that it keeps.
    pub(crate) fn kept_len(&self) -> usize {
        self.bulk.found.capacity()
    }
}
