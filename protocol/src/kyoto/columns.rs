//! Encodes and decodes the columns of TSV: percent (U), base64 (B) and quoted-printable (Q).
//! Chooses the encoding of an answer.

use crate::ReplySink;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memchr;

/// The encoding of the columns of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColumnEncoding {
    /// The columns are not encoded.
    #[default]
    Raw,
    /// `colenc=U`: percent encoding.
    Percent,
    /// `colenc=B`: base64.
    Base64,
    /// `colenc=Q`: quoted-printable. This encoding is decoded, but never chosen for an answer.
    Quoted,
}

/// The number of bytes of a column that the choice of an encoding examines. A longer column is
/// never written raw.
const EXAMINED_LEN: usize = 255;

impl ColumnEncoding {
    /// Returns the encoding that the original chooses for these columns; names and values are
    /// treated alike. The tests of clients compare the header that names the encoding, so the
    /// choice follows the estimates of the original.
    pub fn choose<'a>(columns: impl Iterator<Item = &'a [u8]> + Clone) -> ColumnEncoding {
        let mut all = columns.clone();
        if all.all(is_plain) { ColumnEncoding::Raw } else { Self::choose_encoded(columns) }
    }

    fn choose_encoded<'a>(columns: impl Iterator<Item = &'a [u8]>) -> ColumnEncoding {
        let (mut base64_len, mut percent_len) = (0usize, 0usize);
        for column in columns {
            let seen = &column[..column.len().min(EXAMINED_LEN)];
            base64_len += seen.len() * 6 / 4 + 3;
            let kept = seen.iter().filter(|&&byte| is_url_safe(byte)).count();
            percent_len += kept + (seen.len() - kept) * 3;
        }
        if base64_len < percent_len { ColumnEncoding::Base64 } else { ColumnEncoding::Percent }
    }

    /// Returns the `Content-Type` of this encoding; clients compare it literally.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            ColumnEncoding::Raw => "text/tab-separated-values",
            ColumnEncoding::Percent => "text/tab-separated-values; colenc=U",
            ColumnEncoding::Base64 => "text/tab-separated-values; colenc=B",
            ColumnEncoding::Quoted => "text/tab-separated-values; colenc=Q",
        }
    }

    /// Returns the length of an encoded column.
    pub(super) fn encoded_len(self, column: &[u8]) -> usize {
        match self {
            ColumnEncoding::Raw => column.len(),
            ColumnEncoding::Percent => {
                let kept = column.iter().filter(|&&byte| stays_in_percent(byte)).count();
                kept + (column.len() - kept) * 3
            }
            ColumnEncoding::Base64 => column.len().div_ceil(3) * 4,
            ColumnEncoding::Quoted => {
                column.iter().map(|&byte| if stays_in_quoted(byte) { 1 } else { 3 }).sum()
            }
        }
    }

    /// Writes a column.
    pub(super) fn encode(self, column: &[u8], out: &mut impl ReplySink) {
        match self {
            ColumnEncoding::Raw => out.put(column),
            ColumnEncoding::Percent => put_percent(column, out),
            ColumnEncoding::Base64 => put_base64(column, out),
            ColumnEncoding::Quoted => put_escaped(column, b'=', b"0123456789ABCDEF", stays_in_quoted, out),
        }
    }

    /// Decodes a column and appends the result to `text`. Never fails: invalid bytes are skipped.
    pub(super) fn decode(self, column: &[u8], text: &mut Vec<u8>) {
        match self {
            ColumnEncoding::Raw => text.extend_from_slice(column),
            ColumnEncoding::Percent => decode_percent(column, text),
            ColumnEncoding::Base64 => decode_base64(column, text),
            ColumnEncoding::Quoted => decode_quoted(column, text),
        }
    }

    /// Returns true if decoding does not change the column.
    pub(super) fn is_identity(self, column: &[u8]) -> bool {
        match self {
            ColumnEncoding::Raw => true,
            ColumnEncoding::Percent => {
                !column.iter().any(|&byte| byte <= b' ' || byte == 0x7F || byte == b'%' || byte == b'+')
            }
            ColumnEncoding::Base64 => column.is_empty(),
            ColumnEncoding::Quoted => !column.iter().any(|&byte| byte < b' ' || byte == 0x7F || byte == b'='),
        }
    }
}

/// Returns true if a column may be written raw.
#[inline]
fn is_plain(column: &[u8]) -> bool {
    // The loop has no early exit, so that the compiler can vectorise it.
    let is_foreign = |found: bool, &byte: &u8| found | (byte < b' ') | (byte == 0x7F);
    column.len() <= EXAMINED_LEN && !column.iter().fold(false, is_foreign)
}

/// Returns true if the choice of an encoding assumes that percent encoding leaves this byte as it
/// is. The original's assumption differs slightly from `stays_in_percent`.
fn is_url_safe(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.!~*'()".contains(&byte)
}

fn stays_in_percent(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.~".contains(&byte)
}

fn stays_in_quoted(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte) && byte != b'='
}

/// Writes percent encoding with lower-case digits. Also used for keys in paths.
pub(super) fn put_percent(column: &[u8], out: &mut impl ReplySink) {
    put_escaped(column, b'%', b"0123456789abcdef", stays_in_percent, out);
}

fn put_escaped(
    column: &[u8],
    escape: u8,
    digits: &[u8; 16],
    stays: impl Fn(u8) -> bool,
    out: &mut impl ReplySink,
) {
    let mut rest = column;
    loop {
        let plain = rest.iter().position(|&byte| !stays(byte)).unwrap_or(rest.len());
        out.put(&rest[..plain]);
        let Some(&byte) = rest.get(plain) else { return };
        out.put(&[escape, digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
        rest = &rest[plain + 1..];
    }
}

fn put_base64(column: &[u8], out: &mut impl ReplySink) {
    let mut buffer = [0; 1024];
    for piece in column.chunks(buffer.len() / 4 * 3) {
        let len = STANDARD.encode_slice(piece, &mut buffer).expect("the buffer is four thirds of a piece");
        out.put(&buffer[..len]);
    }
}

/// Returns `before` extended by a hexadecimal digit. An invalid digit leaves the value unchanged,
/// as in the original.
fn hex_digit(before: u8, byte: u8) -> u8 {
    match char::from(byte).to_digit(16) {
        Some(digit) => before << 4 | digit as u8,
        None => before,
    }
}

/// Decodes percent encoding. A `%` without two digits ends the text. Bytes from 0x80 on are kept.
/// The original drops them and so loses raw UTF-8.
pub(super) fn decode_percent(column: &[u8], text: &mut Vec<u8>) {
    let mut bytes = column.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'%' => {
                let (Some(&high), Some(&low)) = (bytes.next(), bytes.next()) else { return };
                text.push(hex_digit(hex_digit(0, high), low));
            }
            b'+' => text.push(b' '),
            0..=b' ' | 0x7F => {}
            _ => text.push(byte),
        }
    }
}

fn decode_quoted(column: &[u8], text: &mut Vec<u8>) {
    let mut rest = column;
    while let [byte, behind @ ..] = rest {
        rest = behind;
        match byte {
            b'=' => match rest {
                [b'\r', b'\n', behind @ ..] | [b'\n' | b'\r', behind @ ..] => rest = behind,
                [high, low, behind @ ..] => {
                    text.push(hex_digit(hex_digit(0, *high), *low));
                    rest = behind;
                }
                _ => return,
            },
            0..b' ' | 0x7F => {}
            _ => text.push(*byte),
        }
    }
}

/// Decodes base64. Invalid characters are skipped, and padding ends the text. Padding may be
/// missing; the original reads out of bounds then.
fn decode_base64(column: &[u8], text: &mut Vec<u8>) {
    let start = text.len();
    // Almost all input is valid, and decoding complete groups is faster than decoding single
    // characters.
    text.resize(start + column.len().div_ceil(4) * 3, 0);
    if let Ok(len) = STANDARD.decode_slice(column, &mut text[start..]) {
        return text.truncate(start + len);
    }
    text.truncate(start);
    let end = memchr(b'=', column).unwrap_or(column.len());
    let (mut bits, mut count) = (0u32, 0);
    for &byte in &column[..end] {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(digit);
        count += 1;
        if count == 4 {
            text.extend_from_slice(&bits.to_be_bytes()[1..]);
            (bits, count) = (0, 0);
        }
    }
    match count {
        2 => text.push((bits >> 4) as u8),
        3 => text.extend_from_slice(&(bits >> 2).to_be_bytes()[2..]),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(encoding: ColumnEncoding, column: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encoding.encode(column, &mut out);
        assert_eq!(encoding.encoded_len(column), out.len());
        out
    }

    fn decoded(encoding: ColumnEncoding, column: &[u8]) -> Vec<u8> {
        let mut text = b"before".to_vec();
        encoding.decode(column, &mut text);
        assert!(!encoding.is_identity(column) || text[6..] == *column);
        text.split_off(6)
    }

    #[test]
    fn every_encoding_round_trips_every_byte() {
        let all: Vec<u8> = (0..=255).cycle().take(2000).collect();
        for encoding in
            [ColumnEncoding::Raw, ColumnEncoding::Percent, ColumnEncoding::Base64, ColumnEncoding::Quoted]
        {
            for len in (0..20).chain([255, 256, 767, 768, 769, 2000]) {
                assert_eq!(
                    decoded(encoding, &encoded(encoding, &all[..len])),
                    &all[..len],
                    "{encoding:?} {len}"
                );
            }
        }
    }

    #[test]
    fn percent_digits_are_lower_quoted_ones_upper_case() {
        assert_eq!(encoded(ColumnEncoding::Percent, b"aZ9_-.~ \xFF*=j"), b"aZ9_-.~%20%ff%2a%3dj");
        assert_eq!(encoded(ColumnEncoding::Quoted, b"a =\t\xFF~"), b"a =3D=09=FF~");
        assert_eq!(encoded(ColumnEncoding::Base64, b"a"), b"YQ==");
    }

    #[test]
    fn percent_is_read_leniently() {
        for (column, text) in [
            (&b"%2f%2F+"[..], &b"// "[..]),
            (b"a b\x7Fc\td", b"abcd"),
            (b"caf\xC3\xA9", b"caf\xC3\xA9"),
            (b"ab%4", b"ab"),
            (b"ab%", b"ab"),
            (b"%zz%4g", b"\x00\x04"),
        ] {
            assert_eq!(decoded(ColumnEncoding::Percent, column), text, "{column:?}");
        }
    }

    #[test]
    fn base64_skips_invalid_characters_and_ends_at_padding() {
        for (column, text) in [
            (&b"Y W\nJj"[..], &b"abc"[..]),
            (b"YQ==YQ==", b"a"),
            (b"YQ=", b"a"),
            (b"YQ", b"a"),
            (b"YWI", b"ab"),
            (b"Y", b""),
            (b"=", b""),
            (b"", b""),
        ] {
            assert_eq!(decoded(ColumnEncoding::Base64, column), text, "{column:?}");
        }
    }

    #[test]
    fn quoted_lines_are_joined() {
        for (column, text) in [
            (&b"ab=\r\ncd=\nef"[..], &b"abcdef"[..]),
            (b"a=3Db=3db", b"a=b=b"),
            (b"a\x01\x7Fb\xC3", b"ab\xC3"),
            (b"a=", b"a"),
            (b"a=4", b"a"),
        ] {
            assert_eq!(decoded(ColumnEncoding::Quoted, column), text, "{column:?}");
        }
    }

    #[test]
    fn only_control_bytes_and_length_cause_encoding() {
        let long = [b'a'; 256];
        for (columns, encoding) in [
            (vec![&b"a"[..], b""], ColumnEncoding::Raw),
            (vec![&[0xFF; 8]], ColumnEncoding::Raw),
            (vec![&long[..255]], ColumnEncoding::Raw),
            (vec![&long[..]], ColumnEncoding::Percent),
            (vec![b"a\tb"], ColumnEncoding::Percent),
            (vec![b"\x7F"], ColumnEncoding::Percent),
            (vec![b"value", &b"\0\0\0\0\0\0\0\x01\0\x01\xC7\x2F\x52\x63\x40\0"[..]], ColumnEncoding::Base64),
        ] {
            assert_eq!(ColumnEncoding::choose(columns.iter().copied()), encoding, "{columns:?}");
        }
    }
}
