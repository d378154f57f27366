//! Gives the records of a bucket the forms of new encodings.

use super::HashShard;
use crate::arena::{MemoryNeed, NoRoom};
use crate::mem_hash::row;
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

    fn recode_bucket(&mut self, bucket: usize) -> Result<(), NoRoom> {
        let ghosts = self.collect_rows(bucket);
        let encodings = Arc::clone(&self.encodings);
        if !self.rows.iter().any(|row| row.is_stale(&encodings)) {
            return Ok(());
        }
        let (mut rows, mut new) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.scratch));
        new.clear();
        row::sort_by_age(&mut rows);
        let (bytes, context) = (self.bytes_of(bucket), self.context());
        let mut is_changed = false;
        for row in rows.iter_mut().filter(|row| row.is_stale(&encodings)) {
            let recoded = row.recoded(bytes, context, &encodings, &mut new);
            is_changed |= !recoded.is_encoded_like(row);
            *row = recoded;
        }
        self.rows = rows;
        let outcome =
            if is_changed { self.rewrite(bucket, ghosts, &new, MemoryNeed::Upkeep) } else { Ok(()) };
        self.scratch = new;
        self.rebalance();
        outcome
    }
}
