//! The janitor: housekeeping in the background, and the memory limit of the whole process.
//!
//! `-m` means the process. The engine knows what it holds; the janitor measures what the process holds besides (code,
//! connections, what the allocator keeps) and leaves the engine the rest.

use crate::server::{Shared, Stopping};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// Housekeeping takes at most so much of a tick.
const WORK: Duration = Duration::from_millis(25);

/// Runs until the server stops.
pub(crate) fn run(shared: &Shared) {
    while shared.stopping() == Stopping::No {
        shared.clock.tick();
        let start = Instant::now();
        shared.housekeepings.fetch_add(1, Ordering::Relaxed);
        while shared.database.maintain() && start.elapsed() < WORK {}
        if let Some(round) = shared.database.take_sweep_round() {
            shared.observers.tell_swept(&round);
        }
        shared.measure_memory();
        // Woken early when the server stops.
        std::thread::park_timeout(TICK.saturating_sub(start.elapsed()));
    }
}

/// What the engine may hold so that the process stays within `limit_bytes`.
pub(crate) fn engine_limit(limit_bytes: u64, outside_bytes: u64) -> u64 {
    // What the measurement cannot see yet: buffers that come and go between two ticks.
    let margin = (limit_bytes / 128).clamp(512 << 10, 16 << 20);
    // Whatever the rest takes, a little is left to store in: refusing everything would help nobody.
    limit_bytes.saturating_sub(outside_bytes + margin).max(limit_bytes / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_gets_what_the_rest_leaves() {
        assert_eq!(engine_limit(64 << 20, 4 << 20), (60 << 20) - (512 << 10));
        assert_eq!(engine_limit(8 << 20, 9 << 20), 512 << 10);
        assert_eq!(engine_limit(1 << 40, 0), (1 << 40) - (16 << 20));
    }
}
