//! Records as the files have them that are dumped: a byte that says that one follows, two lengths, a key, a value.

use super::message::Stored;
use super::varnum;
use crate::Sink;

/// The longest key and the longest value that are taken, in bytes.
const LEN_MAX: u64 = 1 << 30;

/// The outcome of looking for a record.
pub(super) enum Framed<'a> {
    /// A record, so long.
    Whole { len: usize, key: &'a [u8], value: &'a [u8] },
    /// At least so many bytes are missing.
    Partial { at_least: usize },
    /// None begins here.
    Damaged(&'static str),
}

/// The record at the beginning of some bytes, which are not none.
pub(super) fn read(marker: u8, input: &[u8]) -> Framed<'_> {
    if input[0] != marker {
        return Framed::Damaged("no record begins here");
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
        return Framed::Partial { at_least: key_len + value_len - content.len() };
    };
    let Some(value) = rest.get(..value_len) else {
        return Framed::Partial { at_least: value_len - rest.len() };
    };
    Framed::Whole { len: input.len() - rest.len() + value_len, key, value }
}

/// Writes a record.
pub(super) fn put(marker: u8, key: &[u8], stored: &Stored<'_>, out: &mut impl Sink) {
    out.put(&[marker]);
    varnum::put(key.len() as u64, out);
    varnum::put(stored.len() as u64, out);
    out.put(key);
    stored.put(out);
}

fn length<'a>(bytes: &'a [u8]) -> Result<(usize, &'a [u8]), Framed<'a>> {
    match varnum::read(bytes) {
        varnum::Read::Whole(len, _) if len > LEN_MAX => Err(Framed::Damaged("a record is too long")),
        varnum::Read::Whole(len, taken) => Ok((len as usize, &bytes[taken..])),
        varnum::Read::Partial => Err(Framed::Partial { at_least: 1 }),
        varnum::Read::Malformed => Err(Framed::Damaged("a length is too long")),
    }
}
