//! Defines a connection to a server, with the requests that wait for its replies.

use super::reply_frame::{LongValue, ReplyKind, ReplyPart, long_value, next_packets, next_part, value_piece};
use super::server_login::{LoginProgress, ServerLogin};
use super::server_socket::ServerSocket;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_protocol::memcached::client::{packet_opaque, set_packet_opaque};

/// A buffer with a larger capacity is freed when it is empty.
const BUFFER_KEPT: usize = 64 << 10;
/// The number of bytes after which a read lets other connections be served.
const READ_MAX: usize = 256 << 10;

/// The reason why a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The server refuses connections.
    Refused,
    /// The server cannot be reached.
    Unreachable,
    /// The name of the server has no address.
    NameNotFound,
    /// The server has not answered in time.
    TimedOut,
    /// The server has closed the connection.
    Closed,
    /// The server has sent bytes that are no reply.
    NotUnderstood,
    /// The server has refused the login.
    LoginFailed,
    /// The server has no valid certificate, or speaks no TLS.
    TlsFailed,
}

impl LossReason {
    /// All reasons, in their order.
    pub const ALL: [LossReason; 8] = [
        LossReason::Refused,
        LossReason::Unreachable,
        LossReason::NameNotFound,
        LossReason::TimedOut,
        LossReason::Closed,
        LossReason::NotUnderstood,
        LossReason::LoginFailed,
        LossReason::TlsFailed,
    ];

    /// Returns the words for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            LossReason::Refused => "refused",
            LossReason::Unreachable => "unreachable",
            LossReason::NameNotFound => "name not found",
            LossReason::TimedOut => "timed out",
            LossReason::Closed => "closed",
            LossReason::NotUnderstood => "not understood",
            LossReason::LoginFailed => "login failed",
            LossReason::TlsFailed => "tls failed",
        }
    }

    /// Returns the reason that an error shows.
    pub fn of(error: &std::io::Error) -> LossReason {
        match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => LossReason::Refused,
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                LossReason::Unreachable
            }
            // Only TLS finds invalid bytes.
            ErrorKind::InvalidData => LossReason::TlsFailed,
            _ => LossReason::Closed,
        }
    }
}

/// A request whose connection was lost before its reply had ended.
#[derive(Debug)]
pub struct LostRequest<T> {
    /// The identity of the request.
    pub request: T,
    /// The form of its reply.
    pub kind: ReplyKind,
    /// The time at which its reply is due.
    pub due: Instant,
    /// The bytes of the request. Empty if a part of its reply has arrived.
    pub bytes: Vec<u8>,
    /// True if bytes of the request may have reached the server.
    pub is_sent: bool,
}

/// A connection to a server. `T` identifies the requests of its user.
#[derive(Debug)]
pub struct ServerConnection<T> {
    socket: ServerSocket,
    /// The steps before the first request. `None` once requests can be sent.
    opening: Option<Box<ConnectionOpening>>,
    /// The bytes of requests. Those of answered requests are removed once they are many.
    output: Vec<u8>,
    /// The number of bytes of `output` that are sent.
    sent: usize,
    /// The position up to which requests are sent, until [`release`](ServerConnection::release).
    held_from: Option<u64>,
    /// The number of bytes that were removed from `output`.
    removed: u64,
    /// The position after the last answered request.
    answered: u64,
    /// The bytes of an incomplete reply.
    input: Vec<u8>,
    waiting: VecDeque<WaitingRequest<T>>,
    /// The opaque of the last packet that was added.
    opaque: u32,
    /// The number of requests, from the first one, that were reported as overdue. The first one may
    /// be among them without a report, if its reply was arriving.
    expired: usize,
    /// True if a part of the reply to the first request has arrived.
    is_begun: bool,
    /// The number of bytes of the value of the first reply that have not arrived.
    value_missing: usize,
    /// True if the rest of the first reply is dropped, because an error has taken its place.
    is_refused: bool,
    /// The keys of the first request whose values have arrived or are missing.
    passed_keys: PassedKeys,
    /// The last time at which bytes arrived.
    active_at: Instant,
}

#[derive(Debug)]
struct WaitingRequest<T> {
    kind: ReplyKind,
    due: Instant,
    request: T,
    /// The position after the bytes of the request, counted over all requests.
    end: u64,
}

/// The steps of a connection before its first request.
#[derive(Debug)]
struct ConnectionOpening {
    step: OpeningStep,
    login: Option<Arc<ServerLogin>>,
    progress: LoginProgress,
    /// The bytes of the login that the socket has not accepted.
    unsent: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum OpeningStep {
    Connect,
    ShakeHands,
    LogIn,
}

impl ConnectionOpening {
    fn new(login: Option<Arc<ServerLogin>>) -> Box<ConnectionOpening> {
        let (step, progress) = (OpeningStep::Connect, LoginProgress::default());
        Box::new(ConnectionOpening { step, login, progress, unsent: Vec::new() })
    }

    /// Continues as far as possible without blocking. Returns true once requests can be sent.
    fn advance(&mut self, socket: &mut ServerSocket) -> Result<bool, LossReason> {
        if let OpeningStep::Connect = self.step {
            if !socket.is_connected().map_err(|error| LossReason::of(&error))? {
                return Ok(false);
            }
            // Without it, small requests only wait longer.
            let _ = socket.set_nodelay();
            self.step = OpeningStep::ShakeHands;
        }
        if let OpeningStep::ShakeHands = self.step {
            if !socket.shake_hands().map_err(|_| LossReason::TlsFailed)? {
                return Ok(false);
            }
            self.step = OpeningStep::LogIn;
            if let Some(login) = &self.login {
                self.progress.begin(login, &mut self.unsent);
            }
        }
        let Some(login) = self.login.clone() else { return Ok(true) };
        loop {
            send(socket, &mut self.unsent)?;
            let mut buffer = [0; 512];
            let len = match socket.read(&mut buffer) {
                Ok(0) => return Err(LossReason::Closed),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(LossReason::of(&error)),
            };
            if self.progress.receive(&login, &buffer[..len], &mut self.unsent)? {
                return Ok(true);
            }
        }
    }
}

/// Sends the bytes that the socket accepts, and removes them.
fn send(socket: &mut ServerSocket, bytes: &mut Vec<u8>) -> Result<(), LossReason> {
    let mut sent = 0;
    let outcome = send_from(socket, bytes, &mut sent);
    bytes.drain(..sent);
    outcome
}

/// Sends the bytes from `sent` on that the socket accepts.
#[inline]
fn send_from(socket: &mut ServerSocket, bytes: &[u8], sent: &mut usize) -> Result<(), LossReason> {
    while *sent < bytes.len() {
        match socket.write(&bytes[*sent..]) {
            Ok(0) => return Err(LossReason::Closed),
            Ok(len) => *sent += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(LossReason::of(&error)),
        }
    }
    match socket.flush() {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(LossReason::of(&error)),
        _ => Ok(()),
    }
}

impl<T> ServerConnection<T> {
    /// Creates a connection from a socket that is connecting. With a login, requests are sent after
    /// it.
    pub fn new(socket: ServerSocket, login: Option<Arc<ServerLogin>>, now: Instant) -> ServerConnection<T> {
        ServerConnection {
            socket,
            opening: Some(ConnectionOpening::new(login)),
            output: Vec::new(),
            sent: 0,
            held_from: None,
            removed: 0,
            answered: 0,
            input: Vec::new(),
            waiting: VecDeque::new(),
            opaque: 0,
            expired: 0,
            is_begun: false,
            value_missing: 0,
            is_refused: false,
            passed_keys: PassedKeys::default(),
            active_at: now,
        }
    }

    /// Returns true if requests can be sent: the server has accepted the connection and the login.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.opening.is_none()
    }

    /// Connects anew, with the same requests, if none of them can have been sent.
    pub fn replace_socket(&mut self, socket: ServerSocket, login: Option<Arc<ServerLogin>>) {
        if !self.is_open() {
            (self.socket, self.opening) = (socket, Some(ConnectionOpening::new(login)));
        }
    }

    /// Returns the number of requests whose replies have not ended.
    pub fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of bytes of requests that are kept: those without a reply, and some that
    /// were answered a short time ago.
    pub fn kept_len(&self) -> usize {
        self.output.len()
    }

    /// Returns the number of bytes of requests that the socket has accepted.
    pub fn sent_len(&self) -> u64 {
        self.removed + self.sent as u64
    }

    /// Adds a request, whose bytes `put` writes. They are sent by the next [`flush`](Self::flush).
    /// Its reply is due at `due`. A packet gets an opaque of this connection, by which its reply is
    /// recognised.
    #[inline]
    pub fn add(&mut self, kind: ReplyKind, due: Instant, request: T, put: impl FnOnce(&mut Vec<u8>)) {
        let start = self.output.len();
        put(&mut self.output);
        if kind == ReplyKind::Binary {
            self.opaque = self.opaque.wrapping_add(1);
            set_packet_opaque(&mut self.output[start..], self.opaque);
        }
        let end = self.removed + self.output.len() as u64;
        self.waiting.push_back(WaitingRequest { kind, due, request, end });
    }

    /// Keeps requests that are added from now on until [`release`](Self::release).
    pub fn hold(&mut self) {
        self.held_from = Some(self.removed + self.output.len() as u64);
    }

    /// Lets the next [`flush`](Self::flush) send the requests that were held.
    pub fn release(&mut self) {
        self.held_from = None;
    }

    /// Returns the time at which the connection is of no use, unless bytes arrive before: the first
    /// reply is overdue, and nothing has arrived for this time.
    pub fn end_of_silence(&self, timeout: Duration) -> Option<Instant> {
        Some(self.waiting.front()?.due.max(self.active_at + timeout))
    }

    /// Returns the time at which the next reply is overdue.
    pub fn next_due(&self) -> Option<Instant> {
        self.waiting.get(self.first_unexpired()).map(|waiting| waiting.due)
    }

    /// Passes the requests whose replies are overdue to `expire`, each of them once. They keep
    /// their place, because their replies may still arrive. Returns their number.
    pub fn expire(&mut self, now: Instant, mut expire: impl FnMut(&mut T)) -> usize {
        let mut count = 0;
        while self.next_due().is_some_and(|due| due <= now) {
            let index = self.first_unexpired();
            expire(&mut self.waiting[index].request);
            (self.expired, count) = (index + 1, count + 1);
        }
        count
    }

    /// Removes the requests for which `is_removed` returns true for the request and the time at
    /// which its reply is due, if none can have been sent because the connection is not open.
    pub fn remove_unsent(&mut self, mut is_removed: impl FnMut(&T, Instant) -> bool) {
        if self.is_open() {
            return;
        }
        let (mut start, mut end) = (0, 0);
        let Self { output, waiting, .. } = self;
        waiting.retain_mut(|waiting| {
            let range = start..waiting.end as usize;
            start = waiting.end as usize;
            if is_removed(&waiting.request, waiting.due) {
                return false;
            }
            output.copy_within(range.clone(), end);
            end += range.len();
            waiting.end = end as u64;
            true
        });
        output.truncate(end);
    }

    /// Returns the time at which the reply to the first request of this kind is due.
    pub fn due_of_first(&self, mut is_meant: impl FnMut(&T) -> bool) -> Option<Instant> {
        self.waiting.iter().find(|waiting| is_meant(&waiting.request)).map(|waiting| waiting.due)
    }

    /// Returns the index of the first request that may be overdue. A reply that is arriving may
    /// take as long as its bytes arrive.
    fn first_unexpired(&self) -> usize {
        let is_arriving = self.is_begun || !self.input.is_empty();
        self.expired.max(usize::from(is_arriving))
    }

    /// Returns the last time at which bytes arrived.
    pub fn active_at(&self) -> Instant {
        self.active_at
    }

    /// Lets the time of silence begin now: the connection was not read before.
    pub fn set_active(&mut self, now: Instant) {
        self.active_at = now;
    }

    /// Sends as many bytes as the socket accepts.
    pub fn flush(&mut self) -> Result<(), LossReason> {
        if let Some(opening) = &mut self.opening {
            if !opening.advance(&mut self.socket)? {
                return Ok(());
            }
            self.opening = None;
        }
        let end = self.held_from.map_or(self.output.len(), |at| (at - self.removed) as usize);
        send_from(&mut self.socket, &self.output[..end], &mut self.sent)
    }

    /// Returns true if all requests are sent, so that the last one can be
    /// [continued](Self::send_on).
    pub fn has_sent_all(&self) -> bool {
        self.is_open() && self.sent == self.output.len()
    }

    /// Sends bytes that continue the last request. They are not kept: after a loss, the request is
    /// incomplete. Returns the number of bytes that the socket accepts. It is 0 if earlier bytes
    /// are not sent yet.
    pub fn send_on(&mut self, bytes: &[u8]) -> Result<usize, LossReason> {
        self.flush()?;
        let mut accepted = 0;
        if self.has_sent_all() {
            send_from(&mut self.socket, bytes, &mut accepted)?;
        }
        Ok(accepted)
    }

    /// Changes the time at which the reply to the last request is due.
    pub fn set_last_due(&mut self, due: Instant) {
        if let Some(last) = self.waiting.back_mut() {
            last.due = due;
        }
    }

    /// Reads, and passes the parts of replies to `see`. `buffer` is memory for one read.
    /// `has_ended` is true if an event has reported the end of the stream. Returns false if more
    /// bytes may have arrived: a server that sends much must not delay others.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        now: Instant,
        has_ended: bool,
        mut see: impl FnMut(&T, ReplyPart<'_>),
    ) -> Result<bool, LossReason> {
        if !self.is_open() {
            self.flush()?;
            if !self.is_open() {
                return Ok(true);
            }
        }
        let mut read = 0;
        while read < READ_MAX {
            let len = match self.socket.read(buffer) {
                Ok(0) => return Err(LossReason::Closed),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(LossReason::of(&error)),
            };
            read += len;
            self.active_at = now;
            if self.input.is_empty() {
                let consumed = self.take_parts(&buffer[..len], &mut see)?;
                self.input.extend_from_slice(&buffer[consumed..len]);
            } else {
                let mut input = std::mem::take(&mut self.input);
                input.extend_from_slice(&buffer[..len]);
                let consumed = self.take_parts(&input, &mut see)?;
                input.drain(..consumed);
                if !input.is_empty() || input.capacity() <= BUFFER_KEPT {
                    self.input = input;
                }
            }
            // No further event reports the end of the stream.
            if len < buffer.len() && !has_ended && self.socket.shows_end() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Passes the complete parts at the start of `input` to `see`. Returns their length.
    fn take_parts(
        &mut self,
        input: &[u8],
        see: &mut impl FnMut(&T, ReplyPart<'_>),
    ) -> Result<usize, LossReason> {
        let mut at = 0;
        while at < input.len() {
            // A server that sends without a request is not understood.
            let waiting = self.waiting.front().ok_or(LossReason::NotUnderstood)?;
            let sent_to = self.removed + self.sent as u64;
            // The second question about the dialect has no bytes of its own.
            if sent_to < waiting.end.min(self.answered + 1) {
                return Err(LossReason::NotUnderstood);
            }
            let rest = &input[at..];
            let part = match self.value_missing {
                0 if waiting.kind == ReplyKind::Binary => {
                    let request = &self.output[(self.answered - self.removed) as usize..];
                    next_packets(rest, packet_opaque(request))
                }
                0 => next_part(rest, waiting.kind),
                missing => value_piece(rest, waiting.kind, missing).map(Some),
            };
            let long = match part.map_err(|_| LossReason::NotUnderstood)? {
                Some(part) => Some(LongValue::Passed(part)),
                None => long_value(rest, waiting.kind).map_err(|_| LossReason::NotUnderstood)?,
            };
            let mut part = match long {
                None => break,
                Some(LongValue::Passed(part)) => part,
                Some(LongValue::Refused { error, missing }) => {
                    if !std::mem::replace(&mut self.is_refused, true) {
                        see(&waiting.request, ReplyPart::error(&error));
                    }
                    (self.value_missing, self.is_begun) = (missing, true);
                    return Ok(input.len());
                }
            };
            let begins_long = part.missing > 0 && !part.continues;
            if part.key.is_some() || begins_long {
                let range = (self.answered - self.removed) as usize..(waiting.end - self.removed) as usize;
                part.request = if begins_long { &self.output[range.clone()] } else { b"" };
                if let Some(key) = part.key {
                    let number = self.passed_keys.pass(&self.output[range], key);
                    part.key_number = number.ok_or(LossReason::NotUnderstood)?;
                }
            }
            if !self.is_refused {
                see(&waiting.request, part);
            }
            at += part.bytes.len();
            (self.value_missing, self.is_begun) = (part.missing, !part.is_last);
            if part.is_last {
                (self.passed_keys, self.is_refused) = (PassedKeys::default(), false);
            }
            if part.is_last
                && let Some(answered) = self.waiting.pop_front()
            {
                self.answered = answered.end;
                self.expired = self.expired.saturating_sub(1);
                self.drop_answered();
            }
        }
        Ok(at)
    }

    /// Removes the bytes of answered requests once they are many.
    fn drop_answered(&mut self) {
        // A server may reply before it has got all of a request.
        let len = ((self.answered - self.removed) as usize).min(self.sent);
        if len == self.output.len() {
            self.output.clear();
            if self.output.capacity() > BUFFER_KEPT {
                self.output = Vec::new();
            }
        } else if len >= BUFFER_KEPT {
            self.output.drain(..len);
        } else {
            return;
        }
        self.removed += len as u64;
        self.sent -= len;
    }

    /// Ends the connection, and returns its requests without a complete reply, in their order.
    pub fn lose(mut self) -> Vec<LostRequest<T>> {
        // An error has taken the place of the first reply.
        if self.is_refused
            && let Some(refused) = self.waiting.pop_front()
        {
            (self.answered, self.is_begun) = (refused.end, false);
        }
        let mut start = self.answered;
        let mut is_begun = self.is_begun;
        let sent_to = self.removed + self.sent as u64;
        let lost = |WaitingRequest { kind, due, request, end }| {
            let is_sent = start < sent_to;
            let range = (start - self.removed) as usize..(end - self.removed) as usize;
            start = end;
            let bytes = if std::mem::take(&mut is_begun) { Vec::new() } else { self.output[range].to_vec() };
            LostRequest { request, kind, due, bytes, is_sent }
        };
        self.waiting.into_iter().map(lost).collect()
    }
}

/// The keys of a request that precede the next value.
#[derive(Clone, Copy, Debug, Default)]
struct PassedKeys {
    /// The position in the request after them. 0 means that the command is not passed either.
    at: usize,
    count: u32,
}

impl PassedKeys {
    /// Passes the keys of `request` up to the first one that equals `key`. Returns its number, or
    /// `None` if no such key is left: a value that no key asks for belongs to another request.
    #[inline]
    fn pass(&mut self, request: &[u8], key: &[u8]) -> Option<u32> {
        if self.at == 0 {
            self.at = request.iter().position(|byte| *byte == b' ')?;
            // The time of `gat` is no key.
            if request.starts_with(b"gat") {
                self.pass_word(request, b"");
            }
        }
        while !self.pass_word(request, key) {
            if matches!(request.get(self.at), None | Some(b'\r' | b'\n')) {
                return None;
            }
            self.count += 1;
        }
        self.count += 1;
        Some(self.count - 1)
    }

    /// Passes a word. Returns true if it equals `key`.
    #[inline]
    fn pass_word(&mut self, request: &[u8], key: &[u8]) -> bool {
        while request.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        let word = request.get(self.at..).unwrap_or_default();
        let ends = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n');
        // Usually the value of each key arrives.
        let is_key = !key.is_empty() && word.starts_with(key) && word.get(key.len()).is_none_or(ends);
        self.at += if is_key { key.len() } else { word.iter().position(ends).unwrap_or(word.len()) };
        is_key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_belong_to_the_next_keys() {
        for (request, values, numbers) in [
            (&b"gat 30 a bc a\r\n"[..], &["a", "bc", "a"][..], &[Some(0), Some(1), Some(2), None][..]),
            (b"gat 30 a bc a\r\n", &["bc", "bc"], &[Some(1), None]),
            (b"gats  30  a  bc \r\n", &["bc"], &[Some(1), None]),
            (b"get 30 3\n", &["3", "30"], &[Some(1), None]),
            (b"gat 30 a\r\n", &["30"], &[None]),
            (b"get a\r\n", &["get"], &[None]),
        ] {
            let mut passed = PassedKeys::default();
            let values = values.iter().copied().chain(["-"]).take(numbers.len());
            let found: Vec<_> = values.map(|key| passed.pass(request, key.as_bytes())).collect();
            assert_eq!(found, numbers, "{}", request.escape_ascii());
        }
    }
}
