//! A disk in memory that stops, crashes and fails on request. The same calls and the same seed give
//! the same bytes.
//!
//! ```text
//! create, write, sync ... --> Op --> State: what programs see, and what has reached the platters
//!                             |
//!                             +----> journal: replays to any moment (`State::apply`), shows the
//!                                    disk after a power failure at that moment (`State::reboot`)
//! ```
//!
//! After a reboot, synced bytes and names are there. Each block of 512 bytes that was written
//! since then holds what it contained at some moment since the last sync. The moment differs from
//! block to block, and a block may be torn in the middle. Each unsynced change of a name has
//! happened or has not.
//!
//! Shared memory is written like its file, but without faults, because a copy in memory cannot
//! fail. It maps no pages. Code that maps a file gets the pages of a twin: a file on the real disk
//! to which every change is applied.
#![allow(dead_code)] // Each test uses its part.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use todana_engine::disk::{Disk, File, MappedFile, SharedMemory, SystemDisk};

const BLOCK: usize = 512;

/// A generator of pseudo-random numbers, which are the same for the same seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Returns a number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.roll(2) == 0
    }
}

/// An operation that changes the disk. Files are identified by number, because a name can later
/// belong to another file.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create {
        path: PathBuf,
    },
    Write {
        file: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetLen {
        file: u64,
        len: u64,
    },
    Sync {
        file: u64,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Remove {
        path: PathBuf,
    },
    SyncDirectory {
        path: PathBuf,
    },
    MakeDirectory {
        path: PathBuf,
    },
    /// The power fails and returns.
    Reboot {
        seed: u64,
    },
}

/// An operation, and the number that the test noted when it began.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) note: u64,
}

#[derive(Clone, Default)]
struct Content {
    /// The bytes that programs see.
    bytes: Vec<u8>,
    synced: Vec<u8>,
    /// The changes since the last sync.
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
}

impl Change {
    fn make(&self, to: &mut Vec<u8>) {
        match self {
            Change::SetLen(len) => to.resize(*len as usize, 0),
            Change::Write { offset, bytes } => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                if to.len() < end {
                    to.resize(end, 0);
                }
                to[start..end].copy_from_slice(bytes);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    Directory,
    File(u64),
}

/// A change of names, each within one directory.
#[derive(Clone, Debug)]
struct Naming {
    directory: PathBuf,
    removed: Option<PathBuf>,
    made: Option<(PathBuf, Node)>,
}

/// The contents of the disk.
#[derive(Clone, Default)]
pub(crate) struct State {
    /// Shared with other moments until one of them changes.
    files: BTreeMap<u64, Arc<Content>>,
    names: BTreeMap<PathBuf, Node>,
    synced_names: BTreeMap<PathBuf, Node>,
    unsynced_names: Vec<Naming>,
    created: u64,
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_path_buf()
}

impl State {
    /// Applies an operation. Returns the number of the file that it created.
    pub(crate) fn apply(&mut self, op: &Op) -> io::Result<u64> {
        match op {
            Op::Create { path } => {
                if self.names.contains_key(path) {
                    return Err(ErrorKind::AlreadyExists.into());
                }
                self.directory(&parent(path))?;
                self.created += 1;
                self.files.insert(self.created, Arc::default());
                self.name(path, Node::File(self.created));
                return Ok(self.created);
            }
            Op::Write { file, offset, bytes } => {
                self.change(*file, Change::Write { offset: *offset, bytes: bytes.clone() });
            }
            Op::SetLen { file, len } => self.change(*file, Change::SetLen(*len)),
            Op::Sync { file } => {
                let content = self.content(*file);
                content.synced.clone_from(&content.bytes);
                content.unsynced.clear();
            }
            Op::Rename { from, to } => {
                let node = *self.names.get(from).ok_or(ErrorKind::NotFound)?;
                assert_eq!(from.parent(), to.parent(), "a rename stays within its directory");
                rename(&mut self.names, from, to);
                let made = Some((to.clone(), node));
                let naming = Naming { directory: parent(to), removed: Some(from.clone()), made };
                self.unsynced_names.push(naming);
            }
            Op::Remove { path } => {
                match self.names.get(path) {
                    Some(Node::File(_)) => {}
                    Some(Node::Directory) => return Err(ErrorKind::IsADirectory.into()),
                    None => return Err(ErrorKind::NotFound.into()),
                }
                self.names.remove(path);
                let naming = Naming { directory: parent(path), removed: Some(path.clone()), made: None };
                self.unsynced_names.push(naming);
            }
            Op::SyncDirectory { path } => {
                self.directory(path)?;
                let (here, elsewhere) =
                    self.unsynced_names.drain(..).partition(|naming| naming.directory == *path);
                self.unsynced_names = elsewhere;
                let here: Vec<Naming> = here;
                here.iter().for_each(|naming| naming.make(&mut self.synced_names));
            }
            Op::MakeDirectory { path } => {
                let missing: Vec<&Path> = path.ancestors().take_while(|path| !self.has(path)).collect();
                for path in missing.into_iter().rev() {
                    self.name(path, Node::Directory);
                }
                self.directory(path)?;
            }
            Op::Reboot { seed } => *self = self.reboot(*seed),
        }
        Ok(0)
    }

    /// Applies a part of an operation, like a machine that stops in the middle.
    pub(crate) fn apply_in_part(&mut self, op: &Op, dice: &mut Dice) {
        match op {
            Op::Write { file, offset, bytes } => {
                let part = bytes[..dice.roll(bytes.len() as u64 + 1) as usize].to_vec();
                let _ = self.apply(&Op::Write { file: *file, offset: *offset, bytes: part });
            }
            // Neither applied nor left out: `reboot` decides how much reaches the platters.
            Op::Sync { .. } | Op::SyncDirectory { .. } | Op::Reboot { .. } => {}
            // Either under way to the platters or not begun.
            _ if dice.coin() => {
                let _ = self.apply(op);
            }
            _ => {}
        }
    }

    /// Returns the disk after a power failure.
    pub(crate) fn reboot(&self, seed: u64) -> State {
        let mut dice = Dice::new(seed);
        // Keeps no unsynced change, all of them, or chooses for each. Each way has found bugs that
        // the others had not.
        let way = dice.roll(4);
        let keep = |dice: &mut Dice| match way {
            0 => false,
            1 => true,
            _ => dice.coin(),
        };
        let mut names = self.synced_names.clone();
        for naming in &self.unsynced_names {
            if keep(&mut dice) {
                naming.make(&mut names);
            }
        }
        // If a directory is lost, its contents are lost as well.
        let paths: Vec<PathBuf> = names.keys().cloned().collect();
        for path in paths {
            let above = parent(&path);
            if above != Path::new("/") && names.get(&above) != Some(&Node::Directory) {
                names.remove(&path);
            }
        }
        let mut files = BTreeMap::new();
        for node in names.values() {
            if let Node::File(number) = node {
                let bytes = self.files[number].come_up(way, &mut dice);
                files.insert(*number, Arc::new(Content::on_disk(bytes)));
            }
        }
        let synced_names = names.clone();
        State { files, names, synced_names, unsynced_names: Vec::new(), created: self.created }
    }

    /// Returns the files below a directory, with the bytes that programs see.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let file = |(path, node): (&PathBuf, &Node)| match node {
            Node::File(number) => Some((path.clone(), self.files[number].bytes.clone())),
            Node::Directory => None,
        };
        self.names.iter().filter_map(file).collect()
    }

    /// Returns true if a file or a directory has this name.
    pub(crate) fn has_name(&self, path: &Path) -> bool {
        self.has(path)
    }

    /// Replaces the bytes of this file. The file must be synced, and so are the new bytes.
    pub(crate) fn put(&mut self, path: &Path, bytes: Vec<u8>) {
        let number = match self.names.get(path) {
            Some(Node::File(number)) => *number,
            _ => {
                self.created += 1;
                self.created
            }
        };
        self.names.insert(path.to_path_buf(), Node::File(number));
        self.synced_names.insert(path.to_path_buf(), Node::File(number));
        self.files.insert(number, Arc::new(Content::on_disk(bytes)));
    }

    /// Flips one bit of a file, both on disk and in the bytes that programs see.
    pub(crate) fn flip(&mut self, path: &Path, bit: usize) {
        let Some(Node::File(number)) = self.names.get(path).copied() else {
            panic!("no file {}", path.display())
        };
        let content = self.content(number);
        content.bytes[bit / 8] ^= 1 << (bit % 8);
        if content.unsynced.is_empty() {
            content.synced[bit / 8] ^= 1 << (bit % 8);
        } else {
            content.synced.clone_from(&content.bytes);
            content.unsynced.clear();
        }
    }

    /// Removes this file.
    pub(crate) fn take_away(&mut self, path: &Path) {
        self.names.remove(path);
        self.synced_names.remove(path);
    }

    fn content(&mut self, file: u64) -> &mut Content {
        Arc::make_mut(self.files.get_mut(&file).expect("it is open"))
    }

    fn has(&self, path: &Path) -> bool {
        path == Path::new("/") || self.names.contains_key(path)
    }

    fn directory(&self, path: &Path) -> io::Result<()> {
        match self.names.get(path) {
            Some(Node::Directory) => Ok(()),
            _ if path == Path::new("/") => Ok(()),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn name(&mut self, path: &Path, node: Node) {
        self.names.insert(path.to_path_buf(), node);
        let naming =
            Naming { directory: parent(path), removed: None, made: Some((path.to_path_buf(), node)) };
        self.unsynced_names.push(naming);
    }

    fn change(&mut self, file: u64, change: Change) {
        let content = self.content(file);
        change.make(&mut content.bytes);
        content.unsynced.push(change);
    }

    /// Returns the numbers of the files that have a name.
    fn numbers(&self) -> BTreeSet<u64> {
        let number = |node: &Node| match node {
            Node::File(number) => Some(*number),
            Node::Directory => None,
        };
        self.names.values().filter_map(number).collect()
    }

    fn used(&self) -> u64 {
        let numbers = self.numbers();
        numbers.iter().map(|number| self.files[number].bytes.len() as u64).sum()
    }
}

/// Renames a file, or a directory with its contents. A crash may leave the names in the old
/// directory that are not synced yet.
fn rename(names: &mut BTreeMap<PathBuf, Node>, from: &Path, to: &Path) {
    let inside: Vec<PathBuf> = names.keys().filter(|path| path.starts_with(from)).cloned().collect();
    for path in inside {
        let node = names.remove(&path).expect("it was found");
        let rest = path.strip_prefix(from).expect("it begins so");
        names.insert(if rest == Path::new("") { to.to_path_buf() } else { to.join(rest) }, node);
    }
}

impl Naming {
    fn make(&self, names: &mut BTreeMap<PathBuf, Node>) {
        if let (Some(from), Some((to, Node::Directory))) = (&self.removed, &self.made) {
            return rename(names, from, to);
        }
        if let Some(removed) = &self.removed {
            names.remove(removed);
        }
        if let Some((path, node)) = &self.made {
            names.insert(path.clone(), *node);
        }
    }
}

impl Content {
    fn on_disk(bytes: Vec<u8>) -> Content {
        Content { synced: bytes.clone(), bytes, unsynced: Vec::new() }
    }

    fn come_up(&self, way: u64, dice: &mut Dice) -> Vec<u8> {
        if self.unsynced.is_empty() || way == 0 {
            return self.synced.clone();
        }
        if way == 1 {
            return self.bytes.clone();
        }
        let moments = self.unsynced.len() as u64 + 1;
        // The length has a moment of its own. If it is larger than a block was at the moment of
        // the block, the missing bytes are zeros.
        let len_moment = dice.roll(moments);
        let mut image = self.synced.clone();
        let mut len = image.len();
        let len_max = self.bytes.len().max(self.synced.len());
        let mut blocks: Vec<Option<u64>> = Vec::new();
        for block in 0..len_max.div_ceil(BLOCK) {
            let is_touched = self.unsynced.iter().any(|change| match change {
                Change::Write { offset, bytes } => {
                    let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                    start < (block + 1) * BLOCK && end > block * BLOCK
                }
                Change::SetLen(_) => true,
            });
            blocks.push(is_touched.then(|| dice.roll(moments)));
        }
        let mut result = vec![0; len_max];
        let mut moment = 0;
        loop {
            if moment == len_moment {
                len = image.len();
            }
            for (block, chosen) in blocks.iter().enumerate() {
                if chosen.is_none_or(|chosen| chosen == moment) {
                    let start = block * BLOCK;
                    let end = (start + BLOCK).min(len_max);
                    result[start..end].fill(0);
                    let there = image.get(start..end.min(image.len())).unwrap_or_default();
                    result[start..start + there.len()].copy_from_slice(there);
                }
            }
            let Some(change) = self.unsynced.get(moment as usize) else { break };
            change.make(&mut image);
            moment += 1;
        }
        // One block in eight is torn: its end is as it was before the changes.
        for (block, chosen) in blocks.iter().enumerate() {
            if chosen.is_some() && dice.roll(8) == 0 {
                let end = ((block + 1) * BLOCK).min(len_max);
                let start = end.min(block * BLOCK + dice.roll(BLOCK as u64) as usize);
                result[start..end].fill(0);
                let before = self.synced.get(start..end.min(self.synced.len())).unwrap_or_default();
                result[start..start + before.len()].copy_from_slice(before);
            }
        }
        // `len` is the length of some moment, so synced bytes are cut off only if they were
        // truncated since.
        result.truncate(len);
        result
    }
}

/// Runs before each operation. It may wait, and it may fail the operation.
type Fault = Arc<dyn Fn(&Op) -> io::Result<()> + Send + Sync>;

#[derive(Default)]
struct Inner {
    state: State,
    journal: Option<Vec<Step>>,
    note: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    fault: Option<Fault>,
    capacity: Option<u64>,
    /// Reads of these bytes fail.
    unreadable: Option<Vec<u8>>,
    stopped: bool,
    locked: BTreeSet<PathBuf>,
    shows: bool,
    /// The twins of files that have been mapped.
    twins: BTreeMap<u64, Box<dyn File>>,
}

/// The disk. Clones share its contents.
#[derive(Clone, Default)]
pub(crate) struct CrashDisk(Arc<Mutex<Inner>>);

impl CrashDisk {
    /// Creates an empty disk.
    pub(crate) fn new() -> CrashDisk {
        CrashDisk::default()
    }

    /// Creates a disk with these contents.
    pub(crate) fn with(state: State) -> CrashDisk {
        let disk = CrashDisk::default();
        disk.inner().state = state;
        disk
    }

    /// Sets whether files can be mapped from now on. A new disk allows only reads.
    pub(crate) fn show_in_memory(&self, shows: bool) {
        self.inner().shows = shows;
    }

    /// Creates a disk with these contents whose files can be mapped if `shows` is true.
    pub(crate) fn shown_or_read(state: State, shows: bool) -> CrashDisk {
        let disk = CrashDisk::with(state);
        disk.show_in_memory(shows);
        disk
    }

    /// Returns the number of mapped files, including those that are no longer mapped but still
    /// exist.
    pub(crate) fn shown(&self) -> usize {
        self.inner().twins.len()
    }

    /// Returns the current contents: what programs see, and what would survive.
    pub(crate) fn state(&self) -> State {
        self.inner().state.clone()
    }

    /// Changes the contents by `damage`. No program may read the disk meanwhile.
    pub(crate) fn damage(&self, damage: impl FnOnce(&mut State)) {
        let mut inner = self.inner();
        let inner = &mut *inner;
        damage(&mut inner.state);
        for (number, twin) in &inner.twins {
            let bytes = &inner.state.files[number].bytes;
            twin.write_at(0, &mut [IoSlice::new(bytes)]).expect("there is room for a twin");
            twin.set_len(bytes.len() as u64).expect("it can be cut");
        }
    }

    /// Records all operations from now on, each with the result of `note` at its begin.
    pub(crate) fn record(&self, note: impl Fn() -> u64 + Send + Sync + 'static) {
        let mut inner = self.inner();
        inner.journal = Some(Vec::new());
        inner.note = Some(Arc::new(note));
    }

    /// Returns the recorded operations.
    pub(crate) fn journal(&self) -> Vec<Step> {
        self.inner().journal.take().unwrap_or_default()
    }

    /// Fails all operations from now on, as if the process had been killed.
    pub(crate) fn stop(&self) {
        self.inner().stopped = true;
    }

    /// Starts the disk again, after a power failure or, without a seed, after the death of the
    /// process. Files that were open must have been dropped, because their disk has been stopped.
    pub(crate) fn come_up(&self, power_lost: Option<u64>) {
        let note = self.inner().note.clone();
        let note = note.map_or(0, |note| note());
        let mut inner = self.inner();
        assert!(inner.stopped, "nobody has stopped it");
        inner.stopped = false;
        inner.twins.clear();
        if let Some(seed) = power_lost {
            let op = Op::Reboot { seed };
            inner.journal.iter_mut().for_each(|journal| journal.push(Step { op: op.clone(), note }));
            inner.state.apply(&op).expect("it always comes up");
        }
    }

    /// Calls `fault` before every operation.
    pub(crate) fn fault(&self, fault: impl Fn(&Op) -> io::Result<()> + Send + Sync + 'static) {
        self.inner().fault = Some(Arc::new(fault));
    }

    /// Makes each read fail whose result would contain these bytes.
    pub(crate) fn fail_reads_of(&self, bytes: &[u8]) {
        self.inner().unreadable = Some(bytes.to_vec());
    }

    /// Removes the fault and the limit.
    pub(crate) fn heal(&self) {
        let mut inner = self.inner();
        (inner.fault, inner.capacity) = (None, None);
    }

    /// Limits the bytes that fit on the disk. A write that exceeds the limit is done in part.
    pub(crate) fn limit(&self, capacity: u64) {
        self.inner().capacity = Some(capacity);
    }

    /// Returns the bytes of all files.
    pub(crate) fn used(&self) -> u64 {
        self.inner().state.used()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    fn act(&self, op: Op) -> io::Result<u64> {
        let (fault, note) = {
            let inner = self.inner();
            inner.runs()?;
            (inner.fault.clone(), inner.note.clone())
        };
        // Called without the lock, because both may take other locks, or wait.
        let note = note.map_or(0, |note| note());
        let fault = fault.map_or(Ok(()), |fault| fault(&op));
        let mut inner = self.inner();
        inner.runs()?;
        if let Err(error) = fault {
            if let Op::Sync { file } = op {
                inner.state.content(file).unsynced.clear();
            }
            return Err(error);
        }
        if let (Some(capacity), Op::Write { file, offset, bytes }) = (inner.capacity, &op) {
            let len = inner.state.files[file].bytes.len() as u64;
            let grows = (offset + bytes.len() as u64).saturating_sub(len);
            let free = capacity.saturating_sub(inner.state.used());
            if grows > free {
                let part = bytes[..bytes.len() - (grows - free).min(bytes.len() as u64) as usize].to_vec();
                let part = Op::Write { file: *file, offset: *offset, bytes: part };
                inner.journal.iter_mut().for_each(|journal| journal.push(Step { op: part.clone(), note }));
                inner.apply(&part)?;
                return Err(ErrorKind::StorageFull.into());
            }
        }
        let outcome = inner.apply(&op)?;
        inner.journal.iter_mut().for_each(|journal| journal.push(Step { op: op.clone(), note }));
        Ok(outcome)
    }
}

impl Inner {
    fn runs(&self) -> io::Result<()> {
        if self.stopped { Err(io::Error::other("the machine has stopped")) } else { Ok(()) }
    }

    /// Applies an operation to the contents and to the file's twin.
    fn apply(&mut self, op: &Op) -> io::Result<u64> {
        let outcome = self.state.apply(op)?;
        match op {
            Op::Write { file, offset, bytes } => {
                if let Some(twin) = self.twins.get(file) {
                    twin.write_at(*offset, &mut [IoSlice::new(bytes)])?;
                }
            }
            Op::SetLen { file, len } => self.twins.get(file).map_or(Ok(()), |twin| twin.set_len(*len))?,
            // A file without a name gets no more appends, but its mapping remains.
            Op::Remove { .. } | Op::Rename { .. } if !self.twins.is_empty() => {
                let named: BTreeSet<u64> = self.state.numbers();
                self.twins.retain(|number, _| named.contains(number));
            }
            _ => {}
        }
        Ok(outcome)
    }

    /// Maps the first `len` bytes of a file.
    fn map(&mut self, number: u64, len: u64) -> Option<MappedFile> {
        if !self.shows {
            return None;
        }
        if !self.twins.contains_key(&number) {
            let file = twin();
            file.write_at(0, &mut [IoSlice::new(&self.state.files[&number].bytes)]).ok()?;
            self.twins.insert(number, file);
        }
        self.twins[&number].map(len)
    }
}

/// Creates a file without a name, in memory if the machine allows that.
fn twin() -> Box<dyn File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("todana-twin-{}-{number}", std::process::id()));
        match SystemDisk.create(&path) {
            Ok(file) => {
                SystemDisk.remove(&path).expect("it has just been made");
                return file;
            }
            // Left by a process with the same number that was killed at that moment.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

impl Disk for CrashDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let number = self.act(Op::Create { path: path.to_path_buf() })?;
        Ok(Box::new(CrashFile { disk: self.clone(), number, writable: true }))
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        let inner = self.inner();
        inner.runs()?;
        match inner.state.names.get(path) {
            Some(Node::File(number)) => {
                Ok(Box::new(CrashFile { disk: self.clone(), number: *number, writable }))
            }
            Some(Node::Directory) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let inner = self.inner();
        inner.runs()?;
        inner.state.directory(directory)?;
        let here = inner.state.names.keys().filter(|path| path.parent() == Some(directory));
        Ok(here.map(|path| path.file_name().unwrap().to_str().unwrap().to_string()).collect())
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        let is_there = {
            let inner = self.inner();
            inner.runs()?;
            inner.state.directory(directory).is_ok()
        };
        if is_there {
            return Ok(());
        }
        self.act(Op::MakeDirectory { path: directory.to_path_buf() }).map(|_| ())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.act(Op::Rename { from: from.to_path_buf(), to: to.to_path_buf() }).map(|_| ())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.act(Op::Remove { path: path.to_path_buf() }).map(|_| ())
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.act(Op::SyncDirectory { path: directory.to_path_buf() }).map(|_| ())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        // The creation of the empty file matters to no test, so it is not an operation.
        let mut inner = self.inner();
        inner.runs()?;
        if !inner.locked.insert(path.to_path_buf()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Locked { disk: self.clone(), path: path.to_path_buf() }))
    }
}

struct Locked {
    disk: CrashDisk,
    path: PathBuf,
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.disk.inner().locked.remove(&self.path);
    }
}

struct CrashFile {
    disk: CrashDisk,
    number: u64,
    writable: bool,
}

impl CrashFile {
    fn act(&self, op: Op) -> io::Result<()> {
        if !self.writable {
            return Err(ErrorKind::PermissionDenied.into());
        }
        self.disk.act(op).map(|_| ())
    }
}

impl File for CrashFile {
    fn len(&self) -> io::Result<u64> {
        let inner = self.disk.inner();
        inner.runs()?;
        Ok(inner.state.files[&self.number].bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let inner = self.disk.inner();
        inner.runs()?;
        let bytes = &inner.state.files[&self.number].bytes;
        let there = bytes.get(offset as usize..).unwrap_or_default();
        let len = there.len().min(into.len());
        if let Some(bytes) = &inner.unreadable
            && there[..len].windows(bytes.len()).any(|window| window == bytes)
        {
            return Err(io::Error::other("a sector cannot be read"));
        }
        into[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }

    fn write_at(&self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        self.act(Op::Write { file: self.number, offset, bytes })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.act(Op::SetLen { file: self.number, len })
    }

    fn map(&self, len: u64) -> Option<MappedFile> {
        self.disk.inner().map(self.number, len)
    }

    fn share(&self, len: u64) -> Option<Box<dyn SharedMemory>> {
        let free = {
            let inner = self.disk.inner();
            inner.capacity.map(|capacity| capacity.saturating_sub(inner.state.used()))
        };
        if free.is_some_and(|free| free < len) {
            return None;
        }
        self.set_len(len).ok()?;
        Some(Box::new(CrashMemory { disk: self.disk.clone(), file: self.number }))
    }

    fn sync(&self) -> io::Result<()> {
        self.act(Op::Sync { file: self.number })
    }
}

/// Memory that is shared with a file.
struct CrashMemory {
    disk: CrashDisk,
    file: u64,
}

impl SharedMemory for CrashMemory {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let note = self.disk.inner().note.clone();
        let note = note.map_or(0, |note| note());
        let mut inner = self.disk.inner();
        // A process that has died writes nothing, and a file without a name has no reader.
        if inner.stopped || !inner.state.files.contains_key(&self.file) {
            return;
        }
        let op = Op::Write { file: self.file, offset, bytes: bytes.to_vec() };
        inner.apply(&op).expect("it can always be written to");
        inner.journal.iter_mut().for_each(|journal| journal.push(Step { op: op.clone(), note }));
    }
}
