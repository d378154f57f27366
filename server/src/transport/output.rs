//! Holds the output of a connection: copied bytes of replies, and between them large values that
//! are shared with the engine.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::time::{Duration, Instant};
use todana_core::SharedBytes;
use todana_protocol::memcached::ReplySink;

/// The output length from which on no further request of a connection is executed until its peer
/// has read some output.
pub(crate) const OUTPUT_MAX: usize = 64 << 10;

/// Bytes to send, in order.
#[derive(Default)]
pub(crate) struct ConnectionOutput {
    bytes: Vec<u8>,
    /// The number of `bytes` that have been sent.
    sent: usize,
    shares: VecDeque<SharedPiece>,
    /// The number of shared bytes that are not sent yet.
    shared_len: usize,
    chunk: DecompressedChunk,
    /// True if the last write has ended only to let other connections be served.
    is_interrupted: bool,
    /// The bytes after all others. They are produced in pieces, and nothing may be appended after
    /// them.
    tail: Option<Box<dyn OutputTail>>,
    /// The time when the peer last accepted bytes; kept only if there is a tail.
    taken_at: Option<Instant>,
}

/// The end of an output, whose bytes are produced as the peer accepts them.
pub(crate) trait OutputTail: Send {
    /// Returns the number of bytes that have not been produced.
    fn remaining(&self) -> usize;
    /// Appends the next bytes, at most `len_max`.
    fn fill(&mut self, len_max: usize, bytes: &mut Vec<u8>);
}

/// The number of chunks of 64 KiB that are decompressed for a connection in one turn.
const CHUNKS_PER_TURN: usize = 16;

/// The length of the pieces of a tail.
const TAIL_PIECE: usize = 64 << 10;

/// The chunk of the first shared value that is being sent, if the value is compressed. A slow
/// reader therefore holds the compressed value and one chunk.
#[derive(Default)]
struct DecompressedChunk {
    /// The offset of the chunk in the value.
    at: usize,
    bytes: Vec<u8>,
}

struct SharedPiece {
    /// The shared value precedes the byte at this position in `bytes`.
    before: usize,
    value: SharedBytes,
    sent: usize,
}

impl ReplySink for ConnectionOutput {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn share(&mut self, value: &SharedBytes) {
        let len = value.len();
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

impl ConnectionOutput {
    /// Returns the number of bytes to send.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let tail = self.tail.as_ref().map_or(0, |tail| tail.remaining());
        self.bytes.len() - self.sent + self.shared_len + tail
    }

    /// Sets the bytes that follow all others.
    pub(crate) fn set_tail(&mut self, tail: Box<dyn OutputTail>) {
        debug_assert!(self.tail.is_none(), "an output has at most one tail");
        self.tail = Some(tail);
        self.taken_at = Some(Instant::now());
    }

    /// Returns true if there is a tail and the peer has accepted nothing for this time.
    pub(crate) fn is_stalled(&self, time: Duration) -> bool {
        self.tail.is_some() && self.taken_at.is_some_and(|taken_at| taken_at.elapsed() >= time)
    }

    /// Produces the next piece of the tail, once all bytes before it have been sent.
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

    /// Returns the bytes to send, if all of them are copied bytes.
    #[inline]
    pub(crate) fn plain_bytes(&self) -> Option<&[u8]> {
        (self.shares.is_empty() && self.tail.is_none()).then(|| &self.bytes[self.sent..])
    }

    /// Returns all bytes, with the shared values.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        // Writing to a Vec cannot fail.
        let _ = self.write_to(&mut bytes);
        bytes
    }

    /// Returns the memory of the output in bytes, without the shared values.
    pub(crate) fn copied_len(&self) -> usize {
        self.bytes.capacity() + self.chunk.bytes.capacity()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends all bytes to another output. This output must not contain shared values.
    pub(crate) fn append_to(self, other: &mut ConnectionOutput) {
        if other.is_empty() && other.shares.is_empty() {
            *other = self;
        } else {
            other.bytes.extend_from_slice(&self.bytes);
            (other.tail, other.taken_at) = (self.tail, self.taken_at);
        }
    }

    /// Drops all bytes. Also frees the buffer if its capacity exceeds `capacity_max`.
    pub(crate) fn clear(&mut self, capacity_max: usize) {
        self.bytes.clear();
        if self.bytes.capacity() > capacity_max {
            self.bytes = Vec::new();
        }
        self.sent = 0;
        self.shares.clear();
        (self.shared_len, self.chunk) = (0, DecompressedChunk::default());
        (self.tail, self.taken_at) = (None, None);
    }

    /// Writes until all bytes are sent or the socket accepts no more. In both cases returns the
    /// number of bytes written.
    pub(crate) fn write_to(&mut self, stream: &mut impl Write) -> io::Result<usize> {
        self.write_chunks(stream, usize::MAX)
    }

    /// Does the same as `write_to`, but decompresses a limited number of chunks. A client may read
    /// as fast as they are decompressed, so that its socket never refuses bytes.
    pub(crate) fn write_in_turn(&mut self, stream: &mut impl Write) -> io::Result<usize> {
        self.write_chunks(stream, CHUNKS_PER_TURN)
    }

    /// Returns true if the last write has ended although the socket may accept more bytes. The
    /// caller must continue without waiting for the socket.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    fn write_chunks(&mut self, stream: &mut impl Write, mut chunks: usize) -> io::Result<usize> {
        let mut total = 0;
        self.is_interrupted = false;
        while !self.is_empty() {
            self.refill();
            if self.lacks_chunk() {
                if chunks == 0 {
                    self.is_interrupted = true;
                    break;
                }
                chunks -= 1;
                self.decompress_chunk();
            }
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

    /// Returns true if the first shared value is compressed, and the chunk to send is not there.
    fn lacks_chunk(&self) -> bool {
        let DecompressedChunk { at, bytes } = &self.chunk;
        let is_there = |sent| (*at..*at + bytes.len()).contains(&sent);
        self.shares.front().is_some_and(|share| share.value.plain().is_none() && !is_there(share.sent))
    }

    fn decompress_chunk(&mut self) {
        if let Some(share) = self.shares.front() {
            share.value.copy_chunk(share.sent, &mut self.chunk.bytes);
            self.chunk.at = share.sent;
        }
    }

    fn write_pieces(&self, stream: &mut impl Write) -> io::Result<usize> {
        const PIECES: usize = 16;
        let mut pieces = Vec::with_capacity(PIECES);
        let mut at = self.sent;
        for (index, share) in self.shares.iter().take(PIECES / 2 - 1).enumerate() {
            if share.before > at {
                pieces.push(IoSlice::new(&self.bytes[at..share.before]));
                at = share.before;
            }
            match share.value.plain() {
                Some(plain) => pieces.push(IoSlice::new(&plain[share.sent..])),
                None => {
                    // Only the first value has a chunk. The rest is sent by a later write.
                    if index == 0 {
                        pieces.push(IoSlice::new(&self.chunk.bytes[share.sent - self.chunk.at..]));
                    }
                    return stream.write_vectored(&pieces);
                }
            }
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
            let now = written.min(share.value.len() - share.sent);
            share.sent += now;
            self.shared_len -= now;
            written -= now;
            if share.sent == share.value.len() {
                self.shares.pop_front();
                self.chunk = DecompressedChunk::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use todana_core::LongBytes;

    /// A writer that accepts this number of bytes in a call, and blocks in every second call.
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
            let mut output = ConnectionOutput::default();
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

    /// A value in chunks of three bytes, which counts how many are decompressed.
    struct ChunkedText(&'static str, AtomicUsize);

    impl LongBytes for ChunkedText {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn plain(&self) -> Option<&[u8]> {
            None
        }

        fn copy_chunk(&self, at: usize, chunk: &mut Vec<u8>) {
            self.1.fetch_add(1, Ordering::Relaxed);
            let end = self.0.len().min((at / 3 + 1) * 3);
            chunk.clear();
            chunk.extend_from_slice(&self.0.as_bytes()[at..end]);
        }

        fn decompressed(&self) -> Option<SharedBytes> {
            panic!("an output decompresses chunks only")
        }
    }

    #[test]
    fn compressed_value_is_decompressed_as_it_is_sent() {
        for step in 1..40 {
            let mut output = ConnectionOutput::default();
            let value = Arc::new(ChunkedText("compressed", AtomicUsize::new(0)));
            let compressed: SharedBytes = value.clone();
            let plain: SharedBytes = Arc::new(b"plain".to_vec());
            output.put(b"first ");
            output.share(&compressed);
            output.share(&plain);
            output.put(b" and ");
            output.share(&compressed);
            output.put(b" end");
            assert_eq!((output.len(), output.chunk.bytes.len()), (40, 0));
            let mut slow = SlowWriter { taken: Vec::new(), step, blocks: false };
            let mut rounds = 0;
            while !output.is_empty() {
                output.write_to(&mut slow).unwrap();
                assert!(output.chunk.bytes.len() <= 3, "one chunk at a time");
                rounds += 1;
                assert!(rounds < 200);
            }
            assert_eq!(slow.taken, b"first compressedplain and compressed end");
            assert_eq!(value.1.load(Ordering::Relaxed), 8, "each chunk once for each value");
        }
    }

    #[test]
    fn turn_ends_after_a_number_of_chunks() {
        let text: &str = "chunk by chunk, while other clients are served between two turns";
        let (mut output, mut sent, mut turns) = (ConnectionOutput::default(), Vec::new(), Vec::new());
        let value: SharedBytes = Arc::new(ChunkedText(text, AtomicUsize::new(0)));
        output.share(&value);
        output.put(b" end");
        while !output.is_empty() {
            turns.push(output.write_in_turn(&mut sent).unwrap());
            assert_eq!(output.is_interrupted(), !output.is_empty());
        }
        assert_eq!(sent, format!("{text} end").as_bytes());
        assert_eq!(turns, [3 * CHUNKS_PER_TURN, text.len() + 4 - 3 * CHUNKS_PER_TURN]);
    }
}
