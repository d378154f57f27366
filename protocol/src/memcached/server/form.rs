//! Defines the properties of a request on which the form of its reply depends.

use super::OUT_OF_MEMORY_IN_READ;
use super::flags::ReturnFlags;
use crate::freshness::RequiredFreshness;
use crate::memcached::binary::BinaryForm;
use crate::trace_context::TraceContext;

/// The form in which a request wants its reply. A form is small and borrows from the input, like
/// the command.
#[derive(Clone, Copy, Debug)]
pub struct ReplyForm<'a>(pub(super) FormKind<'a>);

/// The kinds of form.
#[derive(Clone, Copy, Debug)]
pub(super) enum FormKind<'a> {
    /// Nothing is written (`noreply`).
    Silent,
    /// A word or a line, depending on the reply.
    Line,
    /// Like `Line`, but a list of keys is written as meta commands that read the records.
    Keys,
    /// Like `Line`, but a list of keys is written with sizes and expiries.
    Items,
    /// Like `Line`, but with the message that a storage command has for a lack of memory.
    StoreLine,
    /// Like `StoreLine`, but with the message for a data block whose memory ran out during its
    /// arrival.
    ReadLine,
    /// One key of `get`, `gets`, `gat` or `gats`.
    Value(ValueForm<'a>),
    /// A meta command.
    Meta(MetaForm<'a>),
    /// The reply to `mn`.
    Noop,
    /// A binary packet.
    Binary(BinaryForm<'a>),
}

/// The form of the reply for one key of a `get` line.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueForm<'a> {
    /// The key.
    pub(super) key: &'a [u8],
    /// True if the reply shows the version (`gets`, `gats`).
    pub(super) with_version: bool,
    /// True if the key is the last key of its line, so that `END` follows.
    pub(super) is_last: bool,
}

/// The form of the reply to a meta command.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetaForm<'a> {
    /// The command.
    pub(super) verb: MetaVerb,
    /// The decoded key.
    pub(super) key: &'a [u8],
    /// True if the key arrived in base64. The reply then contains it in base64.
    pub(super) is_base64: bool,
    /// The fields to return, in order.
    pub(super) returns: ReturnFlags,
    /// The text after `O`.
    pub(super) opaque: &'a [u8],
    /// The text after `Y`, if there is this flag: in a request, the freshness that it requires, and
    /// in a reply, the position in the log.
    pub(super) freshness: Option<&'a [u8]>,
    /// True if the request has `q`.
    pub(super) is_quiet: bool,
    /// True if the request has `v`.
    pub(super) with_value: bool,
    /// True if `t` precedes `T`. The reply then shows the time to live before this request.
    pub(super) ttl_before: bool,
    /// The version of `C`. `mg` omits the value of a record with this version.
    pub(super) known_version: Option<u64>,
    /// The length of the data block of `ms`.
    pub(super) value_len: usize,
}

/// The meta commands with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetaVerb {
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

impl MetaVerb {
    fn name(self) -> &'static str {
        match self {
            MetaVerb::Get => "mg",
            MetaVerb::Store => "ms",
            MetaVerb::Delete => "md",
            MetaVerb::Arithmetic => "ma",
            MetaVerb::Inspect => "me",
        }
    }
}

impl<'a> ReplyForm<'a> {
    /// The form that writes nothing.
    pub(super) const SILENT: ReplyForm<'a> = ReplyForm(FormKind::Silent);
    /// The form that writes a word or a line.
    pub const LINE: ReplyForm<'a> = ReplyForm(FormKind::Line);

    /// The form that writes a list of keys as `mg` commands.
    pub(super) const KEYS: ReplyForm<'a> = ReplyForm(FormKind::Keys);
    /// The form that writes a list of keys with sizes and expiries, like `stats cachedump`.
    pub const ITEMS: ReplyForm<'a> = ReplyForm(FormKind::Items);

    /// Returns the form for replies after the request has left the input. Such a reply shows
    /// nothing of the request.
    #[must_use]
    pub fn detached(&self) -> ReplyForm<'static> {
        ReplyForm(match self.0 {
            FormKind::Silent => FormKind::Silent,
            FormKind::Keys => FormKind::Keys,
            FormKind::Items => FormKind::Items,
            FormKind::Binary(form) => FormKind::Binary(form.detached()),
            FormKind::Line
            | FormKind::StoreLine
            | FormKind::ReadLine
            | FormKind::Value(_)
            | FormKind::Meta(_)
            | FormKind::Noop => FormKind::Line,
        })
    }

    /// Returns `LINE`, or `SILENT` after `noreply`.
    #[inline]
    pub(super) fn line_unless(silent: bool) -> ReplyForm<'a> {
        if silent { ReplyForm::SILENT } else { ReplyForm::LINE }
    }

    /// Returns the form of a storage command.
    #[inline]
    pub(super) fn store_line_unless(silent: bool) -> ReplyForm<'a> {
        if silent { ReplyForm::SILENT } else { ReplyForm(FormKind::StoreLine) }
    }

    /// Returns the form of the reply to a data block that is refused with this message.
    pub(super) fn refused_by(self, message: &'static str) -> ReplyForm<'a> {
        match self.0 {
            FormKind::StoreLine | FormKind::Meta(_) if message == OUT_OF_MEMORY_IN_READ => {
                ReplyForm(FormKind::ReadLine)
            }
            _ => self,
        }
    }

    /// Returns the form of a binary packet.
    #[inline]
    pub(in crate::memcached) fn binary(form: BinaryForm<'a>) -> ReplyForm<'a> {
        ReplyForm(FormKind::Binary(form))
    }

    /// Returns true if the connection must be closed after this reply. If the caller does not close
    /// it, the decoder does so on its next call.
    #[inline]
    pub fn closes(&self) -> bool {
        matches!(self.0, FormKind::Binary(BinaryForm { closes: true, .. }))
    }

    /// Returns true if no reply will be written, so that the reply need not be computed.
    #[inline]
    pub fn is_silent(&self) -> bool {
        matches!(self.0, FormKind::Silent)
    }

    /// Returns the freshness that the request requires, if it has the flag `Y`.
    #[inline]
    pub fn freshness(&self) -> Option<RequiredFreshness> {
        match self.0 {
            FormKind::Meta(MetaForm { freshness: Some(text), .. }) => RequiredFreshness::parse(text),
            _ => None,
        }
    }

    /// Returns the trace that a meta command names in its opaque token, and the command's name.
    #[inline]
    pub fn trace(&self) -> Option<(TraceContext, &'static str)> {
        let FormKind::Meta(MetaForm { opaque, verb, .. }) = self.0 else { return None };
        Some((TraceContext::parse(opaque)?, verb.name()))
    }

    /// Returns the form of a reply that shows this position in the log after `Y`.
    #[must_use]
    pub fn with_position<'p>(self, position: &'p [u8]) -> ReplyForm<'p>
    where
        'a: 'p,
    {
        match self.0 {
            FormKind::Meta(form) => ReplyForm(FormKind::Meta(MetaForm { freshness: Some(position), ..form })),
            _ => self,
        }
    }

    /// Returns true if the client does not want every reply to such a request.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        match self.0 {
            FormKind::Silent => true,
            FormKind::Meta(MetaForm { is_quiet, .. }) | FormKind::Binary(BinaryForm { is_quiet, .. }) => {
                is_quiet
            }
            _ => false,
        }
    }

    /// Returns true if this request is the last of its line. Only the last key of a `get` line
    /// returns true, so that a server can count the line as one request.
    #[inline]
    pub fn is_last_of_line(&self) -> bool {
        match self.0 {
            FormKind::Value(form) => form.is_last,
            _ => true,
        }
    }
}
