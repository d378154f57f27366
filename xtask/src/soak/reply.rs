//! Whether bytes are a reply that must come.

use super::model::{Piece, Token, Versions};

/// How bytes compare to a reply.
pub(super) enum Match {
    /// The length of the reply in bytes, and its versions.
    Yes(usize, Vec<(Token, u64)>),
    /// So far it is.
    NeedsMore,
    No,
}

/// Compares what has come with a reply.
pub(super) fn compare(pieces: &[Piece], bytes: &[u8], versions: &Versions) -> Match {
    let mut at = 0;
    let mut bound: Vec<(Token, u64)> = Vec::new();
    for piece in pieces {
        let rest = &bytes[at..];
        let value = match piece {
            Piece::Bytes(expected) => {
                let len = expected.len().min(rest.len());
                if rest[..len] != expected[..len] {
                    return Match::No;
                }
                if len < expected.len() {
                    return Match::NeedsMore;
                }
                at += len;
                continue;
            }
            Piece::Value(expected) => {
                let len = expected.len().min(rest.len());
                if rest[..len] != expected[..len] {
                    return Match::No;
                }
                if len < expected.len() {
                    return Match::NeedsMore;
                }
                at += len;
                continue;
            }
            Piece::Not(unexpected) => {
                if rest.starts_with(unexpected) {
                    return Match::No;
                }
                if !rest.is_empty() && unexpected.starts_with(rest) {
                    return Match::NeedsMore;
                }
                continue;
            }
            Piece::NotOpaque(opaque) => match rest.get(12..16) {
                Some(found) if found == opaque.to_be_bytes() => return Match::No,
                None if !rest.is_empty() => return Match::NeedsMore,
                _ => continue,
            },
            Piece::Version8(token) => {
                let Some(value) = rest.first_chunk() else { return Match::NeedsMore };
                at += 8;
                Some((*token, u64::from_be_bytes(*value)))
            }
            Piece::Word => {
                let len = rest.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
                if len == rest.len() {
                    return Match::NeedsMore;
                }
                if !matches!(&rest[..len], b"yes" | b"no") {
                    return Match::No;
                }
                at += len;
                None
            }
            Piece::Version(_) | Piece::Digits => {
                let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                if len == rest.len() {
                    return Match::NeedsMore;
                }
                let number = std::str::from_utf8(&rest[..len]).ok().and_then(|text| text.parse().ok());
                let Some(number) = number else { return Match::No };
                at += len;
                match piece {
                    Piece::Version(token) => Some((*token, number)),
                    _ => None,
                }
            }
        };
        let Some((token, value)) = value else { continue };
        let before = bound.iter().find(|(known, _)| *known == token).map(|(_, value)| *value);
        if before.is_some_and(|before| before != value) || !versions.agrees(token, value) {
            return Match::No;
        }
        bound.push((token, value));
    }
    Match::Yes(at, bound)
}

/// A reply as it can be read in a report.
pub(super) fn describe(pieces: &[Piece], versions: &Versions) -> String {
    let mut text = String::new();
    for piece in pieces {
        text += &match piece {
            Piece::Bytes(bytes) => cut(bytes),
            Piece::Value(value) => cut(value),
            Piece::Version(token) | Piece::Version8(token) => match versions.value(*token) {
                Some(value) => format!("<version {value}>"),
                None => "<a new version>".into(),
            },
            Piece::Digits => "<a number>".into(),
            Piece::Word => "<yes or no>".into(),
            Piece::NotOpaque(opaque) => format!("<no packet {opaque:#x}>"),
            Piece::Not(bytes) => format!("<not {}>", cut(bytes)),
        };
    }
    text
}

/// The beginning of bytes, escaped.
pub(super) fn cut(bytes: &[u8]) -> String {
    const LEN_MAX: usize = 400;
    let shown = &bytes[..bytes.len().min(LEN_MAX)];
    let shown: Vec<u8> = shorten(shown);
    let more = if bytes.len() > LEN_MAX { format!("... ({} bytes)", bytes.len()) } else { String::new() };
    format!("{}{more}", shown.escape_ascii())
}

/// Leaves out most of a long key's filling.
fn shorten(bytes: &[u8]) -> Vec<u8> {
    let mut short = Vec::new();
    let mut run = 0;
    for &byte in bytes {
        run = if byte == b'x' { run + 1 } else { 0 };
        if run <= 3 {
            short.push(byte);
        }
    }
    short
}
