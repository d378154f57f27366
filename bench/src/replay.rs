//! Implements `todana bench replay`: sends recorded or random requests to a live server. Each
//! request is a get, followed by a set if it misses, as with a cache of a database. The result is
//! the miss ratio.
//!
//! Requests are sent one window at a time: one get for all keys of the window, then the sets of the
//! keys that missed. A key that occurs twice in a window waits for the next round, so each key is
//! read and set in the order of the trace. Requests for different keys can change places by less
//! than a window.

use super::process;
use super::trace::TraceRequests;
use super::workload::{KeyDistribution, KeyPicker, ValueSize};
use crate::BenchError;
use crate::progress::progress;
use crate::record_shape::RecordShape;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::Instant;
use todana_client::{Connection, Error, StoreVerb, TextStore, WriteOutcome};

/// The minimum length of a key. A key consists of its number, a colon and letters, and every number
/// fits in this length.
const KEY_LEN_MIN: u16 = 21;
/// The number of requests between two updates of the progress bar.
const STEP: u64 = 1 << 14;

/// Options of `todana bench replay`, except the trace, the server and how to connect to it.
#[derive(Debug, clap::Args)]
pub struct ReplayOptions {
    /// Replay only the first N requests of a file, or draw N random requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// For random requests: the number of keys
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    keys: u64,
    /// For random requests: the seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replay this many copies of the trace at a time, each with its own keys and its own
    /// starting point
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    copies: u32,
    /// Bytes of a key
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(i64::from(KEY_LEN_MIN)..=250))]
    key_size: u16,
    /// Bytes of a value; or lognormal:MEDIAN[:SIGMA], for sizes of this distribution
    #[arg(long, default_value = "100", value_name = "BYTES", value_parser = ValueSize::of_objects)]
    value_size: ValueSize,
    /// Keys and values of this shape instead: session-json, or another one of `todana bench
    /// --records`
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["key_size", "value_size"])]
    records: Option<RecordShape>,
    /// Requests sent at a time; 1 waits for each reply
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    window: u16,
    /// Process id of the server: shows its memory
    #[arg(long, value_parser = process::one)]
    pub pid: Option<u32>,
    /// Replay even if the server already holds records
    #[arg(long)]
    pub force: bool,
    /// Only print the numbers of requests and keys
    #[arg(long)]
    pub dry_run: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// The counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReplayCounts {
    hits: u64,
    misses: u64,
    /// The number of sets that the server refused, because of its memory limit or for another
    /// reason.
    refused: u64,
}

impl ReplayOptions {
    /// Reads a trace from its file, or draws random requests. Fails if the file cannot be read.
    pub fn read(&self, trace: &str) -> Result<TraceRequests, BenchError> {
        let Ok(distribution) = trace.parse::<KeyDistribution>() else {
            return TraceRequests::read(Path::new(trace), self.requests)
                .map_err(|error| BenchError::Failed(format!("{trace}: {error}")));
        };
        let Some(count) = self.requests else {
            return Err(BenchError::Usage(format!("{trace}: state the number of requests by --requests")));
        };
        let picker = KeyPicker::new(distribution, self.keys);
        let mut random = fastrand::Rng::with_seed(self.seed);
        Ok(TraceRequests::numbered((0..count).map(|_| picker.pick(&mut random) as u32)))
    }

    /// Replays the requests of a trace and prints the results. Without a connection, prints only
    /// the number of requests. Fails if the server is unreachable or returns a value that was not
    /// set.
    pub fn run(
        &self,
        trace: &str,
        requests: &TraceRequests,
        connection: Option<Connection>,
    ) -> Result<(), BenchError> {
        let copies = u64::from(self.copies);
        let mut results = json!({
            "trace": trace,
            "requests": requests.ids.len() as u64 * copies,
            "keys": requests.keys as u64 * copies,
            "copies": copies,
            "window": self.window,
        });
        let shape = match (&self.records, &self.value_size) {
            (Some(shape), _) => json!({ "records": shape.label() }),
            (None, ValueSize::Fixed(size)) => json!({ "key_size": self.key_size, "value_size": size }),
            (None, other) => json!({ "key_size": self.key_size, "value_size": other.to_string() }),
        };
        if let (Value::Object(results), Value::Object(shape)) = (&mut results, shape) {
            results.extend(shape);
        }
        if let Some(connection) = connection {
            let mut replay = TraceReplay {
                connection,
                key_size: self.key_size.into(),
                value_size: self.value_size.clone(),
                records: self.records.clone(),
            };
            let began = Instant::now();
            let counts = replay.run(requests, self.copies, self.window.into())?;
            let seconds = began.elapsed().as_secs_f64();
            let resident = self.pid.map(process::resident).transpose().map_err(BenchError::Failed)?;
            let statistics = replay.connection.stats("")?;
            let statistic = |name: &str| {
                let found = statistics.iter().find(|(known, _)| known == name);
                found.and_then(|(_, value)| value.parse::<u64>().ok())
            };
            let more = json!({
                "hits": counts.hits,
                "misses": counts.misses,
                "miss_ratio": counts.misses as f64 / (counts.hits + counts.misses) as f64,
                "refused": counts.refused,
                "curr_items": statistic("curr_items"),
                "evictions": statistic("evictions"),
                "server_resident_bytes": resident,
                "seconds": seconds,
            });
            if let (Value::Object(results), Value::Object(more)) = (&mut results, more) {
                results.extend(more);
            }
        }
        let mut out = std::io::stdout();
        if self.json {
            writeln!(out, "{results:#}")?;
        } else {
            for (name, value) in
                results.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null())
            {
                writeln!(out, "{name:22} {value}")?;
            }
        }
        Ok(())
    }
}

/// A connection with the parameters of the requests.
struct TraceReplay {
    connection: Connection,
    key_size: usize,
    value_size: ValueSize,
    records: Option<RecordShape>,
}

impl TraceReplay {
    fn run(&mut self, requests: &TraceRequests, copies: u32, window: usize) -> Result<ReplayCounts, Error> {
        let bar = progress(
            requests.ids.len() as u64 * u64::from(copies),
            "{wide_bar} {human_pos}/{human_len} requests, {per_sec}, {eta} left",
        );
        let outcome = self.all(interleaved(requests, copies), window, &bar);
        bar.finish_and_clear();
        outcome
    }

    fn all(
        &mut self,
        mut ids: impl Iterator<Item = u64>,
        window: usize,
        bar: &ProgressBar,
    ) -> Result<ReplayCounts, Error> {
        let (mut counts, mut waiting, mut done) = (ReplayCounts::default(), Vec::new(), 0);
        loop {
            waiting.extend(ids.by_ref().take(window));
            if waiting.is_empty() {
                return Ok(counts);
            }
            done += waiting.len() as u64;
            while !waiting.is_empty() {
                waiting = self.round(&waiting, &mut counts)?;
            }
            if done >= STEP {
                bar.inc(std::mem::take(&mut done));
            }
        }
    }

    /// Sends the first request for each key in `ids`, and returns the repeated keys.
    fn round(&mut self, ids: &[u64], counts: &mut ReplayCounts) -> Result<Vec<u64>, Error> {
        let (mut firsts, mut again) = (Vec::with_capacity(ids.len()), Vec::new());
        for &id in ids {
            if firsts.contains(&id) { again.push(id) } else { firsts.push(id) }
        }
        let records: Vec<(Vec<u8>, Vec<u8>)> = firsts.iter().map(|&id| self.record(id)).collect();
        let words: Vec<&[u8]> = records.iter().map(|(key, _)| key.as_slice()).collect();
        let found = self.connection.get(&words, false)?;
        let mut found = found.iter().peekable();
        let mut sets = 0;
        for (key, value) in &records {
            if let Some(item) = found.next_if(|item| item.key == *key) {
                if item.value != *value {
                    let key = String::from_utf8_lossy(key);
                    return Err(Error::Unexpected(format!("another value than was set under {key}")));
                }
                counts.hits += 1;
            } else {
                counts.misses += 1;
                sets += 1;
                let store = TextStore { verb: StoreVerb::Set, key, value, ..TextStore::default() };
                self.connection.write_store(&store)?;
            }
        }
        if sets > 0 {
            self.connection.flush()?;
        }
        for _ in 0..sets {
            match self.connection.read_outcome() {
                Ok(WriteOutcome::Done) => {}
                Ok(other) => return Err(Error::Unexpected(format!("{other:?} to a set"))),
                Err(Error::Refused(_)) => counts.refused += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(again)
    }

    /// Returns the key and the value of an object.
    fn record(&self, id: u64) -> (Vec<u8>, Vec<u8>) {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        if let Some(shape) = &self.records {
            shape.put(id + 1, &mut key, &mut value);
        } else {
            put_key(id, self.key_size, &mut key);
            letters(&mut value, id, self.value_size.of_object(id));
        }
        (key, value)
    }
}

/// Returns the requests of all copies, one of each copy in turn. Each copy starts at another place
/// and wraps around at the end, so that the copies do not request the same object at the same time.
fn interleaved(requests: &TraceRequests, copies: u32) -> impl Iterator<Item = u64> {
    let (ids, copies) = (&requests.ids, u64::from(copies));
    (0..ids.len()).flat_map(move |at| {
        (0..copies).map(move |copy| {
            let shift = (ids.len() as u64 * copy / copies) as usize;
            u64::from(ids[(at + shift) % ids.len()]) * copies + copy
        })
    })
}

/// Appends the key of an object: its number, a colon, and letters.
fn put_key(id: u64, size: usize, key: &mut Vec<u8>) {
    // Writing to a Vec cannot fail.
    let _ = write!(key, "{id}:");
    let rest = size.saturating_sub(key.len());
    letters(key, !id, rest);
}

/// Appends letters generated from a seed, almost uniformly distributed over the alphabet.
fn letters(out: &mut Vec<u8>, seed: u64, count: usize) {
    let from = out.len();
    out.resize(from + count, 0);
    fastrand::Rng::with_seed(seed).fill(&mut out[from..]);
    out[from..].iter_mut().for_each(|byte| *byte = b'a' + (u32::from(*byte) * 26 / 256) as u8);
}

#[cfg(test)]
mod tests {
    use super::super::toy_server::{ServerFault, start};
    use super::*;

    fn replay(
        fault: ServerFault,
        requests: &TraceRequests,
        copies: u32,
        window: usize,
    ) -> Result<ReplayCounts, Error> {
        let connection = Connection::open(&start(fault)).unwrap();
        let (key_size, value_size) = (40, ValueSize::Fixed(100));
        let records = (copies > 1).then_some(RecordShape::SessionJson);
        TraceReplay { connection, key_size, value_size, records }.run(requests, copies, window)
    }

    #[test]
    fn key_misses_once_with_any_window() {
        let requests = TraceRequests::numbered((0..2000u32).map(|n| n * n % 97));
        for (copies, window) in [(1, 1), (1, 16), (3, 7), (2, 256)] {
            let counts = replay(ServerFault::Good, &requests, copies, window).unwrap();
            let (keys, all) = (requests.keys as u64 * u64::from(copies), 2000 * u64::from(copies));
            assert_eq!(
                counts,
                ReplayCounts { hits: all - keys, misses: keys, refused: 0 },
                "{copies} {window}"
            );
        }
    }

    #[test]
    fn wrong_value_ends_the_replay() {
        let requests = TraceRequests::numbered([1, 2, 1]);
        let error = replay(ServerFault::Lying, &requests, 1, 1).unwrap_err().to_string();
        assert!(error.contains("another value than was set under 0:"), "{error}");
    }

    #[test]
    fn copies_use_separate_keys_and_starting_points() {
        let requests = TraceRequests::numbered([7, 8, 9, 7]);
        assert_eq!(interleaved(&requests, 1).collect::<Vec<_>>(), [0, 1, 2, 0]);
        assert_eq!(interleaved(&requests, 2).collect::<Vec<_>>(), [0, 5, 2, 1, 4, 1, 0, 3]);
    }

    #[test]
    fn spread_sizes_have_the_stated_distribution() {
        let spread = ValueSize::of_objects("lognormal:159:1.3").unwrap();
        let mut sizes: Vec<usize> = (0..100_000).map(|id| spread.of_object(id)).collect();
        assert_eq!(spread.of_object(7), sizes[7]);
        sizes.sort_unstable();
        assert!((150..168).contains(&sizes[50_000]), "{}", sizes[50_000]);
        assert!((800..880).contains(&sizes[90_000]), "{}", sizes[90_000]);
        assert_eq!(spread, ValueSize::Lognormal(159.0, 1.3));
        assert_eq!(ValueSize::of_objects("1048576"), Ok(ValueSize::Fixed(1 << 20)));
        assert!(ValueSize::of_objects("1048577").is_err() && ValueSize::of_objects("-1").is_err());
    }

    #[test]
    fn keys_have_the_requested_length_and_a_letter() {
        let key = |id, size| {
            let mut key = Vec::new();
            put_key(id, size, &mut key);
            key
        };
        for id in [0, 17, 1 << 20, u64::MAX] {
            let key = key(id, 40);
            assert_eq!(key.len(), 40);
            assert!(key.starts_with(format!("{id}:").as_bytes()), "{key:?}");
        }
        assert_ne!(key(1, 40)[2..], key(2, 40)[2..]);
        assert_eq!(key(u64::MAX, usize::from(KEY_LEN_MIN)).len(), 21);
    }
}
