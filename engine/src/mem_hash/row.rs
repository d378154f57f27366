//! Takes a bucket apart into its records, for changes that concern more than one column.

use super::group::{
    BUCKET_RECORD_MAX, BucketValue, KeyColumn, RecordGroup, RecordReference, StoredAttributes, rest_len,
};
use super::key::{HashSeeds, Key, KeyForm, head_and_rest};
use super::queue::{BucketTail, UseMark};
use super::quotient::{BucketAddress, HEAD_LEN, TEXT_CLASS};
use todana_core::{Attributes, Expiry, Record, decimal};

/// The key of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowKey {
    Number {
        class: u8,
        quotient: u64,
    },
    /// A text of this length. Its bytes after the head are at an offset.
    Text {
        quotient: u32,
        at: u32,
        len: u32,
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
    /// the key without its head if it is text, and the value if it is text.
    pub(super) fn new(key: &Key<'_>, value: &[u8], attributes: &Attributes, out: &mut Vec<u8>) -> BucketRow {
        let at = out.len() as u32;
        let (prefix, more) = crate::record::put_attributes(out, attributes);
        let len = (out.len() - at as usize) as u8;
        let attributes = StoredAttributes { prefix, more, len, at };
        let key = match key.form {
            KeyForm::Number { class, quotient } => RowKey::Number { class, quotient },
            KeyForm::Text { quotient } => {
                let at = out.len() as u32;
                out.extend_from_slice(head_and_rest(key.text).1);
                RowKey::Text { quotient: quotient as u32, at, len: key.text.len() as u32 }
            }
        };
        let value = match decimal::pack(value) {
            Some(number) => BucketValue::Number(number),
            None => {
                let at = out.len() as u32;
                out.extend_from_slice(value);
                BucketValue::Text { at, len: value.len() as u32 }
            }
        };
        BucketRow { key, value, attributes, source: NEW_SOURCE, mark: UseMark::default(), age: NEWEST }
    }

    /// Returns a row for a new stub.
    pub(super) fn new_stub(fingerprint: u32, reference: RecordReference) -> BucketRow {
        BucketRow {
            key: RowKey::Stub { fingerprint, reference },
            value: BucketValue::Text { at: 0, len: 0 },
            attributes: StoredAttributes::default(),
            source: NEW_SOURCE,
            mark: UseMark::default(),
            age: NEWEST,
        }
    }

    /// Returns at least the low 32 bits of the hash of the key.
    #[inline]
    pub(super) fn low_hash(&self, bytes: &[u8], seeds: &HashSeeds) -> u64 {
        match self.key {
            RowKey::Number { class, quotient } => seeds.of_quotient(class, quotient),
            RowKey::Text { quotient, at, len } => {
                seeds.of_text_quotient(quotient.into(), rest_of(bytes, at, len))
            }
            RowKey::Stub { fingerprint, .. } => u64::from(fingerprint),
        }
    }

    /// Returns the key as text. `buffer` is the memory in which it is assembled. A stub has no key.
    #[inline]
    pub(super) fn key_text<'a>(
        &self,
        bytes: &[u8],
        seeds: &HashSeeds,
        buffer: &'a mut KeyBuffer,
    ) -> &'a [u8] {
        match self.key {
            RowKey::Number { class, quotient } => match seeds.number(class, quotient) {
                Some(number) => decimal::unpack(number, &mut buffer.digits),
                None => unreachable!("only quotients of texts are stored"),
            },
            RowKey::Text { quotient, at, len } => {
                let rest = rest_of(bytes, at, len);
                buffer.text.clear();
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
        seeds: &HashSeeds,
        buffer: &mut KeyBuffer,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> T,
    ) -> T {
        let mut digits = [0; 20];
        let record = Record::new(self.value.text(bytes, &mut digits), self.attributes.read(bytes));
        see(self.key_text(bytes, seeds, buffer), record)
    }

    /// Returns the size of the record for statistics: the lengths of the key and the value as text,
    /// + 4 if there are flags. A stub has no size.
    #[inline]
    pub(super) fn plain_size(&self, seeds: &HashSeeds) -> usize {
        let key_len = match self.key {
            RowKey::Number { class, quotient } => seeds.number(class, quotient).map_or(0, decimal::text_len),
            RowKey::Text { len, .. } => len as usize,
            RowKey::Stub { .. } => return 0,
        };
        key_len + self.value.text_len() + self.attributes.flags_size()
    }

    /// Returns the size of the record for statistics and the hash of its key, for records whose
    /// bytes may be any; those of the value and the attributes must have been checked. Returns
    /// `None` if the key is not stored as [`Key`] stores its text, or the record does not fit into
    /// a bucket.
    #[inline]
    pub(super) fn checked(&self, bytes: &[u8], seeds: &HashSeeds) -> Option<(usize, u64)> {
        let (key_len, hash) = match self.key {
            RowKey::Number { class, quotient } => {
                (decimal::text_len(seeds.number(class, quotient)?), seeds.of_quotient(class, quotient))
            }
            RowKey::Text { quotient, at, len } => {
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
            RowKey::Stub { .. } => return None,
        };
        let len = key_len + self.value.text_len();
        (len <= BUCKET_RECORD_MAX).then(|| (len + self.attributes.flags_size(), hash))
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
}

/// The memory in which keys are assembled.
#[derive(Default)]
pub(super) struct KeyBuffer {
    digits: [u8; 20],
    text: Vec<u8>,
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
    if matches!(tail, BucketTail::Queue { .. }) {
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
