//! A model of an ordered engine: random operations and walks, and the comparison with a `BTreeMap`.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use todana_core::{
    Access, Action, Attributes, Engine, Expiry, Marks, Ordered, Place, Record, UnixSeconds, Visitor,
};
use todana_engine::{MemTree, MemTreeOptions};

pub(crate) type Owned = (Vec<u8>, Attributes);
type Map = BTreeMap<Vec<u8>, Owned>;

fn owned(record: Record<'_>) -> Owned {
    (record.value.to_vec(), record.attributes)
}

/// One step of a test.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Put(Vec<u8>, Vec<u8>, Attributes),
    Retag(Vec<u8>, Attributes),
    Remove(Vec<u8>),
    Keep(Vec<u8>),
    View(Vec<u8>),
    Maintain,
    /// All records, upwards and downwards and by scan.
    Walk,
    /// Some records from a key on, in both directions: whether the key itself counts, and how many.
    From(Vec<u8>, bool, usize),
    ScanInPieces(usize),
    Clear,
}

impl Step {
    pub(crate) fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Step {
        Step::Put(key.into(), value.into(), Attributes::default())
    }
}

struct Decided<'a> {
    step: &'a Step,
    seen: Option<Owned>,
    applied: Option<Option<Owned>>,
}

impl Visitor for Decided<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.seen = old.map(owned);
        match self.step {
            Step::Put(_, value, attributes) => Action::Put(Record::new(value, *attributes)),
            Step::Retag(_, attributes) => Action::Retag(*attributes),
            Step::Remove(_) => Action::Remove,
            _ => Action::Keep,
        }
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        assert!(self.applied.is_none(), "applied once");
        self.applied = Some(now.map(owned));
    }
}

fn attributes() -> impl Strategy<Value = Attributes> {
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
        1 => (0u32..30, 0u32..8, 480usize..510).prop_map(|(n, m, len)| format!("{m}{}{n}", "k".repeat(len)).into_bytes()),
        1 => (0u32..4, prop_oneof![Just(2000usize), Just(70_000)])
            .prop_map(|(n, len)| format!("{}{n}", "k".repeat(len)).into_bytes()),
        1 => Just(Vec::new()),
        1 => proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'u'), Just(255)], 0..12),
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

pub(crate) fn steps(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => (key(), value(), attributes()).prop_map(|(k, v, a)| Step::Put(k, v, a)),
        20 => (key(), value()).prop_map(|(k, v)| Step::put(k, v)),
        10 => (key(), attributes()).prop_map(|(k, a)| Step::Retag(k, a)),
        25 => key().prop_map(Step::Remove),
        3 => key().prop_map(Step::Keep),
        20 => key().prop_map(Step::View),
        5 => (key(), any::<bool>(), 0usize..100).prop_map(|(k, with, count)| Step::From(k, with, count)),
        3 => Just(Step::Maintain),
        1 => Just(Step::Walk),
        1 => (1usize..50).prop_map(Step::ScanInPieces),
    ];
    let clear = (0usize..10).prop_map(|at| (at == 0).then_some(Step::Clear));
    (proptest::collection::vec(step, len), clear).prop_map(|(mut steps, clear)| {
        if let Some(clear) = clear {
            let middle = steps.len() / 2;
            steps.insert(middle, clear);
        }
        steps
    })
}

/// The keys, values and attributes that a walk shows, at most so many.
fn walk(tree: &MemTree, ascends: bool, from: Bound<&[u8]>, count: usize) -> Vec<(Vec<u8>, Owned)> {
    let mut found = Vec::new();
    if count == 0 {
        return found;
    }
    let see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()> = &mut |key, record| {
        found.push((key.to_vec(), owned(record)));
        if found.len() == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    if ascends { tree.ascend(from, see) } else { tree.descend(from, see) }.unwrap();
    found
}

fn expected(model: &Map, ascends: bool, from: Bound<&[u8]>, count: usize) -> Vec<(Vec<u8>, Owned)> {
    let own = |(key, owned): (&Vec<u8>, &Owned)| (key.clone(), owned.clone());
    if ascends {
        model.range::<[u8], _>((from, Bound::Unbounded)).take(count).map(own).collect()
    } else {
        model.range::<[u8], _>((Bound::Unbounded, from)).rev().take(count).map(own).collect()
    }
}

fn scan(tree: &MemTree, piece: usize) -> Vec<(Vec<u8>, Owned)> {
    let mut found = Vec::new();
    let mut place: Option<Place> = None;
    loop {
        let mut left = piece;
        place = tree
            .scan(place, &mut |key, record| {
                found.push((key.to_vec(), owned(record)));
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        if place.is_none() {
            return found;
        }
    }
}

fn check_all(tree: &MemTree, model: &Map) {
    for ascends in [true, false] {
        let found = walk(tree, ascends, Bound::Unbounded, usize::MAX);
        assert!(found == expected(model, ascends, Bound::Unbounded, usize::MAX), "ascends: {ascends}");
    }
    assert!(scan(tree, usize::MAX) == expected(model, true, Bound::Unbounded, usize::MAX), "scan");
}

/// Runs the steps on both, comparing every outcome.
pub(crate) fn check(options: MemTreeOptions, steps: &[Step]) {
    let bounds = vec![10, 100, 1000, 10_000];
    let tree = MemTree::new(MemTreeOptions { class_bounds: bounds.clone(), ..options }).unwrap();
    let committed = tree.status().committed_bytes;
    let mut model = Map::new();
    for step in steps {
        let (key, new, applies) = match step {
            Step::Put(key, value, attributes) => (key, Some((value.clone(), *attributes)), true),
            Step::Retag(key, attributes) => {
                let old = model.get(key);
                (key, old.map(|(value, _)| (value.clone(), *attributes)), old.is_some())
            }
            Step::Remove(key) => (key, None, model.contains_key(key)),
            Step::Keep(key) => (key, model.get(key).cloned(), false),
            Step::View(key) => {
                let mut seen = None;
                let found = tree.view(key, &mut |record| seen = Some(owned(record))).unwrap();
                assert_eq!(found, seen.is_some());
                assert_eq!(seen.as_ref(), model.get(key));
                continue;
            }
            Step::Maintain => {
                let mut rounds = 0;
                while tree.maintain() {
                    rounds += 1;
                    assert!(rounds < 100_000, "housekeeping comes to an end");
                }
                continue;
            }
            Step::Walk => {
                check_all(&tree, &model);
                continue;
            }
            Step::From(key, with, count) => {
                let from = if *with { Bound::Included(&key[..]) } else { Bound::Excluded(&key[..]) };
                for ascends in [true, false] {
                    let found = walk(&tree, ascends, from, *count);
                    assert!(found == expected(&model, ascends, from, *count), "{from:?}, ascends: {ascends}");
                }
                continue;
            }
            Step::ScanInPieces(piece) => {
                let all = expected(&model, true, Bound::Unbounded, usize::MAX);
                assert!(scan(&tree, *piece) == all, "scan in pieces of {piece} differs");
                continue;
            }
            Step::Clear => {
                tree.clear(&mut || ()).unwrap();
                model.clear();
                continue;
            }
        };
        let mut visitor = Decided { step, seen: None, applied: None };
        tree.visit(key, &mut visitor).unwrap();
        assert_eq!(visitor.seen, model.get(key).cloned());
        assert_eq!(visitor.applied, applies.then(|| new.clone()));
        match new {
            Some(new) => model.insert(key.clone(), new),
            None => model.remove(key),
        };
    }
    check_all(&tree, &model);
    let status = tree.status();
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
    tree.clear(&mut || ()).unwrap();
    assert_eq!(tree.status().records, 0);
    assert_eq!(tree.status().live_bytes, 0);
    assert_eq!(tree.status().committed_bytes, committed, "all memory is given back");
}
