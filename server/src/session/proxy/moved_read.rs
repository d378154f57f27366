//! Defines a read whose reply turned out to have a very long value. The connection that all clients
//! share must not wait for one client, and the value must not be in memory as a whole. So the read
//! is repeated on a connection that is read only as fast as the client reads.

use super::loss_reply::{MissReply, put_loss};
use crate::options::PoolOptions;
use crate::proxy::{PoolServer, ProxyWorker, ReplyDelivery, RequestTag};
use std::sync::Arc;
use todana_client::pool::{ReplyKind, ReplyPart};
use todana_protocol::memcached::HiddenReplies;

/// A read that is repeated on another connection.
pub(super) struct MovedRead {
    server: Arc<PoolServer>,
    options: Arc<PoolOptions>,
    tag: RequestTag,
    line: Box<[u8]>,
    pub(super) hidden: HiddenReplies,
    miss: MissReply,
    progress: ReadProgress,
    has_open_value: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadProgress {
    /// It can be sent.
    Unsent,
    /// Other clients use the connections.
    Queued,
    /// The server has to send something.
    AwaitsServer,
    /// The client has to read something.
    AwaitsClient,
}

/// The effect of what arrives for a read.
pub(super) enum MovedOutcome {
    /// More is to come.
    Continues,
    /// The reply is complete.
    Complete,
    /// A value is cut off.
    Cut,
}

impl std::fmt::Debug for MovedRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MovedRead").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl MovedRead {
    /// Creates a read from the first part of its reply, which came from this server of a pool with
    /// these options.
    pub(super) fn new(
        (server, options): (&Arc<PoolServer>, &Arc<PoolOptions>),
        tag: RequestTag,
        line: &[u8],
        hidden: HiddenReplies,
        miss: MissReply,
    ) -> MovedRead {
        MovedRead {
            server: Arc::clone(server),
            options: Arc::clone(options),
            tag: RequestTag { question: 1, may_repeat: false, ..tag },
            line: line.into(),
            hidden,
            miss,
            progress: ReadProgress::Unsent,
            has_open_value: false,
        }
    }

    /// Returns true if the server may execute later requests before this one.
    pub(super) fn may_be_overtaken(&self) -> bool {
        self.progress != ReadProgress::AwaitsClient
    }

    /// Returns true if [`advance`](Self::advance) has something to do.
    pub(super) fn can_advance(&self) -> bool {
        matches!(self.progress, ReadProgress::Unsent | ReadProgress::AwaitsClient)
    }

    /// Asks for the reply, or for its next part. The client has accepted all earlier parts. Returns
    /// the reply if the server does not accept the request.
    pub(super) fn advance(&mut self, proxy: &mut ProxyWorker) -> Option<Vec<u8>> {
        match self.progress {
            ReadProgress::Unsent => {
                let kind = if self.line.starts_with(b"mg ") { ReplyKind::Single } else { ReplyKind::Values };
                let put = |out: &mut Vec<u8>| out.extend_from_slice(&self.line);
                match proxy.begin_read(&self.server, &self.options, kind, self.tag, put) {
                    Ok(true) => self.progress = ReadProgress::AwaitsServer,
                    Ok(false) => self.progress = ReadProgress::Queued,
                    Err(refusal) => {
                        let mut reply = Vec::new();
                        let (label, reason) = (self.server.shown_label(), refusal.as_str());
                        put_loss(self.options.when_down, &self.miss, label, reason, &mut reply);
                        return Some(reply);
                    }
                }
            }
            ReadProgress::AwaitsClient => {
                self.progress = ReadProgress::AwaitsServer;
                proxy.resume_read(&self.server, self.tag);
            }
            ReadProgress::Queued | ReadProgress::AwaitsServer => {}
        }
        None
    }

    /// Notes what arrives, and appends the bytes for the client to `ready`.
    pub(super) fn receive(
        &mut self,
        tag: RequestTag,
        delivery: ReplyDelivery<'_>,
        ready: &mut Vec<u8>,
    ) -> MovedOutcome {
        // The rest of the first reply is of no use.
        if tag.question != self.tag.question {
            return MovedOutcome::Continues;
        }
        match delivery {
            ReplyDelivery::Part(part) | ReplyDelivery::LongValue { part, .. } => {
                let ReplyPart { bytes, is_last, continues, missing, .. } = part;
                if continues || !self.hidden.contain(bytes) {
                    ready.extend_from_slice(bytes);
                }
                (self.progress, self.has_open_value) = (ReadProgress::AwaitsClient, missing > 0);
                if is_last { MovedOutcome::Complete } else { MovedOutcome::Continues }
            }
            ReplyDelivery::Lost { .. } if self.has_open_value => MovedOutcome::Cut,
            ReplyDelivery::Lost { label, reason, when_down } => {
                put_loss(when_down, &self.miss, label, reason, ready);
                MovedOutcome::Complete
            }
            ReplyDelivery::UploadContinues => {
                if self.progress == ReadProgress::Queued {
                    self.progress = ReadProgress::Unsent;
                }
                MovedOutcome::Continues
            }
            ReplyDelivery::DialectKnown | ReplyDelivery::Turn { .. } => MovedOutcome::Continues,
        }
    }

    /// Ends the read, because the client has gone.
    pub(super) fn cancel(&self, proxy: &mut ProxyWorker) {
        proxy.cancel_read(&self.server, self.tag);
    }
}
