//! The behaviour of the log if the disk is full, fails, does not answer, or is read-only.

use crate::crash_disk;
use crate::kept;

use crash_disk::{CrashDisk, Op};
use kept::{CrashDiskDatabase, open, options};
use std::io::{self, ErrorKind as IoErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;
use todana::update_log::{
    DurabilityHealth, EntryDecoder, LogChange, LogOptions, LogPosition, SyncPolicy, UpdateLog,
};
use todana_core::{Attributes, ErrorKind, Get, Operation, Record, ReplyNeeds, Store, Touch, Ttl};

const NOW: u64 = 1_700_000_000;
const REFUSED: &str = "Refused(LogUnwritable)";
const MODES: [SyncPolicy; 3] =
    [SyncPolicy::Always, SyncPolicy::Every(Duration::from_millis(5)), SyncPolicy::Never];

/// Waits until `is_so` returns true for the health of the log.
fn wait_for(log: &UpdateLog, is_so: impl Fn(&DurabilityHealth) -> bool) {
    let (sender, reported) = mpsc::channel();
    log.on_progress(move || {
        let _ = sender.send(());
    });
    while !is_so(&log.health()) {
        reported.recv().unwrap();
    }
}

fn is_stuck(health: &DurabilityHealth) -> bool {
    matches!(health, DurabilityHealth::Stuck(_))
}

fn is_well(health: &DurabilityHealth) -> bool {
    *health == DurabilityHealth::Well
}

fn is_lost(health: &DurabilityHealth) -> bool {
    matches!(health, DurabilityHealth::Lost(_))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> LogChange<'a> {
    LogChange::Put { key, record: Record::new(value, Attributes::default()) }
}

/// Opens the database in the state that the disk has after a power failure now.
fn after_power_loss(kept: CrashDiskDatabase, seed: u64) -> CrashDiskDatabase {
    let state = kept.disk.state().reboot(seed);
    let now = kept.database.now().0;
    kept.kill();
    open(&CrashDisk::with(state), now, options(SyncPolicy::Always)).unwrap()
}

/// Makes every write fail.
fn fails_writes(kind: IoErrorKind) -> impl Fn(&Op) -> io::Result<()> {
    move |op| match op {
        Op::Write { .. } => Err(kind.into()),
        _ => Ok(()),
    }
}

#[test]
fn full_disk_refuses_writes_and_loses_nothing() {
    for seed in 0..20 {
        let disk = CrashDisk::new();
        let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
        disk.limit(disk.used() + 3_000);
        let mut acknowledged = Vec::new();
        let mut unknown = Vec::new();
        for n in 0u32.. {
            let (key, value) = (n.to_string().into_bytes(), vec![b'v'; 40]);
            if kept.set(&key, &value) == REFUSED {
                break;
            }
            match kept.log().wait(kept.logged()) {
                Ok(()) => acknowledged.push(key),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable);
                    assert!(error.to_string().starts_with("update log: cannot write to it: "), "{error}");
                    unknown.push(key);
                }
            }
        }
        assert!(acknowledged.len() > 20 && unknown.len() == 1);
        assert!(is_stuck(&kept.log().health()));
        assert_eq!(kept.get(&acknowledged[0]), Some(vec![b'v'; 40]));
        assert_eq!(kept.database.counters().log_refusals, 1);
        if seed % 2 == 0 {
            // There is space again.
            disk.heal();
            wait_for(kept.log(), is_well);
            kept.log().wait(kept.logged()).unwrap();
            kept.set(b"more", b"m");
            kept.log().wait(kept.logged()).unwrap();
            acknowledged.extend(unknown);
            acknowledged.push(b"more".to_vec());
        }
        let after = after_power_loss(kept, seed);
        for key in &acknowledged {
            assert!(after.get(key).is_some(), "seed {seed}: {}", String::from_utf8_lossy(key));
        }
    }
}

#[test]
fn failing_write_is_retried_in_every_mode() {
    for sync in MODES {
        for kind in [IoErrorKind::StorageFull, IoErrorKind::Other, IoErrorKind::ReadOnlyFilesystem] {
            let disk = CrashDisk::new();
            let kept = open(&disk, NOW, options(sync)).unwrap();
            disk.fault(fails_writes(kind));
            kept.set(b"k", b"1");
            let log = kept.log();
            // This call detects the failure in every mode.
            assert_eq!(log.sync_to(log.end()).unwrap_err().kind(), ErrorKind::Unavailable);
            assert_eq!(kept.set(b"k", b"2"), REFUSED);
            assert_eq!(kept.get(b"k").unwrap(), b"1");
            disk.heal();
            wait_for(log, is_well);
            log.sync_to(log.end()).unwrap();
            assert_eq!(after_power_loss(kept, 1).get(b"k").unwrap(), b"1");
        }
    }
}

#[test]
fn changes_under_way_survive_a_stuck_log() {
    for sync in MODES {
        let disk = CrashDisk::new();
        let kept = open(&disk, NOW, options(sync)).unwrap();
        disk.fault(fails_writes(IoErrorKind::StorageFull));
        let log = kept.log();
        log.append(&put(b"first", b"1"));
        log.sync_to(log.end()).unwrap_err();
        // This worker has checked the log before the failure.
        let end = log.append(&put(b"second", b"2"));
        if sync == SyncPolicy::Always {
            assert!(!log.is_durable(end));
        }
        disk.heal();
        wait_for(log, is_well);
        log.sync_to(end).unwrap();
        let after = after_power_loss(kept, 3);
        assert_eq!(after.get(b"second").unwrap(), b"2");
    }
}

#[test]
fn due_flush_on_full_disk_runs_once() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
    kept.set(b"before", b"b");
    kept.run(Operation::Flush { at: Ttl::Seconds(10) });
    kept.log().wait(kept.log().end()).unwrap();
    disk.fault(fails_writes(IoErrorKind::StorageFull));
    kept.set(b"k", b"1");
    kept.log().wait(kept.log().end()).unwrap_err();
    kept.clock.advance(10);
    assert_eq!(kept.get(b"before"), None);
    disk.heal();
    wait_for(kept.log(), is_well);
    kept.set(b"after", b"a");
    kept.log().wait(kept.log().end()).unwrap();
    let after = after_power_loss(kept, 1);
    assert_eq!(after.get(b"after").unwrap(), b"a");
    assert_eq!(after.get(b"before"), None);
    after.kill();
}

#[test]
fn reads_accumulate_nothing_while_the_log_is_stuck() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
    kept.run(Operation::Store(Store { key: b"s", value: b"1", ttl: Ttl::Sliding(60), ..Store::default() }));
    kept.log().wait(kept.log().end()).unwrap();
    disk.fault(fails_writes(IoErrorKind::StorageFull));
    kept.set(b"k", b"1");
    kept.log().wait(kept.log().end()).unwrap_err();
    let end = kept.log().end();
    for _ in 0..1_000 {
        kept.clock.advance(1);
        let needs = ReplyNeeds { version: true, ..ReplyNeeds::default() };
        assert!(kept.run(Operation::Get(Get { key: b"s", needs, ..Get::default() })).starts_with("Hit"));
    }
    assert_eq!(kept.log().end(), end);
    // A read that would change the record is refused.
    let touch = Some(Ttl::Seconds(5));
    assert_eq!(kept.run(Operation::Get(Get { key: b"s", touch, ..Get::default() })), REFUSED);
    kept.kill();
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged() {
    for sync in MODES {
        let disk = CrashDisk::new();
        let kept = open(&disk, NOW, options(sync)).unwrap();
        kept.set(b"safe", b"s");
        let log = kept.log();
        log.sync_to(log.end()).unwrap();
        disk.fault(|op| match op {
            Op::Sync { .. } => Err(IoErrorKind::Other.into()),
            _ => Ok(()),
        });
        kept.set(b"k", b"1");
        let end = log.end();
        assert!(
            log.sync_to(end)
                .unwrap_err()
                .to_string()
                .starts_with("update log: recent writes may not be on disk")
        );
        assert!(is_lost(&log.health()));
        disk.heal();
        assert_eq!(kept.set(b"k", b"2"), REFUSED);
        assert_eq!(kept.get(b"k").unwrap(), b"1");
        // Neither the entries that were written before nor those in progress become durable.
        let dropped = log.append(&put(b"k", b"3"));
        assert!(!log.is_durable(end) && !log.is_durable(dropped) && log.wait(dropped).is_err());
        assert!(log.is_durable(log.synced()));
        assert!(log.rotate().is_err() && log.close().is_err());
        // The next process reads the entries that the system has reported as written. It
        // acknowledges nothing before they are on disk.
        let state = disk.state();
        kept.kill();
        let second = open(&CrashDisk::with(state), NOW, options(SyncPolicy::Always)).unwrap();
        assert_eq!(second.get(b"k").unwrap(), b"1");
        for seed in 0..8 {
            let state = second.disk.state().reboot(seed);
            let third = open(&CrashDisk::with(state), NOW, options(SyncPolicy::Always)).unwrap();
            assert_eq!(third.get(b"k").unwrap(), b"1");
            assert_eq!(third.get(b"safe").unwrap(), b"s");
        }
        second.kill();
    }
}

#[test]
fn unwritable_directory_is_not_opened() {
    for (kind, why) in [
        (IoErrorKind::ReadOnlyFilesystem, "read-only filesystem"),
        (IoErrorKind::PermissionDenied, "permission denied"),
        (IoErrorKind::StorageFull, "no storage space"),
    ] {
        // A new directory, and one with data.
        let kept = open(&CrashDisk::new(), NOW, options(SyncPolicy::Always)).unwrap();
        kept.set(b"k", b"v");
        kept.log().close().unwrap();
        for state in [CrashDisk::new().state(), kept.disk.state()] {
            let disk = CrashDisk::with(state);
            disk.fault(move |_| Err(kind.into()));
            let error = open(&disk, NOW, options(SyncPolicy::Always)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let message = error.to_string();
            assert!(
                message.starts_with("/data") && message.contains(": cannot ") && message.contains(why),
                "{message}"
            );
            disk.heal();
            open(&disk, NOW, options(SyncPolicy::Always)).unwrap().kill();
        }
    }
}

/// Makes operations of a kind wait until they are released.
#[derive(Default)]
struct OperationGate {
    is_shut: Mutex<bool>,
    moved: Condvar,
}

impl OperationGate {
    fn shut(&self) {
        *self.is_shut.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.is_shut.lock().unwrap() = false;
        self.moved.notify_all();
    }

    fn pass(&self) {
        let shut = self.is_shut.lock().unwrap();
        drop(self.moved.wait_while(shut, |is_shut| *is_shut).unwrap());
    }
}

#[test]
fn hanging_sync_stops_acknowledgements_after_the_interval() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, options(SyncPolicy::Every(Duration::from_millis(10)))).unwrap();
    let gate = Arc::new(OperationGate::default());
    gate.shut();
    let gate_too = Arc::clone(&gate);
    disk.fault(move |op| {
        if matches!(op, Op::Sync { .. }) {
            gate_too.pass();
        }
        Ok(())
    });
    kept.set(b"k", b"1");
    let log = kept.log();
    while log.is_durable(log.end()) {
        std::thread::yield_now();
    }
    // Later changes are not acknowledged either while the disk does not answer.
    kept.set(b"k", b"2");
    assert!(!log.is_durable(log.end()) && log.synced() == LogPosition(0));
    gate.open();
    log.wait(log.end()).unwrap();
    kept.kill();
}

#[test]
fn thread_waiting_for_the_backlog_is_woken() {
    for sync in [SyncPolicy::Never, SyncPolicy::Every(Duration::from_secs(3_600))] {
        let disk = CrashDisk::new();
        let kept = open(&disk, NOW, LogOptions { segment_len: 1 << 40, ..options(sync) }).unwrap();
        let gate = Arc::new(OperationGate::default());
        gate.shut();
        let gate_too = Arc::clone(&gate);
        disk.fault(move |op| {
            if matches!(op, Op::Write { .. }) {
                gate_too.pass();
            }
            Ok(())
        });
        let value = vec![b'v'; 1 << 20];
        while kept.log().is_durable(kept.log().end()) {
            kept.log().append(&put(b"k", &value));
            assert!(kept.log().end().0 < 40 << 20, "it has no bound");
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| kept.log().wait(kept.log().end()));
            gate.open();
            waits.join().unwrap().unwrap();
        });
        kept.kill();
    }
}

/// Readers of the log, such as replicas, have removed the record if the log lacks an access.
#[test]
fn access_after_unlogged_ones_logs_the_record() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, LogOptions { segment_len: 1 << 40, ..options(SyncPolicy::Never) }).unwrap();
    let sliding = Ttl::Sliding(60);
    for key in [b"session", b"touched"] {
        kept.run(Operation::Store(Store { key, value: b"value", ttl: sliding, ..Store::default() }));
    }
    kept.log().sync_to(kept.log().end()).unwrap();
    let gate = Arc::new(OperationGate::default());
    gate.shut();
    let gate_too = Arc::clone(&gate);
    disk.fault(move |op| {
        if matches!(op, Op::Write { .. }) {
            gate_too.pass();
        }
        Ok(())
    });
    let value = vec![b'v'; 1 << 20];
    while !kept.log().is_backlogged() {
        kept.log().append(&put(b"k", &value));
    }
    kept.clock.advance(50);
    let before = kept.log().end();
    assert!(kept.get(b"session").is_some() && kept.get(b"touched").is_some());
    assert_eq!(kept.log().end(), before, "the log is backlogged");
    gate.open();
    kept.log().sync_to(before).unwrap();
    kept.clock.advance(50);
    assert!(kept.get(b"session").is_some());
    kept.run(Operation::Touch(Touch { key: b"touched", ttl: sliding }));
    // This access needs no record in the log, because the log has the one before it.
    kept.clock.advance(50);
    assert!(kept.get(b"session").is_some());
    let end = kept.log().end();
    kept.log().sync_to(end).unwrap();
    let (mut bytes, mut piece) = (kept.directory.log_bytes(Some(before)).unwrap(), Vec::new());
    let mut entries = EntryDecoder::new(bytes.identity().database_id, before);
    while bytes.position() < end {
        bytes.read(end, 1 << 20, &mut piece).unwrap();
    }
    entries.push(&piece);
    let mut logged = Vec::new();
    while let Some((_, entry)) = entries.next_entry().unwrap() {
        match entry.change {
            LogChange::Put { key, record } => {
                logged.push(format!("put {} {}", text(key), text(record.value)));
            }
            LogChange::Retag { key, .. } => logged.push(format!("retag {}", text(key))),
            other => assert!(matches!(other, LogChange::Mark { .. }), "{other:?}"),
        }
    }
    assert_eq!(logged, ["put session value", "put touched value", "retag session"]);
    kept.kill();
}

#[test]
fn closing_and_dropping_a_stuck_log_ends() {
    for sync in MODES {
        for closes in [true, false] {
            let disk = CrashDisk::new();
            let kept = open(&disk, NOW, options(sync)).unwrap();
            disk.fault(fails_writes(IoErrorKind::StorageFull));
            kept.set(b"k", b"v");
            let waits = kept.log().end();
            if closes {
                let log = kept.log();
                std::thread::scope(|scope| {
                    let twice = [(); 2].map(|()| scope.spawn(|| log.close()));
                    let waiter = scope.spawn(|| log.sync_to(waits));
                    assert!(twice.into_iter().all(|close| close.join().unwrap().is_err()));
                    assert!(waiter.join().unwrap().is_err());
                });
                assert!(!log.is_durable(log.append(&put(b"k", b"late"))));
            }
            drop(kept);
        }
    }
}

#[test]
fn closed_log_acknowledges_nothing() {
    let kept = open(&CrashDisk::new(), NOW, options(SyncPolicy::Never)).unwrap();
    kept.set(b"k", b"v");
    let (log, end) = (kept.log(), kept.log().end());
    log.close().unwrap();
    log.close().unwrap();
    assert!(log.is_durable(end) && log.wait(end).is_ok());
    assert_eq!(kept.set(b"k", b"w"), REFUSED);
    let late = log.append(&put(b"k", b"w"));
    assert!(!log.is_durable(late));
    assert_eq!(log.wait(late).unwrap_err().to_string(), "update log: is closed");
}

#[test]
fn rotation_finishes_all_earlier_entries() {
    let last_start = |disk: &CrashDisk| -> u64 {
        let files = disk.state().files();
        let mut logs =
            files.keys().filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.next_back().unwrap().file_stem().unwrap().to_str().unwrap().parse().unwrap()
    };
    for sync in MODES {
        let disk = CrashDisk::new();
        let kept = open(&disk, NOW, options(sync)).unwrap();
        let log = kept.log();
        // The log is empty, completely synced, or not synced.
        log.rotate().unwrap();
        for syncs in [true, false] {
            kept.set(b"k", b"v");
            if syncs {
                log.sync_to(log.end()).unwrap();
            }
            let end = log.end();
            log.rotate().unwrap();
            assert!(last_start(&disk) >= end.0 && log.synced() >= end);
        }
        // The failure occurs between the old segment and the new one, after the entries were
        // written.
        kept.set(b"k", b"w");
        disk.fault(|op| match op {
            Op::Create { .. } | Op::Rename { .. } => Err(IoErrorKind::StorageFull.into()),
            _ => Ok(()),
        });
        let end = log.end();
        assert!(log.rotate().is_err());
        disk.heal();
        wait_for(log, is_well);
        log.rotate().unwrap();
        assert!(last_start(&disk) >= end.0);
        let after = after_power_loss(kept, 5);
        assert_eq!(after.get(b"k").unwrap(), b"w");
        after.kill();
    }
}

#[test]
fn failed_writer_thread_wakes_all_waiters() {
    let kept = open(&CrashDisk::new(), NOW, options(SyncPolicy::Always)).unwrap();
    let is_armed = Arc::new(AtomicBool::new(true));
    kept.log().on_progress(move || assert!(!is_armed.swap(false, Ordering::SeqCst), "as the test wants it"));
    kept.set(b"k", b"v");
    kept.set(b"k", b"w");
    let log = kept.log();
    while log.wait(log.append(&put(b"k", b"v"))).is_ok() {}
    assert!(is_lost(&log.health()) && log.close().is_err());
}

/// Many threads append and wait, another thread rotates, and the disk fails from time to time. All
/// threads come to an end, and the acknowledged entries exist.
#[test]
fn acknowledged_writes_survive_disk_errors() {
    const THREADS: u32 = 8;
    const EACH: u32 = 150;
    for sync in MODES {
        let disk = CrashDisk::new();
        let log = LogOptions { segment_len: 20_000, ..options(sync) };
        let kept = open(&disk, NOW, log).unwrap();
        let writes = AtomicU64::new(0);
        disk.fault(move |op| match op {
            Op::Write { .. } | Op::Create { .. } if writes.fetch_add(1, Ordering::SeqCst) % 60 == 59 => {
                Err(IoErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        });
        let log = kept.log();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let log = &log;
                scope.spawn(move || {
                    for n in 0..EACH {
                        let end = log.append(&put(format!("{thread} {n}").as_bytes(), b"v"));
                        // The entry was appended, so the thread waits until it is written.
                        while log.wait(end).is_err() {
                            wait_for(log, |health| !is_stuck(health));
                        }
                        if thread == 0 && n % 20 == 0 {
                            let _ = log.rotate();
                        }
                    }
                });
            }
        });
        while log.sync_to(log.end()).is_err() {
            wait_for(log, |health| !is_stuck(health));
        }
        let after = after_power_loss(kept, 9);
        for thread in 0..THREADS {
            for n in 0..EACH {
                assert!(after.get(format!("{thread} {n}").as_bytes()).is_some(), "{thread} {n}");
            }
        }
        after.kill();
    }
}

/// If a client has a version from before, the same version must not be assigned to another value.
#[test]
fn lost_version_is_not_assigned_again() {
    let shown = |kept: &CrashDiskDatabase| -> u64 {
        let needs = ReplyNeeds { version: true, ..ReplyNeeds::default() };
        let answer = kept.run(Operation::Get(Get { key: b"k", needs, ..Get::default() }));
        let version = answer.split("version: ").nth(1).unwrap_or_else(|| panic!("{answer}"));
        version.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let lazily = options(SyncPolicy::Every(Duration::from_secs(3_600)));
    for seed in 0..16 {
        let first = open(&CrashDisk::new(), NOW, lazily).unwrap();
        first.set(b"k", b"v");
        first.log().sync_to(first.log().end()).unwrap();
        let mut versions = vec![shown(&first)];
        let mut state = first.disk.state();
        first.kill();
        for round in 0..4 {
            let kept = open(&CrashDisk::with(state.reboot(seed + round)), NOW, lazily).unwrap();
            // The access may have been logged; the contents are the same.
            let is_there = kept.records()[&b"k"[..]].1.version != 0;
            let version = shown(&kept);
            assert!(is_there || versions.iter().all(|&before| before < version), "{versions:?} {version}");
            versions.push(version);
            state = kept.disk.state();
            kept.kill();
        }
    }
}
