//! Compares received bytes with an expected reply.

use super::model::{ReplyPiece, VersionTable, VersionToken};

/// The result of comparing bytes with a reply.
pub(super) enum ReplyMatch {
    /// The bytes begin with the reply, which has this length and these versions.
    Yes(usize, Vec<(VersionToken, u64)>),
    /// The bytes are a prefix of the reply.
    NeedsMore,
    No,
}

/// Compares the received bytes with an expected reply.
pub(super) fn compare(pieces: &[ReplyPiece], bytes: &[u8], versions: &VersionTable) -> ReplyMatch {
    let mut at = 0;
    let mut bound: Vec<(VersionToken, u64)> = Vec::new();
    for piece in pieces {
        let rest = &bytes[at..];
        let value = match piece {
            ReplyPiece::Bytes(expected) => {
                let len = expected.len().min(rest.len());
                if rest[..len] != expected[..len] {
                    return ReplyMatch::No;
                }
                if len < expected.len() {
                    return ReplyMatch::NeedsMore;
                }
                at += len;
                continue;
            }
            ReplyPiece::Value(expected) => {
                let len = expected.len().min(rest.len());
                if rest[..len] != expected[..len] {
                    return ReplyMatch::No;
                }
                if len < expected.len() {
                    return ReplyMatch::NeedsMore;
                }
                at += len;
                continue;
            }
            ReplyPiece::Not(unexpected) => {
                if rest.starts_with(unexpected) {
                    return ReplyMatch::No;
                }
                if !rest.is_empty() && unexpected.starts_with(rest) {
                    return ReplyMatch::NeedsMore;
                }
                continue;
            }
            ReplyPiece::NotOpaque(opaque) => match rest.get(12..16) {
                Some(found) if found == opaque.to_be_bytes() => return ReplyMatch::No,
                None if !rest.is_empty() => return ReplyMatch::NeedsMore,
                _ => continue,
            },
            ReplyPiece::Version8(token) => {
                let Some(value) = rest.first_chunk() else { return ReplyMatch::NeedsMore };
                at += 8;
                Some((*token, u64::from_be_bytes(*value)))
            }
            ReplyPiece::Word => {
                let len = rest.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
                if len == rest.len() {
                    return ReplyMatch::NeedsMore;
                }
                if !matches!(&rest[..len], b"yes" | b"no") {
                    return ReplyMatch::No;
                }
                at += len;
                None
            }
            ReplyPiece::Version(_) | ReplyPiece::Digits => {
                let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                if len == rest.len() {
                    return ReplyMatch::NeedsMore;
                }
                let number = std::str::from_utf8(&rest[..len]).ok().and_then(|text| text.parse().ok());
                let Some(number) = number else { return ReplyMatch::No };
                at += len;
                match piece {
                    ReplyPiece::Version(token) => Some((*token, number)),
                    _ => None,
                }
            }
        };
        let Some((token, value)) = value else { continue };
        let before = bound.iter().find(|(known, _)| *known == token).map(|(_, value)| *value);
        if before.is_some_and(|before| before != value) || !versions.may_have_value(token, value) {
            return ReplyMatch::No;
        }
        bound.push((token, value));
    }
    ReplyMatch::Yes(at, bound)
}

/// Returns an expected reply as text for an error report.
pub(super) fn describe(pieces: &[ReplyPiece], versions: &VersionTable) -> String {
    let mut text = String::new();
    for piece in pieces {
        text += &match piece {
            ReplyPiece::Bytes(bytes) => cut(bytes),
            ReplyPiece::Value(value) => cut(value),
            ReplyPiece::Version(token) | ReplyPiece::Version8(token) => match versions.value(*token) {
                Some(value) => format!("<version {value}>"),
                None => "<a new version>".into(),
            },
            ReplyPiece::Digits => "<a number>".into(),
            ReplyPiece::Word => "<yes or no>".into(),
            ReplyPiece::NotOpaque(opaque) => format!("<no packet {opaque:#x}>"),
            ReplyPiece::Not(bytes) => format!("<not {}>", cut(bytes)),
        };
    }
    text
}

/// Returns the first bytes, escaped.
pub(super) fn cut(bytes: &[u8]) -> String {
    const LEN_MAX: usize = 400;
    let shown = &bytes[..bytes.len().min(LEN_MAX)];
    let shown: Vec<u8> = shorten(shown);
    let more = if bytes.len() > LEN_MAX { format!("... ({} bytes)", bytes.len()) } else { String::new() };
    format!("{}{more}", shown.escape_ascii())
}

/// Removes most of the padding of long keys.
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
