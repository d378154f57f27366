//! The feed of changes for replicas, if the clock is set back and if log is released.

use crate::folder;

use folder::{FolderDatabase, folder, open_with};
use std::path::Path;
use std::time::Duration;
use todana::checkpoint::CheckpointOptions;
use todana::replication::{FeedStart, ReplicationFeed, StampScheme};
use todana::update_log::{LogChange, LogOptions, SyncPolicy, segments};
use todana::{DataOptions, ManualClock};

fn kept(path: &Path) -> FolderDatabase {
    let log = LogOptions { sync: SyncPolicy::Always, ..LogOptions::default() };
    let checkpoints = CheckpointOptions {
        log_kept_len: u64::MAX,
        log_kept_age: Duration::MAX,
        ..CheckpointOptions::default()
    };
    open_with(path, &DataOptions { log, checkpoints })
}

/// Returns the changes after a time stamp with their stamps and keys.
fn changes(kept: &FolderDatabase, after: u64) -> (Vec<(u64, String)>, FeedStart) {
    let (mut feed, begins) = ReplicationFeed::open(&kept.directory, StampScheme::default(), after).unwrap();
    let end = kept.database.log().unwrap().end();
    let mut all = Vec::new();
    while feed.position() < end {
        feed.read_new(end, 1 << 20, &mut |stamp, _, change| {
            if let LogChange::Put { key, .. } = change {
                all.push((stamp, String::from_utf8_lossy(key).into_owned()));
            }
        })
        .unwrap();
    }
    (all, begins)
}

fn store(kept: &FolderDatabase, key: &str) {
    kept.set(key, "1");
    kept.settle();
    // Each change gets a segment of its own.
    kept.database.log().unwrap().rotate().unwrap();
}

/// Checks for each change that a replica which has this change receives all later ones.
fn assert_each_leads_to_the_rest(kept: &FolderDatabase, wanted: &str) {
    let (all, _) = changes(kept, 0);
    let keys = |changes: &[(u64, String)]| changes.iter().map(|change| change.1.clone()).collect::<String>();
    assert_eq!(keys(&all), wanted);
    assert!(all.is_sorted_by(|one, other| one.0 < other.0), "{all:?}");
    for (at, (stamp, key)) in all.iter().enumerate() {
        let (rest, begins) = changes(kept, *stamp);
        assert_eq!((rest, begins), (all[at + 1..].to_vec(), FeedStart::Complete), "behind {key}");
    }
}

#[test]
fn clock_set_back_hides_no_change() {
    let folder = folder();
    let kept = kept(&folder.path().join("data"));
    for key in ["a", "b", "c", "d"] {
        kept.clock.advance(100);
        store(&kept, key);
    }
    put_back(&kept.clock, 250);
    for key in ["e", "f", "g", "h"] {
        kept.clock.advance(10);
        store(&kept, key);
    }
    kept.clock.advance(1000);
    store(&kept, "i");
    assert_each_leads_to_the_rest(&kept, "abcdefghi");
}

#[test]
fn clock_set_back_between_runs_hides_nothing() {
    let folder = folder();
    let path = folder.path().join("data");
    let kept = kept(&path);
    for key in ["a", "b", "c"] {
        // These changes share a segment, whose creation time is not related to their times.
        kept.clock.advance(500);
        kept.set(key, "1");
        kept.settle();
    }
    drop(kept);
    // The clock of this opening starts at the time at which that of the other one started.
    let kept = self::kept(&path);
    for key in ["d", "e", "f", "g", "h"] {
        kept.clock.advance(10);
        store(&kept, key);
    }
    kept.clock.advance(2000);
    store(&kept, "i");
    assert_each_leads_to_the_rest(&kept, "abcdefghi");
}

fn put_back(clock: &ManualClock, seconds: u64) {
    clock.advance(seconds.wrapping_neg());
}

#[test]
fn only_unneeded_log_is_released() {
    let folder = folder();
    let kept = kept(&folder.path().join("data"));
    let count = || segments(&todana::disk::SystemDisk, &kept.directory.path().join("log")).unwrap().len();
    for number in 0..10 {
        kept.clock.advance(1);
        store(&kept, &format!("k{number}"));
    }
    let before = count();
    // No checkpoint exists from which all of this log could be restored.
    kept.directory.release_log(&kept.database, &|_| true).unwrap();
    assert_eq!(count(), before);
    for _ in 0..2 {
        kept.directory.checkpoint(&kept.database).unwrap();
        kept.clock.advance(1);
        store(&kept, "more");
    }
    let before = count();
    let (feed, begins) = ReplicationFeed::open(&kept.directory, StampScheme::default(), 0).unwrap();
    assert_eq!(begins, FeedStart::Complete);
    kept.directory.release_log(&kept.database, &|_| true).unwrap();
    assert_eq!(count(), before, "a replica reads it");
    drop(feed);
    let ended = |second: u64| move |ended_ms: u64| ended_ms / 1000 <= folder::NOW + second;
    kept.directory.release_log(&kept.database, &ended(4)).unwrap();
    assert_eq!(count(), before - 4);
    assert_eq!(changes(&kept, 0).1, FeedStart::Later);
    kept.directory.release_log(&kept.database, &|_| true).unwrap();
    let left = count();
    assert!(left < before - 8 && left >= 2, "{left} of {before}");
    let path = kept.directory.path().to_path_buf();
    drop(kept);
    let again = self::kept(&path);
    assert_eq!(again.database.engine().status().records, 11);
}
