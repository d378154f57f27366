//! The tree on disk: more records than memory holds, in the order of their keys, in LMDB.
//!
//! ```text
//! visit --> active front --(checkpoint: cut)--> frozen front --(one sorted batch)--> LMDB
//! view, walk look through all three, the newest first
//! ```
//!
//! LMDB reads faster than anything else on disk and writes single records slowly; so changes are gathered in a front in
//! memory and go to disk in large sorted batches. They are vouched for by the update log of whoever owns the tree, and
//! LMDB is that log's checkpoint ([`CheckpointedEngine`]): what was not brought there is gone when the tree is closed, and comes back
//! when the log is read again from the mark.
//!
//! Always true: a change is in one of the layers, and the newest layer that knows a key is right about it. Layers change their
//! places only while no visit, view or stretch of a walk is under way (`layers` is held by all of them), so nobody sees a
//! change twice or not at all. No lock that a reader or writer needs is held while LMDB writes.
//!
//! Locks, in this order: `flushing`, a copy's, `stripes`, `layers`, the active front's or a snapshot's.
//!
//! A sweep for expired records is a walk, and none at all if no record has an expiry, which is counted. An index by expiry would
//! make it cheaper, and every write of a record with one dearer by a second tree of random places; a walk costs some 30
//! nanoseconds a record that is in memory, and is paced by whoever asks for it.

mod damage;
mod environment;
mod examination;
mod front;
mod pages;
mod place;
mod readers;
mod record;
mod sheaf;
mod state;
mod store;
mod stored;
mod unclean;
mod walk;

use crate::disk::{Disk, SystemDisk};
use crate::mapped_buffer::MappedBuffer;
use front::{Entry, Front};
use parking_lot::{Mutex, RwLock};
use state::{State, Totals};
use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{Store, Trouble};
use todana_core::{
    Action, CheckpointedEngine, Engine, EngineStatus, Error, ErrorKind, Expiry, OrderedEngine, Record,
    Result, ScanPosition, SweepAim, SweepProgress, SweepableEngine, ValueBuffer, Visitor,
};
use walk::{End, Manner, See};

pub use examination::ExaminedTree;

/// How a [`DiskTree`] is opened.
#[derive(Clone)]
pub struct DiskTreeOptions {
    /// A checkpoint is due when the front holds so many bytes of memory. While one is made there may be as many again.
    /// The more there are, the less a write costs, as more of them go to the same page.
    pub front_bytes: u64,
    /// Makes checkpoints of its own, without a new mark, when one is due: in `maintain`, and if twice as much is pending, in
    /// the write that finds it so. For whoever has no log; whose log must not be overtaken says no, and sees to it that
    /// writes wait for checkpoints.
    pub spills: bool,
    /// Address space to begin with, in bytes. It costs nothing until it is used; where the system gives less, less is taken.
    /// More is asked for when the file needs it.
    pub map_bytes: usize,
    /// A file of up to so many bytes is walked at each opening, so that damage of its structure is reported rather than met later, where
    /// it ends the process; a longer one only if it was not closed, and the machine may have stopped since.
    pub walked_bytes_max: u64,
    /// The file system on which the names of the tree's directory and files are synced. The files themselves are LMDB's, on the machine's own.
    /// If it is read only, the tree is opened for reading, beside others that read it, and what is changed stays in memory.
    pub disk: Arc<dyn Disk>,
}

impl Default for DiskTreeOptions {
    fn default() -> Self {
        DiskTreeOptions {
            front_bytes: 32 << 20,
            spills: true,
            map_bytes: 1 << 40,
            walked_bytes_max: 256 << 20,
            disk: Arc::new(SystemDisk),
        }
    }
}

const KEY_LEN_MAX: usize = 1 << 20;
const VALUE_LEN_MAX: usize = 1 << 30;
/// LMDB's limit for one value, less what a sheaf adds to a record.
const SHEAF_LEN_MAX: u64 = (1 << 32) - (1 << 16);
/// Writes of one key wait for each other; with so many locks, those of different keys hardly do.
const STRIPES: usize = 64;

/// The tree on disk.
///
/// ```
/// use todana_core::{Action, Attributes, CheckpointedEngine, Engine, Record, Visitor};
/// use todana_engine::{DiskTree, DiskTreeOptions};
///
/// struct Set<'a>(&'a [u8]);
/// impl Visitor for Set<'_> {
///     fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
///         Action::Put(Record::new(self.0, Attributes::default()))
///     }
/// }
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("words.tree");
/// let tree = DiskTree::open(&path, DiskTreeOptions::default())?;
/// tree.visit(b"hello", &mut Set(b"world"))?;
/// tree.checkpoint(17)?;
/// drop(tree);
///
/// let tree = DiskTree::open(&path, DiskTreeOptions::default())?;
/// assert_eq!(tree.log_position(), 17);
/// assert!(tree.view(b"hello", &mut |record| assert_eq!(record.value, b"world"))?);
/// # Ok::<(), todana_core::Error>(())
/// ```
pub struct DiskTree {
    stripes: Box<[Mutex<()>]>,
    layers: RwLock<Layers>,
    store: Store,
    /// Held by whoever brings changes to LMDB.
    flushing: Mutex<()>,
    totals: Counters,
    mark: AtomicU64,
    /// Bytes of the active front; 0 if it is empty.
    active_bytes: AtomicU64,
    frozen_bytes: AtomicU64,
    /// Bytes of both fronts that belong to keys in sheaves.
    sheaf_bytes: AtomicU64,
    front_bytes: u64,
    spills: bool,
}

/// Where changes are. Read by all who look or write, written when changes go from one to the next.
struct Layers {
    active: RwLock<Front>,
    /// Changes on their way to LMDB; what did not get there waits here for the next batch.
    frozen: Option<Arc<Front>>,
    /// What LMDB has is from before a clear, and counts for nothing.
    wiped: bool,
}

#[derive(Default)]
struct Counters {
    records: AtomicU64,
    bytes: AtomicU64,
    perishable: AtomicU64,
}

impl Counters {
    fn new(totals: Totals) -> Counters {
        let Totals { records, bytes, perishable } = totals;
        Counters { records: records.into(), bytes: bytes.into(), perishable: perishable.into() }
    }

    fn get(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals { records: get(&self.records), bytes: get(&self.bytes), perishable: get(&self.perishable) }
    }

    fn reset(&self) {
        for counter in [&self.records, &self.bytes, &self.perishable] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// One record changes from what `old` says to what `new` says.
    fn change(&self, old: Totals, new: Totals) {
        let change = |counter: &AtomicU64, old: u64, new: u64| {
            if old != new {
                counter.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
            }
        };
        change(&self.records, old.records, new.records);
        change(&self.bytes, old.bytes, new.bytes);
        change(&self.perishable, old.perishable, new.perishable);
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Whether a key's record may lie in a sheaf.
fn in_sheaf(key: &[u8]) -> bool {
    // One byte less than a place, as that of zeros only is longer by one.
    key.len() + 1 >= place::PLACE_LEN_MAX
}

thread_local! {
    /// Memory to build entries in.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `build` with the thread's scratch memory, which is not kept if it has become large.
fn with_scratch(build: impl FnOnce(&mut Vec<u8>) -> Entry) -> Entry {
    // A thread that ends has none any more.
    let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
    let entry = build(&mut scratch);
    if scratch.capacity() <= 128 << 10 {
        let _ = SCRATCH.try_with(|kept| kept.replace(scratch));
    }
    entry
}

impl DiskTree {
    /// Opens the tree in a directory, or makes one. Fails with `Busy` if it is open elsewhere, with `Corrupt` if its structure is damaged,
    /// with `Invalid` if it is of a later version. All pages of a small tree are walked first, and those of a large one if it was not
    /// closed and the machine may have stopped since. An open tree does not survive a
    /// fork: a process that goes to the background does so first.
    pub fn open(directory: &Path, options: DiskTreeOptions) -> Result<DiskTree> {
        let (store, state) = Store::open(directory, &options)?;
        let layers = Layers { active: RwLock::default(), frozen: None, wiped: false };
        Ok(DiskTree {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            layers: RwLock::new(layers),
            store,
            flushing: Mutex::new(()),
            totals: Counters::new(state.totals),
            mark: AtomicU64::new(state.mark),
            active_bytes: AtomicU64::new(0),
            frozen_bytes: AtomicU64::new(0),
            sheaf_bytes: AtomicU64::new(0),
            front_bytes: options.front_bytes.max(1),
            spills: options.spills,
        })
    }

    /// Reads all of the tree in a directory: every page, and every record with its checksum. Nothing is changed. Fails with `Corrupt` if
    /// anything is damaged, with `Busy` if it is open for writing, with `Invalid` if there is no tree.
    pub fn check(directory: &Path) -> Result<ExaminedTree> {
        examination::examine(directory)
    }

    /// Whose log the mark is of, as far as that is known ([`CheckpointedEngine::bind_to_log`]).
    pub fn database_id(&self) -> Option<[u8; 16]> {
        self.store.database_id()
    }

    /// Shows the newest record of a key in any layer.
    #[inline]
    fn find<T>(&self, layers: &Layers, key: &[u8], see: impl FnOnce(Option<Record<'_>>) -> T) -> Result<T> {
        // Cloned, so that the front can be written to while it is shown.
        let active = match self.active_bytes() {
            0 => None,
            _ => layers.active.read().get(key).cloned(),
        };
        let change = active.as_ref().or_else(|| layers.frozen.as_ref().and_then(|frozen| frozen.get(key)));
        if let Some(change) = change {
            return Ok(see(change.record()));
        }
        if layers.wiped {
            return Ok(see(None));
        }
        self.store.read(|snapshot, records| Ok(see(self.store.get(snapshot, records, key)?)))
    }

    /// Refuses what could not be brought to LMDB later. `beside`: bytes of what the record would share an LMDB value with.
    fn admit(key: &[u8], value_len: usize, beside: u64) -> Result<()> {
        if value_len > VALUE_LEN_MAX {
            return Err(invalid(format!("a value of {value_len} bytes; at most {VALUE_LEN_MAX} are kept")));
        }
        if beside + (key.len() + value_len) as u64 > SHEAF_LEN_MAX {
            return Err(invalid("records whose keys begin with the same 511 bytes take over 4 GiB".into()));
        }
        Ok(())
    }

    /// A visit, without asking whether a checkpoint is due.
    fn change(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let _alone = self.stripes[rapidhash::v3::rapidhash_v3(key) as usize % STRIPES].lock();
        let layers = self.layers.read();
        let beside = match in_sheaf(key) && !layers.wiped {
            true => self.store.sheaf_len(key)? as u64 + self.sheaf_bytes.load(Ordering::Relaxed),
            false => 0,
        };
        let mut trouble = None;
        let overwrites = visitor.overwrites();
        // `before`: what there is, be it damaged, in which case the visitor is shown none.
        let mut decide = |old: Option<Record<'_>>, before: Option<Totals>| {
            let record = match visitor.visit(old) {
                Action::Keep => return None,
                Action::Remove => {
                    let removal = || with_scratch(|scratch| Entry::removal(key, scratch));
                    return before.map(|before| (removal(), before));
                }
                Action::Put(record) => record,
                Action::Retag(attributes) => Record { attributes, ..old? },
            };
            trouble = DiskTree::admit(key, record.value.len(), beside).err();
            match trouble {
                Some(_) => None,
                None => {
                    let entry = with_scratch(|scratch| Entry::put(key, record, scratch));
                    Some((entry, before.unwrap_or_default()))
                }
            }
        };
        let found = self.find(&layers, key, |old| {
            let before = old.map(|old| {
                let stored_len = record::header_len(&old.attributes) + old.value.len();
                Totals::one(key.len(), stored_len, old.attributes.expiry)
            });
            decide(old, before)
        });
        let outcome = match found {
            Err(error) if error.kind() == ErrorKind::Corrupt && overwrites => {
                decide(None, self.store.damaged_totals(key)?)
            }
            found => found?,
        };
        if let Some(error) = trouble {
            return Err(error);
        }
        let Some((entry, before)) = outcome else { return Ok(()) };
        let now = entry.record();
        let after = now.map_or(Totals::default(), |now| {
            Totals::one(key.len(), entry.stored_len(), now.attributes.expiry)
        });
        if in_sheaf(key) {
            self.sheaf_bytes.fetch_add((key.len() + entry.stored_len()) as u64, Ordering::Relaxed);
        }
        let replaced = {
            let mut active = layers.active.write();
            let replaced = active.put(entry.clone());
            self.active_bytes.store(active.bytes(), Ordering::Relaxed);
            replaced
        };
        self.totals.change(before, after);
        visitor.applied(now);
        drop(replaced);
        Ok(())
    }

    fn active_bytes(&self) -> u64 {
        self.active_bytes.load(Ordering::Relaxed)
    }

    /// Brings what is due to LMDB, without a new mark.
    fn spill(&self) -> Result<()> {
        let _alone = self.flushing.lock();
        if self.active_bytes() < self.front_bytes {
            // Somebody else has done it while this one waited.
            return Ok(());
        }
        let mark = self.mark.load(Ordering::Relaxed);
        self.flush(&mut || mark, &mut |_| Ok(()))
    }

    /// Brings all changes to LMDB. `flushing` is held.
    fn flush(&self, cut: &mut dyn FnMut() -> u64, ready: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let (frozen, wiped, state) = {
            let mut layers = self.layers.write();
            let active = std::mem::take(layers.active.get_mut());
            self.active_bytes.store(0, Ordering::Relaxed);
            let frozen = match layers.frozen.take() {
                None => Arc::new(active),
                // An earlier batch has failed. This one takes its place, so that nothing of it is durable before `ready` says so.
                Some(mut left) => {
                    let mut both =
                        std::mem::take(Arc::get_mut(&mut left).expect("whoever writes it is here"));
                    active.iter().for_each(|change| drop(both.put(change.clone())));
                    Arc::new(both)
                }
            };
            self.frozen_bytes.store(frozen.bytes(), Ordering::Relaxed);
            layers.frozen = Some(Arc::clone(&frozen));
            (
                frozen,
                layers.wiped,
                State { mark: cut(), totals: self.totals.get(), checksums: self.store.checksums() },
            )
        };
        ready(state.mark)?;
        if !frozen.is_empty() || wiped || state.mark != self.mark.load(Ordering::Relaxed) {
            self.write(&frozen, wiped, state)?;
        }
        drop(frozen);
        let gone = {
            let mut layers = self.layers.write();
            self.store.forget_snapshots();
            self.mark.store(state.mark, Ordering::Relaxed);
            self.frozen_bytes.store(0, Ordering::Relaxed);
            layers.wiped = false;
            if self.sheaf_bytes.load(Ordering::Relaxed) != 0 {
                let changes = layers.active.get_mut().iter().filter(|change| in_sheaf(change.key()));
                let pending = changes.map(|change| (change.key().len() + change.stored_len()) as u64).sum();
                self.sheaf_bytes.store(pending, Ordering::Relaxed);
            }
            layers.frozen.take()
        };
        // Behind the lock, as it takes a while.
        drop(gone);
        Ok(())
    }

    /// Writes a frozen front to LMDB.
    fn write(&self, frozen: &Front, wiped: bool, state: State) -> Result<()> {
        // A failure to open it again may have been for a time only.
        self.revive()?;
        let len_before = self.store.file_bytes();
        loop {
            match self.store.write(frozen, wiped, state) {
                Ok(()) => return Ok(()),
                Err(Trouble::NoMap) => {
                    // The map is replaced, so nobody may look through it. A copy is waited for first, without holding up others.
                    let _no_copy = self.store.without_copies();
                    let _nobody = self.layers.write();
                    self.store.grow(frozen.bytes())?;
                }
                Err(Trouble::LmdbEnvironment(error)) => {
                    let error = self.store.writing_trouble(&error);
                    if error.kind() == ErrorKind::Full && !self.store.has_failed() {
                        self.store.cut(len_before);
                    }
                    // The next checkpoint tries both again.
                    let _ = self.revive();
                    return Err(error);
                }
                Err(Trouble::Error(error)) => return Err(error),
            }
        }
    }

    /// Opens LMDB's environment again if it refuses everything, as it does after a failed write of a meta page. `flushing` is held.
    fn revive(&self) -> Result<()> {
        if !self.store.has_failed() {
            return Ok(());
        }
        let _no_copy = self.store.without_copies();
        let _nobody = self.layers.write();
        self.store.reopen()
    }

    /// Walks in stretches until `see` breaks.
    fn walk(&self, from: Bound<&[u8]>, manner: Manner, see: &mut See<'_>) -> Result<End> {
        let mut end = walk::stretch(&self.layers.read(), &self.store, from, manner, see)?;
        while let End::Further(key) = end {
            end = walk::stretch(&self.layers.read(), &self.store, Bound::Excluded(&key), manner, see)?;
        }
        Ok(end)
    }

    fn scan_from(
        &self,
        from: Option<ScanPosition>,
        skips_damaged: bool,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        let mut broken_at = None;
        let manner = Manner { upwards: true, skips_damaged };
        self.walk(behind(&from), manner, &mut |key, record| {
            let flow = see(key, record);
            if flow.is_break() {
                broken_at = Some(ScanPosition::Key(key.into()));
            }
            flow
        })?;
        Ok(broken_at)
    }
}

/// A place in a scan is behind a key.
fn behind(place: &Option<ScanPosition>) -> Bound<&[u8]> {
    match place {
        Some(ScanPosition::Key(key)) => Bound::Excluded(key),
        _ => Bound::Unbounded,
    }
}

impl Engine for DiskTree {
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        let layers = self.layers.read();
        self.find(&layers, key, |record| {
            record.is_some_and(|record| {
                see(record);
                true
            })
        })
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        if key.len() > KEY_LEN_MAX {
            return Err(invalid(format!("a key of {} bytes; at most {KEY_LEN_MAX} are kept", key.len())));
        }
        // Before the change: if there is no room, nothing has happened.
        if self.spills && self.active_bytes() >= 2 * self.front_bytes {
            self.spill()?;
        }
        self.change(key, visitor)
    }

    fn wait_for_visits(&self) {
        self.stripes.iter().for_each(|stripe| drop(stripe.lock()));
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_from(from, false, see)
    }

    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_from(from, true, see)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        let _alone = self.flushing.lock();
        let gone = {
            let mut layers = self.layers.write();
            let gone = (std::mem::take(layers.active.get_mut()), layers.frozen.take());
            layers.wiped = true;
            self.totals.reset();
            self.active_bytes.store(0, Ordering::Relaxed);
            self.frozen_bytes.store(0, Ordering::Relaxed);
            self.sheaf_bytes.store(0, Ordering::Relaxed);
            cleared();
            gone
        };
        drop(gone);
        if !self.spills {
            // The log tells of it, and is not to be overtaken.
            return Ok(());
        }
        let mark = self.mark.load(Ordering::Relaxed);
        self.flush(&mut || mark, &mut |_| Ok(()))
    }

    fn status(&self) -> EngineStatus {
        let Totals { records, bytes, .. } = self.totals.get();
        EngineStatus {
            records,
            live_bytes: bytes,
            committed_bytes: self.pending_bytes(),
            ..EngineStatus::default()
        }
    }

    fn maintain(&self) -> bool {
        if self.spills && self.is_due() {
            // An error shows again where somebody waits for it: in a checkpoint, or the write that finds twice as much.
            let _ = self.spill();
        }
        false
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        if len > VALUE_LEN_MAX {
            return Err(invalid(format!("a value of {len} bytes; at most {VALUE_LEN_MAX} are kept")));
        }
        Ok(Box::new(MappedBuffer::new(len)?))
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        MappedBuffer::room(buffer, len)
    }

    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        Some(self)
    }

    fn checkpointed(&self) -> Option<&dyn CheckpointedEngine> {
        Some(self)
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        Some(self)
    }
}

impl OrderedEngine for DiskTree {
    fn ascend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.walk(from, Manner { upwards: true, skips_damaged: false }, see).map(drop)
    }

    fn descend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.walk(from, Manner { upwards: false, skips_damaged: false }, see).map(drop)
    }
}

impl CheckpointedEngine for DiskTree {
    fn bind_to_log(&self, database_id: [u8; 16]) -> Result<()> {
        self.store.tie(database_id)
    }

    fn log_position(&self) -> u64 {
        self.mark.load(Ordering::Relaxed)
    }

    fn pending_bytes(&self) -> u64 {
        self.active_bytes() + self.frozen_bytes.load(Ordering::Relaxed)
    }

    fn is_due(&self) -> bool {
        self.active_bytes() >= self.front_bytes
    }

    fn checkpoint_at(
        &self,
        cut: &mut dyn FnMut() -> u64,
        ready: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let _alone = self.flushing.lock();
        self.flush(cut, ready)
    }

    fn damaged_records(&self) -> Option<(u64, Error)> {
        self.store.damaged_records()
    }

    /// The file never shrinks: what is removed makes room for what comes. A copy has no such room.
    fn file_bytes(&self) -> u64 {
        self.store.file_bytes()
    }

    fn copy(&self, directory: &Path) -> Result<u64> {
        self.store.copy(directory)
    }
}

/// Removes a record if it is still over.
struct Expire<'o> {
    is_over: &'o mut dyn FnMut(Expiry) -> bool,
    removed: bool,
}

impl Visitor for Expire<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.removed = false;
        let expiry = old.map_or(Expiry::Never, |old| old.attributes.expiry);
        if expiry != Expiry::Never && (self.is_over)(expiry) { Action::Remove } else { Action::Keep }
    }

    fn applied(&mut self, _now: Option<Record<'_>>) {
        self.removed = true;
    }
}

impl SweepableEngine for DiskTree {
    fn sweep(
        &self,
        from: Option<ScanPosition>,
        records_max: usize,
        _aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Result<SweepProgress> {
        if self.totals.get().perishable == 0 {
            return Ok(SweepProgress::default());
        }
        let mut swept = SweepProgress::default();
        let mut over: Vec<Box<[u8]>> = Vec::new();
        let manner = Manner { upwards: true, skips_damaged: true };
        self.walk(behind(&from), manner, &mut |key, record| {
            swept.seen += 1;
            if record.attributes.expiry != Expiry::Never && is_over(record.attributes.expiry) {
                over.push(key.into());
            }
            if swept.seen < records_max as u64 {
                return ControlFlow::Continue(());
            }
            swept.next = Some(ScanPosition::Key(key.into()));
            ControlFlow::Break(())
        })?;
        for key in over {
            let mut expire = Expire { is_over, removed: false };
            self.visit(&key, &mut expire)?;
            swept.removed += u64::from(expire.removed);
        }
        Ok(swept)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::raw::LmdbEnvironment;

    struct Set<'a>(&'a [u8]);

    impl Visitor for Set<'_> {
        fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record::new(self.0, todana_core::Attributes::default()))
        }
    }

    fn value(tree: &DiskTree, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = None;
        tree.view(key, &mut |record| value = Some(record.value.to_vec())).unwrap();
        value
    }

    /// One failed write of a meta page, on a disk that was full for a moment, stopped all checkpoints until a restart: LMDB refuses
    /// everything afterwards.
    #[test]
    fn failed_meta_write_stops_one_checkpoint_only() {
        let directory = tempfile::tempdir().unwrap();
        let tree = DiskTree::open(directory.path(), DiskTreeOptions::default()).unwrap();
        tree.visit(b"first", &mut Set(b"1")).unwrap();
        tree.checkpoint(1).unwrap();
        for mark in [2, 4] {
            let key = format!("after {mark}");
            tree.visit(key.as_bytes(), &mut Set(b"2")).unwrap();
            LmdbEnvironment::break_meta_writes(directory.path());
            assert_eq!(tree.checkpoint(mark).unwrap_err().kind(), ErrorKind::Unavailable);
            assert_eq!(tree.log_position(), mark - 1);
            // By a thread that has no snapshot yet, too.
            std::thread::scope(|scope| {
                let read = || [b"first".as_slice(), key.as_bytes()].map(|key| value(&tree, key));
                let expected = [Some(b"1".to_vec()), Some(b"2".to_vec())];
                assert_eq!(read(), expected);
                assert_eq!(scope.spawn(read).join().unwrap(), expected);
            });
            tree.checkpoint(mark + 1).unwrap();
        }
        drop(tree);
        let tree = DiskTree::open(directory.path(), DiskTreeOptions::default()).unwrap();
        assert_eq!((tree.log_position(), tree.status().records), (5, 3));
        assert_eq!(value(&tree, b"after 4"), Some(b"2".to_vec()));
    }
}
