//! Lets equal reads that are under way on a connection have one reply.
//!
//! A read joins an earlier one only if no write of its key has begun since then
//! ([`NearFill::may_join`]). It joins reads of its own connection only: what its client sends later
//! comes after the reply there, and not on another connection.

use super::near_cache::NearFill;
use super::server_request::{ReplyDelivery, RequestTag};
use std::collections::HashMap;
use todana_client::pool::ReplyPart;

/// The reads of a connection that others may join, and those that others have joined.
#[derive(Default)]
pub(super) struct SharedReads {
    reads: HashMap<u64, SharedRead>,
    /// The numbers of the reads that can be joined, by their bytes.
    open: HashMap<Box<[u8]>, u64>,
    next: u64,
}

struct SharedRead {
    bytes: Box<[u8]>,
    fill: NearFill,
    /// The requests that wait for the reply.
    tags: Vec<RequestTag>,
    /// The number of times that the read was sent again.
    repeats: u32,
}

impl SharedReads {
    /// Adds a request to an equal read that is under way. Returns false if there is none, or if as
    /// many requests as `max` wait for it.
    pub(super) fn join(&mut self, bytes: &[u8], fill: NearFill, tag: RequestTag, max: usize) -> bool {
        let read = self.open.get(bytes).and_then(|number| self.reads.get_mut(number));
        let Some(read) = read.filter(|read| fill.may_join(read.fill) && read.tags.len() < max) else {
            return false;
        };
        read.tags.push(tag);
        true
    }

    /// Begins a read, and returns its number.
    pub(super) fn begin(&mut self, bytes: &[u8], fill: NearFill, tag: RequestTag) -> u64 {
        self.next += 1;
        let read = SharedRead { bytes: bytes.into(), fill, tags: vec![tag], repeats: 0 };
        self.reads.insert(self.next, read);
        self.open.insert(bytes.into(), self.next);
        self.next
    }

    /// Passes a part of the reply to all requests that wait for it.
    pub(super) fn deliver(
        &mut self,
        number: u64,
        part: ReplyPart<'_>,
        see: &mut dyn FnMut(RequestTag, ReplyDelivery<'_>),
    ) {
        // A request that joins now would not see this part.
        self.close(number);
        let Some(read) = self.reads.get(&number) else { return };
        read.tags.iter().for_each(|tag| see(*tag, ReplyDelivery::Part(part)));
        if part.is_last {
            self.reads.remove(&number);
        }
    }

    /// Notes that a read is sent again. Returns false if it was sent as often as it may be.
    pub(super) fn repeats(&mut self, number: u64, max: u32) -> bool {
        let Some(read) = self.reads.get_mut(&number) else { return false };
        read.repeats += 1;
        read.repeats <= max
    }

    /// Ends a read, and returns the requests that wait for it.
    pub(super) fn end(&mut self, number: u64) -> Vec<RequestTag> {
        self.close(number);
        self.reads.remove(&number).map_or_else(Vec::new, |read| read.tags)
    }

    fn close(&mut self, number: u64) {
        if let Some(read) = self.reads.get(&number)
            && self.open.get(&read.bytes) == Some(&number)
        {
            self.open.remove(&read.bytes);
        }
    }
}
