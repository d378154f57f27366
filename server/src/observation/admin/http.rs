//! Decodes requests and encodes responses: the part of HTTP/1.1 that the pages need. Owns no
//! socket.

use std::borrow::Cow;
use std::fmt::Write;
use todana_protocol::kyoto::BrowserMark;

/// The maximum length of the head of a request in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The maximum length of the body of a request in bytes.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// The maximum length of a request in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = HEAD_BYTES_MAX + BODY_BYTES_MAX;
const HEADERS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpMethod {
    Get,
    /// As `Get`, and the response is sent without its body.
    Head,
    Post,
    Put,
    Delete,
}

impl HttpMethod {
    fn of(name: &str) -> Option<HttpMethod> {
        Some(match name {
            "GET" => HttpMethod::Get,
            "HEAD" => HttpMethod::Head,
            "POST" => HttpMethod::Post,
            "PUT" => HttpMethod::Put,
            "DELETE" => HttpMethod::Delete,
            _ => return None,
        })
    }

    /// Returns true if a request with this method changes nothing.
    pub(super) fn only_reads(self) -> bool {
        matches!(self, HttpMethod::Get | HttpMethod::Head)
    }
}

/// The parts of a request that the pages need.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpRequest {
    pub(super) method: HttpMethod,
    /// The path without the query.
    pub(super) path: String,
    /// The query without its question mark, still encoded.
    pub(super) query: String,
    /// True if another request may follow on the same connection.
    pub(super) keeps_alive: bool,
    /// The host name of the request, which HTTP/1.0 may omit.
    pub(super) host: Option<String>,
    /// True if the headers show that a browser sent the request.
    pub(super) is_of_browser: bool,
    /// True if a browser sent the request for a page of another site.
    pub(super) is_cross_site: bool,
    /// The token of the header `Authorization: Bearer TOKEN`.
    pub(super) token: Option<String>,
    pub(super) body: Vec<u8>,
}

/// The meaning of the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParsedRequest {
    /// The head is not complete.
    Partial,
    /// The bytes begin with the head of a request whose body is not complete.
    Head(HttpRequest),
    /// The bytes begin with a complete request of this length.
    Whole(HttpRequest, usize),
    /// The bytes are not a valid request. The connection is closed after this answer.
    Refused(HttpStatus),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpStatus {
    Ok,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Conflict,
    BodyTooLarge,
    HeadersTooLarge,
    Failed,
    Unavailable,
    VersionNotSupported,
}

impl HttpStatus {
    fn line(self) -> &'static str {
        match self {
            HttpStatus::Ok => "200 OK",
            HttpStatus::BadRequest => "400 Bad Request",
            HttpStatus::Unauthorized => "401 Unauthorized",
            HttpStatus::Forbidden => "403 Forbidden",
            HttpStatus::NotFound => "404 Not Found",
            HttpStatus::MethodNotAllowed => "405 Method Not Allowed",
            HttpStatus::Conflict => "409 Conflict",
            HttpStatus::BodyTooLarge => "413 Content Too Large",
            HttpStatus::HeadersTooLarge => "431 Request Header Fields Too Large",
            HttpStatus::Failed => "500 Internal Server Error",
            HttpStatus::Unavailable => "503 Service Unavailable",
            HttpStatus::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// The headers of every response. No other site may show a page in a frame, and no page may load
/// or run what does not come from this server.
const GUARDS: &str = "Cache-Control: no-store\r\n\
     Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     Cross-Origin-Resource-Policy: same-origin\r\n\
     Referrer-Policy: no-referrer\r\n\
     X-Content-Type-Options: nosniff\r\n";

/// The response of a page.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: HttpStatus,
    pub(super) content_type: &'static str,
    pub(super) body: ResponseBody,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseBody {
    Whole(Cow<'static, [u8]>),
    /// Events are sent as they occur, until the client closes the connection.
    Events,
}

impl HttpResponse {
    pub(super) fn text(status: HttpStatus, body: impl Into<String>) -> HttpResponse {
        HttpResponse::whole(status, "text/plain; charset=utf-8", body.into().into_bytes())
    }

    pub(super) fn whole(
        status: HttpStatus,
        content_type: &'static str,
        body: impl Into<Cow<'static, [u8]>>,
    ) -> HttpResponse {
        HttpResponse { status, content_type, body: ResponseBody::Whole(body.into()) }
    }

    /// Returns a response that consists of server-sent events.
    pub(super) fn events() -> HttpResponse {
        HttpResponse { status: HttpStatus::Ok, content_type: "text/event-stream", body: ResponseBody::Events }
    }

    /// Returns the response to an invalid request.
    pub(super) fn refusal(status: HttpStatus) -> HttpResponse {
        HttpResponse::text(status, format!("{}\n", status.line()))
    }

    /// Returns the bytes to send. Of events, these are only the head.
    pub(super) fn encode(&self, is_head: bool, keeps_alive: bool) -> Vec<u8> {
        let mut head = String::new();
        // Writing to a String does not fail.
        let _ = write!(head, "HTTP/1.1 {}\r\nContent-Type: {}\r\n", self.status.line(), self.content_type);
        if let ResponseBody::Whole(body) = &self.body {
            let _ = write!(head, "Content-Length: {}\r\n", body.len());
        }
        head.push_str(GUARDS);
        match self.status {
            HttpStatus::MethodNotAllowed => head.push_str("Allow: GET, HEAD\r\n"),
            HttpStatus::Unauthorized => head.push_str("WWW-Authenticate: Bearer\r\n"),
            _ => {}
        }
        if !keeps_alive {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        if let ResponseBody::Whole(body) = &self.body
            && !is_head
        {
            bytes.extend_from_slice(body);
        }
        bytes
    }
}

/// Parses the first request of `input`.
pub(super) fn parse(input: &[u8]) -> ParsedRequest {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let head_len = match head.parse(input) {
        Ok(httparse::Status::Complete(len)) if len <= HEAD_BYTES_MAX => len,
        Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => return ParsedRequest::Partial,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return ParsedRequest::Refused(HttpStatus::HeadersTooLarge);
        }
        Err(httparse::Error::Version) => return ParsedRequest::Refused(HttpStatus::VersionNotSupported),
        Err(_) => return ParsedRequest::Refused(HttpStatus::BadRequest),
    };
    let (mut request, body_len) = match read_head(&head) {
        Ok(read) => read,
        Err(status) => return ParsedRequest::Refused(status),
    };
    let len = head_len + body_len;
    let Some(body) = input.get(head_len..len) else { return ParsedRequest::Head(request) };
    request.body = body.to_vec();
    ParsedRequest::Whole(request, len)
}

/// Returns a request without its body, and the length of the body.
fn read_head(head: &httparse::Request<'_, '_>) -> Result<(HttpRequest, usize), HttpStatus> {
    let Some(method) = HttpMethod::of(head.method.unwrap_or_default()) else {
        return Err(HttpStatus::MethodNotAllowed);
    };
    let is_1_1 = head.version == Some(1);
    let (path, query) = path_and_query(head.path.unwrap_or_default());
    let mut request = HttpRequest {
        method,
        path,
        query,
        keeps_alive: is_1_1,
        host: None,
        is_of_browser: false,
        is_cross_site: false,
        token: None,
        body: Vec::new(),
    };
    let (mut body_len, mut origin) = (None, None);
    for header in head.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let value = header.value.trim_ascii();
        request.is_of_browser |= BrowserMark::of(header.name.as_bytes(), header.value).is_some();
        if is("Host") {
            if request.host.replace(String::from_utf8_lossy(header.value).into_owned()).is_some() {
                return Err(HttpStatus::BadRequest);
            }
        } else if is("Transfer-Encoding") {
            return Err(HttpStatus::BadRequest);
        } else if is("Content-Length") {
            let len = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
            let len: usize = len.and_then(|text| text.parse().ok()).ok_or(HttpStatus::BadRequest)?;
            if body_len.replace(len).is_some() || len > 0 && method.only_reads() {
                return Err(HttpStatus::BadRequest);
            }
        } else if is("Connection") {
            let mut words = value.split(|&byte| byte == b',');
            request.keeps_alive &= !words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"));
        } else if is("Origin") {
            origin = Some(value);
        } else if is("Sec-Fetch-Site") {
            request.is_cross_site |= !matches!(value, b"same-origin" | b"none");
        } else if is("Authorization") {
            let text = std::str::from_utf8(value).unwrap_or_default();
            let token = text.split_once(' ').filter(|(kind, _)| kind.eq_ignore_ascii_case("Bearer"));
            request.token = token.map(|(_, token)| token.trim().to_string());
        }
    }
    // Requests of HTTP/1.0 need no host.
    if request.host.is_none() && is_1_1 {
        return Err(HttpStatus::BadRequest);
    }
    request.is_cross_site |= origin.is_some_and(|origin| !is_origin_of(origin, request.host.as_deref()));
    match body_len.unwrap_or(0) {
        len if len > BODY_BYTES_MAX => Err(HttpStatus::BodyTooLarge),
        len => Ok((request, len)),
    }
}

/// Returns true if an `Origin` names the server with this value of the header `Host`.
fn is_origin_of(origin: &[u8], host: Option<&str>) -> bool {
    let origin = std::str::from_utf8(origin).unwrap_or_default();
    // A proxy in front of the pages may use TLS.
    let origin_host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    origin_host.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host.trim()))
}

/// Returns the path and the query of a request's target. If a proxy sent the request, the target
/// may be a complete URL.
fn path_and_query(target: &str) -> (String, String) {
    let target = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |start| &rest[start..]),
        None => target,
    };
    let target = target.split('#').next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    (path.to_string(), query.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: &[u8]) -> HttpRequest {
        match parse(bytes) {
            ParsedRequest::Whole(request, len) if len == bytes.len() => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn request_is_complete_at_its_empty_line() {
        let bytes = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), ParsedRequest::Partial, "{len} bytes");
        }
        let mut two = bytes.to_vec();
        two.extend_from_slice(b"GET / HT");
        let ParsedRequest::Whole(request, len) = parse(&two) else { panic!("incomplete") };
        assert_eq!((&*request.path, request.method, len), ("/metrics", HttpMethod::Get, bytes.len()));
    }

    #[test]
    fn targets_are_divided_into_path_and_query() {
        for (target, path, query) in [
            ("/", "/", ""),
            ("/metrics?name=a&b#c?d", "/metrics", "name=a&b"),
            ("http://127.0.0.1:1/readyz?x", "/readyz", "x"),
            ("http://127.0.0.1:1", "/", ""),
            ("*", "*", ""),
        ] {
            let read = request(format!("HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            assert_eq!((&*read.path, &*read.query, read.method), (path, query, HttpMethod::Head), "{target}");
        }
    }

    #[test]
    fn body_belongs_to_its_request() {
        let bytes =
            b"PUT /a HTTP/1.1\r\nHost: a\r\nAuthorization: bearer x y\r\nContent-Length: 3\r\n\r\nabc";
        for len in 0..bytes.len() {
            match parse(&bytes[..len]) {
                ParsedRequest::Head(head) if len >= bytes.len() - 3 => {
                    assert_eq!((&*head.path, head.token.as_deref()), ("/a", Some("x y")));
                }
                parsed => assert_eq!(parsed, ParsedRequest::Partial, "{len} bytes"),
            }
        }
        let read = request(bytes);
        assert_eq!(
            (&*read.body, read.token.as_deref(), read.method),
            (&b"abc"[..], Some("x y"), HttpMethod::Put)
        );
    }

    #[test]
    fn requests_of_other_sites_are_recognised() {
        for (headers, is_cross_site) in [
            ("", false),
            ("Origin: http://a:1\r\n", false),
            ("Origin: https://A:1\r\n", false),
            ("Origin: http://a\r\n", true),
            ("Origin: http://b:1\r\n", true),
            ("Origin: null\r\n", true),
            ("Sec-Fetch-Site: same-origin\r\n", false),
            ("Sec-Fetch-Site: none\r\n", false),
            ("Sec-Fetch-Site: same-site\r\n", true),
            ("Sec-Fetch-Site: cross-site\r\nOrigin: http://a:1\r\n", true),
        ] {
            let read = request(format!("POST / HTTP/1.1\r\nHost: a:1\r\n{headers}\r\n").as_bytes());
            assert_eq!(read.is_cross_site, is_cross_site, "{headers}");
        }
    }

    #[test]
    fn connections_stay_open_unless_closed_or_old() {
        for (head, keeps) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n", true),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: keep-alive\r\n", true),
            ("GET / HTTP/1.1\r\nhost: a\r\nCONNECTION: te, Close\r\n", false),
            ("GET / HTTP/1.0\r\nHost: a\r\n", false),
        ] {
            let text = format!("{head}\r\n");
            assert_eq!(request(text.as_bytes()).keeps_alive, keeps, "{head}");
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_their_status() {
        let many_headers = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65));
        let long_header = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(HEAD_BYTES_MAX));
        for (bytes, status) in [
            ("PATCH /metrics HTTP/1.1\r\nHost: a\r\n\r\n", HttpStatus::MethodNotAllowed),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na", HttpStatus::BadRequest),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n", HttpStatus::BodyTooLarge),
            ("get / HTTP/1.1\r\nHost: a\r\n\r\n", HttpStatus::MethodNotAllowed),
            ("GET / HTTP/1.1\r\n\r\n", HttpStatus::BadRequest),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", HttpStatus::BadRequest),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", HttpStatus::BadRequest),
            ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", HttpStatus::BadRequest),
            ("GET / HTTP/1.1\r\nHost a\r\n\r\n", HttpStatus::BadRequest),
            ("GET / HTTP/2.0\r\n\r\n", HttpStatus::VersionNotSupported),
            ("\u{0}\u{1}\r\n\r\n", HttpStatus::BadRequest),
            (&many_headers, HttpStatus::HeadersTooLarge),
            (&long_header, HttpStatus::HeadersTooLarge),
        ] {
            assert_eq!(parse(bytes.as_bytes()), ParsedRequest::Refused(status), "{bytes:.60}");
        }
    }

    #[test]
    fn head_response_has_the_content_length() {
        let response = HttpResponse::text(HttpStatus::Ok, "ok\n");
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n";
        let head = format!("{head}{GUARDS}");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(text(response.encode(false, true)), format!("{head}\r\nok\n"));
        assert_eq!(text(response.encode(true, true)), format!("{head}\r\n"));
        assert_eq!(text(response.encode(false, false)), format!("{head}Connection: close\r\n\r\nok\n"));
    }
}
