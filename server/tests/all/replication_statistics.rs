//! Tests the figures of masters and replicas in `stats`, in `/metrics` and in the list of pages.

use crate::exposition;
use crate::kyoto_replica;
use crate::running;

use exposition::Exposition;
use kyoto_replica::{Follower, done, following, kept};
use running::{Client, Running, eventually};
use std::io::{Read, Write};
use std::net::TcpStream;
use todana_server::{AdminOptions, ObservationOptions, ServerOptions};

const STAMPS_PER_SECOND: u64 = 1_000_000_000;

fn with_pages(options: ServerOptions) -> ServerOptions {
    ServerOptions {
        observation: ObservationOptions {
            admin: Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() }),
            ..options.observation
        },
        ..options
    }
}

fn page(server: &Running, path: &str) -> String {
    let mut stream = TcpStream::connect(server.admin_addresses[0]).unwrap();
    stream.set_read_timeout(Some(running::WAIT_MAX)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_string()
}

fn metrics(server: &Running) -> Exposition {
    Exposition::read(&page(server, "/metrics")).unwrap()
}

fn number(client: &mut Client, name: &str) -> f64 {
    client.stat(name).parse().unwrap()
}

fn of_first_replica(client: &mut Client, name: &str) -> Option<String> {
    let name = format!("0:{name}");
    client.stats(" replicas").into_iter().find(|(found, _)| *found == name).map(|(_, value)| value)
}

#[test]
fn replica_shows_its_master_position_and_delay() {
    let folder = tempfile::tempdir().unwrap();
    let mut master = Running::start(kept(&folder.path().join("master"), 1));
    let replica =
        Running::start(with_pages(following(&folder.path().join("replica"), 2, master.addresses[0])));
    let mut client = replica.connect();
    eventually("it is connected", || client.stat("todana_replica_connected") == "1");
    assert_eq!(client.stat("todana_replica_master"), master.addresses[0].to_string());
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    master.connect().set(b"k", b"v");
    eventually("it has all", || {
        client.stats("").iter().any(|(name, value)| name == "curr_items" && value == "1")
    });
    let position: u64 = client.stat("todana_replica_position").parse().unwrap();
    assert!(position / STAMPS_PER_SECOND >= before - 1, "{position} at {before}");
    let shown = metrics(&replica);
    assert_eq!(shown.value("todana_replica_connected", ""), Some(1.0));
    assert!(shown.value("todana_replica_position", "").unwrap() >= position as f64);
    let labels = format!("master={}", master.addresses[0]);
    assert_eq!(shown.value("todana_replica_master_info", &labels), Some(1.0));
    master.handle.stop();
    master.join();
    eventually("it is not connected", || client.stat("todana_replica_connected") == "0");
    let delay = number(&mut client, "todana_replica_delay_seconds");
    eventually("the delay grows", || number(&mut client, "todana_replica_delay_seconds") > delay + 0.05);
    let shown = metrics(&replica);
    assert_eq!(shown.value("todana_replica_connected", ""), Some(0.0));
    assert!(shown.value("todana_replica_delay_seconds", "").unwrap() > delay);
    // From now on the server follows no master, and shows none.
    done(&mut replica.connect(), "tune_replication", "");
    assert!(client.stats("").iter().all(|(name, _)| !name.starts_with("todana_replica_c")));
    assert_eq!(metrics(&replica).value("todana_replica_connected", ""), None);
}

#[test]
fn delay_of_an_incomplete_replica_follows_its_position() {
    let folder = tempfile::tempdir().unwrap();
    // No server listens at this address.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    std::fs::write(folder.path().join("position"), format!("{:020}\n", 1_000 * STAMPS_PER_SECOND)).unwrap();
    let replica = Running::start(following(folder.path(), 2, nobody));
    let mut client = replica.connect();
    assert_eq!(client.stat("todana_replica_connected"), "0");
    assert_eq!(client.stat("todana_replica_position"), (1_000 * STAMPS_PER_SECOND).to_string());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as f64;
    let delay = number(&mut client, "todana_replica_delay_seconds");
    assert!((now - 1_000.0 - delay).abs() < 120.0, "{delay} at {now}");
}

#[test]
fn master_shows_replicas_and_changes_withheld() {
    let folder = tempfile::tempdir().unwrap();
    let master = Running::start(with_pages(kept(folder.path(), 1)));
    let mut client = master.connect();
    assert_eq!(client.stat("todana_replicas"), "0");
    assert_eq!(client.stats(" replicas"), []);
    assert_eq!(page(&master, "/"), "todana: /metrics /metrics/totals /healthz /readyz\n");
    for (key, flags) in [("a", 0), ("b", 1), ("c", 2)] {
        client.send(format!("set {key} {flags} 0 1\r\nx\r\n").as_bytes());
        client.expect(b"STORED\r\n");
    }
    client.send(b"touch c 100000\r\n");
    client.expect(b"TOUCHED\r\n");
    let mut follower = Follower::from(master.addresses[0], 0, 7);
    let (updates, _) = follower.updates();
    assert_eq!(updates.len(), 4);
    // The second caught-up message shows that the master has received the first acknowledgement.
    let (_, position) = follower.updates();
    assert_eq!(client.stat("todana_replicas"), "1");
    assert_eq!(of_first_replica(&mut client, "server_id").as_deref(), Some("7"));
    let address = follower.stream.local_addr().unwrap().to_string();
    assert_eq!(of_first_replica(&mut client, "address"), Some(address.clone()));
    assert_eq!(of_first_replica(&mut client, "flags_lost").as_deref(), Some("3"));
    eventually("it has acknowledged the second round", || {
        of_first_replica(&mut client, "position") == Some(position.to_string())
    });
    let shown = metrics(&master);
    assert_eq!(shown.value("todana_replicas", ""), Some(1.0));
    assert_eq!(shown.value("todana_replica_flags_lost_total", ""), Some(3.0));
    let labels = format!("address={address},server_id=7");
    assert!(shown.value("todana_replicas_delay_seconds", &labels).is_some(), "{labels}");
    // The replica no longer answers.
    let delay =
        |client: &mut Client| of_first_replica(client, "delay_seconds").unwrap().parse::<f64>().unwrap();
    let before = delay(&mut client);
    eventually("it falls behind", || delay(&mut client) > before + 0.2);
    drop(follower);
    eventually("it is gone", || client.stat("todana_replicas") == "0");
    assert_eq!(client.stat("todana_replica_flags_lost"), "3");
    let warning = "warning: 3 records were sent to replicas without their client flags: ";
    assert!(page(&master, "/").contains(warning));
}
