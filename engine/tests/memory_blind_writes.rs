//! Full engines in memory against a `BTreeMap`: writes that read the old value and writes that do
//! not, over values of all forms, while records are evicted and expire. Every missing record was
//! reported or had expired; all others are as they were stored.

mod listener;
#[allow(dead_code, reason = "each test file uses its part")]
mod model;

use listener::Listener;
use model::{Decided, Decision, Map, Owned, classes, name, scan, view};
use std::sync::Arc;
use todana_core::{Attributes, Engine, Expiry, LastAccess, MemoryLimit, StaleMarks, UnixSeconds, WhenFull};
use todana_engine::{Compression, MemHash, MemHashOptions, MemTree, MemTreeOptions};

/// The bounds of the size classes.
const BOUNDS: [u32; 4] = [10, 100, 1000, 10_000];
const LIMIT: MemoryLimit = MemoryLimit { bytes: Some(2 << 20), when_full: WhenFull::Evict };

fn key(random: &mut fastrand::Rng) -> Vec<u8> {
    let n = random.u32(..2500);
    match random.u8(..20) {
        0..7 => n.to_string().into(),
        7..11 => format!("{n:08}").into(),
        11..15 => format!("user:{n}").into(),
        15..18 => format!("{n:x<16}").into(),
        18 => format!("{:k<600}", n % 50).into(),
        _ => n.to_be_bytes()[..n as usize % 5].into(),
    }
}

fn value(random: &mut fastrand::Rng) -> Vec<u8> {
    let digits = |random: &mut fastrand::Rng, len: usize| (0..len).map(|_| random.digit(10) as u8).collect();
    let len = match random.u8(..40) {
        0..14 => {
            let len = random.usize(1..23);
            return digits(random, len);
        }
        14..24 => [0, 1, 2, 4, 8, 16, 32][random.usize(..7)],
        24..32 => random.usize(..70),
        // Around the maximum length in a bucket.
        32..36 => random.usize(980..1060),
        36..39 => random.usize(1000..6000),
        _ if random.u8(..) < 30 => random.usize(65_000..66_500),
        _ => random.usize(..300),
    };
    let mut value = vec![0; len];
    random.fill(&mut value);
    value
}

fn attributes(random: &mut fastrand::Rng, now: u64) -> Attributes {
    let plain = Attributes::default();
    let at = UnixSeconds(now + random.u64(1..60));
    let expiry = match random.u8(..8) {
        0 => Expiry::Never,
        1 => Expiry::Sliding { at, span_s: random.u32(1..100_000) },
        2 => Expiry::At(UnixSeconds(random.u64(1 << 31..1 << 40))),
        _ => Expiry::At(at),
    };
    match random.u8(..10) {
        0..4 => plain,
        4..7 => Attributes { expiry, ..plain },
        7 => Attributes { flags: random.u32(..) >> random.u8(..32), ..plain },
        8 => Attributes { version: random.u64(..) >> random.u8(..64), expiry, ..plain },
        _ => {
            let access = Some(LastAccess { at: UnixSeconds(random.u32(..).into()), fetched: random.bool() });
            let marks = StaleMarks { stale: random.bool(), token_sent: random.bool() };
            Attributes {
                flags: random.u32(..),
                expiry,
                version: random.u64(..),
                marks,
                access,
                has_value_list: false,
            }
        }
    }
}

fn has_expired(record: &Owned, now: u64) -> bool {
    !record.1.expiry.is_live(UnixSeconds(now))
}

struct Beside<'e> {
    engine: &'e dyn Engine,
    listener: &'e Listener,
    model: Map,
    now: u64,
    told: u64,
}

impl Beside<'_> {
    /// Notes the evictions that happened while this key got this record.
    fn note_evictions(&mut self, key: &[u8], new: Option<&Owned>) {
        for (gone, value, flags, _) in self.listener.take() {
            self.told += 1;
            let is_it = |record: &Owned| record.0 == value && record.1.flags == flags;
            let was_there = self.model.get(&gone).is_some_and(is_it);
            assert!(was_there || gone == key && new.is_some_and(is_it), "{} went as another", name(&gone));
            if was_there {
                self.model.remove(&gone);
            }
        }
    }

    fn visit(&mut self, key: &[u8], decision: Decision, is_blind: bool) {
        let mut visitor =
            if is_blind { Decided::blind(decision.clone()) } else { Decided::new(decision.clone()) };
        self.engine.visit(key, &mut visitor).unwrap();
        let given = match &decision {
            Decision::Put(value, attributes) => Some((value.clone(), *attributes)),
            _ => None,
        };
        self.note_evictions(key, given.as_ref());
        if visitor.seen.is_none() && self.model.get(key).is_some_and(|old| has_expired(old, self.now)) {
            self.model.remove(key);
        }
        let old = self.model.get(key).cloned();
        assert!(visitor.has_seen(old.as_ref()), "{} was shown otherwise than it is", name(key));
        let new = match decision {
            Decision::Keep => return,
            Decision::Put(..) => given,
            Decision::Retag(attributes) => old.clone().map(|(value, _)| (value, attributes)),
            Decision::Remove => None,
        };
        let applies = old.is_some() || new.is_some();
        assert!(visitor.applied == applies.then(|| new.clone()), "{} was applied otherwise", name(key));
        match new {
            Some(new) => self.model.insert(key.to_vec(), new),
            None => self.model.remove(key),
        };
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let key = key(random);
        match random.u8(..100) {
            0..60 => {
                let put = Decision::Put(value(random), attributes(random, self.now));
                self.visit(&key, put, random.u8(..4) > 0);
            }
            60..68 => self.visit(&key, Decision::Retag(attributes(random, self.now)), random.bool()),
            68..74 => self.visit(&key, Decision::Remove, random.bool()),
            74..76 => self.visit(&key, Decision::Keep, random.bool()),
            76..98 => {
                let found = view(self.engine, &key);
                let known = self.model.get(&key);
                let may_be_gone = known.is_none_or(|record| has_expired(record, self.now));
                assert!(found.as_ref() == known || found.is_none() && may_be_gone, "{}", name(&key));
            }
            98 => {
                self.now += random.u64(..10);
                self.engine.bounded().unwrap().set_time(UnixSeconds(self.now));
            }
            _ => {
                self.engine.maintain();
                self.note_evictions(b"", None);
            }
        }
    }

    fn check(&mut self) {
        let found = scan(self.engine, usize::MAX);
        for (key, record) in &found {
            assert!(self.model.get(key) == Some(record), "{} differs", name(key));
        }
        let now = self.now;
        self.model.retain(|key, record| {
            assert!(found.contains_key(key) || has_expired(record, now), "{} is missing", name(key));
            found.contains_key(key)
        });
        let status = self.engine.status();
        assert_eq!((status.records, status.evictions), (found.len() as u64, self.told));
        assert!(status.committed_bytes <= LIMIT.bytes.unwrap() + (64 << 10), "{status:?}");
        let counted: Vec<_> = status.classes.iter().map(|class| (class.records, class.plain_bytes)).collect();
        assert_eq!(counted, classes(&found, &BOUNDS));
    }
}

fn run(engine: &dyn Engine, listener: &Listener, seed: u64, steps: u32) {
    let committed = engine.status().committed_bytes;
    listener.listen();
    engine.bounded().unwrap().set_time(UnixSeconds(1000));
    let mut beside = Beside { engine, listener, model: Map::new(), now: 1000, told: 0 };
    let mut random = fastrand::Rng::with_seed(seed);
    for step in 1..=steps {
        beside.step(&mut random);
        if step % 5000 == 0 {
            beside.check();
        }
    }
    beside.check();
    assert!(beside.told > 100, "it was full: {}", beside.told);
    let keys: Vec<_> = beside.model.keys().cloned().collect();
    keys.iter().for_each(|key| beside.visit(key, Decision::Remove, true));
    let status = engine.status();
    assert_eq!((status.records, status.live_bytes), (0, 0));
    assert!(status.classes.iter().all(|class| (class.records, class.plain_bytes) == (0, 0)));
    while engine.maintain() {}
    engine.clear(&mut || ()).unwrap();
    // Except for the counters of uses, which a tree allocates when memory first becomes scarce.
    assert!(engine.status().committed_bytes <= committed + (8 << 10), "all memory is given back");
}

/// Returns the number of steps; `TODANA_CASES` sets fewer for slow runs (sanitizers, valgrind).
fn steps() -> u32 {
    let cases = std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse::<u32>().ok());
    cases.map_or(40_000, |cases| cases.saturating_mul(1000).min(40_000)).max(10_000)
}

#[test]
fn full_hash_keeps_blind_writes() {
    for (seed, capacity_records) in [(1, None), (2, Some(700)), (3, None)] {
        let listener = Arc::new(Listener::default());
        let options =
            MemHashOptions { shards: Some(2), seed: Some(seed), limit: LIMIT, ..Default::default() };
        let options = MemHashOptions { class_bounds: BOUNDS.into(), capacity_records, ..options };
        let hash = MemHash::new(MemHashOptions { observer: listener.observer(), ..options }).unwrap();
        run(&hash, &listener, seed, steps());
    }
}

#[test]
fn full_tree_keeps_blind_writes() {
    for (seed, compression) in [(4, None), (5, Some(Compression { open_bytes: 64 << 10 }))] {
        let listener = Arc::new(Listener::default());
        let options = MemTreeOptions { partitions: Some(2), limit: LIMIT, compression, ..Default::default() };
        let options = MemTreeOptions { class_bounds: BOUNDS.into(), ..options };
        let tree = MemTree::new(MemTreeOptions { observer: listener.observer(), ..options }).unwrap();
        run(&tree, &listener, seed, steps());
    }
}
