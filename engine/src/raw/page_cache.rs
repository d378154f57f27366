//! Asks the system how much of a file is in its cache.

use std::fs::File;
use std::os::fd::AsRawFd;

/// The number of the system call, which is the same on all architectures. The crate `libc` does not
/// have it on all of them.
const CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct CachestatResult {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns the number of pages of a range of a file that are in the system's cache. Returns `None`
/// if the system does not know; the call exists since Linux 6.5.
pub(crate) fn cached_pages(file: &File, offset: u64, len: u64) -> Option<u64> {
    let range = CachestatRange { offset, len };
    let mut stat = CachestatResult::default();
    // SAFETY: the kernel reads `range` and writes `stat`, which have the layout of its structures
    // and live until the call returns. An unknown call only returns an error.
    let outcome = unsafe {
        libc::syscall(
            CACHESTAT,
            libc::c_long::from(file.as_raw_fd()),
            &raw const range,
            &raw mut stat,
            0 as libc::c_long,
        )
    };
    (outcome == 0).then_some(stat.cached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn written_pages_are_counted() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5 * 4096 + 1]).unwrap();
        if let Some(cached) = cached_pages(&file, 4096, 8192) {
            assert_eq!(cached, 2);
            assert_eq!(cached_pages(&file, 100, 4096), Some(2));
            assert_eq!(cached_pages(&file, 6 * 4096, 4096), Some(0));
        }
    }
}
