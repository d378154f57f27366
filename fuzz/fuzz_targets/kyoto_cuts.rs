//! A stream and the places to cut it, from a fuzzer's bytes: `cut_count(1) | cut(2) x (cut_count mod 8) | stream`.

/// The stream, and the cuts in their order; `None` for an input too short to say what it wants.
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

/// Asserts that the same comes of a stream whole, cut, and byte by byte, and returns it.
pub(crate) fn assert_cuts_do_not_matter<T: PartialEq + std::fmt::Debug>(
    stream: &[u8],
    cuts: &[usize],
    read: impl Fn(&[usize]) -> T,
) -> T {
    let whole = read(&[]);
    assert_eq!(whole, read(cuts), "cut at {cuts:?}");
    // Byte by byte costs the square of a long stream's length in the harness.
    if stream.len() <= 1024 {
        let every_byte: Vec<usize> = (1..stream.len()).collect();
        assert_eq!(whole, read(&every_byte), "byte by byte");
    }
    whole
}
