//! Replication in Tokyo Tyrant's protocol: the records that replicas get, and the effect of a
//! master's records, with bytes captured from the original.

use crate::running;
use crate::tyrant_client;
use crate::tyrant_replica;

use running::{Client, Running, eventually};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use todana_protocol::tyrant::replication::{MasterDecoder, put_idle, put_record_head, put_server_id};
use todana_protocol::tyrant::{FieldBuffer, LoggedCommand, TyrantPutMode, TyrantRequest};
use todana_server::{DatabaseName, DatabaseOptions, ReplicationOptions, ServerOptions};
use tyrant_client::{ask, hex, tyrant};
use tyrant_replica::{FakeMaster, Replica, following, kept, position, record, request};

#[test]
fn replica_gets_results_as_commands() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 7));
    let mut client = server.connect();
    for (request, reply) in [
        ("c810 00000003 00000002 616263 3132", "00"),
        ("c812 00000003 00000001 616263 33", "00"),
        ("c811 00000003 00000001 616263 58", "01"),
        ("c860 00000001 00000005 69", "0000000005"),
        ("c820 00000003 616263", "00"),
        ("c872", "00"),
    ] {
        client.send(&hex(request));
        client.expect(&hex(reply));
    }
    let mut replica = Replica::new(&server, 1, 99);
    let records: Vec<_> = (0..5).map(|_| replica.next()).collect();
    let bodies = [
        "c810 00000003 00000002 616263 3132 00",
        "c810 00000003 00000003 616263 313233 00",
        "c810 00000001 00000004 69 05000000 00",
        "c890 00000007 00000001 6f75746c697374 00000003 616263 00",
        "c872 00",
    ];
    for (record, body) in records.iter().zip(bodies) {
        assert_eq!((record.1, &record.2), (7, &hex(body)));
    }
    assert!(records.is_sorted_by(|one, next| one.0 < next.0));
    // A replica that has seen some of them gets the others, also after a restart of the server.
    drop(server);
    let server = Running::start(kept(folder.path(), 7));
    for seen in 0..5 {
        let mut replica = Replica::new(&server, records[seen].0 + 1, 99);
        server.connect().send(&hex("c810 00000001 00000001 7a 7a"));
        for record in &records[seen + 1..] {
            assert_eq!(replica.next(), *record);
        }
        assert_eq!(replica.next().2, hex("c810 00000001 00000001 7a 7a 00"));
    }
}

#[test]
fn replica_without_id_or_position_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(kept(folder.path(), 7));
    for refused in [request(1, 7), request(0, 5), request(5, 0)] {
        let mut client = server.connect();
        client.send(&refused);
        assert_eq!(client.rest(), b"");
    }
    // A server without a log sends its ID and closes.
    let server = Running::start(ServerOptions {
        databases: DatabaseOptions {
            replication: ReplicationOptions { server_id: 7, ..ReplicationOptions::default() },
            ..tyrant().databases
        },
        ..tyrant()
    });
    let mut client = server.connect();
    client.send(&request(1, 5));
    assert_eq!(client.rest(), [0, 0, 0, 7]);
}

/// The captured session of a replica with ID 8 and a master with ID 300, whose third record was
/// made at server 44.
#[test]
fn master_is_followed_as_captured() {
    let folder = tempfile::tempdir().unwrap();
    let master = FakeMaster::new();
    let server = Running::start(following(folder.path(), master.address(), false));
    let mut stream = master.accept(1);
    let mut out = Vec::new();
    put_server_id(300, &mut out);
    put_idle(&mut out);
    for (number, (server_id, body)) in [
        (300, "c810 00000001 00000001 61 31 00"),
        (300, "c812 00000001 00000001 61 32 00"),
        (44, "c810 00000001 00000001 62 32 00"),
        (300, "c860 00000001 00000005 69 00"),
    ]
    .into_iter()
    .enumerate()
    {
        record(1_700_000_000_000_000 + number as u64, server_id, body, &mut out);
    }
    out.iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
    eventually("the position", || position(folder.path()) == "1700000000000003\n");
    let mut client = server.connect();
    for (key, reply) in [("61", "00 00000002 3132"), ("62", "00 00000001 32"), ("69", "00 00000004 05000000")]
    {
        client.send(&hex(&format!("c830 00000001 {key}")));
        client.expect(&hex(reply));
    }
    // The replica asks again behind its position.
    drop(stream);
    master.accept(1_700_000_000_000_004);
}

#[test]
fn replicas_get_no_record_back() {
    let folder = tempfile::tempdir().unwrap();
    let master = FakeMaster::new();
    let server = Running::start(following(folder.path(), master.address(), false));
    let mut stream = master.accept(1);
    let mut out = Vec::new();
    put_server_id(300, &mut out);
    record(5, 300, "c810 00000001 00000001 61 31 00", &mut out);
    record(6, 44, "c810 00000001 00000001 62 32 00", &mut out);
    record(7, 8, "c810 00000001 00000001 63 33 00", &mut out);
    stream.write_all(&out).unwrap();
    eventually("the position", || position(folder.path()) == "0000000000000007\n");
    ask(&mut server.connect(), &TyrantRequest::Get { key: b"c" }, &[1]);
    ask(&mut server.connect(), &TyrantRequest::Out { key: b"none" }, &[1]);
    server.connect().send(&hex("c818 00000003 00000003 656e64 656e64"));
    let end = || (8, hex("c810 00000003 00000003 656e64 656e64 00"));
    let (a, b) =
        ((300, hex("c810 00000001 00000001 61 31 00")), (44, hex("c810 00000001 00000001 62 32 00")));
    for (replica, expected) in
        [(300, vec![end()]), (44, vec![a.clone(), end()]), (5, vec![a.clone(), b.clone(), end()])]
    {
        let mut client = server.connect();
        client.send(&request(1, replica));
        let mut replica = Replica { client, decoder: MasterDecoder::default(), unread: Vec::new() };
        let seen: Vec<_> = expected.iter().map(|_| replica.next()).map(|(_, id, body)| (id, body)).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn different_outcome_ends_following_on_request() {
    for checks_outcomes in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let master = FakeMaster::new();
        let server = Running::start(following(folder.path(), master.address(), checks_outcomes));
        let mut stream = master.accept(1);
        let mut out = Vec::new();
        put_server_id(300, &mut out);
        // A failure that fails here too, and a success that fails here.
        record(5, 300, "c820 00000001 61 01", &mut out);
        record(6, 300, "c820 00000001 61 00", &mut out);
        record(7, 300, "c810 00000001 00000001 61 31 00", &mut out);
        stream.write_all(&out).unwrap();
        let last = if checks_outcomes { "0000000000000006\n" } else { "0000000000000007\n" };
        eventually("the position", || position(folder.path()) == last);
        let mut client = server.connect();
        let reply: &[u8] = if checks_outcomes { &[1] } else { b"\0\0\0\0\x011" };
        ask(&mut client, &TyrantRequest::Get { key: b"a" }, reply);
        if checks_outcomes {
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "the replica has gone");
        }
    }
}

#[test]
fn damaged_record_is_skipped_by_next_connection() {
    let folder = tempfile::tempdir().unwrap();
    let master = FakeMaster::new();
    let server = Running::start(following(folder.path(), master.address(), false));
    let mut stream = master.accept(1);
    let mut out = Vec::new();
    put_server_id(300, &mut out);
    // putnr is not logged.
    record(5, 300, "c818 00000001 00000001 61 31 00", &mut out);
    stream.write_all(&out).unwrap();
    let mut stream = master.accept(6);
    out.clear();
    put_server_id(300, &mut out);
    record(6, 300, "c810 00000001 00000001 61 32 00", &mut out);
    stream.write_all(&out).unwrap();
    eventually("the position", || position(folder.path()) == "0000000000000006\n");
    ask(&mut server.connect(), &TyrantRequest::Get { key: b"a" }, b"\0\0\0\0\x012");
}

#[test]
fn client_names_and_ends_a_master() {
    let folder = tempfile::tempdir().unwrap();
    let master = FakeMaster::new();
    let server = Running::start(kept(folder.path(), 8));
    let mut client = server.connect();
    let port = u32::from(master.address().port());
    let set = |host, since_micros| TyrantRequest::SetMst { host, port, since_micros, options: 0 };
    ask(&mut client, &set(b"127.0.0.1", 70), &[0]);
    let mut stream = master.accept(71);
    let mut out = Vec::new();
    put_server_id(300, &mut out);
    let command = TyrantRequest::Misc { name: b"sync", options: 0, arguments: Default::default() };
    let mut body = Vec::new();
    LoggedCommand { request: command, is_done: true }.put(&mut body);
    put_record_head(80, 300, body.len() as u32, &mut out);
    out.extend_from_slice(&body);
    stream.write_all(&out).unwrap();
    eventually("the position", || position(folder.path()) == "0000000000000080\n");
    // Time stamp 0 keeps the position.
    ask(&mut client, &set(b"127.0.0.1", 0), &[0]);
    let mut stream = master.accept(81);
    ask(&mut client, &set(b"", 0), &[0]);
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "the replica has gone");
}

/// The original follows a master under the ID 2147483647 then. Here, `setmst` failed.
#[test]
fn server_without_an_id_can_follow() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let master = Running::start(kept(&at("master"), 7));
    let put = |key, value| TyrantRequest::Put { mode: TyrantPutMode::Put, key, value };
    ask(&mut master.connect(), &put(b"a", b"1"), &[0]);
    let server = Running::start(kept(&at("replica"), 0));
    let mut client = server.connect();
    let port = master.addresses[0].port().into();
    let set = TyrantRequest::SetMst { host: b"127.0.0.1", port, since_micros: 0, options: 0 };
    ask(&mut client, &set, &[0]);
    eventually("the record", || {
        client.send(b"get a\r\n");
        let is_there = client.line().starts_with("VALUE");
        is_there && client.line() == "1\r\n" && client.line() == "END\r\n"
    });
    // The request is that of the original.
    let other = FakeMaster::new();
    let port = other.address().port().into();
    ask(&mut client, &TyrantRequest::SetMst { host: b"127.0.0.1", port, since_micros: 5, options: 0 }, &[0]);
    other.accept_request(&hex("c8a0 0000000000000006 7fffffff"));
}

/// The rows about the master were missing.
#[test]
fn stat_shows_the_master_after_bigend() {
    let folder = tempfile::tempdir().unwrap();
    let master = FakeMaster::new();
    let server = Running::start(kept(folder.path(), 8));
    let mut client = server.connect();
    let mut names = || {
        let mut request = Vec::new();
        TyrantRequest::Stat.encode(&mut request);
        client.send(&request);
        client.expect(&[0]);
        let len = u32::from_be_bytes(client.take(4).try_into().unwrap());
        let text = String::from_utf8(client.take(len as usize)).unwrap();
        let rows = text.lines().skip_while(|row| !row.starts_with("bigend")).map(str::to_owned);
        rows.take_while(|row| !row.starts_with("fd")).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["bigend\t0"]);
    let port = u32::from(master.address().port());
    let set = TyrantRequest::SetMst { host: b"127.0.0.1", port, since_micros: 70, options: 0 };
    ask(&mut server.connect(), &set, &[0]);
    let rows = names();
    assert_eq!(rows[..4], ["bigend\t0", "mhost\t127.0.0.1", &format!("mport\t{port}"), "rts\t70"]);
    assert!(rows.len() == 5 && rows[4].starts_with("delay\t"), "{rows:?}");
}

/// Stores no position after the first commands, as if the process were killed. The commands after
/// them are executed again at the next start.
#[test]
fn commands_count_once_after_a_kill() {
    let kinds: [(&str, &[&str]); 4] = [
        (
            "mem:hash",
            &["1 putcat x", "2 addint", "1 putcat y", "3 out", "4 putkeep z", "4 putcat z", "5 putshl p"],
        ),
        (
            "mem:tree",
            &["1 misc putdup 1 x", "1 misc putlist 1 y 2 z", "3 out", "3 misc putdup 3 q", "1 putcat w"],
        ),
        ("mem:fixed", &["1 putcat x", "9 addint", "1 putcat y", "3 out", "3 putcat z", "max out"]),
        ("mem:table", &["9 addint", "9 addint", "1 misc putcat 1 m w", "3 out", "3 addint"]),
    ];
    for (name, commands) in kinds {
        let folder = tempfile::tempdir().unwrap();
        let master = FakeMaster::new();
        let options = || {
            let mut options = following(folder.path(), master.address(), false);
            options.databases.database = Some(DatabaseName::parse(name).unwrap());
            options
        };
        let first: &[_] = if name == "mem:table" {
            &["1 misc put 1 a b", "3 misc put 3 a b"]
        } else {
            &["1 put a", "3 put b", "5 put c"]
        };
        let mut records = Vec::new();
        for (stamp, command) in (5..).zip(commands) {
            logged(stamp, command, &mut records);
        }
        let server = Running::start(options());
        let mut stream = master.accept(1);
        let mut out = Vec::new();
        put_server_id(300, &mut out);
        first.iter().for_each(|command| logged(4, command, &mut out));
        stream.write_all(&out).unwrap();
        let kept_position = KeptPosition::new(folder.path());
        let end = |number: &str| format!("{number} {}", if name == "mem:table" { "addint" } else { "put e" });
        let mut last = Vec::new();
        logged(90, &end("7"), &mut last);
        stream.write_all(&[&records[..], &last].concat()).unwrap();
        let mut client = server.connect();
        eventually("the last command", || values(&mut client, &["7"]).len() == 2);
        let keys = ["1", "2", "3", "4", "5", "9", "10"];
        let expected = values(&mut client, &keys);
        drop((stream, client, server));
        kept_position.put_back();

        let server = Running::start(options());
        let mut stream = master.accept(5);
        // Without a master, the records stay as they were.
        assert_eq!(values(&mut server.connect(), &keys), expected, "{name}");
        out.clear();
        put_server_id(300, &mut out);
        logged(91, &end("8"), &mut last);
        stream.write_all(&[&out[..], &records, &last].concat()).unwrap();
        let mut client = server.connect();
        eventually("the last command", || values(&mut client, &["8"]).len() == 2);
        assert_eq!(values(&mut client, &keys), expected, "{name}");
    }
}

#[test]
fn writes_of_clients_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let master = FakeMaster::new();
    let server = Running::start(following(folder.path(), master.address(), false));
    let mut stream = master.accept(1);
    let mut out = Vec::new();
    put_server_id(300, &mut out);
    logged(4, "1 put a", &mut out);
    stream.write_all(&out).unwrap();
    let kept_position = KeptPosition::new(folder.path());
    let mut again = Vec::new();
    logged(5, "1 putcat b", &mut again);
    logged(6, "2 putcat c", &mut again);
    stream.write_all(&again).unwrap();
    let mut client = server.connect();
    eventually("the last command", || values(&mut client, &["2"]).len() == 2);
    client.send(&hex("c810 00000001 00000003 31 414243"));
    client.expect(&[0]);
    drop((stream, client, server));
    kept_position.put_back();

    let server = Running::start(following(folder.path(), master.address(), false));
    let mut stream = master.accept(5);
    out.clear();
    put_server_id(300, &mut out);
    logged(7, "7 put e", &mut again);
    stream.write_all(&[out, again].concat()).unwrap();
    let mut client = server.connect();
    eventually("the last command", || values(&mut client, &["7"]).len() == 2);
    assert_eq!(values(&mut client, &["1", "2"]), [&b"1"[..], b"ABCb", b"2", b"c"]);
}

/// A record that is not applied advances the stored position, after which the undo log is empty.
#[test]
fn records_return_before_any_record_of_master() {
    let own = "c810 00000001 00000001 7a 7a 00";
    // putnr is not logged.
    let damaged = "c818 00000001 00000001 7a 7a 00";
    for (server_id, body) in [(8, own), (300, damaged)] {
        let folder = tempfile::tempdir().unwrap();
        let master = FakeMaster::new();
        let mut out = Vec::new();
        put_server_id(300, &mut out);
        let server_id_len = out.len();
        logged(4, "1 put a", &mut out);
        let server = Running::start(following(folder.path(), master.address(), false));
        let mut stream = master.accept(1);
        stream.write_all(&out).unwrap();
        let kept_position = KeptPosition::new(folder.path());
        out.truncate(server_id_len);
        logged(6, "1 putcat b", &mut out);
        stream.write_all(&out[server_id_len..]).unwrap();
        let mut client = server.connect();
        eventually("the command", || values(&mut client, &["1"]) == [&b"1"[..], b"ab"]);
        drop((stream, client, server));
        kept_position.put_back();

        let server = Running::start(following(folder.path(), master.address(), false));
        let mut stream = master.accept(5);
        let mut first = out[..server_id_len].to_vec();
        record(5, server_id, body, &mut first);
        stream.write_all(&first).unwrap();
        drop(stream);
        let mut stream = master.accept(6);
        assert_eq!(position(folder.path()), "0000000000000005\n");
        logged(7, "7 put e", &mut out);
        stream.write_all(&out).unwrap();
        let mut client = server.connect();
        eventually("the last command", || values(&mut client, &["7"]).len() == 2);
        assert_eq!(values(&mut client, &["1"]), [&b"1"[..], b"ab"], "{body}");
    }
}

/// A position file that a replica cannot write, so that its next start continues at position 4, as
/// after a kill.
struct KeptPosition(PathBuf);

impl KeptPosition {
    /// Waits until position 4 is stored. A folder then takes the place of the file.
    fn new(directory: &Path) -> KeptPosition {
        eventually("the position", || position(directory) == "0000000000000004\n");
        let path = directory.join("position");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        KeptPosition(path)
    }

    fn put_back(self) {
        std::fs::remove_dir(&self.0).unwrap();
        std::fs::write(&self.0, "0000000000000004\n").unwrap();
    }
}

/// Writes a command as the log of a master holds it: the key, the name, and the value or the
/// function and the arguments.
fn logged(stamp_micros: u64, command: &str, out: &mut Vec<u8>) {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let (key, value) = (words[0], words.get(2).copied().unwrap_or_default());
    let mut arguments = FieldBuffer::default();
    words.iter().skip(3).for_each(|word| arguments.push(word));
    let request = match words[1] {
        b"put" => TyrantRequest::Put { mode: TyrantPutMode::Put, key, value },
        b"putkeep" => TyrantRequest::Put { mode: TyrantPutMode::Keep, key, value },
        b"putcat" => TyrantRequest::Put { mode: TyrantPutMode::Cat, key, value },
        b"putshl" => TyrantRequest::PutShl { key, value, width: 3 },
        b"addint" => TyrantRequest::AddInt { key, delta: 5 },
        b"out" => TyrantRequest::Out { key },
        _ => TyrantRequest::Misc { name: value, options: 0, arguments: arguments.list() },
    };
    let mut body = Vec::new();
    LoggedCommand { request, is_done: true }.put(&mut body);
    put_record_head(stamp_micros, 300, body.len() as u32, out);
    out.extend_from_slice(&body);
}

/// Returns the keys that exist and their values.
fn values(client: &mut Client, keys: &[&str]) -> Vec<Vec<u8>> {
    let mut arguments = FieldBuffer::default();
    keys.iter().for_each(|key| arguments.push(key.as_bytes()));
    let mut request = Vec::new();
    TyrantRequest::Misc { name: b"getlist", options: 0, arguments: arguments.list() }.encode(&mut request);
    client.send(&request);
    let len = |client: &mut Client| u32::from_be_bytes(client.take(4).try_into().unwrap()) as usize;
    client.take(1);
    let count = len(client);
    let mut fields = Vec::new();
    while fields.len() < count {
        let field_len = len(client);
        fields.push(client.take(field_len));
    }
    fields
}
