//! Gives the records of a bucket the forms of new encodings.

use super::HashShard;
use crate::arena::{BlockHandle, MemoryNeed, NoRoom};
use crate::mem_hash::block_record::block_record;
use crate::mem_hash::encodings::RecordEncodings;
use crate::mem_hash::group::RecordReference;
use crate::mem_hash::key::Key;
use crate::mem_hash::row::{self, BucketRow, RowKey};
use std::sync::Arc;

impl HashShard {
    /// Recodes the records of the bucket of this hash. Returns the number of low bits that the
    /// hashes of all its records have in common. Fails if there is no memory for the bucket, which
    /// then stays as it is.
    pub(in crate::mem_hash) fn recode_bucket_of(&mut self, hash: u64) -> (u32, Result<(), NoRoom>) {
        let bucket = self.directory.bucket_of(hash);
        let bits = self.directory.bits_of(bucket);
        (bits, self.recode_bucket(bucket))
    }

    /// Returns true if a record in a block of its own may fit into its bucket now.
    fn is_shortened(&self, row: &BucketRow, encodings: &RecordEncodings) -> bool {
        let RowKey::Stub { reference: RecordReference::Block(block), .. } = row.key else { return false };
        let bytes = self.arena.bytes(BlockHandle(block));
        encodings.may_shorten(block_record(bytes).value.len())
    }

    /// Returns the record of a block in the form in which it fits into its bucket.
    fn shortened(
        &self,
        row: &BucketRow,
        encodings: &RecordEncodings,
        out: &mut Vec<u8>,
    ) -> Option<BucketRow> {
        let RowKey::Stub { reference: RecordReference::Block(block), .. } = row.key else { return None };
        let bytes = self.arena.bytes(BlockHandle(block));
        let parts = block_record(bytes);
        let key = Key::new(&bytes[parts.key.clone()], &self.seeds);
        let mut digits = [0; 20];
        let value = parts.value_text(bytes, &mut digits);
        BucketRow::new_short(&key, value, &parts.attributes(bytes), encodings, out)
    }

    fn recode_bucket(&mut self, bucket: usize) -> Result<(), NoRoom> {
        let marking = self.collect_rows(bucket);
        let encodings = Arc::clone(&self.encodings);
        let is_due = |row: &BucketRow| row.is_stale(&encodings) || self.is_shortened(row, &encodings);
        if !self.rows.iter().any(is_due) {
            return Ok(());
        }
        let (mut rows, mut new) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.scratch));
        new.clear();
        row::sort_by_age(&mut rows);
        let (bytes, context) = (self.bytes_of(bucket), self.context());
        let (mut is_changed, mut freed) = (false, Vec::new());
        for row in &mut rows {
            if row.is_stale(&encodings) {
                let recoded = row.recoded(bytes, context, &encodings, &mut new);
                is_changed |= !recoded.is_encoded_like(row);
                *row = recoded;
            } else if let RowKey::Stub { reference, .. } = row.key
                && let Some(short) = self.shortened(row, &encodings, &mut new)
            {
                is_changed = true;
                freed.push(reference);
                *row = BucketRow { mark: row.mark, age: row.age, ..short };
            }
        }
        self.rows = rows;
        let outcome =
            if is_changed { self.rewrite(bucket, marking, &new, MemoryNeed::Upkeep) } else { Ok(()) };
        self.scratch = new;
        if outcome.is_ok() {
            freed.into_iter().for_each(|reference| self.free_referenced(reference));
        }
        self.rebalance();
        outcome
    }
}
