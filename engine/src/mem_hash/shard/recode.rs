//! Gives the records of a bucket the forms of new encodings.

use super::HashShard;
use crate::arena::{BlockHandle, MemoryNeed, NoRoom};
use crate::mem_hash::block_record::{self, block_record, put_block_record};
use crate::mem_hash::encodings::{PlainBuffer, RecordEncodings};
use crate::mem_hash::group::{BucketValue, RecordReference};
use crate::mem_hash::key::Key;
use crate::mem_hash::row::{self, BucketRow, KeyBuffer, RowKey};
use std::ops::Range;
use std::sync::Arc;

/// The length of keys and values after which the lock is released between two records of a bucket.
const BYTES_RECODED: usize = 32 << 10;

/// The result of recoding some records of a bucket.
pub(in crate::mem_hash) struct RecodedBucket {
    /// The number of low bits that the hashes of all records of the bucket have in common.
    pub(in crate::mem_hash) bits: u32,
    /// The fingerprint from which on to continue, if other records may be due.
    pub(in crate::mem_hash) next: Option<u32>,
    /// Fails if there is no memory for a record, which then keeps its form.
    pub(in crate::mem_hash) outcome: Result<(), NoRoom>,
}

impl HashShard {
    /// Recodes records of the bucket of this hash. Of the blocks without a dictionary, those with a
    /// lower fingerprint than `from` have been tried before. After the last call for a bucket, no
    /// record has an old dictionary.
    pub(in crate::mem_hash) fn recode_bucket_of(&mut self, hash: u64, from: u32) -> RecodedBucket {
        let bucket = self.directory.bucket_of(hash);
        let bits = self.directory.bits_of(bucket);
        let (next, outcome) = self.recode_bucket(bucket, from);
        RecodedBucket { bits, next: next.filter(|_| outcome.is_ok()), outcome }
    }

    /// Returns the numbers of the rows that are due, in the order in which they are recoded.
    fn due_rows(&self, rows: &[BucketRow], from: u32) -> Vec<(DueRecord, usize)> {
        let encodings = &self.encodings;
        let of_dictionary = |dictionary: u8, other: DueRecord| {
            let is_old = dictionary != 0 && !encodings.is_current(dictionary);
            if is_old { DueRecord::Old } else { other }
        };
        let due = |row: &BucketRow| match (row.key, self.stale_block(row)) {
            (RowKey::Stub { fingerprint, .. }, Some(block)) => {
                let dictionary = block_record::dictionary_of(self.arena.bytes(block));
                Some(of_dictionary(dictionary, DueRecord::Block { fingerprint }))
            }
            _ => row.is_stale(encodings).then(|| of_dictionary(row.value.dictionary(), DueRecord::Row)),
        };
        let mut due: Vec<_> =
            rows.iter().enumerate().filter_map(|(index, row)| Some((due(row)?, index))).collect();
        due.retain(|(record, _)| {
            *record >= DueRecord::Block { fingerprint: from } || *record == DueRecord::Old
        });
        due.sort_unstable();
        due
    }

    /// Returns the block of a record to which the current encodings may give another form.
    fn stale_block(&self, row: &BucketRow) -> Option<BlockHandle> {
        let RowKey::Stub { reference: RecordReference::Block(block), .. } = row.key else { return None };
        let bytes = self.arena.bytes(BlockHandle(block));
        let is_stale = match block_record::dictionary_of(bytes) {
            0 => self.encodings.may_shorten(block_record(bytes).value.len()),
            dictionary => !self.encodings.is_current(dictionary),
        };
        is_stale.then_some(BlockHandle(block))
    }

    /// Gives the record of a block the form of the current encodings. Its row or its block is
    /// appended to `out`. Returns `None` if the record stays as it is.
    fn recoded_block(&self, block: BlockHandle, out: &mut Vec<u8>) -> Option<RecodedBlock> {
        let bytes = self.arena.bytes(block);
        let (parts, encodings): (_, &RecordEncodings) = (block_record(bytes), &self.encodings);
        let key = Key::new(&bytes[parts.key.clone()], &self.seeds);
        let attributes = parts.attributes(bytes);
        let (mut old, mut new) = (PlainBuffer::default(), PlainBuffer::default());
        let value = block_record::value_text(bytes, &parts, encodings, &mut old);
        let dictionary = block_record::dictionary_of(bytes);
        let stored = encodings.stored_value(value, Some(dictionary), &mut new);
        if stored.1 == dictionary {
            return None;
        }
        if let Some(row) = BucketRow::new_short(&key, stored, &attributes, encodings, out) {
            return Some(RecodedBlock::Row(row));
        }
        let from = out.len();
        put_block_record(out, &key, stored, &attributes);
        Some(RecodedBlock::Block(from..out.len()))
    }

    /// Stores a record in another block in place of its old one.
    fn replace_block(&mut self, bucket: usize, old: BlockHandle, record: &[u8]) -> Result<(), NoRoom> {
        let block = self.store_block(record, MemoryNeed::Upkeep)?;
        self.redirect_stub(bucket, old, block);
        self.free_referenced(RecordReference::Block(old.0));
        Ok(())
    }

    /// Appends the block of a record that no longer fits into its bucket. The row refers to `new`.
    /// The result lacks the number of the row.
    fn put_lengthened(&self, row: &BucketRow, new: &mut Vec<u8>) -> LengthenedRow {
        let BucketValue::Text { at, len, dictionary } = row.value else {
            unreachable!("only encoded values become longer")
        };
        let stored = new[at as usize..][..len as usize].to_vec();
        let mut buffer = KeyBuffer::default();
        let key = Key::new(row.key_text(new, self.context(), &mut buffer), &self.seeds);
        let (attributes, from) = (row.attributes.read(new), new.len());
        put_block_record(new, &key, (&stored, dictionary), &attributes);
        LengthenedRow { index: 0, fingerprint: key.fingerprint(), block: from..new.len() }
    }

    fn recode_bucket(&mut self, bucket: usize, from: u32) -> (Option<u32>, Result<(), NoRoom>) {
        let marking = self.collect_rows(bucket);
        row::sort_by_age(&mut self.rows);
        let due = self.due_rows(&self.rows, from);
        if due.is_empty() {
            return (None, Ok(()));
        }
        let encodings = Arc::clone(&self.encodings);
        let (mut rows, mut new) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.scratch));
        new.clear();
        let (bytes, context) = (self.bytes_of(bucket), self.context());
        let (mut is_changed, mut freed, mut replaced) = (false, Vec::new(), Vec::new());
        let mut lengthened = Vec::new();
        let (mut bytes_left, mut next, mut last) = (BYTES_RECODED, None, None);
        for (record, index) in due {
            let rest = match record {
                DueRecord::Old => Some(from),
                DueRecord::Block { fingerprint } => Some(fingerprint).filter(|_| last != Some(record)),
                DueRecord::Row => None,
            };
            if bytes_left == 0 && rest.is_some() {
                next = rest;
                break;
            }
            last = Some(record);
            let row = &mut rows[index];
            bytes_left = bytes_left.saturating_sub(self.size_of(bytes, row));
            if row.is_stale(&encodings) {
                let recoded = row.recoded(bytes, context, &encodings, &mut new);
                if recoded.value.data_len() > row.value.data_len() && !recoded.fits_encoded(&new, context) {
                    lengthened.push(LengthenedRow { index, ..self.put_lengthened(&recoded, &mut new) });
                    continue;
                }
                is_changed |= !recoded.is_encoded_like(row);
                *row = recoded;
            } else if let Some(block) = self.stale_block(row) {
                match self.recoded_block(block, &mut new) {
                    None => {}
                    Some(RecodedBlock::Row(short)) => {
                        is_changed = true;
                        freed.push(RecordReference::Block(block.0));
                        *row = BucketRow { mark: row.mark, age: row.age, ..short };
                    }
                    Some(RecodedBlock::Block(record)) => replaced.push((block, record)),
                }
            }
        }
        let (mut outcome, mut stored) = (Ok(()), Vec::new());
        for LengthenedRow { index, fingerprint, block } in lengthened {
            match self.store_block(&new[block], MemoryNeed::Upkeep) {
                Ok(block) => {
                    let reference = RecordReference::Block(block.0);
                    let BucketRow { mark, age, .. } = rows[index];
                    rows[index] = BucketRow { mark, age, ..BucketRow::new_stub(fingerprint, reference) };
                    stored.push(reference);
                    is_changed = true;
                }
                Err(no_room) => outcome = Err(no_room),
            }
        }
        self.rows = rows;
        if is_changed {
            let rewritten = self.rewrite(bucket, marking, &new, MemoryNeed::Upkeep);
            let unused = if rewritten.is_ok() { freed } else { stored };
            unused.into_iter().for_each(|reference| self.free_referenced(reference));
            outcome = outcome.and(rewritten);
        }
        for (block, record) in replaced {
            outcome = self.replace_block(bucket, block, &new[record]).and(outcome);
        }
        self.return_scratch(new);
        self.rebalance();
        (next, outcome)
    }
}

/// A record that is due, in the order in which a bucket is recoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DueRecord {
    /// A record with an old dictionary.
    Old,
    /// A block without a dictionary, which may stay as it is.
    Block { fingerprint: u32 },
    /// A record in the bucket whose key has no shape or whose value has no dictionary.
    Row,
}

/// A record that no longer fits into its bucket.
struct LengthenedRow {
    /// The number of its row.
    index: usize,
    fingerprint: u32,
    /// The range of its block.
    block: Range<usize>,
}

/// The new form of a record in a block.
enum RecodedBlock {
    /// The record fits into its bucket.
    Row(BucketRow),
    /// The record still needs a block, which is in this range.
    Block(Range<usize>),
}
