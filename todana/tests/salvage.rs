//! A damaged log is looked through without being touched, and saved when told: everything but what is gone comes back.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
mod kept;

use crash_disk::{CrashDisk, Dice, State};
use kept::{DATA, Records, open, options};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::DataDirectory;
use todana::update_log::{Finding, LogOptions, Position, Salvage, Sync, Tail};
use todana_core::{Command, Delete, ErrorKind};

const NOW: u64 = 1_700_000_000;

struct Log {
    state: State,
    records: Records,
    entries: u64,
    end: Position,
}

/// Three segments; no key is set twice.
fn log() -> Log {
    let disk = CrashDisk::new();
    let always = LogOptions { segment_len: 250, ..options(Sync::Always) };
    let kept = open(&disk, NOW, always).unwrap();
    for n in 0..18u8 {
        kept.set(&[b'a' + n], format!("value {n}").as_bytes());
        kept.log().wait(kept.log().end()).unwrap();
    }
    kept.run(Command::Delete(Delete { key: b"b", ..Delete::default() }));
    kept.log().close().unwrap();
    let state = disk.state();
    let again = open(&CrashDisk::with(state.clone()), NOW, options(Sync::Always)).unwrap();
    let (records, end) = (again.records(), again.opened.end);
    // Each of them, and a mark before it, and the last one.
    let entries = 2 * 19 + 1;
    assert_eq!((again.opened.entries, records.len()), (entries, 17));
    again.kill();
    Log { state, records, entries, end }
}

fn segments(state: &State) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = state.files();
    files.retain(|path, _| path.extension().is_some_and(|extension| extension == "log"));
    files
}

fn salvage(disk: &CrashDisk, repairs: bool) -> Salvage {
    let directory = DataDirectory::open(Arc::new(disk.clone()), Path::new(DATA)).unwrap();
    directory.salvage_log(Position(0), repairs).unwrap()
}

/// Looks, repairs, opens; returns what was found and what there is then.
fn save(log: &Log, state: State, story: &str) -> (Vec<Finding>, Records) {
    let disk = CrashDisk::with(state);
    let before = disk.state().files();
    let found = salvage(&disk, false);
    assert!(disk.state().files() == before, "{story}: looking has changed something");
    assert_eq!(salvage(&disk, true), found, "{story}");
    let after = disk.state().files();
    for finding in &found.findings {
        let mut kept = finding.path.clone().into_os_string();
        kept.push(".damaged");
        assert_eq!(after.get(Path::new(&kept)), before.get(&finding.path), "{story}");
    }
    let nothing = salvage(&disk, true);
    assert_eq!(nothing.findings, [], "{story}");
    let kept = open(&disk, NOW, options(Sync::Always)).unwrap_or_else(|error| panic!("{story}: {error}"));
    assert_eq!((&kept.opened.tail, kept.opened.end), (&Tail::Clean, log.end), "{story}");
    let records = kept.records();
    kept.kill();
    (found.findings, records)
}

#[test]
fn a_whole_log_has_nothing_to_save() {
    let log = log();
    let found = salvage(&CrashDisk::with(log.state.clone()), false);
    assert_eq!((found.findings, found.entries, found.end), (Vec::new(), log.entries, log.end));
}

#[test]
fn one_flipped_bit_is_mended() {
    let log = log();
    for (path, bytes) in &segments(&log.state) {
        for bit in (0..bytes.len() * 8).step_by(3) {
            let story = format!("bit {} of byte {} of {path:?}", bit % 8, bit / 8);
            let mut state = log.state.clone();
            state.flip(path, bit);
            let (findings, records) = save(&log, state, &story);
            let [finding] = &findings[..] else { panic!("{story}: {findings:?}") };
            assert!(
                finding.path == *path && finding.offset <= (bit / 8) as u64 && finding.lost == 0,
                "{story}"
            );
            assert_eq!(records, log.records, "{story}");
        }
    }
}

#[test]
fn what_lies_around_damaged_entries_is_saved() {
    let log = log();
    let segments = segments(&log.state);
    let last = segments.keys().next_back().unwrap();
    for (path, bytes) in &segments {
        for from in (64..bytes.len() - 90).step_by(5) {
            let story = format!("30 bytes at {from} of {path:?}");
            let mut damaged = bytes.clone();
            damaged[from..from + 30].iter_mut().for_each(|byte| *byte ^= 0x5a);
            let mut state = log.state.clone();
            state.put(path, damaged);
            let (findings, records) = save(&log, state, &story);
            let lost: u64 = findings.iter().map(|finding| finding.lost).sum();
            // At most the entries that were hit and those up to the next mark.
            assert!((9..=160).contains(&lost), "{story}: {findings:?}");
            assert!(findings.iter().all(|finding| finding.path == *path), "{story}");
            for (key, record) in &records {
                // Its removal may be what is lost.
                assert!(key == b"b" || log.records[key] == *record, "{story}");
            }
            assert!(records.len() >= log.records.len() - 3, "{story}: {records:?}");
        }
        if path != last {
            let mut state = log.state.clone();
            state.put(path, bytes[..bytes.len() / 2].to_vec());
            let (findings, records) = save(&log, state, "cut off in the middle");
            assert_eq!(findings.len(), 1);
            assert!(records.len() < log.records.len() && records.len() > 10);
        }
    }
}

#[test]
fn a_missing_segment_is_a_loss_and_its_neighbours_are_saved() {
    let log = log();
    let segments: Vec<(PathBuf, Vec<u8>)> = segments(&log.state).into_iter().collect();
    let mut state = log.state.clone();
    state.take_away(&segments[1].0);
    let (findings, records) = save(&log, state, "the second is missing");
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((&finding.path, finding.lost), (&segments[0].0, segments[1].1.len() as u64 - 64));
    assert!(records.iter().all(|(key, record)| log.records.get(key) == Some(record) || key == b"b"));
    let mut state = log.state.clone();
    state.take_away(&segments[0].0);
    let disk = CrashDisk::with(state);
    let directory = DataDirectory::open(Arc::new(disk), Path::new(DATA)).unwrap();
    assert_eq!(directory.salvage_log(Position(0), false).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_repair_can_be_stopped_anywhere_and_done_again() {
    let log = log();
    let (path, bytes) = segments(&log.state).into_iter().nth(1).unwrap();
    let mut damaged = bytes;
    damaged[150..180].fill(0xee);
    let mut state = log.state.clone();
    state.put(&path, damaged);
    let (findings, records) = save(&log, state.clone(), "in one go");
    let disk = CrashDisk::with(state.clone());
    disk.record(|| 0);
    salvage(&disk, true);
    let mut dice = Dice::new(3);
    for step in disk.journal() {
        for seed in 0..10 {
            let mut torn = state.clone();
            torn.apply_in_part(&step.op, &mut dice);
            let disk = CrashDisk::with(torn.reboot(seed));
            let found = salvage(&disk, true);
            assert!(found.findings == findings || found.findings.is_empty(), "{found:?}");
            let kept = open(&disk, NOW, options(Sync::Always)).unwrap();
            assert_eq!(kept.records(), records);
            kept.kill();
        }
        state.apply(&step.op).unwrap();
    }
}

/// A directory without its log, whose newest checkpoint is behind an older one, or is the only one and damaged.
fn without_log(is_damaged: bool) -> State {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, options(Sync::Always)).unwrap();
    for n in 0..3u8 {
        kept.set(&[b'a' + n], &[n; 70_000]);
        kept.directory.checkpoint(&kept.database).unwrap();
    }
    kept.kill();
    let mut state = disk.state();
    let ends = |path: &Path, end: &str| path.extension().is_some_and(|extension| extension == end);
    let all: Vec<PathBuf> = state.files().into_keys().collect();
    all.iter().filter(|path| ends(path, "log")).for_each(|path| state.take_away(path));
    if is_damaged {
        let checkpoints: Vec<&PathBuf> = all.iter().filter(|path| ends(path, "checkpoint")).collect();
        state.take_away(checkpoints[0]);
        let middle = state.files()[checkpoints[1]].len() / 2;
        state.flip(checkpoints[1], middle * 8);
    }
    state
}

#[test]
fn a_checkpoint_is_saved_whenever_its_repair_is_stopped() {
    let repaired = |state: State| {
        let disk = CrashDisk::with(state);
        let found = todana::repair(Arc::new(disk.clone()), Path::new(DATA), true).unwrap();
        assert_eq!(found.unmended, 0, "{found:?}");
        let kept = open(&disk, NOW, options(Sync::Always)).unwrap();
        let records = kept.records();
        kept.kill();
        records
    };
    for (is_damaged, left) in [(false, 3), (true, 2)] {
        let mut state = without_log(is_damaged);
        let records = repaired(state.clone());
        assert_eq!(records.len(), left);
        let disk = CrashDisk::with(state.clone());
        disk.record(|| 0);
        todana::repair(Arc::new(disk.clone()), Path::new(DATA), true).unwrap();
        let mut dice = Dice::new(5);
        for (number, step) in disk.journal().iter().enumerate() {
            for seed in 0..5 {
                let mut torn = state.clone();
                torn.apply_in_part(&step.op, &mut dice);
                assert_eq!(repaired(torn.reboot(seed)), records, "{is_damaged}, step {number}");
            }
            state.apply(&step.op).unwrap();
        }
    }
}
