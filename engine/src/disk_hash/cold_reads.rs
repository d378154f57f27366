//! Reads entries that are not in memory, many at once, into buffers of the thread.
//!
//! ```text
//! announce (each place) -> one submission -> view
//! await_read (a place)  -> one submission -> the thread has other work until the read is complete
//!                                         -> view
//! ```
//!
//! The reads bypass the page cache, because a page fault takes several times the processor time of
//! such a read. If the system allows no io_uring, or the file system no direct reads, the page
//! cache reads the places ahead instead.
//!
//! A buffer holds the bytes of its place until another read takes it. The bytes cannot become
//! outdated, because the bytes of a segment never change. A read takes a buffer that nobody needs.
//! If there is none, an awaited read takes the oldest announced one, and other reads are left to
//! the page cache.

use super::segment::Segment;
use crate::raw::{CompletedRead, FileRing, READ_BUFFERS, READ_LEN, ReadSignal, SYSTEM_PAGE};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::RecordRead;

/// The most places that are worth starting at once.
pub(crate) const READS_MAX: usize = READ_BUFFERS / 2;
/// One of this number of places is also read into the page cache, so that places that are read
/// often get there.
const ADMISSION: u64 = 64;
/// The number of complete reads for which a thread waits at once. With fewer, it wakes more often;
/// with more, fewer reads are under way meanwhile.
const WAIT: usize = 16;
/// The number of later requests for reads after which a buffer is free although nobody has viewed
/// it: the announced record was not needed, or its client has left.
const NEED_LEN: u64 = 16 * READ_BUFFERS as u64;
const PAGE: u64 = SYSTEM_PAGE as u64;

/// True if the system does not allow or support io_uring.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// The page at which a read begins: the ID of its segment, and the offset.
type PlaceId = (u64, u64);

/// Returns the buffer of the read with this number. Numbers ascend.
fn buffer_of(number: u64) -> usize {
    (number % READ_BUFFERS as u64) as usize
}

/// The use of a buffer in the near future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferNeed {
    /// It was viewed.
    Nobody,
    /// A request for it was announced.
    Announced,
    /// A request waits for it, and the thread has other work meanwhile.
    Awaited,
}

/// The contents of a buffer.
#[derive(Clone, Copy)]
struct ReadPlace {
    id: PlaceId,
    /// The number of bytes that it holds, or will hold.
    len: usize,
    /// The number of the read; `buffer_of` returns its buffer.
    number: u64,
    need: BufferNeed,
    /// The number of requests for reads up to this one.
    requested: u64,
    has_failed: bool,
}

/// The ring of a thread, and the contents of its buffers.
struct ThreadReads {
    ring: FileRing,
    /// The process that created the ring. A child of a fork must not use it.
    process: u32,
    places: [Option<ReadPlace>; READ_BUFFERS],
    buffers: HashMap<PlaceId, usize>,
    /// The buffer that is reused next.
    next: usize,
    /// The segments whose reads are not submitted. Their files must stay open until then.
    unsubmitted: Vec<Arc<Segment>>,
    /// The number of requests for reads.
    requests: u64,
}

/// The reads of a thread.
#[derive(Default)]
struct ReadState {
    reads: Option<Box<ThreadReads>>,
    /// The number of reads that were added so far.
    added: u64,
    /// Signalled by the ring, in a thread that has other work while it reads.
    signal: Option<ReadSignal>,
    /// The numbers of complete reads that were neither taken nor forgotten. It stays empty without
    /// `signal`.
    completed: Vec<u64>,
    /// The ring has failed since the complete reads were taken.
    has_failed: bool,
}

thread_local! {
    static READS: RefCell<ReadState> = RefCell::default();
}

impl ThreadReads {
    fn new(signal: Option<&ReadSignal>) -> io::Result<Box<ThreadReads>> {
        let mut ring = FileRing::new()?;
        if let Some(signal) = signal {
            ring.signal(signal)?;
        }
        Ok(Box::new(ThreadReads {
            ring,
            process: std::process::id(),
            places: [const { None }; READ_BUFFERS],
            buffers: HashMap::new(),
            next: 0,
            unsubmitted: Vec::new(),
            requests: 0,
        }))
    }

    /// Returns the buffer that holds, or will hold, this number of bytes of a place.
    fn holder(&mut self, id: PlaceId, len: usize) -> Option<(usize, &mut ReadPlace)> {
        let buffer = *self.buffers.get(&id)?;
        let place = self.places[buffer].as_mut().filter(|place| place.len >= len)?;
        Some((buffer, place))
    }

    /// Returns a buffer for a new read.
    fn free_buffer(&self, need: BufferNeed) -> Option<usize> {
        let mut buffers = (self.next..READ_BUFFERS).chain(0..self.next);
        let is_unneeded = |place: &ReadPlace| {
            place.need == BufferNeed::Nobody || self.requests - place.requested > NEED_LEN
        };
        let free = buffers.find(|&buffer| {
            !self.ring.is_busy(buffer) && self.places[buffer].as_ref().is_none_or(is_unneeded)
        });
        if free.is_some() || need == BufferNeed::Announced {
            return free;
        }
        let announced = self.places.iter().enumerate().filter_map(|(buffer, place)| {
            let place = place.filter(|place| place.need == BufferNeed::Announced)?;
            (!self.ring.is_busy(buffer)).then_some((place.number, buffer))
        });
        announced.min().map(|(_, buffer)| buffer)
    }

    /// Adds a read into its buffer, which must not be busy. Returns false if that is not possible
    /// now.
    fn read(&mut self, segment: &Arc<Segment>, file: &File, place: ReadPlace) -> bool {
        let buffer = buffer_of(place.number);
        self.forget(buffer);
        self.next = (buffer + 1) % READ_BUFFERS;
        let len = place.len.next_multiple_of(SYSTEM_PAGE);
        let is_added = self.ring.read(file, place.id.1, len, buffer);
        if is_added {
            self.places[buffer] = Some(place);
            self.buffers.insert(place.id, buffer);
            self.unsubmitted.push(Arc::clone(segment));
        }
        is_added
    }

    /// Forgets the contents of a buffer.
    fn forget(&mut self, buffer: usize) {
        if let Some(place) = self.places[buffer].take()
            // Another buffer may hold more bytes of the same place.
            && self.buffers.get(&place.id) == Some(&buffer)
        {
            self.buffers.remove(&place.id);
        }
    }
}

impl ReadState {
    /// Submits all reads, waits until `wanted` of those under way are complete, and notes all
    /// complete ones. If the ring is of no use any more, drops it.
    fn submit(&mut self, wanted: usize) {
        let Some(reads) = &mut self.reads else { return };
        let outcome = reads.ring.submit(wanted);
        reads.unsubmitted.clear();
        while let Some(CompletedRead { buffer, outcome }) = reads.ring.next_completed() {
            if let Some(place) = &mut reads.places[buffer] {
                // A request for the record reads the place again, and reports the error.
                place.has_failed = outcome.is_err() || outcome.is_ok_and(|read| read < place.len);
                if self.signal.is_some() {
                    self.completed.push(place.number);
                }
            }
        }
        if outcome.is_err() {
            (self.reads, self.has_failed) = (None, true);
        }
    }

    /// Drops the ring of the parent after a fork. Its memory is not mapped here.
    fn drop_foreign(&mut self) {
        self.reads.take_if(|reads| reads.process != std::process::id());
    }

    /// Creates the ring if there is none. Returns `None` if that is not possible now.
    fn ring(&mut self) -> Option<&mut ThreadReads> {
        self.drop_foreign();
        if self.reads.is_none() && !IS_REFUSED.load(Ordering::Relaxed) {
            match ThreadReads::new(self.signal.as_ref()) {
                Ok(reads) => self.reads = Some(reads),
                Err(error) => {
                    let is_final =
                        matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL));
                    IS_REFUSED.fetch_or(is_final, Ordering::Relaxed);
                }
            }
        }
        self.reads.as_deref_mut()
    }

    /// Adds a read of a place that is not in memory.
    fn read(&mut self, segment: &Arc<Segment>, id: PlaceId, len: usize, need: BufferNeed) -> RecordRead {
        let added = self.added + 1;
        let Some(file) = segment.direct_file() else { return RecordRead::Ready };
        let Some(reads) = self.ring() else { return RecordRead::Ready };
        reads.requests += 1;
        let Some(buffer) = reads.free_buffer(need) else { return RecordRead::Delayed };
        let number = added * READ_BUFFERS as u64 + buffer as u64;
        let place = ReadPlace { id, len, number, need, requested: reads.requests, has_failed: false };
        if !reads.read(segment, file, place) {
            return RecordRead::Delayed;
        }
        self.added = added;
        RecordRead::Started(number)
    }
}

/// Calls `work` with the reads of this thread. Returns `None` if they are in use, which happens if
/// a viewer calls another engine, or if the thread is ending.
fn with_reads<T>(work: impl FnOnce(&mut ReadState) -> T) -> Option<T> {
    READS.try_with(|reads| reads.try_borrow_mut().ok().map(|mut reads| work(&mut reads))).ok().flatten()
}

/// Adds a read of an entry of at most `len` bytes, unless it is in memory, or too long. If all
/// buffers are needed, leaves the read to the page cache.
pub(crate) fn announce(segment: &Arc<Segment>, offset: u64, len: usize) {
    want(segment, offset, len, BufferNeed::Announced, true);
}

/// Does the same for a request that will wait for this read only. With `may_start` false, the read
/// is delayed.
pub(crate) fn await_read(segment: &Arc<Segment>, offset: u64, len: usize, may_start: bool) -> RecordRead {
    want(segment, offset, len, BufferNeed::Awaited, may_start)
}

fn want(segment: &Arc<Segment>, offset: u64, len: usize, need: BufferNeed, may_start: bool) -> RecordRead {
    let start = offset / PAGE * PAGE;
    let end = offset.saturating_add(len as u64).min(segment.flushed.load(Ordering::Acquire));
    if end <= offset || end - start > READ_LEN as u64 {
        return RecordRead::Ready;
    }
    let (id, len) = ((segment.id, start), (end - start) as usize);
    with_reads(|state| {
        if let Some(reads) = &mut state.reads
            && let Some((buffer, place)) = reads.holder(id, len)
        {
            if need == BufferNeed::Awaited {
                place.need = need;
            }
            let number = place.number;
            return if reads.ring.is_busy(buffer) { RecordRead::Started(number) } else { RecordRead::Ready };
        }
        if segment.is_resident(start, end) {
            return RecordRead::Ready;
        }
        if !may_start {
            return RecordRead::Delayed;
        }
        let outcome = state.read(segment, id, len, need);
        let is_admitted = match outcome {
            // The system's cache reads all places.
            RecordRead::Ready => true,
            RecordRead::Started(_) => state.added.is_multiple_of(ADMISSION),
            RecordRead::Delayed => false,
        };
        if is_admitted {
            segment.will_need(start, end);
        }
        outcome
    })
    .unwrap_or(RecordRead::Ready)
}

/// The reads that engines have added for this thread
/// ([`Engine::await_read`](todana_core::Engine::await_read)). A thread that has other work uses
/// this to wait for them.
pub struct PendingReads;

impl PendingReads {
    /// Returns a descriptor that becomes readable whenever reads of this thread are complete. It
    /// stays the same as long as the thread runs. It must be requested before the first read.
    pub fn descriptor() -> io::Result<RawFd> {
        let created = with_reads(|state| -> io::Result<_> {
            if state.signal.is_none() {
                state.signal = Some(ReadSignal::new()?);
            }
            Ok(state.signal.as_ref().map(ReadSignal::descriptor))
        });
        created.transpose()?.flatten().ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Returns true if this thread has requested the descriptor.
    pub fn has_descriptor() -> bool {
        with_reads(|state| state.signal.is_some()).unwrap_or(false)
    }

    /// Notes that the request no longer waits for the read with this number. Its buffer is free,
    /// even if it was not viewed.
    pub fn release(number: u64) {
        with_reads(|state| {
            let place = state.reads.as_mut().and_then(|reads| reads.places[buffer_of(number)].as_mut());
            if let Some(place) = place.filter(|place| place.number == number) {
                place.need = BufferNeed::Nobody;
            }
        });
    }

    /// Notes that no request waits for a read.
    pub fn forget_completed() {
        with_reads(|state| {
            state.completed.clear();
            state.has_failed = false;
        });
    }

    /// Starts the reads that were added, and returns the numbers of those that have been completed
    /// since the previous call. Returns `None` if no read is under way, because the system has
    /// failed; a request that needs one then waits for the disk.
    pub fn take_completed() -> Option<Vec<u64>> {
        with_reads(|state| {
            state.submit(0);
            let completed = std::mem::take(&mut state.completed);
            (!std::mem::take(&mut state.has_failed)).then_some(completed)
        })
        .flatten()
    }
}

/// The outcome of a view.
pub(crate) enum ColdView<T> {
    /// This thread has not read the bytes.
    Absent,
    /// The disk has not returned the bytes. They must not be read through a mapping, because that
    /// would end the process.
    Failed,
    Seen(T),
}

/// Calls `see` with the bytes from an offset on, and returns its result. If they are being read,
/// waits for them. If `see` returns `None`, they count as absent.
#[inline]
pub(crate) fn view<T>(segment: &Segment, offset: u64, see: impl FnOnce(&[u8]) -> Option<T>) -> ColdView<T> {
    with_reads(|state| {
        let start = offset / PAGE * PAGE;
        let find = |state: &ReadState| state.reads.as_ref()?.buffers.get(&(segment.id, start)).copied();
        let Some(buffer) = find(state) else { return ColdView::Absent };
        state.drop_foreign();
        while state.reads.as_ref().is_some_and(|reads| reads.ring.is_busy(buffer)) {
            state.submit(WAIT);
        }
        let Some(reads) = &mut state.reads else { return ColdView::Absent };
        let Some(place) = &mut reads.places[buffer] else { return ColdView::Absent };
        place.need = BufferNeed::Nobody;
        if place.has_failed {
            return ColdView::Failed;
        }
        let bytes = reads.ring.bytes(buffer)[..place.len].get((offset - start) as usize..);
        bytes.and_then(see).map_or(ColdView::Absent, ColdView::Seen)
    })
    .unwrap_or(ColdView::Absent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_hash::{DiskHash, DiskHashOptions};
    use std::process::Command;
    use todana_core::{Action, Attributes, DurableEngine, Engine, ErrorKind, Record, Visitor};

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

    fn added_reads() -> u64 {
        with_reads(|state| state.added).unwrap()
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
        for keys in keys.chunks(50) {
            let list: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            hash.prefetch_all(&list);
            assert_values(&hash, keys);
        }
        // Some places were cached by the opening, or lie in one page with those before.
        let added = added_reads();
        assert!(!is_possible || added > u64::from(RECORDS) / 50 / 2, "{added}");
    }

    /// Waits until these reads of the thread are complete.
    fn complete(mut numbers: Vec<u64>) {
        while !numbers.is_empty() {
            let completed = PendingReads::take_completed().expect("the ring works");
            numbers.retain(|number| !completed.contains(number));
        }
    }

    #[test]
    fn complete_reads_are_noted_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        PendingReads::descriptor().unwrap();
        let keys = [1u32, 900, 2000].map(u32::to_be_bytes);
        let started = |key: &[u8; 4]| match hash.await_read(key, true) {
            RecordRead::Started(number) => Some(number),
            _ => None,
        };
        let Some(numbers) = keys.iter().map(started).collect::<Option<Vec<u64>>>() else { return };
        complete(numbers);
        // The reads are complete, so they are not added again.
        let added = added_reads();
        assert!(keys.iter().all(|key| hash.await_read(key, true) == RecordRead::Ready));
        assert_eq!(added_reads(), added);
        assert_values(&hash, &keys);
    }

    #[test]
    fn numbers_of_announced_reads_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        PendingReads::descriptor().unwrap();
        let keys: Vec<[u8; 4]> = (0..100).map(u32::to_be_bytes).collect();
        let list: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        hash.prefetch_all(&list);
        assert_values(&hash, &keys);
        PendingReads::forget_completed();
        assert_eq!(with_reads(|state| state.completed.len()), Some(0));
        if let RecordRead::Started(number) = hash.await_read(&2001u32.to_be_bytes(), true) {
            complete(vec![number]);
        }
    }

    #[test]
    fn awaited_records_keep_their_buffers() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        PendingReads::descriptor().unwrap();
        let keys: Vec<[u8; 4]> = (0..RECORDS).map(u32::to_be_bytes).collect();
        let (mut awaited, mut numbers, mut delayed) = (Vec::new(), Vec::new(), None);
        for key in &keys {
            match hash.await_read(key, true) {
                RecordRead::Started(number) => {
                    awaited.push(*key);
                    numbers.push(number);
                }
                RecordRead::Delayed => {
                    delayed = Some(*key);
                    break;
                }
                RecordRead::Ready => {}
            }
        }
        // Without a ring, no read starts. The places of these records lie in all pages.
        let Some(delayed) = delayed else { return assert!(awaited.is_empty()) };
        complete(numbers);
        // Announced records take no buffer of the awaited ones, and the delayed one waits.
        let list: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let added = added_reads();
        hash.prefetch_all(&list[RECORDS as usize / 2..]);
        assert_eq!((added_reads(), hash.await_read(&delayed, true)), (added, RecordRead::Delayed));
        assert!(awaited.iter().all(|key| hash.await_read(key, true) == RecordRead::Ready));
        assert_values(&hash, &awaited);
        // Now they are viewed, so that their buffers are free.
        assert_eq!(hash.await_read(&delayed, false), RecordRead::Delayed);
        let RecordRead::Started(number) = hash.await_read(&delayed, true) else { panic!("it is cold") };
        complete(vec![number]);
        assert_values(&hash, &[delayed]);
    }

    #[test]
    fn awaited_record_takes_an_announced_buffer() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        let keys: Vec<[u8; 4]> = (0..RECORDS).map(u32::to_be_bytes).collect();
        let list: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        hash.prefetch_all(&list);
        assert_values(&hash, &keys[..1]);
        let is_delayed = |key: &[u8; 4]| hash.await_read(key, true) == RecordRead::Delayed;
        // All buffers are announced and complete, or busy until the next view.
        let last = keys.last().unwrap();
        while is_delayed(last) {
            PendingReads::take_completed().expect("the ring works");
        }
        assert_values(&hash, &keys);
    }

    /// A file that became shorter, as one that the disk cannot read, must not end the process by an
    /// access to its mapping.
    #[test]
    fn failed_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let hash = cold_hash(folder.path(), 0);
        let segment = hash.log.table().0.by_age().swap_remove(0);
        let file = std::fs::OpenOptions::new().write(true).open(&segment.path).unwrap();
        file.set_len(PAGE).unwrap();
        let key = 2001u32.to_be_bytes();
        if !matches!(hash.await_read(&key, true), RecordRead::Started(_)) {
            return;
        }
        let error = hash.view(&key, &mut |_| panic!("no record")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable), "{error}");
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
        hash.prefetch_all(&[&777u32.to_be_bytes()]);
        assert_eq!(hash.await_read(&777u32.to_be_bytes(), true), RecordRead::Ready);
        assert_eq!(added_reads(), 0);
        assert_values(&hash, &[777u32.to_be_bytes()]);
    }
}
