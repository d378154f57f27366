//! A capacity by count, for simulations: what is held, what goes, what is refused.

use todana_core::{Action, Attributes, Engine, ErrorKind, Record, Visitor};
use todana_engine::{MemHash, MemHashOptions};

struct Set<'a>(&'a [u8]);

impl Visitor for Set<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }
}

fn hash(shards: usize, capacity: u64) -> MemHash {
    let options = MemHashOptions {
        seed: Some(1),
        shards: Some(shards),
        capacity_records: Some(capacity),
        ..Default::default()
    };
    MemHash::new(options).unwrap()
}

/// Bytes in a bucket, in a block of their own, on a mapping of their own.
const LENGTHS: [usize; 3] = [10, 5_000, 100_000];

#[test]
fn a_newcomer_takes_the_place_of_one_record_whatever_their_lengths() {
    for (shards, capacity) in [(1, 1), (1, 13), (4, 102)] {
        let hash = hash(shards, capacity);
        let mut set = 0;
        for n in 0..1000usize {
            let value = vec![b'v'; LENGTHS[n % 3]];
            hash.visit(format!("key {n}").as_bytes(), &mut Set(&value)).unwrap();
            set += 1;
            let status = hash.status();
            assert!(status.records <= capacity, "{} of {capacity}", status.records);
            assert_eq!(status.records + status.evictions, set);
            let mut found = 0;
            assert!(
                hash.view(format!("key {n}").as_bytes(), &mut |record| found = record.value.len()).unwrap()
            );
            assert_eq!(found, value.len(), "the newcomer itself stays");
        }
        assert_eq!(hash.status().records, capacity);
    }
}

#[test]
fn a_record_that_is_there_is_replaced_without_eviction() {
    let hash = hash(1, 20);
    for round in 0..5usize {
        for n in 0..20usize {
            let value = vec![b'v'; LENGTHS[(n + round) % 3]];
            hash.visit(format!("key {n}").as_bytes(), &mut Set(&value)).unwrap();
        }
    }
    assert_eq!((hash.status().records, hash.status().evictions), (20, 0));
}

#[test]
fn every_shard_needs_room_for_a_record() {
    let make = |capacity| {
        MemHash::new(MemHashOptions {
            shards: Some(8),
            capacity_records: Some(capacity),
            ..Default::default()
        })
    };
    assert!(make(8).is_ok());
    let error = make(7).err().expect("too few");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string(), "a capacity below 8 records, one a shard");
}
