//! Keeps the sessions that wait for their turn, because as many requests are in flight as allowed.

use super::server_request::RequestTag;
use std::collections::VecDeque;
use std::time::Instant;

/// The sessions that wait, each with the time since when. The first one has waited longest.
#[derive(Default)]
pub(super) struct TurnQueue(VecDeque<(Instant, RequestTag)>);

impl TurnQueue {
    /// Adds a session. One that had its turn too late for a request keeps its place.
    pub(super) fn push(&mut self, since: Instant, tag: RequestTag) {
        let place = self.0.iter().rposition(|(other, _)| *other <= since).map_or(0, |last| last + 1);
        self.0.insert(place, (since, tag));
    }

    /// Removes the first session.
    pub(super) fn pop(&mut self) -> Option<RequestTag> {
        self.0.pop_front().map(|(_, tag)| tag)
    }

    /// Removes the first session if it waits since this time or longer.
    pub(super) fn pop_since(&mut self, time: Instant) -> Option<RequestTag> {
        self.first_since().filter(|since| *since <= time).and_then(|_| self.pop())
    }

    /// Returns the time since when the first session waits.
    pub(super) fn first_since(&self) -> Option<Instant> {
        self.0.front().map(|(since, _)| *since)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
