//! A stream and the positions at which to split it, from a fuzzer's bytes: `cut_count(1) | cut(2) x
//! (cut_count mod 8) | stream`.

/// Returns the stream, and the cuts in ascending order; `None` if the input is too short.
pub(crate) fn stream_and_cuts(input: &[u8]) -> Option<(&[u8], Vec<usize>)> {
    let (cut_count, rest) = input.split_first()?;
    let (cuts, stream) = rest.split_at_checked(usize::from(cut_count % 8) * 2)?;
    let mut cuts: Vec<usize> = cuts
        .chunks_exact(2)
        .map(|cut| usize::from(u16::from_le_bytes([cut[0], cut[1]])) % (stream.len() + 1))
        .collect();
    cuts.sort_unstable();
    Some((stream, cuts))
}

/// Asserts that the result of a stream is the same in one piece, in several pieces and byte by
/// byte, and returns it.
pub(crate) fn assert_cuts_do_not_matter<T: PartialEq + std::fmt::Debug>(
    stream: &[u8],
    cuts: &[usize],
    read: impl Fn(&[usize]) -> T,
) -> T {
    let whole = read(&[]);
    assert_eq!(whole, read(cuts), "cut at {cuts:?}");
    // In the harness, byte by byte costs the square of a long stream's length.
    if stream.len() <= 1024 {
        let every_byte: Vec<usize> = (1..stream.len()).collect();
        assert_eq!(whole, read(&every_byte), "byte by byte");
    }
    whole
}
