//! Gives the records of a bucket the forms of new encodings.

use super::HashShard;
use crate::arena::{BlockHandle, BlockKind, MemoryNeed, NoRoom};
use crate::mem_hash::block_record::{self, block_record, put_block_record};
use crate::mem_hash::encodings::{PlainBuffer, RecordEncodings};
use crate::mem_hash::group::RecordReference;
use crate::mem_hash::key::Key;
use crate::mem_hash::row::{self, BucketRow, RowKey};
use std::ops::Range;
use std::sync::Arc;

impl HashShard {
    /// Recodes the records of the bucket of this hash. Returns the number of low bits that the
    /// hashes of all its records have in common. Fails if there is no memory for the bucket, which
    /// then stays as it is, or if a record must keep its old form.
    pub(in crate::mem_hash) fn recode_bucket_of(&mut self, hash: u64) -> (u32, Result<(), NoRoom>) {
        let bucket = self.directory.bucket_of(hash);
        let bits = self.directory.bits_of(bucket);
        (bits, self.recode_bucket(bucket))
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
        let stored = encodings.stored_value(value, &mut new);
        if stored.1 == block_record::dictionary_of(bytes) {
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
        let block = self.arena.alloc(record.len(), BlockKind::Record, MemoryNeed::Upkeep)?;
        self.arena.write(block, 0, record);
        self.block_bytes += record.len();
        self.redirect_stub(bucket, old, block);
        self.free_referenced(RecordReference::Block(old.0));
        Ok(())
    }

    fn recode_bucket(&mut self, bucket: usize) -> Result<(), NoRoom> {
        let marking = self.collect_rows(bucket);
        let encodings = Arc::clone(&self.encodings);
        let is_due = |row: &BucketRow| row.is_stale(&encodings) || self.stale_block(row).is_some();
        if !self.rows.iter().any(is_due) {
            return Ok(());
        }
        let (mut rows, mut new) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.scratch));
        new.clear();
        row::sort_by_age(&mut rows);
        let (bytes, context) = (self.bytes_of(bucket), self.context());
        let (mut is_changed, mut freed, mut replaced) = (false, Vec::new(), Vec::new());
        let mut kept = Ok(());
        for row in &mut rows {
            if row.is_stale(&encodings) {
                let recoded = row.recoded(bytes, context, &encodings, &mut new);
                let fits = recoded.value.dictionary() != 0
                    || row.value.dictionary() == 0
                    || row.fits_plain(bytes, context);
                if !fits {
                    // The record fits into its bucket only in the form of the old dictionary, which
                    // therefore stays in use.
                    kept = Err(NoRoom { bytes: 0 });
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
        self.rows = rows;
        let mut outcome =
            if is_changed { self.rewrite(bucket, marking, &new, MemoryNeed::Upkeep) } else { Ok(()) };
        if outcome.is_ok() {
            freed.into_iter().for_each(|reference| self.free_referenced(reference));
        }
        for (block, record) in replaced {
            outcome = self.replace_block(bucket, block, &new[record]).and(outcome);
        }
        self.scratch = new;
        self.rebalance();
        outcome.and(kept)
    }
}

/// The new form of a record in a block.
enum RecodedBlock {
    /// The record fits into its bucket.
    Row(BucketRow),
    /// The record still needs a block, which is in this range.
    Block(Range<usize>),
}
