//! Searches in tables, whose removals wait for the disk.

use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use todana::table::{RowRemover, SearchOptions};
use todana::tyrant::TableSearch;
use todana::{CommitPoint, Database, WorkerCounters};
use todana_core::Result;

/// Searches, and shows each element of the reply until `push` breaks. A search that removes rows
/// returns once the removals are durable.
pub(super) fn perform(
    search: &TableSearch,
    database: &Database,
    spare_counters: &SpareCounters,
    bytes_max: usize,
    is_cancelled: &AtomicBool,
    push: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<()> {
    let options = SearchOptions { is_cancelled: Some(is_cancelled), bytes_max, ..SearchOptions::default() };
    let mut removal = RemovedRows { database, spare_counters, counters: None, commit: CommitPoint::NONE };
    search.perform(database, options, &mut |key, remover| removal.remove(key, remover), push)?;
    removal.finish()
}

/// The counters that no removal uses. A database keeps all of its counters, so a search must not
/// create new ones each time.
pub(super) type SpareCounters = Mutex<Vec<Arc<WorkerCounters>>>;

/// The removal of rows that a search finds.
struct RemovedRows<'d> {
    database: &'d Database,
    spare_counters: &'d SpareCounters,
    /// `None` before the first removal.
    counters: Option<Arc<WorkerCounters>>,
    commit: CommitPoint,
}

impl Drop for RemovedRows<'_> {
    fn drop(&mut self) {
        self.spare_counters.lock().extend(self.counters.take());
    }
}

impl RemovedRows<'_> {
    fn remove(&mut self, key: &[u8], remover: &mut RowRemover) -> Result<()> {
        let counters = self.counters.get_or_insert_with(|| {
            let spare = self.spare_counters.lock().pop();
            spare.unwrap_or_else(|| self.database.worker_counters())
        });
        let commit = self.database.visit_record(counters, key, remover)?;
        self.commit = self.commit.max(commit);
        Ok(())
    }

    /// Waits until the removals are durable.
    fn finish(self) -> Result<()> {
        match self.database.durability() {
            Some(durability) if !self.commit.is_none() => durability.wait(self.commit),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_protocol::tyrant::FieldBuffer;

    /// Each search had counters of its own, which the database kept for ever.
    #[test]
    fn searches_share_the_counters_of_removals() {
        let db = todana::Db::open("mem:table").unwrap();
        let (spare, is_cancelled) = (SpareCounters::default(), AtomicBool::new(false));
        let mut used = Vec::new();
        for instruction in ["count", "out", "out"] {
            todana::Records::set(&db, b"k", b"a\0b").unwrap();
            let push = &mut |_: &[u8]| ControlFlow::Continue(());
            let fields = FieldBuffer::from_iter([instruction.as_bytes()]);
            let search = TableSearch::parse(fields.list()).unwrap();
            perform(&search, db.database(), &spare, 1 << 20, &is_cancelled, push).unwrap();
            used.push(spare.lock().first().map(Arc::as_ptr));
        }
        assert_eq!((used[0], spare.lock().len()), (None, 1));
        assert!(used[1].is_some() && used[1] == used[2]);
    }
}
