//! Cursors and iterators under concurrent writes, on each kind of database.

use crate::kinds;

use kinds::on_each_kind;
use std::collections::{BTreeMap, BTreeSet};
use todana::{Db, ErrorKind, OwnedRecord, RecordCursor, Records, Result, Ttl};

/// More records than one batch of an iterator.
const MANY: u32 = 3000;

fn key(number: u32) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn fill(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    (0..MANY)
        .map(|number| {
            db.set(&key(number), number.to_string().as_bytes()).unwrap();
            (key(number), number.to_string().into_bytes())
        })
        .collect()
}

#[test]
fn iterator_shows_every_record_in_order() {
    on_each_kind(|db| {
        assert_eq!(db.iter().count(), 0);
        let model = fill(&db);
        db.set_with(b"dead", b"", Ttl::Expired, 0).unwrap();
        let all: Vec<_> = db.iter().map(Result::unwrap).collect();
        assert_eq!(all.len(), model.len());
        assert_eq!(all.iter().cloned().collect::<BTreeMap<_, _>>(), model);
        let keys: Vec<_> = db.iter().keys().map(Result::unwrap).collect();
        assert_eq!(keys.iter().cloned().collect::<BTreeSet<_>>(), model.keys().cloned().collect());
        if db.is_ordered() {
            assert!(all.is_sorted() && keys.is_sorted());
            let back: Vec<_> = db.iter().rev().map(Result::unwrap).collect();
            assert!(back.iter().eq(all.iter().rev()));
        } else {
            let mut back = db.iter().rev();
            assert_eq!(back.next().unwrap().unwrap_err().kind(), ErrorKind::Invalid);
            assert!(back.next().is_none());
        }
    });
}

#[test]
fn iterator_ends_meet_exactly() {
    on_each_kind(|db| {
        if !db.is_ordered() {
            return;
        }
        let model = fill(&db);
        let mut iter = db.iter();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        // The records are taken unevenly from both ends, so that the ends meet within a batch.
        for turn in 0.. {
            let next = if turn % 3 == 0 { iter.next_back() } else { iter.next() };
            let Some(item) = next else { break };
            if turn % 3 == 0 { back.push(item.unwrap()) } else { front.push(item.unwrap()) }
        }
        front.extend(back.into_iter().rev());
        assert!(front.into_iter().eq(model));
    });
}

#[test]
fn writes_do_not_disturb_an_iterator() {
    on_each_kind(|db| {
        let model = fill(&db);
        let mut seen = BTreeSet::new();
        for (turn, item) in db.iter().enumerate() {
            let (key, value) = item.unwrap();
            // Records that were already returned are removed, later ones are changed, and new ones
            // are added.
            if turn % 2 == 0 {
                db.remove(&key).unwrap();
            } else {
                db.set(&key, &[&value[..], &[b'x'; 300]].concat()).unwrap();
            }
            if turn < 500 {
                db.set(format!("kez {turn}").as_bytes(), b"new").unwrap();
            }
            seen.insert(key);
        }
        assert!(model.keys().all(|key| seen.contains(key)));
    });
}

#[test]
fn ranges_and_prefixes_hold_what_a_model_says() {
    on_each_kind(|db| {
        let mut model = BTreeMap::new();
        for key in
            [&b""[..], b"a", b"a\xff", b"a\xff\xff", b"a\xff\xffb", b"b", b"ba", b"\xff", b"\xff\xff\x01"]
        {
            db.set(key, b"v").unwrap();
            model.insert(key.to_vec(), b"v".to_vec());
        }
        for prefix in [&b""[..], b"a", b"a\xff", b"a\xff\xff", b"b", b"c", b"\xff", b"\xff\xff"] {
            let found: BTreeMap<_, _> = db.prefix(prefix).map(Result::unwrap).collect();
            let expected = model.iter().filter(|(key, _)| key.starts_with(prefix));
            assert!(found.iter().eq(expected), "{prefix:?}: {found:?}");
        }
        if !db.is_ordered() {
            assert_eq!(db.range("a".."b").unwrap_err().kind(), ErrorKind::Invalid);
            return;
        }
        let keys = |from: &[u8], to: &[u8]| -> Vec<Vec<u8>> {
            db.range(from..to).unwrap().keys().map(Result::unwrap).collect()
        };
        assert_eq!(keys(b"a\xff", b"b"), [&b"a\xff"[..], b"a\xff\xff", b"a\xff\xffb"]);
        assert_eq!(keys(b"b", b"a"), Vec::<Vec<u8>>::new());
        let last: Vec<_> = db.range("b"..="ba").unwrap().rev().keys_of();
        assert_eq!(last, [&b"ba"[..], b"b"]);
    });
}

trait KeysOf {
    fn keys_of(self) -> Vec<Vec<u8>>;
}

impl<I: Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>> KeysOf for I {
    fn keys_of(self) -> Vec<Vec<u8>> {
        self.map(|item| item.unwrap().0).collect()
    }
}

#[test]
fn cursor_survives_the_removal_of_records() {
    on_each_kind(|db| {
        let model = fill(&db);
        let mut cursor = RecordCursor::new(db.clone());
        assert_eq!((cursor.key(), cursor.value().unwrap()), (None, None));
        assert!(!cursor.step().unwrap() && !cursor.remove().unwrap());
        let mut seen = BTreeMap::new();
        let mut is_there = cursor.first().unwrap();
        while is_there {
            let key = cursor.key().unwrap().to_vec();
            seen.insert(key.clone(), cursor.value().unwrap().unwrap());
            assert!(cursor.remove().unwrap());
            // The cursor stays at the position of the removed record.
            assert_eq!(cursor.key(), Some(&key[..]));
            assert_eq!(cursor.value().unwrap(), None);
            assert!(!cursor.set_value(b"x").unwrap());
            assert_eq!(cursor.seize().unwrap(), None);
            is_there = cursor.step().unwrap();
        }
        assert_eq!(seen, model);
        assert_eq!((cursor.key(), db.count()), (None, 0));
    });
}

#[test]
fn cursor_jumps_to_a_key_and_continues() {
    on_each_kind(|db| {
        let model = fill(&db);
        let mut cursor = db.cursor();
        assert!(cursor.jump(&key(1500)).unwrap());
        assert_eq!(cursor.key(), Some(&key(1500)[..]));
        assert!(cursor.set_value(b"other").unwrap());
        let record = OwnedRecord { value: b"other".to_vec(), ..OwnedRecord::default() };
        assert_eq!(cursor.record().unwrap(), Some(record));
        if db.is_ordered() {
            let mut expected = model.range(key(1501)..);
            while cursor.step().unwrap() {
                assert_eq!(cursor.key(), expected.next().map(|(key, _)| &key[..]));
            }
            assert!(expected.next().is_none());
            assert!(cursor.jump(b"key 0015005").unwrap());
            assert_eq!(cursor.key(), Some(&key(1501)[..]));
            assert!(cursor.jump_back(b"key 0015005").unwrap());
            assert_eq!(cursor.key(), Some(&key(1500)[..]));
            let mut expected = model.range(..key(1500)).rev();
            while cursor.step_back().unwrap() {
                assert_eq!(cursor.key(), expected.next().map(|(key, _)| &key[..]));
            }
            assert!(expected.next().is_none());
            assert!(!cursor.jump(b"kez").unwrap() && !cursor.jump_back(b"a").unwrap());
            assert!(cursor.last().unwrap());
            assert_eq!(cursor.key(), Some(&key(MANY - 1)[..]));
        } else {
            // The cursor continues with the records that the engine shows after it.
            let all: Vec<_> = db.iter().keys().map(Result::unwrap).collect();
            let at = all.iter().position(|other| *other == key(1500)).unwrap();
            for expected in &all[at + 1..] {
                assert!(cursor.step().unwrap());
                assert_eq!(cursor.key(), Some(&expected[..]));
            }
            assert!(!cursor.step().unwrap());
            assert!(!cursor.jump(b"key 0015005").unwrap());
            for refused in [cursor.last(), cursor.step_back(), cursor.jump_back(b"k")] {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid);
                assert!(error.to_string().contains("unordered database"), "{error}");
            }
        }
    });
}

#[test]
fn transaction_cursors_see_its_changes() {
    on_each_kind(|db| {
        db.set_many(&[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]).unwrap();
        let transaction = db.begin().unwrap();
        transaction.remove(b"b").unwrap();
        transaction.set(b"c", b"30").unwrap();
        transaction.set(b"d", b"40").unwrap();
        let inside: BTreeMap<_, _> = transaction.iter().map(Result::unwrap).collect();
        let pair = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
        assert_eq!(inside, BTreeMap::from([pair(b"a", b"1"), pair(b"c", b"30"), pair(b"d", b"40")]));
        assert_eq!(db.iter().keys().map(Result::unwrap).collect::<BTreeSet<_>>().len(), 3);
        let mut cursor = transaction.cursor();
        let mut seen = BTreeSet::new();
        let mut is_there = cursor.first().unwrap();
        while is_there {
            seen.insert(cursor.key().unwrap().to_vec());
            is_there = cursor.step().unwrap();
        }
        assert_eq!(seen, inside.keys().cloned().collect());
        assert_eq!(transaction.prefix(b"d").count(), 1);
        if db.is_ordered() {
            assert_eq!(transaction.range("b"..).unwrap().rev().keys_of(), [b"d", b"c"]);
        }
        transaction.commit().unwrap();
        assert_eq!(db.iter().map(Result::unwrap).collect::<BTreeMap<_, _>>(), inside);
    });
}
