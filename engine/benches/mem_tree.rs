//! Questions to `mem_tree`, each answered in one run with its comparison:
//!
//! - `memory`: how many bytes of resident memory does a record cost, loaded in key order and at
//!   random?
//! - `speed`: how long do a set, a get and a range of 100 take, compared with `MemHash` and the
//!   standard library's `BTreeMap`?
//!
//! Run: `cargo bench -p todana-engine --bench mem_tree -- QUESTION [RECORDS]`; all questions
//! without arguments. `SHAPE=text` selects the shapes of `memory` with this text in their names.

mod material;
#[path = "../tests/visitor/mod.rs"]
#[allow(dead_code, reason = "each uses its part")]
mod visitor;

use material::{arbitrary, decimal, mb, resident};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use todana_core::Engine;
use todana_engine::{Compression, MemHash, MemHashOptions, MemTree, MemTreeOptions};
use visitor::Set;

/// Returns the numbers below `records`, each once, in random order.
fn scattered(records: u64) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..records as u32).collect();
    for n in (1..numbers.len()).rev() {
        numbers.swap(n, (arbitrary(n as u64) % (n as u64 + 1)) as usize);
    }
    numbers
}

fn memory(records: u64) {
    println!("# memory: resident bytes after {records} records (MB = 10^6 bytes)");
    type Make = fn(u64) -> (Vec<u8>, Vec<u8>);
    let shapes: [(&str, Make, bool); 9] = [
        ("compressed: 8-digit key = value", |n| (decimal(n).to_vec(), decimal(n).to_vec()), true),
        ("compressed: the same, at random", |n| (decimal(n).to_vec(), decimal(n).to_vec()), false),
        ("8-digit key = value", |n| (decimal(n).to_vec(), decimal(n).to_vec()), true),
        ("the same, at random", |n| (decimal(n).to_vec(), decimal(n).to_vec()), false),
        ("8-digit key, 8 random bytes", |n| (decimal(n).to_vec(), arbitrary(n).to_le_bytes().to_vec()), true),
        ("the same, at random", |n| (decimal(n).to_vec(), arbitrary(n).to_le_bytes().to_vec()), false),
        (
            "8 random bytes each",
            |n| (arbitrary(n).to_le_bytes().to_vec(), arbitrary(!n).to_le_bytes().to_vec()),
            true,
        ),
        ("decimal key, 1 byte", |n| (n.to_string().into_bytes(), b"x".to_vec()), true),
        (
            "16-byte key, 20-200 bytes",
            |n| {
                (
                    format!("key:{:012x}", arbitrary(n) >> 16).into_bytes(),
                    vec![b'v'; 20 + (arbitrary(!n) % 181) as usize],
                )
            },
            true,
        ),
    ];
    let only = std::env::var("SHAPE").unwrap_or_default();
    for (name, make, in_order) in shapes.into_iter().filter(|(name, ..)| name.contains(&only)) {
        let order = scattered(if in_order { 0 } else { records });
        let (before, start) = (resident(), worked_ns());
        let compression = name.starts_with("compressed").then(Compression::default);
        let tree = MemTree::new(MemTreeOptions { compression, ..Default::default() }).expect("valid options");
        let records = if name.starts_with("16") { records / 5 } else { records };
        let mut payload = 0;
        for n in 0..records {
            let (key, value) = make(if in_order { n } else { order[n as usize].into() });
            payload += (key.len() + value.len()) as u64;
            tree.visit(&key, &mut Set(&value)).expect("no limit");
        }
        let took = (worked_ns() - start) / records as f64;
        let loaded = resident() - before;
        while tree.maintain() {}
        let settled = resident() - before;
        let status = tree.status();
        println!(
            "{name:32} loaded {:7.1} MB, settled {:7.1} MB = {:6.2} B/record; payload {:7.1}, live {:7.1}, committed {:7.1}, index {:.1}; {took:.0} ns each",
            mb(loaded),
            mb(settled),
            settled as f64 / records as f64,
            mb(payload),
            mb(status.live_bytes),
            mb(status.committed_bytes),
            mb(status.index.bytes),
        );
        drop(tree);
    }
}

/// Returns the CPU nanoseconds of this thread, unaffected by other work on the machine.
fn worked_ns() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number of nanoseconds")
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the nanoseconds of a set of new keys in order, of new keys at random, a random get, a
/// set of existing keys, and a range of 100.
fn speed_of_engine(make: &dyn Fn() -> Box<dyn Engine>, records: u64, order: &[u32]) -> [f64; 5] {
    let value = |n: u64| arbitrary(n).to_le_bytes();
    let time = |per: u64, run: &mut dyn FnMut()| {
        let start = worked_ns();
        run();
        (worked_ns() - start) / per as f64
    };
    let mut sum = 0u64;
    let shuffled = scattered(records);
    let scattered_tree = make();
    let at_random = time(records, &mut || {
        for &n in &shuffled {
            scattered_tree.visit(&decimal(n.into()), &mut Set(&value(n.into()))).expect("no limit");
        }
    });
    drop(scattered_tree);
    let engine = make();
    let in_order = time(records, &mut || {
        (0..records).for_each(|n| engine.visit(&decimal(n), &mut Set(&value(n))).expect("no limit"));
    });
    let get = time(records, &mut || {
        for &n in order {
            engine.view(&decimal(n.into()), &mut |record| sum += u64::from(record.value[0])).expect("reads");
        }
    });
    let known = time(records, &mut || {
        for &n in order {
            engine.visit(&decimal(n.into()), &mut Set(&value(n.into()))).expect("no limit");
        }
    });
    let ranges = records / 20;
    let range = engine.ordered().map_or(f64::NAN, |ordered| {
        time(ranges, &mut || {
            for &n in &order[..ranges as usize] {
                let mut left = 100;
                ordered
                    .ascend(Bound::Included(&decimal(n.into())), &mut |key, record| {
                        sum += u64::from(key[0]) + u64::from(record.value[0]);
                        left -= 1;
                        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                    .expect("reads");
            }
        })
    });
    black_box(sum);
    [in_order, at_random, get, known, range]
}

fn speed_of_map(records: u64, order: &[u32]) -> [f64; 5] {
    let value = |n: u64| arbitrary(n).to_le_bytes();
    let time = |per: u64, run: &mut dyn FnMut()| {
        let start = worked_ns();
        run();
        (worked_ns() - start) / per as f64
    };
    let mut sum = 0u64;
    let shuffled = scattered(records);
    let mut map: BTreeMap<Box<[u8]>, Box<[u8]>> = BTreeMap::new();
    let at_random = time(records, &mut || {
        for &n in &shuffled {
            map.insert(decimal(n.into()).into(), value(n.into()).into());
        }
    });
    map.clear();
    let in_order = time(records, &mut || {
        (0..records).for_each(|n| drop(map.insert(decimal(n).into(), value(n).into())));
    });
    let get = time(records, &mut || {
        for &n in order {
            sum += u64::from(map[&decimal(n.into())[..]][0]);
        }
    });
    let known = time(records, &mut || {
        for &n in order {
            map.insert(decimal(n.into()).into(), value(n.into()).into());
        }
    });
    let ranges = records / 20;
    let range = time(ranges, &mut || {
        for &n in &order[..ranges as usize] {
            for (key, value) in
                map.range::<[u8], _>((Bound::Included(&decimal(n.into())[..]), Bound::Unbounded)).take(100)
            {
                sum += u64::from(key[0]) + u64::from(value[0]);
            }
        }
    });
    black_box(sum);
    [in_order, at_random, get, known, range]
}

fn speed(records: u64) {
    println!(
        "# speed: CPU ns per operation, {records} records of 8 + 8 bytes, one thread, medians of three alternating rounds"
    );
    let order: Vec<u32> = (0..records).map(|n| (arbitrary(n) % records) as u32).collect();
    let tree: &dyn Fn() -> Box<dyn Engine> =
        &|| Box::new(MemTree::new(MemTreeOptions::default()).expect("valid options"));
    let hash: &dyn Fn() -> Box<dyn Engine> =
        &|| Box::new(MemHash::new(MemHashOptions::default()).expect("valid options"));
    let mut rounds: [Vec<[f64; 5]>; 3] = Default::default();
    for _ in 0..std::env::var("ROUNDS").ok().and_then(|x| x.parse().ok()).unwrap_or(3) {
        rounds[0].push(speed_of_engine(tree, records, &order));
        rounds[1].push(speed_of_engine(hash, records, &order));
        rounds[2].push(speed_of_map(records, &order));
    }
    println!(
        "{:10} {:>12} {:>14} {:>10} {:>10} {:>14}",
        "", "set in order", "set at random", "get", "set known", "range of 100"
    );
    for (name, rounds) in ["mem_tree", "mem_hash", "BTreeMap"].into_iter().zip(&rounds) {
        let of = |what: usize| median(rounds.iter().map(|round| round[what]).collect());
        println!("{name:10} {:12.1} {:14.1} {:10.1} {:10.1} {:14.1}", of(0), of(1), of(2), of(3), of(4));
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let question = words.first().map_or("all", String::as_str);
    let records: u64 = words.get(1).map_or(2_000_000, |n| n.parse().expect("a number of records"));
    for (name, ask) in [("memory", memory as fn(u64)), ("speed", speed)] {
        if question == name || question == "all" {
            ask(records);
        }
    }
}
