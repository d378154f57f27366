//! Executes stores. Long values are assembled before the record is locked.

use super::Database;
use super::commands::refusal;
use super::visits::{OverwriteVisitor, VisitedRecord};
use crate::classes::size_of;
use crate::counters::WorkerCounters;
use crate::long_value;
use crate::store::{LongJoin, StoreVisitor};
use crate::transaction::EngineView;
use todana_core::{
    Action, CommandSyntax, Error, ErrorKind, LONG_VALUE_LEN, RefusalReason, Reply, Result, SharedValue,
    Store, StoreMode, UnixSeconds,
};

/// How often a long append is attempted outside of the record's lock. If another thread changes the
/// record each time, the append is then done under the lock.
const UNLOCKED_JOINS_MAX: u32 = 8;

impl Database {
    pub(super) fn store(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        store: &Store<'_>,
        now: UnixSeconds,
    ) -> Reply<'static> {
        let class_number = self.classes.of(size_of(store.key, store.value, store.flags));
        let class = worker_counters.class(class_number);
        if store.syntax == CommandSyntax::Meta {
            worker_counters.counts.cmd_meta.one();
        }
        // This is checked before memory is allocated, because memory counts as full. The record is
        // not read.
        let visited = if self.emulates_full {
            Err(super::full())
        } else {
            self.visit_store(space, worker_counters, store, now)
        };
        self.note_ttls([Some(store.ttl), store.vivify], now);
        let mut met_class = 0;
        let outcome = match visited {
            Ok((met, outcome)) => {
                met_class = met.class;
                outcome
            }
            Err(error) => Reply::Refused(refusal(&error)),
        };
        if !matches!(outcome, Reply::Refused(_)) {
            worker_counters.counts.cmd_set.one();
            class.cmd_set.one();
        }
        match outcome {
            Reply::Stored(_) => {
                worker_counters.counts.total_items.one();
                worker_counters.counts.cas_hits.add(u64::from(store.compare.is_some()));
                class.cas_hits.add(u64::from(store.compare.is_some()));
            }
            Reply::Exists => {
                worker_counters.counts.cas_badval.one();
                worker_counters.class(met_class).cas_badval.one();
            }
            Reply::NotFound => worker_counters.counts.cas_misses.one(),
            Reply::Refused(refusal) => {
                let discards = store.mode == StoreMode::Set && store.compare.is_none();
                self.refuse_store(space, worker_counters, (store.key, class_number), discards, refusal, now);
            }
            _ => {}
        }
        outcome
    }

    /// Counts a refused store only as a refusal, as memcached does.
    ///
    /// If `discards` is true, a cache removes the old record when the new value was too long or
    /// found no memory. As in memcached, a client must not read a value that it believes to be
    /// replaced. A database that may not evict its records always keeps the old one.
    pub(super) fn refuse_store(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        (key, class): (&[u8], usize),
        discards: bool,
        refusal: RefusalReason,
        now: UnixSeconds,
    ) {
        match refusal {
            RefusalReason::TooLarge => worker_counters.counts.store_too_large.one(),
            RefusalReason::OutOfMemory => {
                worker_counters.counts.store_no_memory.one();
                worker_counters.class(class).out_of_memory.one();
            }
            _ => {}
        }
        let is_for_room = matches!(refusal, RefusalReason::TooLarge | RefusalReason::OutOfMemory);
        if discards && is_for_room && !self.keeps_records() {
            let _ = self.visit(space, worker_counters, key, now, &mut OverwriteVisitor(Action::Remove));
        }
    }

    fn visit_store(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        store: &Store<'_>,
        now: UnixSeconds,
    ) -> Result<(VisitedRecord, Reply<'static>)> {
        let extends = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
        let (copied, with_copy);
        let store = if store.value.len() < LONG_VALUE_LEN || store.shared.0.is_some() || extends {
            store
        } else {
            match long_value::gather(self, &[store.value]) {
                Ok(value) => {
                    copied = value;
                    let (value, shared) = (copied.plain().unwrap_or_default(), SharedValue(Some(&copied)));
                    with_copy = Store { value, shared, ..*store };
                    &with_copy
                }
                // The engine offers no memory for values, so it copies the value itself.
                Err(error) if error.kind() == ErrorKind::Invalid => store,
                Err(error) => return Err(error),
            }
        };
        let mut visitor = StoreVisitor::new(store, now, &self.tracking, &self.versions);
        let mut tries = 0;
        loop {
            let met = self.visit(space, worker_counters, store.key, now, &mut visitor)?;
            let Some(seen) = visitor.take_wanted() else { return Ok((met, visitor.outcome)) };
            tries += 1;
            if tries > UNLOCKED_JOINS_MAX {
                visitor.go_on(LongJoin::UnderLock);
                continue;
            }
            let pieces = StoreVisitor::pieces(store, seen.value());
            // The old value stays until the new one is stored, so both need memory. If they do not
            // fit together, other records must not be evicted for them.
            let both = seen.value().len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
            let limit = self.engine.bounded().and_then(|bounded| bounded.limit().bytes);
            if limit.is_some_and(|limit| both as u64 > limit) {
                return Err(Error::new(ErrorKind::Full, "no room for the old value and the new one"));
            }
            let long = match long_value::gather(self, &pieces) {
                Ok(made) => LongJoin::Made(seen, made),
                Err(error) if error.kind() == ErrorKind::Invalid => LongJoin::UnderLock,
                Err(error) => return Err(error),
            };
            visitor.go_on(long);
        }
    }
}
