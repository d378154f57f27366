//! Loading records in the order of another hash's scan gives the same result as in any other order.

mod visitor;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use todana_core::{Engine, ScanOrder};
use todana_engine::{MemHash, MemHashOptions};
use visitor::{Remove, Set};

fn hash(shards: usize, seed: u64) -> MemHash {
    let (shards, seed) = (Some(shards), Some(seed));
    MemHash::new(MemHashOptions { shards, seed, ..MemHashOptions::default() }).unwrap()
}

/// Returns the records in the order of the scan.
fn scan(hash: &MemHash) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut records = Vec::new();
    let place = hash.scan(None, &mut |key, record| {
        records.push((key.to_vec(), record.value.to_vec()));
        ControlFlow::Continue(())
    });
    assert_eq!(place.unwrap(), None);
    records
}

fn fill(hash: &MemHash, records: u32) {
    for n in 0..records {
        hash.visit(n.to_string().as_bytes(), &mut Set(&n.to_le_bytes())).unwrap();
    }
}

#[test]
fn ordered_load_gives_the_same_records_and_buckets() {
    let before = hash(4, 5);
    fill(&before, 50_000);
    let (order, records) = (before.scan_order().unwrap(), scan(&before));
    for shards in [1, 4, 16] {
        let after = hash(shards, 5);
        after.begin_ordered_load(order);
        for (key, value) in &records {
            after.visit(key, &mut Set(value)).unwrap();
        }
        after.end_ordered_load();
        let now = scan(&after);
        if shards == 4 {
            assert!(now == records);
            // The groups are divided evenly; the contents of the shards are not quite even.
            let now = after.scan_order().unwrap();
            assert_eq!(now.seed, order.seed);
            assert!(now.groups.abs_diff(order.groups) < order.groups / 50, "{now:?} {order:?}");
        }
        let (now, records): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (now.into_iter().collect(), records.iter().cloned().collect());
        assert!(now == records);
    }
}

#[test]
fn unused_expected_buckets_are_merged() {
    let hash = hash(1, 1);
    hash.begin_ordered_load(ScanOrder { seed: 1, groups: 10_000 });
    assert_eq!(hash.scan_order().unwrap().groups, 10_000);
    fill(&hash, 1_000);
    assert_eq!(hash.scan_order().unwrap().groups, 10_000);
    hash.end_ordered_load();
    while hash.maintain() {}
    assert!(hash.scan_order().unwrap().groups < 300, "{:?}", hash.scan_order());
    assert_eq!(scan(&hash).len(), 1_000);
    hash.visit(b"7", &mut Remove).unwrap();
    assert_eq!(scan(&hash).len(), 999);
}

#[test]
fn ordered_load_needs_empty_hash_and_same_seed() {
    let hash = hash(1, 1);
    fill(&hash, 10);
    let before = hash.scan_order();
    hash.begin_ordered_load(ScanOrder { seed: 1, groups: 10_000 });
    assert_eq!(hash.scan_order(), before);
    assert_eq!(scan(&hash).len(), 10);
    hash.clear(&mut || ()).unwrap();
    hash.begin_ordered_load(ScanOrder { seed: 2, groups: 10_000 });
    assert_eq!(hash.scan_order().unwrap().groups, 1);
}
