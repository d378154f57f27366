//! Shares out the connections for long values among the requests that have one.
//!
//! Such a request has a connection for itself, because its value is sent as it arrives from the
//! client, or read as the client reads it. Requests on the same connection would wait for that
//! client.

use super::server_request::SendRefusal;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The number of connections of a worker to a server for long values.
pub(super) const UPLOAD_LANES: usize = 2;
/// The number of connections of a worker to a server for long values that clients read.
pub(super) const READ_LANES: usize = 8;
/// The time in which a client must send or read [`STALL_LEN`] bytes. Otherwise, its request makes
/// room for another one.
pub(super) const VALUE_STALL: Duration = Duration::from_secs(5);
/// The number of bytes of a value after which the time begins again. It must be small for slow
/// networks, but a client must not keep others waiting with a byte now and then.
const STALL_LEN: usize = 64 << 10;

/// The requests with long values to one server. `T` identifies a request, and `N` is the number of
/// connections.
pub(super) struct ValueLanes<T, const N: usize> {
    /// The slot of the first connection.
    first_slot: usize,
    users: [Option<LaneUser<T>>; N],
    queue: VecDeque<T>,
}

/// A request that has a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneUser<T> {
    pub(super) tag: T,
    pub(super) progress: LaneProgress,
    /// The time from which [`VALUE_STALL`] counts.
    pub(super) active_at: Instant,
    /// The number of bytes of the value since then.
    active_len: usize,
}

impl<T> LaneUser<T> {
    /// Notes that bytes of the value were sent. `waited` is true if the server did not accept any
    /// before, so that the client could not send.
    pub(super) fn note_bytes(&mut self, len: usize, waited: bool, now: Instant) {
        self.active_len += len;
        if waited || self.active_len >= STALL_LEN {
            self.restart(now);
        }
    }

    /// Lets the time begin again.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.active_at, self.active_len) = (now, 0);
    }
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

impl<T: Copy + PartialEq, const N: usize> ValueLanes<T, N> {
    /// Creates the lanes of the connections from a slot on.
    pub(super) fn from_slot(first_slot: usize) -> ValueLanes<T, N> {
        ValueLanes { first_slot, users: [const { None }; N], queue: VecDeque::new() }
    }

    /// Returns true if no request has a connection or waits for one.
    pub(super) fn is_empty(&self) -> bool {
        self.users.iter().all(Option::is_none) && self.queue.is_empty()
    }

    /// Returns true if a request waits for a connection.
    pub(super) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns the request that has the connection in a slot.
    pub(super) fn user(&mut self, slot: usize) -> Option<&mut LaneUser<T>> {
        self.users.get_mut(slot.checked_sub(self.first_slot)?)?.as_mut()
    }

    /// Returns the slot of the connection of a request.
    pub(super) fn slot_of(&self, tag: T) -> Option<usize> {
        let is_its = |user: &Option<LaneUser<T>>| user.as_ref().is_some_and(|user| user.tag == tag);
        Some(self.first_slot + self.users.iter().position(is_its)?)
    }

    /// Returns the slot of the connection of a request, or lets the request wait for one. Fails if
    /// `queue_max` requests wait.
    pub(super) fn take(
        &mut self,
        tag: T,
        now: Instant,
        queue_max: usize,
    ) -> Result<Option<usize>, SendRefusal> {
        if let Some(slot) = self.slot_of(tag) {
            return Ok(Some(slot));
        }
        if self.queue.len() >= queue_max {
            return Err(SendRefusal::Busy);
        }
        match self.users.iter().position(Option::is_none) {
            Some(lane) if self.queue.is_empty() => {
                self.grant(lane, tag, now);
                Ok(Some(self.first_slot + lane))
            }
            _ => {
                if !self.queue.contains(&tag) {
                    self.queue.push_back(tag);
                }
                Ok(None)
            }
        }
    }

    fn grant(&mut self, lane: usize, tag: T, now: Instant) {
        let progress = LaneProgress::Granted;
        self.users[lane] = Some(LaneUser { tag, progress, active_at: now, active_len: 0 });
    }

    /// Ends the use of the connection in a slot. Returns the request that has it now. Does nothing
    /// if no request had it.
    pub(super) fn release(&mut self, slot: usize, now: Instant) -> Option<T> {
        self.user(slot)?;
        let lane = slot - self.first_slot;
        self.users[lane] = None;
        let next = self.queue.pop_front()?;
        self.grant(lane, next, now);
        Some(next)
    }

    /// Removes a request from those that wait for a lane.
    pub(super) fn leave_queue(&mut self, tag: T) {
        self.queue.retain(|queued| *queued != tag);
    }

    /// Returns the time at which a request must make room for another one, and its slot.
    pub(super) fn first_stall(&self) -> Option<(Instant, usize)> {
        let is_stalled = |user: &LaneUser<T>| user.progress == LaneProgress::AwaitsClient;
        let users = self.users.iter().enumerate();
        let stalled =
            users.filter_map(|(lane, user)| Some((lane, user.as_ref().filter(|user| is_stalled(user))?)));
        let first =
            stalled.map(|(lane, user)| (user.active_at + VALUE_STALL, self.first_slot + lane)).min()?;
        (!self.queue.is_empty()).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_granted_in_the_order_of_requests() {
        let now = Instant::now();
        let mut lanes = ValueLanes::<_, UPLOAD_LANES>::from_slot(4);
        let taken = [1, 2, 3, 4, 2].map(|tag| lanes.take(tag, now, 2));
        assert_eq!(taken, [Ok(Some(4)), Ok(Some(5)), Ok(None), Ok(None), Ok(Some(5))]);
        assert_eq!([3, 5].map(|tag| lanes.take(tag, now, 2)), [Err(SendRefusal::Busy); 2]);
        assert_eq!((lanes.release(3, now), lanes.release(5, now)), (None, Some(3)));
        lanes.leave_queue(4);
        assert_eq!((lanes.release(4, now), lanes.take(3, now, 2)), (None, Ok(Some(5))));
        assert_eq!(lanes.release(5, now), None);
        assert!(lanes.is_empty());
    }

    #[test]
    fn silent_client_makes_room_only_for_others() {
        let now = Instant::now();
        let mut lanes = ValueLanes::<_, UPLOAD_LANES>::from_slot(4);
        let take = |tag| lanes.take(tag, now, 9);
        assert_eq!([1, 2].map(take), [Ok(Some(4)), Ok(Some(5))]);
        lanes.user(5).unwrap().progress = LaneProgress::AwaitsClient;
        assert_eq!(lanes.first_stall(), None);
        assert_eq!(lanes.take(3, now, 9), Ok(None));
        assert_eq!(lanes.first_stall(), Some((now + VALUE_STALL, 5)));
        lanes.user(5).unwrap().progress = LaneProgress::Complete;
        assert_eq!(lanes.first_stall(), None);
    }

    /// A client once kept others waiting without end by a byte every few seconds.
    #[test]
    fn few_bytes_do_not_end_a_stall() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut lanes = ValueLanes::<_, 1>::from_slot(0);
        assert_eq!([1, 2].map(|tag| lanes.take(tag, now, 9)), [Ok(Some(0)), Ok(None)]);
        let user = lanes.user(0).unwrap();
        user.progress = LaneProgress::AwaitsClient;
        user.note_bytes(STALL_LEN - 1, false, later);
        assert_eq!(lanes.first_stall(), Some((now + VALUE_STALL, 0)));
        lanes.user(0).unwrap().note_bytes(1, false, later);
        assert_eq!(lanes.first_stall(), Some((later + VALUE_STALL, 0)));
        let even_later = later + Duration::from_secs(1);
        lanes.user(0).unwrap().note_bytes(1, true, even_later);
        assert_eq!(lanes.first_stall(), Some((even_later + VALUE_STALL, 0)));
    }
}
