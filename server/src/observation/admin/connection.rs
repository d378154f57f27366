//! Defines a connection to the admin pages, which answers requests one after another.

use super::http::{
    HttpMethod, HttpRequest, HttpResponse, ParsedRequest, REQUEST_BYTES_MAX, ResponseBody, parse,
};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// The time limit for receiving a request, and for sending its response.
pub(super) const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// The time for which a connection may be idle. Prometheus usually sends a request every 15 to 60
/// seconds.
pub(super) const IDLE: Duration = Duration::from_secs(75);
/// The limits of time and bytes for input after the last response. If the server closed the
/// connection at once, the system would discard the response, and the client would not see the
/// reason.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 << 10;
/// The number of requests after which a client must reconnect, so that no connection occupies the
/// thread for long.
const REQUESTS_MAX: u32 = 100;

/// A socket whose sending side can be closed separately.
pub(super) trait AdminSocket: Read + Write {
    fn close_output(&mut self) -> io::Result<()>;
}

impl AdminSocket for mio::net::TcpStream {
    fn close_output(&mut self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

/// The answers to requests.
pub(super) trait RequestAnswers {
    /// Returns the refusal of a request whose body has not arrived. Returns `None` if the answer
    /// depends on the body.
    fn refuse(&self, head: &HttpRequest) -> Option<HttpResponse>;
    fn answer(&mut self, request: &HttpRequest) -> HttpResponse;
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConnectionFate {
    /// The connection waits until the socket is ready or the deadline has passed.
    Stays,
    Ends,
}

#[derive(Debug, PartialEq, Eq)]
enum ConnectionStage {
    Serving,
    /// Events are sent until the client closes the connection.
    Streaming,
    /// The last response is being sent.
    Closing,
    /// The last response is sent, and further bytes of the client are read and discarded.
    Draining,
}

pub(super) struct AdminConnection<S> {
    pub(super) socket: S,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The number of bytes of the output that have been sent.
    sent: usize,
    stage: ConnectionStage,
    requests: u32,
    drained: usize,
    /// The time when the last response was sent completely, or when the connection was accepted.
    pub(super) since: Instant,
    /// The time at which the connection is closed unless it makes progress.
    pub(super) deadline: Instant,
}

impl<S: AdminSocket> AdminConnection<S> {
    pub(super) fn new(socket: S, now: Instant) -> AdminConnection<S> {
        AdminConnection {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            stage: ConnectionStage::Serving,
            requests: 0,
            drained: 0,
            since: now,
            deadline: now + REQUEST_TIME_MAX,
        }
    }

    /// Reads, answers and sends as far as the socket allows.
    pub(super) fn proceed(&mut self, now: Instant, answers: &mut dyn RequestAnswers) -> ConnectionFate {
        loop {
            let step = match self.stage {
                _ if self.sent < self.output.len() => self.send(now),
                ConnectionStage::Serving => self.receive(now, answers),
                ConnectionStage::Streaming => self.await_end(),
                ConnectionStage::Closing => self.close_output(now),
                ConnectionStage::Draining => self.drain(),
            };
            match step {
                Ok(true) => {}
                Ok(false) => return ConnectionFate::Ends,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ConnectionFate::Stays,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return ConnectionFate::Ends,
            }
        }
    }

    fn send(&mut self, now: Instant) -> io::Result<bool> {
        let len = self.socket.write(&self.output[self.sent..])?;
        self.sent += len;
        if self.sent == self.output.len() {
            (self.output, self.sent) = (Vec::new(), 0);
            self.since = now;
            if self.stage == ConnectionStage::Streaming {
                self.deadline = now + IDLE;
                return Ok(true);
            }
            // The input after a request is the beginning of the next request, or a complete one.
            self.deadline = now + if self.input.is_empty() { IDLE } else { REQUEST_TIME_MAX };
        }
        Ok(len > 0)
    }

    fn receive(&mut self, now: Instant, answers: &mut dyn RequestAnswers) -> io::Result<bool> {
        if !self.input.is_empty() {
            match parse(&self.input) {
                ParsedRequest::Partial => {}
                // A client that may not send the request makes the server keep no body.
                ParsedRequest::Head(head) => {
                    if let Some(refusal) = answers.refuse(&head) {
                        self.respond(&refusal, false, false, now);
                        return Ok(true);
                    }
                }
                ParsedRequest::Whole(request, len) => {
                    self.requests += 1;
                    let keeps_alive = request.keeps_alive && self.requests < REQUESTS_MAX;
                    self.input.drain(..len);
                    let is_head = request.method == HttpMethod::Head;
                    self.respond(&answers.answer(&request), is_head, keeps_alive, now);
                    return Ok(true);
                }
                ParsedRequest::Refused(status) => {
                    self.respond(&HttpResponse::refusal(status), false, false, now);
                    return Ok(true);
                }
            }
        }
        let begins = self.input.is_empty();
        let mut piece = [0; 2048];
        let room = piece.len().min(REQUEST_BYTES_MAX.saturating_sub(self.input.len()));
        let len = self.socket.read(&mut piece[..room])?;
        self.input.extend_from_slice(&piece[..len]);
        if begins {
            self.deadline = now + REQUEST_TIME_MAX;
        }
        Ok(len > 0)
    }

    fn respond(&mut self, response: &HttpResponse, is_head: bool, keeps_alive: bool, now: Instant) {
        self.output = response.encode(is_head, keeps_alive);
        self.deadline = now + REQUEST_TIME_MAX;
        if response.body == ResponseBody::Events && !is_head {
            self.stage = ConnectionStage::Streaming;
        } else if !keeps_alive {
            self.stage = ConnectionStage::Closing;
            self.input = Vec::new();
        }
    }

    /// Returns true if the connection receives events.
    pub(super) fn is_streaming(&self) -> bool {
        self.stage == ConnectionStage::Streaming
    }

    /// Adds an event to the output, unless the client has not received the last one yet.
    pub(super) fn push_event(&mut self, event: &[u8], now: Instant) {
        if self.output.is_empty() {
            self.output = event.to_vec();
            self.deadline = now + REQUEST_TIME_MAX;
        }
    }

    /// Reads what a client sends that receives events. Only its end has a meaning.
    fn await_end(&mut self) -> io::Result<bool> {
        Ok(self.socket.read(&mut [0; 2048])? > 0)
    }

    fn close_output(&mut self, now: Instant) -> io::Result<bool> {
        self.socket.close_output()?;
        self.stage = ConnectionStage::Draining;
        self.deadline = now + LINGER_TIME;
        Ok(true)
    }

    fn drain(&mut self) -> io::Result<bool> {
        let len = self.socket.read(&mut [0; 2048])?;
        self.drained += len;
        Ok(len > 0 && self.drained < LINGER_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::super::http::HttpStatus;
    use super::*;
    use std::collections::VecDeque;

    /// A socket that returns prepared pieces of input, and accepts a limited number of bytes per
    /// write.
    #[derive(Default)]
    struct ScriptedSocket {
        incoming: VecDeque<Vec<u8>>,
        ended: bool,
        taken: Vec<u8>,
        takes: usize,
        output_closed: bool,
    }

    impl Read for ScriptedSocket {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(piece) = self.incoming.front_mut() else {
                return if self.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
            };
            let len = piece.len().min(buffer.len());
            buffer[..len].copy_from_slice(&piece[..len]);
            piece.drain(..len);
            if piece.is_empty() {
                self.incoming.pop_front();
            }
            Ok(len)
        }
    }

    impl Write for ScriptedSocket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            assert!(!self.output_closed);
            if self.takes == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let len = bytes.len().min(self.takes);
            self.taken.extend_from_slice(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl AdminSocket for ScriptedSocket {
        fn close_output(&mut self) -> io::Result<()> {
            self.output_closed = true;
            Ok(())
        }
    }

    fn script(pieces: &[&[u8]]) -> ScriptedSocket {
        let incoming = pieces.iter().map(|piece| piece.to_vec()).collect();
        ScriptedSocket { incoming, takes: usize::MAX, ..ScriptedSocket::default() }
    }

    /// Answers with the path and the body, or with events, and refuses bodies for `/refused`.
    struct Echo;

    impl RequestAnswers for Echo {
        fn refuse(&self, head: &HttpRequest) -> Option<HttpResponse> {
            (head.path == "/refused").then(|| HttpResponse::text(HttpStatus::Forbidden, "<refused>"))
        }

        fn answer(&mut self, request: &HttpRequest) -> HttpResponse {
            if request.path == "/events" {
                return HttpResponse::events();
            }
            let body = String::from_utf8_lossy(&request.body);
            HttpResponse::text(HttpStatus::Ok, format!("<{}>{body}", request.path))
        }
    }

    fn bodies(taken: &[u8]) -> Vec<String> {
        let text = String::from_utf8(taken.to_vec()).unwrap();
        text.split("HTTP/1.1 ").skip(1).map(|one| one.split_once("\r\n\r\n").unwrap().1.to_string()).collect()
    }

    #[test]
    fn requests_sent_ahead_are_answered_in_order() {
        let now = Instant::now();
        let all = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\nGET /c HT";
        let mut conversation = AdminConnection::new(script(&[all]), now);
        conversation.socket.takes = 7;
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Stays);
        assert_eq!(bodies(&conversation.socket.taken), ["</a>", "</b>"]);
        assert_eq!(conversation.deadline, now + REQUEST_TIME_MAX, "the third has begun");
        conversation.socket.incoming.push_back(b"TP/1.1\r\nHost: x\r\n\r\n".to_vec());
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Stays);
        assert_eq!(bodies(&conversation.socket.taken), ["</a>", "</b>", "</c>"]);
        assert_eq!(conversation.deadline, now + IDLE);
    }

    #[test]
    fn refused_request_is_answered_before_its_body() {
        let now = Instant::now();
        let put = |path: &str| format!("PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n12345");
        let mut refused = AdminConnection::new(script(&[put("/refused").as_bytes()]), now);
        assert_eq!(refused.proceed(now, &mut Echo), ConnectionFate::Stays);
        assert_eq!(bodies(&refused.socket.taken), ["<refused>"]);
        assert!(refused.socket.output_closed && refused.input.is_empty());
        let mut put = AdminConnection::new(script(&[put("/a").as_bytes(), b"6789"]), now);
        assert_eq!(put.proceed(now, &mut Echo), ConnectionFate::Stays);
        assert_eq!(bodies(&put.socket.taken), ["</a>123456789"]);
    }

    #[test]
    fn slow_request_gains_no_time() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(4));
        let mut conversation = AdminConnection::new(script(&[b"GET /a"]), now);
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Stays);
        conversation.socket.incoming.push_back(b" HTTP/1.1\r\n".to_vec());
        assert_eq!(conversation.proceed(later, &mut Echo), ConnectionFate::Stays);
        assert_eq!(conversation.deadline, now + REQUEST_TIME_MAX);
    }

    #[test]
    fn unread_response_gains_no_time() {
        let now = Instant::now();
        let mut conversation = AdminConnection::new(script(&[b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"]), now);
        conversation.socket.takes = 0;
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Stays);
        assert_eq!(conversation.proceed(now + Duration::from_secs(4), &mut Echo), ConnectionFate::Stays);
        assert_eq!(conversation.deadline, now + REQUEST_TIME_MAX);
        assert_eq!(conversation.input.len(), 0);
    }

    #[test]
    fn garbage_is_answered_once_and_then_discarded() {
        let now = Instant::now();
        let flood = vec![b'x'; LINGER_BYTES * 2];
        let mut conversation = AdminConnection::new(script(&[b"set a 0 0 1\r\n1\r\n", &flood]), now);
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Ends);
        assert!(conversation.socket.output_closed);
        let taken = String::from_utf8(conversation.socket.taken).unwrap();
        assert!(taken.starts_with("HTTP/1.1 400 ") || taken.starts_with("HTTP/1.1 505 "), "{taken}");
        assert!(taken.contains("Connection: close\r\n"), "{taken}");
        let left: usize = conversation.socket.incoming.iter().map(Vec::len).sum();
        assert!(left > 0, "not all of it was read");
    }

    #[test]
    fn incomplete_last_request_is_not_answered() {
        let now = Instant::now();
        let mut socket = script(&[b"GET /a HTTP/1.1\r\nHost"]);
        socket.ended = true;
        let mut conversation = AdminConnection::new(socket, now);
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Ends);
        assert_eq!(conversation.socket.taken, b"");
    }

    #[test]
    fn slow_client_misses_events() {
        let now = Instant::now();
        let mut conversation =
            AdminConnection::new(script(&[b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"]), now);
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Stays);
        assert!(conversation.is_streaming());
        let head = conversation.socket.taken.len();
        conversation.push_event(b"data: 1\n\n", now);
        conversation.socket.takes = 0;
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Stays);
        assert_eq!(conversation.deadline, now + REQUEST_TIME_MAX, "a client must read an event");
        conversation.push_event(b"data: 2\n\n", now);
        conversation.socket.takes = usize::MAX;
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Stays);
        conversation.push_event(b"data: 3\n\n", now);
        conversation.socket.ended = true;
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Ends);
        assert_eq!(&conversation.socket.taken[head..], b"data: 1\n\ndata: 3\n\n");
    }

    #[test]
    fn connection_ends_after_its_request_limit() {
        let now = Instant::now();
        let request = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n".repeat(REQUESTS_MAX as usize + 50);
        let mut socket = script(&[&request]);
        socket.ended = true;
        let mut conversation = AdminConnection::new(socket, now);
        assert_eq!(conversation.proceed(now, &mut Echo), ConnectionFate::Ends);
        assert_eq!(bodies(&conversation.socket.taken).len(), REQUESTS_MAX as usize);
        assert!(String::from_utf8_lossy(&conversation.socket.taken).contains("Connection: close"));
    }
}
