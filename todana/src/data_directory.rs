//! The data directory: opening it brings a database back and keeps it from then on (docs/format/data-directory.md).

use crate::Database;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::update_log::{Identity, LogOptions, Position, Reader, Salvage, Tail, UpdateLog, salvage};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_core::{Error, ErrorKind, Result};

const IDENTITY_LEN: usize = 36;
const MAGIC: &[u8; 8] = b"TODANAID";
const VERSION: u32 = 1;
const LOG: &str = "log";
const CHECKPOINTS: &str = "checkpoints";

/// How a data directory is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataOptions {
    /// The update log.
    pub log: LogOptions,
}

/// An open data directory: locked for this process until it is dropped.
pub struct DataDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    identity: Identity,
    _lock: Box<dyn Send + Sync>,
}

/// What opening a data directory has found.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Entries of the log that were read again.
    pub entries: u64,
    /// Where the log ended, and where it goes on.
    pub end: Position,
    /// What was cut off behind that.
    pub tail: Tail,
    /// How long it took.
    pub took: Duration,
}

/// How far opening has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes of the log that are still to be read.
    pub remaining: u64,
    /// Bytes read.
    pub done: u64,
}

impl DataDirectory {
    /// Opens a directory and locks it, or makes a new one. Fails with `Busy` if another process has it, with `Corrupt` if it
    /// is damaged, with `Unavailable` if it cannot be read or made.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<DataDirectory> {
        for directory in [path.to_path_buf(), path.join(LOG), path.join(CHECKPOINTS)] {
            disk.make_directory(&directory).map_err(|error| cannot("make", &directory, &error))?;
        }
        let lock_path = path.join("lock");
        let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                Error::new(ErrorKind::Busy, format!("{} is in use by another process", path.display()))
            }
            _ => cannot("lock", &lock_path, &error),
        })?;
        // Whatever was made above is there before anything lies in it.
        disk.sync_directory(path).map_err(|error| cannot("sync", path, &error))?;
        let identity = identity(&*disk, path)?;
        let directory = DataDirectory { disk, path: path.to_path_buf(), identity, _lock: lock };
        directory.remove_partial(&directory.path.join(LOG))?;
        directory.remove_partial(&directory.path.join(CHECKPOINTS))?;
        Ok(directory)
    }

    /// Who the database is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Brings back what is kept here into an empty database, and keeps its changes from then on. `progress` is told now and
    /// then. Fails with `Corrupt` if anything is damaged that was on disk, the message naming file and offset; with `Full` if
    /// the memory limit leaves no room for all of it and nothing may be evicted.
    pub fn restore(
        &self,
        database: &Database,
        clock: Arc<dyn Clock>,
        options: &DataOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Opened> {
        const TELL_EVERY: u64 = 1 << 12;
        let began = Instant::now();
        let log = self.path.join(LOG);
        let mut reader = Reader::open(Arc::clone(&self.disk), &log, self.identity, Position(0))?;
        let start = reader.position();
        let mut entries = 0;
        while let Some((_, entry)) = reader.next_entry()? {
            database.replay(&entry.change)?;
            entries += 1;
            if entries % TELL_EVERY == 0 {
                let done = reader.position().0 - start.0;
                progress(Progress { remaining: reader.remaining(), done });
            }
        }
        let (end, tail) = (reader.position(), reader.tail().clone());
        self.cut(&tail)?;
        if let Some((path, offset)) = reader.unsure() {
            write_again(&*self.disk, path, offset).map_err(|error| cannot("write", path, &error))?;
        }
        let openings = reader.openings().saturating_add(1);
        drop(reader);
        let (disk, identity) = (Arc::clone(&self.disk), self.identity);
        let log = UpdateLog::start(disk, &log, identity, openings, end, clock, options.log)?;
        database.attach(log, openings);
        Ok(Opened { entries, end, tail, took: began.elapsed() })
    }

    /// Lists what is damaged in the update log from a position on, and what is lost with it; changes nothing, unless it `repairs`
    /// ([`salvage`]).
    pub fn salvage_log(&self, from: Position, repairs: bool) -> Result<Salvage> {
        salvage(&*self.disk, &self.path.join(LOG), self.identity, from, repairs)
    }

    /// Cuts a torn tail off, for good before anything is written behind it.
    fn cut(&self, tail: &Tail) -> Result<()> {
        let Tail::Torn { path, offset, .. } = tail else { return Ok(()) };
        let cut = || {
            let file = self.disk.open(path, true)?;
            file.set_len(*offset)?;
            file.sync()
        };
        cut().map_err(|error| cannot("cut", path, &error))
    }

    fn remove_partial(&self, directory: &Path) -> Result<()> {
        let names = self.disk.list(directory).map_err(|error| cannot("read", directory, &error))?;
        for name in names.iter().filter(|name| name.ends_with(".partial")) {
            let path = directory.join(name);
            self.disk.remove(&path).map_err(|error| cannot("remove", &path, &error))?;
        }
        Ok(())
    }
}

/// Writes what stands in a file from an offset on once more, and syncs it: the system may have failed to write it, and take it for
/// written since. From then on the log tells that it is on disk.
fn write_again(disk: &dyn Disk, path: &Path, mut offset: u64) -> io::Result<()> {
    let file = disk.open(path, true)?;
    let mut bytes = vec![0; 256 << 10];
    loop {
        let len = file.read_at(offset, &mut bytes)?;
        if len == 0 {
            return file.sync();
        }
        file.write_at(offset, &mut [IoSlice::new(&bytes[..len])])?;
        offset += len as u64;
    }
}

/// Reads the identity, or makes one for a new directory.
fn identity(disk: &dyn Disk, directory: &Path) -> Result<Identity> {
    let path = directory.join("identity");
    let file = match disk.open(&path, false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return new_identity(disk, directory),
        Err(error) => return Err(cannot("read", &path, &error)),
    };
    let mut bytes = [0; IDENTITY_LEN + 1];
    let len = file.read_at(0, &mut bytes).map_err(|error| cannot("read", &path, &error))?;
    decode(&bytes[..len])
        .map_err(|why| Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display())))
}

fn new_identity(disk: &dyn Disk, directory: &Path) -> Result<Identity> {
    // Logs without the identity that they name are not a new directory.
    for part in [LOG, CHECKPOINTS] {
        let path = directory.join(part);
        if !disk.list(&path).map_err(|error| cannot("read", &path, &error))?.is_empty() {
            let message = format!("{} is not empty, but there is no file `identity`", path.display());
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
    }
    // The directory may be new, and so may those above it. Where nothing may be made, nothing was; and some systems cannot sync
    // the directories that lead to a mount.
    for above in directory.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        if let Err(error) = disk.sync_directory(above)
            && !matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::Unsupported
            )
        {
            return Err(cannot("sync", above, &error));
        }
    }
    let random = || RandomState::new().build_hasher().finish();
    let server_id = (random() as u32).max(1);
    let mut database_id = [0; 16];
    database_id[..8].copy_from_slice(&random().to_le_bytes());
    database_id[8..].copy_from_slice(&random().to_le_bytes());
    let identity = Identity { server_id, database_id };
    let (partial, path) = (directory.join("identity.partial"), directory.join("identity"));
    let write = || {
        if let Err(error) = disk.remove(&partial)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let file = disk.create(&partial)?;
        file.write_at(0, &mut [IoSlice::new(&encode(identity))])?;
        file.sync()?;
        disk.rename(&partial, &path)?;
        disk.sync_directory(directory)
    };
    write().map_err(|error| cannot("write", &path, &error))?;
    Ok(identity)
}

fn encode(identity: Identity) -> [u8; IDENTITY_LEN] {
    let mut bytes = [0; IDENTITY_LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&identity.server_id.to_le_bytes());
    bytes[16..32].copy_from_slice(&identity.database_id);
    let crc = crc32c::crc32c(&bytes[..32]);
    bytes[32..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> std::result::Result<Identity, String> {
    let Ok(bytes) = <&[u8; IDENTITY_LEN]>::try_from(bytes) else {
        return Err(format!("the length is not {IDENTITY_LEN}"));
    };
    let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if &bytes[..8] != MAGIC {
        return Err("this is no identity".into());
    }
    if crc32c::crc32c(&bytes[..32]) != four(32) {
        return Err("the checksum differs".into());
    }
    if four(8) != VERSION {
        return Err(format!("format version {}; this program knows version {VERSION}", four(8)));
    }
    Ok(Identity { server_id: four(12), database_id: bytes[16..32].try_into().expect("sixteen bytes") })
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_comes_back_and_no_flipped_bit_goes_unseen() {
        let identity = Identity { server_id: 7, database_id: *b"0123456789abcdef" };
        let bytes = encode(identity);
        assert_eq!(decode(&bytes), Ok(identity));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err());
        }
        assert!(decode(&[&bytes[..], b"x"].concat()).is_err());
    }
}
