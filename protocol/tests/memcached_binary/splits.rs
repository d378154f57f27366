//! Tests that the results do not depend on how a stream is split, and that no bytes make the
//! decoder panic or stop.

use crate::exchange::send_in_pieces;
use crate::packet::Packet;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use todana_protocol::memcached::MemcachedLimits;

/// Returns a nearly valid packet: lengths mostly fit, and opcodes are mostly known.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![8 => 0u8..0x26, 1 => any::<u8>()];
    let extras = prop_oneof![Just(0usize), Just(4), Just(8), Just(20), 0usize..30];
    let lengths = prop_oneof![9 => Just((0i32, 0i32)), 1 => (-3i32..3, -300i32..300)];
    (opcode, extras, 0usize..6, 0usize..150, lengths, 0u64..3).prop_map(
        |(opcode, extras, key, value, (key_off, body_off), cas)| {
            let body = (extras + key + value) as i32;
            Packet {
                key_len: Some((key as i32 + key_off).max(0) as u16),
                body_len: Some((body + body_off).max(0) as u32),
                ..Packet::new(opcode)
                    .extras(vec![1; extras])
                    .key(vec![b'k'; key])
                    .value(vec![b'v'; value])
                    .cas(cas)
            }
            .request()
        },
    )
}

fn limits() -> impl Strategy<Value = MemcachedLimits> {
    (prop_oneof![Just(100u64), Just(1 << 20)], any::<bool>(), any::<bool>()).prop_map(
        |(item_size_max, flush_allowed, sasl)| MemcachedLimits {
            item_size_max,
            flush_allowed,
            sasl,
            ..MemcachedLimits::default()
        },
    )
}

fn assert_cuts_do_not_matter(limits: MemcachedLimits, stream: &[u8], cuts: &[Index]) {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    cuts.sort_unstable();
    let whole = send_in_pieces(limits, stream, &[]);
    assert_eq!(whole, send_in_pieces(limits, stream, &cuts), "cut at {cuts:?}");
    let every_byte: Vec<usize> = (1..stream.len()).collect();
    assert_eq!(whole, send_in_pieces(limits, stream, &every_byte), "byte by byte");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn packet_streams_may_be_split_anywhere(
        limits in limits(),
        packets in vec(packet(), 0..6),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        assert_cuts_do_not_matter(limits, &packets.concat(), &cuts);
    }

    #[test]
    fn so_do_streams_of_anything(
        limits in limits(),
        bytes in vec(any::<u8>(), 0..200),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        assert_cuts_do_not_matter(limits, &[b"\x80", &bytes[..]].concat(), &cuts);
    }
}
