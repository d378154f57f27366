//! The machine's own file system.

use super::{Disk, File, MappedFile, SharedMemory};
use crate::raw::FileMemory;
use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The machine's own file system. Files are made readable by their owner alone: they hold what users stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(SystemFile(owners_own().create_new(true).read(true).write(true).open(path)?)))
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        use std::os::unix::fs::OpenOptionsExt;
        // A pipe would keep this waiting, and a device may have no end.
        let file = OpenOptions::new().read(true).write(writable).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        Ok(Box::new(SystemFile(file)))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        // A name that is no text is none of ours.
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
        lock(|| Ok((open_lock(path, false)?, false)), fs::File::try_lock, path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        use std::os::unix::fs::OpenOptionsExt;
        let open = || match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path) {
            // A copy without it. A writer makes one, and shall find it locked. It is removed again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => match open_lock(path, true) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Ok((open_lock(path, false)?, false))
                }
                file => Ok((file?, true)),
            },
            file => Ok((file?, false)),
        };
        match lock(open, fs::File::try_lock_shared, path) {
            // There is none, and nobody can make one or write anything else.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(Box::new(())),
            outcome => outcome,
        }
    }
}

fn open_lock(path: &Path, is_new: bool) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    // A link would have the file made wherever it leads.
    let mut options = owners_own();
    options
        .create(true)
        .create_new(is_new)
        .truncate(false)
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}

/// Locks the file that `open` returns, and removes it in the end if it says so.
fn lock(
    open: impl Fn() -> io::Result<(fs::File, bool)>,
    try_lock: fn(&fs::File) -> Result<(), TryLockError>,
    path: &Path,
) -> io::Result<Box<dyn Send + Sync>> {
    loop {
        let (file, is_removed) = open()?;
        match try_lock(&file) {
            Ok(()) if has_name(&file, path)? => {
                let removed = is_removed.then(|| path.to_path_buf());
                return Ok(Box::new(HeldLock::new(file, removed)));
            }
            // Whoever had it has removed it or taken it elsewhere since it was opened: somebody else can lock another file of
            // this name.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Gives the lock up when it is dropped. Closing the file is not enough: a process that another thread forks has the file too, until it
/// begins its program, and would keep the lock meanwhile.
///
/// Only the process that has taken it does so: in the child of a fork, the lock is the parent's, and both have one.
struct HeldLock {
    file: fs::File,
    process: u32,
    /// The file's name, if the file goes with the lock.
    removed: Option<PathBuf>,
}

impl HeldLock {
    fn new(file: fs::File, removed: Option<PathBuf>) -> HeldLock {
        HeldLock { file, process: std::process::id(), removed }
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let _ = self.file.unlock();
        // Unless others read, or somebody writes by now.
        if let Some(path) = &self.removed
            && self.file.try_lock().is_ok()
            && has_name(&self.file, path).is_ok_and(|has_name| has_name)
        {
            let _ = fs::remove_file(path);
        }
        let _ = self.file.unlock();
    }
}

/// Whether this is the file that has this name.
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
        // One writer a file, so that its one place may be moved; the system's gathering write takes no place in std.
        let mut file = &self.0;
        file.seek(SeekFrom::Start(offset))?;
        // Empty pieces at the end would look like a write of nothing.
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

    /// A test that had just closed a database found it "in use by another process": another thread was starting `mkfifo`, and the child
    /// had the lock's file until it began that program.
    #[test]
    fn lock_is_given_up_though_a_forked_process_has_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock =
            HeldLock::new(owners_own().create(true).truncate(false).write(true).open(&path).unwrap(), None);
        lock.file.try_lock().unwrap();
        let forked = lock.file.try_clone().unwrap();
        assert_eq!(SystemDisk.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        SystemDisk.lock(&path).unwrap();
        drop(forked);
    }

    /// A child that ended with its copies of everything gave up the lock of its parent, which went on writing.
    #[test]
    fn child_of_a_fork_leaves_its_parents_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock =
            HeldLock::new(owners_own().create(true).truncate(false).write(true).open(&path).unwrap(), None);
        lock.file.try_lock().unwrap();
        // What a child has: the same open file.
        drop(HeldLock {
            file: lock.file.try_clone().unwrap(),
            process: std::process::id() + 1,
            removed: None,
        });
        assert_eq!(SystemDisk.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        SystemDisk.lock(&path).unwrap();
    }
}
