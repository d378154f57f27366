//! Trees of earlier versions of the format can always be opened. New records in them have
//! checksums.

mod visitor;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use todana_core::{CheckpointedEngine, Engine};
use todana_engine::{DiskTree, DiskTreeOptions, ExaminedTree};
use visitor::{Remove, Set};

fn open(directory: &Path) -> DiskTree {
    DiskTree::open(directory, DiskTreeOptions { map_bytes: 4 << 20, ..Default::default() }).unwrap()
}

fn long(n: u32) -> String {
    format!("{}{n}", "s".repeat(600))
}

/// Version 1 had no checksums. It created `fixtures/disk_tree_1.mdb.zst`, which must never be
/// replaced.
fn version_1() -> tempfile::TempDir {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/disk_tree_1.mdb.zst");
    let file = zstd::decode_all(&*fs::read(packed).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data.mdb"), file).unwrap();
    directory
}

fn all(tree: &DiskTree) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let see = &mut |key: &[u8], record: todana_core::Record<'_>| {
        found.push((key.to_vec(), record.value.to_vec()));
        ControlFlow::Continue(())
    };
    assert_eq!(tree.scan(None, see).unwrap(), None);
    found
}

fn expected() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut records = vec![
        (Vec::new(), b"of the empty key".to_vec()),
        (vec![0, 0], b"of two zeros".to_vec()),
        (b"flagged".to_vec(), b"with attributes".to_vec()),
    ];
    records.extend((0..40).map(|n| (format!("key {n:02}").into_bytes(), format!("value {n}").into_bytes())));
    records.push((b"long value".to_vec(), vec![b'l'; 5000]));
    records.extend((0..3).map(|n| (long(n).into_bytes(), format!("in a sheaf {n}").into_bytes())));
    records
}

#[test]
fn tree_of_version_1_gains_checksums_with_writes() {
    let directory = version_1();
    let tree = open(directory.path());
    assert_eq!(tree.log_position(), 17);
    assert_eq!(tree.database_id(), Some(*b"sixteen bytes id"));
    assert_eq!(all(&tree), expected());
    tree.view(b"flagged", &mut |record| assert_eq!(record.attributes.flags, 7)).unwrap();
    drop(tree);
    let examined = DiskTree::check(directory.path()).unwrap();
    assert_eq!(examined, ExaminedTree { records: 47, without_checksum: 47, ..examined });

    let tree = open(directory.path());
    tree.visit(b"key 07", &mut Set(b"anew")).unwrap();
    tree.visit(b"key 08", &mut Remove).unwrap();
    tree.visit(b"long value", &mut Set(&[b'm'; 70_000])).unwrap();
    // A group of long keys is written completely.
    tree.visit(long(1).as_bytes(), &mut Set(b"anew")).unwrap();
    tree.checkpoint(18).unwrap();
    let mut records = expected();
    records.retain(|record| record.0 != b"key 08");
    for (key, value) in &mut records {
        match &key[..] {
            b"key 07" => *value = b"anew".to_vec(),
            b"long value" => *value = vec![b'm'; 70_000],
            other if other == long(1).as_bytes() => *value = b"anew".to_vec(),
            _ => {}
        }
    }
    assert_eq!(all(&tree), records);
    drop(tree);
    let examined = DiskTree::check(directory.path()).unwrap();
    assert_eq!(examined, ExaminedTree { records: 46, without_checksum: 46 - 5, ..examined });

    // A changed bit in a record that has a checksum now is found.
    let path = directory.path().join("data.mdb");
    let mut file = fs::read(&path).unwrap();
    let places: Vec<_> = (0..file.len() - 4).filter(|&at| file[at..].starts_with(b"anew")).collect();
    places.iter().for_each(|&at| file[at] ^= 1);
    fs::write(&path, &file).unwrap();
    let tree = open(directory.path());
    for key in [b"key 07", long(1).as_bytes()] {
        tree.view(key, &mut |record| panic!("{record:?}")).unwrap_err();
    }
    tree.view(b"key 09", &mut |record| assert_eq!(record.value, b"value 9")).unwrap();
}

#[test]
fn emptied_tree_of_version_1_has_checksums_only() {
    let directory = version_1();
    let tree = open(directory.path());
    tree.clear(&mut || ()).unwrap();
    tree.checkpoint(18).unwrap();
    drop(tree);
    let tree = open(directory.path());
    tree.visit(b"key", &mut Set(b"value")).unwrap();
    tree.checkpoint(19).unwrap();
    drop(tree);
    let examined = DiskTree::check(directory.path()).unwrap();
    assert_eq!(examined, ExaminedTree { records: 1, without_checksum: 0, ..examined });
    let file = fs::read(directory.path().join("data.mdb")).unwrap();
    // No mark before the checksum: key, checksum, tag, value.
    let places = file.windows(13).filter(|at| at.starts_with(b"key") && at.ends_with(b"\0value"));
    assert_eq!(places.count(), 1);
}
