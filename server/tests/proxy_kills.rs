//! Real memcached servers are killed, stopped and started again while many clients use them through
//! the proxy: no reply is wrong, and the first request after a restart succeeds.
//!
//! `cargo xtask test` runs some rounds. `cargo xtask prove proxy` runs more. Without memcached, the
//! test does nothing.

mod proxy_lab;
mod running;

use fastrand::Rng;
use proxy_lab::real_server::RealServer;
use proxy_lab::text_client::{Surroundings, TextClient};
use running::{Running, eventually, options};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use todana_client::ring::{Ring, ServerEntry};
use todana_server::{PoolOptions, ProxyOptions, ServerOptions, WhenDown};

const CLIENTS: usize = 6;
const REPLY_TIMEOUT: Duration = Duration::from_millis(100);

#[test]
fn killed_and_stopped_servers_cause_no_wrong_reply() {
    let Some(program) = RealServer::program() else {
        println!("memcached is not installed");
        return;
    };
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let rounds: u64 = number("TODANA_PROXY_KILLS").unwrap_or(8);
    let seed = number("TODANA_PROXY_SEED").unwrap_or(18);
    let folder = tempfile::tempdir().unwrap();
    let mut servers = [(); 3].map(|()| RealServer::start(&program, folder.path()));
    let entries = servers.iter().map(|server| server.address.to_string().parse::<ServerEntry>().unwrap());
    let pool = PoolOptions {
        servers: entries.collect(),
        reply_timeout: Some(REPLY_TIMEOUT),
        retry: Duration::from_millis(10),
        retry_max: Duration::from_millis(50),
        when_down: WhenDown::Error,
        ..PoolOptions::default()
    };
    let ring = Ring::new(&pool.ring_options().unwrap(), &pool.servers, |_| true).unwrap();
    let labels = pool.servers.iter().map(|entry| entry.label().to_string()).collect();
    let proxy = ProxyOptions { pools: BTreeMap::from([("main".into(), pool)]), ..ProxyOptions::default() };
    let proxy = Running::start(ServerOptions { proxy: Some(proxy), ..options() });
    let around = Arc::new(Surroundings {
        proxy: proxy.addresses[0],
        when_down: WhenDown::Error,
        ring,
        labels,
        steady: None,
        is_lossy: true,
    });
    let mut random = Rng::with_seed(seed);
    let (is_over, gate) = (AtomicBool::new(false), RwLock::new(()));
    let (requests, losses) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (around, random) = (Arc::clone(&around), random.fork());
            let (is_over, gate, requests, losses) = (&is_over, &gate, &requests, &losses);
            scope.spawn(move || {
                let mut client = TextClient::new(format!("c{number}"), around, random);
                while !is_over.load(Ordering::Relaxed) {
                    let _may_run = gate.read();
                    let count = client.turn().unwrap_or_else(|mistake| {
                        is_over.store(true, Ordering::Relaxed);
                        panic!("seed {seed}: {mistake}")
                    });
                    requests.fetch_add(count, Ordering::Relaxed);
                }
                losses.fetch_add(client.losses, Ordering::Relaxed);
            });
        }
        let ended = SetAtEnd(&is_over);
        for round in 0..rounds {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let number = random.usize(..servers.len());
            let server = &mut servers[number];
            let pause = Duration::from_micros(random.u64(..REPLY_TIMEOUT.as_micros() as u64 * 2));
            let before = requests.load(Ordering::Relaxed);
            eventually("the clients send requests", || {
                requests.load(Ordering::Relaxed) > before + 200 || is_over.load(Ordering::Relaxed)
            });
            if round % 2 == 0 {
                server.kill();
                std::thread::sleep(pause);
                server.start_again();
            } else {
                server.signal("STOP");
                std::thread::sleep(pause);
                server.signal("CONT");
            }
            let _none_runs = gate.write();
            check_restart(&proxy, &around.ring, server, number);
        }
        drop(ended);
    });
    println!("{rounds} rounds, {} requests, {} lost", requests.into_inner(), losses.into_inner());
}

/// Sets the flag when it is dropped, so that a panic ends the clients, too.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Restarts a server while no client uses it. The first requests after that must succeed, on any
/// worker, although some of them may not be sent twice.
fn check_restart(proxy: &Running, ring: &Ring, server: &mut RealServer, number: usize) {
    let key = (0..).map(|n| format!("r{n}")).find(|key| ring.server_of(key.as_bytes()) == number).unwrap();
    let mut clients = [(); 4].map(|()| proxy.connect());
    for client in &mut clients {
        eventually("the server is up", || {
            client.send(format!("set {key} 0 0 1\r\n5\r\n").as_bytes());
            client.line() == "STORED\r\n"
        });
    }
    server.kill();
    server.start_again();
    for client in &mut clients {
        client.send(format!("incr {key} 1\r\n").as_bytes());
        assert_eq!(client.line(), "NOT_FOUND\r\n");
    }
}
