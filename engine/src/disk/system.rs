//! Implements `Disk` for the file system of the machine.

use super::{Disk, File, MappedFile, SharedMemory};
use crate::raw::{FileMemory, descriptors_max};
use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The file system of the machine. New files are readable only by their owner, because they contain
/// users' data.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(SystemFile(owners_own().create_new(true).read(true).write(true).open(path)?)))
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        use std::os::unix::fs::OpenOptionsExt;
        // Opening a pipe could block, and a device may have no end.
        let file = OpenOptions::new().read(true).write(writable).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Box::new(SystemFile(file)))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        // Names that are not UTF-8 cannot be names of our files.
        fs::read_dir(directory)?
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect()
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_directory(&self, directory: &Path) -> io::Result<()> {
        fs::remove_dir(directory)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        fs::File::open(directory)?.sync_all()
    }

    fn is_link(&self, path: &Path) -> io::Result<bool> {
        match fs::symlink_metadata(path) {
            Ok(metadata) => Ok(metadata.is_symlink()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let held = HeldLock::take(|| open_lock(path), fs::File::try_lock, path)?;
        // Readers that found no lock file hold the lock of the directory instead.
        match lock_directory(path, fs::File::try_lock) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(Box::new(held)),
        }
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        use std::os::unix::fs::OpenOptionsExt;
        let open = || OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
        loop {
            match HeldLock::take(open, fs::File::try_lock_shared, path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                outcome => return Ok(Box::new(outcome?)),
            }
            // A copy of a database may have no lock file, and readers must not create one. They
            // lock the directory instead. Every writer tries to lock the directory after it has
            // created the file.
            let held = lock_directory(path, fs::File::try_lock_shared);
            match open() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return held,
                // A writer has created the file since.
                _ => {}
            }
        }
    }
}

/// Locks the directory of a lock file. Does nothing if the file does not guard the directory, or if
/// the file system cannot lock directories.
fn lock_directory(
    path: &Path,
    try_lock: fn(&fs::File) -> Result<(), TryLockError>,
) -> io::Result<Box<dyn Send + Sync>> {
    if !path.ends_with("lock") {
        return Ok(Box::new(()));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match HeldLock::take(|| fs::File::open(directory), try_lock, directory) {
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::WouldBlock => Err(error),
            // Some network file systems cannot lock directories.
            _ => Ok(Box::new(())),
        },
        Ok(held) => Ok(Box::new(held)),
    }
}

fn open_lock(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    // If the path is a symbolic link, the file must not be created at the target of the link.
    let mut options = owners_own();
    options.create(true).truncate(false).read(true).write(true).custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}

/// A locked file. Dropping this value unlocks the file. Closing the file is not enough, because the
/// child of a fork in another thread has the file open too, until the child executes its program.
///
/// In the child of a fork, the lock still belongs to the parent: only the process that took the
/// lock releases it.
struct HeldLock {
    file: fs::File,
    process: u32,
}

impl HeldLock {
    /// Locks the file that `open` returns.
    fn take(
        open: impl Fn() -> io::Result<fs::File>,
        try_lock: fn(&fs::File) -> Result<(), TryLockError>,
        path: &Path,
    ) -> io::Result<HeldLock> {
        loop {
            let file = open()?;
            match try_lock(&file) {
                Ok(()) if has_name(&file, path)? => {
                    return Ok(HeldLock { file, process: std::process::id() });
                }
                // The file was removed or renamed after it was opened, so another process can lock
                // a new file of this name. Try again.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// Returns true if the open file is the one that now has this name.
fn has_name(file: &fs::File, path: &Path) -> io::Result<bool> {
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match fs::metadata(path) {
        Ok(found) => Ok(place(found) == place(file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn owners_own() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

struct SystemFile(fs::File);

impl File for SystemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < into.len() {
            match self.0.read_at(&mut into[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(len) => read += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, offset: u64, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        // The file position may be moved because a file has only one writer. The standard library
        // has no function that writes several pieces at an offset.
        let mut file = &self.0;
        file.seek(SeekFrom::Start(offset))?;
        // Without this, empty pieces at the end would look like a write of zero bytes, which is an
        // error.
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            match file.write_vectored(pieces) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => IoSlice::advance_slices(&mut pieces, len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn map(&self, len: u64) -> Option<MappedFile> {
        MappedFile::new(&self.0, usize::try_from(len).ok()?).ok()
    }

    fn open_direct(&self) -> Option<fs::File> {
        use std::os::unix::fs::OpenOptionsExt;
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
        // The system assigns the lowest free descriptor. The last quarter stays for files and
        // connections that cannot do without one.
        ((file.as_raw_fd() as u64) < descriptors_max() / 4 * 3).then_some(file)
    }

    fn share(&self, len: u64) -> Option<Box<dyn SharedMemory>> {
        let memory = FileMemory::new(&self.0, usize::try_from(len).ok()?).ok()?;
        Some(Box::new(memory))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test that had just closed a database was refused with "in use by another process". Another
    /// thread was starting `mkfifo`, and its child held the lock file until it executed that
    /// program.
    #[test]
    fn lock_is_released_despite_a_forked_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = HeldLock::take(|| open_lock(&path), fs::File::try_lock, &path).unwrap();
        let forked = lock.file.try_clone().unwrap();
        assert_eq!(SystemDisk.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        SystemDisk.lock(&path).unwrap();
        drop(forked);
    }

    /// A forked child that ended released the lock of its parent with its own copies of all values,
    /// although the parent continued to write.
    #[test]
    fn child_of_a_fork_leaves_its_parents_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = HeldLock::take(|| open_lock(&path), fs::File::try_lock, &path).unwrap();
        // A child of a fork has the same open file.
        drop(HeldLock { file: lock.file.try_clone().unwrap(), process: std::process::id() + 1 });
        assert_eq!(SystemDisk.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        SystemDisk.lock(&path).unwrap();
    }
}
