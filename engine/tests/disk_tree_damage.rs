//! Damaged files cause a clear error or yield the intact rest; they never end the process.

mod visitor;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use todana_core::{Action, Attributes, CheckpointedEngine, Engine, ErrorKind, Record, Visitor};
use todana_engine::{DiskTree, DiskTreeOptions};
use visitor::{Remove, Set};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(directory: &Path) -> todana_core::Result<DiskTree> {
    DiskTree::open(directory, DiskTreeOptions { map_bytes: 4 << 20, ..Default::default() })
}

fn all(tree: &DiskTree) -> todana_core::Result<Map> {
    let mut found = Map::new();
    tree.scan(None, &mut |key, record| {
        found.insert(key.to_vec(), record.value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Creates a tree with every kind of page: branches, long values, groups of long keys, free pages.
/// Returns its file and its records.
fn file(directory: &Path) -> (Vec<u8>, Map) {
    let tree = open(directory).unwrap();
    for round in 0..3 {
        for n in 0..1500u32 {
            let long = if n % 300 == 0 { "k".repeat(600) } else { String::new() };
            let key = format!("{long}{n}");
            let len = if n % 100 == 7 { 9000 } else { n as usize % 50 };
            match (n + round) % 3 {
                0 if n % 300 != 0 => tree.visit(key.as_bytes(), &mut Remove).unwrap(),
                _ => tree.visit(key.as_bytes(), &mut Set(&vec![n as u8; len])).unwrap(),
            }
        }
        tree.checkpoint(round.into()).unwrap();
    }
    let records = all(&tree).unwrap();
    drop(tree);
    assert_eq!(DiskTree::check(directory).unwrap().records, records.len() as u64);
    (fs::read(directory.join("data.mdb")).unwrap(), records)
}

/// Returns a directory with this file.
fn with(file: &[u8]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data.mdb"), file).unwrap();
    directory
}

#[test]
fn a_file_cut_anywhere_is_refused_or_complete() {
    let directory = tempfile::tempdir().unwrap();
    let (file, records) = file(directory.path());
    let mut refused = 0;
    let pages = file.len() / 4096;
    assert!(pages > 30, "{pages} pages");
    for len in (0..pages).map(|page| page * 4096).chain((1..30).map(|n| file.len() * n / 30 + n)).skip(1) {
        let directory = with(&file[..len]);
        match open(directory.path()) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "cut to {len}: {error}");
                refused += 1;
            }
            // Only unused pages were cut off; pages after the new end can be written and read
            // again.
            Ok(tree) => {
                assert!(all(&tree).unwrap() == records, "cut to {len}");
                for n in 0..500u32 {
                    tree.visit(&n.to_be_bytes(), &mut Set(&[1; 1000])).unwrap();
                }
                tree.checkpoint(100).unwrap();
                assert_eq!(tree.status().records, records.len() as u64 + 500);
            }
        }
    }
    assert!(refused > pages / 2, "{refused} of {pages}");
}

#[test]
fn a_file_of_something_else_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (file, _) = file(directory.path());
    let error = |file: &[u8]| open(with(file).path()).err().map(|error| (error.kind(), error.to_string()));
    assert_eq!(error(b"something else").unwrap().0, ErrorKind::Corrupt);
    assert_eq!(error(&[0; 100_000]).unwrap().0, ErrorKind::Corrupt);
    assert_eq!(error(&[255; 100_000]).unwrap().0, ErrorKind::Corrupt);
    // The version of LMDB's format.
    for page in [0, 4096] {
        let mut later = file.clone();
        later[page + 20] = 2;
        let (kind, message) = error(&later).unwrap();
        assert!(kind == ErrorKind::Invalid && message.contains("version 2"), "{message}");
    }
    // The version of our format: wherever the state lies, in old pages too.
    let mut later = file.clone();
    let places: Vec<_> = (0..file.len() - 8).filter(|&at| file[at..].starts_with(b"TODANADT")).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| later[at + 8] = 3);
    let (kind, message) = error(&later).unwrap();
    assert!(kind == ErrorKind::Invalid && message.contains("version 3"), "{message}");
    places.iter().for_each(|at| later[at + 3] = b'x');
    assert_eq!(error(&later).unwrap().0, ErrorKind::Corrupt);
}

#[test]
fn changed_meta_page_is_refused_or_harmless() {
    let directory = tempfile::tempdir().unwrap();
    let (file, records) = file(directory.path());
    for at in (0..152).chain(4096..4096 + 152) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x41;
        // Our own code checks what LMDB would trust.
        match DiskTree::check(with(&damaged).path()) {
            Ok(found) => assert_eq!(found.records, records.len() as u64, "byte {at}"),
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid),
                    "byte {at}: {error}"
                );
            }
        }
    }
}

#[test]
fn check_of_damaged_pages_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (file, _) = file(directory.path());
    let mut random = fastrand::Rng::with_seed(3);
    let mut found = 0;
    let cases =
        std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300).max(50);
    for _ in 0..cases {
        let mut damaged = file.clone();
        let page = random.usize(2..file.len() / 4096) * 4096;
        match random.u32(0..4) {
            0 => damaged[page..page + 4096].fill(random.u8(..)),
            1 => damaged.copy_within(4096 * 2..4096 * 3, page),
            // The header and the offsets, where a changed byte has consequences.
            2 => damaged[page + random.usize(0..64)] = random.u8(..),
            _ => (0..50).for_each(|_| damaged[page + random.usize(0..4096)] = random.u8(..)),
        }
        if let Err(error) = DiskTree::check(with(&damaged).path()) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            found += 1;
        }
    }
    assert!(found > 0);
}

/// Stores a value whatever the old record is.
struct Overwrite<'v>(&'v [u8]);

impl Visitor for Overwrite<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        assert_eq!(old, None, "what is damaged is not shown");
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

/// Creates a tree of a few records with recognisable values, one of them in a group of long keys,
/// changed by `damage`.
fn damaged(damage: impl Fn(&mut Vec<u8>)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path()).unwrap();
    for (key, value) in [("first", "value-1"), ("second", "value-2"), ("third", "value-3")] {
        tree.visit(key.as_bytes(), &mut Set(value.as_bytes())).unwrap();
    }
    for n in 4..7 {
        tree.visit(format!("{}{n}", "k".repeat(600)).as_bytes(), &mut Set(format!("value-{n}").as_bytes()))
            .unwrap();
    }
    tree.checkpoint(1).unwrap();
    drop(tree);
    let path = directory.path().join("data.mdb");
    let mut file = fs::read(&path).unwrap();
    damage(&mut file);
    fs::write(&path, &file).unwrap();
    directory
}

fn place_of(file: &[u8], text: &[u8]) -> usize {
    let places: Vec<_> = file.windows(text.len()).enumerate().filter(|(_, at)| *at == text).collect();
    assert_eq!(places.len(), 1, "{}", text.escape_ascii());
    places[0].0
}

fn value(tree: &DiskTree, key: &[u8]) -> todana_core::Result<Option<Vec<u8>>> {
    let mut value = None;
    tree.view(key, &mut |record| value = Some(record.value.to_vec()))?;
    Ok(value)
}

/// A changed byte of a value was returned as if it were right: trees had no checksums.
#[test]
fn damaged_record_fails_alone_and_can_be_overwritten() {
    let long = "k".repeat(600);
    let keys = |n: u32| match n {
        1 => "first".to_string(),
        2 => "second".to_string(),
        3 => "third".to_string(),
        n => format!("{long}{n}"),
    };
    for broken in [2, 5] {
        let text = format!("value-{broken}");
        let directory = damaged(|file| {
            let at = place_of(file, text.as_bytes());
            file[at] ^= 4;
        });
        let error = DiskTree::check(directory.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("1 records are damaged"), "{error}");

        let tree = open(directory.path()).unwrap();
        assert!(tree.damaged_records().is_none());
        let key = keys(broken);
        for _ in 0..2 {
            assert_eq!(value(&tree, key.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert_eq!(tree.visit(key.as_bytes(), &mut Set(b"")).unwrap_err().kind(), ErrorKind::Corrupt);
        for n in (1..7).filter(|&n| n != broken) {
            assert_eq!(value(&tree, keys(n).as_bytes()).unwrap(), Some(format!("value-{n}").into_bytes()));
        }
        assert_eq!(all(&tree).unwrap_err().kind(), ErrorKind::Corrupt);
        let mut whole = 0;
        let mut see = |_: &[u8], _: Record<'_>| {
            whole += 1;
            ControlFlow::Continue(())
        };
        assert_eq!(tree.scan_skipping_damaged(None, &mut see).unwrap(), None);
        assert_eq!(whole, 5);
        let (count, last) = tree.damaged_records().unwrap();
        assert!(count == 1 && last.to_string().contains("is damaged"), "{count} {last}");

        tree.visit(key.as_bytes(), &mut Overwrite(b"anew")).unwrap();
        tree.checkpoint(2).unwrap();
        assert_eq!(value(&tree, key.as_bytes()).unwrap(), Some(b"anew".to_vec()));
        drop(tree);
        assert_eq!(DiskTree::check(directory.path()).unwrap().records, 6);
    }
}

#[test]
fn record_under_another_key_is_damaged() {
    let directory = damaged(|file| {
        let [first, second] = ["value-1", "value-2"].map(|text| place_of(file, text.as_bytes()));
        // Includes the tag and the checksum before them.
        let [one, two] = [first, second].map(|at| file[at - 5..at + 7].to_vec());
        file[first - 5..first + 7].copy_from_slice(&two);
        file[second - 5..second + 7].copy_from_slice(&one);
    });
    let tree = open(directory.path()).unwrap();
    for key in ["first", "second"] {
        assert_eq!(value(&tree, key.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert_eq!(value(&tree, b"third").unwrap(), Some(b"value-3".to_vec()));
}

/// Structural damage ended the process by a signal, with all of its other databases.
#[test]
fn large_tree_is_checked_unless_it_was_closed() {
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().join("unclean");
    let (mut file, _) = file(directory.path());
    assert!(!marker.exists());
    let tree = open(directory.path()).unwrap();
    assert!(marker.exists());
    drop(tree);
    // All branch and leaf pages become pages of neither kind.
    for page in (2..file.len() / 4096).map(|page| page * 4096) {
        if file[page..page + 8] == (page as u64 / 4096).to_le_bytes() && matches!(file[page + 10], 1 | 2) {
            file[page + 11] ^= 1;
        }
    }
    let directory = with(&file);
    let options = || DiskTreeOptions { map_bytes: 4 << 20, ..Default::default() };
    let opened = |walked_bytes_max| {
        let options = DiskTreeOptions { walked_bytes_max, ..options() };
        DiskTree::open(directory.path(), options).err().map(|error| (error.kind(), error.to_string()))
    };
    let (kind, message) = opened(1 << 20).expect("a small file is walked");
    assert!(kind == ErrorKind::Corrupt && message.contains("does not have the kind"), "{message}");
    fs::write(directory.path().join("unclean"), "").unwrap();
    let (kind, message) = opened(0).expect("a file that was not closed is walked");
    assert!(kind == ErrorKind::Corrupt && message.contains("does not have the kind"), "{message}");
    assert!(directory.path().join("unclean").exists(), "and so it is the next time");
}

/// After every kill, the next opening checked all pages of a large tree, although everything that a
/// killed process has written is in the memory of the system.
#[test]
fn large_tree_is_checked_only_after_another_boot() {
    let directory = tempfile::tempdir().unwrap();
    let (mut file, records) = file(directory.path());
    let mut changed = 0;
    for page in (2..file.len() / 4096).map(|page| page * 4096) {
        let is_leaf = file[page..page + 8] == (page as u64 / 4096).to_le_bytes() && file[page + 10] == 2;
        // Not the pages that each opening reads.
        if is_leaf && u16::from_le_bytes([file[page + 12], file[page + 13]]) > 16 + 2 * 5 {
            file[page + 11] ^= 1;
            changed += 1;
        }
    }
    assert!(changed > 5, "{changed} pages");
    let directory = with(&file);
    let unclean = directory.path().join("unclean");
    let options = DiskTreeOptions { map_bytes: 4 << 20, walked_bytes_max: 0, ..Default::default() };
    let opened = || DiskTree::open(directory.path(), options.clone());
    // As after a kill.
    let tree = opened().unwrap();
    let left = fs::read(&unclean).unwrap();
    drop(tree);
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    if let Ok(boot_id) = &boot_id {
        assert!(left.starts_with(boot_id.trim().as_bytes()), "{}", left.escape_ascii());
    }
    fs::write(&unclean, &left).unwrap();
    match opened() {
        Ok(tree) => assert_eq!(tree.status().records, records.len() as u64),
        Err(error) => assert!(boot_id.is_err(), "it was walked: {error}"),
    }
    for other in [&b""[..], b"a4ff57d5-95b2-4b2f-9ba9-4a6ac1b9b9d5", &left[..left.len() / 2]] {
        fs::write(&unclean, other).unwrap();
        let error = opened().err().expect("pages may be lost");
        assert!(error.to_string().contains("does not have the kind"), "{error}");
        assert_eq!(fs::read(&unclean).unwrap(), other, "it is walked the next time, too");
    }
    // A copy of an open tree, on the same machine, was taken for the tree of a killed process and
    // was not checked.
    let copy = with(&file);
    fs::write(copy.path().join("unclean"), &left).unwrap();
    let error = DiskTree::open(copy.path(), options.clone()).err().expect("a copy may lack pages");
    assert!(error.to_string().contains("does not have the kind"), "{error}");
}
