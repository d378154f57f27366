//! Reads and writes an update log as text, with one record per line. This is the format of
//! `ttulmgr export` and `ttulmgr import`.
//!
//! ```text
//! line = stamp TAB server id : master id TAB name TAB body LF
//! ```
//!
//! The numbers are decimal. The body is hexadecimal, with a space between two bytes. In an exported
//! log, [`DAMAGED`] stands for the name and the body of a damaged record.

use super::FIRST_BYTE;
use super::command::TyrantCommand;
use super::update_log::{BODY_LEN_MAX, LogRecord};
use crate::ReplySink;

/// The text that replaces the name and body of a record whose body is not a command.
pub const DAMAGED: &str = "[broken entry]";

/// The longest line, in bytes: the longest body, with room for the other columns.
pub const LINE_LEN_MAX: usize = 3 * BODY_LEN_MAX + 128;

/// Returns the name of the command in a body, or `None` if the body is not a command.
fn name(body: &[u8]) -> Option<&'static str> {
    match body {
        [FIRST_BYTE, command, _, ..] => {
            Some(TyrantCommand::from_byte(*command).map_or("(unknown)", TyrantCommand::name))
        }
        _ => None,
    }
}

/// Writes the line of a record.
pub fn put_line(record: &LogRecord<'_>, out: &mut impl ReplySink) {
    let LogRecord { stamp_micros, server_id, master_id, body } = record;
    out.put(format!("{stamp_micros}\t{server_id}:{master_id}\t").as_bytes());
    let Some(name) = name(body) else {
        out.put(DAMAGED.as_bytes());
        return out.put(b"\n");
    };
    out.put(name.as_bytes());
    for (index, byte) in body.iter().enumerate() {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let separator = if index == 0 { b'\t' } else { b' ' };
        out.put(&[separator, DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    out.put(b"\n");
}

/// A line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLine<'a> {
    /// A record.
    Record(LogRecord<'a>),
    /// The line of a record that was damaged when the log was exported.
    Damaged,
    /// The line does not have this format.
    Malformed,
}

/// Parses a line without its line end. `body` receives the bytes of the body. The name of the
/// command is ignored, because the body contains the command too. The spaces between bytes may be
/// missing.
pub fn parse_line<'b>(line: &[u8], body: &'b mut Vec<u8>) -> LogLine<'b> {
    parse_columns(line, body).unwrap_or(LogLine::Malformed)
}

fn parse_columns<'b>(line: &[u8], body: &'b mut Vec<u8>) -> Option<LogLine<'b>> {
    let mut columns = line.splitn(4, |&byte| byte == b'\t');
    let stamp_micros = number(columns.next()?)?;
    let mut ids = columns.next()?.splitn(2, |&byte| byte == b':');
    let mut id = || u16::try_from(number(ids.next()?)?).ok();
    let (server_id, master_id) = (id()?, id()?);
    if columns.next()? == DAMAGED.as_bytes() {
        return Some(LogLine::Damaged);
    }
    parse_hex(columns.next()?, body)?;
    Some(LogLine::Record(LogRecord { stamp_micros, server_id, master_id, body }))
}

fn parse_hex(text: &[u8], body: &mut Vec<u8>) -> Option<()> {
    let digit = |&byte: &u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    body.clear();
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        let Some((pair, after)) = rest.split_first_chunk::<2>() else {
            return rest.is_empty().then_some(());
        };
        if body.len() == BODY_LEN_MAX {
            return None;
        }
        body.push(digit(&pair[0])? << 4 | digit(&pair[1])?);
        rest = after;
    }
}

/// Parses a decimal number that consists of digits.
pub fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}
