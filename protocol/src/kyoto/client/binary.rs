//! The binary protocol as a client speaks it.

use crate::ReplySink;
use crate::kyoto::binary::{ERROR, SCRIPT};
use crate::kyoto::{BulkOperation, BulkRecord};

pub use crate::kyoto::binary::put_record;

/// The longest key or value that is taken, in bytes.
const LEN_MAX: u32 = 1 << 28;

/// Writes what a bulk request begins with; so many records follow, by [`put_record`] to store and by [`put_key`] else.
/// A silent request is not answered; reading always is.
pub fn put_bulk(operation: BulkOperation, count: u32, is_silent: bool, out: &mut impl ReplySink) {
    out.put(&[operation.magic()]);
    out.put(&u32::from(is_silent).to_be_bytes());
    out.put(&count.to_be_bytes());
}

/// Writes a record of a request to read or to remove.
pub fn put_key(database: u16, key: &[u8], out: &mut impl ReplySink) {
    out.put(&database.to_be_bytes());
    out.put(&(key.len() as u32).to_be_bytes());
    out.put(key);
}

/// Writes a call of a script's procedure.
pub fn put_script<'a>(
    name: &[u8],
    pairs: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    is_silent: bool,
    out: &mut impl ReplySink,
) {
    out.put(&[SCRIPT]);
    for number in [u32::from(is_silent), name.len() as u32, pairs.len() as u32] {
        out.put(&number.to_be_bytes());
    }
    out.put(name);
    for (key, value) in pairs {
        out.put(&(key.len() as u32).to_be_bytes());
        out.put(&(value.len() as u32).to_be_bytes());
        out.put(key);
        out.put(value);
    }
}

/// An answer, or a piece of one; with `remaining` 0 it is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryAnswer<'a> {
    /// It failed; behind anything but a script the server closes the connection.
    Failed,
    /// So many records were stored, removed, or found; those that were found follow.
    Hits {
        /// What was asked for.
        operation: BulkOperation,
        /// How many.
        hits: u32,
        /// How many records follow.
        remaining: u32,
    },
    /// A record that was found.
    Record {
        /// The record.
        record: BulkRecord<'a>,
        /// How many follow.
        remaining: u32,
    },
    /// A script's answer; so many pairs follow.
    Pairs {
        /// How many.
        remaining: u32,
    },
    /// A pair of a script's answer.
    Pair {
        /// Its name.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// How many follow.
        remaining: u32,
    },
}

/// The outcome of looking at the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryStep<'a> {
    /// An answer, or a piece of one; the first `consumed` bytes of the input are done with.
    Answer {
        /// Bytes done with, at least 1.
        consumed: usize,
        /// The answer, borrowing from the input.
        answer: BinaryAnswer<'a>,
    },
    /// At least so many more bytes are needed.
    NeedMore {
        /// At least 1.
        at_least: usize,
    },
    /// It is no answer, or one beyond what may be.
    Malformed,
}

/// The decoder of a connection's answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct BinaryAnswerDecoder {
    place: BinaryAnswerPosition,
}

#[derive(Clone, Copy, Debug, Default)]
enum BinaryAnswerPosition {
    /// At the first byte of an answer.
    #[default]
    Start,
    /// Before a record; so many are left.
    Records(u32),
    /// Before a pair; so many are left.
    Pairs(u32),
}

impl BinaryAnswerDecoder {
    /// The next step from `input`, the unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> BinaryStep<'a> {
        match self.place {
            BinaryAnswerPosition::Start => self.begin(input),
            BinaryAnswerPosition::Records(left) => {
                let remaining = left - 1;
                let (head, consumed, key, value) = match framed::<18>(input, 2) {
                    Ok(found) => found,
                    Err(step) => return step,
                };
                let xt = i64::from_be_bytes(head[10..].try_into().expect("eight bytes"));
                let database = u16::from_be_bytes([head[0], head[1]]);
                let record = BulkRecord { database, key, value, xt };
                self.place = if remaining == 0 {
                    BinaryAnswerPosition::Start
                } else {
                    BinaryAnswerPosition::Records(remaining)
                };
                BinaryStep::Answer { consumed, answer: BinaryAnswer::Record { record, remaining } }
            }
            BinaryAnswerPosition::Pairs(left) => {
                let remaining = left - 1;
                let (_, consumed, key, value) = match framed::<8>(input, 0) {
                    Ok(found) => found,
                    Err(step) => return step,
                };
                self.place = if remaining == 0 {
                    BinaryAnswerPosition::Start
                } else {
                    BinaryAnswerPosition::Pairs(remaining)
                };
                BinaryStep::Answer { consumed, answer: BinaryAnswer::Pair { key, value, remaining } }
            }
        }
    }

    fn begin<'a>(&mut self, input: &'a [u8]) -> BinaryStep<'a> {
        let Some((&magic, rest)) = input.split_first() else { return BinaryStep::NeedMore { at_least: 1 } };
        let operations = [BulkOperation::Set, BulkOperation::Remove, BulkOperation::Get];
        let operation = operations.into_iter().find(|operation| operation.magic() == magic);
        match magic {
            ERROR => return BinaryStep::Answer { consumed: 1, answer: BinaryAnswer::Failed },
            _ if magic != SCRIPT && operation.is_none() => return BinaryStep::Malformed,
            _ => {}
        }
        let Some(count) = rest.first_chunk::<4>() else {
            return BinaryStep::NeedMore { at_least: 4 - rest.len() };
        };
        let count = u32::from_be_bytes(*count);
        let (answer, place) = match operation {
            Some(operation @ BulkOperation::Get) => (
                BinaryAnswer::Hits { operation, hits: count, remaining: count },
                BinaryAnswerPosition::Records(count),
            ),
            Some(operation) => {
                (BinaryAnswer::Hits { operation, hits: count, remaining: 0 }, BinaryAnswerPosition::Start)
            }
            None => (BinaryAnswer::Pairs { remaining: count }, BinaryAnswerPosition::Pairs(count)),
        };
        self.place = if count == 0 { BinaryAnswerPosition::Start } else { place };
        BinaryStep::Answer { consumed: 5, answer }
    }
}

type FramedEntry<'a, const HEAD: usize> = (&'a [u8; HEAD], usize, &'a [u8], &'a [u8]);

/// A key and a value behind a head that has their lengths at this place; and how long all is.
fn framed<const HEAD: usize>(input: &[u8], lens_at: usize) -> Result<FramedEntry<'_, HEAD>, BinaryStep<'_>> {
    let Some((head, rest)) = input.split_first_chunk::<HEAD>() else {
        return Err(BinaryStep::NeedMore { at_least: HEAD - input.len() });
    };
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (key_len, value_len) = (number(lens_at), number(lens_at + 4));
    if key_len.max(value_len) > LEN_MAX {
        return Err(BinaryStep::Malformed);
    }
    let (key_len, total) = (key_len as usize, key_len as usize + value_len as usize);
    match rest.get(..total) {
        Some(content) => Ok((head, HEAD + total, &content[..key_len], &content[key_len..])),
        None => Err(BinaryStep::NeedMore { at_least: total - rest.len() }),
    }
}
