//! Several values of one key: the value of such a record is a list.
//!
//! ```text
//! list = value_len (varint) | value | value_len | value | ...
//! ```
//!
//! The attribute [`has_value_list`](crate::Attributes::has_value_list) marks a list, which has at
//! least two values. Commands see only the first value, unless they ask for the list.

use crate::{Attributes, Record};

/// Iterates over the values of a record: those of a list, or the one value.
#[derive(Clone, Debug)]
pub struct RecordValues<'a> {
    rest: Option<&'a [u8]>,
    is_list: bool,
}

impl<'a> RecordValues<'a> {
    /// Returns the values of an encoded list.
    pub fn of_list(list: &'a [u8]) -> RecordValues<'a> {
        RecordValues { rest: Some(list), is_list: true }
    }

    /// Returns the number of bytes of the values that are left, as the list encodes them. Returns 0
    /// after the last value.
    pub fn encoded_len(&self) -> usize {
        self.rest.map_or(0, <[u8]>::len)
    }
}

impl<'a> Iterator for RecordValues<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if !self.is_list {
            return self.rest.take();
        }
        // A damaged list ends at the damage.
        let mut rest = self.rest.take().filter(|rest| !rest.is_empty())?;
        let len = usize::try_from(take_varint(&mut rest)?).ok()?;
        let (value, rest) = rest.split_at_checked(len)?;
        self.rest = Some(rest);
        Some(value)
    }
}

impl<'a> Record<'a> {
    /// Returns the values of the record, of which there are several if it has a list.
    pub fn values(self) -> RecordValues<'a> {
        RecordValues { rest: Some(self.value), is_list: self.attributes.has_value_list }
    }

    /// Returns the record with the first value of its list; the record itself if it has no list.
    #[inline]
    pub fn with_first_value(self) -> Record<'a> {
        if self.attributes.has_value_list { self.first_of_list() } else { self }
    }

    #[cold]
    fn first_of_list(self) -> Record<'a> {
        let attributes = Attributes { has_value_list: false, ..self.attributes };
        Record::new(self.values().next().unwrap_or_default(), attributes)
    }

    /// Returns a record with these values, which are encoded into `list` if there are several.
    /// Returns `None` if there is no value.
    pub fn of_values(
        values: impl Iterator<Item = &'a [u8]> + Clone,
        attributes: Attributes,
        list: &'a mut Vec<u8>,
    ) -> Option<Record<'a>> {
        let mut left = values.clone();
        let first = left.next()?;
        // A record with a list has no version of one value, and no access times.
        if left.next().is_none() {
            return Some(Record::new(first, Attributes { has_value_list: false, ..attributes }));
        }
        list.clear();
        for value in values {
            put_varint(value.len() as u64, list);
            list.extend_from_slice(value);
        }
        Some(Record::new(list, Attributes { has_value_list: true, access: None, ..attributes }))
    }
}

fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_returns_its_values_in_order() {
        let long = vec![b'x'; 300];
        let all: [&[u8]; 4] = [b"a", b"", &long, b"b"];
        for len in 1..=4 {
            let mut list = Vec::new();
            let record =
                Record::of_values(all[..len].iter().copied(), Attributes::default(), &mut list).unwrap();
            assert_eq!(record.attributes.has_value_list, len > 1);
            assert_eq!(record.values().collect::<Vec<_>>(), all[..len]);
            assert_eq!(record.with_first_value(), Record::new(b"a", Attributes::default()));
        }
        assert!(Record::of_values(std::iter::empty(), Attributes::default(), &mut Vec::new()).is_none());
    }

    #[test]
    fn damaged_list_ends_before_the_damage() {
        let attributes = Attributes { has_value_list: true, ..Attributes::default() };
        for (value, expected) in [(&b"\x01a\x05b"[..], 1), (b"\x80", 0), (b"", 0), (b"\x01a\xff\xff", 1)] {
            assert_eq!(Record::new(value, attributes).values().count(), expected);
        }
    }
}
