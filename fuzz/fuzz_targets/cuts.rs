//! A stream and the places to cut it, from a fuzzer's bytes.

use crate::exchange::{Outcome, send_in_pieces};
use todana_protocol::memcached::{Choice, Limits};

/// Sends the stream whole, in the pieces that the input asks for, and byte by byte; the same must come of all.
pub(crate) fn assert_cuts_do_not_matter(input: &[u8], start: &[u8]) {
    let [limits, cut_count, rest @ ..] = input else { return };
    let Some((cuts, stream)) = rest.split_at_checked(usize::from(cut_count % 8) * 2) else { return };
    let stream = [start, stream].concat();
    let mut cuts: Vec<usize> = cuts
        .chunks_exact(2)
        .map(|cut| usize::from(u16::from_le_bytes([cut[0], cut[1]])) % (stream.len() + 1))
        .collect();
    cuts.sort_unstable();

    let limits = match limits % 4 {
        0 => Limits::default(),
        1 => Limits { item_size_max: 70, ..Limits::default() },
        2 => Limits { line_len_max: 0, get_line_len_max: 200, ..Limits::default() },
        _ => Limits {
            item_size_max: u64::MAX,
            flush_allowed: false,
            long_block_len: 4,
            ..Limits::default()
        },
    };
    // The binary dialect has a target of its own; its replies are no lines.
    let limits = Limits { choice: Choice::Text, ..limits };
    let whole = send_in_pieces(limits, &stream, &[]);
    assert_replies_are_whole_lines(&whole);
    assert_eq!(whole, send_in_pieces(limits, &stream, &cuts), "cut at {cuts:?}");
    // Byte by byte costs the square of a long stream's length in the harness, which keeps it as one buffer.
    if stream.len() <= 1024 {
        let every_byte: Vec<usize> = (1..stream.len()).collect();
        assert_eq!(whole, send_in_pieces(limits, &stream, &every_byte), "byte by byte");
    }
}

/// Whatever was asked, what was answered ends with a line end.
fn assert_replies_are_whole_lines(outcome: &Outcome) {
    assert!(outcome.replies.is_empty() || outcome.replies.ends_with(b"\r\n"));
    if outcome.requests.is_empty() {
        assert!(outcome.replies.is_empty(), "an answer to nothing");
    }
}
