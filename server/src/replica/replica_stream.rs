//! A connection that a thread of its own has taken over: reads and writes that wait, but never longer than they may, nor when
//! the server stops.

use crate::handle::Stopping;
use crate::shared::Shared;
use crate::transport::listener::Stream;
use mio::{Events, Poll, Token};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// It is asked so often whether the server stops.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// TLS gives whole records.
const BUFFER: usize = 20 << 10;

/// See the module.
pub(super) struct ReplicaStream {
    stream: Stream,
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    /// Nothing may take longer.
    patience: Duration,
}

impl ReplicaStream {
    pub(super) fn new(
        mut stream: Stream,
        shared: Arc<Shared>,
        patience: Duration,
    ) -> io::Result<ReplicaStream> {
        let poll = Poll::new()?;
        stream.register(poll.registry(), Token(0))?;
        let (events, buffer) = (Events::with_capacity(8), vec![0; BUFFER]);
        Ok(ReplicaStream { stream, poll, events, buffer, shared, patience })
    }

    /// Writes all of it.
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

    /// Reads what comes next, of which the first byte counts.
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

    /// Whether the server goes on.
    pub(super) fn goes_on(&self) -> bool {
        self.shared.lifecycle.stopping() == Stopping::No
    }

    /// Waits until there may be more to do. Fails when that has taken too long since then, or the server stops.
    fn wait(&mut self, since: Instant) -> io::Result<()> {
        if !self.goes_on() {
            return Err(io::Error::other("the server stops"));
        }
        if since.elapsed() >= self.patience {
            return Err(ErrorKind::TimedOut.into());
        }
        match self.poll.poll(&mut self.events, Some(ASK_EVERY)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}
