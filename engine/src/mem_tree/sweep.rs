//! Sweeps over all leaves for expired records, and moves the clock hand of eviction over the
//! leaves.
//!
//! Both proceed from leaf to leaf by the key that separates two leaves, so dividing or merging
//! leaves does not disturb them.

use super::MemTree;
use crate::arena::CompactionEffort;
use std::sync::Arc;
use todana_core::{Expiry, Result, ScanPosition, SweepAim, SweepProgress, SweepableEngine};

impl SweepableEngine for MemTree {
    fn sweep(
        &self,
        from: Option<ScanPosition>,
        records_max: usize,
        aim: SweepAim,
        is_over: &mut dyn FnMut(Expiry) -> bool,
    ) -> Result<SweepProgress> {
        let mut key: Vec<u8> = match from {
            Some(ScanPosition::Key(key)) => key.to_vec(),
            _ => Vec::new(),
        };
        let mut swept = SweepProgress::default();
        while (swept.seen as usize) < records_max {
            let scanned = {
                let (partition, slot) = self.read(|router| router.find(&key));
                partition.scan_expiries(slot, &key, is_over)
            };
            swept.seen += scanned.seen;
            if scanned.any_over {
                swept.removed +=
                    self.change(&key, |partition, slot| partition.clean(slot, &key, aim, is_over));
            }
            match scanned.next {
                Some(next) => key = next,
                None => {
                    return Ok(swept);
                }
            }
        }
        swept.next = Some(ScanPosition::Key(Arc::from(key)));
        Ok(swept)
    }
}

impl MemTree {
    /// Evicts records, leaf by leaf from the clock hand on, until at least `bytes` are freed.
    /// Returns the number of bytes freed; 0 means that no record is left to evict. `spare` is the
    /// key of the write that needs memory; its record is not evicted. `spare` is `None` for
    /// maintenance.
    pub(super) fn evict(&self, bytes: usize, spare: Option<&[u8]>) -> usize {
        let mut hand = self.hand.lock();
        let (mut freed, mut rounds) = (0, 0);
        let observer = self.sample.observer.as_deref().filter(|observer| observer.is_listening());
        while freed < bytes && rounds < 2 {
            let (more, next) = self.change(&hand, |partition, slot| {
                let evicted = partition.evict(slot, &hand, &self.uses, spare, observer);
                // If the unused memory in sparse pages were not returned here, further records
                // would be evicted.
                if !self.budget.fits(self.reserve()) {
                    partition.compact(CompactionEffort::Thorough);
                }
                evicted
            });
            freed += more;
            *hand = next.unwrap_or_default();
            rounds += usize::from(hand.is_empty());
        }
        freed
    }
}
