//! Copies of records in one buffer, so that no lock is held while the records are used. An
//! allocation for each key and each value would cost more than the copy.

use std::ops::ControlFlow;
use todana_core::{Attributes, Record};

/// A batch with this many bytes is full.
const BYTES_MAX: usize = 1 << 20;

/// A copy of a record with its key.
#[derive(Debug)]
pub(crate) struct CopiedRecord {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) attributes: Attributes,
}

impl CopiedRecord {
    pub(crate) fn record(&self) -> Record<'_> {
        Record::new(&self.value, self.attributes)
    }
}

#[derive(Debug, Default)]
pub(crate) struct RecordBatch {
    bytes: Vec<u8>,
    spans: Vec<RecordSpan>,
    /// Index of the first record that has not been taken.
    first: usize,
    /// Index after the last record that has not been taken.
    end: usize,
}

#[derive(Debug)]
struct RecordSpan {
    key_at: usize,
    value_at: usize,
    end: usize,
    attributes: Attributes,
}

impl RecordBatch {
    /// Appends a copy of a record. Breaks when the batch is full: at `records_max` records or at
    /// `BYTES_MAX` bytes.
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
        self.spans.push(RecordSpan { key_at, value_at, end: self.bytes.len(), attributes });
        self.end = self.spans.len();
        if self.end >= records_max || self.bytes.len() >= BYTES_MAX {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Empties the batch. Its memory is kept, unless a long value has made it large.
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

    /// Returns the key of the record that was pushed last.
    pub(crate) fn last(&self) -> Option<&[u8]> {
        self.end.checked_sub(1).filter(|&last| last >= self.first).map(|last| self.at(last).0)
    }

    /// Removes and returns the record that was pushed first.
    pub(crate) fn take_first(&mut self) -> Option<CopiedRecord> {
        let index = (self.first < self.end).then_some(self.first)?;
        self.first += 1;
        Some(self.owned(index))
    }

    /// Removes and returns the record that was pushed last.
    pub(crate) fn take_last(&mut self) -> Option<CopiedRecord> {
        self.end = (self.first < self.end).then(|| self.end - 1)?;
        Some(self.owned(self.end))
    }

    fn owned(&self, index: usize) -> CopiedRecord {
        let (key, record) = self.at(index);
        CopiedRecord { key: key.to_vec(), value: record.value.to_vec(), attributes: record.attributes }
    }

    /// Iterates over the records that have not been taken.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Record<'_>)> {
        (self.first..self.end).map(|index| self.at(index))
    }
}
