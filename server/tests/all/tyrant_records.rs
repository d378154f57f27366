//! Tests Tokyo Tyrant's commands on records. Each reply must be that of the original server, byte
//! for byte.

use crate::running;
use crate::tyrant_client;

use running::{Running, options};
use todana_protocol::tyrant::{TyrantPutMode, TyrantRequest};
use todana_server::{AuthenticationMode, LimitOptions, ProtocolOptions, ServerOptions};
use tyrant_client::{ask, hex, replay, tyrant};

/// `rnum` and its reply for a number of records.
const COUNT: &str = "c880";

#[test]
fn records_are_stored_and_read_byte_for_byte() {
    replay(
        tyrant,
        &[
            ("c81000000003000000056162633132333435", "00"),
            ("c811000000030000000161626358", "01"),
            ("c81200000003000000026162633637", "00"),
            ("c83000000003616263", "00 00000007 31323334353637"),
            ("c811 00000002 00000002 6b32 7632", "00"),
            ("c81200000002000000036e72796573", "00"),
            ("c82000000002 6e72", "00"),
            // putnr has no reply.
            ("c81800000002000000036e72796573c830000000026e72", "0000000003796573"),
            ("c838000000026e72", "0000000003"),
            ("c830000000046e6f7065", "01"),
            ("c838000000046e6f7065", "01"),
            ("c820000000026e72", "00"),
            ("c820000000026e72", "01"),
            // The empty key is an ordinary one.
            ("c810000000000000000165", "00"),
            ("c83000000000", "000000000165"),
            (COUNT, "00 0000000000000003"),
            ("c870", "00"),
            ("c872", "00"),
            (COUNT, "00 0000000000000000"),
        ],
    );
}

#[test]
fn several_records_are_read_in_request_order() {
    replay(
        tyrant,
        &[
            ("c81000000002000000036e72796573", "00"),
            ("c81000000002000000026b327632", "00"),
            (
                "c83100000004000000026e72000000046e6f7065000000026b32000000026e72",
                "000000000300000002000000036e7279657300000002000000026b32763200000002000000036e72796573",
            ),
            ("c83100000001000000046e6f7065", "0000000000"),
            ("c83100000000", "0000000000"),
        ],
    );
}

#[test]
fn malformed_request_closes_after_earlier_replies() {
    let server = Running::start(tyrant());
    // The last two ask to be a replica: from no time stamp, and with the server's own ID.
    for malformed in [
        "c899",
        "c830ffffffff",
        "c83010000001",
        "c831ffffffff",
        "c8a0 0000000000000000 00000063",
        "c8a0 0000000000000001 00000001",
    ] {
        let mut client = server.connect();
        client.send(&[hex("c880"), hex(malformed)].concat());
        assert_eq!(client.rest(), hex("00 0000000000000000"), "{malformed}");
    }
    server.connect().expect_version();
}

#[test]
fn server_without_log_closes_after_its_id() {
    let server = Running::start(tyrant());
    let mut client = server.connect();
    client.send(&hex("c8a0 0000000000000001 00000063"));
    assert_eq!(client.rest(), hex("00000001"));
}

#[test]
fn unsupported_commands_fail_and_keep_the_connection() {
    let server = Running::start(tyrant());
    let mut client = server.connect();
    for request in [
        "c868000000040000000000000001000000016563686f6b76",
        "c873000000086e6f737566666978",
        "c874000000050000000000000001000000006e6f646972",
    ] {
        client.send(&hex(request));
        client.expect(&[1]);
    }
    client.send(&hex("c890000000030000000000000000666f6f"));
    client.expect(&hex("0100000000"));
    client.send(&hex(COUNT));
    client.expect(&hex("00 0000000000000000"));
}

#[test]
fn long_value_and_many_requests_keep_order() {
    let server = Running::start(tyrant());
    let mut client = server.connect();
    let long = vec![b'x'; 300_000];
    ask(&mut client, &TyrantRequest::Put { mode: TyrantPutMode::Put, key: b"long", value: &long }, &[0]);
    let long_reply = [&[0][..], &300_000_u32.to_be_bytes(), &long].concat();
    ask(&mut client, &TyrantRequest::Get { key: b"long" }, &long_reply);
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for number in 0..5_000_u32 {
        let (key, value) = (number.to_be_bytes(), format!("value {number}"));
        TyrantRequest::Put { mode: TyrantPutMode::NoReply, key: &key, value: value.as_bytes() }
            .encode(&mut requests);
        TyrantRequest::Get { key: &key }.encode(&mut requests);
        replies.extend([&[0][..], &(value.len() as u32).to_be_bytes(), value.as_bytes()].concat());
    }
    let mut writer = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &requests).unwrap());
    client.expect(&replies);
    writing.join().unwrap();
}

#[test]
fn other_dialects_share_records_and_their_attributes() {
    let server = Running::start(tyrant());
    let (mut memcached, mut tyrant) = (server.connect(), server.connect());
    memcached.send(b"set k 7 0 1\r\na\r\n");
    memcached.expect(b"STORED\r\n");
    // putcat keeps the flags, and put drops them.
    ask(&mut tyrant, &TyrantRequest::Put { mode: TyrantPutMode::Cat, key: b"k", value: b"b" }, &[0]);
    memcached.send(b"get k\r\n");
    memcached.expect(b"VALUE k 7 2\r\nab\r\nEND\r\n");
    ask(&mut tyrant, &TyrantRequest::Put { mode: TyrantPutMode::Put, key: b"k", value: b"c" }, &[0]);
    memcached.expect_value(b"k", b"c");
}

#[test]
fn text_after_a_binary_request_is_served() {
    let server = Running::start(tyrant());
    let mut client = server.connect();
    client.send(&[hex("c8100000000100000001 6231"), b"get b\r\n".to_vec()].concat());
    client.expect(b"\0VALUE b 0 1\r\n1\r\nEND\r\n");
    client.expect_version();
}

#[test]
fn server_that_forbids_flushes_keeps_its_records() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { flush_allowed: false, ..options().limits },
        ..tyrant()
    });
    let mut client = server.connect();
    ask(&mut client, &TyrantRequest::Put { mode: TyrantPutMode::Put, key: b"k", value: b"v" }, &[0]);
    ask(&mut client, &TyrantRequest::Vanish, &[1]);
    ask(&mut client, &TyrantRequest::Get { key: b"k" }, b"\0\0\0\0\x01v");
}

/// The protocol has no login, so a server with logins does not speak it.
#[test]
fn server_with_logins_refuses_the_protocol() {
    let users = std::env::temp_dir().join(format!("todana-tyrant-users-{}", std::process::id()));
    std::fs::write(&users, "user:password\n").unwrap();
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            authentication: AuthenticationMode::Text(users.clone()),
            ..tyrant().protocols
        },
        ..tyrant()
    });
    let mut client = server.connect();
    client.send(&hex(COUNT));
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.rest(), b"");
    std::fs::remove_file(users).unwrap();
}
