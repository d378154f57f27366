//! `MemTree` against a `BTreeMap`: random operations with all attributes and all size ranges, and walks both ways.

#[path = "model/tree.rs"]
mod tree;

use proptest::prelude::*;
use todana_engine::{Compression, MemTreeOptions};
use tree::{Step, check, steps};

/// Fewer cases where each is slow (sanitizers, valgrind) or more for a long run: `TODANA_CASES`.
fn cases(default: u32) -> u32 {
    std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(48), ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(steps in steps(1..1500), partitions in 1usize..5, compressed in any::<bool>()) {
        let compression = compressed.then_some(Compression { open_bytes: 0 });
        check(MemTreeOptions { partitions: Some(partitions), compression, ..Default::default() }, &steps);
    }
}

fn growth() -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..3u32 {
        // Upwards, downwards, at random.
        let number = |n: u32| match round {
            0 => n,
            1 => 59_999 - n,
            _ => n.wrapping_mul(7919) % 60_000,
        };
        steps.extend(
            (0..60_000).map(number).map(|n| Step::put(format!("key-{n:05}"), format!("{}", n * round))),
        );
        steps.push(Step::Walk);
        steps.extend(
            (0..60_000)
                .map(number)
                .filter(|n| n % 50 != 0)
                .map(|n| Step::Remove(format!("key-{n:05}").into())),
        );
        steps.push(Step::Maintain);
        steps.push(Step::Walk);
    }
    steps
}

#[test]
fn grows_shrinks_and_grows_again_without_losing_a_record() {
    check(MemTreeOptions { partitions: Some(3), ..Default::default() }, &growth());
}

#[test]
fn a_compressed_tree_grows_shrinks_and_grows_again_without_losing_a_record() {
    let compression = Some(Compression { open_bytes: 0 });
    check(MemTreeOptions { partitions: Some(3), compression, ..Default::default() }, &growth());
}

#[test]
fn keys_that_differ_late_keep_their_order() {
    let mut steps = Vec::new();
    for n in 0..3000u32 {
        let long = "k".repeat([3, 490, 499, 500, 501, 700, 2000][n as usize % 7]);
        steps.push(Step::put(format!("{long}{:04}", n.wrapping_mul(37) % 3000), format!("{n}")));
        steps.push(Step::put(long, "the key alone"));
    }
    steps.push(Step::Walk);
    for n in (0..3000u32).step_by(3) {
        let long = "k".repeat([3, 490, 499, 500, 501, 700, 2000][n as usize % 7]);
        steps.push(Step::Remove(format!("{long}{:04}", n.wrapping_mul(37) % 3000).into()));
    }
    steps.push(Step::Maintain);
    steps.push(Step::Walk);
    check(MemTreeOptions { partitions: Some(2), ..Default::default() }, &steps);
}

#[test]
fn a_leaf_that_is_thinned_out_and_filled_again_and_again_stays_whole() {
    let mut steps = Vec::new();
    for round in 0..40u32 {
        // Each round fills another stretch, and leaves a record here and there of it.
        let key = |n: u32| format!("{round:02}{n:04}");
        steps.extend((0..700).map(|n| Step::put(key(n), "value")));
        steps.extend((0..700).filter(|n| n % 11 != 0).map(|n| Step::Remove(key(n).into())));
        steps.push(Step::Walk);
    }
    for compression in [None, Some(Compression { open_bytes: 0 })] {
        check(MemTreeOptions { partitions: Some(1), compression, ..Default::default() }, &steps);
    }
}
