//! Computes figures by size class. The classes are those of memcached. The figures describe the
//! queues of the records of each class, and the memory that memcached would use for them.
//!
//! The small queue of S3-FIFO is reported as memcached's cold queue: all records begin there, and
//! most evictions happen there. The main queue, for records that were used again, is reported as
//! the warm queue. The hot queue is always empty. The lengths of the queues and the ages are
//! estimates from the engine's sample ([`todana_core::RecordSample`]), which is exact as long as it
//! contains all records.
//!
//! Engines count records by size and report removals. All other figures of classes come from this
//! module and from `class_events`. Engines must do the counting by size because tools list keys
//! class by class: if the sample did the counting, classes without a sampled record would be
//! missing.

use super::{MeasurementValue, table};
use crate::observation::class_events::ClassEvent::{
    Cleared, Displaced, Evicted, EvictedByWrite, EvictedIdle, EvictedUnread, EvictedWithExpiry,
    ExpiredUnread, Promoted, Spared, Swept,
};
use crate::observation::class_events::{ClassEvents, class_of};
use crate::shared::SharedState;
use todana::ClassCounters;
use todana_core::{SampledRecord, SizeClass};
use todana_protocol::memcached::{CHUNK_SIZES, ITEM_OVERHEAD_BYTES};

/// The size of memcached's slab pages, in which `stats slabs` reports memory.
const SLAB_PAGE: u64 = 1 << 20;

/// The figures of one of memcached's size classes.
#[derive(Clone, Default)]
pub(crate) struct ClassReadings {
    /// The number of the class in memcached.
    pub(crate) number: usize,
    held: SizeClass,
    events: ClassEvents,
    happened: ClassCounters,
    /// The number of records of this class that sweeps have read.
    swept_over: u64,
    sampled: SampledClass,
}

/// The records of a class that are in the engine's sample.
#[derive(Clone, Default)]
struct SampledClass {
    records: u64,
    /// The number of sampled records in the main queue.
    kept: u64,
    /// The longest time that a sampled record has not been used: in the small queue, and in the
    /// main queue.
    age_s: u64,
    kept_age_s: u64,
}

/// Returns all classes that hold records or have counted events. Records that are too large for any
/// class count in the last one.
pub(crate) fn classes(shared: &SharedState) -> Vec<ClassReadings> {
    let last = CHUNK_SIZES.len();
    let database = &shared.databases.primary().database;
    let (status, seen) = (database.status(), database.sweeps().seen);
    let mut classes = vec![ClassReadings::default(); last];
    for (index, held) in status.classes.iter().enumerate() {
        classes[index.min(last - 1)].held += *held;
    }
    for (index, happened) in database.counters_by_class().iter().enumerate() {
        classes[index.min(last - 1)].happened += *happened;
    }
    for record in database.engine().sample_records().records {
        classes[class_of(record.plain_size as usize) - 1].sampled.add(&record);
    }
    for (index, class) in classes.iter_mut().enumerate() {
        class.number = index + 1;
        class.events = shared.observation.observers.classes.of(class.number);
        class.swept_over = share(seen, class.held.records, status.records);
    }
    classes.retain(|class| {
        (class.held, class.happened, class.events)
            != (SizeClass::default(), ClassCounters::default(), ClassEvents::default())
    });
    classes
}

impl SampledClass {
    fn add(&mut self, record: &SampledRecord) {
        self.records += 1;
        self.kept += u64::from(record.is_kept);
        let age = if record.is_kept { &mut self.kept_age_s } else { &mut self.age_s };
        *age = record.idle_s.max(*age);
    }
}

impl ClassReadings {
    pub(crate) fn records(&self) -> u64 {
        self.held.records
    }

    /// Returns true if `stats items` shows the class: it has records, or some of its records were
    /// removed without a request of a client.
    pub(crate) fn has_items(&self) -> bool {
        let gone = [Evicted, Displaced, Swept, ExpiredUnread].iter().any(|event| self.events.get(*event) > 0);
        gone || self.held.records + self.happened.out_of_memory + self.happened.reclaimed > 0
    }

    /// Returns the number of records in the main queue, estimated from the sample.
    fn warm(&self) -> u64 {
        share(self.held.records, self.sampled.kept, self.sampled.records)
    }

    fn age_s(&self) -> u64 {
        if self.sampled.kept < self.sampled.records { self.sampled.age_s } else { self.sampled.kept_age_s }
    }

    fn reclaimed(&self) -> u64 {
        self.events.get(Displaced) + self.events.get(Cleared) + self.happened.reclaimed
    }

    /// Returns the size of the records as memcached counts it.
    fn requested_bytes(&self) -> u64 {
        self.held.plain_bytes + self.held.records * ITEM_OVERHEAD_BYTES
    }

    fn chunk(&self) -> u64 {
        u64::from(CHUNK_SIZES[self.number - 1])
    }

    fn chunks_per_page(&self) -> u64 {
        SLAB_PAGE / self.chunk()
    }

    fn chunks_used(&self) -> u64 {
        self.held.records.max(self.requested_bytes().div_ceil(self.chunk()))
    }

    fn pages(&self) -> u64 {
        self.chunks_used().div_ceil(self.chunks_per_page())
    }
}

table! { ITEMS, "Classes",
    "`slab` is the number of the class in which memcached would store a record of that size. Todana has\n\
     no such classes, so the statistics of slabs and queues show the figures that memcached would have.\n\
     Only classes with records or events are shown. `stats items` shows these rows with the number of the\n\
     class, as in `items:1:number`.", |_s, c: ClassReadings|
    "number", _, "memcached_slab_current_items", Gauge, "Records of the class." => c.held.records;
    "number_hot", _, "memcached_slab_hot_items", Gauge, "Records in memcached's hot queue; always 0." => 0u64;
    "number_warm", _, "memcached_slab_warm_items", Gauge, "Records in the main queue, estimated." => c.warm();
    "number_cold", _, "memcached_slab_cold_items", Gauge, "Records that are not in the main queue." => c.held.records - c.warm();
    "age_hot", _, "memcached_slab_hot_age_seconds", Gauge, "Age of the oldest record in memcached's hot queue; always 0." => 0u64;
    "age_warm", _, "memcached_slab_warm_age_seconds", Gauge, "Age of the oldest record in the main queue, estimated." => c.sampled.kept_age_s;
    "age", _, "memcached_slab_items_age_seconds", Gauge, "Age of the oldest record." => c.age_s();
    "mem_requested", _, "memcached_slab_mem_requested_bytes", Gauge, "Size of the records as memcached counts it." => c.requested_bytes();
    "evicted", _, "memcached_slab_items_evicted_total", Counter, "Records evicted." => c.events.get(Evicted);
    "evicted_nonzero", _, "memcached_slab_items_evicted_nonzero_total", Counter, "Evicted records with an expiry." =>
        c.events.get(EvictedWithExpiry);
    "evicted_time", _, "memcached_slab_items_evicted_time_seconds", Counter,
        "Idle time of the last evicted record, in seconds." => c.events.get(EvictedIdle);
    "outofmemory", _, "memcached_slab_items_outofmemory_total", Counter,
        "Stores by any command for which there was no memory." => c.happened.out_of_memory;
    "tailrepairs", _, "memcached_slab_items_tailrepairs_total", Counter, "memcached's repairs; always 0." => 0u64;
    "reclaimed", _, "memcached_slab_items_reclaimed_total", Counter,
        "Expired and flushed records whose memory was taken back." => c.reclaimed();
    "expired_unfetched", _, "memcached_slab_items_expired_unfetched_total", Counter, "Expired records that were never read, estimated." =>
        c.events.get(ExpiredUnread);
    "evicted_unfetched", _, "memcached_slab_items_evicted_unfetched_total", Counter, "Evicted records that were never read, estimated." =>
        c.events.get(EvictedUnread);
    "evicted_active", _, _, Counter, "Always 0." => 0u64;
    "crawler_reclaimed", _, "memcached_slab_items_crawler_reclaimed_total", Counter, "Expired records that sweeps removed." =>
        c.events.get(Swept);
    "crawler_items_checked", _, _, Counter, "Records of the class that sweeps have read, estimated." => c.swept_over;
    "lrutail_reflocked", _, _, Counter, "Always 0." => 0u64;
    "moves_to_cold", _, "memcached_slab_items_moves_to_cold", Counter, "Records moved to the cold queue; always 0." => 0u64;
    "moves_to_warm", _, "memcached_slab_items_moves_to_warm", Counter, "Records moved to the main queue, because they were used." =>
        c.events.get(Promoted);
    "moves_within_lru", _, "memcached_slab_items_moves_within_lru", Counter,
        "Records that stayed in the main queue, because they were used again." => c.events.get(Spared);
    "direct_reclaims", _, _, Counter, "Evictions during a write, instead of in the background." => c.events.get(EvictedByWrite);
    "hits_to_hot", _, "memcached_slab_lru_hits_total{lru=hot}", Counter,
        "Reads that found a record, by memcached's queue; all are in `cold`." => 0u64;
    "hits_to_warm", _, "memcached_slab_lru_hits_total{lru=warm}", Counter, "Always 0." => 0u64;
    "hits_to_cold", _, "memcached_slab_lru_hits_total{lru=cold}", Counter, "Reads that found a record." => c.happened.get_hits;
    "hits_to_temp", _, "memcached_slab_lru_hits_total{lru=temporary}", Counter, "Always 0." => 0u64;
}

table! { SLABS, "Memory of classes", "`stats slabs` shows these rows with the number of the class, as in `1:chunk_size`.", |_s, c: ClassReadings|
    "chunk_size", _, "memcached_slab_chunk_size_bytes", Gauge, "The largest record of the class, header included." => c.chunk();
    "chunks_per_page", _, "memcached_slab_chunks_per_page", Gauge, "Chunks in one of memcached's pages." => c.chunks_per_page();
    "total_pages", _, "memcached_slab_current_pages", Gauge, "Pages that memcached would need." => c.pages();
    "total_chunks", _, "memcached_slab_current_chunks", Gauge, "Chunks in those pages." => c.pages() * c.chunks_per_page();
    "used_chunks", _, "memcached_slab_chunks_used", Gauge, "Chunks that hold a record." => c.chunks_used();
    "free_chunks", _, "memcached_slab_chunks_free", Gauge, "Chunks that hold no record." =>
        c.pages() * c.chunks_per_page() - c.chunks_used();
    "free_chunks_end", _, "memcached_slab_chunks_free_end", Gauge, "Chunks at the end of the last page that were never used; always 0." => 0u64;
    "get_hits", _, "memcached_slab_commands_total{command=get,status=hit}", Counter,
        "Requests that found a record, by class, command and outcome." => c.happened.get_hits;
    "cmd_set", _, _, Counter, "Stores, including compare-and-sets." => c.happened.cmd_set;
    _, _, "memcached_slab_commands_total{command=set,status=hit}", Counter, "Stores, except compare-and-sets." => plain_sets(&c.happened);
    "delete_hits", _, "memcached_slab_commands_total{command=delete,status=hit}", Counter, "Deletes." => c.happened.delete_hits;
    "incr_hits", _, "memcached_slab_commands_total{command=incr,status=hit}", Counter, "Increments." => c.happened.incr_hits;
    "decr_hits", _, "memcached_slab_commands_total{command=decr,status=hit}", Counter, "Decrements." => c.happened.decr_hits;
    "cas_hits", _, "memcached_slab_commands_total{command=cas,status=hit}", Counter, "Compare-and-sets that stored a value." =>
        c.happened.cas_hits;
    "cas_badval", _, "memcached_slab_commands_total{command=cas,status=badval}", Counter,
        "Compare-and-sets that found another version." => c.happened.cas_badval;
    "touch_hits", _, "memcached_slab_commands_total{command=touch,status=hit}", Counter, "Touches." => c.happened.touch_hits;
}

table! { CLASS_TOTALS, "Memory of all classes", "", |_s, classes: Vec<ClassReadings>|
    "active_slabs", _, _, Gauge, "Classes that hold records." => classes.iter().filter(|class| class.pages() > 0).count();
    "total_malloced", _, "memcached_malloced_bytes", Gauge, "Memory that memcached's slab pages would take for these records." =>
        classes.iter().map(|class| class.pages() * SLAB_PAGE).sum::<u64>();
}

fn plain_sets(happened: &ClassCounters) -> MeasurementValue {
    MeasurementValue::Difference { all: happened.cmd_set, part: happened.cas_hits + happened.cas_badval }
}

/// Estimates the part of `all`: `part` divided by `sampled` is the share of this part in the
/// sample.
fn share(all: u64, part: u64, sampled: u64) -> u64 {
    if sampled == 0 {
        return 0;
    }
    // The product does not overflow: a sample has at most some thousands of records, and the number
    // of all records is limited by the memory.
    (u128::from(all) * u128::from(part) / u128::from(sampled)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_an_empty_sample_is_zero() {
        assert_eq!([share(10, 3, 10), share(1_000_000, 1, 3), share(7, 0, 0)], [3, 333_333, 0]);
    }
}
