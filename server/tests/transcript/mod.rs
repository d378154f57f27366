//! What the formats of all transcripts have in common (`tests/transcripts/README.md`): where the
//! files are, and bytes as text.
#![allow(dead_code)] // Each test uses its part.

use std::path::Path;

/// The transcripts of a dialect, in the order of their names: each with its name and its text.
pub(crate) fn transcripts(dialect: &str) -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/transcripts").join(dialect);
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The others are what they need, and what is to be known of them.
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    paths.iter().map(read).collect()
}

/// The bytes of a text with `\r \n \t \\ \xHH` and `\{N*x}` in it.
pub(crate) fn bytes(text: &str, place: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '\\' => rest = unescape(rest, place, &mut bytes),
            _ => bytes.extend_from_slice(first.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Adds the bytes that an escape stands for, of which `rest` is what follows the backslash; returns
/// what is behind it.
pub(crate) fn unescape<'t>(rest: &'t str, place: &str, bytes: &mut Vec<u8>) -> &'t str {
    let mut behind = rest.chars();
    match behind.next().unwrap_or_else(|| panic!("{place}: a lone backslash")) {
        'r' => bytes.push(b'\r'),
        'n' => bytes.push(b'\n'),
        't' => bytes.push(b'\t'),
        '\\' => bytes.push(b'\\'),
        'x' => {
            let byte = rest.get(1..3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
            bytes.push(byte.unwrap_or_else(|| panic!("{place}: bad \\x")));
            return &rest[3..];
        }
        '{' => {
            let (repeated, behind) =
                rest[1..].split_once('}').unwrap_or_else(|| panic!("{place}: \\{{ without }}"));
            let parts = repeated.split_once('*');
            let parts = parts.and_then(|(count, what)| Some((count.parse::<usize>().ok()?, what)));
            let (count, what) = parts.unwrap_or_else(|| panic!("{place}: \\{{N*x}}"));
            bytes.extend(self::bytes(what, place).repeat(count));
            return behind;
        }
        other => panic!("{place}: unknown escape {other:?}"),
    }
    behind.as_str()
}

/// Fails if a transcript has failed, of which there are so many.
pub(crate) fn none_fails(failures: &[String], transcripts: usize) {
    assert!(failures.is_empty(), "{} of {transcripts} fail:\n{}", failures.len(), failures.join("\n"));
}
