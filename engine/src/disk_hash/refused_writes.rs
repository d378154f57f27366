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
    has_refused: AtomicBool,
    /// The number of attempts that were made while the reserve was spent.
    tries: AtomicU64,
    refused: Mutex<Option<RefusedWrite>>,
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
        let mut first = self.refused.lock();
        let refused = first.get_or_insert_with(|| RefusedWrite { error: error.clone(), len: 0 });
        refused.len = refused.len.max(len as u64);
        self.has_refused.store(true, Ordering::Release);
    }
}

impl DiskHash {
    /// Fails while the database is full, and notes a refused change of `len` bytes. While the
    /// database is full, only removals are accepted.
    #[inline]
    pub(super) fn refuse_if_full(&self, len: usize) -> Result<()> {
        if self.is_full() {
            let error = self.full_error();
            self.log.refused_writes.note(&error, len);
            return Err(error);
        }
        Ok(())
    }

    /// Returns true if there is no disk space, or no slot for another segment of records.
    #[inline]
    fn is_full(&self) -> bool {
        self.log.reserve.is_spent() || self.log.has_few_free_slots.load(Ordering::Relaxed)
    }

    #[cold]
    fn full_error(&self) -> Error {
        let what = match self.log.reserve.is_spent() {
            true => "the disk is full",
            false => "the maximum number of segments is reached",
        };
        let message = format!("{}: {what}; only removals are accepted", self.log.directory.display());
        Error::refused_write(ErrorKind::Full, message)
    }

    /// Returns the reason why the files do not accept every change.
    pub(super) fn refusal_reason(&self) -> Option<Error> {
        if self.is_full() {
            return Some(self.full_error());
        }
        let refused_writes = &self.log.refused_writes;
        if !refused_writes.has_refused.load(Ordering::Acquire) {
            return None;
        }
        refused_writes.refused.lock().as_ref().map(|refused| refused.error.clone())
    }

    /// Tries a write of the length that was refused. Fails if the files still do not accept it.
    pub(super) fn retry_refused(&self) -> Result<()> {
        let refused_writes = &self.log.refused_writes;
        if self.log.reserve.is_spent() {
            let tries = refused_writes.tries.fetch_add(1, Ordering::Relaxed) + 1;
            if !tries.is_multiple_of(TRIES_APART) || !self.log.reserve.hold(self.log.reserve_bytes) {
                return Err(self.full_error());
            }
        }
        if self.is_full() {
            return Err(self.full_error());
        }
        let len = refused_writes.refused.lock().as_ref().map(|refused| refused.len);
        let Some(len) = len else { return Ok(()) };
        self.log.lock().try_room(len)?;
        let mut first = refused_writes.refused.lock();
        if first.as_ref().is_some_and(|refused| refused.len <= len) {
            *first = None;
            refused_writes.has_refused.store(false, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_hash::DiskHashOptions;
    use crate::disk_hash::segment::{SEGMENTS_MAX, SegmentTable};
    use crate::visitor::{Remove, Set};
    use todana_core::{DurableEngine, Engine};

    #[test]
    fn table_has_few_free_slots_before_its_last() {
        let folder = tempfile::tempdir().unwrap();
        let hash = DiskHash::open(folder.path(), DiskHashOptions::default()).unwrap();
        let mut table = SegmentTable::clone(&hash.log.table().0);
        assert_eq!(table.slots.len(), 1);
        table.slots.resize(SEGMENTS_MAX - 65, table.slots[0].clone());
        assert!(!table.has_few_free_slots());
        table.slots.resize(SEGMENTS_MAX - 64, table.slots[0].clone());
        assert!(table.has_few_free_slots());
    }

    /// With all slots in use, compaction could not drop any segment, and no opening succeeded.
    #[test]
    fn last_slots_are_kept_for_removals() {
        let folder = tempfile::tempdir().unwrap();
        let hash = DiskHash::open(folder.path(), DiskHashOptions::default()).unwrap();
        hash.visit(b"crane", &mut Set(b"value")).unwrap();
        hash.log.has_few_free_slots.store(true, Ordering::Relaxed);
        let error = hash.visit(b"heron", &mut Set(b"value")).unwrap_err();
        assert!(
            error.to_string().contains("maximum number of segments is reached; only removals"),
            "{error}"
        );
        assert_eq!(hash.refused_write_error().unwrap().to_string(), error.to_string());
        assert!(hash.retry_refused().is_err());
        hash.visit(b"crane", &mut Remove).unwrap();
        // Each change of the table of segments counts them again.
        hash.log.lock().begin_segment(0).unwrap();
        hash.visit(b"heron", &mut Set(b"value")).unwrap();
        hash.retry_refused().unwrap();
        assert_eq!(hash.refused_write_error(), None);
    }
}
