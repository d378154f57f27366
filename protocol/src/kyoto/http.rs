//! Decodes HTTP as the original does: the head of a request line by line, and the length of the
//! body.

use super::browser::{BrowserMark, is_own_host};
use super::date::parse_date;
use super::number::{hexadecimal, integer, starts_with, without_blanks};
use super::{ColumnEncoding, KyotoLimits, RequestRefusal};
use crate::freshness::{LogToken, RequiredFreshness};
use memchr::{memchr, memchr2};
use std::borrow::Cow;

/// The longest line of a head, without its line end. A longer line is split there: the rest counts
/// as the next line.
const LINE_LEN_MAX: usize = 8191;

/// The method of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpMethod {
    /// GET
    #[default]
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// PUT
    Put,
    /// DELETE
    Delete,
    /// Any other method.
    Other,
}

impl HttpMethod {
    fn of(word: &[u8]) -> HttpMethod {
        match word {
            b"GET" => HttpMethod::Get,
            b"HEAD" => HttpMethod::Head,
            b"POST" => HttpMethod::Post,
            b"PUT" => HttpMethod::Put,
            b"DELETE" => HttpMethod::Delete,
            _ => HttpMethod::Other,
        }
    }

    /// Returns true if the body of a request with this method is used. The body of any other
    /// request is ignored.
    fn has_body(self) -> bool {
        matches!(self, HttpMethod::Post | HttpMethod::Put | HttpMethod::Other)
    }
}

/// The properties of a request on which the form of its answer depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpForm {
    /// False if the connection must be closed after the answer.
    pub keeps_alive: bool,
    /// True for HEAD, whose answer has no body.
    pub is_head: bool,
    /// The header `X-Todana-Freshness`.
    pub freshness: FreshnessHeader,
    /// The position in the log that the answer shows in the header `X-Todana-Position`.
    pub position: Option<LogToken>,
}

/// The header that states how new the records must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreshnessHeader {
    /// There is none.
    #[default]
    Absent,
    /// The header has this value.
    Present(RequiredFreshness),
    /// The header has an invalid value.
    Invalid,
}

impl HttpForm {
    /// Creates the form of an answer without further properties.
    pub const fn new(keeps_alive: bool, is_head: bool) -> HttpForm {
        HttpForm { keeps_alive, is_head, freshness: FreshnessHeader::Absent, position: None }
    }
}

/// The content type of a call's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BodyContent {
    /// An unsupported type.
    #[default]
    ForeignPage,
    /// Tab-separated values.
    Tsv(ColumnEncoding),
    /// The encoding of HTML forms (`application/x-www-form-urlencoded`).
    Form,
}

/// The condition of a REST store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestMode {
    /// Store always.
    #[default]
    Set,
    /// Store only if no record exists.
    Add,
    /// Store only if a record exists.
    Replace,
}

/// The part of a head that has been read. Offsets count from the beginning of the request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HttpHead {
    /// The offset of the next line.
    at: u32,
    /// The number of bytes after `at` that are known to contain no line end.
    scanned: u32,
    /// True if these `scanned` bytes contain a CR.
    has_cr: bool,
    /// The start of the target, which includes the query; 0 until the request line has been read.
    target_start: u32,
    target_end: u32,
    /// The end of the target's path.
    path_end: u32,
    pub(super) method: HttpMethod,
    keeps_alive: bool,
    is_chunked: bool,
    pub(super) content: BodyContent,
    pub(super) mode: RestMode,
    /// True for the head of an answer, which begins with a status line.
    is_answer: bool,
    /// The status of an answer.
    pub(super) status: u16,
    content_length: Option<u64>,
    /// The absolute time of the header `X-Kt-Xt`.
    pub(super) xt: Option<u64>,
    freshness: FreshnessHeader,
    /// The range of the value of `Authorization`. The range is empty if the line contains a CR or
    /// if the header occurs twice.
    authorization: Option<(u32, u32)>,
    /// True if a header shows that a browser sent the request for a page of another site.
    is_from_page: bool,
    /// True if a header shows that a browser sent the request.
    is_from_browser: bool,
    /// True if the `Host` header contains a name that a foreign page could have.
    has_foreign_host: bool,
}

/// The progress of reading a head.
pub(super) enum HeadProgress {
    /// The head is complete and has this length.
    Whole(usize),
    /// More bytes are needed.
    Partial,
    /// The head exceeds its limit.
    TooLarge,
    /// The input is not a valid head.
    Garbage,
}

/// The next line of a head.
enum HeadLine<'a> {
    /// A complete line. `taken` counts the line end too.
    Whole { line: &'a [u8], taken: usize },
    /// The end of the line has not arrived.
    Partial,
}

/// The body that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// A body of this length, which may exceed the limit.
    Sized(u64),
    /// A chunked body.
    Chunked,
    /// A body of this length that is ignored.
    Ignored(u64),
    /// A chunked body that is ignored. Its end cannot be found without parsing the chunks.
    IgnoredChunks,
}

impl HttpHead {
    /// Returns the initial state for the head of an answer.
    pub(super) fn of_answer() -> HttpHead {
        HttpHead { is_answer: true, method: HttpMethod::Other, ..HttpHead::default() }
    }

    /// Continues to read the head. Every byte is examined once, however the input is split.
    #[inline]
    pub(super) fn read(&mut self, limits: &KyotoLimits<'_>, input: &[u8]) -> HeadProgress {
        loop {
            let at = self.at as usize;
            let rest = &input[at..];
            let (line, taken) = match self.find_line(rest) {
                HeadLine::Whole { line, taken } => (line, taken),
                HeadLine::Partial if input.len() > limits.head_len_max => return HeadProgress::TooLarge,
                HeadLine::Partial => return HeadProgress::Partial,
            };
            if at + taken > limits.head_len_max {
                return HeadProgress::TooLarge;
            }
            self.at += taken as u32;
            if self.target_end == 0 {
                let is_one = match self.is_answer {
                    false => self.read_request_line(at, line),
                    true => self.read_status_line(at, line),
                };
                if !is_one {
                    return HeadProgress::Garbage;
                }
            } else if line.is_empty() || self.has_cr && is_only_cr(line) {
                return HeadProgress::Whole(self.at as usize);
            } else if self.has_cr {
                self.read_header(limits, &without_cr(line), None);
            } else {
                self.read_header(limits, line, Some(at));
            }
            (self.scanned, self.has_cr) = (0, false);
        }
    }

    /// Returns the next line without its line end. The line still contains its CRs if `has_cr` is
    /// set.
    #[inline]
    fn find_line<'a>(&mut self, rest: &'a [u8]) -> HeadLine<'a> {
        let scanned = (self.scanned as usize).min(rest.len());
        if !self.has_cr {
            let found = memchr2(b'\r', b'\n', &rest[scanned..]).map(|found| scanned + found);
            match found {
                None if rest.len() <= LINE_LEN_MAX => {
                    self.scanned = rest.len() as u32;
                    return HeadLine::Partial;
                }
                Some(end) if end <= LINE_LEN_MAX => match rest[end..] {
                    [b'\n', ..] => return HeadLine::Whole { line: &rest[..end], taken: end + 1 },
                    [b'\r', b'\n', ..] => return HeadLine::Whole { line: &rest[..end], taken: end + 2 },
                    // The next byte decides whether this CR belongs to the line end.
                    [b'\r'] => {
                        self.scanned = end as u32;
                        return HeadLine::Partial;
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        self.find_long_or_cr_line(rest, scanned)
    }

    /// Returns a line that is too long, or that contains a CR before its end.
    #[cold]
    fn find_long_or_cr_line<'a>(&mut self, rest: &'a [u8], scanned: usize) -> HeadLine<'a> {
        self.has_cr = true;
        let newline = memchr(b'\n', &rest[scanned..]).map(|found| scanned + found);
        let line = &rest[..newline.unwrap_or(rest.len())];
        match (long_line(line), newline) {
            (Some(cut), _) => HeadLine::Whole { line: &rest[..cut], taken: cut },
            (None, Some(newline)) => HeadLine::Whole { line, taken: newline + 1 },
            (None, None) => {
                self.scanned = rest.len() as u32;
                HeadLine::Partial
            }
        }
    }

    /// Returns the range of the target, including the query, as sent. The range may contain CRs.
    pub(super) fn target(&self) -> std::ops::Range<usize> {
        self.target_start as usize..self.target_end as usize
    }

    /// Returns the end of the target's path.
    pub(super) fn path_end(&self) -> usize {
        self.path_end as usize
    }

    /// Returns the range of the value of `Authorization`, if present.
    pub(super) fn authorization(&self) -> Option<std::ops::Range<usize>> {
        self.authorization.map(|(start, end)| start as usize..end as usize)
    }

    pub(super) fn form(&self) -> HttpForm {
        let form = HttpForm::new(self.keeps_alive, self.method == HttpMethod::Head);
        HttpForm { freshness: self.freshness, ..form }
    }

    /// Returns the reason to refuse a request that a foreign web page may have caused, or `None`.
    #[inline]
    pub(super) fn refusal(&self, limits: &KyotoLimits<'_>) -> Option<RequestRefusal> {
        match () {
            () if limits.pages_allowed => None,
            () if self.is_from_page => Some(RequestRefusal::ForeignPage),
            () if self.has_foreign_host && (self.is_from_browser || !limits.hosts.is_empty()) => {
                Some(RequestRefusal::ForeignHost)
            }
            () => None,
        }
    }

    /// Returns true if a browser sent the request to follow a link or to load an image.
    #[inline]
    pub(super) fn is_of_link(&self, limits: &KyotoLimits<'_>) -> bool {
        self.is_from_browser
            && !limits.pages_allowed
            && matches!(self.method, HttpMethod::Get | HttpMethod::Head)
    }

    /// Returns the kind of body that follows the head.
    pub(super) fn body(&self) -> BodyFraming {
        match (self.method.has_body(), self.content_length, self.is_chunked) {
            (true, Some(len), _) => BodyFraming::Sized(len),
            (true, None, true) => BodyFraming::Chunked,
            (true, None, false) => BodyFraming::Sized(0),
            (false, Some(len), _) => BodyFraming::Ignored(len),
            (false, None, true) => BodyFraming::IgnoredChunks,
            (false, None, false) => BodyFraming::Ignored(0),
        }
    }

    #[inline]
    fn read_request_line(&mut self, at: usize, line: &[u8]) -> bool {
        let Some(method_len) = line.iter().position(|&byte| byte == b' ') else { return false };
        let target_start = method_len + 1;
        let target = &line[target_start..];
        let Some(mut target_len) = memchr2(b' ', b'?', target) else { return false };
        let path_end = target_start + target_len;
        if target[target_len] == b'?' {
            let Some(query_len) = memchr(b' ', &target[target_len..]) else { return false };
            target_len += query_len;
        }
        let target_end = target_start + target_len;
        let version = &line[target_end + 1..];
        let (method, version) = match self.has_cr {
            false => (Cow::Borrowed(&line[..method_len]), Cow::Borrowed(version)),
            true => (without_cr(&line[..method_len]), without_cr(version)),
        };
        self.keeps_alive = match &*version {
            b"HTTP/1.1" => true,
            b"HTTP/1.0" => false,
            _ => return false,
        };
        if path_end == target_start {
            return false;
        }
        self.method = HttpMethod::of(&method);
        self.target_start = (at + target_start) as u32;
        self.target_end = (at + target_end) as u32;
        self.path_end = (at + path_end) as u32;
        true
    }

    /// Parses `HTTP/1.1 200 OK`. The text after the number may be missing.
    fn read_status_line(&mut self, at: usize, line: &[u8]) -> bool {
        self.keeps_alive = match line.get(..b"HTTP/1.1 ".len()) {
            Some(b"HTTP/1.1 ") => true,
            Some(b"HTTP/1.0 ") => false,
            _ => return false,
        };
        let [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', rest @ ..] = &line[b"HTTP/1.1 ".len()..]
        else {
            return false;
        };
        let digit = |byte: &u8| u16::from(byte - b'0');
        self.status = digit(a) * 100 + digit(b) * 10 + digit(c);
        self.target_end = (at + line.len()) as u32;
        matches!(rest.first(), None | Some(b' '))
    }

    #[inline]
    fn read_header(&mut self, limits: &KyotoLimits<'_>, line: &[u8], at: Option<usize>) {
        // Most headers have no meaning here. The first letter is enough to skip them quickly.
        if !matches!(
            line.first().map(u8::to_ascii_lowercase),
            Some(b'a' | b'c' | b'd' | b'h' | b'o' | b'p' | b'r' | b's' | b't' | b'u' | b'x' | b' ' | b'\t')
        ) {
            return;
        }
        let Some(colon) = memchr(b':', line) else { return };
        let name = line[..colon].trim_ascii();
        let value =
            || &line[colon + 1 + line[colon + 1..].iter().take_while(|&&byte| byte == b' ').count()..];
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                self.has_foreign_host |= !is_own_host(value(), limits.hosts);
            }
            7 if name.eq_ignore_ascii_case(b"x-kt-xt") => self.xt = parse_date(value()),
            9 if name.eq_ignore_ascii_case(b"x-kt-mode") => {
                self.mode = match value() {
                    mode if mode.eq_ignore_ascii_case(b"add") => RestMode::Add,
                    mode if mode.eq_ignore_ascii_case(b"replace") => RestMode::Replace,
                    _ => RestMode::Set,
                };
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                let value = value();
                if value.eq_ignore_ascii_case(b"close") {
                    self.keeps_alive = false;
                } else if value.eq_ignore_ascii_case(b"keep-alive") {
                    self.keeps_alive = true;
                }
            }
            12 if name.eq_ignore_ascii_case(b"content-type") => self.content = BodyContent::of(value()),
            13 if name.eq_ignore_ascii_case(b"authorization") => {
                let whole = at.filter(|_| self.authorization.is_none()).map(|at| {
                    let end = at + line.len();
                    ((end - value().len()) as u32, end as u32)
                });
                self.authorization = Some(whole.unwrap_or_default());
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                self.content_length = u64::try_from(integer(value())).ok();
            }
            18 if name.eq_ignore_ascii_case(b"x-todana-freshness") => {
                let required = RequiredFreshness::parse(value().trim_ascii_end());
                self.freshness = required.map_or(FreshnessHeader::Invalid, FreshnessHeader::Present);
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                self.is_chunked |= value().eq_ignore_ascii_case(b"chunked");
            }
            3 | 6 | 7 | 8 | 10 | 14 | 15 => {
                let mark = BrowserMark::of(name, value());
                self.is_from_browser |= mark.is_some();
                self.is_from_page |= mark == Some(BrowserMark::Page);
            }
            _ => {}
        }
    }
}

impl BodyContent {
    fn of(value: &[u8]) -> BodyContent {
        const TSV: &[u8] = b"text/tab-separated-values";
        if starts_with(value, b"application/x-www-form-urlencoded") {
            return BodyContent::Form;
        }
        if !starts_with(value, TSV) {
            return BodyContent::ForeignPage;
        }
        let mut encoding = ColumnEncoding::Raw;
        for attribute in value[TSV.len()..].split(|&byte| byte == b' ' || byte == b';') {
            if starts_with(attribute, b"colenc=") {
                let name = &attribute[b"colenc=".len()..];
                encoding = match name.strip_prefix(b"\"").unwrap_or(name).first() {
                    Some(b'B' | b'b') => ColumnEncoding::Base64,
                    Some(b'Q' | b'q') => ColumnEncoding::Quoted,
                    Some(b'U' | b'u') => ColumnEncoding::Percent,
                    _ => encoding,
                };
            }
        }
        BodyContent::Tsv(encoding)
    }
}

/// Returns the offset at which a line that is too long is split. CRs do not count for the length.
#[cold]
fn long_line(line: &[u8]) -> Option<usize> {
    if line.len() <= LINE_LEN_MAX {
        return None;
    }
    let counted = line.iter().enumerate().filter(|(_, byte)| **byte != b'\r');
    counted.map(|(at, _)| at).nth(LINE_LEN_MAX)
}

fn is_only_cr(line: &[u8]) -> bool {
    line.iter().all(|&byte| byte == b'\r')
}

fn without_cr(line: &[u8]) -> Cow<'_, [u8]> {
    Cow::Owned(line.iter().copied().filter(|&byte| byte != b'\r').collect())
}

/// The state of scanning the chunks of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkWalker {
    /// The offset of the next chunk in the request.
    at: usize,
    /// The number of bytes after `at` that are known to contain no line end.
    scanned: usize,
    /// The total length of the chunks found so far.
    found: u64,
}

/// The result of scanning the chunks of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkProgress {
    /// All chunks have arrived; they end at this offset.
    Whole(usize),
    /// At least this number of bytes is missing.
    Partial(usize),
    /// The chunks exceed the limit.
    TooLarge,
    /// A chunk does not end at its announced length.
    Invalid,
}

impl ChunkWalker {
    pub(super) fn new(at: usize) -> ChunkWalker {
        ChunkWalker { at, scanned: 0, found: 0 }
    }

    /// Continues the scan.
    pub(super) fn walk(&mut self, limits: &KyotoLimits<'_>, input: &[u8]) -> ChunkProgress {
        loop {
            let rest = &input[self.at..];
            let scanned = self.scanned.min(rest.len());
            let Some(newline) = memchr(b'\n', &rest[scanned..]).map(|found| scanned + found) else {
                if rest.len() > LINE_LEN_MAX {
                    return ChunkProgress::Invalid;
                }
                self.scanned = rest.len();
                return ChunkProgress::Partial(1);
            };
            self.scanned = newline;
            let Some(len) = chunk_len(&rest[..newline]) else {
                return ChunkProgress::Whole(self.at + newline + 1);
            };
            if len > limits.body_len_max.saturating_sub(self.found) {
                return ChunkProgress::TooLarge;
            }
            // The length fits in `usize`, because it is at most the limit.
            let data = newline + 1 + len as usize;
            match rest.get(data..) {
                Some([b'\r', b'\n', ..]) => {}
                Some([] | [b'\r']) | None => return ChunkProgress::Partial(data + 2 - rest.len()),
                Some(_) => return ChunkProgress::Invalid,
            }
            self.at += data + 2;
            self.scanned = 0;
            self.found += len;
            if len == 0 {
                return ChunkProgress::Whole(self.at);
            }
        }
    }
}

/// Appends the data of scanned chunks to `body`.
pub(super) fn join_chunks(mut chunks: &[u8], body: &mut Vec<u8>) {
    while let Some(newline) = memchr(b'\n', chunks) {
        let Some(len) = chunk_len(&chunks[..newline]) else { return };
        let data = &chunks[newline + 1..];
        let Some((data, rest)) = data.split_at_checked(len as usize) else { return };
        body.extend_from_slice(data);
        chunks = rest.get(2..).unwrap_or_default();
    }
}

/// Returns the length of the chunk that this line announces. Returns `None` for an empty line,
/// which ends the body like the length 0.
fn chunk_len(line: &[u8]) -> Option<u64> {
    if is_only_cr(line) {
        return None;
    }
    Some(hexadecimal(without_blanks(line)).unsigned_abs())
}
