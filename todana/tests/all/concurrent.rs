//! Many threads on one database lose no update.

use std::sync::Arc;
use todana::{Database, SystemClock};
use todana_core::{Arithmetic, Get, Operation, Reply, ReplyNeeds, Store};
use todana_engine::{MemHash, MemHashOptions};

const THREADS: u64 = 4;
const ROUNDS: u64 = 5_000;

fn text_and_version(
    database: &Database,
    worker_counters: &todana::WorkerCounters,
    key: &[u8],
) -> (String, u64) {
    let needs = ReplyNeeds { version: true, access: false };
    let mut found = None;
    database.execute(worker_counters, &Operation::Get(Get { key, needs, ..Get::default() }), &mut |reply| {
        if let Reply::Hit(hit) = reply {
            let text = String::from_utf8(hit.record.value.to_vec()).unwrap();
            found = Some((text, hit.record.attributes.version));
        }
    });
    found.expect("the record is there")
}

#[test]
fn concurrent_increments_and_cas_all_count() {
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    let database = Database::new(Box::new(engine), Arc::new(SystemClock));
    let worker_counters = database.worker_counters();
    for key in [&b"count"[..], b"cas"] {
        let store = Store { key, value: b"0", ..Store::default() };
        database.execute(&worker_counters, &Operation::Store(store), &mut |_| {});
    }
    let retries: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let worker_counters = database.worker_counters();
                    let (mut last, mut retries) = (0, 0);
                    for _ in 0..ROUNDS {
                        let incr = Arithmetic { key: b"count", ..Arithmetic::default() };
                        database.execute(&worker_counters, &Operation::Arithmetic(incr), &mut |reply| {
                            match reply {
                                Reply::Number(number) => {
                                    assert!(number.value > last, "{} behind {last}", number.value);
                                    last = number.value;
                                }
                                other => panic!("{other:?}"),
                            }
                        });
                        loop {
                            let (text, version) = text_and_version(&database, &worker_counters, b"cas");
                            let next = (text.parse::<u64>().unwrap() + 1).to_string();
                            let compare = Some(version);
                            let value = next.as_bytes();
                            let store = Store { key: b"cas", value, compare, ..Store::default() };
                            let mut stored = false;
                            database.execute(&worker_counters, &Operation::Store(store), &mut |reply| {
                                match reply {
                                    Reply::Stored(_) => stored = true,
                                    Reply::Exists => {}
                                    other => panic!("{other:?}"),
                                }
                            });
                            if stored {
                                break;
                            }
                            retries += 1;
                        }
                    }
                    retries
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let total = THREADS * ROUNDS;
    assert_eq!(text_and_version(&database, &worker_counters, b"count").0, total.to_string());
    assert_eq!(text_and_version(&database, &worker_counters, b"cas").0, total.to_string());
    let counters = database.counters();
    assert_eq!((counters.incr_hits, counters.incr_misses), (total, 0));
    assert_eq!((counters.cas_hits, counters.cas_badval, counters.cas_misses), (total, retries, 0));
    assert_eq!(counters.get_hits, total + retries + 2);
}
