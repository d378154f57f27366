//! What a connection keeps besides its bytes.

use super::cursor_table::CursorTable;
use super::errands::Errand;
use crate::databases::awaits::Changes;
use crate::session::login::Basic;
use crate::session::tickets::Ticket;
use std::sync::Arc;
use todana_protocol::kyoto::Dialect;
use todana_protocol::kyoto::binary::Hello;

/// A session, which is a connection.
#[derive(Default)]
pub(crate) struct Session {
    pub(super) dialect: Dialect,
    /// Where clients have to log in.
    pub(super) basic: Basic,
    pub(super) cursors: CursorTable,
    /// Of the bulk request under way.
    pub(super) bulk: Progress,
    pub(super) wait: Wait,
    /// What scripts have changed for it on other threads, to be settled before it is told more.
    pub(super) changes: Changes,
    /// It is a replica: its connection goes to a thread of its own.
    pub(crate) follows: Option<Hello>,
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
#[derive(Default)]
pub(super) enum Wait {
    #[default]
    No,
    /// For a signal of this name.
    For { name: Vec<u8>, ticket: Ticket },
    /// For what is done elsewhere.
    Errand { errand: Arc<Errand>, ticket: Ticket },
    /// It has waited, and was signalled.
    Signalled,
    /// It has waited, and was not.
    TimedOut,
    /// That has been done, or never will be.
    Done(Arc<Errand>),
}

impl Session {
    /// It waits for a signal, an errand, or a password to be checked: no further request is looked at.
    pub(crate) fn is_waiting(&self) -> bool {
        self.ticket().is_some() || self.basic.is_waiting()
    }

    /// The signal that it waits for.
    pub(crate) fn waits_for(&self) -> Option<(&[u8], Ticket)> {
        match &self.wait {
            Wait::For { name, ticket } => Some((name, *ticket)),
            _ => None,
        }
    }

    /// What it waits for is of use to nobody but its peer.
    pub(crate) fn waits_for_its_peer_alone(&self) -> bool {
        match &self.wait {
            Wait::For { .. } => true,
            Wait::Errand { errand, .. } => errand.only_looks(),
            _ => false,
        }
    }

    /// What has to be settled before it is told more, once.
    pub(crate) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Calls off the script that it waits for, which ends soon and answers; false if it waits for anything else.
    pub(crate) fn hastens_script(&self) -> bool {
        match &self.wait {
            Wait::Errand { errand, .. } if errand.is_script() => {
                errand.call_off();
                true
            }
            _ => false,
        }
    }

    pub(super) fn ticket(&self) -> Option<Ticket> {
        match &self.wait {
            Wait::For { ticket, .. } | Wait::Errand { ticket, .. } => Some(*ticket),
            _ => None,
        }
    }

    /// The waiting that a ticket names has come to its end; false if it is not at that. `has_come`: what it has waited for is there.
    pub(crate) fn end_wait(&mut self, ticket: Ticket, has_come: bool) -> bool {
        if self.ticket() != Some(ticket) {
            return false;
        }
        self.wait = match std::mem::take(&mut self.wait) {
            Wait::Errand { errand, .. } => {
                if !has_come {
                    errand.call_off();
                }
                Wait::Done(errand)
            }
            _ if has_come => Wait::Signalled,
            _ => Wait::TimedOut,
        };
        true
    }

    /// Memory that it keeps.
    pub(crate) fn kept_len(&self) -> usize {
        let name = self.waits_for().map_or(0, |(name, _)| name.len());
        self.bulk.found.capacity() + self.basic.kept_len() + name + self.cursors.len_bytes()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Wait::Errand { errand, .. } = &self.wait
            && !errand.is_script()
        {
            // Nobody wants it any more. A script was sent to do something.
            errand.call_off();
        }
    }
}
