//! Shares out the connections for long values among the requests that have one.
//!
//! Such a request has a connection for itself, because its value is sent as it arrives from the
//! client, or read as the client reads it. Requests on the same connection would wait for that
//! client.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The number of connections of a worker to a server for long values.
pub(super) const UPLOAD_LANES: usize = 2;
/// The number of connections of a worker to a server for long values that clients read.
pub(super) const READ_LANES: usize = 8;
/// The time after which a request whose client sends or reads nothing makes room for another one.
pub(super) const UPLOAD_STALL: Duration = Duration::from_secs(5);

/// The requests with long values to one server. `T` identifies a request, and `N` is the number of
/// connections.
pub(super) struct ValueLanes<T, const N: usize> {
    users: [Option<LaneUser<T>>; N],
    queue: VecDeque<T>,
}

/// A request that has a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneUser<T> {
    pub(super) tag: T,
    pub(super) progress: LaneProgress,
    /// The last time at which bytes of the value were sent, or read.
    pub(super) active_at: Instant,
}

/// The progress of a request with a long value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneProgress {
    /// It may begin.
    Granted,
    /// The client has more bytes to send, or has to read some.
    AwaitsClient,
    /// The server has to accept bytes first, or has to send some.
    AwaitsServer,
    /// All bytes are sent.
    Complete,
}

impl<T, const N: usize> Default for ValueLanes<T, N> {
    fn default() -> Self {
        ValueLanes { users: [const { None }; N], queue: VecDeque::new() }
    }
}

impl<T: Copy + PartialEq, const N: usize> ValueLanes<T, N> {
    /// Returns true if no request has a connection or waits for one.
    pub(super) fn is_empty(&self) -> bool {
        self.users.iter().all(Option::is_none) && self.queue.is_empty()
    }

    pub(super) fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the user of a lane.
    pub(super) fn user(&mut self, lane: usize) -> Option<&mut LaneUser<T>> {
        self.users.get_mut(lane)?.as_mut()
    }

    /// Returns the lane of a request.
    pub(super) fn lane_of(&self, tag: T) -> Option<usize> {
        self.users.iter().position(|user| user.as_ref().is_some_and(|user| user.tag == tag))
    }

    /// Returns the lane of a request, or lets the request wait for one.
    pub(super) fn take(&mut self, tag: T, now: Instant) -> Option<usize> {
        if let Some(lane) = self.lane_of(tag) {
            return Some(lane);
        }
        match self.users.iter().position(Option::is_none) {
            Some(lane) if self.queue.is_empty() => {
                self.grant(lane, tag, now);
                Some(lane)
            }
            _ => {
                if !self.queue.contains(&tag) {
                    self.queue.push_back(tag);
                }
                None
            }
        }
    }

    fn grant(&mut self, lane: usize, tag: T, now: Instant) {
        self.users[lane] = Some(LaneUser { tag, progress: LaneProgress::Granted, active_at: now });
    }

    /// Frees a lane. Returns the request that has it now.
    pub(super) fn release(&mut self, lane: usize, now: Instant) -> Option<T> {
        self.users[lane] = None;
        let next = self.queue.pop_front()?;
        self.grant(lane, next, now);
        Some(next)
    }

    /// Removes a request from those that wait for a lane.
    pub(super) fn leave_queue(&mut self, tag: T) {
        self.queue.retain(|queued| *queued != tag);
    }

    /// Returns the time at which a request must make room for another one, and its lane.
    pub(super) fn first_stall(&self) -> Option<(Instant, usize)> {
        let is_stalled = |user: &LaneUser<T>| user.progress == LaneProgress::AwaitsClient;
        let users = self.users.iter().enumerate();
        let stalled =
            users.filter_map(|(lane, user)| Some((lane, user.as_ref().filter(|user| is_stalled(user))?)));
        let first = stalled.map(|(lane, user)| (user.active_at + UPLOAD_STALL, lane)).min()?;
        (!self.queue.is_empty()).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_granted_in_the_order_of_requests() {
        let now = Instant::now();
        let mut lanes = ValueLanes::<_, UPLOAD_LANES>::default();
        assert_eq!([1, 2, 3, 4, 3].map(|tag| lanes.take(tag, now)), [Some(0), Some(1), None, None, None]);
        assert_eq!((lanes.take(2, now), lanes.queue_len()), (Some(1), 2));
        assert_eq!(lanes.release(1, now), Some(3));
        lanes.leave_queue(4);
        assert_eq!((lanes.release(0, now), lanes.take(3, now)), (None, Some(1)));
        assert_eq!(lanes.release(1, now), None);
        assert!(lanes.is_empty());
    }

    #[test]
    fn silent_client_makes_room_only_for_others() {
        let now = Instant::now();
        let mut lanes = ValueLanes::<_, UPLOAD_LANES>::default();
        lanes.take(1, now);
        lanes.take(2, now);
        lanes.user(1).unwrap().progress = LaneProgress::AwaitsClient;
        assert_eq!(lanes.first_stall(), None);
        lanes.take(3, now);
        assert_eq!(lanes.first_stall(), Some((now + UPLOAD_STALL, 1)));
        lanes.user(1).unwrap().progress = LaneProgress::Complete;
        assert_eq!(lanes.first_stall(), None);
    }
}
