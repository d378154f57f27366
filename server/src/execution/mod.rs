//! Executors: where the operations of sessions go.
//!
//! ```text
//! local  the databases of this process
//! ```
//!
//! An executor that has to wait for another machine returns [`Completion::Pending`]: its session waits with that ticket, and takes the
//! reply once it is woken. An operation is never executed a second time.
//! Not here: how requests are written (`session`), and what operations do to records (`todana`).

mod local;

pub(crate) use local::LocalExecutor;

use crate::session::wake::Ticket;
use todana_core::{Operation, Reply, ValueBuffer};

/// Executes operations on databases, which are named by their numbers.
pub(crate) trait Executor {
    /// Announces that a record is needed soon.
    fn prefetch(&self, database: usize, key: &[u8]);

    /// Executes an operation and gives its replies to `reply`, if it is done.
    fn execute(
        &mut self,
        database: usize,
        operation: &Operation<'_>,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> Completion;

    /// Returns memory for a long value, if there is any.
    fn buffer(&self, database: usize, len: usize) -> Option<Box<dyn ValueBuffer>>;

    /// Returns the next piece of such memory to write to, of up to `len` bytes; `None` if there is no memory for it.
    fn room<'b>(&self, database: usize, buffer: &'b mut dyn ValueBuffer, len: usize) -> Option<&'b mut [u8]>;
}

/// How far an operation, or a call, has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Its replies have been given.
    Done,
    /// Its reply can be taken once this ticket is ready.
    Pending(Ticket),
}
