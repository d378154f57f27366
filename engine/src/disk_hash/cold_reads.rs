//! Reads entries that are not in memory, many at once, into buffers of the thread.
//!
//! ```text
//! want (each place) -> one submission -> view
//! ```
//!
//! The reads bypass the page cache, because a page fault takes several times the processor time of
//! such a read. If the system allows no io_uring, or the file system no direct reads, the page
//! cache reads the places ahead instead.
//!
//! A buffer holds the bytes of its place until another read takes it. The bytes cannot become
//! outdated, because the bytes of a segment never change.

use super::segment::Segment;
use crate::raw::{CompletedRead, FileRing, READ_BUFFERS, READ_LEN, SYSTEM_PAGE};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most places that are worth starting at once.
pub(crate) const READS_MAX: usize = READ_BUFFERS / 2;
/// One of this number of places is also read into the page cache, so that places that are read
/// often get there.
const ADMISSION: u64 = 64;
/// The number of complete reads for which a thread waits at once. With fewer, it wakes more often;
/// with more, fewer reads are under way meanwhile.
const WAIT: usize = 16;
const PAGE: u64 = SYSTEM_PAGE as u64;

/// True if the system has refused an io_uring.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// The page at which a read begins: the ID of its segment, and the offset.
type PlaceId = (u64, u64);

struct ThreadReads {
    ring: FileRing,
    /// The process that created the ring. A child of a fork must not use it.
    process: u32,
    /// The place that each buffer holds or will hold, and the number of its valid bytes.
    places: [Option<(PlaceId, usize)>; READ_BUFFERS],
    buffers: HashMap<PlaceId, usize>,
    /// The buffer that is reused next.
    next: usize,
    /// The segments whose reads are not submitted. Their files must stay open until then.
    unsubmitted: Vec<Arc<Segment>>,
    /// The number of reads that were added so far.
    added: u64,
    /// The number of the last read into each buffer.
    numbers: [u64; READ_BUFFERS],
}

thread_local! {
    static READS: RefCell<Option<Box<ThreadReads>>> = const { RefCell::new(None) };
}

impl ThreadReads {
    fn new() -> Option<Box<ThreadReads>> {
        let Ok(ring) = FileRing::new() else {
            IS_REFUSED.store(true, Ordering::Relaxed);
            return None;
        };
        Some(Box::new(ThreadReads {
            ring,
            process: std::process::id(),
            places: [const { None }; READ_BUFFERS],
            buffers: HashMap::new(),
            next: 0,
            unsubmitted: Vec::new(),
            added: 0,
            numbers: [0; READ_BUFFERS],
        }))
    }

    /// Returns the buffer that holds, or will hold, this number of bytes of a place.
    fn holder(&self, place: PlaceId, len: usize) -> Option<usize> {
        let buffer = *self.buffers.get(&place)?;
        self.places[buffer].is_some_and(|(_, held)| held >= len).then_some(buffer)
    }

    /// Returns the number of the last read before those that are not complete.
    fn completed(&self) -> u64 {
        let busy = (0..READ_BUFFERS).filter(|&buffer| self.ring.is_busy(buffer));
        busy.map(|buffer| self.numbers[buffer] - 1).min().unwrap_or(self.added)
    }

    /// Adds a read. Returns false if all buffers are busy.
    fn read(&mut self, segment: &Arc<Segment>, file: &File, place: PlaceId, len: usize) -> bool {
        let mut buffers = (self.next..READ_BUFFERS).chain(0..self.next);
        let Some(buffer) = buffers.find(|&buffer| !self.ring.is_busy(buffer)) else { return false };
        self.forget(buffer);
        self.next = (buffer + 1) % READ_BUFFERS;
        let is_added = self.ring.read(file, place.1, len.next_multiple_of(SYSTEM_PAGE), buffer);
        if is_added {
            self.places[buffer] = Some((place, len));
            self.buffers.insert(place, buffer);
            self.unsubmitted.push(Arc::clone(segment));
            self.added += 1;
            self.numbers[buffer] = self.added;
        }
        is_added
    }

    /// Forgets what a buffer holds.
    fn forget(&mut self, buffer: usize) {
        if let Some((place, _)) = self.places[buffer].take()
            // Another buffer may hold more bytes of the same place.
            && self.buffers.get(&place) == Some(&buffer)
        {
            self.buffers.remove(&place);
        }
    }

    /// Submits all reads, waits until `wanted` of those under way are complete, and notes all
    /// complete ones. Returns false if the ring is of no use any more.
    fn submit(&mut self, wanted: usize) -> bool {
        let outcome = self.ring.submit(wanted);
        self.unsubmitted.clear();
        while let Some(CompletedRead { buffer, outcome }) = self.ring.next_completed() {
            let len = self.places[buffer].map_or(0, |(_, len)| len);
            if outcome.is_ok_and(|read| read >= len) {
                continue;
            }
            // A request for the record reads the place again, and reports the error.
            self.forget(buffer);
        }
        outcome.is_ok()
    }
}

/// Calls `work` with the reads of this thread. Returns `None` if they are in use, which happens if
/// a viewer calls another engine, or if the thread is ending.
fn with_reads<T>(work: impl FnOnce(&mut Option<Box<ThreadReads>>) -> T) -> Option<T> {
    READS.try_with(|reads| reads.try_borrow_mut().ok().map(|mut reads| work(&mut reads))).ok().flatten()
}

/// Adds a read of an entry of at most `len` bytes, unless it is in memory, or too long. Returns
/// true if the read is not complete.
pub(crate) fn want(segment: &Arc<Segment>, offset: u64, len: usize) -> bool {
    let start = offset / PAGE * PAGE;
    let end = offset.saturating_add(len as u64).min(segment.flushed.load(Ordering::Acquire));
    if end <= offset || end - start > READ_LEN as u64 {
        return false;
    }
    let (place, len) = ((segment.id, start), (end - start) as usize);
    with_reads(|reads| {
        if let Some(buffer) = reads.as_ref().and_then(|reads| reads.holder(place, len)) {
            return reads.as_ref().is_some_and(|reads| reads.ring.is_busy(buffer));
        }
        if segment.is_resident(start, end) {
            return false;
        }
        let mut read = || {
            let file = segment.direct_file().filter(|_| !IS_REFUSED.load(Ordering::Relaxed))?;
            let is_foreign = |reads: &mut Box<ThreadReads>| reads.process != std::process::id();
            reads.take_if(|reads| reads.unsubmitted.is_empty() && is_foreign(reads));
            if reads.is_none() {
                *reads = ThreadReads::new();
            }
            let reads = reads.as_mut()?;
            Some((reads.read(segment, file, place, len), reads.added))
        };
        let (is_added, added) = read().unwrap_or_default();
        // Without a ring, the system's cache reads all places.
        if added.is_multiple_of(ADMISSION) {
            segment.will_need(start, end);
        }
        is_added
    })
    .unwrap_or(false)
}

/// The reads that engines have added for this thread
/// ([`Engine::prefetch_all`](todana_core::Engine::prefetch_all)). A thread that has other work uses
/// this to wait for them; otherwise the first request that needs one of them waits for all.
pub struct PendingReads;

impl PendingReads {
    /// Returns the number of reads that were added so far.
    pub fn added() -> u64 {
        with_reads(|reads| reads.as_ref().map_or(0, |reads| reads.added)).unwrap_or(0)
    }

    /// Starts the reads that were added, and notes the complete ones. Returns a number: all reads
    /// up to the one with this number are complete.
    pub fn completed() -> u64 {
        let completed = with_reads(|reads| {
            reads.take_if(|reads| !reads.submit(0));
            reads.as_ref().map(|reads| reads.completed())
        });
        // Without a ring, no read is under way.
        completed.flatten().unwrap_or(u64::MAX)
    }

    /// Returns a descriptor that becomes readable whenever reads that were started after the first
    /// call are complete. It stays the same as long as the thread runs, unless the system fails.
    pub fn descriptor() -> Option<RawFd> {
        with_reads(|reads| reads.as_mut().and_then(|reads| reads.ring.descriptor())).flatten()
    }
}

/// Calls `see` with the bytes from an offset on. If they are being read, waits for
/// them. Returns `None` if this thread has not read the bytes.
#[inline]
pub(crate) fn view<T>(segment: &Segment, offset: u64, see: impl FnOnce(&[u8]) -> T) -> Option<T> {
    with_reads(|reads| {
        let start = offset / PAGE * PAGE;
        let buffer = *reads.as_ref()?.buffers.get(&(segment.id, start))?;
        while reads.as_ref()?.ring.is_busy(buffer) {
            reads.take_if(|reads| !reads.submit(WAIT));
        }
        let reads = reads.as_ref()?;
        // If the read has failed, the buffer has no place.
        let (_, len) = reads.places[buffer]?;
        Some(see(reads.ring.bytes(buffer)[..len].get((offset - start) as usize..)?))
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_hash::{DiskHash, DiskHashOptions};
    use std::process::Command;
    use todana_core::{Action, Attributes, DurableEngine, Engine, Record, Visitor};

    struct Set(Vec<u8>);

    impl Visitor for Set {
        fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record::new(&self.0, Attributes::default()))
        }
    }

    const RECORDS: u32 = 3000;

    /// Returns the value of a record. Some values cross pages, and some are too long for a buffer.
    fn value(n: u32) -> Vec<u8> {
        let len = if n.is_multiple_of(100) { 9000 } else { n as usize % 700 };
        (0..len).map(|at| (at as u32 ^ n) as u8).collect()
    }

    /// Opens a database whose records are not in memory. `memory_bytes` is the memory it assumes.
    fn cold_hash(folder: &std::path::Path, memory_bytes: u64) -> DiskHash {
        let options = || DiskHashOptions { memory_bytes: Some(memory_bytes), ..DiskHashOptions::default() };
        let hash = DiskHash::open(folder, options()).unwrap();
        for n in 0..RECORDS {
            hash.visit(&n.to_be_bytes(), &mut Set(value(n))).unwrap();
        }
        hash.close().unwrap();
        drop(hash);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            // Without a count, `dd` only drops the file from the cache.
            let source = format!("if={}", path.display());
            let outcome = Command::new("dd").args([&source, "iflag=nocache", "count=0"]).output();
            assert!(outcome.unwrap().status.success());
        }
        DiskHash::open(folder, options()).unwrap()
    }

    fn assert_values(hash: &DiskHash, keys: &[[u8; 4]]) {
        for key in keys {
            let mut found = None;
            hash.view(key, &mut |record| found = Some(record.value.to_vec())).unwrap();
            assert!(found.is_some_and(|found| found == value(u32::from_be_bytes(*key))), "{key:?}");
        }
    }

    #[test]
    fn announced_records_are_read_together() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        let segment = hash.log.table().0.by_age().swap_remove(0);
        let middle = segment.len() / 2 / PAGE * PAGE;
        // Without these, the records are read as always.
        let is_possible = FileRing::new().is_ok()
            && segment.direct_file().is_some()
            && !segment.is_resident(middle, middle + PAGE);
        let keys: Vec<[u8; 4]> = (0..RECORDS).rev().map(u32::to_be_bytes).collect();
        let mut added = 0;
        for keys in keys.chunks(50) {
            let list: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            added += u32::from(hash.prefetch_all(&list));
            assert_values(&hash, keys);
        }
        // Some places were cached by the opening, or lie in one page with those before.
        assert!(!is_possible || added > RECORDS / 50 / 2, "{added}");
    }

    #[test]
    fn complete_reads_are_noted_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        let keys = [1u32, 900, 2000].map(u32::to_be_bytes);
        if !hash.prefetch_all(&keys.each_ref().map(|key| &key[..])) {
            return;
        }
        let added = PendingReads::added();
        while PendingReads::completed() < added {
            std::thread::yield_now();
        }
        // The reads are complete, so they are not added again.
        assert!(!hash.prefetch_all(&keys.each_ref().map(|key| &key[..])));
        assert_eq!(PendingReads::added(), added);
        assert_values(&hash, &keys);
    }

    #[test]
    fn visitors_see_records_that_were_read_ahead() {
        struct Append;
        impl Visitor for Append {
            fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
                assert!(old.is_some_and(|old| old.value == value(777)));
                Action::Remove
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        hash.prefetch_all(&[&777u32.to_be_bytes()]);
        hash.visit(&777u32.to_be_bytes(), &mut Append).unwrap();
        let keys = [5u32, 777, 801].map(u32::to_be_bytes);
        let keys = keys.each_ref().map(|key| &key[..]);
        let new = Record::new(b"new", Attributes::default());
        hash.apply(&keys.map(|key| (key, Action::Put(new)))).unwrap();
        hash.prefetch_all(&keys);
        for key in keys {
            assert!(hash.view(key, &mut |record| assert_eq!(record.value, b"new")).unwrap());
        }
        assert_eq!(hash.status().records, u64::from(RECORDS));
    }

    #[test]
    fn more_announced_records_than_buffers_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        let keys: Vec<[u8; 4]> = (0..RECORDS).map(u32::to_be_bytes).collect();
        let list: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        hash.prefetch_all(&list);
        assert_values(&hash, &keys);
    }

    #[test]
    fn database_within_memory_is_read_through_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 1 << 30);
        assert!(!hash.prefetch_all(&[&777u32.to_be_bytes()]));
        assert_values(&hash, &[777u32.to_be_bytes()]);
    }
}
