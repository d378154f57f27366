//! Damaged files: a clear error, or what is still right; never a dead process.

mod visitor;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use todana_core::{Checkpointed, Engine, ErrorKind};
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

/// A tree of all that there is: pages of branches, long values, sheaves, free pages. Returns its file and its records.
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
    assert_eq!(DiskTree::check(directory).unwrap(), records.len() as u64);
    (fs::read(directory.join("data.mdb")).unwrap(), records)
}

/// Opens a directory that has this file.
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
            // Only pages that are not in use were cut off; those behind the new end can be read and written again.
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
    // Of ours: wherever the state stands, in old pages too.
    let mut later = file.clone();
    let places: Vec<_> = (0..file.len() - 8).filter(|&at| file[at..].starts_with(b"TODANADT")).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| later[at + 8] = 2);
    let (kind, message) = error(&later).unwrap();
    assert!(kind == ErrorKind::Invalid && message.contains("version 2"), "{message}");
    places.iter().for_each(|at| later[at + 3] = b'x');
    assert_eq!(error(&later).unwrap().0, ErrorKind::Corrupt);
}

#[test]
fn a_meta_page_with_any_byte_changed_is_refused_or_harmless() {
    let directory = tempfile::tempdir().unwrap();
    let (file, records) = file(directory.path());
    for at in (0..152).chain(4096..4096 + 152) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x41;
        // What LMDB would trust is looked at by code that does not.
        match DiskTree::check(with(&damaged).path()) {
            Ok(found) => assert_eq!(found, records.len() as u64, "byte {at}"),
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
fn a_check_of_damaged_pages_comes_to_an_end() {
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
