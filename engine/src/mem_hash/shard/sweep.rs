//! Sweeps over all buckets for records that have expired.
//!
//! The buckets of a shard are read from the last one down, some tens of them under one shared lock.
//! Then the buckets with expired records are rewritten under the exclusive lock, a few at a time.
//! The sweep goes downwards because a removal may merge the last bucket into a lower bucket, which
//! the sweep has not reached yet. A split can move records to a bucket that the sweep has passed;
//! the next sweep finds these records.
//!
//! Cost: see benches/record (Nov 2026, 2 busy cores). Of a group of records without an expiry, the
//! sweep reads only the first bytes. The cache misses of a bucket are avoided by a prefetch some
//! buckets ahead.

use super::super::MemHash;
use super::HashShard;
use crate::arena::MemoryNeed;
use crate::mem_hash::departures::DepartureCause;
use crate::mem_hash::eviction::DepartingRecord;
use crate::mem_hash::group::{KeyColumn, RecordGroup};
use crate::mem_hash::row;
use todana_core::{Expiry, Result, ScanPosition, SweepAim, SweepProgress, SweepableEngine};

/// The number of buckets that are read under one lock: about 500 records, a few microseconds.
const BUCKETS_SCANNED: usize = 64;
/// The number of buckets that are rewritten under one lock.
const BUCKETS_CLEANED: usize = 8;
/// The distance, in buckets, by which prefetches run ahead, so that the data has arrived when it is
/// needed.
const AHEAD: usize = 8;
/// The number of bits of a scan position that hold the bucket. The other bits hold the shard.
const BUCKET_BITS: u32 = 40;

/// The result of reading some buckets.
struct BucketScan {
    /// The lowest bucket that was read.
    down_to: usize,
    seen: u64,
    /// A bit mask: bit i is set if bucket `down_to + i` contains records to remove.
    to_clean: u64,
}

impl HashShard {
    /// Reads the expiries in the last buckets before bucket `below`.
    fn scan_expiries(&self, below: usize, is_over: &mut dyn FnMut(Expiry) -> bool) -> BucketScan {
        let below = below.min(self.directory.len());
        let down_to = below.saturating_sub(BUCKETS_SCANNED);
        (below.saturating_sub(AHEAD).max(down_to)..below).for_each(|bucket| self.prefetch_bucket(bucket));
        let mut scanned = BucketScan { down_to, seen: 0, to_clean: 0 };
        for bucket in (down_to..below).rev() {
            if bucket >= down_to + AHEAD {
                self.prefetch_bucket(bucket - AHEAD);
            }
            let (bytes, address) = (self.bytes_of(bucket), self.address(bucket));
            let (mut at, mut found) = (0, false);
            while let Some(group) = RecordGroup::read(bytes, at, &address) {
                let mut see = |expiry| found |= expiry != Expiry::Never && is_over(expiry);
                if group.keys == KeyColumn::Stubs {
                    for index in 0..group.count {
                        see(self.referenced_expiry(group.stub(bytes, index).1));
                    }
                } else if group.attributes(0).has_expiry() {
                    (0..group.count).for_each(|index| see(group.attributes(index).expiry(bytes)));
                }
                scanned.seen += group.count as u64;
                at = group.end;
            }
            scanned.to_clean |= u64::from(found) << (bucket - down_to);
        }
        scanned
    }

    /// Removes the expired records of one bucket. Returns the number of removed records.
    fn clean(
        &mut self,
        bucket: usize,
        cause: DepartureCause,
        is_over: &mut dyn FnMut(Expiry) -> bool,
        departing: &mut Vec<DepartingRecord>,
    ) -> u64 {
        // The bucket was read under an earlier lock, so it may not exist any more.
        if bucket >= self.directory.len() {
            return 0;
        }
        let ghosts = self.collect_rows(bucket);
        row::sort_by_age(&mut self.rows);
        let mut rows = std::mem::take(&mut self.rows);
        departing.clear();
        let bytes = self.bytes_of(bucket);
        rows.retain(|row| {
            let expiry = self.expiry_of(bytes, row);
            let goes = expiry != Expiry::Never && is_over(expiry);
            if goes {
                departing.push(self.departing_record(bytes, row));
            }
            !goes
        });
        self.rows = rows;
        // The system may refuse even a smaller block. Then all records stay until the next sweep.
        if departing.is_empty() || self.rewrite(bucket, ghosts, &[], MemoryNeed::Upkeep).is_err() {
            return 0;
        }
        for departing in departing.iter() {
            self.count_departure(departing, cause);
            self.discard(departing);
        }
        self.rebalance();
        departing.len() as u64
    }
}

impl SweepableEngine for MemHash {
    fn sweep(
        &self,
        from: Option<ScanPosition>,
        records_max: usize,
        aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Result<SweepProgress> {
        let from = from.map_or(u64::MAX >> (64 - BUCKET_BITS), |place| place.number());
        let (mut shard, mut below) =
            ((from >> BUCKET_BITS) as usize, (from & ((1 << BUCKET_BITS) - 1)) as usize);
        let cause = match aim {
            SweepAim::Tidiness => DepartureCause::Swept,
            SweepAim::Room => DepartureCause::Displaced,
        };
        let mut swept = SweepProgress::default();
        let mut departing = Vec::new();
        let mut buckets = 0;
        // Empty buckets count too, so that a step over a directory of empty buckets is bounded.
        while swept.seen as usize + buckets < records_max {
            let Some(padded) = self.shards.get(shard) else { return Ok(swept) };
            let scanned = padded.0.read().scan_expiries(below, is_over);
            swept.seen += scanned.seen;
            buckets += BUCKETS_SCANNED;
            let mut to_clean = scanned.to_clean;
            while to_clean != 0 {
                MemHash::change(&padded.0, |shard| {
                    for _ in 0..BUCKETS_CLEANED {
                        if to_clean == 0 {
                            break;
                        }
                        // The buckets are cleaned from the highest one down, in the order of the
                        // complete sweep.
                        let bit = 63 - to_clean.leading_zeros();
                        to_clean &= !(1 << bit);
                        let bucket = scanned.down_to + bit as usize;
                        swept.removed += shard.clean(bucket, cause, is_over, &mut departing);
                    }
                });
            }
            below = scanned.down_to;
            if below == 0 {
                (shard, below) = (shard + 1, (1 << BUCKET_BITS) - 1);
            }
        }
        if shard < self.shards.len() {
            swept.next = Some(ScanPosition::Number((shard as u64) << BUCKET_BITS | below as u64));
        }
        Ok(swept)
    }
}
