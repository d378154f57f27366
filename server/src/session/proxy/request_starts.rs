//! Remembers when the requests of a client began, to measure the times until their replies.

use crate::proxy::TimedPool;
use std::collections::VecDeque;

/// The beginning of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestStart {
    /// The pool of the request. `None` means that no server answers it.
    pub(super) pool: Option<TimedPool>,
    /// The time in microseconds of the worker's clock.
    pub(super) at_us: u32,
}

/// The beginnings of the requests that wait, in their order. Requests that arrive together begin
/// together, so one entry stands for all of them.
#[derive(Debug, Default)]
pub(super) struct RequestStarts {
    runs: VecDeque<(RequestStart, u32)>,
    len: usize,
}

impl RequestStarts {
    /// Adds a request.
    #[inline]
    pub(super) fn add(&mut self, start: RequestStart) {
        self.len += 1;
        match self.runs.back_mut() {
            Some((last, count)) if *last == start => *count += 1,
            _ => {
                if self.runs.capacity() == 0 {
                    // Most clients wait for the reply to each request.
                    self.runs.reserve_exact(1);
                }
                self.runs.push_back((start, 1));
            }
        }
    }

    /// Removes the last request.
    pub(super) fn remove_last(&mut self) {
        if let Some((_, count)) = self.runs.back_mut() {
            *count -= 1;
            self.len -= 1;
            if *count == 0 {
                self.runs.pop_back();
            }
        }
    }

    /// Removes the first requests, except for the last `waiting` of them. Passes them to `see` with
    /// their numbers.
    #[inline]
    pub(super) fn end(&mut self, waiting: usize, mut see: impl FnMut(RequestStart, u32)) {
        while self.len > waiting
            && let Some((start, count)) = self.runs.front_mut()
        {
            let ended = (*count).min((self.len - waiting) as u32);
            see(*start, ended);
            *count -= ended;
            self.len -= ended as usize;
            if *count == 0 {
                self.runs.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_end_in_their_order() {
        let mut starts = RequestStarts::default();
        for at_us in [5, 5, 5, 7, 7, 9, 10] {
            starts.add(RequestStart { pool: None, at_us });
        }
        starts.remove_last();
        let mut ended = Vec::new();
        for waiting in [6, 4, 2, 0, 0] {
            starts.end(waiting, |start, count| ended.push((start.at_us, count)));
        }
        assert_eq!(ended, [(5, 2), (5, 1), (7, 1), (7, 1), (9, 1)]);
        assert!(starts.runs.is_empty());
    }
}
