//! The contents after a power loss, at every operation on the disk.
//!
//! A session of writes, batches, clears, sweeps, syncs, maintenance and reopenings, some of them
//! after a crash, runs once. Every operation on the disk is recorded, with the moment that had been
//! promised to be on disk when it began. Then the disk is set back to each operation, loses its
//! power and is opened: it must have the contents after one of the changes, and not those of an
//! earlier moment than was promised.
//!
//! `TODANA_CRASH=full` tests every operation in several ways; without it, a selection is tested in
//! one way each. The session and the opening after it are mapped or not at random.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;

use crash_disk::{CrashDisk, Dice, Op, State};
use crash_session::{DATA, Moments, Records, Step, open, open_without_reserve, records, run};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{DurableEngine, Engine, ErrorKind};

const STEPS: usize = 2_000;

fn is_full() -> bool {
    std::env::var("TODANA_CRASH").is_ok_and(|value| value == "full")
}

/// Opens the disk after a crash. Its records must be those of a moment, none before `promised`.
fn check(state: State, moments: &Moments, promised: usize, begun: usize, story: &str, dice: &mut Dice) {
    let disk = CrashDisk::shown_or_read(state, dice.coin());
    let opens = if dice.coin() { crash_session::open_compressing } else { open };
    let hash = opens(&disk).unwrap_or_else(|error| panic!("{story}: {error}"));
    let found = records(&hash);
    if moments.find(&found, promised..=begun).is_none() {
        let differs = moments.difference(&found, promised);
        panic!("{story}: of no moment from {promised} to {begun}; against the first: {differs}");
    }
    if dice.roll(4) > 0 {
        return;
    }
    // The database continues, and keeps everything that is synced from now on.
    let mut expected = found;
    let mut written = dice.roll(20);
    while written > 0 {
        crash_session::change(&hash, &mut expected, dice);
        hash.maintain();
        written -= 1;
    }
    hash.sync().unwrap();
    let state = disk.state().reboot(dice.roll(1 << 40));
    disk.stop();
    drop(hash);
    let disk = CrashDisk::shown_or_read(state, dice.coin());
    let hash = open(&disk).unwrap_or_else(|error| panic!("{story}, once more: {error}"));
    assert_eq!(records(&hash), expected, "{story}, once more");
}

#[test]
fn crash_leaves_a_moment_no_older_than_promised() {
    let seeds: &[u64] = if is_full() { &[1, 2, 3, 4] } else { &[1, 2, 3] };
    for &seed in seeds {
        let disk = CrashDisk::new();
        disk.show_in_memory(seed % 2 == 1);
        // The moment that is on disk in the upper half, the one that has begun in the lower half.
        let told = Arc::new(AtomicU64::new(0));
        let note = Arc::clone(&told);
        disk.record(move || note.load(Ordering::SeqCst));
        let moments = run(&disk, seed, STEPS, &mut |step| match step {
            Step::Begun(moment) => {
                let synced = told.load(Ordering::SeqCst) >> 32;
                told.store(synced << 32 | moment as u64, Ordering::SeqCst);
            }
            Step::Synced(moment) => {
                let begun = told.load(Ordering::SeqCst) & u64::from(u32::MAX);
                told.store((moment as u64) << 32 | begun, Ordering::SeqCst);
            }
        });
        let journal = disk.journal();
        assert_eq!(disk.shown() > 0, seed % 2 == 1);
        eprintln!("seed {seed}: {} moments, {} operations on the disk", moments.records.len(), journal.len());
        assert!(journal.len() > 1_500, "the session does too little: {}", journal.len());
        let names_dictionary =
            |op: &Op| matches!(op, Op::Rename { to, .. } if to.ends_with("001.dictionary"));
        let has_dictionary = journal.iter().any(|step| names_dictionary(&step.op));
        assert_eq!(has_dictionary, crash_session::compresses(seed));
        let mut dice = Dice::new(seed);
        let mut state = State::default();
        for (index, step) in journal.iter().enumerate() {
            let (promised, begun) = ((step.note >> 32) as usize, (step.note & u64::from(u32::MAX)) as usize);
            let ways = if is_full() { 3 } else { u64::from(dice.roll(6) == 0) };
            for _ in 0..ways {
                let mut there = state.clone();
                if dice.coin() {
                    there.apply_in_part(&step.op, &mut dice);
                }
                let reboot = dice.roll(1 << 40);
                let story = format!("seed {seed}, operation {index} ({}), reboot {reboot}", name(&step.op));
                check(there.reboot(reboot), &moments, promised, begun, &story, &mut dice);
            }
            state.apply(&step.op).unwrap();
        }
        // The process is killed but the machine is not: everything that was written is there.
        check(state, &moments, moments.last(), moments.last(), "at the end", &mut dice);
    }
}

fn name(op: &Op) -> String {
    let mut text = format!("{op:?}");
    text.truncate(60);
    text
}

#[test]
fn failed_sync_stops_all_writes_with_an_error() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    crash_session::set(&hash, b"before", b"1").unwrap();
    hash.sync().unwrap();
    crash_session::set(&hash, b"after", b"2").unwrap();
    disk.fault(|op| match op {
        Op::Sync { .. } => Err(io::Error::other("the disk does not answer")),
        _ => Ok(()),
    });
    let error = hash.sync().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("the disk does not answer"), "{error}");
    disk.heal();
    assert_eq!(hash.sync().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(crash_session::set(&hash, b"more", b"3").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(hash.apply(&[]), Ok(()));
    // Existing records are still readable.
    assert_eq!(records(&hash).len(), 2);
    drop(hash);
    let hash = open(&disk).unwrap();
    assert_eq!(crash_session::get(&hash, b"before").as_deref(), Some(&b"1"[..]));
    crash_session::set(&hash, b"more", b"3").unwrap();
    hash.sync().unwrap();
}

#[test]
fn full_disk_refuses_writes_and_recovers() {
    let disk = CrashDisk::new();
    let hash = open_without_reserve(&disk).unwrap();
    let value = [b'v'; 500];
    for n in 0..40u32 {
        crash_session::set(&hash, &n.to_be_bytes(), &value).unwrap();
    }
    hash.sync().unwrap();
    disk.limit(disk.used() + 10_000);
    let mut written = 40u32;
    let error = loop {
        match crash_session::set(&hash, &written.to_be_bytes(), &value) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "it never gets full");
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(hash.sync().unwrap_err().kind(), ErrorKind::Full);
    for n in 0..written {
        assert_eq!(crash_session::get(&hash, &n.to_be_bytes()).as_deref(), Some(&value[..]), "{n}");
    }
    assert_eq!(crash_session::get(&hash, &written.to_be_bytes()), None);
    disk.heal();
    crash_session::set(&hash, &written.to_be_bytes(), &value).unwrap();
    hash.sync().unwrap();
    let state = disk.state().reboot(1);
    let hash = open(&CrashDisk::with(state)).unwrap();
    assert_eq!(records(&hash).len() as u32, written + 1);
}

#[test]
fn second_opening_is_refused() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    assert_eq!(open(&disk).err().map(|error| error.kind()), Some(ErrorKind::Busy));
    drop(hash);
    assert_eq!(open(&disk).unwrap().open_count(), 2);
}

#[test]
fn copy_has_the_contents_of_one_moment() {
    let disk = CrashDisk::new();
    disk.show_in_memory(true);
    let mut dice = Dice::new(5);
    let hash = open(&disk).unwrap();
    let mut expected = Records::new();
    for _ in 0..300 {
        crash_session::change(&hash, &mut expected, &mut dice);
        hash.maintain();
    }
    hash.copy(Path::new("/copy")).unwrap();
    let copied = expected.clone();
    for _ in 0..300 {
        crash_session::change(&hash, &mut expected, &mut dice);
        hash.maintain();
    }
    assert_eq!(records(&hash), expected);
    assert_eq!(hash.copy(Path::new("/copy")).unwrap_err().kind(), ErrorKind::Invalid);
    let disk = CrashDisk::with(disk.state().reboot(0));
    assert_eq!(records(&crash_session::open_in(&disk, Path::new("/copy")).unwrap()), copied);
}

#[test]
fn changed_bits_are_reported_or_harmless() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    let mut dice = Dice::new(9);
    let mut expected = Records::new();
    for _ in 0..60 {
        crash_session::change(&hash, &mut expected, &mut dice);
    }
    hash.close().unwrap();
    drop(hash);
    let state = disk.state();
    let (mut told, mut harmless) = (0, 0);
    for (path, bytes) in state.files().into_iter().filter(|(path, _)| !path.ends_with("lock")) {
        let step = if is_full() { 1 } else { 61 };
        for bit in (0..bytes.len() * 8).step_by(step) {
            let mut flipped = state.clone();
            flipped.flip(&path, bit);
            let flipped = CrashDisk::shown_or_read(flipped, dice.coin());
            match open(&flipped).and_then(|hash| crash_session::try_records(&hash)) {
                Ok(found) => {
                    assert_eq!(found, expected, "bit {bit} of {}", path.display());
                    harmless += 1;
                }
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Corrupt), "{error}");
                    let text = error.to_string();
                    assert!(text.contains(DATA) && text.contains("offset"), "{text}");
                    told += 1;
                }
            }
        }
    }
    // Most bits belong to the index, whose damage only makes the opening slower.
    assert!(told > 200 && harmless > 200, "{told} told, {harmless} harmless");
}

#[test]
fn truncated_file_is_reported_or_harmless() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    let mut dice = Dice::new(10);
    let mut expected = Records::new();
    for _ in 0..60 {
        crash_session::change(&hash, &mut expected, &mut dice);
    }
    hash.close().unwrap();
    drop(hash);
    let state = disk.state();
    for (path, bytes) in state.files().into_iter().filter(|(path, _)| !path.ends_with("lock")) {
        for len in 0..bytes.len() {
            let mut cut = state.clone();
            cut.put(&path, bytes[..len].to_vec());
            let cut = CrashDisk::shown_or_read(cut, dice.coin());
            match open(&cut).and_then(|hash| crash_session::try_records(&hash)) {
                Ok(found) => assert_eq!(found, expected, "{} cut at {len}", path.display()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            }
        }
        let mut without = state.clone();
        without.take_away(&path);
        match open(&CrashDisk::with(without)).and_then(|hash| crash_session::try_records(&hash)) {
            Ok(found) => assert_eq!(found, expected, "without {}", path.display()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
}
