//! Maps a file as a byte slice, so that a read costs no system call and no copy.
//!
//! This is only for files that grow and whose existing bytes never change: callers must not access
//! bytes beyond the end of the file, and the bytes before the end must not be overwritten or cut
//! off. A disk error ends the process (SIGBUS), while a read call would return an error.
//!
//! Invariant: `ptr` points at `len` bytes of address space that show the file from its beginning,
//! until `drop`.

use super::SYSTEM_PAGE;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Address space that shows a file from its beginning.
pub struct MappedFile {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and nothing in it is tied to a thread.
unsafe impl Send for MappedFile {}
// SAFETY: the bytes of the mapping can only be read.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the first `len` bytes of a file, which may still be shorter. Advises the system that
    /// reads are random, so that the system reads no more than requested.
    pub(crate) fn new(file: &File, len: usize) -> io::Result<MappedFile> {
        if len == 0 || len > isize::MAX as usize {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // SAFETY: a new mapping at an address chosen by the kernel touches no existing memory.
        let ptr = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr =
            NonNull::new(ptr.cast::<u8>()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: the range is our own mapping, as returned by mmap; the advice changes no byte of
        // it.
        unsafe {
            libc::madvise(ptr.as_ptr().cast(), len, libc::MADV_RANDOM);
        }
        Ok(MappedFile { ptr, len })
    }

    /// Returns the length of the mapping.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.len
    }

    /// Returns a range of the bytes of the file, or `None` if the range is beyond the mapping.
    /// `range.end` must not exceed the length of the file: the engine requests only bytes that it
    /// has written to the file or found in it.
    #[inline]
    pub(crate) fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        // SAFETY: the range lies in the mapping, whose pages are readable up to the end of the
        // file. These bytes of the file never change, because the engine only appends, and a lock
        // on the directory excludes other processes of ours.
        Some(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().add(range.start), range.len()) })
    }

    /// Returns the first page of a range and the length from there to the end of the range. Returns
    /// `None` if the range is empty or beyond the mapping.
    fn pages(&self, range: Range<usize>) -> Option<(*mut libc::c_void, usize)> {
        if range.start >= range.end || range.end > self.len {
            return None;
        }
        let start = range.start / SYSTEM_PAGE * SYSTEM_PAGE;
        // SAFETY: the offset lies in our own mapping (compared above).
        let at = unsafe { self.ptr.as_ptr().add(start) };
        Some((at.cast(), range.end - start))
    }

    /// Returns true if a range of at most four pages is in memory, or if the system does not know.
    pub(crate) fn is_resident(&self, range: Range<usize>) -> bool {
        let Some((at, len)) = self.pages(range) else { return true };
        let mut states = [0u8; 4];
        if len > states.len() * SYSTEM_PAGE {
            return true;
        }
        // SAFETY: the range lies in our own mapping and begins at a page (`pages`), and there is a
        // byte for each of its pages.
        let outcome = unsafe { libc::mincore(at, len, states.as_mut_ptr()) };
        outcome != 0 || states[..len.div_ceil(SYSTEM_PAGE)].iter().all(|state| state & 1 != 0)
    }

    /// Requests that the system reads a range of the file, without waiting for it.
    pub(crate) fn will_need(&self, range: Range<usize>) {
        if let Some((at, len)) = self.pages(range) {
            // SAFETY: the range lies in our own mapping and begins at a page (`pages`). The advice
            // changes no byte of it.
            unsafe { libc::madvise(at, len, libc::MADV_WILLNEED) };
        }
    }

    /// Reads a range of the file into memory. Returns false if the disk failed or if the system
    /// cannot report success.
    pub(crate) fn populate(&self, range: Range<usize>) -> bool {
        let Some((at, len)) = self.pages(range.clone()) else { return range.is_empty() };
        // SAFETY: the range lies in our own mapping and begins at a page (`pages`); both calls only
        // read the file.
        unsafe {
            libc::madvise(at, len, libc::MADV_WILLNEED);
            libc::madvise(at, len, libc::MADV_POPULATE_READ) == 0
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: `ptr` and `len` are those of mmap. The range is unmapped exactly once, and no
        // slice outlives `self`.
        unsafe {
            libc::munmap(self.ptr.as_ptr().cast(), self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn appended_bytes_are_visible_in_existing_mapping() {
        let mut file = tempfile::tempfile().unwrap();
        let map = MappedFile::new(&file, 3 * SYSTEM_PAGE).unwrap();
        file.write_all(&[7; 5000]).unwrap();
        assert_eq!(map.get(4990..5000).unwrap(), [7; 10]);
        file.write_all(&[8; 5000]).unwrap();
        assert_eq!(map.get(4999..5002).unwrap(), [7, 8, 8]);
        assert!(map.populate(100..10_000));
        assert_eq!(map.get(10_000..10_000).unwrap(), []);
        assert!(map.get(0..3 * SYSTEM_PAGE + 1).is_none());
    }

    #[test]
    fn range_beyond_the_file_is_not_populated() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"short").unwrap();
        let map = MappedFile::new(&file, 4 * SYSTEM_PAGE).unwrap();
        assert!(map.populate(0..5));
        assert!(!map.populate(0..2 * SYSTEM_PAGE));
        assert!(!map.populate(0..5 * SYSTEM_PAGE));
    }

    #[test]
    fn written_range_is_resident() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5 * SYSTEM_PAGE]).unwrap();
        let map = MappedFile::new(&file, 6 * SYSTEM_PAGE).unwrap();
        assert!(map.is_resident(100..4 * SYSTEM_PAGE));
        map.will_need(100..4 * SYSTEM_PAGE);
        // Nothing has read the page after the end of the file.
        assert!(!map.is_resident(5 * SYSTEM_PAGE..6 * SYSTEM_PAGE));
        assert!(map.is_resident(0..7 * SYSTEM_PAGE));
    }

    #[test]
    fn an_empty_or_absurd_mapping_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        assert!(MappedFile::new(&file, 0).is_err());
        assert!(MappedFile::new(&file, usize::MAX).is_err());
    }
}
