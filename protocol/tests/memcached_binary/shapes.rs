//! Packets with wrong shapes, and unknown opcodes.

use crate::exchange::send;
use crate::packet::{Packet, SERVED, error, well_formed};

/// Asserts that the packet is answered by this status, and that the connection is closed without
/// serving the following bytes.
#[track_caller]
fn assert_fatal(packet: &Packet, status: u16) {
    let stream = [packet.request(), Packet::new(0x0a).request()].concat();
    let outcome = send(&stream);
    assert_eq!(
        outcome.replies.escape_ascii().to_string(),
        error(packet.opcode, status).response().escape_ascii().to_string(),
        "to {packet:?}"
    );
    assert!(outcome.closed, "open after {packet:?}");
}

#[test]
fn extras_of_another_length_are_fatal() {
    for opcode in SERVED {
        let right = well_formed(opcode);
        for len in 0..=24 {
            let also_right = matches!(opcode, 0x08 | 0x18) && len == 4;
            if len != right.extras.len() && !also_right {
                assert_fatal(&Packet { extras: vec![0; len], ..right.clone() }, 0x04);
            }
        }
    }
}

#[test]
fn missing_and_unexpected_keys_are_fatal() {
    for opcode in SERVED {
        let right = well_formed(opcode);
        match opcode {
            // The optional key is the group.
            0x10 => {}
            _ if right.key.is_empty() => assert_fatal(&right.key("key"), 0x04),
            _ => assert_fatal(&right.key(""), 0x04),
        }
    }
}

#[test]
fn unexpected_value_is_fatal() {
    for opcode in SERVED {
        if well_formed(opcode).value.is_empty() {
            assert_fatal(&well_formed(opcode).value("v"), 0x04);
        }
    }
}

#[test]
fn a_key_over_250_bytes_is_fatal() {
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x09, 0x0e, 0x10, 0x11, 0x1c, 0xff] {
        assert_fatal(&well_formed(opcode).key("k".repeat(251)), 0x04);
    }
    let longest = well_formed(0x00).key("k".repeat(250));
    assert!(!send(&longest.request()).closed);
}

#[test]
fn a_body_over_a_gigabyte_is_fatal() {
    for opcode in [0x00, 0x01, 0x0e, 0xff] {
        for body_len in [(1 << 30) + 1, u32::MAX] {
            assert_fatal(&Packet { body_len: Some(body_len), ..well_formed(opcode) }, 0x04);
        }
    }
}

#[test]
fn key_and_extras_beyond_the_body_are_fatal() {
    for opcode in SERVED {
        for packet in [
            Packet { key_len: Some(u16::MAX), ..well_formed(opcode) },
            Packet { extras_len: Some(255), ..well_formed(opcode) },
            Packet { body_len: Some(2), key_len: Some(3), ..well_formed(opcode) },
            Packet { body_len: Some(0), key_len: Some(0), extras_len: Some(1), ..well_formed(opcode) },
        ] {
            assert_fatal(&packet, 0x81);
        }
    }
}

#[test]
fn another_magic_closes_without_a_word() {
    for magic in [0x00, 0x7f, 0x81, b'g', 0xff] {
        let mut other = Packet::new(0x0a).request();
        other[0] = magic;
        let outcome = send(&[Packet::new(0x0b).request(), other, Packet::new(0x0a).request()].concat());
        assert_eq!(outcome.replies, Packet::new(0x0b).value("1.6.45").response());
        assert!(outcome.closed);
    }
}

#[test]
fn a_response_sent_as_a_request_closes() {
    let stream = [Packet::new(0x0a).request(), Packet::new(0x0a).response()].concat();
    let outcome = send(&stream);
    assert_eq!(outcome.replies, Packet::new(0x0a).response());
    assert!(outcome.closed);
}

#[test]
fn unknown_packets_are_discarded_exactly() {
    for opcode in (0..=255).filter(|opcode| !SERVED.contains(opcode) && !(0x20..=0x22).contains(opcode)) {
        for packet in [
            Packet::new(opcode),
            Packet::new(opcode).key("key"),
            Packet::new(opcode).extras("1234").key("key").value(Packet::new(0x0b).request()),
        ] {
            let stream = [packet.request(), Packet::new(0x0a).request()].concat();
            let outcome = send(&stream);
            let expected = [error(opcode, 0x81).response(), Packet::new(0x0a).response()].concat();
            assert_eq!(outcome.replies, expected, "to {packet:?}");
            assert!(!outcome.closed);
        }
    }
}

#[test]
fn unknown_statistics_group_is_not_found() {
    let stream = [Packet::new(0x10).key("conns").request(), Packet::new(0x0a).request()].concat();
    let outcome = send(&stream);
    assert_eq!(outcome.replies, [error(0x10, 0x01).response(), Packet::new(0x0a).response()].concat());
}
