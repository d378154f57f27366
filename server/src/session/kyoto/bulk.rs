//! The binary protocol's bulk requests: each record is applied as it comes, those before a failure stay.

use super::answer_memory::put_found;
use super::scope::{Scope, records};
use super::session::Progress;
use crate::session::Next;
use crate::transport::output::Output;
use todana_core::Result as Outcome;
use todana_protocol::Sink;
use todana_protocol::kyoto::{Bulk, BulkOperation, BulkRecord, binary, expiry};

/// A buffer above this is given back after use.
const FOUND_KEPT: usize = 4 << 10;

impl Scope {
    /// Applies a piece, and answers behind the last.
    pub(super) fn bulk_piece(&self, progress: &mut Progress, piece: &Bulk<'_>, output: &mut Output) -> Next {
        if let Some(record) = &piece.record
            && !progress.has_failed
        {
            let is_refused = self.is_read_only() && piece.operation != BulkOperation::Get;
            match (!is_refused).then(|| self.apply(piece.operation, record, &mut progress.found)) {
                Some(Ok(is_hit)) => progress.hits += u32::from(is_hit),
                Some(Err(_)) | None => progress.has_failed = true,
            }
            // Its number of hits goes before it, so it is held until the last.
            progress.has_failed |= progress.found.len() > self.answer_max;
            if progress.has_failed {
                progress.found = Vec::new();
            }
        }
        if piece.remaining > 0 {
            return Next::Continue;
        }
        let Progress { hits, has_failed, .. } = *progress;
        if has_failed {
            *progress = Progress::default();
            if !piece.is_silent {
                binary::put_error(output);
            }
            return Next::Close;
        }
        if !piece.is_silent {
            binary::put_hits(piece.operation, hits, output);
            if progress.found.len() > FOUND_KEPT {
                put_found(&self.shared, std::mem::take(&mut progress.found), output);
            } else {
                output.put(&progress.found);
            }
        }
        progress.hits = 0;
        progress.found.clear();
        if progress.found.capacity() > FOUND_KEPT {
            progress.found = Vec::new();
        }
        Next::Continue
    }

    /// Whether a record was stored, removed or found.
    #[inline]
    fn apply(&self, operation: BulkOperation, record: &BulkRecord<'_>, found: &mut Vec<u8>) -> Outcome<bool> {
        // One that there is not is passed over.
        let Some(reach) = self.reaches().get(usize::from(record.database)) else { return Ok(false) };
        let (records, counters) = (records(reach), self.counters());
        match operation {
            BulkOperation::Set => {
                counters.set.add(1);
                let stored =
                    records.set(record.key, record.value, expiry::resolve(Some(record.xt), self.now()));
                if stored.is_err() {
                    counters.set_misses.add(1);
                }
                stored.map(|()| true)
            }
            BulkOperation::Remove => {
                counters.remove.add(1);
                let removed = records.remove(record.key);
                if !matches!(removed, Ok(true)) {
                    counters.remove_misses.add(1);
                }
                removed
            }
            BulkOperation::Get => {
                counters.get.add(1);
                let is_persistent = reach.served().name.tuning.persistent;
                let never = if is_persistent { expiry::PERSISTENT } else { expiry::NEVER as i64 };
                let was_found = records.view(record.key, &mut |value, time| {
                    let xt = time.map_or(never, |time| time as i64);
                    binary::put_record(&BulkRecord { value, xt, ..*record }, found);
                });
                if !matches!(was_found, Ok(true)) {
                    counters.get_misses.add(1);
                }
                was_found
            }
        }
    }
}
