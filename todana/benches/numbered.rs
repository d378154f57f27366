//! Question: what do 10 million numbered records with values of 8 bytes cost, in memory and in time
//! for each put and get, in ascending and in random order?
//!
//! `cargo bench -p todana --bench numbered [RECORDS]`

use std::hint::black_box;
use std::time::Instant;
use todana::{Database, Db, OverwriteVisitor, Records};
use todana_core::{Action, Attributes, Record, key_of_number};

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Returns the number of a step: every number once, in a scattered order.
fn scattered(step: u64, count: u64) -> u64 {
    // The multiplier is a prime larger than any count.
    (step as u128 * 2_654_435_761 % count as u128) as u64 + 1
}

fn measure(what: &str, count: u64, mut each: impl FnMut(u64)) {
    for (order, is_scattered) in [("ascending", false), ("random", true)] {
        let start = Instant::now();
        (0..count).for_each(|step| each(if is_scattered { scattered(step, count) } else { step + 1 }));
        let ns = start.elapsed().as_nanos() as f64 / count as f64;
        println!("{what:<24} {order:<10} {ns:7.1} ns");
    }
}

/// Measures the engine below the database's commands.
fn measure_engine(database: &Database, count: u64) {
    let engine = database.engine();
    measure("engine put", count, |number| {
        let (mut text, value) = ([0; 20], number.to_le_bytes());
        let record = Record::new(&value, Attributes::default());
        engine.visit(key_of_number(number, &mut text), &mut OverwriteVisitor(Action::Put(record))).unwrap();
    });
    measure("engine get", count, |number| {
        let mut text = [0; 20];
        engine
            .view(key_of_number(number, &mut text), &mut |record| {
                black_box(record.value);
            })
            .unwrap();
    });
}

fn main() {
    let count = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(10_000_000);
    let db = Db::open("mem:fixed#width=8#limsiz=1g").unwrap();
    db.set(b"1", b"12345678").unwrap();
    let before = resident_bytes();
    let start = Instant::now();
    for number in 1..=count {
        db.set(key_of_number(number, &mut [0; 20]), &number.to_le_bytes()).unwrap();
    }
    let first_ns = start.elapsed().as_nanos() as f64 / count as f64;
    let per_record = (resident_bytes() - before) as f64 / count as f64;
    println!("{count} records: {per_record:.3} resident bytes each; first put {first_ns:.1} ns");
    measure("Db::set", count, |number| {
        db.set(key_of_number(number, &mut [0; 20]), &number.to_le_bytes()).unwrap();
    });
    measure("Db::view", count, |number| {
        db.view(key_of_number(number, &mut [0; 20]), &mut |record| {
            black_box(record.value);
        })
        .unwrap();
    });
    measure_engine(db.database(), count);
}
