//! Trees whose records are in blocks.

mod visitor;

use std::collections::BTreeMap;
use std::fs;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use todana_core::{
    Action, Attributes, CheckpointedEngine, Engine, ErrorKind, OrderedEngine, Record, Visitor,
};
use todana_engine::{DiskTree, DiskTreeOptions};
use visitor::{Remove, Set};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(directory: &Path) -> DiskTree {
    let options = DiskTreeOptions { in_blocks: true, map_bytes: 4 << 20, ..Default::default() };
    DiskTree::open(directory, options).unwrap()
}

fn all(tree: &DiskTree) -> todana_core::Result<Map> {
    let mut found = Map::new();
    tree.scan(None, &mut |key, record| {
        found.insert(key.to_vec(), record.value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Stores or removes a record without knowing whether it exists.
struct Blind<'v>(Option<&'v [u8]>);

impl Visitor for Blind<'_> {
    fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
        self.0.map_or(Action::Remove, |value| Action::Put(Record::new(value, Attributes::default())))
    }

    fn overwrites(&self) -> bool {
        true
    }

    fn ignores_record(&self) -> bool {
        true
    }
}

fn random_key(random: &mut fastrand::Rng) -> Vec<u8> {
    let number = random.u32(0..2000).to_string();
    match random.u8(..20) {
        0 => vec![0; random.usize(..4)],
        // Records with keys that begin alike cannot be in different blocks.
        1 => [&vec![b'k'; random.usize(505..600)][..], number.as_bytes()].concat(),
        _ => number.into_bytes(),
    }
}

#[test]
fn changes_of_blocks_agree_with_the_model() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(21);
    let mut tree = open(directory.path());
    let mut model = Map::new();
    for round in 0..60 {
        // Removals prevail in some rounds, so that blocks are joined and vanish.
        let puts = [1, 8, 5][round / 5 % 3];
        for _ in 0..random.usize(1..400) {
            let key = random_key(&mut random);
            let len = if random.u8(..100) == 0 { 70_000 } else { random.usize(..60) };
            let value = vec![random.u8(b'a'..b'e'); len];
            let puts = random.u8(..10) < puts;
            match (puts, random.bool()) {
                (true, false) => tree.visit(&key, &mut Set(&value)).unwrap(),
                (true, true) => tree.visit(&key, &mut Blind(Some(&value))).unwrap(),
                (false, false) => tree.visit(&key, &mut Remove).unwrap(),
                (false, true) => tree.visit(&key, &mut Blind(None)).unwrap(),
            }
            let _ = if puts { model.insert(key, value) } else { model.remove(&key) };
        }
        assert!(all(&tree).unwrap() == model, "changes of round {round}");
        tree.checkpoint(round as u64 + 1).unwrap();
        assert!(all(&tree).unwrap() == model, "round {round}");
        assert_eq!(tree.status().records, model.len() as u64);
        for _ in 0..20 {
            let key = random_key(&mut random);
            let mut value = None;
            tree.view(&key, &mut |record| value = Some(record.value.to_vec())).unwrap();
            assert_eq!(value.as_ref(), model.get(&key));
            let (mut above, mut below) = (Vec::new(), Vec::new());
            let mut see = |key: &[u8], _: Record<'_>| {
                above.push(key.to_vec());
                if above.len() == 300 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            tree.ascend(Bound::Excluded(&key), &mut see).unwrap();
            let bounds = (Bound::Excluded(key.clone()), Bound::Unbounded);
            assert!(model.range(bounds).take(300).map(|(key, _)| key).eq(&above));
            let mut see = |key: &[u8], _: Record<'_>| {
                below.push(key.to_vec());
                if below.len() == 300 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            tree.descend(Bound::Included(&key), &mut see).unwrap();
            assert!(model.range(..=key).rev().take(300).map(|(key, _)| key).eq(&below));
        }
        if round % 7 == 0 {
            drop(tree);
            assert_eq!(DiskTree::check(directory.path()).unwrap().records, model.len() as u64);
            tree = open(directory.path());
        }
    }
    drop(tree);
    assert_eq!(DiskTree::check(directory.path()).unwrap().records, model.len() as u64);
}

#[test]
fn damaged_block_fails_alone() {
    let directory = tempfile::tempdir().unwrap();
    let tree = open(directory.path());
    for n in 0..2000u32 {
        tree.visit(n.to_string().as_bytes(), &mut Set(format!("value {n}").as_bytes())).unwrap();
    }
    tree.checkpoint(1).unwrap();
    let model = all(&tree).unwrap();
    drop(tree);
    let file = fs::read(directory.path().join("data.mdb")).unwrap();
    let (mut random, mut damaged) = (fastrand::Rng::with_seed(5), 0);
    for _ in 0..300 {
        let mut changed = file.clone();
        changed[random.usize(..file.len())] ^= 1 << random.u8(..8);
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("data.mdb"), &changed).unwrap();
        let checked = DiskTree::check(directory.path());
        let options = DiskTreeOptions { map_bytes: 4 << 20, ..Default::default() };
        let Ok(tree) = DiskTree::open(directory.path(), options) else {
            assert!(checked.is_err());
            continue;
        };
        let Err(error) = all(&tree) else {
            assert!(all(&tree).unwrap() == model || checked.is_err());
            continue;
        };
        damaged += 1;
        assert!(error.kind() == ErrorKind::Corrupt && checked.is_err(), "{error}");
        let mut whole = Map::new();
        let mut see = |key: &[u8], record: Record<'_>| {
            whole.insert(key.to_vec(), record.value.to_vec());
            ControlFlow::Continue(())
        };
        tree.scan_skipping_damaged(None, &mut see).unwrap();
        assert!(whole.len() >= 1500 && whole.iter().all(|(key, value)| model.get(key) == Some(value)));
        assert!(tree.damaged_records().is_some());
        let lost = model.keys().find(|key| !whole.contains_key(*key)).unwrap();
        assert_eq!(tree.view(lost, &mut |_| ()).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(tree.visit(lost, &mut Set(b"new")).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(damaged > 10, "{damaged}");
}

/// A checkpoint never ended if a damaged fence preceded the key of a change.
#[test]
fn checkpoint_fails_at_a_misplaced_fence() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    let tree = open(directory.path());
    for n in 0..5_000u32 {
        let value = random.u64(..).to_string();
        tree.visit(format!("{n:05}").as_bytes(), &mut Set(value.as_bytes())).unwrap();
    }
    tree.checkpoint(1).unwrap();
    drop(tree);
    let file = fs::read(directory.path().join("data.mdb")).unwrap();
    // LMDB stores the length of a key before the key.
    let is_fence =
        |at: &usize| file[at - 4..*at] == [0, 0, 5, 0] && file[*at..at + 5].iter().all(u8::is_ascii_digit);
    let fences: Vec<usize> = (4096 + 4..file.len() - 5).filter(is_fence).collect();
    assert!(fences.len() > 10, "{}", fences.len());
    let mut failed = 0;
    for _ in 0..40 {
        let at = fences[random.usize(..fences.len())];
        let mut changed = file.clone();
        changed[at + random.usize(..5)] = random.u8(b'0'..=b'9');
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("data.mdb"), &changed).unwrap();
        // The pages of a large file are not checked.
        let options = DiskTreeOptions { walked_bytes_max: 0, map_bytes: 4 << 20, ..Default::default() };
        let tree = DiskTree::open(directory.path(), options).unwrap();
        for n in (0..5_000u32).step_by(3) {
            tree.visit(format!("{n:05}").as_bytes(), &mut Blind(Some(b"new"))).unwrap();
        }
        if let Err(error) = tree.checkpoint(2) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            failed += 1;
        }
    }
    assert!(failed > 10, "{failed}");
}
