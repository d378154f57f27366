//! Keeps the gets of records that the engines are reading from the disk.
//!
//! ```text
//! a get of a record that is only on disk -> its read is added, and the get is kept with a ticket
//! the turn ends                          -> one submission starts all reads of the turn
//! the descriptor of the reads is ready   -> the gets whose reads are complete wake their sessions
//! the session takes the reply            -> the get is executed, and finds its record in memory
//! ```
//!
//! If the thread has no buffer for a read, its get waits in a queue until one is free. Gets that
//! arrive later do not overtake it.
//!
//! Only gets are kept that are alone in their requests, or whose replies their sessions await one
//! by one. Other operations on records that are only on disk wait for the disk, and so do gets of
//! threads that do not wait for the descriptor.

use crate::session::wake::WakeTicket;
use std::collections::{HashMap, VecDeque};
use todana_core::{OwnedOperation, RecordRead};
use todana_engine::PendingReads;

/// A get that waits for a read.
pub(super) struct ParkedGet {
    /// The number of its database.
    pub(super) database: usize,
    pub(super) get: OwnedOperation,
    /// The number of the read, once it has started.
    read: Option<u64>,
}

impl Drop for ParkedGet {
    /// Releases the buffer of the read, which the get may not have needed.
    fn drop(&mut self) {
        self.read.into_iter().for_each(PendingReads::release);
    }
}

/// The parked gets of a worker.
#[derive(Default)]
pub(super) struct ParkedGets {
    gets: HashMap<WakeTicket, ParkedGet>,
    /// The tickets that wait for each read.
    waiting: HashMap<u64, Vec<WakeTicket>>,
    /// The tickets whose reads have not started.
    delayed: VecDeque<WakeTicket>,
}

impl ParkedGets {
    /// Returns true if a read may start now without overtaking others.
    pub(super) fn may_start(&self) -> bool {
        self.delayed.is_empty()
    }

    /// Keeps a get whose read has started or is delayed.
    pub(super) fn add(&mut self, ticket: WakeTicket, read: RecordRead, database: usize, get: OwnedOperation) {
        self.gets.insert(ticket, ParkedGet { database, get, read: None });
        if let RecordRead::Started(number) = read {
            self.await_read(ticket, number);
        } else {
            self.delayed.push_back(ticket);
        }
    }

    fn await_read(&mut self, ticket: WakeTicket, number: u64) {
        self.waiting.entry(number).or_default().push(ticket);
        if let Some(parked) = self.gets.get_mut(&ticket) {
            parked.read = Some(number);
        }
    }

    /// Removes a get.
    pub(super) fn remove(&mut self, ticket: WakeTicket) -> Option<ParkedGet> {
        self.gets.remove(&ticket)
    }

    /// Starts the delayed reads that have buffers, in their order. `begin` adds the read of a get.
    /// Returns the tickets of those gets that need none any more.
    pub(super) fn start_delayed(
        &mut self,
        mut begin: impl FnMut(usize, &OwnedOperation) -> RecordRead,
    ) -> Vec<WakeTicket> {
        let mut ready = Vec::new();
        while let Some(&ticket) = self.delayed.front() {
            // The client of a get without an entry has left.
            if let Some(ParkedGet { database, get, .. }) = self.gets.get(&ticket) {
                match begin(*database, get) {
                    RecordRead::Delayed if !self.waiting.is_empty() => break,
                    RecordRead::Started(number) => self.await_read(ticket, number),
                    // No complete read would wake a delayed one now, so the request reads the
                    // record.
                    RecordRead::Ready | RecordRead::Delayed => ready.push(ticket),
                }
            }
            self.delayed.pop_front();
        }
        ready
    }

    /// Starts the reads that were added. Returns the tickets of those gets whose reads are
    /// complete.
    pub(super) fn take_ready(&mut self) -> Vec<WakeTicket> {
        if self.waiting.is_empty() {
            // Requests that do not park complete reads, too.
            PendingReads::forget_completed();
            return Vec::new();
        }
        match PendingReads::take_completed() {
            Some(completed) => {
                let tickets = completed.iter().filter_map(|number| self.waiting.remove(number));
                tickets.flatten().collect()
            }
            None => self.waiting.drain().flat_map(|(_, tickets)| tickets).collect(),
        }
    }
}
