//! The freshness that a reader requires of a replica, and the position in a log that a server
//! returns for that (docs/replication.md).

use std::fmt::{self, Display, Formatter};

/// A position in the update log of a database, as text `0123456789abcdef-513`: the first 8 bytes of
/// the ID of the database, and the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogToken {
    /// The first bytes of the ID.
    pub log: u64,
    /// The position.
    pub position: u64,
}

/// How new the records must be that a request reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredFreshness {
    /// They may be of any age.
    Any,
    /// All changes that the master made more than this time before the request must be there.
    MaxAge {
        /// The time in milliseconds.
        ms: u64,
    },
    /// All changes before this position must be there.
    Position(LogToken),
}

impl LogToken {
    /// The maximum length of the text in bytes.
    pub const LEN_MAX: usize = 37;

    /// Creates the token of a position in the log of this database.
    pub fn new(database_id: [u8; 16], position: u64) -> LogToken {
        let log = *database_id.first_chunk().expect("16 bytes are more than 8");
        LogToken { log: u64::from_be_bytes(log), position }
    }

    /// Reads the text. Returns `None` if it has another form.
    pub fn parse(text: &[u8]) -> Option<LogToken> {
        let (log, position) = std::str::from_utf8(text).ok()?.split_once('-')?;
        let is_hex = log.len() == 16 && log.bytes().all(|byte| byte.is_ascii_hexdigit());
        let log = u64::from_str_radix(log, 16).ok().filter(|_| is_hex)?;
        Some(LogToken { log, position: decimal(position)? })
    }
}

impl Display for LogToken {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.log, self.position)
    }
}

impl RequiredFreshness {
    /// Reads the argument of the meta flag `Y`: nothing, milliseconds, or a position. Returns
    /// `None` if it has another form.
    pub fn parse(text: &[u8]) -> Option<RequiredFreshness> {
        if text.is_empty() {
            return Some(RequiredFreshness::Any);
        }
        if let Some(token) = LogToken::parse(text) {
            return Some(RequiredFreshness::Position(token));
        }
        let ms = decimal(std::str::from_utf8(text).ok()?)?;
        Some(RequiredFreshness::MaxAge { ms })
    }
}

fn decimal(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_has_three_forms() {
        let token = LogToken::new(*b"0123456789abcdef", 513);
        assert_eq!(token.to_string(), "3031323334353637-513");
        let longest = LogToken { log: u64::MAX, position: u64::MAX };
        assert_eq!(longest.to_string().len(), LogToken::LEN_MAX);
        for (text, required) in [
            ("", Some(RequiredFreshness::Any)),
            ("250", Some(RequiredFreshness::MaxAge { ms: 250 })),
            ("3031323334353637-513", Some(RequiredFreshness::Position(token))),
            ("+250", None),
            ("-1", None),
            ("18446744073709551616", None),
            ("303132333435363-513", None),
            ("+031323334353637-513", None),
            ("3031323334353637-+513", None),
            ("3031323334353637-", None),
            ("3031323334353637-5 ", None),
        ] {
            assert_eq!(RequiredFreshness::parse(text.as_bytes()), required, "{text}");
        }
    }
}
