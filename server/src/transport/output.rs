//! Reply bytes on their way out: copied ones, and large values shared with the engine in between.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::time::{Duration, Instant};
use todana_core::SharedBytes;
use todana_protocol::memcached::ReplySink;

/// Output beyond which no further request of a connection is executed until its peer has read.
pub(crate) const OUTPUT_MAX: usize = 64 << 10;

/// Bytes to send, in order.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// How many of `bytes` have been sent.
    sent: usize,
    shares: VecDeque<SharedPiece>,
    /// Bytes of shares not sent yet.
    shared_len: usize,
    /// What goes out behind all that, and comes a piece at a time; nothing is put behind it.
    tail: Option<Box<dyn OutputTail>>,
    /// When its reader last took something, once there is a tail.
    taken_at: Option<Instant>,
}

/// Bytes that are made as their reader takes them.
pub(crate) trait OutputTail: Send {
    /// How many are left.
    fn remaining(&self) -> usize;
    /// Writes the next, up to so many.
    fn fill(&mut self, len_max: usize, bytes: &mut Vec<u8>);
}

/// So much of a tail is made at once.
const TAIL_PIECE: usize = 64 << 10;

struct SharedPiece {
    /// It goes out before this byte of `bytes`.
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
    /// Bytes still to send.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.remaining());
        self.bytes.len() - self.sent + self.shared_len + tail
    }

    /// Sets what goes out behind all else.
    pub(crate) fn set_tail(&mut self, tail: Box<dyn OutputTail>) {
        debug_assert!(self.tail.is_none(), "nothing is put behind a tail");
        self.tail = Some(tail);
        self.taken_at = Some(Instant::now());
    }

    /// Returns true if there is a tail, of which its reader has taken nothing for so long.
    pub(crate) fn is_stalled(&self, time: Duration) -> bool {
        self.tail.is_some() && self.taken_at.is_some_and(|taken_at| taken_at.elapsed() >= time)
    }

    /// Makes the next piece of the tail, once all before it has been sent.
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

    /// Where what is copied next will stand.
    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// What has been copied from there on.
    pub(crate) fn copied_from(&self, at: usize) -> &[u8] {
        self.bytes.get(at..).unwrap_or_default()
    }

    /// Bytes of memory of its own.
    pub(crate) fn copied_len(&self) -> usize {
        self.bytes.capacity()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Goes out behind what is in another one; nothing is in it that is shared.
    pub(crate) fn give_to(self, other: &mut Output) {
        if other.is_empty() && other.shares.is_empty() {
            *other = self;
        } else {
            other.bytes.extend_from_slice(&self.bytes);
            (other.tail, other.taken_at) = (self.tail, self.taken_at);
        }
    }

    /// Forgets everything, and an outsized buffer with it.
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

    /// Writes until all is sent or the socket takes no more (then `Ok` with something left). Returns the bytes
    /// written.
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

    /// Takes so many bytes a call, then blocks every other time.
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
    fn copied_and_shared_bytes_leave_in_order_however_slow_the_reader() {
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
