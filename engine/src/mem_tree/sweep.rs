//! A pass over all leaves for the sake of records with an expiry, and the hand that makes room.
//!
//! Both go from leaf to leaf by the key that divides them, so what is divided or joined meanwhile disturbs neither.

use super::MemTree;
use crate::arena::Effort;
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
            Some(ScanPosition::Number(_)) | None => Vec::new(),
        };
        let mut swept = SweepProgress::default();
        while (swept.seen as usize) < records_max {
            let looked = {
                let (partition, slot) = self.read(|router| router.find(&key));
                partition.look_at_expiries(slot, &key, is_over)
            };
            swept.seen += looked.seen;
            if looked.any_over {
                swept.removed +=
                    self.change(&key, |partition, slot| partition.clean(slot, &key, aim, is_over));
            }
            match looked.next {
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
    /// Lets records go, leaf by leaf from where the hand is, until they come to so many bytes; returns how many those are,
    /// 0 if there is nothing left. They go for the record of `spare`, which stays; for nobody's, in housekeeping.
    pub(super) fn evict(&self, bytes: usize, spare: Option<&[u8]>) -> usize {
        let mut hand = self.hand.lock();
        let (mut freed, mut rounds) = (0, 0);
        let observer = self.sampled.observer.as_deref().filter(|observer| observer.is_listening());
        while freed < bytes && rounds < 2 {
            let (more, next) = self.change(&hand, |partition, slot| {
                let evicted = partition.evict(slot, &hand, &self.uses, spare, observer);
                // Slack costs records.
                if !self.budget.fits(self.reserve()) {
                    partition.compact(Effort::Thorough);
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
