//! `MemTree` within a memory limit.

mod visitor;

use todana_core::{
    Action, Attributes, Buffer, Engine, ErrorKind, MemoryLimit, Record, SharedBytes, Visitor, WhenFull,
};
use todana_engine::{MemTree, MemTreeOptions};
use visitor::{Remove, Set};

struct Retag(Attributes);

impl Visitor for Retag {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Retag(self.0)
    }
}

fn tree(bytes: u64, when_full: WhenFull) -> MemTree {
    let limit = MemoryLimit { bytes: Some(bytes), when_full };
    MemTree::new(MemTreeOptions { partitions: Some(2), limit, ..Default::default() }).unwrap()
}

fn put(tree: &MemTree, key: &str, value: &[u8]) -> todana_core::Result<()> {
    tree.visit(key.as_bytes(), &mut Set(value))
}

fn holds(tree: &MemTree, key: &str) -> bool {
    tree.view(key.as_bytes(), &mut |_| {}).unwrap()
}

#[test]
fn eviction_keeps_within_the_limit_whatever_the_sizes_do() {
    let limit = 16 << 20;
    let tree = tree(limit, WhenFull::Evict);
    let mut random = fastrand::Rng::with_seed(5);
    // Sizes shift, as they do in the wild: tiny, then hundreds of bytes, then kilobytes, then tiny again.
    for (round, sizes) in [1..20, 100..400, 2000..9000, 1..1200, 30_000..60_000, 1..9].into_iter().enumerate()
    {
        for n in 0..(60 << 20) / (sizes.end + 40) {
            let value = vec![b'v'; random.usize(sizes.clone())];
            let key = format!("{round}:{n}");
            put(&tree, &key, &value).unwrap_or_else(|error| panic!("{key}, {sizes:?}: {error}"));
            assert!(holds(&tree, &key), "what was just stored is there");
            assert!(tree.status().committed_bytes <= limit + (64 << 10), "{:?}", tree.status());
        }
        assert!(tree.status().live_bytes > limit * 6 / 10, "the limit is made use of: {:?}", tree.status());
    }
    assert!(tree.status().evictions > 0);
}

#[test]
fn a_huge_record_pushes_others_out_and_a_monstrous_one_is_refused() {
    let tree = tree(8 << 20, WhenFull::Evict);
    for n in 0..100_000 {
        put(&tree, &format!("small:{n}"), b"some value of some length").unwrap();
    }
    put(&tree, "huge", &vec![1; 3 << 20]).unwrap();
    assert!(holds(&tree, "huge"));
    let error = put(&tree, "monstrous", &vec![1; 8000 << 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(holds(&tree, "huge"), "a refusal costs nobody anything");
}

#[test]
fn without_eviction_the_limit_refuses_and_forgets_nothing() {
    let tree = tree(2 << 20, WhenFull::Refuse);
    let mut stored = Vec::new();
    let mut refused = 0;
    for n in 0..60_000 {
        let key = format!("key:{n}");
        match put(&tree, &key, b"a value of forty bytes, more or less, so") {
            Ok(()) => stored.push(key),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full);
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && stored.len() > 20_000, "{refused} {}", stored.len());
    assert!(stored.iter().all(|key| holds(&tree, key)));
    assert_eq!(tree.status().evictions, 0);
    // Removal works at the limit, and makes room.
    for key in stored.iter().step_by(2) {
        tree.visit(key.as_bytes(), &mut Remove).unwrap();
    }
    while tree.maintain() {}
    put(&tree, "room again", &vec![b'x'; 10_000]).unwrap();
}

#[test]
fn a_lowered_limit_is_reached_by_housekeeping() {
    let tree = tree(16 << 20, WhenFull::Evict);
    for n in 0..150_000 {
        put(&tree, &format!("key:{n}"), b"a value of forty bytes, more or less, so").unwrap();
    }
    let before = tree.status().committed_bytes;
    assert!(before > 6 << 20, "{before}");
    tree.bounded().unwrap().set_limit(MemoryLimit { bytes: Some(3 << 20), when_full: WhenFull::Evict });
    let mut rounds = 0;
    while tree.maintain() {
        rounds += 1;
        assert!(rounds < 100_000);
    }
    assert!(tree.status().committed_bytes <= 3 << 20, "{:?}", tree.status());
    assert!(tree.status().records > 10_000);
}

#[test]
fn the_oldest_records_of_a_full_tree_go_first() {
    let tree = tree(2 << 20, WhenFull::Evict);
    for n in 0..200_000 {
        put(&tree, &format!("key:{n}"), b"a value of forty bytes, more or less, so").unwrap();
    }
    let held = |range: std::ops::Range<u32>| range.filter(|n| holds(&tree, &format!("key:{n}"))).count();
    // Some 29,000 fit. A bucket of a few records is a small sample, so the edge is soft; far from it there is no doubt.
    assert!(held(0..100_000) < 2000, "{}", held(0..100_000));
    assert!(held(190_000..200_000) > 8000, "{}", held(190_000..200_000));
}

#[test]
fn memory_follows_the_live_bytes_after_mass_deletion() {
    let tree = MemTree::new(MemTreeOptions { partitions: Some(2), ..Default::default() }).unwrap();
    let value = |n: u32, salt: u32| {
        vec![b'v'; (20 + n.wrapping_mul(2_654_435_761).wrapping_add(salt) % 181) as usize]
    };
    for salt in [1, 77, 1234] {
        for n in 0..200_000 {
            put(&tree, &format!("key:{n:012}"), &value(n, salt)).unwrap();
        }
    }
    for n in (0..200_000).filter(|n| n % 5 != 0) {
        tree.visit(format!("key:{n:012}").as_bytes(), &mut Remove).unwrap();
    }
    while tree.maintain() {}
    let status = tree.status();
    assert_eq!(status.records, 40_000);
    let allowed = status.live_bytes + status.live_bytes / 10 + (1 << 20);
    assert!(status.committed_bytes <= allowed, "{status:?}");
}

#[test]
fn a_full_tree_still_takes_new_attributes_for_what_it_holds() {
    let tree = tree(2 << 20, WhenFull::Refuse);
    let mut keys = Vec::new();
    for n in 0.. {
        let key = format!("key:{n}");
        if put(&tree, &key, b"some value").is_err() {
            break;
        }
        keys.push(key);
    }
    let attributes = Attributes { version: u64::MAX, ..Attributes::default() };
    for key in &keys {
        tree.visit(key.as_bytes(), &mut Retag(attributes)).unwrap();
        let mut version = 0;
        tree.view(key.as_bytes(), &mut |record| version = record.attributes.version).unwrap();
        assert_eq!(version, u64::MAX, "{key}");
    }
    let refused = (0..keys.len()).any(|n| put(&tree, &format!("more:{n}"), b"some value").is_err());
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
    let tree = MemTree::new(MemTreeOptions::default()).unwrap();
    let mut buffer = tree.buffer(256 << 20).unwrap();
    while buffer.filled() < buffer.len() {
        let piece = tree.room(&mut *buffer, 1 << 20).unwrap();
        piece.fill(1);
        let len = piece.len();
        buffer.advance(len);
    }
    let before = resident();
    assert!(tree.status().committed_bytes >= 256 << 20, "{:?}", tree.status());
    let giving_back = std::thread::spawn(move || drop(buffer));
    while tree.status().committed_bytes >= 256 << 20 {
        std::hint::spin_loop();
    }
    // Other tests take and give some tens of MB meanwhile.
    let after = resident();
    assert!(after + (160 << 20) < before, "{before} {after}");
    giving_back.join().unwrap();
}

#[test]
fn a_value_counts_until_its_last_reader_lets_go() {
    let tree = tree(8 << 20, WhenFull::Refuse);
    let empty = tree.status().committed_bytes;
    put(&tree, "huge", &vec![1; 3 << 20]).unwrap();
    let mut reader = None;
    tree.view(b"huge", &mut |record| reader = record.shared.cloned()).unwrap();
    tree.visit(b"huge", &mut Remove).unwrap();
    assert!(!holds(&tree, "huge"));
    assert!(tree.status().committed_bytes >= empty + (3 << 20), "{:?}", tree.status());
    let error = put(&tree, "other", &vec![1; 6 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!((**reader.as_ref().unwrap()).as_ref(), &vec![1; 3 << 20]);
    drop(reader);
    assert!(tree.status().committed_bytes < empty + (1 << 20), "{:?}", tree.status());
    put(&tree, "other", &vec![1; 6 << 20]).unwrap();
}

/// Fills a buffer up to this length; stops where there is no room.
fn fill(tree: &MemTree, buffer: &mut dyn Buffer, len: usize) -> todana_core::Result<()> {
    while buffer.filled() < len {
        let left = (len - buffer.filled()).min(100_000);
        let at = buffer.filled();
        let room = tree.room(buffer, left)?;
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
    let tree = tree(8 << 20, WhenFull::Evict);
    let empty = tree.status().committed_bytes;
    let committed = |tree: &MemTree| tree.status().committed_bytes - empty;
    let mut buffer = tree.buffer(3_000_001).unwrap();
    assert_eq!((buffer.len(), buffer.filled(), committed(&tree)), (3_000_001, 0, 0));
    // Room that is not used is given back.
    assert_eq!(tree.room(&mut *buffer, 50_000).unwrap().len(), 50_000);
    assert_eq!(committed(&tree), 53_248);
    buffer.advance(1);
    assert_eq!(committed(&tree), 4096);
    tree.room(&mut *buffer, 10).unwrap()[0] = 7;
    buffer.advance(0);
    assert_eq!((buffer.filled(), committed(&tree)), (1, 4096));
    fill(&tree, &mut *buffer, 3_000_001).unwrap();
    assert!(tree.room(&mut *buffer, 10).unwrap().is_empty());
    assert_eq!(committed(&tree), 3_002_368);
    let value = buffer.into_shared();
    let address = (*value).as_ref().as_ptr();
    tree.visit(b"huge", &mut PutShared(value)).unwrap();
    let seen = tree.view(b"huge", &mut |record| {
        assert_eq!(record.value.as_ptr(), address, "it has not been copied");
        assert!(record.value[1..].iter().enumerate().all(|(n, byte)| *byte == (n + 1) as u8));
    });
    assert!(seen.unwrap());
    assert!(committed(&tree) < 3_002_368 + (64 << 10), "{}", committed(&tree));
    tree.visit(b"huge", &mut Remove).unwrap();
    assert!(committed(&tree) < 64 << 10, "{}", committed(&tree));
    let mut buffer = tree.buffer(3_000_000).unwrap();
    fill(&tree, &mut *buffer, 2_000_000).unwrap();
    drop(buffer);
    assert!(committed(&tree) < 64 << 10, "{}", committed(&tree));
}

#[test]
fn a_buffer_makes_others_go_as_it_fills_but_never_more_than_its_share() {
    let tree = tree(8 << 20, WhenFull::Evict);
    for n in 0..300_000 {
        put(&tree, &format!("small:{n}"), b"some value of some length").unwrap();
    }
    let full = tree.status().records;
    assert_eq!(tree.buffer(8 << 20).err().unwrap().kind(), ErrorKind::Full, "the whole memory");
    // One may have more than half of the limit beside another that holds no more than a quarter, and the other no more then.
    let (mut one, mut two) = (tree.buffer(5 << 20).unwrap(), tree.buffer(5 << 20).unwrap());
    assert_eq!(tree.status().records, full, "an announcement takes nothing");
    fill(&tree, &mut *one, 2 << 20).unwrap();
    fill(&tree, &mut *two, 1 << 20).unwrap();
    fill(&tree, &mut *one, 5 << 20).unwrap();
    assert_eq!(fill(&tree, &mut *two, 5 << 20).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(two.filled(), 1 << 20, "it keeps what it has");
    // What is there already, and waits for nobody, is not held up by those who stall.
    drop(one);
    let mut three = tree.buffer(3 << 20).unwrap();
    fill(&tree, &mut *two, 2 << 20).unwrap();
    fill(&tree, &mut *three, 2 << 20).unwrap();
    let mut at_once = tree.buffer(2 << 20).unwrap();
    assert_eq!(tree.room(&mut *at_once, 100).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(tree.room(&mut *at_once, 2 << 20).unwrap().len(), 2 << 20);
    at_once.advance(2 << 20);
    drop((two, three, at_once));
    let mut one = tree.buffer(5 << 20).unwrap();
    fill(&tree, &mut *one, 5 << 20).unwrap();
    tree.visit(b"huge", &mut PutShared(one.into_shared())).unwrap();
    assert!(holds(&tree, "huge"));
    assert!(tree.status().committed_bytes <= (8 << 20) + (64 << 10), "{:?}", tree.status());
}

#[test]
fn buffers_share_half_of_a_full_memory_and_short_ones_come_in_beside_them() {
    let tree = tree(64 << 20, WhenFull::Evict);
    for n in 0..70 {
        put(&tree, &format!("stored:{n}"), &vec![b'v'; 1 << 20]).unwrap();
    }
    assert!(tree.status().evictions > 0, "it is full");
    // Eight of 6 MiB come in together, a piece of each in turn. Four fit in half of the limit: records go for them.
    let mut coming: Vec<_> = (0..8).map(|_| tree.buffer(6 << 20).unwrap()).collect();
    let mut refused = 0;
    for mib in 1..=6 {
        coming.retain_mut(|buffer| match fill(&tree, &mut **buffer, mib << 20) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                refused += 1;
                false
            }
        });
        let held: usize = coming.iter().map(|buffer| buffer.filled()).sum();
        assert!(held <= 32 << 20, "{held} bytes are on their way");
        assert!(tree.status().committed_bytes <= 64 << 20, "{:?}", tree.status());
    }
    assert_eq!((coming.len(), refused), (5, 3));
    // Long ones that have just begun do not take the room of the short ones.
    let mut stalled: Vec<_> = (0..20).map(|_| tree.buffer(2 << 20).unwrap()).collect();
    stalled.retain_mut(|buffer| fill(&tree, &mut **buffer, 1 << 20).is_ok());
    assert_eq!(stalled.len(), 2);
    let mut short = tree.buffer(1 << 20).unwrap();
    fill(&tree, &mut *short, 1 << 20).unwrap();
    assert_eq!(fill(&tree, &mut *stalled[0], 2 << 20).unwrap_err().kind(), ErrorKind::Busy);
    for (n, buffer) in coming.into_iter().chain([short]).enumerate() {
        tree.visit(format!("new:{n}").as_bytes(), &mut PutShared(buffer.into_shared())).unwrap();
        assert!(holds(&tree, &format!("new:{n}")));
    }
    assert!(tree.status().committed_bytes <= 64 << 20, "{:?}", tree.status());
    // What those held that have come in whole is free for others on their way.
    fill(&tree, &mut *stalled[0], 2 << 20).unwrap();
}

#[test]
fn without_eviction_a_buffer_is_refused_where_it_cannot_fit() {
    let tree = tree(8 << 20, WhenFull::Refuse);
    put(&tree, "huge", &vec![1; 5 << 20]).unwrap();
    assert_eq!(tree.buffer(4 << 20).err().unwrap().kind(), ErrorKind::Full);
    let mut buffer = tree.buffer(2 << 20).unwrap();
    put(&tree, "other", &vec![1; 2 << 20]).unwrap();
    assert_eq!(fill(&tree, &mut *buffer, 2 << 20).unwrap_err().kind(), ErrorKind::Full);
    drop(buffer);
    assert!(holds(&tree, "huge") && holds(&tree, "other"));
    let stranger = MemTree::new(MemTreeOptions::default()).unwrap();
    let mut buffer = stranger.buffer(100).unwrap();
    assert_eq!(tree.room(&mut *buffer, 1).unwrap_err().kind(), ErrorKind::Invalid);
}
