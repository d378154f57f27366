//! Maps private anonymous memory of the system as a byte slice.
//!
//! Pages cost nothing until they are written. `discard` returns the memory of a range and keeps the
//! addresses. Invariant: `ptr` points at `len` readable and writable bytes until `drop`, and
//! nothing else refers to them, so the borrow rules of the slices are those of the `MemoryMapping`.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// The unit in which memory is counted.
pub(crate) const SYSTEM_PAGE: usize = 4096;

/// A range of private memory.
pub(crate) struct MemoryMapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, like that of a `Box<[u8]>`; nothing in it is tied
// to a thread.
unsafe impl Send for MemoryMapping {}
// SAFETY: the bytes can only be read through `&MemoryMapping`.
unsafe impl Sync for MemoryMapping {}

impl MemoryMapping {
    /// Maps `len` zero bytes. Fails if the system has no more address space or mappings, or does
    /// not commit more memory.
    pub(crate) fn new(len: usize) -> io::Result<MemoryMapping> {
        if len == 0 || len > isize::MAX as usize {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // SAFETY: an anonymous private mapping at an address chosen by the kernel touches no
        // existing memory.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr =
            NonNull::new(ptr.cast::<u8>()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(MemoryMapping { ptr, len })
    }

    /// Returns the bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `ptr` points at `len` initialised bytes (zeroed by the kernel),
        // `len <= isize::MAX`, and `&self` excludes writers.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Returns the bytes for writing.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` excludes all other references.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// Returns a pointer to the beginning of a range, for types that divide a mapping.
    pub(super) fn at(&self, range: Range<usize>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.len, "a range within the mapping");
        // SAFETY: the offset lies within the mapping (asserted above).
        unsafe { self.ptr.add(range.start) }
    }

    /// Requests small pages, even if the system prefers huge pages. The first access to a page then
    /// costs 4 KiB instead of 2 MiB.
    pub(crate) fn use_small_pages(&mut self) {
        // SAFETY: the range is our own mapping, as returned by mmap; the advice changes no byte of
        // it. A kernel without huge pages may ignore it.
        unsafe {
            libc::madvise(self.ptr.as_ptr().cast(), self.len, libc::MADV_NOHUGEPAGE);
        }
    }

    /// Requests huge pages, which avoid most TLB misses of random accesses. The first access to a
    /// page may then cost 2 MiB.
    pub(crate) fn use_huge_pages(&mut self) {
        // SAFETY: as in `use_small_pages`.
        unsafe {
            libc::madvise(self.ptr.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE);
        }
    }

    /// Returns the memory of a range to the system. The range then reads as zeros. `range` must
    /// consist of complete system pages.
    pub(crate) fn discard(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "discard within the mapping");
        assert!(range.start.is_multiple_of(SYSTEM_PAGE) && range.end.is_multiple_of(SYSTEM_PAGE));
        if range.is_empty() {
            return;
        }
        // SAFETY: the range lies within our own private mapping (asserted above); MADV_DONTNEED
        // turns it into zeros, which are valid bytes, and `&mut self` shows that no slice of it
        // exists.
        let outcome = unsafe {
            libc::madvise(self.ptr.as_ptr().add(range.start).cast(), range.len(), libc::MADV_DONTNEED)
        };
        if outcome != 0 {
            // Locked memory cannot be returned. It is filled with zeros, because callers rely on
            // them.
            self.bytes_mut()[range].fill(0);
        }
    }

    /// Prefetches this number of cache lines from `offset` on. Does nothing if `offset` is beyond
    /// the end.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize, lines: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.ptr.as_ptr().wrapping_add(offset).cast::<i8>();
            for line in 0..lines {
                // SAFETY: a prefetch reads nothing architecturally and cannot fault at any address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line)) }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, lines);
    }
}

impl Drop for MemoryMapping {
    fn drop(&mut self) {
        // SAFETY: `ptr` and `len` are those of mmap. The range is unmapped exactly once, and no
        // slice outlives `self`.
        unsafe {
            libc::munmap(self.ptr.as_ptr().cast(), self.len);
        }
    }
}

impl AsRef<[u8]> for MemoryMapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_memory_is_zero_and_writable() {
        let mut mapping = MemoryMapping::new(3 * SYSTEM_PAGE).unwrap();
        assert!(mapping.bytes().iter().all(|&b| b == 0));
        mapping.bytes_mut()[SYSTEM_PAGE - 1..SYSTEM_PAGE + 1].copy_from_slice(b"ab");
        assert_eq!(&mapping.bytes()[SYSTEM_PAGE - 2..SYSTEM_PAGE + 2], b"\0ab\0");
    }

    #[test]
    fn discard_zeroes_its_range_and_nothing_else() {
        let mut mapping = MemoryMapping::new(3 * SYSTEM_PAGE).unwrap();
        mapping.bytes_mut().fill(7);
        mapping.discard(SYSTEM_PAGE..2 * SYSTEM_PAGE);
        let bytes = mapping.bytes();
        assert!(bytes[..SYSTEM_PAGE].iter().all(|&b| b == 7));
        assert!(bytes[SYSTEM_PAGE..2 * SYSTEM_PAGE].iter().all(|&b| b == 0));
        assert!(bytes[2 * SYSTEM_PAGE..].iter().all(|&b| b == 7));
    }

    #[test]
    #[should_panic(expected = "discard within the mapping")]
    fn discard_beyond_the_end_panics() {
        MemoryMapping::new(SYSTEM_PAGE).unwrap().discard(0..2 * SYSTEM_PAGE);
    }

    #[test]
    fn an_empty_or_absurd_mapping_is_an_error() {
        assert!(MemoryMapping::new(0).is_err());
        assert!(MemoryMapping::new(usize::MAX).is_err());
    }

    #[test]
    fn prefetch_anywhere_is_harmless() {
        let mapping = MemoryMapping::new(SYSTEM_PAGE).unwrap();
        mapping.prefetch(0, 16);
        mapping.prefetch(SYSTEM_PAGE - 1, 16);
        mapping.prefetch(usize::MAX, 16);
    }
}
