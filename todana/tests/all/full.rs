//! The behaviour when memory is full and no record may be evicted.

use std::sync::Arc;
use todana::{Database, ManualClock, WorkerCounters};
use todana_core::{
    CommandSyntax, Get, MemoryLimit, Operation, RefusalReason, Reply, ReplyNeeds, Store, StoreMode, Touch,
    Ttl, UnixSeconds, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions};

/// Returns a full database, and the number of its records, whose keys are `0`, `1` ...
fn full() -> (Database, Arc<WorkerCounters>, usize) {
    let limit = MemoryLimit { bytes: Some(2 << 20), when_full: WhenFull::Refuse };
    let engine = MemHash::new(MemHashOptions { shards: Some(2), limit, ..Default::default() }).unwrap();
    let clock = Arc::new(ManualClock::new(UnixSeconds(1_700_000_000)));
    let database = Database::new(Box::new(engine), clock);
    let worker_counters = database.worker_counters();
    let mut records = 0;
    loop {
        let (mut is_full, key) = (false, records.to_string());
        let store = Store { key: key.as_bytes(), value: b"some value", ..Store::default() };
        database.execute(&worker_counters, &Operation::Store(store), &mut |reply| {
            is_full = matches!(reply, Reply::Refused(RefusalReason::OutOfMemory));
        });
        if is_full {
            return (database, worker_counters, records);
        }
        records += 1;
    }
}

/// Returns the reply as text, without borrows.
fn answer(database: &Database, worker_counters: &WorkerCounters, command: Operation<'_>) -> String {
    let mut answer = String::new();
    database.execute(worker_counters, &command, &mut |reply| {
        answer = match reply {
            Reply::Hit(hit) => String::from_utf8_lossy(hit.record.value).into_owned(),
            other => format!("{other:?}"),
        };
    });
    answer
}

#[test]
fn access_times_do_not_hide_records() {
    let (database, worker_counters, records) = full();
    assert!(records > 10_000);
    let shown = ReplyNeeds { version: true, access: false };
    let asked = ReplyNeeds { version: true, access: true };
    for needs in [ReplyNeeds::default(), shown, asked] {
        for touch in [None, Some(Ttl::from_exptime(1000))] {
            for n in 0..records {
                let key = n.to_string();
                let get =
                    Get { key: key.as_bytes(), touch, needs, syntax: CommandSyntax::Meta, ..Get::default() };
                assert_eq!(answer(&database, &worker_counters, Operation::Get(get)), "some value", "{n}");
            }
        }
    }
    for n in 0..records {
        let key = n.to_string();
        let touch = Touch { key: key.as_bytes(), ttl: Ttl::from_exptime(2000) };
        assert_eq!(answer(&database, &worker_counters, Operation::Touch(touch)), "Touched", "{n}");
    }
}

#[test]
fn only_a_plain_set_discards_the_old_record() {
    let (database, worker_counters, _) = full();
    let get = |key| answer(&database, &worker_counters, Operation::Get(Get { key, ..Get::default() }));
    let long = [b'v'; 60_000];
    for (key, mode, compare, after) in [
        (&b"1"[..], StoreMode::Set, Some(0), "some value"),
        (b"2", StoreMode::Append, None, "some value"),
        (b"3", StoreMode::Replace, None, "some value"),
        (b"4", StoreMode::Set, None, "Miss"),
    ] {
        let mut version = 0;
        if compare.is_some() {
            let needs = ReplyNeeds { version: true, access: false };
            let get = Get { key, needs, ..Get::default() };
            database.execute(&worker_counters, &Operation::Get(get), &mut |reply| {
                let Reply::Hit(hit) = reply else { panic!("{reply:?}") };
                version = hit.record.attributes.version;
            });
        }
        let compare = compare.map(|_| version);
        let store = Store { key, value: &long, mode, compare, ..Store::default() };
        assert_eq!(answer(&database, &worker_counters, Operation::Store(store)), "Refused(OutOfMemory)");
        assert_eq!(get(key), after);
    }
}
