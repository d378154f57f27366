//! Engines with a memory limit.

use crate::model::{Decided, Decision, Map, assert_same, scan, view};
use crate::subject::{Subject, cases, remove};
use todana_core::{Attributes, Engine, ErrorKind, MemoryLimit, WhenFull};

const LIMIT: u64 = 8 << 20;
/// The amount by which an engine may briefly exceed its limit: some pages that the next write
/// regains.
const LEEWAY: u64 = LIMIT / 32;

fn put(engine: &dyn Engine, key: &[u8], value: &[u8]) -> todana_core::Result<()> {
    engine.visit(key, &mut Decided::new(Decision::Put(value.to_vec(), Attributes::default())))
}

pub(crate) fn a_limit_holds_whatever_the_sizes_do(subject: &Subject) {
    let engine = subject.fresh();
    let Some(bounded) = engine.bounded() else { return };
    let limit = MemoryLimit { bytes: Some(LIMIT), when_full: WhenFull::Evict };
    bounded.set_limit(limit);
    assert_eq!(bounded.limit(), limit);
    let mut random = fastrand::Rng::with_seed(5);
    for n in 0..cases(30).max(30) * 1000 {
        let len = match n / 5000 % 3 {
            0 => random.usize(0..50),
            1 => random.usize(0..2000),
            _ => {
                if random.u32(0..100) == 0 {
                    100_000
                } else {
                    random.usize(0..300)
                }
            }
        };
        let (key, value) = (format!("key {n}").into_bytes(), vec![n as u8; len]);
        put(&*engine, &key, &value).unwrap_or_else(|error| panic!("record {n} of {len} bytes: {error}"));
        let committed = engine.status().committed_bytes;
        assert!(committed <= LIMIT + LEEWAY, "{committed} bytes held");
        assert_eq!(
            view(&*engine, &key),
            Some((value, Attributes::default())),
            "what was just stored is there"
        );
        if n % 100 == 0 {
            engine.maintain();
        }
    }
    let status = engine.status();
    assert!(status.evictions > 0, "some had to go");
    assert_eq!(status.records, scan(&*engine, usize::MAX).len() as u64);
}

pub(crate) fn a_limit_that_refuses_forgets_nothing(subject: &Subject) {
    let engine = subject.fresh();
    let Some(bounded) = engine.bounded() else { return };
    bounded.set_limit(MemoryLimit { bytes: Some(LIMIT), when_full: WhenFull::Refuse });
    let mut model = Map::new();
    let mut refused = 0;
    for n in 0.. {
        let (key, value) = (format!("key {n}").into_bytes(), vec![n as u8; n as usize * 37 % 500]);
        match put(&*engine, &key, &value) {
            Ok(()) => drop(model.insert(key, (value, Attributes::default()))),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                refused += 1;
            }
        }
        assert!(n < 1_000_000, "it is full some time");
        if refused == 100 {
            break;
        }
    }
    assert_eq!(engine.status().evictions, 0);
    assert_same(&scan(&*engine, usize::MAX), &model, "when full");
    // Remove half of them: the memory of a few may lie in blocks of other sizes than the next
    // record needs.
    let gone: Vec<_> = model.keys().step_by(2).cloned().collect();
    for key in gone {
        assert!(remove(&*engine, &key) && model.remove(&key).is_some());
    }
    while engine.maintain() {}
    put(&*engine, b"again", b"there is room").unwrap();
    model.insert(b"again".to_vec(), (b"there is room".to_vec(), Attributes::default()));
    assert_same(&scan(&*engine, usize::MAX), &model, "with room again");
}
