//! A database that crashes repeatedly. A process is stopped at a random operation, by a power
//! failure or by a kill. The next one opens the database, continues, and is stopped in turn. Each
//! opening must find the state after one of the commands of the process before, and not an older
//! one than was acknowledged.
//!
//! If a test fails, it prints its seed. `TODANA_CRASH=full` tests many more seeds.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
mod kept;

use crash_disk::{CrashDisk, Dice, State};
use kept::{CrashDiskDatabase, StoredRecords, open_with, options};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use todana::DataOptions;
use todana::checkpoint::{CheckpointCompression, CheckpointOptions};
use todana::update_log::{LogOptions, SyncPolicy};
use todana_core::{Arithmetic, Delete, Operation, Store, StoreMode, Touch, Ttl};

const START: u64 = 1_700_000_000;
const GENERATIONS: usize = 12;

/// One process and its results: the states by the end of the log, and the operations on the disk.
struct Generation {
    before: State,
    /// The position that was promised to be on disk before this process started.
    promised: u64,
    now: u64,
    /// The state at each position of the log, including states of earlier processes that still
    /// apply.
    moments: BTreeMap<u64, StoredRecords>,
    journal: Vec<crash_disk::Step>,
    is_closed: bool,
}

fn choose(dice: &mut Dice) -> DataOptions {
    let sync = match dice.roll(4) {
        0 => SyncPolicy::Never,
        1 => SyncPolicy::Every(Duration::from_millis(1)),
        _ => SyncPolicy::Always,
    };
    let segment_len = [300, 3_000, 1 << 20][dice.roll(3) as usize];
    let compression = if dice.coin() { CheckpointCompression::None } else { CheckpointCompression::Zstd(1) };
    DataOptions {
        log: LogOptions { segment_len, ..options(sync) },
        checkpoints: CheckpointOptions { compression, ..CheckpointOptions::default() },
    }
}

fn command(kept: &CrashDiskDatabase, dice: &mut Dice) {
    let key = [b'a' + dice.roll(20) as u8];
    let key = &key[..];
    let value = match dice.roll(40) {
        0 => vec![b'L'; 66_000],
        1..4 => vec![b'M'; 900],
        _ => dice.roll(1_000_000).to_string().into_bytes(),
    };
    let ttl = if dice.roll(4) == 0 { Ttl::Seconds(1 + dice.roll(60) as u32) } else { Ttl::Never };
    let store = Store { key, value: &value, ttl, flags: dice.roll(2) as u32, ..Store::default() };
    match dice.roll(100) {
        0..45 => kept.run(Operation::Store(store)),
        45..60 => kept.run(Operation::Delete(Delete { key, ..Delete::default() })),
        60..70 => kept.run(Operation::Store(Store { mode: StoreMode::Append, value: b"+", ..store })),
        70..80 => kept.run(Operation::Arithmetic(Arithmetic {
            key,
            delta: 3,
            vivify: Some(ttl),
            ..Arithmetic::default()
        })),
        80..88 => kept.run(Operation::Touch(Touch { key, ttl })),
        88..92 => {
            kept.clock.advance(dice.roll(15));
            kept.run(Operation::Noop)
        }
        92 => kept.run(Operation::Flush { at: Ttl::Expired }),
        93..96 => {
            kept.log().rotate().unwrap();
            String::new()
        }
        96..98 => {
            kept.directory.checkpoint(&kept.database).unwrap();
            String::new()
        }
        _ => {
            kept.log().sync_to(kept.log().end()).unwrap();
            String::new()
        }
    };
}

/// Opens the database of the process before, runs some commands, and closes the database regularly
/// or not at all.
fn live(before: State, forebear: Option<(&Generation, u64)>, story: &str, dice: &mut Dice) -> Generation {
    let disk = CrashDisk::with(before.clone());
    let acknowledged = Arc::new(AtomicU64::new(0));
    let note = Arc::clone(&acknowledged);
    disk.record(move || note.load(Ordering::SeqCst));
    let chosen = choose(dice);
    let now = forebear.map_or(START, |(life, _)| life.now);
    let kept = open_with(&disk, now, chosen).unwrap_or_else(|error| panic!("{story}: {error}"));
    assert_eq!(kept.opened.refused, [""; 0], "{story}");
    let (end, mut moments, mut promised) = (kept.opened.end.0, BTreeMap::new(), 0);
    if let Some((life, its_promise)) = forebear {
        life.expects(&kept, its_promise, story);
        moments = life.moments.range(..=end).map(|(end, records)| (*end, records.clone())).collect();
        promised = its_promise;
    }
    // A reader of this value may rely on it.
    acknowledged.store(end, Ordering::SeqCst);
    moments.insert(end, kept.records());
    for _ in 0..dice.roll(120) {
        command(&kept, dice);
        let end = kept.log().end();
        if chosen.log.sync == SyncPolicy::Always {
            kept.log().wait(end).unwrap();
        }
        acknowledged.fetch_max(kept.log().synced().0, Ordering::SeqCst);
        moments.insert(end.0, kept.records());
    }
    let is_closed = dice.roll(4) == 0;
    let now = kept.database.now().0;
    if is_closed {
        kept.log().close().unwrap();
    }
    let journal = disk.journal();
    kept.kill();
    Generation { before, promised, now, moments, journal, is_closed }
}

impl Generation {
    /// Returns the disk after a crash at a random operation, and the position that was promised
    /// before.
    fn die(&self, dice: &mut Dice) -> (State, u64) {
        let stop = if self.is_closed || dice.roll(3) == 0 {
            self.journal.len()
        } else {
            dice.roll(self.journal.len() as u64 + 1) as usize
        };
        let mut state = self.before.clone();
        let mut promised = self.promised;
        for step in &self.journal[..stop] {
            state.apply(&step.op).unwrap();
            promised = step.note.max(promised);
        }
        if let Some(step) = self.journal.get(stop) {
            promised = step.note.max(promised);
            state.apply_in_part(&step.op, dice);
        }
        // In half of the cases only the process ends.
        (if dice.coin() { state.reboot(dice.roll(1 << 40)) } else { state }, promised)
    }

    fn expects(&self, kept: &CrashDiskDatabase, promised: u64, story: &str) {
        let end = kept.opened.end.0;
        assert!(end >= promised, "{story}: ends at {end}, {promised} was promised");
        // Before the first known state, the database was empty.
        let records = self.moments.range(..=end).next_back().map(|(_, records)| records.clone());
        let now = kept.database.now();
        let mut records = records.unwrap_or_default();
        records.retain(|_, (_, attributes)| attributes.expiry.is_live(now));
        let there = kept.records();
        assert!(there == records, "{story}: {there:?} is not {records:?}");
    }
}

fn many(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut dice = Dice::new(seed);
        let mut life = live(State::default(), None, &format!("seed {seed}"), &mut dice);
        for generation in 1..GENERATIONS {
            let story = format!("seed {seed}, generation {generation}");
            let (state, promised) = life.die(&mut dice);
            life = live(state, Some((&life, promised)), &story, &mut dice);
        }
    }
}

#[test]
fn every_generation_finds_what_was_acknowledged() {
    let is_full = std::env::var("TODANA_CRASH").is_ok_and(|value| value == "full");
    many(if is_full { 0..2_000 } else { 0..60 });
}
