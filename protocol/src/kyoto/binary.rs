//! Decodes and answers Kyoto Tycoon's binary protocol: bulk requests record by record, calls of
//! scripts, and a replica's request for updates.

use super::map::{MapScratch, ParameterMap};
use super::{KyotoLimits, KyotoRequest};
use crate::ReplySink;

/// The first byte of a replica's request, and the replica's acknowledgement that it has caught up.
pub(super) const REPLICATION: u8 = 0xB1;
pub(super) const SCRIPT: u8 = 0xB4;
const SET: u8 = 0xB8;
const REMOVE: u8 = 0xB9;
const GET: u8 = 0xBA;
pub(super) const ERROR: u8 = 0xBF;

/// The flag of a request that wants no answer.
const SILENT: u32 = 1;

/// The flags of a replica's request. The second is Todana's own; the original ignores it.
pub(super) const WANTS_ONLY: u32 = 1;
pub(super) const TAKES_LISTS: u32 = 1 << 31;

/// Returns true if a byte begins a request of this protocol.
pub(super) fn is_request(first: u8) -> bool {
    matches!(first, REPLICATION | SCRIPT | SET | REMOVE | GET)
}

/// The operation of a bulk request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkOperation {
    /// Stores records.
    Set,
    /// Reads records. Such a request is always answered.
    Remove,
    /// Reads records; always answered.
    Get,
}

impl BulkOperation {
    /// Returns the first byte of the requests and answers of this operation.
    pub fn magic(self) -> u8 {
        match self {
            BulkOperation::Set => SET,
            BulkOperation::Remove => REMOVE,
            BulkOperation::Get => GET,
        }
    }

    /// Returns the length of the numbers that precede the key of each record in a request.
    fn head_len(self) -> usize {
        match self {
            BulkOperation::Set => 2 + 4 + 4 + 8,
            BulkOperation::Remove | BulkOperation::Get => 2 + 4,
        }
    }
}

/// A piece of a bulk request: the beginning of the request, or one of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkPiece<'a> {
    /// The operation.
    pub operation: BulkOperation,
    /// True if the client wants no answer.
    pub is_silent: bool,
    /// The record, or `None` at the beginning of the request.
    pub record: Option<BulkRecord<'a>>,
    /// The number of records that follow. The answer is due when this number is 0.
    pub remaining: u32,
}

/// A record of a bulk request or of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkRecord<'a> {
    /// The number of the database to which the record belongs.
    pub database: u16,
    /// The key.
    pub key: &'a [u8],
    /// The value. It is empty in requests to read or remove.
    pub value: &'a [u8],
    /// In a request to store: the expiry in the form that
    /// [`expiry::resolve`](super::expiry::resolve) reads. In an answer: the absolute time,
    /// [`expiry::NEVER`](super::expiry::NEVER), or
    /// [`expiry::PERSISTENT`](super::expiry::PERSISTENT).
    pub xt: i64,
}

/// A call of a script procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptCall<'a> {
    /// The name of the procedure, which may contain any bytes.
    pub name: &'a [u8],
    /// The parameters.
    pub input: ParameterMap<'a>,
    /// True if the client wants no answer.
    pub is_silent: bool,
}

/// A replica's request for updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRequest {
    /// The timestamp of the newest update that the replica has.
    pub timestamp: u64,
    /// The ID of the server that sends the request.
    pub server_id: u16,
    /// True to receive only the updates that originated at the server with this ID. False to
    /// receive all updates except those.
    pub wants_only: bool,
    /// True if the replica knows records with several values
    /// ([`UpdateChange::SetList`](super::message::UpdateChange::SetList)).
    pub takes_lists: bool,
}

/// The decoder's position in a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum BinaryPosition {
    /// At the first byte.
    #[default]
    Start,
    /// Before a record of a bulk request; `left` records remain.
    Bulk { operation: BulkOperation, is_silent: bool, left: u32 },
    /// In a script request of which `at` bytes have been scanned; `left` pairs remain.
    Script { at: usize, left: u32, is_silent: bool },
}

impl BinaryPosition {
    /// Returns true if a request that is interrupted here must be answered.
    pub(super) fn interrupted(self) -> bool {
        matches!(
            self,
            BinaryPosition::Bulk { is_silent: false, .. } | BinaryPosition::Script { is_silent: false, .. }
        )
    }
}

/// The result of decoding the unread bytes.
pub(super) enum BinaryOutcome<'a> {
    /// A piece of a request. More pieces follow.
    Piece { consumed: usize, request: KyotoRequest<'a> },
    /// The last piece of a request, or a complete request.
    Last { consumed: usize, request: KyotoRequest<'a> },
    /// At least this number of bytes is missing.
    NeedMore { at_least: usize },
    /// A length exceeds its limit. The request is answered with an error.
    Refused { consumed: usize },
    /// The connection must be closed without an answer.
    Close,
}

/// Reads numbers and byte strings from the input. Each read returns the number of missing bytes if
/// the input is too short.
struct InputReader<'a> {
    input: &'a [u8],
    at: usize,
}

/// The number of bytes that are missing at least.
struct MissingBytes(usize);

impl<'a> InputReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], MissingBytes> {
        let rest = &self.input[self.at..];
        let taken = rest.get(..len).ok_or_else(|| MissingBytes(len - rest.len()))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MissingBytes> {
        Ok(self.take(N)?.try_into().expect("as long as taken"))
    }

    fn u16(&mut self) -> Result<u16, MissingBytes> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, MissingBytes> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, MissingBytes> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Decodes the next step of a request.
#[inline]
pub(super) fn decode<'a>(
    place: &mut BinaryPosition,
    limits: &KyotoLimits<'_>,
    input: &'a [u8],
    scratch: &'a mut MapScratch,
) -> BinaryOutcome<'a> {
    match *place {
        BinaryPosition::Start => begin(place, limits, input, scratch)
            .unwrap_or_else(|MissingBytes(at_least)| BinaryOutcome::NeedMore { at_least }),
        BinaryPosition::Bulk { operation, is_silent, .. } => {
            record(place, limits, input, operation, is_silent)
        }
        BinaryPosition::Script { at, left, .. } => script(place, limits, input, scratch, at, left),
    }
}

fn begin<'a>(
    place: &mut BinaryPosition,
    limits: &KyotoLimits<'_>,
    input: &'a [u8],
    scratch: &'a mut MapScratch,
) -> Result<BinaryOutcome<'a>, MissingBytes> {
    let mut reader = InputReader { input, at: 0 };
    let [magic] = reader.array()?;
    let operation = match magic {
        SET => BulkOperation::Set,
        REMOVE => BulkOperation::Remove,
        GET => BulkOperation::Get,
        SCRIPT => {
            reader.take(4)?;
            let name_len = reader.u32()?;
            let pairs = reader.u32()?;
            if u64::from(name_len) > limits.body_len_max {
                return Ok(refuse(is_silent(input), reader.at));
            }
            return Ok(script(place, limits, input, scratch, reader.at + name_len as usize, pairs));
        }
        REPLICATION => {
            let flags = reader.u32()?;
            let timestamp = reader.u64()?;
            let server_id = reader.u16()?;
            let (wants_only, takes_lists) = (flags & WANTS_ONLY != 0, flags & TAKES_LISTS != 0);
            let hello = ReplicaRequest { timestamp, server_id, wants_only, takes_lists };
            return Ok(BinaryOutcome::Last { consumed: reader.at, request: KyotoRequest::Replicate(hello) });
        }
        _ => return Ok(BinaryOutcome::Close),
    };
    let flags = reader.u32()?;
    let count = reader.u32()?;
    // A read without an answer makes no sense, so the flag is ignored for reads.
    let is_silent = flags & SILENT != 0 && operation != BulkOperation::Get;
    let request = KyotoRequest::Bulk(BulkPiece { operation, is_silent, record: None, remaining: count });
    if count == 0 {
        return Ok(BinaryOutcome::Last { consumed: reader.at, request });
    }
    *place = BinaryPosition::Bulk { operation, is_silent, left: count };
    Ok(BinaryOutcome::Piece { consumed: reader.at, request })
}

/// Returns the next record of a bulk request and the number of its bytes in the input, and moves
/// `place` past the record. Returns `None` and leaves `place` unchanged if the record is incomplete
/// or exceeds a limit.
#[inline]
pub(super) fn next_record<'a>(
    place: &mut BinaryPosition,
    limits: &KyotoLimits<'_>,
    input: &'a [u8],
) -> Option<(usize, BulkPiece<'a>)> {
    let BinaryPosition::Bulk { operation, is_silent, left } = place else { return None };
    let (operation, is_silent) = (*operation, *is_silent);
    let (head, rest) = input.split_at_checked(operation.head_len())?;
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (key_len, value_len, xt) = match operation {
        BulkOperation::Set => (number(2), number(6), i64::from(number(10)) << 32 | i64::from(number(14))),
        _ => (number(2), 0, 0),
    };
    if u64::from(key_len.max(value_len)) > limits.body_len_max {
        return None;
    }
    let (key, rest) = rest.split_at_checked(key_len as usize)?;
    let value = rest.get(..value_len as usize)?;
    let record = BulkRecord { database: u16::from_be_bytes([head[0], head[1]]), key, value, xt };
    *left -= 1;
    let piece = BulkPiece { operation, is_silent, record: Some(record), remaining: *left };
    Some((head.len() + key.len() + value.len(), piece))
}

#[inline]
fn record<'a>(
    place: &mut BinaryPosition,
    limits: &KyotoLimits<'_>,
    input: &'a [u8],
    operation: BulkOperation,
    is_silent: bool,
) -> BinaryOutcome<'a> {
    if let Some((consumed, piece)) = next_record(place, limits, input) {
        let request = KyotoRequest::Bulk(piece);
        return match piece.remaining {
            0 => BinaryOutcome::Last { consumed, request },
            _ => BinaryOutcome::Piece { consumed, request },
        };
    }
    let head_len = operation.head_len();
    let Some((head, rest)) = input.split_at_checked(head_len) else {
        return BinaryOutcome::NeedMore { at_least: head_len - input.len() };
    };
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (key_len, value_len) = (number(2), if operation == BulkOperation::Set { number(6) } else { 0 });
    let is_too_long = u64::from(key_len.max(value_len)) > limits.body_len_max;
    if is_too_long || input.len() > limits.unfinished_len_max {
        return refuse(is_silent, head_len);
    }
    BinaryOutcome::NeedMore { at_least: key_len as usize + value_len as usize - rest.len() }
}

/// Decodes a call of a script. The call must be complete in the input, because its parameters form
/// a map.
fn script<'a>(
    place: &mut BinaryPosition,
    limits: &KyotoLimits<'_>,
    input: &'a [u8],
    scratch: &'a mut MapScratch,
    mut at: usize,
    mut left: u32,
) -> BinaryOutcome<'a> {
    const PAIR_HEAD_LEN: usize = 8;
    loop {
        // The limit of a body applies to the complete request, plus 64 KiB for its head and
        // lengths.
        if at as u64 > limits.body_len_max + (1 << 16)
            || input.len() > limits.unfinished_len_max && input.len() < at
        {
            return refuse(is_silent(input), input.len().min(at));
        }
        let wanted = if left == 0 { at } else { at + PAIR_HEAD_LEN };
        let Some(at_least) = wanted.checked_sub(input.len()).filter(|&missing| missing > 0) else {
            if left == 0 {
                return whole_script(input, scratch, at);
            }
            let (key_len, value_len) = pair_lens(&input[at..]);
            if (key_len.max(value_len)) as u64 > limits.body_len_max {
                return refuse(is_silent(input), at + PAIR_HEAD_LEN);
            }
            at += PAIR_HEAD_LEN + key_len + value_len;
            left -= 1;
            continue;
        };
        *place = BinaryPosition::Script { at, left, is_silent: is_silent(input) };
        return BinaryOutcome::NeedMore { at_least };
    }
}

fn whole_script<'a>(input: &'a [u8], scratch: &'a mut MapScratch, total: usize) -> BinaryOutcome<'a> {
    let input = &input[..total];
    let name_len = u32::from_be_bytes([input[5], input[6], input[7], input[8]]) as usize;
    let name = &input[13..13 + name_len];
    let mut at = 13 + name_len;
    scratch.clear();
    while at < total {
        let (key_len, value_len) = pair_lens(&input[at..]);
        let (key_at, value_at) = (at + 8, at + 8 + key_len);
        at = value_at + value_len;
        scratch.add(input, (key_at, value_at), (value_at, at));
    }
    scratch.sort_entries(input);
    let (map, _) = scratch.map(input);
    let script = ScriptCall { name, input: map, is_silent: is_silent(input) };
    BinaryOutcome::Last { consumed: total, request: KyotoRequest::Script(script) }
}

/// Returns the lengths of a key and a value. Both lengths must be complete in `pair`.
fn pair_lens(pair: &[u8]) -> (usize, usize) {
    let number = |at: usize| u32::from_be_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
    (number(0) as usize, number(4) as usize)
}

/// Returns true if the client wants no answer to a request whose flags have arrived.
fn is_silent(input: &[u8]) -> bool {
    input[4] & SILENT as u8 != 0
}

fn refuse<'a>(is_silent: bool, consumed: usize) -> BinaryOutcome<'a> {
    if is_silent { BinaryOutcome::Close } else { BinaryOutcome::Refused { consumed } }
}

/// Returns the database number, the key and the length of the record at the start of the input, if
/// its key is complete. Used for prefetching: nothing is checked here.
#[inline]
pub fn peek_record(operation: BulkOperation, input: &[u8]) -> Option<(u16, &[u8], usize)> {
    let head_len = operation.head_len();
    let (head, rest) = input.split_at_checked(head_len)?;
    let number =
        |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
    let key_len = number(2);
    let value_len = if operation == BulkOperation::Set { number(6) } else { 0 };
    let len = head_len.checked_add(key_len)?.checked_add(value_len)?;
    Some((u16::from_be_bytes([head[0], head[1]]), rest.get(..key_len)?, len))
}

/// Writes the answer of a bulk request up to the number of records that were found or changed. In
/// the answer to a read, the found records must follow.
pub fn put_hits(operation: BulkOperation, hits: u32, out: &mut impl ReplySink) {
    out.put(&[operation.magic()]);
    out.put(&hits.to_be_bytes());
}

/// Writes a record of an answer to a read, or of a request to store.
#[inline]
pub fn put_record(record: &BulkRecord<'_>, out: &mut impl ReplySink) {
    let mut head = [0; 18];
    head[..2].copy_from_slice(&record.database.to_be_bytes());
    head[2..6].copy_from_slice(&(record.key.len() as u32).to_be_bytes());
    head[6..10].copy_from_slice(&(record.value.len() as u32).to_be_bytes());
    head[10..].copy_from_slice(&record.xt.to_be_bytes());
    out.put(&head);
    out.put(record.key);
    out.put(record.value);
}

/// Writes the answer of a script.
pub fn put_script_answer<'a>(
    pairs: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut impl ReplySink,
) {
    out.put(&[SCRIPT]);
    out.put(&(pairs.len() as u32).to_be_bytes());
    for (key, value) in pairs {
        out.put(&(key.len() as u32).to_be_bytes());
        out.put(&(value.len() as u32).to_be_bytes());
        out.put(key);
        out.put(value);
    }
}

/// Writes the byte that reports a failure. The same byte refuses a replica.
pub fn put_error(out: &mut impl ReplySink) {
    out.put(&[ERROR]);
}

/// Writes the byte that accepts a replica.
pub fn put_accepted(out: &mut impl ReplySink) {
    out.put(&[REPLICATION]);
}
