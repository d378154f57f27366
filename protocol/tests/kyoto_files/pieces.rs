//! Bytes that come in pieces, and what is read of them.

/// One step of a reader.
pub(crate) enum Read {
    /// So many bytes were something, which shows itself.
    Item(usize, String),
    /// Something that takes no bytes, and is the last.
    Last(String),
    /// So many more bytes are needed.
    More(usize),
}

/// What a reader makes of bytes that come in pieces which end at these offsets; at the end, `...` and how much is unread, if
/// it wants more.
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

/// The same comes of all ways to cut the bytes in two, and of single bytes; returns it.
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

/// Bytes written in hexadecimal, with blanks anywhere.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
