//! A `BTreeMap` as the model of an engine, and their comparison.

pub(crate) mod operation;

use operation::Operation;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use todana_core::{Action, Attributes, Engine, Record, ScanPosition, Visitor};

/// A value and its attributes.
pub(crate) type Owned = (Vec<u8>, Attributes);

/// All records of a model or an engine.
pub(crate) type Map = BTreeMap<Vec<u8>, Owned>;

/// Returns the number of records in each size class, up to these bounds and above, and the bytes of
/// their keys, values and flags.
pub(crate) fn classes(records: &Map, bounds: &[u32]) -> Vec<(u64, u64)> {
    let mut classes = vec![(0, 0); bounds.len() + 1];
    for (key, (value, attributes)) in records {
        let size = key.len() + value.len() + if attributes.flags != 0 { 4 } else { 0 };
        let class = bounds.iter().position(|&bound| size <= bound as usize).unwrap_or(bounds.len());
        classes[class].0 += 1;
        classes[class].1 += size as u64;
    }
    classes
}

/// A visitor whose action is decided by a closure.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    Keep,
    Put(Vec<u8>, Attributes),
    Retag(Attributes),
    Remove,
}

pub(crate) fn owned(record: Record<'_>) -> Owned {
    (record.value.to_vec(), record.attributes)
}

pub(crate) struct Decided {
    decision: Decision,
    /// It needs only the length of the old value.
    is_blind: bool,
    pub(crate) seen: Option<Owned>,
    pub(crate) applied: Option<Option<Owned>>,
}

impl Decided {
    pub(crate) fn new(decision: Decision) -> Self {
        Decided { decision, is_blind: false, seen: None, applied: None }
    }

    pub(crate) fn blind(decision: Decision) -> Self {
        Decided { is_blind: true, ..Decided::new(decision) }
    }

    /// Returns true if it was shown this record.
    pub(crate) fn has_seen(&self, old: Option<&Owned>) -> bool {
        if !self.is_blind {
            return self.seen.as_ref() == old;
        }
        let known = |(value, attributes): &Owned| (value.len(), *attributes);
        self.seen.as_ref().map(known) == old.map(known)
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

    fn ignores_value(&self) -> bool {
        self.is_blind
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        assert!(self.applied.is_none(), "applied once");
        self.applied = Some(now.map(owned));
    }
}

/// Returns the record of a key.
pub(crate) fn view(engine: &dyn Engine, key: &[u8]) -> Option<Owned> {
    let mut seen = None;
    let found = engine.view(key, &mut |record| seen = Some(owned(record))).expect("reads do not fail");
    assert_eq!(found, seen.is_some());
    seen
}

/// Returns all records, read `piece` at a time. Nothing may be written meanwhile: each record must
/// be shown exactly once, and in order if the engine is ordered.
pub(crate) fn scan(engine: &dyn Engine, piece: usize) -> Map {
    let is_ordered = engine.ordered().is_some();
    let mut found = Map::new();
    let mut place: Option<ScanPosition> = None;
    loop {
        let mut left = piece;
        let next = engine.scan(place, &mut |key, record| {
            let is_next = found.last_key_value().is_none_or(|(last, _)| key > &last[..]);
            assert!(!is_ordered || is_next, "{} out of order", name(key));
            assert!(found.insert(key.to_vec(), owned(record)).is_none(), "shown once as nothing is written");
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match next.expect("a scan does not fail") {
            Some(next) => place = Some(next),
            None => return found,
        }
    }
}

/// Compares up to `len` records from a key on, in both directions, if the engine is ordered.
fn assert_walks(engine: &dyn Engine, from: Bound<&[u8]>, len: usize, model: &Map) {
    let Some(ordered) = engine.ordered() else { return };
    let walked = |ascends: bool| {
        let mut found = Vec::new();
        let see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()> = &mut |key, record| {
            found.push((key.to_vec(), owned(record)));
            if found.len() == len { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if ascends { ordered.ascend(from, see) } else { ordered.descend(from, see) }
            .expect("it does not fail");
        found
    };
    let own = |(key, owned): (&Vec<u8>, &Owned)| (key.clone(), owned.clone());
    let above: Vec<_> = model.range::<[u8], _>((from, Bound::Unbounded)).take(len).map(own).collect();
    assert!(walked(true) == above, "upwards from {}", start(from));
    let below: Vec<_> = model.range::<[u8], _>((Bound::Unbounded, from)).rev().take(len).map(own).collect();
    assert!(walked(false) == below, "downwards from {}", start(from));
}

fn start(from: Bound<&[u8]>) -> String {
    match from {
        Bound::Included(key) => format!("{}, which counts", name(key)),
        Bound::Excluded(key) => name(key),
        Bound::Unbounded => "the end".into(),
    }
}

/// Fails with the first key at which the two differ; all bytes of both would be too much to read.
pub(crate) fn assert_same(found: &Map, model: &Map, what: &str) {
    for (key, record) in model {
        let other = found.get(key);
        assert!(other == Some(record), "{what}: {} differs or is missing", name(key));
    }
    let extra = found.keys().find(|key| !model.contains_key(*key));
    assert!(extra.is_none(), "{what}: {} should not be there", name(extra.expect("some")));
}

/// Returns the first bytes of a key, and its length.
pub(crate) fn name(key: &[u8]) -> String {
    format!("key \"{}\" of {} bytes", key[..key.len().min(40)].escape_ascii(), key.len())
}

/// Applies an operation to both and compares the results.
pub(crate) fn operate(engine: &dyn Engine, operation: &Operation, model: &mut Map) {
    let (operation, is_blind) = match operation {
        Operation::Blindly(operation) => (&**operation, true),
        operation => (operation, false),
    };
    let (key, decision) = match operation {
        Operation::Put(key, value, attributes) => (key, Decision::Put(value.clone(), *attributes)),
        Operation::Retag(key, attributes) => (key, Decision::Retag(*attributes)),
        Operation::Remove(key) => (key, Decision::Remove),
        Operation::Keep(key) => (key, Decision::Keep),
        Operation::View(key) => {
            assert!(view(engine, key).as_ref() == model.get(key), "{} differs", name(key));
            return;
        }
        Operation::Maintain => {
            let ends = (0..100_000).any(|_| !engine.maintain());
            assert!(ends, "housekeeping comes to an end");
            return;
        }
        Operation::Scan => {
            assert_walks(engine, Bound::Unbounded, usize::MAX, model);
            return assert_same(&scan(engine, usize::MAX), model, "a scan");
        }
        Operation::ScanInPieces(piece) => {
            return assert_same(&scan(engine, *piece), model, "a scan in pieces");
        }
        Operation::Walk(key, at, len) => {
            let from = if *at { Bound::Included(&key[..]) } else { Bound::Excluded(&key[..]) };
            return assert_walks(engine, from, *len, model);
        }
        Operation::Clear => {
            engine.clear(&mut || ()).unwrap();
            model.clear();
            return;
        }
        Operation::Blindly(_) => unreachable!("once is enough"),
    };
    let old = model.get(key).cloned();
    let (new, applies) = match &decision {
        Decision::Keep => (old.clone(), false),
        Decision::Put(value, attributes) => (Some((value.clone(), *attributes)), true),
        Decision::Retag(attributes) => (old.clone().map(|(value, _)| (value, *attributes)), old.is_some()),
        Decision::Remove => (None, old.is_some()),
    };
    let mut visitor = if is_blind { Decided::blind(decision) } else { Decided::new(decision) };
    engine.visit(key, &mut visitor).unwrap();
    assert!(visitor.has_seen(old.as_ref()), "{} was shown otherwise than it is", name(key));
    assert!(visitor.applied == applies.then(|| new.clone()), "{} was applied otherwise", name(key));
    match new {
        Some(new) => model.insert(key.clone(), new),
        None => model.remove(key),
    };
}
