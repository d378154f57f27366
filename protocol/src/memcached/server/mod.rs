//! The server side of memcached's text and meta dialects: request bytes in, commands out; replies
//! in, reply bytes out. A connection that begins with a binary packet is passed to the binary
//! dialect.
//!
//! ```text
//! frame    one line of the input, and the data block after it
//! words    the words of a line, found eight bytes at a time
//! number   the number formats, each with its own rules
//! text     get, set, incr ...: their words -> a command
//! meta     mg, ms, md, ma, me: their key and mode -> a command
//! login    the only command before a login
//! administration  lru_crawler, watch, slabs, lru, extstore, todana -> a command
//! flags    the one-letter flags of the meta commands
//! form     properties of a request that its reply depends on
//! reply    replies -> bytes
//! ```
//!
//! Invariants: commands and forms borrow from the input, and only base64 keys are copied (into the
//! caller's scratch); a [`MemcachedDecoder`] is a few words of state and no buffer; the requests do
//! not depend on how the input is split; each byte of an incomplete line is examined once; an
//! unwanted block of any length is discarded as it arrives.
//!
//! Not here: the meaning of commands (see the `todana` crate), clocks, sockets.

mod administration;
mod flags;
mod form;
mod frame;
mod login;
mod meta;
mod number;
mod reply;
mod text;
mod words;

pub use form::ReplyForm;
pub use reply::{ReplySink, encode, put_uri_encoded};

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

/// The bounds of a request, common to all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemcachedLimits {
    /// The largest item, by memcached's size rule (see [`item_size`](super::item_size)).
    pub item_size_max: u64,
    /// The longest line, including its end, of all commands except `get`, `gets`, `gat` and `gats`.
    /// Values below 128 count as 128.
    pub line_len_max: usize,
    /// The longest line of `get`, `gets`, `gat` and `gats`; memcached has no limit for the first
    /// two.
    pub get_line_len_max: usize,
    /// The number of bytes of an incomplete request that may be kept at the moment. A larger data
    /// block is refused for lack of memory and discarded as it arrives. A line longer than
    /// `line_len_max` closes the connection.
    pub unfinished_len_max: usize,
    /// Data blocks of at least this length are announced by [`MemcachedStep::Block`] and received
    /// separately; `unfinished_len_max` does not apply to them.
    pub long_block_len: usize,
    /// False refuses `flush_all` (`-F`).
    pub flush_allowed: bool,
    /// The dialect of connections (`-B`).
    pub choice: DialectChoice,
    /// True turns SASL packets of the binary dialect into commands (`-S`), and refuses most others
    /// until [`MemcachedDecoder::admit`]. False treats them as unknown.
    pub sasl: bool,
    /// True accepts only a login in the text dialect until [`MemcachedDecoder::admit`] (`-Y`).
    pub text_login: bool,
    /// True reads a negative time to live of the text commands as a sliding one of that many
    /// seconds after the last access. False expires such a record at once.
    pub negative_is_sliding: bool,
    /// True enables `debugtime`, which is for tests.
    pub debug_commands: bool,
}

/// The dialect of a connection, which never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DialectChoice {
    /// Binary if the connection's first byte begins a binary packet, otherwise text.
    #[default]
    Auto,
    /// Text only.
    Text,
    /// Binary only; other input closes the connection.
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

/// One request: the command, and the form of its reply.
#[derive(Clone, Copy, Debug)]
pub struct MemcachedRequest<'a> {
    /// The command.
    pub command: MemcachedCommand<'a>,
    /// The form of the reply.
    pub form: ReplyForm<'a>,
}

/// The beginning of a request, for observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestHead<'a> {
    /// A line of text, without its end.
    Line(&'a [u8]),
    /// A packet: its header, the name of its opcode, its key, and the length of the value that it
    /// stores.
    Packet {
        /// The header.
        header: &'a [u8; 24],
        /// The name of the opcode.
        name: &'static str,
        /// The key, as far as it has arrived.
        key: &'a [u8],
        /// The length of the value, if the packet stores one.
        value_len: Option<usize>,
    },
    /// The request continues a line that has been shown, or none of it has arrived.
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
    /// No complete request: drop `consumed` bytes (of a block being discarded), read at least
    /// `at_least` more, and decode again.
    NeedMore {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The number of bytes that are certainly missing, at least 1. For a data block this is the
        /// entire missing part, so that a buffer can be sized once. For a line, or a block being
        /// discarded, it is 1.
        at_least: usize,
    },
    /// A request with a long data block. Nothing is decoded until the block has arrived: keep the
    /// head, receive the value into its final memory and then the end of the block, and call
    /// [`MemcachedDecoder::decode_block`].
    Block {
        /// The consumed bytes of the input before the head.
        consumed: usize,
        /// The length of the head, which follows.
        head_len: usize,
        /// The length of the value after it.
        value_len: usize,
        /// The length of the end of the block, after the value.
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
        /// The value.
        value: &'a SharedBytes,
        /// The bytes after the value, as long as announced.
        end: &'a [u8],
    },
    /// There is no memory for the block. Its received bytes are gone, and the rest will be
    /// discarded.
    Refused {
        /// The number of bytes received, of value and end together.
        received: usize,
    },
}

/// The decoder of one connection: a few bytes of state, no buffer.
///
/// A `get` of several keys becomes one [`Get`](todana_core::Get) per key, so that a slow reader can
/// be paused between them. The form of the last one also writes the `END`.
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
    /// The client has authenticated.
    is_admitted: bool,
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
    /// In a block that is being discarded; `left` bytes of it remain.
    Swallow { left: usize },
    /// Between two keys of a get line that has been checked.
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
    /// Marks the client as authenticated: from now on all commands are accepted.
    pub fn admit(&mut self) {
        self.is_admitted = true;
    }

    /// Returns true if the stream consists of binary packets.
    pub fn is_binary(&self) -> bool {
        matches!(self.mode, DecoderState::Binary(_))
    }

    /// Returns the beginning of the request that the next step will decode. Must be called before
    /// that step.
    pub fn head<'a>(&self, limits: &MemcachedLimits, input: &'a [u8]) -> RequestHead<'a> {
        let unread = match self.mode {
            DecoderState::Keys(_) => return RequestHead::Continued,
            DecoderState::Binary(place) => return binary::head(place, input),
            DecoderState::Start if input.first().is_some_and(|&first| limits.choice.is_binary(first)) => {
                return binary::head(binary::PacketPosition::default(), input);
            }
            DecoderState::Swallow { left } => input.get(left..).unwrap_or_default(),
            DecoderState::Start | DecoderState::Line { .. } | DecoderState::Block { .. } => input,
        };
        let Some(len) = memchr(b'\n', unread) else { return RequestHead::Continued };
        RequestHead::Line(unread[..len].strip_suffix(b"\r").unwrap_or(&unread[..len]))
    }

    /// Returns true if the connection uses the binary dialect, given its first bytes if nothing has
    /// been decoded yet.
    pub fn begins_binary(&self, limits: &MemcachedLimits, input: &[u8]) -> bool {
        match self.mode {
            DecoderState::Start => input.first().is_some_and(|&first| limits.choice.is_binary(first)),
            _ => self.is_binary(),
        }
    }

    /// Returns true if some but not all keys of a line have been answered.
    pub fn is_between_keys(&self) -> bool {
        matches!(self.mode, DecoderState::Keys(_))
    }

    /// Marks the client as unauthenticated again.
    pub fn expel(&mut self) {
        self.is_admitted = false;
    }

    /// Decodes the next step from `input`, the unread bytes: the bytes of the last call that were
    /// not consumed, and all that have arrived since. `scratch` receives decoded data (base64
    /// keys).
    ///
    /// Must not be called again after [`MemcachedStep::Close`].
    ///
    /// After a [`MemcachedCommand::Authenticate`] it must not be called before the reply is known,
    /// because the meaning of the following bytes depends on it.
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
                return binary::decode(place, limits, self.is_admitted, input);
            }
            DecoderState::Start => {
                let Some(&first) = input.first() else {
                    return MemcachedStep::NeedMore { consumed: 0, at_least: 1 };
                };
                if limits.choice.is_binary(first) {
                    let mut place = binary::PacketPosition::default();
                    let step = binary::decode(&mut place, limits, self.is_admitted, input);
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
            DecoderState::Swallow { left } if input.len() < left => {
                self.mode = DecoderState::Swallow { left: left - input.len() };
                return MemcachedStep::NeedMore { consumed: input.len(), at_least: 1 };
            }
            DecoderState::Swallow { left } => {
                skipped = left;
                0
            }
        };
        let unread = &input[skipped..];
        let Some(newline) = memchr(b'\n', &unread[scanned..]).map(|at| scanned + at) else {
            let len = unread.len() + 1;
            let is_unauthenticated = limits.text_login && !self.is_admitted;
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
        if limits.text_login && !self.is_admitted {
            if line_len > limits.line_len_max {
                return MemcachedStep::Close;
            }
            return login::decode(self, limits, LineFrame { skipped, unread, line_len, block: None });
        }
        text::decode(self, limits, LineFrame { skipped, unread, line_len, block: None }, scratch)
    }

    /// Decodes the request that [`MemcachedStep::Block`] announced. `head` are the bytes of the
    /// announced head, and the limits must not have decreased since. The consumed length of the
    /// returned step has no meaning. [`decode`](Self::decode) then continues with the byte after
    /// the block, or after its received part.
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
                if limits.text_login && !self.is_admitted {
                    return login::decode(self, limits, frame);
                }
                text::decode(self, limits, frame, scratch)
            }
        }
    }
}
