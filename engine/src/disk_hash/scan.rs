//! Scans over all records in the order of the hashes of their keys.

use super::cold_reads::READS_MAX;
use super::page::{IndexSlot, tag_of};
use super::prefetch::prefetch_slot;
use super::scratch::ThreadScratch;
use super::segment::{LogPosition, PREFETCHED_MAX, SegmentTable};
use super::shard::{PAGES, SHARDS, page_of, shard_of};
use super::{DiskHash, missing_segment_error};
use std::ops::ControlFlow;
use todana_core::{ErrorKind, Record, Result, ScanPosition};

/// The number of entries that are announced together.
const AHEAD: usize = READS_MAX / 2;

/// The records that a scan shows.
pub(super) struct ScanScope {
    /// Skips damaged records. Otherwise the first of them ends the scan with an error.
    pub(super) skips_damage: bool,
    /// Only records whose entries lie at or after this position are shown.
    pub(super) since: LogPosition,
    /// The number of slots of the index after which the scan pauses at the end of a page.
    pub(super) slots_max: usize,
}

impl Default for ScanScope {
    fn default() -> ScanScope {
        ScanScope { skips_damage: false, since: LogPosition::default(), slots_max: usize::MAX }
    }
}

impl ScanScope {
    #[inline]
    fn contains(&self, table: &SegmentTable, slot: IndexSlot) -> bool {
        let place = || {
            let at = slot.location();
            let number = table.get(at.slot)?.number;
            Some(LogPosition { number, offset: u64::from(at.unit) * 8 })
        };
        self.since == LogPosition::default() || place().is_none_or(|place| place >= self.since)
    }
}

impl DiskHash {
    /// Scans all records from a position on, one page of the index at a time. A page is scanned
    /// under the lock of its shard.
    pub(super) fn scan_from(
        &self,
        from: Option<ScanPosition>,
        scope: &ScanScope,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        // The position of a scan is the first 33 bits of a hash.
        let from = from.map_or(0, |place| place.number());
        let mut scratch = ThreadScratch::take();
        let ScanScope { skips_damage, slots_max, .. } = *scope;
        let mut slots_seen = 0;
        let mut page_index = (from >> 21) as usize;
        let mut tag_from = from as u32 & ((1 << 21) - 1);
        while page_index < SHARDS * PAGES {
            let shard = self.read_shard(page_index / PAGES);
            let page = &shard.pages[page_index % PAGES];
            if slots_seen >= slots_max {
                return Ok(Some(ScanPosition::Number((page_index as u64) << 21)));
            }
            slots_seen += page.len();
            let slots = page.iter().skip_while(|slot| slot.tag() < tag_from);
            let mut slots = slots.filter(|slot| scope.contains(&shard.table, *slot)).peekable();
            let mut ahead = slots.clone();
            let mut flow = ControlFlow::Continue(());
            for nth in 0.. {
                // While half of the announced entries are shown, the other half is read.
                if nth % AHEAD == 0 {
                    let count = if nth == 0 { 2 * AHEAD } else { AHEAD };
                    for slot in ahead.by_ref().take(count) {
                        prefetch_slot(&shard.table, slot, PREFETCHED_MAX);
                    }
                }
                let Some(slot) = slots.next() else { break };
                let at = slot.location();
                let segment = shard.table.get(at.slot).ok_or_else(missing_segment_error)?;
                match self.log.fetch(segment, at.unit, slot.class(), &mut scratch.old) {
                    Err(error) if skips_damage && error.kind() == ErrorKind::Corrupt => {
                        self.note_skipped(page_index, slot);
                    }
                    fetched => {
                        let fetched = fetched?;
                        let (head, entry) = (fetched.head, fetched.bytes(&scratch.old));
                        let hash = self.hash(head.key(entry));
                        let home = (shard_of(hash) * PAGES + page_of(hash), tag_of(hash));
                        if home == (page_index, slot.tag()) {
                            let shown = self
                                .show(segment, at.unit, &head, entry, |record| see(head.key(entry), record));
                            match shown {
                                Err(error) if skips_damage && error.kind() == ErrorKind::Corrupt => {
                                    self.note_skipped(page_index, slot);
                                }
                                shown => flow = shown?,
                            }
                        } else if !skips_damage {
                            return Err(
                                segment.corrupt(u64::from(at.unit) * 8, "the entry belongs to another key")
                            );
                        }
                    }
                }
                // Records with the same position are shown without interruption, because a scan
                // could not resume between them.
                if flow.is_break() && slots.peek().is_none_or(|next| next.tag() != slot.tag()) {
                    let next = (page_index as u64) << 21 | u64::from(slot.tag());
                    return Ok(Some(ScanPosition::Number(next + 1)));
                }
            }
            (page_index, tag_from) = (page_index + 1, 0);
        }
        Ok(None)
    }
}
