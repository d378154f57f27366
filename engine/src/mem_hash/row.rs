//! Takes a bucket apart into its records, for changes that concern more than one column.

use super::encodings::{PLAIN_ENCODINGS, PlainBuffer, RecordContext, RecordEncodings};
use super::group::{
    BUCKET_RECORD_MAX, BucketValue, KeyColumn, RecordGroup, RecordReference, StoredAttributes, rest_len,
};
use super::key::{HashSeeds, Key, KeyForm, head_and_rest};
use super::queue::{BucketTail, Marking, UseMark};
use super::quotient::{BucketAddress, HEAD_LEN, TEXT_CLASS};
use todana_core::{Attributes, Expiry, Record, decimal};

/// The key of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowKey {
    Number {
        class: u8,
        quotient: u64,
    },
    /// A text of this length. Its bytes after the head are at an offset. With a shape, the form of
    /// the shape is there, and the length is that of the form and a head.
    Text {
        quotient: u32,
        at: u32,
        len: u32,
        shape: u8,
    },
    Stub {
        fingerprint: u32,
        reference: RecordReference,
    },
}

/// A record or a stub of a bucket. The offsets are relative to the bytes with the number `source`
/// of a [`RowSources`].
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketRow {
    pub(super) key: RowKey,
    pub(super) value: BucketValue,
    pub(super) attributes: StoredAttributes,
    pub(super) source: u8,
    pub(super) mark: UseMark,
    /// The relative age, by which records of different groups are ordered: 0 is the oldest.
    pub(super) age: u32,
}

/// The bytes that the rows of a bucket refer to.
pub(super) type RowSources<'s> = [&'s [u8]; 3];

/// The number of the source with a record that is being stored.
pub(super) const NEW_SOURCE: u8 = 2;
/// The value of `BucketRow::age` of a new record.
pub(super) const NEWEST: u32 = u32::MAX;

impl BucketRow {
    /// Returns a row for a new record whose text is in the source for new records: the attributes,
    /// the key without its head or in the form of its shape if it is text, and the value if it is
    /// text.
    pub(super) fn new(
        key: &Key<'_>,
        value: &[u8],
        attributes: &Attributes,
        encodings: &RecordEncodings,
        out: &mut Vec<u8>,
    ) -> BucketRow {
        let mut row = BucketRow::without_value(key, attributes, encodings, out);
        row.value = match decimal::pack(value) {
            Some(number) => BucketValue::Number(number),
            None => {
                let at = out.len();
                let dictionary = encodings.put_value(value, out);
                BucketValue::Text { at: at as u32, len: (out.len() - at) as u32, dictionary }
            }
        };
        row
    }

    /// Does the same for a value that is given in the form of a dictionary, or as it is if that is
    /// 0.
    pub(super) fn with_stored_value(
        key: &Key<'_>,
        (stored, dictionary): (&[u8], u8),
        attributes: &Attributes,
        encodings: &RecordEncodings,
        out: &mut Vec<u8>,
    ) -> BucketRow {
        let mut row = BucketRow::without_value(key, attributes, encodings, out);
        row.value = match decimal::pack(stored).filter(|_| dictionary == 0) {
            Some(number) => BucketValue::Number(number),
            None => {
                let at = out.len() as u32;
                out.extend_from_slice(stored);
                BucketValue::Text { at, len: stored.len() as u32, dictionary }
            }
        };
        row
    }

    /// Does the same for a record that fits into a bucket only because of the form of a dictionary.
    /// Returns `None` if it does not fit.
    pub(super) fn new_short(
        key: &Key<'_>,
        stored: (&[u8], u8),
        attributes: &Attributes,
        encodings: &RecordEncodings,
        out: &mut Vec<u8>,
    ) -> Option<BucketRow> {
        let fits = BucketRow::fits_short(key.text.len(), (stored.0.len(), stored.1), attributes);
        fits.then(|| BucketRow::with_stored_value(key, stored, attributes, encodings, out))
    }

    /// Returns a row for a new record whose value is not stored yet.
    #[inline]
    fn without_value(
        key: &Key<'_>,
        attributes: &Attributes,
        encodings: &RecordEncodings,
        out: &mut Vec<u8>,
    ) -> BucketRow {
        let at = out.len() as u32;
        let (prefix, more) = crate::record::put_attributes(out, attributes);
        let len = (out.len() - at as usize) as u8;
        let attributes = StoredAttributes { prefix, more, len, at };
        let key = match key.form {
            KeyForm::Number { class, quotient } => RowKey::Number { class, quotient },
            KeyForm::Text { quotient } => text_key(quotient as u32, key.text, encodings, out),
        };
        let value = BucketValue::Number(0);
        BucketRow { key, value, attributes, source: NEW_SOURCE, mark: UseMark::default(), age: NEWEST }
    }

    /// Returns a row for a new stub.
    pub(super) fn new_stub(fingerprint: u32, reference: RecordReference) -> BucketRow {
        BucketRow {
            key: RowKey::Stub { fingerprint, reference },
            value: BucketValue::Text { at: 0, len: 0, dictionary: 0 },
            attributes: StoredAttributes::default(),
            source: NEW_SOURCE,
            mark: UseMark::default(),
            age: NEWEST,
        }
    }

    /// Returns at least the low 32 bits of the hash of the key.
    #[inline]
    pub(super) fn low_hash(&self, bytes: &[u8], context: RecordContext<'_>) -> u64 {
        let RecordContext { seeds, encodings } = context;
        match self.key {
            RowKey::Number { class, quotient } => seeds.of_quotient(class, quotient),
            RowKey::Text { quotient, at, len, shape } => {
                let stored = rest_of(bytes, at, len);
                if shape == 0 {
                    return seeds.of_text_quotient(quotient.into(), stored);
                }
                let mut buffer = PlainBuffer::default();
                let (_, rest) = head_and_rest(encodings.key(shape, stored, &mut buffer));
                seeds.of_text_quotient(quotient.into(), rest)
            }
            RowKey::Stub { fingerprint, .. } => u64::from(fingerprint),
        }
    }

    /// Returns the key as text. `buffer` is the memory in which it is assembled. A stub has no key.
    #[inline]
    pub(super) fn key_text<'a>(
        &self,
        bytes: &[u8],
        context: RecordContext<'_>,
        buffer: &'a mut KeyBuffer,
    ) -> &'a [u8] {
        let RecordContext { seeds, encodings } = context;
        match self.key {
            RowKey::Number { class, quotient } => match seeds.number(class, quotient) {
                Some(number) => decimal::unpack(number, &mut buffer.digits),
                None => unreachable!("only quotients of texts are stored"),
            },
            RowKey::Text { quotient, at, len, shape } => {
                let rest = rest_of(bytes, at, len);
                buffer.text.clear();
                if shape != 0 {
                    encodings.append_key(shape, rest, &mut buffer.text);
                    return &buffer.text;
                }
                buffer.text.extend_from_slice(&seeds.text_head(quotient.into(), rest));
                buffer.text.extend_from_slice(rest);
                &buffer.text[..len as usize]
            }
            RowKey::Stub { .. } => &[],
        }
    }

    /// Passes the key and the record to `see`. A stub has neither.
    pub(super) fn see<T>(
        &self,
        bytes: &[u8],
        context: RecordContext<'_>,
        buffer: &mut KeyBuffer,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> T,
    ) -> T {
        let mut value_buffer = PlainBuffer::default();
        let value = self.value.text(bytes, context.encodings, &mut value_buffer);
        let record = Record::new(value, self.attributes.read(bytes));
        see(self.key_text(bytes, context, buffer), record)
    }

    /// Returns the size of the record for statistics: the lengths of the key and the value as text,
    /// + 4 if there are flags. A stub has no size.
    #[inline]
    pub(super) fn plain_size(&self, bytes: &[u8], context: RecordContext<'_>) -> usize {
        let RecordContext { seeds, encodings } = context;
        let key_len = match self.key {
            RowKey::Number { class, quotient } => seeds.number(class, quotient).map_or(0, decimal::text_len),
            RowKey::Text { len, shape: 0, .. } => len as usize,
            RowKey::Text { at, len, shape, .. } => encodings.key_len(shape, rest_of(bytes, at, len)),
            RowKey::Stub { .. } => return 0,
        };
        key_len + self.value.text_len(bytes, encodings) + self.attributes.flags_size()
    }

    /// Returns the size of the record for statistics and the hash of its key. The bytes of the key
    /// are not trusted. Those of the value and the attributes must have been checked. Returns
    /// `None` if the key is not stored as [`Key`] stores its text, or the record does not fit into
    /// a bucket.
    #[inline]
    pub(super) fn checked(&self, bytes: &[u8], seeds: &HashSeeds) -> Option<(usize, u64)> {
        let (key_len, hash) = match self.key {
            RowKey::Number { class, quotient } => {
                (decimal::text_len(seeds.number(class, quotient)?), seeds.of_quotient(class, quotient))
            }
            RowKey::Text { quotient, at, len, shape: 0 } => {
                let rest = rest_of(bytes, at, len);
                let head = seeds.text_head(quotient.into(), rest);
                let (used, unused) = head.split_at(HEAD_LEN.min(len as usize));
                let is_number = used.iter().all(u8::is_ascii_digit)
                    && rest.iter().all(u8::is_ascii_digit)
                    && (1..=decimal::DIGITS_MAX).contains(&(len as usize));
                if is_number || unused.iter().any(|&byte| byte != 0) {
                    return None;
                }
                (len as usize, seeds.of_text_quotient(quotient.into(), rest))
            }
            // Encodings mean nothing elsewhere.
            RowKey::Text { .. } | RowKey::Stub { .. } => return None,
        };
        let len = key_len + self.value.text_len(bytes, &PLAIN_ENCODINGS);
        (len <= BUCKET_RECORD_MAX).then(|| (len + self.attributes.flags_size(), hash))
    }

    /// Returns true if today's encodings may give the record another form.
    #[inline]
    pub(super) fn is_stale(&self, encodings: &RecordEncodings) -> bool {
        match (self.key, self.value) {
            (RowKey::Stub { .. }, _) => false,
            (RowKey::Text { shape: 0, .. }, _) if !encodings.shapes().is_empty() => true,
            (_, BucketValue::Text { dictionary, .. }) => !encodings.is_current(dictionary),
            _ => false,
        }
    }

    /// Returns the length of the key and the value as they are stored.
    #[inline]
    pub(super) fn stored_len(&self) -> usize {
        let key_len = if let RowKey::Text { len, .. } = self.key { rest_len(len as usize) } else { 0 };
        key_len + self.value.data_len()
    }

    /// Returns true if the record fits into a bucket in its present form.
    pub(super) fn fits_encoded(&self, bytes: &[u8], context: RecordContext<'_>) -> bool {
        let attributes = self.attributes.read(bytes);
        let value_len = self.value.text_len(bytes, context.encodings);
        let key_len = self.plain_size(bytes, context) - self.attributes.flags_size() - value_len;
        BucketRow::fits(key_len, value_len, &attributes)
            || BucketRow::fits_short(key_len, (self.value.data_len(), self.value.dictionary()), &attributes)
    }

    /// Returns true if the record would fit into a bucket as it is.
    pub(super) fn fits_plain(&self, bytes: &[u8], context: RecordContext<'_>) -> bool {
        let attributes = self.attributes.read(bytes);
        let flags = self.attributes.flags_size();
        BucketRow::fits(self.plain_size(bytes, context) - flags, 0, &attributes)
    }

    /// Returns true if both records have the same encodings.
    pub(super) fn is_encoded_like(&self, other: &BucketRow) -> bool {
        let encodings = |row: &BucketRow| {
            let shape = if let RowKey::Text { shape, .. } = row.key { shape } else { 0 };
            (shape, row.value.dictionary())
        };
        encodings(self) == encodings(other)
    }

    /// Returns the same record in the form of other encodings. It lies in `out`, which is the
    /// source for new records.
    pub(super) fn recoded(
        &self,
        bytes: &[u8],
        context: RecordContext<'_>,
        encodings: &RecordEncodings,
        out: &mut Vec<u8>,
    ) -> BucketRow {
        let mut buffer = PlainBuffer::default();
        let from = self.attributes.at as usize;
        let attributes = StoredAttributes { at: out.len() as u32, ..self.attributes };
        out.extend_from_slice(&bytes[from..from + usize::from(attributes.len)]);
        let mut row = BucketRow { attributes, source: NEW_SOURCE, ..*self };
        if let RowKey::Text { quotient, .. } = self.key {
            let mut key = KeyBuffer::default();
            row.key = text_key(quotient, self.key_text(bytes, context, &mut key), encodings, out);
        }
        if let BucketValue::Text { at, len, dictionary } = &mut row.value {
            let stored = &bytes[*at as usize..][..*len as usize];
            *at = out.len() as u32;
            if *dictionary != 0 && encodings.is_current(*dictionary) {
                out.extend_from_slice(stored);
            } else {
                let text = context.encodings.value(*dictionary, stored, &mut buffer);
                *dictionary = encodings.put_value_again(text, *dictionary, out);
            }
            *len = out.len() as u32 - *at;
        }
        row
    }

    #[inline]
    pub(super) fn expiry(&self, bytes: &[u8]) -> Expiry {
        self.attributes.expiry(bytes)
    }

    /// Returns true if a bucket can contain a record of these lengths.
    #[inline]
    pub(super) fn fits(key_len: usize, value_len: usize, attributes: &Attributes) -> bool {
        let attributes_len = if *attributes == Attributes::default() { 0 } else { ATTRIBUTES_MAX };
        key_len + value_len + attributes_len <= BUCKET_RECORD_MAX
    }

    /// Returns true if a bucket can contain a record because of the form of a dictionary.
    fn fits_short(key_len: usize, (stored_len, dictionary): (usize, u8), attributes: &Attributes) -> bool {
        dictionary != 0
            && key_len <= BUCKET_RECORD_MAX / 2
            && BucketRow::fits(key_len, stored_len, attributes)
    }
}

/// The memory in which keys are assembled.
#[derive(Default)]
pub(super) struct KeyBuffer {
    digits: [u8; 20],
    text: Vec<u8>,
}

/// Appends the stored form of a text. Returns the key of its row.
#[inline]
fn text_key(quotient: u32, text: &[u8], encodings: &RecordEncodings, out: &mut Vec<u8>) -> RowKey {
    let at = out.len();
    let shape = encodings.put_key(text, out);
    if shape != 0 {
        let len = out.len() - at + HEAD_LEN;
        return RowKey::Text { quotient, at: at as u32, len: len as u32, shape };
    }
    out.extend_from_slice(head_and_rest(text).1);
    RowKey::Text { quotient, at: at as u32, len: text.len() as u32, shape }
}

/// Returns the bytes of a text of this length after its head.
#[inline]
fn rest_of(bytes: &[u8], at: u32, len: u32) -> &[u8] {
    &bytes[at as usize..][..rest_len(len as usize)]
}

/// The maximum length of stored attributes: flags, an expiry of eight bytes, its span, the version
/// and the access time.
const ATTRIBUTES_MAX: usize = 5 + 8 + 5 + 10 + 4;

/// Appends the records of the group to `rows`. The marks are those without a tail.
#[inline]
pub(super) fn put_rows(
    bytes: &[u8],
    group: &RecordGroup,
    address: &BucketAddress,
    source: u8,
    rows: &mut Vec<BucketRow>,
) {
    // All groups begin and end at about the same ages.
    let age_of = |index: usize| ((2 * index + 1) << 15) as u32 / group.count as u32;
    group.for_each(bytes, |index, (rest, len), value| {
        let key = match group.keys {
            KeyColumn::Number(class) => {
                RowKey::Number { class, quotient: address.quotient(class, group.remainder(bytes, index)) }
            }
            KeyColumn::Stubs => {
                let (fingerprint, reference) = group.stub(bytes, index);
                RowKey::Stub { fingerprint, reference }
            }
            _ => RowKey::Text {
                quotient: address.quotient(TEXT_CLASS, group.remainder(bytes, index)) as u32,
                at: rest.start as u32,
                len: len as u32,
                shape: group.shape,
            },
        };
        let (attributes, age) = (group.attributes(index), age_of(index));
        rows.push(BucketRow { key, value, attributes, source, mark: UseMark::default(), age });
    });
}

/// Appends the records of a bucket with their marks to `rows`, group by group. Returns the offset
/// at which the records end, and the tail.
pub(super) fn take_apart<'b>(
    bytes: &'b [u8],
    address: &BucketAddress,
    source: u8,
    rows: &mut Vec<BucketRow>,
) -> (usize, BucketTail<'b>) {
    let first = rows.len();
    let mut at = 0;
    while let Some(group) = RecordGroup::read(bytes, at, address) {
        put_rows(bytes, &group, address, source, rows);
        at = group.end;
    }
    let tail = BucketTail::read(bytes, at);
    if tail.marking != Marking::None {
        for (index, row) in rows[first..].iter_mut().enumerate() {
            row.mark = tail.mark(index);
        }
    }
    (at, tail)
}

/// Sorts rows by age, the oldest first. Rows of one group keep their order.
#[inline]
pub(super) fn sort_by_age(rows: &mut [BucketRow]) {
    if !rows.is_sorted_by_key(|row| row.age) {
        rows.sort_by_key(|row| row.age);
    }
}
