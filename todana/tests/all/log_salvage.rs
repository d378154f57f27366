//! Salvaging a damaged log yields a new database with everything except the lost entries.

use crate::crash_disk;
use crate::kept;

use crash_disk::{CrashDisk, State};
use kept::{StoredRecords, open, options, salvage, salvaged};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use todana::update_log::{LogDamage, LogOptions, LogPosition, SyncPolicy};
use todana_core::{Delete, Operation};

const NOW: u64 = 1_700_000_000;

struct WrittenLog {
    state: State,
    records: StoredRecords,
    end: LogPosition,
}

/// Creates three segments, in which each key is set only once.
fn log() -> WrittenLog {
    let disk = CrashDisk::new();
    let always = LogOptions { segment_len: 250, ..options(SyncPolicy::Always) };
    let kept = open(&disk, NOW, always).unwrap();
    for n in 0..18u8 {
        kept.set(&[b'a' + n], format!("value {n}").as_bytes());
        kept.log().wait(kept.log().end()).unwrap();
    }
    kept.run(Operation::Delete(Delete { key: b"b", ..Delete::default() }));
    kept.log().close().unwrap();
    let state = disk.state();
    let again = open(&CrashDisk::with(state.clone()), NOW, options(SyncPolicy::Always)).unwrap();
    let (records, end) = (again.records(), again.opened.end);
    assert_eq!(records.len(), 17);
    again.kill();
    WrittenLog { state, records, end }
}

fn segments(state: &State) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = state.files();
    files.retain(|path, _| path.extension().is_some_and(|extension| extension == "log"));
    files
}

/// Salvages the database. Returns the damages, and the records of the new database without their
/// versions, which it assigns again.
fn save(log: &WrittenLog, state: State, story: &str) -> (Vec<LogDamage>, StoredRecords) {
    let disk = CrashDisk::with(state);
    let found = salvage(&disk, NOW).unwrap_or_else(|error| panic!("{story}: {error}"));
    assert_eq!(found.restored.position, log.end, "{story}");
    let kept = open(&salvaged(&disk), NOW, options(SyncPolicy::Always)).unwrap();
    let records = kept.records();
    kept.kill();
    (found.damages.into_iter().map(|damage| damage.finding).collect(), records)
}

#[test]
fn whole_log_has_no_damage() {
    let log = log();
    let (findings, records) = save(&log, log.state.clone(), "whole");
    assert_eq!((findings, records), (Vec::new(), log.records));
}

#[test]
fn one_flipped_bit_is_mended() {
    let log = log();
    for (path, bytes) in &segments(&log.state) {
        for bit in (0..bytes.len() * 8).step_by(61) {
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
fn entries_around_damage_are_salvaged() {
    let log = log();
    let segments = segments(&log.state);
    let last = segments.keys().next_back().unwrap();
    for (path, bytes) in &segments {
        for from in (64..bytes.len() - 90).step_by(23) {
            let story = format!("30 bytes at {from} of {path:?}");
            let mut damaged = bytes.clone();
            damaged[from..from + 30].iter_mut().for_each(|byte| *byte ^= 0x5a);
            let mut state = log.state.clone();
            state.put(path, damaged);
            let (findings, records) = save(&log, state, &story);
            let lost: u64 = findings.iter().map(|finding| finding.lost).sum();
            // The damaged entries are lost, and at most those up to the next mark.
            assert!((9..=160).contains(&lost), "{story}: {findings:?}");
            assert!(findings.iter().all(|finding| finding.path == *path), "{story}");
            for (key, record) in &records {
                // The lost entry may be a removal.
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
fn missing_segment_loses_only_its_entries() {
    let log = log();
    let segments: Vec<(PathBuf, Vec<u8>)> = segments(&log.state).into_iter().collect();
    let mut state = log.state.clone();
    state.take_away(&segments[1].0);
    let (findings, records) = save(&log, state, "the second is missing");
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((&finding.path, finding.lost), (&segments[0].0, segments[1].1.len() as u64 - 64));
    assert!(records.iter().all(|(key, record)| log.records.get(key) == Some(record) || key == b"b"));
    // If the first segment is missing, the rest is salvaged.
    let mut state = log.state.clone();
    state.take_away(&segments[0].0);
    let (findings, records) = save(&log, state, "the first is missing");
    assert!(!findings.is_empty() && records.len() > 5 && records.len() < log.records.len());
}

/// Creates a directory whose log is missing. Its newest checkpoint follows an older one, or is the
/// only one and damaged.
fn without_log(is_damaged: bool) -> State {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
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
fn checkpoint_without_log_is_salvaged() {
    for (is_damaged, left) in [(false, 3), (true, 2)] {
        let disk = CrashDisk::with(without_log(is_damaged));
        salvage(&disk, NOW).unwrap();
        let kept = open(&salvaged(&disk), NOW, options(SyncPolicy::Always)).unwrap();
        assert_eq!(kept.records().len(), left);
        kept.kill();
    }
}
