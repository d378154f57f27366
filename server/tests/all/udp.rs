//! Tests datagrams in both directions, byte by byte.

use crate::running;

use running::{Running, WAIT_MAX, options};
use std::net::UdpSocket;
use todana_server::{AuthenticationMode, ListenOptions, ProtocolOptions, ServerOptions};

struct Peer(UdpSocket);

impl Peer {
    fn of(server: &Running) -> Peer {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.udp_addresses[0]).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        Peer(socket)
    }

    fn send(&self, datagram: &[u8]) {
        assert_eq!(self.0.send(datagram).unwrap(), datagram.len());
    }

    fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 64 << 10];
        let len = self.0.recv(&mut buffer).unwrap();
        buffer.truncate(len);
        buffer
    }

    #[track_caller]
    fn expect(&self, datagram: &[u8]) {
        let got = self.receive();
        assert!(got == datagram, "{} where {} is expected", got.escape_ascii(), datagram.escape_ascii());
    }

    /// Sends a request whose answer must come next, which shows that the server has sent nothing
    /// else.
    #[track_caller]
    fn expect_nothing(&self) {
        self.send(b"\xff\xff\0\0\0\x01\0\0mn\r\n");
        self.expect(b"\xff\xff\0\0\0\x01\0\0MN\r\n");
    }
}

fn start(options: ServerOptions) -> Running {
    Running::start(ServerOptions { listen: ListenOptions { udp_port: Some(0), ..options.listen }, ..options })
}

#[test]
fn there_is_none_unless_it_is_asked_for() {
    let server = Running::start(options());
    assert!(server.udp_addresses.is_empty());
    assert!(server.connect().stats(" settings").contains(&("udpport".into(), "0".into())));
}

#[test]
fn request_and_reply_carry_the_same_number() {
    let server = start(options());
    let peer = Peer::of(&server);
    peer.send(b"\x12\x34\0\0\0\x01\0\0set k 5 0 5\r\nvalue\r\n");
    peer.expect(b"\x12\x34\0\0\0\x01\0\0STORED\r\n");
    // The sequence number and the last two bytes of a request have no meaning.
    peer.send(b"\x56\x78\0\x09\0\x01\xaa\xbbget k\r\n");
    peer.expect(b"\x56\x78\0\0\0\x01\0\0VALUE k 5 5\r\nvalue\r\nEND\r\n");
    peer.send(b"\0\x01\0\0\0\x01\0\0mg k v\r\n");
    peer.expect(b"\0\x01\0\0\0\x01\0\0VA 5\r\nvalue\r\n");
    peer.send(b"\0\x02\0\0\0\x01\0\0no such command\r\n");
    peer.expect(b"\0\x02\0\0\0\x01\0\0ERROR\r\n");
    // TCP reads the same record.
    server.connect().send(b"quit\r\n");
    let mut client = server.connect();
    client.send(b"get k\r\n");
    client.expect(b"VALUE k 5 5\r\nvalue\r\nEND\r\n");
    let port = server.udp_addresses[0].port().to_string();
    assert!(client.stats(" settings").contains(&("udpport".into(), port)));
}

#[test]
fn packets_are_served_as_well() {
    let server = start(options());
    let peer = Peer::of(&server);
    let set = b"\x80\x01\0\x01\x08\0\0\0\0\0\0\x0a\x0b\x0b\x0b\x0b\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\0kv";
    let getq = b"\x80\x09\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0x";
    let noop = b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0";
    peer.send(&[b"\0\x01\0\0\0\x01\0\0", &set[..]].concat());
    let stored = peer.receive();
    assert_eq!(stored[..24], *b"\0\x01\0\0\0\x01\0\0\x81\x01\0\0\0\0\0\0\0\0\0\0\x0b\x0b\x0b\x0b");
    // A quiet miss gets no reply.
    peer.send(&[b"\0\x02\0\0\0\x01\0\0", &getq[..], noop].concat());
    peer.expect(b"\0\x02\0\0\0\x01\0\0\x81\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0");
    peer.expect_nothing();
}

#[test]
fn each_command_of_a_datagram_is_answered_separately() {
    let server = start(options());
    let peer = Peer::of(&server);
    peer.send(b"\0\x07\0\0\0\x01\0\0set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\nget a b c\r\ndelete c\r\n");
    for reply in
        ["STORED\r\n", "STORED\r\n", "VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nEND\r\n", "NOT_FOUND\r\n"]
    {
        peer.expect(&[b"\0\x07\0\0\0\x01\0\0", reply.as_bytes()].concat());
    }
    peer.expect_nothing();
}

#[test]
fn incomplete_and_multi_datagram_requests_are_dropped() {
    let server = start(options());
    let peer = Peer::of(&server);
    for datagram in [
        &b""[..],
        b"\0\x01\0\0\0\x01\0",
        b"\0\x01\0\0\0\x01\0\0",
        b"\0\x01\0\0\0\x02\0\0get k\r\n",
        b"\0\x01\0\0\0\0\0\0get k\r\n",
        b"\0\x01\0\0\0\x01\0\0get k",
        b"\0\x01\0\0\0\x01\0\0set k 0 0 10\r\nvalue\r\n",
        b"\0\x01\0\0\0\x01\0\0\x80\x0a\0\0\0",
        // This request wants no reply.
        b"\0\x01\0\0\0\x01\0\0set k 0 0 1 noreply\r\nv\r\n",
        b"\0\x01\0\0\0\x01\0\0quit\r\nget k\r\n",
        // This is the reply of another server.
        b"\0\x01\0\0\0\x01\0\0ERROR\r\n",
        b"\0\x01\0\0\0\x01\0\0CLIENT_ERROR bad command line format\r\n",
        b"\0\x01\0\0\0\x01\0\0SERVER_ERROR reply too large for UDP\r\n",
    ] {
        peer.send(datagram);
        peer.expect_nothing();
    }
    peer.send(b"\0\x01\0\0\0\x01\0\0get k\r\n");
    peer.expect(b"\0\x01\0\0\0\x01\0\0VALUE k 0 1\r\nv\r\nEND\r\n");
}

#[test]
fn long_reply_is_split_into_1400_byte_datagrams() {
    let server = start(options());
    let peer = Peer::of(&server);
    let value: Vec<u8> = (0..3000u32).map(|n| b'a' + (n % 26) as u8).collect();
    server.connect().set(b"k", &value);
    server.connect().set(b"l", b"short");
    peer.send(b"\0\x01\0\0\0\x01\0\0get k none l\r\n");
    let message = [&b"VALUE k 0 3000\r\n"[..], &value, b"\r\nVALUE l 0 5\r\nshort\r\nEND\r\n"].concat();
    for (sequence, piece) in message.chunks(1392).enumerate() {
        peer.expect(&[&[0, 1, 0, sequence as u8, 0, 3, 0, 0], piece].concat());
    }
    peer.expect_nothing();
}

#[test]
fn all_replies_to_a_datagram_together_are_bounded() {
    let server = start(ServerOptions {
        listen: ListenOptions { udp_reply_max: 2000, ..options().listen },
        ..options()
    });
    let peer = Peer::of(&server);
    let mut client = server.connect();
    client.set(b"k", &[b'v'; 900]);
    client.set(b"large", &[b'v'; 1_000_000]);
    let too_large =
        |id: u8| [&[0, id, 0, 0, 0, 1, 0, 0], &b"SERVER_ERROR reply too large for UDP\r\n"[..]].concat();
    let hit = |id: u8| {
        [&[0, id, 0, 0, 0, 1, 0, 0], &b"VALUE k 0 900\r\n"[..], &[b'v'; 900], b"\r\nEND\r\n"].concat()
    };
    peer.send(b"\0\x01\0\0\0\x01\0\0get large\r\n");
    peer.expect(&too_large(1));
    peer.send(b"\0\x02\0\0\0\x01\0\0get k k k\r\nget k\r\n");
    peer.expect(&too_large(2));
    peer.expect(&hit(2));
    // When the reply is full, the rest is omitted. All commands are still executed.
    peer.send(b"\0\x03\0\0\0\x01\0\0get k\r\nget k\r\nget k\r\nget k\r\nget k\r\nset done 0 0 1\r\n1\r\n");
    peer.expect(&hit(3));
    peer.expect(&hit(3));
    peer.expect(&too_large(3));
    peer.expect(&too_large(3));
    peer.expect(&too_large(3));
    peer.expect(&[&[0, 3, 0, 0, 0, 1, 0, 0], &b"STORED\r\n"[..]].concat());
    let many = b"get k\r\n".repeat(50);
    peer.send(&[b"\0\x04\0\0\0\x01\0\0", &many[..], b"set last 0 0 1\r\n1\r\n"].concat());
    let mut received = 0;
    while received < 1900 {
        received += peer.receive().len() - 8;
    }
    // Datagrams are served one after another, so when the next one is answered, this one is
    // complete.
    peer.send(b"\0\x06\0\0\0\x01\0\0get k\r\n");
    loop {
        let datagram = peer.receive();
        if datagram.starts_with(b"\0\x06") {
            break;
        }
        received += datagram.len() - 8;
    }
    assert!(received <= 2000, "{received}");
    client.expect_value(b"last", b"1");
    // The same refusal in the binary dialect.
    let get = b"\x80\x00\0\x05\0\0\0\0\0\0\0\x05\x01\x02\x03\x04\0\0\0\0\0\0\0\0large";
    let peer = Peer::of(&server);
    peer.send(&[b"\0\x05\0\0\0\x01\0\0", &get[..]].concat());
    let head =
        b"\0\x05\0\0\0\x01\0\0\x81\x00\0\0\0\0\0\x03\0\0\0\x0a\x01\x02\x03\x04\0\0\0\0\0\0\0\0Too large.";
    peer.expect(head);
}

#[test]
fn list_of_all_keys_is_refused_over_udp() {
    let server = start(options());
    let peer = Peer::of(&server);
    peer.send(b"\0\x01\0\0\0\x01\0\0lru_crawler metadump all\r\n");
    peer.expect(b"\0\x01\0\0\0\x01\0\0ERROR\r\n");
    peer.expect_nothing();
}

#[test]
fn exports_are_refused_over_udp() {
    let server = start(options());
    let peer = Peer::of(&server);
    for request in ["checkpoint", "backup", "log first follow"] {
        peer.send(format!("\0\x01\0\0\0\x01\0\0todana {request}\r\n").as_bytes());
        peer.expect(b"\0\x01\0\0\0\x01\0\0ERROR\r\n");
    }
    peer.expect_nothing();
}

#[test]
fn login_over_udp_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    std::fs::write(&path, "alice:secret\n").unwrap();
    let server = start(ServerOptions {
        protocols: ProtocolOptions { authentication: AuthenticationMode::Sasl(path), ..options().protocols },
        ..options()
    });
    let peer = Peer::of(&server);
    let login = b"\x80\x21\0\x05\0\0\0\0\0\0\0\x12\0\0\0\0\0\0\0\0\0\0\0\0PLAIN\0alice\0secret";
    let noop = b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    peer.send(&[b"\0\x01\0\0\0\x01\0\0", &login[..], noop].concat());
    for opcode in [0x21, 0x0a] {
        let refused = b"\0\0\0\0\0\x20\0\0\0\x0d\0\0\0\0\0\0\0\0\0\0\0\0Auth failure.";
        peer.expect(&[b"\0\x01\0\0\0\x01\0\0\x81", &[opcode][..], refused].concat());
    }
}

#[test]
fn there_may_be_nothing_else() {
    let server =
        start(ServerOptions { listen: ListenOptions { tcp: false, ..options().listen }, ..options() });
    assert!(server.addresses.is_empty());
    let peer = Peer::of(&server);
    peer.send(b"\0\x01\0\0\0\x01\0\0set k 0 0 1\r\nv\r\n");
    peer.expect(b"\0\x01\0\0\0\x01\0\0STORED\r\n");
    // The list contains the UDP socket itself, as the one that asks.
    peer.send(b"\0\x02\0\0\0\x01\0\0stats conns\r\n");
    let reply = String::from_utf8(peer.receive()[8..].to_vec()).unwrap();
    let number = reply.strip_prefix("STAT ").unwrap().split_once(':').unwrap().0;
    let address = server.udp_addresses[0];
    assert_eq!(
        reply,
        format!(
            "STAT {number}:UDP UDP\r\nSTAT {number}:addr udp:{address}\r\nSTAT {number}:state conn_parse_cmd\r\n\
             STAT {number}:secs_since_last_cmd 0\r\nEND\r\n"
        )
    );
}

#[test]
fn its_sockets_are_on_the_list_of_connections() {
    let server = start(options());
    let mut client = server.connect();
    let conns = client.stats(" conns");
    let at = conns.iter().position(|(name, _)| name.ends_with(":UDP")).expect("one is there");
    let number = conns[at].0.strip_suffix(":UDP").unwrap();
    let [udp, addr, state, since] = &conns[at..at + 4] else { panic!("four lines: {conns:?}") };
    let expected = |name: &str, value: &str| (format!("{number}:{name}"), value.to_string());
    assert_eq!(*udp, expected("UDP", "UDP"));
    assert_eq!(*addr, expected("addr", &format!("udp:{}", server.udp_addresses[0])));
    assert_eq!(*state, expected("state", "conn_read"));
    assert_eq!(since.0, format!("{number}:secs_since_last_cmd"));
    assert!(since.1.parse::<u64>().is_ok(), "{since:?}");
    assert_eq!(conns.iter().filter(|(name, _)| name.ends_with(":UDP")).count(), 1);
}

#[test]
fn address_is_restricted_to_its_dialect() {
    let listen = vec!["proto[ascii]:127.0.0.1".into()];
    let server = start(ServerOptions {
        listen: ListenOptions { addresses: listen, ..options().listen },
        protocols: ProtocolOptions { protocol: todana_server::DialectChoice::Binary, ..options().protocols },
        ..options()
    });
    let peer = Peer::of(&server);
    peer.send(b"\0\x01\0\0\0\x01\0\0mn\r\n");
    peer.expect(b"\0\x01\0\0\0\x01\0\0MN\r\n");
}

#[test]
fn occupied_address_is_named_with_its_transport() {
    let held = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let options = ServerOptions {
        listen: ListenOptions { port: 0, udp_port: Some(address.port()), ..options().listen },
        ..options()
    };
    let Err(error) = todana_server::Server::bind(options) else { panic!("it is taken") };
    assert!(error.to_string().starts_with(&format!("cannot listen on UDP {address}: ")), "{error}");
}
