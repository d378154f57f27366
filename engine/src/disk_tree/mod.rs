//! Stores the tree on disk: a database that may exceed the memory, in the order of its keys, in
//! LMDB.
//!
//! ```text
//! visit --> active front --(checkpoint: cut)--> frozen front --(one sorted batch)--> LMDB
//! view, walk search all three, the newest first
//! ```
//!
//! LMDB reads faster than any other store on disk, but writes single records slowly. Changes are
//! therefore collected in memory, in a front, and written in large sorted batches. The update log
//! of the owner makes changes durable, and LMDB is the checkpoint of that log
//! ([`CheckpointedEngine`]). The mark is the position in that log up to which LMDB is complete.
//! When the tree is closed, changes that are not in LMDB are lost; the owner restores them by
//! replaying the log from the mark.
//!
//! The layers are the active front, the frozen front and LMDB. Invariants: every change is in one
//! of the layers, and the newest layer that contains a key holds its current record. Changes move
//! between layers only while no visit, view or step of a walk is in progress (all of them hold
//! `layers`), so every reader sees a change exactly once. No lock that a reader or writer needs is
//! held while LMDB writes.
//!
//! Lock order: `flushing`, the lock of copies, `stripes`, `layers`, the lock of the active front or
//! of a snapshot.
//!
//! A sweep for expired records is a walk. It is skipped if no record has an expiry, which is
//! counted. An index by expiry would make sweeps cheaper, but every write of a record with an
//! expiry would also change a second tree at a random place. A walk costs about 30 nanoseconds per
//! record in memory, and the caller controls its pace.

mod damage;
mod environment;
mod examination;
mod front;
mod long_key_group;
mod pages;
mod place;
mod readers;
mod record;
mod record_block;
mod salvage;
mod state;
mod store;
mod stored;
mod unclean;
mod walk;

use crate::disk::{Disk, SystemDisk};
use crate::mapped_buffer::MappedBuffer;
use crate::raw::trim_allocator;
use front::{ChangeFront, FrontEntry};
use pages::KeyOrderCheck;
use parking_lot::{Mutex, RwLock};
use state::{RecordTotals, TreeState};
use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{BatchFailure, TreeStore};
use todana_core::{
    Action, CheckpointedEngine, Engine, EngineStatus, Error, ErrorKind, Expiry, OrderedEngine, Record,
    Result, ScanPosition, SweepAim, SweepProgress, SweepableEngine, ValueBuffer, Visitor,
};
use walk::{RecordCallback, WalkEnd, WalkOptions};

pub use examination::{ExaminedTree, TreeExamination};
pub use salvage::{DamagedPlace, TreeDamage, TreeSalvage};

/// The options with which a [`DiskTree`] is opened.
#[derive(Clone)]
pub struct DiskTreeOptions {
    /// A checkpoint is due when the front uses this amount of memory. During a checkpoint the new
    /// front may use as much again. A larger front makes writes cheaper, because more of them
    /// change the same page.
    pub front_bytes: u64,
    /// If true, the tree writes its changes to LMDB by itself when a checkpoint is due, without a
    /// new mark: in `maintain`, or in a write that finds a front of twice `front_bytes`. This is
    /// for trees without an update log. A tree with a log must not become durable before its log;
    /// the owner of such a tree sets this to false and makes writes wait for checkpoints.
    pub spills: bool,
    /// If true, a new tree stores its records in compressed blocks. This takes less space if
    /// records are small and similar, but a read decompresses a block. An existing tree keeps its
    /// layout.
    pub in_blocks: bool,
    /// The initial size of the address space in bytes. Address space costs nothing until it is
    /// used. If the system refuses this size, a smaller one is used. When the file needs more, more
    /// is requested.
    pub map_bytes: usize,
    /// Files up to this size are checked completely at each opening. Structural damage is then
    /// reported, instead of ending the process later. Larger files are checked only if they were
    /// not closed and the machine may have stopped since.
    pub walked_bytes_max: u64,
    /// The file system on which the names of the tree's directory and files are synced. LMDB
    /// accesses the files themselves on the machine's file system. If `disk` is read-only, the tree
    /// is opened for reading, together with other readers, and changes stay in memory.
    pub disk: Arc<dyn Disk>,
}

impl Default for DiskTreeOptions {
    fn default() -> Self {
        DiskTreeOptions {
            front_bytes: 32 << 20,
            spills: true,
            in_blocks: false,
            map_bytes: 1 << 40,
            walked_bytes_max: 256 << 20,
            disk: Arc::new(SystemDisk),
        }
    }
}

const KEY_LEN_MAX: usize = 1 << 20;
const VALUE_LEN_MAX: usize = 1 << 30;
/// The maximum length of a group of long keys: LMDB's limit for one value, less the overhead of a
/// record in a group.
const GROUP_LEN_MAX: u64 = (1 << 32) - (1 << 16);
/// The number of locks for writes. The hash of a key selects its lock, so writes of one key exclude
/// each other, and writes of different keys rarely share a lock.
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
    layers: RwLock<TreeLayers>,
    store: TreeStore,
    /// The lock that is held while changes are written to LMDB.
    flushing: Mutex<()>,
    totals: TotalCounters,
    mark: AtomicU64,
    /// The number of bytes of the active front; 0 if the front is empty.
    active_bytes: AtomicU64,
    frozen_bytes: AtomicU64,
    /// The number of bytes in both fronts that belong to keys in groups of long keys.
    group_bytes: AtomicU64,
    front_bytes: u64,
    spills: bool,
}

/// The two fronts. Readers and writers hold the lock of this value for reading. A move of changes
/// from one layer to the next holds it for writing.
struct TreeLayers {
    active: RwLock<ChangeFront>,
    /// The changes that are being written to LMDB. If that fails, they wait here for the next
    /// batch.
    frozen: Option<Arc<ChangeFront>>,
    /// True if the contents of LMDB are obsolete because of a clear.
    is_wiped: bool,
}

#[derive(Default)]
struct TotalCounters {
    records: AtomicU64,
    bytes: AtomicU64,
    with_expiry: AtomicU64,
}

impl TotalCounters {
    fn new(totals: RecordTotals) -> TotalCounters {
        let RecordTotals { records, bytes, with_expiry } = totals;
        TotalCounters { records: records.into(), bytes: bytes.into(), with_expiry: with_expiry.into() }
    }

    fn get(&self) -> RecordTotals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RecordTotals {
            records: get(&self.records),
            bytes: get(&self.bytes),
            with_expiry: get(&self.with_expiry),
        }
    }

    fn reset(&self) {
        for counter in [&self.records, &self.bytes, &self.with_expiry] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Updates the totals for one record that changes from `old` to `new`.
    fn change(&self, old: RecordTotals, new: RecordTotals) {
        let change = |counter: &AtomicU64, old: u64, new: u64| {
            if old != new {
                counter.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
            }
        };
        change(&self.records, old.records, new.records);
        change(&self.bytes, old.bytes, new.bytes);
        change(&self.with_expiry, old.with_expiry, new.with_expiry);
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Returns true if the record of a key may lie in a group of long keys.
fn is_grouped(key: &[u8]) -> bool {
    // The limit for keys is one byte less than that for places, because the place of a key of zeros
    // is one byte longer than the key.
    key.len() + 1 >= place::PLACE_LEN_MAX
}

thread_local! {
    /// The memory in which this thread builds entries.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `build` with the scratch memory of this thread. If that memory has become large, it is
/// freed afterwards.
fn with_scratch(build: impl FnOnce(&mut Vec<u8>) -> FrontEntry) -> FrontEntry {
    // A thread that is ending has no scratch memory any more, so it gets new memory.
    let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
    let entry = build(&mut scratch);
    if scratch.capacity() <= 128 << 10 {
        let _ = SCRATCH.try_with(|kept| kept.replace(scratch));
    }
    entry
}

impl DiskTree {
    /// Opens the tree in a directory, or creates one. Fails with `Busy` if the tree is open
    /// elsewhere, with `Corrupt` if its structure is damaged, and with `Invalid` if a later version
    /// wrote it. All pages of a small tree are checked first. The pages of a large tree are checked
    /// if it was not closed and the machine may have stopped since. An open tree cannot be used
    /// after a fork, so a process must fork before it opens a tree.
    pub fn open(directory: &Path, options: DiskTreeOptions) -> Result<DiskTree> {
        let (store, state) = TreeStore::open(directory, &options, KeyOrderCheck::Done)?;
        let layers = TreeLayers { active: RwLock::default(), frozen: None, is_wiped: false };
        Ok(DiskTree {
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            layers: RwLock::new(layers),
            store,
            flushing: Mutex::new(()),
            totals: TotalCounters::new(state.totals),
            mark: AtomicU64::new(state.mark),
            active_bytes: AtomicU64::new(0),
            frozen_bytes: AtomicU64::new(0),
            group_bytes: AtomicU64::new(0),
            front_bytes: options.front_bytes.max(1),
            spills: options.spills,
        })
    }

    /// Checks the tree in a directory: every page, and every record with its checksum. Changes
    /// nothing. Fails with `Corrupt` if anything is damaged, with `Busy` if the tree is open for
    /// writing, and with `Invalid` if there is no tree.
    pub fn check(directory: &Path) -> Result<ExaminedTree> {
        examination::examine(directory)?.into_intact()
    }

    /// Examines the tree in a directory as [`check`](DiskTree::check) does, and returns the damage.
    /// Fails with `Corrupt` only if pages cannot be read.
    pub fn examine(directory: &Path) -> Result<TreeExamination> {
        examination::examine(directory)
    }

    /// Returns the ID of the database to whose log the mark refers, if
    /// [`CheckpointedEngine::bind_to_log`] has stored it.
    pub fn database_id(&self) -> Option<[u8; 16]> {
        self.store.database_id()
    }

    /// Calls `see` with the newest record of a key in any layer.
    #[inline]
    fn find<T>(
        &self,
        layers: &TreeLayers,
        key: &[u8],
        see: impl FnOnce(Option<Record<'_>>) -> T,
    ) -> Result<T> {
        // The entry is cloned, so that the front can be written to while `see` runs.
        let active = match self.active_bytes() {
            0 => None,
            _ => layers.active.read().get(key).cloned(),
        };
        let change = active.as_ref().or_else(|| layers.frozen.as_ref().and_then(|frozen| frozen.get(key)));
        if let Some(change) = change {
            return Ok(see(change.record()));
        }
        if layers.is_wiped {
            return Ok(see(None));
        }
        self.store.read(|reader| Ok(see(self.store.get(reader, key)?)))
    }

    /// Refuses a record that could not be written to LMDB later. If the record belongs to a group
    /// of long keys, `beside` is the size of the other records in the group.
    fn admit(key: &[u8], value_len: usize, beside: u64) -> Result<()> {
        if value_len > VALUE_LEN_MAX {
            return Err(invalid(format!("value of {value_len} bytes is too long: at most {VALUE_LEN_MAX}")));
        }
        if beside + (key.len() + value_len) as u64 > GROUP_LEN_MAX {
            return Err(invalid("records whose keys begin with the same 511 bytes take over 4 GiB".into()));
        }
        Ok(())
    }

    /// Does a visit without checking whether a checkpoint is due.
    fn change(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let _alone = self.stripes[rapidhash::v3::rapidhash_v3(key) as usize % STRIPES].lock();
        let layers = self.layers.read();
        if self.store.is_in_blocks() && visitor.ignores_record() && !is_grouped(key) {
            return self.change_unseen(&layers, key, visitor);
        }
        let beside = match is_grouped(key) && !layers.is_wiped {
            true => self.store.group_len(key)? as u64 + self.group_bytes.load(Ordering::Relaxed),
            false => 0,
        };
        let mut lmdb_error = None;
        let overwrites = visitor.overwrites();
        // `before` describes the existing record, even if it is damaged; then `old` is `None`.
        let mut decide = |old: Option<Record<'_>>, before: Option<RecordTotals>| {
            let record = match visitor.visit(old) {
                Action::Keep => return None,
                Action::Remove => {
                    let removal = || with_scratch(|scratch| FrontEntry::removal(key, scratch));
                    return before.map(|before| (removal(), before));
                }
                Action::Put(record) => record,
                Action::Retag(attributes) => Record { attributes, ..old? },
            };
            lmdb_error = DiskTree::admit(key, record.value.len(), beside).err();
            match lmdb_error {
                Some(_) => None,
                None => {
                    let entry = with_scratch(|scratch| FrontEntry::put(key, record, scratch));
                    Some((entry, before.unwrap_or_default()))
                }
            }
        };
        let found = self.find(&layers, key, |old| {
            let before = old.map(|old| {
                let stored_len = record::header_len(&old.attributes) + old.value.len();
                RecordTotals::one(key.len(), stored_len, old.attributes.expiry)
            });
            decide(old, before)
        });
        let outcome = match found {
            Err(error) if error.kind() == ErrorKind::Corrupt && overwrites => {
                decide(None, self.store.damaged_totals(key)?)
            }
            found => found?,
        };
        if let Some(error) = lmdb_error {
            return Err(error);
        }
        let Some((entry, before)) = outcome else { return Ok(()) };
        let now = entry.record();
        let after = now.map_or(RecordTotals::default(), |now| {
            RecordTotals::one(key.len(), entry.stored_len(), now.attributes.expiry)
        });
        if is_grouped(key) {
            self.group_bytes.fetch_add((key.len() + entry.stored_len()) as u64, Ordering::Relaxed);
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

    /// Does a visit without reading the old record. The totals are corrected when the change is
    /// written to LMDB. Until then, a stored record counts as a new one.
    fn change_unseen(&self, layers: &TreeLayers, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let entry = match visitor.visit(None) {
            Action::Put(record) => {
                DiskTree::admit(key, record.value.len(), 0)?;
                with_scratch(|scratch| FrontEntry::put(key, record, scratch))
            }
            Action::Remove => with_scratch(|scratch| FrontEntry::removal(key, scratch)),
            Action::Keep | Action::Retag(_) => return Ok(()),
        };
        let now = entry.record();
        if let Some(now) = now {
            let after = RecordTotals::one(key.len(), entry.stored_len(), now.attributes.expiry);
            self.totals.change(RecordTotals::default(), after);
        }
        let replaced = {
            let mut active = layers.active.write();
            let replaced = active.put(entry.clone());
            self.active_bytes.store(active.bytes(), Ordering::Relaxed);
            replaced
        };
        visitor.applied(now);
        drop(replaced);
        Ok(())
    }

    fn active_bytes(&self) -> u64 {
        self.active_bytes.load(Ordering::Relaxed)
    }

    /// Writes the changes to LMDB without a new mark if a checkpoint is due.
    fn spill(&self) -> Result<()> {
        let _alone = self.flushing.lock();
        if self.active_bytes() < self.front_bytes {
            // Another thread has written the changes while this one waited.
            return Ok(());
        }
        let mark = self.mark.load(Ordering::Relaxed);
        self.flush(&mut || mark, &mut |_| Ok(()))
    }

    /// Writes all changes to LMDB. `cut` returns the new mark; it is called while no change is in
    /// progress. `ready` is called with the mark before anything is written, and returns when the
    /// log is durable up to the mark. The caller holds `flushing`.
    fn flush(&self, cut: &mut dyn FnMut() -> u64, ready: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let (frozen, is_wiped, state) = {
            let mut layers = self.layers.write();
            let active = std::mem::take(layers.active.get_mut());
            self.active_bytes.store(0, Ordering::Relaxed);
            let frozen = match layers.frozen.take() {
                None => Arc::new(active),
                // An earlier batch has failed. Join it with this batch, so that none of these
                // changes becomes durable before `ready` has been called.
                Some(mut left) => {
                    let mut both =
                        std::mem::take(Arc::get_mut(&mut left).expect("the only writer is this thread"));
                    active.iter().for_each(|change| drop(both.put(change.clone())));
                    Arc::new(both)
                }
            };
            self.frozen_bytes.store(frozen.bytes(), Ordering::Relaxed);
            layers.frozen = Some(Arc::clone(&frozen));
            let (checksums, layout) = (self.store.checksums(), self.store.layout());
            let state = TreeState { mark: cut(), totals: self.totals.get(), checksums, layout };
            (frozen, layers.is_wiped, state)
        };
        ready(state.mark)?;
        if !frozen.is_empty() || is_wiped || state.mark != self.mark.load(Ordering::Relaxed) {
            let totals = self.write(&frozen, is_wiped, state)?;
            self.totals.change(state.totals, totals);
        }
        drop(frozen);
        let gone = {
            let mut layers = self.layers.write();
            self.store.drop_snapshots();
            self.mark.store(state.mark, Ordering::Relaxed);
            self.frozen_bytes.store(0, Ordering::Relaxed);
            layers.is_wiped = false;
            if self.group_bytes.load(Ordering::Relaxed) != 0 {
                let changes = layers.active.get_mut().iter().filter(|change| is_grouped(change.key()));
                let pending = changes.map(|change| (change.key().len() + change.stored_len()) as u64).sum();
                self.group_bytes.store(pending, Ordering::Relaxed);
            }
            layers.frozen.take()
        };
        // The changes are dropped outside of the lock, because that takes a while.
        drop(gone);
        if self.store.is_in_blocks() {
            trim_allocator();
        }
        Ok(())
    }

    /// Writes a frozen front to LMDB. Returns the totals of LMDB.
    fn write(&self, frozen: &ChangeFront, is_wiped: bool, state: TreeState) -> Result<RecordTotals> {
        // An earlier attempt to reopen the environment may have failed temporarily.
        self.reopen_if_failed()?;
        let len_before = self.store.file_bytes();
        loop {
            match self.store.write(frozen, is_wiped, state) {
                Ok(totals) => return Ok(totals),
                Err(BatchFailure::NoMap) => {
                    // Resizing the map excludes all readers. Wait for copies first, without
                    // blocking readers and writers.
                    let _no_copy = self.store.without_copies();
                    let _nobody = self.layers.write();
                    self.store.grow(frozen.bytes())?;
                }
                Err(BatchFailure::Lmdb(error)) => {
                    let error = self.store.write_error(&error);
                    if error.kind() == ErrorKind::Full && !self.store.has_failed() {
                        self.store.truncate(len_before);
                    }
                    // If this fails, the next checkpoint tries to reopen the environment and to
                    // write.
                    let _ = self.reopen_if_failed();
                    return Err(error);
                }
                Err(BatchFailure::Error(error)) => return Err(error),
            }
        }
    }

    /// Reopens LMDB's environment if LMDB refuses all operations. LMDB does that after a failed
    /// write of a meta page. The caller holds `flushing`.
    fn reopen_if_failed(&self) -> Result<()> {
        if !self.store.has_failed() {
            return Ok(());
        }
        let _no_copy = self.store.without_copies();
        let _nobody = self.layers.write();
        self.store.reopen()
    }

    /// Walks in steps until `see` returns `Break` or there are no more records.
    fn walk(
        &self,
        from: Bound<&[u8]>,
        options: WalkOptions,
        see: &mut RecordCallback<'_>,
    ) -> Result<WalkEnd> {
        let mut end = walk::walk_step(&self.layers.read(), &self.store, from, options, see)?;
        while let WalkEnd::Further(key) = end {
            end = walk::walk_step(&self.layers.read(), &self.store, Bound::Excluded(&key), options, see)?;
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
        let options = WalkOptions { upwards: true, skips_damaged };
        self.walk(position_after(&from), options, &mut |key, record| {
            let flow = see(key, record);
            if flow.is_break() {
                broken_at = Some(ScanPosition::Key(key.into()));
            }
            flow
        })?;
        Ok(broken_at)
    }
}

/// Returns the bound from which a scan continues after a key.
fn position_after(place: &Option<ScanPosition>) -> Bound<&[u8]> {
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
            return Err(invalid(format!("key of {} bytes is too long: at most {KEY_LEN_MAX}", key.len())));
        }
        // This is done before the change, so that nothing has changed if there is no disk space.
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
            layers.is_wiped = true;
            self.totals.reset();
            self.active_bytes.store(0, Ordering::Relaxed);
            self.frozen_bytes.store(0, Ordering::Relaxed);
            self.group_bytes.store(0, Ordering::Relaxed);
            cleared();
            gone
        };
        drop(gone);
        if !self.spills {
            // The log contains the clear and must become durable before LMDB is changed.
            return Ok(());
        }
        let mark = self.mark.load(Ordering::Relaxed);
        self.flush(&mut || mark, &mut |_| Ok(()))
    }

    fn status(&self) -> EngineStatus {
        let RecordTotals { records, bytes, .. } = self.totals.get();
        EngineStatus {
            records,
            live_bytes: bytes,
            committed_bytes: self.pending_bytes(),
            ..EngineStatus::default()
        }
    }

    fn maintain(&self) -> bool {
        if self.spills && self.is_due() {
            // The error is reported again by the next checkpoint, or by the write that finds twice
            // as many changes.
            let _ = self.spill();
        }
        false
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        if len > VALUE_LEN_MAX {
            return Err(invalid(format!("value of {len} bytes is too long: at most {VALUE_LEN_MAX}")));
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
        self.walk(from, WalkOptions { upwards: true, skips_damaged: false }, see).map(drop)
    }

    fn descend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.walk(from, WalkOptions { upwards: false, skips_damaged: false }, see).map(drop)
    }
}

impl CheckpointedEngine for DiskTree {
    fn bind_to_log(&self, database_id: [u8; 16]) -> Result<()> {
        self.store.bind_to_log(database_id)
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

    /// Returns the length of the file. The file never shrinks, because the space of removed records
    /// is reused. A copy has no such free space.
    fn file_bytes(&self) -> u64 {
        self.store.file_bytes()
    }

    fn copy(&self, directory: &Path) -> Result<u64> {
        self.store.copy(directory)
    }
}

/// A visitor that removes a record if it is still expired.
struct ExpireVisitor<'o> {
    is_over: &'o mut dyn FnMut(Expiry) -> bool,
    removed: bool,
}

impl Visitor for ExpireVisitor<'_> {
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
        if self.totals.get().with_expiry == 0 {
            return Ok(SweepProgress::default());
        }
        let mut swept = SweepProgress::default();
        let mut over: Vec<Box<[u8]>> = Vec::new();
        let options = WalkOptions { upwards: true, skips_damaged: true };
        self.walk(position_after(&from), options, &mut |key, record| {
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
            let mut expire = ExpireVisitor { is_over, removed: false };
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
    use crate::visitor::Set;

    fn value(tree: &DiskTree, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = None;
        tree.view(key, &mut |record| value = Some(record.value.to_vec())).unwrap();
        value
    }

    /// One failed write of a meta page, on a disk that was briefly full, stopped all checkpoints
    /// until a restart, because LMDB refused all operations afterwards.
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
            // The record must also be visible to a thread that has no snapshot yet.
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
