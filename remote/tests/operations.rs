//! Operations on a real cluster, compared with a database in memory. `TODANA_CASSANDRA` names the
//! contact points of a cluster, as in `127.0.0.1:9042`. Without it, the tests are skipped.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::mpsc::channel;
use todana::{DatabaseName, Db, Expiry, Records, ScanDirection, Ttl};
use todana_core::{
    Arithmetic, Delete, ErrorKind, Get, Modify, Operation, OwnedOperation, OwnedReply, RefusalReason, Reply,
    ReplyNeeds, ScanPosition, Store, StoreMode, Touch, ValueChange,
};
use todana_remote::RemoteDatabase;

/// Opens an empty database; `None` if there is no cluster.
fn open(keyspace: &str, words: &str) -> Option<RemoteDatabase> {
    let Ok(hosts) = std::env::var("TODANA_CASSANDRA") else {
        println!("skipped: TODANA_CASSANDRA names no cluster");
        return None;
    };
    let name = format!("cassandra://{hosts}/{keyspace}#replication=1{words}");
    let database = RemoteDatabase::open(&DatabaseName::parse(&name).unwrap()).unwrap();
    database
        .execute(&Operation::Flush { at: Ttl::Never }, &mut |reply| assert_eq!(reply, Reply::Done))
        .unwrap();
    Some(database)
}

fn execute(database: &impl Records, operation: &Operation<'_>) -> OwnedReply {
    let mut owned = None;
    database.execute(operation, &mut |reply| owned = Some(OwnedReply::new(reply))).unwrap();
    owned.unwrap()
}

/// Returns the part of a reply that does not depend on clocks and versions.
fn shown(reply: &OwnedReply) -> String {
    match reply.borrowed() {
        Reply::Hit(hit) => {
            let attributes = hit.record.attributes;
            let has_expiry = attributes.expiry != Expiry::Never;
            format!("{:?} {} {has_expiry} {:?}", hit.record.value, attributes.flags, hit.recache)
        }
        Reply::Stored(stored) => format!("stored {}", stored.value_len),
        Reply::Number(number) => format!("number {} {}", number.value, number.created),
        other => format!("{other:?}"),
    }
}

fn version(database: &impl Records, key: &[u8]) -> u64 {
    let needs = ReplyNeeds { version: true, access: false };
    match execute(database, &Operation::Get(Get { key, needs, ..Get::default() })).borrowed() {
        Reply::Hit(hit) => hit.record.attributes.version,
        _ => 0,
    }
}

/// Executes random operations on a cluster and on a database in memory, and compares the replies.
fn operations_agree(keyspace: &str, words: &str) {
    let Some(cluster) = open(keyspace, words) else { return };
    let model = Db::open("mem:hash").unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    for step in 0..1500 {
        let key = [b'k', b'0' + random.u8(0..6)];
        let value = match random.u8(0..4) {
            0 => vec![],
            1 => b"17".to_vec(),
            2 => (-5i64).to_be_bytes().to_vec(),
            _ => vec![random.u8(..); random.usize(0..2000)],
        };
        let ttl = if random.bool() { Ttl::Never } else { Ttl::Seconds(5000) };
        let versions = [version(&cluster, &key), version(&model, &key)];
        let is_stale = random.u8(0..4) == 0;
        let seed = random.u64(..);
        let replies = [0, 1].map(|side| {
            let mut random = fastrand::Rng::with_seed(seed);
            let compare = Some(if is_stale { 1 } else { versions[side] }).filter(|_| random.bool());
            let store = |mode| {
                Operation::Store(Store { key: &key, value: &value, flags: 7, ttl, mode, ..Store::default() })
            };
            let operation = match random.u8(0..16) {
                0 => store(StoreMode::Set),
                1 => store(StoreMode::Add),
                2 => store(StoreMode::Replace),
                3 => store(StoreMode::Append),
                4 => store(StoreMode::Prepend),
                5 => Operation::Store(Store { key: &key, value: &value, ttl, compare, ..Store::default() }),
                6 => Operation::Delete(Delete { key: &key, compare, ..Delete::default() }),
                7 => Operation::Delete(Delete { key: &key, mark_stale: true, ..Delete::default() }),
                8 => Operation::Arithmetic(Arithmetic { key: &key, delta: 5, ..Arithmetic::default() }),
                9 => Operation::Arithmetic(Arithmetic {
                    key: &key,
                    vivify: Some(ttl),
                    initial: 9,
                    ..Arithmetic::default()
                }),
                10 => Operation::Touch(Touch { key: &key, ttl }),
                11 => Operation::Modify(Modify { key: &key, ttl: None, change: ValueChange::Append(&value) }),
                12 => Operation::Modify(Modify {
                    key: &key,
                    ttl: Some(ttl),
                    change: ValueChange::AddInteger { delta: 3, initial: Some(1), overwrites: false },
                }),
                13 => Operation::Modify(Modify { key: &key, ttl: None, change: ValueChange::Take }),
                14 => Operation::Get(Get { key: &key, touch: Some(ttl), ..Get::default() }),
                _ => Operation::Get(Get { key: &key, ..Get::default() }),
            };
            match side {
                0 => shown(&execute(&cluster, &operation)),
                _ => shown(&execute(&model, &operation)),
            }
        });
        assert_eq!(replies[0], replies[1], "step {step}");
        let get = Operation::Get(Get { key: &key, ..Get::default() });
        assert_eq!(shown(&execute(&cluster, &get)), shown(&execute(&model, &get)), "step {step}");
    }
}

#[test]
fn fast_operations_agree_with_a_local_database() {
    operations_agree("todana_fast", "");
}

#[test]
fn strict_operations_agree_with_a_local_database() {
    operations_agree("todana_strict", "#strict");
}

#[test]
fn ordered_operations_agree_with_a_local_database() {
    operations_agree("todana_ordered", "#ordered=8");
}

#[test]
fn concurrent_increments_lose_nothing() {
    for words in ["", "#strict"] {
        let Some(one) = open("todana_counters", words) else { return };
        let hosts = std::env::var("TODANA_CASSANDRA").unwrap();
        let name = format!("cassandra://{hosts}/todana_counters{words}");
        let other = RemoteDatabase::open(&DatabaseName::parse(&name).unwrap()).unwrap();
        execute(&one, &Operation::Store(Store { key: b"n", value: b"0", ..Store::default() }));
        let (sender, replies) = channel();
        for _ in 0..500 {
            for database in [&one, &other] {
                let operation = OwnedOperation::new(&Operation::Arithmetic(Arithmetic {
                    key: b"n",
                    ..Arithmetic::default()
                }));
                let sender = sender.clone();
                database.submit(operation, Box::new(move |reply| sender.send(reply).unwrap()));
            }
        }
        drop(sender);
        let numbers: Vec<u64> = replies
            .iter()
            .map(|reply| match reply.borrowed() {
                Reply::Number(number) => number.value,
                other => panic!("{other:?}"),
            })
            .collect();
        let distinct: std::collections::BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!(distinct, (1..=1000).collect());
        let get = Operation::Get(Get { key: b"n", ..Get::default() });
        assert!(matches!(execute(&one, &get).borrowed(), Reply::Hit(hit) if hit.record.value == b"1000"));
    }
}

#[test]
fn rewritten_record_keeps_its_second_of_expiry() {
    let Some(database) = open("todana_expiry", "") else { return };
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 1000;
    let ttl = Ttl::At(at);
    execute(&database, &Operation::Store(Store { key: b"n", value: b"0", ttl, ..Store::default() }));
    for _ in 0..200 {
        execute(&database, &Operation::Arithmetic(Arithmetic { key: b"n", ..Arithmetic::default() }));
    }
    let get = Operation::Get(Get { key: b"n", ..Get::default() });
    let reply = execute(&database, &get);
    let Reply::Hit(hit) = reply.borrowed() else { panic!("{:?}", reply.borrowed()) };
    assert_eq!((hit.record.value, hit.record.attributes.expiry.at().unwrap().0), (&b"200"[..], at));
}

fn keys(
    database: &RemoteDatabase,
    direction: ScanDirection,
    from: Bound<&[u8]>,
    limit: usize,
) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let see = &mut |key: &[u8], _: todana::Record<'_>| {
        keys.push(key.to_vec());
        if keys.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    database.walk(direction, from, see).unwrap();
    keys
}

#[test]
fn scans_show_all_records_page_by_page() {
    for words in ["", "#ordered=5"] {
        let Some(database) = open("todana_scans", words) else { return };
        let database = Arc::new(database);
        let (sender, replies) = channel();
        let mut model = BTreeMap::new();
        for number in 0..3000u32 {
            let (key, value) = (number.to_string(), vec![7; number as usize % 300]);
            let store = Store { key: key.as_bytes(), value: &value, ..Store::default() };
            let sender = sender.clone();
            let done = Box::new(move |reply: OwnedReply| sender.send(shown(&reply)).unwrap());
            database.submit(OwnedOperation::new(&Operation::Store(store)), done);
            model.insert(key.into_bytes(), value);
        }
        drop(sender);
        assert!(replies.iter().all(|reply| reply.starts_with("stored")));
        // The scan pauses after every 17 records.
        let (mut found, mut place) = (BTreeMap::new(), None);
        loop {
            let mut left = 17;
            place = database
                .scan(place, &mut |key, record| {
                    assert_eq!(found.insert(key.to_vec(), record.value.to_vec()), None);
                    left -= 1;
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .unwrap();
            if place.is_none() {
                break;
            }
        }
        assert_eq!(found, model);
        if words.is_empty() {
            let walked =
                database.walk(ScanDirection::Up, Bound::Unbounded, &mut |_, _| ControlFlow::Break(()));
            assert_eq!(walked.unwrap_err().kind(), ErrorKind::Invalid);
            continue;
        }
        let all: Vec<Vec<u8>> = model.keys().cloned().collect();
        assert_eq!(keys(&database, ScanDirection::Up, Bound::Unbounded, 5000), all);
        let down: Vec<Vec<u8>> = all.iter().rev().cloned().collect();
        assert_eq!(keys(&database, ScanDirection::Down, Bound::Unbounded, 5000), down);
        let at = all.iter().position(|key| key == b"2000").unwrap();
        assert_eq!(keys(&database, ScanDirection::Up, Bound::Included(b"2000"), 40), all[at..at + 40]);
        assert_eq!(keys(&database, ScanDirection::Up, Bound::Excluded(b"2000"), 40), all[at + 1..at + 41]);
        let below: Vec<Vec<u8>> = all[at - 39..=at].iter().rev().cloned().collect();
        assert_eq!(keys(&database, ScanDirection::Down, Bound::Included(b"2000"), 40), below);
    }
}

/// Returns the next `limit` keys of a scan.
fn scanned(database: &RemoteDatabase, place: &mut Option<ScanPosition>, limit: usize) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let see = &mut |key: &[u8], _: todana::Record<'_>| {
        keys.push(key.to_vec());
        if keys.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    *place = database.scan(place.take(), see).unwrap();
    keys
}

#[test]
fn scans_continue_at_any_removed_record() {
    for words in ["", "#ordered=3"] {
        let Some(database) = open("todana_removals", words) else { return };
        for number in 0..300 {
            let key = format!("{number}");
            execute(&database, &Operation::Store(Store { key: key.as_bytes(), ..Store::default() }));
        }
        for first in 1..20 {
            let mut place = None;
            let begin = scanned(&database, &mut place, first);
            // The rest has several pages.
            let rest = scanned(&database, &mut place, usize::MAX);
            assert_eq!((begin.len(), rest.len()), (first, 300 - first), "{words}");
        }
        let (mut found, mut place) = (std::collections::BTreeSet::new(), None);
        while let [key] = &scanned(&database, &mut place, 1)[..] {
            execute(&database, &Operation::Delete(Delete { key, ..Delete::default() }));
            assert!(found.insert(key.clone()));
        }
        assert_eq!(found.len(), 300, "{words}");
    }
}

#[test]
fn impossible_operations_are_refused() {
    let Some(database) = open("todana_refusals", "") else { return };
    let refused = |operation: &Operation<'_>| match execute(&database, operation).borrowed() {
        Reply::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let store = |key, value, ttl| Operation::Store(Store { key, value, ttl, ..Store::default() });
    assert_eq!(refused(&store(b"", b"", Ttl::Never)), RefusalReason::TooLarge);
    assert_eq!(refused(&store(&[b'k'; 65_536], b"", Ttl::Never)), RefusalReason::TooLarge);
    let long = vec![0; 20 << 20];
    assert_eq!(refused(&store(b"k", &long, Ttl::Never)), RefusalReason::TooLarge);
    assert_eq!(refused(&store(b"k", b"", Ttl::Sliding(5))), RefusalReason::NotOnCluster);
    assert_eq!(refused(&Operation::Flush { at: Ttl::Seconds(5) }), RefusalReason::NoPlans);
    let version = Operation::Store(Store { key: b"k", version: Some(1 << 58), ..Store::default() });
    assert_eq!(refused(&version), RefusalReason::NotOnCluster);
}

#[test]
fn too_many_requests_are_refused_at_once() {
    let Some(database) = open("todana_busy", "#inflight=1") else { return };
    let (sender, replies) = channel();
    for _ in 0..200 {
        let operation = OwnedOperation::new(&Operation::Get(Get { key: b"k", ..Get::default() }));
        let sender = sender.clone();
        database.submit(operation, Box::new(move |reply| sender.send(shown(&reply)).unwrap()));
    }
    drop(sender);
    let replies: Vec<String> = replies.iter().collect();
    assert_eq!(replies.len(), 200);
    assert!(
        replies.contains(&"Miss".into()) && replies.contains(&"Refused(Overloaded)".into()),
        "{replies:?}"
    );
    assert_eq!(shown(&execute(&database, &Operation::Get(Get { key: b"k", ..Get::default() }))), "Miss");
}

#[test]
fn near_cache_shows_own_writes_at_once() {
    let Some(database) = open("todana_near", "#cache=8m#ttl=3600") else { return };
    let get = Operation::Get(Get { key: b"k", ..Get::default() });
    for number in 0..200 {
        let value = format!("{number}");
        execute(
            &database,
            &Operation::Store(Store { key: b"k", value: value.as_bytes(), ..Store::default() }),
        );
        for _ in 0..3 {
            let reply = execute(&database, &get);
            assert!(matches!(reply.borrowed(), Reply::Hit(hit) if hit.record.value == value.as_bytes()));
        }
    }
    assert!(database.reply_from_cache(&get, &mut |_| ()));
    let hosts = std::env::var("TODANA_CASSANDRA").unwrap();
    let name = DatabaseName::parse(&format!("cassandra://{hosts}/todana_near")).unwrap();
    let other = RemoteDatabase::open(&name).unwrap();
    execute(&other, &Operation::Store(Store { key: b"k", value: b"new", ..Store::default() }));
    // The write of another server is seen after the time to live, or by a read of the version.
    assert!(matches!(execute(&database, &get).borrowed(), Reply::Hit(hit) if hit.record.value == b"199"));
    let needs = ReplyNeeds { version: true, access: false };
    let gets = Operation::Get(Get { key: b"k", needs, ..Get::default() });
    assert!(matches!(execute(&database, &gets).borrowed(), Reply::Hit(hit) if hit.record.value == b"new"));
}

#[test]
fn missing_keyspace_error_names_the_statement() {
    let Ok(hosts) = std::env::var("TODANA_CASSANDRA") else { return };
    let open = |name: &str| RemoteDatabase::open(&DatabaseName::parse(name).unwrap()).map(drop);
    let error = open(&format!("cassandra://{hosts}/todana_absent")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains("keyspace todana_absent: does not exist; add #replication=COPIES"), "{text}");
    assert!(text.contains("CREATE KEYSPACE IF NOT EXISTS todana_absent WITH replication"), "{text}");
    // Nothing listens on this port.
    let error = open("cassandra://127.0.0.1:1/todana_absent").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
