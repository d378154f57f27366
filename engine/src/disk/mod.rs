//! Defines the operations that an engine needs of a file system as a trait, so that tests can use
//! file systems that fail and crash.
//!
//! The bytes of a file are certain to be on disk only after [`File::sync`], and its name only after
//! [`Disk::sync_directory`].

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
    /// Returns the file system below, which handles all operations that this one does not
    /// implement.
    fn below(&self) -> Option<&dyn Disk> {
        None
    }

    /// Creates a file for reading and appending. Fails with `AlreadyExists` if there is a file of
    /// this name.
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        below(self)?.create(path)
    }

    /// Opens a file for reading and, if `writable`, for appending. Fails for anything but a regular
    /// file, because opening a pipe could block.
    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        below(self)?.open(path, writable)
    }

    /// Returns the names in a directory, in no particular order.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        below(self)?.list(directory)
    }

    /// Creates a directory and its missing parents. Does nothing if the directory exists.
    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        below(self)?.make_directory(directory)
    }

    /// Renames a file or a directory atomically. If the new name exists and is a file or an empty
    /// directory, it is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        below(self)?.rename(from, to)
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()> {
        below(self)?.remove(path)
    }

    /// Removes an empty directory. A file system that cannot do this does nothing.
    fn remove_directory(&self, directory: &Path) -> io::Result<()> {
        below(self)?.remove_directory(directory)
    }

    /// Returns true if this name is a symbolic link, even if the link leads nowhere. Returns false
    /// if there is nothing of this name. File systems without links return false.
    fn is_link(&self, path: &Path) -> io::Result<bool> {
        self.below().map_or(Ok(false), |below| below.is_link(path))
    }

    /// Syncs the names in a directory.
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        below(self)?.sync_directory(directory)
    }

    /// Locks a file for this process. Creates the file if it is missing. Fails with `WouldBlock` if
    /// another process has locked it. If the name refers to another file by then, the attempt is
    /// repeated with that file. The lock ends when the returned value is dropped, or with the
    /// process. A file named `lock` guards its directory.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        below(self)?.lock(path)
    }

    /// Locks a file for sharing with other callers of this method. The lock excludes callers of
    /// [`lock`](Disk::lock). Changes nothing on disk: if the file is missing, its directory is
    /// locked. A file system without shared locks locks the file exclusively.
    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.below().map_or_else(|| self.lock(path), |below| below.lock_shared(path))
    }

    /// Returns true if no operation changes the disk. Databases on such a disk are opened for
    /// reading.
    fn is_read_only(&self) -> bool {
        self.below().is_some_and(Disk::is_read_only)
    }
}

fn below<D: Disk + ?Sized>(disk: &D) -> io::Result<&dyn Disk> {
    disk.below().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Returns an error message for a database whose lock file, at `lock`, could not be locked.
pub fn busy(disk: &dyn Disk, directory: &Path, lock: &Path) -> String {
    let directory = directory.display();
    if disk.is_read_only() {
        return format!(
            "{directory}: is open for writing, in another process or in this one; close it there, or read it through \
             the server that has it"
        );
    }
    // A shared lock is possible only if the current holder of the lock is a reader.
    match disk.lock_shared(lock) {
        Ok(_) => {
            format!("{directory}: is open for reading, in another process or in this one; close it there")
        }
        Err(_) => format!("{directory}: is open in another process, or more than once in this one"),
    }
}

/// An open file.
pub trait File: Send + Sync {
    /// Returns the length.
    fn len(&self) -> io::Result<u64>;

    /// Returns true for a file without bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads bytes at an offset. Returns fewer bytes than requested only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all pieces in sequence at an offset, which must not exceed the length of the file.
    /// After an error any part of the pieces may have been written.
    fn write_at(&self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()>;

    /// Truncates the file to this length, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Maps the first `len` bytes of the file, including bytes that are appended later. Returns
    /// `None` if the file system does not support that. Existing bytes must not be changed while
    /// the mapping exists.
    fn map(&self, len: u64) -> Option<MappedFile> {
        let _ = len;
        None
    }

    /// Opens the file again for reads that bypass the system's cache. Such a read must be aligned
    /// to pages in the file and in memory. Returns `None` if the file system does not support that,
    /// or if the process has few descriptors left.
    fn open_direct(&self) -> Option<std::fs::File> {
        None
    }

    /// Extends an empty file to this length and maps it for writing. Returns `None` if the file
    /// system does not support that.
    fn share(&self, len: u64) -> Option<Box<dyn SharedMemory>> {
        let _ = len;
        None
    }

    /// Syncs the bytes of the file.
    fn sync(&self) -> io::Result<()>;
}

/// A file as memory. Bytes written to it survive the death of the process.
pub trait SharedMemory: Send + Sync {
    /// Changes bytes within the file. Later reads of the file return the new bytes as if a system
    /// call had written them. The bytes are equally not synced.
    fn write(&mut self, offset: u64, bytes: &[u8]);
}
