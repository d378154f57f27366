//! Requirements on engines in memory with a limit.

#[macro_use]
mod in_memory;
mod visitor;

use todana_core::{
    Action, Attributes, Engine, ErrorKind, MemoryLimit, Record, SharedBytes, ValueBuffer, Visitor, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions, MemTree, MemTreeOptions};
use visitor::{Remove, Set};

/// Creates an engine.
type Make = fn(MemoryLimit) -> Box<dyn Engine>;

engines_in_memory! {
    |limit| {
        let options = MemHashOptions { shards: Some(2), seed: Some(1), limit, ..Default::default() };
        Box::new(MemHash::new(options).unwrap())
    },
    |limit| {
        Box::new(MemTree::new(MemTreeOptions { partitions: Some(2), limit, ..Default::default() }).unwrap())
    },
    eviction_keeps_any_sizes_within_the_limit
    huge_record_evicts_others_but_oversized_one_fails
    key_beyond_the_limit_is_refused
    without_eviction_the_limit_refuses_and_forgets_nothing
    a_lowered_limit_is_reached_by_housekeeping
    full_engine_evicts_oldest_records_first
    memory_follows_the_live_bytes_after_mass_deletion
    full_engine_accepts_new_attributes
    memory_counts_until_the_system_has_it_back
    value_counts_until_its_last_reader_drops_it
    buffer_counts_as_filled_and_becomes_the_value
    buffer_evicts_others_only_up_to_its_share
    buffers_share_half_of_a_full_memory
    buffer_is_refused_without_eviction
}

const UNLIMITED: MemoryLimit = MemoryLimit { bytes: None, when_full: WhenFull::Evict };

struct Retag(Attributes);

impl Visitor for Retag {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Retag(self.0)
    }
}

fn within(bytes: u64, when_full: WhenFull) -> MemoryLimit {
    MemoryLimit { bytes: Some(bytes), when_full }
}

fn put(engine: &dyn Engine, key: &str, value: &[u8]) -> todana_core::Result<()> {
    engine.visit(key.as_bytes(), &mut Set(value))
}

fn holds(engine: &dyn Engine, key: &str) -> bool {
    engine.view(key.as_bytes(), &mut |_| {}).unwrap()
}

fn eviction_keeps_any_sizes_within_the_limit(make: Make) {
    let limit = 16 << 20;
    let engine = make(within(limit, WhenFull::Evict));
    let mut random = fastrand::Rng::with_seed(5);
    // Sizes change as they do in practice: tiny, hundreds of bytes, kilobytes, tiny again.
    for (round, sizes) in [1..20, 100..400, 2000..9000, 1..1200, 30_000..60_000, 1..9].into_iter().enumerate()
    {
        for n in 0..(60 << 20) / (sizes.end + 40) {
            let value = vec![b'v'; random.usize(sizes.clone())];
            let key = format!("{round}:{n}");
            put(&*engine, &key, &value).unwrap_or_else(|error| panic!("{key}, {sizes:?}: {error}"));
            assert!(holds(&*engine, &key), "what was just stored is there");
            assert!(engine.status().committed_bytes <= limit + (64 << 10), "{:?}", engine.status());
        }
        assert!(
            engine.status().live_bytes > limit * 6 / 10,
            "the limit is made use of: {:?}",
            engine.status()
        );
    }
    assert!(engine.status().evictions > 0);
}

fn huge_record_evicts_others_but_oversized_one_fails(make: Make) {
    let engine = make(within(8 << 20, WhenFull::Evict));
    for n in 0..100_000 {
        put(&*engine, &format!("small:{n}"), b"some value of some length").unwrap();
    }
    put(&*engine, "huge", &vec![1; 3 << 20]).unwrap();
    assert!(holds(&*engine, "huge"));
    let error = put(&*engine, "monstrous", &vec![1; 8000 << 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(holds(&*engine, "huge"), "a refusal costs nobody anything");
}

/// Keys were once not counted before they were stored.
fn key_beyond_the_limit_is_refused(make: Make) {
    const LIMIT: u64 = 8 << 20;
    for when_full in [WhenFull::Evict, WhenFull::Refuse] {
        let engine = make(within(LIMIT, when_full));
        for n in 0..30_000 {
            put(&*engine, &format!("small:{n}"), b"some value of some length").unwrap();
        }
        let key = "k".repeat(16 << 20);
        let error = put(&*engine, &key, b"v").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(engine.status().records, 30_000, "a refusal costs nobody anything");
        // The key and the value fit only one without the other.
        let status = engine.status();
        let is_stored = put(&*engine, &key[..3 << 20], &vec![b'v'; 5 << 20]).is_ok();
        assert!(!is_stored && engine.status().committed_bytes <= LIMIT, "{status:?}");
        let mut stored = 0;
        for first in 'a'..='h' {
            stored += u32::from(put(&*engine, &format!("{first}{}", &key[..1 << 20]), b"v").is_ok());
            assert!(engine.status().committed_bytes <= LIMIT + (64 << 10), "{:?}", engine.status());
        }
        assert!(stored > 3, "{stored}");
    }
}

fn without_eviction_the_limit_refuses_and_forgets_nothing(make: Make) {
    let engine = make(within(2 << 20, WhenFull::Refuse));
    let mut stored = Vec::new();
    let mut refused = 0;
    for n in 0..60_000 {
        let key = format!("key:{n}");
        match put(&*engine, &key, b"a value of forty bytes, more or less, so") {
            Ok(()) => stored.push(key),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full);
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && stored.len() > 20_000, "{refused} {}", stored.len());
    assert!(stored.iter().all(|key| holds(&*engine, key)));
    assert_eq!(engine.status().evictions, 0);
    // Removal works at the limit and makes room.
    for key in stored.iter().step_by(2) {
        engine.visit(key.as_bytes(), &mut Remove).unwrap();
    }
    while engine.maintain() {}
    put(&*engine, "room again", &vec![b'x'; 10_000]).unwrap();
}

fn a_lowered_limit_is_reached_by_housekeeping(make: Make) {
    let engine = make(within(16 << 20, WhenFull::Evict));
    for n in 0..150_000 {
        put(&*engine, &format!("key:{n}"), b"a value of forty bytes, more or less, so").unwrap();
    }
    let before = engine.status().committed_bytes;
    assert!(before > 6 << 20, "{before}");
    engine.bounded().unwrap().set_limit(MemoryLimit { bytes: Some(3 << 20), when_full: WhenFull::Evict });
    let mut rounds = 0;
    while engine.maintain() {
        rounds += 1;
        assert!(rounds < 100_000);
    }
    assert!(engine.status().committed_bytes <= 3 << 20, "{:?}", engine.status());
    assert!(engine.status().records > 10_000);
}

fn full_engine_evicts_oldest_records_first(make: Make) {
    let engine = make(within(2 << 20, WhenFull::Evict));
    for n in 0..200_000 {
        put(&*engine, &format!("key:{n}"), b"a value of forty bytes, more or less, so").unwrap();
    }
    let held = |range: std::ops::Range<u32>| range.filter(|n| holds(&*engine, &format!("key:{n}"))).count();
    // About 29,000 fit. A bucket of a few records is a small sample, so the boundary is soft; far
    // from it the result is certain.
    assert!(held(0..100_000) < 2000, "{}", held(0..100_000));
    assert!(held(190_000..200_000) > 8000, "{}", held(190_000..200_000));
}

fn memory_follows_the_live_bytes_after_mass_deletion(make: Make) {
    let engine = make(UNLIMITED);
    let value = |n: u32, salt: u32| {
        vec![b'v'; (20 + n.wrapping_mul(2_654_435_761).wrapping_add(salt) % 181) as usize]
    };
    for salt in [1, 77, 1234] {
        for n in 0..200_000 {
            put(&*engine, &format!("key:{n:012}"), &value(n, salt)).unwrap();
        }
    }
    for n in (0..200_000).filter(|n| n % 5 != 0) {
        engine.visit(format!("key:{n:012}").as_bytes(), &mut Remove).unwrap();
    }
    while engine.maintain() {}
    let status = engine.status();
    assert_eq!(status.records, 40_000);
    let allowed = status.live_bytes + status.live_bytes / 10 + (1 << 20);
    assert!(status.committed_bytes <= allowed, "{status:?}");
}

fn full_engine_accepts_new_attributes(make: Make) {
    let engine = make(within(2 << 20, WhenFull::Refuse));
    let mut keys = Vec::new();
    for n in 0.. {
        let key = format!("key:{n}");
        if put(&*engine, &key, b"some value").is_err() {
            break;
        }
        keys.push(key);
    }
    let attributes = Attributes { version: u64::MAX, ..Attributes::default() };
    for key in &keys {
        engine.visit(key.as_bytes(), &mut Retag(attributes)).unwrap();
        let mut version = 0;
        engine.view(key.as_bytes(), &mut |record| version = record.attributes.version).unwrap();
        assert_eq!(version, u64::MAX, "{key}");
    }
    let refused = (0..keys.len()).any(|n| put(&*engine, &format!("more:{n}"), b"some value").is_err());
    assert!(refused, "the limit stands for what is new");
}

/// A large value was released from the budget before it was unmapped. Others could take its memory
/// meanwhile, and the process exceeded its limit.
fn memory_counts_until_the_system_has_it_back(make: Make) {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let engine = make(UNLIMITED);
    let mut buffer = engine.buffer(256 << 20).unwrap();
    while buffer.filled() < buffer.len() {
        let piece = engine.room(&mut *buffer, 1 << 20).unwrap();
        piece.fill(1);
        let len = piece.len();
        buffer.advance(len);
    }
    let before = resident();
    assert!(engine.status().committed_bytes >= 256 << 20, "{:?}", engine.status());
    let giving_back = std::thread::spawn(move || drop(buffer));
    while engine.status().committed_bytes >= 256 << 20 {
        std::hint::spin_loop();
    }
    // Other tests allocate and free some tens of MB meanwhile.
    let after = resident();
    assert!(after + (160 << 20) < before, "{before} {after}");
    giving_back.join().unwrap();
}

fn value_counts_until_its_last_reader_drops_it(make: Make) {
    let engine = make(within(8 << 20, WhenFull::Refuse));
    let empty = engine.status().committed_bytes;
    put(&*engine, "huge", &vec![1; 3 << 20]).unwrap();
    let mut reader = None;
    engine.view(b"huge", &mut |record| reader = record.shared.cloned()).unwrap();
    engine.visit(b"huge", &mut Remove).unwrap();
    assert!(!holds(&*engine, "huge"));
    assert!(engine.status().committed_bytes >= empty + (3 << 20), "{:?}", engine.status());
    let error = put(&*engine, "other", &vec![1; 6 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(reader.as_ref().unwrap().plain().unwrap(), &vec![1; 3 << 20]);
    drop(reader);
    assert!(engine.status().committed_bytes < empty + (1 << 20), "{:?}", engine.status());
    put(&*engine, "other", &vec![1; 6 << 20]).unwrap();
}

/// Fills a buffer up to this length. Stops when there is no room.
fn fill(engine: &dyn Engine, buffer: &mut dyn ValueBuffer, len: usize) -> todana_core::Result<()> {
    while buffer.filled() < len {
        let left = (len - buffer.filled()).min(100_000);
        let at = buffer.filled();
        let room = engine.room(buffer, left)?;
        assert!((1..=left).contains(&room.len()), "{} of {left}", room.len());
        room.iter_mut().enumerate().for_each(|(n, byte)| *byte = (at + n) as u8);
        let len = room.len();
        buffer.advance(len);
    }
    Ok(())
}

struct PutShared(SharedBytes);

impl Visitor for PutShared {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        let record = Record::new(self.0.plain().unwrap(), Attributes::default());
        Action::Put(Record { shared: Some(&self.0), ..record })
    }
}

fn buffer_counts_as_filled_and_becomes_the_value(make: Make) {
    let engine = make(within(8 << 20, WhenFull::Evict));
    let empty = engine.status().committed_bytes;
    let committed = |engine: &dyn Engine| engine.status().committed_bytes - empty;
    let mut buffer = engine.buffer(3_000_001).unwrap();
    assert_eq!((buffer.len(), buffer.filled(), committed(&*engine)), (3_000_001, 0, 0));
    // Unused room is given back.
    assert_eq!(engine.room(&mut *buffer, 50_000).unwrap().len(), 50_000);
    assert_eq!(committed(&*engine), 53_248);
    buffer.advance(1);
    assert_eq!(committed(&*engine), 4096);
    engine.room(&mut *buffer, 10).unwrap()[0] = 7;
    buffer.advance(0);
    assert_eq!((buffer.filled(), committed(&*engine)), (1, 4096));
    fill(&*engine, &mut *buffer, 3_000_001).unwrap();
    assert!(engine.room(&mut *buffer, 10).unwrap().is_empty());
    assert_eq!(committed(&*engine), 3_002_368);
    let value = buffer.into_shared();
    let address = value.plain().unwrap().as_ptr();
    engine.visit(b"huge", &mut PutShared(value)).unwrap();
    let seen = engine.view(b"huge", &mut |record| {
        assert_eq!(record.value.as_ptr(), address, "it has not been copied");
        assert!(record.value[1..].iter().enumerate().all(|(n, byte)| *byte == (n + 1) as u8));
    });
    assert!(seen.unwrap());
    assert!(committed(&*engine) < 3_002_368 + (64 << 10), "{}", committed(&*engine));
    engine.visit(b"huge", &mut Remove).unwrap();
    assert!(committed(&*engine) < 64 << 10, "{}", committed(&*engine));
    let mut buffer = engine.buffer(3_000_000).unwrap();
    fill(&*engine, &mut *buffer, 2_000_000).unwrap();
    drop(buffer);
    assert!(committed(&*engine) < 64 << 10, "{}", committed(&*engine));
}

fn buffer_evicts_others_only_up_to_its_share(make: Make) {
    let engine = make(within(8 << 20, WhenFull::Evict));
    for n in 0..300_000 {
        put(&*engine, &format!("small:{n}"), b"some value of some length").unwrap();
    }
    let full = engine.status().records;
    assert_eq!(engine.buffer(8 << 20).err().unwrap().kind(), ErrorKind::Full, "the whole memory");
    // A value may use more than half of the limit beside another one that uses at most a quarter;
    // the other one may not grow then.
    let (mut one, mut two) = (engine.buffer(5 << 20).unwrap(), engine.buffer(5 << 20).unwrap());
    assert_eq!(engine.status().records, full, "an announcement takes nothing");
    fill(&*engine, &mut *one, 2 << 20).unwrap();
    fill(&*engine, &mut *two, 1 << 20).unwrap();
    fill(&*engine, &mut *one, 5 << 20).unwrap();
    assert_eq!(fill(&*engine, &mut *two, 5 << 20).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(two.filled(), 1 << 20, "it keeps what it has");
    // A complete value that waits for nothing is not delayed by stalled ones.
    drop(one);
    let mut three = engine.buffer(3 << 20).unwrap();
    fill(&*engine, &mut *two, 2 << 20).unwrap();
    fill(&*engine, &mut *three, 2 << 20).unwrap();
    let mut at_once = engine.buffer(2 << 20).unwrap();
    assert_eq!(engine.room(&mut *at_once, 100).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(engine.room(&mut *at_once, 2 << 20).unwrap().len(), 2 << 20);
    at_once.advance(2 << 20);
    drop((two, three, at_once));
    let mut one = engine.buffer(5 << 20).unwrap();
    fill(&*engine, &mut *one, 5 << 20).unwrap();
    engine.visit(b"huge", &mut PutShared(one.into_shared())).unwrap();
    assert!(holds(&*engine, "huge"));
    assert!(engine.status().committed_bytes <= (8 << 20) + (64 << 10), "{:?}", engine.status());
}

fn buffers_share_half_of_a_full_memory(make: Make) {
    let engine = make(within(64 << 20, WhenFull::Evict));
    for n in 0..70 {
        put(&*engine, &format!("stored:{n}"), &vec![b'v'; 1 << 20]).unwrap();
    }
    assert!(engine.status().evictions > 0, "it is full");
    // Eight values of 6 MiB are received together, one piece of each in turn. Four fit into half of
    // the limit, and records are evicted for them.
    let mut coming: Vec<_> = (0..8).map(|_| engine.buffer(6 << 20).unwrap()).collect();
    let mut refused = 0;
    for mib in 1..=6 {
        coming.retain_mut(|buffer| match fill(&*engine, &mut **buffer, mib << 20) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                refused += 1;
                false
            }
        });
        let held: usize = coming.iter().map(|buffer| buffer.filled()).sum();
        assert!(held <= 32 << 20, "{held} bytes are on their way");
        assert!(engine.status().committed_bytes <= 64 << 20, "{:?}", engine.status());
    }
    assert_eq!((coming.len(), refused), (5, 3));
    // Long values that have just begun do not take the space of short ones.
    let mut stalled: Vec<_> = (0..20).map(|_| engine.buffer(2 << 20).unwrap()).collect();
    stalled.retain_mut(|buffer| fill(&*engine, &mut **buffer, 1 << 20).is_ok());
    assert_eq!(stalled.len(), 2);
    let mut short = engine.buffer(1 << 20).unwrap();
    fill(&*engine, &mut *short, 1 << 20).unwrap();
    assert_eq!(fill(&*engine, &mut *stalled[0], 2 << 20).unwrap_err().kind(), ErrorKind::Busy);
    for (n, buffer) in coming.into_iter().chain([short]).enumerate() {
        engine.visit(format!("new:{n}").as_bytes(), &mut PutShared(buffer.into_shared())).unwrap();
        assert!(holds(&*engine, &format!("new:{n}")));
    }
    assert!(engine.status().committed_bytes <= 64 << 20, "{:?}", engine.status());
    // The share of values that have been received completely is free for unfinished ones.
    fill(&*engine, &mut *stalled[0], 2 << 20).unwrap();
}

fn buffer_is_refused_without_eviction(make: Make) {
    let engine = make(within(8 << 20, WhenFull::Refuse));
    put(&*engine, "huge", &vec![1; 5 << 20]).unwrap();
    assert_eq!(engine.buffer(4 << 20).err().unwrap().kind(), ErrorKind::Full);
    let mut buffer = engine.buffer(2 << 20).unwrap();
    put(&*engine, "other", &vec![1; 2 << 20]).unwrap();
    assert_eq!(fill(&*engine, &mut *buffer, 2 << 20).unwrap_err().kind(), ErrorKind::Full);
    drop(buffer);
    assert!(holds(&*engine, "huge") && holds(&*engine, "other"));
    let stranger = make(UNLIMITED);
    let mut buffer = stranger.buffer(100).unwrap();
    assert_eq!(engine.room(&mut *buffer, 1).unwrap_err().kind(), ErrorKind::Invalid);
}

/// The growth of other records was once made up for by one new record, under one lock.
#[test]
fn new_record_evicts_few_others() {
    let options = MemHashOptions { shards: Some(1), compresses: false, seed: Some(1), ..Default::default() };
    let hash = MemHash::new(options).unwrap();
    let set_limit = |bytes| hash.bounded().unwrap().set_limit(within(bytes, WhenFull::Evict));
    set_limit(4 << 20);
    for n in 0..200_000 {
        put(&hash, &format!("key:{n}"), b"a value of some length").unwrap();
    }
    assert!(hash.status().evictions > 0);
    set_limit(8 << 20);
    put(&hash, "first", b"v").unwrap();
    let held: Vec<String> =
        (0..200_000).map(|n| format!("key:{n}")).filter(|key| holds(&hash, key)).collect();
    let evicted = hash.status().evictions;
    'grow: for len in (30..200).step_by(4) {
        for key in &held {
            if hash.status().committed_bytes > (8 << 20) - (100 << 10) {
                break 'grow;
            }
            put(&hash, key, &vec![b'v'; len]).unwrap();
        }
    }
    assert_eq!(hash.status().evictions, evicted);
    put(&hash, "new", b"v").unwrap();
    let evicted = hash.status().evictions - evicted;
    assert!((1..100).contains(&evicted), "{evicted}");
}

#[test]
fn no_single_write_moves_more_than_64_kib() {
    let hash = MemHash::new(MemHashOptions { shards: Some(1), ..Default::default() }).unwrap();
    for n in 0..300_000u32 {
        put(&hash, &format!("{n:08}"), b"12345678").unwrap();
    }
    for n in (0..300_000u32).filter(|n| n % 7 != 0) {
        hash.visit(format!("{n:08}").as_bytes(), &mut Remove).unwrap();
    }
    assert!(hash.worst_moved_bytes() > 0);
    assert!(hash.worst_moved_bytes() <= 64 << 10, "{}", hash.worst_moved_bytes());
}
