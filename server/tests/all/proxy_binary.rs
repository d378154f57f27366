//! The binary protocol between the proxy and its clients and servers: the bytes of each packet.

use crate::running;

use running::{Client, Running, options};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use todana_client::ring::VbucketMap;
use todana_server::{
    LimitOptions, PoolOptions, PoolProtocol, PoolVbuckets, ProxyOptions, ServerOptions, WhenDown,
};

/// The length of a header.
const HEADER_LEN: usize = 24;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const DELETE: u8 = 0x04;
const NOOP: u8 = 0x0a;
const GET_WITH_KEY: u8 = 0x0c;
const VERBOSITY: u8 = 0x1b;

/// Returns a pool of these servers, whose failures are shown.
fn pool(servers: &[String], speak: PoolProtocol) -> PoolOptions {
    PoolOptions {
        servers: servers.iter().map(|server| server.parse().unwrap()).collect(),
        speak,
        when_down: WhenDown::Error,
        retry: Duration::from_millis(20),
        ..PoolOptions::default()
    }
}

/// Starts a proxy with one worker, so that all clients share its connections.
fn proxy(pool: PoolOptions) -> Running {
    let pools = BTreeMap::from([("main".into(), pool)]);
    let proxy = Some(ProxyOptions { pools, ..ProxyOptions::default() });
    let limits = LimitOptions { threads: 1, ..options().limits };
    Running::start(ServerOptions { proxy, limits, ..options() })
}

/// A packet. `status` is the vbucket of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Packet {
    opcode: u8,
    status: u16,
    opaque: u32,
    version: u64,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Packet {
    fn new(opcode: u8, opaque: u32, key: &str) -> Packet {
        Packet { opcode, opaque, key: key.into(), ..Packet::default() }
    }

    fn set(opaque: u32, key: &str, value: &str) -> Packet {
        Packet { extras: vec![0; 8], value: value.into(), ..Packet::new(SET, opaque, key) }
    }

    fn bytes(&self, magic: u8) -> Vec<u8> {
        let Packet { opcode, status, opaque, version, extras, key, value } = self;
        let mut bytes = vec![magic, *opcode];
        bytes.extend((key.len() as u16).to_be_bytes());
        bytes.extend([extras.len() as u8, 0]);
        bytes.extend(status.to_be_bytes());
        bytes.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
        bytes.extend(opaque.to_be_bytes());
        bytes.extend(version.to_be_bytes());
        [&bytes, &extras[..], key, value].concat()
    }

    fn request(&self) -> Vec<u8> {
        self.bytes(0x80)
    }

    /// Returns the bytes of a reply to this request.
    fn reply(&self, status: u16, extras: &[u8], value: &[u8]) -> Vec<u8> {
        let (extras, value) = (extras.to_vec(), value.to_vec());
        Packet { status, extras, key: Vec::new(), value, ..self.clone() }.bytes(0x81)
    }

    /// Reads a packet.
    fn read(mut next: impl FnMut(&mut [u8])) -> Packet {
        let mut header = [0; HEADER_LEN];
        next(&mut header);
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; number(8) as usize];
        next(&mut body);
        let extras_len = usize::from(header[4]);
        let value_at = extras_len + usize::from(u16::from_be_bytes([header[2], header[3]]));
        Packet {
            opcode: header[1],
            status: u16::from_be_bytes([header[6], header[7]]),
            opaque: number(12),
            version: u64::from(number(16)) << 32 | u64::from(number(20)),
            extras: body[..extras_len].to_vec(),
            key: body[extras_len..value_at].to_vec(),
            value: body[value_at..].to_vec(),
        }
    }

    fn of_client(client: &mut Client) -> Packet {
        Packet::read(|bytes| client.read_exact(bytes))
    }

    fn of_server(stream: &mut TcpStream) -> Packet {
        Packet::read(|bytes| stream.read_exact(bytes).unwrap())
    }
}

/// Sends packets, and returns the opcode, the status, the opaque and the value of each reply up to
/// that to the last packet.
fn exchange(client: &mut Client, packets: &[Packet]) -> Vec<(u8, u16, u32, String)> {
    client.send(&packets.iter().flat_map(Packet::request).collect::<Vec<u8>>());
    let mut replies = Vec::new();
    loop {
        let Packet { opcode, status, opaque, value, .. } = Packet::of_client(client);
        replies.push((opcode, status, opaque, String::from_utf8(value).unwrap()));
        if Some(opaque) == packets.last().map(|packet| packet.opaque) {
            return replies;
        }
    }
}

/// A packet whose body is discarded hung the next request of its client: the proxy sent the
/// discarded body to the server in place of the beginning of that request.
#[test]
fn discarded_body_does_not_hold_the_next_request() {
    let server = Running::start(options());
    let proxy = proxy(pool(&[server.addresses[0].to_string()], PoolProtocol::Auto));
    let verbosity = Packet { extras: vec![0, 0, 0, 1], ..Packet::new(VERBOSITY, 1, "") };
    for discarded in [Packet::new(0x50, 1, "b"), verbosity] {
        let packets = [
            discarded,
            Packet::set(2, "key1", "hello"),
            Packet::new(GET_WITH_KEY, 3, "key1"),
            Packet::new(NOOP, 4, ""),
        ];
        for server in [&server, &proxy] {
            let replies = exchange(&mut server.connect(), &packets);
            let (opcode, status, ..) = replies[0];
            assert_eq!((opcode, status), (packets[0].opcode, 0x81));
            let expected = [(SET, ""), (GET_WITH_KEY, "hello"), (NOOP, "")];
            let expected =
                (2..).zip(expected).map(|(opaque, (opcode, value))| (opcode, 0, opaque, value.into()));
            assert_eq!(replies[1..], expected.collect::<Vec<_>>());
            server.connect().expect_value(b"key1", b"hello");
        }
    }
}

/// Requests to a server had the opaque 0, and that of a reply was not read. So each surplus reply
/// of a server became that to the next request of any client.
#[test]
fn packet_is_the_reply_to_its_request_only() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let proxy = proxy(pool(std::slice::from_ref(&address), PoolProtocol::Binary));
    let mut client = proxy.connect();
    let not_understood = format!("SERVER_ERROR server {address}: not understood\r\n");
    client.send(b"get a\r\nget b\r\nget c\r\n");
    let mut server = listener.accept().unwrap().0;
    let [a, b, c] = [(); 3].map(|()| Packet::of_server(&mut server));
    assert_ne!(a.opaque, b.opaque);
    assert_ne!(b.opaque, c.opaque);
    let surplus = a.reply(0, &[0; 4], b"A");
    server.write_all(&[&surplus[..], &surplus].concat()).unwrap();
    client.expect(format!("VALUE a 0 1\r\nA\r\nEND\r\n{not_understood}{not_understood}").as_bytes());
    assert_eq!(server.read(&mut [0]).unwrap_or(0), 0);
    // The connection that follows has replies of its own.
    client.send(b"get a\r\n");
    let mut server = listener.accept().unwrap().0;
    let a = Packet::of_server(&mut server);
    let other = Packet { opaque: a.opaque.wrapping_add(1), ..a.clone() };
    server.write_all(&other.reply(0, &[0; 4], b"A")[..HEADER_LEN]).unwrap();
    client.expect(not_understood.as_bytes());
}

/// A request that is sent again on another connection is a new request there.
#[test]
fn repeated_packet_has_the_opaque_of_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let proxy = proxy(pool(&[address], PoolProtocol::Binary));
    let mut client = proxy.connect();
    client.send(b"get a\r\nget b\r\n");
    let mut server = listener.accept().unwrap().0;
    let [a, b] = [(); 2].map(|()| Packet::of_server(&mut server));
    server.write_all(&a.reply(0, &[0; 4], b"A")).unwrap();
    client.expect(b"VALUE a 0 1\r\nA\r\nEND\r\n");
    drop(server);
    let mut server = listener.accept().unwrap().0;
    let again = Packet::of_server(&mut server);
    assert_eq!((again.opcode, &again.key), (GET, &b.key));
    assert_eq!(again.opaque, a.opaque);
    server.write_all(&again.reply(0, &[0; 4], b"B")).unwrap();
    client.expect(b"VALUE b 0 1\r\nB\r\nEND\r\n");
}

/// The packets of statistics have the opaque of their request, too.
#[test]
fn statistics_of_many_packets_are_one_reply() {
    let servers = [(); 2].map(|()| Running::start(options()));
    let addresses = servers.each_ref().map(|server| server.addresses[0].to_string());
    let proxy = proxy(pool(&addresses, PoolProtocol::Binary));
    let mut client = proxy.connect();
    for n in 0..10 {
        client.set(format!("k{n}").as_bytes(), b"x");
        assert_eq!(client.stat("curr_items"), (n + 1).to_string());
    }
}

/// Such a value was refused as an invalid argument, which blames the client.
#[test]
fn value_that_cannot_be_kept_is_a_failure() {
    let mut with_room = options();
    with_room.limits.item_size_max = 32 << 20;
    let server = Running::start(with_room);
    server.connect().set(b"k", &vec![b'v'; 17 << 20]);
    for speak in [PoolProtocol::Text, PoolProtocol::Meta, PoolProtocol::Binary] {
        let proxy = proxy(pool(&[server.addresses[0].to_string()], speak));
        let replies = exchange(&mut proxy.connect(), &[Packet::new(GET, 1, "k"), Packet::new(NOOP, 2, "")]);
        let (opcode, status, opaque, text) = &replies[0];
        assert_eq!((*opcode, *status, *opaque), (GET, 0x86, 1), "{speak:?}");
        assert!(text.starts_with("SERVER_ERROR value too long"), "{text}");
        assert_eq!(replies[1..], [(NOOP, 0, 2, String::new())]);
    }
}

/// The text dialect has no such request. It was refused as an invalid argument.
#[test]
fn text_server_knows_no_delete_of_a_version() {
    let server = Running::start(options());
    for (speak, statuses) in [(PoolProtocol::Text, [0x81, 0x81]), (PoolProtocol::Meta, [0x02, 0x00])] {
        let proxy = proxy(pool(&[server.addresses[0].to_string()], speak));
        let mut client = proxy.connect();
        client.send(
            &[Packet::set(1, "k", "v"), Packet::new(GET, 2, "k")].map(|packet| packet.request()).concat(),
        );
        let [_, found] = [(); 2].map(|()| Packet::of_client(&mut client));
        assert_eq!(found.value, b"v");
        for (version, status) in [found.version + 1, found.version].into_iter().zip(statuses) {
            client.send(&Packet { version, ..Packet::new(DELETE, 3, "k") }.request());
            assert_eq!(Packet::of_client(&mut client).status, status, "{speak:?}");
        }
    }
}

/// The requests that fake servers got: the number of the server, the key, and the vbucket.
type VbucketRequests = Arc<Mutex<Vec<(usize, String, u16)>>>;

/// Starts a server that has only some vbuckets: it refuses requests with others.
fn vbucket_server(number: usize, owned: &'static [u16], requests: &VbucketRequests) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let requests = Arc::clone(requests);
    std::thread::spawn(move || {
        let mut value = Vec::new();
        for mut stream in listener.incoming().map(Result::unwrap) {
            while stream.peek(&mut [0]).is_ok_and(|len| len > 0) {
                let packet = Packet::of_server(&mut stream);
                let (key, vbucket) = (String::from_utf8(packet.key.clone()).unwrap(), packet.status);
                requests.lock().unwrap().push((number, key, vbucket));
                let reply = match packet.opcode {
                    _ if !owned.contains(&vbucket) => packet.reply(0x07, &[], b"Not my vbucket"),
                    GET => packet.reply(0, &[0; 4], &value),
                    SET => {
                        value = packet.value.clone();
                        packet.reply(0, &[], &[])
                    }
                    opcode => panic!("opcode {opcode:#x}"),
                };
                stream.write_all(&reply).unwrap();
            }
        }
    });
    address
}

/// Starts a proxy with a map of four vbuckets, of which `owners` are the servers.
fn vbucket_proxy(servers: &[String], owners: [usize; 4]) -> (Running, VbucketMap) {
    let slots = owners.map(|owner| format!("[{owner}]")).join(",");
    let json = format!(r#"{{"hashAlgorithm":"CRC","serverList":{servers:?},"vBucketMap":[{slots}]}}"#);
    let (map, _) = VbucketMap::parse(&json).unwrap();
    let vbuckets = Some(PoolVbuckets { file: None, map: map.clone() });
    (proxy(PoolOptions { vbuckets, ..pool(servers, PoolProtocol::Binary) }), map)
}

/// The map was used to choose a server, but requests had the vbucket 0, and the reply "not my
/// vbucket" was an error.
#[test]
fn refused_vbucket_moves_to_the_next_server() {
    let requests = VbucketRequests::default();
    let owned: [&'static [u16]; 3] = [&[0, 1], &[3], &[]];
    let servers: Vec<String> =
        owned.iter().enumerate().map(|(number, owned)| vbucket_server(number, owned, &requests)).collect();
    let (proxy, map) = vbucket_proxy(&servers, [0, 1, 0, 2]);
    let key =
        |vbucket| (0..).map(|n| format!("k{n}")).find(|key| map.slot_of(key.as_bytes()) == vbucket).unwrap();
    let keys = [0, 1, 2, 3].map(key);
    let mut client = proxy.connect();
    let mut asked_for = |vbucket: u16, request: String, reply: &str| -> Vec<usize> {
        client.send(request.as_bytes());
        client.expect(reply.as_bytes());
        let requests = std::mem::take(&mut *requests.lock().unwrap());
        for (_, key, number) in &requests {
            assert_eq!((key, *number), (&keys[usize::from(vbucket)], vbucket));
        }
        requests.into_iter().map(|(server, ..)| server).collect()
    };
    let get = |vbucket: usize| format!("get {}\r\n", keys[vbucket]);
    let set = |vbucket: usize| format!("set {} 0 0 1\r\n{vbucket}\r\n", keys[vbucket]);
    let value = |vbucket: usize| format!("VALUE {} 0 1\r\n{vbucket}\r\nEND\r\n", keys[vbucket]);
    // The map is right.
    assert_eq!(asked_for(0, set(0), "STORED\r\n"), [0]);
    // The next server but one has the vbucket, and later requests go there at once.
    assert_eq!(asked_for(1, set(1), "STORED\r\n"), [1, 2, 0]);
    assert_eq!(asked_for(1, get(1), &value(1)), [0]);
    assert_eq!(asked_for(3, set(3), "STORED\r\n"), [2, 0, 1]);
    assert_eq!(asked_for(3, get(3), &value(3)), [1]);
    // No server has the vbucket, so each of them is asked, and the first one twice.
    let refused = "SERVER_ERROR no server has the vbucket of the key\r\n";
    assert_eq!(asked_for(2, get(2), refused), [0, 1, 2, 0]);
    // Requests for a key stay in order while its vbucket moves.
    drop(proxy);
    let (proxy, _) = vbucket_proxy(&servers, [0, 1, 0, 2]);
    let mut client = proxy.connect();
    let sets: String = (0..50).map(|n| format!("set {} 0 0 2\r\n{n:02}\r\n", keys[1])).collect();
    client.send(format!("{sets}get {}\r\n", keys[1]).as_bytes());
    client.expect("STORED\r\n".repeat(50).as_bytes());
    client.expect(format!("VALUE {} 0 2\r\n49\r\nEND\r\n", keys[1]).as_bytes());
}
