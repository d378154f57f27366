//! A frame: one line at the start of the unread bytes, and the data block that may follow it.

use super::{Dialect, Form, Limits, LongBlock, Mode, OUT_OF_MEMORY, OUT_OF_MEMORY_IN_READ, Request, Step};
use crate::memcached::Command;
use todana_core::SharedValue;

/// One whole line of the input.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    /// Bytes of the input before the line that are done with.
    pub(super) skipped: usize,
    /// The input from the line on.
    pub(super) unread: &'a [u8],
    /// The length of the line, its end included.
    pub(super) line_len: usize,
    /// The block behind the line, if it was received apart.
    pub(super) block: Option<LongBlock<'a>>,
}

/// The data block behind a line.
pub(super) enum Block<'a> {
    /// It is all here and ends as it should.
    Whole(&'a [u8], SharedValue<'a>),
    /// It is all here, but what stands behind its last byte is not a line end.
    Unterminated,
    /// It is not all here, or shall be received apart.
    Partial(Step<'a>),
    /// It is not all here, and no more of it may be kept.
    Refused {
        /// What memcached says in this case.
        message: &'static str,
    },
}

/// The longest data block that can be announced: what fits a signed 32-bit length with its line end.
pub(super) const VALUE_LEN_MAX: usize = i32::MAX as usize - 2;

/// The line end behind a data block.
const BLOCK_END: &[u8] = b"\r\n";

impl<'a> Frame<'a> {
    /// The line without its end.
    #[inline]
    pub(super) fn line(&self) -> &'a [u8] {
        line_body(&self.unread[..self.line_len])
    }

    /// A request of this line alone.
    #[inline]
    pub(super) fn request(&self, command: Command<'a>, form: Form<'a>) -> Step<'a> {
        Step::Request { consumed: self.skipped + self.line_len, request: Request { command, form } }
    }

    /// A request of this line and its data block.
    #[inline]
    pub(super) fn request_with_block(
        &self,
        value_len: usize,
        command: Command<'a>,
        form: Form<'a>,
    ) -> Step<'a> {
        let consumed = self.skipped + self.line_len + value_len + BLOCK_END.len();
        Step::Request { consumed, request: Request { command, form } }
    }

    /// The line is at fault.
    #[cold]
    pub(super) fn fault(&self, message: &'static str, form: Form<'a>) -> Step<'a> {
        self.request(Command::Faulty { message }, form)
    }

    /// The line is answered by `command`; the block that it announces is dropped as it arrives.
    #[cold]
    pub(super) fn without_block(
        &self,
        dialect: &mut Dialect,
        value_len: usize,
        command: Command<'a>,
        form: Form<'a>,
    ) -> Step<'a> {
        let total = value_len + BLOCK_END.len();
        let received = match self.block {
            None => 0,
            Some(LongBlock::Refused { received }) => received,
            Some(LongBlock::Whole { .. }) => total,
        };
        dialect.mode = Mode::Swallow { left: total - received.min(total) };
        self.request(command, form)
    }

    /// The data block of this length behind the line.
    #[inline]
    pub(super) fn block(&self, dialect: &mut Dialect, limits: &Limits, value_len: usize) -> Block<'a> {
        match self.block {
            None if value_len >= limits.long_block_len => return self.announced(value_len),
            None => {}
            Some(block) => return received(block),
        }
        let end = self.line_len + value_len;
        let total = end + BLOCK_END.len();
        if self.unread.len() < total {
            if self.unread.len() > limits.unfinished_len_max {
                return Block::Refused { message: OUT_OF_MEMORY };
            }
            dialect.mode = Mode::Block { total };
            let at_least = total - self.unread.len();
            return Block::Partial(Step::NeedMore { consumed: self.skipped, at_least });
        }
        if &self.unread[end..total] != BLOCK_END {
            return Block::Unterminated;
        }
        Block::Whole(&self.unread[self.line_len..end], SharedValue(None))
    }

    #[cold]
    fn announced(&self, value_len: usize) -> Block<'a> {
        Block::Partial(Step::Block {
            consumed: self.skipped,
            head_len: self.line_len,
            value_len,
            end_len: BLOCK_END.len(),
        })
    }
}

#[cold]
fn received(block: LongBlock<'_>) -> Block<'_> {
    match block {
        LongBlock::Whole { value, end: BLOCK_END } => {
            Block::Whole((**value).as_ref(), SharedValue(Some(value)))
        }
        LongBlock::Whole { .. } => Block::Unterminated,
        LongBlock::Refused { received: 0 } => Block::Refused { message: OUT_OF_MEMORY },
        LongBlock::Refused { .. } => Block::Refused { message: OUT_OF_MEMORY_IN_READ },
    }
}

/// A line without its `\n` and the `\r` before it.
#[inline]
pub(super) fn line_body(line: &[u8]) -> &[u8] {
    let body = line.strip_suffix(b"\n").unwrap_or(line);
    body.strip_suffix(b"\r").unwrap_or(body)
}

/// Whether a line that begins with `start` and is (or will be at least) `line_len` long closes the connection.
///
/// The rule looks at the line's own bytes and length only, never at how much has arrived with it, so that
/// it does not depend on how the network has cut the stream.
pub(super) fn is_line_too_long(limits: &Limits, start: &[u8], line_len: usize) -> bool {
    const SPACES_MAX: usize = 100;
    // Enough to see the word behind the spaces, whatever the limit is set to.
    const LINE_LEN_MAX_LEAST: usize = 128;

    if line_len <= limits.line_len_max.max(LINE_LEN_MAX_LEAST) {
        return false;
    }
    let spaces = start.iter().take(SPACES_MAX).take_while(|&&byte| byte == b' ').count();
    let word = &start[spaces..];
    // memcached takes a long `gat` where all of it arrives at once, which clients cannot control.
    let may_grow = [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|name| word.starts_with(name));
    !may_grow || line_len > limits.get_line_len_max
}
