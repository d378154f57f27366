//! Records copied out of a database, so that no lock is held while somebody works on them: packed, as an allocation for each key and each
//! value would cost more than the copy.

use crate::OwnedRecord;
use std::ops::ControlFlow;
use todana_core::{Attributes, Record};

/// A batch is full with so many bytes, whatever their number.
const BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// The first that has not been taken ...
    first: usize,
    /// ... and the one behind the last.
    end: usize,
}

#[derive(Debug)]
struct Span {
    key_at: usize,
    value_at: usize,
    end: usize,
    attributes: Attributes,
}

impl Batch {
    /// Takes a copy; breaks when there are `records_max` or when they are long.
    pub(crate) fn push(
        &mut self,
        key: &[u8],
        record: Option<Record<'_>>,
        records_max: usize,
    ) -> ControlFlow<()> {
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value_at = self.bytes.len();
        let attributes = record.map_or_else(Attributes::default, |record| {
            self.bytes.extend_from_slice(record.value);
            record.attributes
        });
        self.spans.push(Span { key_at, value_at, end: self.bytes.len(), attributes });
        self.end = self.spans.len();
        if self.end >= records_max || self.bytes.len() >= BYTES_MAX {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Empties it, and keeps its memory unless a long value has made it large.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > 4 * BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.spans.clear();
        (self.first, self.end) = (0, 0);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    fn at(&self, index: usize) -> (&[u8], Record<'_>) {
        let span = &self.spans[index];
        let value = &self.bytes[span.value_at..span.end];
        (&self.bytes[span.key_at..span.value_at], Record::new(value, span.attributes))
    }

    /// What was pushed last.
    pub(crate) fn last(&self) -> Option<&[u8]> {
        self.end.checked_sub(1).filter(|&last| last >= self.first).map(|last| self.at(last).0)
    }

    /// Takes what was pushed first.
    pub(crate) fn take_first(&mut self) -> Option<(Vec<u8>, OwnedRecord)> {
        let index = (self.first < self.end).then_some(self.first)?;
        self.first += 1;
        Some(self.owned(index))
    }

    /// Takes what was pushed last.
    pub(crate) fn take_last(&mut self) -> Option<(Vec<u8>, OwnedRecord)> {
        self.end = (self.first < self.end).then(|| self.end - 1)?;
        Some(self.owned(self.end))
    }

    fn owned(&self, index: usize) -> (Vec<u8>, OwnedRecord) {
        let (key, record) = self.at(index);
        (key.to_vec(), OwnedRecord::of(record))
    }

    /// All that have not been taken.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Record<'_>)> {
        (self.first..self.end).map(|index| self.at(index))
    }
}
