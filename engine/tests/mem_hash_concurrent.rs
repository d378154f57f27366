//! Many threads on one hash: what each key has been through must be a history that one thread could have made.
//!
//! Every write raises its key's number by one and says who did it. So the numbers of a key as seen by any one reader
//! never fall, no two writers get the same number, and in the end each key has exactly as many as were given out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana_core::{Action, Attributes, Engine, Record, Visitor};
use todana_engine::{MemHash, MemHashOptions};

const KEYS: usize = 300;
const WRITERS: u64 = 4;

/// `writer:number:padding`, the padding so long that blocks change their sizes all the time.
struct Raise {
    writer: u64,
    random: fastrand::Rng,
    value: Vec<u8>,
    given: u64,
    applied: bool,
}

fn number_of(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).expect("values are text");
    let mut parts = text.split(':');
    let writer: u64 = parts.next().expect("a writer").parse().expect("a number");
    let number = parts.next().expect("a number").parse().expect("a number");
    let padding = parts.next().expect("padding");
    // A torn or misplaced value would not have this shape.
    assert!(writer < WRITERS && padding.bytes().all(|byte| byte == b'a' + writer as u8));
    number
}

impl Visitor for Raise {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.given = old.map_or(0, |old| number_of(old.value)) + 1;
        self.applied = false;
        let len = match self.random.u32(0..100) {
            0 => 70_000,
            1..5 => 3000,
            5..20 => 300,
            _ => self.random.usize(0..60),
        };
        let padding = char::from(b'a' + self.writer as u8).to_string().repeat(len);
        self.value = format!("{}:{}:{padding}", self.writer, self.given).into_bytes();
        Action::Put(Record::new(&self.value, Attributes::default()))
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        assert_eq!(now.map(|now| now.value.to_vec()), Some(self.value.clone()));
        self.applied = true;
    }
}

#[test]
fn every_key_has_a_history_that_one_thread_could_have_made() {
    let rounds = std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40) * 500;
    let hash = MemHash::new(MemHashOptions { shards: Some(2), ..Default::default() }).unwrap();
    let given: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let key = |n: usize| if n.is_multiple_of(2) { format!("{n:08}") } else { format!("key:number:{n}") };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (hash, given, key) = (&hash, &given, &key);
                scope.spawn(move || {
                    let random = fastrand::Rng::with_seed(writer);
                    let mut raise =
                        Raise { writer, random: random.clone(), value: Vec::new(), given: 0, applied: false };
                    let mut random = random;
                    let mut last = vec![0; KEYS];
                    for _ in 0..rounds {
                        let n = random.usize(0..KEYS);
                        hash.visit(key(n).as_bytes(), &mut raise).unwrap();
                        assert!(raise.applied && raise.given > last[n]);
                        last[n] = raise.given;
                        given[n].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // Growth and shrinkage of everything around them.
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(99);
            while !done.load(Ordering::Relaxed) {
                let filler = format!("filler:{}", random.u32(0..20_000));
                let mut fill = Fill(random.bool());
                hash.visit(filler.as_bytes(), &mut fill).unwrap();
                if random.u32(0..1000) == 0 {
                    hash.maintain();
                }
            }
        });
        for reader in 0..2 {
            let (hash, key, done) = (&hash, &key, &done);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(1000 + reader);
                let mut last = vec![0; KEYS];
                while !done.load(Ordering::Relaxed) {
                    let n = random.usize(0..KEYS);
                    let mut seen = 0;
                    hash.view(key(n).as_bytes(), &mut |record| seen = number_of(record.value)).unwrap();
                    assert!(seen >= last[n], "key {n} went back from {} to {seen}", last[n]);
                    last[n] = seen;
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    for (n, given) in given.iter().enumerate() {
        let mut last = 0;
        hash.view(key(n).as_bytes(), &mut |record| last = number_of(record.value)).unwrap();
        assert_eq!(last, given.load(Ordering::Relaxed), "key {n}");
    }
}

struct Fill(bool);

impl Visitor for Fill {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        if self.0 { Action::Put(Record::new(b"filler", Attributes::default())) } else { Action::Remove }
    }
}

#[test]
fn a_scan_shows_every_record_that_was_there_throughout() {
    use std::ops::ControlFlow;
    let hash = MemHash::new(MemHashOptions { shards: Some(4), ..Default::default() }).unwrap();
    let stays: Vec<String> = (0..2000).map(|n| format!("stays:{n}")).collect();
    for key in &stays {
        hash.visit(key.as_bytes(), &mut Fill(true)).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // From nothing to many and back, so that buckets split and merge under the scans.
            while !done.load(Ordering::Relaxed) {
                for fills in [true, false] {
                    for n in 0..30_000 {
                        hash.visit(format!("goes:{n}").as_bytes(), &mut Fill(fills)).unwrap();
                    }
                }
            }
        });
        for piece in [1, 7, 100, usize::MAX].repeat(5) {
            let mut seen = std::collections::HashSet::new();
            let mut place = None;
            loop {
                let mut left = piece;
                place = hash
                    .scan(place, &mut |key, _| {
                        seen.insert(String::from_utf8(key.to_vec()).unwrap());
                        left -= 1;
                        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                    .unwrap();
                if place.is_none() {
                    break;
                }
            }
            let missing: Vec<_> = stays.iter().filter(|key| !seen.contains(*key)).collect();
            assert!(missing.is_empty(), "pieces of {piece}: {missing:?}");
        }
        done.store(true, Ordering::Relaxed);
    });
}
