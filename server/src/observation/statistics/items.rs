//! `stats items`: what memcached tells of the queues of each class.
//!
//! The small queue of S3-FIFO, where all records begin and most of those that go are found, is told as the cold one; the
//! main queue, which is for what has been used, as the warm one. Nothing is ever hot. How many there are in each, and ages,
//! are estimated from the engine's sample ([`todana_core::Survey`]), which is exact for some hundred records.

use super::{Class, Writer, classes};
use crate::shared::Shared;
use todana_core::SurveyedClass;
use todana_protocol::memcached::ITEM_OVERHEAD_BYTES;

pub(super) fn put(shared: &Shared, w: &mut Writer<'_, '_>) {
    for class in classes(shared).iter().filter(|class| has_something(class)) {
        let (held, happened) = (class.held, class.happened);
        let SurveyedClass { records: sampled, kept, age_s, kept_age_s } = class.surveyed;
        let warm = share(held.records, kept, sampled);
        let mut put = |name: &str, value: u64| w.put_in("items:", class.number, name, value);
        put("number", held.records);
        put("number_hot", 0);
        put("number_warm", warm);
        put("number_cold", held.records - warm);
        put("age_hot", 0);
        put("age_warm", kept_age_s);
        put("age", if kept < sampled { age_s } else { kept_age_s });
        put("mem_requested", held.plain_bytes + held.records * ITEM_OVERHEAD_BYTES);
        put("evicted", held.evictions);
        put("evicted_nonzero", held.evictions_with_expiry);
        put("evicted_time", held.evicted_idle_s);
        put("outofmemory", happened.out_of_memory);
        put("tailrepairs", 0);
        put("reclaimed", held.reclaimed + held.cleared + happened.reclaimed);
        put("expired_unfetched", held.expired_unfetched);
        put("evicted_unfetched", held.evicted_unfetched);
        put("evicted_active", 0);
        put("crawler_reclaimed", held.swept);
        put("crawler_items_checked", held.swept_over);
        put("lrutail_reflocked", 0);
        put("moves_to_cold", 0);
        put("moves_to_warm", held.promotions);
        put("moves_within_lru", held.second_chances);
        put("direct_reclaims", held.evictions_by_writes);
        put("hits_to_hot", 0);
        put("hits_to_warm", 0);
        put("hits_to_cold", happened.get_hits);
        put("hits_to_temp", 0);
    }
}

/// Whether there are records of the class, or some have gone by themselves.
fn has_something(class: &Class) -> bool {
    let (held, happened) = (class.held, class.happened);
    let gone = held.evictions + held.reclaimed + held.swept + held.expired_unfetched;
    held.records + gone + happened.out_of_memory + happened.reclaimed > 0
}

/// As much of `all` as `part` is of a sample.
fn share(all: u64, part: u64, sampled: u64) -> u64 {
    if sampled == 0 {
        return 0;
    }
    // A sample is some thousands at most, and what there is fits in memory.
    (u128::from(all) * u128::from(part) / u128::from(sampled)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_that_of_the_sample_and_none_of_no_sample() {
        assert_eq!([share(10, 3, 10), share(1_000_000, 1, 3), share(7, 0, 0)], [3, 333_333, 0]);
    }
}
