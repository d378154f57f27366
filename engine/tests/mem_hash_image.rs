//! An image of a hash gives an equal hash: all records with their attributes and the marks of
//! eviction. Damaged and hostile images are refused, and leave a hash that works.

#[path = "../../tests/fuzz_inputs/mod.rs"]
mod fuzz_inputs;
mod image_bytes;
mod visitor;

use image_bytes::{Put, adopt};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{
    Attributes, Engine, ErrorKind, Expiry, ImageForm, ImagedEngine, LastAccess, MemoryLimit, Record,
    ScanOrder, StaleMarks, UnixSeconds, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions, read_bucket_block};
use visitor::{Remove, Set};

type RecordsByKey = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

/// An image: the blocks, and the records that do not lie in buckets.
struct Image {
    form: ImageForm,
    blocks: Vec<Vec<u8>>,
    others: RecordsByKey,
    records: u64,
}

fn hash(shards: usize, seed: Option<u64>) -> MemHash {
    MemHash::new(MemHashOptions { shards: Some(shards), seed, ..MemHashOptions::default() }).unwrap()
}

fn put(hash: &MemHash, key: &[u8], record: Record<'_>) {
    hash.visit(key, &mut Put(record)).unwrap();
}

/// Copies a hash to an image, block by block. `between` is called between two steps.
fn image(hash: &MemHash, is_dead: &dyn Fn(Expiry) -> bool, between: &mut dyn FnMut(u64)) -> Image {
    let form = hash.image_form();
    let mut image = Image { form, blocks: vec![Vec::new()], others: RecordsByKey::new(), records: 0 };
    let mut from = None;
    loop {
        let Image { blocks, others, .. } = &mut image;
        let block = blocks.last_mut().unwrap();
        let copied = hash.copy_buckets(&form, from, is_dead, block, &mut |key, record| {
            let old = others.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
            assert!(old.is_none(), "shown twice");
        });
        let copied = copied.unwrap();
        if block.len() > 20_000 {
            blocks.push(Vec::new());
        }
        image.records += u64::from(copied.records);
        match copied.next {
            None => return image,
            next => from = next,
        }
        between(from.as_ref().unwrap().number());
    }
}

/// Loads an image. Returns the attributes that were noted.
fn load(hash: &MemHash, image: &Image) -> Vec<Attributes> {
    hash.begin_image_load(&image.form);
    let (mut noted, mut records) = (Vec::new(), 0);
    for block in &image.blocks {
        records += hash
            .adopt_buckets(
                &image.form,
                block,
                &mut |attributes| noted.push(*attributes),
                &mut |key, record| hash.visit(key, &mut Put(record)),
            )
            .unwrap();
    }
    assert_eq!(records, image.records);
    for (key, (value, attributes)) in &image.others {
        put(hash, key, Record::new(value, *attributes));
    }
    hash.end_ordered_load();
    noted
}

/// Returns all records. Each must be found by its key, too.
fn records(hash: &MemHash) -> RecordsByKey {
    let mut records = RecordsByKey::new();
    let place = hash.scan(None, &mut |key, record| {
        let old = records.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
        assert!(old.is_none(), "{} twice", key.escape_ascii());
        ControlFlow::Continue(())
    });
    assert_eq!(place.unwrap(), None);
    for (key, (value, attributes)) in &records {
        let is_there = hash.peek(key, &mut |record| {
            assert_eq!((record.value, record.attributes), (&value[..], *attributes));
        });
        assert!(is_there.unwrap(), "{}", key.escape_ascii());
    }
    records
}

fn attributes(n: u32) -> Attributes {
    Attributes {
        flags: if n.is_multiple_of(3) { n } else { 0 },
        expiry: match n % 7 {
            0 => Expiry::At(UnixSeconds(u64::from(n) + 4_000_000_000)),
            1 => Expiry::Sliding { at: UnixSeconds(u64::from(n) + 5_000_000_000), span_s: n },
            2 => Expiry::At(UnixSeconds(2_000_000_000)),
            _ => Expiry::Never,
        },
        version: if n.is_multiple_of(5) { u64::from(n) << 33 } else { 0 },
        marks: StaleMarks { stale: n.is_multiple_of(11), token_sent: n.is_multiple_of(13) },
        access: n
            .is_multiple_of(17)
            .then_some(LastAccess { at: UnixSeconds(u64::from(n)), fetched: n.is_multiple_of(2) }),
        has_value_list: false,
    }
}

/// Stores records of all kinds: keys and values that are numbers or text, of many lengths.
fn fill(hash: &MemHash, count: u32) {
    for n in 0..count {
        let key = match n % 4 {
            0 => format!("{n:08}"),
            1 => format!("user:{n}"),
            2 => format!("{n}"),
            _ => format!("{n:0260}"),
        };
        let value = match n % 101 {
            0 => vec![n as u8; 3000],
            1 => vec![n as u8; 70_000],
            2..50 => (u64::from(n) * 7919).to_string().into_bytes(),
            _ => vec![n as u8; n as usize % 300],
        };
        put(hash, key.as_bytes(), Record::new(&value, attributes(n)));
    }
}

/// Changes a hash in all ways, which fails if an invariant is broken.
fn exercise(hash: &MemHash) {
    let keys: Vec<Vec<u8>> = records(hash).into_keys().collect();
    for (n, key) in keys.iter().enumerate() {
        match n % 3 {
            0 => hash.visit(key, &mut Remove).unwrap(),
            1 => hash.visit(key, &mut Set(&vec![b'x'; n % 400])).unwrap(),
            _ => {}
        }
    }
    for n in 0..keys.len() {
        hash.visit(format!("new{n}").as_bytes(), &mut Set(b"value")).unwrap();
    }
    while hash.maintain() {}
    let left = keys.len() - keys.len().div_ceil(3);
    assert_eq!(records(hash).len(), left + keys.len());
    for key in records(hash).into_keys() {
        hash.visit(&key, &mut Remove).unwrap();
    }
    while hash.maintain() {}
    let status = hash.status();
    assert_eq!((status.records, status.live_bytes), (0, 0));
}

/// Adopted buckets once stayed plain until maintenance reached them, and memory was full before.
#[test]
fn adopted_buckets_are_encoded_at_once() {
    let donor = hash(4, Some(5));
    fill(&donor, 4000);
    for n in 0..20_000u32 {
        let value = format!(r#"{{"id":{n},"name":"Amara","country":"Kenya","language":"en"}}"#);
        put(&donor, format!("user:{n}:profile").as_bytes(), Record::new(value.as_bytes(), attributes(n)));
    }
    let expected = records(&donor);
    let image = image(&donor, &|_| false, &mut |_| ());
    donor.recode();
    while donor.maintain() {}
    let encoded = donor.status();
    assert!(encoded.encoding.dictionaries > 0 && encoded.encoding.key_shapes > 0, "{encoded:?}");
    // The encodings stay.
    donor.clear(&mut || ()).unwrap();
    let noted = load(&donor, &image);
    assert!(!noted.is_empty());
    assert!(records(&donor) == expected);
    let adopted = donor.status();
    assert!(adopted.live_bytes < encoded.live_bytes + encoded.live_bytes / 50, "{adopted:?} {encoded:?}");
    exercise(&donor);
}

/// The size of the directory in an image of a few bytes once let the hash exceed its memory limit.
#[test]
fn directory_of_an_image_respects_memory_limit() {
    let limited = hash(1, Some(5));
    let limit = MemoryLimit { bytes: Some(1 << 20), when_full: WhenFull::Refuse };
    limited.bounded().unwrap().set_limit(limit);
    let order = ScanOrder { seed: 5, groups: u64::MAX };
    let form = ImageForm { order, ..limited.image_form() };
    // One empty bucket of a directory with 2^24 buckets.
    let block = [&[0; 8][..], &(1u32 << 24).to_le_bytes(), &1u32.to_le_bytes(), b"\xf0"].concat();
    let adopted = limited.adopt_buckets(&form, &block, &mut |_| (), &mut |_, _| unreachable!());
    assert_eq!(adopted.unwrap(), 0);
    let committed = limited.status().committed_bytes;
    assert!(committed <= 1 << 20, "{committed}");
    put(&limited, b"key", Record::new(b"value", Attributes::default()));
}

/// Without a memory limit, the few bytes of a forged image must not make the hash large either.
#[test]
fn directories_of_a_forged_image_stay_small() {
    let shards = 16;
    let unlimited = hash(shards, Some(5));
    let order = ScanOrder { seed: 5, groups: u64::MAX };
    let form = ImageForm { order, ..unlimited.image_form() };
    assert!(unlimited.begin_image_load(&form));
    for shard in 0..shards as u64 {
        // One empty bucket of a directory with 2^23 buckets.
        let place = (shard << 60).to_le_bytes();
        let block = [&place[..], &(1u32 << 23).to_le_bytes(), &1u32.to_le_bytes(), b"\xf0"].concat();
        let adopted = unlimited.adopt_buckets(&form, &block, &mut |_| (), &mut |_, _| unreachable!());
        assert_eq!(adopted.unwrap(), 0);
    }
    let committed = unlimited.status().committed_bytes;
    assert!(committed < 80 << 20, "{committed}");
    put(&unlimited, b"key", Record::new(b"value", Attributes::default()));
}

#[test]
fn image_gives_an_equal_hash() {
    let before = hash(4, Some(5));
    fill(&before, 20_000);
    let image = image(&before, &|_| false, &mut |_| ());
    assert!(image.others.len() > 300 && image.records > 15_000);
    for (shards, seed) in [(4, Some(5)), (4, None), (1, Some(5)), (16, Some(7))] {
        let after = hash(shards, seed);
        let noted = load(&after, &image);
        assert!(records(&after) == records(&before));
        let (before, now) = (before.status(), after.status());
        assert_eq!((now.records, now.classes), (before.records, before.classes));
        assert_eq!(after.scan_order().unwrap().seed, 5, "the seed of the image");
        if shards == 4 {
            assert_eq!((now.index, now.live_bytes), (before.index, before.live_bytes));
            assert!(now.committed_bytes <= before.committed_bytes);
            assert!(noted.iter().any(|noted| noted.expiry.span_s().is_some()));
        } else {
            // Other buckets share other bits, and have other groups.
            let ratio = now.live_bytes as f64 / before.live_bytes as f64;
            assert!((0.99..1.01).contains(&ratio), "{ratio}");
        }
        exercise(&after);
    }
}

#[test]
fn any_engine_reads_the_records_of_an_image() {
    let before = hash(2, None);
    fill(&before, 5_000);
    let image = image(&before, &|_| false, &mut |_| ());
    let mut found = image.others.clone();
    for block in &image.blocks {
        read_bucket_block(&image.form, block, &mut |key, record| {
            found.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
            Ok(())
        })
        .unwrap();
    }
    assert!(found == records(&before));
    let unknown = ImageForm { bucket_format: 1, ..image.form };
    let unknown = read_bucket_block(&unknown, &image.blocks[0], &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(unknown.to_string(), "image of bucket format 1; this program knows format 2");
}

#[test]
fn long_expired_records_are_left_out() {
    let before = hash(2, None);
    fill(&before, 3_000);
    let image = image(&before, &|expiry| !expiry.is_live(UnixSeconds(3_000_000_000)), &mut |_| ());
    let after = hash(2, None);
    load(&after, &image);
    let mut expected = records(&before);
    expected.retain(|_, (_, attributes)| attributes.expiry.is_live(UnixSeconds(3_000_000_000)));
    assert!(expected.len() < 2_900 && records(&after) == expected);
}

/// Buckets are split and merged between the steps of a copy. Records that nobody changes are copied
/// exactly once.
#[test]
fn resizing_during_a_copy_loses_no_record() {
    for grows in [true, false] {
        let before = hash(2, Some(3));
        fill(&before, 2_000);
        let kept = records(&before);
        let extra = |n: usize| format!("extra{n}").into_bytes();
        if !grows {
            (0..20_000).for_each(|n| before.visit(&extra(n), &mut Set(b"1")).unwrap());
        }
        let mut next = 0;
        let image = image(&before, &|_| false, &mut |_| {
            for _ in 0..(if grows { 2_000 } else { 400 }) {
                match grows {
                    true => before.visit(&extra(next), &mut Set(b"1")).unwrap(),
                    false => before.visit(&extra(next), &mut Remove).unwrap(),
                }
                next += 1;
            }
            while before.maintain() {}
        });
        let after = hash(2, None);
        load(&after, &image);
        let found = records(&after);
        assert!(kept.iter().all(|(key, record)| found.get(key) == Some(record)), "grows: {grows}");
        exercise(&after);
    }
}

#[test]
fn marks_of_eviction_survive() {
    let limit = MemoryLimit { bytes: Some(2 << 20), when_full: WhenFull::Evict };
    let options = MemHashOptions { shards: Some(1), seed: Some(1), limit, ..MemHashOptions::default() };
    let before = MemHash::new(options.clone()).unwrap();
    for n in 0..200_000u32 {
        before.visit(n.to_string().as_bytes(), &mut Set(&n.to_le_bytes())).unwrap();
        before.view((n / 2).to_string().as_bytes(), &mut |_| ()).unwrap();
    }
    let first = image(&before, &|_| false, &mut |_| ());
    let after = MemHash::new(MemHashOptions { limit: MemoryLimit::default(), ..options.clone() }).unwrap();
    load(&after, &first);
    let second = image(&after, &|_| false, &mut |_| ());
    assert!(first.blocks == second.blocks, "also the marks and the traces of evicted keys");
    // With less memory, some records are evicted.
    let limit = MemoryLimit { bytes: Some(1 << 20), when_full: WhenFull::Evict };
    let small = MemHash::new(MemHashOptions { limit, ..options }).unwrap();
    load(&small, &first);
    let status = small.status();
    assert!(status.committed_bytes <= 1 << 20, "{status:?}");
    assert!(status.records < first.records && status.records > first.records / 3, "{status:?}");
    records(&small);
}

#[test]
fn seed_of_an_image_needs_an_empty_hash() {
    let before = hash(2, Some(3));
    fill(&before, 100);
    let image = image(&before, &|_| false, &mut |_| ());
    let other = hash(2, Some(4));
    other.visit(b"key", &mut Set(b"value")).unwrap();
    assert!(!other.begin_image_load(&image.form));
    load(&other, &image);
    assert_eq!(other.scan_order().unwrap().seed, 4);
    assert_eq!(records(&other).len(), records(&before).len() + 1);
    let begun = other.image_form();
    other.clear(&mut || ()).unwrap();
    assert!(other.begin_image_load(&image.form));
    let copied = other.copy_buckets(&begun, None, &|_| false, &mut Vec::new(), &mut |_, _| ());
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::Busy);
}

/// While a hash takes over seeds again and again, other threads read and write. Each write is found
/// afterwards, unless a clear came after it.
#[test]
fn change_of_seed_loses_no_concurrent_write() {
    let shared = hash(4, Some(0));
    let donor = |seed| hash(4, Some(seed)).image_form();
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            let (shared, stops) = (&shared, &stops);
            scope.spawn(move || {
                let mut n = 0u32;
                while !stops.load(Ordering::Relaxed) {
                    let key = format!("{thread}:{}", n % 50);
                    shared.visit(key.as_bytes(), &mut Set(b"value")).unwrap();
                    shared.peek(key.as_bytes(), &mut |record| assert_eq!(record.value, b"value")).unwrap();
                    n += 1;
                }
            });
        }
        let mut changes = 0;
        for seed in 1..20_000 {
            shared.clear(&mut || ()).unwrap();
            changes += u32::from(shared.begin_image_load(&donor(seed)));
            if changes == 32 {
                break;
            }
        }
        stops.store(true, Ordering::Relaxed);
        assert!(changes > 0);
    });
    records(&shared);
    shared.clear(&mut || ()).unwrap();
}

/// Any change of a byte gives records, a refusal, or both, and a hash that works.
#[test]
fn damaged_image_is_memory_safe() {
    let before = hash(2, Some(3));
    fill(&before, 90);
    let image = image(&before, &|_| false, &mut |_| ());
    let mut random = fastrand::Rng::with_seed(1);
    let mut refused = 0;
    for block in &image.blocks {
        for at in 0..block.len() {
            let mut damaged = block.clone();
            damaged[at] ^= 1 << random.u8(..8);
            if random.u8(..8) == 0 {
                damaged.truncate(random.usize(..=block.len()));
            }
            refused += usize::from(adopt(&damaged, &image.form));
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn arbitrary_image_is_memory_safe() {
    let form = hash(1, Some(3)).image_form();
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..20_000 {
        let mut block = vec![0; 8];
        block.extend_from_slice(&(1u32 << random.u32(..33).min(31)).to_le_bytes());
        block.extend_from_slice(&random.u32(..10).to_le_bytes());
        let len = random.usize(..60);
        block.extend((0..len).map(|_| if random.bool() { random.u8(..) } else { 0xF0 | random.u8(..16) }));
        adopt(&block, &form);
    }
}

#[test]
fn fuzz_inputs_are_adopted_or_refused() {
    fuzz_inputs::play_all("image_blocks", 20, image_bytes::adopt_any);
}
