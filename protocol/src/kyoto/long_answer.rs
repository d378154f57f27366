//! Collects the pairs of a long answer in little memory, and writes the answer piece by piece.
//!
//! ```text
//! LongAnswer  push, push, push: adds pairs in the order in which they are found
//! begin       chooses the encoding, sorts the lines, writes the head with the length
//! AnswerBody  fill, fill, fill: writes the lines in the order of their names
//!
//! line = name_len(varint) | value_len(varint) | name TAB value LF
//! ```
//!
//! Lines are stored one after another in pieces of memory. A stored line is a few bytes longer than
//! the line in the answer. The answer is never copied as a unit.

use super::answer::put_head;
use super::{AnswerBanner, AnswerStatus, ColumnEncoding, HttpForm, varnum};
use crate::ReplySink;

/// A piece of memory has a length of 2^20 bytes. The upper bits of a 32-bit offset then identify
/// the piece, and the lower bits the position in it. The general allocator can release a single
/// piece of this length at once.
const PIECE_BITS: u32 = 20;
const PIECE_LEN: usize = 1 << PIECE_BITS;
/// The length of the first piece, which is enough for a short answer.
const FIRST_LEN: usize = 16 << 10;
/// The number of pieces that a 32-bit offset can address.
const PIECES_MAX: usize = 1 << (u32::BITS - PIECE_BITS);

/// The pairs of an answer, in the order in which they are found.
#[derive(Debug, Default)]
pub struct LongAnswer {
    pieces: Vec<Vec<u8>>,
    /// The offsets of the lines.
    starts: Vec<u32>,
    capacity: usize,
}

/// The lines of an answer that have not been written yet.
#[derive(Debug, Default)]
pub struct AnswerBody {
    lines: LongAnswer,
    /// The first line that has not been written completely. Its first `written` bytes have been
    /// written.
    next: usize,
    written: usize,
    remaining: usize,
}

impl LongAnswer {
    /// Adds a pair whose name is `before` and `name` concatenated. Each name must be added only
    /// once. Returns false and adds nothing if the answer would become too long.
    #[must_use]
    pub fn push(&mut self, before: &[u8], name: &[u8], value: &[u8]) -> bool {
        let name_len = before.len() + name.len();
        self.push_with(name_len, value.len(), |piece| {
            piece.extend_from_slice(before);
            piece.extend_from_slice(name);
            piece.push(b'\t');
            piece.extend_from_slice(value);
        })
    }

    /// Returns the memory in bytes that the answer would use with one more pair of `len` bytes. The
    /// result is at least 16 KiB.
    pub fn memory_bytes_with(&self, len: usize) -> usize {
        let wanted = line_len(len, 2 * varnum::LEN_MAX);
        match self.pieces.last() {
            Some(piece) if has_room(piece, wanted) => self.memory_bytes(),
            Some(_) => self.memory_bytes() + wanted.max(PIECE_LEN),
            None => wanted.max(FIRST_LEN),
        }
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns true if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns the memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.capacity
            + self.starts.capacity() * size_of::<u32>()
            + self.pieces.capacity() * size_of::<Vec<u8>>()
    }

    /// Writes the head of the answer, and returns its body.
    pub fn begin(
        mut self,
        form: &HttpForm,
        banner: &AnswerBanner,
        status: AnswerStatus,
        out: &mut impl ReplySink,
    ) -> AnswerBody {
        let columns = (0..self.len()).flat_map(|at| <[&[u8]; 2]>::from(self.pair(self.starts[at])));
        let encoding = ColumnEncoding::choose(columns);
        if encoding != ColumnEncoding::Raw {
            self = self.encoded(encoding);
        }
        let mut starts = std::mem::take(&mut self.starts);
        let name = |start: u32| self.pair(start).0;
        if !starts.is_sorted_by(|&one, &next| name(one) <= name(next)) {
            starts.sort_unstable_by(|&one, &other| name(one).cmp(name(other)));
        }
        let remaining = starts.iter().map(|&start| self.line(start).len()).sum();
        self.starts = starts;
        put_head(form, banner, status, (!form.is_head).then_some(remaining), out);
        out.put(b"Content-Type: ");
        out.put(encoding.content_type().as_bytes());
        out.put(b"\r\n\r\n");
        if form.is_head {
            return AnswerBody::default();
        }
        AnswerBody { lines: self, next: 0, written: 0, remaining }
    }

    /// Returns the same pairs with encoded columns. Releases each piece of memory after its last
    /// line was encoded.
    fn encoded(mut self, encoding: ColumnEncoding) -> LongAnswer {
        let mut encoded = LongAnswer::default();
        let mut pieces_done = 0;
        for start in std::mem::take(&mut self.starts) {
            let piece = (start >> PIECE_BITS) as usize;
            // The earlier pieces are not needed any more, because the lines were added in order.
            self.pieces[pieces_done..piece].fill(Vec::new());
            pieces_done = piece;
            let (name, value) = self.pair(start);
            let (name_len, value_len) = (encoding.encoded_len(name), encoding.encoded_len(value));
            let is_added = encoded.push_with(name_len, value_len, |piece| {
                encoding.encode(name, piece);
                piece.push(b'\t');
                encoding.encode(value, piece);
            });
            debug_assert!(is_added, "bounded by the limit of an answer");
        }
        encoded
    }

    fn push_with(&mut self, name_len: usize, value_len: usize, put: impl FnOnce(&mut Vec<u8>)) -> bool {
        let numbers_len = varnum::len(name_len as u64) + varnum::len(value_len as u64);
        let wanted = line_len(name_len + value_len, numbers_len);
        if !self.pieces.last().is_some_and(|piece| has_room(piece, wanted)) {
            if self.pieces.len() == PIECES_MAX {
                return false;
            }
            let len = if self.pieces.is_empty() { FIRST_LEN } else { PIECE_LEN };
            self.pieces.push(Vec::with_capacity(wanted.max(len)));
            self.capacity += wanted.max(len);
        }
        let number = self.pieces.len() - 1;
        let piece = &mut self.pieces[number];
        self.starts.push((number << PIECE_BITS | piece.len()) as u32);
        varnum::put(name_len as u64, piece);
        varnum::put(value_len as u64, piece);
        put(piece);
        piece.push(b'\n');
        true
    }

    /// Returns the name and the value of a line.
    fn pair(&self, start: u32) -> (&[u8], &[u8]) {
        let (name_len, value_len, text) = self.parts(start);
        (&text[..name_len], &text[name_len + 1..name_len + 1 + value_len])
    }

    /// Returns a line as the answer contains it.
    fn line(&self, start: u32) -> &[u8] {
        let (name_len, value_len, text) = self.parts(start);
        &text[..name_len + value_len + 2]
    }

    fn parts(&self, start: u32) -> (usize, usize, &[u8]) {
        let piece = &self.pieces[(start >> PIECE_BITS) as usize];
        let text = &piece[start as usize % PIECE_LEN..];
        let number = |bytes: &[u8]| match varnum::read(bytes) {
            varnum::VarnumRead::Whole(number, len) => (number as usize, len),
            varnum::VarnumRead::Partial | varnum::VarnumRead::Malformed => (0, 0),
        };
        let (name_len, one) = number(text);
        let (value_len, two) = number(&text[one..]);
        (name_len, value_len, &text[one + two..])
    }
}

/// Returns the stored length of a line with columns of `columns_len` bytes and lengths of
/// `numbers_len` bytes.
fn line_len(columns_len: usize, numbers_len: usize) -> usize {
    numbers_len + columns_len + b"\t\n".len()
}

fn has_room(piece: &Vec<u8>, wanted: usize) -> bool {
    piece.len() < PIECE_LEN && piece.capacity() - piece.len() >= wanted
}

impl AnswerBody {
    /// Returns the number of bytes still to be written.
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// Returns the memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.lines.memory_bytes()
    }

    /// Writes the next bytes, up to `len_max`, and returns their number.
    pub fn fill(&mut self, len_max: usize, out: &mut impl ReplySink) -> usize {
        let mut left = len_max.min(self.remaining);
        let len = left;
        while left > 0 {
            let line = &self.lines.line(self.lines.starts[self.next])[self.written..];
            let taken = left.min(line.len());
            out.put(&line[..taken]);
            left -= taken;
            if taken == line.len() {
                (self.next, self.written) = (self.next + 1, 0);
            } else {
                self.written += taken;
            }
        }
        self.remaining -= len;
        if self.remaining == 0 {
            *self = AnswerBody::default();
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kyoto::AnswerPairs;

    /// Writes an answer in pieces of `step` bytes and asserts that `AnswerPairs` writes the same
    /// bytes.
    fn assert_same(pairs: &[(Vec<u8>, Vec<u8>)], step: usize) {
        let (mut long, mut output) = (LongAnswer::default(), AnswerPairs::default());
        for (name, value) in pairs {
            assert!(long.push(b"_", name, value));
            output.push_record(name, value);
        }
        assert_eq!(long.len(), pairs.len());
        let (form, banner) = (HttpForm::new(true, false), AnswerBanner::new("T", 0));
        let (mut expected, mut written) = (Vec::new(), Vec::new());
        output.write(&form, &banner, AnswerStatus::Ok, &mut expected);
        let mut body = long.begin(&form, &banner, AnswerStatus::Ok, &mut written);
        let head_len = written.len();
        assert_eq!(head_len + body.remaining(), expected.len());
        while body.remaining() > 0 {
            let before = written.len();
            let filled = body.fill(step, &mut written);
            assert_eq!(written.len() - before, filled);
            assert!(filled > 0 && filled <= step);
        }
        assert_eq!(body.memory_bytes(), 0);
        assert!(written == expected, "{} pairs in steps of {step}", pairs.len());
    }

    #[test]
    fn long_answer_equals_short_one_in_any_pieces() {
        let text = |number: usize| (format!("{:05}", number * 7919 % 10_000).into_bytes(), b"value".to_vec());
        let odd =
            |number: usize| (vec![number as u8, b'\t', 0xFF, (number >> 8) as u8], vec![0; number % 300]);
        for count in [0, 1, 5, 4000] {
            for step in [1, 7, 65_536] {
                assert_same(&(0..count).map(text).collect::<Vec<_>>(), step);
                assert_same(&(0..count).map(odd).collect::<Vec<_>>(), step.max(5));
            }
        }
        // Some lines are longer than a piece of memory, and some begin at the end of a piece.
        let large: Vec<_> = (0..6usize)
            .map(|number| (vec![b'a' + number as u8], vec![b'v'; PIECE_LEN / 2 * number]))
            .collect();
        assert_same(&large, 100_000);
    }

    #[test]
    fn memory_of_a_long_answer_is_bounded() {
        let mut long = LongAnswer::default();
        for number in 0..300_000 {
            let key = format!("key:{number:026}");
            assert!(long.push(b"_", key.as_bytes(), number.to_string().as_bytes()));
        }
        let memory = long.memory_bytes();
        let body = long.begin(
            &HttpForm::new(true, false),
            &AnswerBanner::new("T", 0),
            AnswerStatus::Ok,
            &mut Vec::new(),
        );
        assert_eq!(body.remaining(), 11_588_890);
        assert!(memory < 16 << 20, "{memory}");
    }
}
