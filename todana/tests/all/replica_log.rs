//! The update log of a hash on disk is continued only if the hash has exactly the contents that it
//! had when both were closed. Otherwise a new log starts, in which no replica finds its position.
//!
//! The contents were once considered unchanged if the numbers of openings, records and bytes
//! matched. So a copy that was changed in the same way was mistaken for the contents that replicas
//! had received. If the clock was set back in the meantime, replicas found their positions in a new
//! log.

use crate::folder;

use folder::{copy, disk};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use todana::checkpoint::{CheckpointKeeper, KeeperOutcome};
use todana::replication::{FeedStart, ReplicationFeed, StampScheme};
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{Clock, DataDirectory, DataOptions, Database, Db, ManualClock, Records, WorkerCounters};
use todana_core::{Operation, Store, UnixSeconds};
use todana_engine::{DiskHash, DiskHashOptions};

const NOW: u64 = 1_700_000_000;
const STAMPS_PER_SECOND: u64 = 1_000_000_000;

/// A hash on disk with a log for replicas.
struct FollowedHash {
    database: Arc<Database>,
    worker_counters: Arc<WorkerCounters>,
    goes_on: bool,
    // This is dropped last, because the lock must outlive the log.
    directory: Arc<DataDirectory>,
}

fn open(folder: &Path, now: u64) -> FollowedHash {
    let clock = Arc::new(ManualClock::new(UnixSeconds(now)));
    let options = DiskHashOptions { disk: disk(), ..DiskHashOptions::default() };
    let hash = DiskHash::open(&folder.join("x.hash"), options).unwrap();
    let database = Database::new(Box::new(hash), Arc::clone(&clock) as Arc<dyn Clock>);
    let directory = DataDirectory::open(disk(), &folder.join("ulog")).unwrap();
    let log = LogOptions { sync: SyncPolicy::Every(Duration::from_secs(3600)), ..LogOptions::default() };
    let options = DataOptions { log, ..DataOptions::default() };
    let goes_on = directory.keep_replica_log(&database, clock, &options).unwrap();
    let worker_counters = database.worker_counters();
    FollowedHash { database: Arc::new(database), worker_counters, goes_on, directory: Arc::new(directory) }
}

impl FollowedHash {
    fn set(&self, key: &str, value: &str) {
        let store = Store { key: key.as_bytes(), value: value.as_bytes(), ..Store::default() };
        self.database.execute(&self.worker_counters, &Operation::Store(store), &mut |_| ());
    }

    fn sync(&self) {
        let log = self.database.log().unwrap();
        log.sync_to(log.end()).unwrap();
        self.database.engine().durable().unwrap().sync().unwrap();
    }

    fn close(self) {
        self.database.log().unwrap().close().unwrap();
        self.database.engine().durable().unwrap().close().unwrap();
        self.directory.close_replica_log(&self.database).unwrap();
    }

    /// Returns the changes that a replica receives after a time stamp, and whether its position was
    /// found.
    fn reported(&self, after: u64) -> (FeedStart, BTreeMap<u64, String>) {
        self.sync();
        let (mut feed, begins) =
            ReplicationFeed::open(&self.directory, StampScheme::default(), after).unwrap();
        let (end, mut reported) = (self.database.log().unwrap().synced(), BTreeMap::new());
        while feed.position() < end {
            feed.read_new(end, 1 << 20, &mut |stamp, _, change| {
                drop(reported.insert(stamp, format!("{change:?}")))
            })
            .unwrap();
        }
        (begins, reported)
    }
}

fn change_without_log(folder: &Path, key: &str, value: &str) {
    let db = Db::open(folder.join("x.hash").to_str().unwrap()).unwrap();
    db.set(key.as_bytes(), value.as_bytes()).unwrap();
}

#[test]
fn log_goes_on_after_a_stop_in_order() {
    let folder = folder::folder();
    let first = open(folder.path(), NOW);
    assert!(first.goes_on);
    first.set("a", "1");
    let (begins, reported) = first.reported(0);
    assert_eq!((begins, reported.len()), (FeedStart::Complete, 1));
    let place = *reported.keys().next().unwrap();
    first.close();
    // The log is also continued if the clock was set back, and after another opening without a
    // change.
    for now in [NOW - 100, NOW + 5, NOW - 1000] {
        let next = open(folder.path(), now);
        assert!(next.goes_on, "{now}");
        next.close();
    }
    let last = open(folder.path(), NOW - 50);
    last.set("b", "2");
    let (begins, reported) = last.reported(place);
    assert_eq!((begins, reported.len()), (FeedStart::Complete, 1));
    assert!(reported.values().next().unwrap().contains("Put"), "{reported:?}");
}

/// The copy has the same numbers of openings, records and bytes, but other contents.
#[test]
fn copy_that_was_changed_alike_is_another_database() {
    let folder = folder::folder();
    let hash = folder.path().join("x.hash");
    open(folder.path(), NOW).close();
    copy(&hash, &folder.path().join("copy"));
    let second = open(folder.path(), NOW + 1);
    second.set("key", "x");
    let place = *second.reported(0).1.keys().last().unwrap();
    second.close();
    fs::remove_dir_all(&hash).unwrap();
    fs::rename(folder.path().join("copy"), &hash).unwrap();
    change_without_log(folder.path(), "key", "y");

    let third = open(folder.path(), NOW + 2);
    assert!(!third.goes_on);
    assert_eq!(third.reported(place).0, FeedStart::Later);
}

#[test]
fn unlogged_change_is_detected_though_undone() {
    let folder = folder::folder();
    let first = open(folder.path(), NOW);
    first.set("key", "x");
    first.close();
    change_without_log(folder.path(), "key", "y");
    assert!(!open(folder.path(), NOW + 1).goes_on);
}

/// The new log once started at position 0, like that of a database in which nothing was ever
/// removed.
#[test]
fn replica_log_begins_at_0_only_once() {
    let folder = folder::folder();
    let first = open(folder.path(), NOW);
    (0..100).for_each(|number| first.set(&format!("key {number}"), "value"));
    let place = *first.reported(0).1.keys().last().unwrap();
    let end = first.database.log().unwrap().end();
    first.close();
    // The state is that after a crash between the removal of the old segments and the first new
    // one, with a new hash in place of the old one.
    fs::remove_dir_all(folder.path().join("x.hash")).unwrap();
    for segment in folder::files(&folder.path().join("ulog/log")) {
        fs::remove_file(segment).unwrap();
    }
    for spoiled in [false, true] {
        if spoiled {
            fs::remove_dir_all(folder.path().join("x.hash")).unwrap();
            fs::write(folder.path().join("ulog/replica-log"), b"nothing that can be read").unwrap();
        }
        let next = open(folder.path(), NOW + 1);
        assert!(!next.goes_on);
        next.set("another", "value");
        assert_eq!(next.reported(place).0, FeedStart::Later);
        assert_eq!(next.reported(0).0, FeedStart::Later);
        assert!(next.database.log().unwrap().end() > end);
    }
}

/// With the clock set back, a new log was once mistaken for one that replicas had already read, so
/// they received neither a clear nor the changes.
#[test]
fn new_log_with_earlier_clock_hides_old_positions() {
    for is_closed in [false, true] {
        let folder = folder::folder();
        let first = open(folder.path(), NOW);
        first.set("key", "x");
        let place = *first.reported(0).1.keys().last().unwrap();
        assert!(place / STAMPS_PER_SECOND >= NOW);
        match is_closed {
            true => {
                first.close();
                change_without_log(folder.path(), "key", "y");
            }
            // This is the state after a crash.
            false => drop(first),
        }
        for back in [0, 1, 5000] {
            let next = open(folder.path(), NOW - back);
            assert!(!next.goes_on);
            next.set("key", "z");
            let (begins, reported) = next.reported(place);
            assert_eq!(begins, FeedStart::Later, "{back} s, closed: {is_closed}");
            assert_eq!(reported.len(), 1, "nothing that follows is passed over");
            drop(next);
        }
    }
}

/// Such a failure was once reported as that of a checkpoint, and the database counted as stuck from
/// then on, because a hash on disk writes no checkpoints.
#[test]
fn failed_trim_is_no_failed_checkpoint() {
    let folder = folder::folder();
    let hash = open(folder.path(), NOW);
    hash.set("a", "1");
    hash.sync();
    // A folder cannot be removed as a file can. It takes the place of the first segment, and an
    // empty file that of the next one.
    let segment = |start: u64| folder.path().join(format!("ulog/log/{start:020}.log"));
    fs::remove_file(segment(0)).unwrap();
    fs::create_dir(segment(0)).unwrap();
    fs::write(segment(1), "").unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let report = move |outcome| drop(sender.send(outcome));
    let keeper =
        CheckpointKeeper::start(Arc::clone(&hash.directory), Arc::clone(&hash.database), report).unwrap();
    let outcome = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    drop(keeper);
    let KeeperOutcome::LogNotTrimmed(error) = outcome else { panic!("{outcome:?}") };
    assert!(error.to_string().contains("ulog/log/00000000000000000000.log"), "{error}");
    assert!(!hash.database.has_stuck_checkpoints());
}
