//! Copies a hash to an image, and adopts the buckets of one (see `bucket_block`).
//!
//! Both go through the buckets in the order of a scan, some tens of them under one lock, so that no
//! other operation waits long. Cost: see benches/record (Nov 2026).

use super::MemHash;
use super::bucket_block::{BUCKET_FORMAT, BlockBucket, BucketBlock, CheckedRow, hash_of};
use super::encodings::RecordContext;
use super::row::KeyBuffer;
use super::shard::CopyTarget;
use std::ops::Range;
use todana_core::{
    Attributes, CopiedBuckets, Engine, Error, ErrorKind, Expiry, ImageForm, ImagedEngine, Record, Result,
    ScanPosition,
};

/// The maximum number of buckets that are adopted under one lock.
const BUCKETS_ADOPTED: usize = 64;

/// Buckets of a block, before they are adopted.
#[derive(Default)]
struct AdoptedBatch {
    buckets: Vec<(BlockBucket, Range<usize>)>,
    /// The records of all buckets.
    rows: Vec<CheckedRow>,
}

impl ImagedEngine for MemHash {
    fn image_form(&self) -> ImageForm {
        let order = self.scan_order().expect("a hash has an order");
        ImageForm { bucket_format: BUCKET_FORMAT, shards: self.shards.len() as u32, order }
    }

    fn copy_buckets(
        &self,
        form: &ImageForm,
        from: Option<ScanPosition>,
        is_dead: &dyn Fn(Expiry) -> bool,
        image: &mut Vec<u8>,
        see: &mut dyn FnMut(&[u8], Record<'_>),
    ) -> Result<CopiedBuckets> {
        let place = from.map_or(0, |from| from.number());
        let shard_bits = self.shard_bits;
        let (shard, _) = hash_of(place, shard_bits);
        let guard = self.shards[shard].0.read();
        // The seed changes while all shards are locked.
        if self.seeds.current().seed != form.order.seed {
            return Err(Error::new(ErrorKind::Busy, "image: all records were replaced meanwhile"));
        }
        let (records, next) = guard.copy_run(place, &mut CopyTarget { shard_bits, is_dead, image, see });
        Ok(CopiedBuckets { records, next: next.map(ScanPosition::Number) })
    }

    fn begin_image_load(&self, form: &ImageForm) -> bool {
        let order = form.order;
        self.budget.end_preparation();
        if self.seeds.current().seed == order.seed {
            return true;
        }
        // All shards are locked at once, as in `clear`.
        let mut shards: Vec<_> = self.shards.iter().map(|shard| MemHash::lock_exclusive(&shard.0)).collect();
        if shards.iter().any(|shard| shard.records() > 0) {
            return false;
        }
        let Some(seeds) = self.seeds.change(order.seed) else { return false };
        let gone: Vec<_> = shards.iter_mut().map(|shard| shard.reseed(seeds)).collect();
        drop(shards);
        drop(gone);
        true
    }

    fn adopt_buckets(
        &self,
        form: &ImageForm,
        block: &[u8],
        note: &mut dyn FnMut(&Attributes),
        put: &mut dyn FnMut(&[u8], Record<'_>) -> Result<()>,
    ) -> Result<u64> {
        let used = self.seeds.current();
        let is_own = used.seed == form.order.seed && form.shards as usize == self.shards.len();
        let mut block = BucketBlock::new(form, block)?;
        let mut batch = AdoptedBatch::default();
        let mut buffer = KeyBuffer::default();
        let mut records = 0;
        loop {
            let goes_on = batch.read(&mut block)?;
            records += batch.rows.len() as u64;
            if is_own {
                self.adopt_batch(form, &mut batch, block.bytes(), used.seeds.generation, note);
            }
            for (_, range) in &batch.buckets {
                for CheckedRow { row, .. } in &batch.rows[range.clone()] {
                    row.see(block.bytes(), RecordContext::plain(block.seeds()), &mut buffer, put)?;
                }
            }
            if !goes_on {
                return Ok(records);
            }
        }
    }
}

impl MemHash {
    /// Adopts the buckets of a batch that fit. The others stay in the batch.
    fn adopt_batch(
        &self,
        form: &ImageForm,
        batch: &mut AdoptedBatch,
        bytes: &[u8],
        generation: u32,
        note: &mut dyn FnMut(&Attributes),
    ) {
        let with_attributes = batch.rows.iter().filter(|found| found.row.attributes.prefix != 0);
        with_attributes.for_each(|found| note(&found.row.attributes.read(bytes)));
        let Some((first, _)) = batch.buckets.first() else { return };
        // The directory of one shard may be somewhat larger than that of another.
        let shards = self.shards.len() as u64;
        let expected = form.order.groups / shards;
        let buckets_max = expected.saturating_add(expected / 4 + 64);
        let mut shard = MemHash::lock_exclusive(&self.shards[first.shard].0);
        if shard.seeds.generation != generation {
            return;
        }
        shard.expect_image(usize::try_from(buckets_max).unwrap_or(usize::MAX).min(first.shape.len()));
        let rows = &batch.rows;
        batch.buckets.retain(|(bucket, range)| {
            !shard.adopt_bucket(bucket, &bytes[bucket.start..bucket.end], &rows[range.clone()])
        });
    }
}

impl AdoptedBatch {
    /// Reads the next buckets of a run, all of the same shard. Returns false at the end of the
    /// block.
    fn read(&mut self, block: &mut BucketBlock<'_>) -> Result<bool> {
        self.buckets.clear();
        self.rows.clear();
        while self.buckets.len() < BUCKETS_ADOPTED {
            let first = self.rows.len();
            let Some(bucket) = block.next_bucket(&mut self.rows)? else { return Ok(false) };
            self.buckets.push((bucket, first..self.rows.len()));
            if block.is_run_over() {
                break;
            }
        }
        Ok(true)
    }
}
