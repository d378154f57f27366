//! The server's side of memcached's text and meta dialects: request bytes in, commands out; replies in, reply
//! bytes out. A connection that begins with a binary packet is handed to the binary dialect beside this one.
//!
//! ```text
//! frame    one line of the input, and the data block behind it
//! words    the words of a line, found a few bytes at a time
//! number   the number formats, each with its own rules
//! text     get, set, incr ...: their words -> a command
//! meta     mg, ms, md, ma, me: their key and mode -> a command
//! login    what a client may say before it has logged in
//! administration  lru_crawler, watch, slabs, lru, extstore, todana -> a command
//! flags    the one-letter flags of the meta commands
//! form     what a reply must know of its request
//! reply    replies -> bytes
//! ```
//!
//! Always true: commands and forms borrow from the input, nothing is copied but base64 keys (into the caller's
//! scratch); a [`Dialect`] is a few words of state and no buffer; however the input is cut into pieces, the
//! same requests come out; each byte of a line that is still incomplete is looked at once; and a block that is
//! not wanted is dropped as it arrives, however long it is.
//!
//! Not here: what commands mean (see the `todana` crate), clocks, sockets.

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

pub use form::Form;
pub use reply::{Sink, encode, put_uri_encoded};

pub(super) use reply::{body as put_value, prefixes as put_prefixes};

use super::binary;
use crate::memcached::Command;
use frame::Frame;
use memchr::memchr;
use todana_core::SharedBytes;

/// The longest key, in bytes.
pub(super) const KEY_LEN_MAX: usize = 250;

/// The answer to most malformed lines.
const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// The answer to an item over the size limit.
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// The answer to an item that there is no memory for.
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";

/// The answer to an item whose memory runs out while it arrives.
const OUT_OF_MEMORY_IN_READ: &str = "SERVER_ERROR Out of memory during read";

/// What bounds a request; the same for all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest item, by memcached's size rule (see [`item_size`](super::item_size)).
    pub item_size_max: u64,
    /// The longest line, with its end, of anything but `get`, `gets`, `gat` and `gats`; at least 128 is taken.
    pub line_len_max: usize,
    /// The longest line of `get`, `gets`, `gat` and `gats`, of which memcached does not bound the first two.
    pub get_line_len_max: usize,
    /// How much of a request that is not whole yet may be kept at the moment: a data block that has outgrown it is
    /// refused for want of memory and dropped as it arrives, a line longer than `line_len_max` closes the connection.
    pub unfinished_len_max: usize,
    /// Data blocks from this length on are announced by [`Step::Block`] and received apart; `unfinished_len_max` has no
    /// say in them.
    pub long_block_len: usize,
    /// False refuses `flush_all` (`-F`).
    pub flush_allowed: bool,
    /// Which dialect connections speak (`-B`).
    pub choice: Choice,
    /// True lets the binary dialect's SASL packets through as commands (`-S`), and until [`Dialect::admit`] little else;
    /// false makes them unknown to it.
    pub sasl: bool,
    /// True makes the text dialect take nothing but a login until [`Dialect::admit`] (`-Y`).
    pub text_login: bool,
    /// True reads a negative time to live of the text commands as a sliding one, of so many seconds after the last
    /// access; else such a record is expired at once.
    pub negative_is_sliding: bool,
    /// True takes `debugtime`, which is for tests; else there is no such command.
    pub debug_commands: bool,
}

/// Which dialect a connection speaks; it stays with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Binary if the connection's first byte is that of a binary packet, else text.
    #[default]
    Auto,
    /// Text only.
    Text,
    /// Binary only; the connection is closed on anything else.
    Binary,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            item_size_max: 1 << 20,
            line_len_max: 2048,
            get_line_len_max: 1 << 20,
            unfinished_len_max: usize::MAX,
            long_block_len: usize::MAX,
            flush_allowed: true,
            choice: Choice::default(),
            sasl: false,
            text_login: false,
            negative_is_sliding: false,
            debug_commands: false,
        }
    }
}

/// One request: what to do, and in which form to answer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What to do.
    pub command: Command<'a>,
    /// How to answer.
    pub form: Form<'a>,
}

/// What stands at the beginning of a request, for those who look on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head<'a> {
    /// A line of text, without its end.
    Line(&'a [u8]),
    /// A packet: its header, what its opcode is called, its key, and how long the value is that it stores.
    Packet {
        /// The header.
        header: &'a [u8; 24],
        /// The name of its opcode.
        name: &'static str,
        /// Its key, as far as it is there.
        key: &'a [u8],
        /// The length of its value, if it stores one.
        value_len: Option<usize>,
    },
    /// It goes on with a line that has been shown, or nothing of it is there yet.
    Continued,
}

/// The outcome of looking at the unread bytes.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A whole request; its first `consumed` bytes of the input are done with.
    Request {
        /// Bytes done with, at least 1.
        consumed: usize,
        /// The request, borrowing from the input.
        request: Request<'a>,
    },
    /// Nothing whole yet: drop `consumed` bytes (a block being swallowed), read at least `at_least` more, call again.
    NeedMore {
        /// Bytes done with.
        consumed: usize,
        /// How many more bytes are surely needed (at least 1): for a data block all that is missing of it, so
        /// that a buffer can be sized once; for a line, or a block being dropped, 1.
        at_least: usize,
    },
    /// A request with a long data block. Nothing is decoded until the block is here: keep the head, receive the value
    /// wherever it shall live, and then what ends it, and call [`Dialect::decode_block`].
    Block {
        /// Bytes before the head that are done with.
        consumed: usize,
        /// The length of the head, which follows.
        head_len: usize,
        /// The length of the value behind it.
        value_len: usize,
        /// The length of what ends the block, behind the value.
        end_len: usize,
    },
    /// Close the connection after what is pending has been sent.
    Close,
}

/// How a data block fared that was received apart.
#[derive(Clone, Copy)]
pub enum LongBlock<'a> {
    /// It is all here.
    Whole {
        /// The value.
        value: &'a SharedBytes,
        /// What has come behind it; as long as announced.
        end: &'a [u8],
    },
    /// There is no memory for it. What has come of it is gone, and what is still to come will be dropped.
    Refused {
        /// How many bytes have come, of value and end together.
        received: usize,
    },
}

/// The state of one connection's decoder: a few bytes, no buffer.
///
/// A `get` of several keys comes out as one [`Get`](todana_core::Get) a key, so that a slow reader can be paused
/// between them; the form of the last one also writes the `END`.
///
/// ```
/// use todana_core::{Get, Operation, Reply};
/// use todana_protocol::memcached::{Command, Dialect, Limits, Step, encode};
///
/// let (mut dialect, mut scratch, mut out) = (Dialect::default(), Vec::new(), Vec::new());
/// let step = dialect.decode(&Limits::default(), b"get cart:17\r\n", &mut scratch);
/// let Step::Request { consumed: 13, request } = step else { panic!("{step:?}") };
/// assert_eq!(request.command, Command::Operation(Operation::Get(Get { key: b"cart:17", ..Get::default() })));
/// encode(&request.form, &Reply::Miss, &mut out);
/// assert_eq!(out, b"END\r\n");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Dialect {
    mode: Mode,
    /// The client has said, and truly, who it is.
    is_admitted: bool,
}

/// Where in the stream a decoder stands.
#[derive(Clone, Copy, Debug, Default)]
enum Mode {
    /// At the first byte of the connection.
    #[default]
    Start,
    /// At the start of a line, of which so many bytes are known to hold no line end.
    Line { scanned: usize },
    /// At the start of a line whose data block ends so many bytes from here.
    Block { total: usize },
    /// In a block that nobody wants; so many bytes of it are left.
    Swallow { left: usize },
    /// Between two keys of a checked get line.
    Keys(text::Retrieval),
    /// In a stream of binary packets.
    Binary(binary::Place),
}

impl Choice {
    /// Whether a connection that begins with this byte speaks the binary dialect.
    fn is_binary(self, first: u8) -> bool {
        match self {
            Choice::Auto => first == binary::REQUEST_MAGIC,
            Choice::Text => false,
            Choice::Binary => true,
        }
    }
}

impl Dialect {
    /// The client has said who it is: from here on all commands are let through.
    pub fn admit(&mut self) {
        self.is_admitted = true;
    }

    /// Whether the stream is one of binary packets.
    pub fn is_binary(&self) -> bool {
        matches!(self.mode, Mode::Binary(_))
    }

    /// What the request begins with that the next step is about; to be asked before that.
    pub fn head<'a>(&self, limits: &Limits, input: &'a [u8]) -> Head<'a> {
        let unread = match self.mode {
            Mode::Keys(_) => return Head::Continued,
            Mode::Binary(place) => return binary::head(place, input),
            Mode::Start if input.first().is_some_and(|&first| limits.choice.is_binary(first)) => {
                return binary::head(binary::Place::default(), input);
            }
            Mode::Swallow { left } => input.get(left..).unwrap_or_default(),
            Mode::Start | Mode::Line { .. } | Mode::Block { .. } => input,
        };
        let Some(len) = memchr(b'\n', unread) else { return Head::Continued };
        Head::Line(unread[..len].strip_suffix(b"\r").unwrap_or(&unread[..len]))
    }

    /// Whether a connection that has said nothing yet, and begins so, speaks the binary dialect.
    pub fn begins_binary(&self, limits: &Limits, input: &[u8]) -> bool {
        match self.mode {
            Mode::Start => input.first().is_some_and(|&first| limits.choice.is_binary(first)),
            _ => self.is_binary(),
        }
    }

    /// Whether a line of several keys has been answered in part.
    pub fn is_between_keys(&self) -> bool {
        matches!(self.mode, Mode::Keys(_))
    }

    /// The client is a stranger again.
    pub fn expel(&mut self) {
        self.is_admitted = false;
    }

    /// The next step from `input`, the unread bytes: those of the last call that were not consumed, and
    /// whatever has arrived since. `scratch` holds what has to be decoded first (base64 keys).
    ///
    /// After [`Step::Close`] there is nothing to call it for again.
    ///
    /// Behind a [`Command::Authenticate`] it must not be called before that has been answered: what the bytes behind it
    /// mean hangs on the answer.
    #[inline]
    pub fn decode<'a>(&mut self, limits: &Limits, input: &'a [u8], scratch: &'a mut Vec<u8>) -> Step<'a> {
        let mut skipped = 0;
        let scanned = match self.mode {
            Mode::Line { scanned } => scanned.min(input.len()),
            Mode::Binary(ref mut place) => return binary::decode(place, limits, self.is_admitted, input),
            Mode::Start => {
                let Some(&first) = input.first() else { return Step::NeedMore { consumed: 0, at_least: 1 } };
                if limits.choice.is_binary(first) {
                    let mut place = binary::Place::default();
                    let step = binary::decode(&mut place, limits, self.is_admitted, input);
                    self.mode = Mode::Binary(place);
                    return step;
                }
                0
            }
            Mode::Keys(retrieval) => return text::next_key(self, retrieval, input),
            Mode::Block { total } if input.len() < total && input.len() <= limits.unfinished_len_max => {
                return Step::NeedMore { consumed: 0, at_least: total - input.len() };
            }
            Mode::Block { .. } => 0,
            Mode::Swallow { left } if input.len() < left => {
                self.mode = Mode::Swallow { left: left - input.len() };
                return Step::NeedMore { consumed: input.len(), at_least: 1 };
            }
            Mode::Swallow { left } => {
                skipped = left;
                0
            }
        };
        let unread = &input[skipped..];
        let Some(newline) = memchr(b'\n', &unread[scanned..]).map(|at| scanned + at) else {
            let len = unread.len() + 1;
            let is_stranger = limits.text_login && !self.is_admitted;
            if frame::is_line_too_long(limits, unread, len)
                || is_stranger && len > limits.line_len_max
                || len > limits.line_len_max.max(limits.unfinished_len_max)
            {
                return Step::Close;
            }
            self.mode = Mode::Line { scanned: unread.len() };
            return Step::NeedMore { consumed: skipped, at_least: 1 };
        };
        let line_len = newline + 1;
        if line_len > limits.line_len_max && frame::is_line_too_long(limits, unread, line_len) {
            return Step::Close;
        }
        self.mode = Mode::Line { scanned: 0 };
        if limits.text_login && !self.is_admitted {
            if line_len > limits.line_len_max {
                return Step::Close;
            }
            return login::decode(self, limits, Frame { skipped, unread, line_len, block: None });
        }
        text::decode(self, limits, Frame { skipped, unread, line_len, block: None }, scratch)
    }

    /// The request that [`Step::Block`] has announced; `head` are the bytes that it spoke of, and the limits have not
    /// become less since. How much the returned step consumes has no meaning. Behind it, [`decode`](Self::decode) goes on
    /// with the byte behind the block or behind what had been received of it.
    pub fn decode_block<'a>(
        &mut self,
        limits: &Limits,
        head: &'a [u8],
        block: LongBlock<'a>,
        scratch: &'a mut Vec<u8>,
    ) -> Step<'a> {
        match &mut self.mode {
            Mode::Binary(place) => binary::decode_block(place, limits, head, block),
            _ => {
                self.mode = Mode::Line { scanned: 0 };
                let frame = Frame { skipped: 0, unread: head, line_len: head.len(), block: Some(block) };
                if limits.text_login && !self.is_admitted {
                    return login::decode(self, limits, frame);
                }
                text::decode(self, limits, frame, scratch)
            }
        }
    }
}
