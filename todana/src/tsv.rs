//! Reads and writes records as tab-separated text, in the format of docs/format/tsv.md.

use crate::db::CopiedRecord;
use std::io::{self, Write};
use todana_core::{Attributes, Expiry, Record, UnixSeconds};

/// One line of a file: a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TsvLine {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The client's flags.
    pub flags: u32,
    /// When the record expires.
    pub expiry: TsvExpiry,
    /// True if this is a further value of the key in the line before.
    pub is_further: bool,
}

/// A record of one or more lines: a further value of a key has a line of its own.
#[derive(Clone, Debug, Default)]
pub struct TsvRecord {
    /// The first line.
    pub first: TsvLine,
    /// The further values of the key.
    pub further: Vec<Vec<u8>>,
}

impl TsvRecord {
    /// Converts the record into a form with one value, which may be a list.
    pub(crate) fn into_record(self) -> CopiedRecord {
        let TsvLine { key, value, flags, expiry, .. } = self.first;
        let attributes = Attributes { flags, expiry: expiry.into(), ..Attributes::default() };
        if self.further.is_empty() {
            return CopiedRecord { key, value, attributes };
        }
        let mut list = Vec::new();
        let values = std::iter::once(value.as_slice()).chain(self.further.iter().map(Vec::as_slice));
        let stored = Record::of_values(values, attributes, &mut list).map(|record| record.attributes);
        CopiedRecord { key, attributes: stored.unwrap_or(attributes), value: list }
    }
}

/// The problem of a line with a further value after a line with another key.
pub const FURTHER_WITHOUT_KEY: &str = "a further value must follow the line of its key";

/// Collects the lines of a record.
#[derive(Debug, Default)]
pub struct PendingRecord(Option<TsvRecord>);

impl PendingRecord {
    /// Adds the next line; `None` is the end of the file. Returns the record before the line, once
    /// it is complete. The error is a text that states the problem.
    pub fn push(&mut self, line: Option<TsvLine>) -> Result<Option<TsvRecord>, &'static str> {
        match line {
            Some(line) if line.is_further => match &mut self.0 {
                Some(record) if record.first.key == line.key => {
                    record.further.push(line.value);
                    Ok(None)
                }
                _ => Err(FURTHER_WITHOUT_KEY),
            },
            line => {
                let next = line.map(|first| TsvRecord { first, further: Vec::new() });
                Ok(std::mem::replace(&mut self.0, next))
            }
        }
    }
}

impl From<TsvExpiry> for Expiry {
    fn from(expiry: TsvExpiry) -> Expiry {
        match expiry {
            TsvExpiry { at: 0, .. } => Expiry::Never,
            TsvExpiry { at, span_s: 0 } => Expiry::At(UnixSeconds(at)),
            TsvExpiry { at, span_s } => Expiry::Sliding { at: UnixSeconds(at), span_s },
        }
    }
}

impl From<Expiry> for TsvExpiry {
    fn from(expiry: Expiry) -> TsvExpiry {
        TsvExpiry { at: expiry.at().map_or(0, |at| at.0), span_s: expiry.span_s().unwrap_or(0) }
    }
}

/// The expiry of a record, as a line states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TsvExpiry {
    /// The Unix time at which the record expires; 0 if it never expires.
    pub at: u64,
    /// The span of a sliding expiry in seconds; 0 if the expiry is fixed.
    pub span_s: u32,
}

/// Parses a line without its line end. The error is a text that states the problem.
pub fn parse(line: &[u8]) -> Result<TsvLine, &'static str> {
    let mut columns = line.split(|&byte| byte == b'\t');
    let key = unescape(columns.next().unwrap_or_default())?;
    let value = unescape(columns.next().ok_or("no tab between key and value")?)?;
    let flags = number(columns.next().unwrap_or_default()).ok_or("the flags are not a number")?;
    let flags = u32::try_from(flags).map_err(|_| "the flags exceed 32 bits")?;
    let expiry = expiry(columns.next().unwrap_or_default())?;
    let is_further = match columns.next() {
        None => false,
        Some(b"+") => true,
        Some(_) => return Err("the fifth column is not +"),
    };
    if columns.next().is_some() {
        return Err("more than five columns");
    }
    Ok(TsvLine { key, value, flags, expiry, is_further })
}

/// Parses a number. An empty field means 0.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() { Some(0) } else { std::str::from_utf8(text).ok()?.parse().ok() }
}

fn expiry(text: &[u8]) -> Result<TsvExpiry, &'static str> {
    let mut parts = text.splitn(2, |&byte| byte == b'~');
    let at = number(parts.next().unwrap_or_default()).ok_or("the expiry is not a Unix time")?;
    let Some(span) = parts.next() else { return Ok(TsvExpiry { at, span_s: 0 }) };
    // A span must be one that servers accept.
    let span_s = number(span).and_then(|span| u32::try_from(span).ok());
    let span_s = span_s.filter(|span| (1..=SPAN_S_MAX).contains(span) && at != 0);
    Ok(TsvExpiry { at, span_s: span_s.ok_or("the expiry is not a Unix time, ~ and a span in seconds")? })
}

const SPAN_S_MAX: u32 = i32::MAX as u32;

/// Writes a line for a record, with its line end.
pub fn put(out: &mut impl Write, key: &[u8], value: &[u8], flags: u32, expiry: TsvExpiry) -> io::Result<()> {
    escape(out, key)?;
    out.write_all(b"\t")?;
    escape(out, value)?;
    if flags != 0 || expiry.at != 0 {
        write!(out, "\t{flags}")?;
    }
    if expiry.at != 0 {
        write!(out, "\t{}", expiry.at)?;
    }
    if expiry.span_s != 0 {
        write!(out, "~{}", expiry.span_s)?;
    }
    out.write_all(b"\n")
}

/// Writes a line for a further value of the key in the line before.
pub fn put_further(out: &mut impl Write, key: &[u8], value: &[u8]) -> io::Result<()> {
    escape(out, key)?;
    out.write_all(b"\t")?;
    escape(out, value)?;
    out.write_all(b"\t\t\t+\n")
}

/// Writes the lines for a record: one for each of its values.
pub fn put_record(out: &mut impl Write, key: &[u8], record: Record<'_>) -> io::Result<()> {
    let (mut values, Attributes { flags, expiry, .. }) = (record.values(), record.attributes);
    put(out, key, values.next().unwrap_or_default(), flags, expiry.into())?;
    values.try_for_each(|value| put_further(out, key, value))
}

/// Writes bytes and escapes control characters, because terminals obey them: those of ASCII, and
/// the second set in UTF-8, U+0080 to U+009F.
pub fn escape(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let is_plain = |byte: u8| byte >= b' ' && byte != b'\\' && byte != 0x7F && byte != SECOND_SET;
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|&byte| !is_plain(byte)) {
        out.write_all(&rest[..at])?;
        let behind = rest.get(at + 1).copied();
        let mut len = 1;
        match rest[at] {
            b'\\' => out.write_all(b"\\\\")?,
            b'\t' => out.write_all(b"\\t")?,
            b'\n' => out.write_all(b"\\n")?,
            b'\r' => out.write_all(b"\\r")?,
            SECOND_SET => match behind {
                Some(byte @ 0x80..=0x9F) => {
                    write!(out, "\\x{SECOND_SET:02x}\\x{byte:02x}")?;
                    len = 2;
                }
                _ => out.write_all(&[SECOND_SET])?,
            },
            byte => write!(out, "\\x{byte:02x}")?,
        }
        rest = &rest[at + len..];
    }
    out.write_all(rest)
}

/// The first byte, in UTF-8, of the second set of control characters and of some other characters.
const SECOND_SET: u8 = 0xC2;

fn unescape(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'\\') => b'\\',
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b'x') => {
                let mut digit = || rest.next().and_then(|&digit| char::from(digit).to_digit(16));
                match (digit(), digit()) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => return Err("\\x needs two hexadecimal digits"),
                }
            }
            _ => return Err("unknown escape; use \\\\ \\t \\n \\r \\xHH"),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        let (long, short) = (1_800_000_000, 300);
        for (flags, at, span_s) in
            [(0, 0, 0), (7, 0, 0), (0, long, 0), (u32::MAX, u64::MAX, 0), (0, long, short)]
        {
            let expiry = TsvExpiry { at, span_s };
            let line = TsvLine {
                key: all.clone(),
                value: all.iter().rev().copied().collect(),
                flags,
                expiry,
                ..TsvLine::default()
            };
            let mut text = Vec::new();
            put(&mut text, &line.key, &line.value, flags, expiry).unwrap();
            assert_eq!(text.iter().filter(|&&byte| byte == b'\n').count(), 1);
            assert_eq!(parse(&text[..text.len() - 1]), Ok(line));
        }
    }

    #[test]
    fn control_characters_are_escaped_and_round_trip() {
        let escaped = |bytes: &[u8]| {
            let mut out = Vec::new();
            escape(&mut out, bytes).unwrap();
            assert_eq!(unescape(&out).unwrap(), bytes);
            out
        };
        for character in (0..=0x2FFu32).filter_map(char::from_u32) {
            let text = format!("a{character}b");
            let written = String::from_utf8(escaped(text.as_bytes())).unwrap();
            assert!(!written.chars().any(char::is_control), "{character:?}: {written:?}");
            let is_escaped = character.is_control() || character == '\\';
            assert_eq!(written != text, is_escaped, "{character:?}: {written:?}");
        }
        assert_eq!(escaped("\u{9b}2J".as_bytes()), b"\\xc2\\x9b2J");
        // The same bytes after an invalid byte, and within another character.
        assert_eq!(escaped(b"\xe2\xc2\x9b"), b"\xe2\\xc2\\x9b");
        assert_eq!(escaped(b"\xc2\xc2\x80\xc2"), b"\xc2\\xc2\\x80\xc2");
        assert_eq!(escaped("\u{29b} \u{a0}".as_bytes()), "\u{29b} \u{a0}".as_bytes());
    }

    #[test]
    fn faulty_lines_are_refused_with_the_reason() {
        for (text, part) in [
            ("key", "no tab"),
            ("k\tv\tx", "flags"),
            ("k\tv\t4294967296", "32 bits"),
            ("k\tv\t0\tsoon", "expiry"),
            ("k\tv\t0\t0\t0", "fifth"),
            ("k\tv\t0\t0\t+\t", "five"),
            ("k\tv\t0\t5~", "span"),
            ("k\tv\t0\t5~0", "span"),
            ("k\tv\t0\t5~2147483648", "span"),
            ("k\tv\t0\t5~3~4", "span"),
            ("k\tv\t0\t~3", "span"),
            ("k\tv\t0\tx~3", "expiry"),
            ("k\\\tv", "unknown escape"),
            ("k\\x1\tv", "two hexadecimal"),
        ] {
            let error = parse(text.as_bytes()).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// The examples in the page about the format: text, key, value, flags, expiry.
    #[test]
    fn format_page_examples_hold() {
        let page = include_str!("../../docs/format/tsv.md");
        let mut seen = 0;
        for row in page.lines().filter_map(|row| row.strip_prefix("| `")) {
            let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
            let text = cells[0].trim_end_matches('`').replace("⇥", "\t");
            let hex = |cell: &str| -> Vec<u8> {
                cell.split_whitespace().map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
            };
            let line = TsvLine {
                key: hex(cells[1]),
                value: hex(cells[2]),
                flags: cells[3].trim().parse().unwrap(),
                expiry: expiry(cells[4].trim().as_bytes()).unwrap(),
                is_further: text.ends_with("\t+"),
            };
            assert_eq!(parse(text.as_bytes()), Ok(line), "{text:?}");
            seen += 1;
        }
        assert_eq!(seen, 7);
    }
}
