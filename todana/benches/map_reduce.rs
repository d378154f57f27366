//! How long does it take to count the words of a large text with little memory?
//!
//! ```text
//! cargo bench -p todana --bench map_reduce -- [TEXT_MB [MEMORY_MB [THREADS]]]      (100 64 2)
//! ```
//!
//! Lines of 100 words from a language of 200,000 words, the n-th with frequency 1/n, in a hash on
//! disk. Reports wall and CPU time, the peak memory of the process, and the numbers of words and of
//! different words.

use std::fmt::Write;
use std::time::Instant;
use todana::{Db, MapReduce, PairEmitter, Record, Records, Result};

const WORDS: u64 = 200_000;
const WORDS_PER_LINE: usize = 100;

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Appends a word whose rank is distributed as 1/n: the exponential of a uniform number.
fn word(state: &mut u64, line: &mut String) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let even = (*state >> 11) as f64 / (1u64 << 53) as f64;
    let rank = (WORDS as f64).powf(even) as u64;
    let _ = write!(line, "{} ", rank.wrapping_mul(7919) % (10 * WORDS));
}

fn fill(db: &Db, bytes: u64) -> Result<()> {
    let (mut state, mut written, mut line) = (88_172_645_463_325_252, 0, String::new());
    for key in 0u64.. {
        if written >= bytes {
            break;
        }
        line.clear();
        (0..WORDS_PER_LINE).for_each(|_| word(&mut state, &mut line));
        written += line.len() as u64;
        db.set(&key.to_be_bytes(), line.as_bytes())?;
    }
    db.sync()
}

/// Returns a field of the process's status, in KiB.
fn status_kib(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Returns the CPU time of the process in ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let text_mb = numbers.next().unwrap_or(100);
    let memory_mb = numbers.next().unwrap_or(64);
    let threads = numbers.next().unwrap_or(2);
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let place = folder.path().join("text.hash");
    let db = Db::open(&place.to_string_lossy())?;
    fill(&db, (text_mb as u64) << 20)?;

    let (start, ticks) = (Instant::now(), cpu_ticks());
    let sum = |_: &[u8], values: &mut dyn Iterator<Item = &[u8]>, sum: &mut Vec<u8>| {
        sum.extend_from_slice(&values.map(number).sum::<u64>().to_le_bytes());
    };
    let map = |_: &[u8], record: Record<'_>, emit: &mut PairEmitter<'_>| {
        for word in record.value.split(|&byte| byte == b' ').filter(|word| !word.is_empty()) {
            emit.emit(word, &1u64.to_le_bytes());
        }
        Ok(())
    };
    let (mut words, mut different) = (0, 0u64);
    let map_reduce = MapReduce::new().threads(threads).memory_max(memory_mb << 20).combine(&sum);
    map_reduce.temp_dir(folder.path()).run(&db, &map, &mut |_, values| {
        different += 1;
        while let Some(value) = values.next()? {
            words += number(value);
        }
        Ok(())
    })?;
    println!(
        "{text_mb} MB of text, {threads} threads, {memory_mb} MB: {words} words, {different} different; \
         {:.2} s, {:.2} s of CPU; at most {} MB of memory",
        start.elapsed().as_secs_f64(),
        (cpu_ticks() - ticks) as f64 / 100.0,
        status_kib("VmHWM:") >> 10,
    );
    Ok(())
}
