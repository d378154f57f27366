//! A stream and the positions at which to split it, from a fuzzer's bytes.

use super::exchange::{Outcome, send_in_pieces};
use todana_protocol::memcached::MemcachedLimits;

/// Sends the stream, which begins with `start`, in one piece, in the pieces that the input selects,
/// and byte by byte, and asserts that the results are the same. Returns the stream and the result;
/// `None` if the input is too short.
pub(crate) fn assert_cuts_do_not_matter(
    input: &[u8],
    start: &[u8],
    limits: &[MemcachedLimits],
) -> Option<(Vec<u8>, Outcome)> {
    let [limit, cut_count, rest @ ..] = input else { return None };
    let (cuts, stream) = rest.split_at_checked(usize::from(cut_count % 8) * 2)?;
    let stream = [start, stream].concat();
    let mut cuts: Vec<usize> = cuts
        .chunks_exact(2)
        .map(|cut| usize::from(u16::from_le_bytes([cut[0], cut[1]])) % (stream.len() + 1))
        .collect();
    cuts.sort_unstable();

    let limits = limits[usize::from(*limit) % limits.len()];
    let whole = send_in_pieces(limits, &stream, &[]);
    assert_eq!(whole, send_in_pieces(limits, &stream, &cuts), "cut at {cuts:?}");
    // The harness keeps the stream in one buffer, so byte by byte costs the square of its length.
    if stream.len() <= 1024 {
        let every_byte: Vec<usize> = (1..stream.len()).collect();
        assert_eq!(whole, send_in_pieces(limits, &stream, &every_byte), "byte by byte");
    }
    Some((stream, whole))
}
