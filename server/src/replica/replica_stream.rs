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

/// A connection whose reads and writes wait.
pub(super) struct ReplicaStream {
    stream: ClientStream,
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
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
        let (events, buffer) = (Events::with_capacity(8), vec![0; BUFFER]);
        Ok(ReplicaStream { stream, poll, events, buffer, shared, time_max })
    }

    /// Writes all bytes.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut since = Instant::now();
        while !bytes.is_empty() || self.stream.kept_lens().1 > 0 {
            let outcome = match bytes.is_empty() {
                true => self.stream.flush().map(|()| 0),
                false => self.stream.write(bytes),
            };
            match outcome {
                Ok(0) if !bytes.is_empty() => return Err(ErrorKind::WriteZero.into()),
                Ok(0) if self.stream.kept_lens().1 > 0 => self.wait(since)?,
                Ok(len) => {
                    bytes = &bytes[len..];
                    since = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(since)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the next bytes. Returns the first of them.
    pub(super) fn receive(&mut self) -> io::Result<u8> {
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

    /// Appends the bytes that have arrived, or that arrive within this time.
    pub(super) fn receive_within(&mut self, time: Duration, into: &mut Vec<u8>) -> io::Result<()> {
        let mut has_waited = false;
        loop {
            match self.stream.read_some(&mut self.buffer) {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((len, _)) => {
                    into.extend_from_slice(&self.buffer[..len]);
                    has_waited = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && has_waited => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    has_waited = true;
                    match self.poll.poll(&mut self.events, Some(time)) {
                        Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                        _ => {}
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true while the server runs.
    pub(super) fn is_running(&self) -> bool {
        self.shared.lifecycle.stopping() == StopStage::No
    }

    /// Waits until the stream may be ready. Fails if the time limit since `since` has passed, or
    /// the server stops.
    fn wait(&mut self, since: Instant) -> io::Result<()> {
        if !self.is_running() {
            return Err(io::Error::other("the server is stopping"));
        }
        if since.elapsed() >= self.time_max {
            return Err(ErrorKind::TimedOut.into());
        }
        match self.poll.poll(&mut self.events, Some(CHECK_INTERVAL)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}
