//! Manages the reserve: disk space that is given up when the disk is full, so that an opening and
//! removals still work.
//!
//! ```text
//! DIR/reserve: a fixed sequence of bytes. A write without space removes the file, then is retried
//! ```
//!
//! Invariants: the reserve is either held (the file exists) or spent. While it is spent, only
//! operations that free space may write; the owner of the reserve ensures this
//! ([`Reserve::is_spent`]). The file is read only to recognise it, and is never synced. Not here:
//! when the file is created again (each owner tries regularly), and which operations count as
//! removals.

use crate::disk::{Disk, File, MappedFile, SharedMemory};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The name of the file.
pub const RESERVE: &str = "reserve";

/// The length of one write when the file is created.
const PIECE_LEN: usize = 64 << 10;

/// Disk space in a directory that is given up when the disk is full.
pub struct Reserve {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    len: AtomicU64,
    is_spent: AtomicBool,
    /// The lock that is held while the file is created or removed, because both change the space
    /// that is available to others.
    changing: Mutex<()>,
}

/// Returns true if an operation failed because blocks, inodes or quota are used up.
pub fn is_out_of_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Reserve {
    /// Finds the reserve that an earlier opening has left in a directory. If there is none, the
    /// reserve is spent.
    pub fn find(disk: Arc<dyn Disk>, directory: &Path) -> Arc<Reserve> {
        let path = directory.join(RESERVE);
        let found = if is_foreign(&*disk, &path) { None } else { disk.open(&path, false).ok() };
        let len = found.and_then(|file| file.len().ok()).unwrap_or(0);
        let (len, is_spent) = (AtomicU64::new(len), AtomicBool::new(len == 0));
        Arc::new(Reserve { disk, path, len, is_spent, changing: Mutex::new(()) })
    }

    /// Returns true while the space is given up.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.is_spent.load(Ordering::Acquire)
    }

    /// Returns true if a reserve of `len` bytes is spent, or could only be held in part.
    pub(crate) fn is_reduced(&self, len: u64) -> bool {
        self.is_spent() || (1..len).contains(&self.len())
    }

    /// Creates the file with `len` bytes, or with at least an eighth of that, unless the file
    /// exists. Returns false if there is no space for the file. If the file cannot be created for
    /// another reason, there is no reserve, and no write is refused because of that. With a length
    /// of 0 there is no reserve.
    pub fn hold(&self, len: u64) -> bool {
        let _changing = self.changing.lock();
        if !self.is_spent() && self.len() == len {
            return true;
        }
        if self.disk.is_read_only() {
            self.is_spent.store(false, Ordering::Release);
            return true;
        }
        // Other files may have grown since and never shrink again, as that of a tree does. Then
        // there is less space than before.
        let mut tries = (0..4).map(|halvings| len >> halvings).map(|len| self.create(len).map(|()| len));
        let outcome = tries.find(|outcome| !outcome.as_ref().is_err_and(is_out_of_room));
        self.len.store(outcome.as_ref().map_or(0, |held| *held.as_ref().unwrap_or(&0)), Ordering::Relaxed);
        self.is_spent.store(outcome.is_none(), Ordering::Release);
        outcome.is_some()
    }

    /// Returns the length of the file, or the length that it had when the space was given up.
    /// Returns 0 if the file could not be created.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    fn create(&self, len: u64) -> io::Result<()> {
        if is_foreign(&*self.disk, &self.path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let _ = self.disk.remove(&self.path);
        let created = if len > 0 { self.write(len) } else { Ok(()) };
        if created.is_err() {
            // An incomplete file must not take space that other files need.
            let _ = self.disk.remove(&self.path);
        }
        created
    }

    fn write(&self, len: u64) -> io::Result<()> {
        let file = self.disk.create(&self.path)?;
        let piece = piece();
        let mut written = 0;
        while written < len {
            let rest = (len - written).min(PIECE_LEN as u64);
            file.write_at(written, &mut [IoSlice::new(&piece[..rest as usize])])?;
            written += rest;
        }
        Ok(())
    }

    /// Runs an operation that writes `len` bytes. If it found no space and the reserve may help,
    /// spends the reserve and repeats the operation.
    fn retry<T>(&self, len: u64, mut run: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match run() {
            Err(error)
                if is_out_of_room(&error) && (self.is_spent() || (1..=self.len()).contains(&len.max(1))) =>
            {
                let _changing = self.changing.lock();
                if !self.is_spent.swap(true, Ordering::AcqRel) {
                    let _ = self.disk.remove(&self.path);
                }
                // The operation is repeated even if the reserve was spent already: another thread
                // may just have tried to create the reserve and have taken all space meanwhile.
                run()
            }
            outcome => outcome,
        }
    }
}

/// Returns the bytes of the file. They are not zeros, because some file systems store zeros without
/// using space.
fn piece() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut piece = vec![0; PIECE_LEN];
    for word in piece.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    piece
}

/// Returns true if the file of this name is not a reserve. A reserve begins with its fixed bytes,
/// or with zeros after a power loss.
fn is_foreign(disk: &dyn Disk, path: &Path) -> bool {
    let begin = disk.open(path, false).and_then(|file| {
        let mut bytes = [0; 64];
        let got = file.read_at(0, &mut bytes)?;
        Ok(bytes[..got].to_vec())
    });
    match begin {
        Ok(begin) => !piece().starts_with(&begin) && begin.iter().any(|byte| *byte != 0),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// A file system on which a write may spend the reserve when there is no other space.
#[derive(Clone)]
pub struct ReserveDisk {
    /// The file system below.
    pub disk: Arc<dyn Disk>,
    /// The space that is given up.
    pub reserve: Arc<Reserve>,
}

struct ReserveFile {
    file: Box<dyn File>,
    reserve: Arc<Reserve>,
}

impl ReserveDisk {
    /// Returns the open file in a form whose writes may spend the reserve too.
    pub fn adopt(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(ReserveFile { file, reserve: Arc::clone(&self.reserve) })
    }
}

impl Disk for ReserveDisk {
    fn below(&self) -> Option<&dyn Disk> {
        Some(&*self.disk)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.reserve.retry(0, || self.disk.create(path)).map(|file| self.adopt(file))
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        self.disk.open(path, writable).map(|file| self.adopt(file))
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        self.reserve.retry(0, || self.disk.make_directory(directory))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.reserve.retry(0, || self.disk.rename(from, to))
    }
}

impl File for ReserveFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        // A failed write may have advanced the slices, so each attempt gets a copy.
        self.reserve.retry(len, || self.file.write_at(offset, &mut pieces.to_vec()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.reserve.retry(0, || self.file.set_len(len))
    }

    fn map(&self, len: u64) -> Option<MappedFile> {
        self.file.map(len)
    }

    fn open_direct(&self) -> Option<std::fs::File> {
        self.file.open_direct()
    }

    fn share(&self, len: u64) -> Option<Box<dyn SharedMemory>> {
        self.file.share(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;

    #[test]
    fn reserve_is_found_again_with_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let find = || Reserve::find(Arc::new(SystemDisk), folder.path());
        let reserve = find();
        assert!(reserve.is_spent());
        assert!(reserve.hold(100_000) && !reserve.is_spent());
        let bytes = std::fs::read(folder.path().join(RESERVE)).unwrap();
        assert_eq!(bytes.len(), 100_000);
        assert!(bytes.chunks(512).all(|block| block.iter().any(|byte| *byte != 0)));
        let again = find();
        assert!(!again.is_spent() && again.hold(200_000));
        assert_eq!(std::fs::metadata(folder.path().join(RESERVE)).unwrap().len(), 200_000);
        assert!(again.hold(0) && !again.is_spent());
        assert!(!folder.path().join(RESERVE).exists());
    }

    /// A user's file of this name was once removed to spend it as the reserve.
    #[test]
    fn file_of_the_same_name_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RESERVE);
        std::fs::write(&path, "tables for two").unwrap();
        let reserve = Reserve::find(Arc::new(SystemDisk), folder.path());
        assert!(reserve.hold(100_000) && !reserve.is_spent());
        let full = || Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull));
        assert!(reserve.retry(1, full).is_err() && !reserve.is_spent());
        assert_eq!(std::fs::read(&path).unwrap(), b"tables for two");
        // A power loss may leave the file in this state.
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(reserve.hold(100_000));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 100_000);
    }

    #[test]
    fn write_without_space_spends_the_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::find(Arc::new(SystemDisk), folder.path());
        assert!(reserve.hold(1000));
        let full = || Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull));
        let run = |len, outcome: &dyn Fn(u32) -> io::Result<()>| {
            let mut tries = 0;
            let outcome = reserve.retry(len, || {
                tries += 1;
                outcome(tries)
            });
            (outcome.is_ok(), tries, reserve.is_spent())
        };
        assert_eq!(run(10, &|_| Err(io::ErrorKind::PermissionDenied.into())), (false, 1, false));
        // The operation needs more space than the reserve could supply.
        assert_eq!(run(1001, &|_| full()), (false, 1, false));
        assert_eq!(run(10, &|tries| if tries == 1 { full() } else { Ok(()) }), (true, 2, true));
        assert!(!folder.path().join(RESERVE).exists());
        assert_eq!(run(10, &|_| full()), (false, 2, true));
    }
}
