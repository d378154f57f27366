//! Keeps the gets of records that the engines are reading from the disk.
//!
//! ```text
//! a get of a record that is only on disk -> its read is added, and the get is kept with a ticket
//! the turn ends                          -> one submission starts all reads of the turn
//! the descriptor of the reads is ready   -> the gets whose reads are complete wake their sessions
//! the session takes the reply            -> the get is executed, and finds its record in memory
//! ```
//!
//! Only gets are kept that are alone in their requests, or whose replies their sessions await one
//! by one. Other operations on records that are only on disk wait for the disk.

use crate::session::wake::WakeTicket;
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use todana_core::OwnedOperation;
use todana_engine::PendingReads;

/// The parked gets of a worker.
#[derive(Default)]
pub(super) struct ParkedGets {
    /// The numbers of their databases, and the gets.
    gets: HashMap<WakeTicket, (usize, OwnedOperation)>,
    /// Tickets, with the number of the last read for each, in ascending order.
    waiting: VecDeque<(u64, WakeTicket)>,
}

impl ParkedGets {
    /// Keeps a get whose read has just been added.
    pub(super) fn add(&mut self, ticket: WakeTicket, database: usize, get: OwnedOperation) {
        self.waiting.push_back((PendingReads::added(), ticket));
        self.gets.insert(ticket, (database, get));
    }

    /// Removes a get.
    pub(super) fn remove(&mut self, ticket: WakeTicket) -> Option<(usize, OwnedOperation)> {
        self.gets.remove(&ticket)
    }

    /// Returns a descriptor that becomes readable when reads are complete; `None` if no get waits.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        if self.waiting.is_empty() { None } else { PendingReads::descriptor() }
    }

    /// Starts the reads that were added. Returns the tickets of those gets whose reads are
    /// complete.
    pub(super) fn take_ready(&mut self) -> Vec<WakeTicket> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let completed = PendingReads::completed();
        let count = self.waiting.partition_point(|&(read, _)| read <= completed);
        self.waiting.drain(..count).map(|(_, ticket)| ticket).collect()
    }
}
