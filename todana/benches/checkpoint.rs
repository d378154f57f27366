//! Questions about checkpoints, each for a number of records with 8-digit decimal keys and values:
//!
//! - `size`: how many bytes does a checkpoint have, plain and compressed, and how long does it take
//!   to write?
//! - `load`: how long does a restart take with a checkpoint of all records and one log entry for
//!   every ten records, and how long do reading and checking alone take?
//! - `work`: how much does resident memory grow while a checkpoint is written under full load, and
//!   how does the latency of sets change?
//!
//! Run: `cargo bench -p todana --bench checkpoint -- QUESTION [RECORDS] [DIRECTORY]`. The directory
//! should be on a real disk; the files written there are removed again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use todana::checkpoint::{CheckpointCompression, CheckpointOptions};
use todana::disk::SystemDisk;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{Clock, DataDirectory, DataOptions, Database, SystemClock, seed_of, verify};
use todana_core::{Operation, Store};
use todana_engine::{MemHash, MemHashOptions};

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * 4096
}

/// Returns the processor time of all threads of this process in seconds, which is steady on a busy
/// machine too.
fn processor_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let numbers = stat.rsplit(')').next().expect("a name").split_whitespace().skip(11).take(2);
    numbers.map(|ticks| ticks.parse::<f64>().expect("ticks") / 100.0).sum()
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn decimal(n: u64) -> [u8; 8] {
    let mut text = [b'0'; 8];
    let mut rest = n;
    for byte in text.iter_mut().rev() {
        *byte = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text
}

/// Returns the n-th number of a fixed sequence of arbitrary 64-bit numbers (splitmix64).
fn arbitrary(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// The form of the values: equal to the key, or any eight digits.
#[derive(Clone, Copy)]
enum Values {
    Keys,
    Arbitrary,
}

impl Values {
    fn of(self, n: u64) -> [u8; 8] {
        match self {
            Values::Keys => decimal(n),
            Values::Arbitrary => decimal(arbitrary(n) % 100_000_000),
        }
    }
}

fn open(
    path: &Path,
    compression: CheckpointCompression,
    rests: u32,
) -> (DataDirectory, Database, todana::OpeningReport) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let seed = seed_of(Arc::new(SystemDisk), path);
    let engine =
        MemHash::new(MemHashOptions { seed, shards: Some(4), ..MemHashOptions::default() }).expect("memory");
    let database = Database::new(Box::new(engine), Arc::clone(&clock));
    let directory = DataDirectory::open(Arc::new(SystemDisk), path).expect("a directory");
    let options = DataOptions {
        log: LogOptions { sync: SyncPolicy::Every(Duration::from_secs(1)), ..LogOptions::default() },
        checkpoints: CheckpointOptions { compression, rests, ..CheckpointOptions::default() },
    };
    let opened = directory.restore(&database, clock, &options, &mut |_| ()).expect("a sound directory");
    (directory, database, opened)
}

fn set(database: &Database, worker_counters: &todana::WorkerCounters, key: &[u8], value: &[u8]) {
    let command = Operation::Store(Store { key, value, ..Store::default() });
    let end = database.execute(worker_counters, &command, &mut |_| ()).into();
    // Waits for the log as the server does.
    if let Some(log) = database.log()
        && !log.is_durable(end)
    {
        log.wait(end).expect("a log");
    }
}

fn fill(database: &Database, records: u64, values: Values) {
    let worker_counters = database.worker_counters();
    // In an order that is of no use to the engine.
    (0..records).for_each(|n| {
        let n = n.wrapping_mul(7_368_787) % records;
        set(database, &worker_counters, &decimal(n), &values.of(n));
    });
}

fn size(records: u64, folder: &Path) {
    println!("# size: a checkpoint of {records} records (MB = 10^6 bytes)");
    for (name, values) in [("value = key", Values::Keys), ("any 8 digits", Values::Arbitrary)] {
        for compression in [
            CheckpointCompression::None,
            CheckpointCompression::Zstd(-3),
            CheckpointCompression::Zstd(1),
            CheckpointCompression::Zstd(3),
        ] {
            let folder = tempfile::tempdir_in(folder).expect("a folder");
            let (directory, database, _) = open(folder.path(), compression, 0);
            fill(&database, records, values);
            let before = processor_s();
            let made = directory.checkpoint(&database).expect("a checkpoint");
            let processor_s = processor_s() - before;
            let count = database.engine().status().records;
            println!(
                "{name:14} {compression:10?} {count:9} records {:7.1} MB {:5.2} bytes a record, made in {:.2} s, \
                 {processor_s:.2} s of processor",
                mb(made.len),
                made.len as f64 / count as f64,
                made.took.as_secs_f64()
            );
        }
    }
}

fn load(records: u64, folder: &Path) {
    println!("# load: {records} records and {} entries", records / 10);
    for compression in [CheckpointCompression::None, CheckpointCompression::Zstd(1)] {
        let folder = tempfile::tempdir_in(folder).expect("a folder");
        let (directory, database, _) = open(folder.path(), compression, 0);
        let before = processor_s();
        fill(&database, records, Values::Arbitrary);
        println!("{compression:10?} {:.2} s of processor to fill, with a log", processor_s() - before);
        directory.checkpoint(&database).expect("a checkpoint");
        fill(&database, records / 10, Values::Keys);
        drop((database, directory));
        let (before, processor_before, began) = (resident(), processor_s(), Instant::now());
        let (directory, database, opened) = open(folder.path(), compression, 0);
        let took = began.elapsed();
        let checkpoint = opened.checkpoint.as_ref().expect("one was made");
        println!(
            "{compression:10?} {:.2} s, {:.2} s of processor, of it {:.2} s the checkpoint, {} entries; resident {:+.1} MB",
            took.as_secs_f64(),
            processor_s() - processor_before,
            checkpoint.took.as_secs_f64(),
            opened.entries,
            mb(resident()) - mb(before),
        );
        drop((database, directory));
        let (processor_before, began) = (processor_s(), Instant::now());
        let verified = verify(Arc::new(SystemDisk), folder.path(), &mut |_| ()).expect("a directory");
        assert!(verified.damages.is_empty());
        println!(
            "{compression:10?} {:.2} s, {:.2} s of processor, to verify {:.1} MB",
            began.elapsed().as_secs_f64(),
            processor_s() - processor_before,
            mb(verified.checkpoint_bytes + verified.log_bytes)
        );
    }
}

/// Latencies of sets, in nanoseconds.
#[derive(Default)]
struct Latencies(Vec<u32>);

impl Latencies {
    fn show(&mut self, name: &str) {
        self.0.sort_unstable();
        let at = |share: f64| {
            let index = ((self.0.len() - 1) as f64 * share) as usize;
            f64::from(self.0[index]) / 1e3
        };
        println!(
            "{name:8} {:9} sets, us: median {:.1}, p99 {:.1}, p99.9 {:.1}, worst {:.1}",
            self.0.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
    }
}

fn work(records: u64, folder: &Path) {
    println!("# work: {records} records, one writer, before and during checkpoints");
    for (compression, rests) in [
        (CheckpointCompression::None, 1),
        (CheckpointCompression::Zstd(1), 0),
        (CheckpointCompression::Zstd(1), 1),
        (CheckpointCompression::Zstd(1), 3),
    ] {
        let folder = tempfile::tempdir_in(folder).expect("a folder");
        let (directory, database, _) = open(folder.path(), compression, rests);
        fill(&database, records, Values::Arbitrary);
        let (stops, during, sets) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let worker_counters = database.worker_counters();
                let mut latencies =
                    [Latencies(Vec::with_capacity(1 << 25)), Latencies(Vec::with_capacity(1 << 25))];
                // Resident before the measurement.
                latencies.iter_mut().for_each(|latencies| {
                    latencies.0.resize(latencies.0.capacity(), 1);
                    latencies.0.clear();
                });
                let mut n = 0;
                while !stops.load(Ordering::Relaxed) {
                    n += 1;
                    let key = arbitrary(n) % records;
                    let began = Instant::now();
                    set(&database, &worker_counters, &decimal(key), &Values::Arbitrary.of(n));
                    let taken = began.elapsed().as_nanos() as u32;
                    let latencies = &mut latencies[usize::from(during.load(Ordering::Relaxed))].0;
                    if latencies.len() < latencies.capacity() {
                        latencies.push(taken);
                    }
                    sets.store(n, Ordering::Relaxed);
                }
                latencies
            });
            std::thread::sleep(Duration::from_secs(3));
            let before = resident();
            let highest = AtomicU64::new(before);
            during.store(true, Ordering::Relaxed);
            let made = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while during.load(Ordering::Relaxed) {
                        highest.fetch_max(resident(), Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                });
                let made = directory.checkpoint(&database).expect("a checkpoint");
                during.store(false, Ordering::Relaxed);
                made
            });
            stops.store(true, Ordering::Relaxed);
            println!(
                "{compression:?}, {rests} rests: {:.2} s, {:.1} MB; resident {:.1} MB, at most {:+.1} MB ({:+.1} %)",
                made.took.as_secs_f64(),
                mb(made.len),
                mb(before),
                mb(highest.load(Ordering::Relaxed) - before),
                100.0 * (highest.load(Ordering::Relaxed) - before) as f64 / before as f64,
            );
            let [mut without, mut with] = writer.join().expect("a writer");
            without.show("without");
            with.show("with");
        });
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let question = arguments.first().map_or("all", String::as_str);
    let records =
        arguments.get(1).map_or(10_000_000, |records| records.parse().expect("a number of records"));
    let folder = arguments.get(2).map_or_else(std::env::temp_dir, Into::into);
    type Question = fn(u64, &Path);
    let questions: [(&str, Question); 3] = [("size", size), ("load", load), ("work", work)];
    for (name, ask) in questions {
        if question == "all" || question == name {
            ask(records, &folder);
        }
    }
}
