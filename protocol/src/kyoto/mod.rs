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
//! Always true: requests borrow from the input and from a [`Scratch`] that is used again and again, so that a usual call
//! takes no memory; a [`Dialect`] is a few words of state and no buffer; however the input is cut, the same requests come
//! out; each byte of a head that is still incomplete is looked at once; a length alone reserves nothing; and behind a
//! request whose form says that the connection ends comes nothing but [`Step::Close`].
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

pub use answer::{Banner, Output, answer, answer_failure, answer_refusal, answer_stranger};
pub use binary::{Bulk, BulkOperation, BulkRecord, Hello, Script};
pub use browser::{Mark, is_own_host};
pub use call::{Call, Moment, Origin, Procedure, Signal, Target, Wait};
pub use columns::Encoding;
pub use date::{format_date, parse_date};
pub use http::{Form, Method, RestMode};
pub use login::Credentials;
pub use long_answer::{AnswerBody, LongAnswer};
pub use map::{Map, Scratch};
pub use message::{Change, Message, Stored};
pub use rest::{Rest, RestAction, RestAnswer, answer_rest, put_path};
pub use status::{Failure, Status, Trouble};

use http::{Body, Chunks, Content, Head, Progress, Walk, join_chunks};
use std::ops::Range;

/// The path of calls.
const RPC: &[u8] = b"/rpc/";

/// What bounds a request; the same for all connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits<'h> {
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
    /// True asks who has sent it before each HTTP request ([`Step::Login`]), and refuses the binary protocol, which cannot say that, on
    /// a connection whose last HTTP request was not that of a user.
    pub login_wanted: bool,
}

impl Default for Limits<'_> {
    fn default() -> Self {
        Limits {
            body_len_max: 1 << 28,
            head_len_max: 1 << 20,
            unfinished_len_max: usize::MAX,
            pages_allowed: false,
            hosts: &[],
            login_wanted: false,
        }
    }
}

impl<'h> Limits<'h> {
    /// With what is too large for the offsets here cut to what is not.
    fn bounded(&self) -> Limits<'h> {
        Limits {
            body_len_max: self.body_len_max.min(1 << 28),
            head_len_max: self.head_len_max.min(1 << 20),
            ..*self
        }
    }
}

/// One request, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// A call of a procedure.
    Call(Call<'a>),
    /// A resource is read or written.
    Rest(Rest<'a>),
    /// A piece of a bulk request of the binary protocol.
    Bulk(Bulk<'a>),
    /// A call of a script's procedure, of the binary protocol.
    Script(Script<'a>),
    /// A replica wants the updates.
    Replicate(Hello),
    /// A replica has read that it is up to date.
    Acknowledged,
    /// It is no request; the connection is closed behind the answer.
    Refused(Refusal),
}

/// Why what came is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
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
pub enum Step<'a> {
    /// A request, or a piece of one; the first `consumed` bytes of the input are done with.
    Request {
        /// Bytes done with, at least 1.
        consumed: usize,
        /// The request, borrowing from the input and the scratch.
        request: Request<'a>,
    },
    /// The head of an HTTP request is there, and who has sent it is to be found out before its body is read: drop `consumed` bytes,
    /// and go on by [`Dialect::admit`] or [`Dialect::turn_away`]. Until then the same comes again.
    Login {
        /// Bytes done with; the request begins behind them.
        consumed: usize,
        /// What it says of that, for [`Credentials::read`]; `None` if nothing.
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
pub enum Beginning {
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
pub fn begins(input: &[u8]) -> Beginning {
    match input.first() {
        None => return Beginning::Unsure,
        Some(&first) if binary::is_request(first) => return Beginning::Kyoto,
        Some(_) => {}
    }
    let capitals = input.iter().take(METHOD_LEN_MAX + 1).take_while(|byte| byte.is_ascii_uppercase()).count();
    match input.get(capitals) {
        _ if capitals > METHOD_LEN_MAX => Beginning::Other,
        None => Beginning::Unsure,
        Some(b' ') if capitals > 0 => Beginning::Kyoto,
        Some(_) => Beginning::Other,
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
pub struct Dialect {
    mode: Mode,
    /// The last HTTP request was that of a user.
    is_admitted: bool,
}

/// Where in the stream a decoder stands.
#[derive(Clone, Copy, Debug, Default)]
enum Mode {
    /// At the beginning of a request.
    #[default]
    Start,
    /// In the head of an HTTP request.
    Head(Head),
    /// Behind a head, of which is not known whose it is ...
    Asking { head: Head, head_len: u32 },
    /// ... or that of a user.
    Admitted { head: Head, head_len: u32 },
    /// In the body, which ends so many bytes from the beginning of the request.
    Body { head: Head, head_len: u32, total: u32 },
    /// In the chunks of a body.
    Chunks { head: Head, head_len: u32, chunks: Chunks },
    /// In a body that nobody wants; so many bytes of it are left.
    Swallow { left: u64 },
    /// In a request of the binary protocol.
    Binary(binary::Place),
    /// Behind a replica's request: nothing comes but its acknowledgements.
    Replica,
    /// Behind the last request.
    Closed,
}

/// Where a body is.
enum BodyAt {
    Input(Range<usize>),
    /// From the beginning of the scratch's text to here.
    Text(usize),
}

impl Dialect {
    /// What is to be said when no more comes, or not in time; the connection is closed in any case.
    pub fn interrupted(&self) -> Option<Refusal> {
        match self.mode {
            Mode::Body { .. } | Mode::Chunks { .. } => Some(Refusal::Interrupted),
            Mode::Binary(place) => place.interrupted().then_some(Refusal::Binary),
            _ => None,
        }
    }

    /// The next step from `input`, the unread bytes: those of the last call that were not consumed, and whatever has
    /// arrived since. After [`Step::Close`] there is nothing to call it for again.
    #[inline]
    pub fn decode<'a>(&mut self, limits: &Limits<'_>, input: &'a [u8], scratch: &'a mut Scratch) -> Step<'a> {
        let mut limits = limits.bounded();
        let is_stranger = limits.login_wanted && !self.is_admitted;
        if is_stranger {
            limits.head_len_max = limits.head_len_max.min(login::HEAD_LEN_MAX);
        }
        match self.mode {
            Mode::Start => match input.first() {
                None => Step::NeedMore { consumed: 0, at_least: 1 },
                Some(&first) if is_stranger && binary::is_request(first) => self.refuse(Refusal::Stranger, 1),
                Some(0 | 0x80..) => self.binary(&limits, input, scratch, binary::Place::default()),
                Some(_) => self.head(&limits, input, scratch, Head::default()),
            },
            Mode::Closed => Step::Close,
            Mode::Head(head) => self.head(&limits, input, scratch, head),
            Mode::Asking { head, .. } => login::ask(input, &head),
            Mode::Admitted { head, head_len } => {
                self.behind_head(&limits, input, scratch, &head, head_len as usize)
            }
            Mode::Body { head, head_len, total } => {
                self.behind_body(&limits, input, scratch, &head, head_len as usize, total as usize)
            }
            Mode::Chunks { head, head_len, chunks } => {
                self.walk_chunks(&limits, input, scratch, &head, head_len as usize, chunks)
            }
            Mode::Swallow { left } => {
                let dropped = left.min(input.len() as u64);
                self.mode = if left > dropped { Mode::Swallow { left: left - dropped } } else { Mode::Start };
                let dropped = dropped as usize;
                if dropped < input.len() {
                    // Only once, as what follows is no such body.
                    return match self.decode(&limits, &input[dropped..], scratch) {
                        Step::Request { consumed, request } => {
                            Step::Request { consumed: consumed + dropped, request }
                        }
                        Step::Login { consumed, authorization } => {
                            Step::Login { consumed: consumed + dropped, authorization }
                        }
                        Step::NeedMore { consumed, at_least } => {
                            Step::NeedMore { consumed: consumed + dropped, at_least }
                        }
                        Step::Close => Step::Close,
                    };
                }
                Step::NeedMore { consumed: dropped, at_least: 1 }
            }
            Mode::Binary(place) => self.binary(&limits, input, scratch, place),
            Mode::Replica => match input.first() {
                None => Step::NeedMore { consumed: 0, at_least: 1 },
                Some(&binary::REPLICATION) => Step::Request { consumed: 1, request: Request::Acknowledged },
                Some(_) => self.close(),
            },
        }
    }

    /// The next record of the bulk request under way, and how many bytes are done with behind it, if one is and all of the record is there;
    /// else nothing has happened, and [`decode`](Dialect::decode) knows why. For who goes through many of them: it is as `decode` without all
    /// that is not about them.
    #[inline]
    pub fn decode_record<'a>(&mut self, limits: &Limits<'_>, input: &'a [u8]) -> Option<(usize, Bulk<'a>)> {
        let Mode::Binary(place) = &mut self.mode else { return None };
        let (consumed, piece) = binary::next_record(place, &limits.bounded(), input)?;
        if piece.remaining == 0 {
            self.mode = Mode::Start;
        }
        Some((consumed, piece))
    }

    #[inline]
    fn head<'a>(
        &mut self,
        limits: &Limits<'_>,
        input: &'a [u8],
        scratch: &'a mut Scratch,
        mut head: Head,
    ) -> Step<'a> {
        match head.read(limits, input) {
            Progress::Whole(head_len) => match head.refusal(limits) {
                Some(refusal) => self.refuse(refusal, head_len),
                None if limits.login_wanted => {
                    self.mode = Mode::Asking { head, head_len: head_len as u32 };
                    login::ask(input, &head)
                }
                None => self.behind_head(limits, input, scratch, &head, head_len),
            },
            Progress::Partial if input.len() > limits.unfinished_len_max => self.close(),
            Progress::Partial => {
                self.mode = Mode::Head(head);
                Step::NeedMore { consumed: 0, at_least: 1 }
            }
            Progress::TooLarge => self.refuse(Refusal::HeadTooLarge, input.len()),
            Progress::Garbage => self.close(),
        }
    }

    #[inline]
    fn behind_head<'a>(
        &mut self,
        limits: &Limits<'_>,
        input: &'a [u8],
        scratch: &'a mut Scratch,
        head: &Head,
        head_len: usize,
    ) -> Step<'a> {
        match head.body() {
            Body::Sized(len) if len > limits.body_len_max => self.refuse(Refusal::TooLarge, head_len),
            Body::Sized(len) => {
                self.behind_body(limits, input, scratch, head, head_len, head_len + len as usize)
            }
            Body::Chunked => self.walk_chunks(limits, input, scratch, head, head_len, Chunks::new(head_len)),
            Body::Ignored(len) => {
                self.mode = if len == 0 { Mode::Start } else { Mode::Swallow { left: len } };
                scratch.clear();
                self.request(limits, input, scratch, head, head_len, BodyAt::Input(head_len..head_len))
            }
            Body::IgnoredChunks => {
                self.mode = Mode::Closed;
                scratch.clear();
                self.request(limits, input, scratch, head, head_len, BodyAt::Input(head_len..head_len))
            }
        }
    }

    #[inline]
    fn behind_body<'a>(
        &mut self,
        limits: &Limits<'_>,
        input: &'a [u8],
        scratch: &'a mut Scratch,
        head: &Head,
        head_len: usize,
        total: usize,
    ) -> Step<'a> {
        if input.len() < total {
            if input.len() > limits.unfinished_len_max {
                return self.refuse(Refusal::TooLarge, head_len);
            }
            self.mode = Mode::Body { head: *head, head_len: head_len as u32, total: total as u32 };
            return Step::NeedMore { consumed: 0, at_least: total - input.len() };
        }
        self.mode = Mode::Start;
        scratch.clear();
        self.request(limits, input, scratch, head, total, BodyAt::Input(head_len..total))
    }

    fn walk_chunks<'a>(
        &mut self,
        limits: &Limits<'_>,
        input: &'a [u8],
        scratch: &'a mut Scratch,
        head: &Head,
        head_len: usize,
        mut chunks: Chunks,
    ) -> Step<'a> {
        match chunks.walk(limits, input) {
            Walk::Whole(total) => {
                self.mode = Mode::Start;
                scratch.clear();
                join_chunks(&input[head_len..total], scratch.text_mut());
                let body = BodyAt::Text(scratch.text_mut().len());
                self.request(limits, input, scratch, head, total, body)
            }
            // Chunks of one byte each take six; what is longer than that by far is not meant well.
            Walk::Partial(_)
                if input.len() > limits.unfinished_len_max
                    || (input.len() - head_len) as u64 > limits.body_len_max * 2 + (1 << 16) =>
            {
                self.refuse(Refusal::TooLarge, head_len)
            }
            Walk::Partial(at_least) => {
                self.mode = Mode::Chunks { head: *head, head_len: head_len as u32, chunks };
                Step::NeedMore { consumed: 0, at_least }
            }
            Walk::TooLarge => self.refuse(Refusal::TooLarge, head_len),
            Walk::Invalid => self.refuse(Refusal::InvalidChunk, head_len),
        }
    }

    /// The request of a head and a body that are whole.
    #[inline]
    fn request<'a>(
        &mut self,
        limits: &Limits<'_>,
        input: &'a [u8],
        scratch: &'a mut Scratch,
        head: &Head,
        total: usize,
        body: BodyAt,
    ) -> Step<'a> {
        let mut form = head.form();
        if let Mode::Closed = self.mode {
            form.keeps_alive = false;
        }
        if !form.keeps_alive {
            self.mode = Mode::Closed;
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
                    return self.refuse(Refusal::Link, total);
                }
                Request::Call(call)
            }
            None => Request::Rest(resource(input, scratch, head, path, sent, body, form)),
        };
        Step::Request { consumed: total, request }
    }

    fn binary<'a>(
        &mut self,
        limits: &Limits<'_>,
        input: &'a [u8],
        scratch: &'a mut Scratch,
        mut place: binary::Place,
    ) -> Step<'a> {
        let outcome = binary::decode(&mut place, limits, input, scratch);
        self.mode = match outcome {
            binary::Outcome::Piece { .. } | binary::Outcome::NeedMore { .. } => Mode::Binary(place),
            binary::Outcome::Last { request: Request::Replicate(_), .. } => Mode::Replica,
            binary::Outcome::Last { .. } => Mode::Start,
            binary::Outcome::Refused { .. } | binary::Outcome::Close => Mode::Closed,
        };
        match outcome {
            binary::Outcome::Piece { consumed, request } | binary::Outcome::Last { consumed, request } => {
                Step::Request { consumed, request }
            }
            binary::Outcome::NeedMore { at_least } => Step::NeedMore { consumed: 0, at_least },
            binary::Outcome::Refused { consumed } => {
                Step::Request { consumed, request: Request::Refused(Refusal::Binary) }
            }
            binary::Outcome::Close => Step::Close,
        }
    }

    fn refuse<'a>(&mut self, refusal: Refusal, consumed: usize) -> Step<'a> {
        self.mode = Mode::Closed;
        Step::Request { consumed, request: Request::Refused(refusal) }
    }

    fn close<'a>(&mut self) -> Step<'a> {
        self.mode = Mode::Closed;
        Step::Close
    }
}

/// A call: its map is made of the query, then of the body, and later pairs count before earlier ones.
#[inline]
fn call<'a>(
    input: &'a [u8],
    scratch: &'a mut Scratch,
    name: &'a [u8],
    query: Range<usize>,
    content: Content,
    body: BodyAt,
    form: Form,
) -> Call<'a> {
    scratch.add_form(input, true, query.start, query.end);
    let (is_in_input, body) = match body {
        BodyAt::Input(body) => (true, body),
        BodyAt::Text(end) => (false, 0..end),
    };
    match content {
        Content::Foreign => {}
        Content::Form => scratch.add_form_body(input, is_in_input, body.start, body.end),
        Content::Tsv(encoding) => {
            scratch.add_tsv(input, is_in_input, body.start, body.end);
            if encoding != Encoding::Raw {
                // All of the map, so what came in the query is decoded twice.
                scratch.decode_columns(input, encoding);
            }
        }
    }
    scratch.settle(input);
    let name_at = scratch.add_decoded(name);
    let (map, text) = scratch.map(input);
    let name = name_at.map_or(name, |at| &text[at..]);
    Call { procedure: Procedure::from_name(name), name, input: map, form }
}

fn resource<'a>(
    input: &'a [u8],
    scratch: &'a mut Scratch,
    head: &Head,
    path: &'a [u8],
    location: &'a [u8],
    body: BodyAt,
    form: Form,
) -> Rest<'a> {
    let (database, key) = rest::split_path(path);
    let database_at = scratch.add_decoded(database);
    let key_at = scratch.add_decoded(key);
    let (_, text) = scratch.map(input);
    let database = database_at.map_or(database, |at| &text[at..key_at.unwrap_or(text.len())]);
    let key = key_at.map_or(key, |at| &text[at..]);
    let value = match body {
        BodyAt::Input(body) => &input[body],
        BodyAt::Text(end) => &text[..end],
    };
    let action = match head.method {
        Method::Get | Method::Head => RestAction::Get,
        Method::Put => RestAction::Put { value, mode: head.mode, xt: head.xt },
        Method::Delete => RestAction::Delete,
        Method::Post | Method::Other => RestAction::Unknown,
    };
    Rest { target: Target::of(Some(database)), key, action, location, form }
}
