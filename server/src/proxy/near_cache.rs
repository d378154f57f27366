//! Keeps copies of values in the proxy for a short time.
//!
//! A copy must not be older than a write that this proxy has passed on. So a write removes the copy
//! before it is sent and again when its reply has come, and a read that began before the end of a
//! write does not keep what it has read.

use super::recent_requests::RecentRequests;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use todana_core::{Action, Attributes, Engine, MemoryLimit, Record, Visitor, WhenFull};
use todana_engine::{MemHash, MemHashOptions};
use xxhash_rust::xxh3::xxh3_64;

/// The number of groups of keys whose writes are counted together.
const GROUPS: usize = 1024;
/// One more write that has not ended, in the counter of a group.
const WRITE: u64 = 1;
/// One more change, in the counter of a group.
const CHANGE: u64 = 1 << 32;
/// The length of the time that precedes each value.
const TIME_LEN: usize = 8;
/// Below this size, more shards would take all the memory.
const SHARDED_BYTES_MIN: u64 = 4 << 20;

/// The number of the next cache.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A cache in the proxy, which all workers share.
pub(crate) struct NearCache {
    /// The number of the cache, which no other cache of this process has.
    number: u64,
    ttl: Duration,
    records: MemHash,
    started: Instant,
    groups: Box<[AtomicU64]>,
    /// The requests of the last time, if only the records of frequent keys are kept.
    recent: Option<RecentRequests>,
    coalesces: bool,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// The settings of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearSettings {
    /// The time for which a copy is kept.
    pub(crate) ttl: Duration,
    pub(crate) bytes_max: u64,
    pub(crate) records_max: Option<usize>,
    /// True if only keys are kept that were requested three times within `ttl`.
    pub(crate) hot: bool,
    /// True if only one of several equal reads is sent.
    pub(crate) coalesces: bool,
}

/// A read that the cache has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NearFill {
    /// The number of the cache.
    cache: u64,
    /// The state of the key's group at the beginning of the read.
    state: u64,
    /// True if the record may be kept.
    is_kept: bool,
}

impl NearFill {
    /// Returns true if the reply to an earlier read is not too old for this one: no write of the
    /// key was under way when they began, and none has begun between them.
    pub(super) fn may_join(self, earlier: NearFill) -> bool {
        self.cache == earlier.cache && self.state == earlier.state && self.has_no_write()
    }

    fn has_no_write(self) -> bool {
        self.state & (CHANGE - 1) == 0
    }
}

impl NearCache {
    /// Fails if there is no memory.
    pub(crate) fn new(settings: NearSettings) -> todana_core::Result<NearCache> {
        let NearSettings { ttl, bytes_max, records_max, hot, coalesces } = settings;
        let shards = if bytes_max < SHARDED_BYTES_MIN || records_max.is_some() { 1 } else { 16 };
        let capacity_records = records_max.map(|records| records.max(1) as u64);
        let limit = MemoryLimit { bytes: Some(bytes_max), when_full: WhenFull::Evict };
        let records = MemHash::new(MemHashOptions {
            shards: Some(shards),
            limit,
            capacity_records,
            ..MemHashOptions::default()
        })?;
        let groups = (0..GROUPS).map(|_| AtomicU64::new(0)).collect();
        Ok(NearCache {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            ttl,
            records,
            started: Instant::now(),
            groups,
            recent: hot.then(|| RecentRequests::new(ttl)),
            coalesces,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// Returns true if only one of several equal reads is sent.
    pub(crate) fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Passes the copy of a record to `see`. Returns the beginning of a read if there is none.
    pub(crate) fn read(
        &self,
        key: &[u8],
        now: Instant,
        see: &mut dyn FnMut(Record<'_>),
    ) -> Result<(), NearFill> {
        let state = self.group(key).load(Ordering::SeqCst);
        let now_ms = self.ms(now);
        let is_kept = self.recent.as_ref().is_none_or(|recent| recent.note(key, now_ms));
        let fill = NearFill { cache: self.number, state, is_kept };
        let mut is_found = false;
        let found = self.records.view(key, &mut |record| {
            let Some((time, value)) = record.value.split_first_chunk::<TIME_LEN>() else { return };
            if u64::from_le_bytes(*time) > now_ms {
                is_found = true;
                see(Record::new(value, record.attributes));
            }
        });
        if found.is_ok() && is_found {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        Err(fill)
    }

    /// Keeps a record that a read has found, unless a write has begun since, or there is a copy.
    pub(crate) fn fill(&self, key: &[u8], fill: NearFill, now: Instant, record: &Record<'_>) {
        let group = self.group(key);
        let is_current = || group.load(Ordering::SeqCst) == fill.state && fill.has_no_write();
        if !fill.is_kept || !is_current() {
            return;
        }
        let now_ms = self.ms(now);
        let mut value = Vec::with_capacity(TIME_LEN + record.value.len());
        value.extend_from_slice(&(now_ms + self.ttl.as_millis() as u64).to_le_bytes());
        value.extend_from_slice(record.value);
        let (flags, version) = (record.attributes.flags, record.attributes.version);
        let attributes = Attributes { flags, version, ..Attributes::default() };
        // A record that does not fit is only not kept.
        let _ = self.records.visit(key, &mut Keep { value: &value, attributes, now_ms });
        // A write that began meanwhile has removed the copy before it was stored.
        if !is_current() {
            self.remove(key);
        }
    }

    /// Notes that a write of this key is sent.
    pub(crate) fn begin_write(&self, key: &[u8]) {
        self.group(key).fetch_add(CHANGE + WRITE, Ordering::SeqCst);
        self.remove(key);
    }

    /// Notes that the reply to a write has come, or that none will come.
    pub(crate) fn end_write(&self, key: &[u8]) {
        self.remove(key);
        self.group(key).fetch_add(CHANGE - WRITE, Ordering::SeqCst);
    }

    /// Removes all copies.
    pub(crate) fn clear(&self) {
        for group in &self.groups {
            group.fetch_add(CHANGE, Ordering::SeqCst);
        }
        let _ = self.records.clear(&mut || {});
    }

    /// Returns the number of reads that found a copy, the number of those that did not, and the
    /// number of bytes of memory.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let [hits, misses] = [&self.hits, &self.misses].map(|count| count.load(Ordering::Relaxed));
        [hits, misses, self.records.status().committed_bytes]
    }

    fn group(&self, key: &[u8]) -> &AtomicU64 {
        &self.groups[xxh3_64(key) as usize % GROUPS]
    }

    fn remove(&self, key: &[u8]) {
        let _ = self.records.visit(key, &mut Remove);
    }

    fn ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_millis() as u64
    }
}

/// Stores a copy, unless there is one: it keeps its time.
struct Keep<'v> {
    value: &'v [u8],
    attributes: Attributes,
    now_ms: u64,
}

impl Visitor for Keep<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let time = old.and_then(|record| record.value.first_chunk::<TIME_LEN>().copied());
        match time {
            Some(time) if u64::from_le_bytes(time) > self.now_ms => Action::Keep,
            _ => Action::Put(Record::new(self.value, self.attributes)),
        }
    }
}

struct Remove;

impl Visitor for Remove {
    fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
        Action::Remove
    }

    fn overwrites(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(ttl: Duration) -> NearSettings {
        NearSettings { ttl, bytes_max: 1 << 20, records_max: None, hot: false, coalesces: false }
    }

    fn value_of(cache: &NearCache, now: Instant) -> Result<Vec<u8>, NearFill> {
        let mut value = Vec::new();
        cache.read(b"k", now, &mut |record| value = record.value.to_vec()).map(|()| value)
    }

    #[test]
    fn copy_lives_for_its_time() {
        let second = Duration::from_secs(1);
        let cache = NearCache::new(settings(second)).unwrap();
        let start = cache.started;
        let fill = value_of(&cache, start).unwrap_err();
        let record = |value| Record::new(value, Attributes::default());
        cache.fill(b"k", fill, start, &record(b"one"));
        // A copy keeps its time.
        cache.fill(b"k", fill, start + second / 2, &record(b"two"));
        assert_eq!(value_of(&cache, start + second / 2), Ok(b"one".to_vec()));
        assert_eq!(value_of(&cache, start + second), Err(fill));
        cache.fill(b"k", fill, start + second, &record(b"three"));
        assert_eq!(value_of(&cache, start + second), Ok(b"three".to_vec()));
        assert_eq!(cache.counts()[..2], [2, 2]);
    }

    #[test]
    fn frequent_keys_alone_are_kept() {
        let second = Duration::from_secs(1);
        let cache = NearCache::new(NearSettings { hot: true, ..settings(second) }).unwrap();
        let record = Record::new(b"v", Attributes::default());
        // The first three requests are not within one second.
        for (at_ms, is_found) in [(0, false), (600, false), (1200, false), (1500, false), (1600, true)] {
            let now = cache.started + Duration::from_millis(at_ms);
            match value_of(&cache, now) {
                Ok(_) => assert!(is_found, "{at_ms}"),
                Err(fill) => {
                    assert!(!is_found, "{at_ms}");
                    cache.fill(b"k", fill, now, &record);
                }
            }
        }
    }

    #[test]
    fn reads_join_unless_a_write_is_between() {
        let cache = NearCache::new(settings(Duration::from_secs(1))).unwrap();
        let now = cache.started;
        let begin = || value_of(&cache, now).unwrap_err();
        let first = begin();
        assert!(begin().may_join(first));
        cache.begin_write(b"k");
        let during = begin();
        assert!(!during.may_join(first) && !begin().may_join(during));
        cache.end_write(b"k");
        let after = begin();
        assert!(!after.may_join(first) && !after.may_join(during) && begin().may_join(after));
        cache.clear();
        assert!(!begin().may_join(after));
        let other = NearCache::new(settings(Duration::from_secs(1))).unwrap();
        assert!(!value_of(&other, now).unwrap_err().may_join(first));
    }

    #[test]
    fn writes_remove_copies_and_stop_reads() {
        let cache = NearCache::new(settings(Duration::from_secs(1))).unwrap();
        let now = cache.started;
        let record = Record::new(b"old", Attributes::default());
        let before = value_of(&cache, now).unwrap_err();
        cache.fill(b"k", before, now, &record);
        cache.begin_write(b"k");
        // Neither a read that began before the write nor one that began during it is kept.
        let during = value_of(&cache, now).unwrap_err();
        cache.fill(b"k", before, now, &record);
        cache.fill(b"k", during, now, &record);
        assert!(value_of(&cache, now).is_err());
        cache.end_write(b"k");
        cache.fill(b"k", during, now, &record);
        let after = value_of(&cache, now).unwrap_err();
        cache.fill(b"k", after, now, &record);
        assert_eq!(value_of(&cache, now), Ok(b"old".to_vec()));
        cache.clear();
        cache.fill(b"k", after, now, &record);
        assert!(value_of(&cache, now).is_err());
    }
}
