//! Checks the state of a database of each durable kind after a power failure at every operation on
//! the disk. All promised writes must exist, each transaction completely or not at all, and nothing
//! that was never written.
//!
//! A session runs through the library once. Each operation on its disk is recorded, with the
//! promises that were made before. Then the disk is set back to each moment, loses its power there,
//! restarts, and the database is opened. LMDB does not use that disk, so each committed state of
//! its file is saved. Beside a committed state, some pages of the next commit may already be
//! written.
//!
//! There are three kinds of sessions: everyday writes; many short openings, some of which end in a
//! crash; and values of some millions of bytes. All include transactions, clears, times to live and
//! sweeps.
//!
//! Normally one moment in several is tested. `TODANA_CRASH=full` tests all of them, in more ways.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "../../tests/table_indexes/mod.rs"]
mod table_indexes;
mod writes;

use crash_disk::{CrashDisk, Dice, State, Step};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{DataOptions, Db, DbOptions, Result};
use writes::{ALONE, FoundRecords, LONG, SHORT};

/// A database of numbered records whose values are in an array.
const ARRAY: &str = "mem:fixed#width=64";

fn is_full() -> bool {
    std::env::var("TODANA_CRASH").is_ok_and(|value| value == "full")
}

/// The kind of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SessionKind {
    Everyday,
    /// The database is opened repeatedly, with a few writes each time. Then it is closed, killed,
    /// or cut off by a power failure.
    ShortOpenings,
    LongValues,
}

impl SessionKind {
    const ALL: [SessionKind; 3] =
        [SessionKind::Everyday, SessionKind::ShortOpenings, SessionKind::LongValues];

    fn writer(self, name: &str) -> u64 {
        match self {
            _ if name == ARRAY => SHORT,
            SessionKind::LongValues => LONG,
            _ => ALONE,
        }
    }

    /// Returns the number of writes.
    fn operations(self) -> u64 {
        match self {
            _ if is_full() => 2_000,
            SessionKind::Everyday => 2_000,
            SessionKind::ShortOpenings | SessionKind::LongValues => 400,
        }
    }

    /// Returns the number of sessions, the interval between the tested moments, and the number of
    /// ways for each moment.
    fn extent(self) -> (u64, u64, u64) {
        match self {
            SessionKind::Everyday if is_full() => (2, 1, 2),
            // A short opening has many operations.
            _ if is_full() => (1, 1, 1),
            SessionKind::Everyday => (1, 41, 1),
            SessionKind::ShortOpenings => (1, 101, 1),
            SessionKind::LongValues => (1, 97, 1),
        }
    }
}

/// A kind of database and its path. The path is the same on the crash disk and, for LMDB's file, on
/// the machine's disk.
struct DatabasePlace {
    name: &'static str,
    folder: tempfile::TempDir,
    sync: SyncPolicy,
}

impl DatabasePlace {
    fn new(name: &'static str, sync: SyncPolicy) -> DatabasePlace {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        DatabasePlace { name, folder: folder.unwrap(), sync }
    }

    fn open(&self, disk: &CrashDisk) -> Result<Db> {
        // Segments are small, so that there are many of them.
        let log = LogOptions {
            sync: self.sync,
            segment_len: 4_000,
            recent_max: 4096,
            reserve_bytes: 1_000,
            ..LogOptions::default()
        };
        let options = DbOptions::default().data_options(DataOptions { log, ..DataOptions::default() });
        let disk = Arc::new(disk.clone());
        match self.name.starts_with("mem:") {
            true => options.data_dir("/data").open_on(disk, self.name),
            false => options.open_on(disk, self.folder.path().join(self.name).to_str().unwrap()),
        }
    }

    fn lmdb(&self) -> PathBuf {
        let path = self.folder.path().join(self.name.split('#').next().unwrap());
        // The folder of the pages is named after the kind.
        let folder = path.extension().unwrap_or_default().to_owned();
        path.join(folder)
    }

    /// Returns the contents of LMDB's file, if there is one.
    fn page_file(&self) -> Option<Vec<u8>> {
        fs::read(self.lmdb().join("data.mdb")).ok()
    }

    /// Restores LMDB's file.
    fn restore(&self, pages: Option<&[u8]>) {
        let _ = fs::remove_dir_all(self.lmdb());
        if let Some(pages) = pages {
            fs::create_dir_all(self.lmdb()).unwrap();
            fs::write(self.lmdb().join("data.mdb"), pages).unwrap();
        }
    }
}

const PAGE: usize = 4096;

/// Returns the number of the newest commit in a file of LMDB.
fn commit(pages: &[u8]) -> u64 {
    // The number stands in the two meta pages, after the page header and these fields: magic,
    // version, address, size, two trees, last page.
    let at = |page: usize| page * PAGE + 16 + 4 + 4 + 8 + 8 + 2 * 48 + 8;
    let number = |page| u64::from_le_bytes(pages[at(page)..at(page) + 8].try_into().unwrap());
    number(0).max(number(1))
}

/// The states of LMDB's file, in order.
#[derive(Default)]
struct CommittedPages(Vec<Arc<Vec<u8>>>);

impl CommittedPages {
    /// Saves the present state of the file. Returns its index plus one, or 0 if there is no file.
    fn look(&mut self, place: &DatabasePlace) -> u64 {
        while let Some(pages) = place.page_file().filter(|pages| pages.len() >= 2 * PAGE) {
            if self.0.last().is_some_and(|last| commit(last) == commit(&pages)) {
                break;
            }
            // The meta pages are written last, so a file with new meta pages has all their pages.
            self.0.push(Arc::new(pages));
        }
        self.0.len() as u64
    }

    fn at(&self, index: u64) -> Option<&[u8]> {
        index.checked_sub(1).map(|index| self.0[index as usize].as_slice())
    }

    /// Returns the file in the middle of the next commit: some of its pages are written, but not
    /// its meta page.
    fn torn(&self, index: u64, dice: &mut Dice) -> Option<Vec<u8>> {
        let (before, after) = (self.at(index)?, self.0.get(index as usize)?);
        if commit(after) != commit(before) + 1 {
            return None;
        }
        let mut torn = before.to_vec();
        let len = if dice.coin() { after.len().max(before.len()) } else { before.len() };
        torn.resize(len, 0);
        for at in (2 * PAGE..len.min(after.len())).step_by(PAGE) {
            if dice.coin() {
                let end = (at + PAGE).min(len).min(after.len());
                torn[at..end].copy_from_slice(&after[at..end]);
            }
        }
        Some(torn)
    }
}

/// The facts that the test knows at a moment: which writes had begun, which were promised to be on
/// disk, and the state of LMDB's file.
#[derive(Clone, Copy)]
struct KnownWrites {
    begun: u64,
    promised: u64,
    commit: u64,
}

impl KnownWrites {
    fn pack(self) -> u64 {
        self.commit << 40 | self.promised << 20 | self.begun
    }

    fn of(note: u64) -> KnownWrites {
        let part = |shift: u32| note >> shift & 0xf_ffff;
        KnownWrites { begun: part(0), promised: part(20), commit: note >> 40 }
    }
}

struct RecordedSession {
    place: Arc<DatabasePlace>,
    history: SessionKind,
    /// The contents after each write.
    moments: Vec<FoundRecords>,
    journal: Vec<Step>,
    commits: CommittedPages,
    opened: AtomicU64,
}

/// The session while it is recorded.
struct SessionProgress {
    place: Arc<DatabasePlace>,
    disk: CrashDisk,
    writer: u64,
    begun: Arc<AtomicU64>,
    promised: Arc<AtomicU64>,
    moments: Vec<FoundRecords>,
    number: u64,
    operations: u64,
    openings: u64,
    crashes: u64,
}

impl SessionProgress {
    fn left(&self) -> u64 {
        self.operations - self.number
    }

    fn open(&mut self) -> Db {
        self.openings += 1;
        let db = self.place.open(&self.disk).unwrap();
        writes::define_indexes(&db);
        db
    }

    fn write(&mut self, db: &Db, syncs: bool) {
        self.number += 1;
        self.begun.fetch_max(self.number, Ordering::SeqCst);
        writes::make(db, self.writer, self.number).unwrap();
        let mut found = self.moments.last().unwrap().clone();
        writes::note(&mut found, self.writer, self.number);
        self.moments.push(found);
        if syncs {
            db.sync().unwrap();
        }
        if syncs || self.place.sync == SyncPolicy::Always {
            self.promised.store(self.number, Ordering::SeqCst);
        }
    }

    /// Opens and closes the database repeatedly, with few writes. Some of these openings end in a
    /// crash.
    fn open_shortly(&mut self, mut db: Db, dice: &mut Dice) -> Db {
        for _ in 0..2 + dice.roll(14) {
            let is_crash = dice.roll(5) == 0;
            if is_crash {
                self.disk.stop();
            }
            drop(db);
            if is_crash {
                self.disk.come_up(dice.coin().then(|| dice.roll(1 << 40)));
            }
            db = self.open();
            if is_crash {
                self.crashes += 1;
                self.go_back(&db);
            }
            for _ in 0..dice.roll(3).min(self.left()) {
                self.write(&db, dice.roll(4) == 0);
            }
            if dice.coin() {
                while db.database().maintain() {}
            }
        }
        db
    }

    /// Goes back to the state that exists after a crash. The writes after it are then repeated.
    fn go_back(&mut self, db: &Db) {
        let (promised, found) = (self.promised.load(Ordering::SeqCst), writes::found(db));
        let moment = (promised..=self.number).find(|&moment| self.moments[moment as usize] == found);
        self.number = moment.unwrap_or_else(|| {
            let difference = writes::difference(&found, &self.moments[promised as usize]);
            panic!("a crash in the session: of no moment from {promised} to {}: {difference}", self.number)
        });
        self.moments.truncate(self.number as usize + 1);
    }
}

fn run(name: &'static str, sync: SyncPolicy, seed: u64, history: SessionKind) -> RecordedSession {
    let (place, disk) = (Arc::new(DatabasePlace::new(name, sync)), CrashDisk::new());
    disk.show_in_memory(true);
    let (begun, promised) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let commits = Arc::<Mutex<CommittedPages>>::default();
    let note = {
        let (place, commits) = (Arc::clone(&place), Arc::clone(&commits));
        let (begun, promised) = (Arc::clone(&begun), Arc::clone(&promised));
        move || {
            // The promises are read first, so that they are never newer than the saved state of the
            // file.
            let promised = promised.load(Ordering::SeqCst);
            let commit = commits.lock().unwrap().look(&place);
            KnownWrites { begun: begun.load(Ordering::SeqCst), promised, commit }.pack()
        }
    };
    disk.record(note);
    let mut dice = Dice::new(seed);
    let mut course = SessionProgress {
        place: Arc::clone(&place),
        disk: disk.clone(),
        writer: history.writer(name),
        begun,
        promised,
        moments: vec![FoundRecords::new()],
        number: 0,
        operations: history.operations(),
        openings: 0,
        crashes: 0,
    };
    let (mut checkpoints, mut sweeps) = (0, 0);
    let mut db = course.open();
    while course.left() > 0 {
        for _ in 0..(1 + dice.roll(60)).min(course.left()) {
            course.write(&db, dice.roll(40) == 0);
        }
        match dice.roll(10) {
            0..5 if history == SessionKind::ShortOpenings => db = course.open_shortly(db, &mut dice),
            0 => {
                drop(db);
                db = course.open();
            }
            5 => {
                sweeps += 1;
                db.database().request_sweep();
                while db.database().maintain() {}
            }
            // This runs while another thread writes.
            _ => std::thread::scope(|scope| {
                checkpoints += 1;
                let maker = scope.spawn(|| db.checkpoint());
                for _ in 0..dice.roll(20).min(course.left()) {
                    course.write(&db, false);
                }
                maker.join().unwrap().unwrap();
            }),
        }
    }
    disk.stop();
    drop(db);
    let journal = disk.journal();
    let commits = std::mem::take(&mut *commits.lock().unwrap());
    eprintln!(
        "{name}, {sync:?}, {history:?}, seed {seed}: {} writes, {checkpoints} checkpoints, {sweeps} sweeps, {} openings, {} crashes, {} operations on the disk, {} commits of LMDB's",
        course.operations,
        course.openings,
        course.crashes,
        journal.len(),
        commits.0.len()
    );
    RecordedSession { place, history, moments: course.moments, journal, commits, opened: AtomicU64::new(0) }
}

impl RecordedSession {
    /// Opens the restarted disk, checks that its state is allowed, and sometimes continues from
    /// this state.
    fn check(&self, state: State, pages: Option<&[u8]>, known: KnownWrites, story: &str, dice: &mut Dice) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.place.restore(pages);
        let disk = CrashDisk::shown_or_read(state, true);
        let db = self.place.open(&disk).unwrap_or_else(|error| panic!("{story}: {error}"));
        let found = writes::found(&db);
        let KnownWrites { promised, begun, .. } = known;
        let moment = (promised..=begun).find(|&moment| self.moments[moment as usize] == found);
        let number = moment.unwrap_or_else(|| {
            let difference = writes::difference(&found, &self.moments[promised as usize]);
            panic!("{story}: of no moment from {promised} to {begun}; against the first: {difference}")
        });
        writes::check_indexes(&db);
        if dice.roll(8) > 0 {
            disk.stop();
            return;
        }
        let mut expected = found;
        for number in number + 1..=number + 1 + dice.roll(20) {
            writes::make(&db, self.history.writer(self.place.name), number).unwrap();
            writes::note(&mut expected, self.history.writer(self.place.name), number);
        }
        if dice.roll(3) == 0 {
            db.checkpoint().unwrap();
        }
        db.sync().unwrap();
        let state = disk.state().reboot(dice.roll(1 << 40));
        disk.stop();
        drop(db);
        let disk = CrashDisk::shown_or_read(state, true);
        let db = self.place.open(&disk).unwrap_or_else(|error| panic!("{story}, once more: {error}"));
        let found = writes::found(&db);
        assert!(found == expected, "{story}, once more: {}", writes::difference(&found, &expected));
        writes::check_indexes(&db);
        disk.stop();
    }

    /// Loses the power at a random operation of the opening. The next opening must also yield an
    /// allowed state.
    fn stop_opening(
        &self,
        state: State,
        pages: Option<&[u8]>,
        known: KnownWrites,
        story: &str,
        dice: &mut Dice,
    ) {
        self.place.restore(pages);
        let disk = CrashDisk::shown_or_read(state.clone(), true);
        disk.record(|| 0);
        let db = self.place.open(&disk).unwrap_or_else(|error| panic!("{story}: {error}"));
        disk.stop();
        drop(db);
        let mut state = state;
        for (n, step) in disk.journal().iter().enumerate() {
            let story = format!("{story}, opening stopped at step {n} {}", short(step));
            let mut torn = state.clone();
            torn.apply_in_part(&step.op, dice);
            self.check(torn.reboot(dice.roll(1 << 40)), pages, known, &story, dice);
            state.apply(&step.op).unwrap();
        }
    }

    /// Tests one in `every` moments of the session, each in `ways` ways.
    fn lose_power(&self, every: u64, ways: u64) {
        let mut state = State::default();
        let mut dice = Dice::new(every);
        let mut known = KnownWrites { begun: 0, promised: 0, commit: 0 };
        let mut stops = 0;
        for (n, step) in self.journal.iter().enumerate() {
            let now = KnownWrites::of(step.note);
            // A promise that was made before an earlier operation still holds, and so does a
            // commit. If two threads note their knowledge, a note may be older than the operation
            // that follows it.
            known = KnownWrites {
                promised: known.promised.max(now.promised),
                begun: known.begun.max(now.begun),
                commit: known.commit.max(now.commit),
            };
            let next = self.journal.get(n + 1).map_or(0, |next| KnownWrites::of(next.note).commit);
            let is_chosen = n as u64 % every == dice.roll(every);
            let name = self.place.name;
            if is_chosen {
                stops += 1;
                for _ in 0..ways {
                    let reboot = dice.roll(1 << 40);
                    let mut there = state.clone();
                    if dice.coin() {
                        there.apply_in_part(&step.op, &mut dice);
                    }
                    let story = format!("{name}, stopped at step {n} {}, reboot {reboot}", short(step));
                    let pages = self.commits.at(known.commit);
                    self.check(there.reboot(reboot), pages, known, &story, &mut dice);
                    if dice.roll(60) == 0 {
                        self.stop_opening(there.reboot(reboot), pages, known, &story, &mut dice);
                    }
                    // The process is killed, but the machine keeps running.
                    let story = format!("{name}, killed in step {n} {}", short(step));
                    self.check(there, pages, known, &story, &mut dice);
                }
            }
            state.apply(&step.op).unwrap();
            if next > known.commit && (is_chosen || dice.roll(every) < 4) {
                stops += 1;
                for _ in 0..2 * ways {
                    let Some(pages) = self.commits.torn(known.commit, &mut dice) else { break };
                    let story = format!("{name}, stopped behind step {n}, in the middle of LMDB's commit");
                    let reboot = dice.roll(1 << 40);
                    self.check(state.reboot(reboot), Some(&pages), known, &story, &mut dice);
                }
            }
        }
        let opened = self.opened.load(Ordering::Relaxed);
        let (name, history) = (self.place.name, self.history);
        eprintln!("{name}, {history:?}: {stops} stop points, {opened} times opened and compared");
    }
}

fn short(step: &Step) -> String {
    let text = format!("{:?}", step.op);
    text.chars().take(80).collect()
}

fn every(name: &'static str) {
    for history in SessionKind::ALL {
        let (seeds, every, ways) = history.extent();
        for seed in 1..=seeds {
            // With an interval that never ends, only explicit syncs are promised. Of the other
            // writes, the first ones may be on disk.
            for sync in [SyncPolicy::Always, SyncPolicy::Every(Duration::from_secs(3600))] {
                let session = run(name, sync, seed, history);
                let (did, least) = (session.journal.len() as u64, history.operations() / 20);
                assert!(did > least, "the session does too little");
                session.lose_power(every, ways);
            }
        }
    }
}

#[test]
fn logged_mem_hash_keeps_its_promise_after_crashes() {
    every("mem:hash");
}

#[test]
fn logged_mem_tree_keeps_its_promise_after_crashes() {
    every("mem:tree");
}

#[test]
fn mapped_disk_hash_keeps_its_promise_after_crashes() {
    every("x.hash");
}

#[test]
fn unmapped_disk_hash_keeps_its_promise_after_crashes() {
    every("x.hash#map=off");
}

#[test]
fn disk_tree_keeps_its_promise_after_crashes() {
    every("x.tree");
}

#[test]
fn logged_mem_fixed_keeps_its_promise_after_crashes() {
    every(ARRAY);
}

#[test]
fn fixed_on_disk_keeps_its_promise_after_crashes() {
    every("x.fixed#width=16m#limsiz=1p");
}

#[test]
fn logged_mem_table_keeps_its_promise_after_crashes() {
    every("mem:table");
}

#[test]
fn table_on_disk_keeps_its_promise_after_crashes() {
    every("x.table");
}
