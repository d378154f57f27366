//! Values over the limit, the kept bytes of incomplete packets, and forbidden commands.

use crate::exchange::send_within;
use crate::packet::{Packet, error, set};
use std::sync::Arc;
use todana_core::{Operation, RefusalReason, RefusedStore, Reply, SharedBytes, StoreMode};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::{
    LongBlock, MemcachedDecoder, MemcachedLimits, MemcachedStep, encode, item_size,
};

const ITEM_SIZE_MAX: u64 = 100;

fn small() -> MemcachedLimits {
    MemcachedLimits { item_size_max: ITEM_SIZE_MAX, ..MemcachedLimits::default() }
}

/// The longest value that a three-byte key without flags may have under `small`.
const FITS: usize = ITEM_SIZE_MAX as usize - 59 - 3;

#[test]
fn the_size_rule_is_that_of_text() {
    assert_eq!(item_size(3, FITS as u64, 0), ITEM_SIZE_MAX);
    for (packet, fits) in [
        (set("key", vec![b'v'; FITS]), true),
        (set("key", vec![b'v'; FITS + 1]), false),
        (Packet::new(0x01).u32(1).u32(0).key("key").value(vec![b'v'; FITS - 4]), true),
        (Packet::new(0x01).u32(1).u32(0).key("key").value(vec![b'v'; FITS - 3]), false),
        (Packet::new(0x0e).key("key").value(vec![b'v'; FITS]), true),
        (Packet::new(0x0e).key("key").value(vec![b'v'; FITS + 1]), false),
    ] {
        let outcome = send_within(small(), &packet.request());
        let done = Packet::new(packet.opcode).cas(42);
        let expected = if fits { done } else { error(packet.opcode, 0x03) };
        assert_eq!(outcome.replies, expected.response(), "to {packet:?}");
    }
}

/// A set of `key` to 5000 bytes.
fn refused_set(refusal: RefusalReason) -> RefusedStore<'static> {
    let mode = StoreMode::Set;
    RefusedStore { key: b"key", value_len: 5000, flags: 0, mode, compares: false, discards: true, refusal }
}

#[test]
fn value_over_the_limit_is_discarded() {
    for opcode in [0x01, 0x02, 0x03, 0x11, 0x12, 0x13, 0x0e, 0x0f, 0x19, 0x1a] {
        // The value would be valid packets if it were decoded.
        let packet = Packet::new(opcode).key("key").value(Packet::new(0x0b).request().repeat(5));
        let packet = if opcode & 0x0f < 4 { packet.u32(0).u32(0) } else { packet };
        let stream = [packet.request(), Packet::new(0x0a).request()].concat();
        let outcome = send_within(small(), &stream);
        assert_eq!(outcome.replies, [error(opcode, 0x03).response(), Packet::new(0x0a).response()].concat());
        // The client of a set assumes that the old value is gone.
        let end = format!("discards: {}, refusal: TooLarge }})) ", opcode & 0x0f == 1);
        let request = &outcome.requests[0];
        assert!(
            request.starts_with("Operation(RefusedStore") && request.contains(&end),
            "{opcode:#x}: {request}"
        );
    }
}

#[test]
fn set_over_the_limit_discards_any_version() {
    let outcome = send_within(small(), &set("key", [b'v'; 200]).cas(7).request());
    let expected = RefusedStore { value_len: 200, compares: true, ..refused_set(RefusalReason::TooLarge) };
    let expected = format!("{:?} ", MemcachedCommand::Operation(Operation::RefusedStore(expected)));
    assert!(outcome.requests[0].starts_with(&expected), "{:?}", outcome.requests);
}

#[test]
fn value_over_the_limit_is_never_kept() {
    let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
    let head = Packet { body_len: Some(1 << 30), ..set("key", "") }.request();
    let step = dialect.decode(&small(), &head[..head.len() - 1], &mut scratch);
    assert!(matches!(step, MemcachedStep::NeedMore { consumed: 0, at_least: 1 }), "{step:?}");
    let step = dialect.decode(&small(), &head, &mut scratch);
    let MemcachedStep::Request { consumed, request } = step else { panic!("{step:?}") };
    assert_eq!(
        (consumed, request.command),
        (
            head.len(),
            MemcachedCommand::Operation(Operation::RefusedStore(RefusedStore {
                value_len: (1 << 30) - (8 + 3),
                ..refused_set(RefusalReason::TooLarge)
            }))
        )
    );
    let mut left = (1 << 30) - (8 + 3);
    let piece = vec![0x80; 1 << 20];
    while left > 0 {
        let piece = &piece[..piece.len().min(left)];
        let step = dialect.decode(&small(), piece, &mut scratch);
        let MemcachedStep::NeedMore { consumed, at_least: 1 } = step else { panic!("{step:?}") };
        assert_eq!(consumed, piece.len(), "nothing is left for the server to keep");
        left -= piece.len();
    }
    let noop = Packet::new(0x0a).request();
    let step = dialect.decode(&small(), &noop, &mut scratch);
    assert!(
        matches!(step, MemcachedStep::Request { consumed: 24, request } if request.command == MemcachedCommand::Operation(Operation::Noop))
    );
}

/// The proxy sends the bytes of a request on. It skipped discarded blocks of lines only, so these
/// bytes began with the discarded body of the packet before: the next request was lost.
#[test]
fn discarded_body_is_skipped_in_any_pieces() {
    let unknown = Packet::new(0x50).key("key").value("a value").request();
    let too_long = set("key", vec![b'v'; 5000]).request();
    let next = set("key", "next").request();
    for refused in [unknown, too_long] {
        for piece_len in [1, 3, 7, 4000, 5000] {
            let (mut decoder, mut scratch) = (MemcachedDecoder::default(), Vec::new());
            let step = decoder.decode(&small(), &refused, &mut scratch);
            let MemcachedStep::Request { consumed, .. } = step else { panic!("{step:?}") };
            let body = &refused[consumed..];
            let skipped = body.chunks(piece_len).map(|piece| decoder.skip_discarded(piece));
            assert_eq!(skipped.sum::<usize>(), body.len());
            assert_eq!(decoder.skip_discarded(&next), 0);
            let step = decoder.decode(&small(), &next, &mut scratch);
            assert!(matches!(step, MemcachedStep::Request { consumed, .. } if consumed == next.len()));
        }
    }
}

#[test]
fn missing_bytes_of_a_value_are_exact() {
    let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
    let packet = set("key", vec![b'v'; 1000]).request();
    for (arrived, at_least) in
        [(0, 1), (1, 23), (23, 1), (24, 11), (34, 1), (35, 1000), (500, 535), (1034, 1)]
    {
        let step = dialect.decode(&MemcachedLimits::default(), &packet[..arrived], &mut scratch);
        assert!(
            matches!(step, MemcachedStep::NeedMore { consumed: 0, at_least: missing } if missing == at_least),
            "{arrived} bytes: {step:?}"
        );
    }
    let step = dialect.decode(&MemcachedLimits::default(), &packet, &mut scratch);
    assert!(matches!(step, MemcachedStep::Request { consumed: 1035, .. }), "{step:?}");
}

#[test]
fn a_forbidden_flush_is_refused_loud_and_quiet() {
    let forbidden = MemcachedLimits { flush_allowed: false, ..MemcachedLimits::default() };
    for opcode in [0x08, 0x18] {
        for packet in [Packet::new(opcode), Packet::new(opcode).u32(10)] {
            let stream = [packet.request(), Packet::new(0x0a).request()].concat();
            let outcome = send_within(forbidden, &stream);
            let expected = [error(opcode, 0x20).response(), Packet::new(0x0a).response()].concat();
            assert_eq!(outcome.replies, expected);
        }
    }
}

#[test]
fn value_beyond_available_memory_is_refused() {
    let limits = MemcachedLimits { unfinished_len_max: 1000, ..MemcachedLimits::default() };
    let set_refused = refused_set(RefusalReason::OutOfMemory);
    let refused = |mode| {
        MemcachedCommand::Operation(Operation::RefusedStore(RefusedStore {
            mode,
            discards: false,
            ..set_refused
        }))
    };
    let discard = MemcachedCommand::Operation(Operation::RefusedStore(set_refused));
    for (packet, command) in [
        (set("key", vec![b'v'; 5000]), discard),
        (Packet::new(0x12).u32(0).u32(0).key("key").value(vec![b'v'; 5000]), refused(StoreMode::Add)),
        (Packet::new(0x0e).key("key").value(vec![b'v'; 5000]), refused(StoreMode::Append)),
    ] {
        let (mut dialect, mut scratch, mut out) = (MemcachedDecoder::default(), Vec::new(), Vec::new());
        let bytes = packet.request();
        let step = dialect.decode(&limits, &bytes[..1000], &mut scratch);
        assert!(matches!(step, MemcachedStep::NeedMore { consumed: 0, .. }), "{step:?}");
        let step = dialect.decode(&limits, &bytes[..1001], &mut scratch);
        let MemcachedStep::Request { consumed, request } = step else { panic!("{step:?}") };
        assert_eq!((consumed, request.command), (bytes.len() - 5000, command));
        encode(&request.form, &Reply::Refused(RefusalReason::OutOfMemory), &mut out);
        assert_eq!(out, error(packet.opcode, 0x82).response());
        let step = dialect.decode(&limits, &bytes[consumed..], &mut scratch);
        assert!(matches!(step, MemcachedStep::NeedMore { consumed: 5000, at_least: 1 }), "{step:?}");

        // A packet that has arrived completely need not be kept, so it is accepted.
        let step = MemcachedDecoder::default().decode(&limits, &bytes, &mut scratch);
        assert!(
            matches!(step, MemcachedStep::Request { request, .. } if matches!(request.command, MemcachedCommand::Operation(Operation::Store(_)))),
            "{step:?}"
        );
    }
}

#[test]
fn long_value_is_announced_then_stored_or_refused() {
    let limits = MemcachedLimits { long_block_len: 5000, ..MemcachedLimits::default() };
    let set_refused = refused_set(RefusalReason::OutOfMemory);
    let refused = |mode| {
        MemcachedCommand::Operation(Operation::RefusedStore(RefusedStore {
            mode,
            discards: false,
            ..set_refused
        }))
    };
    let discard = MemcachedCommand::Operation(Operation::RefusedStore(set_refused));
    let value: SharedBytes = Arc::new(vec![b'v'; 5000]);
    for (packet, command) in [
        (set("key", vec![b'v'; 5000]), discard),
        (Packet::new(0x12).u32(0).u32(0).key("key").value(vec![b'v'; 5000]), refused(StoreMode::Add)),
        (Packet::new(0x19).key("key").value(vec![b'v'; 5000]), refused(StoreMode::Append)),
    ] {
        let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
        let bytes = packet.request();
        let head_len = bytes.len() - 5000;
        let step = dialect.decode(&limits, &bytes[..head_len - 1], &mut scratch);
        assert!(matches!(step, MemcachedStep::NeedMore { consumed: 0, .. }), "{step:?}");
        let step = dialect.decode(&limits, &bytes[..head_len], &mut scratch);
        let MemcachedStep::Block { consumed: 0, head_len: len, value_len: 5000, end_len: 0 } = step else {
            panic!("{step:?}")
        };
        assert_eq!(len, head_len);
        let mut stored = dialect;
        let whole = LongBlock::Whole { value: &value, end: b"" };
        // Meanwhile other requests may use all memory for incomplete requests; this one is
        // complete.
        let none_left = MemcachedLimits { unfinished_len_max: 0, ..limits };
        let step = stored.decode_block(&none_left, &bytes[..len], whole, &mut scratch);
        let MemcachedStep::Request { request, .. } = step else { panic!("{step:?}") };
        let MemcachedCommand::Operation(Operation::Store(store)) = request.command else {
            panic!("{request:?}")
        };
        assert_eq!((store.key, store.value), (&b"key"[..], value.plain().unwrap()));
        assert!(store.shared.0.is_some_and(|shared| Arc::ptr_eq(shared, &value)));
        let version = Packet::new(0x0b).request();
        let step = stored.decode(&limits, &version, &mut scratch);
        assert!(
            matches!(step, MemcachedStep::Request { request, .. } if request.command == MemcachedCommand::Version),
            "{step:?}"
        );
        for received in [0, 1, 5000] {
            let (mut refused, mut out) = (dialect, Vec::new());
            let block = LongBlock::Refused { received };
            let step = refused.decode_block(&limits, &bytes[..len], block, &mut scratch);
            let MemcachedStep::Request { request, .. } = step else { panic!("{step:?}") };
            assert_eq!(request.command, command);
            encode(&request.form, &Reply::Refused(RefusalReason::OutOfMemory), &mut out);
            assert_eq!(out, error(packet.opcode, 0x82).response());
            let rest = [&bytes[len + received..], &Packet::new(0x0b).request()].concat();
            let step = refused.decode(&limits, &rest, &mut scratch);
            assert!(
                matches!(step, MemcachedStep::Request { consumed, .. } if consumed == rest.len()),
                "{step:?}"
            );
        }
    }
}

#[test]
fn long_and_short_values_decode_alike() {
    let stream = [
        set("key", vec![b'v'; 20]).request(),
        Packet::new(0x19).key("key").value(vec![b'w'; 10]).request(),
        Packet::new(0x02).u32(7).u32(0).key("key").cas(9).value(vec![b'w'; 10]).request(),
        Packet::new(0x0a).request(),
    ]
    .concat();
    let short = send_within(MemcachedLimits::default(), &stream);
    assert_eq!(short.requests.len(), 4);
    for long_block_len in [0, 1, 20] {
        assert_eq!(
            send_within(MemcachedLimits { long_block_len, ..MemcachedLimits::default() }, &stream),
            short
        );
    }
}
