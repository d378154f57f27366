//! Kyoto Tycoon's protocols: TSV-RPC and REST over HTTP, and the binary protocol. Each request of a
//! connection may use any of them. This module contains the server side and the client side.
//!
//! The path of a request through the server side:
//!
//! ```text
//! bytes -> KyotoDecoder::decode -> KyotoStep::Request { request } -> the server
//!       -> answer functions -> ReplySink -> bytes
//!
//! KyotoRequest::Call(call)         call.procedure, call.target(), call.required(b"key")?, ...
//!                                  -> answer(), answer_failure(), AnswerPairs::write()
//! KyotoRequest::Rest(rest)         rest.action, rest.target, rest.key -> answer_rest()
//! KyotoRequest::Bulk(piece)        the beginning of a bulk request, then each of its records;
//!                                  the answer is due when `piece.remaining` is 0
//!                                  -> binary::put_hits(), put_record()
//! KyotoRequest::Script(script)     a name and a map -> binary::put_script_answer(), put_error()
//! KyotoRequest::Replicate(hello)   the connection now belongs to a replica -> replication
//! KyotoRequest::Acknowledged       the replica has read the message `B0`, "caught up"
//! KyotoRequest::Refused(refusal)   an invalid request; the connection ends -> answer_refusal()
//!
//! KyotoStep::Login { .. }          if the limits require logins: BasicCredentials::read(), then
//!                                  KyotoDecoder::accept_login() and the request, or
//!                                  KyotoDecoder::refuse_login() -> answer_unauthorized()
//! ```
//!
//! The parts:
//!
//! ```text
//! http         heads of requests line by line, chunked bodies
//! login        names and passwords of HTTP requests
//! browser      detection of requests that a browser sent
//! call         procedures and their typed parameters
//! rest         requests for single records as HTTP resources
//! columns      encodings of TSV columns: percent, base64, quoted-printable
//! map          parameters of requests as maps, in reusable memory
//! number       decimal and real numbers in parameters
//! date         dates in headers
//! expiry       expiry in calls, and in the first five bytes of stored values
//! answer       heads of answers, and their names and values
//! long_answer  answers with many pairs, written piece by piece
//! status       status codes and error texts
//! binary       the binary protocol: bulk requests record by record, scripts
//! message      updates, as logs contain them and masters send them
//! replication  both sides of the stream from a master to a replica
//! update_log   files of the update log
//! snapshot, dump, database_file   files of records
//! framed       records in these files
//! compression  compressors of these files
//! varnum       numbers of variable length
//! client       requests of a client, and decoders of answers
//! ```
//!
//! Invariants:
//! - Requests borrow from the input and from a reusable [`MapScratch`], so that an ordinary call
//!   allocates nothing.
//! - A [`KyotoDecoder`] is a few words of state and has no buffer.
//! - The requests do not depend on how the input is split.
//! - Each byte of an incomplete head is examined once.
//! - An announced length reserves no memory.
//! - After a request that closes the connection, only [`KyotoStep::Close`] follows.
//!
//! Not here: the meaning of procedures, waiting, cursors, clocks, sockets.

mod answer;
pub mod binary;
mod browser;
mod call;
pub mod client;
mod columns;
pub mod compression;
pub mod database_file;
mod date;
pub mod dump;
pub mod expiry;
mod framed;
mod http;
mod login;
mod long_answer;
mod map;
pub mod message;
pub mod number;
pub mod replication;
mod rest;
pub mod snapshot;
mod status;
pub mod update_log;
pub mod varnum;

pub use answer::{AnswerBanner, AnswerPairs, answer, answer_failure, answer_refusal, answer_unauthorized};
pub use binary::{BulkOperation, BulkPiece, BulkRecord, ReplicaRequest, ScriptCall};
pub use browser::{BrowserMark, is_own_host};
pub use call::{
    DatabaseTarget, IncrementOrigin, Procedure, ProcedureCall, SignalSend, SignalWait, TimestampParameter,
};
pub use columns::ColumnEncoding;
pub use date::{format_date, parse_date};
pub use http::{FreshnessHeader, HttpForm, HttpMethod, RestMode};
pub use login::BasicCredentials;
pub use long_answer::{AnswerBody, LongAnswer};
pub use map::{MapScratch, ParameterMap};
pub use message::{StoredValue, UpdateChange, UpdateMessage};
pub use rest::{RestAction, RestAnswer, RestRequest, answer_rest, put_path};
pub use status::{AnswerStatus, CallFailure, DatabaseError};

use http::{BodyContent, BodyFraming, ChunkProgress, ChunkWalker, HeadProgress, HttpHead, join_chunks};
use std::ops::Range;

/// The beginning of the path of a call.
const RPC: &[u8] = b"/rpc/";

/// The limits of requests, common to all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KyotoLimits<'h> {
    /// The longest body, and the longest key or value of the binary protocol, in bytes; at most
    /// 2^28.
    pub body_len_max: u64,
    /// The longest head of an HTTP request, in bytes, at most 2^20. A longer one is refused, and
    /// the connection is closed.
    pub head_len_max: usize,
    /// The number of bytes of an incomplete request that may be kept in memory at the moment. A
    /// longer request is refused as too large.
    pub unfinished_len_max: usize,
    /// True to accept requests that browsers send for web pages of other sites.
    pub pages_allowed: bool,
    /// The host names by which browsers may address this server, besides IP addresses and
    /// `localhost`. If the list is not empty, it applies to all clients.
    pub hosts: &'h [String],
    /// True to require a login with each HTTP request ([`KyotoStep::Login`]). The binary protocol
    /// has no login, so its requests are refused unless the last HTTP request of the connection had
    /// a valid login.
    pub login_required: bool,
}

impl Default for KyotoLimits<'_> {
    fn default() -> Self {
        KyotoLimits {
            body_len_max: 1 << 28,
            head_len_max: 1 << 20,
            unfinished_len_max: usize::MAX,
            pages_allowed: false,
            hosts: &[],
            login_required: false,
        }
    }
}

impl<'h> KyotoLimits<'h> {
    /// Returns the limits, reduced to the lengths for which the 32-bit offsets of this module
    /// suffice.
    fn bounded(&self) -> KyotoLimits<'h> {
        KyotoLimits {
            body_len_max: self.body_len_max.min(1 << 28),
            head_len_max: self.head_len_max.min(1 << 20),
            ..*self
        }
    }
}

/// A request, or a piece of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KyotoRequest<'a> {
    /// A call of a procedure.
    Call(ProcedureCall<'a>),
    /// A request for a resource.
    Rest(RestRequest<'a>),
    /// A piece of a bulk request of the binary protocol.
    Bulk(BulkPiece<'a>),
    /// A call of a script procedure over the binary protocol.
    Script(ScriptCall<'a>),
    /// A replica's request for updates.
    Replicate(ReplicaRequest),
    /// A replica's acknowledgement that it is up to date.
    Acknowledged,
    /// An invalid request; the connection is closed after the answer.
    Refused(RequestRefusal),
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefusal {
    /// HTTP: a web page of another site caused the request.
    ForeignPage,
    /// HTTP: the head exceeds its limit.
    HeadTooLarge,
    /// HTTP: the host name could belong to a foreign web page. Applies to browsers, and to all
    /// clients if host names are configured.
    ForeignHost,
    /// HTTP: a browser's GET would change something.
    Link,
    /// HTTP: a GET of a browser would change something.
    TooLarge,
    /// HTTP: the rest of a body did not arrive.
    Interrupted,
    /// HTTP: a chunk does not end at its announced length.
    InvalidChunk,
    /// Binary: a key or value exceeds its limit.
    Binary,
    /// Binary: the connection is not authenticated.
    Unauthenticated,
}

/// The result of decoding the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KyotoStep<'a> {
    /// A request, or a piece of a request.
    Request {
        /// The consumed bytes of the input, at least 1.
        consumed: usize,
        /// The request, which borrows from the input and the scratch.
        request: KyotoRequest<'a>,
    },
    /// The head of an HTTP request has arrived, and the login of the client must be checked before
    /// the body is read. Drop `consumed` bytes and continue with [`KyotoDecoder::accept_login`] or
    /// [`KyotoDecoder::refuse_login`]. Until then every call returns this step.
    Login {
        /// The consumed bytes of the input; the request begins after them.
        consumed: usize,
        /// The value of the `Authorization` header, for [`BasicCredentials::read`]; `None` if
        /// absent.
        authorization: Option<&'a [u8]>,
    },
    /// No complete request has arrived: drop `consumed` bytes, read at least `at_least` more bytes,
    /// and decode again.
    NeedMore {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The number of bytes that are certainly missing, at least 1. In a body or a record this
        /// is the complete missing part, so that a buffer can be sized once.
        at_least: usize,
    },
    /// Close the connection after pending answers have been sent.
    Close,
}

/// A guess, from the first bytes of a connection, whether the client speaks Kyoto Tycoon's
/// protocols. Used on a port that several protocols share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolGuess {
    /// Kyoto Tycoon.
    Kyoto,
    /// Another protocol.
    Other,
    /// More bytes are needed.
    Unsure,
}

/// The longest HTTP method that is distinguished from the commands of other protocols, in bytes.
const METHOD_LEN_MAX: usize = 16;

/// Guesses the protocol of a request that begins with these bytes. A request of the binary protocol
/// begins with a reserved byte, and an HTTP request begins with a method in capitals and a blank.
pub fn begins(input: &[u8]) -> ProtocolGuess {
    match input.first() {
        None => return ProtocolGuess::Unsure,
        Some(&first) if binary::is_request(first) => return ProtocolGuess::Kyoto,
        Some(_) => {}
    }
    let capitals = input.iter().take(METHOD_LEN_MAX + 1).take_while(|byte| byte.is_ascii_uppercase()).count();
    match input.get(capitals) {
        _ if capitals > METHOD_LEN_MAX => ProtocolGuess::Other,
        None => ProtocolGuess::Unsure,
        Some(b' ') if capitals > 0 => ProtocolGuess::Kyoto,
        Some(_) => ProtocolGuess::Other,
    }
}

/// The decoder of one connection: a few words of state, no buffer.
///
/// ```
/// use todana_protocol::kyoto::{
///     AnswerBanner, AnswerStatus, KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch,
///     Procedure, answer,
/// };
///
/// let (mut decoder, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
/// let input = b"GET /rpc/get?key=japan HTTP/1.1\r\n\r\n";
/// let step = decoder.decode(&KyotoLimits::default(), input, &mut scratch);
/// let KyotoStep::Request { consumed: 35, request: KyotoRequest::Call(call) } = step else {
///     panic!("{step:?}")
/// };
/// assert_eq!(call.procedure, Some(Procedure::Get));
/// assert_eq!(call.required(b"key"), Ok(&b"japan"[..]));
///
/// let (banner, mut out) = (AnswerBanner::new("0.9.56", 0), Vec::new());
/// answer(&call.form, &banner, AnswerStatus::Ok, &[("value", b"tokyo")], &mut out);
/// assert!(out.ends_with(b"\r\n\r\nvalue\ttokyo\n"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct KyotoDecoder {
    mode: DecoderState,
    /// True if the last HTTP request had a valid login.
    is_authenticated: bool,
}

/// The decoder's position in the stream.
#[derive(Clone, Copy, Debug, Default)]
enum DecoderState {
    /// At the beginning of a request.
    #[default]
    Start,
    /// In the head of an HTTP request.
    Head(HttpHead),
    /// After a head whose login has not been checked yet.
    AwaitingLogin { head: HttpHead, head_len: u32 },
    /// After a head with a valid login.
    LoginAccepted { head: HttpHead, head_len: u32 },
    /// In the body, which ends `total` bytes from the beginning of the request.
    Body { head: HttpHead, head_len: u32, total: u32 },
    /// In the chunks of a body.
    Chunks { head: HttpHead, head_len: u32, chunks: ChunkWalker },
    /// In a body that is being discarded. `left` bytes of the body remain.
    Discard { left: u64 },
    /// In a request of the binary protocol.
    Binary(binary::BinaryPosition),
    /// After a replica's request. Only acknowledgements follow.
    Replica,
    /// After the last request.
    Closed,
}

/// The location of a body.
enum BodyLocation {
    Input(Range<usize>),
    /// From the beginning of the scratch's text to this offset.
    Text(usize),
}

impl KyotoDecoder {
    /// Returns the error to send if the connection ends or times out now, or `None` to send
    /// nothing. The caller must close the connection in both cases.
    pub fn interrupted(&self) -> Option<RequestRefusal> {
        match self.mode {
            DecoderState::Body { .. } | DecoderState::Chunks { .. } => Some(RequestRefusal::Interrupted),
            DecoderState::Binary(place) => place.interrupted().then_some(RequestRefusal::Binary),
            _ => None,
        }
    }

    /// Decodes the next step from `input`, which must contain all unread bytes: the bytes that the
    /// last call did not consume, and the bytes that have arrived since. Must not be called again
    /// after [`KyotoStep::Close`].
    #[inline]
    pub fn decode<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
    ) -> KyotoStep<'a> {
        let mut limits = limits.bounded();
        let is_unauthenticated = limits.login_required && !self.is_authenticated;
        if is_unauthenticated {
            limits.head_len_max = limits.head_len_max.min(login::HEAD_LEN_MAX);
        }
        match self.mode {
            DecoderState::Start => match input.first() {
                None => KyotoStep::NeedMore { consumed: 0, at_least: 1 },
                Some(&first) if is_unauthenticated && binary::is_request(first) => {
                    self.refuse(RequestRefusal::Unauthenticated, 1)
                }
                Some(0 | 0x80..) => self.binary(&limits, input, scratch, binary::BinaryPosition::default()),
                Some(_) => self.head(&limits, input, scratch, HttpHead::default()),
            },
            DecoderState::Closed => KyotoStep::Close,
            DecoderState::Head(head) => self.head(&limits, input, scratch, head),
            DecoderState::AwaitingLogin { head, .. } => login::ask(input, &head),
            DecoderState::LoginAccepted { head, head_len } => {
                self.after_head(&limits, input, scratch, &head, head_len as usize)
            }
            DecoderState::Body { head, head_len, total } => {
                self.after_body(&limits, input, scratch, &head, head_len as usize, total as usize)
            }
            DecoderState::Chunks { head, head_len, chunks } => {
                self.walk_chunks(&limits, input, scratch, &head, head_len as usize, chunks)
            }
            DecoderState::Discard { left } => {
                let dropped = left.min(input.len() as u64);
                self.mode = if left > dropped {
                    DecoderState::Discard { left: left - dropped }
                } else {
                    DecoderState::Start
                };
                let dropped = dropped as usize;
                if dropped < input.len() {
                    // This recurses only once, because no second discarded body can follow.
                    return match self.decode(&limits, &input[dropped..], scratch) {
                        KyotoStep::Request { consumed, request } => {
                            KyotoStep::Request { consumed: consumed + dropped, request }
                        }
                        KyotoStep::Login { consumed, authorization } => {
                            KyotoStep::Login { consumed: consumed + dropped, authorization }
                        }
                        KyotoStep::NeedMore { consumed, at_least } => {
                            KyotoStep::NeedMore { consumed: consumed + dropped, at_least }
                        }
                        KyotoStep::Close => KyotoStep::Close,
                    };
                }
                KyotoStep::NeedMore { consumed: dropped, at_least: 1 }
            }
            DecoderState::Binary(place) => self.binary(&limits, input, scratch, place),
            DecoderState::Replica => match input.first() {
                None => KyotoStep::NeedMore { consumed: 0, at_least: 1 },
                Some(&binary::REPLICATION) => {
                    KyotoStep::Request { consumed: 1, request: KyotoRequest::Acknowledged }
                }
                Some(_) => self.close(),
            },
        }
    }

    /// Decodes the next record of the current bulk request, and returns the consumed bytes and the
    /// record. Returns `None` and changes nothing if the record is incomplete or exceeds a limit;
    /// [`decode`](KyotoDecoder::decode) then reports the reason. This is a fast path of `decode`
    /// for many records.
    #[inline]
    pub fn decode_record<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
    ) -> Option<(usize, BulkPiece<'a>)> {
        let DecoderState::Binary(place) = &mut self.mode else { return None };
        let (consumed, piece) = binary::next_record(place, &limits.bounded(), input)?;
        if piece.remaining == 0 {
            self.mode = DecoderState::Start;
        }
        Some((consumed, piece))
    }

    #[inline]
    fn head<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
        mut head: HttpHead,
    ) -> KyotoStep<'a> {
        match head.read(limits, input) {
            HeadProgress::Whole(head_len) => match head.refusal(limits) {
                Some(refusal) => self.refuse(refusal, head_len),
                None if limits.login_required => {
                    self.mode = DecoderState::AwaitingLogin { head, head_len: head_len as u32 };
                    login::ask(input, &head)
                }
                None => self.after_head(limits, input, scratch, &head, head_len),
            },
            HeadProgress::Partial if input.len() > limits.unfinished_len_max => self.close(),
            HeadProgress::Partial => {
                self.mode = DecoderState::Head(head);
                KyotoStep::NeedMore { consumed: 0, at_least: 1 }
            }
            HeadProgress::TooLarge => self.refuse(RequestRefusal::HeadTooLarge, input.len()),
            HeadProgress::Garbage => self.close(),
        }
    }

    #[inline]
    fn after_head<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
        head: &HttpHead,
        head_len: usize,
    ) -> KyotoStep<'a> {
        match head.body() {
            BodyFraming::Sized(len) if len > limits.body_len_max => {
                self.refuse(RequestRefusal::TooLarge, head_len)
            }
            BodyFraming::Sized(len) => {
                self.after_body(limits, input, scratch, head, head_len, head_len + len as usize)
            }
            BodyFraming::Chunked => {
                self.walk_chunks(limits, input, scratch, head, head_len, ChunkWalker::new(head_len))
            }
            BodyFraming::Ignored(len) => {
                self.mode = if len == 0 { DecoderState::Start } else { DecoderState::Discard { left: len } };
                scratch.clear();
                self.request(limits, input, scratch, head, head_len, BodyLocation::Input(head_len..head_len))
            }
            BodyFraming::IgnoredChunks => {
                self.mode = DecoderState::Closed;
                scratch.clear();
                self.request(limits, input, scratch, head, head_len, BodyLocation::Input(head_len..head_len))
            }
        }
    }

    #[inline]
    fn after_body<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
        head: &HttpHead,
        head_len: usize,
        total: usize,
    ) -> KyotoStep<'a> {
        if input.len() < total {
            if input.len() > limits.unfinished_len_max {
                return self.refuse(RequestRefusal::TooLarge, head_len);
            }
            self.mode = DecoderState::Body { head: *head, head_len: head_len as u32, total: total as u32 };
            return KyotoStep::NeedMore { consumed: 0, at_least: total - input.len() };
        }
        self.mode = DecoderState::Start;
        scratch.clear();
        self.request(limits, input, scratch, head, total, BodyLocation::Input(head_len..total))
    }

    fn walk_chunks<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
        head: &HttpHead,
        head_len: usize,
        mut chunks: ChunkWalker,
    ) -> KyotoStep<'a> {
        match chunks.walk(limits, input) {
            ChunkProgress::Whole(total) => {
                self.mode = DecoderState::Start;
                scratch.clear();
                join_chunks(&input[head_len..total], scratch.text_mut());
                let body = BodyLocation::Text(scratch.text_mut().len());
                self.request(limits, input, scratch, head, total, body)
            }
            // A chunk of one byte takes six bytes. Much more overhead than that is an attack.
            ChunkProgress::Partial(_)
                if input.len() > limits.unfinished_len_max
                    || (input.len() - head_len) as u64 > limits.body_len_max * 2 + (1 << 16) =>
            {
                self.refuse(RequestRefusal::TooLarge, head_len)
            }
            ChunkProgress::Partial(at_least) => {
                self.mode = DecoderState::Chunks { head: *head, head_len: head_len as u32, chunks };
                KyotoStep::NeedMore { consumed: 0, at_least }
            }
            ChunkProgress::TooLarge => self.refuse(RequestRefusal::TooLarge, head_len),
            ChunkProgress::Invalid => self.refuse(RequestRefusal::InvalidChunk, head_len),
        }
    }

    /// Decodes a request whose head and body are complete.
    #[inline]
    fn request<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
        head: &HttpHead,
        total: usize,
        body: BodyLocation,
    ) -> KyotoStep<'a> {
        let mut form = head.form();
        if let DecoderState::Closed = self.mode {
            form.keeps_alive = false;
        }
        if !form.keeps_alive {
            self.mode = DecoderState::Closed;
        }
        let input = &input[..total];
        let target = head.target();
        let sent = &input[target.clone()];
        let path = &input[target.start..head.path_end()];
        let query = (head.path_end() + 1).min(target.end)..target.end;
        let request = match path.strip_prefix(RPC) {
            Some(name) => {
                let call = call(input, scratch, name, query, head.content, body, form);
                if head.is_of_link(limits) && !call.procedure.is_some_and(Procedure::only_reads) {
                    return self.refuse(RequestRefusal::Link, total);
                }
                KyotoRequest::Call(call)
            }
            None => KyotoRequest::Rest(resource(input, scratch, head, path, sent, body, form)),
        };
        KyotoStep::Request { consumed: total, request }
    }

    fn binary<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
        mut place: binary::BinaryPosition,
    ) -> KyotoStep<'a> {
        let outcome = binary::decode(&mut place, limits, input, scratch);
        self.mode = match outcome {
            binary::BinaryOutcome::Piece { .. } | binary::BinaryOutcome::NeedMore { .. } => {
                DecoderState::Binary(place)
            }
            binary::BinaryOutcome::Last { request: KyotoRequest::Replicate(_), .. } => DecoderState::Replica,
            binary::BinaryOutcome::Last { .. } => DecoderState::Start,
            binary::BinaryOutcome::Refused { .. } | binary::BinaryOutcome::Close => DecoderState::Closed,
        };
        match outcome {
            binary::BinaryOutcome::Piece { consumed, request }
            | binary::BinaryOutcome::Last { consumed, request } => KyotoStep::Request { consumed, request },
            binary::BinaryOutcome::NeedMore { at_least } => KyotoStep::NeedMore { consumed: 0, at_least },
            binary::BinaryOutcome::Refused { consumed } => {
                KyotoStep::Request { consumed, request: KyotoRequest::Refused(RequestRefusal::Binary) }
            }
            binary::BinaryOutcome::Close => KyotoStep::Close,
        }
    }

    fn refuse<'a>(&mut self, refusal: RequestRefusal, consumed: usize) -> KyotoStep<'a> {
        self.mode = DecoderState::Closed;
        KyotoStep::Request { consumed, request: KyotoRequest::Refused(refusal) }
    }

    fn close<'a>(&mut self) -> KyotoStep<'a> {
        self.mode = DecoderState::Closed;
        KyotoStep::Close
    }
}

/// Decodes a call. The map of its parameters consists of the pairs of the query and the pairs of
/// the body. If a name occurs in both, the body counts.
#[inline]
fn call<'a>(
    input: &'a [u8],
    scratch: &'a mut MapScratch,
    name: &'a [u8],
    query: Range<usize>,
    content: BodyContent,
    body: BodyLocation,
    form: HttpForm,
) -> ProcedureCall<'a> {
    scratch.add_form(input, true, query.start, query.end);
    let (is_in_input, body) = match body {
        BodyLocation::Input(body) => (true, body),
        BodyLocation::Text(end) => (false, 0..end),
    };
    match content {
        BodyContent::ForeignPage => {}
        BodyContent::Form => scratch.add_form_body(input, is_in_input, body.start, body.end),
        BodyContent::Tsv(encoding) => {
            scratch.add_tsv(input, is_in_input, body.start, body.end);
            if encoding != ColumnEncoding::Raw {
                // The encoding applies to the complete map, so the pairs of the query are decoded
                // twice. The original does the same.
                scratch.decode_columns(input, encoding);
            }
        }
    }
    scratch.sort_entries(input);
    let name_at = scratch.add_decoded(name);
    let (map, text) = scratch.map(input);
    let name = name_at.map_or(name, |at| &text[at..]);
    ProcedureCall { procedure: Procedure::from_name(name), name, input: map, form }
}

fn resource<'a>(
    input: &'a [u8],
    scratch: &'a mut MapScratch,
    head: &HttpHead,
    path: &'a [u8],
    location: &'a [u8],
    body: BodyLocation,
    form: HttpForm,
) -> RestRequest<'a> {
    let (database, key) = rest::split_path(path);
    let database_at = scratch.add_decoded(database);
    let key_at = scratch.add_decoded(key);
    let (_, text) = scratch.map(input);
    let database = database_at.map_or(database, |at| &text[at..key_at.unwrap_or(text.len())]);
    let key = key_at.map_or(key, |at| &text[at..]);
    let value = match body {
        BodyLocation::Input(body) => &input[body],
        BodyLocation::Text(end) => &text[..end],
    };
    let action = match head.method {
        HttpMethod::Get | HttpMethod::Head => RestAction::Get,
        HttpMethod::Put => RestAction::Put { value, mode: head.mode, xt: head.xt },
        HttpMethod::Delete => RestAction::Delete,
        HttpMethod::Post | HttpMethod::Other => RestAction::Unknown,
    };
    RestRequest { target: DatabaseTarget::of(Some(database)), key, action, location, form }
}
