//! Defines a request of a client whose reply is not complete.

use super::key_lines::MergedValues;
use super::loss_reply::{MissReply, put_error, put_loss};
use crate::options::WhenDown;
use crate::proxy::ReplyDelivery;
use todana_protocol::memcached::HiddenReplies;

/// A request in the queue of its session.
#[derive(Debug)]
pub(super) enum WaitingRequest {
    /// The reply is complete.
    Complete(Vec<u8>),
    /// One server answers.
    Forwarded { arrived: Vec<u8>, hidden: HiddenReplies, when_down: WhenDown, miss: MissReply },
    /// Several servers answer.
    Merged { values: Box<MergedValues>, when_down: WhenDown },
    /// The connection closes.
    Close,
}

impl WaitingRequest {
    /// Notes what arrives for the request, for this part of it.
    pub(super) fn receive(&mut self, part: u32, delivery: ReplyDelivery<'_>) {
        match (&mut *self, delivery) {
            (WaitingRequest::Forwarded { arrived, hidden, .. }, ReplyDelivery::Part(reply)) => {
                if !hidden.contain(reply.bytes) {
                    arrived.extend_from_slice(reply.bytes);
                }
                if reply.is_last {
                    *self = WaitingRequest::Complete(std::mem::take(arrived));
                }
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
                *self = WaitingRequest::Complete(std::mem::take(arrived));
            }
            (WaitingRequest::Merged { values, .. }, ReplyDelivery::Part(reply)) => match reply.key {
                Some(key) => values.add(part, key, reply.bytes),
                None => values.complete(part, if reply.is_error { reply.bytes } else { b"" }),
            },
            (WaitingRequest::Merged { values, when_down }, ReplyDelivery::Lost { label, reason }) => {
                let mut error = Vec::new();
                if *when_down == WhenDown::Error {
                    put_error(label, reason.as_str(), &mut error);
                }
                values.complete(part, &error);
            }
            (WaitingRequest::Complete(_) | WaitingRequest::Close, _) => {}
        }
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
            WaitingRequest::Close => false,
        }
    }
}
