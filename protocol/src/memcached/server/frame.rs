//! Defines the frame of a request: a line at the start of the unread bytes, and the data block that
//! may follow it.

use super::{
    DecoderState, LongBlock, MemcachedDecoder, MemcachedLimits, MemcachedRequest, MemcachedStep,
    OUT_OF_MEMORY, OUT_OF_MEMORY_IN_READ, ReplyForm,
};
use crate::memcached::MemcachedCommand;
use todana_core::SharedValue;

/// A complete line of the input.
#[derive(Clone, Copy)]
pub(super) struct LineFrame<'a> {
    /// Consumed bytes of the input before the line.
    pub(super) skipped: usize,
    /// The input, beginning with the line.
    pub(super) unread: &'a [u8],
    /// The length of the line, including its line end.
    pub(super) line_len: usize,
    /// The block after the line, if it was received separately.
    pub(super) block: Option<LongBlock<'a>>,
}

/// The data block after a line.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum DataBlock<'a> {
    /// The block is complete and ends correctly.
    Whole(&'a [u8], SharedValue<'a>),
    /// The block is complete, but no line end follows its last byte.
    Unterminated,
    /// The block is incomplete, or must be received separately.
    Partial(MemcachedStep<'a>),
    /// The block is incomplete, and no more bytes of it may be kept.
    Refused {
        /// memcached's message for this case.
        message: &'static str,
    },
}

/// The longest data block that can be announced, in bytes. Its length together with its line end
/// fits in a signed 32-bit number.
pub(super) const VALUE_LEN_MAX: usize = i32::MAX as usize - 2;

/// The line end after a data block.
const BLOCK_END: &[u8] = b"\r\n";

impl<'a> LineFrame<'a> {
    /// Returns the line without its line end.
    #[inline]
    pub(super) fn line(&self) -> &'a [u8] {
        line_body(&self.unread[..self.line_len])
    }

    /// Returns a request that consists of this line.
    #[inline]
    pub(super) fn request(&self, command: MemcachedCommand<'a>, form: ReplyForm<'a>) -> MemcachedStep<'a> {
        MemcachedStep::Request {
            consumed: self.skipped + self.line_len,
            request: MemcachedRequest { command, form },
        }
    }

    /// Returns a request that consists of this line and its data block.
    #[inline]
    pub(super) fn request_with_block(
        &self,
        value_len: usize,
        command: MemcachedCommand<'a>,
        form: ReplyForm<'a>,
    ) -> MemcachedStep<'a> {
        let consumed = self.skipped + self.line_len + value_len + BLOCK_END.len();
        MemcachedStep::Request { consumed, request: MemcachedRequest { command, form } }
    }

    /// Reports the line as malformed.
    #[cold]
    pub(super) fn fault(&self, message: &'static str, form: ReplyForm<'a>) -> MemcachedStep<'a> {
        self.request(MemcachedCommand::Faulty { message }, form)
    }

    /// Answers the line with `command`. The data block that the line announces is discarded as it
    /// arrives.
    #[cold]
    pub(super) fn without_block(
        &self,
        dialect: &mut MemcachedDecoder,
        value_len: usize,
        command: MemcachedCommand<'a>,
        form: ReplyForm<'a>,
    ) -> MemcachedStep<'a> {
        let total = value_len + BLOCK_END.len();
        let received = match self.block {
            None => 0,
            Some(LongBlock::Refused { received }) => received,
            Some(LongBlock::Whole { .. }) => total,
        };
        dialect.mode = DecoderState::Discard { left: total - received.min(total) };
        self.request(command, form)
    }

    /// Returns the data block of `len` bytes that follows the line.
    #[inline]
    pub(super) fn block(
        &self,
        dialect: &mut MemcachedDecoder,
        limits: &MemcachedLimits,
        value_len: usize,
    ) -> DataBlock<'a> {
        match self.block {
            None if value_len >= limits.long_block_len => return self.announced(value_len),
            None => {}
            Some(block) => return received(block),
        }
        let end = self.line_len + value_len;
        let total = end + BLOCK_END.len();
        if self.unread.len() < total {
            if self.unread.len() > limits.unfinished_len_max {
                return DataBlock::Refused { message: OUT_OF_MEMORY };
            }
            dialect.mode = DecoderState::Block { total };
            let at_least = total - self.unread.len();
            return DataBlock::Partial(MemcachedStep::NeedMore { consumed: self.skipped, at_least });
        }
        if &self.unread[end..total] != BLOCK_END {
            return DataBlock::Unterminated;
        }
        DataBlock::Whole(&self.unread[self.line_len..end], SharedValue(None))
    }

    #[cold]
    fn announced(&self, value_len: usize) -> DataBlock<'a> {
        DataBlock::Partial(MemcachedStep::Block {
            consumed: self.skipped,
            head_len: self.line_len,
            value_len,
            end_len: BLOCK_END.len(),
        })
    }
}

#[cold]
fn received(block: LongBlock<'_>) -> DataBlock<'_> {
    match block {
        LongBlock::Whole { value, end: BLOCK_END } => {
            DataBlock::Whole(value.plain().unwrap_or_default(), SharedValue(Some(value)))
        }
        LongBlock::Whole { .. } => DataBlock::Unterminated,
        LongBlock::Refused { received: 0 } => DataBlock::Refused { message: OUT_OF_MEMORY },
        LongBlock::Refused { .. } => DataBlock::Refused { message: OUT_OF_MEMORY_IN_READ },
    }
}

/// Returns a line without its `\n` and the `\r` before it.
#[inline]
pub(super) fn line_body(line: &[u8]) -> &[u8] {
    let body = line.strip_suffix(b"\n").unwrap_or(line);
    body.strip_suffix(b"\r").unwrap_or(body)
}

/// Returns true if a line that begins with `start` must close the connection, because it has or
/// will have at least `line_len` bytes.
///
/// The rule depends only on the bytes and the length of the line, and never on the bytes that
/// arrived with it. The result therefore does not depend on how the network splits the stream.
pub(super) fn is_line_too_long(limits: &MemcachedLimits, start: &[u8], line_len: usize) -> bool {
    const SPACES_MAX: usize = 100;
    // The least limit of a line. It is long enough for the first word after leading spaces.
    const LINE_LEN_MAX_LEAST: usize = 128;

    if line_len <= limits.line_len_max.max(LINE_LEN_MAX_LEAST) {
        return false;
    }
    let spaces = start.iter().take(SPACES_MAX).take_while(|&&byte| byte == b' ').count();
    let word = &start[spaces..];
    // memcached accepts a long `gat` only if the complete line arrives at once. Clients cannot
    // control this, so `gat` has the limit of `get` here.
    let may_grow = [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|name| word.starts_with(name));
    !may_grow || line_len > limits.get_line_len_max
}
