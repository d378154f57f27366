//! A hash on a disk that crashes, a session of changes, and its expected contents.

use crate::crash_disk::{CrashDisk, Dice};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, RangeInclusive};
use std::path::Path;
use std::sync::Arc;
use todana_core::{
    Action, Attributes, DurableEngine, Engine, Expiry, Record, Result, SweepAim, UnixSeconds, Visitor,
};
use todana_engine::{DiskHash, DiskHashOptions, ValueCompression};

pub(crate) const DATA: &str = "/data";

pub(crate) type Records = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

pub(crate) fn open(disk: &CrashDisk) -> Result<DiskHash> {
    open_in(disk, Path::new(DATA))
}

/// Opens the hash with small segments and buffers, so that they end often.
pub(crate) fn open_in(disk: &CrashDisk, directory: &Path) -> Result<DiskHash> {
    DiskHash::open(directory, options(disk))
}

/// Opens the hash with compression; the data soon suffices for a dictionary.
pub(crate) fn open_compressing(disk: &CrashDisk) -> Result<DiskHash> {
    let compression = Some(ValueCompression { trained_at_bytes: 8 << 10 });
    DiskHash::open(Path::new(DATA), DiskHashOptions { compression, ..options(disk) })
}

/// Opens the hash without a reserve: on a full disk, everything that fits is accepted.
pub(crate) fn open_without_reserve(disk: &CrashDisk) -> Result<DiskHash> {
    DiskHash::open(Path::new(DATA), DiskHashOptions { reserve_bytes: 0, ..options(disk) })
}

fn options(disk: &CrashDisk) -> DiskHashOptions {
    DiskHashOptions {
        seed: Some(3),
        cache_bytes: 0,
        buffer_bytes: 4 << 10,
        recent_bytes: 12 << 10,
        reserve_bytes: 4 << 10,
        segment_bytes_min: 4 << 10,
        space_factor: 1.2,
        checkpoint_bytes: 12 << 10,
        disk: Arc::new(disk.clone()),
        ..DiskHashOptions::default()
    }
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

    fn overwrites(&self) -> bool {
        matches!(self.0, Action::Put(_) | Action::Remove)
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

/// Makes one change, or several at once.
pub(crate) fn change(hash: &DiskHash, expected: &mut Records, dice: &mut Dice) {
    if dice.roll(30) == 0 {
        return sweep(hash, expected, UnixSeconds(dice.roll(60)));
    }
    change_but_sweep(hash, expected, dice).unwrap();
}

/// Makes any change except a sweep. A failed change is expected to have no effect.
pub(crate) fn change_but_sweep(hash: &DiskHash, expected: &mut Records, dice: &mut Dice) -> Result<()> {
    match dice.roll(100) {
        0 => {
            hash.clear(&mut || ())?;
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
            hash.apply(&actions)?;
            changes.into_iter().for_each(|change| change.make(expected));
        }
        _ => {
            let change = Change::any(dice);
            let (key, action) = change.action();
            hash.visit(key, &mut Does(action))?;
            change.make(expected);
        }
    }
    Ok(())
}

/// Removes the records that have expired by this second.
fn sweep(hash: &DiskHash, expected: &mut Records, over: UnixSeconds) {
    let perishable = hash.sweepable().unwrap();
    let mut is_over = |expiry: Expiry| !expiry.is_live(over);
    let swept = perishable.sweep(None, usize::MAX, SweepAim::Tidiness, &mut is_over);
    let before = expected.len();
    expected.retain(|_, (_, attributes)| attributes.expiry.is_live(over));
    assert_eq!(swept.unwrap().removed, (before - expected.len()) as u64);
}

/// The contents after each change.
#[derive(Default)]
pub(crate) struct Moments {
    pub(crate) records: Vec<Records>,
    /// The moments that were reached by a sweep, which removes records one by one in an order of
    /// the engine's choice.
    pub(crate) by_sweep: BTreeSet<usize>,
}

impl Moments {
    pub(crate) fn last(&self) -> usize {
        self.records.len() - 1
    }

    /// Returns the moment with these contents, within a range.
    pub(crate) fn find(&self, found: &Records, range: RangeInclusive<usize>) -> Option<usize> {
        let holds =
            |all: &Records, some: &Records| some.iter().all(|(key, value)| all.get(key) == Some(value));
        let is_within = |at: usize| holds(&self.records[at - 1], found) && holds(found, &self.records[at]);
        let is_it = |at: usize| self.records[at] == *found;
        range.into_iter().find(|&at| is_it(at) || at > 0 && self.by_sweep.contains(&at) && is_within(at))
    }

    /// Describes how these contents differ from those of a moment.
    pub(crate) fn difference(&self, found: &Records, at: usize) -> String {
        let wanted = &self.records[at];
        let keys: BTreeSet<&Vec<u8>> = found.keys().chain(wanted.keys()).collect();
        let show = |records: &Records, key: &Vec<u8>| match records.get(key) {
            Some((value, attributes)) => format!("{} bytes, {attributes:?}", value.len()),
            None => "nothing".into(),
        };
        let differing = keys.into_iter().filter(|&key| found.get(key) != wanted.get(key));
        let texts = differing.map(|key| {
            format!("{}: {} instead of {}", key.escape_ascii(), show(found, key), show(wanted, key))
        });
        texts.collect::<Vec<_>>().join("; ")
    }
}

/// Returns true if a session with this seed compresses values.
pub(crate) fn compresses(seed: u64) -> bool {
    matches!(seed % 4, 3 | 0)
}

/// The progress that a session reports.
pub(crate) enum Step {
    /// The change that leads to this moment begins.
    Begun(usize),
    /// This moment is on disk.
    Synced(usize),
}

/// A session in progress.
struct Session<'s> {
    disk: &'s CrashDisk,
    dice: Dice,
    moments: Moments,
    synced: usize,
    tell: &'s mut dyn FnMut(Step),
    opens: fn(&CrashDisk) -> Result<DiskHash>,
}

/// Runs a session. Returns the contents at each moment.
pub(crate) fn run(disk: &CrashDisk, seed: u64, steps: usize, tell: &mut dyn FnMut(Step)) -> Moments {
    let moments = Moments { records: vec![Records::new()], ..Moments::default() };
    let opens = if compresses(seed) { open_compressing } else { open };
    let mut session = Session { disk, dice: Dice::new(seed), moments, synced: 0, tell, opens };
    let open = opens;
    let mut hash = open(disk).unwrap();
    if compresses(seed) {
        (0..64).for_each(|n| session.put_alike(&hash, n));
    }
    for step in 0..steps {
        session.change(&hash);
        if compresses(seed) && step % 3 == 0 {
            let n = session.dice.roll(64);
            session.put_alike(&hash, n);
        }
        if step % 150 == 149 {
            // Small segments, which compaction later merges.
            for _ in 0..1 + session.dice.roll(14) {
                hash = session.open_again(hash);
                for _ in 0..session.dice.roll(3) {
                    session.change(&hash);
                }
            }
        }
    }
    hash.flush().unwrap();
    // End like a killed process, so that nothing more reaches the disk.
    disk.stop();
    session.moments
}

impl Session<'_> {
    /// Stores a record that shares most of its bytes with others, as those of applications do.
    fn put_alike(&mut self, hash: &DiskHash, n: u64) {
        (self.tell)(Step::Begun(self.moments.records.len()));
        let mut expected = self.moments.records.last().unwrap().clone();
        let (key, salt) = (format!("alike{n}").into_bytes(), self.dice.roll(1 << 30));
        let value =
            format!("{{\"session\":{salt},\"user\":\"visitor {n}\",\"roles\":[\"reader\"],\"seen\":true}}");
        set(hash, &key, value.as_bytes()).unwrap();
        expected.insert(key, (value.into_bytes(), Attributes::default()));
        self.moments.records.push(expected);
        hash.maintain();
    }

    fn change(&mut self, hash: &DiskHash) {
        (self.tell)(Step::Begun(self.moments.records.len()));
        let mut expected = self.moments.records.last().unwrap().clone();
        if self.dice.roll(500) == 0 {
            // Too long to be read into memory at once.
            let value = vec![self.dice.roll(256) as u8; 1_100_000];
            set(hash, b"long", &value).unwrap();
            expected.insert(b"long".to_vec(), (value, Attributes::default()));
        } else if self.dice.roll(100) == 0 {
            hash.visit(b"long", &mut Does(Action::Remove)).unwrap();
            expected.remove(&b"long"[..]);
        } else if self.dice.roll(40) == 0 {
            self.moments.by_sweep.insert(self.moments.records.len());
            sweep(hash, &mut expected, UnixSeconds(self.dice.roll(60)));
        } else {
            change_but_sweep(hash, &mut expected, &mut self.dice).unwrap();
        }
        self.moments.records.push(expected);
        for _ in 0..self.dice.roll(3) {
            hash.maintain();
        }
        if self.dice.roll(8) == 0 {
            hash.sync().unwrap();
            self.tell_synced();
        }
    }

    fn tell_synced(&mut self) {
        self.synced = self.moments.last();
        (self.tell)(Step::Synced(self.synced));
    }

    fn open_again(&mut self, hash: DiskHash) -> DiskHash {
        let way = self.dice.roll(4);
        match way {
            0 => hash.flush().unwrap(),
            1 => hash.close().unwrap(),
            // The process is killed, or the power is lost.
            _ => self.disk.stop(),
        }
        drop(hash);
        if way >= 2 {
            self.disk.come_up((way == 2).then(|| self.dice.roll(1 << 40)));
        } else {
            self.tell_synced();
        }
        let hash = (self.opens)(self.disk).unwrap();
        let found = records(&hash);
        let range = self.synced..=self.moments.last();
        if self.moments.find(&found, range.clone()).is_none() {
            panic!("of no moment of {range:?}: {}", self.moments.difference(&found, *range.start()));
        }
        // Everything that was there is on disk after an opening.
        (self.tell)(Step::Begun(self.moments.records.len()));
        self.moments.records.push(found);
        self.tell_synced();
        hash
    }
}
