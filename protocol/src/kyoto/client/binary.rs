//! Writes requests of the binary protocol, and decodes the answers for a client.

use crate::ReplySink;
use crate::kyoto::binary::{ERROR, SCRIPT};
use crate::kyoto::{BulkOperation, BulkRecord};

pub use crate::kyoto::binary::put_record;

/// The longest key or value that is accepted, in bytes.
const LEN_MAX: u32 = 1 << 28;

/// Writes the beginning of a bulk request. `count` records must follow, written by [`put_record`]
/// in a request to store and by [`put_key`] in other requests. A silent request gets no answer,
/// except a request to read.
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

/// Writes a call of a script procedure.
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

/// An answer, or a piece of an answer. `remaining` is 0 in the last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryAnswer<'a> {
    /// The request failed. The server closes the connection, except after a script.
    Failed,
    /// The number of records that were stored, removed or found. The found records follow.
    Hits {
        /// The operation of the request.
        operation: BulkOperation,
        /// The number of records.
        hits: u32,
        /// The number of records that follow.
        remaining: u32,
    },
    /// A record that was found.
    Record {
        /// The record.
        record: BulkRecord<'a>,
        /// The number of records that follow.
        remaining: u32,
    },
    /// The beginning of a script's answer.
    Pairs {
        /// The number of pairs that follow.
        remaining: u32,
    },
    /// A pair of a script's answer.
    Pair {
        /// The name of the pair.
        key: &'a [u8],
        /// The value of the pair.
        value: &'a [u8],
        /// The number of pairs that follow.
        remaining: u32,
    },
}

/// The result of decoding the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryStep<'a> {
    /// An answer, or a piece of an answer.
    Answer {
        /// The consumed bytes of the input, at least 1.
        consumed: usize,
        /// The answer, which borrows from the input.
        answer: BinaryAnswer<'a>,
    },
    /// The answer is incomplete.
    NeedMore {
        /// The number of bytes that are missing at least; never 0.
        at_least: usize,
    },
    /// The input is not a valid answer, or it exceeds the limits.
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
    /// Before a record; this number of records remains.
    Records(u32),
    /// Before a pair; this number of pairs remains.
    Pairs(u32),
}

impl BinaryAnswerDecoder {
    /// Decodes the next step from `input`, which must contain all unread bytes.
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

/// Returns the key and the value of an entry, and the length of the entry. The entry begins with
/// `HEAD` bytes, in which the two lengths stand at `lens_at`.
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
