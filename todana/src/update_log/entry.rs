//! Entries: one change each, as docs/format/update-log.md lays them out.

use todana_core::{Attributes, Expiry, Marks, Record, UnixSeconds};

/// Size and CRC, before the content.
pub(crate) const FRAME_LEN: usize = 8;
/// A mark, its frame included.
pub(crate) const MARK_LEN: usize = FRAME_LEN + 17;
/// A value of 1 GiB, a key of 2^28 bytes, and what stands around them.
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

/// A place in the log: so many bytes of entries stand before it, from the beginning of the database's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// One change, as the log tells it. The access times of records are not part of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change<'a> {
    /// A record is now this.
    Put {
        /// Its key.
        key: &'a [u8],
        /// Value and attributes.
        record: Record<'a>,
    },
    /// A record has these attributes now; its value stays.
    Retag {
        /// Its key.
        key: &'a [u8],
        /// All of them.
        attributes: Attributes,
    },
    /// There is no such record any longer.
    Remove {
        /// Its key.
        key: &'a [u8],
    },
    /// There are no records any longer, and no clear is planned.
    Clear,
    /// Everything will be removed at this second; `None` calls it off.
    PlanClear {
        /// When.
        at: Option<UnixSeconds>,
    },
    /// Not a change: what follows was made at this time or later, and what stands before `synced` is on disk.
    Mark {
        /// Unix time in milliseconds.
        time_ms: u64,
        /// On disk up to here.
        synced: Position,
    },
    /// Several records are changed, all of them or none.
    Transaction(Changes<'a>),
    /// Changes stood here that were damaged; a repair has put this in their place.
    Lost {
        /// Bytes of it, behind the frame and the tag.
        len: u64,
    },
}

/// Puts and removals that were made together, as the log keeps them: for each its length (varint) and its content.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Changes<'a>(&'a [u8]);

impl<'a> Changes<'a> {
    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        let mut rest = Rest(self.0);
        std::iter::from_fn(move || next_change(&mut rest))
    }

    /// `None` if they are not of this format.
    fn checked(bytes: &'a [u8]) -> Option<Changes<'a>> {
        let mut rest = Rest(bytes);
        while !rest.0.is_empty() {
            next_change(&mut rest)?;
        }
        Some(Changes(bytes))
    }
}

fn next_change<'a>(rest: &mut Rest<'a>) -> Option<Change<'a>> {
    let len = usize::try_from(rest.varint()?).ok()?;
    let entry = decode_plain(rest.take(len)?)?;
    let fits = entry.origin.is_none() && matches!(entry.change, Change::Put { .. } | Change::Remove { .. });
    fits.then_some(entry.change)
}

/// Gathers changes that are to be told together.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    bytes: Vec<u8>,
    one: Vec<u8>,
}

impl Gathered {
    /// Adds a put or a removal. False if the log takes no more in one piece.
    pub(crate) fn push(&mut self, change: Change<'_>) -> bool {
        self.one.clear();
        encode(&Entry { origin: None, change }, false, &mut self.one);
        let content = &self.one[FRAME_LEN..];
        if self.bytes.len() + content.len() + 16 > CONTENT_LEN_MAX as usize {
            return false;
        }
        put_varint(content.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(content);
        true
    }

    pub(crate) fn change(&self) -> Change<'_> {
        Change::Transaction(Changes(&self.bytes))
    }
}

/// A change and where it first happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a> {
    /// The server that first made the change, if it was another than the log's own.
    pub origin: Option<u32>,
    /// The change.
    pub change: Change<'a>,
}

/// Appends frame and content to `out`; the CRC is left 0, for the writer to fill in. The value of a put is left out where `value_apart`:
/// it is to follow from elsewhere, and its length is counted in.
pub(crate) fn encode(entry: &Entry<'_>, value_apart: bool, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_LEN]);
    let mut apart = 0;
    match &entry.change {
        Change::Put { key, record } => {
            head(PUT, entry.origin, Some(key), &record.attributes, out);
            if value_apart {
                apart = record.value.len();
            } else {
                out.extend_from_slice(record.value);
            }
        }
        Change::Retag { key, attributes } => head(RETAG, entry.origin, Some(key), attributes, out),
        Change::Remove { key } => head(REMOVE, entry.origin, Some(key), &Attributes::default(), out),
        Change::Clear => head(CLEAR, entry.origin, None, &Attributes::default(), out),
        Change::PlanClear { at } => {
            head(PLAN, entry.origin, None, &Attributes::default(), out);
            put_varint(at.map_or(0, |at| at.0), out);
        }
        Change::Mark { time_ms, synced } => {
            out.push(MARK);
            out.extend_from_slice(&time_ms.to_le_bytes());
            out.extend_from_slice(&synced.0.to_le_bytes());
        }
        Change::Transaction(changes) => {
            head(TRANSACTION, entry.origin, None, &Attributes::default(), out);
            out.extend_from_slice(changes.0);
        }
        Change::Lost { len } => {
            out.push(LOST);
            out.resize(out.len() + *len as usize, 0);
        }
    }
    let len = out.len() - start - FRAME_LEN + apart;
    let len = u32::try_from(len).expect("keys and values are bounded by the engine");
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

fn head(kind: u8, origin: Option<u32>, key: Option<&[u8]>, attributes: &Attributes, out: &mut Vec<u8>) {
    let Attributes { flags, expiry, version, marks, access: _ } = *attributes;
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let more = bit(marks.stale, STALE) | bit(marks.token_out, TOKEN_OUT) | bit(origin.is_some(), ORIGIN);
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

/// The CRC of an entry of this database ([`Identity::seed`](super::Identity::seed)) at this position, so far: of all but the content.
pub(crate) fn crc_of_frame(seed: u32, position: Position, size: u32) -> u32 {
    let crc = crc32c::crc32c_append(seed, &position.0.to_le_bytes());
    crc32c::crc32c_append(crc, &size.to_le_bytes())
}

/// The content of an entry. `None` if it is not of this format, whatever its CRC says.
pub(crate) fn decode(content: &[u8]) -> Option<Entry<'_>> {
    if content.first().is_none_or(|tag| tag & KIND != TRANSACTION) {
        return decode_plain(content);
    }
    let mut rest = Rest(content);
    let tag = rest.byte()?;
    let more = if tag & MORE != 0 { rest.byte()? } else { 0 };
    if tag & !(KIND | MORE) != 0 || more != (if tag & MORE != 0 { ORIGIN } else { 0 }) {
        return None;
    }
    let origin = if more & ORIGIN != 0 { Some(rest.varint()?.try_into().ok()?) } else { None };
    Some(Entry { origin, change: Change::Transaction(Changes::checked(rest.0)?) })
}

/// The content of an entry that is no transaction.
fn decode_plain(content: &[u8]) -> Option<Entry<'_>> {
    let mut rest = Rest(content);
    let tag = rest.byte()?;
    let kind = tag & KIND;
    if kind == MARK {
        let mark = Change::Mark { time_ms: rest.number()?, synced: Position(rest.number()?) };
        return (tag == MARK && rest.0.is_empty()).then_some(Entry { origin: None, change: mark });
    }
    if kind == LOST {
        let is_lost = tag == LOST && rest.0.iter().all(|&byte| byte == 0);
        let change = Change::Lost { len: rest.0.len() as u64 };
        return is_lost.then_some(Entry { origin: None, change });
    }
    let more = if tag & MORE != 0 { rest.byte()? } else { 0 };
    if (tag & MORE != 0) != (more != 0) || more & !(STALE | TOKEN_OUT | ORIGIN) != 0 {
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
        PUT => Change::Put { key, record: Record::new(std::mem::take(&mut rest.0), attributes) },
        RETAG => Change::Retag { key, attributes },
        REMOVE => Change::Remove { key },
        CLEAR => Change::Clear,
        PLAN => {
            let at = rest.varint()?;
            Change::PlanClear { at: (at != 0).then_some(UnixSeconds(at)) }
        }
        _ => return None,
    };
    rest.0.is_empty().then_some(Entry { origin, change })
}

fn attributes(tag: u8, more: u8, rest: &mut Rest<'_>) -> Option<Attributes> {
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
    let marks = Marks { stale: more & STALE != 0, token_out: more & TOKEN_OUT != 0 };
    Some(Attributes { flags, expiry, version, marks, access: None })
}

fn nonzero(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

/// What has not been read yet.
#[derive(Clone, Copy)]
pub(crate) struct Rest<'a>(pub(crate) &'a [u8]);

impl<'a> Rest<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // What would be shifted out, and a last byte that adds nothing, are not the shortest form of any number.
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

    fn content(entry: &Entry<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        encode(entry, false, &mut out);
        assert_eq!(u32::from_le_bytes(out[..4].try_into().unwrap()) as usize, out.len() - FRAME_LEN);
        out.split_off(FRAME_LEN)
    }

    fn own(change: Change<'_>) -> Entry<'_> {
        Entry { origin: None, change }
    }

    #[test]
    fn bytes_are_those_of_the_format_page() {
        let record = Record::new(b"world", Attributes::default());
        assert_eq!(content(&own(Change::Put { key: b"hello", record })), b"\x01\x05helloworld");
        let attributes = Attributes {
            flags: 300,
            expiry: Expiry::Sliding { at: UnixSeconds(1_800_000_000), span_s: 60 },
            version: 7,
            marks: Marks { stale: true, token_out: false },
            access: None,
        };
        assert_eq!(
            content(&Entry { origin: Some(5), change: Change::Retag { key: b"k", attributes } }),
            b"\xfa\x05\x05\x01k\xac\x02\x80\xa4\xa7\xda\x06\x3c\x07"
        );
        assert_eq!(content(&own(Change::Remove { key: b"" })), b"\x03\x00");
        assert_eq!(content(&own(Change::Clear)), b"\x04");
        assert_eq!(content(&own(Change::PlanClear { at: Some(UnixSeconds(128)) })), b"\x05\x80\x01");
        assert_eq!(content(&own(Change::PlanClear { at: None })), b"\x05\x00");
        assert_eq!(content(&own(Change::Lost { len: 2 })), b"\x06\0\0");
        let mut gathered = Gathered::default();
        assert!(gathered.push(Change::Put { key: b"hello", record }));
        assert!(gathered.push(Change::Remove { key: b"k" }));
        assert_eq!(content(&own(gathered.change())), b"\x07\x0c\x01\x05helloworld\x03\x03\x01k");
        assert_eq!(
            content(&own(Change::Mark { time_ms: 1, synced: Position(2) })),
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
            |(flags, expiry, version, (stale, token_out))| Attributes {
                flags,
                expiry,
                version,
                marks: Marks { stale, token_out },
                access: None,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            kind in 0..7,
            origin in proptest::option::of(any::<u32>()),
            key in proptest::collection::vec(any::<u8>(), 0..200),
            value in proptest::collection::vec(any::<u8>(), 0..200),
            attributes in attributes(),
            number in any::<u64>(),
        ) {
            let (key, record) = (&key[..], Record::new(&value, attributes));
            let mut gathered = Gathered::default();
            let has_room = gathered.push(Change::Remove { key: &value })
                && gathered.push(Change::Put { key, record });
            prop_assert!(has_room);
            let (change, origin) = match kind {
                0 => (Change::Put { key, record }, origin),
                1 => (Change::Retag { key, attributes }, origin),
                2 => (Change::Remove { key }, origin),
                3 => (Change::Clear, origin),
                6 => (gathered.change(), origin),
                4 => (Change::PlanClear { at: nonzero(number).map(UnixSeconds) }, origin),
                _ => (Change::Mark { time_ms: number, synced: Position(!number) }, None),
            };
            let entry = Entry { origin, change };
            let bytes = content(&entry);
            prop_assert_eq!(decode(&bytes), Some(entry));
            if let Change::Transaction(changes) = entry.change {
                let told: Vec<_> = changes.iter().collect();
                prop_assert_eq!(told, [Change::Remove { key: &value }, Change::Put { key, record }]);
            }
        }

        /// One form for each entry: what is decoded from any bytes is encoded as the same bytes.
        #[test]
        fn no_bytes_panic_and_there_is_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(entry) = decode(&bytes) {
                prop_assert_eq!(content(&entry), bytes);
            }
        }
    }
}
