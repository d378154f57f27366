//! The contents of a tree on disk: everything up to the cut of the last checkpoint, under its mark,
//! and nothing else.

mod visitor;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana_core::{Action, Attributes, CheckpointedEngine, Engine, Error, ErrorKind, Record, Visitor};
use todana_engine::{DiskTree, DiskTreeOptions};
use visitor::{Remove, Set};

/// StopOnDrop other threads, even if the thread that owns this fails.
struct StopOnDrop<'d>(&'d AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn tree_refuses_the_log_of_another_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.tree");
    let (ours, theirs) = ([0xab; 16], [0x12; 16]);
    let tree = open(&path, 1 << 20, false);
    tree.bind_to_log(ours).unwrap();
    tree.visit(b"crane", &mut Set(b"1")).unwrap();
    tree.checkpoint(17).unwrap();
    drop(tree);

    let tree = open(&path, 1 << 20, false);
    let error = tree.bind_to_log(theirs).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let message = error.to_string();
    assert!(message.contains(&"ab".repeat(16)) && message.contains(&"12".repeat(16)), "{message}");
    tree.bind_to_log(ours).unwrap();
    // A copy belongs to the same database.
    let copy = folder.path().join("copy.tree");
    tree.copy(&copy).unwrap();
    drop(tree);
    assert!(open(&copy, 1 << 20, false).bind_to_log(theirs).is_err());
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(directory: &Path, front_bytes: u64, spills: bool) -> DiskTree {
    let options = DiskTreeOptions { front_bytes, spills, map_bytes: 1 << 20, ..Default::default() };
    DiskTree::open(directory, options).unwrap()
}

fn all(tree: &DiskTree) -> Map {
    let mut found = Map::new();
    let end = tree.scan(None, &mut |key, record| {
        found.insert(key.to_vec(), record.value.to_vec());
        ControlFlow::Continue(())
    });
    assert_eq!(end.unwrap(), None);
    assert_eq!(tree.status().records, found.len() as u64);
    found
}

/// Makes a random change, and the same one to the model.
fn change(tree: &DiskTree, model: &mut Map, random: &mut fastrand::Rng) {
    let long = if random.u32(0..20) == 0 { "k".repeat(600) } else { String::new() };
    let key = format!("{long}{}", random.u32(0..2000)).into_bytes();
    if random.u32(0..4) == 0 {
        tree.visit(&key, &mut Remove).unwrap();
        model.remove(&key);
    } else {
        let len_max = if random.u32(0..200) == 0 { 100_000 } else { 100 };
        let value = vec![random.u8(..); random.usize(0..len_max)];
        tree.visit(&key, &mut Set(&value)).unwrap();
        model.insert(key, value);
    }
}

#[test]
fn tree_returns_to_its_last_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut kept = Map::new();
    for mark in 1..20 {
        let tree = open(directory.path(), 1 << 10, false);
        assert_eq!(tree.log_position(), mark - 1);
        assert!(all(&tree) == kept, "opened with mark {}", mark - 1);
        let mut model = kept.clone();
        for _ in 0..500 {
            change(&tree, &mut model, &mut random);
        }
        assert!(tree.is_due() && tree.pending_bytes() > 1 << 10);
        tree.maintain();
        tree.checkpoint(mark).unwrap();
        assert_eq!((tree.log_position(), tree.pending_bytes()), (mark, 0));
        kept = model.clone();
        if random.bool() {
            tree.clear(&mut || ()).unwrap();
        }
        for _ in 0..500 {
            change(&tree, &mut model, &mut random);
        }
        drop(tree);
        assert_eq!(DiskTree::check(directory.path()).unwrap().records, kept.len() as u64);
    }
}

#[test]
fn spill_keeps_the_old_mark() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path(), 16 << 10, true);
    tree.visit(b"first", &mut Set(b"1")).unwrap();
    tree.checkpoint(7).unwrap();
    for n in 0..5000 {
        tree.visit(format!("{n}").as_bytes(), &mut Set(b"spilled")).unwrap();
        assert!(tree.pending_bytes() < 64 << 10);
    }
    drop(tree);
    let tree = open(directory.path(), 16 << 10, true);
    assert_eq!(tree.log_position(), 7);
    assert!(tree.status().records > 4000);
}

/// Increments a number that two records share, and notes the progress in `applied`.
struct Count<'c>(Vec<u8>, &'c AtomicU64);

impl Visitor for Count<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let number = old.map_or(0, |old| std::str::from_utf8(old.value).unwrap().parse::<u64>().unwrap());
        self.0 = (number + 1).to_string().into_bytes();
        Action::Put(Record::new(&self.0, Attributes::default()))
    }

    fn applied(&mut self, _now: Option<Record<'_>>) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn checkpoint_contains_exactly_the_changes_before_its_cut() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path(), 1 << 20, false);
    let (applied, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ends = StopOnDrop(&done);
        for writer in 0..3 {
            let (tree, applied, done) = (&tree, &applied, &done);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(writer);
                while !done.load(Ordering::Relaxed) {
                    let key = format!("counter {}", random.u32(0..50));
                    tree.visit(key.as_bytes(), &mut Count(Vec::new(), applied)).unwrap();
                }
            });
        }
        let copies = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let mut cut = 0;
            let mut ready = |mark| {
                assert!(mark >= tree.log_position(), "marks rise");
                Ok(())
            };
            let mut read = || {
                cut = applied.load(Ordering::SeqCst);
                cut
            };
            tree.checkpoint_at(&mut read, &mut ready).unwrap();
            assert_eq!(tree.log_position(), cut);
            let copy = copies.path().join(round.to_string());
            assert_eq!(tree.copy(&copy).unwrap(), cut);
            let counted: u64 = all(&open(&copy, 1, false))
                .values()
                .map(|value| std::str::from_utf8(value).unwrap().parse::<u64>().unwrap())
                .sum();
            assert_eq!(counted, cut, "all that was applied before the cut, and nothing after");
        }
    });
}

#[test]
fn checkpoint_that_is_not_ready_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    let mut model = Map::new();
    let tree = open(directory.path(), 1 << 20, false);
    for _ in 0..300 {
        change(&tree, &mut model, &mut random);
    }
    tree.checkpoint(1).unwrap();
    let kept = model.clone();
    for round in 0..3 {
        for _ in 0..300 {
            change(&tree, &mut model, &mut random);
        }
        let mut fails = |_| Err(Error::new(ErrorKind::Unavailable, "the log cannot be written"));
        let error = tree.checkpoint_at(&mut || 2 + round, &mut fails).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(tree.log_position(), 1);
        assert!(all(&tree) == model && tree.pending_bytes() > 0, "nothing has gone");
    }
    let copies = tempfile::tempdir().unwrap();
    assert_eq!(tree.copy(&copies.path().join("before")).unwrap(), 1);
    assert!(all(&open(&copies.path().join("before"), 1, false)) == kept);
    tree.checkpoint(9).unwrap();
    assert!(all(&tree) == model);
    drop(tree);
    let tree = open(directory.path(), 1, false);
    assert!(tree.log_position() == 9 && all(&tree) == model);
}

#[test]
fn tree_opens_once_and_copies_to_empty_directories() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path(), 1 << 20, true);
    let error = DiskTree::open(directory.path(), DiskTreeOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(tree.copy(directory.path()).unwrap_err().kind(), ErrorKind::Invalid);
    drop(tree);
    DiskTree::open(directory.path(), DiskTreeOptions::default()).unwrap();
}

#[test]
fn a_file_that_outgrows_its_map_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let options = DiskTreeOptions { map_bytes: 64 << 10, front_bytes: 256 << 10, ..Default::default() };
    let tree = DiskTree::open(directory.path(), options).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = StopOnDrop(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    all_values_are_whole(&tree);
                }
            });
        }
        for n in 0..3000u32 {
            let value = vec![n as u8; 1 + n as usize % 20_000];
            tree.visit(&n.to_be_bytes(), &mut Set(&value)).unwrap();
        }
    });
    tree.checkpoint(1).unwrap();
    assert!(tree.file_bytes() > 4 << 20);
    assert_eq!(all_values_are_whole(&tree), 3000);
}

fn all_values_are_whole(tree: &DiskTree) -> usize {
    let mut count = 0;
    let end = tree.scan(None, &mut |key, record| {
        let n = u32::from_be_bytes(key.try_into().unwrap());
        assert!(record.value.len() == 1 + n as usize % 20_000);
        assert!(record.value.iter().all(|&byte| byte == n as u8));
        count += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(end.unwrap(), None);
    count
}

#[test]
#[ignore = "takes some 4 GiB of memory and of disk"]
fn a_value_of_a_gibibyte_is_kept() {
    struct PutShared(todana_core::SharedBytes);
    impl Visitor for PutShared {
        fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
            let record = Record::new(self.0.plain().unwrap(), Attributes::default());
            Action::Put(Record { shared: Some(&self.0), ..record })
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path(), 1 << 20, false);
    let len = 1 << 30;
    let mut buffer = tree.buffer(len).unwrap();
    while buffer.filled() < len {
        let at = buffer.filled();
        let room = tree.room(&mut *buffer, 1 << 20).unwrap();
        room.fill((at >> 20) as u8);
        buffer.advance(1 << 20);
    }
    tree.visit(b"huge", &mut PutShared(buffer.into_shared())).unwrap();
    tree.checkpoint(1).unwrap();
    drop(tree);
    let tree = open(directory.path(), 1 << 20, false);
    let mut is_whole = false;
    tree.view(b"huge", &mut |record| {
        let mut pieces = record.value.chunks(1 << 20).enumerate();
        is_whole = record.value.len() == len && pieces.all(|(n, piece)| piece.iter().all(|&b| b == n as u8));
    })
    .unwrap();
    assert!(is_whole);
}

#[test]
#[ignore = "wants a small file system of its own: TODANA_TEST_SMALL_DISK"]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let Some(disk) = std::env::var_os("TODANA_TEST_SMALL_DISK") else { return };
    let (directory, ballast) = (Path::new(&disk).join("tree"), Path::new(&disk).join("ballast"));
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let options = DiskTreeOptions { front_bytes: 64 << 10, ..Default::default() };
    let tree = DiskTree::open(&directory, options).unwrap();
    let mut model = Map::new();
    let error = (0u32..).find_map(|n| {
        let (key, value) = (n.to_be_bytes(), vec![n as u8; 300]);
        match tree.visit(&key, &mut Set(&value)) {
            Ok(()) => {
                model.insert(key.to_vec(), value);
                None
            }
            Err(error) => Some(error),
        }
    });
    assert_eq!(error.unwrap().kind(), ErrorKind::Full);
    assert!(all(&tree) == model, "what was taken is there, and no more");
    assert_eq!(tree.checkpoint(1).unwrap_err().kind(), ErrorKind::Full);
    std::fs::remove_file(&ballast).unwrap();
    tree.checkpoint(2).unwrap();
    tree.visit(b"more", &mut Set(b"")).unwrap();
    drop(tree);
    let tree = DiskTree::open(&directory, DiskTreeOptions::default()).unwrap();
    assert!(tree.log_position() == 2 && all(&tree) == model);
}
