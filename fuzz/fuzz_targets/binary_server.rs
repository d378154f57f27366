//! Binary packets: any bytes, split in any way, yield the same commands and responses, keep the
//! decoder's promises, and are answered in complete packets.
//!
//! The input has the form of `text_server`: a byte that selects the limits, a byte with the number
//! of cuts, the cuts (two bytes each), and the stream, which here begins after the first byte of
//! the first packet.
#![no_main]

mod cuts;
#[path = "../../protocol/tests/memcached_server/exchange.rs"]
mod exchange;

use todana_protocol::memcached::MemcachedLimits;

const HEADER: usize = 24;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let limits = [
        MemcachedLimits::default(),
        MemcachedLimits { item_size_max: 70, ..MemcachedLimits::default() },
        MemcachedLimits { sasl: true, ..MemcachedLimits::default() },
        MemcachedLimits {
            item_size_max: u64::MAX,
            flush_allowed: false,
            long_block_len: 4,
            ..MemcachedLimits::default()
        },
    ];
    if let Some((stream, whole)) = cuts::assert_cuts_do_not_matter(input, b"\x80", &limits) {
        assert_replies_are_whole_packets(&whole.replies, &stream);
    }
});

/// Asserts that each response has the right first byte and the announced length, and returns an
/// opcode and an opaque that were sent.
fn assert_replies_are_whole_packets(mut replies: &[u8], stream: &[u8]) {
    while !replies.is_empty() {
        let (header, rest) = replies.split_at_checked(HEADER).expect("a header is whole");
        assert_eq!(header[0], 0x81);
        let key_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let body_len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        assert!(key_len + usize::from(header[4]) <= body_len, "key and extras are in the body");
        let is_asked_for = |packet: &[u8]| packet[1] == header[1] && packet[12..16] == header[12..16];
        assert!(stream.windows(16).any(is_asked_for), "an answer to nothing");
        replies = rest.split_at_checked(body_len).expect("a body is whole").1;
    }
}
