//! What vouches for changes before they are answered: the update log, or the files of the engine itself.

use crate::databases::syncing::Syncing;
use todana::update_log::{Position, UpdateLog};
use todana_core::Refusal;

/// What vouches for changes.
#[derive(Clone, Copy)]
pub(crate) enum Ledger<'s> {
    Log(&'s UpdateLog),
    /// The files of the engine; beside them may be an update log for replicas, which vouches for nothing.
    Engine(&'s Syncing, Option<&'s UpdateLog>),
}

impl Ledger<'_> {
    /// What a worker has to wait for that has changed something just now; its lane has `logged` so far.
    pub(crate) fn position(self, logged: Position) -> Position {
        match self {
            Ledger::Log(_) => logged,
            Ledger::Engine(syncing, _) => syncing.ticket(),
        }
    }

    /// Whether what answers the changes before a position may leave.
    pub(crate) fn is_settled(self, position: Position) -> bool {
        match self {
            Ledger::Log(log) => log.is_settled(position),
            Ledger::Engine(syncing, _) => syncing.is_settled(position),
        }
    }

    /// Whether it can be written.
    pub(crate) fn takes_changes(self) -> bool {
        match self {
            Ledger::Log(log) => log.takes_changes(),
            Ledger::Engine(syncing, log) => {
                syncing.takes_changes() && log.is_none_or(UpdateLog::takes_changes)
            }
        }
    }

    /// What whoever waits for a change is told when it cannot be.
    pub(crate) fn refusal(self) -> Refusal {
        match self {
            Ledger::Log(_) => Refusal::LogUnwritable,
            Ledger::Engine(..) => Refusal::FilesUnwritable,
        }
    }

    /// Whether more waits to be written than there should. An engine's own files take what comes.
    pub(crate) fn is_crowded(self) -> bool {
        match self {
            Ledger::Log(log) => log.is_crowded(),
            Ledger::Engine(_, log) => log.is_some_and(UpdateLog::is_crowded),
        }
    }

    /// Waits until a position is settled; false if that is not to be, or `goes_on` says no.
    pub(crate) fn wait_while(self, position: Position, goes_on: &dyn Fn() -> bool) -> bool {
        match self {
            Ledger::Log(log) => log.wait_while(position, goes_on).is_ok_and(|is_settled| is_settled),
            Ledger::Engine(syncing, _) => syncing.wait_while(position, goes_on),
        }
    }
}
