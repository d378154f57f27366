//! Finds the ends of the replies of a server.

use todana_protocol::memcached::client::{ClientResponse, MalformedReply, binary_reply_len, decode};

/// The longest value in a reply: that of memcached.
const VALUE_LEN_MAX: usize = 1 << 30;

/// The form of the reply that a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// One line, or a meta reply with its value.
    Single,
    /// Values, and then `END`: the reply of `get`, `gets`, `gat` and `gats`.
    Values,
    /// Statistics, and then `END`.
    Statistics,
    /// A packet of the binary protocol, or the packets of its statistics.
    Binary,
}

/// A part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyPart<'a> {
    /// The bytes of the part, with their line ends.
    pub bytes: &'a [u8],
    /// The key of a value.
    pub key: Option<&'a [u8]>,
    /// The number of the key among those of the request, from 0.
    pub key_number: u32,
    /// True if the reply ends with this part.
    pub is_last: bool,
    /// True if the part is an error of the server. A packet is an error unless its status is one of
    /// success, not found, exists and not stored.
    pub is_error: bool,
}

/// Returns the part of a reply at the start of `input`, or `None` if it is incomplete. The number of
/// a key is left 0. Fails if the bytes are no reply of this kind.
pub(super) fn next_part(input: &[u8], kind: ReplyKind) -> Result<Option<ReplyPart<'_>>, MalformedReply> {
    if kind == ReplyKind::Binary {
        let Some(len) = binary_reply_len(input, VALUE_LEN_MAX)? else { return Ok(None) };
        let is_error = !matches!(input[6..8], [0, 0 | 1 | 2 | 5]);
        return Ok(Some(ReplyPart {
            bytes: &input[..len],
            key: None,
            key_number: 0,
            is_last: true,
            is_error,
        }));
    }
    let Some((len, response)) = decode(input, VALUE_LEN_MAX)? else { return Ok(None) };
    let value_len = match response {
        ClientResponse::Value { value, .. } | ClientResponse::Meta { value: Some(value), .. } => {
            value.len() + 2
        }
        _ => 0,
    };
    // A line that ends otherwise would be passed on, and clients may not see its end.
    if !input[..len - value_len].ends_with(b"\r\n") {
        return Err(MalformedReply);
    }
    let (key, is_last, is_error) = match (kind, response) {
        (ReplyKind::Values, ClientResponse::Value { key, .. }) => (Some(key), false, false),
        (ReplyKind::Statistics, ClientResponse::Statistic { .. }) => (None, false, false),
        (ReplyKind::Values | ReplyKind::Statistics, ClientResponse::Line(b"END")) => (None, true, false),
        (_, ClientResponse::Refused(_)) => (None, true, true),
        (ReplyKind::Single, ClientResponse::Line(line)) if is_known(line) => (None, true, false),
        (ReplyKind::Single, ClientResponse::Number(_) | ClientResponse::Meta { .. }) => (None, true, false),
        _ => return Err(MalformedReply),
    };
    Ok(Some(ReplyPart { bytes: &input[..len], key, key_number: 0, is_last, is_error }))
}

/// Returns true if a server sends this line in reply to a request that asks for no values.
fn is_known(line: &[u8]) -> bool {
    let word = line.split(|&byte| byte == b' ').next().unwrap_or_default();
    let of_records: [&[u8]; 6] = [b"STORED", b"NOT_STORED", b"EXISTS", b"NOT_FOUND", b"DELETED", b"TOUCHED"];
    let of_servers: [&[u8]; 3] = [b"OK", b"VERSION", b"RESET"];
    of_records.contains(&word) || of_servers.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_parts() {
        let packet =
            |status| [b"\x81\0\0\x01\x02\0\0", &[status, 0, 0, 0, 8][..], &[0; 14], b"kvalue"].concat();
        for (status, is_error) in [(0, false), (1, false), (2, false), (5, false), (4, true), (0x84, true)] {
            let bytes = packet(status);
            let input = [&bytes[..], b"\x81"].concat();
            let part = ReplyPart { bytes: &bytes, key: None, key_number: 0, is_last: true, is_error };
            assert_eq!(next_part(&input, ReplyKind::Binary), Ok(Some(part)));
            assert_eq!(next_part(&bytes[..bytes.len() - 1], ReplyKind::Binary), Ok(None));
        }
        assert_eq!(next_part(b"ERROR\r\n", ReplyKind::Binary), Err(MalformedReply));
    }

    #[test]
    fn lines_must_have_both_bytes_of_their_end() {
        for line in [&b"SERVER_ERROR x\n"[..], b"VALUE a 0 1\nx\r\n", b"END\n"] {
            assert_eq!(next_part(line, ReplyKind::Values), Err(MalformedReply));
        }
        for line in [&b"VA 1\nx\r\n"[..], b"HD\n", b"7\n", b"ERROR\n"] {
            assert_eq!(next_part(line, ReplyKind::Single), Err(MalformedReply));
        }
    }

    #[test]
    fn statistics_end_with_their_end() {
        let lines = b"STAT pid 7\r\nSTAT version 1.6.45\r\nEND\r\n";
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(part) = next_part(&lines[at..], ReplyKind::Statistics).unwrap() {
            found.push((part.bytes.len(), part.is_last, part.is_error));
            at += part.bytes.len();
        }
        assert_eq!(
            (at, found),
            (lines.len(), vec![(12, false, false), (21, false, false), (5, true, false)])
        );
        let refused = next_part(b"ERROR\r\n", ReplyKind::Statistics).unwrap().unwrap();
        assert!(refused.is_last && refused.is_error);
        for line in [&b"VALUE a 0 1\r\nx\r\n"[..], b"STORED\r\n", b"STAT a 1\n"] {
            assert_eq!(next_part(line, ReplyKind::Statistics), Err(MalformedReply));
        }
        assert_eq!(next_part(b"STAT a 1\r\n", ReplyKind::Single), Err(MalformedReply));
    }

    #[test]
    fn parts_end_where_the_reply_does() {
        let values = b"VALUE a 0 2\r\nxy\r\nVALUE b 0 0 7\r\n\r\nEND\r\nSTORED\r\n";
        let first = next_part(values, ReplyKind::Values).unwrap().unwrap();
        assert_eq!((first.bytes, first.key), (&b"VALUE a 0 2\r\nxy\r\n"[..], Some(&b"a"[..])));
        assert!(!first.is_last);
        let second = next_part(&values[first.bytes.len()..], ReplyKind::Values).unwrap().unwrap();
        assert_eq!((second.bytes, second.key), (&b"VALUE b 0 0 7\r\n\r\n"[..], Some(&b"b"[..])));
        let end = &values[first.bytes.len() + second.bytes.len()..];
        let last = next_part(end, ReplyKind::Values).unwrap().unwrap();
        assert_eq!((last.bytes, last.is_last, last.is_error), (&b"END\r\n"[..], true, false));
        for cut in 0..first.bytes.len() {
            assert_eq!(next_part(&values[..cut], ReplyKind::Values), Ok(None));
        }
        for line in [&b"STORED\r\n"[..], b"12\r\n", b"HD\r\n", b"VA 2 f0\r\nhi\r\n", b"EN\r\n"] {
            let part = next_part(line, ReplyKind::Single).unwrap().unwrap();
            assert_eq!((part.bytes, part.is_last, part.is_error), (line, true, false));
        }
        for kind in [ReplyKind::Single, ReplyKind::Values] {
            let part = next_part(b"SERVER_ERROR x\r\n", kind).unwrap().unwrap();
            assert!(part.is_last && part.is_error);
        }
        assert_eq!(next_part(b"STORED\r\n", ReplyKind::Values), Err(MalformedReply));
        for line in
            [&b"VALUE a 0 2\r\nxy\r\n"[..], b"END\r\n", b"GARBAGE\r\n", b"\r\n", b"Stored\r\n", b"STORED\n"]
        {
            assert_eq!(next_part(line, ReplyKind::Single), Err(MalformedReply));
        }
    }
}
