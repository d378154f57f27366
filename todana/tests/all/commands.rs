//! Compares operations on the real engine with a simple model, by random sequences with a moving
//! clock.
//!
//! The model follows the text of memcached's protocol: it is a map of items, with an `if` for each
//! sentence. The model cannot compute versions. It learns them from replies, and knows which of
//! them a later comparison must match.

use crate::model;

use model::{DatabaseModel, ModelItem, Operation, VersionChoice};
use proptest::prelude::*;
use todana_core::{ArithmeticDirection, CommandSyntax, StoreMode, Ttl};

/// Returns the number of cases. `TODANA_CASES` sets another one, for slow machines or long runs.
fn cases(default: u32) -> u32 {
    std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

fn ttl() -> impl Strategy<Value = Ttl> {
    prop_oneof![
        6 => Just(Ttl::Never),
        1 => Just(Ttl::Expired),
        4 => (1u32..40).prop_map(Ttl::Seconds),
        3 => (1u32..40).prop_map(Ttl::Sliding),
        1 => Just(Ttl::Seconds(2_592_000)),
        // The clock starts at model::START, so some of these times are already past.
        2 => (0u64..120).prop_map(|after| Ttl::At(model::START - 10 + after)),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        5 => "[0-9]{1,4}".prop_map(String::into_bytes),
        2 => prop_oneof![
            Just(u64::MAX.to_string()), Just(" 12".into()), Just("007".into()), Just("5  ".into()),
            Just("-5".into()), Just("12x".into()), Just(String::new()), Just("18446744073709551616".into()),
        ].prop_map(String::into_bytes),
        4 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => (1000usize..1100, any::<u8>()).prop_map(|(len, fill)| vec![fill; len]),
        1 => (65_000usize..70_000, any::<u8>()).prop_map(|(len, fill)| vec![fill; len]),
    ]
}

fn pick() -> impl Strategy<Value = VersionChoice> {
    prop_oneof![
        5 => Just(VersionChoice::Latest),
        3 => (0usize..8).prop_map(VersionChoice::Earlier),
        1 => prop_oneof![Just(0), Just(u64::MAX), (0u64..4).prop_map(|n| model::GIVEN + n)].prop_map(VersionChoice::Exactly),
    ]
}

fn given() -> impl Strategy<Value = Option<u64>> {
    proptest::option::weighted(0.1, (0u64..4).prop_map(|n| model::GIVEN + n))
}

fn maybe<T: std::fmt::Debug + Clone>(strategy: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(0.3, strategy)
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = || 0usize..model::KEYS.len();
    let syntax = || prop_oneof![Just(CommandSyntax::Classic), Just(CommandSyntax::Meta)];
    let mode = prop_oneof![
        4 => Just(StoreMode::Set), 1 => Just(StoreMode::Add), 1 => Just(StoreMode::Replace),
        1 => Just(StoreMode::Append), 1 => Just(StoreMode::Prepend),
    ];
    let delta = prop_oneof![0u64..20, Just(u64::MAX), Just(u64::MAX - 3)];
    prop_oneof![
        8 => (key(), any::<bool>(), syntax())
            .prop_map(|(key, shown, syntax)| Operation::Get { key, shown, syntax, touch: None, vivify: None, recache: None, given: None }),
        4 => (key(), any::<bool>(), maybe(ttl()), maybe(ttl()), maybe(0i64..40), given()).prop_map(
            |(key, shown, touch, vivify, recache, given)| {
                // The protocol does not state what R compares with if the same request contains T.
                let recache = recache.filter(|_| touch.is_none());
                Operation::Get { key, shown, syntax: CommandSyntax::Meta, touch, vivify, recache, given }
            }),
        10 => (key(), mode, value(), (prop_oneof![Just(0u32), any::<u32>()], ttl()), maybe(pick()), (any::<bool>(), any::<bool>()), (maybe(ttl()), given()))
            .prop_map(|(key, mode, value, (flags, ttl), compare, (shown, stale_if_older), (vivify, given))| {
                Operation::Store { key, mode, value, flags, ttl, compare, shown, stale_if_older, vivify, given }
            }),
        3 => (key(), maybe(pick()), prop_oneof![2 => Just((false, false)), 1 => any::<(bool, bool)>()], maybe(ttl()), maybe(any::<u32>()), given())
            .prop_map(|(key, compare, (mark_stale, drop_value), ttl, flags, given)| Operation::Delete { key, compare, mark_stale, drop_value, ttl, flags, given }),
        5 => (key(), any::<bool>(), delta, (maybe(ttl()), any::<u64>()), maybe(ttl()), maybe(pick()), (any::<bool>(), given()))
            .prop_map(|(key, up, delta, (vivify, initial), touch, compare, (shown, given))| {
                let direction = if up { ArithmeticDirection::Increment } else { ArithmeticDirection::Decrement };
                Operation::Arithmetic { key, direction, delta, vivify, initial, touch, compare, shown, given }
            }),
        2 => (key(), ttl()).prop_map(|(key, ttl)| Operation::Touch { key, ttl }),
        1 => prop_oneof![Just(Ttl::Never), ttl()].prop_map(|at| Operation::Flush { at }),
        4 => (0u64..15).prop_map(Operation::Advance),
        1 => Just(Operation::Maintain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(256), ..ProptestConfig::default() })]

    #[test]
    fn agree_with_the_model(operations in proptest::collection::vec(operation(), 1..250)) {
        let mut model = DatabaseModel::new();
        for operation in &operations {
            model.check(operation)?;
        }
        // At the end, both have the same records, even those that no operation has read.
        model.check_all()?;
    }
}

/// Proves that the comparison can fail: a wrong item in the model is detected.
#[test]
fn model_detects_a_difference() {
    let mut model = DatabaseModel::new();
    let get = Operation::Get {
        key: 0,
        shown: false,
        syntax: CommandSyntax::Classic,
        touch: None,
        vivify: None,
        recache: None,
        given: None,
    };
    model.check(&get).unwrap();
    model.items.insert(0, ModelItem::new(b"never stored".to_vec()));
    assert!(model.check(&get).is_err());
}
