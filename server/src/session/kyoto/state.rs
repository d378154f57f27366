//! The state that all workers share for Kyoto's clients.

use super::answer_memory::AnswerMemory;
use super::background_call::{OF_CALLS, RunningCommands, of_scripts};
use super::queues::{MessageKeys, QueueHeads};
use super::scripts::Scripts;
use super::signals::SignalTable;
use crate::session::background::BackgroundJobs;
use crate::session::wake::WakeQueues;
use std::sync::Arc;

/// Scripts, signals, queues and background calls of all workers.
pub(crate) struct KyotoState {
    pub(crate) scripts: Scripts,
    /// Requests that wait for signals or messages.
    pub(crate) signals: SignalTable,
    /// The keys of messages.
    pub(crate) message_keys: MessageKeys,
    /// The first message of each queue.
    pub(crate) queue_heads: QueueHeads,
    /// Long procedures.
    pub(crate) calls: Arc<BackgroundJobs>,
    /// Calls of scripts.
    pub(crate) script_calls: Arc<BackgroundJobs>,
    /// Commands that `synchronize` runs.
    pub(crate) commands: RunningCommands,
    /// The memory of long answers.
    pub(crate) answers: AnswerMemory,
}

impl KyotoState {
    pub(crate) fn new(scripts: Scripts, threads: usize, queues: &Arc<WakeQueues>) -> KyotoState {
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
