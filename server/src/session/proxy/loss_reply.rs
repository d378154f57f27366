//! Writes the reply to a request that a server does not answer.

use crate::options::WhenDown;
use todana_core::Operation;
use todana_protocol::memcached::ReplyForm;

/// The reply that no client library takes for a failure of the proxy itself.
const GENTLE_REFUSAL: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

/// The kinds of request, by the reply that says that there is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissReply {
    /// A read of the text dialect: `END`.
    End,
    /// A read of the meta dialect: `EN`.
    Meta,
    /// A write has no such reply.
    None,
}

impl MissReply {
    pub(super) fn of(operation: &Operation<'_>, form: &ReplyForm<'_>) -> MissReply {
        match operation {
            Operation::Get(_) if form.is_value() => MissReply::End,
            Operation::Get(_) | Operation::Inspect(_) if form.is_meta() => MissReply::Meta,
            _ => MissReply::None,
        }
    }
}

/// Writes the reply to a request that the server `label` has not answered for this reason.
pub(super) fn put_loss(when_down: WhenDown, miss: MissReply, label: &str, reason: &str, out: &mut Vec<u8>) {
    match (when_down, miss) {
        (WhenDown::Error, _) | (WhenDown::Miss, MissReply::None) => put_error(label, reason, out),
        (_, MissReply::End) => out.extend_from_slice(b"END\r\n"),
        (_, MissReply::Meta) => out.extend_from_slice(b"EN\r\n"),
        (WhenDown::Gentle, MissReply::None) => out.extend_from_slice(GENTLE_REFUSAL),
    }
}

/// Writes the error line that names the server and the reason.
pub(super) fn put_error(label: &str, reason: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("SERVER_ERROR server {label}: {reason}\r\n").as_bytes());
}
