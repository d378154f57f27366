//! Defines the directory of a shard, which holds for each bucket the handle of the block that
//! contains it. The directory grows and shrinks by one bucket at a time (linear hashing, Litwin
//! 1980), so that there is neither a pause for rehashing nor a peak of memory for doubling.
//!
//! With `len` buckets and `level = floor(log2(len))`, the buckets below `len - 2^level` and from
//! `2^level` on have been split at this level; they use `level + 1` low bits of the hash. The other
//! buckets use `level` bits.

use crate::arena::{BlockHandle, MemoryBudget};
use std::sync::Arc;

const CHUNK: usize = 1024;
const CHUNK_BYTES: usize = CHUNK * size_of::<u32>();

/// The maximum number of buckets.
const LEN_MAX: usize = 1 << 31;

/// The division of hashes among the buckets of a directory, which follows from the number of
/// buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryShape {
    len: usize,
    /// The value `2^(level + 1) - 1`.
    mask: usize,
}

impl DirectoryShape {
    /// Returns the shape of a directory with this number of buckets, if there can be that many.
    pub(crate) fn with_len(len: usize) -> Option<DirectoryShape> {
        let mask = 2usize.checked_shl(len.checked_ilog2()?)?.checked_sub(1)?;
        (len <= LEN_MAX).then_some(DirectoryShape { len, mask })
    }

    /// Returns the number of buckets.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Returns the bucket of a hash. Only the low 32 bits of `hash` need to be correct.
    #[inline]
    pub(crate) fn bucket_of(self, hash: u64) -> usize {
        let bucket = hash as usize & self.mask;
        if bucket < self.len { bucket } else { bucket & (self.mask >> 1) }
    }

    /// Returns the number of low bits of the hash that select this bucket.
    pub(crate) fn bits_of(self, bucket: usize) -> u32 {
        let low = self.mask / 2 + 1;
        let level = low.trailing_zeros();
        if bucket >= low || bucket < self.len - low { level + 1 } else { level }
    }
}

pub(crate) struct BucketDirectory {
    chunks: Vec<Box<[u32; CHUNK]>>,
    shape: DirectoryShape,
    budget: Arc<MemoryBudget>,
}

impl BucketDirectory {
    /// Creates a directory with one empty bucket.
    pub(crate) fn new(budget: Arc<MemoryBudget>) -> BucketDirectory {
        budget.commit_anyway(CHUNK_BYTES);
        let shape = DirectoryShape { len: 1, mask: 1 };
        BucketDirectory { chunks: vec![Box::new([0; CHUNK])], shape, budget }
    }

    /// Returns the number of buckets.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.shape.len
    }

    /// Returns the division of hashes among the buckets.
    #[inline]
    pub(crate) fn shape(&self) -> DirectoryShape {
        self.shape
    }

    /// Returns the memory that the directory uses.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES
    }

    /// Returns the bucket of a hash. Only the low 32 bits of `hash` need to be correct.
    #[inline]
    pub(crate) fn bucket_of(&self, hash: u64) -> usize {
        self.shape.bucket_of(hash)
    }

    /// Returns the number of low bits of the hash that select this bucket.
    pub(crate) fn bits_of(&self, bucket: usize) -> u32 {
        self.shape.bits_of(bucket)
    }

    #[inline]
    pub(crate) fn get(&self, bucket: usize) -> BlockHandle {
        BlockHandle(self.chunks[bucket / CHUNK][bucket % CHUNK])
    }

    #[inline]
    pub(crate) fn set(&mut self, bucket: usize, handle: BlockHandle) {
        self.chunks[bucket / CHUNK][bucket % CHUNK] = handle.0;
    }

    /// Replaces the handles of moved blocks by their new ones, in one pass over all buckets. The
    /// pass is fast if the old blocks lie on few pages, or in few chunks.
    ///
    /// Panics if a block is that of no bucket.
    pub(crate) fn replace(&mut self, mut moved: Vec<(BlockHandle, BlockHandle)>) {
        /// The number of slots that are compared at once.
        const STEP: usize = 16;
        /// The maximum number of areas with which they are compared.
        const AREAS: usize = 4;
        moved.sort_unstable_by_key(|(from, _)| from.0);
        let Some(&(first, _)) = moved.first() else { return };
        let areas_of = |shift: u32| {
            // Unused entries repeat the first one.
            let (mut areas, mut used) = ([first.0 >> shift; AREAS], 1);
            for (from, _) in &moved {
                if areas[used - 1] != from.0 >> shift {
                    *areas.get_mut(used)? = from.0 >> shift;
                    used += 1;
                }
            }
            Some((shift, areas))
        };
        let by_size = [BlockHandle::PAGE_SHIFT, BlockHandle::CHUNK_SHIFT].into_iter().find_map(areas_of);
        // Shifted by all bits but one, the handles have two areas at most.
        let (shift, areas) = by_size.or_else(|| areas_of(u32::BITS - 1)).expect("at most two areas");
        let mut found = 0;
        for slots in self.chunks.iter_mut().flat_map(|chunk| chunk.chunks_exact_mut(STEP)) {
            let is_near = |slot: u32| areas.iter().fold(false, |is, &area| is | (slot >> shift == area));
            if !slots.iter().fold(false, |any, &slot| any | is_near(slot)) {
                continue;
            }
            for slot in slots {
                if let Ok(index) = moved.binary_search_by_key(slot, |(from, _)| from.0) {
                    *slot = moved[index].1.0;
                    found += 1;
                }
            }
            if found == moved.len() {
                return;
            }
        }
        assert_eq!(found, moved.len(), "each block of a bucket is in one slot");
    }

    /// Returns the bucket that the next growth splits, the bit of the hash that selects the records
    /// to be moved, and the number of the new bucket.
    pub(crate) fn next_split(&self) -> (usize, u64, usize) {
        let low = self.shape.mask / 2 + 1;
        (self.shape.len - low, low as u64, self.shape.len)
    }

    /// Adds the new bucket that `next_split` returns. The bucket is empty. Returns false if the
    /// maximum number of buckets is reached.
    pub(crate) fn grow(&mut self) -> bool {
        if self.shape.len >= LEN_MAX {
            return false;
        }
        if self.shape.len == self.chunks.len() * CHUNK {
            self.chunks.push(Box::new([0; CHUNK]));
            self.budget.commit_anyway(CHUNK_BYTES);
        }
        self.set(self.shape.len, BlockHandle::NONE);
        self.shape.len += 1;
        if self.shape.len > self.shape.mask {
            self.shape.mask = self.shape.mask * 2 + 1;
        }
        true
    }

    /// Returns the last bucket and the bucket that will receive its records when it is removed.
    /// Returns `None` if there is only one bucket.
    pub(crate) fn next_merge(&self) -> Option<(usize, usize)> {
        let last = self.shape.len - 1;
        (last > 0).then(|| (last, last & !(1 << last.ilog2())))
    }

    /// Removes the last bucket, which must be empty.
    pub(crate) fn shrink(&mut self) {
        debug_assert!(self.shape.len > 1 && self.get(self.shape.len - 1).is_none());
        self.shape.len -= 1;
        if self.shape.len <= self.shape.mask / 2 {
            self.shape.mask /= 2;
        }
        // One spare chunk is kept, so that a directory of fluctuating size does not allocate each
        // time.
        if self.shape.len + 2 * CHUNK <= self.chunks.len() * CHUNK {
            self.chunks.pop();
            self.budget.release(CHUNK_BYTES);
            if self.chunks.capacity() > 2 * self.chunks.len() + 16 {
                self.chunks.shrink_to(self.chunks.len() * 3 / 2);
            }
        }
    }
}

impl Drop for BucketDirectory {
    fn drop(&mut self) {
        self.budget.release(self.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::{MemoryLimit, WhenFull};

    fn directory() -> BucketDirectory {
        BucketDirectory::new(Arc::new(MemoryBudget::new(MemoryLimit {
            bytes: None,
            when_full: WhenFull::Evict,
        })))
    }

    #[test]
    fn growth_moves_only_what_the_announced_bit_says() {
        let mut directory = directory();
        let hash = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for _ in 0..5000 {
            let (from, bit, to) = directory.next_split();
            let before: Vec<_> = (0..2000).map(|n| directory.bucket_of(hash(n))).collect();
            assert!(directory.grow());
            for (n, &bucket) in before.iter().enumerate() {
                let moves = bucket == from && hash(n as u64) & bit != 0;
                assert_eq!(directory.bucket_of(hash(n as u64)), if moves { to } else { bucket });
            }
        }
    }

    #[test]
    fn shrinking_undoes_growing() {
        let mut directory = directory();
        let hash = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut history = Vec::new();
        for _ in 0..3000 {
            history.push((0..500).map(|n| directory.bucket_of(hash(n))).collect::<Vec<_>>());
            directory.grow();
        }
        for before in history.iter().rev() {
            let (last, into) = directory.next_merge().unwrap();
            let now: Vec<_> = (0..500).map(|n| directory.bucket_of(hash(n))).collect();
            directory.shrink();
            let after: Vec<_> = (0..500).map(|n| directory.bucket_of(hash(n))).collect();
            for n in 0..500 {
                assert_eq!(after[n], if now[n] == last { into } else { now[n] });
            }
            assert_eq!(&after, before);
        }
        assert_eq!(directory.next_merge(), None);
    }

    #[test]
    fn bucket_bits_select_the_bucket() {
        let mut directory = directory();
        for _ in 0..3000 {
            assert_eq!(DirectoryShape::with_len(directory.len()), Some(directory.shape()));
            let total: u64 = (0..directory.len()).map(|b| 1u64 << (32 - directory.bits_of(b))).sum();
            assert_eq!(total, 1 << 32, "the buckets cover all hashes once");
            for bucket in (0..directory.len()).step_by(97) {
                let bits = directory.bits_of(bucket);
                for high in 0..4u64 {
                    assert_eq!(directory.bucket_of(bucket as u64 | high << bits), bucket);
                }
            }
            directory.grow();
        }
        assert_eq!(DirectoryShape::with_len(0), None);
        assert_eq!(DirectoryShape::with_len(LEN_MAX + 1), None);
        assert!(DirectoryShape::with_len(LEN_MAX).is_some());
    }
}
