//! Checks the state after a power failure at every operation on the disk.
//!
//! A scripted session runs once. Each of its operations on the disk is recorded, with the position
//! up to which the log was reported as synced before. Then the disk is set back to each moment and
//! loses its power there. It restarts in several ways, and the database is opened. It must have the
//! state after one of the session's commands, and this state must not be older than the log had
//! promised. The session writes checkpoints, plain and compressed, with commands between any two of
//! their operations, and is reopened from time to time.
//!
//! Normally one moment in several is tested. `cargo xtask crash` tests all of them, in more ways.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
mod kept;

use crash_disk::{CrashDisk, Dice, Op, State, Step};
use kept::{CrashDiskDatabase, DATA, StoredRecords, open, open_with, options};
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use todana::checkpoint::{CheckpointCompression, CheckpointOptions};
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{DataOptions, verify};
use todana_core::{
    Arithmetic, ArithmeticDirection, Delete, Expiry, Get, Operation, ReplyNeeds, Store, StoreMode, Touch, Ttl,
};

const COMMANDS: usize = 2_000;
const START: u64 = 1_700_000_000;

/// The state of the session at a position of the log.
struct SessionMoment {
    end: u64,
    now: u64,
    records: StoredRecords,
    /// The time of a planned clear.
    flush_at: Option<u64>,
}

struct RecordedSession {
    moments: Vec<SessionMoment>,
    journal: Vec<Step>,
    /// The position up to which the log was reported as synced at the end.
    synced: u64,
    /// How many times a state was opened and checked.
    checks: Cell<u64>,
}

fn is_full() -> bool {
    std::env::var("TODANA_CRASH").is_ok_and(|value| value == "full")
}

/// Segments are small, so that there are many of them.
fn small(sync: SyncPolicy) -> LogOptions {
    LogOptions { segment_len: 4_000, reserve_bytes: 1_000, ..options(sync) }
}

/// Runs one command. If it plans a clear, stores the time in `flush_at`.
fn command(kept: &CrashDiskDatabase, dice: &mut Dice, flush_at: &mut Option<u64>) {
    let key = [b'a' + dice.roll(12) as u8];
    let key = &key[..];
    let ttl = match dice.roll(6) {
        0 => Ttl::Seconds(1 + dice.roll(50) as u32),
        1 => Ttl::Sliding(1 + dice.roll(50) as u32),
        _ => Ttl::Never,
    };
    let mut value = dice.roll(1_000_000).to_string().into_bytes();
    match dice.roll(60) {
        // Such a long value is stored in memory of its own and written from there.
        0 => value.resize(70_000, b'v'),
        1..=3 => value.resize(1_500, b'v'),
        4..=10 => value.resize(100, b'v'),
        _ => {}
    }
    let value = &value[..];
    let store = Store { key, value, ttl, ..Store::default() };
    let shows = ReplyNeeds { version: true, ..ReplyNeeds::default() };
    let now = kept.database.now().0;
    match dice.roll(100) {
        0..30 => kept.run(Operation::Store(Store { flags: dice.roll(3) as u32, ..store })),
        30..32 => kept.run(Operation::Store(Store { version: Some(1 + dice.roll(1 << 40)), ..store })),
        32..40 => kept.run(Operation::Delete(Delete { key, ..Delete::default() })),
        40..42 => {
            kept.run(Operation::Delete(Delete { key, mark_stale: true, ttl: Some(ttl), ..Delete::default() }))
        }
        42..44 => {
            kept.run(Operation::Delete(Delete { key, drop_value: true, flags: Some(9), ..Delete::default() }))
        }
        44 => kept.run(Operation::Get(Get { key, vivify: Some(ttl), ..Get::default() })),
        45..60 => {
            let direction =
                if dice.coin() { ArithmeticDirection::Increment } else { ArithmeticDirection::Decrement };
            let arithmetic =
                Arithmetic { key, direction, delta: 7, vivify: Some(ttl), ..Arithmetic::default() };
            kept.run(Operation::Arithmetic(arithmetic))
        }
        60..68 => {
            let mode = if dice.coin() { StoreMode::Append } else { StoreMode::Prepend };
            kept.run(Operation::Store(Store { value: b"+", mode, ..store }))
        }
        68..72 => kept.run(Operation::Touch(Touch { key, ttl })),
        72..74 => kept.run(Operation::Get(Get { key, touch: Some(ttl), ..Get::default() })),
        74..80 => kept.run(Operation::Get(Get { key, needs: shows, ..Get::default() })),
        80..86 => {
            // The comparison uses the existing version, or a version that does not exist. Versions
            // count from the first.
            let compare = kept.records().get(key).map_or(1, |(_, attributes)| attributes.version);
            kept.run(Operation::Store(Store { compare: Some(compare), needs: shows, ..store }))
        }
        86..90 => kept.run(Operation::Get(Get { key, ..Get::default() })),
        90..97 => {
            kept.clock.advance(dice.roll(20));
            String::new()
        }
        97 => {
            *flush_at = None;
            kept.run(Operation::Flush { at: Ttl::Expired })
        }
        98 => {
            let seconds = 1 + dice.roll(30) as u32;
            *flush_at = Some(now + u64::from(seconds));
            kept.run(Operation::Flush { at: Ttl::Seconds(seconds) })
        }
        _ => {
            kept.log().rotate().unwrap();
            String::new()
        }
    };
}

/// The course of the session so far.
struct SessionProgress {
    sync: SyncPolicy,
    dice: Dice,
    flush_at: Option<u64>,
    moments: Vec<SessionMoment>,
    commands: usize,
    promised: Arc<AtomicU64>,
}

impl SessionProgress {
    fn go_on(&mut self, kept: &CrashDiskDatabase) {
        // A flush that is due is executed before any command, as a change of its own.
        kept.run(Operation::Noop);
        self.flush_at = self.flush_at.filter(|&at| at > kept.database.now().0);
        note_moment(kept, self.flush_at, &mut self.moments);
        command(kept, &mut self.dice, &mut self.flush_at);
        let end = kept.log().end();
        // A durable change implies that all earlier ones are durable.
        if self.sync == SyncPolicy::Always {
            kept.log().wait(end).unwrap();
            assert!(kept.log().synced() >= end);
        } else if self.commands.is_multiple_of(50) {
            kept.log().sync_to(end).unwrap();
        }
        self.promised.store(kept.log().synced().0, Ordering::SeqCst);
        note_moment(kept, self.flush_at, &mut self.moments);
        self.commands += 1;
    }
}

const MAKER: &str = "maker of checkpoints";

/// Pauses the thread that writes a checkpoint at each of its operations, so that commands run in
/// between. The commands are the same in each run.
struct CheckpointGate {
    /// Sends true at each operation, and false at the end.
    reported: Sender<bool>,
    comes: Receiver<bool>,
    goes: Sender<()>,
}

impl CheckpointGate {
    fn at(disk: &CrashDisk) -> CheckpointGate {
        let (reported, comes) = mpsc::channel();
        let (goes, may_go) = mpsc::channel();
        let (tells, may_go) = (reported.clone(), Mutex::new(may_go));
        disk.fault(move |_| {
            if thread::current().name() == Some(MAKER) {
                tells.send(true).unwrap();
                may_go.lock().unwrap().recv().unwrap();
            }
            Ok(())
        });
        CheckpointGate { reported, comes, goes }
    }

    /// Writes a checkpoint and runs commands in the meantime.
    fn checkpoint(&self, kept: &CrashDiskDatabase, course: &mut SessionProgress) {
        thread::scope(|scope| {
            let end = EndReporter(self.reported.clone());
            let make = move || {
                let _end = end;
                kept.directory.checkpoint(&kept.database)
            };
            let maker = thread::Builder::new().name(MAKER.into()).spawn_scoped(scope, make).unwrap();
            while self.comes.recv().unwrap() {
                for _ in 0..course.dice.roll(3) {
                    course.go_on(kept);
                }
                self.goes.send(()).unwrap();
            }
            maker.join().unwrap().unwrap();
        });
    }
}

/// Reports the end of the thread, even after a panic.
struct EndReporter(Sender<bool>);

impl Drop for EndReporter {
    fn drop(&mut self) {
        let _ = self.0.send(false);
    }
}

fn run(log: LogOptions, seed: u64) -> RecordedSession {
    let disk = CrashDisk::new();
    let promised = Arc::new(AtomicU64::new(0));
    let note = Arc::clone(&promised);
    disk.record(move || note.load(Ordering::SeqCst));
    let gate = CheckpointGate::at(&disk);
    let options = |compression| DataOptions {
        log,
        checkpoints: CheckpointOptions { compression, ..CheckpointOptions::default() },
    };
    let mut kept = open_with(&disk, START, options(CheckpointCompression::None)).unwrap();
    let moments = vec![SessionMoment { end: 0, now: START, records: StoredRecords::new(), flush_at: None }];
    let dice = Dice::new(seed);
    let mut course = SessionProgress { sync: log.sync, dice, flush_at: None, moments, commands: 0, promised };
    let (mut checkpoints, mut openings) = (0, 1);
    while course.commands < COMMANDS {
        for _ in 0..50 {
            course.go_on(&kept);
        }
        gate.checkpoint(&kept, &mut course);
        checkpoints += 1;
        if checkpoints % 4 == 0 {
            let (records, now) = (kept.records(), kept.database.now().0);
            kept.log().close().unwrap();
            drop(kept);
            openings += 1;
            let compression =
                if openings % 2 == 0 { CheckpointCompression::Zstd(1) } else { CheckpointCompression::None };
            kept = open_with(&disk, now, options(compression)).unwrap();
            assert!(kept.opened.checkpoint.is_some() && kept.opened.refused.is_empty());
            assert!(kept.records() == records);
            note_moment(&kept, course.flush_at, &mut course.moments);
        }
    }
    let end = kept.log().end();
    let is_closed = kept.log().close().is_ok();
    let synced = if is_closed { end.0 } else { 0 };
    let journal = disk.journal();
    eprintln!(
        "{} commands, {checkpoints} checkpoints, {openings} openings, {} moments, {} operations on the disk",
        course.commands,
        course.moments.len(),
        journal.len()
    );
    RecordedSession { moments: course.moments, journal, synced, checks: Cell::new(0) }
}

fn note_moment(kept: &CrashDiskDatabase, flush_at: Option<u64>, moments: &mut Vec<SessionMoment>) {
    let (now, end) = (kept.database.now().0, kept.log().end().0);
    // Some commands change nothing on disk: those of the clock, and effects of time.
    if moments.last().is_some_and(|last| last.end == end) {
        moments.pop();
    }
    moments.push(SessionMoment { end, now, records: kept.records(), flush_at });
}

impl RecordedSession {
    /// Opens the restarted disk, checks that its state is allowed, and continues from this state.
    fn check(&self, state: State, promised: u64, story: &str, dice: &mut Dice) {
        self.checks.set(self.checks.get() + 1);
        let disk = CrashDisk::with(state);
        // If a database exists already, a verification of all files finds no damage either.
        if dice.roll(4) == 0
            && let Ok(verified) = verify(Arc::new(disk.clone()), Path::new(DATA), &mut |_| ())
        {
            assert_eq!(verified.damages, [""; 0], "{story}");
        }
        let kept = open(&disk, START, options(SyncPolicy::Always))
            .unwrap_or_else(|error| panic!("{story}: {error}"));
        assert_eq!(kept.opened.refused, [""; 0], "{story}");
        let end = kept.opened.end.0;
        let moment = self.moments.partition_point(|moment| moment.end <= end) - 1;
        let moment = &self.moments[moment];
        assert!(moment.end >= promised, "{story}: ends at {end}, {promised} was promised");
        moment.compare(&kept, story);
        // The test continues from this state twice, and checks everything that is acknowledged from
        // then on.
        if dice.roll(4) > 0 {
            return kept.kill();
        }
        let mut disk = disk;
        let mut kept = kept;
        for round in 0..3u8 {
            let now = kept.database.now().0;
            kept.set(b"after", &[round]);
            kept.set(b"gone", b"x");
            kept.run(Operation::Delete(Delete { key: b"gone", ..Delete::default() }));
            kept.log().wait(kept.log().end()).unwrap();
            let records = kept.records();
            if round == 1 {
                kept.directory.checkpoint(&kept.database).unwrap_or_else(|error| panic!("{story}: {error}"));
            }
            kept.set(b"unacknowledged", b"?");
            let state = disk.state();
            kept.kill();
            let story = format!("{story}, round {round}");
            disk = CrashDisk::with(if dice.coin() { state.reboot(dice.roll(1 << 40)) } else { state });
            kept = open(&disk, now, options(SyncPolicy::Always))
                .unwrap_or_else(|error| panic!("{story}: {error}"));
            let mut there = kept.records();
            there.remove(&b"unacknowledged"[..]);
            let mut records = records;
            records.remove(&b"unacknowledged"[..]);
            assert!(there == records, "{story}: {there:?} is not {records:?}");
        }
        kept.kill();
    }
}

impl SessionMoment {
    fn compare(&self, kept: &CrashDiskDatabase, story: &str) {
        let now = kept.database.now().0;
        kept.clock.advance(self.now - now);
        let records = kept.records();
        assert!(records == self.records, "{story}: {records:?} is not {:?}", self.records);
        // A planned clear must still be planned. A clear that was planned at another moment must
        // not be executed.
        let Some(flush_at) = self.flush_at else {
            kept.clock.advance(1_000);
            let lasting = |records: &StoredRecords| -> Vec<Vec<u8>> {
                let lasting =
                    records.iter().filter(|(_, (_, attributes))| attributes.expiry == Expiry::Never);
                lasting.map(|(key, _)| key.clone()).collect()
            };
            kept.run(Operation::Noop);
            assert_eq!(
                lasting(&kept.records()),
                lasting(&self.records),
                "{story}: a flush that nobody planned"
            );
            return;
        };
        if flush_at > self.now {
            kept.clock.advance(flush_at - self.now - 1);
            kept.run(Operation::Noop);
            let is_empty = self.records.values().all(|(_, attributes)| attributes.expiry != Expiry::Never);
            assert!(is_empty || !kept.records().is_empty(), "{story}: flushed too early");
            kept.clock.advance(1);
        }
        kept.run(Operation::Noop);
        assert!(kept.records().is_empty(), "{story}: not flushed");
    }
}

/// Loses the power at a random operation of the opening. The next opening must also yield an
/// allowed state.
fn stop_opening(session: &RecordedSession, state: State, promised: u64, story: &str, dice: &mut Dice) {
    let disk = CrashDisk::with(state.clone());
    disk.record(|| 0);
    open(&disk, START, options(SyncPolicy::Always)).unwrap_or_else(|error| panic!("{story}: {error}")).kill();
    let mut state = state;
    for (n, step) in disk.journal().iter().enumerate() {
        let story = format!("{story}, opening stopped at step {n} {}", short(step));
        let mut torn = state.clone();
        torn.apply_in_part(&step.op, dice);
        session.check(torn.reboot(dice.roll(1 << 40)), promised, &story, dice);
        session.check(torn, promised, &story, dice);
        state.apply(&step.op).unwrap();
    }
}

/// Tests one in `every` moments of the session, each in `ways` ways.
fn lose_power(session: &RecordedSession, every: usize, ways: u64) {
    let mut state = State::default();
    let mut dice = Dice::new(every as u64);
    let (mut note, mut stops) = (0, 0u64);
    for (n, step) in session.journal.iter().enumerate() {
        // A promise that was made before an earlier operation still holds.
        note = step.note.max(note);
        if n % every == dice.roll(every as u64) as usize {
            // The power fails before the operation, and in the middle of it.
            stops += 2;
            for _ in 0..ways {
                let seed = dice.roll(1 << 40);
                let story = format!("stopped before step {n} {:?}, seed {seed}", short(step));
                session.check(state.reboot(seed), note, &story, &mut dice);
                let mut torn = state.clone();
                torn.apply_in_part(&step.op, &mut Dice::new(seed));
                let story = format!("stopped in step {n} {:?}, seed {seed}", short(step));
                session.check(torn.reboot(seed + 1), note, &story, &mut dice);
                if dice.roll(if ways > 1 { 40 } else { 4 }) == 0 {
                    stop_opening(session, torn.reboot(seed), note, &story, &mut dice);
                    stop_opening(session, torn.clone(), note, &story, &mut dice);
                }
                // The process is killed, but the machine keeps running.
                session.check(torn, note, &format!("killed in step {n}"), &mut dice);
            }
        }
        state.apply(&step.op).unwrap();
    }
    session.check(state.reboot(1), session.synced, "closed", &mut dice);
    eprintln!("{stops} stop points, {} times opened and compared", session.checks.get());
}

fn short(step: &Step) -> String {
    let text = format!("{:?}", step.op);
    text.chars().take(80).collect()
}

fn every(sync: SyncPolicy) {
    let (seeds, every, ways) = if is_full() { (1..=3, 1, 2) } else { (1..=1, 11, 1) };
    for seed in seeds {
        let session = run(small(sync), seed);
        assert!(session.moments.len() > COMMANDS / 2);
        lose_power(&session, every, ways);
    }
}

#[test]
fn always_keeps_what_was_acknowledged_at_every_stop() {
    every(SyncPolicy::Always);
}

#[test]
fn interval_keeps_a_prefix_at_every_stop() {
    every(SyncPolicy::Every(Duration::from_millis(2)));
}

#[test]
fn never_keeps_a_prefix_at_every_stop() {
    every(SyncPolicy::Never);
}

/// Found by the complete run: a process was killed while it named a segment, the next one named a
/// further segment, and the power failed. The disk kept the second name and lost the first, and the
/// database was refused because of the gap in its log.
#[test]
fn name_of_a_segment_outlives_the_next_one() {
    let session = run(small(SyncPolicy::Every(Duration::from_millis(2))), 1);
    let names_segment =
        |step: &Step| matches!(&step.op, Op::Rename { to, .. } if to.starts_with("/data/log"));
    let (mut state, mut dice, mut tried) = (State::default(), Dice::new(1), 0);
    for (n, step) in session.journal.iter().enumerate() {
        state.apply(&step.op).unwrap();
        if !names_segment(step) {
            continue;
        }
        let disk = CrashDisk::with(state.clone());
        disk.record(|| 0);
        open(&disk, START, options(SyncPolicy::Always)).unwrap().kill();
        let mut opening = state.clone();
        for step in disk.journal().iter() {
            opening.apply(&step.op).unwrap();
            if names_segment(step) {
                for seed in 0..8 {
                    let story = format!("killed in step {n}, power lost in the next opening, seed {seed}");
                    session.check(opening.reboot(seed), step.note, &story, &mut dice);
                    tried += 1;
                }
            }
        }
    }
    assert!(tried >= 80, "{tried}");
}
