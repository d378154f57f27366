//! Finds the ends of the replies of a server.

use todana_protocol::memcached::client::{ClientResponse, MalformedReply, binary_reply_len, decode};

/// The longest value in a reply: that of memcached.
const VALUE_LEN_MAX: usize = 1 << 30;
/// A longer value is passed on in pieces, as it arrives.
const WHOLE_LEN_MAX: usize = 64 << 10;
/// The longest value that is kept until it is complete, where it cannot be passed on in pieces.
const KEPT_LEN_MAX: usize = 16 << 20;
/// The error in place of a longer value.
const TOO_LONG: &[u8] = b"SERVER_ERROR value too long to be kept by the proxy";
/// The end of a value.
const VALUE_END: &[u8] = b"\r\n";

/// The form of the reply that a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// One line, or a meta reply with its value.
    Single,
    /// A value, and then `END`: the reply of `get`, `gets`, `gat` and `gats`.
    Values,
    /// Values of several keys, and then `END`. No value is passed on before it is complete.
    ValueList,
    /// Statistics, and then `END`.
    Statistics,
    /// A packet of the binary protocol, or the packets of its statistics.
    Binary,
}

/// A part of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// True if the part continues the value of the part before it.
    pub continues: bool,
    /// The number of bytes of the value, with its line end, that follow in other parts.
    pub missing: usize,
    /// The request, if this is the first part of a long value.
    pub request: &'a [u8],
}

impl<'a> ReplyPart<'a> {
    /// Creates an error that takes the place of a reply.
    pub(super) fn error(bytes: &'a [u8]) -> ReplyPart<'a> {
        ReplyPart { is_error: true, ..ReplyPart::new(bytes, true) }
    }

    fn new(bytes: &'a [u8], is_last: bool) -> ReplyPart<'a> {
        let (key, key_number, missing, request) = (None, 0, 0, &[][..]);
        ReplyPart { bytes, key, key_number, is_last, is_error: false, continues: false, missing, request }
    }
}

/// A value that is too long to wait until it is complete.
pub(super) enum LongValue<'a> {
    /// Its first part.
    Passed(ReplyPart<'a>),
    /// It is discarded. This error takes its place, and that of the rest of the reply. `missing`
    /// bytes follow those of the input.
    Refused { error: Vec<u8>, missing: usize },
}

/// Returns the value at the start of `input`, which is incomplete, if it is a long one.
pub(super) fn long_value(input: &[u8], kind: ReplyKind) -> Result<Option<LongValue<'_>>, MalformedReply> {
    if kind == ReplyKind::Binary {
        return Ok(long_packet(input));
    }
    let Some(newline) = input.iter().take(WHOLE_LEN_MAX).position(|&byte| byte == b'\n') else {
        return Ok(None);
    };
    let line = input[..newline + 1].strip_suffix(b"\r\n").ok_or(MalformedReply)?;
    let mut words = line.split(|&byte| byte == b' ');
    let (key, digits) = match (words.next(), kind) {
        (Some(b"VALUE"), ReplyKind::Values | ReplyKind::ValueList) => (words.next(), words.nth(1)),
        (Some(b"VA"), ReplyKind::Single) => (None, words.next()),
        _ => return Err(MalformedReply),
    };
    let len = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
    let len = len.filter(|len| *len <= VALUE_LEN_MAX).ok_or(MalformedReply)?;
    let value_end = newline + 1 + len;
    let missing = value_end + VALUE_END.len() - input.len();
    Ok(match kind {
        ReplyKind::ValueList if len > KEPT_LEN_MAX => {
            Some(LongValue::Refused { error: [TOO_LONG, VALUE_END].concat(), missing })
        }
        ReplyKind::Values | ReplyKind::Single if len > WHOLE_LEN_MAX => {
            let bytes = &input[..input.len().min(value_end)];
            let missing = value_end + VALUE_END.len() - bytes.len();
            Some(LongValue::Passed(ReplyPart { key, missing, ..ReplyPart::new(bytes, false) }))
        }
        _ => None,
    })
}

/// Returns the error in place of a packet that is too long. Its status says that memory is missing.
fn long_packet(input: &[u8]) -> Option<LongValue<'_>> {
    let header = input.first_chunk::<24>()?;
    let [.., a, b, c, d] = *header.first_chunk::<12>()?;
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len <= KEPT_LEN_MAX {
        return None;
    }
    let body_len = (TOO_LONG.len() as u32).to_be_bytes();
    let head = [header[0], header[1], 0, 0, 0, 0, 0, 0x82];
    let error = [&head[..], &body_len, &header[12..16], &[0; 8], TOO_LONG].concat();
    Some(LongValue::Refused { error, missing: header.len() + len - input.len() })
}

/// Returns the next part of a value of which `missing` bytes follow.
pub(super) fn value_piece(
    input: &[u8],
    kind: ReplyKind,
    missing: usize,
) -> Result<ReplyPart<'_>, MalformedReply> {
    let bytes = &input[..input.len().min(missing)];
    let end = &bytes[missing.saturating_sub(VALUE_END.len()).min(bytes.len())..];
    let end_at = VALUE_END.len().saturating_sub(missing);
    if kind != ReplyKind::Binary && !VALUE_END[end_at..].starts_with(end) {
        return Err(MalformedReply);
    }
    let missing = missing - bytes.len();
    let is_last = missing == 0 && matches!(kind, ReplyKind::Single | ReplyKind::Binary);
    Ok(ReplyPart { continues: true, missing, ..ReplyPart::new(bytes, is_last) })
}

/// Returns the reply at the start of `input` to a packet with this opaque, or `None` if it is
/// incomplete. Fails if the bytes are no such reply.
pub(super) fn next_packets(input: &[u8], opaque: u32) -> Result<Option<ReplyPart<'_>>, MalformedReply> {
    let Some(len) = binary_reply_len(input, opaque, VALUE_LEN_MAX)? else { return Ok(None) };
    let is_error = !matches!(input[6..8], [0, 0 | 1 | 2 | 5]);
    Ok(Some(ReplyPart { is_error, ..ReplyPart::new(&input[..len], true) }))
}

/// Returns the part of a reply at the start of `input`, or `None` if it is incomplete. Leaves the
/// number of a key 0. Fails if the bytes are no reply of this kind of the text and meta dialects.
pub(super) fn next_part(input: &[u8], kind: ReplyKind) -> Result<Option<ReplyPart<'_>>, MalformedReply> {
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
        (ReplyKind::Values | ReplyKind::ValueList, ClientResponse::Value { key, .. }) => {
            (Some(key), false, false)
        }
        (ReplyKind::Statistics, ClientResponse::Statistic { .. }) => (None, false, false),
        (ReplyKind::Values | ReplyKind::ValueList | ReplyKind::Statistics, ClientResponse::Line(b"END")) => {
            (None, true, false)
        }
        (_, ClientResponse::Refused(_)) => (None, true, true),
        (ReplyKind::Single, ClientResponse::Line(line)) if is_known(line) => (None, true, false),
        (ReplyKind::Single, ClientResponse::Number(_) | ClientResponse::Meta { .. }) => (None, true, false),
        _ => return Err(MalformedReply),
    };
    Ok(Some(ReplyPart { key, is_error, ..ReplyPart::new(&input[..len], is_last) }))
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
        let packet = |status| {
            [b"\x81\0\0\x01\x02\0\0", &[status, 0, 0, 0, 8, 0, 0, 0, 7][..], &[0; 10], b"kvalue"].concat()
        };
        for (status, is_error) in [(0, false), (1, false), (2, false), (5, false), (4, true), (0x84, true)] {
            let bytes = packet(status);
            let input = [&bytes[..], b"\x81"].concat();
            let part = ReplyPart { is_error, ..ReplyPart::new(&bytes, true) };
            assert_eq!(next_packets(&input, 7), Ok(Some(part)));
            assert_eq!(next_packets(&bytes[..bytes.len() - 1], 7), Ok(None));
            assert_eq!(next_packets(&input, 8), Err(MalformedReply));
            assert_eq!(next_packets(&input[..24], 8), Err(MalformedReply));
        }
        assert_eq!(next_packets(b"ERROR\r\n", 7), Err(MalformedReply));
    }

    /// Returns the parts of a reply, of which each read has `step` bytes more than were passed on.
    fn pieces(reply: &[u8], kind: ReplyKind, step: usize) -> Vec<Vec<u8>> {
        let (mut at, mut missing, mut pieces) = (0, 0, Vec::new());
        let mut end = 0;
        while at < reply.len() {
            let input = &reply[at..end];
            let part = match missing {
                _ if input.is_empty() => None,
                0 => match next_part(input, kind).unwrap() {
                    None => match long_value(input, kind).unwrap() {
                        Some(LongValue::Passed(part)) => Some(part),
                        _ => None,
                    },
                    part => part,
                },
                missing => Some(value_piece(input, kind, missing).unwrap()),
            };
            let Some(part) = part else {
                end = (end + step).min(reply.len());
                continue;
            };
            assert_eq!(part.is_last, at + part.bytes.len() == reply.len());
            assert_eq!(part.continues, missing > 0);
            (at, missing) = (at + part.bytes.len(), part.missing);
            pieces.push(part.bytes.to_vec());
        }
        pieces
    }

    #[test]
    fn long_values_are_divided_into_pieces() {
        let value = vec![b'v'; WHOLE_LEN_MAX + 1];
        let text = [b"VALUE a 0 65537 7\r\n", &value[..], b"\r\nEND\r\n"].concat();
        let meta = [b"VA 65537 c7\r\n", &value[..], b"\r\n"].concat();
        for step in [1, 2, 7000, 65_500, WHOLE_LEN_MAX] {
            for (reply, kind) in [(&text, ReplyKind::Values), (&meta, ReplyKind::Single)] {
                let pieces = pieces(reply, kind, step);
                assert_eq!(&pieces.concat(), reply);
                assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() <= step.max(20)), "{step}");
            }
            assert_eq!(pieces(&text, ReplyKind::ValueList, step).len(), 2);
        }
        assert_eq!(pieces(&text, ReplyKind::Values, text.len()).len(), 2);
    }

    #[test]
    fn long_values_end_correctly() {
        for (missing, bytes) in [(3, &b"xy"[..]), (2, b"\n"), (2, b"\rx"), (1, b"x"), (3, b"x\r\r")] {
            assert_eq!(value_piece(bytes, ReplyKind::Values, missing), Err(MalformedReply));
        }
        for (kind, head) in [
            (ReplyKind::Single, &b"VALUE a 0 9\r\n"[..]),
            (ReplyKind::Values, b"VA 9\r\n"),
            (ReplyKind::Values, b"VALUE a 0 9\n"),
        ] {
            assert!(long_value(head, kind).is_err());
        }
    }

    #[test]
    fn values_that_cannot_be_kept_are_errors() {
        let Ok(Some(LongValue::Refused { error, missing })) =
            long_value(b"VALUE a 0 16777217\r\nxyz", ReplyKind::ValueList)
        else {
            panic!("the value is kept");
        };
        assert_eq!((missing, error.ends_with(b"\r\n")), (16_777_217 + 2 - 3, true));
        let mut packet = [0; 30];
        (packet[0], packet[1], packet[8], packet[12]) = (0x81, 0x0c, 0x40, 9);
        let Ok(Some(LongValue::Refused { error, missing })) = long_value(&packet, ReplyKind::Binary) else {
            panic!("the packet is kept");
        };
        assert_eq!(missing, (1 << 30) - 6);
        assert_eq!(error[..16], [0x81, 0x0c, 0, 0, 0, 0, 0, 0x82, 0, 0, 0, 51, 9, 0, 0, 0]);
        let part = next_packets(&error, 9 << 24).unwrap().unwrap();
        assert!(part.is_error && part.bytes.len() == error.len());
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
