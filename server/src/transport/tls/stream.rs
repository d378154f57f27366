//! Defines a TLS connection. For the worker it is a stream of plain bytes, like a TCP connection.
//!
//! rustls is used without buffers of its own. All connections of a thread share two buffers:
//! ciphertext is read into the first and decrypted there, and encrypted bytes are sent from the
//! second. A connection keeps only an incomplete record and the ciphertext that the socket has not
//! accepted. An idle session takes 3.5 KiB (2026-11-21, x86-64, 2000 sessions; memcached 1.6.18
//! with OpenSSL 3.0: 14 KiB).

use super::{ClientCertificates, Tls};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{HandshakeKind, ServerConfig};
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

/// The length of one read. The worker's buffer for plain bytes has the same size, which suffices
/// because ciphertext is longer than its plain text.
const INCOMING: usize = 64 << 10;
/// The number of plain bytes encrypted at once: four records of the largest size.
const CHUNK: usize = 64 << 10;
/// The usual length of the ciphertext of a chunk. A record adds up to 40 bytes to its plain text.
/// The buffer grows if necessary.
const OUTGOING: usize = CHUNK + 1024;
/// The maximum of incomplete bytes during a handshake. Client certificates take a few KiB.
const HANDSHAKE_MAX: usize = 32 << 10;
/// A connection is closed if its peer sends this number of bytes without any application data.
const BARREN_MAX: usize = 512 << 10;

thread_local! {
    static BUFFERS: RefCell<TlsBuffers> = RefCell::default();
}

/// The buffers of a thread, created with its first TLS connection.
#[derive(Default)]
struct TlsBuffers {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// The plain bytes of several pieces, which are encrypted as one record.
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

/// A TLS connection over a nonblocking socket.
pub(crate) struct TlsStream<S: Read + Write> {
    socket: S,
    session: UnbufferedServerConnection,
    tls: Arc<Tls>,
    /// The beginning of an incomplete record.
    incoming: Vec<u8>,
    /// Ciphertext that the socket has not accepted.
    outgoing: Vec<u8>,
    /// The number of plain bytes that were encrypted although the call of `write` failed with
    /// `WouldBlock`. The next call reports them as written. Their ciphertext is in `outgoing`,
    /// unless a read has sent it since.
    taken: usize,
    established: bool,
    /// True if the peer has announced that it sends no more bytes.
    peer_closed: bool,
    /// True if the session must not be used any more, because its state may not match `incoming`.
    failed: bool,
}

impl<S: Read + Write> TlsStream<S> {
    /// Creates the server's side of a new connection. Fails if client certificates are required
    /// without an authority.
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

    /// Returns the number of bytes of an incomplete record that the connection keeps.
    pub(crate) fn partial_len(&self) -> usize {
        self.incoming.capacity()
    }

    /// Returns the number of bytes of ciphertext that the socket has not accepted.
    pub(crate) fn unsent_len(&self) -> usize {
        self.outgoing.capacity()
    }

    /// Reads available bytes, and continues the handshake. Returns the number of plain bytes, and
    /// true if there are no more for now. Zero bytes without an error mean the end of the stream.
    pub(crate) fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        if self.peer_closed {
            return Ok((0, true));
        }
        self.flush_if_possible()?;
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
            let len = self.decrypt(&mut buffers.incoming[..held], plain)?;
            barren += read;
            if len > 0 || self.peer_closed {
                // If bytes were read before the end, the end of the stream is reported by the next
                // call.
                return Ok((len, read < room && !(self.peer_closed && len > 0)));
            }
        }
        Err(io::Error::new(ErrorKind::InvalidData, "peer sends records without data"))
    }

    /// Decrypts ciphertext that was read from the socket elsewhere, and continues the handshake.
    /// Returns the number of plain bytes. `plain` has the length of the worker's buffer.
    pub(crate) fn receive(&mut self, cipher: &[u8], plain: &mut [u8]) -> io::Result<usize> {
        if self.peer_closed {
            return Ok(0);
        }
        self.flush_if_possible()?;
        let outcome = BUFFERS.with_borrow_mut(|buffers| {
            buffers.incoming.resize(INCOMING, 0);
            let kept = self.incoming.len();
            let held = kept + cipher.len();
            let room = buffers.incoming.get_mut(..held).filter(|_| held <= plain.len());
            let room = room.ok_or(ErrorKind::InvalidData)?;
            room[..kept].copy_from_slice(&self.incoming);
            room[kept..].copy_from_slice(cipher);
            self.decrypt(room, plain)
        });
        self.failed |= outcome.is_err();
        outcome
    }

    /// Returns true if the peer has announced that it sends no more bytes.
    pub(crate) fn has_ended(&self) -> bool {
        self.peer_closed
    }

    /// Decrypts the kept ciphertext with that which follows it, and keeps the rest. Returns the
    /// number of plain bytes.
    fn decrypt(&mut self, cipher: &mut [u8], plain: &mut [u8]) -> io::Result<usize> {
        let outcome = self.process(cipher, plain);
        if outcome.is_err() {
            self.tls.failed(self.established);
            // The alert reports the problem to the peer, if it arrives.
            self.collect_alert();
            let _ = self.flush();
        }
        let (seen, len) = outcome?;
        self.keep(&cipher[seen..])?;
        self.flush_if_possible()?;
        Ok(len)
    }

    /// Passes ciphertext to rustls. Returns the number of consumed bytes of ciphertext, and of
    /// plain bytes.
    fn process(&mut self, cipher: &mut [u8], plain: &mut [u8]) -> io::Result<(usize, usize)> {
        let (mut seen, mut len) = (0, 0);
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.session.process_tls_records(&mut cipher[seen..]);
            let done = match state.map_err(invalid)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        // The plain text is never longer than its ciphertext, and `plain` is at
                        // least as long as the buffer into which the ciphertext was read.
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
                // No data is accepted before the handshake, so there is no early data.
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

    /// Keeps the ciphertext of an incomplete record until the rest arrives.
    fn keep(&mut self, cipher: &[u8]) -> io::Result<()> {
        if !self.established && cipher.len() > HANDSHAKE_MAX {
            self.tls.failed(false);
            return Err(io::Error::new(ErrorKind::InvalidData, "handshake is too long"));
        }
        if cipher.is_empty() {
            self.incoming = Vec::new();
        } else {
            self.incoming.clear();
            self.incoming.extend_from_slice(cipher);
        }
        Ok(())
    }

    /// Collects the output of a session that accepts no more input, usually an alert.
    fn collect_alert(&mut self) {
        // The session returns queued output before it reads any input, so the input may be empty.
        while self.session.wants_write() {
            let UnbufferedStatus { state, .. } = self.session.process_tls_records(&mut []);
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return };
            if append(&mut self.outgoing, |room| data.encode(room)).is_err() {
                return;
            }
        }
    }

    /// Encrypts plain bytes into a buffer that grows if necessary. Returns the length of the
    /// ciphertext. Returns `None` if output of the session itself is in `outgoing` and must be sent
    /// first.
    fn seal(&mut self, plain: &[u8], cipher: &mut Vec<u8>) -> io::Result<Option<usize>> {
        loop {
            // The session has already seen these bytes of an incomplete record, and expects them
            // again.
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
                    // The same bytes cannot be encrypted twice, so the rest of this ciphertext must
                    // be sent later. Until then, the socket appears to accept nothing: the caller
                    // keeps its plain bytes and calls again with them.
                    self.outgoing = outgoing[sent..len].to_vec();
                    self.taken = plain.len();
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(plain.len())
    }

    /// Sends pending ciphertext. Returns the number of plain bytes that the caller passed earlier
    /// and that are now reported as written. A read may have sent their ciphertext meanwhile; the
    /// caller passes them again even then, and they must not be encrypted twice.
    fn finish_before(&mut self) -> io::Result<Option<usize>> {
        self.flush()?;
        let taken = std::mem::take(&mut self.taken);
        Ok((taken > 0).then_some(taken))
    }

    /// Sends pending ciphertext as far as the socket accepts it.
    fn flush_if_possible(&mut self) -> io::Result<()> {
        match self.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            outcome => outcome,
        }
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    /// Accepts up to a chunk of plain bytes. If the socket does not accept all ciphertext of the
    /// chunk, fails with `WouldBlock`. The next call must then pass the same bytes again.
    fn write(&mut self, plain: &[u8]) -> io::Result<usize> {
        if let Some(taken) = self.finish_before()? {
            return Ok(taken);
        }
        let plain = &plain[..plain.len().min(CHUNK)];
        BUFFERS.with_borrow_mut(|buffers| self.write_through(plain, buffers.outgoing()))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if let Some(taken) = self.finish_before()? {
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

    /// Sends pending ciphertext. Fails with `WouldBlock` if the socket does not accept all of it.
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
    /// Announces the end of the stream, so that the peer can distinguish it from a broken
    /// connection. Does not wait until the announcement has arrived.
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

/// Appends a message to the pending ciphertext.
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

    /// A socket in memory, with its input and output.
    #[derive(Default)]
    struct MemorySocket {
        incoming: Vec<u8>,
        /// The maximum length of a read.
        piece: usize,
        outgoing: Vec<u8>,
        /// The number of bytes that writes accept before they block.
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

    /// Accepts every certificate.
    #[derive(Debug)]
    struct AcceptAllVerifier;

    impl ServerCertVerifier for AcceptAllVerifier {
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
            .with_custom_certificate_verifier(Arc::new(AcceptAllVerifier))
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

    /// Connects a client and a server, and corrupts each byte of the client with probability
    /// `chance`. Returns the bytes that the server decrypted and those that the client received in
    /// reply, until one of them closes the connection.
    fn converse(tls: &Arc<Tls>, chance: f64, random: &mut fastrand::Rng) -> (Vec<u8>, Vec<u8>) {
        let mut client = client(random);
        let wire = MemorySocket { piece: 1 + random.usize(..2_000), ..MemorySocket::default() };
        let ask = [ClientCertificates::Never, ClientCertificates::IfOffered, ClientCertificates::Always]
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
            // The same bytes are passed again until all are accepted.
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

    /// Returns bytes that differ by their position.
    fn reply(len: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 31) >> 3) as u8).collect()
    }

    /// A read sends the pending ciphertext of an earlier write. The write that is then repeated
    /// used to encrypt the same plain bytes again, so the client received them twice.
    #[test]
    fn read_between_repeated_writes_duplicates_nothing() {
        let folder = tempfile::TempDir::new().unwrap();
        let tls = tls(folder.path());
        for seed in 0..40 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut client = client(&mut random);
            let wire = MemorySocket { piece: usize::MAX, room: usize::MAX, ..MemorySocket::default() };
            let mut server = TlsStream::new(wire, &tls, ClientCertificates::Never).unwrap();
            let (mut buffer, mut received) = (vec![0; 64 << 10], Vec::new());
            let mut take = |server: &mut TlsStream<MemorySocket>, client: &mut ClientConnection| {
                let bytes = std::mem::take(&mut server.socket().outgoing);
                let mut bytes = &bytes[..];
                while !bytes.is_empty() {
                    client.read_tls(&mut bytes).unwrap();
                    let len = client.process_new_packets().unwrap().plaintext_bytes_to_read();
                    let start = received.len();
                    received.resize(start + len, 0);
                    client.reader().read_exact(&mut received[start..]).unwrap();
                }
                received.len()
            };
            let sent = |client: &mut ClientConnection| {
                let mut sent = Vec::new();
                while client.wants_write() {
                    client.write_tls(&mut sent).unwrap();
                }
                sent
            };
            while client.is_handshaking() || !server.established {
                server.socket().incoming.extend(sent(&mut client));
                let outcome = server.read_some(&mut buffer);
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::WouldBlock);
                take(&mut server, &mut client);
            }
            let reply = reply(1 + random.usize(..150_000));
            let (mut written, mut requests) = (0, 0);
            while written < reply.len() {
                server.socket().room = random.usize(..50_000);
                let (first, second) = reply[written..].split_at(random.usize(..=reply.len() - written));
                let outcome = match random.bool() {
                    true => server.write(&reply[written..]),
                    false => server.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
                };
                match outcome {
                    Ok(len) => written += len,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                // Requests that arrive now are decrypted, and the socket accepts bytes again.
                server.socket().room = random.usize(..50_000);
                client.writer().write_all(b"a request").unwrap();
                let request = sent(&mut client);
                requests += match random.bool() {
                    true => server.receive(&request, &mut buffer).unwrap(),
                    false => {
                        server.socket().incoming.extend(request);
                        server.read_some(&mut buffer).unwrap().0
                    }
                };
                take(&mut server, &mut client);
            }
            assert!(requests > 0 && take(&mut server, &mut client) == reply.len(), "seed {seed}");
            assert!(received == reply, "seed {seed}");
        }
    }

    #[test]
    fn garbage_causes_no_panic_and_no_data() {
        let folder = tempfile::TempDir::new().unwrap();
        let tls = tls(folder.path());
        for seed in 0..500 {
            let (understood, _) = converse(&tls, 0.3, &mut fastrand::Rng::with_seed(seed));
            assert!(understood.len() <= 300 && understood.iter().all(|&byte| byte == b'q'), "seed {seed}");
        }
    }
}
