//! Defines a request of a client whose reply is not complete.

use super::client_request::ClientRequest;
use super::key_lines::MergedValues;
use super::loss_reply::{MissReply, put_error, put_loss};
use super::moved_read::MovedRead;
use super::route_run::{HeldScope, RouteRun};
use super::server_poll::ServerPoll;
use crate::options::{PoolOptions, WhenDown};
use crate::proxy::{NearCache, PoolServer, ProxyWorker, ReplyDelivery, RequestTag};
use std::sync::Arc;
use todana_client::pool::ReplyPart;
use todana_core::Reply;
use todana_protocol::memcached::HiddenReplies;
use todana_protocol::memcached::client::{AskedReply, ServerReply, decode_reply_of};

/// A request in the queue of its session.
#[derive(Debug)]
pub(super) enum WaitingRequest {
    /// The reply is complete.
    Complete(Vec<u8>),
    /// One server answers.
    Forwarded {
        arrived: Vec<u8>,
        hidden: HiddenReplies,
        miss: MissReply,
        /// True if the server can be asked again on another connection.
        can_move: bool,
        has_open_value: bool,
    },
    /// Several servers answer.
    Merged(Box<MergedValues>),
    /// All servers answer, and the client gets one reply.
    Gathered(Box<GatheredReplies>),
    /// All servers are asked about themselves, and the client gets one reply.
    Polled(Box<ServerPoll>),
    /// The servers of a route answer.
    Routed(Box<RouteRun>),
    /// One server answers, on a connection for itself.
    Moved(Box<MovedRead>),
    /// The connection closes.
    Close,
}

/// The replies of all servers to a request.
pub(super) struct GatheredReplies {
    request: ClientRequest,
    /// The form of the reply of each server. `None` if the server has answered, or was not asked.
    asked: Vec<Option<AskedReply>>,
    /// The first error.
    error: Vec<u8>,
    /// The caches that are cleared after the last reply: until then, a server may still send what
    /// it removes.
    caches: Vec<Arc<NearCache>>,
}

impl std::fmt::Debug for GatheredReplies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatheredReplies").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl GatheredReplies {
    pub(super) fn new(request: ClientRequest, caches: Vec<Arc<NearCache>>) -> GatheredReplies {
        GatheredReplies { request, asked: Vec::new(), error: Vec::new(), caches }
    }

    /// Returns the number of the part for the next server.
    pub(super) fn next_part(&self) -> u32 {
        self.asked.len() as u32
    }

    /// Notes that the next server was asked, and the form of its reply.
    pub(super) fn await_reply(&mut self, asked: AskedReply) {
        self.asked.push(Some(asked));
    }

    fn is_complete(&self) -> bool {
        self.asked.iter().all(Option::is_none)
    }

    /// Notes the reply of a server. A reply in several parts is an error of the server, which its
    /// first part shows.
    fn receive(&mut self, part: u32, delivery: ReplyDelivery<'_>) {
        let Some(place) = self.asked.get_mut(part as usize) else { return };
        let Some(asked) = *place else { return };
        let mut error = Vec::new();
        match delivery {
            ReplyDelivery::Part(reply) => match decode_reply_of(asked, reply.bytes) {
                Ok(ServerReply::Reply(Reply::Done)) => {}
                Ok(ServerReply::Error(text)) => error.extend_from_slice(text),
                _ => error.extend_from_slice(b"SERVER_ERROR a reply is not understood"),
            },
            ReplyDelivery::Lost { label, reason, .. } => put_error(label, reason, &mut error),
            _ => return,
        }
        *place = None;
        if self.is_complete() {
            self.caches.iter().for_each(|cache| cache.clear());
        }
        if self.error.is_empty() {
            self.error = error;
        }
    }

    /// Notes that the next server was not asked, and the reason.
    pub(super) fn refuse(&mut self, label: &str, reason: &str) {
        self.asked.push(None);
        if self.error.is_empty() {
            put_error(label, reason, &mut self.error);
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self.error.trim_ascii_end() {
            b"" => self.request.put_reply(&Reply::Done, out),
            error => self.request.put_failure(error, out),
        }
    }
}

/// The part of a reply that was appended to the bytes that may be sent.
pub(super) enum PassedPart {
    /// None.
    Nothing,
    /// A part, after which more is missing.
    Piece,
    /// A part, after which more was kept.
    BeforeKept,
    /// The last part.
    End,
}

impl WaitingRequest {
    /// Creates a request that one server answers. `can_move` is true for a read without any effect.
    pub(super) fn forwarded(hidden: HiddenReplies, miss: MissReply, can_move: bool) -> WaitingRequest {
        WaitingRequest::Forwarded { arrived: Vec::new(), hidden, miss, can_move, has_open_value: false }
    }

    /// Notes what arrives for the request. Returns the number of bytes that are kept until they can
    /// be sent, and true if [`advance`](Self::advance) must be called.
    pub(super) fn receive(&mut self, tag: RequestTag, delivery: ReplyDelivery<'_>) -> (usize, bool) {
        let part = tag.part;
        let kept = match (&mut *self, delivery) {
            (WaitingRequest::Routed(run), delivery) => return run.receive(tag.question, delivery),
            (WaitingRequest::Merged(values), delivery) => {
                if let Some(run) = values.run(part) {
                    return run.receive(tag.question, delivery);
                }
                match delivery {
                    ReplyDelivery::Part(ReplyPart { key: Some(_), key_number, bytes, .. }) => {
                        values.add(part, key_number, bytes);
                        bytes.len()
                    }
                    ReplyDelivery::Part(reply) => {
                        values.complete(part, if reply.is_error { reply.bytes } else { b"" });
                        0
                    }
                    ReplyDelivery::Lost { label, reason, when_down } => {
                        let mut error = Vec::new();
                        if when_down == WhenDown::Error {
                            put_error(label, reason, &mut error);
                        }
                        values.complete(part, &error);
                        0
                    }
                    _ => 0,
                }
            }
            (
                WaitingRequest::Forwarded { arrived, hidden, has_open_value, .. },
                ReplyDelivery::Part(reply),
            ) => {
                let is_wanted = reply.continues || !hidden.contain(reply.bytes);
                *has_open_value = reply.missing > 0;
                if is_wanted {
                    arrived.extend_from_slice(reply.bytes);
                }
                if reply.is_last {
                    *self = WaitingRequest::Complete(std::mem::take(arrived));
                }
                if is_wanted { reply.bytes.len() } else { 0 }
            }
            // The client would take an error for the rest of the value.
            (WaitingRequest::Forwarded { has_open_value: true, .. }, ReplyDelivery::Lost { .. }) => {
                *self = WaitingRequest::Close;
                0
            }
            (
                WaitingRequest::Forwarded { arrived, hidden, miss, .. },
                ReplyDelivery::Lost { label, reason, when_down },
            ) => {
                let at = arrived.len();
                put_loss(when_down, miss, label, reason, arrived);
                if hidden.contain(&arrived[at..]) {
                    arrived.truncate(at);
                }
                let kept = arrived.len() - at;
                *self = WaitingRequest::Complete(std::mem::take(arrived));
                kept
            }
            (WaitingRequest::Gathered(replies), delivery) => {
                replies.receive(part, delivery);
                0
            }
            (WaitingRequest::Polled(poll), delivery) => {
                poll.receive(part, delivery);
                0
            }
            (
                WaitingRequest::Complete(_)
                | WaitingRequest::Close
                | WaitingRequest::Moved(_)
                | WaitingRequest::Forwarded { .. },
                _,
            ) => 0,
        };
        (kept, false)
    }

    /// Lets a read ask its server again, on another connection, for a reply of which the first part
    /// has arrived. Returns false if the request is no such read.
    pub(super) fn move_read(
        &mut self,
        tag: RequestTag,
        part: ReplyPart<'_>,
        server: (&Arc<PoolServer>, &Arc<PoolOptions>),
    ) -> bool {
        match self {
            WaitingRequest::Forwarded { hidden, miss, can_move: true, .. } if !part.request.is_empty() => {
                let read = MovedRead::new(server, tag, part.request, *hidden, miss.clone());
                *self = WaitingRequest::Moved(Box::new(read));
                true
            }
            _ => false,
        }
    }

    /// Returns true if the request will ask a server for one of these records later.
    #[inline]
    pub(super) fn holds(&self, scope: HeldScope<'_>) -> bool {
        match self {
            WaitingRequest::Routed(run) => run.holds(scope),
            WaitingRequest::Merged(values) => values.holds(scope),
            WaitingRequest::Moved(read) => read.may_be_overtaken(),
            _ => false,
        }
    }

    /// Lets the route of a part continue.
    pub(super) fn advance(&mut self, proxy: &mut ProxyWorker, tag: RequestTag) {
        match self {
            WaitingRequest::Routed(run) => {
                if let Some(reply) = run.advance(proxy, tag) {
                    *self = WaitingRequest::Complete(reply.bytes);
                }
            }
            WaitingRequest::Merged(values) => values.advance(proxy, tag),
            _ => {}
        }
    }

    /// Appends a part of the reply to the bytes that may be sent, if it comes next and nothing
    /// before it was kept.
    #[inline]
    pub(super) fn pass_on(&mut self, number: u32, part: ReplyPart<'_>, ready: &mut Vec<u8>) -> PassedPart {
        match self {
            WaitingRequest::Forwarded { arrived, hidden, has_open_value, .. } if arrived.is_empty() => {
                *has_open_value = part.missing > 0;
                if part.continues || !hidden.contain(part.bytes) {
                    ready.extend_from_slice(part.bytes);
                }
                if part.is_last { PassedPart::End } else { PassedPart::Piece }
            }
            WaitingRequest::Merged(values) if part.key.is_some() => {
                match values.pass_on(number, part.key_number, part.bytes, ready) {
                    true if values.has_next() => PassedPart::BeforeKept,
                    true => PassedPart::Piece,
                    false => PassedPart::Nothing,
                }
            }
            _ => PassedPart::Nothing,
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
            WaitingRequest::Merged(values) => values.drain(out),
            WaitingRequest::Gathered(replies) => {
                let is_complete = replies.is_complete();
                if is_complete {
                    replies.put(out);
                }
                is_complete
            }
            WaitingRequest::Polled(poll) => poll.put(out),
            WaitingRequest::Routed(_) | WaitingRequest::Moved(_) | WaitingRequest::Close => false,
        }
    }
}
