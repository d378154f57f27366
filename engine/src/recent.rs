//! Keeps the bytes that were last appended to a log in a ring: a file that is mapped for writing,
//! and that is overwritten from its start when it is full.
//!
//! ```text
//! DIR/recent: a ring; the byte of position p lies at offset p % length of the file
//! ```
//!
//! A log collects entries in memory and writes many of them at once. Entries that are not written
//! yet are copied to this ring. The copy costs no system call and survives if the process is
//! killed: the next opening appends the copied entries to the log.
//!
//! Invariants: a byte stays in the ring until the byte one ring length later overwrites it; the
//! ring is never synced, and nothing relies on it after a power loss. Not here: which bytes are
//! complete entries (the checksums of each log decide), and how long they are needed.

use crate::disk::{Disk, File, SharedMemory};
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;

/// The name of the file.
pub const RECENT: &str = "recent";

/// The maximum length of a ring. The ring is read completely.
const LEN_MAX: u64 = 64 << 20;

/// A ring of the bytes that were last appended to a log.
pub struct RecentWrites {
    memory: RingMemory,
    len: u64,
}

enum RingMemory {
    Shared(Box<dyn SharedMemory>),
    /// A file that is written with one system call per write. It is used on file systems without
    /// shared memory.
    File(Box<dyn File>),
}

impl RecentWrites {
    /// Creates the file in a directory, replacing an old one. Returns `None` if that fails.
    pub fn create(disk: &dyn Disk, directory: &Path, len: u64) -> Option<RecentWrites> {
        let (file, len) = new_file(disk, directory, len)?;
        if let Some(memory) = file.share(len) {
            return Some(RecentWrites { memory: RingMemory::Shared(memory), len });
        }
        file.set_len(len).ok()?;
        Some(RecentWrites { memory: RingMemory::File(file), len })
    }

    /// Creates the file only if [`RecentWrites::put`] cannot fail afterwards.
    pub fn create_shared(disk: &dyn Disk, directory: &Path, len: u64) -> Option<RecentWrites> {
        let (file, len) = new_file(disk, directory, len)?;
        match file.share(len) {
            Some(memory) => Some(RecentWrites { memory: RingMemory::Shared(memory), len }),
            None => {
                remove(disk, directory);
                None
            }
        }
    }

    /// Returns the length of the ring.
    #[allow(clippy::len_without_is_empty)] // The length never changes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Writes bytes at a position, over the bytes one ring length before. Returns false if the
    /// bytes are not in the ring afterwards, because there are too many or because the file could
    /// not be written.
    pub fn put(&mut self, position: u64, bytes: &[u8]) -> bool {
        if bytes.len() as u64 > self.len {
            return false;
        }
        let offset = position % self.len;
        let to_end = usize::try_from(self.len - offset).unwrap_or(usize::MAX).min(bytes.len());
        let (first, rest) = bytes.split_at(to_end);
        match &mut self.memory {
            RingMemory::Shared(memory) => {
                memory.write(offset, first);
                if !rest.is_empty() {
                    memory.write(0, rest);
                }
                true
            }
            RingMemory::File(file) => {
                let write = |offset, bytes| file.write_at(offset, &mut [IoSlice::new(bytes)]);
                write(offset, first)
                    .and_then(|()| if rest.is_empty() { Ok(()) } else { write(0, rest) })
                    .is_ok()
            }
        }
    }

    /// Reads the ring that a process has left in a directory: the bytes from a position on, in
    /// order. Returns `None` if there is no ring.
    pub fn read(disk: &dyn Disk, directory: &Path, position: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match disk.open(&directory.join(RECENT), false) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let len = file.len()?;
        if len == 0 || len > LEN_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        let got = file.read_at(0, &mut bytes)?;
        bytes[got..].fill(0);
        bytes.rotate_left((position % len) as usize);
        Ok(Some(bytes))
    }
}

/// Returns true if a process has left a ring in a directory. Fails if that cannot be determined,
/// because a ring must not be ignored for a temporary lack of file descriptors.
pub fn has_recent(disk: &dyn Disk, directory: &Path) -> io::Result<bool> {
    match disk.open(&directory.join(RECENT), false) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the file from a directory. If the file remains, that is harmless, because its entries
/// are no newer than the log.
pub fn remove(disk: &dyn Disk, directory: &Path) {
    let _ = disk.remove(&directory.join(RECENT));
}

fn new_file(disk: &dyn Disk, directory: &Path, len: u64) -> Option<(Box<dyn File>, u64)> {
    let path = directory.join(RECENT);
    // The file is created anew, so that it contains no old bytes and is not shared with a process
    // that still uses the old one.
    let _ = disk.remove(&path);
    let file = disk.create(&path).ok()?;
    Some((file, len.clamp(1, LEN_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn bytes_come_back_from_any_position() {
        let folder = tempfile::tempdir().unwrap();
        for creates in [RecentWrites::create, RecentWrites::create_shared] {
            let Some(mut recent) = creates(&SystemDisk, folder.path(), 4096) else { continue };
            assert!(recent.put(10_000, &[1; 100]) && recent.put(10_100, &[2; 4000]));
            assert!(!recent.put(14_100, &[3; 4097]));
            // The file is read while the ring is still open, as after a kill.
            let bytes = RecentWrites::read(&SystemDisk, folder.path(), 10_004).unwrap().unwrap();
            assert_eq!(bytes, [[1; 96].as_slice(), &[2; 4000]].concat());
            drop(recent);
        }
        remove(&SystemDisk, folder.path());
        assert!(!has_recent(&SystemDisk, folder.path()).unwrap());
        assert_eq!(RecentWrites::read(&SystemDisk, folder.path(), 0).unwrap(), None);
    }

    #[test]
    fn file_without_shared_memory_holds_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = SystemDisk.create(&folder.path().join(RECENT)).unwrap();
        file.set_len(100).unwrap();
        let mut recent = RecentWrites { memory: RingMemory::File(file), len: 100 };
        assert!(recent.put(190, b"across the end"));
        let bytes = RecentWrites::read(&SystemDisk, folder.path(), 190).unwrap().unwrap();
        assert_eq!(&bytes[..14], b"across the end");
    }
}
