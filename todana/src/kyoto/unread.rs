//! A buffer for the bytes of a file that have been read but not decoded.

use std::io::{self, Read};

/// The least number of bytes that are read at once.
const READ_LEN: usize = 256 << 10;

/// The bytes of a file that have been read but not decoded, for decoders that need each record in
/// one piece.
pub struct UnreadBytes<R> {
    input: R,
    /// The undecoded bytes are those from `at` to `end`. The vector keeps its length, because
    /// setting the rest to zero before each read would cost more than a small read.
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl<R: Read> UnreadBytes<R> {
    /// Creates an empty buffer for the bytes of `input`.
    pub fn new(input: R) -> UnreadBytes<R> {
        UnreadBytes { input, bytes: Vec::new(), at: 0, end: 0 }
    }

    /// Returns the bytes that have not been decoded yet.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Marks the first `len` unread bytes as decoded.
    pub fn consume(&mut self, len: usize) {
        self.at += len;
    }

    /// Reads more bytes and returns their number, which is 0 at the end of the file. Memory grows
    /// at most to twice the bytes that were read. A length that the file only states allocates
    /// nothing.
    pub fn read_more(&mut self, wanted: usize) -> io::Result<usize> {
        self.bytes.copy_within(self.at..self.end, 0);
        let before = self.end - self.at;
        (self.at, self.end) = (0, before);
        if before == 0 && self.bytes.len() > 4 * READ_LEN {
            self.bytes = Vec::new();
        }
        let room_end = before + wanted.clamp(READ_LEN, READ_LEN.max(before));
        if self.bytes.len() < room_end {
            self.bytes.resize(room_end, 0);
        }
        let outcome = loop {
            match self.input.read(&mut self.bytes[before..room_end]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        self.end += *outcome.as_ref().unwrap_or(&0);
        outcome
    }
}

/// Reads the undecoded bytes first, and then the rest of the file.
impl<R: Read> Read for UnreadBytes<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.unread().is_empty() {
            return self.input.read(out);
        }
        let len = self.unread().read(out)?;
        self.consume(len);
        Ok(len)
    }
}
