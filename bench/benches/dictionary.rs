//! Questions to the engine's dictionaries and key shapes, answered for each shape of records:
//!
//! - How many bytes does a value take, encoded by a dictionary that was trained on other values?
//! - How long do training, encoding and decoding take, and how much memory does a dictionary take?
//! - How many bytes does a key take in its shape, and how long do both directions take?
//! - How much memory does a record take in a hash that compresses, compared with one that does not,
//!   and how long do a get and a set take? (`hash`)
//!
//! Run: `cargo bench -p todana-bench --bench dictionary -- SHAPE...`, with the shapes of `todana
//! bench memory --shape`.

use std::hint::black_box;
use std::time::Instant;
use todana_bench::RecordShape;
use todana_core::{Action, Attributes, Engine, Record, Visitor};
use todana_engine::dictionary::{SampleTraining, TrainedDictionary, TrainingSample, TrainingStep};
use todana_engine::key_shape::{KeyShapes, find_shapes};
use todana_engine::{MemHash, MemHashOptions};

/// The number of records of which a sample is taken.
const RECORDS: u64 = 1_000_000;
/// The number of other records that are measured.
const MEASURED: u64 = 50_000;
const KEYS_SAMPLED: usize = 4096;
const ROUNDS: usize = 10;

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let Some(at) = named.iter().position(|word| word == "hash") {
        let records = named.get(at + 1).and_then(|number| number.parse().ok()).unwrap_or(1_000_000);
        return named[at + 2..].iter().for_each(|name| match name.parse() {
            Ok(shape) => measure_hash(&shape, records),
            Err(error) => println!("{name}: {error}"),
        });
    }
    let default = ["profile", "short-profile", "session-json", "session", "counter"].map(String::from);
    println!(
        "{:44} {:>6} {:>7} {:>6} {:>6} {:>9} {:>8} {:>7} {:>6} {:>5} | {:>5} {:>6} {:>6} {:>6}",
        "shape",
        "raw",
        "stored",
        "enc ns",
        "dec ns",
        "train ms",
        "step max",
        "KiB",
        "tokens",
        "level",
        "key",
        "stored",
        "enc ns",
        "dec ns"
    );
    for name in if named.is_empty() { &default[..] } else { &named } {
        match name.parse() {
            Ok(shape) => measure(&shape),
            Err(error) => println!("{name}: {error}"),
        }
    }
}

/// Trains a dictionary. Also returns the time of the longest step in milliseconds.
fn train(sample: TrainingSample) -> (Option<Box<TrainedDictionary>>, f64) {
    let Some(mut training) = SampleTraining::new(sample) else { return (None, 0.0) };
    let mut longest = 0.0f64;
    loop {
        let began = Instant::now();
        let step = training.step(None);
        longest = longest.max(began.elapsed().as_secs_f64() * 1e3);
        match step {
            TrainingStep::Working => {}
            TrainingStep::Useless => return (None, longest),
            TrainingStep::Useful(dictionary) => return (Some(dictionary), longest),
        }
    }
}

/// Returns the time of the work on one item in nanoseconds. The time of each part of the items is
/// the shortest of several rounds, because other processes interrupt some of them.
fn fastest<T>(items: &[T], mut work: impl FnMut(&T)) -> f64 {
    const PART: usize = 500;
    let mut time = |part: &[T]| {
        let began = Instant::now();
        part.iter().for_each(&mut work);
        began.elapsed().as_nanos() as f64
    };
    let mut shortest = |part: &[T]| (0..ROUNDS).map(|_| time(part)).fold(f64::INFINITY, f64::min);
    items.chunks(PART).map(&mut shortest).sum::<f64>() / items.len() as f64
}

fn measure(shape: &RecordShape) {
    let record = |number: u64| {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        shape.put(number, &mut key, &mut value);
        (key, value)
    };
    let mut random = fastrand::Rng::with_seed(7);
    let (mut sample, mut keys) = (TrainingSample::default(), Vec::new());
    for _ in 0..RECORDS {
        // Only every second record is sampled, and the others are measured.
        let (key, value) = record(2 * random.u64(1..RECORDS / 2));
        if keys.len() < KEYS_SAMPLED {
            keys.push(key);
        }
        if !sample.push(&value) {
            break;
        }
    }
    let measured: Vec<_> = (0..MEASURED).map(|_| record(1 + 2 * random.u64(..RECORDS / 2))).collect();
    let values: Vec<&[u8]> = measured.iter().map(|(_, value)| &value[..]).collect();
    let raw = values.iter().map(|value| value.len()).sum::<usize>() as f64 / values.len() as f64;

    let began = Instant::now();
    let (dictionary, step_ms) = train(sample);
    let train_ms = began.elapsed().as_secs_f64() * 1e3;
    let (mut stored_len, mut encode_ns, mut decode_ns) = (raw, 0.0, 0.0);
    let (mut kib, mut tokens, mut level) = (0.0, 0, None);
    if let Some(dictionary) = &dictionary {
        let mut out = Vec::new();
        encode_ns = fastest(&values, |value| {
            out.clear();
            black_box(dictionary.encode(value, &mut out));
        });
        let stored: Vec<Option<Vec<u8>>> = values
            .iter()
            .map(|value| {
                let mut out = Vec::new();
                dictionary.encode(value, &mut out).then_some(out)
            })
            .collect();
        let len = |(stored, value): (&Option<Vec<u8>>, &&[u8])| stored.as_ref().map_or(value.len(), Vec::len);
        stored_len = stored.iter().zip(&values).map(len).sum::<usize>() as f64 / values.len() as f64;
        let mut buffer = Vec::new();
        for (stored, value) in stored.iter().zip(&values) {
            if let Some(stored) = stored {
                assert_eq!(dictionary.decode(stored, &mut buffer), Some(*value));
                assert_eq!(dictionary.decoded_len(stored), Some(value.len()));
            }
        }
        decode_ns = fastest(&stored, |stored| {
            if let Some(stored) = stored {
                black_box(dictionary.decode(stored, &mut buffer));
            }
        });
        (kib, tokens) = (dictionary.memory_bytes() as f64 / 1024.0, dictionary.tokens());
        level = dictionary.level();
    }

    let sampled: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let mut shapes = KeyShapes::default();
    find_shapes(&sampled, &shapes).into_iter().for_each(|shape| shapes.add(shape));
    let mut out = Vec::new();
    let key_encode_ns = fastest(&measured, |(key, _)| {
        out.clear();
        black_box(shapes.encode(key, &mut out));
    });
    let stored: Vec<(Option<u8>, Vec<u8>)> = measured
        .iter()
        .map(|(key, _)| {
            let mut out = Vec::new();
            (shapes.encode(key, &mut out), out)
        })
        .collect();
    let key_len = measured.iter().map(|(key, _)| key.len()).sum::<usize>() as f64 / measured.len() as f64;
    let mut key_stored_len = 0;
    for ((number, stored), (key, _)) in stored.iter().zip(&measured) {
        key_stored_len += if number.is_some() { stored.len() } else { key.len() };
    }
    let key_stored_len = key_stored_len as f64 / measured.len() as f64;
    let key_decode_ns = fastest(&stored, |(number, stored)| {
        if let Some(shape) = number.and_then(|number| shapes.get(number)) {
            out.clear();
            black_box(shape.decode(stored, &mut out));
        }
    });
    println!(
        "{:44} {raw:6.1} {stored_len:7.1} {encode_ns:6.0} {decode_ns:6.0} {train_ms:9.0} {step_ms:8.0} {kib:7.0} {tokens:6} {:>5} | {key_len:5.1} {key_stored_len:6.1} {key_encode_ns:6.0} {key_decode_ns:6.0}",
        shape.label(),
        level.map_or("-".into(), |level| level.to_string())
    );
}

/// Stores a value.
struct Set<'a>(&'a [u8]);

impl Visitor for Set<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn ignores_value(&self) -> bool {
        true
    }
}

/// Returns the anonymous memory of this process in bytes.
fn anonymous_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the figure");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") * 1024.0
}

fn measure_hash(shape: &RecordShape, records: u64) {
    for compresses in [false, true] {
        let before = anonymous_bytes();
        let options = MemHashOptions { seed: Some(1), compresses, ..MemHashOptions::default() };
        let hash = MemHash::new(options).expect("valid options");
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for number in 1..=records {
            shape.put(number, &mut key, &mut value);
            hash.visit(&key, &mut Set(&value)).expect("no limit");
            if number % 10_000 == 0 {
                hash.maintain();
            }
        }
        hash.recode();
        while hash.maintain() {}
        let status = hash.status();
        let memory = (anonymous_bytes() - before) / records as f64;
        let mut random = fastrand::Rng::with_seed(7);
        let measured: Vec<(Vec<u8>, Vec<u8>)> = (0..MEASURED)
            .map(|_| {
                shape.put(random.u64(1..=records), &mut key, &mut value);
                (key.clone(), value.clone())
            })
            .collect();
        let mut seen = 0;
        let get_ns = fastest(&measured, |(key, value)| {
            hash.view(key, &mut |record| seen += usize::from(record.value == value)).expect("in memory");
        });
        assert_eq!(seen, ROUNDS * measured.len());
        let set_ns = fastest(&measured, |(key, value)| {
            hash.visit(key, &mut Set(value)).expect("no limit");
        });
        println!(
            "{:44} {} {memory:7.1} B/record, live {:7.1}; get {get_ns:5.0} ns, set {set_ns:5.0} ns; {:?}",
            shape.label(),
            if compresses { "encoded" } else { "plain  " },
            status.live_bytes as f64 / records as f64,
            status.encoding,
        );
    }
}
