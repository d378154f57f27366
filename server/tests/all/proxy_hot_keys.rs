//! The statistics of the keys that are requested most.

use crate::running;

use running::{Running, options};
use std::collections::BTreeMap;
use todana_server::{PoolOptions, ProxyOptions, ServerOptions};

#[test]
fn frequent_keys_are_counted() {
    let server = Running::start(options());
    for (hot_keys, counts) in [(1000, &[("b", 3, 61), ("a", 2, 58), ("c:x", 1, 9)][..]), (0, &[])] {
        let servers = vec![server.addresses[0].to_string().parse().unwrap()];
        let pools = BTreeMap::from([("main".into(), PoolOptions { servers, ..PoolOptions::default() })]);
        let proxy = Some(ProxyOptions { pools, hot_keys, ..ProxyOptions::default() });
        let proxy = Running::start(ServerOptions { proxy, ..options() });
        let mut client = proxy.connect();
        client.send(b"set a 0 0 10\r\n0123456789\r\nset b 0 0 2\r\nxy\r\nget c:x\r\n");
        client.expect(b"STORED\r\nSTORED\r\nEND\r\n");
        let (a, b) = ("VALUE a 0 10\r\n0123456789\r\n", "VALUE b 0 2\r\nxy\r\n");
        client.send(b"get b\r\nget a b\r\n");
        client.expect(format!("{b}END\r\n{a}{b}END\r\n").as_bytes());
        let expected: Vec<(String, String)> = counts
            .iter()
            .flat_map(|(key, requests, bytes)| {
                [(format!("{key}:requests"), requests), (format!("{key}:bytes"), bytes)]
            })
            .map(|(name, count)| (name, count.to_string()))
            .collect();
        assert_eq!(client.stats(" hotkeys"), expected);
    }
}
