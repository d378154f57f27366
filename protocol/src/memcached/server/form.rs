//! What a reply must know of the request that it answers.

use super::OUT_OF_MEMORY_IN_READ;
use super::flags::Returns;
use crate::memcached::binary::BinaryForm;

/// How a request wants its reply written. Small, and borrowed from the input like the command it came with.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a>(pub(super) Shape<'a>);

/// The kinds of form.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape<'a> {
    /// Nothing is written (`noreply`).
    Silent,
    /// A word or a line, as the reply says.
    Line,
    /// As `Line`, for a list of keys as meta commands that read them.
    Keys,
    /// As `Line`, for a list of keys with their sizes and expiries.
    Items,
    /// As `Line`, for a command that stores: it words a lack of memory in its own way.
    StoreLine,
    /// As `StoreLine`, for a block whose memory has run out while it arrived.
    ReadLine,
    /// One key of `get`, `gets`, `gat` or `gats`.
    Value(ValueForm<'a>),
    /// A meta command.
    Meta(MetaForm<'a>),
    /// `mn`.
    Noop,
    /// A binary packet.
    Binary(BinaryForm<'a>),
}

/// The form of one key of a get line.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueForm<'a> {
    /// The key.
    pub(super) key: &'a [u8],
    /// The version is shown (`gets`, `gats`).
    pub(super) with_version: bool,
    /// It is the last key of its line: `END` follows.
    pub(super) is_last: bool,
}

/// The form of a meta command.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetaForm<'a> {
    /// Which one.
    pub(super) verb: Verb,
    /// The key, decoded.
    pub(super) key: &'a [u8],
    /// The key came in base64 and goes back so.
    pub(super) is_base64: bool,
    /// What to send back, in order.
    pub(super) returns: Returns,
    /// The text behind `O`.
    pub(super) opaque: &'a [u8],
    /// `q`.
    pub(super) is_quiet: bool,
    /// `v`.
    pub(super) with_value: bool,
    /// `t` stood before `T`: it means the time before this request.
    pub(super) ttl_before: bool,
    /// The version at which `mg` leaves out the value (`C`).
    pub(super) known_version: Option<u64>,
    /// The length of the data block of `ms`.
    pub(super) value_len: usize,
}

/// The meta commands that have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// `mg`
    Get,
    /// `ms`
    Store,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Inspect,
}

impl<'a> Form<'a> {
    /// Writes nothing.
    pub(super) const SILENT: Form<'a> = Form(Shape::Silent);
    /// Writes what the reply says.
    pub const LINE: Form<'a> = Form(Shape::Line);

    /// A list of keys as `mg` commands.
    pub(super) const KEYS: Form<'a> = Form(Shape::Keys);
    /// A list of keys with their sizes and expiries, as `stats cachedump` has it.
    pub const ITEMS: Form<'a> = Form(Shape::Items);

    /// The same for what is answered after the request is gone from the input: it shows nothing of the request.
    #[must_use]
    pub fn detached(&self) -> Form<'static> {
        Form(match self.0 {
            Shape::Silent => Shape::Silent,
            Shape::Keys => Shape::Keys,
            Shape::Items => Shape::Items,
            Shape::Binary(form) => Shape::Binary(form.detached()),
            Shape::Line
            | Shape::StoreLine
            | Shape::ReadLine
            | Shape::Value(_)
            | Shape::Meta(_)
            | Shape::Noop => Shape::Line,
        })
    }

    /// `LINE`, unless `noreply` was asked for.
    #[inline]
    pub(super) fn line_unless(silent: bool) -> Form<'a> {
        if silent { Form::SILENT } else { Form::LINE }
    }

    /// The form of a storage command.
    #[inline]
    pub(super) fn store_line_unless(silent: bool) -> Form<'a> {
        if silent { Form::SILENT } else { Form(Shape::StoreLine) }
    }

    /// The form in which a block is refused by this message.
    pub(super) fn refused_by(self, message: &'static str) -> Form<'a> {
        match self.0 {
            Shape::StoreLine | Shape::Meta(_) if message == OUT_OF_MEMORY_IN_READ => Form(Shape::ReadLine),
            _ => self,
        }
    }

    /// The form of a binary packet.
    #[inline]
    pub(in crate::memcached) fn binary(form: BinaryForm<'a>) -> Form<'a> {
        Form(Shape::Binary(form))
    }

    /// Whether the connection is to be closed once this request is answered. Were it not, the decoder would close it
    /// when called again.
    #[inline]
    pub fn closes(&self) -> bool {
        matches!(self.0, Shape::Binary(BinaryForm { closes: true, .. }))
    }

    /// Whether nothing at all will be written, so that a reply need not even be made.
    #[inline]
    pub fn is_silent(&self) -> bool {
        matches!(self.0, Shape::Silent)
    }

    /// Whether the line of this request ends with it. False for all keys of a get line but the last, which a server
    /// that counts requests a wake-up may want to count as one.
    #[inline]
    pub fn is_last_of_line(&self) -> bool {
        match self.0 {
            Shape::Value(form) => form.is_last,
            _ => true,
        }
    }
}
