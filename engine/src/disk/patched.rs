//! Shows a file with different bytes in one place. Neither the file nor its directory is changed.

use super::{Disk, File};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A change to a file: bytes at an offset, and a new length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePatch {
    /// The offset of the bytes.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The new length of the file, which is at least the end of the bytes.
    pub len: u64,
    /// The length of the file for which the patch was made.
    pub made_for_len: u64,
}

/// A file system on which one file appears patched. All other operations are passed to the file
/// system below.
pub struct PatchedDisk {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    patch: Arc<FilePatch>,
}

impl PatchedDisk {
    /// Patches the file of this name. If the length of the file differs from the length for which
    /// the patch was made, the file has been written to since, and the patch is ignored. The file
    /// cannot be opened for writing.
    pub fn new(disk: Arc<dyn Disk>, path: PathBuf, patch: FilePatch) -> PatchedDisk {
        PatchedDisk { disk, path, patch: Arc::new(patch) }
    }
}

impl Disk for PatchedDisk {
    fn below(&self) -> Option<&dyn Disk> {
        Some(&*self.disk)
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        let is_patched = path == self.path;
        if is_patched && writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let file = self.disk.open(path, writable)?;
        match is_patched && file.len()? == self.patch.made_for_len {
            true => Ok(Box::new(PatchedFile::new(file, Arc::clone(&self.patch)))),
            false => Ok(file),
        }
    }
}

/// An open file with a patch. It is read-only and is never mapped.
pub struct PatchedFile {
    file: Box<dyn File>,
    patch: Arc<FilePatch>,
}

impl PatchedFile {
    /// Applies a patch to a file.
    pub fn new(file: Box<dyn File>, patch: Arc<FilePatch>) -> PatchedFile {
        PatchedFile { file, patch }
    }
}

impl File for PatchedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.patch.len)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let FilePatch { offset: begin, bytes, len, .. } = &*self.patch;
        let there = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let into = &mut into[..there];
        let end = offset + there as u64;
        let patch_end = begin + bytes.len() as u64;
        // Bytes beyond the end of the file are taken from the patch, or read as zeros.
        let got = self.file.read_at(offset, into)?;
        into[got..].fill(0);
        let (from, to) = (offset.max(*begin), end.min(patch_end));
        if from < to {
            let patch = &bytes[(from - begin) as usize..(to - begin) as usize];
            into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(patch);
        }
        Ok(there)
    }

    fn write_at(&self, _: u64, _: &mut [IoSlice<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SystemDisk;
    use std::fs;

    #[test]
    fn patched_file_reads_like_a_written_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let stored: Vec<u8> = (0..50).collect();
        fs::write(&path, &stored).unwrap();
        for (offset, patch_len, len) in
            [(50, 7, 57), (40, 20, 60), (40, 3, 43), (40, 3, 50), (0, 50, 50), (60, 2, 62)]
        {
            let bytes = vec![255; patch_len];
            let mut expected = stored.clone();
            expected.resize(expected.len().max(offset + patch_len), 0);
            expected[offset..offset + patch_len].copy_from_slice(&bytes);
            expected.truncate(len);
            let patch = FilePatch { offset: offset as u64, bytes, len: len as u64, made_for_len: 50 };
            let disk = PatchedDisk::new(Arc::new(SystemDisk), path.clone(), patch);
            let file = disk.open(&path, false).unwrap();
            assert_eq!(file.len().unwrap(), len as u64);
            for at in 0..len + 5 {
                for wanted in [1, 3, 100] {
                    let mut into = vec![9; wanted];
                    let got = file.read_at(at as u64, &mut into).unwrap();
                    let there = &expected[at.min(len)..(at + wanted).min(len).max(at.min(len))];
                    assert_eq!(&into[..got], there, "{patch_len} bytes at {offset}, {wanted} from {at} on");
                }
            }
            assert_eq!(disk.open(&path, true).err().unwrap().kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(fs::read(&path).unwrap(), stored);
    }

    #[test]
    fn patch_is_ignored_after_the_file_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"abcdef").unwrap();
        let patch = FilePatch { offset: 3, bytes: b"xyz".to_vec(), len: 6, made_for_len: 3 };
        let disk = PatchedDisk::new(Arc::new(SystemDisk), path.clone(), patch);
        let mut bytes = [0; 6];
        disk.open(&path, false).unwrap().read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"abcdef");
    }
}
