//! Tests message queues for memcached's clients, as in Kyoto Tycoon's plug-in: a get waits for a
//! message, and a message that is not acknowledged returns to its queue.

use crate::kyoto_client;
use crate::running;

use kyoto_client::{ask, named, page, until_waiting, watched};
use running::{Client, Running, eventually};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use todana_server::{
    DataDirectoryOptions, DatabaseOptions, KyotoMode, KyotoOptions, LimitOptions, ListenOptions,
    MemoryOptions, PluginOptions, ProtocolOptions, ServerOptions, SyncPolicy,
};

/// The wait is longer than any test takes, so a client that waits to its end has not been served.
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

/// Returns the options of a server with ports for Kyoto Tycoon's protocols and for the plug-in.
fn queues(wait: Duration) -> ServerOptions {
    ServerOptions {
        listen: ListenOptions {
            addresses: vec!["127.0.0.1:0".into(), "proto[ascii]:127.0.0.1:0".into()],
            ..watched().listen
        },
        protocols: ProtocolOptions {
            kyoto: KyotoOptions {
                spoken: KyotoMode::Only,
                plugin: Some(PluginOptions { queue_wait_max: Some(wait), ..PluginOptions::default() }),
                ..watched().protocols.kyoto
            },
            ..watched().protocols
        },
        databases: DatabaseOptions { database: named("%"), ..watched().databases },
        ..watched()
    }
}

fn consumer(server: &Running) -> Client {
    server.connect_to(server.addresses[1])
}

fn put(client: &mut Client, name: &str, value: &str) {
    client.send(format!("set {name} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes());
    client.expect(b"STORED\r\n");
}

fn message(name: &str, value: &str) -> Vec<u8> {
    format!("VALUE {name} 0 {}\r\n{value}\r\nEND\r\n", value.len()).into_bytes()
}

/// Returns the number of messages in the database, read over Kyoto Tycoon's port.
fn stored(server: &Running) -> String {
    ask(&mut server.connect(), "status", "").1.lines().next().unwrap().to_owned()
}

#[test]
fn messages_are_ordered_and_removed_once_acknowledged() {
    let server = Running::start(queues(Duration::from_millis(20)));
    let (mut one, mut two) = (consumer(&server), consumer(&server));
    one.send(b"set jobs 5 0 5\r\nfirst\r\nset jobs 0 100 6 noreply\r\nsecond\r\nset other 0 0 1\r\nx\r\n");
    one.expect(b"STORED\r\nSTORED\r\n");
    // Kyoto Tycoon's clients see each key as the name, milliseconds and a number.
    let (_, keys) = ask(&mut server.connect(), "match_prefix", "prefix\tjobs \n");
    let key = keys.lines().next().unwrap().strip_suffix("\t0").unwrap();
    assert!(
        key.starts_with("_jobs 0") && key.ends_with(" 0000") && key.len() == "_jobs ".len() + 14 + 5,
        "{key}"
    );
    assert_eq!(keys.lines().count(), 3, "{keys}");
    one.send(b"get jobs\r\n");
    one.expect(&message("jobs", "first"));
    two.send(b"gets jobs\r\nget jobs\r\n");
    two.expect(&message("jobs", "second"));
    two.expect(b"END\r\n");
    assert_eq!(stored(&server), "count\t1");
    // Each client acknowledges its own messages and cannot acknowledge those of the other.
    one.send(b"delete jobs\r\ndelete jobs\r\ndelete other noreply\r\ndelete\r\nget\r\n");
    one.expect(
        b"DELETED\r\nNOT_FOUND\r\nCLIENT_ERROR invalid parameters\r\nCLIENT_ERROR invalid parameters\r\n",
    );
    drop(two);
    eventually("it comes back", || stored(&server) == "count\t2");
    one.send(b"get jobs other\r\n");
    one.expect(b"VALUE jobs 0 6\r\nsecond\r\nVALUE other 0 1\r\nx\r\nEND\r\n");
    one.send(b"delete other\r\ndelete jobs\r\ndelete jobs\r\n");
    one.expect(b"DELETED\r\nDELETED\r\nNOT_FOUND\r\n");
    assert_eq!(stored(&server), "count\t0");
    for (name, count) in [
        ("cmd_set", 3),
        ("set_hits", 3),
        ("cmd_get", 5),
        ("get_hits", 4),
        ("get_misses", 1),
        ("cmd_delete", 6),
        ("delete_hits", 3),
        ("delete_misses", 3),
    ] {
        assert_eq!(one.stat(name), count.to_string(), "{name}");
    }
}

#[test]
fn returned_message_does_not_expire() {
    let server = Running::start(queues(FOR_EVER));
    let mut one = consumer(&server);
    one.send(b"set jobs 0 1000 1\r\nx\r\n");
    one.expect(b"STORED\r\n");
    let time = |server: &Running| {
        let (_, keys) = ask(&mut server.connect(), "match_prefix", "prefix\tjobs\n");
        let key = keys.lines().next().unwrap().strip_suffix("\t0")?[1..].to_owned();
        let (status, got) = ask(&mut server.connect(), "get", &format!("key\t{key}\n"));
        assert_eq!(status, 200);
        Some(got.contains("\nxt\t"))
    };
    assert_eq!(time(&server), Some(true));
    one.send(b"get jobs\r\n");
    one.expect(&message("jobs", "x"));
    assert_eq!(stored(&server), "count\t0");
    one.send(b"quit\r\n");
    assert_eq!(one.rest(), b"");
    eventually("it comes back", || stored(&server) == "count\t1");
    assert_eq!(time(&server), Some(false));
}

#[test]
fn waiters_are_served_in_turn_beside_others() {
    // A single worker serves all.
    let server = Running::start(queues(FOR_EVER));
    let mut other = consumer(&server);
    let mut waiting: Vec<Client> = (0..3).map(|_| consumer(&server)).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        // Later commands are answered after the get.
        client.send(b"version\r\nget jobs\r\ndelete jobs\r\ndelete jobs\r\n");
        until_waiting(&server, number as u64 + 1);
        client.expect(b"VERSION KyotoTycoon/0.9.56\r\n");
    }
    put(&mut other, "job", "for nobody");
    assert_eq!(ask(&mut server.connect(), "void", "SIGNAL\tjobs\nSIGNALBROAD\t\n").1, "SIGNALED\t0\n");
    assert_eq!(page(&server, "todana_kyoto_waiting"), 3);
    for (number, client) in waiting.iter_mut().enumerate() {
        put(&mut other, "jobs", &number.to_string());
        client.expect(&message("jobs", &number.to_string()));
        client.expect(b"DELETED\r\nNOT_FOUND\r\n");
    }
    until_waiting(&server, 0);
    assert_eq!(stored(&server), "count\t1");
}

#[test]
fn request_waits_for_its_queues_in_turn() {
    let server = Running::start(queues(FOR_EVER));
    let (mut one, mut two) = (consumer(&server), consumer(&server));
    put(&mut two, "b", "2");
    one.send(b"get a b c\r\nversion\r\n");
    until_waiting(&server, 1);
    put(&mut two, "c", "3");
    put(&mut two, "a", "1");
    one.expect(
        b"VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n2\r\nVALUE c 0 1\r\n3\r\nEND\r\nVERSION KyotoTycoon/0.9.56\r\n",
    );
    // All queues of a get share one time limit. At its end, a message that is present is still
    // found.
    let server = Running::start(queues(Duration::from_millis(50)));
    let (mut one, mut two) = (consumer(&server), consumer(&server));
    put(&mut two, "c", "3");
    let since = Instant::now();
    one.send(b"get a b c\r\n");
    one.expect(&message("c", "3"));
    assert!(since.elapsed() >= Duration::from_millis(50));
    assert_eq!((one.stat("cmd_get"), one.stat("get_misses")), ("3".into(), "2".into()));
    until_waiting(&server, 0);
}

#[test]
fn messages_of_a_disconnected_client_reach_waiters() {
    let server = Running::start(queues(FOR_EVER));
    let (mut one, mut two, mut three) = (consumer(&server), consumer(&server), consumer(&server));
    put(&mut one, "jobs", "a");
    put(&mut one, "jobs", "b");
    one.send(b"get jobs\r\nget jobs\r\n");
    one.expect(&[message("jobs", "a"), message("jobs", "b")].concat());
    two.send(b"get jobs\r\n");
    until_waiting(&server, 1);
    three.send(b"get jobs\r\n");
    until_waiting(&server, 2);
    drop(one);
    two.expect(&message("jobs", "a"));
    three.expect(&message("jobs", "b"));
    until_waiting(&server, 0);
}

#[test]
fn message_is_not_lost_on_a_disconnected_waiter() {
    let server = Running::start(queues(FOR_EVER));
    let (mut one, mut two, mut three) = (consumer(&server), consumer(&server), consumer(&server));
    one.send(b"get jobs\r\n");
    until_waiting(&server, 1);
    two.send(b"get jobs\r\n");
    until_waiting(&server, 2);
    drop(one);
    put(&mut three, "jobs", "a");
    two.expect(&message("jobs", "a"));
    two.send(b"delete jobs\r\n");
    two.expect(b"DELETED\r\n");
    assert_eq!(stored(&server), "count\t0");
    // A client that disconnects without having read all replies resets the connection, and no
    // longer waits.
    let mut one = consumer(&server);
    one.send(b"version\r\nget jobs\r\n");
    until_waiting(&server, 1);
    one.stream.peek(&mut [0]).unwrap();
    drop(one);
    until_waiting(&server, 0);
}

#[test]
fn half_closed_waiter_is_served_and_may_acknowledge() {
    let server = Running::start(queues(FOR_EVER));
    let mut other = consumer(&server);
    for (words, end, left) in
        [("get jobs\r\ndelete jobs\r\n", "DELETED\r\n", "count\t0"), ("get jobs\r\n", "", "count\t1")]
    {
        let mut one = consumer(&server);
        one.send(words.as_bytes());
        one.stream.shutdown(Shutdown::Write).unwrap();
        until_waiting(&server, 1);
        put(&mut other, "jobs", "x");
        one.expect(&[message("jobs", "x"), end.into()].concat());
        assert_eq!(one.rest(), b"");
        eventually("it is back, or done with", || stored(&server) == left);
    }
}

#[test]
fn message_stored_by_set_reaches_the_waiter() {
    let server = Running::start(queues(FOR_EVER));
    let mut one = consumer(&server);
    one.send(b"get jobs\r\n");
    until_waiting(&server, 1);
    assert_eq!(ask(&mut server.connect(), "set", "key\tjobs by hand\nvalue\tx\n").0, 200);
    one.expect(&message("jobs", "x"));
    // A message is also found if its key is before those of all messages taken.
    put(&mut one, "jobs", "y");
    one.send(b"get jobs\r\n");
    one.expect(&message("jobs", "y"));
    assert_eq!(ask(&mut server.connect(), "set", "key\tjobs 0\nvalue\tz\n").0, 200);
    one.send(b"get jobs\r\n");
    one.expect(&message("jobs", "z"));
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let server = Running::start(queues(Duration::from_millis(50)));
    let mut one = consumer(&server);
    let since = Instant::now();
    one.send(b"get jobs\r\nversion\r\n");
    one.expect(b"END\r\nVERSION KyotoTycoon/0.9.56\r\n");
    assert!(since.elapsed() >= Duration::from_millis(50));
    put(&mut one, "jobs", "x");
    one.send(b"get jobs\r\n");
    one.expect(&message("jobs", "x"));
}

#[test]
fn stop_ends_waits_and_returns_taken_messages() {
    let folder = tempfile::tempdir().unwrap();
    let kept = |folder: &Path| ServerOptions {
        databases: DatabaseOptions {
            data: Some(DataDirectoryOptions::new(folder.join("data"), SyncPolicy::Always)),
            ..queues(FOR_EVER).databases
        },
        ..queues(FOR_EVER)
    };
    let mut server = Running::start(kept(folder.path()));
    let mut taker = consumer(&server);
    put(&mut taker, "jobs", "a");
    put(&mut taker, "jobs", "b");
    taker.send(b"get jobs\r\nget jobs\r\ndelete jobs\r\n");
    taker.expect(&[&message("jobs", "a")[..], &message("jobs", "b"), b"DELETED\r\n"].concat());
    let mut waiting: Vec<Client> = (0..10).map(|_| consumer(&server)).collect();
    // The second wait ends at once, because the server is stopping.
    waiting.iter_mut().for_each(|client| client.send(b"get none\r\nget none\r\n"));
    until_waiting(&server, 10);
    server.handle.stop();
    for client in &mut waiting {
        client.expect(b"END\r\nEND\r\n");
        assert_eq!(client.rest(), b"");
    }
    server.join();
    let server = Running::start(kept(folder.path()));
    let mut one = consumer(&server);
    assert_eq!(stored(&server), "count\t1");
    one.send(b"get jobs\r\n");
    one.expect(&message("jobs", "b"));
}

/// The connection of a client that takes more messages than the limit allows is closed, and its
/// messages return to the queue.
#[test]
fn hoarding_client_is_disconnected_without_loss() {
    // All connections together may keep a quarter of the limit.
    let server = Running::start(ServerOptions {
        memory: MemoryOptions { limit_mib: 128, ..queues(FOR_EVER).memory },
        ..queues(FOR_EVER)
    });
    let mut one = consumer(&server);
    let value = "v".repeat(1_000_000);
    for _ in 0..50 {
        put(&mut one, "jobs", &value);
    }
    let mut taken = 0;
    loop {
        one.send(b"get jobs\r\n");
        let mut head = vec![0; 6];
        match one.stream.peek(&mut head) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            outcome => outcome.unwrap(),
        };
        one.expect(&message("jobs", &value));
        taken += 1;
    }
    assert!((10..=33).contains(&taken), "{taken}");
    eventually("all are back", || stored(&server) == "count\t50");
}

#[test]
fn each_message_goes_to_one_of_many_consumers() {
    const EACH: usize = 500;
    let server = Running::start(ServerOptions {
        limits: LimitOptions { threads: 4, ..queues(FOR_EVER).limits },
        ..queues(FOR_EVER)
    });
    let seen = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for number in 0..4 {
            let seen = &seen;
            let mut clients: Vec<Client> = (0..=EACH / 10).map(|_| consumer(&server)).collect();
            scope.spawn(move || {
                let mut client = clients.pop().unwrap();
                for turn in 0..EACH {
                    client.send(b"get jobs\r\n");
                    let (head, value, end) = (client.line(), client.line(), client.line());
                    assert!(head.starts_with("VALUE jobs 0 ") && end == "END\r\n", "{head}{value}{end}");
                    if turn % 10 == number {
                        // The old client has died, so another client gets its message again.
                        client = clients.pop().unwrap();
                        client.send(b"get jobs\r\n");
                        let (_, value, _) = (client.line(), client.line(), client.line());
                        assert!(seen.lock().unwrap().insert(value.clone()), "{value}");
                    } else {
                        assert!(seen.lock().unwrap().insert(value.clone()), "{value}");
                    }
                    client.send(b"delete jobs\r\n");
                    client.expect(b"DELETED\r\n");
                }
            });
            let mut client = consumer(&server);
            scope.spawn(move || {
                for turn in 0..EACH {
                    put(&mut client, "jobs", &format!("{number}-{turn}"));
                }
            });
        }
    });
    assert_eq!((seen.into_inner().unwrap().len(), stored(&server)), (4 * EACH, "count\t0".into()));
    until_waiting(&server, 0);
}
