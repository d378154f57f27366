//! Defines how much of its master a database has, as a replica stores it.

use todana_protocol::replication::{EpochPlace, LogPlace};

/// How much of its master a database has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredState {
    /// The changes before a place.
    Place(ReachedPlace),
    /// A part of the records.
    Copying,
}

/// The place up to which a database has the changes of its master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReachedPlace {
    /// The place in the log of the master.
    pub(super) place: LogPlace,
    /// The end of the log of the database here. Its later entries are changes after the place.
    pub(super) own_end: u64,
    /// The place in the log of the first master, whose changes may have passed several servers.
    /// `None` if it is not known.
    pub(super) source: Option<EpochPlace>,
}
