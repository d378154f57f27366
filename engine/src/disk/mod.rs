//! What the database needs of a file system, so that tests can put one underneath that fails and crashes.
//!
//! A file's bytes are on disk for certain only after [`File::sync`], its name only after [`Disk::sync_directory`].

mod patched;
mod read_only;
mod system;

use std::io::{self, IoSlice};
use std::path::Path;

pub use crate::raw::MappedFile;
pub use patched::{FilePatch, PatchedDisk, PatchedFile};
pub use read_only::ReadOnlyDisk;
pub use system::SystemDisk;

/// A file system.
pub trait Disk: Send + Sync {
    /// Returns the file system underneath, to which everything goes that this one does not do itself.
    fn below(&self) -> Option<&dyn Disk> {
        None
    }

    /// Makes a file for reading and appending; fails with `AlreadyExists` if there is one.
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        below(self)?.create(path)
    }

    /// Opens a file for reading and, if `writable`, appending. Fails for what is no regular file: a pipe would keep the caller waiting.
    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        below(self)?.open(path, writable)
    }

    /// The names in a directory, in no order.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        below(self)?.list(directory)
    }

    /// Makes a directory and those above it that are missing; one that is there is left alone.
    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        below(self)?.make_directory(directory)
    }

    /// Gives a file or a directory another name, in one step; a file that has it is replaced, and so is an empty directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        below(self)?.rename(from, to)
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()> {
        below(self)?.remove(path)
    }

    /// Removes an empty directory. A file system that cannot leaves it there.
    fn remove_directory(&self, directory: &Path) -> io::Result<()> {
        below(self)?.remove_directory(directory)
    }

    /// Whether this name is a symbolic link, wherever that leads; false if there is nothing. A file system that has none says so.
    fn is_link(&self, path: &Path) -> io::Result<bool> {
        self.below().map_or(Ok(false), |below| below.is_link(path))
    }

    /// Returns once the names in a directory are on disk.
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        below(self)?.sync_directory(directory)
    }

    /// Locks a file for this process; creates the file if it is missing. Fails with `WouldBlock` if
    /// another process has it. The locked file is the one that has this name at that time. The lock
    /// ends when it is dropped, or with the process. A file named `lock` guards its directory.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        below(self)?.lock(path)
    }

    /// Locks a file together with other callers of this method, which excludes callers of
    /// [`lock`](Disk::lock). Changes nothing on disk: if the file is missing, its directory is locked.
    /// A file system without shared locks locks the file exclusively.
    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.below().map_or_else(|| self.lock(path), |below| below.lock_shared(path))
    }

    /// Returns true if nothing changes on disk, whatever is done: a database on it is opened for reading.
    fn is_read_only(&self) -> bool {
        self.below().is_some_and(Disk::is_read_only)
    }
}

fn below<D: Disk + ?Sized>(disk: &D) -> io::Result<&dyn Disk> {
    disk.below().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Describes the database in a directory whose lock file, at `lock`, could not be locked.
pub fn busy(disk: &dyn Disk, directory: &Path, lock: &Path) -> String {
    let directory = directory.display();
    if disk.is_read_only() {
        return format!(
            "{directory} is open for writing, in another process or in this one: close it there, or read it through \
             the server that has it"
        );
    }
    // Whoever has it lets readers in only if it reads itself.
    match disk.lock_shared(lock) {
        Ok(_) => {
            format!("{directory} is open for reading, in another process or in this one: close it there")
        }
        Err(_) => format!("{directory} is open in another process, or once more in this one"),
    }
}

/// An open file.
pub trait File: Send + Sync {
    /// Its length.
    fn len(&self) -> io::Result<u64>;

    /// True for a file of no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads at an offset; fewer bytes than asked for only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all the pieces, one behind the other, at an offset at or before the end. After an error any part of them
    /// may be there.
    fn write_at(&self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()>;

    /// Cuts or extends it with zeros to this length.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Shows its first `len` bytes in memory, those included that are appended later; `None` if it cannot. Nobody changes what
    /// has been appended while that lasts.
    fn map(&self, len: u64) -> Option<MappedFile> {
        let _ = len;
        None
    }

    /// Gives a file of no bytes this length, and shares its memory with the system; `None` if it cannot.
    fn share(&self, len: u64) -> Option<Box<dyn SharedMemory>> {
        let _ = len;
        None
    }

    /// Returns once its bytes are on disk.
    fn sync(&self) -> io::Result<()>;
}

/// A file's bytes in memory that outlives the process.
pub trait SharedMemory: Send + Sync {
    /// Changes bytes within the file. They are there for whoever reads it next, as if they had been written to it, and as little synced.
    fn write(&mut self, offset: u64, bytes: &[u8]);
}
