//! How long does a ring take to find the server of a key of 20 bytes among 25 equal servers, and
//! how long does it take to build it?
//!
//! Run: `cargo bench -p todana-client --bench ring`

use std::hint::black_box;
use std::time::{Duration, Instant};
use todana_client::ring::{Ring, RingKind, RingOptions, ServerEntry};

const SERVERS: usize = 25;
const ROUNDS: usize = 7;
const ROUND_TIME: Duration = Duration::from_millis(60);

fn main() {
    println!("{:<40} {:>12} {:>12}", "ring", "look-up, ns", "building, us");
    let servers = servers(SERVERS, |_| 1);
    for (name, kind) in RingKind::ALL {
        measure(name, &RingOptions { kind, ..RingOptions::default() }, &servers);
    }
    let of = |kind: RingKind, hash: &str| RingOptions { kind, hash: Some(hash.into()), ..Default::default() };
    measure("libmemcached, fnv1a_64", &of(RingKind::Libmemcached, "fnv1a_64"), &servers);
    measure("mcrouter, Rendezvous", &of(RingKind::Mcrouter, "Rendezvous"), &servers);
    let todana = RingOptions { kind: RingKind::Todana, ..RingOptions::default() };
    measure("todana, weights from 1 to 5", &todana, &self::servers(SERVERS, |number| number % 5 + 1));
    measure("todana, 250 servers", &todana, &self::servers(250, |_| 1));
    measure("libmemcached, 250 servers", &RingOptions::default(), &self::servers(250, |_| 1));
}

fn servers(count: usize, weight: impl Fn(usize) -> usize) -> Vec<ServerEntry> {
    let entry = |number| format!("10.0.0.{} weight={}", number + 1, weight(number));
    (0..count).map(|number| entry(number).parse().expect("an address")).collect()
}

fn measure(name: &str, options: &RingOptions, servers: &[ServerEntry]) {
    let build = || Ring::new(options, servers, |_| true).expect("a ring");
    let building = nanoseconds_a_call(|_| drop(black_box(build()))) / 1000.0;
    let keys: Vec<Vec<u8>> =
        (0..4096).map(|number| format!("session:{:012}", number * 7919).into_bytes()).collect();
    assert!(keys.iter().all(|key| key.len() == 20));
    let ring = build();
    let looking_up = nanoseconds_a_call(|call| {
        black_box(ring.server_of(black_box(&keys[call % 4096])));
    });
    println!("{name:<40} {looking_up:>12.1} {building:>12.1}");
}

/// Returns the best of several rounds, because other work on the machine can only add time.
fn nanoseconds_a_call(call: impl Fn(usize)) -> f64 {
    let round = || {
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < ROUND_TIME {
            (0..64).for_each(|_| {
                call(calls);
                calls += 1;
            });
        }
        start.elapsed().as_secs_f64() * 1e9 / calls as f64
    };
    (0..ROUNDS).map(|_| round()).fold(f64::MAX, f64::min)
}
