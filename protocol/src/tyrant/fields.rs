//! Reads and writes the fields of requests: numbers, and byte strings that follow their lengths.
//!
//! ```text
//! list = count(4) | count times: len(4) | bytes
//! ```
//!
//! All numbers are big-endian.

use super::LEN_MAX;
use crate::ReplySink;

/// Reads fields from the beginning of a request.
pub(super) struct FieldReader<'a> {
    input: &'a [u8],
    pub(super) at: usize,
}

/// The reason why a field cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldError {
    /// At least this number of bytes is missing.
    Missing(usize),
    /// A length is above its limit, or a command is unknown.
    Malformed,
}

impl<'a> FieldReader<'a> {
    #[inline]
    pub(super) fn new(input: &'a [u8], at: usize) -> FieldReader<'a> {
        FieldReader { input, at }
    }

    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], FieldError> {
        let end = self.at + len;
        match self.input.get(self.at..end) {
            Some(taken) => {
                self.at = end;
                Ok(taken)
            }
            None => Err(FieldError::Missing(end - self.input.len())),
        }
    }

    /// Reads two byte strings that follow each other. If one of them is incomplete, all their bytes
    /// count as missing.
    #[inline]
    pub(super) fn take_two(
        &mut self,
        first: usize,
        second: usize,
    ) -> Result<(&'a [u8], &'a [u8]), FieldError> {
        Ok(self.take(first + second)?.split_at(first))
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FieldError> {
        Ok(self.take(N)?.try_into().expect("as long as taken"))
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, FieldError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, FieldError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a length of up to `len_max` bytes. A negative length counts as too long.
    #[inline]
    pub(super) fn len(&mut self, len_max: usize) -> Result<usize, FieldError> {
        let len = self.u32()? as usize;
        if len > len_max { Err(FieldError::Malformed) } else { Ok(len) }
    }
}

/// A complete list of byte strings, in the form in which a request contains it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldList<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> FieldList<'a> {
    /// Creates a list from bytes that contain exactly this number of complete fields.
    pub(super) fn new(count: u32, bytes: &'a [u8]) -> FieldList<'a> {
        FieldList { count, bytes }
    }

    /// Reads a list from the part of a reply that follows the status. Returns `None` if the list is
    /// incomplete.
    pub fn from_reply(reply: &'a [u8]) -> Option<FieldList<'a>> {
        let (count, bytes) = reply.split_first_chunk()?;
        let list = FieldList { count: u32::from_be_bytes(*count), bytes };
        (list.iter().count() == list.len()).then_some(list)
    }

    /// Returns the number of byte strings.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if the list has no byte strings.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the byte strings in their order.
    pub fn iter(&self) -> FieldIter<'a> {
        FieldIter { left: self.count, bytes: self.bytes }
    }

    /// Returns the byte string at a position. Its cost grows with the position.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.iter().nth(index)
    }

    /// Returns the bytes of the fields, in the form in which a request contains them.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> IntoIterator for FieldList<'a> {
    type Item = &'a [u8];
    type IntoIter = FieldIter<'a>;

    fn into_iter(self) -> FieldIter<'a> {
        self.iter()
    }
}

/// The byte strings of a list.
#[derive(Clone, Debug)]
pub struct FieldIter<'a> {
    left: u32,
    bytes: &'a [u8],
}

impl<'a> Iterator for FieldIter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.bytes.split_first_chunk()?;
        let (field, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        self.bytes = rest;
        self.left = self.left.saturating_sub(1);
        Some(field)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for FieldIter<'_> {}

/// A list of byte strings that is being built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldBuffer {
    count: u32,
    bytes: Vec<u8>,
}

impl FieldBuffer {
    /// Appends a byte string. It must not be longer than [`LEN_MAX`] bytes.
    #[inline]
    pub fn push(&mut self, field: &[u8]) {
        debug_assert!(field.len() <= LEN_MAX);
        put_field(field, &mut self.bytes);
        self.count += 1;
    }

    /// Returns the list.
    pub fn list(&self) -> FieldList<'_> {
        FieldList { count: self.count, bytes: &self.bytes }
    }

    /// Returns the number of byte strings.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if the list has no byte strings.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bytes of the fields, without the number of fields.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the length of the fields in bytes, without the number of fields.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl<'f> FromIterator<&'f [u8]> for FieldBuffer {
    fn from_iter<I: IntoIterator<Item = &'f [u8]>>(fields: I) -> FieldBuffer {
        let mut buffer = FieldBuffer::default();
        fields.into_iter().for_each(|field| buffer.push(field));
        buffer
    }
}

/// Writes the length of a byte string, and the byte string.
#[inline]
pub(super) fn put_field(field: &[u8], out: &mut impl ReplySink) {
    out.put(&(field.len() as u32).to_be_bytes());
    out.put(field);
}

/// Writes a list.
pub(super) fn put_list(list: &FieldList<'_>, out: &mut impl ReplySink) {
    out.put(&list.count.to_be_bytes());
    out.put(list.bytes);
}
