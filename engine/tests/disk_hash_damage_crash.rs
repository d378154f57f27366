//! Bits that change on disk, followed by a crash.
//!
//! During a session, bits of a segment change. The session continues: damaged records are
//! overwritten, removed and cleared, and segments with damage are compacted as far as possible.
//! Then the power is lost, at any operation. The database then opens, or refuses to and names the
//! damage. An open database has each record as of one moment, or reports damage of a record that
//! was damaged and not yet overwritten.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;

use crash_disk::{CrashDisk, Dice, State};
use crash_session::{Records, open};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Action, Attributes, DurableEngine, Engine, Error, ErrorKind, Record, Visitor};
use todana_engine::{DiskHash, DiskHashOptions};

fn is_full() -> bool {
    std::env::var("TODANA_CRASH").is_ok_and(|value| value == "full")
}

/// The known state of each key: a record, none, or damaged (`None`).
type Seen = BTreeMap<Vec<u8>, Option<(Vec<u8>, Attributes)>>;

fn look(hash: &DiskHash) -> Seen {
    let mut seen = Seen::new();
    for n in 0..30 {
        let key = format!("key{n}").into_bytes();
        let mut record = None;
        match hash.view(&key, &mut |found| record = Some((found.value.to_vec(), found.attributes))) {
            Ok(true) => drop(seen.insert(key, record)),
            Ok(false) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                seen.insert(key, None);
            }
        }
    }
    seen
}

/// The contents after a change, and the records that are damaged then.
#[derive(Clone)]
struct Moment {
    records: Records,
    damaged: BTreeSet<Vec<u8>>,
}

impl Moment {
    fn is(&self, seen: &Seen) -> bool {
        let fits = |(key, seen): (&Vec<u8>, &Option<_>)| match seen {
            Some(record) => self.records.get(key) == Some(record),
            None => self.damaged.contains(key),
        };
        seen.len() == self.records.len() && seen.iter().all(fits)
    }
}

struct Course {
    moments: Vec<Moment>,
    /// The records before they were damaged.
    before: Records,
    told: Arc<AtomicU64>,
}

impl Course {
    fn new(hash: &DiskHash, records: Records) -> Course {
        let seen = look(hash);
        let damaged = seen.iter().filter(|(_, record)| record.is_none()).map(|(key, _)| key.clone());
        let first = Moment { records: records.clone(), damaged: damaged.collect() };
        assert!(first.is(&seen), "damage has changed what is whole");
        Course { moments: vec![first], before: records, told: Arc::default() }
    }

    fn last(&self) -> &Moment {
        self.moments.last().unwrap()
    }

    fn go_on(&mut self, hash: &DiskHash, dice: &mut Dice) {
        let promised = self.told.load(Ordering::SeqCst) >> 32;
        self.told.store(promised << 32 | self.moments.len() as u64, Ordering::SeqCst);
        let mut moment = self.last().clone();
        if let Err(error) = crash_session::change_but_sweep(hash, &mut moment.records, dice) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(!moment.damaged.is_empty(), "nothing is damaged any more, but {error}");
        }
        moment.damaged.retain(|key| moment.records.get(key) == self.before.get(key));
        self.moments.push(moment);
        for _ in 0..dice.roll(4) {
            hash.maintain();
        }
        if dice.roll(6) == 0 {
            hash.sync().unwrap();
            let last = self.moments.len() as u64 - 1;
            self.told.store(last << 32 | last, Ordering::SeqCst);
        }
    }

    /// Checks an opened database, or the reason why it could not be opened.
    fn check(
        &self,
        opened: Result<DiskHash, Error>,
        state: &State,
        spoiled: &[PathBuf],
        note: u64,
        story: &str,
    ) -> bool {
        let (promised, begun) = ((note >> 32) as usize, (note & u64::from(u32::MAX)) as usize);
        match opened {
            Ok(hash) => {
                let seen = look(&hash);
                let range = &self.moments[promised..=begun];
                if !range.iter().any(|moment| moment.is(&seen)) {
                    let differs = |key: &&Vec<u8>| {
                        seen.get(*key).map(Option::as_ref) != range[0].records.get(*key).map(Some)
                    };
                    let keys: BTreeSet<&Vec<u8>> = seen.keys().chain(range[0].records.keys()).collect();
                    let keys: Vec<_> =
                        keys.into_iter().filter(differs).map(|key| key.escape_ascii()).collect();
                    let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
                    panic!(
                        "{story}: of no moment from {promised} to {begun}; {keys:?} differ from the first; damaged at last: {}",
                        range.last().unwrap().damaged.len()
                    );
                }
                assert_eq!(hash.status().records, seen.len() as u64, "{story}");
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{story}: {error}");
                let is_named = |path: &&PathBuf| error.to_string().contains(path.to_str().unwrap());
                let named = spoiled.iter().find(is_named);
                assert!(
                    named.is_some_and(|path| state.has_name(path)),
                    "{story}: {error}; spoiled: {spoiled:?}"
                );
                false
            }
        }
    }
}

/// Flips bits of segments, at places that were in use when these were the files; some of them may
/// be unimportant. Returns the changed files.
fn spoil(disk: &CrashDisk, files: &BTreeMap<PathBuf, Vec<u8>>, dice: &mut Dice) -> Vec<PathBuf> {
    let is_segment = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "segment");
    let segments: Vec<&PathBuf> = files.keys().filter(is_segment).collect();
    let mut spoiled = Vec::new();
    for _ in 0..1 + dice.roll(3) {
        let path = segments[dice.roll(segments.len() as u64) as usize];
        let bit = dice.roll(files[path].len() as u64 * 8) as usize;
        disk.damage(|state| state.flip(path, bit));
        spoiled.push(path.clone());
    }
    spoiled
}

#[test]
fn damage_before_a_crash_is_reported_or_overwritten() {
    let (seeds, one_in) = if is_full() { (400, 2) } else { (40, 9) };
    let (mut opened, mut refused, mut damaged) = (0, 0, 0);
    for seed in 1..=seeds {
        let mut dice = Dice::new(seed);
        let disk = CrashDisk::new();
        disk.show_in_memory(dice.coin());
        let mut hash = open(&disk).unwrap();
        let mut records = Records::new();
        for _ in 0..100 + dice.roll(200) {
            crash_session::change_but_sweep(&hash, &mut records, &mut dice).unwrap();
            (0..dice.roll(3)).for_each(|_| _ = hash.maintain());
        }
        hash.sync().unwrap();
        let files = disk.state().files();
        // This entry states that everything is on disk. Without it, damage looks like the result of
        // a crash.
        crash_session::set(&hash, b"key0", b"marked").unwrap();
        records.insert(b"key0".to_vec(), (b"marked".to_vec(), Attributes::default()));
        hash.sync().unwrap();
        let spoiled = if dice.coin() {
            hash.close().unwrap();
            drop(hash);
            let spoiled = spoil(&disk, &files, &mut dice);
            hash = match open(&disk) {
                Ok(hash) => hash,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    continue;
                }
            };
            spoiled
        } else {
            spoil(&disk, &files, &mut dice)
        };
        let mut course = Course::new(&hash, records);
        damaged += course.last().damaged.len();
        let mut state = disk.state();
        let told = Arc::clone(&course.told);
        disk.record(move || told.load(Ordering::SeqCst));
        for _ in 0..60 {
            course.go_on(&hash, &mut dice);
        }
        if dice.coin() {
            hash.close().unwrap();
        }
        disk.stop();
        drop(hash);
        for (index, step) in disk.journal().iter().enumerate() {
            if dice.roll(one_in) == 0 {
                let mut there = state.clone();
                if dice.coin() {
                    there.apply_in_part(&step.op, &mut dice);
                }
                let reboot = dice.roll(1 << 40);
                let mut story = format!("seed {seed}, operation {index} ({:?}", step.op);
                story.truncate(80);
                story.push_str(&format!("), reboot {reboot}"));
                let there = there.reboot(reboot);
                let disk = CrashDisk::shown_or_read(there.clone(), dice.coin());
                let outcome = course.check(open(&disk), &there, &spoiled, step.note, &story);
                *(if outcome { &mut opened } else { &mut refused }) += 1;
            }
            state.apply(&step.op).unwrap();
        }
    }
    eprintln!("{damaged} records damaged; {opened} times opened, {refused} times refused");
    assert!(damaged > 10 && opened > 100, "{damaged} {opened}");
}

/// A read in the order of the files continues by the index, which points to no garbage.
#[test]
fn unreadable_garbage_hides_no_record() {
    struct Set(Vec<u8>);
    impl Visitor for Set {
        fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record::new(&self.0, Attributes::default()))
        }
    }
    let disk = CrashDisk::new();
    let options = DiskHashOptions {
        memory_bytes: Some(0),
        cache_bytes: 0,
        disk: Arc::new(disk.clone()),
        ..DiskHashOptions::default()
    };
    let hash = DiskHash::open(Path::new("/data"), options).unwrap();
    let long = [&[b'.'; 2000][..], b"garbage", &[b'.'; 2000]].concat();
    hash.visit(b"key7", &mut Set(long)).unwrap();
    for n in 0..100 {
        hash.visit(format!("key{n}").as_bytes(), &mut Set(vec![n; 100])).unwrap();
    }
    hash.flush().unwrap();
    disk.fail_reads_of(b"garbage");
    let (mut keys, mut place) = (BTreeSet::new(), None);
    loop {
        let step = hash.read_all(place, &mut |key, record| {
            assert_eq!(record.value.len(), 100);
            keys.insert(key.to_vec());
            ControlFlow::Continue(())
        });
        place = step.unwrap();
        if place.is_none() {
            break;
        }
    }
    assert_eq!(keys.len(), 100);
    // The sector of a record fails the read.
    disk.fail_reads_of(&[9; 50]);
    let error = hash.read_all(None, &mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
