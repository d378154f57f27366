//! The choice of the dialect for a connection.

use crate::exchange::{send, send_within};
use crate::packet::Packet;
use todana_protocol::memcached::{DialectChoice, MemcachedLimits};

fn limits(choice: DialectChoice) -> MemcachedLimits {
    MemcachedLimits { choice, ..MemcachedLimits::default() }
}

#[test]
fn the_first_byte_chooses_for_the_whole_connection() {
    let outcome = send(&[Packet::new(0x0a).request(), b"version\r\n".to_vec()].concat());
    assert_eq!(outcome.replies, Packet::new(0x0a).response());
    assert!(outcome.closed, "text behind a packet");

    // Decoded as a line: it begins with a byte that no command has.
    let outcome = send(&[b"version\r\n".to_vec(), Packet::new(0x0b).request(), b"\r\n".to_vec()].concat());
    assert_eq!(outcome.replies, b"VERSION 1.6.45\r\nERROR\r\n");
    assert!(!outcome.closed);
}

#[test]
fn text_only_takes_a_packet_for_a_line() {
    let outcome = send_within(limits(DialectChoice::Text), b"\x80\x0b\0\0\r\nversion\r\n");
    assert_eq!(outcome.replies, b"ERROR\r\nVERSION 1.6.45\r\n");
}

#[test]
fn binary_only_closes_on_text() {
    for line in ["version\r\n", "\r\n", "get k\r\n"] {
        let outcome = send_within(limits(DialectChoice::Binary), line.as_bytes());
        assert!(outcome.closed && outcome.replies.is_empty(), "{line:?}");
    }
    let outcome = send_within(limits(DialectChoice::Binary), &Packet::new(0x0a).request());
    assert_eq!(outcome.replies, Packet::new(0x0a).response());
}

#[test]
fn dialect_is_open_before_the_first_byte() {
    for choice in [DialectChoice::Auto, DialectChoice::Text, DialectChoice::Binary] {
        let outcome = send_within(limits(choice), b"");
        assert!(!outcome.closed && outcome.requests.is_empty());
    }
}
