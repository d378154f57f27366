//! Question: how many writes per second reach the disk one by one with this number of threads, for
//! each kind of database on disk, and what is the factor over one thread? A write returns when it
//! is on disk (`SyncPolicy::Always`), and writes of several threads share a sync. The same for
//! transactions of ten records each.
//!
//! Medians of five rounds, all kinds in turn. Run: `cargo bench -p todana --bench commits --
//! [DIRECTORY [SECONDS]]`. The directory should be on a real disk; the files written there are
//! removed again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{DataOptions, Db, DbOptions, Records, Result};

const ROUNDS: usize = 5;
const THREADS: [u64; 4] = [1, 2, 8, 32];
const KINDS: [&str; 4] = ["mem:hash", "mem:tree", "x.hash", "x.tree"];

fn open(name: &str, folder: &Path) -> Db {
    let log = LogOptions { sync: SyncPolicy::Always, ..LogOptions::default() };
    let options = DbOptions::default().data_options(DataOptions { log, ..DataOptions::default() });
    let opened = match name.starts_with("mem:") {
        true => options.data_dir(folder.join(name.replace(':', "-"))).open(name),
        false => options.open(folder.join(name).to_str().expect("a path that is text")),
    };
    opened.expect("it opens")
}

/// Returns the n-th key of a thread: 16 bytes, in no order.
fn key(thread: u64, n: u64) -> [u8; 16] {
    let mixed = (thread << 40 | n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mixed.to_be_bytes());
    key[8..].copy_from_slice(&thread.to_be_bytes());
    key
}

fn single(db: &Db, thread: u64, n: u64) -> Result<()> {
    db.set(&key(thread, n), &[b'v'; 100])
}

fn together(db: &Db, thread: u64, n: u64) -> Result<()> {
    let transaction = db.begin()?;
    (0..10).try_for_each(|i| transaction.set(&key(thread, n * 10 + i), &[b'v'; 100]))?;
    transaction.commit()
}

/// Returns the commits per second.
fn rate(db: &Db, threads: u64, seconds: f64, commit: fn(&Db, u64, u64) -> Result<()>) -> f64 {
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    let first = BEGUN.fetch_add(1 << 24, Ordering::Relaxed);
    let (done, start) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let done = &done;
            scope.spawn(move || {
                let mut n = 0;
                while start.elapsed() < Duration::from_secs_f64(seconds) {
                    commit(db, thread, first + n).expect("it is on disk");
                    n += 1;
                }
                done.fetch_add(n, Ordering::Relaxed);
            });
        }
    });
    done.into_inner() as f64 / start.elapsed().as_secs_f64()
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let directory = words.first().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = words.get(1).map_or(1.0, |seconds| seconds.parse().expect("a number of seconds"));
    let folder = tempfile::tempdir_in(directory).expect("a directory to write to");
    let databases = KINDS.map(|name| (name, open(name, folder.path())));
    for (what, commit) in
        [("single writes", single as fn(&Db, u64, u64) -> Result<()>), ("transactions of 10", together)]
    {
        println!("# commits a second, {what} of 16 + 100 bytes, {ROUNDS} rounds of {seconds} s");
        let mut rates = vec![vec![Vec::new(); THREADS.len()]; databases.len()];
        for _ in 0..ROUNDS {
            for (rates, (_, db)) in rates.iter_mut().zip(&databases) {
                for (rates, threads) in rates.iter_mut().zip(THREADS) {
                    rates.push(rate(db, threads, seconds, commit));
                }
            }
        }
        for (mut rates, (name, _)) in rates.into_iter().zip(&databases) {
            let one = median(&mut rates[0]);
            let columns = rates.iter_mut().zip(THREADS).map(|(rates, threads)| {
                let rate = median(rates);
                format!("{threads:3} threads {rate:7.0} ({:5.2} x)", rate / one)
            });
            println!("{name:9}{}", columns.collect::<Vec<_>>().join(""));
        }
    }
}
