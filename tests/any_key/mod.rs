//! Keys of arbitrary bytes, at the lengths where a dialect, a buffer or a page of a file reaches a
//! limit.

use std::collections::BTreeMap;

pub(crate) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Lengths next to the limits of dialects and of their buffers.
const LENS: [usize; 16] = [1, 2, 186, 187, 188, 249, 250, 251, 252, 253, 254, 255, 256, 1000, 65535, 65536];

/// Returns a record for each length and each kind of bytes. Each value is different.
pub(crate) fn records() -> Records {
    let patterns: [&[u8]; 9] =
        [b"k", b"\0", b" ", b"\xFF", b"\r\n", b"\x1b\x7f\x01", b"\t=%", b"END\r\n", "日本".as_bytes()];
    let keys = LENS.iter().flat_map(|&len| {
        patterns.iter().map(move |pattern| pattern.iter().copied().cycle().take(len).collect::<Vec<u8>>())
    });
    let all = keys.chain([Vec::new()]).enumerate();
    all.map(|(number, key)| (key, format!("value {number}").into_bytes())).collect()
}
