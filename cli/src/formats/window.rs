//! The unread bytes of a file, for decoders that want a record as one piece.
//!
//! Always true: it holds what has really come, at most one step beyond what a decoder has asked for. A length that a file
//! only claims takes no memory.

use std::io::{self, Read};

/// So much is read at once, in bytes.
const STEP: usize = 1 << 18;

/// The unread bytes of a file.
pub(super) struct Window<R> {
    input: R,
    bytes: Vec<u8>,
    /// Where the unread ones begin.
    start: usize,
}

impl<R: Read> Window<R> {
    pub(super) fn new(input: R) -> Window<R> {
        Window { input, bytes: Vec::new(), start: 0 }
    }

    /// The unread bytes.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The first `len` are read.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
    }

    /// Takes in more; false at the end of the file.
    pub(super) fn more(&mut self) -> io::Result<bool> {
        self.bytes.drain(..self.start);
        self.start = 0;
        Ok(self.input.by_ref().take(STEP as u64).read_to_end(&mut self.bytes)? > 0)
    }

    /// Has at least `len` unread bytes, unless the file ends before.
    pub(super) fn at_least(&mut self, len: usize) -> io::Result<()> {
        while self.unread().len() < len && self.more()? {}
        Ok(())
    }

    /// Takes in a line, if that fits the memory; the unread bytes up to its end, and with its end. None at the end of the file.
    pub(super) fn line(&mut self) -> io::Result<Option<(usize, usize)>> {
        let mut seen = 0;
        loop {
            if let Some(at) = memchr(&self.unread()[seen..]) {
                return Ok(Some((seen + at, seen + at + 1)));
            }
            seen = self.unread().len();
            if !self.more()? {
                return Ok((seen > 0).then_some((seen, seen)));
            }
        }
    }

    /// How many bytes are left, read and forgotten.
    pub(super) fn rest(mut self) -> io::Result<u64> {
        let unread = self.unread().len() as u64;
        Ok(unread + io::copy(&mut self.input, &mut io::sink())?)
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
}

impl<R: Read> Read for Window<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let unread = self.unread();
        if unread.is_empty() {
            return self.input.read(out);
        }
        let len = unread.len().min(out.len());
        out[..len].copy_from_slice(&unread[..len]);
        self.consume(len);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_long_they_are() {
        let long = vec![b'x'; 3 * STEP];
        let text = [&b"a\n\n"[..], &long, b"\nlast"].concat();
        let mut window = Window::new(&text[..]);
        let mut lines = Vec::new();
        while let Some((end, next)) = window.line().unwrap() {
            lines.push(window.unread()[..end].to_vec());
            window.consume(next);
        }
        assert_eq!(lines, [b"a".to_vec(), b"".to_vec(), long, b"last".to_vec()]);
    }
}
