//! File descriptors: the allowed number, and the share that connections leave to the files of
//! databases.
//!
//! The system assigns the lowest free number, so the next number shows how many are in use.

use std::io;
use std::os::fd::AsRawFd;

/// Connections may not use all descriptors: half of them, within these bounds, are reserved for
/// segments of hashes on disk and update logs, checkpoints, and the admin pages.
const RESERVE_MIN: u64 = 16;
const RESERVE_MAX: u64 = 64;
/// The additional reserve for each database after the first.
const RESERVE_FOR_DATABASE: u64 = 4;

/// The descriptors of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorLimit {
    allowed: u64,
    reserve: u64,
}

impl DescriptorLimit {
    /// Returns the limit for a process with this number of descriptors and databases.
    pub(crate) fn new(allowed: u64, databases: usize) -> DescriptorLimit {
        let further = RESERVE_FOR_DATABASE * (databases as u64).saturating_sub(1);
        DescriptorLimit { allowed, reserve: (allowed / 2).clamp(RESERVE_MIN, RESERVE_MAX) + further }
    }

    /// Returns true if one more connection would use the reserve.
    pub(crate) fn are_scarce(&self) -> bool {
        // `dup` returns the lowest free number. It needs an open descriptor, and the standard
        // streams are always open, if only to /dev/null.
        match rustix::io::dup(io::stdin()) {
            Ok(next) => next.as_raw_fd() as u64 + self.reserve >= self.allowed,
            Err(_) => true,
        }
    }

    /// Fails if not even one connection could be accepted.
    pub(crate) fn suffice(&self) -> io::Result<()> {
        if self.are_scarce() { Err(self.too_few()) } else { Ok(()) }
    }

    /// Returns the error of a server with too few descriptors.
    pub(crate) fn too_few(&self) -> io::Error {
        io::Error::other(format!(
            "open files: the limit of {} is too low for this server; raise it, for example with `ulimit -n 1024`",
            self.allowed
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_half_within_bounds() {
        let reserve = |allowed, databases| DescriptorLimit::new(allowed, databases).reserve;
        assert_eq!([16, 64, 100, 1024].map(|allowed| reserve(allowed, 1)), [16, 32, 50, 64]);
        assert_eq!([2, 11].map(|databases| reserve(1024, databases)), [68, 104]);
    }

    #[test]
    fn descriptors_are_scarce_within_the_reserve() {
        let next = u64::try_from(rustix::io::dup(io::stdin()).unwrap().as_raw_fd()).unwrap();
        // Other tests of this process open and close descriptors at the same time.
        assert!(!DescriptorLimit::new(next + 10_000, 1).are_scarce());
        assert!(DescriptorLimit::new(4, 1).are_scarce());
        let error = DescriptorLimit::new(4, 1).suffice().unwrap_err().to_string();
        assert_eq!(
            error,
            "open files: the limit of 4 is too low for this server; raise it, for example with `ulimit -n 1024`"
        );
    }
}
