//! A connection that a thread of its own has taken over. Reads and writes wait up to a limit, and
//! no longer than the server runs.

use crate::handle::Stopping;
use crate::shared::Shared;
use crate::transport::listener::Stream;
use mio::{Events, Poll, Token};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval of the checks whether the server stops.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Holds a complete record of TLS.
const BUFFER: usize = 20 << 10;

/// A connection with reads and writes that wait.
pub(super) struct ReplicaStream {
    stream: Stream,
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    /// The time limit of each read and write.
    time_max: Duration,
}

impl ReplicaStream {
    pub(super) fn new(
        mut stream: Stream,
        shared: Arc<Shared>,
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

    /// Reads the next bytes, and returns the first of them.
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

    /// Returns true while the server runs.
    pub(super) fn is_running(&self) -> bool {
        self.shared.lifecycle.stopping() == Stopping::No
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
        match self.poll.poll(&mut self.events, Some(ASK_EVERY)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}
