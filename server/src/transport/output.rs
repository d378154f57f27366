//! Output: copied reply bytes, with large values shared with the engine in between.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::time::{Duration, Instant};
use todana_core::SharedBytes;
use todana_protocol::memcached::ReplySink;

/// The output length at which no further request of a connection is executed until its peer has
/// read.
pub(crate) const OUTPUT_MAX: usize = 64 << 10;

/// Bytes to send, in order.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// The number of `bytes` that have been sent.
    sent: usize,
    shares: VecDeque<SharedPiece>,
    /// The number of shared bytes that are not sent yet.
    shared_len: usize,
    /// The bytes after all others, which are produced in pieces; nothing is appended after them.
    tail: Option<Box<dyn OutputTail>>,
    /// The time when the peer last took something, if there is a tail.
    taken_at: Option<Instant>,
}

/// Bytes that are produced as the peer takes them.
pub(crate) trait OutputTail: Send {
    /// Returns the number of bytes that are left.
    fn remaining(&self) -> usize;
    /// Appends the next bytes, at most `len_max`.
    fn fill(&mut self, len_max: usize, bytes: &mut Vec<u8>);
}

/// The length of the pieces of a tail.
const TAIL_PIECE: usize = 64 << 10;

struct SharedPiece {
    /// The position in `bytes` that it precedes.
    before: usize,
    value: SharedBytes,
    sent: usize,
}

impl ReplySink for Output {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn share(&mut self, value: &SharedBytes) {
        let len = (**value).as_ref().len();
        if len > 0 {
            self.shared_len += len;
            self.shares.push_back(SharedPiece {
                before: self.bytes.len(),
                value: SharedBytes::clone(value),
                sent: 0,
            });
        }
    }
}

impl Output {
    /// Returns the number of bytes to send.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.remaining());
        self.bytes.len() - self.sent + self.shared_len + tail
    }

    /// Sets the bytes that follow all others.
    pub(crate) fn set_tail(&mut self, tail: Box<dyn OutputTail>) {
        debug_assert!(self.tail.is_none(), "nothing is put behind a tail");
        self.tail = Some(tail);
        self.taken_at = Some(Instant::now());
    }

    /// Returns true if there is a tail and the peer has taken nothing for this time.
    pub(crate) fn is_stalled(&self, time: Duration) -> bool {
        self.tail.is_some() && self.taken_at.is_some_and(|taken_at| taken_at.elapsed() >= time)
    }

    /// Produces the next piece of the tail, after all before it has been sent.
    fn refill(&mut self) {
        let Some(tail) = self.tail.as_mut().filter(|_| self.sent == self.bytes.len() && self.shared_len == 0)
        else {
            return;
        };
        self.bytes.clear();
        self.shares.clear();
        self.sent = 0;
        tail.fill(TAIL_PIECE, &mut self.bytes);
        if tail.remaining() == 0 {
            (self.tail, self.taken_at) = (None, None);
        }
    }

    /// Returns the position of the next copied byte.
    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the copied bytes from a position on.
    pub(crate) fn copied_from(&self, at: usize) -> &[u8] {
        self.bytes.get(at..).unwrap_or_default()
    }

    /// Returns the memory of its own, in bytes.
    pub(crate) fn copied_len(&self) -> usize {
        self.bytes.capacity()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends all bytes to another output. None of them are shared.
    pub(crate) fn give_to(self, other: &mut Output) {
        if other.is_empty() && other.shares.is_empty() {
            *other = self;
        } else {
            other.bytes.extend_from_slice(&self.bytes);
            (other.tail, other.taken_at) = (self.tail, self.taken_at);
        }
    }

    /// Drops all bytes, and the buffer if it is larger than this.
    pub(crate) fn clear(&mut self, capacity_max: usize) {
        self.bytes.clear();
        if self.bytes.capacity() > capacity_max {
            self.bytes = Vec::new();
        }
        self.sent = 0;
        self.shares.clear();
        self.shared_len = 0;
        (self.tail, self.taken_at) = (None, None);
    }

    /// Writes until all is sent or the socket takes no more (then `Ok` with bytes left). Returns
    /// the number of bytes written.
    pub(crate) fn write_to(&mut self, stream: &mut impl Write) -> io::Result<usize> {
        let mut total = 0;
        while !self.is_empty() {
            self.refill();
            let outcome = if self.shares.is_empty() {
                stream.write(&self.bytes[self.sent..])
            } else {
                self.write_pieces(stream)
            };
            match outcome {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    total += written;
                    self.taken_at = self.taken_at.map(|_| Instant::now());
                    self.advance(written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    fn write_pieces(&self, stream: &mut impl Write) -> io::Result<usize> {
        const PIECES: usize = 16;
        let mut pieces = Vec::with_capacity(PIECES);
        let mut at = self.sent;
        for share in self.shares.iter().take(PIECES / 2 - 1) {
            if share.before > at {
                pieces.push(IoSlice::new(&self.bytes[at..share.before]));
                at = share.before;
            }
            pieces.push(IoSlice::new(&(*share.value).as_ref()[share.sent..]));
        }
        if self.shares.len() < PIECES / 2 && at < self.bytes.len() {
            pieces.push(IoSlice::new(&self.bytes[at..]));
        }
        stream.write_vectored(&pieces)
    }

    fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let own = self.shares.front().map_or(self.bytes.len(), |share| share.before) - self.sent;
            let now = written.min(own);
            self.sent += now;
            written -= now;
            if written == 0 {
                break;
            }
            let Some(share) = self.shares.front_mut() else { break };
            let now = written.min((*share.value).as_ref().len() - share.sent);
            share.sent += now;
            self.shared_len -= now;
            written -= now;
            if share.sent == (*share.value).as_ref().len() {
                self.shares.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Accepts this many bytes in a call, and blocks every other time.
    struct SlowWriter {
        taken: Vec<u8>,
        step: usize,
        blocks: bool,
    }

    impl Write for SlowWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.blocks = !self.blocks;
            if self.blocks {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let len = bytes.len().min(self.step);
            self.taken.extend_from_slice(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn copied_and_shared_bytes_leave_in_order() {
        for step in 1..20 {
            let mut output = Output::default();
            let shared = |text: &str| -> SharedBytes { Arc::new(text.as_bytes().to_vec()) };
            output.share(&shared("first"));
            output.put(b" and ");
            output.share(&shared("second"));
            output.share(&shared(""));
            output.share(&shared("third"));
            output.put(b" end");
            assert_eq!(output.len(), 25);
            let mut slow = SlowWriter { taken: Vec::new(), step, blocks: false };
            let mut rounds = 0;
            while !output.is_empty() {
                output.write_to(&mut slow).unwrap();
                rounds += 1;
                assert!(rounds < 100);
            }
            assert_eq!(slow.taken, b"first and secondthird end");
        }
    }
}
