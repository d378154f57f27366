//! The bytes of every reply. The exchange answers depending on the key: see its `answer`.

use crate::exchange::send;
use crate::packet::{OPAQUE, Packet, error, well_formed};
use todana_core::{Attributes, Record, Reply, SharedBytes};
use todana_protocol::memcached::{MemcachedDecoder, MemcachedLimits, MemcachedStep, ReplySink, encode};

/// Asserts that the request is answered by exactly these packets, and that the connection stays
/// open.
#[track_caller]
fn assert_answer(request: &Packet, answer: &[Packet]) {
    let outcome = send(&request.request());
    let expected: Vec<u8> = answer.iter().flat_map(Packet::response).collect();
    assert_eq!(
        outcome.replies.escape_ascii().to_string(),
        expected.escape_ascii().to_string(),
        "to {request:?}"
    );
    assert!(!outcome.closed, "closed after {request:?}");
    assert_eq!(outcome.unread, 0, "unread of {request:?}");
}

fn keyed(opcode: u8, key: &str) -> Packet {
    well_formed(opcode).key(key)
}

#[test]
fn a_hit_is_written_as_it_is_drawn() {
    let outcome = send(b"\x80\x0c\0\x03\0\0\0\0\0\0\0\x03\x01\x02\x03\x04\0\0\0\0\0\0\0\0key");
    let expected: &[u8] =
        b"\x81\x0c\0\x03\x04\0\0\0\0\0\0\x0c\x01\x02\x03\x04\0\0\0\0\0\0\0\x2a\0\0\0\x05keyvalue";
    assert_eq!(outcome.replies.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn an_error_is_written_as_it_is_drawn() {
    let outcome = send(b"\x80\x00\0\x07\0\0\0\0\0\0\0\x07\x01\x02\x03\x04\0\0\0\0\0\0\0\0missing");
    let expected: &[u8] = b"\x81\x00\0\0\0\0\0\x01\0\0\0\x09\x01\x02\x03\x04\0\0\0\0\0\0\0\0Not found";
    assert_eq!(outcome.replies.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

#[test]
fn hits_have_flags_version_and_requested_keys() {
    for opcode in [0x00, 0x09, 0x1d, 0x1e] {
        assert_answer(&keyed(opcode, "key"), &[Packet::new(opcode).u32(5).value("value").cas(42)]);
    }
    for opcode in [0x0c, 0x0d, 0x23, 0x24] {
        let hit = Packet::new(opcode).u32(5).key("key").value("value").cas(42);
        assert_answer(&keyed(opcode, "key"), &[hit]);
    }
}

#[test]
fn touch_answers_flags_and_version_without_the_value() {
    assert_answer(&keyed(0x1c, "key"), &[Packet::new(0x1c).u32(5).cas(42)]);
    assert_answer(&keyed(0x1c, "missing"), &[error(0x1c, 0x01)]);
}

#[test]
fn misses_are_reported_echoed_or_hidden() {
    for opcode in [0x00, 0x1d] {
        assert_answer(&keyed(opcode, "missing"), &[error(opcode, 0x01)]);
    }
    for opcode in [0x0c, 0x23] {
        assert_answer(&keyed(opcode, "missing"), &[Packet::new(opcode).status(1).key("missing")]);
    }
    for opcode in [0x09, 0x0d, 0x1e, 0x24] {
        assert_answer(&keyed(opcode, "missing"), &[]);
    }
}

#[test]
fn a_quiet_read_hides_its_miss_only() {
    for opcode in [0x09, 0x0d, 0x1e, 0x24] {
        assert_answer(&keyed(opcode, "full"), &[error(opcode, 0x82)]);
    }
}

#[test]
fn stores_answer_the_new_version() {
    for opcode in [0x01, 0x02, 0x03, 0x0e, 0x0f] {
        assert_answer(&keyed(opcode, "key"), &[Packet::new(opcode).cas(42)]);
    }
    for opcode in [0x11, 0x12, 0x13, 0x19, 0x1a] {
        assert_answer(&keyed(opcode, "key"), &[]);
    }
}

#[test]
fn failed_store_condition_is_reported() {
    for (opcodes, status) in
        [([0x02, 0x12], 0x02), ([0x03, 0x13], 0x01), ([0x0e, 0x19], 0x05), ([0x0f, 0x1a], 0x05)]
    {
        for opcode in opcodes {
            assert_answer(&keyed(opcode, "notstored"), &[error(opcode, status)]);
        }
    }
}

#[test]
fn errors_are_answered_loud_and_quiet() {
    let stores = [0x01, 0x02, 0x03, 0x0e, 0x0f, 0x11, 0x12, 0x13, 0x19, 0x1a];
    for opcode in stores {
        assert_answer(&keyed(opcode, "exists").cas(7), &[error(opcode, 0x02)]);
        assert_answer(&keyed(opcode, "missing").cas(7), &[error(opcode, 0x01)]);
        assert_answer(&keyed(opcode, "large"), &[error(opcode, 0x03)]);
        assert_answer(&keyed(opcode, "full"), &[error(opcode, 0x82)]);
    }
    for opcode in [0x04, 0x14] {
        assert_answer(&keyed(opcode, "missing"), &[error(opcode, 0x01)]);
        assert_answer(&keyed(opcode, "exists"), &[error(opcode, 0x02)]);
    }
    for opcode in [0x05, 0x06, 0x15, 0x16] {
        assert_answer(&keyed(opcode, "missing"), &[error(opcode, 0x01)]);
        assert_answer(&keyed(opcode, "exists"), &[error(opcode, 0x02)]);
        assert_answer(&keyed(opcode, "words"), &[error(opcode, 0x06)]);
        assert_answer(&keyed(opcode, "full"), &[error(opcode, 0x82)]);
    }
}

#[test]
fn counting_answers_eight_bytes_and_the_version() {
    for opcode in [0x05, 0x06] {
        let number = Packet::new(opcode).value([0, 0, 0, 0, 0, 0, 0x04, 0xd2]).cas(42);
        assert_answer(&keyed(opcode, "key"), &[number]);
    }
    for opcode in [0x15, 0x16] {
        assert_answer(&keyed(opcode, "key"), &[]);
    }
}

#[test]
fn success_is_an_empty_packet_or_none() {
    for opcode in [0x04, 0x08, 0x0a] {
        assert_answer(&well_formed(opcode), &[Packet::new(opcode)]);
    }
    for opcode in [0x14, 0x18] {
        assert_answer(&well_formed(opcode), &[]);
    }
}

#[test]
fn version_is_the_body() {
    assert_answer(&Packet::new(0x0b), &[Packet::new(0x0b).value("1.6.45")]);
}

#[test]
fn statistics_are_packets_with_an_empty_last_one() {
    let stat = Packet::new(0x10);
    assert_answer(
        &stat,
        &[stat.clone().key("pid").value("1"), stat.clone().key("curr_items").value("0"), stat.clone()],
    );
    assert_answer(&stat.clone().key("reset"), &[Packet::new(0x10)]);
    // A group that the codec knows and the server does not, and one that neither knows.
    assert_answer(&stat.clone().key("slabs"), &[error(0x10, 0x01)]);
    assert_answer(&stat.clone().key("conns"), &[error(0x10, 0x01)]);
}

#[test]
fn quit_is_answered_and_quitq_only_closes() {
    let behind = well_formed(0x0a).request();
    let quit = send(&[Packet::new(0x07).request(), behind.clone()].concat());
    assert_eq!(quit.replies, Packet::new(0x07).response());
    assert!(quit.closed);
    assert_eq!(quit.requests.len(), 1, "what stands behind is not looked at");

    let quitq = send(&[Packet::new(0x17).request(), behind].concat());
    assert!(quitq.replies.is_empty());
    assert!(quitq.closed);
    assert_eq!(quitq.requests.len(), 1);
}

#[test]
fn form_of_quit_closes_the_connection() {
    for (packet, closes) in
        [(Packet::new(0x07), true), (Packet::new(0x0a), false), (well_formed(0x01), false)]
    {
        let (request, mut scratch) = (packet.request(), Vec::new());
        let step = MemcachedDecoder::default().decode(&MemcachedLimits::default(), &request, &mut scratch);
        let MemcachedStep::Request { request, .. } = step else { panic!("{step:?}") };
        assert_eq!(request.form.closes(), closes);
        assert!(!request.form.is_silent());
    }
}

/// A sink that separates shared from copied bytes.
#[derive(Default)]
struct Shares {
    copied: Vec<u8>,
    shared: usize,
}

impl ReplySink for Shares {
    fn put(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
    }

    fn share(&mut self, bytes: &SharedBytes) {
        self.shared += bytes.len();
    }
}

#[test]
fn large_values_are_shared_and_not_copied() {
    let value: SharedBytes = std::sync::Arc::new(vec![7; 100_000]);
    let bytes = value.plain().unwrap();
    let mut hit = crate::exchange::hit(b"key");
    hit.record = Record {
        shared: Some(&value),
        ..Record::new(bytes, Attributes { flags: 5, ..Attributes::default() })
    };
    for (opcode, copied, shared) in [
        (0x00, Packet { body_len: Some(100_004), ..Packet::new(0x00).u32(5) }, 100_000),
        (0x0c, Packet { body_len: Some(100_007), ..Packet::new(0x0c).u32(5).key("key") }, 100_000),
        (0x1c, Packet::new(0x1c).u32(5), 0),
    ] {
        let (request, mut scratch) = (well_formed(opcode).request(), Vec::new());
        let step = MemcachedDecoder::default().decode(&MemcachedLimits::default(), &request, &mut scratch);
        let MemcachedStep::Request { request, .. } = step else { panic!("{step:?}") };
        let mut out = Shares::default();
        encode(&request.form, &Reply::Hit(hit), &mut out);
        assert_eq!(out.copied, copied.response());
        assert_eq!(out.shared, shared);
    }
}

#[test]
fn opaque_is_returned_unchanged() {
    let other = [0x00, 0x0d, 0x0a, 0xff];
    let mut request = Packet::new(0x0a).request();
    request[12..16].copy_from_slice(&other);
    let reply = send(&request).replies;
    assert_eq!(reply[12..16], other);
    assert_eq!(send(&Packet::new(0x0a).request()).replies[12..16], OPAQUE);
}
