//! Recently read records, in memory, in front of the cluster.
//!
//! A record stays for a fixed time, and is removed earlier if this server writes it. A write by
//! another server becomes visible when that time has passed. Reads that show a version never use
//! the cache.

use crate::row::StoredRow;
use crate::token::RowToken;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use todana::disk::SystemDisk;
use todana::{DatabaseName, EngineOptions, OverwriteVisitor};
use todana_core::{Action, Attributes, Engine, MemoryLimit, Record, Result, UnixSeconds, WhenFull};

/// The number of counters of writes. Keys share them.
const COUNTERS: usize = 4096;
/// The length of the time and the token before a value.
const HEAD_LEN: usize = 16;

/// The near cache of a database.
pub(crate) struct NearCache {
    engine: Box<dyn Engine>,
    ttl_s: u64,
    hasher: RandomState,
    /// The number of times that a write of a key has begun or ended. A read that began before such
    /// a moment must not store its record, which may be older.
    writes: Vec<AtomicU64>,
}

/// The beginning of a read: the number of the key's writes, and the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadBegin {
    writes: u64,
    at: UnixSeconds,
}

impl NearCache {
    /// Creates a cache of this size, whose records stay for `ttl_s` seconds.
    pub(crate) fn new(bytes: u64, ttl_s: u32) -> Result<NearCache> {
        let limit = MemoryLimit { bytes: Some(bytes), when_full: WhenFull::Evict };
        let options = EngineOptions { limit, ..EngineOptions::default() };
        let engine = DatabaseName::parse("mem:hash")?.open_engine(Arc::new(SystemDisk), options)?;
        let writes = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Ok(NearCache { engine, ttl_s: u64::from(ttl_s), hasher: RandomState::new(), writes })
    }

    fn counter(&self, key: &[u8]) -> &AtomicU64 {
        &self.writes[self.hasher.hash_one(key) as usize % COUNTERS]
    }

    /// Returns the record if it has been read recently.
    pub(crate) fn get(&self, key: &[u8], now: UnixSeconds) -> Option<StoredRow> {
        let mut found = None;
        let seen = self.engine.view(key, &mut |record| {
            let Some((head, value)) = record.value.split_at_checked(HEAD_LEN) else { return };
            let (until, token) = head.split_at(8);
            let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
            if number(until) > now.0 && record.attributes.expiry.is_live(now) {
                found = Some(StoredRow {
                    value: value.to_vec(),
                    flags: record.attributes.flags,
                    token: RowToken::from_column(number(token) as i64),
                    expiry: record.attributes.expiry,
                });
            }
        });
        seen.ok().and(found)
    }

    /// Notes the beginning of a read.
    pub(crate) fn begin_read(&self, key: &[u8], now: UnixSeconds) -> ReadBegin {
        ReadBegin { writes: self.counter(key).load(Ordering::SeqCst), at: now }
    }

    fn is_written_since(&self, key: &[u8], began: ReadBegin) -> bool {
        self.counter(key).load(Ordering::SeqCst) != began.writes
    }

    /// Keeps a record that was read, unless this server has written the key since the read began.
    /// Its time counts from then, because another server may have written it during the read.
    pub(crate) fn put(&self, key: &[u8], row: &StoredRow, began: ReadBegin) {
        if self.is_written_since(key, began) {
            return;
        }
        let mut value = Vec::with_capacity(HEAD_LEN + row.value.len());
        value.extend_from_slice(&(began.at.0 + self.ttl_s).to_le_bytes());
        value.extend_from_slice(&row.token.column().to_le_bytes());
        value.extend_from_slice(&row.value);
        let attributes = Attributes { flags: row.flags, expiry: row.expiry, ..Attributes::default() };
        let record = Record::new(&value, attributes);
        // A record that finds no room is not kept.
        let _ = self.engine.visit(key, &mut OverwriteVisitor(Action::Put(record)));
        if self.is_written_since(key, began) {
            self.remove(key);
        }
    }

    /// Removes a record, because this server begins or ends a write of its key.
    pub(crate) fn note_write(&self, key: &[u8]) {
        self.counter(key).fetch_add(1, Ordering::SeqCst);
        self.remove(key);
    }

    fn remove(&self, key: &[u8]) {
        let _ = self.engine.visit(key, &mut OverwriteVisitor(Action::Remove));
    }

    /// Removes all records.
    pub(crate) fn clear(&self) {
        for count in &self.writes {
            count.fetch_add(1, Ordering::SeqCst);
        }
        let _ = self.engine.clear(&mut || ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_core::{Expiry, StaleMarks};

    const NOW: UnixSeconds = UnixSeconds(1000);

    fn row(value: &[u8]) -> StoredRow {
        let token = RowToken::new(9, 1, StaleMarks::default());
        StoredRow { value: value.into(), flags: 5, token, expiry: Expiry::At(UnixSeconds(1003)) }
    }

    #[test]
    fn cached_record_ends_with_its_times_and_writes() {
        let cache = NearCache::new(4 << 20, 2).unwrap();
        assert_eq!(cache.get(b"k", NOW), None);
        cache.put(b"k", &row(b"one"), cache.begin_read(b"k", NOW));
        assert_eq!(cache.get(b"k", UnixSeconds(1001)), Some(row(b"one")));
        assert_eq!(cache.get(b"k", UnixSeconds(1002)), None);
        cache.put(b"k", &row(b"two"), cache.begin_read(b"k", UnixSeconds(1002)));
        assert_eq!(cache.get(b"k", UnixSeconds(1002)), Some(row(b"two")));
        assert_eq!(cache.get(b"k", UnixSeconds(1003)), None);
        cache.note_write(b"k");
        assert_eq!(cache.get(b"k", UnixSeconds(1002)), None);
    }

    #[test]
    fn record_read_before_a_write_is_not_kept() {
        let cache = NearCache::new(4 << 20, 5).unwrap();
        let began = cache.begin_read(b"k", NOW);
        cache.note_write(b"k");
        cache.put(b"k", &row(b"old"), began);
        assert_eq!(cache.get(b"k", NOW), None);
        let began = cache.begin_read(b"k", NOW);
        cache.clear();
        cache.put(b"k", &row(b"old"), began);
        assert_eq!(cache.get(b"k", NOW), None);
    }
}
