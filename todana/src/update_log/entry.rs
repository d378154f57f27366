//! The entries of the update log. Each describes one change; docs/format/update-log.md defines the
//! layout.

use todana_core::{Attributes, Expiry, Record, StaleMarks, UnixSeconds};

/// Length of an entry's frame, which precedes the content: size and CRC.
pub(crate) const FRAME_LEN: usize = 8;
/// Length of a mark, with its frame.
pub(crate) const MARK_LEN: usize = FRAME_LEN + 17;
/// The longest content: a value of 1 GiB, a key of 2^28 bytes, and the fields around them.
pub(crate) const CONTENT_LEN_MAX: u32 = (1 << 30) + (1 << 28) + 128;

const MARK: u8 = 0;
const PUT: u8 = 1;
const RETAG: u8 = 2;
const REMOVE: u8 = 3;
const CLEAR: u8 = 4;
const PLAN: u8 = 5;
const LOST: u8 = 6;
const TRANSACTION: u8 = 7;
const KIND: u8 = 0x07;

const FLAGS: u8 = 0x08;
const EXPIRY: u8 = 0x10;
const SLIDING: u8 = 0x20;
const VERSION: u8 = 0x40;
const MORE: u8 = 0x80;

const STALE: u8 = 0x01;
const TOKEN_OUT: u8 = 0x02;
const ORIGIN: u8 = 0x04;
const VALUE_LIST: u8 = 0x08;

/// A position in the update log: the number of bytes of entries before it, counted from the
/// creation of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

/// One change, as the log describes it. Access times of records are not logged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogChange<'a> {
    /// The record was stored with this value and these attributes.
    Put {
        /// The key of the record.
        key: &'a [u8],
        /// The value and the attributes.
        record: Record<'a>,
    },
    /// The record received these attributes and kept its value.
    Retag {
        /// The key of the record.
        key: &'a [u8],
        /// All attributes of the record.
        attributes: Attributes,
    },
    /// The record was removed.
    Remove {
        /// The key of the record.
        key: &'a [u8],
    },
    /// All records were removed. A planned clear is cancelled.
    Clear,
    /// A clear was planned, or a planned clear was cancelled.
    PlanClear {
        /// The second at which all records will be removed. `None` cancels a planned clear.
        at: Option<UnixSeconds>,
    },
    /// A mark, which is not a change. Entries after the mark were appended at its time or later.
    Mark {
        /// Unix time in milliseconds.
        time_ms: u64,
        /// The position up to which the log was on disk when the mark was written.
        synced: LogPosition,
    },
    /// Changes of several records, of which a reader sees all or none.
    Transaction(TransactionChanges<'a>),
    /// A loss: this entry replaces damaged or missing entries. A salvage writes it.
    Lost {
        /// The number of lost bytes, without the frame and the tag of this entry.
        len: u64,
    },
}

/// The changes of a transaction, as the log encodes them: the length (varint) and the content of
/// each put or removal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransactionChanges<'a>(&'a [u8]);

impl<'a> TransactionChanges<'a> {
    /// Iterates over the changes in order.
    pub fn iter(&self) -> impl Iterator<Item = LogChange<'a>> + use<'a> {
        let mut rest = ByteReader(self.0);
        std::iter::from_fn(move || next_change(&mut rest))
    }

    /// Checks the format of a list of changes. Returns `None` if it is invalid.
    fn checked(bytes: &'a [u8]) -> Option<TransactionChanges<'a>> {
        let mut rest = ByteReader(bytes);
        while !rest.0.is_empty() {
            next_change(&mut rest)?;
        }
        Some(TransactionChanges(bytes))
    }
}

fn next_change<'a>(rest: &mut ByteReader<'a>) -> Option<LogChange<'a>> {
    let len = usize::try_from(rest.varint()?).ok()?;
    let entry = decode_plain(rest.take(len)?)?;
    let fits =
        entry.origin.is_none() && matches!(entry.change, LogChange::Put { .. } | LogChange::Remove { .. });
    fits.then_some(entry.change)
}

/// Encodes changes that are logged as one transaction.
#[derive(Debug, Default)]
pub(crate) struct TransactionEncoder {
    bytes: Vec<u8>,
    one: Vec<u8>,
}

impl TransactionEncoder {
    /// Adds a put or a removal. Returns false if the entry would exceed the maximum length.
    pub(crate) fn push(&mut self, change: LogChange<'_>) -> bool {
        self.one.clear();
        encode(&LogEntry { origin: None, change }, false, &mut self.one);
        let content = &self.one[FRAME_LEN..];
        if self.bytes.len() + content.len() + 16 > CONTENT_LEN_MAX as usize {
            return false;
        }
        put_varint(content.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(content);
        true
    }

    /// Adds the put of a record with one value in place of a list. The list is removed first,
    /// because a replica of Tokyo Tyrant replaces only the first value. Returns false, without an
    /// effect, if the new record has a list, which such a replica receives as a whole, or if the
    /// entry would exceed the maximum length.
    pub(crate) fn push_replacement(&mut self, key: &[u8], record: Record<'_>) -> bool {
        let before = self.bytes.len();
        let is_added = !record.attributes.has_value_list
            && self.push(LogChange::Remove { key })
            && self.push(LogChange::Put { key, record });
        if !is_added {
            self.bytes.truncate(before);
        }
        is_added
    }

    pub(crate) fn change(&self) -> LogChange<'_> {
        LogChange::Transaction(TransactionChanges(&self.bytes))
    }
}

/// A change, and the server that made it first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogEntry<'a> {
    /// The ID of the server that made the change first. `None` if that is the server of this log.
    pub origin: Option<u32>,
    /// The change.
    pub change: LogChange<'a>,
}

/// Appends frame and content to `out`. The CRC stays 0 until the writer thread computes it. With
/// `value_apart`, the value of a put is not appended, because the caller stores it separately; the
/// size in the frame still includes its length.
pub(crate) fn encode(entry: &LogEntry<'_>, value_apart: bool, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_LEN]);
    let mut apart = 0;
    match &entry.change {
        LogChange::Put { key, record } => {
            put_head(PUT, entry.origin, Some(key), &record.attributes, out);
            if value_apart {
                apart = record.value.len();
            } else {
                out.extend_from_slice(record.value);
            }
        }
        LogChange::Retag { key, attributes } => put_head(RETAG, entry.origin, Some(key), attributes, out),
        LogChange::Remove { key } => put_head(REMOVE, entry.origin, Some(key), &Attributes::default(), out),
        LogChange::Clear => put_head(CLEAR, entry.origin, None, &Attributes::default(), out),
        LogChange::PlanClear { at } => {
            put_head(PLAN, entry.origin, None, &Attributes::default(), out);
            put_varint(at.map_or(0, |at| at.0), out);
        }
        LogChange::Mark { time_ms, synced } => {
            out.push(MARK);
            out.extend_from_slice(&time_ms.to_le_bytes());
            out.extend_from_slice(&synced.0.to_le_bytes());
        }
        LogChange::Transaction(changes) => {
            put_head(TRANSACTION, entry.origin, None, &Attributes::default(), out);
            out.extend_from_slice(changes.0);
        }
        LogChange::Lost { len } => {
            out.push(LOST);
            out.resize(out.len() + *len as usize, 0);
        }
    }
    let len = out.len() - start - FRAME_LEN + apart;
    let len = u32::try_from(len).expect("keys and values are bounded by the engine");
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

fn put_head(kind: u8, origin: Option<u32>, key: Option<&[u8]>, attributes: &Attributes, out: &mut Vec<u8>) {
    let Attributes { flags, expiry, version, marks, access: _, has_value_list } = *attributes;
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let more = bit(marks.stale, STALE)
        | bit(marks.token_sent, TOKEN_OUT)
        | bit(origin.is_some(), ORIGIN)
        | bit(has_value_list, VALUE_LIST);
    out.push(
        kind | bit(flags != 0, FLAGS)
            | bit(expiry != Expiry::Never, EXPIRY)
            | bit(expiry.span_s().is_some(), SLIDING)
            | bit(version != 0, VERSION)
            | bit(more != 0, MORE),
    );
    if more != 0 {
        out.push(more);
    }
    if let Some(origin) = origin {
        put_varint(origin.into(), out);
    }
    if let Some(key) = key {
        put_varint(key.len() as u64, out);
        out.extend_from_slice(key);
    }
    if flags != 0 {
        put_varint(flags.into(), out);
    }
    if let Some(at) = expiry.at() {
        put_varint(at.0, out);
    }
    if let Some(span_s) = expiry.span_s() {
        put_varint(span_s.into(), out);
    }
    if version != 0 {
        put_varint(version, out);
    }
}

pub(crate) fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Returns the CRC of an entry as far as it does not depend on the content. It covers the
/// database's seed ([`DatabaseIdentity::seed`](super::DatabaseIdentity::seed)), the position and
/// the size.
pub(crate) fn crc_of_frame(seed: u32, position: LogPosition, size: u32) -> u32 {
    let crc = crc32c::crc32c_append(seed, &position.0.to_le_bytes());
    crc32c::crc32c_append(crc, &size.to_le_bytes())
}

/// Decodes the content of an entry. Returns `None` if the format is invalid; a correct CRC does not
/// rule this out.
pub(crate) fn decode(content: &[u8]) -> Option<LogEntry<'_>> {
    if content.first().is_none_or(|tag| tag & KIND != TRANSACTION) {
        return decode_plain(content);
    }
    let mut rest = ByteReader(content);
    let tag = rest.byte()?;
    let more = if tag & MORE != 0 { rest.byte()? } else { 0 };
    if tag & !(KIND | MORE) != 0 || more != (if tag & MORE != 0 { ORIGIN } else { 0 }) {
        return None;
    }
    let origin = if more & ORIGIN != 0 { Some(rest.varint()?.try_into().ok()?) } else { None };
    Some(LogEntry { origin, change: LogChange::Transaction(TransactionChanges::checked(rest.0)?) })
}

/// Decodes the content of an entry that is not a transaction.
fn decode_plain(content: &[u8]) -> Option<LogEntry<'_>> {
    let mut rest = ByteReader(content);
    let tag = rest.byte()?;
    let kind = tag & KIND;
    if kind == MARK {
        let mark = LogChange::Mark { time_ms: rest.u64_le()?, synced: LogPosition(rest.u64_le()?) };
        return (tag == MARK && rest.0.is_empty()).then_some(LogEntry { origin: None, change: mark });
    }
    if kind == LOST {
        let is_lost = tag == LOST && rest.0.iter().all(|&byte| byte == 0);
        let change = LogChange::Lost { len: rest.0.len() as u64 };
        return is_lost.then_some(LogEntry { origin: None, change });
    }
    let more = if tag & MORE != 0 { rest.byte()? } else { 0 };
    if (tag & MORE != 0) != (more != 0) || more & !(STALE | TOKEN_OUT | ORIGIN | VALUE_LIST) != 0 {
        return None;
    }
    let origin = if more & ORIGIN != 0 { Some(rest.varint()?.try_into().ok()?) } else { None };
    let key = if matches!(kind, PUT | RETAG | REMOVE) {
        let len = usize::try_from(rest.varint()?).ok()?;
        rest.take(len)?
    } else {
        b""
    };
    let carries = matches!(kind, PUT | RETAG);
    if !carries && (tag & (FLAGS | EXPIRY | SLIDING | VERSION) != 0 || more & (STALE | TOKEN_OUT) != 0) {
        return None;
    }
    let attributes = attributes(tag, more, &mut rest)?;
    let change = match kind {
        PUT => LogChange::Put { key, record: Record::new(std::mem::take(&mut rest.0), attributes) },
        RETAG => LogChange::Retag { key, attributes },
        REMOVE => LogChange::Remove { key },
        CLEAR => LogChange::Clear,
        PLAN => {
            let at = rest.varint()?;
            LogChange::PlanClear { at: (at != 0).then_some(UnixSeconds(at)) }
        }
        _ => return None,
    };
    rest.0.is_empty().then_some(LogEntry { origin, change })
}

fn attributes(tag: u8, more: u8, rest: &mut ByteReader<'_>) -> Option<Attributes> {
    let flags = if tag & FLAGS != 0 { nonzero(rest.varint()?)?.try_into().ok()? } else { 0 };
    let expiry = match (tag & EXPIRY != 0, tag & SLIDING != 0) {
        (false, false) => Expiry::Never,
        (true, false) => Expiry::At(UnixSeconds(rest.varint()?)),
        (true, true) => {
            Expiry::Sliding { at: UnixSeconds(rest.varint()?), span_s: rest.varint()?.try_into().ok()? }
        }
        (false, true) => return None,
    };
    let version = if tag & VERSION != 0 { nonzero(rest.varint()?)? } else { 0 };
    let marks = StaleMarks { stale: more & STALE != 0, token_sent: more & TOKEN_OUT != 0 };
    let has_value_list = more & VALUE_LIST != 0;
    Some(Attributes { flags, expiry, version, marks, access: None, has_value_list })
}

fn nonzero(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

/// Reads from the front of a byte slice.
#[derive(Clone, Copy)]
pub(crate) struct ByteReader<'a>(pub(crate) &'a [u8]);

impl<'a> ByteReader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    fn u64_le(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // Each number has only one valid encoding, the shortest: no bits may be shifted out,
            // and the last byte must not be 0.
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(entry: &LogEntry<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        encode(entry, false, &mut out);
        assert_eq!(u32::from_le_bytes(out[..4].try_into().unwrap()) as usize, out.len() - FRAME_LEN);
        out.split_off(FRAME_LEN)
    }

    fn own(change: LogChange<'_>) -> LogEntry<'_> {
        LogEntry { origin: None, change }
    }

    #[test]
    fn bytes_are_those_of_the_format_page() {
        let record = Record::new(b"world", Attributes::default());
        assert_eq!(content(&own(LogChange::Put { key: b"hello", record })), b"\x01\x05helloworld");
        let attributes = Attributes {
            flags: 300,
            expiry: Expiry::Sliding { at: UnixSeconds(1_800_000_000), span_s: 60 },
            version: 7,
            has_value_list: false,
            marks: StaleMarks { stale: true, token_sent: false },
            access: None,
        };
        assert_eq!(
            content(&LogEntry { origin: Some(5), change: LogChange::Retag { key: b"k", attributes } }),
            b"\xfa\x05\x05\x01k\xac\x02\x80\xa4\xa7\xda\x06\x3c\x07"
        );
        assert_eq!(content(&own(LogChange::Remove { key: b"" })), b"\x03\x00");
        assert_eq!(content(&own(LogChange::Clear)), b"\x04");
        assert_eq!(content(&own(LogChange::PlanClear { at: Some(UnixSeconds(128)) })), b"\x05\x80\x01");
        assert_eq!(content(&own(LogChange::PlanClear { at: None })), b"\x05\x00");
        assert_eq!(content(&own(LogChange::Lost { len: 2 })), b"\x06\0\0");
        let mut gathered = TransactionEncoder::default();
        assert!(gathered.push(LogChange::Put { key: b"hello", record }));
        assert!(gathered.push(LogChange::Remove { key: b"k" }));
        assert_eq!(content(&own(gathered.change())), b"\x07\x0c\x01\x05helloworld\x03\x03\x01k");
        assert_eq!(
            content(&own(LogChange::Mark { time_ms: 1, synced: LogPosition(2) })),
            b"\x00\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"
        );
    }

    fn attributes() -> impl Strategy<Value = Attributes> {
        let expiry = prop_oneof![
            Just(Expiry::Never),
            any::<u64>().prop_map(|at| Expiry::At(UnixSeconds(at))),
            (any::<u64>(), any::<u32>())
                .prop_map(|(at, span_s)| Expiry::Sliding { at: UnixSeconds(at), span_s }),
        ];
        let version = prop_oneof![Just(0), any::<u64>()];
        (prop_oneof![Just(0), any::<u32>()], expiry, version, any::<(bool, bool)>()).prop_map(
            |(flags, expiry, version, (stale, token_sent))| Attributes {
                flags,
                expiry,
                version,
                has_value_list: stale && flags % 2 == 1,
                marks: StaleMarks { stale, token_sent },
                access: None,
            },
        )
    }

    proptest! {
        #[test]
        fn encoded_entry_decodes_to_itself(
            kind in 0..7,
            origin in proptest::option::of(any::<u32>()),
            key in proptest::collection::vec(any::<u8>(), 0..200),
            value in proptest::collection::vec(any::<u8>(), 0..200),
            attributes in attributes(),
            number in any::<u64>(),
        ) {
            let (key, record) = (&key[..], Record::new(&value, attributes));
            let mut gathered = TransactionEncoder::default();
            let has_room = gathered.push(LogChange::Remove { key: &value })
                && gathered.push(LogChange::Put { key, record });
            prop_assert!(has_room);
            let (change, origin) = match kind {
                0 => (LogChange::Put { key, record }, origin),
                1 => (LogChange::Retag { key, attributes }, origin),
                2 => (LogChange::Remove { key }, origin),
                3 => (LogChange::Clear, origin),
                6 => (gathered.change(), origin),
                4 => (LogChange::PlanClear { at: nonzero(number).map(UnixSeconds) }, origin),
                _ => (LogChange::Mark { time_ms: number, synced: LogPosition(!number) }, None),
            };
            let entry = LogEntry { origin, change };
            let bytes = content(&entry);
            prop_assert_eq!(decode(&bytes), Some(entry));
            if let LogChange::Transaction(changes) = entry.change {
                let told: Vec<_> = changes.iter().collect();
                prop_assert_eq!(told, [LogChange::Remove { key: &value }, LogChange::Put { key, record }]);
            }
        }

        /// Each entry has one encoding, so any entry that can be decoded is encoded as the same
        /// bytes again.
        #[test]
        fn no_bytes_panic_and_there_is_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(entry) = decode(&bytes) {
                prop_assert_eq!(content(&entry), bytes);
            }
        }
    }
}
