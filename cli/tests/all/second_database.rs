//! The second and later databases of a server. memcached's protocol knows only one database, so
//! neither a memcached client nor a command could once reach `users` of `todana serve mem:hash
//! users=./users.tree`.

use crate::running;

use running::{RunningServer, TestFolder, TextClient, expect, refused, run, stop, text};

/// Starts a server with three databases: in memory, ordered on disk, and a hash on disk.
fn three(folder: &TestFolder) -> RunningServer {
    let (users, carts) = (format!("users={}", folder.path("u.tree")), folder.path("carts.hash"));
    RunningServer::start(&["--admin-port", "0", "mem:hash", &users, &carts])
}

#[test]
fn every_command_reaches_each_database() {
    let folder = TestFolder::new();
    let server = three(&folder);
    let carts = folder.path("carts.hash");
    for database in ["0", "users", "1", carts.as_str(), "2"] {
        let at = |words: &[&str], code| {
            let named = ["-S", server.address.as_str(), "--database", database];
            expect(&[words, &named].concat(), code)
        };
        at(&["set", "k", database, "--flags", "7"], 0);
        assert_eq!(at(&["get", "k"], 0), database);
        assert_eq!(at(&["get", "k", "--json"], 0).matches("\"flags\":7").count(), 1);
        assert_eq!(at(&["incr", "n", "--initial", "41"], 0), "41\n");
        assert_eq!(at(&["incr", "n"], 0), "42\n");
        at(&["touch", "n", "--ttl", "1h"], 0);
        assert_eq!(at(&["count"], 0), "2\n", "{database}");
        let mut keys: Vec<String> = at(&["list"], 0).lines().map(String::from).collect();
        keys.sort();
        assert_eq!(keys, ["k", "n"], "{database}");
        let dumped = at(&["dump", "-"], 0);
        assert!(dumped.contains(&format!("k\t{database}\t7\n")) && dumped.contains("n\t42\t0\t"), "{dumped}");
        let file = folder.path("records.tsv");
        at(&["export", &file], 0);
        at(&["flush"], 0);
        assert_eq!(at(&["count"], 0), "0\n");
        at(&["load", &file], 0);
        assert_eq!(at(&["get", "n"], 0), "42");
        at(&["delete", "k", "n"], 0);
        let facts: serde_json::Value = serde_json::from_str(&at(&["inform", "--json"], 0)).unwrap();
        let kind = ["mem:hash", "disk:tree", "disk:hash"][match database {
            "0" => 0,
            "users" | "1" => 1,
            _ => 2,
        }];
        assert_eq!((&facts["kind"], &facts["records"]), (&kind.into(), &0.into()));
        let statistics: serde_json::Value = serde_json::from_str(&at(&["stats", "--json"], 0)).unwrap();
        assert_eq!((&statistics["kind"], &statistics["records"]), (&kind.into(), &0.into()));
    }
    // Each database has its own records, and keeps them.
    for (database, value) in [("0", "a"), ("users", "b"), ("2", "c")] {
        expect(&["set", "k", value, "-S", &server.address, "--database", database], 0);
    }
    assert_eq!(server.expect(&["get", "k"], 0), "a");
    stop(server);
    assert_eq!(expect(&["get", "k", "-S", &folder.path("u.tree")], 0), "b");
    assert_eq!(expect(&["get", "k", "-S", &carts], 0), "c");
}

#[test]
fn unknown_database_is_refused() {
    let folder = TestFolder::new();
    let server = three(&folder);
    let get = |database: &str| refused(&["get", "k", "-S", &server.address, "--database", database], 3);
    let hint = "`todana stats databases` lists its databases\n";
    assert_eq!(get("orders"), format!("todana: --database orders: the server has no such database; {hint}"));
    let near = "todana: --database user: the server has no such database; did you mean users?\n";
    assert_eq!(get("user"), near);
    assert_eq!(get("3"), "todana: the server says: SERVER_ERROR there is no database of this number\n");
    let words = ["get", "k", "-S", &folder.path("x.hash"), "--database", "1"];
    assert_eq!(refused(&words, 2), "todana: --database: needs a server with several databases\n");
    let bench = ["bench", &server.address, "--database", "1"];
    assert_eq!(refused(&bench, 2), "todana: --database: needs a server with several databases\n");
}

#[test]
fn memcached_client_chooses_its_database() {
    let folder = TestFolder::new();
    let server = three(&folder);
    let (mut one, mut other) = (TextClient::connect(&server), TextClient::connect(&server));
    assert_eq!(one.ask("todana use 1\r\n"), "OK\r\n");
    assert_eq!(one.set("k", b"in users"), "STORED\r\n");
    assert_eq!(other.ask("get k\r\n"), "END\r\n");
    for wrong in ["todana use 3\r\n", "todana use 4294967295\r\n"] {
        assert_eq!(one.ask(wrong), "SERVER_ERROR there is no database of this number\r\n");
    }
    for wrong in ["todana use\r\n", "todana use users\r\n", "todana use 1 2\r\n", "todana use 4294967296\r\n"]
    {
        assert_eq!(one.ask(wrong), "CLIENT_ERROR bad command line format\r\n");
    }
    // None of these requests has changed the selected database.
    assert_eq!(one.ask("get k\r\n"), "VALUE k 0 8\r\n");
    assert_eq!((one.line(), one.line()), ("in users\r\n".to_string(), "END\r\n".to_string()));
}

/// Long values are received directly into the engine's memory, within the limits of the selected
/// database. A request that arrives together with the selection must use the new limits.
#[test]
fn choice_applies_to_requests_sent_with_it() {
    let folder = TestFolder::new();
    let server = three(&folder);
    let long = vec![b'v'; 200_000];
    for database in [0, 1, 2, 0] {
        let mut client = TextClient::connect(&server);
        let mut bytes = Vec::new();
        for number in [2, 1, 0, database] {
            bytes.extend_from_slice(format!("todana use {number}\r\n").as_bytes());
            bytes.extend_from_slice(format!("set k{database} 0 0 {}\r\n", long.len()).as_bytes());
            bytes.extend_from_slice(&long);
            bytes.extend_from_slice(b"\r\nmn\r\n");
        }
        client.send(&bytes);
        for _ in 0..4 {
            let replies = [client.line(), client.line(), client.line()];
            assert_eq!(replies, ["OK\r\n", "STORED\r\n", "MN\r\n"], "{database}");
        }
    }
    for database in ["0", "1", "2"] {
        let output = run(&["get", "k1", "-S", &server.address, "--database", database]);
        assert!(text(&output.stdout).as_bytes() == long, "{database}");
    }
}
