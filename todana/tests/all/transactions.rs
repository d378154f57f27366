//! Transactions are atomic for concurrent readers, after failures, and after an opening.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use todana::disk::SystemDisk;
use todana::update_log::{LogChange, LogFollower, LogPosition, SyncPolicy};
use todana::{
    CachedClock, Clock, DataDirectory, DataOptions, Database, Db, DbOptions, ErrorKind, Records, Ttl,
    WhenFull,
};
use todana_core::{Engine, MemoryLimit};
use todana_engine::{MemHash, MemHashOptions};

/// Runs a test on a database of each kind, each in its own folder.
fn on_each_kind(test: impl Fn(Db)) {
    for name in ["mem:hash", "mem:tree", "x.hash", "x.tree"] {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(name);
        let name = if name.starts_with("mem") { name } else { place.to_str().unwrap() };
        eprintln!("{name}");
        test(Db::open(name).unwrap());
    }
}

fn text(db: &impl Records, key: &[u8]) -> Option<String> {
    db.get(key).unwrap().map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn transaction_is_visible_only_after_commit() {
    on_each_kind(|db| {
        db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]).unwrap();
        let transaction = db.begin().unwrap();
        transaction.set(b"a", b"10").unwrap();
        assert!(transaction.remove(b"b").unwrap());
        assert!(!transaction.remove(b"b").unwrap());
        assert!(transaction.add(b"b2", b"new").unwrap());
        assert!(!transaction.add(b"c", b"x").unwrap());
        transaction.append(b"c", b"0").unwrap();
        assert_eq!(transaction.increment(b"a", -3, None).unwrap(), 7);
        let inside = [b"a".as_slice(), b"b", b"b2", b"c"].map(|key| text(&transaction, key));
        assert_eq!(inside, [Some("7".into()), None, Some("new".into()), Some("30".into())]);
        let outside = [b"a".as_slice(), b"b", b"b2", b"c"].map(|key| text(&db, key));
        assert_eq!(outside, [Some("1".into()), Some("2".into()), None, Some("3".into())]);
        transaction.commit().unwrap();
        assert_eq!([b"a".as_slice(), b"b", b"b2", b"c"].map(|key| text(&db, key)), inside);
    });
}

#[test]
fn commit_without_room_changes_nothing() {
    let db = Db::open("mem:hash").unwrap();
    db.set(b"a", b"1").unwrap();
    let has_room = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&has_room);
    db.database().before_commit(move || match asked.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err(todana::Error::new(ErrorKind::Unavailable, "no room can be made")),
    });
    let commit = || {
        let transaction = db.begin().unwrap();
        transaction.set(b"a", b"2").unwrap();
        transaction.commit()
    };
    assert_eq!(commit().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(text(&db, b"a").as_deref(), Some("1"));
    has_room.store(true, Ordering::Relaxed);
    commit().unwrap();
    assert_eq!(text(&db, b"a").as_deref(), Some("2"));
}

#[test]
fn aborted_transaction_leaves_nothing() {
    on_each_kind(|db| {
        db.set(b"a", b"1").unwrap();
        let transaction = db.begin().unwrap();
        transaction.set(b"a", b"2").unwrap();
        transaction.abort();
        let transaction = db.begin().unwrap();
        transaction.remove(b"a").unwrap();
        drop(transaction);
        assert_eq!(text(&db, b"a").as_deref(), Some("1"));
        // The transaction lock is open again.
        db.set(b"a", b"3").unwrap();
        assert_eq!(text(&db, b"a").as_deref(), Some("3"));
    });
}

#[test]
fn thread_with_a_transaction_gets_busy() {
    on_each_kind(|db| {
        db.set(b"a", b"1").unwrap();
        let transaction = db.begin().unwrap();
        assert_eq!(db.begin().unwrap_err().kind(), ErrorKind::Busy);
        assert!(db.database().try_begin(&db.database().worker_counters()).is_none());
        let mut update = |_: Option<todana::Record<'_>>| todana::UpdateAction::Remove;
        assert_eq!(db.update(b"a", &mut update).unwrap_err().kind(), ErrorKind::Busy);
        assert!(db.set(b"a", b"2").is_err());
        transaction.commit().unwrap();
        assert_eq!(text(&db, b"a").as_deref(), Some("1"));
    });
}

#[test]
fn writer_waits_for_the_transaction() {
    on_each_kind(|db| {
        db.set(b"count", b"0").unwrap();
        let transaction = db.begin().unwrap();
        let has_written = Arc::new(AtomicBool::new(false));
        let other = {
            let (db, has_written) = (db.clone(), Arc::clone(&has_written));
            thread::spawn(move || {
                db.increment(b"count", 1, None).unwrap();
                has_written.store(true, Ordering::SeqCst);
            })
        };
        for _ in 0..1000 {
            transaction.increment(b"count", 10, None).unwrap();
        }
        assert!(!has_written.load(Ordering::SeqCst));
        transaction.commit().unwrap();
        other.join().unwrap();
        assert_eq!(text(&db, b"count").as_deref(), Some("10001"));
    });
}

/// Transactions move amounts between accounts, other threads move amounts by single writes, and
/// readers check the sums. No amount may be lost or created, and no reader may see half of a
/// transaction.
#[test]
fn transactions_are_serializable() {
    const ACCOUNTS: u64 = 16;
    on_each_kind(|db| {
        let key = |account: u64| format!("account {account}").into_bytes();
        for account in 0..ACCOUNTS {
            db.set(&key(account), b"100").unwrap();
        }
        // Each commit writes the same number to both records of a pair.
        db.set_many(&[(b"left", b"0"), (b"right", b"0")]).unwrap();
        let ends = AtomicBool::new(false);
        let seen = AtomicU64::new(0);
        thread::scope(|scope| {
            let movers: Vec<_> = (0..3u64)
                .map(|mover| {
                    let (db, key) = (&db, &key);
                    scope.spawn(move || {
                        for step in 0..500u64 {
                            let (from, to) = ((step * 7 + mover) % ACCOUNTS, (step * 11 + 3) % ACCOUNTS);
                            let transaction = db.begin().unwrap();
                            let has: i64 = text(&transaction, &key(from)).unwrap().parse().unwrap();
                            let amount = has.min(5);
                            transaction.increment(&key(from), -amount, None).unwrap();
                            transaction.increment(&key(to), amount, None).unwrap();
                            let number = transaction.increment(b"left", 1, None).unwrap();
                            // A commit applies its changes in the order of keys, so these records
                            // are written between the two.
                            for between in 0..100u8 {
                                transaction.set(&[b'm', between], &[between]).unwrap();
                            }
                            transaction.set(b"right", number.to_string().as_bytes()).unwrap();
                            if step % 5 == 4 {
                                transaction.abort();
                            } else {
                                transaction.commit().unwrap();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                // Written outside of transactions, one record at a time.
                while !ends.load(Ordering::Relaxed) {
                    db.increment(b"beside", 1, Some(1)).unwrap();
                }
            });
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    // A later read is never older.
                    let left: u64 = text(&db, b"left").unwrap().parse().unwrap();
                    let right: u64 = text(&db, b"right").unwrap().parse().unwrap();
                    assert!(right >= left, "{left} and then {right}");
                    let right: u64 = text(&db, b"right").unwrap().parse().unwrap();
                    let left: u64 = text(&db, b"left").unwrap().parse().unwrap();
                    assert!(left >= right, "{right} and then {left}");
                    seen.fetch_max(left, Ordering::Relaxed);
                }
            });
            movers.into_iter().for_each(|mover| mover.join().unwrap());
            ends.store(true, Ordering::Relaxed);
        });
        let sum: u64 =
            (0..ACCOUNTS).map(|account| text(&db, &key(account)).unwrap().parse::<u64>().unwrap()).sum();
        assert_eq!(sum, ACCOUNTS * 100);
        // Four of five were committed.
        assert_eq!(text(&db, b"left").as_deref(), Some("1200"));
        assert!(seen.load(Ordering::Relaxed) <= 1200);
    });
}

#[test]
fn failed_commit_restores_everything() {
    let options = DbOptions::default().memory_max(4 << 20).when_full(WhenFull::Refuse);
    let db = options.open("mem:hash").unwrap();
    let value = vec![b'v'; 1000];
    for number in 0..1000u32 {
        db.set(format!("old {number}").as_bytes(), &value).unwrap();
    }
    let transaction = db.begin().unwrap();
    for number in 0..1000u32 {
        transaction.remove(format!("old {number}").as_bytes()).unwrap();
    }
    // These keys sort before the removed ones, so the memory of the removed records is not free
    // yet.
    for number in 0..8000u32 {
        transaction.set(format!("new {number}").as_bytes(), &value).unwrap();
    }
    assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(db.count(), 1000);
    for number in 0..1000u32 {
        assert_eq!(db.get(format!("old {number}").as_bytes()).unwrap().as_ref(), Some(&value));
    }
}

/// The new values use the memory that the smaller ones leave free. So the old values have no room
/// while all new values exist.
#[test]
fn undo_restores_records_in_full_memory() {
    let options = DbOptions::default().memory_max(4 << 20).when_full(WhenFull::Refuse);
    let db = options.open("mem:hash").unwrap();
    let old = vec![b'o'; 50_000];
    let mut count = 0;
    while db.set(format!("a{count:03}").as_bytes(), &old).is_ok() {
        count += 1;
    }
    let transaction = db.begin().unwrap();
    for number in 0..count {
        transaction.set(format!("a{number:03}").as_bytes(), b"small").unwrap();
        transaction.set(format!("b{number:03}").as_bytes(), &vec![b'n'; 60_000]).unwrap();
    }
    assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::Full);
    for number in 0..count {
        let value = db.get(format!("a{number:03}").as_bytes()).unwrap();
        assert!(value.as_ref() == Some(&old), "a{number:03} is {:?}", value.map(|value| value.len()));
    }
    assert_eq!(db.count(), count);
    // The limit applies again. There may be room for one more record, because the records are
    // stored at other places, which depend on the seed.
    let mut more = (0..3u8).map(|number| db.set(&[number], &old));
    assert_eq!(more.find_map(Result::err).unwrap().kind(), ErrorKind::Full);
    assert!(db.status().committed_bytes <= 4 << 20);
}

#[test]
fn failed_commit_is_invisible_to_readers() {
    for name in ["mem:hash", "mem:tree"] {
        let options = DbOptions::default().memory_max(4 << 20).when_full(WhenFull::Refuse);
        let db = options.open(name).unwrap();
        for number in 0..100u8 {
            db.set(&[b'a', number], b"old").unwrap();
        }
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let mut count = 0;
                    db.for_each(&mut |key, record| {
                        assert!(key[0] != b'a' || record.value == b"old", "{key:?}");
                        count += usize::from(key[0] == b'a');
                        std::ops::ControlFlow::Continue(())
                    })
                    .unwrap();
                    assert!(count >= 100);
                }
            });
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    for number in 0..100u8 {
                        assert_eq!(text(&db, &[b'a', number]).as_deref(), Some("old"), "{number}");
                    }
                }
            });
            for _ in 0..10 {
                let transaction = db.begin().unwrap();
                for number in 0..100u8 {
                    if number % 2 == 0 {
                        transaction.remove(&[b'a', number]).unwrap();
                    } else {
                        transaction.set(&[b'a', number], b"new").unwrap();
                    }
                }
                for number in 0..100u8 {
                    transaction.set(&[b'b', number], &vec![b'n'; 60_000]).unwrap();
                }
                assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::Full);
            }
            ends.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn missing_record_is_a_miss_with_tracked_accesses() {
    on_each_kind(|db| {
        let look = todana_core::Get {
            key: b"a",
            needs: todana_core::ReplyNeeds { access: true, version: false },
            ..todana_core::Get::default()
        };
        db.execute(&todana_core::Operation::Get(look), &mut |_| ()).unwrap();
        let transaction = db.begin().unwrap();
        let other = {
            let db = db.clone();
            thread::spawn(move || {
                let mut answer = None;
                let get = todana_core::Get { key: b"a", ..todana_core::Get::default() };
                db.execute(&todana_core::Operation::Get(get), &mut |reply| {
                    answer = Some(format!("{reply:?}"))
                })
                .unwrap();
                answer
            })
        };
        assert_eq!(other.join().unwrap().as_deref(), Some("Miss"));
        transaction.commit().unwrap();
    });
}

#[test]
fn writer_waiting_at_a_closed_engine_fails() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(folder.path().join("x.hash").to_str().unwrap()).unwrap();
    db.set(b"a", b"1").unwrap();
    let transaction = db.begin().unwrap();
    let other = {
        let db = db.clone();
        thread::spawn(move || db.set(b"a", b"2"))
    };
    transaction.get(b"a").unwrap();
    db.database().engine().durable().unwrap().close().unwrap();
    transaction.abort();
    assert!(other.join().unwrap().is_err());
}

#[test]
fn due_flush_keeps_later_records() {
    let clock = Arc::new(todana::ManualClock::new(todana::UnixSeconds(1_000_000)));
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
    let worker_counters = database.worker_counters();
    let flush = todana_core::Operation::Flush { at: Ttl::Seconds(10) };
    let count = || database.status().records;
    database.execute(&worker_counters, &flush, &mut |_| ());
    let transaction = database.begin(&worker_counters).unwrap();
    transaction.set(b"before", b"1").unwrap();
    clock.advance(11);
    assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::Busy);
    database.maintain();
    assert_eq!(count(), 0);
    database.execute(&worker_counters, &flush, &mut |_| ());
    let transaction = database.begin(&worker_counters).unwrap();
    transaction.set(b"before", b"1").unwrap();
    transaction.commit().unwrap();
    clock.advance(11);
    // It is executed before the transaction begins.
    let transaction = database.begin(&worker_counters).unwrap();
    assert_eq!(transaction.get(b"before").unwrap(), None);
    transaction.set(b"after", b"2").unwrap();
    transaction.commit().unwrap();
    database.maintain();
    assert_eq!(count(), 1);
}

#[test]
fn failed_clear_is_reported() {
    on_each_kind(|db| {
        db.set(b"a", b"1").unwrap();
        let transaction = db.begin().unwrap();
        assert_eq!(db.clear().unwrap_err().kind(), ErrorKind::Busy);
        transaction.commit().unwrap();
        assert_eq!(db.count(), 1);
        db.clear().unwrap();
        assert_eq!(db.count(), 0);
    });
}

#[test]
fn flush_waits_for_the_transaction() {
    on_each_kind(|db| {
        db.set(b"a", b"1").unwrap();
        let transaction = db.begin().unwrap();
        let flush = todana_core::Operation::Flush { at: Ttl::Never };
        let mut answer = None;
        transaction.run(&flush, &mut |reply| answer = Some(format!("{reply:?}")));
        assert_eq!(answer.as_deref(), Some("Unknown"));
        let other = {
            let db = db.clone();
            thread::spawn(move || db.clear().unwrap())
        };
        assert_eq!(text(&transaction, b"a").as_deref(), Some("1"));
        transaction.commit().unwrap();
        other.join().unwrap();
        assert_eq!(db.count(), 0);
    });
}

#[test]
fn restart_restores_only_committed_changes() {
    for name in ["mem:hash", "mem:tree", "x.hash", "x.tree"] {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(name);
        let open = || match name.strip_prefix("mem") {
            Some(_) => DbOptions::default().data_dir(folder.path()).open(name).unwrap(),
            None => Db::open(place.to_str().unwrap()).unwrap(),
        };
        let db = open();
        db.set_with(b"kept", b"1", Ttl::Never, 7).unwrap();
        let transaction = db.begin().unwrap();
        transaction.set_with(b"expiring", b"2", Ttl::Seconds(1000), 9).unwrap();
        transaction.set(b"long", &vec![b'l'; 100_000]).unwrap();
        transaction.remove(b"kept").unwrap();
        transaction.commit().unwrap();
        let transaction = db.begin().unwrap();
        transaction.set(b"aborted", b"3").unwrap();
        transaction.abort();
        let before = db.get_record(b"expiring").unwrap();
        drop(db);
        let db = open();
        assert_eq!(db.count(), 2, "{name}");
        assert_eq!(db.get_record(b"expiring").unwrap(), before);
        assert_eq!(db.get(b"long").unwrap(), Some(vec![b'l'; 100_000]));
        assert_eq!((text(&db, b"kept"), text(&db, b"aborted")), (None, None));
    }
}

#[test]
fn transaction_is_one_log_entry() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(CachedClock::new()) as Arc<dyn Clock>;
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    let database = Database::new(Box::new(engine), Arc::clone(&clock));
    let directory = DataDirectory::open(Arc::new(SystemDisk), folder.path()).unwrap();
    let mut options = DataOptions::default();
    options.log.sync = SyncPolicy::Always;
    directory.restore(&database, clock, &options, &mut |_| ()).unwrap();
    let worker_counters = database.worker_counters();
    let transaction = database.begin(&worker_counters).unwrap();
    transaction.set(b"b", b"2").unwrap();
    transaction.set(b"a", b"1").unwrap();
    transaction.remove(b"c").unwrap();
    transaction.commit().unwrap();
    let end = database.log().unwrap().end();
    assert_eq!(database.log().unwrap().synced(), end);
    let mut follower =
        LogFollower::open(Arc::new(SystemDisk), &folder.path().join("log"), Some(LogPosition(0)), None)
            .unwrap();
    let mut reported = Vec::new();
    follower
        .read_new(&mut |_, _, entry| {
            match entry.change {
                LogChange::Mark { .. } => {}
                LogChange::Transaction(changes) => {
                    reported.push(changes.iter().map(|change| format!("{change:?}")).collect())
                }
                change => reported.push(vec![format!("{change:?}")]),
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    let lines = reported.concat();
    assert_eq!((reported.len(), lines.len()), (1, 2), "{reported:?}");
    assert!(lines[0].starts_with("Put { key: [97]") && lines[1].starts_with("Put { key: [98]"), "{lines:?}");
}

/// The records that a failed commit restores have the origin of its changes, so that they do not go
/// back to the server that made them.
#[test]
fn undone_commit_is_logged_with_its_origin() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(CachedClock::new()) as Arc<dyn Clock>;
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    engine.bounded().unwrap().set_limit(MemoryLimit { bytes: Some(4 << 20), when_full: WhenFull::Refuse });
    let database = Database::new(Box::new(engine), Arc::clone(&clock));
    let directory = DataDirectory::open(Arc::new(SystemDisk), folder.path()).unwrap();
    let mut options = DataOptions::default();
    options.log.sync = SyncPolicy::Always;
    directory.restore(&database, clock, &options, &mut |_| ()).unwrap();
    let worker_counters = database.worker_counters();
    let transaction = database.begin_from(7, &worker_counters).unwrap();
    for number in 0..100u8 {
        transaction.set(&[number], &vec![b'n'; 60_000]).unwrap();
    }
    assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::Full);
    database.sync().unwrap();
    let mut follower =
        LogFollower::open(Arc::new(SystemDisk), &folder.path().join("log"), Some(LogPosition(0)), None)
            .unwrap();
    let mut removals = 0;
    follower
        .read_new(&mut |_, _, entry| {
            if !matches!(entry.change, LogChange::Mark { .. }) {
                assert_eq!(entry.origin, Some(7), "{:?}", entry.change);
                removals += 1;
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(removals, 100);
}

/// The memory limit applies to the engine. The write buffer of a transaction does not count.
#[test]
fn full_engine_commits_pure_removals() {
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    engine.bounded().unwrap().set_limit(MemoryLimit { bytes: Some(1), when_full: WhenFull::Refuse });
    let database = Database::new(Box::new(engine), Arc::new(CachedClock::new()));
    let worker_counters = database.worker_counters();
    let transaction = database.begin(&worker_counters).unwrap();
    transaction.set(b"a", b"1").unwrap();
    assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::Full);
    let transaction = database.begin(&worker_counters).unwrap();
    assert!(!transaction.remove(b"a").unwrap());
    transaction.commit().unwrap();
}

#[test]
fn moved_transaction_keeps_its_own_counters() {
    const READS: u64 = 200_000;
    let db = Db::open("mem:hash").unwrap();
    db.set(b"a", b"1").unwrap();
    let transaction = db.begin_owned().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || (0..READS).for_each(|_| assert!(transaction.view(b"a", &mut |_| ()).unwrap())));
        (0..READS).for_each(|_| assert!(db.view(b"a", &mut |_| ()).unwrap()));
    });
    assert_eq!(db.database().counters().get_hits, 2 * READS);
}
