//! The shape of the SASL packets; their meaning is the server's.

use crate::exchange::{send, send_within};
use crate::packet::{Packet, error, well_formed};
use todana_protocol::memcached::MemcachedLimits;
use todana_protocol::memcached::{LoginCredentials, MemcachedCommand};

fn sasl() -> MemcachedLimits {
    MemcachedLimits { sasl: true, ..MemcachedLimits::default() }
}

#[test]
fn sasl_is_unknown_without_authentication() {
    for opcode in 0x20..=0x22 {
        let stream = [well_formed(opcode).request(), Packet::new(0x0a).request()].concat();
        let expected = [error(opcode, 0x81).response(), Packet::new(0x0a).response()].concat();
        assert_eq!(send(&stream).replies, expected);
    }
}

#[test]
fn a_list_of_mechanisms_is_the_body() {
    let outcome = send_within(sasl(), &Packet::new(0x20).request());
    assert_eq!(outcome.replies, Packet::new(0x20).value("PLAIN").response());
    assert!(outcome.requests[0].starts_with("Mechanisms "));
}

#[test]
fn mechanism_and_response_reach_the_server_unchanged() {
    for (opcode, continues) in [(0x21, false), (0x22, true)] {
        let packet = Packet::new(opcode).key("PLAIN").value("\0user\0secret");
        let outcome = send_within(sasl(), &packet.request());
        let command = MemcachedCommand::Authenticate(LoginCredentials {
            mechanism: b"PLAIN",
            response: b"\0user\0secret",
            continues,
        });
        assert!(outcome.requests[0].starts_with(&format!("{command:?} ")), "{:?}", outcome.requests);
        assert_eq!(outcome.replies, Packet::new(opcode).value("Authenticated").response());
    }
}

#[test]
fn refusal_fails_and_challenge_continues() {
    for opcode in [0x21, 0x22] {
        let refused = Packet::new(opcode).key("PLAIN").value("\0missing\0secret");
        assert_eq!(send_within(sasl(), &refused.request()).replies, error(opcode, 0x20).response());
        let challenged = Packet::new(opcode).key("PLAIN");
        let challenge = Packet::new(opcode).status(0x21).value("who are you");
        assert_eq!(send_within(sasl(), &challenged.request()).replies, challenge.response());
    }
}

#[test]
fn long_mechanisms_and_responses_are_discarded() {
    let version = Packet::new(0x0b);
    let answer = Packet::new(0x0b).value("1.6.45");
    for (packet, is_fine) in [
        (Packet::new(0x21).key("M".repeat(32)).value("r"), true),
        (Packet::new(0x21).key("M".repeat(33)).value("r"), false),
        (Packet::new(0x21).key("PLAIN").value("r".repeat(16 << 10)), true),
        (Packet::new(0x22).key("PLAIN").value("r".repeat((16 << 10) + 1)), false),
    ] {
        let outcome = send_within(sasl(), &[packet.request(), version.request()].concat());
        let accepted = Packet::new(packet.opcode).value("Authenticated");
        let expected = if is_fine { accepted } else { error(packet.opcode, 0x04) };
        assert_eq!(outcome.replies, [expected.response(), answer.response()].concat());
    }
}

#[test]
fn version_and_sasl_are_allowed_before_login() {
    let stream =
        [Packet::new(0x0b).request(), Packet::new(0x20).request(), Packet::new(0x0b).request()].concat();
    let outcome = send_within(sasl(), &stream);
    let version = Packet::new(0x0b).value("1.6.45").response();
    let expected = [version.clone(), Packet::new(0x20).value("PLAIN").response(), version].concat();
    assert_eq!((outcome.replies, outcome.closed), (expected, false));
}

#[test]
fn other_opcodes_before_login_close_the_connection() {
    let noop = Packet::new(0x0a);
    for opcode in 0..=0xff {
        if matches!(opcode, 0x0b | 0x20..=0x22) {
            continue;
        }
        // Includes quit and unknown opcodes.
        let outcome = send_within(sasl(), &[well_formed(opcode).request(), noop.request()].concat());
        assert_eq!(outcome.replies, error(opcode, 0x20).response(), "{opcode:#x}");
        assert!(outcome.closed, "{opcode:#x}");
    }
}

#[test]
fn value_before_login_is_not_awaited() {
    let packet = Packet { body_len: Some(1 << 20), ..Packet::new(0x01).extras("12345678").key("k") };
    let outcome = send_within(sasl(), &packet.request()[..24]);
    assert_eq!(outcome.replies, error(0x01, 0x20).response());
    assert!(outcome.closed);
}

#[test]
fn failed_second_login_ends_the_first() {
    let known = Packet::new(0x21).key("PLAIN").value("\0user\0secret");
    let unknown = Packet::new(0x21).key("PLAIN").value("\0missing\0secret");
    let challenged = Packet::new(0x21).key("PLAIN");
    let noop = Packet::new(0x0a);
    let accepted = Packet::new(0x21).value("Authenticated").response();
    for (again, answer) in [
        (unknown, error(0x21, 0x20).response()),
        (challenged, Packet::new(0x21).status(0x21).value("who are you").response()),
    ] {
        let stream = [known.request(), noop.request(), again.request(), noop.request()].concat();
        let outcome = send_within(sasl(), &stream);
        let expected = [accepted.clone(), noop.response(), answer, error(0x0a, 0x20).response()].concat();
        assert_eq!((outcome.replies, outcome.closed), (expected, true));
    }
}

#[test]
fn sasl_packets_with_wrong_shapes_are_refused() {
    for packet in [
        Packet::new(0x20).key("PLAIN"),
        Packet::new(0x20).value("x"),
        Packet::new(0x21),
        Packet::new(0x21).value("x"),
        Packet::new(0x22).extras("1234").key("PLAIN"),
    ] {
        for limits in [sasl(), MemcachedLimits::default()] {
            let outcome = send_within(limits, &packet.request());
            assert_eq!(outcome.replies, error(packet.opcode, 0x04).response());
            assert!(outcome.closed);
        }
    }
}
