//! Questions to `disk_tree`, each answered in one run beside `mem_tree`, which does the same
//! without a disk:
//!
//! - `speed`: what do a get, a miss, a scan of 100, an update among 100,000 and among 800,000
//!   updates cost, including checkpoints? (keys and values of 8 bytes, in pseudo-random order)
//! - `values`: what does an update cost by the length of the value?
//! - `mixed`: how long do gets take during writes and checkpoints: median, 99.9 %, worst?
//! - `opening`: how long does an opening take, by the number of records?
//!
//! Times are CPU times of the main thread (`mixed` and `opening`: wall clock), medians of three
//! rounds. Run: `cargo bench -p todana-engine --bench disk_tree -- QUESTION [RECORDS]`; all
//! questions without arguments. Data is in the directory for temporary files.

#[allow(dead_code, reason = "each uses its part")]
#[path = "../tests/visitor/mod.rs"]
mod visitor;

use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use todana_core::{CheckpointedEngine, Engine};
use todana_engine::{DiskTree, DiskTreeOptions, MemTree, MemTreeOptions};
use visitor::Set;

/// Returns the n-th number of a fixed pseudo-random stream (splitmix64).
fn arbitrary(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

fn key(n: u64) -> [u8; 8] {
    arbitrary(n).to_be_bytes()
}

/// Returns the CPU microseconds of the main thread.
fn worked_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    let of_main: f64 = stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds");
    of_main / 1000.0
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn open(directory: &Path) -> DiskTree {
    DiskTree::open(directory, DiskTreeOptions::default()).expect("an empty directory")
}

/// Stores a record, and writes checkpoints as maintenance would.
fn put(engine: &dyn Engine, key: &[u8], value: &[u8]) {
    engine.visit(key, &mut Set(value)).expect("there is room");
    if engine.checkpointed().is_some_and(CheckpointedEngine::is_due) {
        engine.maintain();
    }
}

fn settle(engine: &dyn Engine) {
    if let Some(checkpointed) = engine.checkpointed() {
        checkpointed.checkpoint(1).expect("the disk works");
    }
}

/// Returns the CPU microseconds per run.
fn each(count: u64, mut run: impl FnMut(u64)) -> f64 {
    let before = worked_us();
    (0..count).for_each(&mut run);
    (worked_us() - before) / count as f64
}

fn speed(records: u64) {
    println!("# speed: microseconds of work each, {records} records");
    println!(
        "{:12}{:>8}{:>8}{:>8}{:>10}{:>8}{:>8}",
        "", "load", "get", "miss", "scan 100", "single", "batch"
    );
    let directory = tempfile::tempdir().expect("a directory");
    let memory = MemTree::new(MemTreeOptions::default()).expect("valid options");
    let engines: [(&str, &dyn Engine); 2] = [("disk_tree", &open(directory.path())), ("mem_tree", &memory)];
    let mut figures = vec![vec![Vec::new(); 6]; engines.len()];
    for (figures, (_, engine)) in figures.iter_mut().zip(engines) {
        let load = each(records, |n| put(engine, &key(n), b"eightby."));
        settle(engine);
        figures[0].push(load);
    }
    for round in 0..3 {
        for (figures, (_, engine)) in figures.iter_mut().zip(engines) {
            let any = |n: u64, salt: u64| key(arbitrary(n ^ salt << 40 ^ round << 50) % records);
            let get = |key: [u8; 8]| {
                let mut first = 0;
                engine.view(&key, &mut |record| first = record.value[0]).expect("reads");
                black_box(first);
            };
            figures[1].push(each(400_000, |n| get(any(n, 1))));
            figures[2].push(each(400_000, |n| get(key(records + n))));
            let ordered = engine.ordered().expect("a tree");
            figures[3].push(each(20_000, |n| {
                let (mut left, mut sum) = (100, 0u64);
                let walked = ordered.ascend(Bound::Included(&any(n, 2)), &mut |_, record| {
                    sum += u64::from(record.value[0]);
                    left -= 1;
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                walked.expect("reads");
                black_box(sum);
            }));
            for (figure, count) in [(4, 100_000), (5, 800_000)] {
                let mut taken = each(count, |n| put(engine, &any(n, figure as u64), b"updated."));
                taken += each(1, |_| settle(engine)) / count as f64;
                figures[figure].push(taken);
            }
        }
    }
    for (figures, (name, _)) in figures.into_iter().zip(engines) {
        let [load, get, miss, scan, single, batch]: [f64; 6] =
            figures.into_iter().map(median).collect::<Vec<_>>().try_into().expect("six figures");
        println!("{name:12}{load:8.2}{get:8.2}{miss:8.2}{scan:10.2}{single:8.2}{batch:8.2}");
    }
}

fn values(records: u64) {
    println!(
        "# values: microseconds of work for an update, by the value's length, some 200 MB of records at most"
    );
    for len in [8usize, 100, 400, 1000, 4000, 20_000, 100_000] {
        let records = records.min(200_000_000 / len as u64);
        let value = vec![b'v'; len];
        let directory = tempfile::tempdir().expect("a directory");
        let memory = MemTree::new(MemTreeOptions::default()).expect("valid options");
        let engines: [&dyn Engine; 2] = [&open(directory.path()), &memory];
        let mut taken: [Vec<f64>; 2] = Default::default();
        for engine in engines {
            (0..records).for_each(|n| put(engine, &key(n), &value));
            settle(engine);
        }
        for round in 0..3 {
            for (taken, engine) in taken.iter_mut().zip(engines) {
                let count = (records / 2).max(1);
                let mut each_us =
                    each(count, |n| put(engine, &key(arbitrary(n ^ round << 50) % records), &value));
                each_us += each(1, |_| settle(engine)) / count as f64;
                taken.push(each_us);
            }
        }
        let [disk, memory] = taken.map(median);
        println!("{len:7} bytes: disk_tree {disk:8.2}, mem_tree {memory:8.2}");
    }
}

fn mixed(records: u64) {
    println!(
        "# mixed: microseconds by the clock for a get, two readers, {records} records, with and without a writer"
    );
    let directory = tempfile::tempdir().expect("a directory");
    let tree = open(directory.path());
    (0..records).for_each(|n| put(&tree, &key(n), b"eightby."));
    settle(&tree);
    for writes in [false, true] {
        let (done, written) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
        let start = Instant::now();
        let mut times: Vec<f64> = std::thread::scope(|scope| {
            if writes {
                scope.spawn(|| {
                    for n in 0.. {
                        if done.load(Ordering::Relaxed) {
                            return;
                        }
                        put(&tree, &key(arbitrary(!n) % records), b"updated.");
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let readers: Vec<_> = (0..2)
                .map(|reader: u64| {
                    let tree = &tree;
                    scope.spawn(move || {
                        let mut times = Vec::new();
                        for n in 0..500_000 {
                            let key = key(arbitrary(n ^ reader << 40) % records);
                            let start = Instant::now();
                            tree.view(&key, &mut |record| _ = black_box(record.value[0])).expect("reads");
                            times.push(start.elapsed().as_nanos() as f64 / 1000.0);
                        }
                        times
                    })
                })
                .collect();
            let times = readers.into_iter().flat_map(|reader| reader.join().expect("it ends")).collect();
            done.store(true, Ordering::Relaxed);
            times
        });
        let took = start.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[(times.len() as f64 * share) as usize];
        println!(
            "{:15} median {:6.2}, 99.9 % {:8.2}, worst {:9.1}; {:.2} M writes a second",
            if writes { "with a writer" } else { "without" },
            at(0.5),
            at(0.999),
            times[times.len() - 1],
            written.load(Ordering::Relaxed) as f64 / took / 1e6,
        );
    }
}

fn opening(records: u64) {
    println!("# opening: milliseconds by the clock");
    for records in [records / 100, records / 10, records] {
        let directory = tempfile::tempdir().expect("a directory");
        let tree = open(directory.path());
        (0..records).for_each(|n| put(&tree, &key(n), b"eightby."));
        settle(&tree);
        let bytes = tree.file_bytes();
        drop(tree);
        let start = Instant::now();
        let tree = open(directory.path());
        let took = start.elapsed().as_secs_f64() * 1000.0;
        assert_eq!(tree.status().records, records);
        println!(
            "{records:9} records: {took:6.2} ms; file {:.1} MB, {:.1} bytes a record",
            bytes as f64 / 1e6,
            bytes as f64 / records as f64
        );
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let question = words.first().map_or("all", String::as_str);
    let records: u64 = words.get(1).map_or(2_000_000, |n| n.parse().expect("a number of records"));
    for (name, ask) in
        [("speed", speed as fn(u64)), ("values", values), ("mixed", mixed), ("opening", opening)]
    {
        if question == name || question == "all" {
            ask(records);
        }
    }
}
