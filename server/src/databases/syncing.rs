//! What engines keep in files of their own comes to disk: before the answer leaves, or now and then.
//!
//! ```text
//! worker: write .. ticket = rounds begun + 1 ..... park ............. rounds over >= ticket: reply
//! syncing thread:        round begins, Durable::sync, round is over, wake those who wait
//! ```
//!
//! A round covers what was written before it began; so whoever has written waits for the next one to begin and end, together
//! with all who come meanwhile. Nobody else touches the disk for it.

use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use todana::Database;
use todana::update_log::{Position, Sync};
use todana_core::ErrorKind;

/// How often those who wait in place are asked whether they still do.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How often a full disk is tried again, where a round is not begun as often anyway.
const RETRY: Duration = Duration::from_millis(100);

const WELL: u8 = 0;
/// The disk is full: nothing has been lost, and the round is tried again.
const STUCK: u8 = 1;
/// What the disk has kept is not known.
const LOST: u8 = 2;

/// How far the files of an engine have come to disk.
pub(crate) struct Syncing {
    /// The database, as it is called among several.
    label: String,
    sync: Sync,
    begun: AtomicU64,
    over: AtomicU64,
    state: AtomicU8,
    /// The log tells that the disk is full.
    has_told: AtomicBool,
    wanted: Mutex<Wanted>,
    /// Somebody wants a round, or the end.
    wakes: Condvar,
    /// A round is over.
    came_on: Condvar,
}

#[derive(Default)]
struct Wanted {
    round: u64,
    ends: bool,
}

/// The thread that does it. It ends when this is dropped.
pub(crate) struct Syncer {
    syncing: Arc<Syncing>,
    thread: Option<JoinHandle<()>>,
}

impl Syncing {
    pub(crate) fn new(label: &str, sync: Sync) -> Syncing {
        Syncing {
            label: label.into(),
            sync,
            begun: AtomicU64::new(0),
            over: AtomicU64::new(0),
            state: AtomicU8::new(WELL),
            has_told: AtomicBool::new(false),
            wanted: Mutex::default(),
            wakes: Condvar::new(),
            came_on: Condvar::new(),
        }
    }

    /// Starts the thread. `came_on` is called after each round, also one that fails: the engine takes no writes then, for good
    /// unless the disk was merely full.
    pub(crate) fn start(
        self: &Arc<Self>,
        database: &Arc<Database>,
        came_on: impl Fn() + Send + 'static,
    ) -> io::Result<Syncer> {
        let (syncing, database) = (Arc::clone(self), Arc::clone(database));
        let work = move || {
            while syncing.waits() && !syncing.has_failed() {
                syncing.round(&database);
                came_on();
            }
        };
        let thread = std::thread::Builder::new().name("syncing".into()).spawn(work)?;
        Ok(Syncer { syncing: Arc::clone(self), thread: Some(thread) })
    }

    /// Returns when a round is wanted; false when it is time to end.
    fn waits(&self) -> bool {
        let mut wanted = self.wanted.lock();
        if let Sync::Every(interval) = self.sync {
            if !wanted.ends {
                self.wakes.wait_for(&mut wanted, interval);
            }
            return !wanted.ends;
        }
        if self.is_stuck() && !wanted.ends {
            self.wakes.wait_for(&mut wanted, RETRY);
            return !wanted.ends;
        }
        while !wanted.ends && wanted.round <= self.begun.load(Ordering::Relaxed) {
            self.wakes.wait(&mut wanted);
        }
        !wanted.ends
    }

    fn round(&self, database: &Database) {
        let round = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let outcome = database.engine().durable().map_or(Ok(()), |durable| durable.sync());
        let _wanted = self.wanted.lock();
        match outcome {
            Ok(()) => {
                self.over.store(round, Ordering::SeqCst);
                if self.is_stuck() {
                    if self.has_told.swap(false, Ordering::Relaxed) {
                        tracing::info!(database = self.label, "the disk has room again; writes are taken");
                    }
                    self.state.store(WELL, Ordering::SeqCst);
                    database.has_disk_again();
                }
            }
            Err(error) if error.kind() == ErrorKind::Full => {
                if !self.is_stuck() {
                    // A change that was refused before is told by whoever looks after the database, with the same cause.
                    if !has_refused(database) {
                        self.has_told.store(true, Ordering::Relaxed);
                        tracing::error!(
                            %error,
                            database = self.label,
                            "what is written cannot be brought to disk; no more is taken until it can"
                        );
                    }
                    database.has_lost_disk();
                    self.state.store(STUCK, Ordering::SeqCst);
                }
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    database = self.label,
                    "what is written cannot be brought to disk; no more is taken until a restart"
                );
                database.has_lost_disk();
                self.state.store(LOST, Ordering::SeqCst);
            }
        }
        self.came_on.notify_all();
    }

    /// What has been written so far is on disk when this is settled; sees to it that it will be.
    pub(crate) fn ticket(&self) -> Position {
        // Behind the write, in the order that all threads agree on: a round that begins later covers it.
        std::sync::atomic::fence(Ordering::SeqCst);
        let ticket = self.begun.load(Ordering::SeqCst) + 1;
        let mut wanted = self.wanted.lock();
        if wanted.round < ticket {
            wanted.round = ticket;
            self.wakes.notify_one();
        }
        Position(ticket)
    }

    pub(crate) fn is_settled(&self, ticket: Position) -> bool {
        self.over.load(Ordering::SeqCst) >= ticket.0
    }

    /// For good.
    fn has_failed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == LOST
    }

    fn is_stuck(&self) -> bool {
        self.state.load(Ordering::SeqCst) == STUCK
    }

    /// Returns true if the log has been told that the disk is full, or lost.
    pub(crate) fn has_told(&self) -> bool {
        self.has_told.load(Ordering::Relaxed) || self.has_failed()
    }

    pub(crate) fn takes_changes(&self) -> bool {
        self.state.load(Ordering::SeqCst) == WELL
    }

    /// In a word.
    pub(crate) fn health(&self) -> &'static str {
        match self.state.load(Ordering::SeqCst) {
            WELL => "well",
            STUCK => "stuck",
            _ => "lost",
        }
    }

    pub(crate) fn sync(&self) -> Sync {
        self.sync
    }

    /// Waits until it is settled; false if that is not to be, or `goes_on`, which is asked now and then, says no.
    pub(crate) fn wait_while(&self, ticket: Position, goes_on: &dyn Fn() -> bool) -> bool {
        let mut wanted = self.wanted.lock();
        while !self.is_settled(ticket) {
            if !self.takes_changes() || !goes_on() {
                return false;
            }
            self.came_on.wait_for(&mut wanted, ASK_EVERY);
        }
        true
    }

    fn end(&self) {
        self.wanted.lock().ends = true;
        self.wakes.notify_one();
    }
}

fn has_refused(database: &Database) -> bool {
    database.engine().durable().is_some_and(|files| files.refused_write().is_some())
}

impl Syncer {
    /// Ends it, unless the disk keeps it waiting: `gives_up` is asked now and then, and once it says so, the thread is left to
    /// itself. False then.
    pub(crate) fn end_unless(mut self, gives_up: &dyn Fn() -> bool) -> bool {
        self.syncing.end();
        let Some(thread) = self.thread.take() else { return true };
        while !thread.is_finished() {
            if gives_up() {
                return false;
            }
            // Unparked by nobody: there is no hurry at the end of a server.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        // A panic in it has been shown already.
        let _ = thread.join();
        true
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.syncing.end();
    }
}
