//! Keeps the bytes of a request whose reply is written after the request has left the input.

use super::loss_reply::{error_line, error_of_moxi};
use crate::options::WhenDown;
use crate::proxy::{CountedBytes, KeptBytes};
use todana_core::{Operation, RefusalReason, Reply};
use todana_protocol::memcached::{
    MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedStep, ReplyForm, encode,
};

/// The error that no client library takes for a failure of the proxy itself.
const GENTLE_REFUSAL: &str = "SERVER_ERROR out of memory storing object";

/// A request of a client in any dialect. It is decoded again for each use, because what is decoded
/// borrows from the bytes.
#[derive(Debug)]
pub(super) struct ClientRequest {
    bytes: Vec<u8>,
    limits: MemcachedLimits,
    can_lack_time: bool,
    /// Counts the bytes as memory.
    _counted: CountedBytes,
}

impl ClientRequest {
    /// Keeps a request. Its bytes are those of one operation: of a line with several keys, the
    /// caller keeps a line for each key.
    pub(super) fn new(bytes: Vec<u8>, limits: &MemcachedLimits, kept: &KeptBytes) -> ClientRequest {
        let no_login = MemcachedLimits { sasl: false, text_login: false, ..*limits };
        let limits =
            MemcachedLimits { unfinished_len_max: usize::MAX, long_block_len: usize::MAX, ..no_login };
        let counted = kept.count(bytes.len());
        ClientRequest { bytes, limits, can_lack_time: false, _counted: counted }
    }

    /// Lets the request ask for the time to live only if its server can report it.
    pub(super) fn without_need_of_time(self) -> ClientRequest {
        ClientRequest { can_lack_time: true, ..self }
    }

    /// Returns true if a reply without the time to live that the request asks for is acceptable.
    pub(super) fn can_lack_time(&self) -> bool {
        self.can_lack_time
    }

    /// Passes the operation and the form of its reply to `see`.
    pub(super) fn with<R>(&self, see: impl FnOnce(&Operation<'_>, &ReplyForm<'_>) -> R) -> Option<R> {
        let mut scratch = Vec::new();
        match MemcachedDecoder::default().decode(&self.limits, &self.bytes, &mut scratch) {
            MemcachedStep::Request { request, .. } => match &request.command {
                MemcachedCommand::Operation(operation) => Some(see(operation, &request.form)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns true if the request requires a freshness, or asks for a position in a log.
    pub(super) fn requires_freshness(&self) -> bool {
        // Decoding again costs more than this search.
        self.bytes.contains(&b'Y') && self.with(|_, form| form.freshness().is_some()) == Some(true)
    }

    /// Writes a reply to the request.
    pub(super) fn put_reply(&self, reply: &Reply<'_>, out: &mut Vec<u8>) {
        self.with(|_, form| encode(form, reply, out));
    }

    /// Writes an error line to the request, or what its dialect has instead.
    pub(super) fn put_failure(&self, line: &[u8], out: &mut Vec<u8>) {
        self.with(|_, form| form.put_failure(line, out));
    }

    /// Writes the reply to a request that its server has not answered. Returns true if it is an
    /// error.
    pub(super) fn put_loss(&self, when_down: WhenDown, label: &str, reason: &str, out: &mut Vec<u8>) -> bool {
        let is_error = self.with(|operation, form| {
            let is_read = matches!(operation, Operation::Get(_) | Operation::Inspect(_));
            match (when_down, is_read) {
                (WhenDown::Error, _) | (WhenDown::Miss, false) => {
                    form.put_failure(error_line(label, reason).as_bytes(), out);
                    true
                }
                (WhenDown::Moxi, false) => {
                    form.put_failure(error_of_moxi(label, reason).as_bytes(), out);
                    true
                }
                (_, true) => {
                    encode(form, &Reply::Miss, out);
                    false
                }
                (WhenDown::Gentle, false) if form.is_binary() => {
                    encode(form, &Reply::Refused(RefusalReason::OutOfMemory), out);
                    true
                }
                (WhenDown::Gentle, false) => {
                    form.put_failure(GENTLE_REFUSAL.as_bytes(), out);
                    true
                }
            }
        });
        is_error.unwrap_or(true)
    }
}
