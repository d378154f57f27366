//! Defines a long value that is passed on to its server in the pieces in which it arrives from the
//! client.

use crate::proxy::{ProxyState, ProxyWorker, RequestTag, SendRefusal, ServerPlace};
use std::sync::Arc;
use todana_core::SharedBytes;
use todana_protocol::memcached::{
    LongBlock, MemcachedDecoder, MemcachedLimits, MemcachedRequest, MemcachedStep,
};

/// Values that are longer are passed on in pieces.
pub(super) const LONG_VALUE: usize = 64 << 10;
/// The end of the data block of a text or meta request.
const BLOCK_END: &[u8] = b"\r\n";

/// The announcement of a long value.
#[derive(Debug)]
pub(super) struct AnnouncedBlock {
    /// The request up to its value.
    head: Box<[u8]>,
    value_len: usize,
    /// The length of the line end after the value.
    end_len: usize,
}

impl AnnouncedBlock {
    pub(super) fn new(head: &[u8], value_len: usize, end_len: usize) -> AnnouncedBlock {
        AnnouncedBlock { head: head.into(), value_len, end_len }
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the number of bytes after the head.
    pub(super) fn len(&self) -> usize {
        self.value_len + self.end_len
    }

    /// Passes the request to `see`, with an empty value. If the value does not end with a line end,
    /// it is the request that says so.
    pub(super) fn with<R>(
        &self,
        mut decoder: MemcachedDecoder,
        limits: &MemcachedLimits,
        ends_correctly: bool,
        see: impl FnOnce(&MemcachedRequest<'_>) -> R,
    ) -> Option<R> {
        let value: SharedBytes = Arc::new([]);
        let end = if ends_correctly { BLOCK_END } else { b"xx" };
        let block = LongBlock::Whole { value: &value, end: &end[..self.end_len] };
        let mut scratch = Vec::new();
        match decoder.decode_block(limits, &self.head, block, &mut scratch) {
            MemcachedStep::Request { request, .. } => Some(see(&request)),
            _ => None,
        }
    }
}

/// A long value of which a part has not arrived.
pub(super) struct ClientUpload {
    pub(super) announced: AnnouncedBlock,
    /// The number of bytes of the value and of its end that are missing.
    left: usize,
    target: UploadTarget,
}

/// The use of the bytes of a long value.
enum UploadTarget {
    /// They go to a server.
    Server { state: Arc<ProxyState>, place: ServerPlace, tag: RequestTag, line: Vec<u8>, is_blocked: bool },
    /// They are discarded, because the request has its reply.
    Nowhere,
}

/// The outcome of a step.
#[derive(Debug)]
pub(super) enum UploadStep {
    /// The client has to send at least this many more bytes.
    Read { at_least: usize },
    /// The server has to accept bytes first, or another client has to end its request.
    Wait,
    /// All bytes are sent, or discarded.
    Complete,
    /// The server does not accept the request.
    Refused(SendRefusal),
    /// No line end follows the value.
    Unterminated,
}

impl ClientUpload {
    /// Creates an upload to a server. `line` is the request without its value, as the server gets
    /// it.
    pub(super) fn to_server(
        announced: AnnouncedBlock,
        state: Arc<ProxyState>,
        place: ServerPlace,
        tag: RequestTag,
        line: Vec<u8>,
    ) -> ClientUpload {
        let left = announced.len();
        let target = UploadTarget::Server { state, place, tag, line, is_blocked: false };
        ClientUpload { announced, left, target }
    }

    /// Creates an upload whose bytes are discarded.
    pub(super) fn to_nowhere(announced: AnnouncedBlock) -> ClientUpload {
        ClientUpload { left: announced.len(), announced, target: UploadTarget::Nowhere }
    }

    /// Returns true if nothing can be done with more bytes of the client.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.target, UploadTarget::Server { is_blocked: true, .. })
    }

    /// Returns true if the upload has not begun, and can begin before more bytes arrive.
    pub(super) fn can_begin(&self) -> bool {
        matches!(&self.target, UploadTarget::Server { is_blocked: false, line, .. } if !line.is_empty())
    }

    /// Returns true if the request has no reply yet.
    pub(super) fn awaits_reply(&self) -> bool {
        matches!(self.target, UploadTarget::Server { .. })
    }

    /// Notes that the server or another client no longer blocks the upload.
    pub(super) fn unblock(&mut self) {
        if let UploadTarget::Server { is_blocked, .. } = &mut self.target {
            *is_blocked = false;
        }
    }

    /// Returns true if the bytes go to a server as this request.
    pub(super) fn is_of(&self, request: u64) -> bool {
        matches!(self.target, UploadTarget::Server { tag, .. } if tag.request == request)
    }

    /// Discards the rest, because the request has its reply.
    pub(super) fn discard(&mut self) {
        self.target = UploadTarget::Nowhere;
    }

    /// Discards the rest, because the server does not accept the request. Returns its server.
    pub(super) fn refused(&mut self) -> Option<(Arc<ProxyState>, ServerPlace, RequestTag)> {
        match std::mem::replace(&mut self.target, UploadTarget::Nowhere) {
            UploadTarget::Server { state, place, tag, .. } => Some((state, place, tag)),
            UploadTarget::Nowhere => None,
        }
    }

    /// Ends the upload. The server stores nothing.
    pub(super) fn cancel(&mut self, proxy: &mut ProxyWorker) {
        if let UploadTarget::Server { state, place, tag, .. } = &self.target {
            proxy.cancel_upload(state, *place, *tag);
        }
        self.discard();
    }

    /// Uses the bytes at the start of `input`. Returns the number of bytes that were used.
    pub(super) fn advance(&mut self, proxy: &mut ProxyWorker, input: &[u8]) -> (usize, UploadStep) {
        let UploadTarget::Server { state, place, tag, line, is_blocked } = &mut self.target else {
            let len = self.left.min(input.len());
            self.left -= len;
            let step = if self.left == 0 { UploadStep::Complete } else { UploadStep::Read { at_least: 1 } };
            return (len, step);
        };
        if !line.is_empty() {
            match proxy.begin_upload(state, *place, *tag, |out| out.extend_from_slice(line)) {
                Ok(true) => *line = Vec::new(),
                Ok(false) => {
                    *is_blocked = true;
                    return (0, UploadStep::Wait);
                }
                Err(refusal) => return (0, UploadStep::Refused(refusal)),
            }
        }
        // The line end is sent only if it is one, and only together with all before it.
        let value_left = self.left.saturating_sub(self.announced.end_len);
        let len = if input.len() >= self.left { self.left } else { value_left.min(input.len()) };
        if len > value_left && !BLOCK_END.ends_with(&input[value_left..len]) {
            return (0, UploadStep::Unterminated);
        }
        if len == 0 {
            return (0, UploadStep::Read { at_least: self.left - input.len() });
        }
        // Without a connection, its loss has been reported.
        let accepted = proxy.send_value(state, *place, *tag, &input[..len], len == self.left).unwrap_or(0);
        self.left -= accepted;
        *is_blocked = accepted < len;
        let step = match self.left {
            _ if *is_blocked => UploadStep::Wait,
            0 => UploadStep::Complete,
            left => UploadStep::Read { at_least: left - (input.len() - len) },
        };
        (accepted, step)
    }
}
