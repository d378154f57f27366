//! Wraps an io_uring that reads many places of files at once, past the page cache.
//!
//! A read fills one of the ring's buffers. Invariants: while a buffer is busy, the kernel may write
//! to it, and it is not readable here; the memory of the buffers is freed only if none is busy.
//!
//! Not here: the decision what to read, and what the buffers hold.

use super::SYSTEM_PAGE;
use super::mapping::MemoryMapping;
use io_uring::types::Fd;
use io_uring::{EnterFlags, IoUring, opcode};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The number of buffers, which is the most reads at the same time.
pub(crate) const READ_BUFFERS: usize = 128;
/// The length of a buffer.
pub(crate) const READ_LEN: usize = 2 * SYSTEM_PAGE;
/// The number of attempts to submit reads if the kernel accepts none of them.
const SUBMIT_ATTEMPTS: u32 = 100;

/// A descriptor that becomes readable whenever reads of the rings that signal it are complete.
pub(crate) struct ReadSignal(OwnedFd);

impl ReadSignal {
    pub(crate) fn new() -> io::Result<ReadSignal> {
        // SAFETY: the call refers to no memory.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and belongs to nothing else.
        Ok(ReadSignal(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An io_uring for reads of files. Only the thread that created it may use it, and no child of a
/// fork.
pub(crate) struct FileRing {
    ring: IoUring,
    memory: ManuallyDrop<MemoryMapping>,
    is_busy: [bool; READ_BUFFERS],
    /// The number of reads that the kernel has accepted and that are not complete.
    in_flight: usize,
}

/// A read that is complete: its buffer, and the number of bytes read.
pub(crate) struct CompletedRead {
    pub(crate) buffer: usize,
    pub(crate) outcome: io::Result<usize>,
}

impl FileRing {
    /// Creates a ring for this thread. Fails if the system does not support or allow it.
    pub(crate) fn new() -> io::Result<FileRing> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .dontfork()
            .build(READ_BUFFERS as u32)?;
        let mut memory = MemoryMapping::new(READ_BUFFERS * READ_LEN)?;
        memory.use_small_pages();
        Ok(FileRing { ring, memory: ManuallyDrop::new(memory), is_busy: [false; READ_BUFFERS], in_flight: 0 })
    }

    /// Returns true if the kernel may write to a buffer.
    pub(crate) fn is_busy(&self, buffer: usize) -> bool {
        self.is_busy[buffer]
    }

    /// Makes the ring signal this descriptor whenever reads are complete. It must be called once,
    /// before the first read.
    pub(crate) fn signal(&mut self, signal: &ReadSignal) -> io::Result<()> {
        // A poll of the ring itself is not notified of reads, because they are only completed in
        // `submit` (DEFER_TASKRUN).
        self.ring.submitter().register_eventfd(signal.descriptor())
    }

    /// Returns the bytes of a buffer that is not busy.
    pub(crate) fn bytes(&self, buffer: usize) -> &[u8] {
        assert!(!self.is_busy[buffer], "a buffer whose read is complete");
        let start = buffer * READ_LEN;
        let place = self.memory.at(start..start + READ_LEN);
        // SAFETY: the range lies in the mapping (asserted by `at`), which is initialised. The
        // kernel has no read for this buffer (asserted above), and `&self` excludes a new one.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), READ_LEN) }
    }

    /// Adds a read of at most [`READ_LEN`] bytes into a buffer that is not busy. The file must stay
    /// open until [`submit`](FileRing::submit) has returned. Returns false if there is no space for
    /// the read.
    pub(crate) fn read(&mut self, file: impl AsFd, offset: u64, len: usize, buffer: usize) -> bool {
        assert!(!self.is_busy[buffer] && len <= READ_LEN, "a free buffer, and a read that fits");
        let start = buffer * READ_LEN;
        let place = self.memory.at(start..start + len);
        let entry = opcode::Read::new(Fd(file.as_fd().as_raw_fd()), place.as_ptr(), len as u32)
            .offset(offset)
            .build()
            .user_data(buffer as u64);
        // SAFETY: the range lies in the mapping (asserted by `at`), which is freed only if no read
        // is under way. The buffer is busy until the read is complete, so nothing else uses it.
        self.is_busy[buffer] = unsafe { self.ring.submission().push(&entry) }.is_ok();
        self.is_busy[buffer]
    }

    /// Submits all reads, and waits until `wanted` of the reads under way are complete. After an
    /// error, some reads may not have been submitted; the ring is of no use then.
    pub(crate) fn submit(&mut self, wanted: usize) -> io::Result<()> {
        for _ in 0..SUBMIT_ATTEMPTS {
            let queue = self.ring.submission();
            let (queued, has_work) = (queue.len(), queue.taskrun() || queue.cq_overflow());
            drop(queue);
            let wanted = wanted.min(self.in_flight + queued) as u32;
            if queued == 0 && wanted == 0 && !has_work {
                // The kernel has nothing to do, so no system call is needed.
                return Ok(());
            }
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: the number of entries is that of the queue, and there is no further argument.
            let outcome =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued as u32, wanted, flags, None) };
            let left = self.ring.submission().len();
            self.in_flight += queued - left;
            match outcome {
                // Since Linux 6.13, one call completes at most 20 reads, and the descriptor of
                // `signal` does not become readable for the others.
                Ok(_) if left == 0 && !self.ring.submission().taskrun() => return Ok(()),
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    // The kernel has no memory, no space for further completions, or a signal has
                    // ended the wait.
                    Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => {}
                    _ => return Err(error),
                },
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Returns the next complete read, whose buffer is not busy any more.
    pub(crate) fn next_completed(&mut self) -> Option<CompletedRead> {
        let completion = self.ring.completion().next()?;
        let buffer = completion.user_data() as usize;
        self.is_busy[buffer] = false;
        self.in_flight -= 1;
        let outcome = usize::try_from(completion.result());
        Some(CompletedRead {
            buffer,
            outcome: outcome.map_err(|_| io::Error::from_raw_os_error(-completion.result())),
        })
    }
}

impl Drop for FileRing {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            let flags = EnterFlags::GETEVENTS.bits();
            // Reads that were never submitted must not start now. The kernel knows nothing of them.
            // SAFETY: no entry is submitted, and there is no further argument.
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, flags, None) } {
                Ok(_) => while self.next_completed().is_some() {},
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // The kernel may still write to the memory, so it is never freed.
                Err(_) => return,
            }
        }
        // SAFETY: the value is dropped once, and not used afterwards. No read is under way.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn reads_fill_their_buffers_in_any_order() {
        // Some containers do not allow rings.
        let Ok(mut ring) = FileRing::new() else { return };
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> =
            (0..READ_LEN * READ_BUFFERS + 100).map(|at| ((at / 7) ^ (at >> 9)) as u8).collect();
        file.write_all(&bytes).unwrap();
        for round in 0..3 {
            for buffer in 0..READ_BUFFERS {
                let place = (buffer * 31 + round) % READ_BUFFERS;
                assert!(ring.read(&file, (place * READ_LEN + 100) as u64, READ_LEN, buffer));
            }
            ring.submit(1).unwrap();
            let mut count = 0;
            while count < READ_BUFFERS {
                while let Some(CompletedRead { buffer, outcome }) = ring.next_completed() {
                    assert_eq!(outcome.unwrap(), READ_LEN);
                    let start = (buffer * 31 + round) % READ_BUFFERS * READ_LEN + 100;
                    assert!(ring.bytes(buffer) == &bytes[start..start + READ_LEN]);
                    count += 1;
                }
                ring.submit(1).unwrap();
            }
            assert_eq!(count, READ_BUFFERS);
        }
    }

    #[test]
    fn descriptor_becomes_readable_when_reads_are_complete() {
        let Ok(mut ring) = FileRing::new() else { return };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5000]).unwrap();
        let signal = ReadSignal::new().unwrap();
        ring.signal(&signal).unwrap();
        let mut poll = libc::pollfd { fd: signal.descriptor(), events: libc::POLLIN, revents: 0 };
        assert!(ring.read(&file, 0, READ_LEN, 0));
        ring.submit(0).unwrap();
        // SAFETY: `poll` is one structure, as stated, and lives until the call returns.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, -1) }, 1);
        while ring.is_busy(0) {
            ring.submit(0).unwrap();
            ring.next_completed();
        }
        assert_eq!(ring.bytes(0)[..5000], [7; 5000]);
    }

    #[test]
    fn submission_completes_all_reads_that_can_be() {
        let Ok(mut ring) = FileRing::new() else { return };
        let (reader, mut writer) = std::io::pipe().unwrap();
        for buffer in 0..READ_BUFFERS {
            assert!(ring.read(&reader, 0, 1, buffer));
        }
        ring.submit(0).unwrap();
        assert!(ring.next_completed().is_none());
        writer.write_all(&[7; READ_BUFFERS]).unwrap();
        ring.submit(0).unwrap();
        for _ in 0..READ_BUFFERS {
            let CompletedRead { buffer, outcome } = ring.next_completed().unwrap();
            assert_eq!((outcome.unwrap(), ring.bytes(buffer)[0]), (1, 7));
        }
    }

    #[test]
    fn ring_with_reads_under_way_is_dropped() {
        let Ok(mut ring) = FileRing::new() else { return };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5000]).unwrap();
        assert!(ring.read(&file, 4096, READ_LEN, 0) && ring.read(&file, 9000, READ_LEN, 1));
        ring.submit(0).unwrap();
        // This one is never submitted, and its file is closed before the ring is.
        assert!(ring.read(&file, 0, READ_LEN, 2));
        drop(file);
    }

    #[test]
    fn short_and_failed_reads_are_reported() {
        let Ok(mut ring) = FileRing::new() else { return };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5000]).unwrap();
        let folder = std::fs::File::open(std::env::temp_dir()).unwrap();
        assert!(ring.read(&file, 4096, READ_LEN, 0) && ring.read(&folder, 0, READ_LEN, 1));
        ring.submit(2).unwrap();
        let mut outcomes = [None, None];
        while let Some(CompletedRead { buffer, outcome }) = ring.next_completed() {
            outcomes[buffer] = Some(outcome.map_err(|error| error.raw_os_error()));
        }
        assert_eq!(outcomes, [Some(Ok(5000 - 4096)), Some(Err(Some(libc::EISDIR)))]);
        assert_eq!(ring.bytes(0)[..904], [7; 904]);
    }
}
