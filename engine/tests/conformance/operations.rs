//! Random operations with all attributes and sizes, each result compared with that of a `BTreeMap`.

use crate::model::operation::{Operation, attributes, operations};
use crate::model::{Decided, Decision, Map, assert_same, operate, owned, scan, view};
use crate::subject::{Opened, Subject, cases, put, remove};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use todana_core::{Attributes, Engine, SweepAim, UnixSeconds};

#[derive(Clone, Debug)]
enum Step {
    Do(Operation),
    /// Closes and reopens the engine.
    Reopen,
    /// Announces a record, and reads it without counting a use.
    Peek(Vec<u8>),
    /// Removes the records that have expired by this second.
    Sweep(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let short = prop_oneof![
        (0u32..400).prop_map(|n| n.to_string().into_bytes()),
        (0u32..400).prop_map(|n| format!("user:{n}:profile").into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..5),
    ];
    let others = prop_oneof![
        2 => Just(Step::Reopen),
        10 => short.prop_map(Step::Peek),
        1 => any::<u32>().prop_map(|now| Step::Sweep(now.into())),
    ];
    let others = proptest::collection::vec((any::<prop::sample::Index>(), others), 0..40);
    (operations(1..800), others).prop_map(|(operations, others)| {
        let mut steps: Vec<Step> = operations.into_iter().map(Step::Do).collect();
        for (at, step) in others {
            steps.insert(at.index(steps.len()), step);
        }
        steps
    })
}

pub(crate) fn random_operations_agree_with_the_model(subject: &Subject) {
    let config = Config {
        cases: cases(if subject.keeps { 24 } else { 32 }),
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&steps(), |steps| {
        check(&mut subject.fresh(), &steps);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn check(engine: &mut Opened, steps: &[Step]) {
    let mut model = Map::new();
    for step in steps {
        match step {
            Step::Do(operation) => operate(&**engine, operation, &mut model),
            Step::Reopen => engine.reopen(),
            Step::Peek(key) => {
                engine.prefetch_all(&[key, b"absent"]);
                let mut seen = None;
                engine.peek(key, &mut |record| seen = Some(owned(record))).unwrap();
                assert_eq!(seen.as_ref(), model.get(key));
            }
            Step::Sweep(now) => sweep(&**engine, *now, &mut model),
        }
        if engine.status().records != model.len() as u64 {
            panic!("{} records counted, {} there, after {step:?}", engine.status().records, model.len());
        }
    }
    assert_same(&scan(&**engine, usize::MAX), &model, "the last scan");
    engine.reopen();
    assert_same(&scan(&**engine, 100), &model, "the scan after reopening");
    assert_eq!(engine.status().records, model.len() as u64);
}

/// Does a complete sweep.
fn sweep(engine: &dyn Engine, now: u64, model: &mut Map) {
    let Some(perishable) = engine.sweepable() else { return };
    let (mut place, mut removed) = (None, 0);
    let before = model.len();
    model.retain(|_, (_, attributes)| attributes.expiry.is_live(UnixSeconds(now)));
    let over = (before - model.len()) as u64;
    // An engine that shrinks during a sweep may skip some records; repeated sweeps find them.
    let mut rounds = 0;
    while removed < over || rounds == 0 {
        let mut is_over = |expiry: todana_core::Expiry| !expiry.is_live(UnixSeconds(now));
        let swept = perishable.sweep(place, 50, SweepAim::Tidiness, &mut is_over).unwrap();
        removed += swept.removed;
        place = swept.next;
        rounds += usize::from(place.is_none());
        assert!(rounds < 10, "{removed} of {over} were removed");
    }
    assert_eq!(removed, over);
}

pub(crate) fn growth_and_shrinkage_lose_no_record(subject: &Subject) {
    let mut engine = subject.fresh();
    let mut model = Map::new();
    let count = 1000 * cases(30);
    for round in 0..3u32 {
        for n in 0..count {
            let (key, value) = (format!("key-{}", n * 7919 % count), format!("{}", n * round));
            put(&*engine, key.as_bytes(), value.as_bytes(), Attributes::default());
            model.insert(key.into(), (value.into(), Attributes::default()));
        }
        assert_same(&scan(&*engine, usize::MAX), &model, "grown");
        engine.reopen();
        for n in (0..count).filter(|n| n % 50 != 0) {
            let key = format!("key-{n}").into_bytes();
            assert!(remove(&*engine, &key) && model.remove(&key).is_some());
        }
        while engine.maintain() {}
        assert_same(&scan(&*engine, 1000), &model, "shrunk");
        engine.reopen();
        assert_eq!(engine.status().records, model.len() as u64);
    }
}

pub(crate) fn visitor_is_applied_only_after_a_change(subject: &Subject) {
    let mut engine = subject.fresh();
    let mut runner = TestRunner::deterministic();
    for n in 0..50 {
        let given = attributes().new_tree(&mut runner).expect("it makes some").current();
        let key = format!("record {n}").into_bytes();
        let absent = |engine: &dyn Engine, decision| {
            let mut visitor = Decided::new(decision);
            engine.visit(&key, &mut visitor).unwrap();
            assert_eq!((visitor.seen, visitor.applied), (None, None));
            assert_eq!(view(engine, &key), None);
        };
        absent(&*engine, Decision::Keep);
        absent(&*engine, Decision::Remove);
        absent(&*engine, Decision::Retag(given));
        put(&*engine, &key, b"value", Attributes::default());
        let mut visitor = Decided::new(Decision::Retag(given));
        engine.visit(&key, &mut visitor).unwrap();
        assert_eq!(visitor.seen, Some((b"value".to_vec(), Attributes::default())));
        assert_eq!(visitor.applied, Some(Some((b"value".to_vec(), given))));
        engine.reopen();
        assert_eq!(view(&*engine, &key), Some((b"value".to_vec(), given)), "attributes are kept");
        assert!(remove(&*engine, &key));
        engine.reopen();
        assert_eq!(view(&*engine, &key), None);
    }
}
