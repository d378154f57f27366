//! What can be sent.

use std::fmt;

/// The longest key that servers take.
pub const KEY_LEN_MAX: usize = 250;

/// A request that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The key: empty, too long, or with bytes that would end its word.
    Key,
    /// A line with a line end in it.
    Line,
    /// The text behind a meta `O`: longer than 31 bytes, or with bytes that would end its word.
    Opaque,
    /// More flags than a meta command may have.
    TooManyFlags,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invalid::Key => "a key is 1 to 250 bytes without blanks or control characters",
            Invalid::Line => "a command is one line",
            Invalid::Opaque => "an opaque token is at most 31 bytes without blanks or control characters",
            Invalid::TooManyFlags => "a meta command has at most 18 flags",
        })
    }
}

impl std::error::Error for Invalid {}

/// Checks a key: what is sent as it is must not end its word.
#[inline]
pub fn check_key(key: &[u8]) -> Result<(), Invalid> {
    let fits = !key.is_empty() && key.len() <= KEY_LEN_MAX;
    if fits && is_word(key) { Ok(()) } else { Err(Invalid::Key) }
}

/// Whether bytes stay one word on the wire. Most control characters would pass most servers, but not all proxies on
/// the way.
#[inline]
pub(super) fn is_word(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte > b' ' && byte != 0x7F)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_word_of_at_most_250_bytes() {
        for key in [&b"k"[..], b"ok:1", "\u{e9}".as_bytes(), &[b'k'; 250]] {
            assert_eq!(check_key(key), Ok(()));
        }
        for key in [&b""[..], b"a b", b"a\n", b"a\r", b"\0", b"\x7f", &[b'k'; 251]] {
            assert_eq!(check_key(key), Err(Invalid::Key));
        }
    }
}
