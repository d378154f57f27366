//! Binary packets: any bytes, cut in any way, yield the same commands and responses, keep the decoder's promises, and are
//! answered in whole packets.
//!
//! The input is as that of `text_server`: a byte that chooses the limits, a byte that says how many cuts follow, the
//! cuts (two bytes each), and the stream, which here begins behind the first packet's first byte.
#![no_main]

#[path = "../../protocol/tests/memcached_server/exchange.rs"]
mod exchange;

use exchange::send_in_pieces;
use todana_protocol::memcached::Limits;

const HEADER: usize = 24;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let [limits, cut_count, rest @ ..] = input else { return };
    let Some((cuts, stream)) = rest.split_at_checked(usize::from(cut_count % 8) * 2) else { return };
    let stream = [b"\x80", stream].concat();
    let mut cuts: Vec<usize> = cuts
        .chunks_exact(2)
        .map(|cut| usize::from(u16::from_le_bytes([cut[0], cut[1]])) % (stream.len() + 1))
        .collect();
    cuts.sort_unstable();

    let limits = match limits % 4 {
        0 => Limits::default(),
        1 => Limits { item_size_max: 70, ..Limits::default() },
        2 => Limits { sasl: true, ..Limits::default() },
        _ => Limits {
            item_size_max: u64::MAX,
            flush_allowed: false,
            long_block_len: 4,
            ..Limits::default()
        },
    };
    let whole = send_in_pieces(limits, &stream, &[]);
    assert_replies_are_whole_packets(&whole.replies, &stream);
    assert_eq!(whole, send_in_pieces(limits, &stream, &cuts), "cut at {cuts:?}");
    // Byte by byte costs the square of a long stream's length in the harness, which keeps it as one buffer.
    if stream.len() <= 1024 {
        let every_byte: Vec<usize> = (1..stream.len()).collect();
        assert_eq!(whole, send_in_pieces(limits, &stream, &every_byte), "byte by byte");
    }
});

/// Each begins as a response does, is as long as it says, and gives back an opcode and an opaque that were sent.
fn assert_replies_are_whole_packets(mut replies: &[u8], stream: &[u8]) {
    while !replies.is_empty() {
        let (header, rest) = replies.split_at_checked(HEADER).expect("a header is whole");
        assert_eq!(header[0], 0x81);
        let key_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let body_len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        assert!(key_len + usize::from(header[4]) <= body_len, "key and extras are in the body");
        let is_asked_for = |packet: &[u8]| packet[1] == header[1] && packet[12..16] == header[12..16];
        assert!(stream.windows(16).any(is_asked_for), "an answer to nothing");
        replies = &rest.split_at_checked(body_len).expect("a body is whole").1;
    }
}
