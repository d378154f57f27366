//! `MemHash` within a memory limit.

#[allow(dead_code, reason = "each test file uses its part")]
mod model;

use model::{Decided, Decision};
use todana_core::{
    Action, Attributes, Buffer, Engine, ErrorKind, MemoryLimit, Record, SharedBytes, Visitor, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions};

fn hash(bytes: u64, when_full: WhenFull) -> MemHash {
    let limit = MemoryLimit { bytes: Some(bytes), when_full };
    MemHash::new(MemHashOptions { shards: Some(2), seed: Some(1), limit, ..Default::default() }).unwrap()
}

fn put(hash: &MemHash, key: &str, value: &[u8]) -> todana_core::Result<()> {
    hash.visit(key.as_bytes(), &mut Decided::new(Decision::Put(value.to_vec(), Attributes::default())))
}

fn holds(hash: &MemHash, key: &str) -> bool {
    hash.view(key.as_bytes(), &mut |_| {}).unwrap()
}

#[test]
fn eviction_keeps_within_the_limit_whatever_the_sizes_do() {
    let limit = 16 << 20;
    let hash = hash(limit, WhenFull::Evict);
    let mut random = fastrand::Rng::with_seed(5);
    // Sizes shift, as they do in the wild: tiny, then hundreds of bytes, then kilobytes, then tiny again.
    for (round, sizes) in [1..20, 100..400, 2000..9000, 1..1200, 30_000..60_000, 1..9].into_iter().enumerate()
    {
        for n in 0..(60 << 20) / (sizes.end + 40) {
            let value = vec![b'v'; random.usize(sizes.clone())];
            let key = format!("{round}:{n}");
            put(&hash, &key, &value).unwrap_or_else(|error| panic!("{key}, {sizes:?}: {error}"));
            assert!(holds(&hash, &key), "what was just stored is there");
            assert!(hash.status().committed_bytes <= limit + (64 << 10), "{:?}", hash.status());
        }
        assert!(hash.status().live_bytes > limit * 6 / 10, "the limit is made use of: {:?}", hash.status());
    }
    assert!(hash.status().evictions > 0);
}

#[test]
fn a_huge_record_pushes_others_out_and_a_monstrous_one_is_refused() {
    let hash = hash(8 << 20, WhenFull::Evict);
    for n in 0..100_000 {
        put(&hash, &format!("small:{n}"), b"some value of some length").unwrap();
    }
    put(&hash, "huge", &vec![1; 3 << 20]).unwrap();
    assert!(holds(&hash, "huge"));
    let error = put(&hash, "monstrous", &vec![1; 8000 << 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(holds(&hash, "huge"), "a refusal costs nobody anything");
}

#[test]
fn without_eviction_the_limit_refuses_and_forgets_nothing() {
    let hash = hash(2 << 20, WhenFull::Refuse);
    let mut stored = Vec::new();
    let mut refused = 0;
    for n in 0..60_000 {
        let key = format!("key:{n}");
        match put(&hash, &key, b"a value of forty bytes, more or less, so") {
            Ok(()) => stored.push(key),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full);
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && stored.len() > 20_000, "{refused} {}", stored.len());
    assert!(stored.iter().all(|key| holds(&hash, key)));
    assert_eq!(hash.status().evictions, 0);
    // Removal works at the limit, and makes room.
    for key in stored.iter().step_by(2) {
        hash.visit(key.as_bytes(), &mut Decided::new(Decision::Remove)).unwrap();
    }
    while hash.maintain() {}
    put(&hash, "room again", &vec![b'x'; 10_000]).unwrap();
}

#[test]
fn a_lowered_limit_is_reached_by_housekeeping() {
    let hash = hash(16 << 20, WhenFull::Evict);
    for n in 0..150_000 {
        put(&hash, &format!("key:{n}"), b"a value of forty bytes, more or less, so").unwrap();
    }
    let before = hash.status().committed_bytes;
    assert!(before > 6 << 20, "{before}");
    hash.bounded().unwrap().set_limit(MemoryLimit { bytes: Some(3 << 20), when_full: WhenFull::Evict });
    let mut rounds = 0;
    while hash.maintain() {
        rounds += 1;
        assert!(rounds < 100_000);
    }
    assert!(hash.status().committed_bytes <= 3 << 20, "{:?}", hash.status());
    assert!(hash.status().records > 10_000);
}

#[test]
fn the_oldest_records_of_a_full_hash_go_first() {
    let hash = hash(2 << 20, WhenFull::Evict);
    for n in 0..200_000 {
        put(&hash, &format!("key:{n}"), b"a value of forty bytes, more or less, so").unwrap();
    }
    let held = |range: std::ops::Range<u32>| range.filter(|n| holds(&hash, &format!("key:{n}"))).count();
    // Some 29,000 fit. A bucket of a few records is a small sample, so the edge is soft; far from it there is no doubt.
    assert!(held(0..100_000) < 2000, "{}", held(0..100_000));
    assert!(held(190_000..200_000) > 8000, "{}", held(190_000..200_000));
}

#[test]
fn memory_follows_the_live_bytes_after_mass_deletion() {
    let hash = MemHash::new(MemHashOptions { shards: Some(2), ..Default::default() }).unwrap();
    let value = |n: u32, salt: u32| {
        vec![b'v'; (20 + n.wrapping_mul(2_654_435_761).wrapping_add(salt) % 181) as usize]
    };
    for salt in [1, 77, 1234] {
        for n in 0..200_000 {
            put(&hash, &format!("key:{n:012}"), &value(n, salt)).unwrap();
        }
    }
    for n in (0..200_000).filter(|n| n % 5 != 0) {
        hash.visit(format!("key:{n:012}").as_bytes(), &mut Decided::new(Decision::Remove)).unwrap();
    }
    while hash.maintain() {}
    let status = hash.status();
    assert_eq!(status.records, 40_000);
    let allowed = status.live_bytes + status.live_bytes / 10 + (1 << 20);
    assert!(status.committed_bytes <= allowed, "{status:?}");
}

#[test]
fn no_single_write_moves_more_than_64_kib() {
    let hash = MemHash::new(MemHashOptions { shards: Some(1), ..Default::default() }).unwrap();
    for n in 0..300_000u32 {
        put(&hash, &format!("{n:08}"), b"12345678").unwrap();
    }
    for n in (0..300_000u32).filter(|n| n % 7 != 0) {
        hash.visit(format!("{n:08}").as_bytes(), &mut Decided::new(Decision::Remove)).unwrap();
    }
    assert!(hash.worst_moved_bytes() > 0);
    assert!(hash.worst_moved_bytes() <= 64 << 10, "{}", hash.worst_moved_bytes());
}

#[test]
fn a_full_hash_still_takes_new_attributes_for_what_it_holds() {
    let hash = hash(2 << 20, WhenFull::Refuse);
    let mut keys = Vec::new();
    for n in 0.. {
        let key = format!("key:{n}");
        if put(&hash, &key, b"some value").is_err() {
            break;
        }
        keys.push(key);
    }
    let attributes = Attributes { version: u64::MAX, ..Attributes::default() };
    for key in &keys {
        hash.visit(key.as_bytes(), &mut Decided::new(Decision::Retag(attributes))).unwrap();
        let mut version = 0;
        hash.view(key.as_bytes(), &mut |record| version = record.attributes.version).unwrap();
        assert_eq!(version, u64::MAX, "{key}");
    }
    let refused = (0..keys.len()).any(|n| put(&hash, &format!("more:{n}"), b"some value").is_err());
    assert!(refused, "the limit stands for what is new");
}

/// It was the other way round: while a large value was being unmapped others could take its place, and the process
/// outgrew its limit; and what was still mapped seemed to be somebody else's.
#[test]
fn memory_counts_until_the_system_has_it_back() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let hash = MemHash::new(MemHashOptions::default()).unwrap();
    let mut buffer = hash.buffer(256 << 20).unwrap();
    while buffer.filled() < buffer.len() {
        let piece = hash.room(&mut *buffer, 1 << 20).unwrap();
        piece.fill(1);
        let len = piece.len();
        buffer.advance(len);
    }
    let before = resident();
    assert!(hash.status().committed_bytes >= 256 << 20, "{:?}", hash.status());
    let giving_back = std::thread::spawn(move || drop(buffer));
    while hash.status().committed_bytes >= 256 << 20 {
        std::hint::spin_loop();
    }
    // Other tests take and give some tens of MB meanwhile.
    let after = resident();
    assert!(after + (160 << 20) < before, "{before} {after}");
    giving_back.join().unwrap();
}

#[test]
fn a_value_counts_until_its_last_reader_lets_go() {
    let hash = hash(8 << 20, WhenFull::Refuse);
    let empty = hash.status().committed_bytes;
    put(&hash, "huge", &vec![1; 3 << 20]).unwrap();
    let mut reader = None;
    hash.view(b"huge", &mut |record| reader = record.shared.cloned()).unwrap();
    hash.visit(b"huge", &mut Decided::new(Decision::Remove)).unwrap();
    assert!(!holds(&hash, "huge"));
    assert!(hash.status().committed_bytes >= empty + (3 << 20), "{:?}", hash.status());
    let error = put(&hash, "other", &vec![1; 6 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!((**reader.as_ref().unwrap()).as_ref(), &vec![1; 3 << 20]);
    drop(reader);
    assert!(hash.status().committed_bytes < empty + (1 << 20), "{:?}", hash.status());
    put(&hash, "other", &vec![1; 6 << 20]).unwrap();
}

/// Fills a buffer up to this length; stops where there is no room.
fn fill(hash: &MemHash, buffer: &mut dyn Buffer, len: usize) -> todana_core::Result<()> {
    while buffer.filled() < len {
        let left = (len - buffer.filled()).min(100_000);
        let at = buffer.filled();
        let room = hash.room(buffer, left)?;
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
        let record = Record::new((*self.0).as_ref(), Attributes::default());
        Action::Put(Record { shared: Some(&self.0), ..record })
    }
}

#[test]
fn a_buffer_counts_by_what_is_in_it_and_becomes_the_value_as_it_is() {
    let hash = hash(8 << 20, WhenFull::Evict);
    let empty = hash.status().committed_bytes;
    let committed = |hash: &MemHash| hash.status().committed_bytes - empty;
    let mut buffer = hash.buffer(3_000_001).unwrap();
    assert_eq!((buffer.len(), buffer.filled(), committed(&hash)), (3_000_001, 0, 0));
    // Room that is not used is given back.
    assert_eq!(hash.room(&mut *buffer, 50_000).unwrap().len(), 50_000);
    assert_eq!(committed(&hash), 53_248);
    buffer.advance(1);
    assert_eq!(committed(&hash), 4096);
    hash.room(&mut *buffer, 10).unwrap()[0] = 7;
    buffer.advance(0);
    assert_eq!((buffer.filled(), committed(&hash)), (1, 4096));
    fill(&hash, &mut *buffer, 3_000_001).unwrap();
    assert!(hash.room(&mut *buffer, 10).unwrap().is_empty());
    assert_eq!(committed(&hash), 3_002_368);
    let value = buffer.into_shared();
    let address = (*value).as_ref().as_ptr();
    hash.visit(b"huge", &mut PutShared(value)).unwrap();
    let seen = hash.view(b"huge", &mut |record| {
        assert_eq!(record.value.as_ptr(), address, "it has not been copied");
        assert!(record.value[1..].iter().enumerate().all(|(n, byte)| *byte == (n + 1) as u8));
    });
    assert!(seen.unwrap());
    assert!(committed(&hash) < 3_002_368 + (64 << 10), "{}", committed(&hash));
    hash.visit(b"huge", &mut Decided::new(Decision::Remove)).unwrap();
    assert!(committed(&hash) < 64 << 10, "{}", committed(&hash));
    let mut buffer = hash.buffer(3_000_000).unwrap();
    fill(&hash, &mut *buffer, 2_000_000).unwrap();
    drop(buffer);
    assert!(committed(&hash) < 64 << 10, "{}", committed(&hash));
}

#[test]
fn a_buffer_makes_others_go_as_it_fills_but_never_more_than_its_share() {
    let hash = hash(8 << 20, WhenFull::Evict);
    for n in 0..300_000 {
        put(&hash, &format!("small:{n}"), b"some value of some length").unwrap();
    }
    let full = hash.status().records;
    assert_eq!(hash.buffer(8 << 20).err().unwrap().kind(), ErrorKind::Full, "the whole memory");
    // One may have more than half of the limit beside another that holds no more than a quarter, and the other no more then.
    let (mut one, mut two) = (hash.buffer(5 << 20).unwrap(), hash.buffer(5 << 20).unwrap());
    assert_eq!(hash.status().records, full, "an announcement takes nothing");
    fill(&hash, &mut *one, 2 << 20).unwrap();
    fill(&hash, &mut *two, 1 << 20).unwrap();
    fill(&hash, &mut *one, 5 << 20).unwrap();
    assert_eq!(fill(&hash, &mut *two, 5 << 20).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(two.filled(), 1 << 20, "it keeps what it has");
    // What is there already, and waits for nobody, is not held up by those who stall.
    drop(one);
    let mut three = hash.buffer(3 << 20).unwrap();
    fill(&hash, &mut *two, 2 << 20).unwrap();
    fill(&hash, &mut *three, 2 << 20).unwrap();
    let mut at_once = hash.buffer(2 << 20).unwrap();
    assert_eq!(hash.room(&mut *at_once, 100).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(hash.room(&mut *at_once, 2 << 20).unwrap().len(), 2 << 20);
    at_once.advance(2 << 20);
    drop((two, three, at_once));
    let mut one = hash.buffer(5 << 20).unwrap();
    fill(&hash, &mut *one, 5 << 20).unwrap();
    hash.visit(b"huge", &mut PutShared(one.into_shared())).unwrap();
    assert!(holds(&hash, "huge"));
    assert!(hash.status().committed_bytes <= (8 << 20) + (64 << 10), "{:?}", hash.status());
}

#[test]
fn buffers_share_half_of_a_full_memory_and_short_ones_come_in_beside_them() {
    let hash = hash(64 << 20, WhenFull::Evict);
    for n in 0..70 {
        put(&hash, &format!("stored:{n}"), &vec![b'v'; 1 << 20]).unwrap();
    }
    assert!(hash.status().evictions > 0, "it is full");
    // Eight of 6 MiB come in together, a piece of each in turn. Four fit in half of the limit: records go for them.
    let mut coming: Vec<_> = (0..8).map(|_| hash.buffer(6 << 20).unwrap()).collect();
    let mut refused = 0;
    for mib in 1..=6 {
        coming.retain_mut(|buffer| match fill(&hash, &mut **buffer, mib << 20) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                refused += 1;
                false
            }
        });
        let held: usize = coming.iter().map(|buffer| buffer.filled()).sum();
        assert!(held <= 32 << 20, "{held} bytes are on their way");
        assert!(hash.status().committed_bytes <= 64 << 20, "{:?}", hash.status());
    }
    assert_eq!((coming.len(), refused), (5, 3));
    // Long ones that have just begun do not take the room of the short ones.
    let mut stalled: Vec<_> = (0..20).map(|_| hash.buffer(2 << 20).unwrap()).collect();
    stalled.retain_mut(|buffer| fill(&hash, &mut **buffer, 1 << 20).is_ok());
    assert_eq!(stalled.len(), 2);
    let mut short = hash.buffer(1 << 20).unwrap();
    fill(&hash, &mut *short, 1 << 20).unwrap();
    assert_eq!(fill(&hash, &mut *stalled[0], 2 << 20).unwrap_err().kind(), ErrorKind::Busy);
    for (n, buffer) in coming.into_iter().chain([short]).enumerate() {
        hash.visit(format!("new:{n}").as_bytes(), &mut PutShared(buffer.into_shared())).unwrap();
        assert!(holds(&hash, &format!("new:{n}")));
    }
    assert!(hash.status().committed_bytes <= 64 << 20, "{:?}", hash.status());
    // What those held that have come in whole is free for others on their way.
    fill(&hash, &mut *stalled[0], 2 << 20).unwrap();
}

#[test]
fn without_eviction_a_buffer_is_refused_where_it_cannot_fit() {
    let hash = hash(8 << 20, WhenFull::Refuse);
    put(&hash, "huge", &vec![1; 5 << 20]).unwrap();
    assert_eq!(hash.buffer(4 << 20).err().unwrap().kind(), ErrorKind::Full);
    let mut buffer = hash.buffer(2 << 20).unwrap();
    put(&hash, "other", &vec![1; 2 << 20]).unwrap();
    assert_eq!(fill(&hash, &mut *buffer, 2 << 20).unwrap_err().kind(), ErrorKind::Full);
    drop(buffer);
    assert!(holds(&hash, "huge") && holds(&hash, "other"));
    let stranger = MemHash::new(MemHashOptions::default()).unwrap();
    let mut buffer = stranger.buffer(100).unwrap();
    assert_eq!(hash.room(&mut *buffer, 1).unwrap_err().kind(), ErrorKind::Invalid);
}
