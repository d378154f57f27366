//! Counts operations by the prefix of their keys, for `stats detail`. Counting must be enabled.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use todana_core::{Operation, PrefixCounters, Reply};

/// The memory limit for prefixes. It is needed because clients choose the prefixes. Prefixes beyond
/// the limit are not counted.
const BYTES_MAX: usize = 4 << 20;
/// The approximate memory that a prefix takes in addition to its bytes.
const OVERHEAD: usize = 96;

/// Counters by prefix. The prefix of a key is the part before the delimiter. Keys without a
/// delimiter are not counted.
#[derive(Debug)]
pub(crate) struct PrefixStatistics {
    delimiter: u8,
    state: Mutex<PrefixTable>,
}

#[derive(Debug, Default)]
struct PrefixTable {
    counts: BTreeMap<Box<[u8]>, PrefixCounts>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct PrefixCounts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

impl PrefixStatistics {
    pub(crate) fn new(delimiter: u8) -> PrefixStatistics {
        PrefixStatistics { delimiter, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, PrefixTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn delimiter(&self) -> char {
        char::from(self.delimiter)
    }

    /// Counts an operation. `found` is true for a read that found a record.
    pub(crate) fn count(&self, command: &Operation<'_>, found: bool) {
        match command {
            Operation::Get(get) => self.add(get.key, |counts| {
                counts.gets += 1;
                counts.hits += u64::from(found);
            }),
            Operation::Store(store) => self.add(store.key, |counts| counts.sets += 1),
            Operation::RefusedStore(refused) => self.add(refused.key, |counts| counts.sets += 1),
            Operation::Delete(delete) => self.add(delete.key, |counts| counts.deletes += 1),
            _ => {}
        }
    }

    fn add(&self, key: &[u8], change: impl FnOnce(&mut PrefixCounts)) {
        let Some(len) = key.iter().position(|&byte| byte == self.delimiter) else { return };
        let prefix = &key[..len];
        let mut state = self.state();
        if let Some(counts) = state.counts.get_mut(prefix) {
            return change(counts);
        }
        let bytes = state.bytes + len + OVERHEAD;
        if bytes > BYTES_MAX {
            return;
        }
        state.bytes = bytes;
        change(state.counts.entry(prefix.into()).or_default());
    }

    pub(crate) fn clear(&self) {
        *self.state() = PrefixTable::default();
    }

    /// Reports the counters of all prefixes, in the order of the prefixes.
    pub(crate) fn report(&self, out: &mut dyn FnMut(Reply<'_>)) {
        let state = self.state();
        let prefixes = state.counts.iter().map(|(name, counts)| {
            let PrefixCounts { gets, hits, sets, deletes } = *counts;
            PrefixCounters { name, gets, hits, sets, deletes }
        });
        let prefixes: Vec<PrefixCounters<'_>> = prefixes.collect();
        out(Reply::Prefixes(&prefixes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::Delete;

    fn reported(prefixes: &PrefixStatistics) -> Vec<(Vec<u8>, u64)> {
        let mut reported = Vec::new();
        prefixes.report(&mut |reply| match reply {
            Reply::Prefixes(all) => reported.extend(all.iter().map(|one| (one.name.to_vec(), one.deletes))),
            other => panic!("{other:?}"),
        });
        reported
    }

    #[test]
    fn key_without_delimiter_is_not_counted() {
        let prefixes = PrefixStatistics::new(b':');
        for key in [&b"a:1"[..], b"a:2:3", b"none", b":x", b""] {
            prefixes.count(&Operation::Delete(Delete { key, ..Delete::default() }), false);
        }
        assert_eq!(reported(&prefixes), [(b"".to_vec(), 1), (b"a".to_vec(), 2)]);
        prefixes.clear();
        assert_eq!(reported(&prefixes), []);
    }

    #[test]
    fn prefixes_are_bounded_and_known_ones_count_on() {
        let prefixes = PrefixStatistics::new(b':');
        for number in 0..100_000 {
            let key = format!("{number}:");
            prefixes.count(&Operation::Delete(Delete { key: key.as_bytes(), ..Delete::default() }), false);
        }
        let len = reported(&prefixes).len();
        assert!(len < 45_000 && len > 30_000, "{len}");
        prefixes.count(&Operation::Delete(Delete { key: b"0:", ..Delete::default() }), false);
        assert_eq!(reported(&prefixes)[0], (b"0".to_vec(), 2));
    }
}
