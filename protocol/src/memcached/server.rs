//! The server's side of memcached's text and meta dialects.

use todana_core::{Command, Reply, SharedBytes};

/// What bounds a request; the same for all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest item, by memcached's size rule (see [`item_size`](super::item_size)).
    pub item_size_max: u64,
    /// The longest line of anything but `get` and `gets`.
    pub line_len_max: usize,
    /// The longest line of `get` and `gets`, which memcached does not bound.
    pub get_line_len_max: usize,
    /// False refuses `flush_all` (`-F`).
    pub flush_allowed: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { item_size_max: 1 << 20, line_len_max: 2048, get_line_len_max: 8 << 20, flush_allowed: true }
    }
}

/// Where reply bytes go.
pub trait Sink {
    /// Copies bytes.
    fn put(&mut self, bytes: &[u8]);
    /// Takes a share of a large value instead of copying it.
    fn share(&mut self, bytes: &SharedBytes) {
        self.put(bytes.as_ref().as_ref());
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
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

/// How a request wants its reply written.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    #[doc(hidden)]
    pub todo: &'a [u8],
}

/// The outcome of looking at the unread bytes.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A whole request; its first `consumed` bytes of the input are done with.
    Request {
        /// Bytes done with.
        consumed: usize,
        /// The request, borrowing from the input.
        request: Request<'a>,
    },
    /// Nothing whole yet: drop `consumed` bytes (a block being swallowed), read at least `at_least` more, call again.
    NeedMore {
        /// Bytes done with.
        consumed: usize,
        /// How many more bytes are surely needed (at least 1).
        at_least: usize,
    },
    /// Close the connection after what is pending has been sent.
    Close,
}

/// The state of one connection's decoder: a few bytes, no buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dialect {}

impl Dialect {
    /// The next step from `input`, the unread bytes. `scratch` holds what has to be decoded first (base64 keys).
    pub fn decode<'a>(&mut self, limits: &Limits, input: &'a [u8], scratch: &'a mut Vec<u8>) -> Step<'a> {
        let _ = (limits, scratch);
        Step::NeedMore { consumed: input.len(), at_least: 1 }
    }
}

/// Writes a reply in the form that its request wants.
pub fn encode(form: &Form<'_>, reply: &Reply<'_>, out: &mut impl Sink) {
    let _ = (form, reply, out);
}
