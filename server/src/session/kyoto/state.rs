//! Defines the state for Kyoto Tycoon's clients that all workers share.

use super::answer_memory::AnswerMemory;
use super::background_call::{OF_CALLS, RunningCommands, of_scripts};
use super::queues::{MessageKeys, QueueHeads};
use super::scripts::LuaProcedures;
use super::signals::SignalTable;
use crate::session::background_jobs::BackgroundJobs;
use crate::session::wake::WakeQueues;
use std::sync::Arc;

/// The scripts, signals, queues and background calls of all workers.
pub(crate) struct KyotoState {
    pub(crate) scripts: LuaProcedures,
    /// The connections that wait for signals or messages.
    pub(crate) signals: SignalTable,
    /// The generator of the keys of messages.
    pub(crate) message_keys: MessageKeys,
    /// The position of the first message of each queue.
    pub(crate) queue_heads: QueueHeads,
    /// The background jobs of long calls.
    pub(crate) calls: Arc<BackgroundJobs>,
    /// The background jobs of script calls.
    pub(crate) script_calls: Arc<BackgroundJobs>,
    /// The commands of `synchronize` that run now.
    pub(crate) commands: RunningCommands,
    /// The memory of long answers.
    pub(crate) answers: AnswerMemory,
}

impl KyotoState {
    pub(crate) fn new(scripts: LuaProcedures, threads: usize, queues: &Arc<WakeQueues>) -> KyotoState {
        KyotoState {
            scripts,
            signals: SignalTable::new(Arc::clone(queues)),
            message_keys: MessageKeys::default(),
            queue_heads: QueueHeads::default(),
            calls: BackgroundJobs::new("background call", OF_CALLS),
            script_calls: BackgroundJobs::new("script", of_scripts(threads)),
            commands: RunningCommands::default(),
            answers: AnswerMemory::default(),
        }
    }
}
