//! The bytes of a file that have been read and not decoded yet.

use std::io::{self, Read};

/// Bytes read at once.
const READ_LEN: usize = 256 << 10;

/// The bytes of a file that have been read and not decoded yet, for decoders that need a record in
/// one piece.
pub struct UnreadBytes<R> {
    input: R,
    bytes: Vec<u8>,
    at: usize,
}

impl<R: Read> UnreadBytes<R> {
    /// Begins at the start of `input`.
    pub fn new(input: R) -> UnreadBytes<R> {
        UnreadBytes { input, bytes: Vec::new(), at: 0 }
    }

    /// Returns the bytes that have not been decoded yet.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Marks the first `len` unread bytes as decoded.
    pub fn consume(&mut self, len: usize) {
        self.at += len;
    }

    /// Reads more bytes and returns their number: 0 at the end. Memory grows at most to twice the
    /// bytes that were really read; a length that the file only claims allocates nothing.
    pub fn read_more(&mut self, wanted: usize) -> io::Result<usize> {
        self.bytes.drain(..self.at);
        self.at = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(4 * READ_LEN);
        }
        let before = self.bytes.len();
        self.bytes.resize(before + wanted.clamp(READ_LEN, READ_LEN.max(before)), 0);
        let outcome = loop {
            match self.input.read(&mut self.bytes[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        self.bytes.truncate(before + *outcome.as_ref().unwrap_or(&0));
        outcome
    }
}

/// Reads the unread bytes first, and then the rest of the file.
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
