//! Tests sessions over TLS: versions, certificates on both sides, refresh, resumption, and hostile
//! peers.

use crate::admin_api::request;
use crate::running;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use running::{Running, WAIT_MAX, options};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use todana_server::{
    AdminOptions, LimitOptions, ListenOptions, PoolOptions, ProxyOptions, Server, ServerOptions, TlsOptions,
};

/// A folder with a certificate authority and the certificates that it has signed.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(folder.path().join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        let authority = Authority { folder, issuer: Issuer::new(params, key) };
        authority.sign("server");
        authority
    }

    /// Signs a new certificate for a new key.
    fn sign(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_string()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.crt"))).unwrap()
    }

    fn tls(&self) -> TlsOptions {
        let (chain, key) = (self.path("server.crt"), Some(self.path("server.key")));
        TlsOptions { chain, key, resumption: true, session_cache: true, ..TlsOptions::default() }
    }

    /// Returns options that request client certificates.
    fn asking(&self, verify_mode: u8) -> TlsOptions {
        TlsOptions { ca: Some(self.path("ca.crt")), verify_mode, ..self.tls() }
    }

    fn client(&self) -> Client<'_> {
        Client { authority: self, version: None, certificate: None }
    }
}

fn serving(tls: TlsOptions) -> ServerOptions {
    ServerOptions { listen: ListenOptions { tls: Some(tls), ..options().listen }, ..options() }
}

/// A client's choices in TLS.
struct Client<'a> {
    authority: &'a Authority,
    version: Option<&'static SupportedProtocolVersion>,
    /// The authority that signed the client's certificate, and the certificate's name.
    certificate: Option<(&'a Authority, &'static str)>,
}

impl Client<'_> {
    fn config(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.certificate("ca")).unwrap();
        let versions = self.version.map_or(vec![&TLS13, &TLS12], |version| vec![version]);
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.certificate {
            None => builder.with_no_client_auth(),
            Some((authority, name)) => {
                let key = PrivateKeyDer::from_pem_file(authority.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![authority.certificate(name)], key).unwrap()
            }
        };
        config.resumption = Resumption::in_memory_sessions(8);
        Arc::new(config)
    }

    /// Returns a configuration that sends every handshake message in small pieces.
    fn in_pieces(&self) -> Arc<ClientConfig> {
        let mut config = self.config();
        Arc::get_mut(&mut config).unwrap().max_fragment_size = Some(64);
        config
    }

    fn connect(&self, address: SocketAddr) -> Session {
        Session::open(&self.config(), address)
    }
}

/// A socket that records the bytes read from it.
struct Recorded {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Read for Recorded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.stream.read(buffer)?;
        self.read.extend_from_slice(&buffer[..len]);
        Ok(len)
    }
}

impl Write for Recorded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

fn handshake(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(Arc::clone(config), ServerName::try_from("localhost").unwrap()).unwrap()
}

struct Session(StreamOwned<ClientConnection, Recorded>);

impl Session {
    fn open(config: &Arc<ClientConfig>, address: SocketAddr) -> Session {
        let recorded = Recorded { stream: open(address), read: Vec::new() };
        Session(StreamOwned::new(handshake(config), recorded))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn expect(&mut self, expected: &[u8]) {
        let mut answer = vec![0; expected.len()];
        self.0.read_exact(&mut answer).unwrap();
        let shown = |bytes: &[u8]| bytes[..bytes.len().min(200)].escape_ascii().to_string();
        assert!(answer == expected, "{} where {} is expected", shown(&answer), shown(expected));
    }

    fn expect_version(&mut self) {
        self.send(b"version\r\n");
        self.expect(b"VERSION 1.6.45\r\n");
    }

    /// Fails if there is an answer. The alert may be lost, because data sent to a closed socket
    /// resets it.
    fn expect_refusal(mut self) {
        let asked = self.0.write_all(b"version\r\n").and_then(|()| self.0.read_exact(&mut [0; 16]));
        asked.expect_err("no answer");
    }

    fn statistic(&mut self, group: &str, name: &str) -> String {
        self.send(format!("stats{group}\r\n").as_bytes());
        let mut text = Vec::new();
        while !text.ends_with(b"\r\nEND\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        let text = String::from_utf8(text).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        value.unwrap_or_else(|| panic!("there is no {name}")).to_string()
    }

    /// Returns the kind of the handshake. Sends a request first, so that the tickets have been
    /// read.
    fn kind(&mut self) -> HandshakeKind {
        self.expect_version();
        self.0.conn.handshake_kind().unwrap()
    }

    fn server_certificate(&self) -> CertificateDer<'static> {
        self.0.conn.peer_certificates().unwrap()[0].clone().into_owned()
    }
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

#[test]
fn sessions_work_over_both_versions() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    let large: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    for version in VERSIONS {
        let mut session =
            Client { version: Some(version), ..authority.client() }.connect(server.addresses[0]);
        session.send(b"set k 7 0 5\r\nhello\r\nget k\r\n");
        session.expect(b"STORED\r\nVALUE k 7 5\r\nhello\r\nEND\r\n");
        assert_eq!(session.0.conn.protocol_version(), Some(version.version));
        session.send(&[b"set large 0 0 1000000\r\n", &large[..], b"\r\n"].concat());
        session.expect(b"STORED\r\n");
        session.send(b"get large k\r\n");
        let tail = b"\r\nVALUE k 7 5\r\nhello\r\nEND\r\n";
        session.expect(&[b"VALUE large 0 1000000\r\n", &large[..], tail].concat());
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    let mut session = authority.client().connect(server.addresses[0]);
    let (mut requests, mut expected) = (Vec::new(), Vec::new());
    for n in 0..3_000 {
        write!(requests, "set key-{n} {n} 0 5\r\n{n:05}\r\nget key-{n} missing\r\n").unwrap();
        write!(expected, "STORED\r\nVALUE key-{n} {n} 5\r\n{n:05}\r\nEND\r\n").unwrap();
    }
    session.send(&requests);
    session.expect(&expected);
}

#[test]
fn handshake_and_requests_may_come_byte_by_byte() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    for version in VERSIONS {
        let mut session = handshake(&Client { version: Some(version), ..authority.client() }.config());
        let mut stream = open(server.addresses[0]);
        session.writer().write_all(b"set k 0 0 2\r\nab\r\nget k\r\n").unwrap();
        let expected = b"STORED\r\nVALUE k 0 2\r\nab\r\nEND\r\n";
        let mut answer = Vec::new();
        while answer.len() < expected.len() {
            let mut cipher = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut cipher).unwrap();
            }
            for byte in cipher {
                stream.write_all(&[byte]).unwrap();
            }
            session.read_tls(&mut stream).unwrap();
            let plain = session.process_new_packets().unwrap().plaintext_bytes_to_read();
            let start = answer.len();
            answer.resize(start + plain, 0);
            session.reader().read_exact(&mut answer[start..]).unwrap();
        }
        assert_eq!(answer.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }
}

#[test]
fn replies_of_one_turn_leave_in_one_record() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    // TLS 1.2 sends no tickets among the replies.
    let mut session = Client { version: Some(&TLS12), ..authority.client() }.connect(server.addresses[0]);
    session.send(b"set k 0 0 1\r\nv\r\n");
    session.expect(b"STORED\r\n");
    session.0.sock.read.clear();
    session.send(&b"get k\r\n".repeat(10));
    session.expect(&b"VALUE k 0 1\r\nv\r\nEND\r\n".repeat(10));
    let (cipher, mut at, mut kinds) = (&session.0.sock.read, 0, Vec::new());
    while at < cipher.len() {
        kinds.push(cipher[at]);
        at += 5 + usize::from(u16::from_be_bytes([cipher[at + 3], cipher[at + 4]]));
    }
    assert_eq!(kinds, [23], "one record of application data");
}

#[test]
fn a_reader_that_is_slow_gets_everything() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    let value = vec![b'v'; 500_000];
    let mut session = authority.client().connect(server.addresses[0]);
    session.send(&[b"set k 0 0 500000\r\n", &value[..], b"\r\n"].concat());
    session.expect(b"STORED\r\n");
    // This is more than the sockets can buffer, so that the server must stop in the middle of
    // records and continue later.
    const TIMES: usize = 60;
    session.send(&b"get k\r\n".repeat(TIMES));
    session.0.flush().unwrap();
    authority.client().connect(server.addresses[0]).expect_version();
    let reply = [b"VALUE k 0 500000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    for _ in 0..TIMES {
        session.expect(&reply);
    }
    session.expect_version();
}

#[test]
fn the_server_says_goodbye() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    for version in VERSIONS {
        let mut session =
            Client { version: Some(version), ..authority.client() }.connect(server.addresses[0]);
        session.send(b"version\r\nquit\r\n");
        let mut rest = Vec::new();
        // Without the closing alert, this is an error.
        session.0.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"VERSION 1.6.45\r\n");
    }
}

#[test]
fn tls_goodbye_is_answered_and_closed() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    let mut session = authority.client().connect(server.addresses[0]);
    session.expect_version();
    session.0.conn.writer().write_all(b"version\r\n").unwrap();
    session.0.conn.send_close_notify();
    let mut rest = Vec::new();
    session.0.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"VERSION 1.6.45\r\n");
}

#[test]
fn plain_text_and_garbage_are_closed_without_harm() {
    let authority = Authority::new();
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 1, ..serving(authority.tls()).limits },
        ..serving(authority.tls())
    });
    let mut session = authority.client().connect(server.addresses[0]);
    session.expect_version();
    let mut random = fastrand::Rng::with_seed(7);
    let garbage: Vec<u8> = (0..100_000).map(|_| random.u8(..)).collect();
    // This record has the type of a handshake record, but contains no handshake message.
    let wrong_handshake = [&[22, 3, 1, 0, 100][..], &[7; 100]].concat();
    let faulty: [&[u8]; 4] =
        [b"version\r\n", &garbage, &wrong_handshake, b"\x80\x2e\x01\0\x02\0\x15\0\0\0\x10"];
    for bytes in faulty {
        let mut stream = open(server.addresses[0]);
        let _ = stream.write_all(bytes);
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut rest);
        assert!(!rest.windows(7).any(|window| window == b"VERSION"), "{}", rest.escape_ascii());
        session.expect_version();
    }
    assert_eq!(session.statistic("", "ssl_handshake_errors"), faulty.len().to_string());
    assert_eq!(session.statistic("", "ssl_proto_errors"), "0");
    // Garbage after the handshake ends only the session that received it.
    let mut other = authority.client().connect(server.addresses[0]);
    other.expect_version();
    other.0.sock.stream.write_all(&[&[23, 3, 3, 0, 50][..], &[9; 50]].concat()).unwrap();
    let _ = io::copy(&mut other.0.sock.stream, &mut io::sink());
    session.expect_version();
    assert_eq!(session.statistic("", "ssl_proto_errors"), "1");
}

#[test]
fn half_handshake_delays_nobody_and_ends_with_peer() {
    let authority = Authority::new();
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 1, ..serving(authority.tls()).limits },
        ..serving(authority.tls())
    });
    let mut hello = Vec::new();
    handshake(&authority.client().config()).write_tls(&mut hello).unwrap();
    for len in [1, 5, 6, hello.len() / 2, hello.len() - 1] {
        let mut half = open(server.addresses[0]);
        half.write_all(&hello[..len]).unwrap();
        authority.client().connect(server.addresses[0]).expect_version();
        half.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        half.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }
}

#[test]
fn endless_handshake_is_cut_off() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    let mut stream = open(server.addresses[0]);
    // This client hello of 60000 bytes, in records of 1000, is never completed.
    let mut bytes = vec![1, 0, 0xea, 0x60];
    bytes.resize(59_000, 0);
    let records: Vec<u8> = bytes
        .chunks(1000)
        .flat_map(|chunk| [&[22, 3, 1, (chunk.len() >> 8) as u8, chunk.len() as u8], chunk].concat())
        .collect();
    let _ = stream.write_all(&records);
    let _ = io::copy(&mut stream, &mut io::sink());
    authority.client().connect(server.addresses[0]).expect_version();
}

#[test]
fn an_idle_session_keeps_no_buffer() {
    let authority = Authority::new();
    let server = Running::start(serving(authority.tls()));
    let mut sessions: Vec<Session> =
        (0..10).map(|_| authority.client().connect(server.addresses[0])).collect();
    sessions.iter_mut().for_each(Session::expect_version);
    assert_eq!(sessions[0].statistic("", "read_buf_bytes"), "0");
    assert_eq!(sessions[0].statistic("", "response_obj_bytes"), "0");
}

#[test]
fn messages_may_come_in_many_records() {
    let authority = Authority::new();
    authority.sign("client");
    let server = Running::start(serving(authority.asking(2)));
    for version in VERSIONS {
        let certificate = Some((&authority, "client"));
        let config = Client { version: Some(version), certificate, authority: &authority }.in_pieces();
        let mut session = Session::open(&config, server.addresses[0]);
        session.send(&b"version\r\n".repeat(100));
        session.expect(&b"VERSION 1.6.45\r\n".repeat(100));
        session
            .0
            .conn
            .refresh_traffic_keys()
            .or_else(|error| if version == &TLS12 { Ok(()) } else { Err(error) })
            .unwrap();
        session.expect_version();
        // The refusal arrives in the middle of a message.
        let config = Client { version: Some(version), ..authority.client() }.in_pieces();
        Session::open(&config, server.addresses[0]).expect_refusal();
    }
}

#[test]
fn client_certificates_are_required_or_optional() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    authority.sign("client");
    foreign.sign("client");
    for version in VERSIONS {
        let client = |certificate| Client { version: Some(version), certificate, ..authority.client() };
        for verify_mode in [0, 1, 2, 3] {
            let server = Running::start(serving(authority.asking(verify_mode)));
            let address = server.addresses[0];
            client(Some((&authority, "client"))).connect(address).expect_version();
            if verify_mode == 0 {
                client(Some((&foreign, "client"))).connect(address).expect_version();
            } else {
                client(Some((&foreign, "client"))).connect(address).expect_refusal();
            }
            if verify_mode < 2 {
                client(None).connect(address).expect_version();
            } else {
                client(None).connect(address).expect_refusal();
            }
        }
    }
}

/// Starts a server with three listeners, each with its own kind of TLS.
fn in_three_manners(tls: TlsOptions) -> Running {
    let names = ["notls:127.0.0.1:0", "btls:127.0.0.2:0", "mtls:127.0.0.3:0"];
    let options = serving(tls);
    Running::start(ServerOptions {
        listen: ListenOptions { addresses: names.map(String::from).to_vec(), ..options.listen },
        ..options
    })
}

#[test]
fn prefix_selects_tls_of_each_listener() {
    let authority = Authority::new();
    authority.sign("client");
    let server = in_three_manners(authority.asking(1));
    server.connect().expect_version();
    authority.client().connect(server.addresses[1]).expect_version();
    authority.client().connect(server.addresses[2]).expect_refusal();
    let known = Client { certificate: Some((&authority, "client")), ..authority.client() };
    known.connect(server.addresses[2]).expect_version();
}

/// memcached starts with such a listener (ssl_ports.t of its suite). Todana once refused to start.
#[test]
fn without_authority_every_client_certificate_is_refused() {
    let authority = Authority::new();
    authority.sign("client");
    let listen = vec!["mtls:127.0.0.1:0".to_string(), "127.0.0.2:0".to_string()];
    let options = ServerOptions {
        listen: ListenOptions { addresses: listen, ..serving(authority.tls()).listen },
        ..serving(authority.tls())
    };
    assert!(options.validate().is_err());
    let server = Running::start(ServerOptions {
        listen: ListenOptions { lenient_tls: true, ..options.listen },
        ..options
    });
    for version in VERSIONS {
        for certificate in [None, Some((&authority, "client"))] {
            let client = Client { version: Some(version), certificate, authority: &authority };
            client.connect(server.addresses[0]).expect_refusal();
            client.connect(server.addresses[1]).expect_version();
        }
    }
}

#[test]
fn ticket_is_refused_by_a_stricter_listener() {
    let authority = Authority::new();
    let server = in_three_manners(authority.asking(0));
    for version in VERSIONS {
        let config = Client { version: Some(version), ..authority.client() }.config();
        assert_eq!(Session::open(&config, server.addresses[1]).kind(), HandshakeKind::Full);
        assert_eq!(Session::open(&config, server.addresses[1]).kind(), HandshakeKind::Resumed);
        Session::open(&config, server.addresses[2]).expect_refusal();
    }
}

#[test]
fn sessions_are_resumed_unless_that_is_switched_off() {
    let authority = Authority::new();
    authority.sign("client");
    let resuming = Running::start(serving(authority.asking(2)));
    let never = Running::start(serving(TlsOptions { resumption: false, ..authority.asking(2) }));
    for version in VERSIONS {
        let certificate = Some((&authority, "client"));
        let client = Client { version: Some(version), certificate, authority: &authority };
        for (server, second) in [(&resuming, HandshakeKind::Resumed), (&never, HandshakeKind::Full)] {
            let config = client.config();
            assert_eq!(Session::open(&config, server.addresses[0]).kind(), HandshakeKind::Full);
            assert_eq!(Session::open(&config, server.addresses[0]).kind(), second);
        }
    }
    let mut session = Client { certificate: Some((&authority, "client")), ..authority.client() }
        .connect(resuming.addresses[0]);
    assert_eq!(session.statistic("", "ssl_new_sessions"), "3");
}

#[test]
fn refreshed_certificates_are_for_new_sessions() {
    let authority = Authority::new();
    expect_refresh(&authority, &Running::start(serving(authority.tls())));
}

/// The proxy refused `refresh_certs` as a command about one of its servers.
#[test]
fn proxy_refreshes_its_own_certificates() {
    let authority = Authority::new();
    let servers = vec!["127.0.0.1:1".parse().unwrap()];
    let pools = BTreeMap::from([("main".into(), PoolOptions { servers, ..PoolOptions::default() })]);
    let proxy = Some(ProxyOptions { pools, ..ProxyOptions::default() });
    expect_refresh(&authority, &Running::start(ServerOptions { proxy, ..serving(authority.tls()) }));
}

fn expect_refresh(authority: &Authority, server: &Running) {
    let address = server.addresses[0];
    let config = authority.client().config();
    let mut old = Session::open(&config, address);
    old.expect_version();
    let before = authority.certificate("server");
    assert_eq!(old.server_certificate(), before);
    authority.sign("server");
    let after = authority.certificate("server");
    assert_ne!(before, after);
    assert_eq!(
        {
            let mut unaware = authority.client().connect(address);
            unaware.expect_version();
            unaware.server_certificate()
        },
        before
    );
    old.send(b"refresh_certs\r\n");
    old.expect(b"OK\r\n");
    // An old ticket would keep the old certificate in use.
    let mut new = Session::open(&config, address);
    assert_eq!(new.kind(), HandshakeKind::Full);
    assert_eq!(new.server_certificate(), after);
    old.expect_version();

    std::fs::remove_file(authority.path("server.key")).unwrap();
    old.send(b"refresh_certs\r\n");
    let path = authority.path("server.key");
    old.expect(
        format!("Error loading the key: {} : No such file or directory\r\n", path.display()).as_bytes(),
    );
    let mut session = authority.client().connect(address);
    session.expect_version();
    assert_eq!(session.server_certificate(), after);
}

#[test]
fn versions_and_ciphers_are_those_that_are_allowed() {
    let authority = Authority::new();
    let only_1_3 = Running::start(serving(TlsOptions { only_1_3: true, ..authority.tls() }));
    authority.client().connect(only_1_3.addresses[0]).expect_version();
    Client { version: Some(&TLS12), ..authority.client() }.connect(only_1_3.addresses[0]).expect_refusal();

    let ciphers = Some("ECDHE-ECDSA-CHACHA20-POLY1305".to_string());
    let one = Running::start(serving(TlsOptions { ciphers, ..authority.tls() }));
    let mut session = Client { version: Some(&TLS12), ..authority.client() }.connect(one.addresses[0]);
    session.expect_version();
    let suite = session.0.conn.negotiated_cipher_suite().unwrap();
    assert_eq!(suite, ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256);
}

#[test]
fn tls_settings_match_memcached() {
    let authority = Authority::new();
    let server = Running::start(serving(TlsOptions { ciphers: Some("HIGH".into()), ..authority.asking(1) }));
    let mut session = authority.client().connect(server.addresses[0]);
    let path = |name: &str| authority.path(name).display().to_string();
    for (name, value) in [
        ("ssl_enabled", "yes"),
        ("ssl_chain_cert", &path("server.crt")),
        ("ssl_key", &path("server.key")),
        ("ssl_ca_cert", &path("ca.crt")),
        ("ssl_verify_mode", "1"),
        ("ssl_ciphers", "HIGH"),
        ("ssl_min_version", "tlsv1.2"),
        ("ssl_session_cache", "yes"),
    ] {
        assert_eq!(session.statistic(" settings", name), value, "{name}");
    }
    assert!(session.statistic("", "time_since_server_cert_refresh").parse::<u64>().is_ok());
}

#[test]
fn unsuitable_certificates_are_refused_at_the_start() {
    let authority = Authority::new();
    authority.sign("other");
    let path = |name: &str| authority.path(name);
    std::fs::write(
        path("both.pem"),
        [std::fs::read(path("server.crt")).unwrap(), std::fs::read(path("server.key")).unwrap()].concat(),
    )
    .unwrap();
    std::fs::write(path("garbage.pem"), "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n")
        .unwrap();
    let bind = |tls: TlsOptions| {
        let options = serving(tls);
        Server::bind(ServerOptions { listen: ListenOptions { port: 0, ..options.listen }, ..options })
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(bind(TlsOptions { chain: path("both.pem"), key: None, ..authority.tls() }), Ok(()));
    let other_key = bind(TlsOptions { key: Some(path("other.key")), ..authority.tls() }).unwrap_err();
    assert!(
        other_key.starts_with(&format!("Error loading the key: {}", path("other.key").display())),
        "{other_key}"
    );
    let no_key = bind(TlsOptions { key: None, ..authority.tls() }).unwrap_err();
    assert!(no_key.ends_with("there is no private key in it"), "{no_key}");
    for chain in ["garbage.pem", "server.key", "missing.crt"] {
        let error = bind(TlsOptions { chain: path(chain), ..authority.tls() }).unwrap_err();
        let expected = format!("Error loading the certificate chain: {} : ", path(chain).display());
        assert!(error.starts_with(&expected), "{error}");
    }
    let no_authority = bind(TlsOptions { verify_mode: 2, ..authority.tls() }).unwrap_err();
    assert!(no_authority.contains("without an authority"), "{no_authority}");
    let no_ciphers = bind(TlsOptions { ciphers: Some("RC4".into()), ..authority.tls() }).unwrap_err();
    assert_eq!(no_ciphers, "Error setting the provided cipher(s): RC4");
}

#[test]
fn without_tls_there_is_nothing_to_refresh() {
    let server = Running::start(options());
    let mut client = server.connect();
    client.send(b"refresh_certs\r\n");
    client.expect(b"Error TLS not enabled\r\n");
}

#[test]
fn admin_page_needs_token_with_client_certificates() {
    let authority = Authority::new();
    let cases: [(u8, &[&str], u16); 4] =
        [(0, &[], 200), (1, &["127.0.0.1"], 200), (2, &[], 403), (0, &["mtls:127.0.0.1"], 403)];
    for (verify_mode, addresses, status) in cases {
        let mut serving = serving(authority.asking(verify_mode));
        serving.listen.addresses = addresses.iter().map(ToString::to_string).collect();
        let admin = AdminOptions { port: 0, is_required: true, may_write: true, ..AdminOptions::default() };
        serving.observation.admin = Some(admin);
        let server = Running::start(serving);
        for (line, body) in [("PUT /api/record?key=a", "v"), ("GET /api/record?key=a", "")] {
            let response = request(&server, line, "", body.as_bytes());
            assert_eq!(response.status, status, "{verify_mode} {addresses:?} {line}");
        }
    }
}
