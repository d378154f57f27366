//! Sequences of crashes and failures: interrupted openings, a disk that is full or fails for a
//! while, an interrupted copy, and then a power loss.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;

use crash_disk::{CrashDisk, Dice, Op, State};
use crash_session::{Moments, Records, Step, open, open_in, records, run};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{DurableEngine, Engine, ErrorKind};
use todana_engine::DiskHash;

fn is_full() -> bool {
    std::env::var("TODANA_CRASH").is_ok_and(|value| value == "full")
}

/// The progress to be recorded with each operation: the moment that is on disk in the upper half,
/// the one that has begun in the lower.
#[derive(Clone, Default)]
struct EvictionReport(Arc<AtomicU64>);

impl EvictionReport {
    fn begun(&self, moment: usize) {
        self.0.store(self.0.load(Ordering::SeqCst) >> 32 << 32 | moment as u64, Ordering::SeqCst);
    }

    fn synced(&self, moment: usize) {
        let begun = self.0.load(Ordering::SeqCst) & u64::from(u32::MAX);
        self.0.store((moment as u64) << 32 | begun, Ordering::SeqCst);
    }

    fn record(&self, disk: &CrashDisk) {
        let told = Arc::clone(&self.0);
        disk.record(move || told.load(Ordering::SeqCst));
    }

    fn of(note: u64) -> (usize, usize) {
        ((note >> 32) as usize, (note & u64::from(u32::MAX)) as usize)
    }
}

fn name(op: &Op) -> String {
    let mut text = format!("{op:?}");
    text.truncate(60);
    text
}

fn assert_is_of_a_moment(found: &Records, moments: &Moments, (promised, begun): (usize, usize), story: &str) {
    if moments.find(found, promised..=begun).is_none() {
        let differs = moments.difference(found, promised);
        panic!("{story}: of no moment from {promised} to {begun}; against the first: {differs}");
    }
}

/// Opens the disk after a crash, stops that opening at each of its operations, and repeats the same
/// with the result, `depth` times.
fn stop_openings(
    state: &State,
    range: (usize, usize),
    moments: &Moments,
    depth: u32,
    story: &str,
    dice: &mut Dice,
) -> u64 {
    let disk = CrashDisk::shown_or_read(state.clone(), dice.coin());
    disk.record(|| 0);
    let hash = open(&disk).unwrap_or_else(|error| panic!("{story}: {error}"));
    assert_is_of_a_moment(&records(&hash), moments, range, story);
    disk.stop();
    drop(hash);
    let mut openings = 1;
    if depth == 0 {
        return openings;
    }
    let mut state = state.clone();
    for (n, step) in disk.journal().iter().enumerate() {
        let mut there = state.clone();
        if dice.coin() {
            there.apply_in_part(&step.op, dice);
        }
        let reboot = dice.roll(1 << 40);
        let story = format!("{story}; opening stopped at {n} ({}), reboot {reboot}", name(&step.op));
        // The power is lost, or only the process is killed.
        let there = if dice.roll(4) == 0 { there } else { there.reboot(reboot) };
        openings += stop_openings(&there, range, moments, depth - 1, &story, dice);
        state.apply(&step.op).unwrap();
    }
    openings
}

#[test]
fn interrupted_openings_lose_nothing() {
    let (seeds, one_in) = if is_full() { (1..=4, 150) } else { (1..=1, 400) };
    let mut openings = 0;
    for seed in seeds {
        let (disk, told) = (CrashDisk::new(), EvictionReport::default());
        told.record(&disk);
        let moments = run(&disk, seed, 600, &mut |step| match step {
            Step::Begun(moment) => told.begun(moment),
            Step::Synced(moment) => told.synced(moment),
        });
        let (mut dice, mut state) = (Dice::new(seed), State::default());
        for (index, step) in disk.journal().iter().enumerate() {
            if dice.roll(one_in) == 0 {
                let mut there = state.clone();
                there.apply_in_part(&step.op, &mut dice);
                let reboot = dice.roll(1 << 40);
                let story = format!("seed {seed}, operation {index} ({}), reboot {reboot}", name(&step.op));
                let range = EvictionReport::of(step.note);
                openings += stop_openings(&there.reboot(reboot), range, &moments, 3, &story, &mut dice);
            }
            state.apply(&step.op).unwrap();
        }
    }
    eprintln!("{openings} openings");
    assert!(openings > 100, "{openings}");
}

/// Loses power at every operation, or at one out of a number.
fn lose_power(
    disk: &CrashDisk,
    mut state: State,
    moments: &Moments,
    one_in: u64,
    story: &str,
    dice: &mut Dice,
) {
    for (index, step) in disk.journal().iter().enumerate() {
        if dice.roll(one_in) == 0 {
            let mut there = state.clone();
            if dice.coin() {
                there.apply_in_part(&step.op, dice);
            }
            let reboot = dice.roll(1 << 40);
            let story = format!("{story}, operation {index} ({}), reboot {reboot}", name(&step.op));
            let disk = CrashDisk::shown_or_read(there.reboot(reboot), dice.coin());
            let hash = open(&disk).unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_is_of_a_moment(&records(&hash), moments, EvictionReport::of(step.note), &story);
            disk.stop();
        }
        state.apply(&step.op).unwrap();
    }
}

/// Changes, maintenance and syncs, any of which may fail. A failed change has no effect.
struct Course {
    told: EvictionReport,
    moments: Moments,
    expected: Records,
    failures: u64,
}

impl Course {
    fn new(hash: &DiskHash, told: &EvictionReport) -> Course {
        let expected = records(hash);
        let moments = Moments { records: vec![expected.clone()], ..Moments::default() };
        told.begun(0);
        told.synced(0);
        Course { told: told.clone(), moments, expected, failures: 0 }
    }

    fn go_on(&mut self, hash: &DiskHash, dice: &mut Dice) {
        self.told.begun(self.moments.records.len());
        match crash_session::change_but_sweep(hash, &mut self.expected, dice) {
            Ok(()) => {}
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Full | ErrorKind::Unavailable), "{error}");
                self.failures += 1;
            }
        }
        self.moments.records.push(self.expected.clone());
        for _ in 0..dice.roll(4) {
            hash.maintain();
        }
        if dice.roll(6) == 0 && hash.sync().is_ok() {
            self.told.synced(self.moments.last());
        }
    }
}

#[test]
fn full_disk_during_compaction_loses_nothing_after_crash() {
    let seeds = if is_full() { 40 } else { 4 };
    let (mut failures, mut troubles) = (0, 0);
    for seed in 1..=seeds {
        let mut dice = Dice::new(seed);
        let (disk, told) = (CrashDisk::new(), EvictionReport::default());
        disk.show_in_memory(seed % 2 == 0);
        let mut expected = Records::new();
        let hash = open(&disk).unwrap();
        for _ in 0..200 {
            crash_session::change(&hash, &mut expected, &mut dice);
            hash.maintain();
        }
        hash.sync().unwrap();
        let state = disk.state();
        told.record(&disk);
        let mut course = Course::new(&hash, &told);
        for _ in 0..20 {
            // There is a little space, none, or enough.
            disk.heal();
            match dice.roll(3) {
                0 => disk.limit(disk.used() + dice.roll(6_000)),
                1 => disk.limit(disk.used()),
                _ => {}
            }
            for _ in 0..dice.roll(30) {
                course.go_on(&hash, &mut dice);
            }
            assert_eq!(records(&hash), course.expected, "seed {seed}");
            troubles += u64::from(hash.maintenance_error().is_some());
        }
        disk.stop();
        drop(hash);
        failures += course.failures;
        let one_in = if is_full() { 1 } else { 5 };
        lose_power(&disk, state, &course.moments, one_in, &format!("seed {seed}"), &mut dice);
    }
    eprintln!("{failures} changes refused, {troubles} errors of maintenance");
    assert!(failures > 20 && troubles > 0, "{failures} {troubles}");
}

#[test]
fn failing_operations_lose_nothing_after_crash() {
    let seeds = if is_full() { 200 } else { 20 };
    let mut failures = 0;
    for seed in 1..=seeds {
        let mut dice = Dice::new(seed);
        let (disk, told) = (CrashDisk::new(), EvictionReport::default());
        disk.show_in_memory(seed % 2 == 0);
        told.record(&disk);
        let hash = open(&disk).unwrap();
        let mut course = Course::new(&hash, &told);
        let count = AtomicU64::new(0);
        disk.fault(move |op| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            // After a failed sync nothing more is written; another test covers that.
            let is_sync = matches!(op, Op::Sync { .. } | Op::SyncDirectory { .. });
            let fails = !is_sync && Dice::new(seed << 32 | number).roll(9) == 0;
            if fails { Err(io::Error::other("it fails now and then")) } else { Ok(()) }
        });
        for _ in 0..400 {
            course.go_on(&hash, &mut dice);
        }
        assert_eq!(records(&hash), course.expected, "seed {seed}");
        disk.stop();
        drop(hash);
        failures += course.failures;
        let one_in = if is_full() { 1 } else { 5 };
        lose_power(&disk, State::default(), &course.moments, one_in, &format!("seed {seed}"), &mut dice);
    }
    eprintln!("{failures} changes refused");
    assert!(failures > 20, "{failures}");
}

#[test]
fn failed_close_is_completed_later() {
    let disk = CrashDisk::new();
    let mut dice = Dice::new(4);
    let mut before = Records::new();
    let hash = open(&disk).unwrap();
    for _ in 0..100 {
        crash_session::change(&hash, &mut before, &mut dice);
    }
    hash.sync().unwrap();
    disk.stop();
    drop(hash);
    let state = disk.state();
    let mut failed = 0;
    for nth in 0.. {
        for again in [true, false] {
            let disk = CrashDisk::shown_or_read(state.clone(), dice.coin());
            let hash = open(&disk).unwrap();
            let mut expected = before.clone();
            for _ in 0..10 {
                crash_session::change(&hash, &mut expected, &mut dice);
            }
            let count = AtomicU64::new(0);
            let is_sync = Arc::new(AtomicU64::new(0));
            let synced = Arc::clone(&is_sync);
            disk.fault(move |op| {
                if count.fetch_add(1, Ordering::SeqCst) != nth {
                    return Ok(());
                }
                if matches!(op, Op::Sync { .. }) {
                    synced.store(1, Ordering::SeqCst);
                }
                Err(io::Error::other("once"))
            });
            let closed = hash.close();
            let story = format!("operation {nth} of a close failed with {closed:?}");
            if closed.is_err() {
                failed += 1;
            }
            if again && closed.is_err() {
                let second = hash.close();
                assert_eq!(
                    second.is_err(),
                    is_sync.load(Ordering::SeqCst) == 1 && second.is_err(),
                    "{story}"
                );
                if second.is_ok() {
                    let state = disk.state().reboot(dice.roll(1 << 40));
                    let hash = open(&CrashDisk::with(state)).unwrap();
                    assert!(records(&hash) == expected, "{story}, and then it was closed");
                }
            }
            assert_eq!(crash_session::set(&hash, b"more", b"1").unwrap_err().kind(), ErrorKind::Closed);
            drop(hash);
            disk.heal();
            let hash = open(&disk).unwrap();
            assert!(records(&hash) == expected, "{story}, and it was dropped");
            drop(hash);
            if closed.is_ok() && !again {
                eprintln!("{nth} operations in a close, {failed} failures told");
                assert!(failed > 8, "{failed}");
                return;
            }
        }
    }
}

#[test]
fn copy_after_power_loss_is_complete_or_absent() {
    let disk = CrashDisk::new();
    disk.show_in_memory(true);
    let mut dice = Dice::new(6);
    let mut expected = Records::new();
    let hash = open(&disk).unwrap();
    for _ in 0..200 {
        crash_session::change(&hash, &mut expected, &mut dice);
        hash.maintain();
    }
    hash.sync().unwrap();
    let mut state = disk.state();
    disk.record(|| 0);
    let copy = Path::new("/copies/monday");
    disk_directory(&disk, "/copies");
    hash.copy(copy).unwrap();
    let (mut there, mut missing) = (0, 0);
    let journal = disk.journal();
    for (index, step) in journal.iter().enumerate() {
        for _ in 0..4 {
            let mut stopped = state.clone();
            if dice.coin() {
                stopped.apply_in_part(&step.op, &mut dice);
            }
            let reboot = dice.roll(1 << 40);
            let story = format!("operation {index} ({}), reboot {reboot}", name(&step.op));
            let disk = CrashDisk::shown_or_read(stopped.reboot(reboot), dice.coin());
            let hash = open(&disk).unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_eq!(records(&hash), expected, "{story}");
            match disk.state().has_name(copy) {
                true => {
                    assert_eq!(records(&open_in(&disk, copy).unwrap()), expected, "{story}");
                    there += 1;
                }
                false => {
                    // A new copy succeeds, whatever the interrupted one has left.
                    disk_directory(&disk, "/copies");
                    hash.copy(copy).unwrap_or_else(|error| panic!("{story}: {error}"));
                    assert_eq!(records(&open_in(&disk, copy).unwrap()), expected, "{story}");
                    missing += 1;
                }
            }
        }
        state.apply(&step.op).unwrap();
    }
    assert!(there > 0 && missing > 20, "{there} {missing}");
}

fn disk_directory(disk: &CrashDisk, path: &str) {
    use todana_engine::disk::Disk;
    disk.make_directory(Path::new(path)).unwrap();
    disk.sync_directory(Path::new("/")).unwrap();
}
