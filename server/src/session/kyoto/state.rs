//! What all workers share for the sake of Kyoto's clients.

use super::answer_memory::AnswerMemory;
use super::errands::{Errands, Limits};
use super::queues::{Heads, MessageKeys};
use super::scripts::Scripts;
use crate::session::tickets::Signals;

/// Scripts, signals, queues and background calls of all workers.
pub(crate) struct KyotoState {
    pub(crate) scripts: Scripts,
    /// Tickets of requests that wait for signals of clients, and for messages.
    pub(crate) signals: Signals,
    /// The keys of messages.
    pub(crate) message_keys: MessageKeys,
    /// The first message of each queue.
    pub(crate) queue_heads: Heads,
    /// Procedures that take long.
    pub(crate) errands: Errands,
    /// Calls of scripts.
    pub(crate) script_errands: Errands,
    /// The memory of their long answers.
    pub(crate) answers: AnswerMemory,
}

impl KyotoState {
    pub(crate) fn new(scripts: Scripts, threads: usize) -> KyotoState {
        KyotoState {
            scripts,
            signals: Signals::default(),
            message_keys: MessageKeys::default(),
            queue_heads: Heads::default(),
            errands: Errands::new(Limits::OF_WORK),
            script_errands: Errands::new(Limits::of_scripts(threads)),
            answers: AnswerMemory::default(),
        }
    }
}
