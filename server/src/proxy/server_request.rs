//! Defines the identity of a request to a server, and what arrives for it.

use super::pool_server::PoolServer;
use crate::options::{PoolOptions, WhenDown};
use std::sync::Arc;
use todana_client::pool::{LossReason, ReplyPart};

/// Tokens from this number on belong to connections to servers.
pub(crate) const SERVER_TOKENS: usize = usize::MAX / 2;
/// Identifies a request that waits for its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTag {
    /// The index of the client's connection.
    pub(crate) connection: usize,
    /// The number of the session, because a later connection may have the same index.
    pub(crate) session: u64,
    /// The number of the request in its session.
    pub(crate) request: u64,
    /// The number of the part of the request, if it goes to several servers.
    pub(crate) part: u32,
    /// The number of the question to a server, if the part has a route with several.
    pub(crate) question: u32,
    /// True if the request may be sent again, because its effect is then the same.
    pub(crate) may_repeat: bool,
    /// The number of times that the request was sent again.
    pub(crate) repeats: u8,
    /// The time at which it was sent, in microseconds of the worker's clock. The link sets it. It
    /// is 0 if the time until the reply says nothing about the server.
    pub(crate) sent_us: u32,
}

/// A part of a reply that arrives for a request, or the reason why there is none.
#[derive(Clone, Copy)]
pub(crate) enum ReplyDelivery<'a> {
    /// A part of its reply.
    Part(ReplyPart<'a>),
    /// No more of its reply, because the connection to the server with this label is lost.
    Lost { label: &'a str, reason: &'static str, when_down: WhenDown },
    /// The dialect of its server is known now.
    DialectKnown,
    /// The first part of a reply with a very long value.
    LongValue { part: ReplyPart<'a>, server: &'a Arc<PoolServer>, options: &'a Arc<PoolOptions> },
    /// Its server accepts bytes of its long value, or it has a connection for such a value now.
    UploadContinues,
    /// The session may send its next request, or must refuse it because it has waited too long.
    Turn { is_in_time: bool },
}

impl<'a> ReplyDelivery<'a> {
    /// Returns what arrives for a request that keeps its reply. To such a request, a long value is
    /// a part like others.
    pub(crate) fn kept(self) -> ReplyDelivery<'a> {
        match self {
            ReplyDelivery::LongValue { part, .. } => ReplyDelivery::Part(part),
            delivery => delivery,
        }
    }
}

/// The reason why a request was not accepted for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendRefusal {
    /// The server is down.
    Down,
    /// Too many requests wait for the server.
    Busy,
    /// The server cannot be connected to.
    Lost(LossReason),
}

impl SendRefusal {
    /// Returns the words for messages.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SendRefusal::Down => "down",
            SendRefusal::Busy => "busy",
            SendRefusal::Lost(reason) => reason.as_str(),
        }
    }
}
