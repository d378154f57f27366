//! Keeps account of writes that the files refused: the reason, and the space that must be available
//! before the files are known to accept writes again.

use super::DiskHash;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana_core::{Error, ErrorKind, Result};

/// While the reserve is spent, one of this number of attempts tries to recreate the reserve. On a
/// full disk each such attempt briefly takes all remaining space.
const TRIES_APART: u64 = 8;

/// The writes that were refused since the files last accepted every write.
#[derive(Default)]
pub(crate) struct RefusedWrites {
    are_there: AtomicBool,
    /// The number of attempts that were made while the reserve was spent.
    tries: AtomicU64,
    first: Mutex<Option<RefusedWrite>>,
}

struct RefusedWrite {
    /// The error of the first refused write.
    error: Error,
    /// The length of the longest refused write.
    len: u64,
}

impl RefusedWrites {
    /// Notes that a change of `len` bytes was refused.
    #[cold]
    pub(super) fn note(&self, error: &Error, len: usize) {
        let mut first = self.first.lock();
        let refused = first.get_or_insert_with(|| RefusedWrite { error: error.clone(), len: 0 });
        refused.len = refused.len.max(len as u64);
        self.are_there.store(true, Ordering::Release);
    }
}

impl DiskHash {
    /// Fails while the disk is full, and notes a refused change of `len` bytes. While the disk is
    /// full, only removals are accepted.
    #[inline]
    pub(super) fn refuse_if_disk_full(&self, len: usize) -> Result<()> {
        if self.log.reserve.is_spent() {
            let error = self.spent();
            self.log.refused_writes.note(&error, len);
            return Err(error);
        }
        Ok(())
    }

    #[cold]
    fn spent(&self) -> Error {
        let message = format!(
            "{}: cannot write to it: the disk is full; only removals are accepted",
            self.log.directory.display()
        );
        Error::refused_write(ErrorKind::Full, message)
    }

    /// Returns the reason why the files do not accept every change.
    pub(super) fn refusal_reason(&self) -> Option<Error> {
        if self.log.reserve.is_spent() {
            return Some(self.spent());
        }
        let refused_writes = &self.log.refused_writes;
        if !refused_writes.are_there.load(Ordering::Acquire) {
            return None;
        }
        refused_writes.first.lock().as_ref().map(|refused| refused.error.clone())
    }

    /// Tries a write of the length that was refused. Fails if the files still do not accept it.
    pub(super) fn retry_refused(&self) -> Result<()> {
        let refused_writes = &self.log.refused_writes;
        if self.log.reserve.is_spent() {
            let tries = refused_writes.tries.fetch_add(1, Ordering::Relaxed) + 1;
            if !tries.is_multiple_of(TRIES_APART) || !self.log.reserve.hold(self.log.reserve_bytes) {
                return Err(self.spent());
            }
        }
        let len = refused_writes.first.lock().as_ref().map(|refused| refused.len);
        let Some(len) = len else { return Ok(()) };
        self.log.lock().try_room(len)?;
        let mut first = refused_writes.first.lock();
        if first.as_ref().is_some_and(|refused| refused.len <= len) {
            *first = None;
            refused_writes.are_there.store(false, Ordering::Release);
        }
        Ok(())
    }
}
