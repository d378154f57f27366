//! Reads and writes the records of dump and snapshot files: a marker byte, two lengths, a key, a
//! value.

use super::message::StoredValue;
use super::varnum;
use crate::ReplySink;

/// The longest key and the longest value that are accepted, in bytes.
const LEN_MAX: u64 = 1 << 30;

/// The result of reading a record.
pub(super) enum FramedRecord<'a> {
    /// A complete record, which has `len` bytes.
    Whole { len: usize, key: &'a [u8], value: &'a [u8] },
    /// At least this number of bytes is missing.
    Partial { at_least: usize },
    /// No record begins here.
    Damaged(&'static str),
}

/// Reads the record at the beginning of `input`, which must not be empty.
pub(super) fn read(marker: u8, input: &[u8]) -> FramedRecord<'_> {
    if input[0] != marker {
        return FramedRecord::Damaged("no record begins here");
    }
    let (key_len, after_key_len) = match length(&input[1..]) {
        Ok(found) => found,
        Err(framed) => return framed,
    };
    let (value_len, content) = match length(after_key_len) {
        Ok(found) => found,
        Err(framed) => return framed,
    };
    let Some((key, rest)) = content.split_at_checked(key_len) else {
        return FramedRecord::Partial { at_least: key_len + value_len - content.len() };
    };
    let Some(value) = rest.get(..value_len) else {
        return FramedRecord::Partial { at_least: value_len - rest.len() };
    };
    FramedRecord::Whole { len: input.len() - rest.len() + value_len, key, value }
}

/// Writes a record.
pub(super) fn put(marker: u8, key: &[u8], stored: &StoredValue<'_>, out: &mut impl ReplySink) {
    out.put(&[marker]);
    varnum::put(key.len() as u64, out);
    varnum::put(stored.len() as u64, out);
    out.put(key);
    stored.put(out);
}

fn length<'a>(bytes: &'a [u8]) -> Result<(usize, &'a [u8]), FramedRecord<'a>> {
    match varnum::read(bytes) {
        varnum::VarnumRead::Whole(len, _) if len > LEN_MAX => {
            Err(FramedRecord::Damaged("a record is too long"))
        }
        varnum::VarnumRead::Whole(len, taken) => Ok((len as usize, &bytes[taken..])),
        varnum::VarnumRead::Partial => Err(FramedRecord::Partial { at_least: 1 }),
        varnum::VarnumRead::Malformed => Err(FramedRecord::Damaged("a length is too long")),
    }
}
