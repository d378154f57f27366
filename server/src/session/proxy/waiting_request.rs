//! Defines a request of a client whose reply is not complete.

use super::key_lines::MergedValues;
use super::loss_reply::{MissReply, put_error, put_loss};
use crate::options::WhenDown;
use crate::proxy::ReplyDelivery;
use todana_client::pool::ReplyPart;
use todana_protocol::memcached::HiddenReplies;

/// A request in the queue of its session.
#[derive(Debug)]
pub(super) enum WaitingRequest {
    /// The reply is complete.
    Complete(Vec<u8>),
    /// One server answers.
    Forwarded { arrived: Vec<u8>, hidden: HiddenReplies, when_down: WhenDown, miss: MissReply },
    /// Several servers answer.
    Merged { values: Box<MergedValues>, when_down: Vec<WhenDown> },
    /// All servers answer, and the client gets one reply.
    Gathered { replies: GatheredReplies, hidden: HiddenReplies },
    /// The connection closes.
    Close,
}

/// The replies of all servers to a request.
#[derive(Debug, Default)]
pub(super) struct GatheredReplies {
    /// The number of servers that have not answered.
    pub(super) missing: usize,
    /// The first error.
    error: Vec<u8>,
}

impl GatheredReplies {
    fn fail(&mut self, error: &[u8]) {
        if self.error.is_empty() {
            self.error.extend_from_slice(error);
        }
    }

    /// Notes that a server has not answered for this reason.
    pub(super) fn lose(&mut self, label: &str, reason: &str) {
        let mut error = Vec::new();
        put_error(label, reason, &mut error);
        self.fail(&error);
    }
}

impl WaitingRequest {
    /// Notes what arrives for the request, for this part of it. Returns the number of bytes that
    /// are kept until they can be sent.
    pub(super) fn receive(&mut self, part: u32, delivery: ReplyDelivery<'_>) -> usize {
        match (&mut *self, delivery) {
            (WaitingRequest::Forwarded { arrived, hidden, .. }, ReplyDelivery::Part(reply)) => {
                let is_wanted = !hidden.contain(reply.bytes);
                if is_wanted {
                    arrived.extend_from_slice(reply.bytes);
                }
                if reply.is_last {
                    *self = WaitingRequest::Complete(std::mem::take(arrived));
                }
                if is_wanted { reply.bytes.len() } else { 0 }
            }
            (
                WaitingRequest::Forwarded { arrived, hidden, when_down, miss },
                ReplyDelivery::Lost { label, reason },
            ) => {
                let at = arrived.len();
                put_loss(*when_down, *miss, label, reason.as_str(), arrived);
                if hidden.contain(&arrived[at..]) {
                    arrived.truncate(at);
                }
                let kept = arrived.len() - at;
                *self = WaitingRequest::Complete(std::mem::take(arrived));
                kept
            }
            (WaitingRequest::Merged { values, .. }, ReplyDelivery::Part(reply)) => match reply.key {
                Some(key) => {
                    values.add(part, key, reply.bytes);
                    reply.bytes.len()
                }
                None => {
                    values.complete(part, if reply.is_error { reply.bytes } else { b"" });
                    0
                }
            },
            (WaitingRequest::Merged { values, when_down }, ReplyDelivery::Lost { label, reason }) => {
                let mut error = Vec::new();
                if when_down.get(part as usize) == Some(&WhenDown::Error) {
                    put_error(label, reason.as_str(), &mut error);
                }
                values.complete(part, &error);
                0
            }
            (WaitingRequest::Gathered { replies, .. }, ReplyDelivery::Part(reply)) => {
                replies.missing -= usize::from(reply.is_last);
                if reply.is_error {
                    replies.fail(reply.bytes);
                }
                0
            }
            (WaitingRequest::Gathered { replies, .. }, ReplyDelivery::Lost { label, reason }) => {
                replies.missing -= 1;
                replies.lose(label, reason.as_str());
                0
            }
            (_, ReplyDelivery::DialectKnown(_))
            | (WaitingRequest::Complete(_) | WaitingRequest::Close, _) => 0,
        }
    }

    /// Appends a part of the reply to the bytes that may be sent, if one server answers and no part
    /// before it was kept. Returns false otherwise.
    #[inline]
    pub(super) fn is_passed_on(&mut self, part: ReplyPart<'_>, ready: &mut Vec<u8>) -> bool {
        let WaitingRequest::Forwarded { arrived, hidden, .. } = self else { return false };
        let may_pass = arrived.is_empty();
        if may_pass && !hidden.contain(part.bytes) {
            ready.extend_from_slice(part.bytes);
        }
        may_pass
    }

    /// Appends the bytes that may be sent. Returns true if the reply is complete.
    pub(super) fn drain(&mut self, out: &mut Vec<u8>) -> bool {
        match self {
            WaitingRequest::Complete(bytes) => {
                out.append(bytes);
                true
            }
            WaitingRequest::Forwarded { arrived, .. } => {
                out.append(arrived);
                false
            }
            WaitingRequest::Merged { values, .. } => values.drain(out),
            WaitingRequest::Gathered { replies, hidden } => {
                let reply = if replies.error.is_empty() { b"OK\r\n" } else { &*replies.error };
                if replies.missing == 0 && !hidden.contain(reply) {
                    out.extend_from_slice(reply);
                }
                replies.missing == 0
            }
            WaitingRequest::Close => false,
        }
    }
}
