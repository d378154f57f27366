//! A hash on a disk that crashes, a session of changes, and what it should hold.

use crate::crash_disk::{CrashDisk, Dice};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use todana_core::{Action, Attributes, Durable, Engine, Expiry, Record, Result, UnixSeconds, Visitor};
use todana_engine::{DiskHash, DiskHashOptions};

pub(crate) const DATA: &str = "/data";

pub(crate) type Records = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

pub(crate) fn open(disk: &CrashDisk) -> Result<DiskHash> {
    open_in(disk, Path::new(DATA))
}

/// Small segments and buffers, so that there are many ends of them.
pub(crate) fn open_in(disk: &CrashDisk, directory: &Path) -> Result<DiskHash> {
    let options = DiskHashOptions {
        seed: Some(3),
        cache_bytes: 0,
        buffer_bytes: 4 << 10,
        segment_bytes_min: 4 << 10,
        space_factor: 1.2,
        checkpoint_bytes: 12 << 10,
        disk: Arc::new(disk.clone()),
        ..DiskHashOptions::default()
    };
    DiskHash::open(directory, options)
}

pub(crate) fn try_records(hash: &DiskHash) -> Result<Records> {
    let mut records = Records::new();
    hash.scan(None, &mut |key, record| {
        let before = records.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
        assert_eq!(before, None, "a record is shown once while nobody writes");
        ControlFlow::Continue(())
    })?;
    assert_eq!(hash.status().records, records.len() as u64);
    for (key, (value, attributes)) in &records {
        let mut seen = false;
        assert!(hash.view(key, &mut |record| seen = record == Record::new(value, *attributes))? && seen);
    }
    Ok(records)
}

pub(crate) fn records(hash: &DiskHash) -> Records {
    try_records(hash).unwrap()
}

struct Does<'d>(Action<'d>);

impl Visitor for Does<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        self.0
    }
}

pub(crate) fn set(hash: &DiskHash, key: &[u8], value: &[u8]) -> Result<()> {
    hash.visit(key, &mut Does(Action::Put(Record::new(value, Attributes::default()))))
}

pub(crate) fn get(hash: &DiskHash, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = None;
    hash.view(key, &mut |record| value = Some(record.value.to_vec())).unwrap();
    value
}

fn attributes(dice: &mut Dice) -> Attributes {
    let expiry = match dice.roll(4) {
        0 => Expiry::At(UnixSeconds(dice.roll(100))),
        1 => Expiry::Sliding { at: UnixSeconds(dice.roll(100)), span_s: 5 },
        _ => Expiry::Never,
    };
    Attributes { flags: dice.roll(3) as u32, expiry, version: dice.roll(2) * 77, ..Attributes::default() }
}

enum Change {
    Put(Vec<u8>, Vec<u8>, Attributes),
    Retag(Vec<u8>, Attributes),
    Remove(Vec<u8>),
}

impl Change {
    fn any(dice: &mut Dice) -> Change {
        let key = format!("key{}", dice.roll(30)).into_bytes();
        match dice.roll(10) {
            0..6 => {
                let len = match dice.roll(40) {
                    0 => 9_000,
                    1..4 => 1_500,
                    _ => dice.roll(150),
                };
                let salt = dice.roll(256) as u8;
                let value = (0..len).map(|n| (n as u8).wrapping_mul(7) ^ salt).collect();
                Change::Put(key, value, attributes(dice))
            }
            6 => Change::Retag(key, attributes(dice)),
            _ => Change::Remove(key),
        }
    }

    fn action(&self) -> (&[u8], Action<'_>) {
        match self {
            Change::Put(key, value, attributes) => (key, Action::Put(Record::new(value, *attributes))),
            Change::Retag(key, attributes) => (key, Action::Retag(*attributes)),
            Change::Remove(key) => (key, Action::Remove),
        }
    }

    fn make(self, to: &mut Records) {
        match self {
            Change::Put(key, value, attributes) => drop(to.insert(key, (value, attributes))),
            Change::Retag(key, attributes) => {
                if let Some(record) = to.get_mut(&key) {
                    record.1 = attributes;
                }
            }
            Change::Remove(key) => drop(to.remove(&key)),
        }
    }
}

/// One change, or several at once.
pub(crate) fn change(hash: &DiskHash, expected: &mut Records, dice: &mut Dice) {
    match dice.roll(100) {
        0 => {
            hash.clear(&mut || ()).unwrap();
            expected.clear();
        }
        1..10 => {
            let mut changes: Vec<Change> = Vec::new();
            for _ in 0..2 + dice.roll(8) {
                let change = Change::any(dice);
                let key = change.action().0;
                if changes.iter().all(|other| other.action().0 != key) {
                    changes.push(change);
                }
            }
            let actions: Vec<_> = changes.iter().map(Change::action).collect();
            hash.apply(&actions).unwrap();
            changes.into_iter().for_each(|change| change.make(expected));
        }
        10..13 => {
            let over = UnixSeconds(dice.roll(60));
            let perishable = hash.perishable().unwrap();
            let swept = perishable.sweep(None, usize::MAX, todana_core::SweepAim::Tidiness, &mut |expiry| {
                !expiry.is_live(over)
            });
            let before = expected.len();
            expected.retain(|_, (_, attributes)| attributes.expiry.is_live(over));
            assert_eq!(swept.unwrap().removed, (before - expected.len()) as u64);
        }
        _ => {
            let change = Change::any(dice);
            let (key, action) = change.action();
            hash.visit(key, &mut Does(action)).unwrap();
            change.make(expected);
        }
    }
}

/// What a session tells as it goes.
pub(crate) enum Step {
    /// The change that leads to this moment begins.
    Begun(usize),
    /// This moment is on disk.
    Synced(usize),
}

/// A session; returns what was there at each moment.
pub(crate) fn run(disk: &CrashDisk, seed: u64, steps: usize, tell: &mut dyn FnMut(Step)) -> Vec<Records> {
    let mut dice = Dice::new(seed);
    let mut moments = vec![Records::new()];
    let mut hash = open(disk).unwrap();
    let mut expected = Records::new();
    for step in 0..steps {
        tell(Step::Begun(moments.len()));
        change_but_sweep(&hash, &mut expected, &mut dice);
        moments.push(expected.clone());
        let now = moments.len() - 1;
        for _ in 0..dice.roll(3) {
            hash.maintain();
        }
        if dice.roll(8) == 0 {
            hash.sync().unwrap();
            tell(Step::Synced(now));
        }
        if step % 300 == 299 {
            if dice.coin() {
                hash.close().unwrap();
                tell(Step::Synced(now));
            } else {
                hash.flush().unwrap();
            }
            drop(hash);
            tell(Step::Synced(now));
            hash = open(disk).unwrap();
            assert_eq!(records(&hash), expected, "seed {seed}, step {step}");
        }
    }
    hash.flush().unwrap();
    // It ends as a killed process does, and nothing more comes to the disk.
    disk.stop();
    moments
}

/// A sweep removes one record after the other, each a moment of its own, in an order that is the engine's affair.
fn change_but_sweep(hash: &DiskHash, expected: &mut Records, dice: &mut Dice) {
    loop {
        let before = dice.roll(1 << 40);
        let mut ahead = Dice::new(before);
        if !(10..13).contains(&ahead.roll(100)) {
            *dice = Dice::new(before);
            return change(hash, expected, dice);
        }
    }
}
