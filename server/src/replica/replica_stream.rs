//! Defines a connection that a thread has taken over from its worker. Reads and writes wait for a
//! limited time, and end when the server stops.

use crate::handle::StopStage;
use crate::shared::SharedState;
use crate::transport::listener::ClientStream;
use mio::{Events, Poll, Token};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which a waiting thread checks whether the server stops.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The length of the read buffer. A complete TLS record fits into the buffer.
const BUFFER: usize = 20 << 10;
/// The maximum number of bytes that wait to be processed while this side sends.
const RECEIVED_MAX: usize = 1 << 20;

/// A connection whose reads and writes wait.
pub(super) struct ReplicaStream {
    stream: ClientStream,
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
    /// Bytes that arrived while this side was sending.
    received: Vec<u8>,
    shared: Arc<SharedState>,
    /// The time limit of each read and write.
    time_max: Duration,
}

impl ReplicaStream {
    pub(super) fn new(
        mut stream: ClientStream,
        shared: Arc<SharedState>,
        time_max: Duration,
    ) -> io::Result<ReplicaStream> {
        let poll = Poll::new()?;
        stream.register(poll.registry(), Token(0))?;
        let (events, buffer, received) = (Events::with_capacity(8), vec![0; BUFFER], Vec::new());
        Ok(ReplicaStream { stream, poll, events, buffer, received, shared, time_max })
    }

    /// Writes all bytes. While the other side takes none, its own bytes are read: it may be waiting
    /// for that. Fails if the server stops: there may be many more bytes to send.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.refuse_if_stopping()?;
        let mut since = Instant::now();
        while !bytes.is_empty() || self.stream.kept_lens().1 > 0 {
            let outcome = match bytes.is_empty() {
                true => self.stream.flush().map(|()| 0),
                false => self.stream.write(bytes),
            };
            match outcome {
                Ok(0) if !bytes.is_empty() => return Err(ErrorKind::WriteZero.into()),
                Ok(0) if self.stream.kept_lens().1 > 0 => self.wait_to_send(since)?,
                Ok(len) => {
                    bytes = &bytes[len..];
                    since = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait_to_send(since)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the next bytes. Returns the first of them.
    pub(super) fn receive(&mut self) -> io::Result<u8> {
        if let Some(&first) = self.received.first() {
            self.received.clear();
            return Ok(first);
        }
        let since = Instant::now();
        loop {
            match self.stream.read_some(&mut self.buffer) {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(self.buffer[0]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(since)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Appends the bytes that have arrived, or that arrive within this time. Fails if `into` would
    /// become too long.
    pub(super) fn receive_within(&mut self, time: Duration, into: &mut Vec<u8>) -> io::Result<()> {
        self.read_arrived()?;
        if self.received.is_empty() && !time.is_zero() {
            self.poll_for(time)?;
            self.read_arrived()?;
        }
        into.append(&mut self.received);
        match into.len() > RECEIVED_MAX {
            true => Err(too_much()),
            false => Ok(()),
        }
    }

    /// Reads all bytes that have arrived into `received`.
    fn read_arrived(&mut self) -> io::Result<()> {
        loop {
            match self.stream.read_some(&mut self.buffer) {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((len, _)) if self.received.len() + len <= RECEIVED_MAX => {
                    self.received.extend_from_slice(&self.buffer[..len]);
                }
                Ok(_) => return Err(too_much()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true while the server runs.
    pub(super) fn is_running(&self) -> bool {
        self.shared.lifecycle.stopping() == StopStage::No
    }

    fn refuse_if_stopping(&self) -> io::Result<()> {
        match self.is_running() {
            true => Ok(()),
            false => Err(io::Error::other("the server is stopping")),
        }
    }

    /// Waits as `wait` does, and reads what has arrived.
    fn wait_to_send(&mut self, since: Instant) -> io::Result<()> {
        self.wait(since)?;
        self.read_arrived()
    }

    /// Waits until the stream may be ready. Fails if the time limit since `since` has passed, or
    /// the server stops.
    fn wait(&mut self, since: Instant) -> io::Result<()> {
        self.refuse_if_stopping()?;
        if since.elapsed() >= self.time_max {
            return Err(ErrorKind::TimedOut.into());
        }
        self.poll_for(CHECK_INTERVAL)
    }

    fn poll_for(&mut self, time: Duration) -> io::Result<()> {
        match self.poll.poll(&mut self.events, Some(time)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

fn too_much() -> io::Error {
    io::Error::other("the replica sends too much")
}
