//! Maintenance of a data directory: which part of the log is kept, reading the log while it is
//! written, and salvage.

use crate::folder;

use folder::{FolderDatabase, NOW, disk, files, folder, open, open_with, salvage};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;
use todana::checkpoint::CheckpointOptions;
use todana::update_log::{LogChange, LogFollower, LogOptions, LogPosition, SyncPolicy, segments};
use todana::{DataDirectory, DataOptions, SalvageReport, verify};
use todana_core::ErrorKind;

fn kept_with(path: &Path, len: u64, age: Duration) -> FolderDatabase {
    let log =
        LogOptions { sync: SyncPolicy::Always, segment_len: 100, reserve_bytes: 0, ..LogOptions::default() };
    let checkpoints =
        CheckpointOptions { log_kept_len: len, log_kept_age: age, ..CheckpointOptions::default() };
    open_with(path, &DataOptions { log, checkpoints })
}

/// Creates ten seconds of changes, each second in its own segment, and then two checkpoints.
fn ten_seconds(data: &Path, len: u64, age: Duration) -> FolderDatabase {
    let kept = kept_with(data, len, age);
    for second in 0..10 {
        kept.set(&format!("second {second}"), &"x".repeat(100));
        kept.settle();
        kept.clock.advance(1);
    }
    kept.set("last", "1");
    kept.settle();
    for _ in 0..2 {
        kept.directory.checkpoint(&kept.database).unwrap();
        kept.set("more", "1");
        kept.settle();
    }
    kept.directory.checkpoint(&kept.database).unwrap();
    kept
}

/// Returns the seconds whose changes are still in the log.
fn seconds_left(len: u64, age: Duration) -> Vec<u64> {
    let folder = folder();
    let data = folder.path().join("data");
    let _kept = ten_seconds(&data, len, age);
    seconds_in(&data)
}

fn seconds_in(data: &Path) -> Vec<u64> {
    let mut seconds = Vec::new();
    let mut follower = LogFollower::open(disk(), &data.join("log"), None, None).unwrap();
    let read = follower.read_new(&mut |_, time_ms, entry| {
        if matches!(entry.change, LogChange::Put { key, .. } if key.starts_with(b"second")) {
            seconds.push(time_ms / 1000 - NOW);
        }
        ControlFlow::Continue(())
    });
    assert!(read.unwrap());
    seconds
}

#[test]
fn requested_length_of_old_log_is_kept() {
    assert_eq!(seconds_left(0, Duration::MAX), Vec::<u64>::new());
    assert_eq!(seconds_left(u64::MAX, Duration::MAX), (0..10).collect::<Vec<_>>());
    // A second ends when the next one begins. The present second is the tenth.
    assert_eq!(seconds_left(u64::MAX, Duration::from_secs(3)), [6, 7, 8, 9]);
    let some = seconds_left(700, Duration::MAX);
    assert!(!some.is_empty() && some.len() < 7 && some.ends_with(&[9]), "{some:?}");
    assert_eq!(seconds_left(700, Duration::ZERO), [9]);
}

#[test]
fn kept_log_is_released_up_to_a_time() {
    let folder = folder();
    let data = folder.path().join("data");
    let kept = ten_seconds(&data, u64::MAX, Duration::MAX);
    let left_behind = |time_s: u64| {
        kept.directory
            .release_log(&kept.database, &|ended_ms| ended_ms < time_s.saturating_mul(1000))
            .unwrap();
        seconds_in(&data)
    };
    assert_eq!(left_behind(NOW), (0..10).collect::<Vec<_>>());
    // The fifth second ended when the sixth began.
    assert_eq!(left_behind(NOW + 6), [5, 6, 7, 8, 9]);
    kept.clock.advance(1);
    assert_eq!(left_behind(u64::MAX), Vec::<u64>::new());
    drop(kept);
    let kept = open(&data, 100);
    assert_eq!(kept.records().len(), 12);
}

#[test]
fn follower_passes_new_and_removed_segments() {
    let folder = folder();
    let data = folder.path().join("data");
    let kept = open(&data, 100);
    kept.set("first", "1");
    kept.settle();
    let mut follower = LogFollower::open(disk(), &data.join("log"), None, None).unwrap();
    let read = |follower: &mut LogFollower| {
        let mut keys = Vec::new();
        let see = &mut |_, _, entry: &todana::update_log::LogEntry<'_>| {
            if let LogChange::Put { key, .. } = entry.change {
                keys.push(String::from_utf8(key.to_vec()).unwrap());
            }
            ControlFlow::Continue(())
        };
        assert!(follower.read_new(see).unwrap());
        keys
    };
    assert_eq!(read(&mut follower), ["first"]);
    assert_eq!(read(&mut follower), Vec::<String>::new());
    for n in 0..5 {
        kept.set(&format!("key {n}"), &"x".repeat(60));
        kept.settle();
    }
    assert!(segments(&*disk(), &data.join("log")).unwrap().len() > 3);
    assert_eq!(read(&mut follower), ["key 0", "key 1", "key 2", "key 3", "key 4"]);
    assert_eq!(follower.take_gap(), None);
    kept.set("unseen", "1");
    for n in 0..3 {
        kept.set(&format!("late {n}"), "1");
        kept.directory.checkpoint(&kept.database).unwrap();
    }
    let before = follower.position();
    assert_eq!(read(&mut follower), ["late 2"]);
    let (from, to) = follower.take_gap().unwrap();
    assert!(from == before && to > from);
    assert_eq!(follower.take_gap(), None);
}

#[test]
fn log_is_read_from_a_position_or_time() {
    let folder = folder();
    let data = folder.path().join("data");
    let kept = open(&data, 100);
    for n in 0..5 {
        kept.set(&format!("key {n}"), "1");
        kept.settle();
        kept.clock.advance(1);
    }
    let keys = |from: Option<u64>, since: Option<u64>| {
        let from = from.map(LogPosition);
        let mut follower =
            LogFollower::open(disk(), &data.join("log"), from, since.map(|since| since * 1000)).unwrap();
        let mut keys = Vec::new();
        let see = &mut |position, time_ms, entry: &todana::update_log::LogEntry<'_>| {
            if let LogChange::Put { key, .. } = entry.change {
                keys.push((position, time_ms / 1000 - NOW, key.to_vec()));
            }
            ControlFlow::Continue(())
        };
        assert!(follower.read_new(see).unwrap());
        keys
    };
    let all = keys(None, None);
    assert_eq!(all.iter().map(|(_, second, _)| *second).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let (position, ..) = all[3];
    assert_eq!(keys(Some(position.0), None), all[3..]);
    assert_eq!(keys(Some(position.0 - 1), None), all[3..]);
    assert_eq!(keys(Some(position.0 + 1), None), all[4..]);
    // Segments that end before the time are skipped. The caller must still compare the times of
    // entries.
    assert!(keys(None, Some(NOW + 4)).ends_with(&all[4..]));
    assert!(keys(None, Some(NOW + 4)).len() < all.len());
}

/// Creates a closed directory with two checkpoints and some log.
fn closed(data: &Path) -> usize {
    closed_of(data, 4)
}

/// Creates such a directory, with this number of changes before, between and after the checkpoints.
fn closed_of(data: &Path, changes: usize) -> usize {
    let kept = open(data, 150);
    for round in 0..3 {
        for n in 0..changes {
            kept.set(&format!("key {round} {n}"), "value");
            kept.settle();
        }
        if round < 2 {
            kept.directory.checkpoint(&kept.database).unwrap();
        }
    }
    kept.records().len()
}

fn named(data: &Path, end: &str) -> Vec<PathBuf> {
    files(data).into_iter().filter(|path| path.to_str().unwrap().ends_with(end)).collect()
}

fn opens(data: &Path) -> Result<usize, String> {
    DataDirectory::open(disk(), data).map_err(|error| error.to_string())?;
    let clock = std::sync::Arc::new(todana::ManualClock::new(todana_core::UnixSeconds(NOW)));
    let database = folder::empty(&clock);
    let directory = DataDirectory::open(disk(), data).map_err(|error| error.to_string())?;
    let options = DataOptions::default();
    let outcome = directory.restore(&database, clock, &options, &mut |_| ());
    outcome.map_err(|error| error.to_string())?;
    let mut records = 0;
    let mut place = None;
    loop {
        place = database
            .engine()
            .scan(place, &mut |_, _| {
                records += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        if place.is_none() {
            return Ok(records);
        }
    }
}

/// Returns the result of the salvage and the number of records with which it opens.
fn saved(data: &Path) -> (SalvageReport, usize) {
    let target = data.with_extension("salvaged");
    let salvaged = salvage(data, &target).unwrap();
    assert_eq!(verify(disk(), &target, &mut |_| ()).unwrap().damages, Vec::<String>::new());
    let records = opens(&target).unwrap();
    assert_eq!(records as u64, salvaged.restored.records);
    (salvaged, records)
}

#[test]
fn directory_with_a_damaged_file_is_salvaged() {
    let folder = folder();
    let pristine = folder.path().join("pristine");
    let had = closed(&pristine);
    for (round, name) in files(&pristine).iter().enumerate() {
        let name = name.strip_prefix(&pristine).unwrap();
        if name == Path::new("lock") || name == Path::new("reserve") {
            continue;
        }
        let data = folder.path().join(format!("{round}"));
        for path in files(&pristine) {
            let to = data.join(path.strip_prefix(&pristine).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(path, to).unwrap();
        }
        let path = data.join(name);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 4].iter_mut().for_each(|byte| *byte ^= 0xff);
        fs::write(&path, &bytes).unwrap();
        let (salvaged, left) = saved(&data);
        assert!(salvaged.damages.iter().any(|damage| damage.finding.path == path), "{name:?}: {salvaged:?}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "damaged files are not changed");
        if let Err(error) = opens(&data) {
            assert!(error.contains("todana salvage"), "{name:?}: {error}");
        }
        let is_log = name.starts_with("log");
        assert!(left == had || (is_log && left + 3 >= had), "{name:?}: {left} of {had}");
    }
}

#[test]
fn log_is_salvaged_without_checkpoints() {
    let folder = folder();
    let data = folder.path().join("data");
    closed(&data);
    for path in named(&data, ".checkpoint") {
        fs::write(path, "damaged").unwrap();
    }
    assert!(opens(&data).unwrap_err().contains("todana salvage"));
    let (salvaged, left) = saved(&data);
    assert_eq!(salvaged.damages.len(), 3, "{salvaged:?}");
    assert!((8..12).contains(&left), "{left}");
}

#[test]
fn checkpoint_without_its_log_is_salvaged() {
    let folder = folder();
    let data = folder.path().join("data");
    let had = closed(&data);
    let before = named(&data, ".checkpoint");
    assert_eq!(before.len(), 2);
    for path in named(&data, ".log") {
        fs::remove_file(path).unwrap();
    }
    let (salvaged, left) = saved(&data);
    let first = &salvaged.damages[0];
    assert_eq!((&first.finding.path, first.finding.lost), (&before[1], 0));
    let outcome = &first.outcome;
    assert!(outcome.starts_with("saved, with 8 records as of 2") && outcome.contains("alone"), "{outcome}");
    // Everything except the last four changes.
    assert_eq!(left, had - 4);
}

#[test]
fn checkpoint_after_the_log_end_is_salvaged() {
    let folder = folder();
    let data = folder.path().join("data");
    let had = closed_of(&data, 12);
    let newest: u64 = named(&data, ".checkpoint")[1].file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let start = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    let mut logs = named(&data, ".log");
    // The last segment before the checkpoint is removed as well.
    let at = logs.iter().position(|path| start(path) == newest).unwrap();
    for path in logs.drain(at - 1..) {
        fs::remove_file(path).unwrap();
    }
    assert!(!logs.is_empty());
    assert_eq!(saved(&data).1, had - 12);
}

#[test]
fn gap_before_the_log_is_marked_lost() {
    let folder = folder();
    let data = folder.path().join("data");
    let had = closed_of(&data, 12);
    let start = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    let newest = start(&named(&data, ".checkpoint")[1]);
    // The segment right after the newest checkpoint, and all before it.
    let logs = named(&data, ".log");
    let next = logs.iter().map(start).find(|&start| start > newest).unwrap();
    for path in logs.iter().filter(|path| start(path) < next) {
        fs::remove_file(path).unwrap();
    }
    let (salvaged, left) = saved(&data);
    assert_eq!(salvaged.damages[0].finding.lost, next - newest, "{salvaged:?}");
    assert!(salvaged.restored.lost > 0);
    assert!((had - 11..had).contains(&left), "{left} of {had}");
}

#[test]
fn directory_in_use_is_not_salvaged() {
    let folder = folder();
    let (data, target) = (folder.path().join("data"), folder.path().join("target"));
    let kept = open(&data, 150);
    assert_eq!(salvage(&data, &target).unwrap_err().kind(), ErrorKind::Busy);
    drop(kept);
    assert_eq!(salvage(&data, &target).unwrap().damages, vec![]);
    let nothing = folder.path().join("nothing");
    let error = salvage(&nothing, &folder.path().join("other")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!nothing.exists());
}
