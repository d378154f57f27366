//! Provides a read-only view of a file system. Changes stay in memory and are discarded with the
//! view.
//!
//! ```text
//! file = the first bytes of the file on disk | bytes in memory
//! ```
//!
//! The view allows a database to be opened for reading by the same code that opens it for writing:
//! a torn tail is cut off and recent writes are appended as usual, while nothing on disk changes.
//! Locks are shared, so that several readers are possible.
//!
//! Invariants: nothing is written, created, renamed or removed in the file system below. The files
//! below do not change, because the lock excludes writers.

use super::{Disk, File, MappedFile};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum number of changed bytes of a file. An opening changes few bytes.
const CHANGED_BYTES_MAX: u64 = 1 << 30;

/// A read-only view of a file system.
pub struct ReadOnlyDisk {
    inner: Arc<dyn Disk>,
    names: Mutex<OverlaidNames>,
}

/// The files that were opened or changed, by name.
#[derive(Default)]
struct OverlaidNames {
    /// The files by name; `None` for a file that was removed.
    files: HashMap<PathBuf, Option<Arc<OverlaidFile>>>,
    directories: HashSet<PathBuf>,
}

impl ReadOnlyDisk {
    /// Returns a read-only view of a file system.
    pub fn new(inner: Arc<dyn Disk>) -> ReadOnlyDisk {
        ReadOnlyDisk { inner, names: Mutex::default() }
    }

    fn find(&self, names: &mut OverlaidNames, path: &Path) -> io::Result<Arc<OverlaidFile>> {
        match names.files.get(path) {
            Some(Some(file)) => Ok(Arc::clone(file)),
            Some(None) => Err(ErrorKind::NotFound.into()),
            None => {
                let base = self.inner.open(path, false)?;
                let bytes = OverlaidBytes { kept: base.len()?, tail: Vec::new() };
                let file = Arc::new(OverlaidFile { base: Some(base), bytes: RwLock::new(bytes) });
                names.files.insert(path.to_path_buf(), Some(Arc::clone(&file)));
                Ok(file)
            }
        }
    }
}

impl Disk for ReadOnlyDisk {
    fn is_read_only(&self) -> bool {
        true
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let mut names = self.names.lock();
        match self.find(&mut names, path) {
            Ok(_) => return Err(ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        let file = Arc::new(OverlaidFile { base: None, bytes: RwLock::default() });
        names.files.insert(path.to_path_buf(), Some(Arc::clone(&file)));
        Ok(Box::new(OpenOverlaidFile(file)))
    }

    fn open(&self, path: &Path, _writable: bool) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OpenOverlaidFile(self.find(&mut self.names.lock(), path)?)))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let names = self.names.lock();
        let mut list = match self.inner.list(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound && names.directories.contains(directory) => {
                Vec::new()
            }
            list => list?,
        };
        list.retain(|name| !matches!(names.files.get(&directory.join(name)), Some(None)));
        let changed = names.files.iter().filter(|(_, file)| file.is_some()).map(|(path, _)| path);
        for path in changed.chain(&names.directories).filter(|path| path.parent() == Some(directory)) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !list.iter().any(|known| known == name) {
                list.push(name.to_owned());
            }
        }
        Ok(list)
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        match self.inner.list(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.names.lock().directories.insert(directory.to_path_buf());
                Ok(())
            }
            outcome => outcome.map(drop),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let file = self.find(&mut names, from)?;
        names.files.insert(to.to_path_buf(), Some(file));
        names.files.insert(from.to_path_buf(), None);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        self.find(&mut names, path)?;
        names.files.insert(path.to_path_buf(), None);
        Ok(())
    }

    fn is_link(&self, path: &Path) -> io::Result<bool> {
        self.inner.is_link(path)
    }

    fn sync_directory(&self, _directory: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.inner.lock_shared(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.inner.lock_shared(path)
    }
}

/// A file on disk with its changes.
struct OverlaidFile {
    base: Option<Box<dyn File>>,
    bytes: RwLock<OverlaidBytes>,
}

#[derive(Default)]
struct OverlaidBytes {
    /// The number of bytes at the beginning of the file that are unchanged and are read from the
    /// disk.
    kept: u64,
    /// The bytes that follow the unchanged bytes.
    tail: Vec<u8>,
}

impl OverlaidBytes {
    fn len(&self) -> u64 {
        self.kept + self.tail.len() as u64
    }

    fn resize(&mut self, len: u64) -> io::Result<()> {
        self.kept = self.kept.min(len);
        if len - self.kept > CHANGED_BYTES_MAX {
            return Err(ErrorKind::StorageFull.into());
        }
        self.tail.resize((len - self.kept) as usize, 0);
        Ok(())
    }
}

impl OverlaidFile {
    fn read_base(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.base.as_ref().map_or(Ok(0), |base| base.read_at(offset, into))
    }

    fn write(&self, bytes: &mut OverlaidBytes, offset: u64, piece: &[u8]) -> io::Result<()> {
        // An opening rewrites bytes that may not have reached the disk. If the disk holds the same
        // bytes already, nothing changes.
        let known = usize::try_from(bytes.kept.saturating_sub(offset)).unwrap_or(usize::MAX).min(piece.len());
        let mut there = vec![0; known];
        let is_known = self.read_base(offset, &mut there)? == known && there == piece[..known];
        let (offset, piece) =
            if is_known { (offset + known as u64, &piece[known..]) } else { (offset, piece) };
        if piece.is_empty() {
            return Ok(());
        }
        if offset < bytes.kept {
            if bytes.kept - offset > CHANGED_BYTES_MAX {
                return Err(ErrorKind::StorageFull.into());
            }
            let mut moved = vec![0; (bytes.kept - offset) as usize];
            let got = self.read_base(offset, &mut moved)?;
            moved.truncate(got);
            moved.append(&mut bytes.tail);
            (bytes.kept, bytes.tail) = (offset, moved);
        }
        let end = offset + piece.len() as u64;
        if end > bytes.len() {
            bytes.resize(end)?;
        }
        let at = (offset - bytes.kept) as usize;
        bytes.tail[at..at + piece.len()].copy_from_slice(piece);
        Ok(())
    }
}

/// An open file.
struct OpenOverlaidFile(Arc<OverlaidFile>);

impl File for OpenOverlaidFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.bytes.read().len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.bytes.read();
        let on_disk =
            usize::try_from(bytes.kept.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let read = self.0.read_base(offset, &mut into[..on_disk])?;
        if read < on_disk {
            return Ok(read);
        }
        let at = usize::try_from((offset + read as u64).saturating_sub(bytes.kept)).unwrap_or(usize::MAX);
        let tail = bytes.tail.get(at..).unwrap_or_default();
        let more = tail.len().min(into.len() - read);
        into[read..read + more].copy_from_slice(&tail[..more]);
        Ok(read + more)
    }

    fn write_at(&self, mut offset: u64, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut bytes = self.0.bytes.write();
        for piece in pieces {
            self.0.write(&mut bytes, offset, piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.bytes.write().resize(len)
    }

    fn map(&self, len: u64) -> Option<MappedFile> {
        let base = self.0.base.as_ref()?;
        let bytes = self.0.bytes.read();
        let is_as_on_disk = bytes.tail.is_empty() && base.len().is_ok_and(|len| len == bytes.kept);
        if is_as_on_disk { base.map(len) } else { None }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;
    use proptest::prelude::*;
    use std::fs;

    fn read_all(file: &dyn File) -> Vec<u8> {
        let mut bytes = vec![0; file.len().unwrap() as usize + 7];
        let read = file.read_at(0, &mut bytes).unwrap();
        bytes.truncate(read);
        bytes
    }

    #[test]
    fn names_change_in_memory_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "one").unwrap();
        fs::write(at("b"), "two").unwrap();
        let disk = ReadOnlyDisk::new(Arc::new(SystemDisk));
        assert_eq!(disk.create(&at("a")).err().unwrap().kind(), ErrorKind::AlreadyExists);
        disk.create(&at("c")).unwrap().write_at(0, &mut [IoSlice::new(b"three")]).unwrap();
        disk.remove(&at("a")).unwrap();
        disk.rename(&at("b"), &at("d")).unwrap();
        disk.make_directory(&at("e")).unwrap();
        assert_eq!(disk.open(&at("a"), false).err().unwrap().kind(), ErrorKind::NotFound);
        assert_eq!(disk.remove(&at("a")).unwrap_err().kind(), ErrorKind::NotFound);
        let mut names = disk.list(folder.path()).unwrap();
        names.sort();
        assert_eq!(names, ["c", "d", "e"]);
        assert_eq!(disk.list(&at("e")).unwrap(), Vec::<String>::new());
        assert_eq!(read_all(&*disk.open(&at("c"), true).unwrap()), b"three");
        assert_eq!(read_all(&*disk.open(&at("d"), true).unwrap()), b"two");
        let mut there: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|name| name.unwrap().file_name()).collect();
        there.sort();
        assert_eq!(there, ["a", "b"]);
    }

    proptest! {
        #[test]
        fn bytes_change_as_in_a_file(
            base in proptest::collection::vec(0u8..3, 0..20),
            changes in proptest::collection::vec((0u64..30, proptest::collection::vec(0u8..3, 0..6), any::<bool>()), 0..8),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            fs::write(&path, &base).unwrap();
            let disk = ReadOnlyDisk::new(Arc::new(SystemDisk));
            let file = disk.open(&path, true).unwrap();
            let mut model = base.clone();
            for (at, piece, cuts) in changes {
                if cuts {
                    file.set_len(at).unwrap();
                    model.resize(at as usize, 0);
                } else {
                    let at = at.min(model.len() as u64);
                    file.write_at(at, &mut [IoSlice::new(&piece)]).unwrap();
                    let end = at as usize + piece.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&piece);
                }
                prop_assert_eq!(read_all(&*disk.open(&path, false).unwrap()), &model[..]);
                prop_assert!(file.map(1).is_none_or(|_| model == base));
                let mut some = [9; 4];
                let from = model.len() / 2;
                let read = file.read_at(from as u64, &mut some).unwrap();
                prop_assert_eq!(&some[..read], &model[from..(from + 4).min(model.len())]);
            }
            prop_assert_eq!(fs::read(&path).unwrap(), base);
        }
    }
}
