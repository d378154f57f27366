//! Manages the part of a tree that is on disk: the LMDB environment, its snapshots, and the batches
//! that change it.

use super::damage::DamagedRecords;
use super::environment::{MAP_BYTES_MIN, TreeEnvironment, round_up};
use super::front::{ChangeFront, FrontEntry};
use super::long_key_group::{self, LongKeyGroup};
use super::pages::KeyOrderCheck;
use super::record_block::{self, BlockBuilder, BlockRecords, PutBlock};
use super::state::{RecordLayout, RecordTotals, TreeState};
use super::stored::ChecksumMode;
use super::{DiskTreeOptions, place, record};
use crate::disk::{Disk, SystemDisk};
use crate::raw::{LmdbSnapshot, LmdbTable, LmdbWriteTransaction};
use crate::reserve::is_out_of_room;
use heed::MdbError;
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Ordering as KeyOrder;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use todana_core::{Error, ErrorKind, Expiry, Record, Result};

const STATE_KEY: &[u8] = b"tree";
const DATABASE_KEY: &[u8] = b"database";
/// The maximum length of the part of a key that an error message contains.
const KEY_SHOWN_LEN: usize = 60;

/// The LMDB environment of a tree, with snapshots for its readers.
pub(super) struct TreeStore {
    /// The file system on which the names of files are synced.
    names: Arc<dyn Disk>,
    // This field precedes the environment, so that the snapshots are dropped before the environment
    // to which they belong.
    snapshots: Box<[SnapshotSlot]>,
    environment: TreeEnvironment,
    checksums: ChecksumMode,
    layout: RecordLayout,
    damage: DamagedRecords,
    /// The ID of the database to whose log the mark refers, if it is known.
    database_id: OnceLock<[u8; 16]>,
    /// The lock that is held during a copy, because the map cannot grow then.
    copying: Mutex<()>,
}

/// A snapshot for the next reader. The alignment puts each slot into cache lines of its own.
#[repr(align(128))]
struct SnapshotSlot(Mutex<Option<SnapshotReader>>);

/// A snapshot with the table of records.
pub(super) struct SnapshotReader {
    pub(super) snapshot: LmdbSnapshot,
    pub(super) records: LmdbTable,
    /// The records of the block that was read last, if it is compressed.
    block: Vec<u8>,
    /// The address of that block in LMDB's map. The snapshot keeps the block from being replaced.
    block_at: Option<(usize, usize)>,
}

/// The number of threads that can read at the same time.
const SNAPSHOTS: usize = 64;

impl TreeStore {
    /// Opens the environment in a directory, or creates it.
    pub(super) fn open(
        path: &Path,
        options: &DiskTreeOptions,
        order: KeyOrderCheck,
    ) -> Result<(TreeStore, TreeState)> {
        let environment = TreeEnvironment::open(path, options, order)?;
        let mut store = TreeStore {
            names: Arc::clone(&options.disk),
            snapshots: (0..SNAPSHOTS).map(|_| SnapshotSlot(Mutex::new(None))).collect(),
            environment,
            checksums: ChecksumMode::All,
            layout: RecordLayout::Entries,
            damage: DamagedRecords::default(),
            database_id: OnceLock::new(),
            copying: Mutex::new(()),
        };
        let wanted = if options.in_blocks { RecordLayout::Blocks } else { RecordLayout::Entries };
        let found = store.read_state(wanted)?;
        store.checksums = found.checksums;
        store.layout = found.layout;
        if let Some(database_id) = store.read_database_id()? {
            store.bind_to_log(database_id)?;
        }
        store.sync_names().map_err(|error| {
            let message = format!("\"{}\": cannot sync it: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message)
        })?;
        Ok((store, found))
    }

    /// Syncs the names of the files and of their directory. After a checkpoint the log before its
    /// mark may be removed, so the tree must not be lost with a name. Syncing a file need not sync
    /// its name.
    fn sync_names(&self) -> io::Result<()> {
        let path = self.environment.path();
        self.names.make_directory(path)?;
        self.names.sync_directory(path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        self.names.sync_directory(parent.unwrap_or(Path::new(".")))
    }

    /// Reads the state. A tree without records gets the wanted layout.
    fn read_state(&self, wanted: RecordLayout) -> Result<TreeState> {
        let corrupt = |what: &str| self.named(&Error::new(ErrorKind::Corrupt, what));
        let open = self.environment.get()?;
        let snapshot = open.lmdb.snapshot().map_err(|error| self.lmdb_error(&error))?;
        let is_empty = open.records.is_empty(&snapshot).map_err(|error| self.lmdb_error(&error))?;
        match open.state.get(&snapshot, STATE_KEY).map_err(|error| self.lmdb_error(&error))? {
            Some(bytes) => {
                let state = TreeState::decode(bytes).map_err(|error| self.named(&error))?;
                match (is_empty, state.totals.records) {
                    // All records that are written from now on get checksums.
                    (true, 0) => Ok(TreeState { checksums: ChecksumMode::All, layout: wanted, ..state }),
                    (false, 1..) => Ok(state),
                    _ => Err(corrupt("the state contradicts the records")),
                }
            }
            None if is_empty => Ok(TreeState { layout: wanted, ..TreeState::default() }),
            None => Err(corrupt("there are records but no state")),
        }
    }

    fn read_database_id(&self) -> Result<Option<[u8; 16]>> {
        let open = self.environment.get()?;
        let snapshot = open.lmdb.snapshot().map_err(|error| self.lmdb_error(&error))?;
        let found = open.state.get(&snapshot, DATABASE_KEY).map_err(|error| self.lmdb_error(&error))?;
        let damaged =
            |_| self.named(&Error::new(ErrorKind::Corrupt, "the database ID does not have 16 bytes"));
        found.map(|bytes| bytes.try_into().map_err(damaged)).transpose()
    }

    pub(super) fn database_id(&self) -> Option<[u8; 16]> {
        self.database_id.get().copied()
    }

    /// Implements [`todana_core::CheckpointedEngine::bind_to_log`].
    pub(super) fn bind_to_log(&self, database_id: [u8; 16]) -> Result<()> {
        let known = *self.database_id.get_or_init(|| database_id);
        if known == database_id {
            return Ok(());
        }
        let [known, asked] = [known, database_id].map(|id| format!("{:032x}", u128::from_be_bytes(id)));
        let message = format!("the tree belongs to database {known}, but the log beside it to {asked}");
        Err(self.named(&Error::new(ErrorKind::Corrupt, message)))
    }

    /// Calls `read` with a snapshot. The snapshot contains all changes that were committed before
    /// the call.
    #[inline]
    pub(super) fn read<T>(&self, read: impl FnOnce(&mut SnapshotReader) -> Result<T>) -> Result<T> {
        let mut snapshot_slot = self.snapshot_slot();
        let reader = match &mut *snapshot_slot {
            Some(reader) => reader,
            empty => empty.insert(self.snapshot()?),
        };
        read(reader)
    }

    #[cold]
    fn snapshot(&self) -> Result<SnapshotReader> {
        let open = self.environment.get()?;
        let snapshot = open.lmdb.snapshot().map_err(|error| self.lmdb_error(&error))?;
        Ok(SnapshotReader { snapshot, records: open.records, block: Vec::new(), block_at: None })
    }

    /// Locks a slot that no other thread uses now. Each thread has a preferred slot.
    #[inline]
    fn snapshot_slot(&self) -> MutexGuard<'_, Option<SnapshotReader>> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static FAVOURITE: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        let favourite = FAVOURITE.with(|favourite| *favourite);
        for next in 0..4 {
            if let Some(snapshot_slot) = self.snapshots[(favourite + next) % SNAPSHOTS].0.try_lock() {
                return snapshot_slot;
            }
        }
        self.snapshots[favourite % SNAPSHOTS].0.lock()
    }

    /// Drops all snapshots, so that their pages can be reused and later reads see the newest state.
    pub(super) fn drop_snapshots(&self) {
        self.snapshots.iter().for_each(|snapshot_slot| drop(snapshot_slot.0.lock().take()));
    }

    /// Returns the record of a key. Fails with `Corrupt` if the record is damaged.
    #[inline]
    pub(super) fn get<'t>(&self, reader: &'t mut SnapshotReader, key: &[u8]) -> Result<Option<Record<'t>>> {
        if self.is_in_blocks() {
            return self.get_in_block(reader, key);
        }
        let SnapshotReader { snapshot, records, .. } = reader;
        let place = place::of_key(key);
        let (at, rest) = place::split(&place);
        let found = records.get(snapshot, at).map_err(|error| self.lmdb_error(&error))?;
        let (Some(stored), None) = (found, rest) else {
            return match (found, rest) {
                (Some(bytes), Some(rest)) => self.get_in_group(at, bytes, rest, key),
                _ => Ok(None),
            };
        };
        match self.checksums.decode(key, stored) {
            Some(record) => Ok(Some(record)),
            None => Err(self.damaged(key)),
        }
    }

    fn get_in_block<'t>(&self, reader: &'t mut SnapshotReader, key: &[u8]) -> Result<Option<Record<'t>>> {
        let SnapshotReader { snapshot, records, block, block_at } = reader;
        let Some((fence, value)) = self.block_of(snapshot, records, key)? else { return Ok(None) };
        let at = Some((value.as_ptr() as usize, value.len()));
        let plain = if *block_at == at {
            block.as_slice()
        } else {
            // The buffer is overwritten even if the block is damaged.
            *block_at = None;
            let plain = self.block_records(fence, value, block)?;
            if record_block::is_compressed(value) {
                *block_at = at;
            }
            plain
        };
        let stored = BlockRecords::new(plain).find(key).map_err(|_| self.damaged_block(fence))?;
        stored.map(|stored| record::decode(stored).ok_or_else(|| self.damaged_block(fence))).transpose()
    }

    /// Returns the block that contains a key if any block does, with its fence. The first block
    /// also contains the keys before its fence.
    pub(super) fn block_of<'t>(
        &self,
        snapshot: &'t LmdbSnapshot,
        records: &LmdbTable,
        key: &[u8],
    ) -> Result<Option<(&'t [u8], &'t [u8])>> {
        let found = match record_block::search_key(key) {
            [] => None,
            at => {
                records.get_lower_than_or_equal_to(snapshot, at).map_err(|error| self.lmdb_error(&error))?
            }
        };
        match found {
            None => records.first(snapshot).map_err(|error| self.lmdb_error(&error)),
            found => Ok(found),
        }
    }

    /// Returns the records of a block: a part of `value`, or the contents of `buffer`. Fails with
    /// `Corrupt` if the block is damaged.
    pub(super) fn block_records<'b>(
        &self,
        fence: &[u8],
        value: &'b [u8],
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8]> {
        record_block::open(fence, value, buffer).map_err(|error| match error.kind() {
            ErrorKind::Corrupt => self.damaged_block(fence),
            _ => error,
        })
    }

    /// Notes a damaged block and returns the error that reports it.
    #[cold]
    pub(super) fn damaged_block(&self, fence: &[u8]) -> Error {
        let shown = &fence[..fence.len().min(KEY_SHOWN_LEN)];
        let message = format!(
            "the block of records from \"{}\" on is damaged, its checksum differs",
            shown.escape_ascii()
        );
        self.damage.note(fence, self.named(&Error::new(ErrorKind::Corrupt, message)))
    }

    pub(super) fn is_in_blocks(&self) -> bool {
        self.layout == RecordLayout::Blocks
    }

    pub(super) fn layout(&self) -> RecordLayout {
        self.layout
    }

    fn get_in_group<'t>(
        &self,
        at: &[u8],
        bytes: &'t [u8],
        rest: &[u8],
        key: &[u8],
    ) -> Result<Option<Record<'t>>> {
        let group = self.group(at, bytes)?;
        let Some(stored) = group.find(rest) else { return Ok(None) };
        match long_key_group::decode(group.checksums(), key, stored) {
            Some(record) => Ok(Some(record)),
            None => Err(self.damaged(key)),
        }
    }

    /// Reads a group of long keys. Fails with `Corrupt` if the records of the group cannot be
    /// separated.
    pub(super) fn group<'t>(&self, at: &[u8], bytes: &'t [u8]) -> Result<LongKeyGroup<'t>> {
        LongKeyGroup::parse(self.checksums, at, bytes)
            .map_err(|error| self.damage.note(at, self.named(&error)))
    }

    pub(super) fn checksums(&self) -> ChecksumMode {
        self.checksums
    }

    /// Notes a damaged record and returns the error that reports it.
    #[cold]
    pub(super) fn damaged(&self, key: &[u8]) -> Error {
        let (shown, more) =
            key.split_at_checked(KEY_SHOWN_LEN).map_or((key, ""), |(shown, _)| (shown, "..."));
        let message = format!(
            "record \"{}{more}\": is damaged, its checksum differs; overwrite or remove it",
            shown.escape_ascii()
        );
        self.damage.note(key, self.named(&Error::new(ErrorKind::Corrupt, message)))
    }

    /// Returns the contribution of a damaged record to the totals, as far as it is known. Returns
    /// `None` if there is no record. Fails with `Corrupt` if the record lies in an unreadable
    /// group, because it cannot be replaced there.
    pub(super) fn damaged_totals(&self, key: &[u8]) -> Result<Option<RecordTotals>> {
        let place = place::of_key(key);
        let (at, rest) = place::split(&place);
        self.read(|SnapshotReader { snapshot, records, .. }| {
            if self.is_in_blocks() {
                // The block cannot be read, so the record in it cannot be replaced.
                return Err(
                    self.damaged_block(self.block_of(snapshot, records, key)?.map_or(key, |block| block.0))
                );
            }
            let found = records.get(snapshot, at).map_err(|error| self.lmdb_error(&error))?;
            let stored = match (found, rest) {
                (Some(bytes), Some(rest)) => {
                    let group = self.group(at, bytes)?;
                    let unverified =
                        |stored| group.checksums().map_or(stored, |checksums| checksums.unverified(stored));
                    group.find(rest).map(unverified)
                }
                (found, _) => found.map(|stored| self.checksums.unverified(stored)),
            };
            Ok(stored.map(|stored| {
                let expiry = record::decode_header(stored).map_or(Expiry::Never, |(found, _)| found.expiry);
                RecordTotals::one(key.len(), stored.len(), expiry)
            }))
        })
    }

    /// Implements [`todana_core::CheckpointedEngine::damaged_records`].
    pub(super) fn damaged_records(&self) -> Option<(u64, Error)> {
        self.damage.get()
    }

    /// Returns the size of the group of long keys, or of the block, to which a key belongs.
    pub(super) fn group_len(&self, key: &[u8]) -> Result<usize> {
        let place = place::of_key(key);
        let at = place::split(&place).0;
        self.read(|SnapshotReader { snapshot, records, .. }| {
            if self.is_in_blocks() {
                return Ok(self.block_of(snapshot, records, key)?.map_or(0, |(_, value)| value.len()));
            }
            Ok(records.get(snapshot, at).map_err(|error| self.lmdb_error(&error))?.map_or(0, <[u8]>::len))
        })
    }

    /// Writes changes and the resulting state in one transaction. Returns when the transaction is
    /// on disk. With `wipes`, the old contents are removed first. Returns the totals that were
    /// stored: those of `state`, or in a tree with blocks those that the blocks show. Fails with
    /// `NoMap` if the map must grow.
    pub(super) fn write(
        &self,
        front: &ChangeFront,
        wipes: bool,
        mut state: TreeState,
    ) -> std::result::Result<RecordTotals, BatchFailure> {
        let open = self.environment.get().map_err(BatchFailure::Error)?;
        let mut writing = open.lmdb.write()?;
        if wipes {
            open.records.clear(&mut writing)?;
        }
        if self.is_in_blocks() {
            let old = open.state.get(&writing, STATE_KEY)?.filter(|_| !wipes).map(TreeState::decode);
            let old = old.transpose().map_err(|error| BatchFailure::Error(self.named(&error)))?;
            state.totals = old.unwrap_or_default().totals;
            self.write_blocks(&mut writing, &open.records, front, &mut state.totals)?;
        } else {
            self.write_records(&mut writing, &open.records, front)?;
        }
        open.state.put(&mut writing, STATE_KEY, &state.encode())?;
        if let Some(database_id) = self.database_id.get() {
            open.state.put(&mut writing, DATABASE_KEY, database_id)?;
        }
        writing.commit()?;
        Ok(state.totals)
    }

    /// Merges changes into the blocks to which they belong, and updates the totals.
    fn write_blocks(
        &self,
        writing: &mut LmdbWriteTransaction<'_>,
        records: &LmdbTable,
        front: &ChangeFront,
        totals: &mut RecordTotals,
    ) -> std::result::Result<(), BatchFailure> {
        let mut last = records.last(writing)?.map(|(fence, _)| fence.to_vec());
        let mut builder = BlockBuilder::new();
        let (mut fence, mut block, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
        let mut changes = front.iter().peekable();
        while let Some(&first) = changes.peek() {
            let found = match record_block::search_key(first.key()) {
                [] => None,
                at => records.get_lower_than_or_equal_to(writing, at)?,
            };
            let found = if found.is_none() { records.first(writing)? } else { found };
            let (old_fence, value) = found.unwrap_or_default();
            fence.clear();
            fence.extend_from_slice(old_fence);
            block.clear();
            block.extend_from_slice(value);
            // The first block may get keys before its fence. It then gets a new fence, too.
            let mut keeps_fence = !fence.is_empty() && fence.as_slice() <= first.key();
            builder.begin(if keeps_fence { &fence } else { &[] });
            let (mut has_put, mut is_applied) = (false, false);
            loop {
                let mut next = None;
                if !fence.is_empty() {
                    next = records.get_greater_than(writing, &fence)?.map(|(next, _)| next.to_vec());
                    // If a damaged fence has the wrong place, no change might belong to a block.
                    if let Some(next) = next.as_deref().filter(|&next| !is_applied && next <= first.key()) {
                        return Err(BatchFailure::Error(self.damaged_block(next)));
                    }
                    is_applied = true;
                    if !keeps_fence {
                        records.delete(writing, &fence)?;
                    }
                }
                let mut put = |fence: &[u8], value: &[u8]| -> std::result::Result<(), BatchFailure> {
                    has_put = true;
                    if last.as_deref().is_some_and(|last| fence <= last) {
                        return Ok(records.put(writing, fence, value)?);
                    }
                    // Fences in ascending order fill pages completely.
                    records.put_with_flags(writing, heed::PutFlags::APPEND, fence, value)?;
                    last = Some(fence.to_vec());
                    Ok(())
                };
                let plain = match block.as_slice() {
                    [] => &[],
                    value => self.block_records(&fence, value, &mut buffer).map_err(BatchFailure::Error)?,
                };
                let due = std::iter::from_fn(|| {
                    changes.next_if(|change| next.as_deref().is_none_or(|next| change.key() < next))
                });
                let merged = merge_block(plain, due, &mut builder, totals, &mut put);
                merged.map_err(|failure| {
                    failure.unwrap_or_else(|| BatchFailure::Error(self.damaged_block(&fence)))
                })?;
                match next {
                    // A small block is joined with the next one.
                    Some(next) if builder.is_small() && !builder.is_empty() => {
                        block.clear();
                        block.extend_from_slice(records.get(writing, &next)?.unwrap_or_default());
                        (fence, keeps_fence) = (next, false);
                    }
                    _ => {
                        builder.finish(&mut put)?;
                        if keeps_fence && !has_put {
                            records.delete(writing, &fence)?;
                        }
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn write_records(
        &self,
        writing: &mut LmdbWriteTransaction<'_>,
        records: &LmdbTable,
        front: &ChangeFront,
    ) -> std::result::Result<(), BatchFailure> {
        let last = records.last(writing)?.map(|(key, _)| key.to_vec());
        let mut changes = front.iter().peekable();
        let mut bundle: Vec<&FrontEntry> = Vec::new();
        let mut stored = Vec::new();
        while let Some(change) = changes.next() {
            let place = place::of_key(change.key());
            let (at, rest) = place::split(&place);
            if rest.is_some() {
                bundle.clear();
                bundle.push(change);
                let belongs = |other: &&FrontEntry| place::split(&place::of_key(other.key())).0 == at;
                while let Some(other) = changes.next_if(belongs) {
                    bundle.push(other);
                }
                let old = records.get(writing, at)?.unwrap_or(&[]);
                let new = long_key_group::changed(self.checksums, at, old, &bundle);
                let new = new.map_err(|error| BatchFailure::Error(self.named(&error)))?;
                match new.is_empty() {
                    true => drop(records.delete(writing, at)?),
                    false => records.put(writing, at, &new)?,
                }
                continue;
            }
            let Some(parts) = change.parts() else {
                records.delete(writing, at)?;
                continue;
            };
            stored.clear();
            self.checksums.begin(change.key(), parts, &mut stored);
            if parts[1].is_empty() {
                stored.extend_from_slice(parts[0]);
                match last.as_deref().is_none_or(|last| last < at) {
                    // Keys in ascending order fill pages completely, without space for later
                    // insertions.
                    true => records.put_with_flags(writing, heed::PutFlags::APPEND, at, &stored)?,
                    false => records.put(writing, at, &stored)?,
                }
                continue;
            }
            let len = stored.len() + parts[0].len() + parts[1].len();
            records.put_reserved(writing, at, len, |room| {
                [&stored[..], parts[0], parts[1]].iter().try_for_each(|part| room.write_all(part))
            })?;
        }
        Ok(())
    }

    /// Returns true if LMDB refuses all operations until its environment is reopened.
    pub(super) fn has_failed(&self) -> bool {
        self.environment.has_failed()
    }

    /// Reopens the environment. The caller must ensure that there is no reader and no copy.
    pub(super) fn reopen(&self) -> Result<()> {
        self.drop_snapshots();
        self.environment.reopen()
    }

    /// Waits for copies in progress. No copy can begin while the returned guard exists.
    pub(super) fn without_copies(&self) -> MutexGuard<'_, ()> {
        self.copying.lock()
    }

    /// Allows the file to grow by at least `bytes`. The caller must ensure that there is no reader
    /// and no copy.
    pub(super) fn grow(&self, bytes: u64) -> Result<()> {
        self.drop_snapshots();
        let open = self.environment.get()?;
        let more = (open.lmdb.map_bytes() as u64).max(bytes.saturating_mul(2));
        let map_bytes = (open.lmdb.map_bytes() as u64).saturating_add(more);
        let map_bytes = round_up(usize::try_from(map_bytes).unwrap_or(usize::MAX / 2));
        open.lmdb.grow(map_bytes).map_err(|error| self.lmdb_error(&error))
    }

    /// Writes the newest state to another directory.
    pub(super) fn copy(&self, directory: &Path) -> Result<u64> {
        let unavailable = |error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("\"{}\": {error}", directory.display()))
        };
        let disk = SystemDisk;
        disk.make_directory(directory).map_err(unavailable)?;
        if !disk.list(directory).map_err(unavailable)?.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, format!("\"{}\": is not empty", directory.display())));
        }
        // The file gets its final name only when it is complete.
        let (partial, whole) = (directory.join("data.mdb.partial"), directory.join("data.mdb"));
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.write(true).create_new(true).open(&partial).map_err(unavailable)?;
        {
            let _copying = self.copying.lock();
            self.environment.get()?.lmdb.copy(&mut file).map_err(|error| self.lmdb_error(&error))?;
        }
        file.sync_all().map_err(unavailable)?;
        disk.rename(&partial, &whole).map_err(unavailable)?;
        disk.sync_directory(directory).map_err(unavailable)?;
        let options = DiskTreeOptions {
            map_bytes: MAP_BYTES_MIN,
            disk: Arc::clone(&self.names),
            ..DiskTreeOptions::default()
        };
        let (copy, state) = TreeStore::open(directory, &options, KeyOrderCheck::Done)?;
        drop(copy);
        Ok(state.mark)
    }

    /// Converts an LMDB error during a write. LMDB reports a full disk as an I/O error, so this
    /// function checks the free space too.
    pub(super) fn write_error(&self, error: &heed::Error) -> Error {
        let named = self.lmdb_error(error);
        if named.kind() != ErrorKind::Unavailable || !self.disk_is_full() {
            return named;
        }
        Error::new(ErrorKind::Full, format!("\"{}\": the disk is full", self.environment.path().display()))
    }

    fn disk_is_full(&self) -> bool {
        let path = self.environment.path().join("room.partial");
        // A killed process may have left this file.
        let _ = SystemDisk.remove(&path);
        let outcome = SystemDisk
            .create(&path)
            .and_then(|file| file.write_at(0, &mut [io::IoSlice::new(&[1; 64 << 10])]));
        let _ = SystemDisk.remove(&path);
        outcome.is_err_and(|error| is_out_of_room(&error))
    }

    /// Cuts off the pages that a failed transaction has appended to the file. On a full disk the
    /// update log, above all, needs this space.
    pub(super) fn truncate(&self, len: u64) {
        // A length of 0 means that the length could not be determined for lack of descriptors,
        // because every tree has at least two pages.
        if len == 0 {
            return;
        }
        let file = SystemDisk.open(&self.environment.path().join("data.mdb"), true);
        // If this fails, the next transaction uses the remaining pages.
        let _ = file.and_then(|file| file.set_len(len));
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.environment.get().map_or(0, |open| open.lmdb.file_bytes())
    }

    /// Converts an LMDB error to an error of the engine.
    pub(super) fn lmdb_error(&self, error: &heed::Error) -> Error {
        self.environment.lmdb_error(error)
    }

    /// Adds the name of the tree to an error.
    pub(super) fn named(&self, error: &Error) -> Error {
        self.environment.named(error)
    }
}

/// Merges changes into the records of a block. Fails with `None` if the block is damaged.
fn merge_block<'f, E>(
    plain: &[u8],
    mut changes: impl Iterator<Item = &'f FrontEntry>,
    builder: &mut BlockBuilder,
    totals: &mut RecordTotals,
    put: &mut PutBlock<'_, E>,
) -> std::result::Result<(), Option<E>> {
    let mut old = BlockRecords::new(plain);
    let mut stored = old.next().map_err(|_| None)?;
    let mut change = changes.next();
    loop {
        let order = match (stored, change) {
            (None, None) => return Ok(()),
            (Some(_), None) => KeyOrder::Less,
            (None, Some(_)) => KeyOrder::Greater,
            (Some(_), Some(change)) => old.key().cmp(change.key()),
        };
        let mut before = RecordTotals::default();
        if let Some(kept) = stored.filter(|_| order != KeyOrder::Greater) {
            if order == KeyOrder::Less {
                builder.push(old.key(), [kept, &[]], put)?;
            } else {
                let (attributes, _) = record::decode_header(kept).ok_or(None)?;
                before = RecordTotals::one(old.key().len(), kept.len(), attributes.expiry);
            }
            stored = old.next().map_err(|_| None)?;
        }
        if let Some(entry) = change.filter(|_| order != KeyOrder::Less) {
            let mut after = RecordTotals::default();
            if let (Some(parts), Some(record)) = (entry.parts(), entry.record()) {
                after = RecordTotals::one(entry.key().len(), entry.stored_len(), record.attributes.expiry);
                builder.push(entry.key(), parts, put)?;
            }
            totals.replace(before, after);
            change = changes.next();
        }
    }
}

/// The reason why a batch was not written.
pub(super) enum BatchFailure {
    /// The map is full. The caller should enlarge it and try again.
    NoMap,
    Lmdb(heed::Error),
    Error(Error),
}

impl From<heed::Error> for BatchFailure {
    fn from(error: heed::Error) -> BatchFailure {
        match error {
            heed::Error::Mdb(MdbError::MapFull) => BatchFailure::NoMap,
            error => BatchFailure::Lmdb(error),
        }
    }
}
