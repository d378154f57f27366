//! Removes damaged records when a limit on the database requires space.
//!
//! The key of a damaged record is usually readable. It is correct if its hash matches the bits in
//! the index. Then a remove entry is appended, as for any record. Otherwise only the slot is
//! removed. That removal is permanent: the checkpoint of the index contains it, and if the index is
//! lost or was not copied, only a salvage can read the log beyond the damage. The damaged entry is
//! therefore kept as long as a remove entry would be: until no older segment can contain a value of
//! its key.

use super::DiskHash;
use super::entry::{self, HEAD_MAX};
use super::page::{IndexSlot, least_len, tag_of};
use super::segment::Segment;
use super::shard::{PAGES, page_of, shard_of};
use std::sync::atomic::Ordering;
use todana_core::{Error, ErrorKind, Result};

/// The number of skipped records that are remembered.
const SKIPPED_MAX: usize = 64;

/// A damaged record: the number of its page, counted over all shards, and its slot.
pub(super) struct SkippedRecord {
    page: usize,
    slot: IndexSlot,
}

impl DiskHash {
    pub(super) fn note_skipped(&self, page: usize, slot: IndexSlot) {
        let mut skipped = self.skipped.lock();
        if skipped.len() < SKIPPED_MAX && !skipped.iter().any(|one| one.slot == slot) {
            skipped.push(SkippedRecord { page, slot });
        }
    }

    /// Removes up to `count_max` of the skipped records, if they are still damaged. Returns the
    /// number of removed records.
    pub(super) fn remove_skipped(&self, count_max: u64) -> Result<u64> {
        // This is the usual case.
        if self.skipped.lock().is_empty() {
            return Ok(0);
        }
        let mut removed = 0;
        while removed < count_max {
            let Some(skipped) = self.skipped.lock().pop() else { break };
            removed += u64::from(self.remove_damaged_at(&skipped)?);
        }
        Ok(removed)
    }

    fn remove_damaged_at(&self, skipped: &SkippedRecord) -> Result<bool> {
        let SkippedRecord { page, slot } = *skipped;
        let mut shard = self.lock_shard(page / PAGES);
        let (tag, at) = (slot.tag(), slot.location());
        // This is the part of the hash that the index knows; the other bits are 0.
        let hash = (page as u64) << 52 | u64::from(tag) << 31;
        let Some(index) =
            shard.slot_at(hash, at).filter(|&index| shard.pages[page % PAGES].get(index) == slot)
        else {
            return Ok(false);
        };
        let Some(segment) = shard.table.get(at.slot).cloned() else { return Ok(false) };
        let error = match self.log.view(&segment, at.unit, slot.class(), false, |_, _| ()) {
            Err(error) if error.kind() == ErrorKind::Corrupt => error,
            seen => return seen.map(|()| false),
        };
        let len = least_len(slot.class());
        match self.key_at(&segment, u64::from(at.unit) * 8, page, tag)? {
            Some(key) => self.remove(&mut shard, hash, &key, (index, len))?,
            None => {
                shard.remove_slot(hash, index, len);
                segment.remove_bytes.fetch_add(len as u64, Ordering::Relaxed);
            }
        }
        segment.has_damage.store(false, Ordering::Relaxed);
        self.count_damaged(error);
        Ok(true)
    }

    /// Returns the key of a damaged entry if it is readable and matches the index.
    fn key_at(&self, segment: &Segment, offset: u64, page: usize, tag: u32) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; HEAD_MAX];
        let got = segment.read_at(offset, &mut bytes)?;
        let Some(head) = entry::parse(&bytes[..got]).filter(|head| head.kind == entry::PUT) else {
            return Ok(None);
        };
        let end = head.key_at + head.key_len;
        if end as u64 > segment.len().saturating_sub(offset) {
            return Ok(None);
        }
        bytes.resize(end, 0);
        if segment.read_at(offset, &mut bytes)? < end {
            return Ok(None);
        }
        let key = head.key(&bytes);
        let hash = self.hash(key);
        let is_it = (shard_of(hash) * PAGES + page_of(hash), tag_of(hash)) == (page, tag);
        Ok(is_it.then(|| key.to_vec()))
    }

    pub(super) fn count_damaged(&self, error: Error) {
        let mut damaged_records = self.damaged_records.lock();
        *damaged_records = Some((damaged_records.as_ref().map_or(0, |before| before.0) + 1, error));
    }
}
