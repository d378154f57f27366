//! Defines a connection to a server, with the requests that wait for its replies.

use super::reply_frame::{ReplyKind, ReplyPart, next_part};
use super::server_socket::ServerSocket;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

/// A buffer with a larger capacity is freed when it is empty.
const BUFFER_KEPT: usize = 64 << 10;

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
}

impl LossReason {
    /// Returns the words for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            LossReason::Refused => "refused",
            LossReason::Unreachable => "unreachable",
            LossReason::NameNotFound => "name not found",
            LossReason::TimedOut => "timed out",
            LossReason::Closed => "closed",
            LossReason::NotUnderstood => "not understood",
        }
    }

    /// Returns the reason that an error shows.
    pub fn of(error: &std::io::Error) -> LossReason {
        match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => LossReason::Refused,
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                LossReason::Unreachable
            }
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
    /// The bytes of the request. Empty if a part of its reply has arrived.
    pub bytes: Vec<u8>,
}

/// A connection to a server. `T` identifies the requests of its user.
#[derive(Debug)]
pub struct ServerConnection<T> {
    socket: ServerSocket,
    is_connected: bool,
    /// The bytes of requests. Those of answered requests are removed once they are many.
    output: Vec<u8>,
    /// The number of bytes of `output` that are sent.
    sent: usize,
    /// The number of bytes that were removed from `output`.
    removed: u64,
    /// The position after the last answered request.
    answered: u64,
    /// The bytes of an incomplete reply.
    input: Vec<u8>,
    waiting: VecDeque<WaitingRequest<T>>,
    /// True if a part of the reply to the first request has arrived.
    is_begun: bool,
    /// The number of bytes of the first request up to the last key whose value has arrived.
    compared: usize,
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

impl<T> ServerConnection<T> {
    /// Creates a connection from a socket that is connecting.
    pub fn new(socket: ServerSocket, now: Instant) -> ServerConnection<T> {
        ServerConnection {
            socket,
            is_connected: false,
            output: Vec::new(),
            sent: 0,
            removed: 0,
            answered: 0,
            input: Vec::new(),
            waiting: VecDeque::new(),
            is_begun: false,
            compared: 0,
            active_at: now,
        }
    }

    /// Returns true if the server has accepted the connection.
    pub fn is_connected(&self) -> bool {
        self.is_connected
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

    /// Adds a request, whose bytes `put` writes. They are sent by the next [`flush`](Self::flush).
    /// Its reply is due at `due`.
    #[inline]
    pub fn add(&mut self, kind: ReplyKind, due: Instant, request: T, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.output);
        let end = self.removed + self.output.len() as u64;
        self.waiting.push_back(WaitingRequest { kind, due, request, end });
    }

    /// Returns the time at which the first reply is overdue. A server that is sending has the same
    /// time again after each part.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.due)
    }

    /// Returns the last time at which bytes arrived.
    pub fn active_at(&self) -> Instant {
        self.active_at
    }

    /// Sends as many bytes as the socket accepts.
    pub fn flush(&mut self) -> Result<(), LossReason> {
        if !self.is_connected {
            match self.socket.is_connected() {
                Ok(false) => return Ok(()),
                Ok(true) => self.is_connected = true,
                Err(error) => return Err(LossReason::of(&error)),
            }
            // Without it, small requests only wait longer.
            let _ = self.socket.set_nodelay();
        }
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(LossReason::Closed),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LossReason::of(&error)),
            }
        }
        Ok(())
    }

    /// Reads until the socket has no more bytes, and passes the parts of replies to `see`. `buffer`
    /// is memory for one read. `has_ended` is true if an event has reported the end of the stream.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        now: Instant,
        has_ended: bool,
        mut see: impl FnMut(&T, ReplyPart<'_>),
    ) -> Result<(), LossReason> {
        loop {
            let len = match self.socket.read(buffer) {
                Ok(0) => return Err(LossReason::Closed),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(LossReason::of(&error)),
            };
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
            if len < buffer.len() && !has_ended {
                return Ok(());
            }
        }
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
            let part = next_part(&input[at..], waiting.kind).map_err(|_| LossReason::NotUnderstood)?;
            let Some(part) = part else { break };
            if waiting.kind == ReplyKind::Values
                && let Some(key) = part.key
            {
                let range = (self.answered - self.removed) as usize..(waiting.end - self.removed) as usize;
                let request = &self.output[range];
                self.compared = end_of_word(request, self.compared, key).ok_or(LossReason::NotUnderstood)?;
            }
            see(&waiting.request, part);
            at += part.bytes.len();
            self.is_begun = !part.is_last;
            if part.is_last {
                self.compared = 0;
            }
            if part.is_last
                && let Some(answered) = self.waiting.pop_front()
            {
                self.answered = answered.end;
                self.drop_answered();
            }
        }
        Ok(at)
    }

    /// Removes the bytes of answered requests once they are many.
    fn drop_answered(&mut self) {
        // A reply to a request that is not sent yet is an error of the server.
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
    pub fn lose(self) -> Vec<LostRequest<T>> {
        let mut start = self.answered;
        let mut is_begun = self.is_begun;
        let lost = |WaitingRequest { kind, request, end, .. }| {
            let range = (start - self.removed) as usize..(end - self.removed) as usize;
            start = end;
            let bytes = if std::mem::take(&mut is_begun) { Vec::new() } else { self.output[range].to_vec() };
            LostRequest { request, kind, bytes }
        };
        self.waiting.into_iter().map(lost).collect()
    }
}

/// Returns the end of the first word of a request that equals `key` and begins after `start`. A
/// value that no such word asks for belongs to another request.
fn end_of_word(request: &[u8], start: usize, key: &[u8]) -> Option<usize> {
    // The command is no key, nor is the time of `gat`.
    let mut skipped = match start {
        0 if request.starts_with(b"gat") => 2,
        0 => 1,
        _ => 0,
    };
    let mut at = start;
    for word in request.get(start..)?.split(|byte| matches!(byte, b' ' | b'\r' | b'\n')) {
        if skipped == 0 && word == key {
            return Some(at + word.len());
        }
        skipped -= usize::from(skipped > 0 && !word.is_empty());
        at += word.len() + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_belong_to_the_next_keys() {
        let request = b"gat 30 a bc a\r\n";
        let ends = [(0, "a"), (8, "bc"), (11, "a")].map(|(at, key)| end_of_word(request, at, key.as_bytes()));
        assert_eq!(ends, [Some(8), Some(11), Some(13)]);
        for (at, key) in [(8, "b"), (11, "bc"), (13, "a"), (99, "a"), (0, "d")] {
            assert_eq!(end_of_word(request, at, key.as_bytes()), None);
        }
    }
}
