//! Engines in memory against a `BTreeMap`: random operations with all attributes and sizes, and the
//! counts. When all records are removed, all memory is returned.

#[allow(dead_code, reason = "each test file uses its part")]
mod model;

use model::operation::{Operation, operations};
use model::{Map, classes, operate};
use proptest::prelude::*;
use todana_core::Engine;
use todana_engine::{Compression, MemHash, MemHashOptions, MemTree, MemTreeOptions};

/// The bounds of the size classes.
const BOUNDS: [u32; 4] = [10, 100, 1000, 10_000];

fn check_hash(options: MemHashOptions, operations: &[Operation]) {
    let options = MemHashOptions { class_bounds: BOUNDS.into(), ..options };
    check(&MemHash::new(options).unwrap(), operations);
}

fn check_tree(options: MemTreeOptions, operations: &[Operation]) {
    let options = MemTreeOptions { class_bounds: BOUNDS.into(), ..options };
    check(&MemTree::new(options).unwrap(), operations);
}

fn check(engine: &dyn Engine, operations: &[Operation]) {
    let committed = engine.status().committed_bytes;
    let mut model = Map::new();
    for operation in operations {
        operate(engine, operation, &mut model);
    }
    operate(engine, &Operation::Scan, &mut model);
    let status = engine.status();
    assert_eq!(status.records, model.len() as u64);
    let counted: Vec<_> = status.classes.iter().map(|class| (class.records, class.plain_bytes)).collect();
    assert_eq!(counted, classes(&model, &BOUNDS));
    engine.clear(&mut || ()).unwrap();
    assert_eq!(engine.status().records, 0);
    assert_eq!(engine.status().live_bytes, 0);
    assert_eq!(engine.status().committed_bytes, committed, "all memory is given back");
}

/// Returns the number of cases: `TODANA_CASES` sets fewer for slow runs (sanitizers, valgrind) or
/// more for long ones.
fn cases(default: u32) -> u32 {
    std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(24), ..ProptestConfig::default() })]

    #[test]
    fn a_hash_agrees_with_the_model(operations in operations(1..1500), seed in any::<u64>(), shards in 1usize..5) {
        check_hash(MemHashOptions { seed: Some(seed), shards: Some(shards), ..Default::default() }, &operations);
    }

    #[test]
    fn a_tree_agrees_with_the_model(operations in operations(1..1500), partitions in 1usize..5, compressed in any::<bool>()) {
        let compression = compressed.then_some(Compression { open_bytes: 0 });
        check_tree(MemTreeOptions { partitions: Some(partitions), compression, ..Default::default() }, &operations);
    }
}

fn growth() -> Vec<Operation> {
    let mut operations = Vec::new();
    for round in 0..3u32 {
        // Upwards, downwards, at random.
        let number = |n: u32| match round {
            0 => n,
            1 => 59_999 - n,
            _ => n.wrapping_mul(7919) % 60_000,
        };
        operations.extend(
            (0..60_000).map(number).map(|n| Operation::put(format!("key-{n:05}"), format!("{}", n * round))),
        );
        operations.push(Operation::Scan);
        operations.extend(
            (0..60_000)
                .map(number)
                .filter(|n| n % 50 != 0)
                .map(|n| Operation::Remove(format!("key-{n:05}").into())),
        );
        operations.push(Operation::Maintain);
        operations.push(Operation::Scan);
    }
    operations
}

#[test]
fn hash_that_grows_and_shrinks_loses_nothing() {
    check_hash(MemHashOptions { seed: Some(7), shards: Some(2), ..Default::default() }, &growth());
}

#[test]
fn tree_that_grows_and_shrinks_loses_nothing() {
    check_tree(MemTreeOptions { partitions: Some(3), ..Default::default() }, &growth());
}

#[test]
fn compressed_tree_that_grows_and_shrinks_loses_nothing() {
    let compression = Some(Compression { open_bytes: 0 });
    check_tree(MemTreeOptions { partitions: Some(3), compression, ..Default::default() }, &growth());
}

#[test]
fn keys_that_differ_late_keep_their_order() {
    let mut operations = Vec::new();
    for n in 0..3000u32 {
        let long = "k".repeat([3, 490, 499, 500, 501, 700, 2000][n as usize % 7]);
        operations.push(Operation::put(format!("{long}{:04}", n.wrapping_mul(37) % 3000), format!("{n}")));
        operations.push(Operation::put(long, "the key alone"));
    }
    operations.push(Operation::Scan);
    for n in (0..3000u32).step_by(3) {
        let long = "k".repeat([3, 490, 499, 500, 501, 700, 2000][n as usize % 7]);
        operations.push(Operation::Remove(format!("{long}{:04}", n.wrapping_mul(37) % 3000).into()));
    }
    operations.push(Operation::Maintain);
    operations.push(Operation::Scan);
    check_tree(MemTreeOptions { partitions: Some(2), ..Default::default() }, &operations);
}

#[test]
fn leaf_survives_repeated_thinning_and_filling() {
    let mut operations = Vec::new();
    for round in 0..40u32 {
        // Each round fills another range and leaves some of its records.
        let key = |n: u32| format!("{round:02}{n:04}");
        operations.extend((0..700).map(|n| Operation::put(key(n), "value")));
        operations.extend((0..700).filter(|n| n % 11 != 0).map(|n| Operation::Remove(key(n).into())));
        operations.push(Operation::Scan);
    }
    for compression in [None, Some(Compression { open_bytes: 0 })] {
        check_tree(MemTreeOptions { partitions: Some(1), compression, ..Default::default() }, &operations);
    }
}
