//! A server with a database on a cluster: Kyoto Tycoon's and Tokyo Tyrant's record calls, and
//! refusals. `TODANA_CASSANDRA` names the contact points of a cluster; without it, the tests that
//! need one are skipped.
#![cfg(feature = "cassandra")]

mod cassandra;
mod kyoto_client;
mod running;
mod tyrant_client;

use kyoto_client::{ask, kyoto};
use running::Running;
use std::path::PathBuf;
use todana::DatabaseName;
use todana_protocol::tyrant::{TyrantPutMode, TyrantRequest};
use todana_server::{
    DataDirectoryOptions, DatabaseOptions, DatabaseSpec, ListenOptions, Server, ServerOptions,
};

/// Starts a server with an empty database on the cluster, and a database in memory named `near`.
fn serve(keyspace: &str, words: &str, options: ServerOptions) -> Option<Running> {
    let memory = DatabaseSpec { name: DatabaseName::parse("near=mem:tree").unwrap(), data: None };
    let databases = DatabaseOptions {
        database: Some(cassandra::empty(keyspace, words)?),
        further: vec![memory],
        ..DatabaseOptions::default()
    };
    Some(Running::start(ServerOptions { databases, ..options }))
}

#[test]
fn kyoto_record_calls_work_on_a_cluster() {
    let Some(server) = serve("todana_kyoto", "", kyoto()) else { return };
    let client = &mut server.connect();
    for (name, map, status, answer) in [
        ("set", "key\ta\nvalue\t1", 200, ""),
        ("get", "key\ta", 200, "value\t1\n"),
        ("append", "key\ta\nvalue\t2", 200, ""),
        ("get", "key\ta", 200, "value\t12\n"),
        ("replace", "key\ta\nvalue\t3", 200, ""),
        ("cas", "key\ta\noval\t3\nnval\t4", 200, ""),
        ("get", "key\ta", 200, "value\t4\n"),
        ("increment", "key\tn\nnum\t5", 200, "num\t5\n"),
        ("increment", "key\tn\nnum\t-7", 200, "num\t-2\n"),
        ("increment_double", "key\td\nnum\t0.5", 200, "num\t0.500000\n"),
        ("check", "key\ta", 200, "vsiz\t1\n"),
        ("seize", "key\ta", 200, "value\t4\n"),
        ("set_bulk", "_x1\tone\n_x2\ttwo\n_y\tthree", 200, "num\t3\n"),
        ("get_bulk", "_x1\t\n_x2\t\n_no\t", 200, "_x1\tone\n_x2\ttwo\nnum\t2\n"),
        ("remove_bulk", "_x2\t\n_no\t", 200, "num\t1\n"),
        ("match_prefix", "prefix\tx", 200, "_x1\t0\nnum\t1\n"),
        ("match_regex", "regex\t^y$", 200, "_y\t0\nnum\t1\n"),
        ("synchronize", "", 200, ""),
        // The other database of the server is not on the cluster.
        ("get", "DB\tnear\nkey\ty", 450, ""),
        ("set", "DB\tnear\nkey\ty\nvalue\tlocal", 200, ""),
        ("get", "key\ty", 200, "value\tthree\n"),
        ("clear", "", 200, ""),
        ("get", "DB\tnear\nkey\ty", 200, "value\tlocal\n"),
    ] {
        let (got, body) = ask(client, name, map);
        assert_eq!(got, status, "{name} {map}: {body}");
        if status == 200 {
            assert_eq!(body, answer, "{name} {map}");
        }
    }
    assert_eq!(ask(client, "add", "key\tb\nvalue\t1").0, 200);
    assert_eq!(ask(client, "add", "key\tb\nvalue\t2").0, 450);
    assert_eq!(ask(client, "remove", "key\tb").0, 200);
    assert_eq!(ask(client, "remove", "key\tb").0, 450);
}

#[test]
fn cluster_refuses_calls_that_need_a_local_database() {
    let Some(server) = serve("todana_refused", "", kyoto()) else { return };
    let client = &mut server.connect();
    for (name, map) in [("set_bulk", "atomic\t\n_a\tb"), ("get_bulk", "atomic\t\n_a\t")] {
        let (status, body) = ask(client, name, map);
        assert_eq!(status, 501, "{name}: {body}");
        assert!(body.ends_with("not possible in a database on a cluster\n"), "{name}: {body}");
    }
    let client = &mut server.connect();
    client.send(b"flush_all 100\r\n");
    client.expect(b"SERVER_ERROR this database keeps no plan of a flush: flush at once\r\n");
}

#[test]
fn kyoto_cursors_move_through_a_cluster() {
    for words in ["", "#ordered=4"] {
        let Some(server) = serve("todana_cursors", words, kyoto()) else { return };
        let client = &mut server.connect();
        assert_eq!(ask(client, "set_bulk", "_a\t1\n_b\t2\n_c\t3").1, "num\t3\n");
        assert_eq!(ask(client, "cur_jump", "CUR\t1").0, 200);
        let mut seen = Vec::new();
        loop {
            let (status, body) = ask(client, "cur_get", "CUR\t1\nstep\t");
            if status != 200 {
                assert_eq!(status, 450);
                break;
            }
            seen.push(body);
        }
        if words.is_empty() {
            seen.sort();
            assert_eq!(ask(client, "cur_jump_back", "CUR\t1").0, 501);
        } else {
            assert_eq!(ask(client, "cur_jump_back", "CUR\t1").0, 200);
            assert_eq!(ask(client, "cur_get_key", "CUR\t1").1, "key\tc\n");
        }
        assert_eq!(seen, ["key\ta\nvalue\t1\n", "key\tb\nvalue\t2\n", "key\tc\nvalue\t3\n"]);
        assert_eq!(ask(client, "cur_jump", "CUR\t1\nkey\tb").0, 200);
        assert_eq!(ask(client, "cur_set_value", "CUR\t1\nvalue\tnew").0, 200);
        assert_eq!(ask(client, "get", "key\tb").1, "value\tnew\n");
        assert_eq!(ask(client, "cur_remove", "CUR\t1").0, 200);
        assert_eq!(ask(client, "get", "key\tb").0, 450);
        assert_eq!(ask(client, "cur_delete", "CUR\t1").0, 200);
    }
}

#[test]
fn tyrant_record_calls_work_on_a_cluster() {
    let Some(server) = serve("todana_tyrant", "", tyrant_client::tyrant()) else { return };
    let client = &mut server.connect();
    let put = |mode, key, value| TyrantRequest::Put { mode, key, value };
    let get = |key| TyrantRequest::Get { key };
    tyrant_client::ask(client, &put(TyrantPutMode::Put, b"a", b"one"), b"\0");
    tyrant_client::ask(client, &put(TyrantPutMode::Keep, b"a", b"two"), b"\x01");
    tyrant_client::ask(client, &put(TyrantPutMode::Cat, b"a", b"+"), b"\0");
    tyrant_client::ask(client, &get(b"a"), b"\0\0\0\0\x04one+");
    tyrant_client::ask(client, &TyrantRequest::VSiz { key: b"a" }, b"\0\0\0\0\x04");
    tyrant_client::ask(client, &TyrantRequest::PutShl { key: b"a", value: b"23", width: 3 }, b"\0");
    tyrant_client::ask(client, &get(b"a"), b"\0\0\0\0\x03+23");
    tyrant_client::ask(client, &TyrantRequest::AddInt { key: b"n", delta: 7 }, b"\0\0\0\0\x07");
    tyrant_client::ask(client, &TyrantRequest::AddInt { key: b"n", delta: -9 }, b"\0\xff\xff\xff\xfe");
    tyrant_client::ask(client, &TyrantRequest::AddInt { key: b"a", delta: 1 }, b"\x01");
    tyrant_client::ask(
        client,
        &TyrantRequest::FwmKeys { prefix: b"a", limit: None },
        b"\0\0\0\0\x01\0\0\0\x01a",
    );
    tyrant_client::ask(client, &TyrantRequest::IterInit, b"\x01");
    tyrant_client::ask(client, &TyrantRequest::Out { key: b"a" }, b"\0");
    tyrant_client::ask(client, &TyrantRequest::Out { key: b"a" }, b"\x01");
    tyrant_client::ask(client, &get(b"a"), b"\x01");
    tyrant_client::ask(client, &TyrantRequest::Vanish, b"\0");
    tyrant_client::ask(client, &get(b"n"), b"\x01");
}

#[test]
fn binary_protocol_works_on_a_cluster() {
    let Some(server) = serve("todana_binary", "", running::options()) else { return };
    let client = &mut server.connect();
    // set k = v with flags 5, then get, incr of a new counter, and delete.
    client.send(b"\x80\x01\0\x01\x08\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\0kv");
    let stored = client.take(24);
    assert_eq!(stored[..8], *b"\x81\x01\0\0\0\0\0\0");
    client.send(b"\x80\x00\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0k");
    let found = client.take(29);
    assert_eq!((&found[..8], &found[16..24]), (&b"\x81\0\0\0\x04\0\0\0"[..], &stored[16..24]));
    assert_eq!(found[24..], *b"\0\0\0\x05v");
    client.send(b"\x80\x05\0\x01\x14\0\0\0\0\0\0\x15\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x09\0\0\0\0n");
    assert_eq!(client.take(32)[24..], *b"\0\0\0\0\0\0\0\x09");
    client.send(b"\x80\x04\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0k");
    assert_eq!(client.take(24)[..8], *b"\x81\x04\0\0\0\0\0\0");
    client.send(b"\x80\x04\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0k");
    assert_eq!(client.take(33)[..8], *b"\x81\x04\0\0\0\0\0\x01");
}

#[test]
fn pipelined_requests_keep_their_order() {
    let Some(server) = serve("todana_pipeline", "", running::options()) else { return };
    let client = &mut server.connect();
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for number in 0..40 {
        requests.extend(format!("set k{} 0 0 2\r\n{number:02}\r\n", number % 5).into_bytes());
        replies.extend(b"STORED\r\n");
        requests.extend(format!("get k{} no k{0}\r\nget none\r\n", number % 5).into_bytes());
        let hit = format!("VALUE k{} 0 2\r\n{number:02}\r\n", number % 5);
        replies.extend(format!("{hit}{hit}END\r\nEND\r\n").into_bytes());
        // The changes of several records run at the same time, those of one record one by one.
        requests.extend(format!("incr k{0} 3\r\nset a 0 0 1 noreply\r\na\r\n", number % 5).bytes());
        requests.extend(b"delete b\r\nset b 0 0 1\r\nb\r\nappend a 0 0 1\r\n+\r\nms c 1 q\r\nc\r\n");
        requests.extend(b"get a c\r\ntouch none 0\r\ndelete b\r\nmd c q\r\nget c\r\n");
        let changed = format!("{}\r\nNOT_FOUND\r\nSTORED\r\nSTORED\r\n", number + 3);
        replies.extend(changed.into_bytes());
        replies.extend(b"VALUE a 0 2\r\na+\r\nVALUE c 0 1\r\nc\r\nEND\r\n");
        replies.extend(b"NOT_FOUND\r\nDELETED\r\nEND\r\n");
    }
    client.send(&requests);
    client.expect(&replies);
}

#[test]
fn start_refuses_options_that_a_cluster_cannot_have() {
    let name = DatabaseName::parse("cassandra://127.0.0.1:1/keys").unwrap();
    let databases = DatabaseOptions { database: Some(name), ..DatabaseOptions::default() };
    let refused = |databases: DatabaseOptions| {
        let options = ServerOptions { databases, ..running::options() };
        Server::bind(options).map(drop).unwrap_err().to_string()
    };
    let data = DataDirectoryOptions::new(PathBuf::from("./data"), databases.sync);
    let text = refused(DatabaseOptions { data: Some(data), ..databases.clone() });
    assert!(text.ends_with("the cluster keeps the records; leave out the data directory"), "{text}");
    let listen = ListenOptions { udp_port: Some(0), ..running::options().listen };
    let options = ServerOptions { databases, listen, ..running::options() };
    let text = Server::bind(options).map(drop).unwrap_err().to_string();
    assert_eq!(text, "UDP sends no replies of a cluster; leave out -U, or put another database first");
}
