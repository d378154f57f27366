//! Decodes and answers HTTP as Tokyo Tyrant does: the path is a key, and the method is a command.
//!
//! ```text
//! GET HEAD PUT POST DELETE OPTIONS /KEY HTTP/1.0 or 1.1
//! Content-Length, Connection, Content-Type
//! X-TT-PDMODE, X-TT-XNAME, X-TT-XOPTS, X-TT-MNAME, X-TT-MOPTS
//! ```
//!
//! A body must have a `Content-Length`; chunked bodies are refused. The query of a target is a part
//! of the key. Names and arguments borrow from the input, unless they had to be decoded.

use super::binary::TyrantLimits;
use super::fields::{FieldBuffer, FieldList};
use super::request::TyrantPutMode;
use super::{COUNT_MAX, NAME_LEN_MAX};
use crate::ReplySink;
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;

/// The longest head of a request, in bytes.
const HEAD_LEN_MAX: usize = 64 << 10;
/// The longest line of a head without its end, as in the original.
const LINE_LEN_MAX: usize = 8191;
/// The largest number of headers.
const HEADERS_MAX: usize = 128;

/// The methods that have an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TyrantHttpMethod {
    /// Reads a record.
    Get,
    /// Reads the length of a record.
    Head,
    /// Stores a record.
    Put(TyrantPutMode),
    /// Calls a function.
    Post,
    /// Removes a record.
    Delete,
    /// Reads the statistics.
    Options,
}

/// The function that a POST calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpFunction<'a> {
    /// A function of the script, with its options.
    Script(&'a [u8], u32),
    /// A function of `misc`, with its options.
    Misc(&'a [u8], u32),
    /// The request names no function.
    None,
}

/// A request over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TyrantHttpRequest<'a> {
    /// The method.
    pub method: TyrantHttpMethod,
    /// The decoded key.
    pub key: Cow<'a, [u8]>,
    /// The function of a POST.
    pub function: HttpFunction<'a>,
    /// The body.
    pub body: &'a [u8],
    /// The content type of the body.
    content_type: &'a [u8],
    /// False if the connection is closed after the answer.
    pub keeps_alive: bool,
}

/// The result of decoding the unread bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpStep<'a> {
    /// A complete request of `consumed` bytes.
    Request {
        /// The length of the request.
        consumed: usize,
        /// The request.
        request: TyrantHttpRequest<'a>,
    },
    /// The request is incomplete.
    NeedMore {
        /// The number of bytes that are missing at least.
        at_least: usize,
    },
    /// The input is not a request that is answered. The connection must be closed without a reply.
    Close,
}

/// Returns true if a request that begins with this byte may be HTTP. Commands of memcached begin
/// with small letters.
#[inline]
pub fn begins_http(first: u8) -> bool {
    matches!(first, b'G' | b'H' | b'P' | b'D' | b'O')
}

/// Decodes the next request from `input`, which must contain all unread bytes.
pub fn decode_http<'a>(limits: &TyrantLimits, input: &'a [u8]) -> HttpStep<'a> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let head_len = match head_end(input) {
        HeadEnd::At(len) => len,
        HeadEnd::Missing { first_line } => {
            // A complete head is parsed once. Before, the first line shows other protocols.
            let has_room = input.len() <= HEAD_LEN_MAX.min(limits.unfinished_len_max);
            let may_be_http = has_room && head.parse(first_line).is_ok();
            return if may_be_http { HttpStep::NeedMore { at_least: 1 } } else { HttpStep::Close };
        }
        HeadEnd::LineTooLong => return HttpStep::Close,
    };
    if !matches!(head.parse(&input[..head_len]), Ok(httparse::Status::Complete(len)) if len == head_len) {
        return HttpStep::Close;
    }
    let mut keeps_alive = head.version == Some(1);
    let (mut body_len, mut mode, mut content_type) = (0, TyrantPutMode::Put, &b""[..]);
    let (mut script, mut misc) = (None, None);
    let (mut script_options, mut misc_options) = (0, 0);
    for header in head.headers.iter() {
        let value = header.value.trim_ascii();
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("Content-Length") {
            match number(value).and_then(|len| usize::try_from(len).ok()) {
                Some(len) if len <= limits.len_max => body_len = len,
                _ => return HttpStep::Close,
            }
        } else if is("Transfer-Encoding") {
            return HttpStep::Close;
        } else if is("Connection") {
            keeps_alive = match value {
                _ if value.eq_ignore_ascii_case(b"close") => false,
                _ if value.eq_ignore_ascii_case(b"keep-alive") => true,
                _ => keeps_alive,
            };
        } else if is("Content-Type") {
            content_type = value;
        } else if is("X-TT-PDMODE") {
            mode = match number(value) {
                Some(1) => TyrantPutMode::Keep,
                Some(2) => TyrantPutMode::Cat,
                _ => TyrantPutMode::Put,
            };
        } else if is("X-TT-XNAME") {
            script = Some(value);
        } else if is("X-TT-XOPTS") {
            script_options = number(value).unwrap_or(0) as u32;
        } else if is("X-TT-MNAME") {
            misc = Some(value);
        } else if is("X-TT-MOPTS") {
            misc_options = number(value).unwrap_or(0) as u32;
        }
    }
    if [script, misc].iter().flatten().any(|name| name.len() > NAME_LEN_MAX) {
        return HttpStep::Close;
    }
    let method = match head.method.unwrap_or_default() {
        "GET" => TyrantHttpMethod::Get,
        "HEAD" => TyrantHttpMethod::Head,
        "PUT" => TyrantHttpMethod::Put(mode),
        "POST" => TyrantHttpMethod::Post,
        "DELETE" => TyrantHttpMethod::Delete,
        "OPTIONS" => TyrantHttpMethod::Options,
        _ => return HttpStep::Close,
    };
    let missing = (head_len + body_len).saturating_sub(input.len());
    if missing > 0 {
        let has_room = input.len() <= limits.unfinished_len_max;
        return if has_room { HttpStep::NeedMore { at_least: missing } } else { HttpStep::Close };
    }
    let function = match (script, misc) {
        (Some(name), _) => HttpFunction::Script(name, script_options),
        (None, Some(name)) => HttpFunction::Misc(name, misc_options),
        (None, None) => HttpFunction::None,
    };
    let consumed = head_len + body_len;
    let body = &input[head_len..consumed];
    let key = decoded(path_of(head.path.unwrap_or_default().as_bytes()));
    let request = TyrantHttpRequest { method, key, function, body, content_type, keeps_alive };
    HttpStep::Request { consumed, request }
}

impl TyrantHttpRequest<'_> {
    /// Returns the arguments of `misc`: the values of the form in the body. Several values of one
    /// name are joined by zero bytes. Returns `None` if the form has too many values.
    pub fn arguments(&self) -> Option<FieldBuffer> {
        let values_max = COUNT_MAX as usize;
        let pairs = match boundary(self.content_type) {
            Some(boundary) => parts(self.body, boundary).take(values_max + 1).collect::<Vec<_>>(),
            None => form(self.body).take(values_max + 1).collect(),
        };
        if pairs.len() > values_max {
            return None;
        }
        let (mut joined, mut places): (Vec<Vec<u8>>, HashMap<Vec<u8>, usize>) = Default::default();
        for (name, value) in pairs {
            match places.entry(name) {
                Entry::Occupied(place) => {
                    let values = &mut joined[*place.get()];
                    values.push(0);
                    values.extend_from_slice(&value);
                }
                Entry::Vacant(place) => {
                    place.insert(joined.len());
                    joined.push(value);
                }
            }
        }
        Some(joined.iter().map(Vec::as_slice).collect())
    }
}

/// The end of a request's head.
enum HeadEnd<'a> {
    /// The head has this length.
    At(usize),
    /// The head is incomplete. The first line is empty if it is incomplete, too.
    Missing { first_line: &'a [u8] },
    /// A line is longer than it may be.
    LineTooLong,
}

fn head_end(input: &[u8]) -> HeadEnd<'_> {
    let (mut begin, mut first_line) = (0, &b""[..]);
    for end in memchr::memchr_iter(b'\n', input) {
        let line = &input[begin..end];
        match line.strip_suffix(b"\r").unwrap_or(line).len() {
            0 => return HeadEnd::At(end + 1),
            len if len > LINE_LEN_MAX => return HeadEnd::LineTooLong,
            _ if begin == 0 => first_line = &input[..=end],
            _ => {}
        }
        begin = end + 1;
    }
    // The last byte may be the first one of the line's end.
    if input.len() - begin > LINE_LEN_MAX + 1 {
        HeadEnd::LineTooLong
    } else {
        HeadEnd::Missing { first_line }
    }
}

/// Returns the target without its host and its first slash.
fn path_of(target: &[u8]) -> &[u8] {
    let target = match target.get(..7) {
        Some(scheme) if scheme.eq_ignore_ascii_case(b"http://") => {
            let rest = &target[7..];
            &rest[memchr::memchr(b'/', rest).unwrap_or(rest.len())..]
        }
        _ => target,
    };
    target.strip_prefix(b"/").unwrap_or(target)
}

/// Decodes `%XX` and `+`. As in the original, an incomplete `%` ends the text.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'%', b'+', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digit = |at: usize| after.get(at).and_then(|&digit| (digit as char).to_digit(16));
                let (Some(high), Some(low)) = (digit(0), digit(1)) else { break };
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => bytes.push(*first),
        }
    }
    Cow::Owned(bytes)
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn form(body: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let body = body.trim_ascii_end();
    let pairs = body.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let end = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        let value = pair.get(end + 1..).unwrap_or_default();
        (decoded(&pair[..end]).into_owned(), decoded(value).into_owned())
    })
}

/// Returns the boundary of a multipart body.
fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let is_multipart = content_type.get(..10).is_some_and(|begin| begin.eq_ignore_ascii_case(b"multipart/"));
    let at = is_multipart.then(|| memchr::memmem::find(content_type, b"boundary="))??;
    let value = &content_type[at + 9..];
    let value = value.split(|byte| b";, ".contains(byte)).next().unwrap_or_default();
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

fn parts(body: &[u8], boundary: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let delimiter = [b"--", boundary].concat();
    let places: Vec<usize> = memchr::memmem::find_iter(body, &delimiter).collect();
    (1..places.len()).filter_map(move |place| {
        let part = body.get(places[place - 1] + delimiter.len()..places[place])?;
        let head_end = memchr::memmem::find(part, b"\r\n\r\n")?;
        let value = &part[head_end + 4..];
        let name = part_name(&part[..head_end]).unwrap_or_else(|| format!("part:{}", place - 1).into_bytes());
        Some((name, value.strip_suffix(b"\r\n").unwrap_or(value).to_vec()))
    })
}

fn part_name(head: &[u8]) -> Option<Vec<u8>> {
    let at = memchr::memmem::find(head, b" name=")? + 6;
    let name = head[at..].split(|byte| b";\r\n".contains(byte)).next()?;
    Some(name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(name).to_vec())
}

/// Writes the head of an answer whose body has `len` bytes. The body must follow.
pub fn put_http_head(len: usize, out: &mut impl ReplySink) {
    put_head("200 OK", "application/octet-stream", len, out);
}

/// Writes the list of a `misc` call as a form.
pub fn put_http_form(fields: &FieldList<'_>, out: &mut impl ReplySink) {
    let mut form = String::new();
    for (index, field) in fields.iter().enumerate() {
        let mark = if index == 0 { "" } else { "&" };
        let _ = write!(form, "{mark}res{}=", index + 1);
        put_encoded(field, &mut form);
    }
    put_head("200 OK", "application/x-www-form-urlencoded", form.len(), out);
    out.put(form.as_bytes());
}

/// Writes an answer whose body is the reason phrase of its status.
pub fn put_http_status(status: &str, out: &mut impl ReplySink) {
    let reason = status.split_once(' ').map_or(status, |(_, reason)| reason);
    put_head(status, "text/plain", reason.len() + 1, out);
    out.put(reason.as_bytes());
    out.put(b"\n");
}

fn put_head(status: &str, content_type: &str, len: usize, out: &mut impl ReplySink) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\n\r\n");
    out.put(head.as_bytes());
}

fn put_encoded(bytes: &[u8], text: &mut String) {
    for &byte in bytes {
        match byte {
            b'A'..=b'Z'
            | b'a'..=b'z'
            | b'0'..=b'9'
            | b'_'
            | b'-'
            | b'.'
            | b'!'
            | b'~'
            | b'*'
            | b'\''
            | b'('
            | b')' => {
                text.push(byte as char);
            }
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> TyrantHttpRequest<'_> {
        let limits = TyrantLimits::default();
        for len in 0..text.len() {
            let step = decode_http(&limits, &text.as_bytes()[..len]);
            assert!(matches!(step, HttpStep::NeedMore { .. }), "{len}: {step:?}");
        }
        match decode_http(&limits, text.as_bytes()) {
            HttpStep::Request { consumed, request } if consumed == text.len() => request,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn target_becomes_the_key() {
        for (target, key) in
            [("/a%20b+c?x=1", &b"a b c?x=1"[..]), ("http://host/k%2F", b"k/"), ("/", b""), ("/ab%4", b"ab")]
        {
            assert_eq!(&*request(&format!("GET {target} HTTP/1.1\r\n\r\n")).key, key, "{target}");
        }
    }

    #[test]
    fn headers_select_command_and_connection() {
        let asked = request(
            "PUT /k HTTP/1.0\r\nx-tt-pdmode: 2\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
        );
        assert_eq!(asked.method, TyrantHttpMethod::Put(TyrantPutMode::Cat));
        assert_eq!((asked.body, asked.keeps_alive), (&b"abc"[..], true));
        assert!(!request("GET / HTTP/1.0\r\n\r\n").keeps_alive);
        let asked = request("POST /k HTTP/1.1\r\nX-TT-MNAME: get\r\nX-TT-MOPTS: 1\r\nX-TT-XNAME: f\r\n\r\n");
        assert_eq!(asked.function, HttpFunction::Script(b"f", 0));
    }

    #[test]
    fn forms_become_arguments() {
        let body = "a=1+2&b=%41&a=3";
        let asked = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let arguments = request(&asked).arguments().unwrap();
        assert_eq!(arguments.list().iter().collect::<Vec<_>>(), [&b"1 2\x003"[..], b"A"]);
        let body = "--X\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nv\r\nw\r\n--X--\r\n";
        let asked = format!(
            "POST / HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=X\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(request(&asked).arguments().unwrap().list().iter().collect::<Vec<_>>(), [&b"v\r\nw"[..]]);
    }

    /// Each name was compared with all earlier ones, and their number was not limited.
    #[test]
    fn form_has_a_bounded_number_of_values() {
        let arguments = |body: &str| {
            let head = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
            let asked = [head.as_str(), body].concat();
            match decode_http(&TyrantLimits::default(), asked.as_bytes()) {
                HttpStep::Request { request, .. } => request.arguments(),
                step => panic!("{step:?}"),
            }
        };
        let names: String = (0..COUNT_MAX).map(|number| format!("{number}={number}&")).collect();
        let list = arguments(&names).unwrap();
        assert_eq!(list.len(), COUNT_MAX as usize);
        assert_eq!(list.list().get(COUNT_MAX as usize - 1), Some((COUNT_MAX - 1).to_string().as_bytes()));
        assert_eq!(arguments(&format!("{names}a=b")), None);
        assert_eq!(arguments(&"a=&".repeat(COUNT_MAX as usize + 1)), None);
    }

    /// The head was parsed again at each arrival, up to a length of one MiB.
    #[test]
    fn lines_of_a_head_are_short() {
        let limits = TyrantLimits::default();
        let line = |len: usize| format!("GET /{} HTTP/1.1", "k".repeat(len - "GET / HTTP/1.1".len()));
        for (text, is_closed) in [
            (format!("{}\r\n", line(LINE_LEN_MAX)), false),
            (format!("{}\r\n", line(LINE_LEN_MAX + 1)), true),
            (line(LINE_LEN_MAX + 2), true),
            (format!("{}\r\nA: {}\r\n\r\n", line(20), "b".repeat(LINE_LEN_MAX)), true),
            (format!("{}\r\n{}", line(20), "A: b\r\n".repeat(20_000)), true),
        ] {
            let step = decode_http(&limits, text.as_bytes());
            assert_eq!(step == HttpStep::Close, is_closed, "{}: {step:?}", text.len());
        }
        let key_len = LINE_LEN_MAX - "GET / HTTP/1.1".len();
        assert_eq!(request(&format!("{}\r\n\r\n", line(LINE_LEN_MAX))).key.len(), key_len);
    }

    #[test]
    fn bad_requests_close() {
        for text in [
            "GET / HTTP/2.0\r\n\r\n",
            "PATCH / HTTP/1.1\r\n\r\n",
            "PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "PUT / HTTP/1.1\r\nContent-Length: 268435457\r\n\r\n",
            "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GETTING\r\n",
        ] {
            assert_eq!(decode_http(&TyrantLimits::default(), text.as_bytes()), HttpStep::Close, "{text}");
        }
    }
}
