//! What is on disk: the LMDB environment, its snapshots, and the batches that bring changes into it.

use super::damage::DamagedRecords;
use super::environment::{Environment, MAP_BYTES_MIN, round_up};
use super::front::{Entry, Front};
use super::sheaf::{self, Sheaf};
use super::state::{State, Totals};
use super::stored::Checksums;
use super::{DiskTreeOptions, place, record};
use crate::disk::{Disk, SystemDisk};
use crate::raw::{LmdbSnapshot, LmdbTable, LmdbWriteTransaction};
use crate::reserve::is_out_of_room;
use heed::MdbError;
use parking_lot::{Mutex, MutexGuard};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use todana_core::{Error, ErrorKind, Expiry, Record, Result};

const STATE_KEY: &[u8] = b"tree";
const DATABASE_KEY: &[u8] = b"database";
/// An error shows so much of a key.
const KEY_SHOWN_LEN: usize = 60;

/// LMDB, and the snapshots that are kept for readers.
pub(super) struct Store {
    /// The file system on which names are synced.
    names: Arc<dyn Disk>,
    // Before the environment, whose transactions they are.
    snapshots: Box<[Kept]>,
    environment: Environment,
    checksums: Checksums,
    damage: DamagedRecords,
    /// Whose log the mark is of, as far as it is known.
    database_id: OnceLock<[u8; 16]>,
    /// Held while a copy is made, as the map cannot grow then.
    copying: Mutex<()>,
}

/// A snapshot for whoever reads next, and the records' table, off its neighbours' cache lines.
#[repr(align(128))]
struct Kept(Mutex<Option<(LmdbSnapshot, LmdbTable)>>);

/// So many threads read beside each other.
const SNAPSHOTS: usize = 64;

impl Store {
    /// Opens the environment in a directory, created if need be.
    pub(super) fn open(path: &Path, options: &DiskTreeOptions) -> Result<(Store, State)> {
        let environment =
            Environment::open(path, options.map_bytes, options.walked_bytes_max, &*options.disk)?;
        let mut store = Store {
            names: Arc::clone(&options.disk),
            snapshots: (0..SNAPSHOTS).map(|_| Kept(Mutex::new(None))).collect(),
            environment,
            checksums: Checksums::All,
            damage: DamagedRecords::default(),
            database_id: OnceLock::new(),
            copying: Mutex::new(()),
        };
        let found = store.read_state()?;
        store.checksums = found.checksums;
        if let Some(database_id) = store.read_database_id()? {
            store.tie(database_id)?;
        }
        store.sync_names().map_err(|error| {
            let message = format!("\"{}\": cannot be synced: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message)
        })?;
        Ok((store, found))
    }

    /// Returns once the names of the files are on disk, and the name of their directory. A checkpoint makes the log before its mark
    /// removable, so the tree must not be lost with a name afterwards: the sync of a file need not sync its name.
    fn sync_names(&self) -> io::Result<()> {
        let path = self.environment.path();
        self.names.make_directory(path)?;
        self.names.sync_directory(path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        self.names.sync_directory(parent.unwrap_or(Path::new(".")))
    }

    fn read_state(&self) -> Result<State> {
        let corrupt = |what: &str| self.named(&Error::new(ErrorKind::Corrupt, what));
        let open = self.environment.get()?;
        let snapshot = open.lmdb.snapshot().map_err(|error| self.trouble(&error))?;
        let is_empty = open.records.is_empty(&snapshot).map_err(|error| self.trouble(&error))?;
        match open.state.get(&snapshot, STATE_KEY).map_err(|error| self.trouble(&error))? {
            Some(bytes) => {
                let state = State::decode(bytes).map_err(|error| self.named(&error))?;
                match (is_empty, state.totals.records) {
                    // Records that are still to come all get checksums.
                    (true, 0) => Ok(State { checksums: Checksums::All, ..state }),
                    (false, 1..) => Ok(state),
                    _ => Err(corrupt("its state does not go with its records")),
                }
            }
            None if is_empty => Ok(State::default()),
            None => Err(corrupt("it has records, and no state")),
        }
    }

    fn read_database_id(&self) -> Result<Option<[u8; 16]>> {
        let open = self.environment.get()?;
        let snapshot = open.lmdb.snapshot().map_err(|error| self.trouble(&error))?;
        let found = open.state.get(&snapshot, DATABASE_KEY).map_err(|error| self.trouble(&error))?;
        let damaged = |_| self.named(&Error::new(ErrorKind::Corrupt, "it names no database of 16 bytes"));
        found.map(|bytes| bytes.try_into().map_err(damaged)).transpose()
    }

    pub(super) fn database_id(&self) -> Option<[u8; 16]> {
        self.database_id.get().copied()
    }

    /// See [`todana_core::CheckpointedEngine::bind_to_log`].
    pub(super) fn tie(&self, database_id: [u8; 16]) -> Result<()> {
        let known = *self.database_id.get_or_init(|| database_id);
        if known == database_id {
            return Ok(());
        }
        let [known, asked] = [known, database_id].map(|id| format!("{:032x}", u128::from_be_bytes(id)));
        let message = format!("the tree is the database {known}'s, and the log beside it {asked}'s");
        Err(self.named(&Error::new(ErrorKind::Corrupt, message)))
    }

    /// Runs `read` on the newest state. Nothing may be committed meanwhile that this has to see.
    #[inline]
    pub(super) fn read<T>(&self, read: impl FnOnce(&LmdbSnapshot, &LmdbTable) -> Result<T>) -> Result<T> {
        let mut kept = self.kept();
        let (snapshot, records) = match &mut *kept {
            Some(kept) => kept,
            empty => empty.insert(self.snapshot()?),
        };
        read(snapshot, records)
    }

    #[cold]
    fn snapshot(&self) -> Result<(LmdbSnapshot, LmdbTable)> {
        let open = self.environment.get()?;
        let snapshot = open.lmdb.snapshot().map_err(|error| self.trouble(&error))?;
        Ok((snapshot, open.records))
    }

    /// A place for a snapshot that nobody else uses now: each thread has a favourite.
    #[inline]
    fn kept(&self) -> MutexGuard<'_, Option<(LmdbSnapshot, LmdbTable)>> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static FAVOURITE: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        let favourite = FAVOURITE.with(|favourite| *favourite);
        for next in 0..4 {
            if let Some(kept) = self.snapshots[(favourite + next) % SNAPSHOTS].0.try_lock() {
                return kept;
            }
        }
        self.snapshots[favourite % SNAPSHOTS].0.lock()
    }

    /// Gives up the snapshots that are kept: what they keep can be used again, and whoever reads next sees the newest state.
    pub(super) fn forget_snapshots(&self) {
        self.snapshots.iter().for_each(|kept| drop(kept.0.lock().take()));
    }

    /// The record of a key. Fails with `Corrupt` if it is damaged.
    #[inline]
    pub(super) fn get<'t>(
        &self,
        snapshot: &'t LmdbSnapshot,
        records: &LmdbTable,
        key: &[u8],
    ) -> Result<Option<Record<'t>>> {
        let place = place::of_key(key);
        let (at, rest) = place::split(&place);
        let found = records.get(snapshot, at).map_err(|error| self.trouble(&error))?;
        let (Some(stored), None) = (found, rest) else {
            return match (found, rest) {
                (Some(bytes), Some(rest)) => self.get_in_sheaf(at, bytes, rest, key),
                _ => Ok(None),
            };
        };
        match self.checksums.decode(key, stored) {
            Some(record) => Ok(Some(record)),
            None => Err(self.damaged(key)),
        }
    }

    fn get_in_sheaf<'t>(
        &self,
        at: &[u8],
        bytes: &'t [u8],
        rest: &[u8],
        key: &[u8],
    ) -> Result<Option<Record<'t>>> {
        let sheaf = self.sheaf(at, bytes)?;
        let Some(stored) = sheaf.find(rest) else { return Ok(None) };
        match sheaf::decode(sheaf.checksums(), key, stored) {
            Some(record) => Ok(Some(record)),
            None => Err(self.damaged(key)),
        }
    }

    /// Reads a sheaf. Fails with `Corrupt` if its records cannot be told apart.
    pub(super) fn sheaf<'t>(&self, at: &[u8], bytes: &'t [u8]) -> Result<Sheaf<'t>> {
        Sheaf::parse(self.checksums, at, bytes).map_err(|error| self.damage.note(at, self.named(&error)))
    }

    pub(super) fn checksums(&self) -> Checksums {
        self.checksums
    }

    /// Notes that a record is damaged, and returns the error that says so.
    #[cold]
    pub(super) fn damaged(&self, key: &[u8]) -> Error {
        let (shown, more) =
            key.split_at_checked(KEY_SHOWN_LEN).map_or((key, ""), |(shown, _)| (shown, "..."));
        let message = format!(
            "the record \"{}{more}\" is damaged: its checksum differs; overwrite or remove it",
            shown.escape_ascii()
        );
        self.damage.note(key, self.named(&Error::new(ErrorKind::Corrupt, message)))
    }

    /// What a damaged record adds to the totals, as far as that can be told; `None` if there is no record. Fails with `Corrupt` if
    /// it lies in a sheaf that cannot be read, so that it cannot be replaced.
    pub(super) fn damaged_totals(&self, key: &[u8]) -> Result<Option<Totals>> {
        let place = place::of_key(key);
        let (at, rest) = place::split(&place);
        self.read(|snapshot, records| {
            let found = records.get(snapshot, at).map_err(|error| self.trouble(&error))?;
            let stored = match (found, rest) {
                (Some(bytes), Some(rest)) => {
                    let sheaf = self.sheaf(at, bytes)?;
                    let unverified =
                        |stored| sheaf.checksums().map_or(stored, |checksums| checksums.unverified(stored));
                    sheaf.find(rest).map(unverified)
                }
                (found, _) => found.map(|stored| self.checksums.unverified(stored)),
            };
            Ok(stored.map(|stored| {
                let expiry = record::decode_header(stored).map_or(Expiry::Never, |(found, _)| found.expiry);
                Totals::one(key.len(), stored.len(), expiry)
            }))
        })
    }

    /// See [`todana_core::CheckpointedEngine::damaged_records`].
    pub(super) fn damaged_records(&self) -> Option<(u64, Error)> {
        self.damage.get()
    }

    /// Bytes of the LMDB value that a long key is in.
    pub(super) fn sheaf_len(&self, key: &[u8]) -> Result<usize> {
        let place = place::of_key(key);
        let at = place::split(&place).0;
        self.read(|snapshot, records| {
            Ok(records.get(snapshot, at).map_err(|error| self.trouble(&error))?.map_or(0, <[u8]>::len))
        })
    }

    /// Writes changes and the state that they lead to, in one transaction; returns once it is on disk. `wipes`: what was there
    /// before goes first. Fails with `NoMap` if the file has to be allowed to grow.
    pub(super) fn write(&self, front: &Front, wipes: bool, state: State) -> std::result::Result<(), Trouble> {
        let open = self.environment.get().map_err(Trouble::Error)?;
        let mut writing = open.lmdb.write()?;
        if wipes {
            open.records.clear(&mut writing)?;
        }
        self.write_records(&mut writing, &open.records, front)?;
        open.state.put(&mut writing, STATE_KEY, &state.encode())?;
        if let Some(database_id) = self.database_id.get() {
            open.state.put(&mut writing, DATABASE_KEY, database_id)?;
        }
        writing.commit()?;
        Ok(())
    }

    fn write_records(
        &self,
        writing: &mut LmdbWriteTransaction<'_>,
        records: &LmdbTable,
        front: &Front,
    ) -> std::result::Result<(), Trouble> {
        let last = records.last(writing)?.map(|(key, _)| key.to_vec());
        let mut changes = front.iter().peekable();
        let mut bundle: Vec<&Entry> = Vec::new();
        let mut stored = Vec::new();
        while let Some(change) = changes.next() {
            let place = place::of_key(change.key());
            let (at, rest) = place::split(&place);
            if rest.is_some() {
                bundle.clear();
                bundle.push(change);
                let belongs = |other: &&Entry| place::split(&place::of_key(other.key())).0 == at;
                while let Some(other) = changes.next_if(belongs) {
                    bundle.push(other);
                }
                let old = records.get(writing, at)?.unwrap_or(&[]);
                let new = sheaf::changed(self.checksums, at, old, &bundle);
                let new = new.map_err(|error| Trouble::Error(self.named(&error)))?;
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
                    // Pages that are filled in order are left full, rather than half full for what may come between.
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

    /// Returns true if LMDB refuses everything until its environment is opened again.
    pub(super) fn has_failed(&self) -> bool {
        self.environment.has_failed()
    }

    /// Opens the environment again. There must be no reader and no copy.
    pub(super) fn reopen(&self) -> Result<()> {
        self.forget_snapshots();
        self.environment.reopen()
    }

    /// Waits for copies that are being made, and keeps others from beginning.
    pub(super) fn without_copies(&self) -> MutexGuard<'_, ()> {
        self.copying.lock()
    }

    /// Lets the file become larger than now, and by `bytes` at least. There must be no reader and no copy.
    pub(super) fn grow(&self, bytes: u64) -> Result<()> {
        self.forget_snapshots();
        let open = self.environment.get()?;
        let more = (open.lmdb.map_bytes() as u64).max(bytes.saturating_mul(2));
        let map_bytes = (open.lmdb.map_bytes() as u64).saturating_add(more);
        let map_bytes = round_up(usize::try_from(map_bytes).unwrap_or(usize::MAX / 2));
        open.lmdb.grow(map_bytes).map_err(|error| self.trouble(&error))
    }

    /// Writes the newest state to a directory of its own.
    pub(super) fn copy(&self, directory: &Path) -> Result<u64> {
        let unavailable = |error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("\"{}\": {error}", directory.display()))
        };
        let disk = SystemDisk;
        disk.make_directory(directory).map_err(unavailable)?;
        if !disk.list(directory).map_err(unavailable)?.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, format!("\"{}\" is not empty", directory.display())));
        }
        // It has its name only once it is whole.
        let (partial, whole) = (directory.join("data.mdb.partial"), directory.join("data.mdb"));
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.write(true).create_new(true).open(&partial).map_err(unavailable)?;
        {
            let _copying = self.copying.lock();
            self.environment.get()?.lmdb.copy(&mut file).map_err(|error| self.trouble(&error))?;
        }
        file.sync_all().map_err(unavailable)?;
        disk.rename(&partial, &whole).map_err(unavailable)?;
        disk.sync_directory(directory).map_err(unavailable)?;
        let options = DiskTreeOptions {
            map_bytes: MAP_BYTES_MIN,
            disk: Arc::clone(&self.names),
            ..DiskTreeOptions::default()
        };
        let (copy, state) = Store::open(directory, &options)?;
        drop(copy);
        Ok(state.mark)
    }

    /// An error of LMDB's while it wrote. It calls a full disk an input/output error, so it is seen whether there is room.
    pub(super) fn writing_trouble(&self, error: &heed::Error) -> Error {
        let named = self.trouble(error);
        if named.kind() != ErrorKind::Unavailable || !self.disk_is_full() {
            return named;
        }
        Error::new(ErrorKind::Full, format!("\"{}\": the disk is full", self.environment.path().display()))
    }

    fn disk_is_full(&self) -> bool {
        let path = self.environment.path().join("room.partial");
        // One may be left from a process that ended here.
        let _ = SystemDisk.remove(&path);
        let outcome = SystemDisk
            .create(&path)
            .and_then(|file| file.write_at(0, &mut [io::IoSlice::new(&[1; 64 << 10])]));
        let _ = SystemDisk.remove(&path);
        outcome.is_err_and(|error| is_out_of_room(&error))
    }

    /// Gives back the room of pages that a transaction has written behind those of the file and could not commit: on a full disk others
    /// need it, the update log above all.
    pub(super) fn cut(&self, len: u64) {
        // The length could not be had, where descriptors are scarce; a tree has two pages at least.
        if len == 0 {
            return;
        }
        let file = SystemDisk.open(&self.environment.path().join("data.mdb"), true);
        // What stays is used by the next transaction.
        let _ = file.and_then(|file| file.set_len(len));
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.environment.get().map_or(0, |open| open.lmdb.file_bytes())
    }

    /// An error of LMDB's in our words.
    pub(super) fn trouble(&self, error: &heed::Error) -> Error {
        self.environment.trouble(error)
    }

    /// An error with the name of the tree in front.
    pub(super) fn named(&self, error: &Error) -> Error {
        self.environment.named(error)
    }
}

/// Why a batch was not written.
pub(super) enum Trouble {
    /// The file has become as large as it may; let it grow and try again.
    NoMap,
    LmdbEnvironment(heed::Error),
    Error(Error),
}

impl From<heed::Error> for Trouble {
    fn from(error: heed::Error) -> Trouble {
        match error {
            heed::Error::Mdb(MdbError::MapFull) => Trouble::NoMap,
            error => Trouble::LmdbEnvironment(error),
        }
    }
}
