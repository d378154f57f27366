//! Kyoto Tycoon's protocols: TSV-RPC and REST over HTTP, and the binary protocol, told apart request by request; the
//! server's side, and what a client needs.
//!
//! How the parts fit, on the server's side:
//!
//! ```text
//! bytes -> Dialect::decode -> Step::Request { request } -> whoever executes it -> answer functions -> Sink
//!
//! Request::Call(call)        call.procedure, call.target(), call.required(b"key")?, call.xt() ...
//!                              -> answer(), answer_failure(), Output::write()
//! Request::Rest(rest)        rest.action, rest.target, rest.key          -> answer_rest()
//! Request::Bulk(piece)       one piece for the beginning, then one a record; the answer is due when
//!                            `piece.remaining` is 0                      -> binary::put_hits(), put_record()
//! Request::Script(script)    a name and a map                            -> binary::put_script_answer(), put_error()
//! Request::Replicate(hello)  the connection is a replica's from here on  -> replication
//! Request::Acknowledged      the replica has read a `B0`
//! Request::Refused(refusal)  no request; the connection ends             -> answer_refusal()
//!
//! Step::Login { .. }         where limits want logins: Credentials::read(), then Dialect::admit(), and the request comes;
//!                            or Dialect::turn_away()                     -> answer_stranger()
//! ```
//!
//! ```text
//! http     heads line by line, chunks              map      maps as they come in, in a reusable scratch
//! call     procedures and typed parameters         answer   heads of answers, maps as they go out
//! columns  percent, base64, quoted-printable       status   codes and error texts
//! rest     resources                               date     dates of headers
//! binary   bulk calls, record by record; scripts   number   decimal and real numbers as parameters
//! expiry   times to live, the stored five bytes    framed   records as files have them
//! message  updates as logs and replicas have them  varnum   numbers of a length of their own
//! replication  both sides of the stream            client   requests out, answers in
//! update_log   files of the log                    snapshot, dump   files of records
//! login    names and passwords of HTTP requests
//! ```
//!
//! Always true: requests borrow from the input and from a [`MapScratch`] that is used again and again, so that a usual call
//! takes no memory; a [`KyotoDecoder`] is a few words of state and no buffer; however the input is cut, the same requests come
//! out; each byte of a head that is still incomplete is looked at once; a length alone reserves nothing; and behind a
//! request whose form says that the connection ends comes nothing but [`KyotoStep::Close`].
//!
//! Not here: what procedures mean, waiting, cursors, clocks, sockets.

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

pub use answer::{AnswerBanner, AnswerPairs, answer, answer_failure, answer_refusal, answer_stranger};
pub use binary::{BulkOperation, BulkPiece, BulkRecord, ReplicaRequest, ScriptCall};
pub use browser::{BrowserMark, is_own_host};
pub use call::{
    DatabaseTarget, IncrementOrigin, Procedure, ProcedureCall, SignalSend, SignalWait, TimestampParameter,
};
pub use columns::ColumnEncoding;
pub use date::{format_date, parse_date};
pub use http::{HttpForm, HttpMethod, RestMode};
pub use login::BasicCredentials;
pub use long_answer::{AnswerBody, LongAnswer};
pub use map::{MapScratch, ParameterMap};
pub use message::{StoredValue, UpdateChange, UpdateMessage};
pub use rest::{RestAction, RestAnswer, RestRequest, answer_rest, put_path};
pub use status::{AnswerStatus, CallFailure, DatabaseError};

use http::{BodyContent, BodyFraming, ChunkProgress, ChunkWalker, HeadProgress, HttpHead, join_chunks};
use std::ops::Range;

/// The path of calls.
const RPC: &[u8] = b"/rpc/";

/// What bounds a request; the same for all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KyotoLimits<'h> {
    /// The longest body, and the longest key or value of the binary protocol, in bytes; at most 2^28 is taken.
    pub body_len_max: u64,
    /// The longest head of an HTTP request, in bytes, beyond which it is refused and the connection closed; at most 2^20 is taken.
    pub head_len_max: usize,
    /// How much of a request that is not whole yet may be kept at the moment; what outgrows it is refused as too large.
    pub unfinished_len_max: usize,
    /// True takes requests that web pages of other sites have sent, as browsers say.
    pub pages_allowed: bool,
    /// Names by which browsers may ask, besides addresses and `localhost`; if there are any, nobody may by another name.
    pub hosts: &'h [String],
    /// True asks who has sent it before each HTTP request ([`KyotoStep::Login`]), and refuses the binary protocol, which cannot say that, on
    /// a connection whose last HTTP request was not that of a user.
    pub login_wanted: bool,
}

impl Default for KyotoLimits<'_> {
    fn default() -> Self {
        KyotoLimits {
            body_len_max: 1 << 28,
            head_len_max: 1 << 20,
            unfinished_len_max: usize::MAX,
            pages_allowed: false,
            hosts: &[],
            login_wanted: false,
        }
    }
}

impl<'h> KyotoLimits<'h> {
    /// With what is too large for the offsets here cut to what is not.
    fn bounded(&self) -> KyotoLimits<'h> {
        KyotoLimits {
            body_len_max: self.body_len_max.min(1 << 28),
            head_len_max: self.head_len_max.min(1 << 20),
            ..*self
        }
    }
}

/// One request, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KyotoRequest<'a> {
    /// A call of a procedure.
    Call(ProcedureCall<'a>),
    /// A resource is read or written.
    Rest(RestRequest<'a>),
    /// A piece of a bulk request of the binary protocol.
    Bulk(BulkPiece<'a>),
    /// A call of a script's procedure, of the binary protocol.
    Script(ScriptCall<'a>),
    /// A replica wants the updates.
    Replicate(ReplicaRequest),
    /// A replica has read that it is up to date.
    Acknowledged,
    /// It is no request; the connection is closed behind the answer.
    Refused(RequestRefusal),
}

/// Why what came is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefusal {
    /// HTTP: a web page of another site has sent it.
    Foreign,
    /// HTTP: a head longer than may be.
    HeadTooLarge,
    /// HTTP: a browser has sent it, or anybody where names are configured, to a name that may be a web page's.
    ForeignHost,
    /// HTTP: a browser has sent it as it follows a link, and it would change something.
    Link,
    /// HTTP: a body longer than may be.
    TooLarge,
    /// HTTP: the rest of a body did not come.
    Interrupted,
    /// HTTP: a chunk does not end where it says.
    InvalidChunk,
    /// Binary: a key or value longer than may be.
    Binary,
    /// Binary: nobody has logged in on the connection.
    Stranger,
}

/// The outcome of looking at the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KyotoStep<'a> {
    /// A request, or a piece of one; the first `consumed` bytes of the input are done with.
    Request {
        /// Bytes done with, at least 1.
        consumed: usize,
        /// The request, borrowing from the input and the scratch.
        request: KyotoRequest<'a>,
    },
    /// The head of an HTTP request is there, and who has sent it is to be found out before its body is read: drop `consumed` bytes,
    /// and go on by [`KyotoDecoder::admit`] or [`KyotoDecoder::turn_away`]. Until then the same comes again.
    Login {
        /// Bytes done with; the request begins behind them.
        consumed: usize,
        /// What it says of that, for [`BasicCredentials::read`]; `None` if nothing.
        authorization: Option<&'a [u8]>,
    },
    /// Nothing whole yet: drop `consumed` bytes, read at least `at_least` more, call again.
    NeedMore {
        /// Bytes done with.
        consumed: usize,
        /// How many more bytes are surely needed, at least 1: of a body or a record all that is missing, so that a buffer
        /// can be sized once.
        at_least: usize,
    },
    /// Close the connection after what is pending has been sent.
    Close,
}

/// What the first bytes of a connection or a request say, on a port that other protocols share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolGuess {
    /// It is Kyoto Tycoon's.
    Kyoto,
    /// It is another's.
    Other,
    /// More bytes will tell.
    Unsure,
}

/// The longest method of HTTP that is told from a command of other protocols.
const METHOD_LEN_MAX: usize = 16;

/// Whose a request is that begins so: the binary protocol's requests have bytes of their own, and HTTP begins with a method
/// in capitals and a blank.
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

/// The state of one connection's decoder: a few words, no buffer.
///
/// ```
/// use todana_protocol::kyoto::{Banner, Dialect, Limits, Procedure, Request, Scratch, Status, Step, answer};
///
/// let (mut dialect, mut scratch, mut out) = (Dialect::default(), Scratch::default(), Vec::new());
/// let input = b"GET /rpc/get?key=japan HTTP/1.1\r\n\r\n";
/// let step = dialect.decode(&Limits::default(), input, &mut scratch);
/// let Step::Request { consumed: 35, request: Request::Call(call) } = step else { panic!("{step:?}") };
/// assert_eq!(call.procedure, Some(Procedure::Get));
/// assert_eq!(call.required(b"key"), Ok(&b"japan"[..]));
/// answer(&call.form, &Banner::new("0.9.56", 0), Status::Ok, &[("value", b"tokyo")], &mut out);
/// assert!(out.ends_with(b"\r\n\r\nvalue\ttokyo\n"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct KyotoDecoder {
    mode: DecoderState,
    /// The last HTTP request was that of a user.
    is_admitted: bool,
}

/// Where in the stream a decoder stands.
#[derive(Clone, Copy, Debug, Default)]
enum DecoderState {
    /// At the beginning of a request.
    #[default]
    Start,
    /// In the head of an HTTP request.
    Head(HttpHead),
    /// Behind a head, of which is not known whose it is ...
    Asking { head: HttpHead, head_len: u32 },
    /// ... or that of a user.
    Admitted { head: HttpHead, head_len: u32 },
    /// In the body, which ends so many bytes from the beginning of the request.
    Body { head: HttpHead, head_len: u32, total: u32 },
    /// In the chunks of a body.
    Chunks { head: HttpHead, head_len: u32, chunks: ChunkWalker },
    /// In a body that nobody wants; so many bytes of it are left.
    Swallow { left: u64 },
    /// In a request of the binary protocol.
    Binary(binary::BinaryPosition),
    /// Behind a replica's request: nothing comes but its acknowledgements.
    Replica,
    /// Behind the last request.
    Closed,
}

/// Where a body is.
enum BodyLocation {
    Input(Range<usize>),
    /// From the beginning of the scratch's text to here.
    Text(usize),
}

impl KyotoDecoder {
    /// What is to be said when no more comes, or not in time; the connection is closed in any case.
    pub fn interrupted(&self) -> Option<RequestRefusal> {
        match self.mode {
            DecoderState::Body { .. } | DecoderState::Chunks { .. } => Some(RequestRefusal::Interrupted),
            DecoderState::Binary(place) => place.interrupted().then_some(RequestRefusal::Binary),
            _ => None,
        }
    }

    /// The next step from `input`, the unread bytes: those of the last call that were not consumed, and whatever has
    /// arrived since. After [`KyotoStep::Close`] there is nothing to call it for again.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        limits: &KyotoLimits<'_>,
        input: &'a [u8],
        scratch: &'a mut MapScratch,
    ) -> KyotoStep<'a> {
        let mut limits = limits.bounded();
        let is_stranger = limits.login_wanted && !self.is_admitted;
        if is_stranger {
            limits.head_len_max = limits.head_len_max.min(login::HEAD_LEN_MAX);
        }
        match self.mode {
            DecoderState::Start => match input.first() {
                None => KyotoStep::NeedMore { consumed: 0, at_least: 1 },
                Some(&first) if is_stranger && binary::is_request(first) => {
                    self.refuse(RequestRefusal::Stranger, 1)
                }
                Some(0 | 0x80..) => self.binary(&limits, input, scratch, binary::BinaryPosition::default()),
                Some(_) => self.head(&limits, input, scratch, HttpHead::default()),
            },
            DecoderState::Closed => KyotoStep::Close,
            DecoderState::Head(head) => self.head(&limits, input, scratch, head),
            DecoderState::Asking { head, .. } => login::ask(input, &head),
            DecoderState::Admitted { head, head_len } => {
                self.behind_head(&limits, input, scratch, &head, head_len as usize)
            }
            DecoderState::Body { head, head_len, total } => {
                self.behind_body(&limits, input, scratch, &head, head_len as usize, total as usize)
            }
            DecoderState::Chunks { head, head_len, chunks } => {
                self.walk_chunks(&limits, input, scratch, &head, head_len as usize, chunks)
            }
            DecoderState::Swallow { left } => {
                let dropped = left.min(input.len() as u64);
                self.mode = if left > dropped {
                    DecoderState::Swallow { left: left - dropped }
                } else {
                    DecoderState::Start
                };
                let dropped = dropped as usize;
                if dropped < input.len() {
                    // Only once, as what follows is no such body.
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

    /// The next record of the bulk request under way, and how many bytes are done with behind it, if one is and all of the record is there;
    /// else nothing has happened, and [`decode`](Dialect::decode) knows why. For who goes through many of them: it is as `decode` without all
    /// that is not about them.
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
                None if limits.login_wanted => {
                    self.mode = DecoderState::Asking { head, head_len: head_len as u32 };
                    login::ask(input, &head)
                }
                None => self.behind_head(limits, input, scratch, &head, head_len),
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
    fn behind_head<'a>(
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
                self.behind_body(limits, input, scratch, head, head_len, head_len + len as usize)
            }
            BodyFraming::Chunked => {
                self.walk_chunks(limits, input, scratch, head, head_len, ChunkWalker::new(head_len))
            }
            BodyFraming::Ignored(len) => {
                self.mode = if len == 0 { DecoderState::Start } else { DecoderState::Swallow { left: len } };
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
    fn behind_body<'a>(
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
            // Chunks of one byte each take six; what is longer than that by far is not meant well.
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

    /// The request of a head and a body that are whole.
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

/// A call: its map is made of the query, then of the body, and later pairs count before earlier ones.
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
        BodyContent::Foreign => {}
        BodyContent::Form => scratch.add_form_body(input, is_in_input, body.start, body.end),
        BodyContent::Tsv(encoding) => {
            scratch.add_tsv(input, is_in_input, body.start, body.end);
            if encoding != ColumnEncoding::Raw {
                // All of the map, so what came in the query is decoded twice.
                scratch.decode_columns(input, encoding);
            }
        }
    }
    scratch.settle(input);
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
