//! Private anonymous memory from the system, as a byte slice.
//!
//! The pages cost nothing until they are written; `discard` gives the memory of a range back while the
//! addresses stay. Always true: `ptr` points at `len` readable and writable bytes until `drop`, and nobody else
//! has them, so the borrow rules of the slices are the borrow rules of the `Mapping`.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// The unit in which the system gives and takes memory, as far as our accounting goes.
pub(crate) const SYSTEM_PAGE: usize = 4096;

/// A range of memory of our own.
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, like that of a `Box<[u8]>`; nothing in it is tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` the bytes can only be read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` zero bytes. Fails when the system has no address space, no mapping left, or commits no more.
    pub(crate) fn new(len: usize) -> io::Result<Mapping> {
        if len == 0 || len > isize::MAX as usize {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
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
        Ok(Mapping { ptr, len })
    }

    /// The bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `ptr` points at `len` initialised (zeroed by the kernel) bytes, `len <= isize::MAX`, and `&self`
        // keeps writers out.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to write.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` keeps everybody else out.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// Where a range begins, for whoever hands out parts of the mapping.
    pub(super) fn at(&self, range: Range<usize>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.len, "a range within the mapping");
        // SAFETY: the offset lies within the mapping (asserted above).
        unsafe { self.ptr.add(range.start) }
    }

    /// Asks that memory comes in system pages only, also where the system prefers huge ones: touching a byte then costs
    /// 4 KiB and not 2 MiB.
    pub(crate) fn use_small_pages(&mut self) {
        // SAFETY: the range is our own mapping, as mmap returned it; the advice changes no byte of it. Where it is not
        // taken (a kernel without huge pages) nothing is lost.
        unsafe {
            libc::madvise(self.ptr.as_ptr().cast(), self.len, libc::MADV_NOHUGEPAGE);
        }
    }

    /// Asks for huge pages where the system has them, which spares the processor most translations of addresses when memory
    /// is touched at random. Touching a byte then may cost 2 MiB.
    pub(crate) fn use_huge_pages(&mut self) {
        // SAFETY: as in `use_small_pages`.
        unsafe {
            libc::madvise(self.ptr.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE);
        }
    }

    /// Gives the memory of a range back; it reads as zeros afterwards. `range` is in whole system pages.
    pub(crate) fn discard(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "discard within the mapping");
        assert!(range.start.is_multiple_of(SYSTEM_PAGE) && range.end.is_multiple_of(SYSTEM_PAGE));
        if range.is_empty() {
            return;
        }
        // SAFETY: the range lies within our own private mapping (asserted above); MADV_DONTNEED turns it into
        // zeros, which are valid bytes, and `&mut self` shows that no slice of it is alive.
        let outcome = unsafe {
            libc::madvise(self.ptr.as_ptr().add(range.start).cast(), range.len(), libc::MADV_DONTNEED)
        };
        if outcome != 0 {
            // Locked memory cannot be given back; callers still rely on zeros.
            self.bytes_mut()[range].fill(0);
        }
    }

    /// Tells the processor that these many cache lines from `offset` on will be read soon. No effect out of bounds.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize, lines: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.ptr.as_ptr().wrapping_add(offset).cast::<i8>();
            for line in 0..lines {
                // SAFETY: a prefetch reads nothing architecturally and cannot fault, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line)) }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, lines);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `ptr` and `len` are what mmap returned, unmapped exactly once, and no slice outlives `self`.
        unsafe {
            libc::munmap(self.ptr.as_ptr().cast(), self.len);
        }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_memory_is_zero_and_keeps_what_is_written() {
        let mut mapping = Mapping::new(3 * SYSTEM_PAGE).unwrap();
        assert!(mapping.bytes().iter().all(|&b| b == 0));
        mapping.bytes_mut()[SYSTEM_PAGE - 1..SYSTEM_PAGE + 1].copy_from_slice(b"ab");
        assert_eq!(&mapping.bytes()[SYSTEM_PAGE - 2..SYSTEM_PAGE + 2], b"\0ab\0");
    }

    #[test]
    fn discard_zeroes_its_range_and_nothing_else() {
        let mut mapping = Mapping::new(3 * SYSTEM_PAGE).unwrap();
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
        Mapping::new(SYSTEM_PAGE).unwrap().discard(0..2 * SYSTEM_PAGE);
    }

    #[test]
    fn an_empty_or_absurd_mapping_is_an_error() {
        assert!(Mapping::new(0).is_err());
        assert!(Mapping::new(usize::MAX).is_err());
    }

    #[test]
    fn prefetch_anywhere_is_harmless() {
        let mapping = Mapping::new(SYSTEM_PAGE).unwrap();
        mapping.prefetch(0, 16);
        mapping.prefetch(SYSTEM_PAGE - 1, 16);
        mapping.prefetch(usize::MAX, 16);
    }
}
