//! A pass over all buckets for the sake of records with an expiry.
//!
//! A shard's buckets are looked at from the last one down, some tens under one shared lock; those that hold something to
//! remove are then cleaned under the exclusive lock, a few at a time, each rewritten once for all that leaves it. Downwards,
//! because removals merge the last bucket into a lower one: what has not been met yet stays ahead. A split moves records
//! behind the pass; the next one meets them.
//!
//! Cost [Nov 2026, 2 busy cores]: see benches/record; a record without an expiry costs its first byte and its bucket's
//! cache misses, which are asked for some buckets ahead.

use super::super::MemHash;
use super::{Shard, whole};
use crate::arena::Handle;
use crate::mem_hash::departures::Cause;
use crate::mem_hash::evict::Leaving;
use crate::mem_hash::record::{self, Body, Elsewhere, Entry};
use todana_core::{Expiry, Result, ScanPosition, SweepAim, SweepProgress, SweepableEngine};

/// Buckets looked at under one lock: some 500 records, a few microseconds.
const BUCKETS_LOOKED_AT: usize = 64;
/// Buckets cleaned under one lock.
const BUCKETS_CLEANED: usize = 8;
/// So many buckets ahead their blocks are asked for: by then they have come from memory.
const AHEAD: usize = 8;
/// The bits of a place that hold a bucket; the others hold the shard.
const BUCKET_BITS: u32 = 40;

/// What a look at some buckets has found.
struct Looked {
    /// The lowest bucket looked at.
    down_to: usize,
    seen: u64,
    /// Bit i: bucket `down_to + i` holds something to remove.
    to_clean: u64,
}

impl Shard {
    /// Looks at the last buckets of those below `below`.
    fn look_at_expiries(&self, below: usize, is_over: &mut dyn FnMut(Expiry) -> bool) -> Looked {
        let below = below.min(self.directory.len());
        let down_to = below.saturating_sub(BUCKETS_LOOKED_AT);
        (below.saturating_sub(AHEAD).max(down_to)..below).for_each(|bucket| self.prefetch_bucket(bucket));
        let mut looked = Looked { down_to, seen: 0, to_clean: 0 };
        for bucket in (down_to..below).rev() {
            if bucket >= down_to + AHEAD {
                self.prefetch_bucket(bucket - AHEAD);
            }
            let handle = self.directory.get(bucket);
            if handle.is_none() {
                continue;
            }
            let bytes = self.arena.bytes(handle);
            let (mut at, mut found) = (0, false);
            loop {
                let len = record::plain_len(bytes[at]);
                if len != 0 {
                    at += len;
                } else {
                    let Some(entry) = record::entry(bytes, at) else { break };
                    let expiry = self.expiry_of(bytes, &entry);
                    found |= expiry != Expiry::Never && is_over(expiry);
                    at += entry.len;
                }
                looked.seen += 1;
            }
            looked.to_clean |= u64::from(found) << (bucket - down_to);
        }
        looked
    }

    pub(in crate::mem_hash) fn expiry_of(&self, bytes: &[u8], entry: &Entry) -> Expiry {
        match &entry.body {
            Body::Whole(parts) => parts.expiry(bytes),
            Body::Stub { elsewhere: Elsewhere::Block(block), .. } => {
                let bytes = self.arena.bytes(Handle(*block));
                whole(bytes, 0).expiry(bytes)
            }
            Body::Stub { elsewhere: Elsewhere::Huge(index), .. } => self.huge.get(*index).attributes.expiry,
        }
    }

    /// Removes what is over from one bucket, all at once; returns how many records that were.
    fn clean(
        &mut self,
        bucket: usize,
        cause: Cause,
        is_over: &mut dyn FnMut(Expiry) -> bool,
        leaving: &mut Vec<Leaving>,
    ) -> u64 {
        // Looked at under an earlier lock: there may be no such bucket any more.
        let handle = if bucket < self.directory.len() { self.directory.get(bucket) } else { Handle::NONE };
        if handle.is_none() {
            return 0;
        }
        let ghosts = self.gather(handle);
        let mut slots = std::mem::take(&mut self.evictor.slots);
        leaving.clear();
        slots.retain(|slot| {
            let expiry = self.expiry_at(handle, *slot);
            let goes = expiry != Expiry::Never && is_over(expiry);
            if goes {
                leaving.push(self.leaving(handle, *slot));
            }
            !goes
        });
        self.evictor.slots = slots;
        // The system may refuse even a smaller block; then all stays until the next round.
        if leaving.is_empty() || self.rewrite(bucket, ghosts, None).is_err() {
            return 0;
        }
        for leaving in leaving.iter() {
            self.count_leaving(leaving, cause);
            self.forget(leaving);
        }
        self.keep_in_shape();
        leaving.len() as u64
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
            SweepAim::Tidiness => Cause::Swept,
            SweepAim::Room => Cause::Displaced,
        };
        let mut swept = SweepProgress::default();
        let mut leaving = Vec::new();
        let mut buckets = 0;
        // Empty buckets count too, or a step over an emptied directory would know no end.
        while swept.seen as usize + buckets < records_max {
            let Some(padded) = self.shards.get(shard) else { return Ok(swept) };
            let looked = padded.0.read().look_at_expiries(below, is_over);
            swept.seen += looked.seen;
            buckets += BUCKETS_LOOKED_AT;
            let mut to_clean = looked.to_clean;
            while to_clean != 0 {
                MemHash::change(&padded.0, |shard| {
                    for _ in 0..BUCKETS_CLEANED {
                        if to_clean == 0 {
                            break;
                        }
                        // From the top down, like the pass as a whole.
                        let bit = 63 - to_clean.leading_zeros();
                        to_clean &= !(1 << bit);
                        let bucket = looked.down_to + bit as usize;
                        swept.removed += shard.clean(bucket, cause, is_over, &mut leaving);
                    }
                });
            }
            below = looked.down_to;
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
