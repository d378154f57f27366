//! Many threads on one tree: what each key has been through must be a history that one thread could have made.
//!
//! Every write raises its key's number by one and says who did it. So the numbers of a key as seen by any one reader
//! never fall, no two writers get the same number, and in the end each key has exactly as many as were given out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use todana_core::{Action, Attributes, Engine, Ordered, Record, Visitor};
use todana_engine::{Compression, MemTree, MemTreeOptions};

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
    check_histories(None);
}

#[test]
fn so_it_has_in_a_compressed_tree() {
    check_histories(Some(Compression { open_bytes: 0 }));
}

fn check_histories(compression: Option<Compression>) {
    let rounds = std::env::var("TODANA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40) * 500;
    let tree =
        MemTree::new(MemTreeOptions { partitions: Some(3), compression, ..Default::default() }).unwrap();
    let given: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let key = |n: usize| if n.is_multiple_of(2) { format!("{n:08}") } else { format!("key:number:{n}") };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (tree, given, key) = (&tree, &given, &key);
                scope.spawn(move || {
                    let random = fastrand::Rng::with_seed(writer);
                    let mut raise =
                        Raise { writer, random: random.clone(), value: Vec::new(), given: 0, applied: false };
                    let mut random = random;
                    let mut last = vec![0; KEYS];
                    for _ in 0..rounds {
                        let n = random.usize(0..KEYS);
                        tree.visit(key(n).as_bytes(), &mut raise).unwrap();
                        assert!(raise.applied && raise.given > last[n]);
                        last[n] = raise.given;
                        given[n].fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        // Growth and shrinkage of everything around them.
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(99);
            while !done.load(Relaxed) {
                let filler = format!("filler:{}", random.u32(0..20_000));
                let mut fill = Fill(random.bool());
                tree.visit(filler.as_bytes(), &mut fill).unwrap();
                if random.u32(0..1000) == 0 {
                    tree.maintain();
                }
            }
        });
        for reader in 0..2 {
            let (tree, key, done) = (&tree, &key, &done);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(1000 + reader);
                let mut last = vec![0; KEYS];
                while !done.load(Relaxed) {
                    let n = random.usize(0..KEYS);
                    let mut seen = 0;
                    tree.view(key(n).as_bytes(), &mut |record| seen = number_of(record.value)).unwrap();
                    assert!(seen >= last[n], "key {n} went back from {} to {seen}", last[n]);
                    last[n] = seen;
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Relaxed);
    });
    for (n, given) in given.iter().enumerate() {
        let mut last = 0;
        tree.view(key(n).as_bytes(), &mut |record| last = number_of(record.value)).unwrap();
        assert_eq!(last, given.load(Relaxed), "key {n}");
    }
}

struct Fill(bool);

impl Visitor for Fill {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        if self.0 { Action::Put(Record::new(b"filler", Attributes::default())) } else { Action::Remove }
    }
}

#[test]
fn walks_show_every_record_that_was_there_throughout_once_and_in_order() {
    check_walks(None);
}

#[test]
fn so_they_do_in_a_compressed_tree() {
    check_walks(Some(Compression { open_bytes: 0 }));
}

fn check_walks(compression: Option<Compression>) {
    use std::ops::{Bound, ControlFlow};
    let tree =
        MemTree::new(MemTreeOptions { partitions: Some(4), compression, ..Default::default() }).unwrap();
    let stays: Vec<String> = (0..2000).map(|n| format!("s{:05}stays", n * 30)).collect();
    for key in &stays {
        tree.visit(key.as_bytes(), &mut Fill(true)).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // From nothing to many and back, so that buckets split and merge under the scans.
            while !done.load(Relaxed) {
                for fills in [true, false] {
                    for n in 0..60_000u32 {
                        let n = n.wrapping_mul(7919) % 60_000;
                        tree.visit(format!("s{n}").as_bytes(), &mut Fill(fills)).unwrap();
                    }
                }
            }
        });
        for piece in [1, 7, 100, usize::MAX].repeat(5) {
            let mut seen: Vec<Vec<u8>> = Vec::new();
            let mut place = None;
            loop {
                let mut left = piece;
                place = tree
                    .scan(place, &mut |key, _| {
                        seen.push(key.to_vec());
                        left -= 1;
                        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                    .unwrap();
                if place.is_none() {
                    break;
                }
            }
            check_walk(&stays, &seen);
            for ascends in [true, false] {
                let mut seen: Vec<Vec<u8>> = Vec::new();
                let see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()> = &mut |key, _| {
                    seen.push(key.to_vec());
                    ControlFlow::Continue(())
                };
                if ascends {
                    tree.ascend(Bound::Unbounded, see).unwrap();
                } else {
                    tree.descend(Bound::Unbounded, see).unwrap();
                    seen.reverse();
                }
                check_walk(&stays, &seen);
            }
        }
        done.store(true, Relaxed);
    });
}

/// Every key that stays is there, in order, and no key twice.
fn check_walk(stays: &[String], seen: &[Vec<u8>]) {
    assert!(seen.is_sorted_by(|one, next| one < next), "in order, none twice");
    let missing: Vec<_> = stays
        .iter()
        .filter(|key| seen.binary_search_by(|seen| seen[..].cmp(key.as_bytes())).is_err())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
