//! A model of an engine, random operations, and the comparison of the two.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use todana_core::{Access, Action, Attributes, Engine, Expiry, Marks, Place, Record, UnixSeconds, Visitor};
use todana_engine::{MemHash, MemHashOptions};

/// What a closure decides.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    Keep,
    Put(Vec<u8>, Attributes),
    Retag(Attributes),
    Remove,
}

pub(crate) fn owned(record: Record<'_>) -> (Vec<u8>, Attributes) {
    (record.value.to_vec(), record.attributes)
}

pub(crate) struct Decided {
    decision: Decision,
    pub(crate) seen: Option<(Vec<u8>, Attributes)>,
    pub(crate) applied: Option<Option<(Vec<u8>, Attributes)>>,
}

impl Decided {
    pub(crate) fn new(decision: Decision) -> Self {
        Decided { decision, seen: None, applied: None }
    }
}

impl Visitor for Decided {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.seen = old.map(owned);
        match &self.decision {
            Decision::Keep => Action::Keep,
            Decision::Put(value, attributes) => Action::Put(Record::new(value, *attributes)),
            Decision::Retag(attributes) => Action::Retag(*attributes),
            Decision::Remove => Action::Remove,
        }
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        assert!(self.applied.is_none(), "applied once");
        self.applied = Some(now.map(owned));
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Put(Vec<u8>, Vec<u8>, Attributes),
    Retag(Vec<u8>, Attributes),
    Remove(Vec<u8>),
    Keep(Vec<u8>),
    View(Vec<u8>),
    Maintain,
    Scan,
    ScanInPieces(usize),
    Clear,
}

impl Operation {
    pub(crate) fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Operation {
        Operation::Put(key.into(), value.into(), Attributes::default())
    }
}

pub(crate) fn attributes() -> impl Strategy<Value = Attributes> {
    let expiry = prop_oneof![
        4 => Just(Expiry::Never),
        2 => any::<u32>().prop_map(|s| Expiry::At(UnixSeconds(s.into()))),
        1 => any::<u64>().prop_map(|s| Expiry::At(UnixSeconds(s))),
        1 => any::<(u32, u32)>().prop_map(|(s, span_s)| Expiry::Sliding { at: UnixSeconds(s.into()), span_s }),
    ];
    let access = proptest::option::weighted(
        0.1,
        (any::<u32>(), any::<bool>())
            .prop_map(|(at, fetched)| Access { at: UnixSeconds(at.into()), fetched }),
    );
    let marks = prop_oneof![
        5 => Just(Marks::default()),
        1 => any::<(bool, bool)>().prop_map(|(stale, token_out)| Marks { stale, token_out }),
    ];
    let flags = prop_oneof![3 => Just(0), 1 => any::<u32>()];
    let version = prop_oneof![3 => Just(0), 1 => any::<u64>()];
    (flags, expiry, version, marks, access).prop_map(|(flags, expiry, version, marks, access)| Attributes {
        flags,
        expiry,
        version,
        marks,
        access,
    })
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0u32..400).prop_map(|n| n.to_string().into_bytes()),
        3 => (0u32..100).prop_map(|n| format!("{n:08}").into_bytes()),
        6 => (0u32..400).prop_map(|n| format!("user:{n}:profile").into_bytes()),
        1 => (0u32..20, 0usize..300).prop_map(|(n, len)| format!("{n:x<len$}").into_bytes()),
        1 => (0u32..4, prop_oneof![Just(2000usize), Just(70_000)]).prop_map(|(n, len)| format!("{n}{}", "k".repeat(len)).into_bytes()),
        1 => Just(Vec::new()),
        1 => proptest::collection::vec(any::<u8>(), 0..5),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let of_len =
        |len: usize, salt: u8| (0..len).map(|i| (i as u8).wrapping_mul(31) ^ salt).collect::<Vec<u8>>();
    prop_oneof![
        6 => "[0-9]{1,22}".prop_map(String::into_bytes),
        6 => (0usize..64, any::<u8>()).prop_map(move |(len, salt)| of_len(len, salt)),
        4 => (64usize..1200, any::<u8>()).prop_map(move |(len, salt)| of_len(len, salt)),
        2 => (1200usize..66_000, any::<u8>()).prop_map(move |(len, salt)| of_len(len, salt)),
        1 => (65_000usize..300_000, any::<u8>()).prop_map(move |(len, salt)| of_len(len, salt)),
    ]
}

pub(crate) fn operations(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        40 => (key(), value(), attributes()).prop_map(|(k, v, a)| Operation::Put(k, v, a)),
        20 => (key(), value()).prop_map(|(k, v)| Operation::Put(k, v, Attributes::default())),
        10 => (key(), attributes()).prop_map(|(k, a)| Operation::Retag(k, a)),
        25 => key().prop_map(Operation::Remove),
        3 => key().prop_map(Operation::Keep),
        20 => key().prop_map(Operation::View),
        3 => Just(Operation::Maintain),
        1 => Just(Operation::Scan),
        1 => (1usize..50).prop_map(Operation::ScanInPieces),
    ];
    let clear = (0usize..10).prop_map(|at| (at == 0).then_some(Operation::Clear));
    (proptest::collection::vec(operation, len), clear).prop_map(|(mut operations, clear)| {
        if let Some(clear) = clear {
            let middle = operations.len() / 2;
            operations.insert(middle, clear);
        }
        operations
    })
}

type Map = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

fn scan(hash: &MemHash, piece: Option<usize>) -> Map {
    let mut found = Map::new();
    let mut place: Option<Place> = None;
    loop {
        let mut left = piece.unwrap_or(usize::MAX);
        let next = hash
            .scan(place, &mut |key, record| {
                let twice = found.insert(key.to_vec(), owned(record));
                assert!(twice.is_none(), "nothing was written, so nothing is shown twice");
                left = left.saturating_sub(1);
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        match next {
            Some(next) => place = Some(next),
            None => return found,
        }
    }
}

/// Runs the operations on both, comparing every outcome.
pub(crate) fn check(options: MemHashOptions, operations: &[Operation]) {
    let bounds = vec![10, 100, 1000, 10_000];
    let hash = MemHash::new(MemHashOptions { class_bounds: bounds.clone(), ..options }).unwrap();
    let committed = hash.status().committed_bytes;
    let mut model = Map::new();
    for operation in operations {
        let (key, decision) = match operation {
            Operation::Put(key, value, attributes) => (key, Decision::Put(value.clone(), *attributes)),
            Operation::Retag(key, attributes) => (key, Decision::Retag(*attributes)),
            Operation::Remove(key) => (key, Decision::Remove),
            Operation::Keep(key) => (key, Decision::Keep),
            Operation::View(key) => {
                let mut seen = None;
                let found = hash.view(key, &mut |record| seen = Some(owned(record))).unwrap();
                assert_eq!(found, seen.is_some());
                assert_eq!(seen.as_ref(), model.get(key));
                continue;
            }
            Operation::Maintain => {
                let mut rounds = 0;
                while hash.maintain() {
                    rounds += 1;
                    assert!(rounds < 100_000, "housekeeping comes to an end");
                }
                continue;
            }
            Operation::Scan => {
                assert!(scan(&hash, None) == model, "scan differs");
                continue;
            }
            Operation::ScanInPieces(piece) => {
                assert!(scan(&hash, Some(*piece)) == model, "scan in pieces of {piece} differs");
                continue;
            }
            Operation::Clear => {
                hash.clear(&mut || ()).unwrap();
                model.clear();
                continue;
            }
        };
        let old = model.get(key).cloned();
        let (new, applies) = match &decision {
            Decision::Keep => (old.clone(), false),
            Decision::Put(value, attributes) => (Some((value.clone(), *attributes)), true),
            Decision::Retag(attributes) => {
                (old.clone().map(|(value, _)| (value, *attributes)), old.is_some())
            }
            Decision::Remove => (None, old.is_some()),
        };
        let mut visitor = Decided::new(decision);
        hash.visit(key, &mut visitor).unwrap();
        assert_eq!(visitor.seen, old);
        assert_eq!(visitor.applied, applies.then(|| new.clone()));
        match new {
            Some(new) => model.insert(key.clone(), new),
            None => model.remove(key),
        };
    }
    assert!(scan(&hash, None) == model, "the last scan differs");
    let status = hash.status();
    assert_eq!(status.records, model.len() as u64);
    let mut classes = vec![(0, 0); bounds.len() + 1];
    for (key, (value, attributes)) in &model {
        let size = key.len() + value.len() + if attributes.flags != 0 { 4 } else { 0 };
        let class = bounds.iter().position(|&bound| size <= bound as usize).unwrap_or(bounds.len());
        classes[class].0 += 1;
        classes[class].1 += size as u64;
    }
    let counted: Vec<_> = status.classes.iter().map(|class| (class.records, class.plain_bytes)).collect();
    assert_eq!(counted, classes);
    hash.clear(&mut || ()).unwrap();
    assert_eq!(hash.status().records, 0);
    assert_eq!(hash.status().live_bytes, 0);
    assert_eq!(hash.status().committed_bytes, committed, "all memory is given back");
}
