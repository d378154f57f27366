//! Recent writes: the bytes that a log took last, in a file whose memory the process shares with the system.
//!
//! ```text
//! DIR/recent: a ring; the byte of position p lies at offset p % length of the file
//! ```
//!
//! A log gathers entries in memory and hands them to the system many at a time. What it has not handed over yet is copied here, which
//! costs no system call, and is there when the process has been killed: the next opening appends it to the log.
//!
//! Invariants: a byte stays until the ring has come round to it; nothing in here is synced, nor does anything rely on it after the power
//! was lost. Not here: which bytes are whole entries (each log's checksums tell), and until when they are needed.

use crate::disk::{Disk, File, SharedMemory};
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;

/// The file's name.
pub const RECENT: &str = "recent";

/// No ring is longer: it is read as a whole.
const LEN_MAX: u64 = 64 << 20;

/// A ring of the bytes that a log took last.
pub struct RecentWrites {
    memory: RingMemory,
    len: u64,
}

enum RingMemory {
    Shared(Box<dyn SharedMemory>),
    /// Of a file system that has no such memory: a system call for each write.
    File(Box<dyn File>),
}

impl RecentWrites {
    /// Creates the file in a directory, in the place of any that is there. `None` if it cannot be made.
    pub fn create(disk: &dyn Disk, directory: &Path, len: u64) -> Option<RecentWrites> {
        let (file, len) = new_file(disk, directory, len)?;
        if let Some(memory) = file.share(len) {
            return Some(RecentWrites { memory: RingMemory::Shared(memory), len });
        }
        file.set_len(len).ok()?;
        Some(RecentWrites { memory: RingMemory::File(file), len })
    }

    /// The same, but only where [`RecentWrites::put`] cannot fail.
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

    /// Returns how many bytes it holds.
    #[allow(clippy::len_without_is_empty)] // It always holds as many.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Puts bytes at a position, in the place of those that lie a length of the ring before them. Returns false if they are not there
    /// then: they are more than it holds, or the file could not be written.
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

    /// Reads the ring that a process has left in a directory: its bytes from a position on, the first of them first. `None` if there is
    /// none.
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

/// Returns true if a process has left such a file in a directory. Fails where that cannot be known: what is in the file must not be
/// passed over because a descriptor is missing for a moment.
pub fn has_recent(disk: &dyn Disk, directory: &Path) -> io::Result<bool> {
    match disk.open(&directory.join(RECENT), false) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the file from a directory. One that cannot be removed is passed over at the next opening: its entries are no newer than the
/// log's.
pub fn remove(disk: &dyn Disk, directory: &Path) {
    let _ = disk.remove(&directory.join(RECENT));
}

fn new_file(disk: &dyn Disk, directory: &Path, len: u64) -> Option<(Box<dyn File>, u64)> {
    let path = directory.join(RECENT);
    // A file anew: nothing of the old one is in it, and a process that still has that does not meet this one's.
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
            // As a killed process leaves it: nobody has closed anything.
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
