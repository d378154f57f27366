//! Several values of one key, which Tokyo Tyrant's trees hold.

use super::kept_attributes;
use todana_core::{Action, Record, RecordValues, Visitor};
use todana_protocol::tyrant::FieldList;

/// Adds values to the values of a key.
pub struct AddValuesVisitor<'v> {
    values: &'v [&'v [u8]],
    is_first: bool,
    list: Vec<u8>,
}

impl<'v> AddValuesVisitor<'v> {
    /// Creates the visitor, which adds the values before all others.
    pub fn first(values: &'v [&'v [u8]]) -> AddValuesVisitor<'v> {
        AddValuesVisitor { values, is_first: true, list: Vec::new() }
    }

    /// Creates the visitor, which adds the values after all others.
    pub fn last(values: &'v [&'v [u8]]) -> AddValuesVisitor<'v> {
        AddValuesVisitor { values, is_first: false, list: Vec::new() }
    }
}

impl Visitor for AddValuesVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let (attributes, is_first) = (kept_attributes(old), self.is_first);
        let added =
            |is_here: bool| self.values[..if is_here { self.values.len() } else { 0 }].iter().copied();
        let values = added(is_first).chain(old.into_iter().flat_map(Record::values)).chain(added(!is_first));
        Record::of_values(values, attributes, &mut self.list).map_or(Action::Keep, Action::Put)
    }

    fn sees_value_list(&self) -> bool {
        true
    }
}

/// Shows all values of a key.
pub struct ValuesVisitor<'v> {
    see: &'v mut dyn FnMut(&[u8]),
    is_found: bool,
}

impl<'v> ValuesVisitor<'v> {
    /// Creates the visitor, which passes each value to `see`.
    pub fn new(see: &'v mut dyn FnMut(&[u8])) -> ValuesVisitor<'v> {
        ValuesVisitor { see, is_found: false }
    }

    /// Returns true if there was a record.
    pub fn is_found(&self) -> bool {
        self.is_found
    }
}

impl Visitor for ValuesVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_found = old.is_some();
        old.into_iter().flat_map(Record::values).for_each(&mut *self.see);
        Action::Keep
    }

    fn sees_value_list(&self) -> bool {
        true
    }
}

/// Removes all values of a key.
#[derive(Default)]
pub struct RemoveValuesVisitor {
    is_found: bool,
}

impl RemoveValuesVisitor {
    /// Returns true if there was a record.
    pub fn is_found(&self) -> bool {
        self.is_found
    }
}

impl Visitor for RemoveValuesVisitor {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_found = old.is_some();
        Action::Remove
    }

    fn sees_value_list(&self) -> bool {
        true
    }
}

/// Adds values to a key.
pub type PutValues<'p, E> = dyn FnMut(&[u8], &[&[u8]]) -> Result<(), E> + 'p;

/// Passes the keys of `putlist` to `put`, each with its values, until `put` fails. The values of
/// equal keys that follow each other are passed together, so that a long list is written once.
pub fn put_lists<E>(pairs: FieldList<'_>, put: &mut PutValues<'_, E>) -> Result<(), E> {
    let (mut fields, mut values) = (pairs.iter(), Vec::new());
    let mut last: Option<&[u8]> = None;
    while let (Some(key), Some(value)) = (fields.next(), fields.next()) {
        if let Some(before) = last.filter(|&before| before != key) {
            put(before, &values)?;
            values.clear();
        }
        last = Some(key);
        values.push(value);
    }
    last.map_or(Ok(()), |key| put(key, &values))
}

/// The most bytes, and the most values, of a `putlist` that adds a part of a list. The key is sent
/// with each value, so one command for a long list could be much longer than the list.
const PART_BYTES_MAX: usize = 1 << 20;
const PART_VALUES_MAX: usize = 1 << 17;

/// Takes values from a list, at least one, for one `putlist`. Returns no value at the end of the
/// list.
pub fn take_part<'v>(key: &[u8], values: &mut RecordValues<'v>) -> Vec<&'v [u8]> {
    let (mut part, mut len) = (Vec::new(), 0);
    while len < PART_BYTES_MAX
        && part.len() < PART_VALUES_MAX
        && let Some(value) = values.next()
    {
        len += key.len() + value.len();
        part.push(value);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, DbOptions, MergePolicy, Records, Ttl};
    use std::ops::ControlFlow;

    fn add(db: &Db, first: &[&str], last: &[&str]) {
        for value in first {
            db.visit(b"k", &mut AddValuesVisitor::first(&[value.as_bytes()])).unwrap();
        }
        let last: Vec<_> = last.iter().map(|value| value.as_bytes()).collect();
        db.visit(b"k", &mut AddValuesVisitor::last(&last)).unwrap();
    }

    fn values(db: &Db) -> String {
        let mut all = Vec::new();
        let mut see = |value: &[u8]| all.push(String::from_utf8(value.to_vec()).unwrap());
        db.visit(b"k", &mut ValuesVisitor::new(&mut see)).unwrap();
        all.join(" ")
    }

    fn get(db: &Db) -> Option<String> {
        db.get(b"k").unwrap().map(|value| String::from_utf8(value).unwrap())
    }

    #[test]
    fn other_commands_act_on_the_first_value() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["mem:tree", folder.path().join("x.tree").to_str().unwrap()] {
            let db = Db::open(name).unwrap();
            db.set_with(b"k", b"b", Ttl::Seconds(1000), 7).unwrap();
            add(&db, &["a"], &["c", ""]);
            assert_eq!((values(&db).as_str(), get(&db).as_deref()), ("a b c ", Some("a")));
            db.append(b"k", b"+").unwrap();
            assert_eq!(values(&db), "a+ b c ");
            assert!(db.touch(b"k", Ttl::Seconds(2000)).unwrap());
            let record = db.get_record(b"k").unwrap().unwrap();
            assert_eq!((record.value.as_slice(), record.flags), (&b"a+"[..], 7));
            assert!(db.remove(b"k").unwrap());
            assert_eq!(values(&db), "b c ");
            db.set(b"k", b"x").unwrap();
            assert_eq!(values(&db), "x c ");
            let mut shown = Vec::new();
            db.for_each(&mut |_, record| {
                shown.push(record.value.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(shown, [b"x"]);
            assert!(db.remove(b"k").unwrap() && db.remove(b"k").unwrap());
            assert_eq!((values(&db).as_str(), get(&db).as_deref(), db.count()), ("", Some(""), 1));
            assert!(db.remove(b"k").unwrap() && !db.remove(b"k").unwrap());
            add(&db, &[], &["1", "2"]);
            let mut remove = RemoveValuesVisitor::default();
            db.visit(b"k", &mut remove).unwrap();
            assert!(remove.is_found() && get(&db).is_none());
        }
    }

    #[test]
    fn expired_values_do_not_return() {
        let db = Db::open("mem:tree").unwrap();
        add(&db, &[], &["1", "2"]);
        db.touch(b"k", Ttl::Expired).unwrap();
        assert_eq!(get(&db), None);
        add(&db, &[], &["3"]);
        assert_eq!((values(&db).as_str(), db.get_record(b"k").unwrap().unwrap().value), ("3", b"3".to_vec()));
    }

    #[test]
    fn transaction_changes_a_list_at_its_commit() {
        let db = Db::open("mem:tree").unwrap();
        add(&db, &[], &["1", "2", "3"]);
        let transaction = db.begin().unwrap();
        transaction.remove(b"k").unwrap();
        transaction.visit(b"k", &mut AddValuesVisitor::first(&[b"0"])).unwrap();
        assert_eq!(transaction.get(b"k").unwrap().as_deref(), Some(&b"0"[..]));
        assert_eq!(get(&db).as_deref(), Some("1"));
        transaction.commit().unwrap();
        assert_eq!(values(&db), "0 2 3");
    }

    #[test]
    fn lists_survive_log_and_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("x.tree");
        let data = folder.path().join("data");
        for name in ["mem:tree", tree.to_str().unwrap()] {
            let open = || match name {
                "mem:tree" => DbOptions::default().data_dir(&data).open(name).unwrap(),
                name => Db::open(name).unwrap(),
            };
            let db = open();
            add(&db, &["a"], &["b"]);
            drop(db);
            let db = open();
            assert_eq!(values(&db), "a b");
            db.checkpoint().unwrap();
            add(&db, &["0"], &[]);
            drop(db);
            let db = open();
            assert_eq!(values(&db), "0 a b");
            db.checkpoint().unwrap();
            drop(db);
            assert_eq!(values(&open()), "0 a b");
        }
    }
    #[test]
    fn copies_merges_and_dumps_keep_lists() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let db = Db::open("mem:tree").unwrap();
        db.set_with(b"k", b"b", Ttl::Seconds(1000), 7).unwrap();
        add(&db, &["a"], &["c", ""]);
        assert_eq!(db.copy(&place("copy.tree")).unwrap(), 1);
        let copy = Db::open(&place("copy.tree")).unwrap();
        assert_eq!((values(&copy).as_str(), copy.get_record(b"k").unwrap().unwrap().flags), ("a b c ", 7));
        let mut text = Vec::new();
        db.dump(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with("\nk\tb\t\t\t+\nk\tc\t\t\t+\nk\t\t\t\t+\n"), "{text}");
        for mode in [MergePolicy::Set, MergePolicy::Replace, MergePolicy::Append, MergePolicy::Add] {
            let other = Db::open("mem:tree").unwrap();
            add(&other, &[], &["1", "2"]);
            other.merge(&[&db], mode).unwrap();
            let expected = match mode {
                MergePolicy::Append => "1a 2 b c ",
                MergePolicy::Add => "1 2",
                _ => "a b c ",
            };
            assert_eq!(values(&other), expected, "{mode:?}");
            assert_eq!(other.load(&mut text.as_bytes()).unwrap().stored, 1);
            assert_eq!(values(&other), "a b c ");
        }
        let further_only = "x\t1\nk\t2\t\t\t+\n";
        let other = Db::open("mem:tree").unwrap();
        let error = other.load(&mut further_only.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 2: a further value must follow"), "{error}");
        assert_eq!(other.get(b"x").unwrap().as_deref(), Some(&b"1"[..]));
    }

    #[test]
    fn list_is_refused_where_only_trees_hold_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("copy.hash");
        let db = Db::open("mem:tree").unwrap();
        add(&db, &[], &["1", "2"]);
        let refused = |outcome: todana_core::Result<u64>| {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), todana_core::ErrorKind::Invalid);
            assert!(error.to_string().contains("record \"k\": the key has several values"), "{error}");
        };
        refused(db.copy(place.to_str().unwrap()));
        assert!(!place.exists());
        let hash = Db::open("mem:hash").unwrap();
        refused(hash.merge(&[&db], MergePolicy::Set));
        refused(hash.load(&mut &b"k\t1\nk\t2\t\t\t+\n"[..]).map(|summary| summary.stored));
        assert_eq!(hash.count(), 0);
    }
}
