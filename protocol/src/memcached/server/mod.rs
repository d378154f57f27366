//! The server side of memcached's text and meta dialects: decodes requests to commands, and encodes
//! replies as bytes. A connection that begins with a binary packet is passed to the binary dialect.
//!
//! ```text
//! frame    one line of the input, and the data block after it
//! words    the words of a line, found eight bytes at a time
//! number   the number formats, each with its own rules
//! text     get, set, incr ...: their words -> a command
//! meta     mg, ms, md, ma, me: their key and mode -> a command
//! login    the only command before a login
//! administration  lru_crawler, watch, slabs, lru, extstore, todana -> a command
//! flags    the flags of the meta commands
//! form     the properties of a request on which its reply depends
//! reply    replies -> bytes
//! ```
//!
//! Invariants:
//! - Commands and forms borrow from the input. Only base64 keys are copied, into the caller's
//!   scratch.
//! - A [`MemcachedDecoder`] is a few words of state and has no buffer.
//! - The requests do not depend on how the input is split.
//! - Each byte of an incomplete line is examined once.
//! - An unwanted data block of any length is discarded as it arrives.
//!
//! Not here: the meaning of commands (see the `todana` crate), clocks, sockets.

mod administration;
mod flags;
mod form;
mod forwarding;
mod frame;
mod login;
mod meta;
mod number;
mod reply;
mod text;
mod words;

pub use form::ReplyForm;
pub use forwarding::HiddenReplies;
pub use reply::{ReplySink, encode, put_uri_encoded, refusal_text};

pub(super) use reply::{body as put_value, prefixes as put_prefixes};

use super::binary;
use crate::memcached::MemcachedCommand;
use frame::LineFrame;
use memchr::memchr;
use todana_core::SharedBytes;

/// The longest key, in bytes.
pub(super) const KEY_LEN_MAX: usize = 250;

/// The reply to most malformed lines.
const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// The reply to an item over the size limit.
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// The reply to an item for which there is no memory.
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";

/// The reply to an item whose memory runs out during its arrival.
const OUT_OF_MEMORY_IN_READ: &str = "SERVER_ERROR Out of memory during read";

/// The limits of requests, common to all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemcachedLimits {
    /// The largest item in bytes, by memcached's size rule (see [`item_size`](super::item_size)).
    pub item_size_max: u64,
    /// The longest line in bytes, including its line end, of all commands except `get`, `gets`,
    /// `gat` and `gats`. A limit below 128 counts as 128.
    pub line_len_max: usize,
    /// The longest line of `get`, `gets`, `gat` and `gats`, in bytes. memcached has no such limit
    /// for `get` and `gets`.
    pub get_line_len_max: usize,
    /// The number of bytes of an incomplete request that may be kept in memory at the moment. A
    /// larger data block is refused for lack of memory and discarded as it arrives. A line longer
    /// than `line_len_max` closes the connection.
    pub unfinished_len_max: usize,
    /// The length from which a data block is announced by [`MemcachedStep::Block`] and received
    /// separately. `unfinished_len_max` does not apply to such blocks.
    pub long_block_len: usize,
    /// False to refuse `flush_all` (`-F`).
    pub flush_allowed: bool,
    /// The dialects that connections may use (`-B`).
    pub choice: DialectChoice,
    /// True to decode SASL packets of the binary dialect as commands (`-S`), and to refuse most
    /// other packets until [`MemcachedDecoder::accept_login`] is called. False to treat SASL
    /// packets as unknown.
    pub sasl: bool,
    /// True to accept only a login in the text dialect until [`MemcachedDecoder::accept_login`] is
    /// called (`-Y`).
    pub text_login: bool,
    /// True to read a negative time to live in a text command as a sliding expiry: the record
    /// expires that number of seconds after its last access. False to let such a record expire at
    /// once.
    pub negative_is_sliding: bool,
    /// True to enable `debugtime`, which is for tests.
    pub debug_commands: bool,
}

/// The choice of a connection's dialect. The dialect never changes during a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DialectChoice {
    /// Binary if the first byte of the connection begins a binary packet, otherwise text.
    #[default]
    Auto,
    /// Text only.
    Text,
    /// Binary only. Other input closes the connection.
    Binary,
}

impl Default for MemcachedLimits {
    fn default() -> Self {
        MemcachedLimits {
            item_size_max: 1 << 20,
            line_len_max: 2048,
            get_line_len_max: 1 << 20,
            unfinished_len_max: usize::MAX,
            long_block_len: usize::MAX,
            flush_allowed: true,
            choice: DialectChoice::default(),
            sasl: false,
            text_login: false,
            negative_is_sliding: false,
            debug_commands: false,
        }
    }
}

/// A request: the command, and the form of its reply.
#[derive(Clone, Copy, Debug)]
pub struct MemcachedRequest<'a> {
    /// The command.
    pub command: MemcachedCommand<'a>,
    /// The form of the reply.
    pub form: ReplyForm<'a>,
}

/// The beginning of a request, which observers show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestHead<'a> {
    /// A line of text, without its line end.
    Line(&'a [u8]),
    /// A packet of the binary dialect.
    Packet {
        /// The header.
        header: &'a [u8; 24],
        /// The name of the opcode.
        name: &'static str,
        /// The part of the key that has arrived.
        key: &'a [u8],
        /// The length of the value, if the packet stores one.
        value_len: Option<usize>,
    },
    /// Nothing to show: the request continues a line that was shown before, or none of its bytes
    /// has arrived.
    Continued,
}

/// The result of decoding the unread bytes.
#[derive(Clone, Copy, Debug)]
pub enum MemcachedStep<'a> {
    /// A complete request.
    Request {
        /// The consumed bytes of the input, at least 1.
        consumed: usize,
        /// The request, which borrows from the input.
        request: MemcachedRequest<'a>,
    },
    /// No complete request has arrived: drop `consumed` bytes (of a block that is being discarded),
    /// read at least `at_least` more bytes, and decode again.
    NeedMore {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The number of bytes that are certainly missing, at least 1. In a data block this is the
        /// complete missing part, so that a buffer can be sized once. In a line, or in a block that
        /// is being discarded, it is 1.
        at_least: usize,
    },
    /// A request with a long data block, which is decoded after the block has arrived. Keep the
    /// head, receive the value into its final memory, receive the end of the block, and call
    /// [`MemcachedDecoder::decode_block`].
    Block {
        /// The consumed bytes of the input before the head.
        consumed: usize,
        /// The length of the head, which begins after the consumed bytes.
        head_len: usize,
        /// The length of the value, which begins after the head.
        value_len: usize,
        /// The length of the end of the block, which follows the value.
        end_len: usize,
    },
    /// Close the connection after pending replies have been sent.
    Close,
}

/// The outcome of a data block that was received separately.
#[derive(Clone, Copy)]
pub enum LongBlock<'a> {
    /// The block is complete.
    Whole {
        /// The value, in plain form.
        value: &'a SharedBytes,
        /// The bytes after the value. Their number was announced as `end_len`.
        end: &'a [u8],
    },
    /// There is no memory for the block. The received bytes were dropped, and the other bytes will
    /// be discarded.
    Refused {
        /// The number of bytes received, of the value and the end together.
        received: usize,
    },
}

/// The decoder of one connection: a few bytes of state, no buffer.
///
/// A `get` of several keys becomes one [`Get`](todana_core::Get) per key, so that the server can
/// pause between two keys if the client reads slowly. The form of the last `Get` also writes the
/// `END`.
///
/// ```
/// use todana_core::{Get, Operation, Reply};
/// use todana_protocol::memcached::{
///     MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedStep, encode,
/// };
///
/// let (mut decoder, mut scratch, mut out) = (MemcachedDecoder::default(), Vec::new(), Vec::new());
/// let step = decoder.decode(&MemcachedLimits::default(), b"get cart:17\r\n", &mut scratch);
/// let MemcachedStep::Request { consumed: 13, request } = step else { panic!("{step:?}") };
/// let get = Get { key: b"cart:17", ..Get::default() };
/// assert_eq!(request.command, MemcachedCommand::Operation(Operation::Get(get)));
/// encode(&request.form, &Reply::Miss, &mut out);
/// assert_eq!(out, b"END\r\n");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MemcachedDecoder {
    mode: DecoderState,
    /// True if the client has authenticated.
    is_authenticated: bool,
}

/// The decoder's position in the stream.
#[derive(Clone, Copy, Debug, Default)]
enum DecoderState {
    /// At the first byte of the connection.
    #[default]
    Start,
    /// At the start of a line whose first `scanned` bytes contain no line end.
    Line { scanned: usize },
    /// At the start of a line whose data block ends `total` bytes from here.
    Block { total: usize },
    /// In a block that is being discarded. `left` bytes of the block remain.
    Discard { left: usize },
    /// Between two keys of a `get` line that has been checked.
    Keys(text::GetLine),
    /// In a stream of binary packets.
    Binary(binary::PacketPosition),
}

impl DialectChoice {
    /// Returns true if a connection that begins with this byte uses the binary dialect.
    fn is_binary(self, first: u8) -> bool {
        match self {
            DialectChoice::Auto => first == binary::REQUEST_MAGIC,
            DialectChoice::Text => false,
            DialectChoice::Binary => true,
        }
    }
}

impl MemcachedDecoder {
    /// Marks the client as authenticated. From now on all commands are accepted.
    pub fn accept_login(&mut self) {
        self.is_authenticated = true;
    }

    /// Returns true if the stream consists of binary packets.
    pub fn is_binary(&self) -> bool {
        matches!(self.mode, DecoderState::Binary(_))
    }

    /// Returns the beginning of the request that the next step will decode. Must be called before
    /// the step.
    pub fn head<'a>(&self, limits: &MemcachedLimits, input: &'a [u8]) -> RequestHead<'a> {
        let unread = match self.mode {
            DecoderState::Keys(_) => return RequestHead::Continued,
            DecoderState::Binary(place) => return binary::head(place, input),
            DecoderState::Start if input.first().is_some_and(|&first| limits.choice.is_binary(first)) => {
                return binary::head(binary::PacketPosition::default(), input);
            }
            DecoderState::Discard { left } => input.get(left..).unwrap_or_default(),
            DecoderState::Start | DecoderState::Line { .. } | DecoderState::Block { .. } => input,
        };
        let Some(len) = memchr(b'\n', unread) else { return RequestHead::Continued };
        RequestHead::Line(unread[..len].strip_suffix(b"\r").unwrap_or(&unread[..len]))
    }

    /// Returns true if the connection uses the binary dialect. Before the first decoded request,
    /// the first byte of `input` decides.
    pub fn begins_binary(&self, limits: &MemcachedLimits, input: &[u8]) -> bool {
        match self.mode {
            DecoderState::Start => input.first().is_some_and(|&first| limits.choice.is_binary(first)),
            _ => self.is_binary(),
        }
    }

    /// Returns true if some but not all keys of a `get` line have been answered.
    pub fn is_between_keys(&self) -> bool {
        matches!(self.mode, DecoderState::Keys(_))
    }

    /// Returns true if the next byte is the first one of a line.
    #[inline]
    pub fn is_before_line(&self) -> bool {
        matches!(self.mode, DecoderState::Start | DecoderState::Line { scanned: 0 })
    }

    /// Consumes the rest of a block or of the body of a packet that is being discarded, so that the
    /// next byte may begin a request. Returns the number of consumed bytes.
    #[inline]
    pub fn skip_discarded(&mut self, input: &[u8]) -> usize {
        let left = match &mut self.mode {
            DecoderState::Discard { left } => *left,
            DecoderState::Binary(place) => return binary::skip_discarded(place, input),
            _ => return 0,
        };
        let skipped = left.min(input.len());
        self.mode = match left - skipped {
            0 => DecoderState::Line { scanned: 0 },
            left => DecoderState::Discard { left },
        };
        skipped
    }

    /// Marks the client as unauthenticated again.
    pub fn revoke_login(&mut self) {
        self.is_authenticated = false;
    }

    /// Decodes the next step from `input`, which must contain all unread bytes: the bytes that the
    /// last call did not consume, and the bytes that have arrived since. `scratch` receives decoded
    /// base64 keys.
    ///
    /// Must not be called again after [`MemcachedStep::Close`]. After a
    /// [`MemcachedCommand::Authenticate`] it must not be called before the reply is known, because
    /// the meaning of the following bytes depends on the reply.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        limits: &MemcachedLimits,
        input: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> MemcachedStep<'a> {
        let mut skipped = 0;
        let scanned = match self.mode {
            DecoderState::Line { scanned } => scanned.min(input.len()),
            DecoderState::Binary(ref mut place) => {
                return binary::decode(place, limits, self.is_authenticated, input);
            }
            DecoderState::Start => {
                let Some(&first) = input.first() else {
                    return MemcachedStep::NeedMore { consumed: 0, at_least: 1 };
                };
                if limits.choice.is_binary(first) {
                    let mut place = binary::PacketPosition::default();
                    let step = binary::decode(&mut place, limits, self.is_authenticated, input);
                    self.mode = DecoderState::Binary(place);
                    return step;
                }
                0
            }
            DecoderState::Keys(retrieval) => return text::next_key(self, retrieval, input),
            DecoderState::Block { total }
                if input.len() < total && input.len() <= limits.unfinished_len_max =>
            {
                return MemcachedStep::NeedMore { consumed: 0, at_least: total - input.len() };
            }
            DecoderState::Block { .. } => 0,
            DecoderState::Discard { .. } => {
                skipped = self.skip_discarded(input);
                if matches!(self.mode, DecoderState::Discard { .. }) {
                    return MemcachedStep::NeedMore { consumed: skipped, at_least: 1 };
                }
                0
            }
        };
        let unread = &input[skipped..];
        let Some(newline) = memchr(b'\n', &unread[scanned..]).map(|at| scanned + at) else {
            let len = unread.len() + 1;
            let is_unauthenticated = limits.text_login && !self.is_authenticated;
            if frame::is_line_too_long(limits, unread, len)
                || is_unauthenticated && len > limits.line_len_max
                || len > limits.line_len_max.max(limits.unfinished_len_max)
            {
                return MemcachedStep::Close;
            }
            self.mode = DecoderState::Line { scanned: unread.len() };
            return MemcachedStep::NeedMore { consumed: skipped, at_least: 1 };
        };
        let line_len = newline + 1;
        if line_len > limits.line_len_max && frame::is_line_too_long(limits, unread, line_len) {
            return MemcachedStep::Close;
        }
        self.mode = DecoderState::Line { scanned: 0 };
        if limits.text_login && !self.is_authenticated {
            if line_len > limits.line_len_max {
                return MemcachedStep::Close;
            }
            return login::decode(self, limits, LineFrame { skipped, unread, line_len, block: None });
        }
        text::decode(self, limits, LineFrame { skipped, unread, line_len, block: None }, scratch)
    }

    /// Decodes the request that [`MemcachedStep::Block`] announced. `head` are the bytes of the
    /// announced head. The limits must not have decreased since the announcement. The consumed
    /// length of the returned step has no meaning. [`decode`](Self::decode) then continues with the
    /// byte after the block, or after the received part of the block.
    pub fn decode_block<'a>(
        &mut self,
        limits: &MemcachedLimits,
        head: &'a [u8],
        block: LongBlock<'a>,
        scratch: &'a mut Vec<u8>,
    ) -> MemcachedStep<'a> {
        match &mut self.mode {
            DecoderState::Binary(place) => binary::decode_block(place, limits, head, block),
            _ => {
                self.mode = DecoderState::Line { scanned: 0 };
                let frame = LineFrame { skipped: 0, unread: head, line_len: head.len(), block: Some(block) };
                if limits.text_login && !self.is_authenticated {
                    return login::decode(self, limits, frame);
                }
                text::decode(self, limits, frame, scratch)
            }
        }
    }
}
