//! The machine's file system, with hooks for a test.
#![allow(dead_code)] // Each test uses its part.

use std::io::{self, IoSlice};
use std::path::Path;
use todana_engine::disk::{Disk, File, SharedMemory, SystemDisk};

/// Hooks that run before the operations. The operation fails with the error of its hook. A hook may
/// wait.
pub(crate) trait Sway: Clone + Send + Sync + 'static {
    /// Runs before a file is opened.
    fn opens(&self, _: &Path) {}

    /// Runs before a file is removed.
    fn removes(&self, _: &Path) {}

    /// Runs before a write to a file.
    fn writes(&self, _: &[IoSlice<'_>]) -> io::Result<()> {
        Ok(())
    }

    /// Runs before a sync of a file. Returns false to skip the sync.
    fn syncs(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Runs before a sync of a directory. Returns false to skip the sync.
    fn syncs_directory(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// Runs after a sync of a directory.
    fn has_synced_directory(&self, _: &Path) {}
}

/// The file system with the hooks.
#[derive(Clone, Default)]
pub(crate) struct Swayed<S>(pub(crate) S);

struct SwayedFile<S> {
    file: Box<dyn File>,
    sway: S,
}

impl<S: Sway> Swayed<S> {
    fn file(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(SwayedFile { file, sway: self.0.clone() })
    }
}

impl<S: Sway> File for SwayedFile<S> {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.sway.writes(pieces)?;
        self.file.write_at(offset, pieces)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn share(&self, len: u64) -> Option<Box<dyn SharedMemory>> {
        self.file.share(len)
    }

    fn sync(&self) -> io::Result<()> {
        if self.sway.syncs()? { self.file.sync() } else { Ok(()) }
    }
}

impl<S: Sway> Disk for Swayed<S> {
    fn below(&self) -> Option<&dyn Disk> {
        Some(&SystemDisk)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        SystemDisk.create(path).map(|file| self.file(file))
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        self.0.opens(path);
        SystemDisk.open(path, writable).map(|file| self.file(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.removes(path);
        SystemDisk.remove(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        if self.0.syncs_directory()? {
            SystemDisk.sync_directory(directory)?;
            self.0.has_synced_directory(directory);
        }
        Ok(())
    }
}
