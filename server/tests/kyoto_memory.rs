//! Tests the memory that Kyoto Tycoon's clients may use in a server. The tests measure the complete
//! process, so each runs alone.

mod kyoto_client;
mod running;

use kyoto_client::{answer, ask, call, kyoto, named, reported, store_many, until_waiting, watched};
use running::{Client, Running, eventually};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use todana_server::{
    DatabaseOptions, KyotoMode, KyotoOptions, LimitOptions, ListenOptions, MemoryOptions, PluginOptions,
    ProtocolOptions, ServerOptions,
};

static ALONE: Mutex<()> = Mutex::new(());

/// The requirement: other requests are served, and memory grows by at most 10 MB.
#[test]
fn a_thousand_wait_while_others_are_served() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Running::start(ServerOptions {
        limits: LimitOptions { connections_max: 1100, threads: 2, ..watched().limits },
        ..watched()
    });
    let mut other = server.connect();
    let resident = |other: &mut Client| reported(other, "sys_mem_rss");
    // Allocates the memory that is needed only once.
    store_many(&mut other, 0..1000, b"v");
    let before = resident(&mut other);
    let mut waiting: Vec<Client> = (0..1000).map(|_| server.connect()).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        let name = if number % 2 == 0 { "even" } else { "odd" };
        client.send(&call("get", &format!("key\t{number:08}\nWAIT\t{name}\nWAITTIME\t1000\n")));
    }
    until_waiting(&server, 1000);
    let grown = resident(&mut other).saturating_sub(before);
    println!(
        "1000 connections that wait: {:.2} MB more (both ends of each in this process)",
        grown as f64 / 1e6
    );
    for key in 0..1000 {
        assert_eq!(ask(&mut other, "get", &format!("key\t{key:08}\n")), (200, "value\tv\n".into()));
    }
    assert_eq!(ask(&mut other, "void", "SIGNAL\teven\nSIGNALBROAD\t\n").1, "SIGNALED\t500\n");
    waiting
        .iter_mut()
        .step_by(2)
        .for_each(|client| assert_eq!(answer(client), (200, b"value\tv\n".to_vec())));
    for left in (1..=500).rev() {
        assert_eq!(ask(&mut other, "void", "SIGNAL\todd\n").1, format!("SIGNALED\t{left}\n"));
    }
    let mut odd = waiting.iter_mut().skip(1).step_by(2);
    odd.by_ref().for_each(|client| assert_eq!(answer(client), (200, b"value\tv\n".to_vec())));
    // The clients' own buffers of 8 KiB each are counted, too.
    assert!(grown < (10 << 20) + (8 << 20), "{grown}");
}

#[test]
fn clients_are_served_beside_a_thousand_waiters() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = Some(Duration::from_secs(1_000_000));
    let server = Running::start(ServerOptions {
        listen: ListenOptions {
            addresses: vec!["127.0.0.1:0".into(), "proto[ascii]:127.0.0.1:0".into()],
            ..watched().listen
        },
        protocols: ProtocolOptions {
            kyoto: KyotoOptions {
                spoken: KyotoMode::Only,
                plugin: Some(PluginOptions { queue_wait_max: wait, ..PluginOptions::default() }),
                ..watched().protocols.kyoto
            },
            ..watched().protocols
        },
        databases: DatabaseOptions { database: named("%"), ..watched().databases },
        limits: LimitOptions { connections_max: 1100, threads: 2, ..watched().limits },
        ..watched()
    });
    let (mut other, mut producer) = (server.connect(), server.connect_to(server.addresses[1]));
    store_many(&mut other, 0..1000, b"v");
    let before = reported(&mut other, "sys_mem_rss");
    let mut waiting: Vec<Client> = (0..1000).map(|_| server.connect_to(server.addresses[1])).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        client.send(format!("get jobs{}\r\n", number % 100).as_bytes());
    }
    until_waiting(&server, 1000);
    let grown = reported(&mut other, "sys_mem_rss").saturating_sub(before);
    println!(
        "1000 connections that wait for messages: {:.2} MB more (both ends of each in this process)",
        grown as f64 / 1e6
    );
    for key in 0..1000 {
        assert_eq!(ask(&mut other, "get", &format!("key\t{key:08}\n")), (200, "value\tv\n".into()));
    }
    for number in 0..1000 {
        producer.send(format!("set jobs{} 0 0 1\r\nx\r\n", number % 100).as_bytes());
        producer.expect(b"STORED\r\n");
    }
    for (number, client) in waiting.iter_mut().enumerate() {
        client.send(format!("delete jobs{}\r\n", number % 100).as_bytes());
        client.expect(format!("VALUE jobs{} 0 1\r\nx\r\nEND\r\nDELETED\r\n", number % 100).as_bytes());
    }
    until_waiting(&server, 0);
    // The clients' own buffers of 8 KiB each are counted, too.
    assert!(grown < (10 << 20) + (8 << 20), "{grown}");
}

#[test]
fn too_large_answer_is_an_error() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // All connections together may keep a quarter of the limit.
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 128, ..kyoto().memory },
        ..kyoto()
    });
    let mut client = server.connect();
    store_many(&mut client, 0..80, &vec![b'v'; 500_000]);
    let keys: String = (0..80).map(|key| format!("_{key:08}\t\n")).collect();
    let (status, body) = ask(&mut client, "get_bulk", &keys);
    assert_eq!((status, &*body), (500, "ERROR\tDB: 9: system error: the answer is larger than it may be\n"));
    assert_eq!(ask(&mut client, "get_bulk", "_00000000\t\n").0, 200);
    let mut request = vec![0xBA, 0, 0, 0, 0, 0, 0, 0, 80];
    for key in 0..80 {
        request.extend([0, 0, 0, 0, 0, 8]);
        request.extend(format!("{key:08}").as_bytes());
    }
    client.send(&request);
    assert_eq!(client.rest(), [0xBF]);
}

/// In an earlier version, a request no longer counted as memory of connections once a thread ran
/// its script: twelve requests of 20 MB ran at once with `-m 128`.
#[test]
fn requests_of_running_scripts_count_as_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.lua");
    let text = "function slow() local db = __kyototycoon__.db
        db:set('begun', '') while not db:get('go') do end return 0 end";
    std::fs::write(&script, text).unwrap();
    let kyoto = || ServerOptions {
        memory: MemoryOptions { limit_mib: 128, ..kyoto().memory },
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { script: Some(script.clone()), ..kyoto().protocols.kyoto },
            ..kyoto().protocols
        },
        ..kyoto()
    };
    let server = Running::start(kyoto());
    let request = call("play_script", &format!("name\tslow\n_large\t{}\n", "y".repeat(20_000_000)));
    let [mut first, mut second, mut other] = [(); 3].map(|()| server.connect());
    first.send(&request);
    eventually("the script runs", || ask(&mut other, "get", "key\tbegun\n").0 == 200);
    // Connections may keep 32 MiB together.
    second.send(&request[..14_000_000]);
    assert_eq!(answer(&mut second).0, 413);
    assert_eq!(ask(&mut other, "set", "key\tgo\nvalue\t\n").0, 200);
    assert_eq!(answer(&mut first).0, 200);
    let mut third = server.connect();
    third.send(&request);
    assert_eq!(answer(&mut third).0, 200);
}
