//! Questions to the engine's dictionaries and key shapes, answered for each shape of records:
//!
//! - How many bytes does a value take, encoded by a dictionary that was trained on other values?
//! - How long do training, encoding and decoding take, and how much memory does a dictionary take?
//! - How many bytes does a key take in its shape, and how long do both directions take?
//!
//! Run: `cargo bench -p todana-bench --bench dictionary -- SHAPE...`, with the shapes of `todana
//! bench memory --shape`.

use std::hint::black_box;
use std::time::Instant;
use todana_bench::RecordShape;
use todana_engine::dictionary::{DictionaryTraining, TrainingStep, ValueDictionary, ValueSample};
use todana_engine::key_shape::{KeyShapes, find_shapes};

/// The number of records of which a sample is taken.
const RECORDS: u64 = 1_000_000;
/// The number of other records that are measured.
const MEASURED: u64 = 50_000;
const KEYS_SAMPLED: usize = 4096;
const ROUNDS: usize = 10;

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let default = ["profile", "short-profile", "session-json", "session", "counter"].map(String::from);
    println!(
        "{:44} {:>6} {:>7} {:>6} {:>6} {:>9} {:>8} {:>7} {:>6} | {:>5} {:>6} {:>6} {:>6}",
        "shape",
        "raw",
        "stored",
        "enc ns",
        "dec ns",
        "train ms",
        "step max",
        "KiB",
        "tokens",
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
fn train(sample: ValueSample) -> (Option<Box<ValueDictionary>>, f64) {
    let Some(mut training) = DictionaryTraining::new(sample) else { return (None, 0.0) };
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
    let (mut sample, mut keys) = (ValueSample::default(), Vec::new());
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
    let (mut kib, mut tokens) = (0.0, 0);
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
    let len = |((number, stored), (key, _)): (&(Option<u8>, Vec<u8>), &(Vec<u8>, Vec<u8>))| {
        if number.is_some() { stored.len() } else { key.len() }
    };
    let key_stored_len = stored.iter().zip(&measured).map(len).sum::<usize>() as f64 / measured.len() as f64;
    let key_decode_ns = fastest(&stored, |(number, stored)| {
        if let Some(shape) = number.and_then(|number| shapes.get(number)) {
            out.clear();
            black_box(shape.decode(stored, &mut out));
        }
    });
    println!(
        "{:44} {raw:6.1} {stored_len:7.1} {encode_ns:6.0} {decode_ns:6.0} {train_ms:9.0} {step_ms:8.0} {kib:7.0} {tokens:6} | {key_len:5.1} {key_stored_len:6.1} {key_encode_ns:6.0} {key_decode_ns:6.0}",
        shape.label()
    );
}
