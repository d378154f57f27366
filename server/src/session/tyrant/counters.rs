//! Counters of requests by command, and of those without success.

use crate::observation::counters::WorkerCounter;
use todana_protocol::tyrant::TyrantCommand;

/// The counters of one worker, which only that worker writes.
#[derive(Debug, Default)]
pub(crate) struct TyrantCounters {
    /// In the order of [`TyrantCommand::ALL`].
    commands: [WorkerCounter; TyrantCommand::COUNT],
    /// Stores without effect.
    pub(super) put_misses: WorkerCounter,
    /// Removals that found no record.
    pub(super) out_misses: WorkerCounter,
    /// Reads that found no record.
    pub(super) get_misses: WorkerCounter,
}

impl TyrantCounters {
    /// Returns the counter of a command.
    #[inline]
    pub(super) fn of(&self, command: TyrantCommand) -> &WorkerCounter {
        &self.commands[command.index()]
    }
}
