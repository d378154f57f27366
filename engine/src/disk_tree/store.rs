//! What is on disk: the LMDB environment, its snapshots, and the batches that bring changes into it.

use super::front::{Entry, Front};
use super::pages::{self, Meta};
use super::{place, record, sheaf};
use crate::disk::{Disk, SystemDisk};
use crate::raw::{Lmdb, Snapshot, Table, Writing};
use heed::MdbError;
use parking_lot::{Mutex, MutexGuard};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use todana_core::{Error, ErrorKind, Result};

/// What is known of all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) records: u64,
    /// Of keys, and records as they are stored.
    pub(super) bytes: u64,
    /// Records with an expiry.
    pub(super) perishable: u64,
}

/// The entry of `state` (docs/format/disk-tree.md, section 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) mark: u64,
    pub(super) totals: Totals,
}

const STATE_KEY: &[u8] = b"tree";
const DATABASE_KEY: &[u8] = b"database";
const STATE_MAGIC: &[u8; 8] = b"TODANADT";
const STATE_VERSION: u32 = 1;
const STATE_LEN: usize = 44;

impl State {
    fn encode(&self) -> [u8; STATE_LEN] {
        let Totals { records, bytes, perishable } = self.totals;
        let mut out = [0; STATE_LEN];
        out[..8].copy_from_slice(STATE_MAGIC);
        out[8..12].copy_from_slice(&STATE_VERSION.to_le_bytes());
        for (field, number) in out[12..].chunks_exact_mut(8).zip([self.mark, records, bytes, perishable]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<State> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let version =
            bytes.get(8..12).map(|version| u32::from_le_bytes(version.try_into().expect("four bytes")));
        match version {
            Some(STATE_VERSION) if bytes.starts_with(STATE_MAGIC) && bytes.len() == STATE_LEN => {}
            Some(version) if bytes.starts_with(STATE_MAGIC) && version > STATE_VERSION => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("it is a disk tree of version {version}, and this reads {STATE_VERSION}"),
                ));
            }
            _ => return Err(Error::new(ErrorKind::Corrupt, "its state is none of a disk tree")),
        }
        let field = |at| number(at).expect("the length was compared");
        let totals = Totals { records: field(20), bytes: field(28), perishable: field(36) };
        Ok(State { mark: field(12), totals })
    }
}

/// LMDB, and the snapshots that are kept for readers.
pub(super) struct Store {
    path: PathBuf,
    /// The file system on which names are synced.
    names: Arc<dyn Disk>,
    // Before `lmdb`, whose transactions they are.
    snapshots: Box<[Kept]>,
    lmdb: Lmdb,
    records: Table,
    state: Table,
    /// Whose log the mark is of, as far as it is known.
    database_id: OnceLock<[u8; 16]>,
    /// Held while a copy is made, as the map cannot grow then.
    copying: Mutex<()>,
}

/// A snapshot for whoever reads next, off its neighbours' cache lines.
#[repr(align(128))]
struct Kept(Mutex<Option<Snapshot>>);

/// So many threads read beside each other.
const SNAPSHOTS: usize = 64;
/// And some more for copies, and for transactions that write.
const READERS_MAX: u32 = 126;

/// Address space is asked for by halves down to this, where the system gives no more.
const MAP_BYTES_MIN: usize = 16 << 20;

/// Whether less address space may be had. It is refused as an invalid argument, too: by valgrind, for one.
fn is_too_much(error: io::ErrorKind) -> bool {
    matches!(error, io::ErrorKind::OutOfMemory | io::ErrorKind::InvalidInput)
}

impl Store {
    /// Opens the environment in a directory, made if need be, once it has been seen that reading it cannot end the process.
    pub(super) fn open(path: &Path, map_bytes: usize, names: Arc<dyn Disk>) -> Result<(Store, State)> {
        let unavailable = |what: &str, error: io::Error| {
            Error::new(ErrorKind::Unavailable, format!("\"{}\": {what}: {error}", path.display()))
        };
        let disk = SystemDisk;
        disk.make_directory(path).map_err(|error| unavailable("cannot be made", error))?;
        let lock = disk.lock(&path.join("lock")).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Error::new(ErrorKind::Busy, format!("\"{}\" is open elsewhere", path.display()))
            }
            _ => unavailable("cannot be locked", error),
        })?;
        examine(path)?;
        let mut map_bytes = round_up(map_bytes.max(MAP_BYTES_MIN.min(map_bytes)));
        let mut lock = Some(lock);
        let lmdb = loop {
            match Lmdb::open(path, map_bytes, READERS_MAX, lock.take().expect("it comes back")) {
                Ok(lmdb) => break lmdb,
                Err(heed::Error::Io(error))
                    if is_too_much(error.kind()) && map_bytes / 2 >= MAP_BYTES_MIN =>
                {
                    map_bytes = round_up(map_bytes / 2);
                    lock = Some(
                        disk.lock(&path.join("lock"))
                            .map_err(|error| unavailable("cannot be locked", error))?,
                    );
                }
                Err(error) => return Err(trouble(path, &error)),
            }
        };
        let (records, state) = lmdb.tables(["records", "state"]).map_err(|error| trouble(path, &error))?;
        let snapshots = (0..SNAPSHOTS).map(|_| Kept(Mutex::new(None))).collect();
        let (path, database_id, copying) = (path.into(), OnceLock::new(), Mutex::new(()));
        let store = Store { path, names, snapshots, lmdb, records, state, database_id, copying };
        let found = store.read_state()?;
        if let Some(database_id) = store.read_database_id()? {
            store.tie(database_id)?;
        }
        store.sync_names().map_err(|error| unavailable("cannot be synced", error))?;
        Ok((store, found))
    }

    /// Returns once the names of the files are on disk, and the name of their directory. A checkpoint makes the log before its mark
    /// removable, so the tree must not be lost with a name afterwards: the sync of a file need not sync its name.
    fn sync_names(&self) -> io::Result<()> {
        self.names.make_directory(&self.path)?;
        self.names.sync_directory(&self.path)?;
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        self.names.sync_directory(parent.unwrap_or(Path::new(".")))
    }

    fn read_state(&self) -> Result<State> {
        let snapshot = self.lmdb.snapshot().map_err(|error| self.trouble(&error))?;
        match self.state.get(&snapshot, STATE_KEY).map_err(|error| self.trouble(&error))? {
            Some(bytes) => State::decode(bytes).map_err(|error| self.named(&error)),
            None if self.records.is_empty(&snapshot).map_err(|error| self.trouble(&error))? => {
                Ok(State::default())
            }
            None => Err(self.named(&Error::new(ErrorKind::Corrupt, "it has records, and no state"))),
        }
    }

    fn read_database_id(&self) -> Result<Option<[u8; 16]>> {
        let snapshot = self.lmdb.snapshot().map_err(|error| self.trouble(&error))?;
        let found = self.state.get(&snapshot, DATABASE_KEY).map_err(|error| self.trouble(&error))?;
        let damaged = |_| self.named(&Error::new(ErrorKind::Corrupt, "it names no database of 16 bytes"));
        found.map(|bytes| bytes.try_into().map_err(damaged)).transpose()
    }

    pub(super) fn database_id(&self) -> Option<[u8; 16]> {
        self.database_id.get().copied()
    }

    /// See [`todana_core::Checkpointed::tie`].
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
    pub(super) fn read<T>(&self, read: impl FnOnce(&Snapshot, &Table) -> Result<T>) -> Result<T> {
        let mut kept = self.kept();
        let snapshot = match &mut *kept {
            Some(snapshot) => snapshot,
            empty => empty.insert(self.lmdb.snapshot().map_err(|error| self.trouble(&error))?),
        };
        read(snapshot, &self.records)
    }

    /// A place for a snapshot that nobody else uses now: each thread has a favourite.
    #[inline]
    fn kept(&self) -> MutexGuard<'_, Option<Snapshot>> {
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

    /// The record of a key, as it is stored.
    #[inline]
    pub(super) fn get<'t>(&self, snapshot: &'t Snapshot, key: &[u8]) -> Result<Option<&'t [u8]>> {
        let place = place::of_key(key);
        let (at, rest) = place::split(&place);
        let found = self.records.get(snapshot, at).map_err(|error| self.trouble(&error))?;
        match (found, rest) {
            (Some(sheaf), Some(rest)) => sheaf::find(sheaf, rest).map_err(|error| self.named(&error)),
            (found, _) => Ok(found),
        }
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
        let mut writing = self.lmdb.write()?;
        if wipes {
            self.records.clear(&mut writing)?;
        }
        self.write_records(&mut writing, front)?;
        self.state.put(&mut writing, STATE_KEY, &state.encode())?;
        if let Some(database_id) = self.database_id.get() {
            self.state.put(&mut writing, DATABASE_KEY, database_id)?;
        }
        writing.commit()?;
        Ok(())
    }

    fn write_records(&self, writing: &mut Writing<'_>, front: &Front) -> std::result::Result<(), Trouble> {
        let last = self.records.last(writing)?.map(|(key, _)| key.to_vec());
        let mut changes = front.iter().peekable();
        let mut bundle: Vec<&Entry> = Vec::new();
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
                let old = self.records.get(writing, at)?.unwrap_or(&[]);
                let new = sheaf::changed(old, &bundle).map_err(|error| Trouble::Error(self.named(&error)))?;
                match new.is_empty() {
                    true => drop(self.records.delete(writing, at)?),
                    false => self.records.put(writing, at, &new)?,
                }
                continue;
            }
            match change.parts() {
                None => drop(self.records.delete(writing, at)?),
                // Pages that are filled in order are left full, rather than half full for what may come between.
                Some([record, []]) if last.as_deref().is_none_or(|last| last < at) => {
                    self.records.put_with_flags(writing, heed::PutFlags::APPEND, at, record)?;
                }
                Some([record, []]) => self.records.put(writing, at, record)?,
                Some([header, value]) => {
                    self.records.put_reserved(writing, at, header.len() + value.len(), |room| {
                        room.write_all(header)?;
                        room.write_all(value)
                    })?
                }
            }
        }
        Ok(())
    }

    /// Waits for copies that are being made, and keeps others from beginning.
    pub(super) fn without_copies(&self) -> MutexGuard<'_, ()> {
        self.copying.lock()
    }

    /// Lets the file become larger than now, and by `bytes` at least. There must be no reader and no copy.
    pub(super) fn grow(&self, bytes: u64) -> Result<()> {
        self.forget_snapshots();
        let more = (self.lmdb.map_bytes() as u64).max(bytes.saturating_mul(2));
        let map_bytes = (self.lmdb.map_bytes() as u64).saturating_add(more);
        let map_bytes = round_up(usize::try_from(map_bytes).unwrap_or(usize::MAX / 2));
        self.lmdb.grow(map_bytes).map_err(|error| self.trouble(&error))
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
            self.lmdb.copy(&mut file).map_err(|error| self.trouble(&error))?;
        }
        file.sync_all().map_err(unavailable)?;
        disk.rename(&partial, &whole).map_err(unavailable)?;
        disk.sync_directory(directory).map_err(unavailable)?;
        let (copy, state) = Store::open(directory, MAP_BYTES_MIN, Arc::clone(&self.names))?;
        drop(copy);
        Ok(state.mark)
    }

    /// An error of LMDB's while it wrote. It calls a full disk an input/output error, so it is seen whether there is room.
    pub(super) fn writing_trouble(&self, error: &heed::Error) -> Error {
        let named = self.trouble(error);
        if named.kind() != ErrorKind::Unavailable || !self.disk_is_full() {
            return named;
        }
        Error::new(ErrorKind::Full, format!("\"{}\": the disk is full", self.path.display()))
    }

    fn disk_is_full(&self) -> bool {
        let path = self.path.join("room.partial");
        // One may be left from a process that ended here.
        let _ = SystemDisk.remove(&path);
        let Ok(file) = SystemDisk.create(&path) else { return true };
        let outcome = file.write_at(0, &mut [io::IoSlice::new(&[1; 64 << 10])]);
        let _ = SystemDisk.remove(&path);
        outcome.is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        })
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.lmdb.file_bytes()
    }

    /// An error of LMDB's in our words.
    pub(super) fn trouble(&self, error: &heed::Error) -> Error {
        trouble(&self.path, error)
    }

    /// An error with the name of the tree in front.
    pub(super) fn named(&self, error: &Error) -> Error {
        Error::new(error.kind(), format!("\"{}\": {error}", self.path.display()))
    }
}

/// Why a batch was not written.
pub(super) enum Trouble {
    /// The file has become as large as it may; let it grow and try again.
    NoMap,
    Lmdb(heed::Error),
    Error(Error),
}

impl From<heed::Error> for Trouble {
    fn from(error: heed::Error) -> Trouble {
        match error {
            heed::Error::Mdb(MdbError::MapFull) => Trouble::NoMap,
            error => Trouble::Lmdb(error),
        }
    }
}

fn trouble(path: &Path, error: &heed::Error) -> Error {
    use heed::Error::{Io, Mdb};
    let kind = match error {
        Io(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            ErrorKind::Full
        }
        Mdb(MdbError::Corrupted | MdbError::PageNotFound | MdbError::Invalid | MdbError::Incompatible) => {
            ErrorKind::Corrupt
        }
        Mdb(MdbError::VersionMismatch) => ErrorKind::Invalid,
        heed::Error::EnvAlreadyOpened => ErrorKind::Busy,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("\"{}\": {error}", path.display()))
}

/// Sees to it that the file is as long as its meta page says: a page behind its end, once mapped, would end the process.
fn examine(path: &Path) -> Result<()> {
    let named =
        |error: Error| Error::new(error.kind(), format!("\"{}\": {error}", path.join("data.mdb").display()));
    let unavailable = |error: io::Error| named(Error::new(ErrorKind::Unavailable, error.to_string()));
    let file = match SystemDisk.open(&path.join("data.mdb"), true) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unavailable(error)),
    };
    let Some(meta) = Meta::read(&*file).map_err(named)? else { return Ok(()) };
    let file_bytes = file.len().map_err(unavailable)?;
    if file_bytes < meta.file_bytes() {
        pages::check(&*file, &meta).map_err(named)?;
        if meta.file_bytes() - file_bytes > file_bytes.max(MISSING_BYTES) {
            let message = format!(
                "its meta page says that it has {} bytes, and it has {file_bytes}",
                meta.file_bytes()
            );
            return Err(named(Error::new(ErrorKind::Corrupt, message)));
        }
        file.set_len(meta.file_bytes()).map_err(unavailable)?;
    }
    Ok(())
}

/// Looks at every page and every record of the tree in a directory; returns what it found. It must not be open.
pub(super) fn check(path: &Path) -> Result<Totals> {
    let named = |error: &Error| Error::new(error.kind(), format!("\"{}\": {error}", path.display()));
    let unavailable = |error: io::Error| named(&Error::new(ErrorKind::Unavailable, error.to_string()));
    {
        let lock = SystemDisk.lock(&path.join("lock")).map_err(unavailable)?;
        let file = SystemDisk.open(&path.join("data.mdb"), false).map_err(unavailable)?;
        if let Some(meta) = Meta::read(&*file).map_err(|error| named(&error))? {
            pages::check(&*file, &meta).map_err(|error| named(&error))?;
        }
        drop(lock);
    }
    let (store, state) = Store::open(path, MAP_BYTES_MIN, Arc::new(SystemDisk))?;
    let mut found = Totals::default();
    let mut count = |key_len: usize, stored: &[u8]| {
        let (attributes, _) = record::decode_header(stored)
            .ok_or_else(|| named(&Error::new(ErrorKind::Corrupt, "a record cannot be read")))?;
        found.records += 1;
        found.bytes += (key_len + stored.len()) as u64;
        found.perishable += u64::from(attributes.expiry.at().is_some());
        Ok(())
    };
    store.read(|snapshot, records| {
        for entry in records.iter(snapshot).map_err(|error| store.trouble(&error))? {
            let (at, value) = entry.map_err(|error| store.trouble(&error))?;
            if at.len() < place::PLACE_LEN_MAX {
                count(place::to_key(at).len(), value)?;
                continue;
            }
            for (rest, stored) in sheaf::stalks(value).map_err(|error| named(&error))? {
                let place = [at, rest].concat();
                count(place::to_key(&place).len(), stored)?;
            }
        }
        Ok(())
    })?;
    if found != state.totals {
        let message =
            format!("it has {} records, and its state says {}", found.records, state.totals.records);
        return Err(named(&Error::new(ErrorKind::Corrupt, message)));
    }
    Ok(found)
}

/// So much may always be missing at the end of a file, if it is not in use.
const MISSING_BYTES: u64 = 1 << 30;

/// In whole pages of whatever system.
fn round_up(bytes: usize) -> usize {
    const PAGE_MAX: usize = 64 << 10;
    bytes.clamp(PAGE_MAX, usize::MAX / 2).next_multiple_of(PAGE_MAX)
}
