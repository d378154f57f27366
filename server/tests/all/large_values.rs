//! Tests that long values are read piece by piece, directly into the memory of their record, for
//! every command that stores them.

use crate::running;

use running::{Client, Running, eventually, options};
use std::io::Write;
use todana_server::{LimitOptions, ServerOptions};

/// Returns bytes that differ by their position, so that a comparison detects a shifted piece.
fn value(len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 31) >> 3) as u8).collect()
}

fn server(item_size_max: u64) -> Running {
    Running::start(ServerOptions { limits: LimitOptions { item_size_max, ..options().limits }, ..options() })
}

/// Sends a request with a data block, and expects this answer.
fn store(client: &mut Client, line: &str, value: &[u8], answer: &str) {
    client.send(&[line.as_bytes(), b"\r\n", value, b"\r\n"].concat());
    client.expect(answer.as_bytes());
}

fn round_trip(len: usize) {
    let server = server(1 << 30);
    let mut client = server.connect();
    let value = value(len);
    client.send(format!("set huge 7 0 {len}\r\n").as_bytes());
    client.send(&value);
    client.send(b"\r\nmn\r\nget huge\r\n");
    client.expect(b"STORED\r\nMN\r\n");
    client.expect(format!("VALUE huge 7 {len}\r\n").as_bytes());
    client.expect(&value);
    client.expect(b"\r\nEND\r\n");
}

#[test]
fn three_hundred_megabytes_come_back_as_they_came() {
    round_trip(300_000_000);
}

#[test]
#[ignore = "takes 3 GiB of memory"]
fn a_gibibyte_comes_back_as_it_came() {
    // The largest item consists of the value, the key, the flags and memcached's own overhead.
    round_trip((1 << 30) - 59 - 4 - 4);
}

#[test]
fn a_long_value_comes_back_as_it_came() {
    let server = server(16 << 20);
    let mut client = server.connect();
    // The lengths are around the one from which on values are long, and around those of pages.
    for len in [65_535, 65_536, 65_537, 65_538, 69_631, 69_632, 69_633, 1_000_000, 15_000_001] {
        let value = value(len);
        client.set(b"long", &value);
        client.expect_value(b"long", &value);
    }
}

/// The pieces end in the line, at its end, in the value, before the line end of the value, within
/// that line end, and after it.
#[test]
fn pieces_of_any_size_make_the_same_value() {
    let server = server(1 << 20);
    let value = value(100_000);
    let stream = [b"set k 0 0 100000\r\n", &value[..], b"\r\nget k\r\n"].concat();
    let answer = [b"STORED\r\nVALUE k 0 100000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    let line = b"set k 0 0 100000\r\n".len();
    let end = line + value.len();
    let cuts: [&[usize]; 9] = [
        &[line - 1, line],
        &[line, end],
        &[line + 1, end - 1, end + 1],
        &[line + 4096, end + 2],
        &[1, line + 65_536, end - 4095, end],
        &[line + 16_384, line + 16_385, line + 49_152],
        &[end + 1],
        &[end + 2],
        &[],
    ];
    let mut client = server.connect();
    let mut other = server.connect();
    for cuts in cuts {
        let mut read: u64 = other.stat("bytes_read").parse().unwrap();
        let mut from = 0;
        for &cut in cuts {
            client.send(&stream[from..cut]);
            read += (cut - from) as u64;
            // The next piece is sent only after the server has read this one.
            eventually("the piece is read", || other.stat("bytes_read").parse::<u64>().unwrap() >= read);
            from = cut;
        }
        client.send(&stream[from..]);
        client.expect(&answer);
    }
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..50 {
        let mut from = 0;
        while from < stream.len() {
            let len = random.usize(1..20_000).min(stream.len() - from);
            client.send(&stream[from..from + len]);
            from += len;
        }
        client.expect(&answer);
    }
}

#[test]
fn every_store_command_takes_long_values() {
    let server = server(1 << 20);
    let mut client = server.connect();
    let (a, b) = (value(100_000), vec![b'b'; 70_000]);
    store(&mut client, "replace k 0 0 100000", &a, "NOT_STORED\r\n");
    store(&mut client, "append k 0 0 70000", &b, "NOT_STORED\r\n");
    store(&mut client, "add k 5 0 100000", &a, "STORED\r\n");
    store(&mut client, "add k 0 0 70000", &b, "NOT_STORED\r\n");
    store(&mut client, "append k 0 0 70000", &b, "STORED\r\n");
    store(&mut client, "prepend k 0 0 70000 noreply", &b, "");
    store(&mut client, "append k 0 0 3", b"end", "STORED\r\n");
    let joined = [&b[..], &a, &b, b"end"].concat();
    client.send(b"get k\r\n");
    client.expect(&[b"VALUE k 5 240003\r\n", &joined[..], b"\r\nEND\r\n"].concat());
    store(&mut client, "append k 0 0 900000", &vec![0; 900_000], "NOT_STORED\r\n");
    client.send(b"gets k\r\n");
    let line = client.line();
    let version = line.trim_end().rsplit(' ').next().unwrap().to_string();
    client.expect(&[&joined[..], b"\r\nEND\r\n"].concat());
    store(&mut client, "cas k 0 0 70000 99999", &b, "EXISTS\r\n");
    store(&mut client, "cas nobody 0 0 70000 1", &b, "NOT_FOUND\r\n");
    store(&mut client, &format!("cas k 0 0 70000 {version}"), &b, "STORED\r\n");
    client.expect_value(b"k", &b);
    store(&mut client, "replace k 0 0 100000", &a, "STORED\r\n");
    client.expect_value(b"k", &a);
    client.send(b"incr k 1\r\ntouch k 100\r\n");
    client.expect(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\nTOUCHED\r\n");
    client.expect_value(b"k", &a);
    // An append makes a short record long, and a set makes a long record short.
    store(&mut client, "set k 0 0 3", b"one", "STORED\r\n");
    store(&mut client, "append k 0 0 70000", &b, "STORED\r\n");
    client.expect_value(b"k", &[b"one", &b[..]].concat());
    store(&mut client, "set k 0 0 3", b"one", "STORED\r\n");
    client.expect_value(b"k", b"one");
}

#[test]
fn every_meta_mode_takes_long_values() {
    let server = server(1 << 20);
    let mut client = server.connect();
    let (a, b) = (value(100_000), vec![b'b'; 70_000]);
    store(&mut client, "ms k 100000 MR", &a, "NS\r\n");
    store(&mut client, "ms k 70000 MA N0 s k Oo", &b, "HD s70000 kk Oo\r\n");
    store(&mut client, "ms k 70000 ME", &b, "NS\r\n");
    store(&mut client, "ms k 100000 MP s", &a, "HD s170000\r\n");
    client.expect_value(b"k", &[&a[..], &b].concat());
    store(&mut client, "ms k 70000 q", &b, "");
    store(&mut client, "ms k 70000 C1 s", &b, "EX s70000\r\n");
    store(&mut client, "ms azEyMw== 70000 b F3", &b, "HD\r\n");
    client.send(b"mg k123 s f\r\n");
    client.expect(b"HD s70000 f3\r\n");
}

#[test]
fn every_binary_store_takes_long_values() {
    let server = server(1 << 20);
    let mut client = server.connect();
    let (a, b) = (value(100_000), vec![b'b'; 70_000]);
    let mut packet = |opcode: u8, value: &[u8], status: Option<u8>| {
        let extras: &[u8] =
            if matches!(opcode, 0x0e | 0x0f | 0x19) { b"" } else { &[0, 0, 0, 9, 0, 0, 0, 0] };
        let mut request = vec![0x80, opcode, 0, 1, extras.len() as u8, 0, 0, 0];
        request.extend_from_slice(&(extras.len() as u32 + 1 + value.len() as u32).to_be_bytes());
        request.extend_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        request.extend_from_slice(extras);
        request.push(b'k');
        request.extend_from_slice(value);
        client.send(&request);
        let Some(status) = status else { return Vec::new() };
        let header = client.take(24);
        assert_eq!(
            (header[0], header[1], header[7], &header[12..16]),
            (0x81, opcode, status, &[1, 2, 3, 4][..])
        );
        client.take(u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize)
    };
    packet(0x01, &a, Some(0));
    packet(0x02, &b, Some(2));
    packet(0x11, &b, None);
    packet(0x0e, &a, Some(0));
    packet(0x19, b"end", None);
    packet(0x0f, &a, Some(0));
    // Both values are too large: the first one because of the result of the append, the second one
    // by itself.
    packet(0x0e, &vec![0; 900_000], Some(5));
    packet(0x03, &vec![0; 1_100_000], Some(3));
    let mut reader = server.connect();
    reader.send(b"get k\r\n");
    let joined = [&a[..], &b, &a, b"end"].concat();
    reader.expect(format!("VALUE k 9 {}\r\n", joined.len()).as_bytes());
    reader.expect(&joined);
}

#[test]
fn long_block_with_wrong_end_changes_nothing() {
    let server = server(1 << 20);
    let mut client = server.connect();
    client.set(b"k", b"old");
    let block = [&value(70_000)[..], b"XYmn\r\n"].concat();
    client.send(&[b"set k 0 0 70000\r\n", &block[..]].concat());
    client.expect(b"CLIENT_ERROR bad data chunk\r\nMN\r\n");
    client.send(&[b"ms k 70000\r\n", &block[..]].concat());
    client.expect(b"CLIENT_ERROR bad data chunk\r\nMN\r\n");
    client.expect_value(b"k", b"old");
}

#[test]
fn requests_around_a_long_value_are_served() {
    let server = server(1 << 20);
    let mut client = server.connect();
    let value = value(100_000);
    let set = [b"set k 0 0 100000\r\n", &value[..], b"\r\n"].concat();
    let mut stream = b"set a 0 0 1\r\na\r\nget a\r\n".to_vec();
    (0..30).for_each(|_| stream.extend_from_slice(&set));
    stream.extend_from_slice(b"get a k\r\nmn\r\n");
    client.send(&stream);
    client.expect(b"STORED\r\nVALUE a 0 1\r\na\r\nEND\r\n");
    client.expect(&b"STORED\r\n".repeat(30));
    client.expect(b"VALUE a 0 1\r\na\r\nVALUE k 0 100000\r\n");
    client.expect(&[&value[..], b"\r\nEND\r\nMN\r\n"].concat());
}

/// The part of an upload that has arrived counts as received, and as held by the engine. It is
/// freed when its client disconnects, in an orderly way or not.
#[test]
fn partial_upload_is_freed_after_a_disconnect() {
    let server = server(1 << 30);
    let mut other = server.connect();
    other.set(b"k", b"value");
    let held = |other: &mut Client| other.stat("read_buf_bytes").parse::<u64>().unwrap();
    let committed = |other: &mut Client| other.stat("todana_committed_bytes").parse::<u64>().unwrap();
    let before = committed(&mut other);
    let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send(b"set k 0 0 1000000000\r\n");
        client.send(&vec![b'v'; 3_000_000]);
    }
    eventually("all of it is read", || held(&mut other) > 12_000_000);
    assert!(held(&mut other) < 12_001_000, "{}", held(&mut other));
    // The pages that are used count, not the announced length.
    let taken = committed(&mut other) - before;
    assert!((12_000_000..12_000_000 + 4 * 4096).contains(&taken), "{taken}");
    other.expect_value(b"k", b"value");
    for (number, client) in clients.iter().enumerate() {
        if number % 2 == 0 {
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        } else {
            client.stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }
    eventually("nothing is kept", || held(&mut other) == 0);
    drop(clients);
    eventually("all of it is given back", || committed(&mut other) == before);
    other.expect_value(b"k", b"value");
}

/// A reader is served while every worker receives a long value in many pieces.
#[test]
fn others_are_served_while_long_values_come_in() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 1, item_size_max: 1 << 30, ..options().limits },
        ..options()
    });
    let mut other = server.connect();
    other.set(b"k", b"value");
    let mut client = server.connect();
    let sending = std::thread::spawn(move || {
        client.send(b"set huge 0 0 200000000\r\n");
        client.send(&vec![b'v'; 200_000_000]);
        client.send(b"\r\n");
        client.expect(b"STORED\r\n");
    });
    let mut meanwhile = 0;
    while other.stat("curr_items") == "1" {
        other.expect_value(b"k", b"value");
        meanwhile += 1;
    }
    sending.join().unwrap();
    assert!(meanwhile > 0);
}

/// Two clients append to one long record at the same time. Each piece must be in the result once,
/// and complete.
#[test]
fn appends_at_the_same_time_lose_nothing() {
    let server = server(64 << 20);
    let mut client = server.connect();
    client.set(b"k", &[b'0'; 100_000]);
    let appending: Vec<_> = [b'1', b'2', b'3']
        .map(|byte| {
            let mut client = server.connect();
            std::thread::spawn(move || {
                for _ in 0..40 {
                    store(&mut client, "append k 0 0 1000", &[byte; 1000], "STORED\r\n");
                    store(&mut client, "prepend k 0 0 1000", &[byte; 1000], "STORED\r\n");
                }
            })
        })
        .into();
    appending.into_iter().for_each(|thread| thread.join().unwrap());
    client.send(b"get k\r\n");
    client.expect(b"VALUE k 0 340000\r\n");
    let joined = client.take(340_000);
    for piece in joined.chunks(1000) {
        assert!(piece.iter().all(|byte| *byte == piece[0]));
    }
    for byte in [b'1', b'2', b'3'] {
        assert_eq!(joined.iter().filter(|other| **other == byte).count(), 80_000);
    }
    client.expect(b"\r\nEND\r\n");
}

#[test]
fn too_long_value_removes_the_old_one() {
    let server = server(1 << 20);
    let mut client = server.connect();
    for line in ["set k 0 0 3000000", "ms k 3000000 MA"] {
        client.set(b"k", b"old");
        let mut stream = format!("{line}\r\n").into_bytes();
        stream.resize(stream.len() + 3_000_000, b'v');
        client.stream.write_all(&stream).unwrap();
        client.expect(b"SERVER_ERROR object too large for cache\r\n");
        client.send(b"\r\nget k\r\n");
        client.expect(b"END\r\n");
    }
}
