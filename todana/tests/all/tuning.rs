//! The tuning in the name of a database works or is refused.

use crate::kinds;

use kinds::{names, on_each_kind};
use todana::{Db, DbOptions, ErrorKind, MergePolicy, Records, Ttl, UpdateAction, WhenFull};
use todana_core::{Get, Operation};

fn refusal(outcome: todana::Result<impl Sized>) -> String {
    match outcome {
        Ok(_) => panic!("it was not refused"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            error.to_string()
        }
    }
}

#[test]
fn capcnt_bounds_records_and_keeps_the_newest() {
    for max in [10u64, 5000] {
        for (_folder, name) in names() {
            let db = Db::open(&format!("{name}#capcnt={max}")).unwrap();
            for number in 0..max * 2 {
                let key = format!("key {number}");
                db.set(key.as_bytes(), b"value").unwrap();
                assert!(db.count() <= max, "{name}: {} of {max} after {number}", db.count());
                assert!(db.contains(key.as_bytes()).unwrap(), "{name}: {key}");
            }
            assert!(db.count() >= max * 9 / 10, "{name}: {} of {max}", db.count());
            // Records are also stored by a visitor and by a sum.
            db.update(b"visited", &mut |_| UpdateAction::Value(b"1".to_vec())).unwrap();
            db.increment(b"sum", 1, Some(1)).unwrap();
            assert!(db.count() <= max);
        }
    }
}

#[test]
fn capsiz_bounds_bytes() {
    const MAX: u64 = 8 << 20;
    for (_folder, name) in names() {
        let db = Db::open(&format!("{name}#capsiz=8m")).unwrap();
        for number in 0..16_000u32 {
            db.set(format!("key {number}").as_bytes(), &[7; 1000]).unwrap();
        }
        let status = db.status();
        assert!(status.live_bytes <= MAX, "{name}: {status:?}");
        // A table counts its rows and index entries.
        if name.starts_with("mem") && name != "mem:table" {
            // The compaction of another thread takes some pages for a moment.
            let fits = |_| {
                db.database().engine().maintain();
                db.status().committed_bytes <= MAX
            };
            assert!((0..1000).any(fits), "{name}: {:?}", db.status());
        }
        assert!(status.records > 4000, "{name}: {} records", status.records);
        assert!(db.contains(b"key 15999").unwrap(), "{name}");
    }
}

/// `mg KEY N0` creates records, and once ignored the limits: 50000 records stayed in a database
/// with a limit of 100.
#[test]
fn records_that_reads_create_are_limited_too() {
    for limit in ["capcnt=100", "capsiz=100k"] {
        for (_folder, name) in names() {
            let db = Db::open(&format!("{name}#{limit}")).unwrap();
            for number in 0..2000u32 {
                let key = [&number.to_be_bytes()[..], &[7; 100]].concat();
                let get = Get { key: &key, vivify: Some(Ttl::Never), ..Get::default() };
                db.execute(&Operation::Get(get), &mut |_| ()).unwrap();
                assert!(db.contains(&key).unwrap() || name == "mem:hash", "{name}#{limit}: {number}");
                assert!(limit != "capcnt=100" || db.count() <= 100, "{name}: {} records", db.count());
            }
            assert!(db.status().live_bytes <= 100 << 10, "{name}#{limit}: {:?}", db.status());
        }
    }
}

/// The first key of a scan over a table is that of its definitions, which were evicted with all
/// indexes and the reserved row numbers.
#[test]
fn limit_spares_the_definitions_of_a_table() {
    use todana::table::{IndexKind, Table};
    let folder = tempfile::tempdir().unwrap();
    for name in ["mem:table", folder.path().join("x.table").to_str().unwrap()] {
        for limit in ["capcnt=100", "capsiz=20k"] {
            let db = Db::open(&format!("{name}#{limit}")).unwrap();
            let table = Table::new(&db).unwrap();
            table.set_index(b"a", Some(IndexKind::Lexical)).unwrap();
            let first = table.new_number().unwrap();
            for number in 0..2000u32 {
                table.put(&number.to_be_bytes(), &[("a", "b".repeat(100))]).unwrap();
            }
            assert!(db.count() <= 1000, "{name}#{limit}: {}", db.count());
            assert_eq!(table.indexes().len(), 1, "{name}#{limit}");
            let definitions = db.get(b"").unwrap().expect("it is never evicted");
            assert!(definitions.ends_with(format!("\x01numbers\0{}", first + 1000).as_bytes()));
        }
    }
}

/// A transaction of 5000 records once stayed complete in a database with a limit of 100 until the
/// next upkeep.
#[test]
fn transaction_is_limited_at_its_commit() {
    for (_folder, name) in names() {
        let db = Db::open(&format!("{name}#capnum=100")).unwrap();
        let transaction = db.begin().unwrap();
        for number in 0..5000u32 {
            transaction.set(&number.to_be_bytes(), b"v").unwrap();
        }
        transaction.commit().unwrap();
        assert!(db.count() <= 100, "{name}: {}", db.count());
        assert_eq!(db.iter().count() as u64, db.count());
        // A committed record stays while others can be evicted.
        for number in 0..300u32 {
            let keys = [0u8, 1, 2].map(|part| [&number.to_be_bytes()[..], &[part]].concat());
            let transaction = db.begin().unwrap();
            keys.iter().for_each(|key| transaction.set(key, b"v").unwrap());
            transaction.commit().unwrap();
            assert!(db.count() <= 100, "{name}: {}", db.count());
            assert!(keys.iter().all(|key| db.contains(key).unwrap()), "{name}: {number}");
        }
        assert!(db.count() >= 90, "{name}: {}", db.count());
    }
}

/// Checks the limit on bytes with every function that stores many records: [`Db::load`],
/// [`Db::merge`], [`Records::set_many`].
#[test]
fn bulk_store_is_limited_before_it_returns() {
    const COUNT: u32 = 3000;
    let source = Db::open("mem:tree").unwrap();
    (0..COUNT).for_each(|number| source.set(format!("key {number}").as_bytes(), &[b'x'; 100]).unwrap());
    let mut text = Vec::new();
    source.dump(&mut text).unwrap();
    let pairs: Vec<_> = source.iter().map(|pair| pair.unwrap()).collect();
    let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
    for limit in ["capcnt=100", "capsiz=100k"] {
        for (_folder, name) in names() {
            let db = Db::open(&format!("{name}#{limit}")).unwrap();
            let is_within = |what: &str| {
                let status = db.status();
                let within = if limit == "capcnt=100" {
                    status.records <= 100
                } else {
                    status.live_bytes <= 100 << 10
                };
                assert!(within && status.records > 0, "{name}#{limit}: {what}: {status:?}");
            };
            assert_eq!(db.load(&mut text.as_slice()).unwrap().stored, u64::from(COUNT));
            is_within("load");
            assert_eq!(db.merge(&[&source], MergePolicy::Set).unwrap(), u64::from(COUNT));
            is_within("merge");
            db.set_many(&pairs).unwrap();
            is_within("set_many");
        }
    }
}

#[test]
fn writers_and_transactions_keep_to_limits_together() {
    for (_folder, name) in names() {
        let db = Db::open(&format!("{name}#capcnt=100")).unwrap();
        let (ended, ends) = std::sync::mpsc::channel();
        for thread in 0..4u32 {
            let (db, ended) = (db.clone(), ended.clone());
            std::thread::spawn(move || {
                for number in 0..300u32 {
                    let key = |part: u32| [thread, number, part].map(u32::to_be_bytes).concat();
                    if thread < 2 {
                        db.set(&key(0), b"v").unwrap();
                    } else {
                        let transaction = db.begin().unwrap();
                        (0..5).for_each(|part| transaction.set(&key(part), b"v").unwrap());
                        transaction.commit().unwrap();
                    }
                }
                ended.send(()).unwrap();
            });
        }
        (0..4).for_each(|_| ends.recv_timeout(std::time::Duration::from_secs(60)).unwrap());
        assert!((80..=100).contains(&db.count()), "{name}: {}", db.count());
    }
}

/// A copy to a name with limits once had all records of its source.
#[test]
fn copy_keeps_the_limits_of_its_name() {
    for (_folder, name) in names() {
        let db = Db::open(&name).unwrap();
        (0..3000u32).for_each(|number| db.set(&number.to_be_bytes(), &[b'x'; 100]).unwrap());
        let folder = tempfile::tempdir().unwrap();
        for place in ["few.hash", "few.tree"] {
            let place = folder.path().join(place);
            let copied = db.copy(&format!("{}#capcnt=100", place.display())).unwrap();
            assert!((90..=100).contains(&copied), "{name} to {}: {copied}", place.display());
            assert_eq!(Db::open(place.to_str().unwrap()).unwrap().count(), copied);
        }
    }
}

#[test]
fn limited_records_do_not_return_after_reopening() {
    for (_folder, name) in names() {
        if name.starts_with("mem") {
            continue;
        }
        let kept = {
            let db = Db::open(&format!("{name}#capcnt=50")).unwrap();
            (0..200u32).for_each(|number| db.set(&number.to_be_bytes(), b"v").unwrap());
            let mut keys: Vec<_> = db.iter().keys().map(Result::unwrap).collect();
            keys.sort();
            keys
        };
        let db = Db::open(&name).unwrap();
        let mut keys: Vec<_> = db.iter().keys().map(Result::unwrap).collect();
        keys.sort();
        assert_eq!(keys, kept);
        assert!(keys.len() <= 50 && !keys.is_empty());
    }
}

#[test]
fn read_only_database_refuses_writes() {
    for (_folder, name) in names() {
        let read_only = format!("{name}#mode=r");
        if name.starts_with("mem") {
            assert!(refusal(Db::open(&read_only)).contains("nothing is there to be read in memory"));
            continue;
        }
        assert!(refusal(Db::open(&read_only)).contains("does not exist"));
        assert!(!std::path::Path::new(&name).exists());
        let db = Db::open(&name).unwrap();
        db.set(b"a", b"1").unwrap();
        drop(db);
        let db = Db::open(&read_only).unwrap();
        assert_eq!(db.get(b"a").unwrap(), Some(b"1".to_vec()));
        assert_eq!(db.iter().count(), 1);
        let messages = [
            refusal(db.set(b"a", b"2")),
            refusal(db.add(b"b", b"2")),
            refusal(db.remove(b"a")),
            refusal(db.touch(b"a", Ttl::Seconds(10))),
            refusal(db.increment(b"a", 1, None)),
            refusal(db.seize(b"a")),
            refusal(db.update(b"a", &mut |_| UpdateAction::Remove)),
            refusal(db.clear()),
            refusal(db.begin()),
        ];
        for message in messages {
            assert_eq!(message, format!("database \"{read_only}\": was opened for reading only"));
        }
        // A visitor that changes nothing does not count as a write.
        db.update(b"a", &mut |_| UpdateAction::Keep).unwrap();
        drop(db);
        assert_eq!(Db::open(&name).unwrap().get(b"a").unwrap(), Some(b"1".to_vec()));
        assert!(refusal(Db::open(&format!("{name}#mode=rt"))).contains("cannot be emptied"));
    }
}

#[test]
fn mode_decides_truncation_and_creation() {
    for (_folder, name) in names() {
        if name.starts_with("mem") {
            // A database in memory never exists before it is opened, so `w` without `c` does not
            // make the opening fail.
            for mode in ["w", "wt"] {
                Db::open(&format!("{name}#mode={mode}")).unwrap().set(b"a", b"1").unwrap();
            }
            continue;
        }
        assert!(refusal(Db::open(&format!("{name}#mode=w"))).contains("does not exist"));
        Db::open(&format!("{name}#mode=wc")).unwrap().set(b"a", b"1").unwrap();
        assert_eq!(Db::open(&format!("{name}#mode=w")).unwrap().count(), 1);
        let db = Db::open(&format!("{name}#mode=wct")).unwrap();
        assert_eq!((db.count(), db.get(b"a").unwrap()), (0, None));
        db.set(b"b", b"2").unwrap();
        drop(db);
        let keys: Vec<_> = Db::open(&name).unwrap().iter().keys().map(Result::unwrap).collect();
        assert_eq!(keys, [b"b"]);
    }
}

#[test]
fn impossible_tuning_is_refused() {
    for (_folder, name) in names() {
        let refusing = DbOptions::default().when_full(WhenFull::Refuse);
        let message = refusal(refusing.open(&format!("{name}#capcnt=10")));
        assert!(message.ends_with("refused (-M, when_full)"), "{message}");
        assert!(name.starts_with("mem") || !std::path::Path::new(&name).exists());
    }
    on_each_kind(|db| assert_eq!(db.count(), 0));
}

#[test]
fn only_mem_tree_and_disk_hash_compress() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |name: &str| {
        let db = Db::open(name).unwrap();
        for number in 0..50_000u32 {
            db.set(format!("key {number:08}").as_bytes(), &[b'x'; 200]).unwrap();
        }
        assert_eq!(db.get(b"key 00000007").unwrap(), Some(vec![b'x'; 200]));
        db.database().engine().status().committed_bytes
    };
    let (plain, compressed) = (bytes("mem:tree"), bytes("%#opts=c"));
    assert!(compressed < plain / 2, "{compressed} of {plain}");
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let stored = |name: &str| {
        let db = Db::open(&at(name)).unwrap();
        for number in 0..1000u32 {
            db.set(format!("key {number:08}").as_bytes(), "one and the same ".repeat(60).as_bytes()).unwrap();
        }
        let live = db.database().engine().durable().unwrap().disk_usage().live_bytes;
        drop(db);
        // Each entry states whether it is compressed, so the name need not.
        let again = Db::open(&at(name.split('#').next().unwrap())).unwrap();
        assert_eq!(again.get(b"key 00000007").unwrap(), Some("one and the same ".repeat(60).into_bytes()));
        live
    };
    for name in ["one.hash#opts=c", "two.kch#zcomp=zstd"] {
        let (plain, compressed) = (stored("x.hash"), stored(name));
        assert!(compressed < plain / 5, "{compressed} of {plain}");
    }
    for name in ["mem:hash#opts=c", "*#zcomp=zstd", &at("x.tree#zcomp=zstd")] {
        let error = Db::open(name).expect_err(name);
        assert!(error.to_string().contains("only mem:tree and PATH.hash can be compressed"), "{error}");
    }
}
