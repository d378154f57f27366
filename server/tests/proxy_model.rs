//! Random requests of many clients, over fake servers that delay, cut and falsify replies: each
//! reply is one that the servers could have sent directly, and it belongs to its request.
//!
//! `cargo xtask test` sends 20,000 requests. `cargo xtask prove proxy` sends more.

mod proxy_lab;
mod running;

use fastrand::Rng;
use proxy_lab::binary_client::BinaryClient;
use proxy_lab::fake_server::{FakeServer, FaultPlan};
use proxy_lab::text_client::{Surroundings, TextClient};
use running::{Running, options};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use todana_client::ring::{Ring, ServerEntry};
use todana_server::{PoolOptions, ProxyOptions, ProxyRoutes, RouteTree, ServerOptions, WhenDown};

/// The number of requests with the same proxy and the same servers.
const ROUND: u32 = 4000;
const CLIENTS: usize = 8;
/// The prefix of keys whose servers never fail.
const STEADY: &str = "steady:";

fn entries(servers: &[FakeServer]) -> Vec<ServerEntry> {
    servers.iter().map(|server| server.address.to_string().parse().unwrap()).collect()
}

/// Returns the number of replies that faults have changed.
fn round(seed: u64, requests: u32) -> u32 {
    let mut random = Rng::with_seed(seed);
    let timeout = Duration::from_millis(60);
    let plan = FaultPlan { every: 150, timeout, is_text_only: false };
    let shaky: Vec<FakeServer> = (0..3).map(|_| FakeServer::start(plan, random.u64(..))).collect();
    let steady = [(); 2].map(|()| FakeServer::start(FaultPlan { every: 0, ..plan }, random.u64(..)));
    let when_down = [WhenDown::Gentle, WhenDown::Error, WhenDown::Miss][random.usize(..3)];
    let shaky_pool = PoolOptions {
        servers: entries(&shaky),
        connect_timeout: timeout,
        reply_timeout: Some(timeout),
        failures: random.u32(1..6),
        retry: Duration::from_millis(5),
        retry_max: Duration::from_millis(40),
        when_down,
        ..PoolOptions::default()
    };
    let limit = Duration::from_secs(600);
    let steady_pool = PoolOptions {
        servers: entries(&steady),
        connect_timeout: limit,
        reply_timeout: Some(limit),
        when_down: WhenDown::Error,
        ..PoolOptions::default()
    };
    let ring = Ring::new(&shaky_pool.ring_options().unwrap(), &shaky_pool.servers, |_| true).unwrap();
    let labels = shaky_pool.servers.iter().map(|entry| entry.label().to_string()).collect();
    let routes = ProxyRoutes {
        prefixes: vec![(STEADY.into(), RouteTree::Pool("steady".into()))],
        ..ProxyRoutes::to_pool("shaky")
    };
    let pools = BTreeMap::from([("shaky".into(), shaky_pool), ("steady".into(), steady_pool)]);
    let proxy = ProxyOptions { pools, routes: Some(routes), ..ProxyOptions::default() };
    let proxy = Running::start(ServerOptions { proxy: Some(proxy), ..options() });
    let around = Surroundings {
        proxy: proxy.addresses[0],
        when_down,
        ring,
        labels,
        steady: Some(STEADY),
        is_lossy: false,
    };
    let around = Arc::new(around);
    let (sent, losses) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (around, random, sent, losses) = (Arc::clone(&around), random.fork(), &sent, &losses);
            scope.spawn(move || {
                let name = format!("c{number}");
                if number % 4 == 3 {
                    let mut client = BinaryClient::new(name, around, random);
                    while sent.load(Ordering::Relaxed) < requests {
                        let count = client.turn().unwrap_or_else(|mistake| panic!("seed {seed}: {mistake}"));
                        sent.fetch_add(count, Ordering::Relaxed);
                    }
                    losses.fetch_add(client.losses, Ordering::Relaxed);
                    return;
                }
                let mut client = TextClient::new(name, around, random);
                while sent.load(Ordering::Relaxed) < requests {
                    let count = client.turn().unwrap_or_else(|mistake| panic!("seed {seed}: {mistake}"));
                    sent.fetch_add(count, Ordering::Relaxed);
                }
                losses.fetch_add(client.losses, Ordering::Relaxed);
                client.end().unwrap_or_else(|mistake| panic!("seed {seed}: {mistake}"));
            });
        }
    });
    for (number, server) in shaky.iter().enumerate() {
        assert_eq!(server.mistakes(), [""; 0], "seed {seed}");
        for key in server.keys() {
            assert_eq!(around.ring.server_of(key.as_bytes()), number, "seed {seed}: {key}");
        }
    }
    for server in &steady {
        assert_eq!(server.mistakes(), [""; 0], "seed {seed}");
        assert!(server.keys().iter().all(|key| key.starts_with(STEADY)), "seed {seed}");
    }
    losses.into_inner()
}

#[test]
fn replies_are_those_of_direct_requests() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let requests = number("TODANA_PROXY_REQUESTS").unwrap_or(20_000);
    let first = number("TODANA_PROXY_SEED").unwrap_or(18);
    let (mut done, mut losses) = (0, 0);
    for seed in first.. {
        if done >= requests {
            break;
        }
        losses += round(seed, ROUND);
        done += u64::from(ROUND);
    }
    println!("{done} requests, {losses} lost");
    assert!(losses > 0);
}
