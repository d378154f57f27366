//! Many threads on one engine: the history of each key must be possible for a single thread.
//!
//! Every write increments the number of its key and names its writer. The numbers of a key as seen
//! by one reader must therefore never fall, no two writers may get the same number, and in the end
//! each key must have the number of writes that were made.

use crate::subject::{StopOnDrop, Subject, cases};
use crate::visitor::{Remove, Set};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana_core::{Action, Attributes, Engine, Record, Result, ScanPosition, Visitor};

const KEYS: usize = 300;
const WRITERS: u64 = 4;

/// `writer:number:padding`, with padding of such lengths that records move all the time.
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
    // A torn or misplaced value would not have this form.
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
        assert!(now.is_some_and(|now| now.value == self.value));
        self.applied = true;
    }
}

fn key(n: usize) -> String {
    if n.is_multiple_of(2) { format!("{n:08}") } else { format!("key:number:{n}") }
}

fn number(engine: &dyn Engine, n: usize) -> u64 {
    let mut seen = 0;
    engine.view(key(n).as_bytes(), &mut |record| seen = number_of(record.value)).unwrap();
    seen
}

pub(crate) fn every_key_has_a_serial_history(subject: &Subject) {
    let rounds = cases(20) * 500;
    let mut opened = subject.fresh();
    let given: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = StopOnDrop(&done);
        let engine: &dyn Engine = &*opened;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let given = &given;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(writer);
                    let mut raise =
                        Raise { writer, random: random.fork(), value: Vec::new(), given: 0, applied: false };
                    let mut last = vec![0; KEYS];
                    for _ in 0..rounds {
                        let n = random.usize(0..KEYS);
                        engine.visit(key(n).as_bytes(), &mut raise).unwrap();
                        assert!(raise.applied && raise.given > last[n]);
                        last[n] = raise.given;
                        given[n].fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // Growth and shrinkage around these keys.
        let done = &done;
        scope.spawn(move || {
            let mut random = fastrand::Rng::with_seed(99);
            while !done.load(Ordering::Relaxed) {
                let filler = format!("filler:{}", random.u32(0..20_000));
                match random.bool() {
                    true => engine.visit(filler.as_bytes(), &mut Set(b"filler")).unwrap(),
                    false => engine.visit(filler.as_bytes(), &mut Remove).unwrap(),
                }
                if random.u32(0..1000) == 0 {
                    engine.maintain();
                }
            }
        });
        for reader in 0..2 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(1000 + reader);
                let mut last = vec![0; KEYS];
                while !done.load(Ordering::Relaxed) {
                    let n = random.usize(0..KEYS);
                    let seen = number(engine, n);
                    assert!(seen >= last[n], "key {n} went back from {} to {seen}", last[n]);
                    last[n] = seen;
                }
            });
        }
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        drop(ends);
        for outcome in outcomes {
            outcome.unwrap();
        }
    });
    for _ in 0..2 {
        for (n, given) in given.iter().enumerate() {
            assert_eq!(number(&*opened, n), given.load(Ordering::Relaxed), "key {n}");
        }
        opened.reopen();
    }
}

pub(crate) fn scan_shows_every_record_that_stays(subject: &Subject) {
    let opened = subject.fresh();
    let engine: &dyn Engine = &*opened;
    let stays: Vec<String> = (0..2000).map(|n| format!("stays:{n}")).collect();
    for key in &stays {
        engine.visit(key.as_bytes(), &mut Set(b"stays")).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = StopOnDrop(&done);
        scope.spawn(|| {
            // From no records to many and back, so that all structures split and merge during the
            // scans.
            while !done.load(Ordering::Relaxed) {
                for fills in [true, false] {
                    for n in 0..30_000 {
                        let key = format!("goes:{n}");
                        match fills {
                            true => engine.visit(key.as_bytes(), &mut Set(b"goes")).unwrap(),
                            false => engine.visit(key.as_bytes(), &mut Remove).unwrap(),
                        }
                        if done.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                }
            }
        });
        let by_hash = |place, see: &mut See<'_>| engine.scan(place, see);
        let in_any_order = |place, see: &mut See<'_>| engine.read_all(place, see);
        let scans = [1, 7, 100, usize::MAX].repeat(2).into_iter().map(|piece| (&by_hash as &Scan<'_>, piece));
        // A read in the order of the files reads all that the other thread has written, which is
        // never compacted here. So there are few.
        let reads = [20, usize::MAX].map(|piece| (&in_any_order as &Scan<'_>, piece));
        let missing: Vec<_> = scans
            .chain(reads)
            .map(|(scan, piece)| {
                let seen = seen_in_pieces(engine, scan, piece);
                stays.iter().filter(|key| !seen.contains(*key)).count()
            })
            .collect();
        drop(ends);
        assert!(missing.iter().all(|&missing| missing == 0), "missing in each scan: {missing:?}");
    });
}

type See<'s> = dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()> + 's;
type Scan<'s> = dyn Fn(Option<ScanPosition>, &mut See<'_>) -> Result<Option<ScanPosition>> + 's;

fn seen_in_pieces(engine: &dyn Engine, scan: &Scan<'_>, piece: usize) -> HashSet<String> {
    let (mut seen, mut place, mut last) = (HashSet::new(), None, None::<Vec<u8>>);
    loop {
        let mut left = piece;
        let next = scan(place, &mut |key, _| {
            if engine.ordered().is_some() {
                assert!(last.as_deref().is_none_or(|last| last < key), "in order, none twice");
                last = Some(key.to_vec());
            }
            seen.insert(String::from_utf8(key.to_vec()).unwrap());
            left = left.saturating_sub(1);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        place = next.unwrap();
        if place.is_none() {
            return seen;
        }
    }
}
