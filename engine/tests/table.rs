//! The table: index entries always follow from the rows.

#[path = "../../tests/table_indexes/mod.rs"]
mod table_indexes;
#[path = "visitor/mod.rs"]
mod visitor;

use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use table_indexes::{assert_indexes_follow_from_rows, define, entries};
use todana_core::{Action, Attributes, Engine, Expiry, IndexKind, Record, SweepAim, UnixSeconds, Visitor};
use todana_engine::table::{INDEXES_MAX, TermRange};
use todana_engine::{DiskTree, DiskTreeOptions, MemTree, MemTreeOptions, TableEngine};
use visitor::{Remove, Set};

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

fn finish_building(table: &dyn Engine) {
    while table.maintain() {}
    assert!(table.indexed().unwrap().indexes().iter().all(|index| index.is_complete));
}

fn mem_table() -> TableEngine {
    TableEngine::new(Box::new(MemTree::new(MemTreeOptions::default()).unwrap())).unwrap()
}

fn disk_table(path: &Path) -> TableEngine {
    let options = DiskTreeOptions { spills: false, in_blocks: true, ..DiskTreeOptions::default() };
    TableEngine::new(Box::new(DiskTree::open(path, options).unwrap())).unwrap()
}

fn random_row(random: &mut fastrand::Rng) -> Vec<u8> {
    let names = ["blue", "green,red", "Red blue", "", "größe XL", "ab"];
    let mut parts: Vec<String> = Vec::new();
    if random.u8(..10) > 0 {
        parts.extend(["name".into(), names[random.usize(..names.len())].into()]);
    }
    if random.u8(..10) > 2 {
        parts.extend(["age".into(), random.i32(-20..20).to_string()]);
    }
    parts.join("\0").into_bytes()
}

fn random_changes(table: &dyn Engine, random: &mut fastrand::Rng, count: usize) {
    for _ in 0..count {
        let key = random.u16(1..400).to_string();
        if random.u8(..4) == 0 {
            table.visit(key.as_bytes(), &mut Remove).unwrap();
        } else {
            table.visit(key.as_bytes(), &mut Set(&random_row(random))).unwrap();
        }
    }
}

const DEFINITIONS: [(&[u8], Option<IndexKind>); 3] =
    [(b"name", Some(IndexKind::Token)), (b"age", Some(IndexKind::Decimal)), (b"", Some(IndexKind::Lexical))];

struct PutExpiring<'v>(&'v [u8]);

impl Visitor for PutExpiring<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        let expiry = Expiry::At(UnixSeconds(9));
        Action::Put(Record::new(self.0, Attributes { expiry, ..Attributes::default() }))
    }
}

#[test]
fn sweep_passes_over_damaged_rows() {
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        let options = DiskTreeOptions { spills: false, ..DiskTreeOptions::default() };
        TableEngine::new(Box::new(DiskTree::open(directory.path(), options).unwrap())).unwrap()
    };
    let table = open();
    for key in ["1", "2", "3"] {
        table.visit(key.as_bytes(), &mut PutExpiring(format!("name\0row-{key}").as_bytes())).unwrap();
    }
    table.checkpointed().unwrap().checkpoint(1).unwrap();
    drop(table);
    let path = directory.path().join("data.mdb");
    let mut file = std::fs::read(&path).unwrap();
    let places: Vec<_> = (0..file.len() - 5).filter(|&at| &file[at..at + 5] == b"row-2").collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| file[at] ^= 4);
    std::fs::write(&path, &file).unwrap();
    let table = open();
    assert!(table.scan(None, &mut |_, _| ControlFlow::Continue(())).is_err());
    let swept = table.sweepable().unwrap().sweep(None, 100, SweepAim::Tidiness, &mut |_| true).unwrap();
    assert_eq!((swept.removed, swept.next), (2, None));
}

#[test]
fn entries_follow_from_rows_through_all_changes() {
    let mut random = fastrand::Rng::with_seed(17);
    let table = mem_table();
    define(&table, &DEFINITIONS);
    for _ in 0..20 {
        random_changes(&table, &mut random, 200);
        assert_indexes_follow_from_rows(&table);
    }
    define(&table, &[(b"name", Some(IndexKind::QGram)), (b"", None)]);
    random_changes(&table, &mut random, 200);
    finish_building(&table);
    assert_indexes_follow_from_rows(&table);
    table.clear(&mut || ()).unwrap();
    assert_eq!(table.status().records, 1);
    assert_indexes_follow_from_rows(&table);
    random_changes(&table, &mut random, 200);
    assert_indexes_follow_from_rows(&table);
}

/// The reserved numbers were kept only with an index, so that numbers were repeated after a
/// restart.
#[test]
fn reserved_numbers_survive_the_removal_of_all_rows() {
    let table = mem_table();
    table.visit(b"", &mut Set(b"\x01numbers\x001001")).unwrap();
    table.visit(b"1", &mut Set(b"a\0b")).unwrap();
    table.clear(&mut || ()).unwrap();
    let mut kept = Vec::new();
    assert!(table.view(b"", &mut |record| kept.extend_from_slice(record.value)).unwrap());
    assert_eq!((kept.as_slice(), table.status().records), (&b"\x01numbers\x001001"[..], 1));
}

/// The row was stored and logged, but its entry was refused, so that the replay of the log failed.
#[test]
fn row_with_too_long_entry_is_refused() {
    const KEY_LEN_MAX: usize = (1 << 20) - 517;
    let folder = tempfile::tempdir().unwrap();
    let tables: [&dyn Engine; 2] = [&disk_table(folder.path()), &mem_table()];
    for table in tables {
        define(table, &[(b"a", Some(IndexKind::Lexical))]);
        let row = [b"a\0", &[0xff; 300][..]].concat();
        let mut put = Set(&row);
        let error = table.visit(&vec![b'k'; KEY_LEN_MAX + 1], &mut put).unwrap_err();
        assert_eq!(error.kind(), todana_core::ErrorKind::Invalid);
        assert_eq!(table.status().records, 1);
        table.visit(&vec![b'k'; KEY_LEN_MAX], &mut put).unwrap();
        assert_indexes_follow_from_rows(table);
    }
}

/// Thousands of indexes occupied a thread for minutes, and each write afterwards.
#[test]
fn table_has_at_most_64_indexes() {
    let table = mem_table();
    table.visit(b"1", &mut Set(b"c1\0x")).unwrap();
    let names: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
    let all = |kind| names.iter().map(|name| (name.as_bytes(), kind)).collect::<Vec<_>>();
    define(&table, &all(Some(IndexKind::Lexical)));
    let defined: Vec<_> = table.indexed().unwrap().indexes().into_iter().map(|index| index.column).collect();
    assert!(defined.iter().eq(names[..INDEXES_MAX].iter().map(String::as_bytes)));
    finish_building(&table);
    assert_indexes_follow_from_rows(&table);
    // The entries of dropped indexes are removed before they become too many.
    for _ in 0..20 {
        define(&table, &all(None));
        define(&table, &all(Some(IndexKind::Token)));
    }
    finish_building(&table);
    assert_indexes_follow_from_rows(&table);
}

#[test]
fn index_on_existing_rows_is_built_during_writes() {
    let mut random = fastrand::Rng::with_seed(3);
    let table = mem_table();
    random_changes(&table, &mut random, 3000);
    define(&table, &DEFINITIONS);
    let indexed = table.indexed().unwrap();
    assert!(indexed.indexes().iter().all(|index| !index.is_complete));
    let mut found = Vec::new();
    assert!(!indexed.index_entries(b"age", IndexKind::Decimal, ALL, false, 1, &mut found).unwrap());
    while table.maintain() {
        random_changes(&table, &mut random, 5);
    }
    finish_building(&table);
    assert_indexes_follow_from_rows(&table);
}

#[test]
fn descending_entries_are_the_ascending_ones_reversed() {
    let mut random = fastrand::Rng::with_seed(9);
    let table = mem_table();
    define(&table, &DEFINITIONS);
    random_changes(&table, &mut random, 500);
    let range = TermRange::of_numbers(-5.0, 5.0);
    let up = entries(&table, b"age", IndexKind::Decimal, &range);
    let mut down = Vec::new();
    let indexed = table.indexed().unwrap();
    assert!(
        indexed
            .index_entries(b"age", IndexKind::Decimal, range.bounds(), true, usize::MAX / 2, &mut down)
            .unwrap()
    );
    down.reverse();
    assert!(up.len() > 10 && up == down, "{} and {}", up.len(), down.len());
}

#[test]
fn checkpoints_during_writes_hold_rows_with_their_entries() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..4 {
        let table = disk_table(directory.path());
        assert_indexes_follow_from_rows(&table);
        define(&table, &DEFINITIONS);
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let (table, mut random) = (&table, random.fork());
                    scope.spawn(move || random_changes(table, &mut random, 4000))
                })
                .collect();
            while rounds.fetch_add(1, Ordering::Relaxed) < 3
                || !writers.iter().all(|writer| writer.is_finished())
            {
                let checkpointed = table.checkpointed().unwrap();
                checkpointed.checkpoint(checkpointed.log_position() + 1).unwrap();
                if round % 2 == 1 && rounds.load(Ordering::Relaxed) == 4 {
                    break;
                }
            }
        });
        // What follows the last checkpoint is lost, as without a log.
        drop(table);
        let table = disk_table(directory.path());
        finish_building(&table);
        assert_indexes_follow_from_rows(&table);
        assert!(table.status().records > 100);
    }
}

/// Asks for the indexes of a table during a visit.
struct AskForIndexes<'t>(&'t TableEngine);

impl Visitor for AskForIndexes<'_> {
    fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
        for _ in 0..1000 {
            assert_eq!(self.0.indexed().unwrap().indexes(), []);
        }
        Action::Keep
    }
}

/// A visit that asked for the indexes while another thread waited to change them never ended.
#[test]
fn visitors_see_the_indexes_beside_waiting_writers() {
    let (table, is_done) = (mem_table(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                table.wait_for_visits();
            }
        });
        for _ in 0..500 {
            table.visit(b"row", &mut AskForIndexes(&table)).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
