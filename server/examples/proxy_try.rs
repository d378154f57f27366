use todana_client::ring::{RingOptions, ServerEntry};
use todana_server::{PoolOptions, ProxyOptions, ServerOptions, WhenDown, Server, ListenOptions, LimitOptions};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let pool = PoolOptions { servers: a[2..].iter().map(|t| t.parse::<ServerEntry>().unwrap()).collect(), ring: RingOptions::default(), when_down: WhenDown::Error, ..PoolOptions::default() };
    let o = ServerOptions { proxy: Some(ProxyOptions { pools: vec![("m".into(), pool)] }), listen: ListenOptions { port: a[1].parse().unwrap(), ..ListenOptions::default() }, limits: LimitOptions{threads:1, ..LimitOptions::default()}, ..ServerOptions::default() };
    Server::bind(o).unwrap().run().unwrap();
}
