//! A connection that speaks TLS: to the worker a stream of plain bytes like any other.
//!
//! rustls is used without its buffers: ciphertext is read into a buffer that all connections of a thread share and
//! decrypted there; what is encrypted leaves from another. A connection keeps only the part of a record that has not
//! come whole, and ciphertext that the socket has not taken.

use super::{Ask, Tls};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{HandshakeKind, ServerConfig};
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

/// What is read at once: the worker's own buffer has the same size, and plain bytes are fewer than encrypted ones.
const INCOMING: usize = 64 << 10;
/// Plain bytes that are encrypted at once: four records of the largest size.
const CHUNK: usize = 64 << 10;
/// The ciphertext of a chunk: a record adds up to 40 bytes. Grown if need be.
const OUTGOING: usize = CHUNK + 1024;
/// A handshake may keep so much that is not whole. Certificates of clients take a few KiB.
const HANDSHAKE_MAX: usize = 32 << 10;
/// A peer that has sent so many buffers full without a byte of data in them means no good.
const BARREN_MAX: usize = 8;

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Buffers of a thread, made when it first meets TLS.
#[derive(Default)]
struct Buffers {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// Pieces on their way into one record.
    gathered: Vec<u8>,
}

impl Buffers {
    fn outgoing(&mut self) -> &mut Vec<u8> {
        if self.outgoing.is_empty() {
            self.outgoing.resize(OUTGOING, 0);
        }
        &mut self.outgoing
    }
}

/// A connection that speaks TLS over a socket that does not block.
pub(crate) struct TlsStream<S: Read + Write> {
    socket: S,
    session: UnbufferedServerConnection,
    tls: Arc<Tls>,
    /// The beginning of a record that has not come whole.
    incoming: Vec<u8>,
    /// Ciphertext that the socket has not taken.
    outgoing: Vec<u8>,
    /// How many plain bytes of the caller are in `outgoing`, of which it has not been told yet.
    taken: usize,
    established: bool,
    /// The peer has said that it sends no more.
    peer_closed: bool,
    failed: bool,
}

/// What rustls says after it has seen all that came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It needs more to go on with the handshake.
    Handshake,
    /// Plain bytes may be sent.
    Established,
    Closed,
}

impl<S: Read + Write> TlsStream<S> {
    /// The server's side of a connection that has just been accepted. Fails where client certificates are asked for and
    /// there is nothing to check them by.
    pub(crate) fn new(socket: S, tls: &Arc<Tls>, ask: Ask) -> io::Result<TlsStream<S>> {
        let config: Arc<ServerConfig> = tls.config(ask).ok_or(ErrorKind::InvalidInput)?;
        let session = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        Ok(TlsStream {
            socket,
            session,
            tls: Arc::clone(tls),
            incoming: Vec::new(),
            outgoing: Vec::new(),
            taken: 0,
            established: false,
            peer_closed: false,
            failed: false,
        })
    }

    pub(crate) fn socket(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Bytes kept of a record that is not whole.
    pub(crate) fn partial_len(&self) -> usize {
        self.incoming.capacity()
    }

    /// Bytes kept because the socket has not taken them.
    pub(crate) fn unsent_len(&self) -> usize {
        self.outgoing.capacity()
    }

    /// Reads what has come; returns how many plain bytes that was, and whether there is no more for now. None, without an
    /// error, is the end. Goes on with the handshake meanwhile.
    pub(crate) fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        if self.peer_closed {
            return Ok((0, true));
        }
        if self.taken == 0 {
            self.flush_if_possible()?;
        }
        BUFFERS.with_borrow_mut(|buffers| self.read_through(buffers, buffer))
    }

    fn read_through(&mut self, buffers: &mut Buffers, plain: &mut [u8]) -> io::Result<(usize, bool)> {
        buffers.incoming.resize(INCOMING, 0);
        let len_max = INCOMING.min(plain.len());
        if self.incoming.len() >= len_max {
            return Err(io::Error::new(ErrorKind::InvalidData, "a message does not end"));
        }
        for _ in 0..BARREN_MAX {
            let (start, rest) = buffers.incoming[..len_max].split_at_mut(self.incoming.len());
            start.copy_from_slice(&self.incoming);
            let room = rest.len();
            let read = self.socket.read(rest)?;
            if read == 0 {
                return Ok((0, true));
            }
            let held = self.incoming.len() + read;
            let outcome = self.process(&mut buffers.incoming[..held], plain);
            if outcome.is_err() {
                self.failed = true;
                self.tls.failed(self.established);
                // The alert: it tells the peer what was wrong, if it gets that far.
                self.collect_alert();
            }
            self.flush_if_possible()?;
            let (seen, len) = outcome?;
            self.keep(&buffers.incoming[seen..held])?;
            if len > 0 || self.peer_closed {
                // The end is still to be told.
                return Ok((len, read < room && !(self.peer_closed && len > 0)));
            }
        }
        Err(io::Error::new(ErrorKind::InvalidData, "much ciphertext without any data"))
    }

    /// Hands ciphertext to rustls; returns how much of it is done with, and how many plain bytes it held.
    fn process(&mut self, cipher: &mut [u8], plain: &mut [u8]) -> io::Result<(usize, usize)> {
        let (mut seen, mut len) = (0, 0);
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.session.process_tls_records(&mut cipher[seen..]);
            let done = match state.map_err(invalid)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        // Never longer than its ciphertext, which was read into no more room than this.
                        let room = plain.get_mut(len..len + record.payload.len());
                        room.ok_or(ErrorKind::InvalidData)?.copy_from_slice(record.payload);
                        len += record.payload.len();
                        discard += record.discard;
                    }
                    false
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    append(&mut self.outgoing, |room| data.encode(room))?;
                    false
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    false
                }
                ConnectionState::PeerClosed => {
                    self.peer_closed = true;
                    true
                }
                ConnectionState::WriteTraffic(_) => {
                    self.on_established();
                    true
                }
                ConnectionState::BlockedHandshake => true,
                // Nothing is accepted before the handshake, so there is no early data.
                _ => {
                    self.peer_closed = true;
                    true
                }
            };
            seen += discard;
            if done {
                return Ok((seen, len));
            }
        }
    }

    fn on_established(&mut self) {
        if !self.established {
            self.established = true;
            self.tls.established(self.session.handshake_kind() == Some(HandshakeKind::Resumed));
        }
    }

    /// Keeps ciphertext until the rest of it comes.
    fn keep(&mut self, cipher: &[u8]) -> io::Result<()> {
        if !self.established && cipher.len() > HANDSHAKE_MAX {
            self.tls.failed(false);
            return Err(io::Error::new(ErrorKind::InvalidData, "the handshake is too long"));
        }
        if cipher.is_empty() {
            self.incoming = Vec::new();
        } else {
            self.incoming.clear();
            self.incoming.extend_from_slice(cipher);
        }
        Ok(())
    }

    fn collect_alert(&mut self) {
        while let Ok(ConnectionState::EncodeTlsData(mut data)) =
            self.session.process_tls_records(&mut []).state
        {
            if append(&mut self.outgoing, |room| data.encode(room)).is_err() {
                return;
            }
        }
    }

    /// Whether plain bytes may be sent. What the session itself has to send goes to `outgoing`.
    fn progress(&mut self) -> io::Result<Progress> {
        loop {
            match self.session.process_tls_records(&mut []).state.map_err(invalid)? {
                ConnectionState::EncodeTlsData(mut data) => {
                    append(&mut self.outgoing, |room| data.encode(room))?
                }
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::WriteTraffic(_) => return Ok(Progress::Established),
                ConnectionState::BlockedHandshake => return Ok(Progress::Handshake),
                ConnectionState::PeerClosed => self.peer_closed = true,
                _ => return Ok(Progress::Closed),
            }
        }
    }

    /// Encrypts into the thread's buffer; returns the length of the ciphertext.
    fn encrypt(&mut self, plain: &[u8], outgoing: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            let state = self.session.process_tls_records(&mut []).state.map_err(invalid)?;
            let ConnectionState::WriteTraffic(mut traffic) = state else {
                return Err(ErrorKind::NotConnected.into());
            };
            match traffic.encrypt(plain, outgoing) {
                Ok(len) => return Ok(len),
                Err(EncryptError::InsufficientSize(size)) => outgoing.resize(size.required_size, 0),
                Err(error) => return Err(invalid(error)),
            }
        }
    }

    fn write_through(&mut self, plain: &[u8], outgoing: &mut Vec<u8>) -> io::Result<usize> {
        if self.progress()? != Progress::Established {
            return Err(ErrorKind::NotConnected.into());
        }
        // What the session has to say comes first; the socket has nearly always room for it.
        if !self.outgoing.is_empty() {
            self.flush()?;
        }
        let len = self.encrypt(plain, outgoing)?;
        let mut sent = 0;
        while sent < len {
            match self.socket.write(&outgoing[sent..len]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Encrypted once is encrypted for good: it has to leave in this form, and until it has left the
                    // caller keeps its bytes and asks again, as it does where the socket itself takes nothing.
                    self.outgoing = outgoing[sent..len].to_vec();
                    self.taken = plain.len();
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(plain.len())
    }

    /// Sends what is unsent, and returns what the caller is to be told of it.
    fn finish_before(&mut self) -> io::Result<Option<usize>> {
        self.flush()?;
        let taken = std::mem::take(&mut self.taken);
        Ok((taken > 0).then_some(taken))
    }

    /// Sends what is unsent as far as the socket takes it.
    fn flush_if_possible(&mut self) -> io::Result<()> {
        match self.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            outcome => outcome,
        }
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    /// Takes up to a chunk. Where the socket does not take all of it, that is `WouldBlock`, and the next call must bring
    /// the same bytes again.
    fn write(&mut self, plain: &[u8]) -> io::Result<usize> {
        if !self.outgoing.is_empty()
            && let Some(taken) = self.finish_before()?
        {
            return Ok(taken);
        }
        let plain = &plain[..plain.len().min(CHUNK)];
        BUFFERS.with_borrow_mut(|buffers| self.write_through(plain, buffers.outgoing()))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.outgoing.is_empty()
            && let Some(taken) = self.finish_before()?
        {
            return Ok(taken);
        }
        BUFFERS.with_borrow_mut(|buffers| {
            buffers.outgoing();
            let Buffers { outgoing, gathered, .. } = buffers;
            if let Some(first) = pieces.first().filter(|first| first.len() >= CHUNK) {
                return self.write_through(&first[..CHUNK], outgoing);
            }
            gathered.clear();
            for piece in pieces {
                let room = CHUNK - gathered.len();
                gathered.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            self.write_through(gathered, outgoing)
        })
    }

    /// Sends what is unsent; `WouldBlock` if the socket does not take all of it.
    fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        let outcome = loop {
            if sent == self.outgoing.len() {
                break Ok(());
            }
            match self.socket.write(&self.outgoing[sent..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        if sent == self.outgoing.len() {
            self.outgoing = Vec::new();
        } else {
            self.outgoing.drain(..sent);
        }
        outcome
    }
}

impl<S: Read + Write> Drop for TlsStream<S> {
    /// Says goodbye, so that the peer can tell the end from a cut; nobody waits for it to get through.
    fn drop(&mut self) {
        if !self.established || self.failed || !self.outgoing.is_empty() {
            return;
        }
        let _ = BUFFERS.try_with(|buffers| {
            let Ok(mut buffers) = buffers.try_borrow_mut() else { return };
            let outgoing = buffers.outgoing();
            if let Ok(ConnectionState::WriteTraffic(mut traffic)) =
                self.session.process_tls_records(&mut []).state
                && let Ok(len) = traffic.queue_close_notify(outgoing)
            {
                let _ = self.socket.write(&outgoing[..len]);
            }
        });
    }
}

/// Puts a message behind what is unsent.
fn append(
    to: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> io::Result<()> {
    let start = to.len();
    let mut room = 4 << 10;
    loop {
        to.resize(start + room, 0);
        match encode(&mut to[start..]) {
            Ok(len) => {
                to.truncate(start + len);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(size)) => room = size.required_size,
            Err(error) => {
                to.truncate(start);
                return Err(invalid(error));
            }
        }
    }
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
