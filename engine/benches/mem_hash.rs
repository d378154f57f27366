//! Questions to `mem_hash`, each answered in one run with its comparison:
//!
//! - `memory`: how many bytes of resident memory does a record cost? (decimal, random and longer
//!   values)
//! - `speed`: how long do a set and a get take, compared with the standard library's `HashMap` of
//!   boxed slices?
//! - `growth`: what is the largest cost of a single set during growth, without a limit and beyond
//!   one: bytes moved, nanoseconds?
//! - `sweep`: what does a sweep for expired records cost per record, and the removal of one?
//! - `full`: what does a get cost while memory is scarce and uses are noted, compared with the same
//!   records without a limit?
//! - `churn`: does memory follow the live bytes after overwriting with other sizes and deleting?
//! - `image`: how long does it take to copy all buckets to an image, and to adopt them?
//!
//! Run: `cargo bench -p todana-engine --bench mem_hash -- QUESTION [RECORDS]`; all questions
//! without arguments.

mod material;
#[path = "../tests/visitor/mod.rs"]
mod visitor;

use material::{arbitrary, decimal, mb, resident};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;
use todana_core::{
    Action, Attributes, Engine, Expiry, ImagedEngine, MemoryLimit, Record, SweepAim, UnixSeconds, Visitor,
    WhenFull,
};
use todana_engine::{MemHash, MemHashOptions};
use visitor::{Remove, Set};

type BoxMap = HashMap<Box<[u8]>, Box<[u8]>>;

fn memory(records: u64) {
    println!("# memory: resident bytes after {records} records (MB = 10^6 bytes)");
    type Make = fn(u64) -> (Vec<u8>, Vec<u8>);
    let shapes: [(&str, Make); 5] = [
        ("8-digit key = value", |n| (decimal(n).to_vec(), decimal(n).to_vec())),
        ("8-digit key, 8 random bytes", |n| (decimal(n).to_vec(), arbitrary(n).to_le_bytes().to_vec())),
        ("8 random bytes each", |n| {
            (arbitrary(n).to_le_bytes().to_vec(), arbitrary(!n).to_le_bytes().to_vec())
        }),
        ("decimal key, 1 byte", |n| (n.to_string().into_bytes(), b"x".to_vec())),
        ("16-byte key, 20-200 bytes", |n| {
            (
                format!("key:{:012x}", arbitrary(n) >> 16).into_bytes(),
                vec![b'v'; 20 + (arbitrary(!n) % 181) as usize],
            )
        }),
    ];
    for (name, make) in shapes {
        let before = resident();
        let hash = MemHash::new(MemHashOptions::default()).expect("valid options");
        let records = if name.starts_with("16") { records / 5 } else { records };
        let mut payload = 0;
        for n in 1..=records {
            let (key, value) = make(n);
            payload += (key.len() + value.len()) as u64;
            hash.visit(&key, &mut Set(&value)).expect("no limit");
        }
        let loaded = resident() - before;
        while hash.maintain() {}
        let settled = resident() - before;
        let status = hash.status();
        println!(
            "{name:30} loaded {:7.1} MB, settled {:7.1} MB = {:6.2} B/record; payload {:7.1}, live {:7.1}, committed {:7.1}",
            mb(loaded),
            mb(settled),
            settled as f64 / records as f64,
            mb(payload),
            mb(status.live_bytes),
            mb(status.committed_bytes),
        );
        drop(hash);
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The subjects of `speed`.
#[derive(Clone, Copy)]
enum Rival {
    /// `MemHash` with an exclusive owner, as a `HashMap` is used.
    Owned,
    /// `MemHash` through its locks, as a server uses it.
    Shared,
    HashMap,
    /// A `HashMap` in a lock, as a server would have to use it.
    LockedMap,
}

const RIVALS: [(&str, Rival); 4] = [
    ("mem_hash, owned", Rival::Owned),
    ("mem_hash, shared", Rival::Shared),
    ("HashMap", Rival::HashMap),
    ("RwLock<HashMap>", Rival::LockedMap),
];

/// Returns the nanoseconds of a set of new keys, a random get, a set of existing keys, and a
/// prefetched get (if there is one).
fn speed_of(rival: Rival, records: u64, order: &[u32]) -> [f64; 4] {
    let key = |n: u64| decimal(n + 1);
    let value = |n: u64| arbitrary(n).to_le_bytes();
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed().as_nanos() as f64 / records as f64
    };
    let mut sum = 0u64;
    let times = match rival {
        Rival::Owned => {
            let mut hash = MemHash::new(MemHashOptions::default()).expect("valid options");
            [
                time(&mut || {
                    (0..records).for_each(|n| hash.visit_mut(&key(n), &mut Set(&value(n))).expect("no limit"))
                }),
                time(&mut || {
                    for &n in order {
                        sum += hash
                            .view_mut(&key(n.into()), |record| u64::from(record.value[0]))
                            .expect("is there");
                    }
                }),
                time(&mut || {
                    for &n in order {
                        hash.visit_mut(&key(n.into()), &mut Set(&value(n.into()))).expect("no limit");
                    }
                }),
                f64::NAN,
            ]
        }
        Rival::Shared => {
            let hash = MemHash::new(MemHashOptions::default()).expect("valid options");
            let mut get = |n: u32| {
                hash.view(&key(n.into()), &mut |record| sum += u64::from(record.value[0])).expect("reads");
            };
            [
                time(&mut || {
                    (0..records).for_each(|n| hash.visit(&key(n), &mut Set(&value(n))).expect("no limit"))
                }),
                time(&mut || order.iter().for_each(|&n| get(n))),
                time(&mut || {
                    for &n in order {
                        hash.visit(&key(n.into()), &mut Set(&value(n.into()))).expect("no limit");
                    }
                }),
                time(&mut || {
                    for chunk in order.chunks(16) {
                        chunk.iter().for_each(|&n| hash.prefetch(&key(n.into())));
                        chunk.iter().for_each(|&n| get(n));
                    }
                }),
            ]
        }
        Rival::HashMap => {
            let mut map = BoxMap::new();
            [
                time(&mut || (0..records).for_each(|n| drop(map.insert(key(n).into(), value(n).into())))),
                time(&mut || {
                    for &n in order {
                        sum += u64::from(map[&key(n.into())[..]][0]);
                    }
                }),
                time(&mut || {
                    for &n in order {
                        map.insert(key(n.into()).into(), value(n.into()).into());
                    }
                }),
                f64::NAN,
            ]
        }
        Rival::LockedMap => {
            let map: RwLock<BoxMap> = RwLock::default();
            [
                time(&mut || {
                    (0..records).for_each(|n| drop(map.write().insert(key(n).into(), value(n).into())))
                }),
                time(&mut || {
                    for &n in order {
                        sum += u64::from(map.read()[&key(n.into())[..]][0]);
                    }
                }),
                time(&mut || {
                    for &n in order {
                        map.write().insert(key(n.into()).into(), value(n.into()).into());
                    }
                }),
                f64::NAN,
            ]
        }
    };
    black_box(sum);
    times
}

fn speed(records: u64) {
    println!(
        "# speed: ns per operation, {records} records of 8 + 8 bytes, one thread, medians of three alternating rounds"
    );
    let order: Vec<u32> = (0..records).map(|n| (arbitrary(n) % records) as u32).collect();
    let mut rounds: [Vec<[f64; 4]>; 4] = Default::default();
    for _ in 0..std::env::var("ROUNDS").ok().and_then(|x| x.parse().ok()).unwrap_or(3) {
        for (index, (_, rival)) in RIVALS.iter().enumerate() {
            rounds[index].push(speed_of(*rival, records, &order));
        }
    }
    let medians = rounds
        .map(|rounds| [0, 1, 2, 3].map(|what| median(rounds.iter().map(|round| round[what]).collect())));
    println!("{:18} {:>10} {:>10} {:>10} {:>14}", "", "set new", "get", "set known", "prefetched get");
    for (index, (name, _)) in RIVALS.iter().enumerate() {
        let [new, get, known, prefetched] = medians[index];
        println!("{name:18} {new:10.1} {get:10.1} {known:10.1} {prefetched:14.1}");
    }
    for (ours, theirs) in [(0, 2), (1, 3)] {
        let ratio = |what: usize| medians[ours][what] / medians[theirs][what];
        println!(
            "{} / {}: set new {:.2}, get {:.2}, set known {:.2}",
            RIVALS[ours].0,
            RIVALS[theirs].0,
            ratio(0),
            ratio(1),
            ratio(2)
        );
    }
}

fn growth(records: u64) {
    println!("# growth: the worst single set from 0 to {records} records of 8 + 8 bytes");
    let unlimited = MemHashOptions::default();
    grow(unlimited, records, |n| (decimal(n).to_vec(), arbitrary(n).to_le_bytes().to_vec()));
    println!("# growth: decimal keys, 1 byte each, of which about two thirds fit");
    let limit = MemoryLimit { bytes: Some(records * 17 / 10), when_full: WhenFull::Evict };
    let limited = MemHashOptions { limit, ..MemHashOptions::default() };
    grow(limited, records, |n| (n.to_string().into_bytes(), b"x".to_vec()));
}

/// Stores records in a new hash, and prints how long the slowest sets take.
fn grow(options: MemHashOptions, records: u64, make: impl Fn(u64) -> (Vec<u8>, Vec<u8>)) {
    let hash = MemHash::new(options).expect("valid options");
    // A histogram in steps of a 16th of a power of two.
    let mut counts = vec![0u64; 64 * 16];
    let slot = |ns: u64| {
        let power = ns.max(16).ilog2() as usize;
        power * 16 + (ns.max(16) >> (power - 4)) as usize % 16
    };
    let (mut worst, mut sum) = (0, 0);
    for n in 0..records {
        let (key, value) = make(n);
        let start = Instant::now();
        hash.visit(&key, &mut Set(&value)).expect("records of a few bytes fit");
        let ns = start.elapsed().as_nanos() as u64;
        sum += ns;
        worst = worst.max(ns);
        counts[slot(ns)] += 1;
    }
    for (name, share) in
        [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("p99.999", 0.99999)]
    {
        let mut left = (records as f64 * share) as u64;
        let index = counts
            .iter()
            .position(|&count| {
                left = left.saturating_sub(count);
                left == 0
            })
            .unwrap_or(0);
        let (power, sixteenth) = (index / 16, index % 16);
        println!("{name:8} {:8.2} us", ((16 + sixteenth + 1) as f64 * 2f64.powi(power as i32 - 4)) / 1000.0);
    }
    println!(
        "worst    {:8.2} us, mean {:.2}; bytes moved by the worst single set: {}; {} records remain",
        worst as f64 / 1000.0,
        sum as f64 / records as f64 / 1000.0,
        hash.worst_moved_bytes(),
        hash.status().records
    );
}

fn sweep(records: u64) {
    println!("# sweep: {records} records of 8-digit keys and values");
    struct Timed<'v>(&'v [u8], Expiry);
    impl Visitor for Timed<'_> {
        fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record::new(self.0, Attributes { expiry: self.1, ..Attributes::default() }))
        }
    }
    type Expires = fn(u64) -> Expiry;
    let sweeps: [(&str, Expires); 3] = [
        ("none expires", |_| Expiry::Never),
        ("all expire later", |n| Expiry::At(UnixSeconds(100 + n % 100))),
        ("half are expired", |n| if n % 2 == 0 { Expiry::At(UnixSeconds(1)) } else { Expiry::Never }),
    ];
    for (name, expiry) in sweeps {
        let hash = MemHash::new(MemHashOptions::default()).expect("valid options");
        for n in 0..records {
            hash.visit(&decimal(n), &mut Timed(&decimal(n), expiry(n))).expect("no limit");
        }
        let perishable = hash.sweepable().expect("it can be swept");
        let (mut place, mut removed, mut worst) = (None, 0, 0.0f64);
        let start = Instant::now();
        loop {
            let step = Instant::now();
            let swept = perishable
                .sweep(place, 2048, SweepAim::Tidiness, &mut |expiry| !expiry.is_live(UnixSeconds(50)));
            let swept = swept.expect("a local engine does not fail");
            worst = worst.max(step.elapsed().as_nanos() as f64);
            (place, removed) = (swept.next, removed + swept.removed);
            if place.is_none() {
                break;
            }
        }
        let each = start.elapsed().as_nanos() as f64 / records as f64;
        println!("{name:18} {each:6.1} ns a record, {removed} removed; worst step {:.0} us", worst / 1000.0);
    }
}

/// Numbers below `n`, smaller ones more likely (Zipf, exponent 0.99; Gray et al., SIGMOD 1994),
/// scattered.
struct Zipf {
    n: f64,
    zeta: f64,
    eta: f64,
    drawn: u64,
}

impl Zipf {
    const EXPONENT: f64 = 0.99;

    fn new(n: u64, seed: u64) -> Zipf {
        let zeta: f64 = (1..=n).map(|rank| (rank as f64).powf(-Self::EXPONENT)).sum();
        let two = 1.0 + 0.5f64.powf(Self::EXPONENT);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - Self::EXPONENT)) / (1.0 - two / zeta);
        Zipf { n: n as f64, zeta, eta, drawn: seed << 40 }
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let uniform = (arbitrary(self.drawn) >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        let rank = self.n * (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - Self::EXPONENT));
        (rank as u64).min(self.n as u64 - 1)
    }
}

/// Gets of a cache. If it `fills`, misses are stored, outside of the measured time. Returns the
/// nanoseconds per get and the fraction of hits.
fn cached_gets(hash: &MemHash, fills: bool, threads: u64, keys: u64, seed: u64) -> (f64, f64) {
    const BATCH: usize = 512;
    const BATCHES: usize = 4000;
    let run = |thread: u64| {
        let mut zipf = Zipf::new(keys, seed + thread);
        let (mut taken_ns, mut hits, mut sum) = (Vec::new(), 0, 0);
        for _ in 0..BATCHES {
            let wanted: Vec<[u8; 8]> = (0..BATCH).map(|_| decimal(zipf.draw())).collect();
            let mut missing = Vec::new();
            let start = Instant::now();
            for key in &wanted {
                if !hash.view(key, &mut |record| sum += u64::from(record.value[0])).expect("reads") {
                    missing.push(key);
                }
            }
            taken_ns.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
            hits += BATCH - missing.len();
            if fills {
                missing.iter().for_each(|key| hash.visit(*key, &mut Set(&[b'v'; 32])).expect("evicts"));
            }
        }
        black_box(sum);
        // The median of the batches: other work on the machine slows down a few of them
        // considerably.
        (median(taken_ns), hits as f64 / (BATCHES * BATCH) as f64)
    };
    let outcomes: Vec<(f64, f64)> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        started.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    });
    let mean = |part: fn(&(f64, f64)) -> f64| outcomes.iter().map(part).sum::<f64>() / threads as f64;
    (mean(|outcome| outcome.0), mean(|outcome| outcome.1))
}

fn full(records: u64) {
    println!(
        "# full: ns a get, Zipf over {records} keys of which about a quarter fit, 32-byte values; medians of 5"
    );
    let limit = |bytes| MemoryLimit { bytes, when_full: WhenFull::Evict };
    for threads in [1, 2] {
        let options = MemHashOptions { limit: limit(Some(records / 4 * 50)), ..MemHashOptions::default() };
        let full = MemHash::new(options).expect("valid options");
        cached_gets(&full, true, 2, records, 100);
        let roomy = MemHash::new(MemHashOptions::default()).expect("valid options");
        full.scan(None, &mut |key, record| {
            roomy.visit(key, &mut Set(record.value)).expect("no limit");
            ControlFlow::Continue(())
        })
        .expect("a local engine does not fail");
        let mut taken: [Vec<f64>; 2] = Default::default();
        let mut hits = [0.0; 2];
        for round in 0..5 {
            for (index, hash) in [&full, &roomy].into_iter().enumerate() {
                let (ns, share) = cached_gets(hash, index == 0, threads, records, 10 * round + 1);
                taken[index].push(ns);
                hits[index] = share;
            }
        }
        let [of_full, of_roomy] = taken.map(median);
        println!(
            "{threads} thread(s): full {of_full:6.1} ({:.3} hits), not full {of_roomy:6.1} ({:.3}); ratio {:.2}",
            hits[0],
            hits[1],
            of_full / of_roomy
        );
    }
}

fn churn(records: u64) {
    println!(
        "# churn: {records} records of 16 + 20-200 bytes, overwritten twice with other sizes, a random 80 % deleted"
    );
    let hash = MemHash::new(MemHashOptions::default()).expect("valid options");
    let key = |n: u64| format!("key:{:012x}", arbitrary(n) >> 16).into_bytes();
    let len = |n: u64, round: u64| 20 + (arbitrary(n ^ round << 40) % 181) as usize;
    let value = [b'v'; 200];
    for round in 0..3 {
        for n in 0..records {
            hash.visit(&key(n), &mut Set(&value[..len(n, round)])).expect("no limit");
        }
        println!(
            "round {round}: resident {:.1} MB, live {:.1} MB",
            mb(resident()),
            mb(hash.status().live_bytes)
        );
    }
    let mut live = 0;
    let start = Instant::now();
    for n in 0..records {
        if !arbitrary(!n).is_multiple_of(5) {
            hash.visit(&key(n), &mut Remove).expect("removal does not fail");
        } else {
            live += 16 + len(n, 2) as u64;
        }
    }
    println!("deleted in {:.2} s: resident {:.1} MB", start.elapsed().as_secs_f64(), mb(resident()));
    let start = Instant::now();
    while hash.maintain() {}
    println!(
        "housekeeping {:.2} s: resident {:.1} MB for {:.1} MB of keys and values; bar {:.1}",
        start.elapsed().as_secs_f64(),
        mb(resident()),
        mb(live),
        1.1 * mb(live) + 16.0
    );
}

fn image(records: u64) {
    println!("# image: {records} records of 8 + 8 decimal digits, on one thread");
    let before = MemHash::new(MemHashOptions::default()).expect("valid options");
    for n in 0..records {
        before.visit(&decimal(n), &mut Set(&decimal(arbitrary(n) % 100_000_000))).expect("no limit");
    }
    let form = before.image_form();
    let (mut blocks, mut from, mut steps) = (vec![Vec::new()], None, Vec::new());
    let start = Instant::now();
    loop {
        let step = Instant::now();
        let block = blocks.last_mut().expect("the first");
        let copied = before.copy_buckets(&form, from, &|_| false, block, &mut |_, _| ()).expect("same seed");
        steps.push(step.elapsed().as_nanos() as f64 / 1e3);
        if block.len() >= 256 << 10 {
            blocks.push(Vec::with_capacity(300 << 10));
        }
        from = copied.next;
        if from.is_none() {
            break;
        }
    }
    let copied_s = start.elapsed().as_secs_f64();
    let bytes: usize = blocks.iter().map(Vec::len).sum();
    let after = MemHash::new(MemHashOptions::default()).expect("valid options");
    let start = Instant::now();
    assert!(after.begin_image_load(&form));
    for block in &blocks {
        let put = &mut |_: &[u8], _: Record<'_>| panic!("all buckets fit");
        after.adopt_buckets(&form, block, &mut |_| (), put).expect("an intact block");
    }
    after.end_ordered_load();
    let adopted_s = start.elapsed().as_secs_f64();
    assert_eq!(after.status().records, records);
    steps.sort_by(f64::total_cmp);
    println!(
        "copied {:.1} MB in {copied_s:.3} s, adopted in {adopted_s:.3} s; a step takes {:.1} us, 99 % of them at most {:.1}",
        mb(bytes as u64),
        steps[steps.len() / 2],
        steps[steps.len() / 100 * 99]
    );
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let question = words.first().map_or("all", String::as_str);
    let records: u64 = words.get(1).map_or(2_000_000, |n| n.parse().expect("a number of records"));
    for (name, ask) in [
        ("memory", memory as fn(u64)),
        ("speed", speed),
        ("growth", growth),
        ("sweep", sweep),
        ("full", full),
        ("churn", churn),
        ("image", image),
    ] {
        if question == name || question == "all" {
            ask(records);
        }
    }
}
