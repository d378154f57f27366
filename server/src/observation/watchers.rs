//! Serves the connections that watch events (`watch`). Each has a buffer of limited length, from
//! which lines are sent as the client reads.
//!
//! Invariants: a watcher that does not read costs only its buffer. Lines that do not fit are
//! counted, and a line with `skipped=N` takes their place. All lines have one order, that of their
//! `gid`.

use crate::session::wake::WakeHandle;
use crate::transport::output::ConnectionOutput;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use todana_protocol::memcached::ReplySink;
use todana_protocol::memcached::WatchStreams;

/// The maximum number of watchers at one time.
const WATCHERS_MAX: usize = 20;
/// The minimum length of a buffer, even if the options state less. It has space for a few lines.
const BUFFER_MIN: usize = 4 << 10;

/// All watchers.
#[derive(Debug, Default)]
pub(crate) struct WatcherTable {
    buffer_max: usize,
    log: Mutex<WatchedEvents>,
}

#[derive(Debug, Default)]
struct WatchedEvents {
    /// The number of the last event.
    gid: u64,
    watchers: Vec<EventWatcher>,
    /// The buffer in which a line is written before it is copied to the watchers.
    line: Vec<u8>,
    counts: EventCounts,
}

/// The counts of events that `stats` shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventCounts {
    pub(crate) watchers: u64,
    pub(crate) written: u64,
    pub(crate) sent: u64,
    pub(crate) skipped: u64,
}

#[derive(Debug)]
struct EventWatcher {
    descriptor: i32,
    /// Wakes the watcher's connection.
    handle: WakeHandle,
    streams: WatchStreams,
    buffer: Vec<u8>,
    /// The number of lines that did not fit since the last line that fitted.
    skipped: u64,
}

impl WatcherTable {
    pub(crate) fn new(buffer_max: usize) -> WatcherTable {
        WatcherTable { buffer_max: buffer_max.max(BUFFER_MIN), log: Mutex::default() }
    }

    fn log(&self) -> MutexGuard<'_, WatchedEvents> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher, unless there are too many. Passes the streams that are watched now to `set`.
    /// Calls of `set` are in the order of the changes.
    pub(crate) fn add(
        &self,
        descriptor: i32,
        handle: WakeHandle,
        streams: WatchStreams,
        set: impl FnOnce(WatchStreams),
    ) -> bool {
        let mut log = self.log();
        let has_room = log.watchers.len() < WATCHERS_MAX;
        if has_room {
            log.watchers.push(EventWatcher { descriptor, handle, streams, buffer: Vec::new(), skipped: 0 });
            set(log.streams());
        }
        has_room
    }

    /// Removes a watcher. Passes the streams that are still watched to `set`.
    pub(crate) fn remove(&self, descriptor: i32, set: impl FnOnce(WatchStreams)) {
        let mut log = self.log();
        log.watchers.retain(|watcher| watcher.descriptor != descriptor);
        set(log.streams());
    }

    /// Sends an event to the watchers of its stream. `write` writes the line of the event from its
    /// type on.
    pub(crate) fn send(&self, stream: WatchStreams, write: impl FnOnce(&mut Vec<u8>)) {
        let mut log = self.log();
        let WatchedEvents { gid, watchers, line, counts } = &mut *log;
        *gid += 1;
        counts.written += 1;
        line.clear();
        // The time is read under the lock, so that the times of events increase with their numbers,
        // unless the clock is set back.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Writing to a Vec does not fail.
        let _ = write!(line, "ts={}.{:06} gid={gid} type=", now.as_secs(), now.subsec_micros());
        write(line);
        line.push(b'\n');
        for watcher in watchers.iter_mut().filter(|watcher| watcher.streams.intersects(stream)) {
            if watcher.put(line, self.buffer_max) {
                counts.sent += 1;
            } else {
                counts.skipped += 1;
            }
        }
    }

    /// Moves the lines that wait for a connection to its output.
    pub(crate) fn move_to(&self, descriptor: i32, output: &mut ConnectionOutput) {
        let mut log = self.log();
        let found = log.watchers.iter_mut().find(|watcher| watcher.descriptor == descriptor);
        if let Some(watcher) = found {
            output.put(&std::mem::take(&mut watcher.buffer));
        }
    }

    pub(crate) fn counts(&self) -> EventCounts {
        let log = self.log();
        EventCounts { watchers: log.watchers.len() as u64, ..log.counts }
    }
}

impl WatchedEvents {
    fn streams(&self) -> WatchStreams {
        self.watchers.iter().fold(WatchStreams::NONE, |all, watcher| all.and(watcher.streams))
    }
}

impl EventWatcher {
    /// Appends a line to the buffer. Returns false if it does not fit.
    fn put(&mut self, line: &[u8], buffer_max: usize) -> bool {
        let note = if self.skipped > 0 { format!("skipped={}\n", self.skipped) } else { String::new() };
        if self.buffer.len() + note.len() + line.len() > buffer_max {
            self.skipped += 1;
            return false;
        }
        self.skipped = 0;
        let was_empty = self.buffer.is_empty();
        self.buffer.extend_from_slice(note.as_bytes());
        self.buffer.extend_from_slice(line);
        if was_empty {
            self.handle.wake();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::wake::{WaitingConnections, WakeQueues};
    use std::sync::Arc;

    fn handle() -> WakeHandle {
        WaitingConnections::new(Arc::new(WakeQueues::new(1)), 0).enter_new()
    }

    fn taken(watchers: &WatcherTable, descriptor: i32) -> Vec<String> {
        let (mut output, mut bytes) = (ConnectionOutput::default(), Vec::new());
        watchers.move_to(descriptor, &mut output);
        output.write_to(&mut bytes).unwrap();
        // The time differs in each run, so it is removed.
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| line.split_once(" gid=").map_or(line, |(_, rest)| rest).to_string()).collect()
    }

    #[test]
    fn watchers_get_their_streams_and_skipped_counts() {
        let watchers = WatcherTable::new(BUFFER_MIN);
        watchers.add(1, handle(), WatchStreams::FETCHERS, |all| assert_eq!(all, WatchStreams::FETCHERS));
        watchers.add(2, handle(), WatchStreams::DELETIONS, |all| {
            assert_eq!(all, WatchStreams::FETCHERS.and(WatchStreams::DELETIONS));
        });
        let send = |text: &[u8]| watchers.send(WatchStreams::FETCHERS, |line| line.extend_from_slice(text));
        send(b"a");
        send(&[b'x'; BUFFER_MIN]);
        send(&[b'x'; BUFFER_MIN]);
        send(b"b");
        assert_eq!(taken(&watchers, 1), ["1 type=a", "skipped=2", "4 type=b"]);
        assert_eq!((taken(&watchers, 1), taken(&watchers, 2)), (vec![], vec![]));
        let EventCounts { watchers: there, written, sent, skipped } = watchers.counts();
        assert_eq!((there, written, sent, skipped), (2, 4, 2, 2));
        watchers.remove(1, |all| assert_eq!(all, WatchStreams::DELETIONS));
        watchers.remove(2, |all| assert_eq!(all, WatchStreams::NONE));
    }

    #[test]
    fn watchers_are_limited_to_twenty() {
        let watchers = WatcherTable::new(0);
        for descriptor in 0..20 {
            assert!(watchers.add(descriptor, handle(), WatchStreams::FETCHERS, drop));
        }
        assert!(!watchers.add(20, handle(), WatchStreams::FETCHERS, drop));
        watchers.remove(3, drop);
        assert!(watchers.add(20, handle(), WatchStreams::FETCHERS, drop));
    }
}
