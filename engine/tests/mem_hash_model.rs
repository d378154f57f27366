//! `MemHash` against a `BTreeMap`: random operations with all attributes and all size ranges.

mod model;

use model::{Operation, check, operations};
use proptest::prelude::*;
use todana_engine::MemHashOptions;

/// Fewer cases where each is slow (sanitizers, valgrind) or more for a long run: `TODANA_CASES`.
fn cases(default: u32) -> u32 {
    std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(48), ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(operations in operations(1..1500), seed in any::<u64>(), shards in 1usize..5) {
        check(MemHashOptions { seed: Some(seed), shards: Some(shards), ..Default::default() }, &operations);
    }
}

#[test]
fn grows_shrinks_and_grows_again_without_losing_a_record() {
    let mut operations = Vec::new();
    for round in 0..3u32 {
        operations
            .extend((0..60_000u32).map(|n| Operation::put(format!("key-{n}"), format!("{}", n * round))));
        operations.push(Operation::Scan);
        operations.extend(
            (0..60_000u32).filter(|n| n % 50 != 0).map(|n| Operation::Remove(format!("key-{n}").into())),
        );
        operations.push(Operation::Maintain);
        operations.push(Operation::Scan);
    }
    check(MemHashOptions { seed: Some(7), shards: Some(2), ..Default::default() }, &operations);
}
