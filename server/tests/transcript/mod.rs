//! Defines the common parts of all transcript formats (`tests/transcripts/README.md`): the folders
//! of the files, and the notation of bytes.
#![allow(dead_code)] // Each test uses its part.

use std::path::Path;

/// Returns the name and the text of each transcript of a dialect, sorted by name.
pub(crate) fn transcripts(dialect: &str) -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/transcripts").join(dialect);
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The other files in the folder are documentation, or are used by transcripts.
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    paths.iter().map(read).collect()
}

/// Decodes a text that may contain the escapes `\r \n \t \\ \xHH` and `\{N*x}`.
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

/// Appends the bytes of an escape. `rest` begins after the backslash. Returns the text after the
/// escape.
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

/// Fails if any of the transcripts has failed.
pub(crate) fn none_fails(failures: &[String], transcripts: usize) {
    assert!(failures.is_empty(), "{} of {transcripts} fail:\n{}", failures.len(), failures.join("\n"));
}
