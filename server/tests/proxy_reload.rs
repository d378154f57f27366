//! Reloads of a proxy under load: servers come and go, and no request is lost, doubled or late.

mod running;

use running::{Client, Running, options};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use todana_server::{LimitOptions, PoolOptions, ProxyOptions, Server, ServerOptions, WhenDown};

/// The number of clients that send requests all the time.
const CLIENTS: usize = 4;
/// The number of requests that a client sends at once.
const BATCH: usize = 40;
const KEYS: usize = 16;
const RELOADS: usize = 100;
/// The memory that reloads may take.
const GROWTH_MAX: u64 = 4 << 20;

fn proxy_of(servers: &[&Running]) -> ProxyOptions {
    let servers = servers.iter().map(|server| server.addresses[0].to_string().parse().unwrap());
    let pool = PoolOptions {
        servers: servers.collect(),
        when_down: WhenDown::Error,
        // A slow machine is no reason for an error.
        reply_timeout: None,
        connect_timeout: running::WAIT_MAX,
        ..PoolOptions::default()
    };
    ProxyOptions { pools: BTreeMap::from([("main".into(), pool)]), ..ProxyOptions::default() }
}

/// Sends requests until the end. Each adds one to a counter, and its reply names its number.
fn count(mut client: Client, own: usize, is_over: &AtomicBool, batches: &AtomicUsize) -> [u64; KEYS] {
    let mut sent = [0; KEYS];
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        let mut requests = Vec::new();
        for n in number..number + BATCH {
            let key = n * 7 % KEYS;
            sent[key] += 1;
            requests.extend_from_slice(format!("ma c{own}:{key} N0 J1 k O{n}\r\n").as_bytes());
        }
        requests.extend_from_slice(b"get none1 none2 none3\r\n");
        client.send(&requests);
        for n in number..number + BATCH {
            assert_eq!(client.line(), format!("HD kc{own}:{} O{n}\r\n", n * 7 % KEYS));
        }
        assert_eq!(client.line(), "END\r\n");
        number += BATCH;
        batches.fetch_add(1, Ordering::Relaxed);
    }
    sent
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn reloads_lose_and_double_no_request() {
    let servers = [(); 3].map(|()| Running::start(options()));
    let [one, two, three] = &servers;
    let variants =
        [proxy_of(&[one, two]), proxy_of(&[one, two, three]), proxy_of(&[two, three]), proxy_of(&[three])];
    let limits = LimitOptions { threads: 2, ..LimitOptions::default() };
    let server = Server::bind(ServerOptions {
        proxy: Some(variants[0].clone()),
        limits,
        listen: todana_server::ListenOptions { port: 0, ..Default::default() },
        ..options()
    });
    let server = server.unwrap();
    let reloader = server.proxy_reloader().unwrap();
    let proxy = Running::of(server);
    let (is_over, batches) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut clients = proxy.connect();
    clients.expect_version();
    let sent: Vec<[u64; KEYS]> = std::thread::scope(|scope| {
        let counting: Vec<_> = (0..CLIENTS)
            .map(|own| {
                let client = proxy.connect();
                let (is_over, batches) = (&is_over, &batches);
                scope.spawn(move || count(client, own, is_over, batches))
            })
            .collect();
        // Each version serves some requests.
        let reload = |number: usize| {
            let before = batches.load(Ordering::Relaxed);
            while batches.load(Ordering::Relaxed) < before + 2 * CLIENTS
                && !counting.iter().any(std::thread::ScopedJoinHandle::is_finished)
            {
                std::thread::yield_now();
            }
            reloader.reload(&variants[number % variants.len()]).unwrap();
        };
        (0..RELOADS / 2).for_each(reload);
        let before = resident_bytes();
        (0..RELOADS).for_each(reload);
        let after = resident_bytes();
        is_over.store(true, Ordering::Relaxed);
        let sent = counting.into_iter().map(|client| client.join().unwrap()).collect();
        assert!(after < before + GROWTH_MAX, "{before} bytes before, {after} after");
        sent
    });
    let mut direct = servers.each_ref().map(|server| server.connect());
    for (own, sent) in sent.iter().enumerate() {
        for (key, sent) in sent.iter().enumerate() {
            let counted: u64 = direct.iter_mut().map(|server| counted(server, own, key)).sum();
            assert_eq!(counted, *sent, "c{own}:{key}");
        }
    }
}

/// Returns the counter of a key at a server. 0 if there is none.
fn counted(server: &mut Client, own: usize, key: usize) -> u64 {
    server.send(format!("mg c{own}:{key} v\r\n").as_bytes());
    match server.line().trim_end() {
        "EN" => 0,
        _ => server.line().trim_end().parse().unwrap(),
    }
}
