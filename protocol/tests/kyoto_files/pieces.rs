//! Input that arrives in pieces, and the results of reading it.

/// One step of a reader.
pub(crate) enum Read {
    /// An item of this length, as text.
    Item(usize, String),
    /// The last item, which has no length.
    Last(String),
    /// At least this number of bytes is missing.
    More(usize),
}

/// Returns the results of a reader for bytes in pieces that end at these offsets. If the reader
/// wants more at the end, the last result is `...` and the number of unread bytes.
pub(crate) fn read_in_pieces(
    bytes: &[u8],
    cuts: &[usize],
    mut step: impl FnMut(&[u8]) -> Read,
) -> Vec<String> {
    let (mut items, mut done) = (Vec::new(), 0);
    for &end in cuts.iter().chain([&bytes.len()]) {
        loop {
            match step(&bytes[done..end]) {
                Read::Item(consumed, item) => {
                    assert!(consumed > 0 && done + consumed <= end, "{item}: {consumed}");
                    done += consumed;
                    items.push(item);
                }
                Read::Last(item) => {
                    items.push(item);
                    return items;
                }
                Read::More(at_least) => {
                    assert!(at_least > 0);
                    break;
                }
            }
        }
    }
    items.push(format!("... {}", bytes.len() - done));
    items
}

/// Asserts that all splits into two pieces and single bytes give the same results, and returns
/// them.
pub(crate) fn read_in_any_pieces<R: Copy>(
    bytes: &[u8],
    reader: R,
    step: impl Fn(&mut R, &[u8]) -> Read,
) -> Vec<String> {
    let read = |cuts: &[usize]| {
        let mut reader = reader;
        read_in_pieces(bytes, cuts, |input| step(&mut reader, input))
    };
    let whole = read(&[]);
    for cut in 0..bytes.len() {
        assert_eq!(read(&[cut]), whole, "cut at {cut}");
    }
    let every_byte: Vec<usize> = (1..bytes.len()).collect();
    assert_eq!(read(&every_byte), whole, "byte by byte");
    whole
}

/// Parses hexadecimal bytes, with blanks anywhere.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// Returns bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
