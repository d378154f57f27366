//! Wraps an io_uring that receives from sockets and sends to them.
//!
//! ```text
//! receive   one request for each socket; the kernel puts all bytes that arrive into shared buffers
//! send      the bytes are copied to an area of the ring; one system call sends those of all
//! poll      a request reports once that a descriptor, such as that of an epoll, is ready
//! wait      submits all of these, and returns when something has happened
//! ```
//!
//! Invariants: the kernel completes requests only within [`SocketRing::submit`] and
//! [`SocketRing::wait`] (DEFER_TASKRUN). A buffer belongs to the kernel until it occurs in
//! [`ReceivedBytes`], and again after [`SocketRing::give_back`]. The area of sent bytes is written
//! only while the kernel has no request for it: sends never wait (MSG_DONTWAIT), so they are
//! complete when they have been submitted.
//!
//! Not here: connections, and the decision when to receive or to send (they belong to the server).

use super::mapping::{MemoryMapping, SYSTEM_PAGE};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

/// The length of a buffer for received bytes. Most batches of requests fit.
pub const RECEIVE_LEN: usize = 2 << 10;
/// The number of these buffers. It is more than the number of sockets that are usually ready at the
/// same time. A power of two.
const RECEIVE_BUFFERS: u16 = 128;
/// The group of these buffers.
const BUFFER_GROUP: u16 = 0;
/// The length of the area of bytes to send.
const SEND_AREA: usize = 128 << 10;
/// The most bytes of one send.
pub const SEND_LEN_MAX: usize = 16 << 10;
/// The number of requests that may be submitted at once.
const SUBMISSIONS: u32 = 512;
/// The number of completions for which the kernel has space. It keeps further ones elsewhere.
const COMPLETIONS: u32 = 4096;
/// The number of attempts to submit requests if the kernel accepts none of them.
const SUBMIT_ATTEMPTS: u32 = 100;

/// The kinds of requests, in the highest bits of their user data.
const KIND_SHIFT: u32 = 62;
const RECEIVE: u64 = 0;
const POLL: u64 = 1;
const SEND: u64 = 2;
const CANCEL: u64 = 3;

/// The number of rings so far.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// An io_uring for sockets. Only the thread that created it may use it.
pub struct SocketRing {
    // The ring is dropped first, because its requests refer to the memory of the other fields.
    ring: IoUring,
    /// The number of this ring.
    number: u64,
    buffers: ReceiveBuffers,
    /// The bytes to send.
    area: MemoryMapping,
    /// The number of bytes in the area.
    area_len: usize,
    /// The sends that have not been submitted, in the order of their bytes in the area.
    sends: Vec<QueuedSend>,
    /// The number of submissions so far.
    submissions: u64,
    events: VecDeque<RingEvent>,
    unsent: VecDeque<UnsentBytes>,
    /// The last request that a cancellation did not find, because it had ended.
    ended: Option<u64>,
}

struct QueuedSend {
    token: u64,
    start: usize,
    len: usize,
}

/// An event of a ring. Each has the token of its request, of which 62 bits are kept.
#[derive(Debug)]
pub enum RingEvent {
    /// Bytes have arrived.
    Received {
        /// The token of the request.
        token: u64,
        /// The bytes.
        bytes: ReceivedBytes,
        /// True if the socket had more bytes at that moment.
        has_more: bool,
        /// True if the request continues. If false, no further event of it follows.
        continues: bool,
    },
    /// The request has ended, and no further event of it follows.
    ReceiveEnded {
        /// The token of the request.
        token: u64,
        /// The reason.
        cause: ReceiveEnd,
    },
    /// The descriptor is ready. The request has ended.
    Ready {
        /// The token of the request.
        token: u64,
    },
}

/// The reason why a request to receive has ended.
#[derive(Debug)]
pub enum ReceiveEnd {
    /// The peer sends no more bytes.
    EndOfStream,
    /// It was cancelled.
    Cancelled,
    /// There was no buffer. The bytes are still in the socket.
    NoBuffer,
    /// The socket has failed.
    Failed(io::Error),
}

/// Bytes in a buffer of a ring. Pass them to [`SocketRing::give_back`] after use.
#[derive(Debug)]
#[must_use = "the buffer must be given back"]
pub struct ReceivedBytes {
    ring: u64,
    buffer: u16,
    len: u16,
}

impl ReceivedBytes {
    /// Returns true if the bytes fill their buffer.
    pub fn are_full(&self) -> bool {
        usize::from(self.len) == RECEIVE_LEN
    }
}

/// Bytes that a socket has not accepted.
#[derive(Debug)]
pub struct UnsentBytes {
    /// The token of the send.
    pub token: u64,
    /// The bytes that were not sent.
    pub bytes: Vec<u8>,
    /// The error of the socket. `None` means that it was full.
    pub error: Option<io::Error>,
}

/// Buffers that the kernel fills, in the ring through which it receives them.
struct ReceiveBuffers {
    /// The entries of the ring.
    entries: MemoryMapping,
    memory: MemoryMapping,
    tail: u16,
}

impl ReceiveBuffers {
    fn new() -> io::Result<ReceiveBuffers> {
        let entries_len = usize::from(RECEIVE_BUFFERS) * size_of::<BufRingEntry>();
        let entries = MemoryMapping::new(entries_len.next_multiple_of(SYSTEM_PAGE))?;
        let mut memory = MemoryMapping::new(usize::from(RECEIVE_BUFFERS) * RECEIVE_LEN)?;
        memory.use_small_pages();
        Ok(ReceiveBuffers { entries, memory, tail: 0 })
    }

    /// Returns the address of a buffer.
    fn address(&self, buffer: u16) -> *mut u8 {
        let start = usize::from(buffer) * RECEIVE_LEN;
        self.memory.at(start..start + RECEIVE_LEN).as_ptr()
    }

    /// Passes a buffer to the kernel.
    fn provide(&mut self, buffer: u16) {
        let address = self.address(buffer);
        let at = usize::from(self.tail % RECEIVE_BUFFERS) * size_of::<BufRingEntry>();
        let entry = self.entries.at(at..at + size_of::<BufRingEntry>()).cast::<BufRingEntry>();
        // SAFETY: the entry lies in the mapping (asserted by `at`), which is aligned to pages and
        // zeroed, and every bit pattern is an entry. The kernel reads an entry only after the tail
        // has passed it, and the ring has as many entries as there are buffers, so the kernel has
        // used the previous content of this one. No reference to the mapping exists elsewhere.
        let entry = unsafe { &mut *entry.as_ptr() };
        entry.set_addr(address as u64);
        entry.set_len(RECEIVE_LEN as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        let base = self.entries.at(0..size_of::<BufRingEntry>()).cast::<BufRingEntry>();
        // SAFETY: `base` is the first entry of the ring, whose unused field is the tail. Only the
        // kernel reads it, and this thread alone writes to it, atomically.
        let tail = unsafe { &*BufRingEntry::tail(base.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

impl SocketRing {
    /// Creates a ring for this thread. Fails if the system does not support or allow it.
    pub fn new() -> io::Result<SocketRing> {
        let mut buffers = ReceiveBuffers::new()?;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .dontfork()
            .build(SUBMISSIONS)?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
            return Err(ErrorKind::Unsupported.into());
        }
        let entries = buffers.entries.at(0..SYSTEM_PAGE).as_ptr() as u64;
        // SAFETY: the entries are a zeroed mapping, aligned to pages, with at least this number of
        // entries. It is dropped after the ring.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(entries, RECEIVE_BUFFERS, BUFFER_GROUP, 0)?;
        }
        (0..RECEIVE_BUFFERS).for_each(|buffer| buffers.provide(buffer));
        let mut area = MemoryMapping::new(SEND_AREA)?;
        area.use_small_pages();
        Ok(SocketRing {
            ring,
            number: RINGS.fetch_add(1, Ordering::Relaxed),
            buffers,
            area,
            area_len: 0,
            sends: Vec::new(),
            submissions: 0,
            events: VecDeque::new(),
            unsent: VecDeque::new(),
            ended: None,
        })
    }

    /// Returns an error if rings do not work here: creates one, and receives, sends, and reports a
    /// failed send and a cancelled request through it.
    pub fn try_features() -> io::Result<()> {
        // When a ring is dropped, the kernel interrupts system calls of the thread that used it.
        // This thread may belong to the caller, so another one is used.
        let attempt = std::thread::Builder::new().name("io_uring".into()).spawn(SocketRing::try_here)?;
        attempt.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }

    fn try_here() -> io::Result<()> {
        let lacks = |what: &str| Err(io::Error::new(ErrorKind::Unsupported, format!("{what} does not work")));
        let mut ring = SocketRing::new()?;
        let (near, far) = UnixStream::pair()?;
        ring.receive(near.as_raw_fd(), 1)?;
        ring.poll(far.as_raw_fd(), 2)?;
        ring.send(far.as_raw_fd(), 3, b"a request")?;
        ring.send(near.as_raw_fd(), 4, b"a reply")?;
        ring.submit()?;
        let (mut is_received, mut is_ready) = (false, false);
        while let Some(event) = ring.next_event() {
            match event {
                RingEvent::Received { token: 1, bytes, continues: true, .. } => {
                    is_received = ring.bytes(&bytes) == b"a request";
                    ring.give_back(bytes);
                }
                RingEvent::Ready { token: 2 } => is_ready = true,
                _ => return lacks("receiving repeatedly"),
            }
        }
        if !is_received || !is_ready || ring.next_unsent().is_some() {
            return lacks("receiving repeatedly");
        }
        ring.cancel_receive(1)?;
        ring.submit()?;
        if !matches!(
            ring.next_event(),
            Some(RingEvent::ReceiveEnded { token: 1, cause: ReceiveEnd::Cancelled })
        ) {
            return lacks("ending a request");
        }
        near.shutdown(Shutdown::Write)?;
        ring.send(near.as_raw_fd(), 5, b"too late")?;
        ring.submit()?;
        match ring.next_unsent() {
            Some(UnsentBytes { token: 5, error: Some(_), .. }) => Ok(()),
            _ => lacks("reporting failed sends"),
        }
    }

    /// Adds a request. Submits the earlier ones if there are too many.
    fn push(&mut self, entry: &Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: requests to receive use only the registered buffers, which are dropped after the
        // ring. Sends refer to the area (see `send`). The others refer to no memory.
        let outcome = unsafe { self.ring.submission().push(entry) };
        outcome.map_err(|_| ErrorKind::OutOfMemory.into())
    }

    /// Receives from a socket until the request ends, with an event for each piece.
    pub fn receive(&mut self, socket: RawFd, token: u64) -> io::Result<()> {
        let entry = opcode::RecvMulti::new(Fd(socket), BUFFER_GROUP).build();
        self.push(&entry.user_data(data_of(RECEIVE, token)))
    }

    /// Ends a request to receive. Its last event follows, unless that has occurred already.
    pub fn cancel_receive(&mut self, token: u64) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(data_of(RECEIVE, token)).build().flags(Flags::SKIP_SUCCESS);
        self.push(&entry.user_data(data_of(CANCEL, token)))
    }

    /// Reports once that a descriptor is readable, or becomes so.
    pub fn poll(&mut self, descriptor: RawFd, token: u64) -> io::Result<()> {
        // A request that continues (`multi`) would be lost. If the poll of an epoll is woken by the
        // descriptor that another ring signals (see `FileRing::signal`), the kernel ends the
        // request, but still reports that it continues (Linux before 7.1, commit 1967f0b1cafd).
        let entry = opcode::PollAdd::new(Fd(descriptor), libc::POLLIN as u32).build();
        self.push(&entry.user_data(data_of(POLL, token)))
    }

    /// Sends bytes, at most [`SEND_LEN_MAX`], with the next submission. Bytes that the socket does
    /// not accept then become [`UnsentBytes`]. The descriptor must stay open until that submission.
    ///
    /// Between two submissions, a socket may have only one send. Otherwise the second one could be
    /// accepted after the first was not.
    pub fn send(&mut self, socket: RawFd, token: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > SEND_LEN_MAX {
            return Err(ErrorKind::InvalidInput.into());
        }
        // `push` must not submit, because the send would then belong to no submission.
        if SEND_AREA - self.area_len < bytes.len() || self.ring.submission().is_full() {
            self.submit()?;
        }
        let start = self.area_len;
        let target = self.area.at(start..start + bytes.len());
        // SAFETY: the range lies in the mapping (asserted by `at`). `bytes` lie elsewhere, because
        // no slice of the area is handed out while this method is called.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
        // With MSG_WAITALL, a send of fewer bytes counts as failed, and so is reported.
        let flags = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let entry = opcode::Send::new(Fd(socket), target.as_ptr(), bytes.len() as u32).flags(flags).build();
        let number = self.sends.len() as u64;
        self.push(&entry.flags(Flags::SKIP_SUCCESS).user_data(data_of(SEND, number)))?;
        self.area_len += bytes.len();
        self.sends.push(QueuedSend { token, start, len: bytes.len() });
        Ok(())
    }

    /// Returns the number of submissions so far. A send is complete once this number has grown.
    #[inline]
    pub fn submissions(&self) -> u64 {
        self.submissions
    }

    /// Submits all requests, and returns without waiting.
    pub fn submit(&mut self) -> io::Result<()> {
        self.enter(Some(Duration::ZERO))
    }

    /// Submits all requests, and waits for an event, until `timeout` at the latest. A signal may
    /// end the wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let is_waiting = self.events.is_empty() && self.unsent.is_empty();
        if is_waiting { self.enter(timeout) } else { self.submit() }
    }

    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        for attempt in 0..SUBMIT_ATTEMPTS {
            // If requests remain after the first attempt, it has not waited, or has found an event.
            let timeout = if attempt == 0 { timeout } else { Some(Duration::ZERO) };
            let submitter = self.ring.submitter();
            let outcome = match timeout {
                None => submitter.submit_and_wait(1),
                Some(Duration::ZERO) => {
                    // SAFETY: this thread has no `SubmissionQueue` now.
                    let len = unsafe { self.ring.submission_shared() }.len();
                    let flags = EnterFlags::GETEVENTS.bits();
                    // SAFETY: the number of submitted entries is that of the queue, and there is no
                    // further argument.
                    unsafe { submitter.enter::<libc::sigset_t>(len as u32, 0, flags, None) }
                }
                Some(timeout) => {
                    let time = Timespec::from(timeout);
                    submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
                }
            };
            self.collect();
            match outcome {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::ETIME | libc::EINTR) => {}
                    // The kernel has no memory, or no space for further completions.
                    Some(libc::EAGAIN | libc::EBUSY) => continue,
                    _ => return Err(error),
                },
            }
            let queue = self.ring.submission();
            if queue.is_empty() && !queue.cq_overflow() {
                drop(queue);
                self.sends.clear();
                self.area_len = 0;
                self.submissions += 1;
                return Ok(());
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Takes over all completions.
    fn collect(&mut self) {
        let SocketRing { ring, number, area, sends, events, unsent, ended, .. } = self;
        for completion in ring.completion() {
            let (data, result, flags) = (completion.user_data(), completion.result(), completion.flags());
            let (kind, token) = (data >> KIND_SHIFT, data & !(u64::MAX << KIND_SHIFT));
            let continues = cqueue::more(flags);
            match kind {
                RECEIVE => match (cqueue::buffer_select(flags), u16::try_from(result)) {
                    (Some(buffer), Ok(len)) if len > 0 => {
                        let bytes = ReceivedBytes { ring: *number, buffer, len };
                        let has_more = cqueue::sock_nonempty(flags);
                        events.push_back(RingEvent::Received { token, bytes, has_more, continues });
                    }
                    _ => {
                        let cause = match -result {
                            0 => ReceiveEnd::EndOfStream,
                            libc::ENOBUFS => ReceiveEnd::NoBuffer,
                            libc::ECANCELED => ReceiveEnd::Cancelled,
                            error => ReceiveEnd::Failed(io::Error::from_raw_os_error(error)),
                        };
                        events.push_back(RingEvent::ReceiveEnded { token, cause });
                    }
                },
                POLL => events.push_back(RingEvent::Ready { token }),
                SEND => {
                    let Some(send) = sends.get(token as usize) else { continue };
                    let error = match -result {
                        ..=0 | libc::EAGAIN => None,
                        error => Some(io::Error::from_raw_os_error(error)),
                    };
                    let sent = usize::try_from(result).unwrap_or(0).min(send.len);
                    let rest = area.at(send.start + sent..send.start + send.len);
                    // SAFETY: the range lies in the mapping (asserted by `at`), which is
                    // initialised, and nothing writes to it during this call.
                    let bytes = unsafe { std::slice::from_raw_parts(rest.as_ptr(), send.len - sent) };
                    if error.is_some() || !bytes.is_empty() {
                        unsent.push_back(UnsentBytes { token: send.token, bytes: bytes.to_vec(), error });
                    }
                }
                CANCEL if -result == libc::ENOENT => *ended = Some(token),
                _ => {}
            }
        }
    }

    /// Returns the number of events that have not been taken.
    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    /// Returns the next event.
    #[inline]
    pub fn next_event(&mut self) -> Option<RingEvent> {
        self.events.pop_front()
    }

    /// Returns true if bytes were not accepted and have not been taken.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns the next bytes that a socket has not accepted.
    pub fn next_unsent(&mut self) -> Option<UnsentBytes> {
        self.unsent.pop_front()
    }

    /// Returns received bytes.
    #[inline]
    pub fn bytes(&self, received: &ReceivedBytes) -> &[u8] {
        assert_eq!(received.ring, self.number, "bytes of this ring");
        let address = self.buffers.address(received.buffer);
        // SAFETY: the buffer lies in the mapping (asserted by `address`). The kernel has returned
        // it, and does not write to it before `give_back`, which takes the only value of its type.
        unsafe { std::slice::from_raw_parts(address, usize::from(received.len).min(RECEIVE_LEN)) }
    }

    /// Returns a buffer to the kernel.
    #[inline]
    pub fn give_back(&mut self, received: ReceivedBytes) {
        assert_eq!(received.ring, self.number, "bytes of this ring");
        self.buffers.provide(received.buffer);
    }

    /// Ends a request to receive, and waits for its end. Drops its remaining events.
    pub fn end_receive(&mut self, token: u64) -> io::Result<()> {
        self.ended = None;
        self.cancel_receive(token)?;
        self.submit()?;
        loop {
            // The last event may have been taken already.
            let mut has_ended = self.ended == Some(token);
            for event in std::mem::take(&mut self.events) {
                match event {
                    RingEvent::Received { token: other, bytes, continues, .. } if other == token => {
                        self.give_back(bytes);
                        has_ended |= !continues;
                    }
                    RingEvent::ReceiveEnded { token: other, .. } if other == token => has_ended = true,
                    event => self.events.push_back(event),
                }
            }
            if has_ended {
                return Ok(());
            }
            self.enter(None)?;
        }
    }
}

/// Returns the user data of a request.
fn data_of(kind: u64, token: u64) -> u64 {
    kind << KIND_SHIFT | token & !(u64::MAX << KIND_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{FileRing, READ_LEN, ReadSignal};
    use std::io::{Read, Write};
    use std::os::fd::{FromRawFd, OwnedFd};

    /// Returns a ring. Returns `None` if the system does not allow rings, as some containers.
    fn ring() -> Option<SocketRing> {
        match SocketRing::new() {
            Ok(ring) => Some(ring),
            Err(error) => {
                let allowed = [libc::EPERM, libc::ENOSYS, libc::EINVAL];
                let is_refused = error.raw_os_error().is_some_and(|code| allowed.contains(&code));
                assert!(is_refused || error.kind() == ErrorKind::Unsupported, "{error}");
                None
            }
        }
    }

    /// Takes all events. Returns the received bytes, and the other events.
    fn take_all(ring: &mut SocketRing) -> (Vec<u8>, Vec<RingEvent>) {
        let (mut all, mut others) = (Vec::new(), Vec::new());
        while let Some(event) = ring.next_event() {
            match event {
                RingEvent::Received { token: 7, bytes, .. } => {
                    all.extend_from_slice(ring.bytes(&bytes));
                    ring.give_back(bytes);
                }
                event => others.push(event),
            }
        }
        (all, others)
    }

    #[test]
    fn all_features_work_if_rings_do() {
        if ring().is_some() {
            SocketRing::try_features().unwrap();
        }
    }

    #[test]
    fn one_request_receives_everything_in_order() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = UnixStream::pair().unwrap();
        ring.receive(near.as_raw_fd(), 7).unwrap();
        // More pieces than there are buffers.
        for round in 0..3 * u32::from(RECEIVE_BUFFERS) {
            far.write_all(&round.to_le_bytes()).unwrap();
            ring.wait(None).unwrap();
            let (received, others) = take_all(&mut ring);
            assert_eq!((received, others.len()), (round.to_le_bytes().to_vec(), 0));
        }
        drop(far);
        ring.wait(None).unwrap();
        let end = take_all(&mut ring).1;
        assert!(matches!(end[..], [RingEvent::ReceiveEnded { token: 7, cause: ReceiveEnd::EndOfStream }]));
    }

    #[test]
    fn request_without_buffers_ends_and_loses_nothing() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = UnixStream::pair().unwrap();
        let sent: Vec<u8> =
            (0..2 * RECEIVE_LEN * usize::from(RECEIVE_BUFFERS)).map(|at| (at / 7) as u8).collect();
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || far.write_all(&sent).unwrap()
        });
        ring.receive(near.as_raw_fd(), 7).unwrap();
        let mut held = Vec::new();
        let cause = loop {
            match ring.next_event() {
                Some(RingEvent::Received { token: 7, bytes, .. }) => held.push(bytes),
                Some(RingEvent::ReceiveEnded { token: 7, cause }) => break cause,
                Some(event) => panic!("{event:?}"),
                None => ring.wait(None).unwrap(),
            }
        };
        assert!(matches!(cause, ReceiveEnd::NoBuffer) && held.len() == usize::from(RECEIVE_BUFFERS));
        let mut received = Vec::new();
        for bytes in held {
            received.extend_from_slice(ring.bytes(&bytes));
            ring.give_back(bytes);
        }
        ring.receive(near.as_raw_fd(), 7).unwrap();
        loop {
            ring.wait(None).unwrap();
            let (more, others) = take_all(&mut ring);
            received.extend_from_slice(&more);
            match &others[..] {
                [] => {}
                [RingEvent::ReceiveEnded { cause: ReceiveEnd::NoBuffer, .. }] => {
                    ring.receive(near.as_raw_fd(), 7).unwrap();
                }
                [RingEvent::ReceiveEnded { cause: ReceiveEnd::EndOfStream, .. }] => break,
                others => panic!("{others:?}"),
            }
        }
        writer.join().unwrap();
        assert!(received == sent);
    }

    #[test]
    fn cancelled_request_leaves_later_bytes_in_the_socket() {
        let Some(mut ring) = ring() else { return };
        let (mut near, mut far) = UnixStream::pair().unwrap();
        ring.receive(near.as_raw_fd(), 7).unwrap();
        far.write_all(b"early").unwrap();
        ring.wait(None).unwrap();
        assert_eq!(take_all(&mut ring).0, b"early");
        ring.end_receive(7).unwrap();
        far.write_all(b"later").unwrap();
        ring.submit().unwrap();
        assert!(ring.next_event().is_none());
        let mut rest = [0; 5];
        near.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"later");
    }

    #[test]
    fn bytes_beyond_a_full_socket_are_returned() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = UnixStream::pair().unwrap();
        let piece: Vec<u8> = (0..SEND_LEN_MAX).map(|at| (at / 3) as u8).collect();
        let mut sent = 0;
        let unsent = loop {
            ring.send(near.as_raw_fd(), 9, &piece).unwrap();
            ring.submit().unwrap();
            if let Some(unsent) = ring.next_unsent() {
                break unsent;
            }
            sent += 1;
        };
        assert!(unsent.token == 9 && unsent.error.is_none() && unsent.bytes.len() <= piece.len());
        assert!(piece.ends_with(&unsent.bytes));
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        let accepted = piece.len() - unsent.bytes.len();
        assert_eq!(received.len(), sent * piece.len() + accepted);
        assert!(received.chunks(piece.len()).all(|one| piece.starts_with(one)));
    }

    #[test]
    fn many_sends_leave_in_one_submission() {
        let Some(mut ring) = ring() else { return };
        let pairs: Vec<_> = (0..40).map(|_| UnixStream::pair().unwrap()).collect();
        let before = ring.submissions();
        for (number, (near, _)) in pairs.iter().enumerate() {
            ring.send(near.as_raw_fd(), number as u64, &[number as u8; 1000]).unwrap();
        }
        ring.submit().unwrap();
        assert_eq!(ring.submissions(), before + 1);
        for (number, (_, far)) in pairs.iter().enumerate() {
            let mut far = far;
            let mut received = [0; 1000];
            far.read_exact(&mut received).unwrap();
            assert!(received.iter().all(|&byte| byte == number as u8));
        }
        assert!(!ring.has_unsent());
    }

    #[test]
    fn poll_ends_with_its_first_event() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = UnixStream::pair().unwrap();
        ring.poll(near.as_raw_fd(), 7).unwrap();
        far.write_all(b"first").unwrap();
        ring.wait(None).unwrap();
        assert!(matches!(ring.next_event(), Some(RingEvent::Ready { token: 7 })));
        far.write_all(b"second").unwrap();
        ring.submit().unwrap();
        assert!(ring.next_event().is_none());
    }

    /// A poll of an epoll that continued reported only the first signal of another ring, so after
    /// its first read from the disk, a worker heard nothing more.
    #[test]
    fn poll_reports_every_signal_of_another_ring() {
        let (Some(mut ring), Ok(mut reads)) = (ring(), FileRing::new()) else { return };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; READ_LEN]).unwrap();
        let signal = ReadSignal::new().unwrap();
        reads.signal(&signal).unwrap();
        // SAFETY: the call refers to no memory.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0);
        // SAFETY: the descriptor is new and belongs to nothing else.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: 0 };
        let (add, fd) = (libc::EPOLL_CTL_ADD, signal.descriptor());
        // SAFETY: `event` is one structure, and lives until the call returns.
        assert_eq!(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, fd, &raw mut event) }, 0);
        for round in 0..3 {
            ring.poll(epoll.as_raw_fd(), 7).unwrap();
            assert!(reads.read(&file, 0, READ_LEN, 0));
            ring.submit().unwrap();
            reads.submit(0).unwrap();
            // Without an event, the wait would never end.
            ring.wait(Some(Duration::from_secs(60))).unwrap();
            assert!(matches!(ring.next_event(), Some(RingEvent::Ready { token: 7 })), "round {round}");
            // SAFETY: `event` has space for one event, as stated, and lives until the call returns.
            assert_eq!(unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, 0) }, 1);
            while reads.next_completed().is_none() {
                reads.submit(1).unwrap();
            }
        }
    }

    #[test]
    fn wait_ends_at_its_timeout() {
        let Some(mut ring) = ring() else { return };
        ring.wait(Some(Duration::from_millis(1))).unwrap();
        assert!(ring.next_event().is_none());
    }

    #[test]
    fn too_long_send_is_an_error() {
        let Some(mut ring) = ring() else { return };
        let (near, _far) = UnixStream::pair().unwrap();
        assert!(ring.send(near.as_raw_fd(), 1, &[0; SEND_LEN_MAX + 1]).is_err());
    }
}
