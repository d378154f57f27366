//! Maps a file for writing. A write to the mapping costs no system call and survives the death of
//! the process.
//!
//! The blocks of the file are reserved first, and only file systems that write into existing blocks
//! are accepted. On other file systems a full disk would end the process (SIGBUS), while a write
//! call would return an error.
//!
//! Invariant: `ptr` points at `len` bytes of address space that show the file from its beginning,
//! until `drop`.

use crate::disk::SharedMemory;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Writable address space that shows a file from its beginning.
pub(crate) struct FileMemory {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and nothing in it is tied to a thread.
unsafe impl Send for FileMemory {}
// SAFETY: the mapping is only written, through `&mut`, and never read.
unsafe impl Sync for FileMemory {}

impl FileMemory {
    /// Extends an empty file to this length, reserves its blocks and maps it. Fails if a later
    /// write to the mapping could meet a full disk.
    pub(crate) fn new(file: &File, len: usize) -> io::Result<FileMemory> {
        if len == 0 || len > isize::MAX as usize || !overwrites_in_place(file)? {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        // SAFETY: this is a system call on a descriptor that `file` holds open; no memory is
        // passed.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) } != 0 {
            let error = io::Error::last_os_error();
            // A part of the space may be reserved now, and is needed elsewhere.
            let _ = file.set_len(0);
            return Err(error);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address chosen by the kernel touches no existing memory.
        let ptr = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr =
            NonNull::new(ptr.cast::<u8>()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(FileMemory { ptr, len })
    }
}

impl SharedMemory for FileMemory {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let start = usize::try_from(offset).expect("an offset in memory");
        assert!(start <= self.len && bytes.len() <= self.len - start, "a write within the mapping");
        // SAFETY: the range lies in our own mapping (asserted above), whose blocks were reserved
        // when it was created. `bytes` lies elsewhere, because no slice of the mapping is ever
        // handed out.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr.as_ptr().add(start), bytes.len()) }
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        // SAFETY: `ptr` and `len` are those of mmap. The range is unmapped exactly once.
        unsafe {
            libc::munmap(self.ptr.as_ptr().cast(), self.len);
        }
    }
}

/// Returns true if the file system overwrites existing blocks, as ext2 to ext4 and file systems in
/// memory do. Other file systems write to new blocks and need space for them (btrfs, ZFS, bcachefs,
/// F2FS). XFS does so too if a copy shares the blocks (`cp --reflink`).
fn overwrites_in_place(file: &File) -> io::Result<bool> {
    const KINDS: [i64; 2] = [0xef53, 0x0102_1994];
    // SAFETY: a value of all zeros is valid for this structure, which consists of numbers.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `file` holds the descriptor open, and `about` is a structure of the type that the
    // call fills.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &mut about) } != 0 {
        return Err(io::Error::last_os_error());
    }
    #[allow(clippy::unnecessary_cast)] // Has another width on some platforms.
    Ok(KINDS.contains(&(about.f_type as i64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn written_memory_is_the_file() {
        let file = tempfile::tempfile().unwrap();
        let Ok(mut memory) = FileMemory::new(&file, 10_000) else { return };
        memory.write(0, b"first");
        memory.write(9_996, b"last");
        let mut bytes = vec![0; 10_000];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes[..6], &bytes[9_995..]), (&b"first\0"[..], &b"\0last"[..]));
        assert_eq!(file.metadata().unwrap().len(), 10_000);
    }

    #[test]
    #[should_panic(expected = "within the mapping")]
    fn write_beyond_the_end_panics() {
        let file = tempfile::tempfile().unwrap();
        let Ok(mut memory) = FileMemory::new(&file, 100) else { panic!("within the mapping: none here") };
        memory.write(97, b"last");
    }

    #[test]
    fn absurd_length_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        assert!(FileMemory::new(&file, 0).is_err());
        assert!(FileMemory::new(&file, usize::MAX).is_err());
    }
}
