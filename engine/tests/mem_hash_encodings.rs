//! Records that resemble each other are stored with dictionaries and key shapes, and clients see
//! exactly their bytes.

mod visitor;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use todana_core::{
    Action, Attributes, Engine, Expiry, ImagedEngine, MemoryLimit, Record, SweepAim, SweepableEngine,
    UnixSeconds, Visitor, WhenFull,
};
use todana_engine::{MemHash, MemHashOptions};
use visitor::{Remove, Set};

const RECORDS: u64 = 40_000;

/// Stores a value with attributes.
struct Put<'a>(&'a [u8], Attributes);

impl Visitor for Put<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, self.1))
    }
}

/// Changes the flags of a record.
struct Retag(u32);

impl Visitor for Retag {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        old.map_or(Action::Keep, |old| Action::Retag(Attributes { flags: self.0, ..old.attributes }))
    }
}

/// Checks the record that it is shown after a write.
struct CheckedPut<'a>(&'a [u8], bool);

impl Visitor for CheckedPut<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn ignores_value(&self) -> bool {
        true
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.1 = now.is_some_and(|record| record.value == self.0);
    }
}

type Model = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

fn hash(compresses: bool) -> MemHash {
    let options = MemHashOptions { seed: Some(3), shards: Some(4), compresses, ..MemHashOptions::default() };
    MemHash::new(options).unwrap()
}

/// Returns a record: most resemble others, some do not.
fn record(n: u64, version: u64) -> (Vec<u8>, Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(n ^ version << 40);
    let name = ["Amara", "Olga", "Pedro", "Li"][random.usize(..4)];
    let (key, value) = match n % 8 {
        0 => (
            format!("session:{n:08x}-0000-4000-8000-{:012x}", n * 77),
            format!(r#"{{"user":{n},"token":"{:032x}"}}"#, random.u128(..)),
        ),
        1 => (
            format!("page:/articles/{n}"),
            format!(
                "<html><head><title>{n}</title></head><body>{}</body></html>",
                name.repeat(random.usize(..if n % 24 == 1 { 900 } else { 90 }))
            ),
        ),
        2 => (n.to_string(), random.u32(..).to_string()),
        3 => (format!("{:016x}", random.u64(..)), (0..random.usize(..40)).map(|_| random.char(..)).collect()),
        _ => (
            format!("user:{n}:profile"),
            format!(r#"{{"id":{n},"name":"{name}","balance":{}}}"#, random.u16(..)),
        ),
    };
    (key.into_bytes(), value.into_bytes())
}

fn attributes(n: u64) -> Attributes {
    match n % 5 {
        0 => Attributes { flags: n as u32, ..Attributes::default() },
        1 => Attributes { expiry: Expiry::At(UnixSeconds(1000 + n)), version: n, ..Attributes::default() },
        _ => Attributes::default(),
    }
}

fn put(hash: &MemHash, model: &mut Model, n: u64, version: u64) {
    // The key of a record does not depend on its version.
    let ((key, _), (_, value)) = (record(n, 0), record(n, version));
    hash.visit(&key, &mut Put(&value, attributes(n))).unwrap();
    model.insert(key, (value, attributes(n)));
}

fn loaded(hash: &MemHash) -> Model {
    let mut model = Model::new();
    (0..RECORDS).for_each(|n| put(hash, &mut model, n, 0));
    model
}

/// Maintains a hash until nothing is left to do.
fn settle(hash: &MemHash) {
    hash.recode();
    while hash.maintain() {}
}

fn check(hash: &MemHash, model: &Model) {
    for (key, (value, attributes)) in model {
        let mut is_equal = false;
        let found = hash.view(key, &mut |record| {
            is_equal = record.value == value && record.attributes == *attributes;
        });
        assert!(found.unwrap() && is_equal, "{}", key.escape_ascii());
    }
    let mut scanned = Model::new();
    let end = hash.scan(None, &mut |key, record| {
        scanned.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
        ControlFlow::Continue(())
    });
    assert_eq!(end.unwrap(), None);
    assert!(scanned == *model);
    let status = hash.status();
    let plain: u64 = status.classes.iter().map(|class| class.plain_bytes).sum();
    let expected = |(key, (value, attributes)): (&Vec<u8>, &(Vec<u8>, Attributes))| {
        key.len() + value.len() + if attributes.flags == 0 { 0 } else { 4 }
    };
    assert_eq!(plain, model.iter().map(|record| expected(record) as u64).sum::<u64>());
    assert_eq!(status.records, model.len() as u64);
}

#[test]
fn similar_records_become_much_shorter() {
    let (encoded, plain) = (hash(true), hash(false));
    let model = loaded(&encoded);
    loaded(&plain);
    settle(&encoded);
    settle(&plain);
    check(&encoded, &model);
    let (status, other) = (encoded.status(), plain.status());
    assert!(status.live_bytes * 2 < other.live_bytes, "{} {}", status.live_bytes, other.live_bytes);
    assert!(status.committed_bytes * 3 < other.committed_bytes * 2);
    assert!(status.encoding.key_shapes >= 3 && status.encoding.dictionaries >= 1, "{:?}", status.encoding);
    assert_eq!(other.encoding, Default::default());
}

#[test]
fn encoded_records_are_changed_as_others() {
    let hash = hash(true);
    let mut model = loaded(&hash);
    let mut random = fastrand::Rng::with_seed(9);
    for round in 0..4 {
        for _ in 0..20_000 {
            let n = random.u64(..RECORDS + RECORDS / 4);
            let (key, value) = (record(n, 0).0, record(n, 1 + round).1);
            match random.u32(..8) {
                0 => {
                    hash.visit(&key, &mut Remove).unwrap();
                    model.remove(&key);
                }
                1 => {
                    hash.visit(&key, &mut Retag(round as u32)).unwrap();
                    model.entry(key).and_modify(|(_, attributes)| attributes.flags = round as u32);
                }
                2 => {
                    let mut put = CheckedPut(&value, false);
                    hash.visit(&key, &mut put).unwrap();
                    assert!(put.1);
                    model.insert(key, (value, Attributes::default()));
                }
                3 if random.u8(..16) == 0 => drop(hash.maintain()),
                _ => put(&hash, &mut model, n, 1 + round),
            }
        }
        check(&hash, &model);
        settle(&hash);
        check(&hash, &model);
        let now = UnixSeconds(1000 + round * 5000);
        let is_dead = |expiry: Expiry| !expiry.is_live(now);
        let mut place = None;
        loop {
            place = hash.sweep(place, 1000, SweepAim::Tidiness, &mut |expiry| is_dead(expiry)).unwrap().next;
            if place.is_none() {
                break;
            }
        }
        model.retain(|_, (_, attributes)| attributes.expiry.is_live(now));
        check(&hash, &model);
    }
    assert!(hash.status().encoding.dictionaries > 0);
    for key in model.keys() {
        hash.visit(key, &mut Remove).unwrap();
    }
    settle(&hash);
    check(&hash, &Model::new());
}

/// Returns the value of a record that needs a block of its own even in its stored form, or noise,
/// or text that the client claims to have compressed. The words of each vocabulary are the same.
fn long_value(n: u64, version: u64, vocabulary: u64) -> Vec<u8> {
    let mut words = fastrand::Rng::with_seed(vocabulary);
    let words: Vec<String> = (0..300).map(|_| format!("{:012}", words.u64(..1_000_000_000_000))).collect();
    let mut random = fastrand::Rng::with_seed(n ^ version << 40);
    let len = if n.is_multiple_of(64) { 60_000 } else { random.usize(5000..15_000) };
    if n % 8 == 3 {
        return (0..len).map(|_| random.u8(..)).collect();
    }
    let mut value = if n % 8 == 5 { b"\x1f\x8b\x08".to_vec() } else { Vec::new() };
    while value.len() < len {
        value.extend_from_slice(words[random.usize(..words.len())].as_bytes());
    }
    value
}

/// Writes records of about 9 MB.
fn put_long(hash: &MemHash, model: &mut Model, version: u64, vocabulary: u64) {
    for n in 0..900 {
        let (key, value) = (format!("page:{n}").into_bytes(), long_value(n, version, vocabulary));
        let mut put = CheckedPut(&value, false);
        hash.visit(&key, &mut put).unwrap();
        assert!(put.1);
        model.insert(key, (value, Attributes::default()));
    }
}

#[test]
fn long_records_have_short_blocks() {
    let (encoded, plain) = (hash(true), hash(false));
    let (mut model, mut other) = (Model::new(), Model::new());
    put_long(&encoded, &mut model, 0, 1);
    put_long(&plain, &mut other, 0, 1);
    settle(&encoded);
    settle(&plain);
    check(&encoded, &model);
    assert_eq!(encoded.status().encoding.dictionaries, 1);
    let of = |select: &dyn Fn(u64) -> bool| -> u64 {
        let of_number = |n: &u64| model[format!("page:{n}").as_bytes()].0.len() as u64;
        (0..900).filter(|n| select(n % 8)).map(|n| of_number(&n)).sum()
    };
    // Noise and compressed values stay as they are, and the other words take three bytes or less.
    let (left_alone, text) = (of(&|n| n == 3 || n == 5), of(&|n| n != 3 && n != 5));
    let live = encoded.status().live_bytes;
    assert!((left_alone..left_alone + text / 4).contains(&live), "{live}, {left_alone} + {text}");
    assert!(encoded.status().committed_bytes < plain.status().committed_bytes / 2);
    // Records that are written now have that form at once.
    put_long(&encoded, &mut model, 1, 1);
    check(&encoded, &model);
    assert!(encoded.status().live_bytes < live + live / 20);
    for key in model.keys() {
        encoded.visit(key, &mut Retag(7)).unwrap();
    }
    model.values_mut().for_each(|(_, attributes)| attributes.flags = 7);
    check(&encoded, &model);
    for key in model.keys() {
        encoded.visit(key, &mut Remove).unwrap();
    }
    settle(&encoded);
    check(&encoded, &Model::new());
    assert_eq!(encoded.status().live_bytes, 0);
}

#[test]
fn long_records_follow_a_new_dictionary() {
    let hash = hash(true);
    let mut model = Model::new();
    put_long(&hash, &mut model, 0, 1);
    settle(&hash);
    // The ratio of sizes is known from here on.
    put_long(&hash, &mut model, 1, 1);
    settle(&hash);
    put_long(&hash, &mut model, 2, 2);
    let before = hash.status().live_bytes;
    settle(&hash);
    check(&hash, &model);
    let status = hash.status();
    assert!(status.live_bytes < before - before / 10, "{before}, {status:?}");
    assert_eq!(status.encoding.dictionaries, 1);
}

/// Found by fuzzing: such a record was stored as it is in its bucket, and no image could be read
/// again. Later it kept the old dictionary in use forever.
#[test]
fn record_that_lengthens_leaves_its_bucket() {
    let hash = hash(true);
    let value = |n: u64, vocabulary: u64| {
        let mut random = fastrand::Rng::with_seed(vocabulary);
        let words: Vec<[u8; 12]> = (0..300).map(|_| std::array::from_fn(|_| random.u8(..))).collect();
        let mut random = fastrand::Rng::with_seed(n);
        let mut order: Vec<usize> = (0..300).collect();
        random.shuffle(&mut order);
        order[..150].iter().flat_map(|&word| words[word]).collect::<Vec<u8>>()
    };
    let mut model = Model::new();
    let put = |model: &mut Model, from: u64, vocabulary: u64| {
        for n in from..from + 5000 {
            let (key, value) = (format!("page:{n}").into_bytes(), value(n, vocabulary));
            hash.visit(&key, &mut Set(&value)).unwrap();
            model.insert(key, (value, Attributes::default()));
        }
    };
    put(&mut model, 0, 1);
    settle(&hash);
    put(&mut model, 5000, 1);
    settle(&hash);
    // A few records remain, which the next sample hardly contains.
    for n in 20..10_000 {
        let key = format!("page:{n}").into_bytes();
        hash.visit(&key, &mut Remove).unwrap();
        model.remove(&key);
    }
    put(&mut model, 10_000, 2);
    put(&mut model, 15_000, 2);
    settle(&hash);
    check(&hash, &model);
    assert_eq!(hash.status().encoding.dictionaries, 1, "only the new one is in use");
    let form = hash.image_form();
    let (mut block, mut from) = (Vec::new(), None);
    loop {
        from = hash.copy_buckets(&form, from, &|_| false, &mut block, &mut |_, _| ()).unwrap().next;
        if from.is_none() {
            break;
        }
    }
    todana_engine::read_bucket_block(&form, &block, &mut |_, _| Ok(())).unwrap();
}

#[test]
fn image_contains_records_as_they_are() {
    let encoded = hash(true);
    let model = loaded(&encoded);
    settle(&encoded);
    assert!(encoded.status().encoding.dictionaries > 0);
    let form = encoded.image_form();
    let (mut block, mut from, mut records) = (Vec::new(), None, 0);
    let mut long = Model::new();
    loop {
        let mut see = |key: &[u8], record: Record<'_>| {
            long.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
        };
        let copied = encoded.copy_buckets(&form, from, &|_| false, &mut block, &mut see).unwrap();
        records += u64::from(copied.records);
        from = copied.next;
        if from.is_none() {
            break;
        }
    }
    // Some records fit into a bucket only in their stored form.
    assert!(!long.is_empty() && long.values().all(|(value, _)| value.len() > 900));
    assert_eq!(records + long.len() as u64, model.len() as u64);
    let other = hash(false);
    assert!(other.begin_image_load(&form));
    let mut not_adopted = 0;
    let adopted = other.adopt_buckets(&form, &block, &mut |_| (), &mut |_, _| {
        not_adopted += 1;
        Ok(())
    });
    assert_eq!((adopted.unwrap(), not_adopted), (records, 0));
    for (key, (value, attributes)) in &long {
        other.visit(key, &mut Put(value, *attributes)).unwrap();
    }
    check(&other, &model);
}

#[test]
fn eviction_of_encoded_records_keeps_the_limit() {
    let hash = hash(true);
    let limit = 8 << 20;
    hash.bounded().unwrap().set_limit(MemoryLimit { bytes: Some(limit), when_full: WhenFull::Evict });
    let mut random = fastrand::Rng::with_seed(4);
    for n in 0..12 * RECORDS {
        let (key, value) = record(n, 0);
        hash.visit(&key, &mut Set(&value)).unwrap();
        if n % 64 == 0 {
            hash.maintain();
        }
        let (key, value) = record(random.u64(..=n), 0);
        let mut is_right = true;
        hash.view(&key, &mut |record| is_right = record.value == value).unwrap();
        assert!(is_right);
    }
    settle(&hash);
    let status = hash.status();
    assert!(status.evictions > 0 && status.encoding.dictionaries > 0, "{status:?}");
    assert!(status.committed_bytes <= limit + status.encoding.dictionary_bytes, "{status:?}");
}

/// A check for free memory once kept recoding from freeing any when memory was full, and made the
/// thread that calls `maintain` spin.
#[test]
fn recoding_makes_room_in_full_memory() {
    let limit = 16 << 20;
    let hash = hash(true);
    hash.bounded().unwrap().set_limit(MemoryLimit { bytes: Some(limit), when_full: WhenFull::Evict });
    let is_within = || assert!(hash.status().committed_bytes <= limit + (64 << 10), "{:?}", hash.status());
    let profile = |n: u64| {
        let mut random = fastrand::Rng::with_seed(n);
        let name = ["Amara", "Olga", "Pedro", "Li"][random.usize(..4)];
        format!(r#"{{"id":{n},"name":"{name}","country":"Kenya","balance":{}}}"#, random.u16(..))
    };
    let set = |n: u64| {
        hash.visit(format!("user:{n}:profile").as_bytes(), &mut Set(profile(n).as_bytes())).unwrap();
        is_within();
    };
    // Without maintenance, nothing is trained while memory fills.
    (0..400_000).for_each(set);
    let full = hash.status();
    assert!(full.evictions > 0 && full.records < 300_000, "{full:?}");
    assert_eq!(full.encoding.dictionaries, 0);
    // Each step makes progress: evictions, a training step, or a few buckets.
    let mut steps = 0;
    while hash.maintain() {
        is_within();
        steps += 1;
        assert!(steps < 100_000, "{:?}", hash.status());
    }
    hash.recode();
    while hash.maintain() {
        is_within();
    }
    let recoded = hash.status();
    assert!(recoded.encoding.dictionaries > 0 && recoded.encoding.key_shapes > 0, "{recoded:?}");
    assert!(recoded.committed_bytes < limit / 4 * 3, "{recoded:?}");
    assert!(!hash.maintain(), "nothing is left to do");
    // The dictionary itself takes the place of some records.
    assert!(recoded.records > full.records / 10 * 9, "{} of {}", recoded.records, full.records);
    (400_000..1_600_000).for_each(set);
    let refilled = hash.status();
    assert!(refilled.records > 2 * full.records, "{} of {}", refilled.records, full.records);
    assert!(refilled.evictions > recoded.evictions);
    for _ in 0..1000 {
        if !hash.maintain() {
            break;
        }
        is_within();
    }
    assert!(!hash.maintain(), "full memory is no work by itself");
    let mut wrong = 0;
    let scanned = hash.scan(None, &mut |key, record| {
        let number = std::str::from_utf8(key).unwrap().split(':').nth(1).unwrap().parse().unwrap();
        wrong += usize::from(record.value != profile(number).as_bytes());
        ControlFlow::Continue(())
    });
    assert_eq!((scanned.unwrap(), wrong), (None, 0));
}

/// Changes the flags of a record, and keeps the value that it is shown afterwards.
struct CheckedRetag {
    flags: u32,
    ignores_value: bool,
    shown: Vec<u8>,
}

impl Visitor for CheckedRetag {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        old.map_or(Action::Keep, |old| Action::Retag(Attributes { flags: self.flags, ..old.attributes }))
    }

    fn ignores_value(&self) -> bool {
        self.ignores_value
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.shown = now.map_or(Vec::new(), |record| record.value.to_vec());
    }
}

fn put_noise(hash: &MemHash, model: &mut Model, from: u64, count: u64, len: usize) {
    for n in from..from + count {
        let mut random = fastrand::Rng::with_seed(n);
        let (key, value): (_, Vec<u8>) =
            (format!("noise:{n}").into_bytes(), (0..len).map(|_| random.u8(..)).collect());
        hash.visit(&key, &mut Set(&value)).unwrap();
        model.insert(key, (value, Attributes::default()));
    }
}

/// A record once lost its dictionary if other attributes were stored after some noise, and a read
/// could so exceed the memory limit.
#[test]
fn other_attributes_keep_the_stored_value() {
    let (few, many) = (hash(true), hash(true));
    let (mut long, short) = (Model::new(), loaded(&many));
    put_long(&few, &mut long, 0, 1);
    for (hash, mut model) in [(few, long), (many, short)] {
        settle(&hash);
        put_noise(&hash, &mut model, 0, 40, 20_000);
        let before = hash.status();
        for (round, ignores_value) in [(1, false), (2, true), (3, false)] {
            for (key, (value, attributes)) in &mut model {
                let mut retag = CheckedRetag { flags: round << 30, ignores_value, shown: Vec::new() };
                hash.visit(key, &mut retag).unwrap();
                assert!(retag.shown == *value, "{}", key.escape_ascii());
                attributes.flags = round << 30;
            }
            let after = hash.status();
            assert!(after.live_bytes < before.live_bytes + 16 * before.records, "{before:?} {after:?}");
        }
        check(&hash, &model);
    }
}

/// Recoding once left text as it is after some noise, even if it had a dictionary before.
#[test]
fn text_among_noise_becomes_shorter() {
    let hash = hash(true);
    let mut model = Model::new();
    let put_text = |model: &mut Model, from: u64, vocabulary: u64| {
        for n in from..from + 250 {
            let (key, value) = (format!("text:{n}").into_bytes(), long_value(64 * n + 64, 0, vocabulary));
            hash.visit(&key, &mut Set(&value)).unwrap();
            model.insert(key, (value, Attributes::default()));
        }
    };
    let (noise, text) = (1000 * 9000, 250 * 60_000);
    put_noise(&hash, &mut model, 0, 1000, 9000);
    put_text(&mut model, 0, 1);
    settle(&hash);
    let trained = hash.status();
    assert!(trained.live_bytes < noise + text / 3, "{trained:?}");
    put_text(&mut model, 250, 1);
    settle(&hash);
    put_text(&mut model, 500, 2);
    put_text(&mut model, 750, 2);
    settle(&hash);
    check(&hash, &model);
    let adapted = hash.status();
    assert_eq!(adapted.encoding.dictionaries, 1);
    assert!(adapted.live_bytes < noise + 4 * text / 3, "{adapted:?}");
}

/// Returns text that consists of some of 20 blocks of noise: the first one four times, others once.
fn blocks_of_noise(n: u64, vocabulary: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(vocabulary);
    let blocks: Vec<Vec<u8>> = (0..20).map(|_| (0..2048).map(|_| random.u8(..)).collect()).collect();
    let mut random = fastrand::Rng::with_seed(n);
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    random.shuffle(&mut order);
    let beginning = [order[0]; 3];
    beginning.iter().chain(&order[..18]).flat_map(|&block| blocks[block].iter().copied()).collect()
}

/// A record that a dictionary had made very short once stayed in its bucket with any longer form,
/// whose length a bucket cannot state.
#[test]
fn record_that_lengthens_much_leaves_its_bucket() {
    let hash = hash(true);
    let mut model = Model::new();
    let put = |model: &mut Model, from: u64, vocabulary: u64| {
        for n in from..from + 300 {
            let (key, value) = (format!("page:{n}").into_bytes(), blocks_of_noise(n, vocabulary));
            hash.visit(&key, &mut Set(&value)).unwrap();
            model.insert(key, (value, Attributes::default()));
        }
    };
    put(&mut model, 0, 1);
    settle(&hash);
    let short = hash.status();
    assert!(short.live_bytes < 300 * 1000, "all records are in buckets: {short:?}");
    put(&mut model, 300, 1);
    settle(&hash);
    for n in 3..600 {
        let key = format!("page:{n}").into_bytes();
        hash.visit(&key, &mut Remove).unwrap();
        model.remove(&key);
    }
    put(&mut model, 600, 2);
    put(&mut model, 900, 2);
    settle(&hash);
    assert_eq!(hash.status().encoding.dictionaries, 1, "only the new one is in use");
    let long = hash.status().live_bytes;
    assert!((3 * 35_000..600 * 1000 + 3 * 42_000).contains(&long), "{long}");
    check(&hash, &model);
}

#[test]
fn each_class_of_values_is_sampled() {
    let hash = hash(true);
    let mut model = Model::new();
    let mut plain = 0;
    for n in 0..2000 {
        let mut value = long_value(64 * n + 64, 0, 1);
        value.truncate(if n % 20 < 3 { 32 << 10 } else { 1 << 10 });
        plain += value.len() as u64;
        let key = format!("page:{n}").into_bytes();
        hash.visit(&key, &mut Set(&value)).unwrap();
        model.insert(key, (value, Attributes::default()));
    }
    settle(&hash);
    check(&hash, &model);
    let status = hash.status();
    assert!(status.live_bytes < plain / 3 && status.encoding.dictionaries == 2, "{plain} {status:?}");
}

/// Long values without dictionaries once delayed the training until there were eight times as many
/// bytes of other values.
#[test]
fn other_values_do_not_delay_training() {
    for (count, len) in [(60, 1 << 18), (300, 50_000)] {
        let hash = hash(true);
        put_noise(&hash, &mut Model::new(), 0, count, len);
        settle(&hash);
        assert_eq!(hash.status().encoding.dictionaries, 0);
        if len <= 50_000 {
            (0..count).for_each(|n| hash.visit(format!("noise:{n}").as_bytes(), &mut Remove).unwrap());
            settle(&hash);
        }
        let mut model = Model::new();
        for part in 0..5 {
            (0..RECORDS).for_each(|n| put(&hash, &mut model, part * RECORDS + n, 0));
        }
        settle(&hash);
        assert!(hash.status().encoding.dictionaries > 0, "{len}: {:?}", hash.status());
    }
}

/// Stores one value on the first visit and another one on all others.
struct ChangingPut<'a> {
    values: [&'a [u8]; 2],
    visits: usize,
    is_shown: bool,
}

impl Visitor for ChangingPut<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        self.visits += 1;
        Action::Put(Record::new(self.values[usize::from(self.visits > 1)], Attributes::default()))
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.is_shown = now.is_some_and(|record| record.value == self.values[usize::from(self.visits > 1)]);
    }
}

/// A write is repeated after the encoding of its long value, so that no other write waits for that.
#[test]
fn long_values_are_encoded_between_two_visits() {
    let hash = hash(true);
    let mut model = Model::new();
    put_long(&hash, &mut model, 0, 1);
    settle(&hash);
    let [text, other] = [1, 2].map(|n| long_value(64 * n, 0, 1));
    let noise: Vec<u8> = long_value(3, 0, 1);
    let zipped: Vec<u8> = long_value(5, 0, 1);
    let mut put = |values: [&[u8]; 2], visits: usize| {
        let mut put = ChangingPut { values, visits: 0, is_shown: false };
        hash.visit(b"changing", &mut put).unwrap();
        assert!(put.is_shown && put.visits == visits, "{}", put.visits);
        let value = values[usize::from(visits > 1)].to_vec();
        model.insert(b"changing".to_vec(), (value, Attributes::default()));
        check(&hash, &model);
    };
    put([&text, &text], 2);
    put([&text, &other], 2);
    put([&text, &noise], 2);
    put([&noise, b"short"], 2);
    put([&zipped, &text], 1);
    put([&text[..4000], &other], 1);
    let before = hash.status().live_bytes;
    put([&other, &other], 2);
    assert!(hash.status().live_bytes < before + other.len() as u64 / 3);
    // After some noise, most values are not probed, which takes no time.
    put_noise(&hash, &mut Model::new(), 0, 40, 20_000);
    (0..40).for_each(|n| hash.visit(format!("noise:{n}").as_bytes(), &mut Remove).unwrap());
    let visits = |_| {
        let mut put = ChangingPut { values: [&noise, &noise], visits: 0, is_shown: false };
        hash.visit(b"changing", &mut put).unwrap();
        put.visits
    };
    assert_eq!((0..32).map(visits).sum::<usize>(), 32 + 2);
    model.insert(b"changing".to_vec(), (noise.clone(), Attributes::default()));
    check(&hash, &model);
}
