//! A connection that speaks TLS: to the worker a stream of plain bytes like any other.
//!
//! rustls is used without its buffers: ciphertext is read into a buffer that all connections of a thread share and
//! decrypted there; what is encrypted leaves from another. A connection keeps only the part of a record that has not
//! come whole, and ciphertext that the socket has not taken. An idle session takes 3.5 KiB
//! (2026-11-21, x86-64, 2000 of them; memcached 1.6.18 with OpenSSL 3.0: 14 KiB).

use super::{ClientCertificates, Tls};
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
/// A peer that has sent so much at once without a byte of data in it means no good.
const BARREN_MAX: usize = 512 << 10;

thread_local! {
    static BUFFERS: RefCell<TlsBuffers> = RefCell::default();
}

/// Buffers of a thread, made when it first meets TLS.
#[derive(Default)]
struct TlsBuffers {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// Pieces on their way into one record.
    gathered: Vec<u8>,
}

impl TlsBuffers {
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
    /// Nothing more may be asked of the session: it and `incoming` need not fit any more.
    failed: bool,
}

impl<S: Read + Write> TlsStream<S> {
    /// The server's side of a connection that has just been accepted. Fails where client certificates are asked for and
    /// there is nothing to check them by.
    pub(crate) fn new(socket: S, tls: &Arc<Tls>, ask: ClientCertificates) -> io::Result<TlsStream<S>> {
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
        let outcome = BUFFERS.with_borrow_mut(|buffers| self.read_through(buffers, buffer));
        if let Err(error) = &outcome {
            self.failed |= !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        }
        outcome
    }

    fn read_through(&mut self, buffers: &mut TlsBuffers, plain: &mut [u8]) -> io::Result<(usize, bool)> {
        buffers.incoming.resize(INCOMING, 0);
        let len_max = INCOMING.min(plain.len());
        let mut barren = 0;
        while barren < BARREN_MAX && self.incoming.len() < len_max {
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
                self.tls.failed(self.established);
                // The alert: it tells the peer what was wrong, if it gets that far.
                self.collect_alert();
                let _ = self.flush();
            }
            let (seen, len) = outcome?;
            self.keep(&buffers.incoming[seen..held])?;
            self.flush_if_possible()?;
            barren += read;
            if len > 0 || self.peer_closed {
                // The end is still to be told.
                return Ok((len, read < room && !(self.peer_closed && len > 0)));
            }
        }
        Err(io::Error::new(ErrorKind::InvalidData, "much has come, and no data in it"))
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

    /// What the session wants to say, an alert mostly, though it takes no more.
    fn collect_alert(&mut self) {
        // What is queued comes before anything that came is looked at, so there need not be anything.
        while self.session.wants_write() {
            let UnbufferedStatus { state, .. } = self.session.process_tls_records(&mut []);
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return };
            if append(&mut self.outgoing, |room| data.encode(room)).is_err() {
                return;
            }
        }
    }

    /// Encrypts into a buffer that grows if it must; returns the length of the ciphertext. `None`: what the session itself
    /// has to say waits in `outgoing`, and has to leave first.
    fn seal(&mut self, plain: &[u8], cipher: &mut Vec<u8>) -> io::Result<Option<usize>> {
        loop {
            // It has seen these bytes, and counts on finding them again.
            let UnbufferedStatus { state, .. } = self.session.process_tls_records(&mut self.incoming);
            match state.map_err(invalid)? {
                ConnectionState::WriteTraffic(_) if !self.outgoing.is_empty() => return Ok(None),
                ConnectionState::WriteTraffic(mut traffic) => match traffic.encrypt(plain, cipher) {
                    Ok(len) => return Ok(Some(len)),
                    Err(EncryptError::InsufficientSize(size)) => cipher.resize(size.required_size, 0),
                    Err(error) => return Err(invalid(error)),
                },
                ConnectionState::EncodeTlsData(mut data) => {
                    append(&mut self.outgoing, |room| data.encode(room))?;
                }
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed => self.peer_closed = true,
                _ => return Err(ErrorKind::NotConnected.into()),
            }
        }
    }

    fn write_through(&mut self, plain: &[u8], outgoing: &mut Vec<u8>) -> io::Result<usize> {
        if !self.established {
            return Err(ErrorKind::NotConnected.into());
        }
        let len = match self.seal(plain, outgoing)? {
            Some(len) => len,
            None => {
                self.flush()?;
                self.seal(plain, outgoing)?.ok_or(ErrorKind::NotConnected)?
            }
        };
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
            let TlsBuffers { outgoing, gathered, .. } = buffers;
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
                self.session.process_tls_records(&mut self.incoming).state
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

#[cfg(test)]
mod tests {
    use super::super::{Tls, TlsOptions};
    use super::*;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::ring;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::version::{TLS12, TLS13};
    use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};
    use std::path::Path;

    /// A socket in memory: what has come, and what has been sent.
    #[derive(Default)]
    struct MemorySocket {
        incoming: Vec<u8>,
        /// How much a read takes at most.
        piece: usize,
        outgoing: Vec<u8>,
        /// How many bytes writes take before they block.
        room: usize,
    }

    impl Read for MemorySocket {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.incoming.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let len = self.incoming.len().min(self.piece).min(buffer.len());
            buffer[..len].copy_from_slice(&self.incoming[..len]);
            self.incoming.drain(..len);
            Ok(len)
        }
    }

    impl Write for MemorySocket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.room);
            if len == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= len;
            self.outgoing.extend_from_slice(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Who is asked here believes everything.
    #[derive(Debug)]
    struct AcceptAll;

    impl ServerCertVerifier for AcceptAll {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            ring::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }

    fn tls(folder: &Path) -> Arc<Tls> {
        let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
        let chain = folder.join("server.pem");
        std::fs::write(&chain, signed.cert.pem() + &signed.signing_key.serialize_pem()).unwrap();
        let options = TlsOptions { ca: Some(chain.clone()), chain, ..TlsOptions::default() };
        Arc::new(Tls::load(&options).unwrap())
    }

    fn client(random: &mut fastrand::Rng) -> ClientConnection {
        let version = if random.bool() { &TLS12 } else { &TLS13 };
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAll))
            .with_no_client_auth();
        config.max_fragment_size = random.bool().then_some(32 + random.usize(..64));
        ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap()
    }

    fn spoil(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
        let at = random.usize(..bytes.len());
        match random.u8(..6) {
            0 => bytes[at] ^= 1 << random.u8(..8),
            1 => bytes[at] = random.u8(..),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.u8(..)),
            4 => bytes.extend_from_within(at..),
            _ => drop(bytes.drain(at..(at + 1 + random.usize(..50)).min(bytes.len()))),
        }
    }

    /// Lets both talk, spoiling what the client sends with this chance; returns what the server understood and the client
    /// got back, until one of them has had enough.
    fn converse(tls: &Arc<Tls>, chance: f64, random: &mut fastrand::Rng) -> (Vec<u8>, Vec<u8>) {
        let mut client = client(random);
        let wire = MemorySocket { piece: 1 + random.usize(..2_000), ..MemorySocket::default() };
        let ask = [ClientCertificates::Never, ClientCertificates::IfTheyHaveOne, ClientCertificates::Always]
            [random.usize(..if chance > 0.0 { 3 } else { 2 })];
        let mut server = TlsStream::new(wire, tls, ask).unwrap();
        let (mut understood, mut answered, mut to_answer) = (Vec::new(), Vec::new(), 0);
        let mut buffer = vec![0; 64 << 10];
        client.writer().write_all(&[b'q'; 300]).unwrap();
        for round in 0..200 {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            if !sent.is_empty() && random.f64() < chance {
                spoil(&mut sent, random);
            }
            server.socket().incoming.extend(sent);
            server.socket().room += random.usize(..500);
            match server.read_some(&mut buffer) {
                Ok((0, _)) => break,
                Ok((len, _)) => {
                    understood.extend_from_slice(&buffer[..len]);
                    to_answer += len;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            // The same bytes again and again, until they are taken.
            if to_answer > 0 {
                let reply = vec![b'r'; to_answer];
                let (first, second) = reply.split_at(to_answer / 2);
                let outcome = match round % 2 {
                    0 => server.write(&reply),
                    _ => server.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
                };
                match outcome {
                    Ok(written) => to_answer -= written,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
            let received = std::mem::take(&mut server.socket().outgoing);
            let mut received = &received[..];
            while !received.is_empty() {
                client.read_tls(&mut received).unwrap();
                let Ok(state) = client.process_new_packets() else { return (understood, answered) };
                let start = answered.len();
                answered.resize(start + state.plaintext_bytes_to_read(), 0);
                client.reader().read_exact(&mut answered[start..]).unwrap();
            }
            if answered.len() == 300 {
                break;
            }
            if client.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3) && random.u8(..8) == 0 {
                let _ = client.refresh_traffic_keys();
            }
        }
        (understood, answered)
    }

    #[test]
    fn sessions_work_in_pieces_of_any_size() {
        let folder = tempfile::TempDir::new().unwrap();
        let tls = tls(folder.path());
        for seed in 0..100 {
            let (understood, answered) = converse(&tls, 0.0, &mut fastrand::Rng::with_seed(seed));
            assert!(understood == [b'q'; 300] && answered == [b'r'; 300], "seed {seed}");
        }
    }

    #[test]
    fn whatever_a_client_sends_there_is_no_panic_and_nothing_false_is_understood() {
        let folder = tempfile::TempDir::new().unwrap();
        let tls = tls(folder.path());
        for seed in 0..500 {
            let (understood, _) = converse(&tls, 0.3, &mut fastrand::Rng::with_seed(seed));
            assert!(understood.len() <= 300 && understood.iter().all(|&byte| byte == b'q'), "seed {seed}");
        }
    }
}
