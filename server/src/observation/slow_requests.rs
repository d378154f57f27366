//! The log of slow and large requests: the last ones in memory and, with a data directory, in a
//! file, which survives a restart.
//!
//! Each turn of a connection is measured with a clock that moves every few milliseconds, because
//! reading an exact one twice takes a hundredth of the time of a request. A turn may contain
//! several requests of one connection; the log shows the first.

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use todana_core::Operation;

/// The name of the file in the data directory. Each line is an entry in JSON.
const FILE: &str = "slow-requests.jsonl";
/// The length of the file in bytes after which another one begins. One older file is kept.
const FILE_MAX: u64 = 1 << 20;
/// The number of entries in memory.
const KEPT: usize = 256;
/// The number of entries that are added in one second. Further ones are only counted.
const NOTED_IN_A_SECOND: u32 = 20;
/// The number of bytes of a key that are shown.
const KEY_SHOWN: usize = 250;

/// When a request is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowRequestOptions {
    /// The time from which on a request is slow; `None` logs no slow requests.
    pub slow_from: Option<Duration>,
    /// The number of bytes of a value or a reply from which on a request is large; `None` logs no
    /// large requests.
    pub large_from: Option<u64>,
}

impl Default for SlowRequestOptions {
    fn default() -> Self {
        SlowRequestOptions { slow_from: Some(Duration::from_millis(10)), large_from: Some(256 << 10) }
    }
}

/// The log.
pub(crate) struct SlowRequests {
    options: SlowRequestOptions,
    file: Option<PathBuf>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    /// The last entries, the oldest first.
    last: VecDeque<Value>,
    /// The number of entries at the end of `last` that are not in the file yet.
    unwritten: usize,
    /// A second of the clock, and the number of entries that were added in it.
    second: u64,
    added: u32,
    /// The number of requests that were only counted.
    skipped: u64,
}

/// The first request of a turn.
#[derive(Default)]
pub(crate) struct FirstRequest {
    /// `None` if no request has been executed in the turn.
    operation: Option<&'static str>,
    database: usize,
    key: Vec<u8>,
    value_len: usize,
}

/// A turn of a connection, as far as the log needs it.
pub(crate) struct MeasuredTurn<'t> {
    pub(crate) time: Duration,
    pub(crate) bytes_received: u64,
    /// The bytes of replies, including those that the socket has not accepted yet.
    pub(crate) bytes_sent: u64,
    pub(crate) first: &'t FirstRequest,
}

impl FirstRequest {
    /// Notes a request, if it is the first one of its turn.
    #[inline]
    pub(crate) fn note(&mut self, database: usize, operation: &Operation<'_>, key: &[u8]) {
        if self.operation.is_none() {
            self.keep(database, operation, key);
        }
    }

    fn keep(&mut self, database: usize, operation: &Operation<'_>, key: &[u8]) {
        self.operation = Some(name(operation));
        self.database = database;
        self.key.clear();
        self.key.extend_from_slice(&key[..key.len().min(KEY_SHOWN)]);
        self.value_len = if let Operation::Store(store) = operation { store.value.len() } else { 0 };
    }

    /// Begins another turn.
    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.operation, self.value_len) = (None, 0);
    }
}

fn name(operation: &Operation<'_>) -> &'static str {
    match operation {
        Operation::Get(_) => "get",
        Operation::Store(_) => "store",
        Operation::RefusedStore(_) => "refused store",
        Operation::Delete(_) => "delete",
        Operation::Arithmetic(_) => "count",
        Operation::Touch(_) => "touch",
        Operation::Modify(_) => "modify",
        Operation::Inspect(_) => "inspect",
        Operation::Flush { .. } => "flush",
        Operation::Noop => "noop",
    }
}

/// Returns the time of a clock that moves every few milliseconds.
#[inline]
fn coarse_time() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl SlowRequests {
    /// Reads the entries that an earlier process has left in a data directory.
    pub(crate) fn new(options: SlowRequestOptions, directory: Option<&Path>) -> SlowRequests {
        let file = directory.map(|directory| directory.join(FILE));
        let mut last = VecDeque::new();
        for path in file.iter().flat_map(|file| [file.clone(), older(file)]) {
            let mut text = Vec::new();
            let read = File::open(path).and_then(|file| file.take(2 * FILE_MAX).read_to_end(&mut text));
            if read.is_ok() {
                // The newest lines are last. A crash may have left a part of a line.
                let lines = text.rsplit(|&byte| byte == b'\n');
                let parsed = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
                let wanted = KEPT - last.len();
                parsed.filter(Value::is_object).take(wanted).for_each(|entry| last.push_front(entry));
            }
        }
        let entries = Entries { last, ..Entries::default() };
        SlowRequests { options, file, entries: Mutex::new(entries) }
    }

    pub(crate) fn options(&self) -> SlowRequestOptions {
        self.options
    }

    /// Returns the beginning of a turn.
    #[inline]
    pub(crate) fn begin(&self) -> Duration {
        if self.options.slow_from.is_some() { coarse_time() } else { Duration::ZERO }
    }

    /// Returns the time since the beginning of a turn, to a few milliseconds.
    #[inline]
    pub(crate) fn since(&self, began: Duration) -> Duration {
        self.begin().saturating_sub(began)
    }

    /// Logs a turn if it was slow or large. `describe` returns the time since 1970 and the client.
    #[inline]
    pub(crate) fn note_turn(&self, turn: &MeasuredTurn<'_>, describe: impl FnOnce() -> (Duration, String)) {
        let is_slow = self.is_slow(turn.time);
        let len = turn.bytes_sent.max(turn.first.value_len as u64);
        let is_large = self.options.large_from.is_some_and(|from| len >= from);
        if is_slow || is_large {
            let entry = turn.entry(if is_slow { "slow" } else { "large" });
            self.add(entry, describe());
        }
    }

    /// Logs a connection that has waited for the disk or for replicas, if that took long.
    pub(crate) fn note_wait(&self, time: Duration, describe: impl FnOnce() -> (Duration, String)) {
        if self.is_slow(time) {
            self.add(json!({ "why": "wait", "ms": time.as_millis() as u64 }), describe());
        }
    }

    #[inline]
    fn is_slow(&self, time: Duration) -> bool {
        self.options.slow_from.is_some_and(|from| time >= from)
    }

    #[cold]
    fn add(&self, mut entry: Value, (time, client): (Duration, String)) {
        (entry["time_ms"], entry["client"]) = ((time.as_millis() as u64).into(), client.into());
        let second = time.as_secs();
        let mut entries = self.entries();
        if entries.second != second {
            (entries.second, entries.added) = (second, 0);
        }
        if entries.added == NOTED_IN_A_SECOND {
            entries.skipped += 1;
            return;
        }
        entries.added += 1;
        entries.unwritten = (entries.unwritten + 1).min(KEPT);
        entries.push(entry);
    }

    /// Returns the last entries, the newest first, and the number of requests that were only
    /// counted.
    pub(crate) fn all(&self) -> (Vec<Value>, u64) {
        let entries = self.entries();
        (entries.last.iter().rev().cloned().collect(), entries.skipped)
    }

    /// Appends the new entries to the file. Fails if that is not possible; the entries then stay in
    /// memory only.
    pub(crate) fn write(&self) -> io::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let mut text = String::new();
        {
            let mut entries = self.entries();
            let unwritten = std::mem::take(&mut entries.unwritten);
            let first = entries.last.len() - unwritten;
            entries.last.range(first..).for_each(|entry| text.push_str(&format!("{entry}\n")));
        }
        if text.is_empty() {
            return Ok(());
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        if file.metadata()?.len() + text.len() as u64 > FILE_MAX {
            std::fs::rename(path, older(path))?;
            file = OpenOptions::new().create(true).append(true).open(path)?;
        }
        file.write_all(text.as_bytes())
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn push(&mut self, entry: Value) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(entry);
    }
}

impl MeasuredTurn<'_> {
    fn entry(&self, why: &str) -> Value {
        let first = self.first;
        let mut entry = json!({
            "why": why,
            "ms": self.time.as_millis() as u64,
            "received": self.bytes_received,
            "sent": self.bytes_sent,
        });
        if let Some(operation) = first.operation {
            entry["operation"] = operation.into();
            entry["database"] = first.database.into();
            entry["key"] = String::from_utf8_lossy(&first.key).into();
            entry["id"] = percent_encode(&first.key, NON_ALPHANUMERIC).to_string().into();
            entry["value_len"] = first.value_len.into();
        }
        entry
    }
}

/// Returns true for the names of the files in the data directory.
pub(crate) fn has_file(name: &str) -> bool {
    let path = Path::new(FILE);
    [path, &older(path)].contains(&Path::new(name))
}

/// Returns the path of the file before this one.
fn older(path: &Path) -> PathBuf {
    path.with_extension("old.jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::{Get, Store};

    fn note(log: &SlowRequests, ms: u64, sent: u64, first: &FirstRequest) {
        let time = Duration::from_millis(ms);
        let turn = MeasuredTurn { time, bytes_received: 9, bytes_sent: sent, first };
        log.note_turn(&turn, || (Duration::from_secs(5), "tcp:a".into()));
    }

    #[test]
    fn only_slow_or_large_requests_are_logged() {
        let log = SlowRequests::new(SlowRequestOptions::default(), None);
        let mut first = FirstRequest::default();
        let value = vec![0; 256 << 10];
        note(&log, 9, 1000, &first);
        first.note(2, &Operation::Get(Get { key: b"a\xff", ..Get::default() }), b"a\xff");
        first.note(0, &Operation::Noop, b"second");
        note(&log, 12, 1000, &first);
        first.clear();
        let store = Store { key: b"b", value: &value, ..Store::default() };
        first.note(0, &Operation::Store(store), b"b");
        note(&log, 0, 8, &first);
        log.note_wait(Duration::from_millis(3), || (Duration::ZERO, String::new()));
        log.note_wait(Duration::from_millis(30), || (Duration::from_secs(6), "tcp:b".into()));
        let expected = [
            json!({ "why": "wait", "ms": 30, "time_ms": 6000, "client": "tcp:b" }),
            json!({ "why": "large", "ms": 0, "received": 9, "sent": 8, "operation": "store", "database": 0,
                "key": "b", "id": "b", "value_len": 262_144, "time_ms": 5000, "client": "tcp:a" }),
            json!({ "why": "slow", "ms": 12, "received": 9, "sent": 1000, "operation": "get", "database": 2,
                "key": "a\u{fffd}", "id": "a%FF", "value_len": 0, "time_ms": 5000, "client": "tcp:a" }),
        ];
        assert_eq!(log.all(), (expected.to_vec(), 0));
    }

    #[test]
    fn many_entries_are_counted_only() {
        let log = SlowRequests::new(SlowRequestOptions::default(), None);
        (0..50).for_each(|_| note(&log, 20, 0, &FirstRequest::default()));
        let (entries, skipped) = log.all();
        assert_eq!((entries.len(), skipped), (20, 30));
    }

    #[test]
    fn entries_survive_a_restart_in_a_limited_file() {
        let folder = tempfile::tempdir().unwrap();
        let open = || SlowRequests::new(SlowRequestOptions::default(), Some(folder.path()));
        let log = open();
        log.write().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        for second in 0..20_000 {
            let describe = || (Duration::from_secs(second), "tcp:a".into());
            log.note_wait(Duration::from_millis(second), describe);
            log.write().unwrap();
        }
        let path = folder.path().join(FILE);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"why\":\"wa").unwrap();
        let (entries, skipped) = open().all();
        assert_eq!((entries.len(), skipped), (KEPT, 0));
        assert_eq!(entries, log.all().0);
        assert_eq!(entries[0]["ms"], 19_999);
        let lens = [older(&path), path].map(|path| std::fs::metadata(path).unwrap().len());
        assert!(lens.iter().all(|len| (1..=FILE_MAX + 100).contains(len)), "{lens:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
