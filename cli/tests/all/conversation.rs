//! The log of connections and requests (`-vv`) under the name `memcached`. The expected lines are
//! those of memcached 1.6.18, with two exceptions: memcached does not log replies to meta commands,
//! and it passes on unprintable bytes.

use crate::memcached_running;

use memcached_running::{MemcachedFolder, MemcachedServer, eventually};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Stdio;

/// Returns the log lines after the slab classes. The descriptor of the first client is replaced by
/// `C`, and that of the listener by `L`.
fn logged(said: &str) -> Vec<String> {
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("slab class")).collect();
    let descriptor = |part: &str| {
        let line = lines.iter().find(|line| line.contains(part))?;
        line.trim_start_matches('<').split(' ').next().map(String::from)
    };
    let (client, listener) = (descriptor(" client connection"), descriptor(" server listening"));
    let named = |line: &&str| {
        for (number, letter) in [(&client, 'C'), (&listener, 'L')] {
            let Some(number) = number else { continue };
            for (before, after) in [("<", " "), (">", " "), ("", ": ")] {
                if let Some(rest) = line.strip_prefix(&format!("{before}{number}{after}")) {
                    return format!("{before}{letter}{after}{rest}");
                }
            }
        }
        line.to_string()
    };
    lines.iter().map(named).collect()
}

/// Starts a server with these options and sends the requests. Returns the log and the replies.
fn conversation(options: &[&str], requests: &[u8]) -> (Vec<String>, Vec<u8>) {
    let place = MemcachedFolder::new();
    let server = place.start(place.command(options));
    let reply = exchange(&server, requests);
    let (status, said) = server.end_by(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    (logged(&said), reply)
}

/// Sends the requests and reads until the server closes the connection. The server logs the end
/// before it closes.
fn exchange(server: &MemcachedServer, requests: &[u8]) -> Vec<u8> {
    let mut stream = server.connect();
    stream.write_all(requests).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim_start().to_string()).collect()
}

#[test]
fn requests_and_replies_are_logged_without_values() {
    let requests = b"set foo 1 0 3\r\nbar\r\nget foo nope\r\ngets foo\r\ngat 0 foo\r\ntouch foo 0\r\nmg foo v\r\n\
        mn\r\nincr foo 1\r\ndelete foo\r\nbogus\r\nset x\r\nset b 0 0 6 noreply\r\nsecret\r\nget b\r\n\
        set k\x01\xff\\ 0 0 1\r\nxyz\r\nstats\r\nstats foo\r\nverbosity 1\r\nget b\r\nverbosity 2\r\nquit\r\n";
    let (printed, _) = conversation(&["-vv"], requests);
    let expected = "<L server listening (auto-negotiate)
        <C new auto-negotiating client connection
        C: Client using the ascii protocol
        <C set foo 1 0 3
        >C STORED
        <C get foo nope
        >C sending key foo
        >C END
        <C gets foo
        >C sending key foo
        >C END
        <C gat 0 foo
        >C sending key foo
        >C END
        <C touch foo 0
        >C TOUCHED
        <C mg foo v
        >C VA 3
        <C mn
        >C MN
        <C incr foo 1
        >C CLIENT_ERROR cannot increment or decrement non-numeric value
        <C delete foo
        >C DELETED
        <C bogus
        >C ERROR
        <C set x
        >C CLIENT_ERROR bad command line format
        <C set b 0 0 6 noreply
        >C NOREPLY STORED
        <C get b
        >C sending key b
        >C END
        <C set k\\x01\\xff\\\\ 0 0 1
        >C CLIENT_ERROR bad data chunk
        <C 
        >C CLIENT_ERROR bad command line format
        <C stats
        <C stats foo
        >C ERROR
        <C verbosity 1
        >C OK
        <C quit
        <C connection closed.
        Exiting normally";
    assert_eq!(printed, lines(expected));
}

#[test]
fn long_value_and_split_line_are_logged_once() {
    let place = MemcachedFolder::new();
    let server = place.start(place.command(&["-vvv", "-B", "ascii"]));
    let mut stream = server.connect();
    let mut expect = |request: &[u8], reply: &[u8]| {
        for piece in request.chunks(request.len().div_ceil(3)) {
            stream.write_all(piece).unwrap();
        }
        let mut got = vec![0; reply.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, reply);
    };
    let value = vec![b'v'; 300_000];
    expect(&[b"set big 0 0 300000\r\n", &value[..], b"\r\n"].concat(), b"STORED\r\n");
    expect(b"get big\r\n", &[b"VALUE big 0 300000\r\n", &value[..], b"\r\nEND\r\n"].concat());
    expect(b"set large 0 0 1100000\r\n", b"SERVER_ERROR object too large for cache\r\n");
    // The value is discarded, and the line after it is logged unchanged.
    let block = vec![b'v'; 1_100_000];
    expect(&[&block[..], b"\r\nversion\r\n"].concat(), b"VERSION 1.6.45\r\n");
    drop(stream);
    eventually("the end of the connection", || server.said().contains("connection closed."));
    let (_, said) = server.end_by(Signal::SIGTERM);
    let expected = "<L server listening (ascii)
        <C new ascii client connection.
        <C set big 0 0 300000
        >C STORED
        <C get big
        >C sending key big
        >C END
        <C set large 0 0 1100000
        >C SERVER_ERROR object too large for cache
        <C version
        >C VERSION 1.6.45
        <C connection closed.
        Exiting normally";
    assert_eq!(logged(&said), lines(expected));
}

fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let len = extras.len() + key.len() + value.len();
    let mut packet = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    packet.extend((len as u32).to_be_bytes());
    packet.extend([0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend([extras, key, value].concat());
    packet
}

#[test]
fn packets_are_logged_by_their_headers() {
    let requests = [
        packet(1, &[0; 8], b"foo", b"secret"),
        packet(0, b"", b"no", b""),
        packet(0x10, b"", b"sizes", b""),
        packet(0x17, b"", b"", b""),
    ];
    let (printed, _) = conversation(&["-vv"], &requests.concat());
    let expected = "<L server listening (auto-negotiate)
        <C new auto-negotiating client connection
        C: Client using the binary protocol
        <C Read binary protocol data:
        <C    0x80 0x01 0x00 0x03
        <C    0x08 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x11
        <C    0x00 0x00 0x00 0x07
        <C    0x00 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x00
        <C SET foo Value len is 6
        >C Writing bin response:
        >C   0x81 0x01 0x00 0x00
        >C   0x00 0x00 0x00 0x00
        >C   0x00 0x00 0x00 0x00
        >C   0x00 0x00 0x00 0x07
        >C   VERSION
        >C   VERSION
        <C Read binary protocol data:
        <C    0x80 0x00 0x00 0x02
        <C    0x00 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x02
        <C    0x00 0x00 0x00 0x07
        <C    0x00 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x00
        <C GET no
        >C Writing an error: Not found
        >C Writing bin response:
        >C   0x81 0x00 0x00 0x00
        >C   0x00 0x00 0x00 0x01
        >C   0x00 0x00 0x00 0x09
        >C   0x00 0x00 0x00 0x07
        >C   0x00 0x00 0x00 0x00
        >C   0x00 0x00 0x00 0x00
        <C Read binary protocol data:
        <C    0x80 0x10 0x00 0x05
        <C    0x00 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x05
        <C    0x00 0x00 0x00 0x07
        <C    0x00 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x00
        <C STATS sizes
        <C Read binary protocol data:
        <C    0x80 0x17 0x00 0x00
        <C    0x00 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x07
        <C    0x00 0x00 0x00 0x00
        <C    0x00 0x00 0x00 0x00
        <C connection closed.
        Exiting normally";
    let mut expected = lines(expected);
    for (line, printed) in expected.iter_mut().zip(&printed) {
        // Versions may start at any number.
        if line == ">C   VERSION" {
            assert_eq!(printed.len(), ">C   0x00 0x00 0x00 0x00".len(), "{printed}");
            line.clone_from(printed);
        }
    }
    assert_eq!(printed, expected);
}

#[test]
fn logins_are_logged_without_the_password() {
    let place = MemcachedFolder::new();
    fs::write(place.path("users"), "user:s3cret\n").unwrap();
    let server = place.start(place.command(&["-vv", "-Y", "users"]));
    let reply = exchange(&server, b"set x 0 0 11\r\nuser s3cret\r\nget k\r\nquit\r\n");
    assert_eq!(reply, b"STORED\r\nEND\r\n");
    let (_, said) = server.end_by(Signal::SIGTERM);
    let expected = "<L server listening (ascii)
        <C new ascii client connection.
        <C set x 0 0 11
        >C STORED
        <C get k
        >C END
        <C quit
        <C connection closed.
        Exiting normally";
    assert_eq!(logged(&said), lines(expected));
}

#[test]
fn datagrams_are_logged_too() {
    let place = MemcachedFolder::new();
    let server = place.start(place.command(&["-vv", "-U", "-1"]));
    let ports = fs::read_to_string(place.path("ports")).unwrap();
    let port = ports.lines().find_map(|line| line.strip_prefix("UDP INET: ")).unwrap().parse().unwrap();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(memcached_running::WAIT_MAX)).unwrap();
    socket.send_to(b"\0\x01\0\0\0\x01\0\0get a b\r\n", (Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut reply = [0; 100];
    let len = socket.recv(&mut reply).unwrap();
    assert_eq!(&reply[8..len], b"END\r\n");
    let (_, said) = server.end_by(Signal::SIGTERM);
    let line = said.lines().find(|line| line.ends_with(" server listening (udp)")).expect(&said);
    let descriptor = line.trim_start_matches('<').split(' ').next().unwrap();
    assert!(said.contains(&format!("<{descriptor} get a b\n>{descriptor} END\n")), "{said}");
}

/// With one `-v`, requests are not logged. A client can switch on the second level while the server
/// runs.
#[test]
fn client_may_switch_the_log_on() {
    let (printed, _) = conversation(&["-v"], b"get a\r\n");
    assert_eq!(printed, ["Exiting normally"]);
    let (printed, _) = conversation(&[], b"get a\r\nverbosity 2\r\nget b\r\n");
    let expected = ["get b", "END", "connection closed."];
    assert_eq!(printed.len(), 3, "{printed:?}");
    for (line, end) in printed.iter().zip(expected) {
        assert!(line.ends_with(end), "{printed:?}");
    }
}

/// If nobody reads the pipe to which the server logs, the pipe fills up, and the server keeps
/// serving.
#[test]
fn unread_standard_error_does_not_block_clients() {
    let place = MemcachedFolder::new();
    let ports = place.path("ports");
    let mut command = place.command(&["-vv", "-t", "1"]);
    command.env("MEMCACHED_PORT_FILENAME", &ports).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    eventually("the file with the ports", || ports.exists());
    let text = fs::read_to_string(&ports).unwrap();
    let port: u16 = text.trim().strip_prefix("TCP INET: ").unwrap().parse().unwrap();
    let mut stream = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(memcached_running::WAIT_MAX)).unwrap();
    let requests = format!("get {}\r\n", "k".repeat(240)).repeat(1000);
    // This is four times the capacity of the pipe and of the queue.
    for _ in 0..20 {
        stream.write_all(requests.as_bytes()).unwrap();
        let mut replies = vec![0; 5 * 1000];
        stream.read_exact(&mut replies).unwrap();
        assert_eq!(replies, b"END\r\n".repeat(1000));
    }
    let _ = child.kill();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert!(said.contains("get kkk"), "{said}");
}

#[test]
fn statistics_and_exports_are_logged_briefly() {
    let place = MemcachedFolder::new();
    let mut command = place.command(&["-vv"]);
    command.env("TODANA_DATA_DIR", "data");
    let server = place.start(command);
    let mut stream = server.connect();
    let requests = "stats items\r\nstats detail dump\r\nstats reset\r\nget none\r\ntodana checkpoint\r\n\
        todana log first\r\ntodana log 9999\r\nquit\r\n";
    stream.write_all(requests.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let checkpoint = reply.lines().find(|line| line.starts_with("CHECKPOINT ")).unwrap();
    let (_, said) = server.end_by(Signal::SIGTERM);
    let conversation: Vec<String> =
        logged(&said).into_iter().filter(|line| line.contains("C ") && line.contains(['<', '>'])).collect();
    let expected = format!(
        "<C new auto-negotiating client connection
        <C stats items
        <C stats detail dump
        <C stats reset
        >C RESET
        <C get none
        >C END
        <C todana checkpoint
        >C {checkpoint}
        <C todana log first
        >C END
        <C todana log 9999
        >C SERVER_ERROR the update log ends at position 0
        <C quit
        <C connection closed."
    );
    assert_eq!(conversation, lines(&expected));
}
