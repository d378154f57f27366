//! A call over HTTP whose reply comes from a background job.

use crate::session::NextAction;
use crate::transport::output::ConnectionOutput;
use todana_protocol::ReplySink;
use todana_protocol::tyrant::{FieldList, put_http_form, put_http_head, put_http_status, reply};

/// A call over HTTP whose reply in the binary protocol becomes the answer.
#[derive(Clone, Copy)]
pub(super) struct HttpCall {
    /// True for a function of `misc`, whose result is a list.
    pub(super) is_misc: bool,
    pub(super) keeps_alive: bool,
}

impl HttpCall {
    /// Writes the answer for a reply of the binary protocol.
    pub(super) fn put_answer(self, bytes: &[u8], output: &mut ConnectionOutput) {
        match bytes {
            [reply::SUCCESS, rest @ ..] if self.is_misc => match FieldList::from_reply(rest) {
                Some(list) => put_http_form(&list, output),
                None => put_http_status("500 Internal Server Error", output),
            },
            [reply::SUCCESS, _, _, _, _, result @ ..] => {
                put_http_head(result.len(), output);
                output.put(result);
            }
            _ => put_http_status("500 Internal Server Error", output),
        }
    }

    /// Returns the action after the answer.
    pub(super) fn next(self) -> NextAction {
        if self.keeps_alive { NextAction::Continue } else { NextAction::Close }
    }
}
