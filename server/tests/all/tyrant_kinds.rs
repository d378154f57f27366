//! Tests Tokyo Tyrant's commands on databases of numbered records, and on trees with several values
//! of a key. The replies are those of the original server, on `x.tcf#width=16` and `x.tcb`.

use crate::running;
use crate::tyrant_client;

use running::{Client, Running};
use todana::update_log::SyncPolicy;
use todana_protocol::tyrant::{FieldBuffer, TyrantPutMode, TyrantRequest};
use todana_server::{DataDirectoryOptions, DatabaseName, DatabaseOptions, ServerOptions};
use tyrant_client::{all_of_tyrant, ask, replay, tyrant};

fn fixed() -> ServerOptions {
    let database = Some(DatabaseName::parse("mem:fixed#width=16").unwrap());
    ServerOptions { databases: DatabaseOptions { database, ..tyrant().databases }, ..tyrant() }
}

/// Starts a server with this database.
fn start(name: &str) -> Running {
    let database = DatabaseName::parse(name).unwrap();
    let data = database.path.clone().map(|path| DataDirectoryOptions::new(path, SyncPolicy::Never));
    let databases = DatabaseOptions { database: Some(database), data, ..tyrant().databases };
    Running::start(ServerOptions { databases, ..tyrant() })
}

/// Starts a server with the records 1, 7, 100 and 101, on each engine of numbered records.
fn on_each_engine(test: impl Fn(&mut Client)) {
    let folder = tempfile::tempdir().unwrap();
    let on_disk = format!("{}/x.tcf#width=16", folder.path().display());
    for name in ["mem:fixed#width=16", "mem:fixed#width=16#limsiz=1t", &on_disk] {
        let server = start(name);
        let mut client = server.connect();
        for key in ["1", "7", "100", "101"] {
            assert!(misc(&mut client, "put", &[key, &format!("v{key}")]).is_some());
        }
        test(&mut client);
    }
}

fn fields(client: &mut Client) -> Vec<String> {
    let count = u32::from_be_bytes(client.take(4).try_into().unwrap());
    let field = |_| {
        let len = u32::from_be_bytes(client.take(4).try_into().unwrap());
        String::from_utf8(client.take(len as usize)).unwrap()
    };
    (0..count).map(field).collect()
}

/// Calls a function of `misc`. Returns its list; `None` if it fails.
fn misc(client: &mut Client, name: &str, arguments: &[&str]) -> Option<Vec<String>> {
    let arguments: FieldBuffer = arguments.iter().map(|text| text.as_bytes()).collect();
    let mut request = Vec::new();
    let arguments = arguments.list();
    TyrantRequest::Misc { name: name.as_bytes(), options: 0, arguments }.encode(&mut request);
    client.send(&request);
    let is_done = client.take(1) == [0];
    let list = fields(client);
    assert!(is_done || list.is_empty());
    is_done.then_some(list)
}

/// Returns the keys that `fwmkeys` lists, joined by blanks.
fn keys(client: &mut Client, interval: &str) -> String {
    let mut request = Vec::new();
    TyrantRequest::FwmKeys { prefix: interval.as_bytes(), limit: None }.encode(&mut request);
    client.send(&request);
    assert_eq!(client.take(1), [0]);
    fields(client).join(" ")
}

#[test]
fn value_is_cut_to_the_width() {
    replay(
        fixed,
        &[
            ("c81000000003000000133130303031323334353637383961626364656658595a", "00"),
            ("c83000000003313030", "00 00000010 30313233343536373839616263646566"),
            ("c810 00000001 00000001 31 61", "00"),
            ("c810 00000001 00000001 37 62", "00"),
            ("c810 00000003 00000001 313031 63", "00"),
            (
                "c85800000009ffffffff5b6d696e2c6d61785d",
                "00 00000004 00000001 31 00000001 37 00000003 313030 00000003 313031",
            ),
            ("c85800000007ffffffff28372c3130315d", "00 00000002 00000003 313030 00000003 313031"),
            // putcat and putshl cut the joined value.
            ("c812 00000001 00000012 31 30313233343536373839616263646566 3031", "00"),
            ("c830 00000001 31", "00 00000010 61303132333435363738396162636465"),
            ("c813 00000001 00000012 00000040 39 30313233343536373839616263646566 3031", "00"),
            ("c830 00000001 39", "00 00000010 30313233343536373839616263646566"),
            // putnr to no number stores nothing, and has no reply.
            ("c818 00000001 00000001 78 61 c880", "00 0000000000000005"),
        ],
    );
}

#[test]
fn intervals_list_the_numbers_between_their_ends() {
    on_each_engine(|client| {
        for (interval, expected) in [
            ("[min,max]", "1 7 100 101"),
            ("(7,101]", "100 101"),
            (" [1,7]", "1 7"),
            ("[ 1 , 7 ]", "1 7"),
            ("[7,max)", "7 100"),
            ("(min,max)", "7 100"),
            ("[7a,101]", "7 100 101"),
            ("[007,0101]", "7 100 101"),
            ("[1,7]x", "1 7"),
            ("[-5,7]", "7"),
            ("[7,7]", "7"),
        ] {
            assert_eq!(keys(client, interval), expected, "{interval}");
        }
        let empty = "[1,7 ;[1 7];[prev,next];[max,min];[7,];[,7];7;;[0,7];[x,7];{1,7};[next,max];(7,7];10*;\
                     [1,99999999999999999999]";
        assert!(empty.split(';').all(|interval| keys(client, interval).is_empty()));
    });
}

#[test]
fn ranges_and_iterators_begin_at_a_number() {
    on_each_engine(|client| {
        let mut range = |arguments: &[&str]| misc(client, "range", arguments).unwrap().join(" ");
        for (arguments, expected) in [
            (&[][..], "1 v1 7 v7 100 v100 101 v101"),
            (&["7", "2"], "7 v7 100 v100"),
            (&["7", "0", "101"], "7 v7 100 v100"),
            (&["max"], "101 v101"),
            (&["next"], ""),
            (&["x"], ""),
            (&["8", "0", "max"], "100 v100 101 v101"),
            (&["1", "x", "7"], "1 v1"),
        ] {
            assert_eq!(range(arguments), expected, "{arguments:?}");
        }
        for (key, expected) in [("8", Some("100 v100")), ("max", Some("101 v101")), ("007", Some("7 v7"))] {
            assert!(misc(client, "iterinit", &[key]).is_some());
            let next = misc(client, "iternext", &[]).map(|record| record.join(" "));
            assert_eq!(next.as_deref(), expected, "{key}");
        }
        for key in ["0", "102", "x", "next"] {
            assert_eq!(misc(client, "iterinit", &[key]), None, "{key}");
        }
    });
}

#[test]
fn words_are_numbers_in_every_command() {
    on_each_engine(|client| {
        let put = |mode, key: &'static [u8], value| TyrantRequest::Put { mode, key, value };
        ask(client, &put(TyrantPutMode::Put, b"next", b"n"), &[0]);
        ask(client, &TyrantRequest::Out { key: b"min" }, &[0]);
        ask(client, &put(TyrantPutMode::Cat, b"prev", b"6"), &[0]);
        ask(client, &TyrantRequest::VSiz { key: b"0102" }, &[0, 0, 0, 0, 1]);
        assert_eq!(keys(client, "[min,max]"), "6 7 100 101 102");
        ask(client, &put(TyrantPutMode::Keep, b"max", b"n"), &[1]);
        for key in [&b"0"[..], b"x", b"", b"9999999999999"] {
            ask(client, &TyrantRequest::Put { mode: TyrantPutMode::Put, key, value: b"n" }, &[1]);
            ask(client, &TyrantRequest::AddInt { key, delta: 1 }, &[1]);
        }
        ask(client, &TyrantRequest::AddInt { key: b"next", delta: 5 }, &[0, 0, 0, 0, 5]);
        // A list with a key that is no number has no effect.
        assert_eq!(misc(client, "outlist", &["7", "x"]), None);
        assert_eq!(misc(client, "getlist", &["7", "next"]), None);
        assert_eq!(misc(client, "getlist", &["0007", "50"]).unwrap(), ["0007", "v7"]);
        assert_eq!(misc(client, "putlist", &["0", "a", "50", "b"]), None);
        assert_eq!(misc(client, "putlist", &["next", "a", "next", "b"]).unwrap().len(), 0);
        assert_eq!(keys(client, "[50,max]"), "100 101 102 103 104 105");
    });
}

#[test]
fn key_of_a_tree_has_several_values() {
    let folder = tempfile::tempdir().unwrap();
    let on_disk = format!("{}/x.tcb", folder.path().display());
    for name in ["+", &on_disk] {
        let server = start(name);
        let client = &mut server.connect();
        let put = |key: &'static [u8], value| TyrantRequest::Put { mode: TyrantPutMode::Put, key, value };
        ask(client, &put(b"d", b"1"), &[0]);
        assert!(misc(client, "putdup", &["d", "2"]).is_some());
        assert!(misc(client, "putdupback", &["d", "0"]).is_some());
        assert_eq!(misc(client, "get", &["d"]).unwrap(), ["0", "1", "2"]);
        assert_eq!(misc(client, "getlist", &["d", "x"]).unwrap(), ["d", "0", "d", "1", "d", "2"]);
        ask(client, &TyrantRequest::Get { key: b"d" }, b"\0\0\0\0\x010");
        ask(client, &TyrantRequest::Out { key: b"d" }, &[0]);
        ask(client, &put(b"d", b"one"), &[0]);
        assert_eq!(misc(client, "get", &["d"]).unwrap(), ["one", "2"]);
        assert!(misc(client, "putlist", &["d", "3", "e", "4", "odd"]).is_some());
        assert_eq!(misc(client, "getlist", &["d", "e"]).unwrap(), ["d", "one", "d", "2", "d", "3", "e", "4"]);
        assert!(misc(client, "outlist", &["d", "x"]).is_some());
        assert_eq!(misc(client, "get", &["d"]), None);
        // memcached's clients see the first value.
        assert!(misc(client, "putdup", &["e", "5"]).is_some());
        client.send(b"get e\r\n");
        client.expect(b"VALUE e 0 1\r\n4\r\nEND\r\n");
    }
    // A hash holds one value of each key.
    let server = start("*");
    let client = &mut server.connect();
    assert_eq!(misc(client, "putdup", &["d", "2"]), None);
}

/// The original's replies on `+`. Under the name `ttserver`, `putlist` added values, and `getlist`
/// returned more of them than clients expected.
#[test]
fn original_tree_in_memory_has_single_values() {
    let database = DatabaseName::parse_as_original("+").unwrap();
    let databases = DatabaseOptions { database: Some(database), ..tyrant().databases };
    let server = Running::start(ServerOptions { databases, ..tyrant() });
    let client = &mut server.connect();
    for (name, arguments, expected, left) in [
        ("putlist", &["k", "a", "k", "b", "k", "c"][..], Some(&[][..]), "k c"),
        ("get", &["k"], Some(&["c"]), "k c"),
        ("putdup", &["k", "d"], None, "k c"),
        ("putdupback", &["k", "e"], None, "k c"),
        ("put", &["k", "f"], Some(&[]), "k f"),
        ("putcat", &["k", "g"], Some(&[]), "k fg"),
        ("putkeep", &["k", "z"], None, "k fg"),
        ("putdup", &["n", "x"], None, "k fg"),
        ("outlist", &["k", "q"], Some(&[]), ""),
        ("out", &["k"], None, ""),
    ] {
        let outcome = misc(client, name, arguments);
        let outcome: Option<Vec<&str>> =
            outcome.as_ref().map(|fields| fields.iter().map(String::as_str).collect());
        assert_eq!(outcome.as_deref(), expected, "{name} {arguments:?}");
        assert_eq!(misc(client, "getlist", &["k", "n"]).unwrap().join(" "), left, "{name}");
    }
    ask(client, &TyrantRequest::RNum, &[0; 9]);
}

/// Words without a meaning were refused, although the original ignores them.
#[test]
fn optimize_refuses_only_changes_of_limits() {
    for (name, tuning, is_done) in [
        ("*#capnum=100", "", true),
        ("*#capnum=100", "dfunit=8#bnum=1k", true),
        ("*#capnum=100", "bogus=1#junk", true),
        ("*#capnum=100", "#capnum=100", true),
        ("*#capnum=100", "capnum=5", false),
        ("*#capnum=100", "capsiz=1m", false),
        ("*", "width=8", true),
        ("mem:fixed#width=16", "width=16#xmsiz=1", true),
        ("mem:fixed#width=16", "width=8", false),
        ("mem:fixed#width=16", "limsiz=1m", false),
    ] {
        let server = start(name);
        let client = &mut server.connect();
        let request = TyrantRequest::Optimize { tuning: tuning.as_bytes() };
        ask(client, &request, &[u8::from(!is_done)]);
        assert_eq!(misc(client, "optimize", &[tuning]).is_some(), is_done, "{name} {tuning}");
    }
}

/// A memcached record expires; the iterator moved past all expired ones while all threads waited.
#[test]
fn iterators_pass_many_expired_records() {
    for name in ["*", "+", "mem:fixed#width=16"] {
        let database = Some(DatabaseName::parse(name).unwrap());
        let options = all_of_tyrant("");
        let databases = DatabaseOptions { database, ..options.databases };
        let server = Running::start(ServerOptions { databases, ..options });
        let client = &mut server.connect();
        let last = if name == "mem:fixed#width=16" { "10000" } else { "z" };
        let mut requests = String::new();
        for number in 1..10_000 {
            requests.push_str(&format!("set {number} 0 -1 1 noreply\r\nx\r\n"));
        }
        client.send(format!("{requests}set {last} 0 0 1\r\ny\r\n").as_bytes());
        client.expect(b"STORED\r\n");
        for key in ["1", last] {
            ask(client, &TyrantRequest::IterInit, &[0]);
            ask(
                client,
                &TyrantRequest::IterNext,
                &[&[0, 0, 0, 0, last.len() as u8], last.as_bytes()].concat(),
            );
            ask(client, &TyrantRequest::IterNext, &[1]);
            let found = misc(client, "iterinit", &[key]).and_then(|_| misc(client, "iternext", &[]));
            let is_found = name != "*" || key == last;
            assert_eq!(found, is_found.then(|| vec![last.to_owned(), "y".to_owned()]), "{name} {key}");
        }
    }
}
