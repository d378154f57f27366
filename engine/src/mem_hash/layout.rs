//! Arranges records in groups, so that the bucket is short.
//!
//! A group costs some bytes, and saves those that its records have in common. Records of one form
//! therefore have a group of their own if there are some of them. The others share a group in which
//! each record states its lengths. A new record is added to a group that exists, and all groups of
//! the bucket are arranged anew only if no group takes the record.

use super::bits::{ColumnWriter, width_of};
use super::group::{
    BucketValue, FIXED_KEY_MAX, FIXED_VALUE_MAX, GROUP_DATA_MAX, GROUP_RECORDS_MAX, KeyColumn, RecordGroup,
    ValueColumn, group_head, put_encodings, put_stub, rest_len,
};
use super::quotient::{BucketAddress, TEXT_CLASS};
use super::row::{BucketRow, RowKey, RowSources};

/// The minimum number of records for which a group of their own is shorter than their lengths in
/// another group.
const ALIKE_MIN: usize = 4;
/// The cost of a group of numbers in bits: its head, and the unused bits of its columns.
const NUMBER_GROUP_BITS: usize = 40;
/// The maximum number of bits by which numbers may be shorter than the others of their group.
const WIDTH_SPAN_MAX: u32 = 32;

/// Returns a number that is equal for rows that can share a group whose values are of variable
/// length. Rows of equal keys and attributes follow each other if sorted by it.
#[inline]
fn family(row: &BucketRow) -> u64 {
    let kind = match row.key {
        RowKey::Number { class, .. } => u64::from(class),
        RowKey::Text { .. } => 0x40,
        RowKey::Stub { .. } => 0x80,
    };
    let attributes = &row.attributes;
    let fields = u64::from(attributes.prefix) << 16 | u64::from(attributes.more) << 8;
    let encodings = u64::from(shape(row)) << 8 | u64::from(row.value.dictionary());
    encodings << 32 | kind << 24 | fields | u64::from(attributes.len)
}

#[inline]
fn shape(row: &BucketRow) -> u8 {
    if let RowKey::Text { shape, .. } = row.key { shape } else { 0 }
}

/// Returns a number that is equal for values that can share a group of values of one form.
#[inline]
fn value_code(value: BucketValue) -> u32 {
    match value {
        BucketValue::Number(_) => 0,
        BucketValue::Text { len, .. } => len + 1,
    }
}

#[inline]
fn key_len(row: &BucketRow) -> u32 {
    if let RowKey::Text { len, .. } = row.key { len } else { 0 }
}

/// Returns the number of bytes of a text key after its head.
#[inline]
fn rest_len_of(row: &BucketRow) -> usize {
    rest_len(key_len(row) as usize)
}

/// Moves the rows for which `is_it` returns true to the front, without changing the order
/// otherwise. Returns their number.
fn partition(rows: &mut [BucketRow], is_it: impl Fn(&BucketRow) -> bool) -> usize {
    let count = rows.iter().filter(|row| is_it(row)).count();
    if !rows[..count].iter().all(&is_it) {
        rows.sort_by_key(|row| !is_it(row));
    }
    count
}

/// Returns true if the values of all rows have the same code.
fn have_equal_values(rows: &[BucketRow]) -> bool {
    let code = value_code(rows[0].value);
    rows.iter().all(|row| value_code(row.value) == code)
}

/// Sorts rows by a code, those of each code in the order of arrival. The rows whose code does not
/// get a group of its own (`is_alike`, with the number of rows) then move to the front. Returns
/// their number.
fn pool_rest(
    rows: &mut [BucketRow],
    code_of: impl Fn(&BucketRow) -> u32,
    is_alike: impl Fn(u32, usize) -> bool,
) -> usize {
    rows.sort_by_key(&code_of);
    let (mut pooled, mut start) = (0, 0);
    while start < rows.len() {
        let code = code_of(&rows[start]);
        let count = rows[start..].iter().take_while(|row| code_of(row) == code).count();
        let end = start + count;
        if !is_alike(code, count) {
            rows[pooled..end].rotate_right(count);
            pooled += count;
        }
        start = end;
    }
    pooled
}

/// The destination of the rows of a bucket.
struct BucketWriter<'a> {
    sources: RowSources<'a>,
    address: &'a BucketAddress,
    out: &'a mut Vec<u8>,
}

/// Appends a bucket without its tail. The rows must be in the order of their arrival. They are put
/// into the order in which the bucket contains them, for their marks.
pub(super) fn put_bucket(
    rows: &mut [BucketRow],
    sources: RowSources<'_>,
    address: &BucketAddress,
    out: &mut Vec<u8>,
) {
    for (rank, row) in rows.iter_mut().enumerate() {
        row.age = rank as u32;
    }
    if !rows.is_sorted_by_key(family) {
        rows.sort_by_key(family);
    }
    let mut writer = BucketWriter { sources, address, out };
    for family in rows.chunk_by_mut(|one, other| family(one) == family(other)) {
        match family[0].key {
            RowKey::Number { .. } => writer.put_family(family, None),
            RowKey::Text { .. } => writer.put_texts(family),
            RowKey::Stub { .. } => writer.put_groups(family, KeyColumn::Stubs, ValueColumn::Fixed(0)),
        }
    }
}

impl BucketWriter<'_> {
    /// Appends rows whose keys are text.
    fn put_texts(&mut self, rows: &mut [BucketRow]) {
        let len = key_len(&rows[0]);
        if len as usize <= FIXED_KEY_MAX && rows.iter().all(|row| key_len(row) == len) {
            return self.put_family(rows, Some(len));
        }
        let pooled =
            pool_rest(rows, key_len, |len, count| count >= ALIKE_MIN && len as usize <= FIXED_KEY_MAX);
        let (pool, alike) = rows.split_at_mut(pooled);
        if !pool.is_empty() {
            pool.sort_by_key(|row| row.age);
            self.put_variable_keys(pool);
        }
        for rows in alike.chunk_by_mut(|one, other| key_len(one) == key_len(other)) {
            let len = key_len(&rows[0]);
            self.put_family(rows, Some(len));
        }
    }

    /// Appends rows whose keys are text of several lengths, in the order of arrival.
    fn put_variable_keys(&mut self, rows: &mut [BucketRow]) {
        let keys =
            if rows.iter().all(|row| key_len(row) <= 255) { KeyColumn::Short } else { KeyColumn::Long };
        self.put_pool(rows, keys);
    }

    /// Appends rows whose values may be of several forms, in the order of arrival.
    fn put_pool(&mut self, rows: &mut [BucketRow], keys: KeyColumn) {
        if have_equal_values(rows) {
            self.put_alike(rows, keys);
        } else {
            self.put_groups(rows, keys, variable_values(rows));
        }
    }

    /// Appends rows of one family whose keys are of one form: numbers, or text of one length.
    fn put_family(&mut self, rows: &mut [BucketRow], text_len: Option<u32>) {
        let keys = match (rows[0].key, text_len) {
            (RowKey::Number { class, .. }, _) => KeyColumn::Number(class),
            (_, Some(len)) if len as usize <= FIXED_KEY_MAX => KeyColumn::Fixed(len as u8),
            (_, Some(..=255)) => KeyColumn::Short,
            _ => KeyColumn::Long,
        };
        if have_equal_values(rows) {
            return self.put_alike(rows, keys);
        }
        let is_alike = |code: u32, count| count >= ALIKE_MIN && code as usize <= FIXED_VALUE_MAX + 1;
        let pooled = pool_rest(rows, |row| value_code(row.value), is_alike);
        let (pool, alike) = rows.split_at_mut(pooled);
        if !pool.is_empty() {
            pool.sort_by_key(|row| row.age);
            self.put_pool(pool, keys);
        }
        for rows in alike.chunk_by_mut(|one, other| value_code(one.value) == value_code(other.value)) {
            self.put_alike(rows, keys);
        }
    }

    /// Appends rows whose values are all numbers, or all text of one length.
    fn put_alike(&mut self, rows: &mut [BucketRow], keys: KeyColumn) {
        match rows[0].value {
            BucketValue::Number(_) => self.put_numbers(rows, keys),
            BucketValue::Text { len, .. } if len as usize <= FIXED_VALUE_MAX => {
                self.put_groups(rows, keys, ValueColumn::Fixed(len as u8));
            }
            BucketValue::Text { .. } => self.put_groups(rows, keys, ValueColumn::Long),
        }
    }

    /// Appends rows whose values are numbers. Numbers that are much shorter than others have a
    /// group of their own.
    fn put_numbers(&mut self, rows: &mut [BucketRow], keys: KeyColumn) {
        let mut counts = [0usize; 65];
        for row in &*rows {
            counts[width_of_value(row.value) as usize] += 1;
        }
        let mut rest = rows;
        while !rest.is_empty() {
            let most = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
            // The bound below which numbers save most if they have another group.
            let (mut fewer, mut best) = (0, (NUMBER_GROUP_BITS, None));
            for (width, &count) in counts.iter().enumerate().take(most) {
                fewer += count;
                let saved = fewer * (most - width);
                if saved > best.0 || fewer > 0 && most - width > WIDTH_SPAN_MAX as usize {
                    best = (saved, Some(width));
                }
            }
            let Some(bound) = best.1 else {
                return self.put_groups(rest, keys, ValueColumn::Number(most as u8));
            };
            let wide = partition(rest, |row| width_of_value(row.value) as usize > bound);
            counts[bound + 1..].fill(0);
            let (first, others) = rest.split_at_mut(wide);
            self.put_groups(first, keys, ValueColumn::Number(most as u8));
            rest = others;
        }
    }

    /// Appends rows as one group, or as more if one does not suffice.
    fn put_groups(&mut self, rows: &[BucketRow], keys: KeyColumn, values: ValueColumn) {
        let mut rest = rows;
        while !rest.is_empty() {
            let (mut count, mut key_text, mut value_text) = (0, 0, 0);
            for row in rest.iter().take(GROUP_RECORDS_MAX) {
                key_text += rest_len_of(row);
                value_text += row.value.data_len();
                if count > 0 && key_text.max(value_text) > GROUP_DATA_MAX {
                    break;
                }
                count += 1;
            }
            self.put_group(&rest[..count], keys, values);
            rest = &rest[count..];
        }
    }

    fn put_group(&mut self, rows: &[BucketRow], keys: KeyColumn, values: ValueColumn) {
        let BucketWriter { sources, address, out } = self;
        let attributes = rows[0].attributes;
        let head = group_head(keys, rows.len(), values, attributes.prefix != 0);
        if keys == KeyColumn::Stubs {
            out.extend_from_slice(&head[..2]);
            for row in rows {
                if let RowKey::Stub { fingerprint, reference } = row.key {
                    put_stub(out, fingerprint, reference);
                }
            }
            return;
        }
        put_encodings(shape(&rows[0]), rows[0].value.dictionary(), out);
        out.extend_from_slice(&head);
        if attributes.prefix != 0 {
            out.extend_from_slice(&[attributes.prefix, attributes.more, attributes.len]);
        }
        if matches!(keys, KeyColumn::Short | KeyColumn::Long) {
            let len: usize = rows.iter().map(rest_len_of).sum();
            out.extend_from_slice(&(len as u16).to_le_bytes());
        }
        if values.is_variable() {
            let len: usize = rows.iter().map(|row| row.value.data_len()).sum();
            out.extend_from_slice(&(len as u16).to_le_bytes());
        }
        let class = if let KeyColumn::Number(class) = keys { class } else { TEXT_CLASS };
        let mut column = ColumnWriter::new(address.remainder_bits(class));
        for row in rows {
            match row.key {
                RowKey::Number { quotient, .. } => column.put(out, address.remainder(quotient)),
                RowKey::Text { quotient, .. } => column.put(out, address.remainder(quotient.into())),
                RowKey::Stub { .. } => {}
            }
        }
        column.end(out);
        match keys {
            KeyColumn::Short => out.extend(rows.iter().map(|row| key_len(row) as u8)),
            KeyColumn::Long => {
                rows.iter().for_each(|row| out.extend_from_slice(&(key_len(row) as u16).to_le_bytes()));
            }
            _ => {}
        }
        match values {
            ValueColumn::Short => out.extend(rows.iter().map(|row| row.value.short_len().unwrap_or(0))),
            ValueColumn::Long => {
                rows.iter().for_each(|row| out.extend_from_slice(&row.value.long_len().to_le_bytes()));
            }
            _ => {}
        }
        if attributes.len > 0 {
            for row in rows {
                let fields = &sources[usize::from(row.source)][row.attributes.at as usize..];
                out.extend_from_slice(&fields[..usize::from(attributes.len)]);
            }
        }
        for row in rows {
            if let RowKey::Text { at, .. } = row.key {
                out.extend_from_slice(&sources[usize::from(row.source)][at as usize..][..rest_len_of(row)]);
            }
        }
        if let ValueColumn::Number(width) = values {
            let mut column = ColumnWriter::new(u32::from(width));
            for row in rows {
                if let BucketValue::Number(number) = row.value {
                    column.put(out, number);
                }
            }
            column.end(out);
        } else {
            rows.iter().for_each(|row| put_value_text(row.value, sources[usize::from(row.source)], out));
        }
    }
}

#[inline]
fn width_of_value(value: BucketValue) -> u32 {
    if let BucketValue::Number(number) = value { width_of(number) } else { 0 }
}

/// Returns the form for values of several lengths.
fn variable_values(rows: &[BucketRow]) -> ValueColumn {
    if rows.iter().all(|row| row.value.short_len().is_some()) {
        ValueColumn::Short
    } else {
        ValueColumn::Long
    }
}

/// Appends a value in a form without columns of bits.
#[inline]
fn put_value_text(value: BucketValue, bytes: &[u8], out: &mut Vec<u8>) {
    match value {
        BucketValue::Number(number) => out.extend_from_slice(&number.to_le_bytes()[..value.data_len()]),
        BucketValue::Text { at, len, .. } => out.extend_from_slice(&bytes[at as usize..][..len as usize]),
    }
}

/// The suitability of a group for a new record.
#[derive(PartialEq, Eq)]
enum GroupFit {
    None,
    /// The record fits, but another group may be better.
    Loose,
    Exact,
}

fn fit(group: &RecordGroup, row: &BucketRow) -> GroupFit {
    let is_encoded_alike = group.shape == shape(row) && group.dictionary == row.value.dictionary();
    if group.count >= GROUP_RECORDS_MAX || !is_encoded_alike || !group.attributes(0).is_like(&row.attributes)
    {
        return GroupFit::None;
    }
    let mut is_exact = true;
    match (group.keys, row.key) {
        (KeyColumn::Stubs, RowKey::Stub { .. }) => return GroupFit::Exact,
        (KeyColumn::Number(class), RowKey::Number { class: other, .. }) if class == other => {}
        (KeyColumn::Fixed(len), RowKey::Text { len: other, .. }) if u32::from(len) == other => {}
        (KeyColumn::Short, RowKey::Text { len: ..=255, .. }) | (KeyColumn::Long, RowKey::Text { .. }) => {
            is_exact = false;
            if group.values_at - group.key_text_at + rest_len_of(row) > GROUP_DATA_MAX {
                return GroupFit::None;
            }
        }
        _ => return GroupFit::None,
    }
    let data_len = group.end - group.values_at + row.value.data_len();
    match (group.values, row.value) {
        (ValueColumn::Number(width), BucketValue::Number(number)) => {
            let (width, needed) = (u32::from(width), width_of(number));
            if needed > width || width - needed > WIDTH_SPAN_MAX {
                return GroupFit::None;
            }
        }
        (ValueColumn::Fixed(len), BucketValue::Text { len: other, .. }) if u32::from(len) == other => {}
        (ValueColumn::Short, value) if value.short_len().is_some() && data_len <= GROUP_DATA_MAX => {
            is_exact = false;
        }
        (ValueColumn::Long, _) if data_len <= GROUP_DATA_MAX => is_exact = false,
        _ => return GroupFit::None,
    }
    if is_exact { GroupFit::Exact } else { GroupFit::Loose }
}

/// Appends the records of a bucket and a new one, which is added to one of the groups. The row
/// refers to `new`. Returns the number of records before the new one; `None` if no group takes it.
/// `end` is the offset at which the records of the bucket end.
#[inline]
pub(super) fn append(
    bytes: &[u8],
    address: &BucketAddress,
    row: &BucketRow,
    new: &[u8],
    out: &mut Vec<u8>,
) -> Option<AppendedRow> {
    let (mut at, mut before) = (0, 0);
    let mut chosen: Option<(RecordGroup, usize)> = None;
    let mut is_exact = false;
    while let Some(group) = RecordGroup::read(bytes, at, address) {
        at = group.end;
        before += group.count;
        if !is_exact {
            match fit(&group, row) {
                GroupFit::None => {}
                GroupFit::Exact => {
                    chosen = Some((group, before));
                    is_exact = true;
                }
                GroupFit::Loose if chosen.is_none() => chosen = Some((group, before)),
                GroupFit::Loose => {}
            }
        }
    }
    let end = at;
    match (chosen, row.key) {
        (Some((group, index)), _) => {
            out.extend_from_slice(&bytes[..group.at]);
            put_longer_group(bytes, &group, address, row, new, out);
            out.extend_from_slice(&bytes[group.end..end]);
            Some(AppendedRow { index, old_end: end })
        }
        // Stubs never rearrange the other records, so that an image without them, to which they are
        // added again, gives the same bucket.
        (None, RowKey::Stub { .. }) => {
            out.extend_from_slice(&bytes[..end]);
            let sources = [bytes, &[], new];
            BucketWriter { sources, address, out }.put_group(
                std::slice::from_ref(row),
                KeyColumn::Stubs,
                ValueColumn::Fixed(0),
            );
            Some(AppendedRow { index: before, old_end: end })
        }
        (None, _) => None,
    }
}

/// The result of [`append`].
pub(super) struct AppendedRow {
    /// The number of records before the new one.
    pub(super) index: usize,
    /// The offset at which the records of the bucket ended before.
    pub(super) old_end: usize,
}

/// Appends a group and one more record.
#[inline]
fn put_longer_group(
    bytes: &[u8],
    group: &RecordGroup,
    address: &BucketAddress,
    row: &BucketRow,
    new: &[u8],
    out: &mut Vec<u8>,
) {
    let count = group.count;
    out.extend_from_slice(&bytes[group.at..group.keys_at]);
    let head = out.len() - (group.keys_at - group.head_at);
    out[head + 1] = (count + 1) as u8;
    // The lengths of all keys and all values are the last fields before the columns.
    let mut len_at = out.len();
    if group.values.is_variable() {
        len_at -= 2;
        add_to_u16(out, len_at, row.value.data_len());
    }
    if matches!(group.keys, KeyColumn::Short | KeyColumn::Long) {
        len_at -= 2;
        add_to_u16(out, len_at, rest_len_of(row));
    }
    match row.key {
        RowKey::Number { quotient, .. } => {
            let mut column = ColumnWriter::copy(group.key_width, bytes, group.keys_at, count, out);
            column.put(out, address.remainder(quotient));
            column.end(out);
        }
        RowKey::Text { quotient, .. } => {
            let mut column = ColumnWriter::copy(group.key_width, bytes, group.keys_at, count, out);
            column.put(out, address.remainder(quotient.into()));
            column.end(out);
        }
        RowKey::Stub { fingerprint, reference } => {
            out.extend_from_slice(&bytes[group.keys_at..group.end]);
            return put_stub(out, fingerprint, reference);
        }
    }
    out.extend_from_slice(&bytes[group.key_lens_at..group.value_lens_at]);
    match group.keys {
        KeyColumn::Short => out.push(key_len(row) as u8),
        KeyColumn::Long => out.extend_from_slice(&(key_len(row) as u16).to_le_bytes()),
        _ => {}
    }
    let attributes_at = group.attributes(0).at as usize;
    out.extend_from_slice(&bytes[group.value_lens_at..attributes_at]);
    match group.values {
        ValueColumn::Short => out.push(row.value.short_len().unwrap_or(0)),
        ValueColumn::Long => out.extend_from_slice(&row.value.long_len().to_le_bytes()),
        _ => {}
    }
    let fields = row.attributes;
    if fields.len > 0 {
        out.extend_from_slice(&bytes[attributes_at..group.key_text_at]);
        out.extend_from_slice(&new[fields.at as usize..][..usize::from(fields.len)]);
    }
    if let RowKey::Text { at, .. } = row.key {
        out.extend_from_slice(&bytes[group.key_text_at..group.values_at]);
        out.extend_from_slice(&new[at as usize..][..rest_len_of(row)]);
    }
    match (group.values, row.value) {
        (ValueColumn::Number(width), BucketValue::Number(number)) => {
            let mut column = ColumnWriter::copy(u32::from(width), bytes, group.values_at, count, out);
            column.put(out, number);
            column.end(out);
        }
        (_, value) => {
            out.extend_from_slice(&bytes[group.values_at..group.end]);
            put_value_text(value, new, out);
        }
    }
}

fn add_to_u16(out: &mut [u8], at: usize, more: usize) {
    let sum = usize::from(u16::from_le_bytes([out[at], out[at + 1]])) + more;
    out[at..at + 2].copy_from_slice(&(sum as u16).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::bits::mask;
    use super::super::encodings::{PLAIN_ENCODINGS, PlainBuffer, RecordContext};
    use super::super::group::{END, KeyMatch, find, measure};
    use super::super::key::{HashSeeds, Key};
    use super::super::row::{KeyBuffer, sort_by_age, take_apart};
    use super::*;
    use proptest::prelude::*;
    use todana_core::{Attributes, Expiry, LastAccess, StaleMarks, UnixSeconds};

    fn attributes() -> impl Strategy<Value = Attributes> {
        let expiry = prop_oneof![
            3 => Just(Expiry::Never),
            1 => any::<u32>().prop_map(|s| Expiry::At(UnixSeconds(s.into()))),
            1 => any::<u64>().prop_map(|s| Expiry::At(UnixSeconds(s))),
            1 => any::<(u64, u32)>().prop_map(|(s, span_s)| Expiry::Sliding { at: UnixSeconds(s), span_s }),
        ];
        let access = proptest::option::weighted(0.2, (any::<u32>(), any::<bool>()))
            .prop_map(|a| a.map(|(at, fetched)| LastAccess { at: UnixSeconds(at.into()), fetched }));
        (
            prop_oneof![3 => Just(0), 1 => any::<u32>()],
            expiry,
            prop_oneof![3 => Just(0), 1 => any::<u64>()],
            prop_oneof![3 => Just((false, false)), 1 => any::<(bool, bool)>()],
            access,
        )
            .prop_map(|(flags, expiry, version, (stale, token_sent), access)| Attributes {
                flags,
                expiry,
                version,
                marks: StaleMarks { stale, token_sent },
                access,
                has_value_list: false,
            })
    }

    fn text() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => "[0-9]{1,19}".prop_map(String::into_bytes),
            4 => "[0-9]{7,8}".prop_map(String::into_bytes),
            2 => "user:[0-9]{1,5}".prop_map(String::into_bytes),
            1 => proptest::collection::vec(any::<u8>(), 0..40),
            1 => proptest::collection::vec(any::<u8>(), 230..300),
        ]
    }

    type TestRecord = (Vec<u8>, Vec<u8>, Attributes);

    /// A bucket and its address.
    struct TestBucket {
        bytes: Vec<u8>,
        address: BucketAddress,
    }

    impl TestBucket {
        fn new(address: BucketAddress) -> TestBucket {
            TestBucket { bytes: vec![END], address }
        }

        fn insert(&mut self, (key, value, attributes): &TestRecord, seeds: &HashSeeds) {
            let (mut new, mut out) = (Vec::new(), Vec::new());
            let row = BucketRow::new(&Key::new(key, seeds), value, attributes, &PLAIN_ENCODINGS, &mut new);
            if append(&self.bytes, &self.address, &row, &new, &mut out).is_none() {
                assert!(out.is_empty());
                let mut rows = self.rows();
                rows.push(row);
                put_bucket(&mut rows, [&self.bytes, &[], &new], &self.address, &mut out);
            }
            out.push(END);
            self.bytes = out;
        }

        fn rows(&self) -> Vec<BucketRow> {
            let mut rows = Vec::new();
            let (end, _) = take_apart(&self.bytes, &self.address, 0, &mut rows);
            assert_eq!((end, end + 1), (measure(&self.bytes, &self.address).0, self.bytes.len()));
            sort_by_age(&mut rows);
            rows
        }

        /// Checks that the bucket contains exactly these records.
        fn check(&self, records: &[TestRecord], seeds: &HashSeeds) {
            assert_eq!(measure(&self.bytes, &self.address).1, records.len());
            let rows = self.rows();
            for (key, value, attributes) in records {
                let prepared = Key::new(key, seeds);
                let KeyMatch::Found(group, index) =
                    find(&self.bytes, &prepared, &self.address, &PLAIN_ENCODINGS, 0)
                else {
                    panic!("{} is not found", key.escape_ascii());
                };
                assert!(group.is_intact(&self.bytes));
                let found = group.value(&self.bytes, index);
                assert_eq!(found.text(&self.bytes, &PLAIN_ENCODINGS, &mut PlainBuffer::default()), value);
                let lens = (
                    found.text_len(&self.bytes, &PLAIN_ENCODINGS),
                    found.of_len(&self.bytes, &PLAIN_ENCODINGS).len(),
                );
                assert_eq!(lens, (value.len(), value.len()));
                assert_eq!(group.attributes(index).read(&self.bytes), *attributes);
                assert_eq!(group.attributes(index).expiry(&self.bytes), attributes.expiry);
                let row = rows
                    .iter()
                    .find(|row| {
                        row.key_text(&self.bytes, RecordContext::plain(seeds), &mut KeyBuffer::default())
                            == key
                    })
                    .expect("every record has a row");
                assert_eq!(row.value.text(&self.bytes, &PLAIN_ENCODINGS, &mut PlainBuffer::default()), value);
                let plain = key.len() + value.len() + if attributes.flags == 0 { 0 } else { 4 };
                assert_eq!(row.plain_size(&self.bytes, RecordContext::plain(seeds)), plain);
                assert_eq!(row.checked(&self.bytes, seeds), Some((plain, prepared.hash)));
            }
        }
    }

    /// Returns the address with this many bits that a key has.
    fn address_of(key: &[u8], seeds: &HashSeeds, shard_bits: u32, bits: u32) -> BucketAddress {
        let hash = Key::new(key, seeds).hash;
        let shard = (hash.rotate_left(shard_bits) & mask(shard_bits)) as u32;
        BucketAddress { shard, shard_bits, bucket: (hash & mask(bits)) as u32, bits }
    }

    proptest! {
        #[test]
        fn records_come_back_from_any_bucket(
            mut records in proptest::collection::vec((text(), text(), attributes()), 1..80),
            shard_bits in 0..=1u32,
            bits in 0..=3u32,
        ) {
            let seeds = HashSeeds::new(1, shard_bits);
            let address = address_of(&records[0].0, &seeds, shard_bits, bits);
            records.retain(|(key, ..)| address_of(key, &seeds, shard_bits, bits) == address);
            records.sort_by(|one, other| one.0.cmp(&other.0));
            records.dedup_by(|one, other| one.0 == other.0);
            let mut bucket = TestBucket::new(address);
            for (number, record) in records.iter().enumerate() {
                bucket.insert(record, &seeds);
                bucket.check(&records[..=number], &seeds);
            }
            // The records of each half are complete with one bit less.
            for half in 0..2 {
                let address = BucketAddress { bits: bits + 1, bucket: address.bucket | half << bits, ..address };
                let is_here = |key: &[u8]| address_of(key, &seeds, shard_bits, bits + 1) == address;
                let mut rows = bucket.rows();
                let plain = RecordContext::plain(&seeds);
                rows.retain(|row| is_here(row.key_text(&bucket.bytes, plain, &mut KeyBuffer::default())));
                let mut bytes = Vec::new();
                put_bucket(&mut rows, [&bucket.bytes, &[], &[]], &address, &mut bytes);
                bytes.push(END);
                let mut expected = records.clone();
                expected.retain(|(key, ..)| is_here(key));
                TestBucket { bytes, address }.check(&expected, &seeds);
            }
        }

        #[test]
        fn any_bytes_are_a_bucket_or_refused(bytes in proptest::collection::vec(
            prop_oneof![any::<u8>(), 0..5u8, Just(END), Just(0xC0), Just(0x20), Just(0x45)], 0..60,
        )) {
            let seeds = HashSeeds::new(1, 0);
            let address = BucketAddress { shard: 0, shard_bits: 0, bucket: 1, bits: 20 };
            let mut at = 0;
            while let Some(group) = RecordGroup::read(&bytes, at, &address) {
                prop_assert!(group.end > at && group.end <= bytes.len());
                at = group.end;
                if group.is_intact(&bytes) {
                    let mut rows = Vec::new();
                    super::super::row::put_rows(&bytes, &group, &address, 0, &mut rows);
                    rows.retain(|row| row.checked(&bytes, &seeds).is_some());
                    for row in &rows {
                        row.see(&bytes, RecordContext::plain(&seeds), &mut KeyBuffer::default(), &mut |_, _| ());
                    }
                    let mut out = Vec::new();
                    put_bucket(&mut rows, [&bytes, &[], &[]], &address, &mut out);
                    prop_assert_eq!(measure(&out, &address), (out.len(), rows.len()));
                }
            }
        }
    }

    #[test]
    fn records_of_one_form_keep_their_order() {
        let seeds = HashSeeds::new(1, 0);
        let mut bucket = TestBucket::new(BucketAddress { shard: 0, shard_bits: 0, bucket: 0, bits: 0 });
        let keys = |n: u32| match n % 3 {
            0 => format!("{:08}", n * 7919),
            1 => format!("user:{n:03}"),
            _ => "x".repeat(n as usize),
        };
        for n in 0..90 {
            bucket.insert(&(keys(n).into_bytes(), n.to_string().into_bytes(), Attributes::default()), &seeds);
        }
        // The order is kept when the bucket is arranged anew, too.
        let mut rows = bucket.rows();
        let mut bytes = Vec::new();
        put_bucket(&mut rows, [&bucket.bytes, &[], &[]], &bucket.address, &mut bytes);
        bytes.push(END);
        for bucket in [&bucket, &TestBucket { bytes, ..bucket }] {
            let rows = bucket.rows();
            let numbers: Vec<u32> = rows
                .iter()
                .map(|row| {
                    let value =
                        row.value.text(&bucket.bytes, &PLAIN_ENCODINGS, &mut PlainBuffer::default()).to_vec();
                    String::from_utf8(value).unwrap().parse().unwrap()
                })
                .collect();
            // Texts of many lengths change their group, which is based on estimated ages.
            for form in 0..2 {
                let of_form: Vec<u32> = numbers.iter().copied().filter(|n| n % 3 == form).collect();
                assert_eq!(of_form, (0..30).map(|n| 3 * n + form).collect::<Vec<_>>());
            }
            assert!(numbers.iter().enumerate().all(|(at, n)| at.abs_diff(*n as usize) < 6), "{numbers:?}");
        }
    }

    #[test]
    fn decimal_records_take_few_bits() {
        let seeds = HashSeeds::new(1, 4);
        let record =
            |n: u32| (format!("{n:08}").into_bytes(), n.to_string().into_bytes(), Attributes::default());
        let address = address_of(b"00000000", &seeds, 4, 6);
        let mut bucket = TestBucket::new(address);
        let records: Vec<TestRecord> =
            (0..100_000).map(record).filter(|(key, ..)| address_of(key, &seeds, 4, 6) == address).collect();
        records.iter().for_each(|record| bucket.insert(record, &seeds));
        bucket.check(&records, &seeds);
        // A remainder of 27 - 10 bits and a value of 17 bits, once the head, and the tail.
        let columns = 2 * (records.len() * 17).div_ceil(8);
        assert!(records.len() > 60 && bucket.bytes.len() <= columns + 3 + 1 + 8, "{}", bucket.bytes.len());
    }
}
