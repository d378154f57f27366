//! Small segments, of which every opening leaves one.

#[allow(dead_code)]
mod visitor;

use todana_core::{DurableEngine, Engine};
use todana_engine::{DiskHash, DiskHashOptions};

#[test]
fn segments_that_short_openings_have_left_become_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("often.hash");
    let open = || DiskHash::open(&path, DiskHashOptions::default()).unwrap();
    for n in 0..30u32 {
        let hash = open();
        hash.visit(&n.to_be_bytes(), &mut visitor::Set(b"value")).unwrap();
        while hash.maintain() {}
        hash.close().unwrap();
        assert!(hash.disk_usage().files <= 12, "{} files after {n} openings", hash.disk_usage().files);
    }
    let hash = open();
    assert_eq!(hash.status().records, 30);
    for n in 0..30u32 {
        assert!(hash.view(&n.to_be_bytes(), &mut |record| assert_eq!(record.value, b"value")).unwrap());
    }
}

#[test]
fn cleared_records_stay_removed_after_merging_segments() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("often.hash");
    let open = || DiskHash::open(&path, DiskHashOptions::default()).unwrap();
    let hash = open();
    // More than the limit below which a segment is small.
    for n in 0..600u32 {
        hash.visit(format!("old{n}").as_bytes(), &mut visitor::Set(&[7; 1000])).unwrap();
    }
    hash.close().unwrap();
    drop(hash);
    let hash = open();
    hash.clear(&mut || ()).unwrap();
    hash.close().unwrap();
    drop(hash);
    for n in 0..14u32 {
        let hash = open();
        hash.visit(&n.to_be_bytes(), &mut visitor::Set(b"value")).unwrap();
        while hash.maintain() {}
        hash.close().unwrap();
    }
    // As in a backup, which has no index.
    std::fs::remove_file(path.join("index")).unwrap();
    let hash = open();
    assert_eq!(hash.status().records, 14);
    assert!(!hash.view(b"old0", &mut |_| ()).unwrap());
}
