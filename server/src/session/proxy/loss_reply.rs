//! Writes the reply to a request that a server does not answer.

use crate::options::WhenDown;
use todana_core::{Operation, Reply};
use todana_protocol::memcached::{ReplyForm, encode};

/// The reply that no client library takes for a failure of the proxy itself.
const GENTLE_REFUSAL: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

/// The kinds of request, by the reply that says that there is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MissReply {
    /// A read of the text dialect: `END`.
    End,
    /// A read of the meta dialect: `EN`, or these bytes if the reply shows something of the
    /// request.
    Meta(Option<Box<[u8]>>),
    /// A write has no such reply.
    None,
}

impl MissReply {
    pub(super) fn of(operation: &Operation<'_>, form: &ReplyForm<'_>) -> MissReply {
        match operation {
            Operation::Get(_) if form.is_value() => MissReply::End,
            Operation::Get(_) | Operation::Inspect(_) if form.is_meta() => {
                MissReply::Meta(form.shows_request().then(|| {
                    let mut bytes = Vec::new();
                    encode(form, &Reply::Miss, &mut bytes);
                    bytes.into()
                }))
            }
            _ => MissReply::None,
        }
    }
}

/// Writes the reply to a request that the server `label` has not answered for this reason.
pub(super) fn put_loss(when_down: WhenDown, miss: &MissReply, label: &str, reason: &str, out: &mut Vec<u8>) {
    match (when_down, miss) {
        (WhenDown::Error, _) | (WhenDown::Miss, MissReply::None) => put_error(label, reason, out),
        (WhenDown::Moxi, MissReply::None) => {
            out.extend_from_slice(error_of_moxi(label, reason).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        (_, MissReply::End) => out.extend_from_slice(b"END\r\n"),
        (_, MissReply::Meta(shown)) => out.extend_from_slice(shown.as_deref().unwrap_or(b"EN\r\n")),
        (WhenDown::Gentle, MissReply::None) => out.extend_from_slice(GENTLE_REFUSAL),
    }
}

/// Returns moxi's error line.
pub(super) fn error_of_moxi(label: &str, reason: &str) -> String {
    let action = match reason {
        "closed" => "downstream closed",
        "timed out" => "downstream timeout",
        _ => "write to downstream",
    };
    format!("SERVER_ERROR proxy {action} {label}")
}

/// Returns the error line that names the server and the reason, without its line end. If the label
/// is empty, it names neither.
pub(super) fn error_line(label: &str, reason: &str) -> String {
    match label {
        "" => "SERVER_ERROR backend failure".into(),
        label => format!("SERVER_ERROR server {label}: {reason}"),
    }
}

/// Writes the error line with its line end.
pub(super) fn put_error(label: &str, reason: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(error_line(label, reason).as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_writes_have_the_chosen_error() {
        for (when_down, reason, line) in [
            (WhenDown::Gentle, "closed", "SERVER_ERROR out of memory storing object\r\n"),
            (WhenDown::Error, "closed", "SERVER_ERROR server a:1: closed\r\n"),
            (WhenDown::Miss, "down", "SERVER_ERROR server a:1: down\r\n"),
            (WhenDown::Moxi, "down", "SERVER_ERROR proxy write to downstream a:1\r\n"),
            (WhenDown::Moxi, "closed", "SERVER_ERROR proxy downstream closed a:1\r\n"),
            (WhenDown::Moxi, "timed out", "SERVER_ERROR proxy downstream timeout a:1\r\n"),
        ] {
            let mut out = Vec::new();
            put_loss(when_down, &MissReply::None, "a:1", reason, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), line);
        }
    }
}
