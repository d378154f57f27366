//! Checks keys, and defines the errors of requests that cannot be sent.

use std::fmt;

/// The longest key that servers accept, in bytes.
pub const KEY_LEN_MAX: usize = 250;

/// The reason why a request cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRequest {
    /// The key is empty, too long, or contains bytes that would end its word.
    Key,
    /// The line contains a line end.
    Line,
    /// The text after a meta `O` is longer than 31 bytes, or contains bytes that would end its
    /// word.
    Opaque,
    /// A meta command has too many flags.
    TooManyFlags,
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidRequest::Key => "a key must have 1 to 250 bytes without blanks or control characters",
            InvalidRequest::Line => "a command must be one line",
            InvalidRequest::Opaque => {
                "an opaque token must have at most 31 bytes without blanks or control characters"
            }
            InvalidRequest::TooManyFlags => "a meta command can have at most 18 flags",
        })
    }
}

impl std::error::Error for InvalidRequest {}

/// Checks a key. It must be one word, because it is sent as it is.
#[inline]
pub fn check_key(key: &[u8]) -> Result<(), InvalidRequest> {
    let fits = !key.is_empty() && key.len() <= KEY_LEN_MAX;
    if fits && is_word(key) { Ok(()) } else { Err(InvalidRequest::Key) }
}

/// Returns true if the bytes form one word in a line. Control characters are not allowed: most
/// servers accept most of them, but not all proxies do.
#[inline]
pub(super) fn is_word(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte > b' ' && byte != 0x7F)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_one_word_up_to_250_bytes() {
        for key in [&b"k"[..], b"ok:1", "\u{e9}".as_bytes(), &[b'k'; 250]] {
            assert_eq!(check_key(key), Ok(()));
        }
        for key in [&b""[..], b"a b", b"a\n", b"a\r", b"\0", b"\x7f", &[b'k'; 251]] {
            assert_eq!(check_key(key), Err(InvalidRequest::Key));
        }
    }
}
