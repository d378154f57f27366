//! Encodes and decodes the content of a block of records. All keys, all values and all attributes
//! of the block are stored as columns (docs/format/checkpoint.md, section 2.1).

use crate::update_log::{ByteReader, put_varint};
use todana_core::{Attributes, Expiry, Record, StaleMarks, UnixSeconds, decimal};

const SIZES_LEN: usize = 12;
/// The form of keys and values that are stored as text.
const TEXT: u8 = 8;

const FLAGS: u8 = 0x01;
const EXPIRY: u8 = 0x02;
const SLIDING: u8 = 0x04;
const VERSION: u8 = 0x08;
const STALE: u8 = 0x10;
const TOKEN_OUT: u8 = 0x20;
const VALUE_LIST: u8 = 0x40;
const TAG_BITS: u8 = 0x7f;

/// Collects the records of a block. Adding a record is fast enough to be done under an engine's
/// lock, because the numbers are arranged in planes later, in `encode`.
#[derive(Default)]
pub(crate) struct ColumnBuilder {
    tags: Vec<u8>,
    forms: Vec<u8>,
    keys: Vec<u64>,
    values: Vec<u64>,
    /// Bytes that the numbers will occupy in the content.
    planes_len: usize,
    lengths: Vec<u8>,
    attributes: Vec<u8>,
    key_text: Vec<u8>,
    value_text: Vec<u8>,
}

impl ColumnBuilder {
    pub(crate) fn push(&mut self, key: &[u8], record: &Record<'_>) {
        let tag = tag_of(&record.attributes);
        self.tags.push(tag);
        if tag != 0 {
            put_attributes(&record.attributes, &mut self.attributes);
        }
        let (lengths, planes_len) = (&mut self.lengths, &mut self.planes_len);
        let mut put = |bytes: &[u8], numbers: &mut Vec<u64>, text: &mut Vec<u8>| match decimal::pack(bytes) {
            Some(number) => {
                let len = decimal::byte_len(number);
                numbers.push(number);
                *planes_len += len;
                len as u8 - 1
            }
            None => {
                put_varint(bytes.len() as u64, lengths);
                text.extend_from_slice(bytes);
                TEXT
            }
        };
        let key_form = put(key, &mut self.keys, &mut self.key_text);
        let value_form = put(record.value, &mut self.values, &mut self.value_text);
        self.forms.push(key_form << 4 | value_form);
    }

    pub(crate) fn records(&self) -> usize {
        self.tags.len()
    }

    /// Returns the length of the content.
    pub(crate) fn len(&self) -> usize {
        SIZES_LEN
            + 2 * self.tags.len()
            + self.planes_len
            + self.lengths.len()
            + self.attributes.len()
            + self.key_text.len()
            + self.value_text.len()
    }

    /// Appends the content to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        for size in [self.lengths.len(), self.attributes.len(), self.key_text.len()] {
            out.extend_from_slice(&(size as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.tags);
        out.extend_from_slice(&self.forms);
        put_planes(&self.keys, out);
        put_planes(&self.values, out);
        for column in [&self.lengths, &self.attributes, &self.key_text, &self.value_text] {
            out.extend_from_slice(column);
        }
    }

    /// Removes the records and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.tags.clear();
        self.forms.clear();
        self.keys.clear();
        self.values.clear();
        self.planes_len = 0;
        self.lengths.clear();
        self.attributes.clear();
        self.key_text.clear();
        self.value_text.clear();
    }
}

/// Writes numbers as planes: first the lowest bytes of all numbers, then the second bytes of all
/// numbers that have a second byte, and so on.
fn put_planes(numbers: &[u64], out: &mut Vec<u8>) {
    out.extend(numbers.iter().map(|&number| number as u8));
    let all = numbers.iter().fold(0, |all, &number| all | number);
    for shift in (8..64).step_by(8).take_while(|&shift| all >> shift != 0) {
        let tall = numbers.iter().map(|&number| number >> shift).filter(|&number| number != 0);
        out.extend(tall.map(|number| number as u8));
    }
}

pub(crate) fn tag_of(attributes: &Attributes) -> u8 {
    let Attributes { flags, expiry, version, marks, access: _, has_value_list } = *attributes;
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    bit(flags != 0, FLAGS)
        | bit(expiry != Expiry::Never, EXPIRY)
        | bit(expiry.span_s().is_some(), SLIDING)
        | bit(version != 0, VERSION)
        | bit(marks.stale, STALE)
        | bit(marks.token_sent, TOKEN_OUT)
        | bit(has_value_list, VALUE_LIST)
}

pub(crate) fn put_attributes(attributes: &Attributes, out: &mut Vec<u8>) {
    if attributes.flags != 0 {
        put_varint(attributes.flags.into(), out);
    }
    if let Some(at) = attributes.expiry.at() {
        put_varint(at.0, out);
    }
    if let Some(span_s) = attributes.expiry.span_s() {
        put_varint(span_s.into(), out);
    }
    if attributes.version != 0 {
        put_varint(attributes.version, out);
    }
}

/// Reads the attributes whose presence the bits of `tag` show. Returns `None` if they are invalid.
pub(crate) fn take_attributes(tag: u8, rest: &mut ByteReader<'_>) -> Option<Attributes> {
    let mut attributes = Attributes::default();
    if tag == 0 {
        return Some(attributes);
    }
    if tag & !TAG_BITS != 0 || tag & (EXPIRY | SLIDING) == SLIDING {
        return None;
    }
    if tag & FLAGS != 0 {
        attributes.flags = rest.varint()?.try_into().ok()?;
    }
    if tag & EXPIRY != 0 {
        let at = UnixSeconds(rest.varint()?);
        attributes.expiry = if tag & SLIDING != 0 {
            Expiry::Sliding { at, span_s: rest.varint()?.try_into().ok()? }
        } else {
            Expiry::At(at)
        };
    }
    if tag & VERSION != 0 {
        attributes.version = rest.varint()?;
    }
    attributes.has_value_list = tag & VALUE_LIST != 0;
    attributes.marks = StaleMarks { stale: tag & STALE != 0, token_sent: tag & TOKEN_OUT != 0 };
    Some(attributes)
}

/// Iterates over the records in the content of a block.
#[derive(Clone)]
pub(crate) struct RowReader<'a> {
    tags: &'a [u8],
    forms: &'a [u8],
    keys: BytePlanes<'a>,
    values: BytePlanes<'a>,
    lengths: ByteReader<'a>,
    attributes: ByteReader<'a>,
    key_text: ByteReader<'a>,
    value_text: ByteReader<'a>,
}

/// A record of a block, as decoded.
pub(crate) struct BlockRow<'a> {
    pub(crate) key: ColumnText<'a>,
    pub(crate) value: ColumnText<'a>,
    pub(crate) attributes: Attributes,
}

/// A key or value: its bytes, or the decimal number that it consists of.
pub(crate) enum ColumnText<'a> {
    Digits { text: [u8; 20], len: u8 },
    Plain(&'a [u8]),
}

impl ColumnText<'_> {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            ColumnText::Digits { text, len } => &text[..usize::from(*len)],
            ColumnText::Plain(bytes) => bytes,
        }
    }
}

impl<'a> RowReader<'a> {
    /// Creates a reader. Returns `None` if `content` cannot be the content of a block with this
    /// number of records.
    pub(crate) fn new(content: &'a [u8], records: usize) -> Option<RowReader<'a>> {
        let mut rest = ByteReader(content);
        let mut size = || Some(u32::from_le_bytes(rest.take(4)?.try_into().expect("four bytes")) as usize);
        let (lengths_len, attributes_len, key_text_len) = (size()?, size()?, size()?);
        let (tags, forms) = (rest.take(records)?, rest.take(records)?);
        // How many numbers have each form.
        let (mut keys, mut values) = ([0; 16], [0; 16]);
        for &form in forms {
            keys[usize::from(form >> 4)] += 1;
            values[usize::from(form & 15)] += 1;
        }
        let unknown = |counts: &[usize; 16]| counts[usize::from(TEXT) + 1..].iter().any(|&count| count > 0);
        if unknown(&keys) || unknown(&values) {
            return None;
        }
        let keys = BytePlanes::take(&keys, &mut rest)?;
        let values = BytePlanes::take(&values, &mut rest)?;
        let lengths = ByteReader(rest.take(lengths_len)?);
        let attributes = ByteReader(rest.take(attributes_len)?);
        let key_text = ByteReader(rest.take(key_text_len)?);
        Some(RowReader { tags, forms, keys, values, lengths, attributes, key_text, value_text: rest })
    }

    /// Returns true after the last record.
    pub(crate) fn is_done(&self) -> bool {
        self.tags.is_empty()
    }

    /// Returns the next record. Returns `None` if it is invalid, or if bytes remain after the last
    /// one.
    #[inline]
    pub(crate) fn next_row(&mut self) -> Option<BlockRow<'a>> {
        let ((&tag, tags), (&form, forms)) = (self.tags.split_first()?, self.forms.split_first()?);
        (self.tags, self.forms) = (tags, forms);
        let key = text(form >> 4, &mut self.keys, &mut self.lengths, &mut self.key_text)?;
        let value = text(form & 15, &mut self.values, &mut self.lengths, &mut self.value_text)?;
        let attributes = take_attributes(tag, &mut self.attributes)?;
        let left = [&self.lengths, &self.attributes, &self.key_text, &self.value_text];
        if tags.is_empty() && left.iter().any(|rest| !rest.0.is_empty()) {
            return None;
        }
        Some(BlockRow { key, value, attributes })
    }
}

#[inline]
fn text<'a>(
    form: u8,
    numbers: &mut BytePlanes<'a>,
    lengths: &mut ByteReader<'a>,
    plain: &mut ByteReader<'a>,
) -> Option<ColumnText<'a>> {
    if form == TEXT {
        let len = usize::try_from(lengths.varint()?).ok()?;
        return Some(ColumnText::Plain(plain.take(len)?));
    }
    let number = numbers.next_number(usize::from(form) + 1)?;
    let mut text = [0; 20];
    let len = decimal::unpack(number, &mut text).len() as u8;
    Some(ColumnText::Digits { text, len })
}

/// Numbers that are stored as planes of their bytes.
#[derive(Clone)]
struct BytePlanes<'a>([&'a [u8]; 8]);

impl<'a> BytePlanes<'a> {
    /// Takes the planes from the rest of a content. `counts[n]` is the number of numbers that are
    /// `n + 1` bytes long.
    fn take(counts: &[usize; 16], rest: &mut ByteReader<'a>) -> Option<BytePlanes<'a>> {
        let mut planes = [&b""[..]; 8];
        for (plane, bytes) in planes.iter_mut().enumerate() {
            *bytes = rest.take(counts[plane..8].iter().sum())?;
        }
        Some(BytePlanes(planes))
    }

    /// Returns the next number, which has `len` bytes. Returns `None` if it does not encode a
    /// decimal text. The caller must not request more numbers of a length than `counts` stated.
    #[inline]
    fn next_number(&mut self, len: usize) -> Option<u64> {
        let mut number = 0;
        for (index, plane) in self.0[..len].iter_mut().enumerate() {
            let (&byte, rest) = plane.split_first()?;
            *plane = rest;
            number |= u64::from(byte) << (8 * index);
        }
        (number <= decimal::NUMBER_MAX).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Key, value, attributes.
    type OwnedRow = (Vec<u8>, Vec<u8>, Attributes);

    fn content(records: &[OwnedRow]) -> Vec<u8> {
        let mut columns = ColumnBuilder::default();
        for (key, value, attributes) in records {
            columns.push(key, &Record::new(value, *attributes));
        }
        let mut out = Vec::new();
        columns.encode(&mut out);
        assert_eq!((columns.records(), columns.len()), (records.len(), out.len()));
        out
    }

    /// Returns all records, or `None` if one of them is invalid.
    fn rows(content: &[u8], records: usize) -> Option<Vec<OwnedRow>> {
        let mut rows = RowReader::new(content, records)?;
        let mut all = Vec::new();
        while !rows.is_done() {
            let row = rows.next_row()?;
            all.push((row.key.bytes().to_vec(), row.value.bytes().to_vec(), row.attributes));
        }
        Some(all)
    }

    #[test]
    fn bytes_are_those_of_the_format_page() {
        let attributes = Attributes { flags: 300, ..Attributes::default() };
        let records = [
            (b"7".to_vec(), b"word".to_vec(), Attributes::default()),
            (b"key".to_vec(), b"1000".to_vec(), attributes),
            (b"00000000".to_vec(), b"".to_vec(), Attributes::default()),
        ];
        let expected: &[&[u8]] = &[
            b"\x03\0\0\0\x02\0\0\0\x03\0\0\0",
            b"\x00\x01\x00",
            b"\x08\x81\x28",
            // 7; 11111110 = 0xa98ac6.
            b"\x07\xc6\x8a\xa9",
            // 1110 + 1000 = 0x083e.
            b"\x3e\x08",
            b"\x04\x03\x00",
            b"\xac\x02",
            b"key",
            b"word",
        ];
        let expected = expected.concat();
        assert_eq!(content(&records), expected);
        assert_eq!(rows(&expected, 3).unwrap(), records);
    }

    fn attributes() -> impl Strategy<Value = Attributes> {
        let expiry = prop_oneof![
            Just(Expiry::Never),
            any::<u64>().prop_map(|at| Expiry::At(UnixSeconds(at))),
            (any::<u64>(), any::<u32>())
                .prop_map(|(at, span_s)| Expiry::Sliding { at: UnixSeconds(at), span_s }),
        ];
        (prop_oneof![Just(0), any::<u32>()], expiry, prop_oneof![Just(0), any::<u64>()], any::<[bool; 2]>())
            .prop_map(|(flags, expiry, version, [stale, token_sent])| {
                let marks = StaleMarks { stale, token_sent };
                Attributes { flags, expiry, version, marks, ..Attributes::default() }
            })
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof!["[0-9]{1,20}".prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..40)]
    }

    proptest! {
        #[test]
        fn columns_round_trip(
            records in proptest::collection::vec((bytes(), bytes(), attributes()), 0..60)
        ) {
            prop_assert_eq!(rows(&content(&records), records.len()), Some(records));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(0..10u8, 0..80), records in 0..6usize) {
            rows(&bytes, records);
        }

        #[test]
        fn no_change_to_a_content_panics(
            records in proptest::collection::vec((bytes(), bytes(), attributes()), 1..9),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let mut content = content(&records);
            let at = at.index(content.len());
            content[at] = byte;
            rows(&content, records.len());
        }
    }
}
