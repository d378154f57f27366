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
const SOURCE: u8 = 0x10;

/// The tag of an entry that begins an epoch: that of a mark, with a bit that marks never have.
const EPOCH: u8 = MARK | FLAGS;

/// A position in the update log: the number of bytes of entries before it, counted from the
/// creation of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(pub u64);

/// The ID of a log, which is that of its database.
pub type LogId = [u8; 16];

/// The number of an epoch: a count of promotions, and the server ID of the server that was
/// promoted. A later epoch has a greater number. 0 is the epoch before any promotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns the count of promotions.
    pub fn count(self) -> u64 {
        self.0 >> 16
    }

    /// Returns the epoch that the promotion of this server begins after this one.
    pub fn next(self, server_id: u16) -> Epoch {
        Epoch(((self.0 >> 16) + 1) << 16 | u64::from(server_id))
    }
}

impl std::fmt::Display for Epoch {
    /// Writes the count of promotions.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.count().fmt(out)
    }
}

/// A place in the log of the master of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochPlace {
    /// The epoch.
    pub epoch: Epoch,
    /// The ID of the master's log.
    pub log_id: LogId,
    /// The position up to which a server has the changes of the epoch.
    pub position: LogPosition,
}

/// The beginning of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The number of the epoch.
    pub epoch: Epoch,
    /// The ID of the new master's log.
    pub log_id: LogId,
    /// The end of the epoch before: the place up to which the new master had its changes. Later
    /// entries of that log are not valid. `None` if the new master had not followed another server.
    pub ended: Option<EpochPlace>,
}

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
    /// The beginning of an epoch, which is not a change. The entries before it come from the log
    /// that ended.
    Epoch(EpochStart),
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
    let fits = entry.origin.is_none()
        && entry.source.is_none()
        && matches!(entry.change, LogChange::Put { .. } | LogChange::Remove { .. });
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
        encode(&LogEntry::own(change), false, &mut self.one);
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
    /// The position after this change in the log of the master whose changes a replica logs.
    pub source: Option<LogPosition>,
    /// The change.
    pub change: LogChange<'a>,
}

impl<'a> LogEntry<'a> {
    /// Returns the entry of a change that was made first by the server of the log.
    pub(crate) fn own(change: LogChange<'a>) -> LogEntry<'a> {
        LogEntry { origin: None, source: None, change }
    }

    /// Returns true if the entry changes records. Marks and beginnings of epochs do not.
    pub fn is_change(&self) -> bool {
        !matches!(self.change, LogChange::Mark { .. } | LogChange::Epoch(_))
    }
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
            put_head(PUT, entry, Some(key), &record.attributes, out);
            if value_apart {
                apart = record.value.len();
            } else {
                out.extend_from_slice(record.value);
            }
        }
        LogChange::Retag { key, attributes } => put_head(RETAG, entry, Some(key), attributes, out),
        LogChange::Remove { key } => put_head(REMOVE, entry, Some(key), &Attributes::default(), out),
        LogChange::Clear => put_head(CLEAR, entry, None, &Attributes::default(), out),
        LogChange::PlanClear { at } => {
            put_head(PLAN, entry, None, &Attributes::default(), out);
            put_varint(at.map_or(0, |at| at.0), out);
        }
        LogChange::Mark { time_ms, synced } => {
            out.push(MARK);
            out.extend_from_slice(&time_ms.to_le_bytes());
            out.extend_from_slice(&synced.0.to_le_bytes());
        }
        LogChange::Epoch(start) => put_epoch(start, out),
        LogChange::Transaction(changes) => {
            put_head(TRANSACTION, entry, None, &Attributes::default(), out);
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

fn put_head(kind: u8, entry: &LogEntry<'_>, key: Option<&[u8]>, attributes: &Attributes, out: &mut Vec<u8>) {
    let LogEntry { origin, source, .. } = *entry;
    let Attributes { flags, expiry, version, marks, access: _, has_value_list } = *attributes;
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let more = bit(marks.stale, STALE)
        | bit(marks.token_sent, TOKEN_OUT)
        | bit(origin.is_some(), ORIGIN)
        | bit(source.is_some(), SOURCE)
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
    if let Some(source) = source {
        put_varint(source.0, out);
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

fn put_epoch(start: &EpochStart, out: &mut Vec<u8>) {
    out.push(EPOCH);
    out.extend_from_slice(&start.epoch.0.to_le_bytes());
    out.extend_from_slice(&start.log_id);
    if let Some(EpochPlace { epoch, log_id, position }) = start.ended {
        out.extend_from_slice(&epoch.0.to_le_bytes());
        out.extend_from_slice(&log_id);
        out.extend_from_slice(&position.0.to_le_bytes());
    }
}

/// Decodes the content of an entry that begins an epoch, without its tag.
fn decode_epoch(content: &[u8]) -> Option<EpochStart> {
    let mut rest = ByteReader(content);
    let (epoch, log_id) = (Epoch(rest.u64_le()?), rest.log_id()?);
    let ended = match rest.0.is_empty() {
        true => None,
        false => Some(EpochPlace {
            epoch: Epoch(rest.u64_le()?),
            log_id: rest.log_id()?,
            position: LogPosition(rest.u64_le()?),
        }),
    };
    rest.0.is_empty().then_some(EpochStart { epoch, log_id, ended })
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
    // One call for both, because its fixed costs exceed those of so few bytes.
    let mut frame = [0; 12];
    frame[..8].copy_from_slice(&position.0.to_le_bytes());
    frame[8..].copy_from_slice(&size.to_le_bytes());
    crc32c::crc32c_append(seed, &frame)
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
    if tag & !(KIND | MORE) != 0 || (tag & MORE != 0) != (more != 0) || more & !(ORIGIN | SOURCE) != 0 {
        return None;
    }
    let (origin, source) = origin_and_source(more, &mut rest)?;
    Some(LogEntry { origin, source, change: LogChange::Transaction(TransactionChanges::checked(rest.0)?) })
}

/// Decodes the content of an entry that is not a transaction.
fn decode_plain(content: &[u8]) -> Option<LogEntry<'_>> {
    let mut rest = ByteReader(content);
    let tag = rest.byte()?;
    let kind = tag & KIND;
    if tag == EPOCH {
        return Some(LogEntry::own(LogChange::Epoch(decode_epoch(rest.0)?)));
    }
    if kind == MARK {
        let mark = LogChange::Mark { time_ms: rest.u64_le()?, synced: LogPosition(rest.u64_le()?) };
        return (tag == MARK && rest.0.is_empty()).then_some(LogEntry::own(mark));
    }
    if kind == LOST {
        let is_lost = tag == LOST && rest.0.iter().all(|&byte| byte == 0);
        let change = LogChange::Lost { len: rest.0.len() as u64 };
        return is_lost.then_some(LogEntry::own(change));
    }
    let more = if tag & MORE != 0 { rest.byte()? } else { 0 };
    if (tag & MORE != 0) != (more != 0) || more & !(STALE | TOKEN_OUT | ORIGIN | VALUE_LIST | SOURCE) != 0 {
        return None;
    }
    let (origin, source) = origin_and_source(more, &mut rest)?;
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
    rest.0.is_empty().then_some(LogEntry { origin, source, change })
}

fn origin_and_source(more: u8, rest: &mut ByteReader<'_>) -> Option<(Option<u32>, Option<LogPosition>)> {
    let origin = if more & ORIGIN != 0 { Some(rest.varint()?.try_into().ok()?) } else { None };
    let source = if more & SOURCE != 0 { Some(LogPosition(rest.varint()?)) } else { None };
    Some((origin, source))
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

    fn log_id(&mut self) -> Option<LogId> {
        self.take(16)?.try_into().ok()
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
        LogEntry::own(change)
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
            content(&LogEntry {
                origin: Some(5),
                source: None,
                change: LogChange::Retag { key: b"k", attributes }
            }),
            b"\xfa\x05\x05\x01k\xac\x02\x80\xa4\xa7\xda\x06\x3c\x07"
        );
        assert_eq!(content(&own(LogChange::Remove { key: b"" })), b"\x03\x00");
        let source = Some(LogPosition(300));
        assert_eq!(
            content(&LogEntry { origin: Some(5), source, change: LogChange::Clear }),
            b"\x84\x14\x05\xac\x02"
        );
        let epoch = Epoch(2 << 16 | 1);
        let ended = EpochPlace { epoch, log_id: *b"fedcba9876543210", position: LogPosition(513) };
        let start =
            EpochStart { epoch: Epoch(3 << 16 | 2), log_id: *b"0123456789abcdef", ended: Some(ended) };
        assert_eq!(
            content(&own(LogChange::Epoch(start))),
            b"\x08\x02\0\x03\0\0\0\0\x000123456789abcdef\x01\0\x02\0\0\0\0\0fedcba9876543210\x01\x02\0\0\0\0\0\0"
        );
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
            kind in 0..8,
            origin in proptest::option::of(any::<u32>()),
            source in proptest::option::of(any::<u64>()),
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
            let ended = source.map(|position| EpochPlace {
                epoch: Epoch(!number),
                log_id: [3; 16],
                position: LogPosition(position),
            });
            let start = EpochStart { epoch: Epoch(number), log_id: [9; 16], ended };
            let source = source.filter(|_| !matches!(kind, 5 | 7)).map(LogPosition);
            let (change, origin) = match kind {
                0 => (LogChange::Put { key, record }, origin),
                1 => (LogChange::Retag { key, attributes }, origin),
                2 => (LogChange::Remove { key }, origin),
                3 => (LogChange::Clear, origin),
                6 => (gathered.change(), origin),
                4 => (LogChange::PlanClear { at: nonzero(number).map(UnixSeconds) }, origin),
                7 => (LogChange::Epoch(start), None),
                _ => (LogChange::Mark { time_ms: number, synced: LogPosition(!number) }, None),
            };
            let entry = LogEntry { origin, source, change };
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
