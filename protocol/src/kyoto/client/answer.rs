//! Decodes HTTP answers for a client.

use crate::ReplySink;
use crate::kyoto::http::{
    BodyContent, BodyFraming, ChunkProgress, ChunkWalker, HeadProgress, HttpHead, join_chunks,
};
use crate::kyoto::rest::put_path;
use crate::kyoto::{ColumnEncoding, KyotoLimits, MapScratch, ParameterMap, format_date};
use memchr::memchr;

/// The outcome of a call. It is derived from the status code in the same way as in the original's
/// clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call succeeded.
    Success,
    /// Parameters are missing or wrong.
    Invalid,
    /// The stored data does not satisfy the call's condition.
    Logic,
    /// The procedure does not exist, or the database does not support it.
    NotImplemented,
    /// A wait ended without a signal.
    TimedOut,
    /// The database or the server failed.
    Internal,
}

/// The answer to an HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpAnswer<'a> {
    /// The status code.
    pub status: u16,
    /// False if the server closes the connection after this answer.
    pub keeps_alive: bool,
    /// The pairs, if the body contains a map.
    pub map: ParameterMap<'a>,
    /// The body as received.
    pub body: &'a [u8],
    /// `X-Kt-Xt`: the absolute time of expiry, if present.
    pub xt: Option<u64>,
    head: &'a [u8],
}

impl<'a> HttpAnswer<'a> {
    /// Returns the outcome of the call.
    pub fn outcome(&self) -> CallOutcome {
        match self.status {
            200..=299 => CallOutcome::Success,
            400..=449 => CallOutcome::Invalid,
            450..=499 => CallOutcome::Logic,
            501 => CallOutcome::NotImplemented,
            503 => CallOutcome::TimedOut,
            _ => CallOutcome::Internal,
        }
    }

    /// Returns the value of a header, or `None`. The case of the name is ignored. Each call
    /// searches the head.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        let mut lines = self.head.split(|&byte| byte == b'\n').skip(1);
        lines.find_map(|line| {
            let colon = memchr(b':', line)?;
            let is_it = line[..colon].trim_ascii().eq_ignore_ascii_case(name.as_bytes());
            is_it.then(|| line[colon + 1..].trim_ascii())
        })
    }

    /// Returns the text of a failure: the value of `ERROR` for a call, the `X-Kt-Error` header for
    /// a resource.
    pub fn error(&self) -> Option<&'a [u8]> {
        self.map.get(b"ERROR").or_else(|| self.header("X-Kt-Error"))
    }
}

/// The result of decoding the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStep<'a> {
    /// A complete answer.
    Answer {
        /// The consumed bytes of the input, at least 1.
        consumed: usize,
        /// The answer, which borrows from the input and the scratch.
        answer: HttpAnswer<'a>,
    },
    /// The answer is incomplete.
    NeedMore {
        /// The number of bytes that are missing at least; never 0.
        at_least: usize,
    },
    /// The input is not a valid answer, or it exceeds the limits.
    Malformed,
}

/// The decoder of a connection's answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerDecoder {
    mode: AnswerState,
}

#[derive(Clone, Copy, Debug, Default)]
enum AnswerState {
    #[default]
    Start,
    Head(HttpHead),
    Body {
        head: HttpHead,
        head_len: usize,
        total: usize,
    },
    Chunks {
        head: HttpHead,
        head_len: usize,
        chunks: ChunkWalker,
    },
}

impl AnswerDecoder {
    /// Decodes the next step from `input`, which must contain all unread bytes. `has_body` must be
    /// false for the answer to HEAD.
    pub fn decode<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
        has_body: bool,
    ) -> AnswerStep<'a> {
        let limits = limits.bounded();
        loop {
            match self.mode {
                AnswerState::Start => self.mode = AnswerState::Head(HttpHead::of_answer()),
                AnswerState::Head(mut head) => match head.read(&limits, input) {
                    HeadProgress::Whole(head_len) => {
                        self.mode = match head.body() {
                            _ if !has_body => AnswerState::Body { head, head_len, total: head_len },
                            BodyFraming::Chunked => {
                                AnswerState::Chunks { head, head_len, chunks: ChunkWalker::new(head_len) }
                            }
                            BodyFraming::Sized(len) if len > limits.body_len_max => {
                                return AnswerStep::Malformed;
                            }
                            BodyFraming::Sized(len) => {
                                AnswerState::Body { head, head_len, total: head_len + len as usize }
                            }
                            BodyFraming::Ignored(_) | BodyFraming::IgnoredChunks => {
                                return AnswerStep::Malformed;
                            }
                        };
                    }
                    HeadProgress::Partial => {
                        self.mode = AnswerState::Head(head);
                        return AnswerStep::NeedMore { at_least: 1 };
                    }
                    HeadProgress::Garbage | HeadProgress::TooLarge => return AnswerStep::Malformed,
                },
                AnswerState::Body { total, .. } if input.len() < total => {
                    return AnswerStep::NeedMore { at_least: total - input.len() };
                }
                AnswerState::Body { head, head_len, total } => {
                    self.mode = AnswerState::Start;
                    scratch.clear();
                    if let BodyContent::Tsv(encoding) = head.content {
                        scratch.add_tsv(input, true, head_len, total);
                        decode_map(scratch, input, encoding);
                    }
                    let (map, _) = scratch.map(input);
                    let answer = answer(&head, &input[..head_len], map, &input[head_len..total]);
                    return AnswerStep::Answer { consumed: total, answer };
                }
                AnswerState::Chunks { head, head_len, mut chunks } => match chunks.walk(&limits, input) {
                    ChunkProgress::Whole(total) => {
                        self.mode = AnswerState::Start;
                        scratch.clear();
                        join_chunks(&input[head_len..total], scratch.text_mut());
                        let len = scratch.text_mut().len();
                        if let BodyContent::Tsv(encoding) = head.content {
                            scratch.add_tsv(input, false, 0, len);
                            decode_map(scratch, input, encoding);
                        }
                        let (map, text) = scratch.map(input);
                        let answer = answer(&head, &input[..head_len], map, &text[..len]);
                        return AnswerStep::Answer { consumed: total, answer };
                    }
                    ChunkProgress::Partial(at_least) => {
                        self.mode = AnswerState::Chunks { head, head_len, chunks };
                        return AnswerStep::NeedMore { at_least };
                    }
                    ChunkProgress::TooLarge | ChunkProgress::Invalid => return AnswerStep::Malformed,
                },
            }
        }
    }
}

fn decode_map(scratch: &mut MapScratch, input: &[u8], encoding: ColumnEncoding) {
    if encoding != ColumnEncoding::Raw {
        scratch.decode_columns(input, encoding);
    }
    scratch.sort_entries(input);
}

fn answer<'a>(head: &HttpHead, bytes: &'a [u8], map: ParameterMap<'a>, body: &'a [u8]) -> HttpAnswer<'a> {
    let keeps_alive = head.form().keeps_alive;
    HttpAnswer { status: head.status, keeps_alive, map, body, xt: head.xt, head: bytes }
}

/// Writes a request for a resource: the head, and the value if one is stored.
pub fn put_resource(
    method: &str,
    host: &str,
    database: Option<&[u8]>,
    key: &[u8],
    headers: &[(&str, &str)],
    stored: Option<(&[u8], Option<u64>)>,
    out: &mut impl ReplySink,
) {
    out.put(method.as_bytes());
    out.put(b" ");
    put_path(database, key, out);
    out.put(b" HTTP/1.1\r\nHost: ");
    out.put(host.as_bytes());
    out.put(b"\r\n");
    for (name, value) in headers {
        for text in [name, ": ", value, "\r\n"] {
            out.put(text.as_bytes());
        }
    }
    let Some((value, xt)) = stored else { return out.put(b"\r\n") };
    if let Some(xt) = xt {
        out.put(b"X-Kt-Xt: ");
        out.put(format_date(xt).as_bytes());
        out.put(b"\r\n");
    }
    out.put(b"Content-Length: ");
    out.put(itoa::Buffer::new().format(value.len()).as_bytes());
    out.put(b"\r\n\r\n");
    out.put(value);
}
