//! Decodes requests without a body and encodes complete responses: the part of HTTP/1.1 that
//! read-only pages need. Owns no socket.

use std::fmt::Write;
use todana_protocol::kyoto::BrowserMark;

/// The maximum length of the head of a request in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// The parts of a request that the pages need.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpRequest {
    /// The path without the query.
    pub(super) path: String,
    /// True for HEAD: the response is sent without its body.
    pub(super) is_head: bool,
    /// True if another request may follow on the same connection.
    pub(super) keeps_alive: bool,
    /// The host name of the request, which HTTP/1.0 may omit.
    pub(super) host: Option<String>,
    /// True if the headers show that a browser sent the request.
    pub(super) is_of_browser: bool,
}

/// The meaning of the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParsedRequest {
    Partial,
    /// The bytes begin with a complete request of this length.
    Whole(HttpRequest, usize),
    /// The bytes are not a valid request. The connection is closed after this answer.
    Refused(HttpStatus),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpStatus {
    Ok,
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    HeadersTooLarge,
    Unavailable,
    VersionNotSupported,
}

impl HttpStatus {
    fn line(self) -> &'static str {
        match self {
            HttpStatus::Ok => "200 OK",
            HttpStatus::BadRequest => "400 Bad Request",
            HttpStatus::Forbidden => "403 Forbidden",
            HttpStatus::NotFound => "404 Not Found",
            HttpStatus::MethodNotAllowed => "405 Method Not Allowed",
            HttpStatus::HeadersTooLarge => "431 Request Header Fields Too Large",
            HttpStatus::Unavailable => "503 Service Unavailable",
            HttpStatus::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// The response of a page.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: HttpStatus,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

impl HttpResponse {
    pub(super) fn text(status: HttpStatus, body: impl Into<String>) -> HttpResponse {
        HttpResponse { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    /// Returns the response to an invalid request.
    pub(super) fn refusal(status: HttpStatus) -> HttpResponse {
        HttpResponse::text(status, format!("{}\n", status.line()))
    }

    /// Returns the bytes to send.
    pub(super) fn encode(&self, is_head: bool, keeps_alive: bool) -> Vec<u8> {
        let mut head = String::new();
        // Writing to a String does not fail.
        let _ = write!(
            head,
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n",
            self.status.line(),
            self.content_type,
            self.body.len()
        );
        if self.status == HttpStatus::MethodNotAllowed {
            head.push_str("Allow: GET, HEAD\r\n");
        }
        if !keeps_alive {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("\r\n");
        if !is_head {
            head.push_str(&self.body);
        }
        head.into_bytes()
    }
}

/// Parses the first request of `input`.
pub(super) fn parse(input: &[u8]) -> ParsedRequest {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let len = match request.parse(input) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if input.len() < REQUEST_BYTES_MAX => return ParsedRequest::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return ParsedRequest::Refused(HttpStatus::HeadersTooLarge);
        }
        Err(httparse::Error::Version) => return ParsedRequest::Refused(HttpStatus::VersionNotSupported),
        Err(_) => return ParsedRequest::Refused(HttpStatus::BadRequest),
    };
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        // A request with this method may have a body, so it is unknown where the next request
        // begins.
        _ => return ParsedRequest::Refused(HttpStatus::MethodNotAllowed),
    };
    let mut keeps_alive = request.version == Some(1);
    let mut hosts = Vec::new();
    let mut is_of_browser = false;
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        is_of_browser |= BrowserMark::of(header.name.as_bytes(), header.value).is_some();
        if is("Host") {
            hosts.push(String::from_utf8_lossy(header.value).into_owned());
        } else if is("Transfer-Encoding") || is("Content-Length") && header.value.trim_ascii() != b"0" {
            // No page accepts a body.
            return ParsedRequest::Refused(HttpStatus::BadRequest);
        } else if is("Connection") {
            let mut words = header.value.split(|&byte| byte == b',');
            keeps_alive &= !words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
    }
    // Requests of HTTP/1.0 need no host.
    if hosts.len() > 1 || hosts.is_empty() && request.version == Some(1) {
        return ParsedRequest::Refused(HttpStatus::BadRequest);
    }
    let path = path(request.path.unwrap_or_default());
    ParsedRequest::Whole(HttpRequest { path, is_head, keeps_alive, host: hosts.pop(), is_of_browser }, len)
}

/// Returns the path of a request's target. If a proxy sent the request, the target may be a
/// complete URL.
fn path(target: &str) -> String {
    let target = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |start| &rest[start..]),
        None => target,
    };
    target.split(['?', '#']).next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(path: &str, is_head: bool, keeps_alive: bool, len: usize) -> ParsedRequest {
        let host = Some("a".to_string());
        ParsedRequest::Whole(
            HttpRequest { path: path.into(), is_head, keeps_alive, host, is_of_browser: false },
            len,
        )
    }

    #[test]
    fn request_is_complete_at_its_empty_line() {
        let bytes = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), ParsedRequest::Partial, "{len} bytes");
        }
        let mut two = bytes.to_vec();
        two.extend_from_slice(b"GET / HT");
        assert_eq!(parse(&two), whole("/metrics", false, true, bytes.len()));
    }

    #[test]
    fn targets_are_read_to_their_path() {
        for (target, expected) in [
            ("/", "/"),
            ("/metrics?name=a&b", "/metrics"),
            ("http://127.0.0.1:1/readyz?x", "/readyz"),
            ("http://127.0.0.1:1", "/"),
            ("*", "*"),
        ] {
            let text = format!("HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(parse(text.as_bytes()), whole(expected, true, true, text.len()));
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
            assert_eq!(parse(text.as_bytes()), whole("/", false, keeps, text.len()), "{head}");
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_their_status() {
        let many_headers = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65));
        let long_header = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(REQUEST_BYTES_MAX));
        for (bytes, status) in [
            ("POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", HttpStatus::MethodNotAllowed),
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
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n\
                    Cache-Control: no-store\r\n";
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(text(response.encode(false, true)), format!("{head}\r\nok\n"));
        assert_eq!(text(response.encode(true, true)), format!("{head}\r\n"));
        assert_eq!(text(response.encode(false, false)), format!("{head}Connection: close\r\n\r\nok\n"));
    }
}
