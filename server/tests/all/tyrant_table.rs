//! Tests Tokyo Tyrant's commands on tables. The replies are those of the original server.

use crate::running;
use crate::tyrant_client;

use running::{Client, Running};
use todana::update_log::SyncPolicy;
use todana_protocol::tyrant::{FieldBuffer, TyrantPutMode, TyrantRequest};
use todana_server::{DataDirectoryOptions, DatabaseName, DatabaseOptions, ServerOptions};
use tyrant_client::{all_of_tyrant, ask, replay, tyrant};

fn table() -> ServerOptions {
    let database = Some(DatabaseName::parse("mem:table").unwrap());
    ServerOptions { databases: DatabaseOptions { database, ..tyrant().databases }, ..tyrant() }
}

/// Returns options for a server that serves a database by HTTP too.
fn with_http(database: &str) -> ServerOptions {
    let database = Some(DatabaseName::parse(database).unwrap());
    let options = all_of_tyrant("");
    ServerOptions { databases: DatabaseOptions { database, ..options.databases }, ..options }
}

/// Sends a request over HTTP, and checks the status and the body.
fn http(client: &mut Client, request: &str, status: &str, body: &str) {
    client.send(request.as_bytes());
    let head = format!("HTTP/1.1 {status}\r\n");
    client.expect(head.as_bytes());
    let mut rest = b"\r\n".to_vec();
    while !rest.ends_with(b"\r\n\r\n") {
        rest.extend(client.take(1));
    }
    client.expect(body.as_bytes());
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

/// Searches; words of an instruction are separated by `|`, and instructions by `;`. Returns the
/// results, joined by `;`, with `|` for NUL.
fn search(client: &mut Client, instructions: &str) -> String {
    let instructions: Vec<String> = instructions.split(';').map(|one| one.replace('|', "\0")).collect();
    let instructions: Vec<&str> = instructions.iter().map(String::as_str).collect();
    misc(client, "search", &instructions).expect("a search succeeds").join(";").replace('\0', "|")
}

fn put(client: &mut Client, mode: TyrantPutMode, key: &str, value: &str, is_stored: bool) {
    let (key, value) = (key.as_bytes(), value.as_bytes());
    ask(client, &TyrantRequest::Put { mode, key, value }, &[u8::from(!is_stored)]);
}

/// Stores four people, with an index of each kind.
fn store_people(client: &mut Client) {
    for (key, name, age, tags, text) in [
        ("1", "zed", "40", "red,blue", "Hello World"),
        ("2", "bob", "25", "blue,green", "hello there"),
        ("3", "ann", "33", "red", "École  DE\tParis"),
        ("4", "cat", "-5", "", "x"),
    ] {
        let columns = [key, "name", name, "age", age, "tags", tags, "text", text];
        assert_eq!(misc(client, "put", &columns), Some(vec![]));
    }
    let indexes = ["age", "DECIMAL", "name", "lex", "tags", "2", "text", "FTS"];
    assert_eq!(misc(client, "setindex", &indexes), Some(vec![]));
}

#[test]
fn vectors_of_tables_hold_byte_for_byte() {
    replay(
        table,
        &[
            ("c81000000001000000133161676500333000 6e616d6500616e6e00780079", "00"),
            ("c8100000000100000013 32 6e616d6500626f6200616765003235007900 7a", "00"),
            ("c810000000020000000f70306e616d65007a656400616765003430", "00"),
            (
                "c890000000080000000000000002736574696e6465780000000361676500000007444543494d414c",
                "0000000000",
            ),
            (
                "c89000000006000000000000000173656172636800000014616464636f6e6400616765004e554d4745003330",
                "0000000002 0000000131 000000027030",
            ),
            (
                "c89000000006000000000000000273656172636800000013616464636f6e64006e616d6500455100626f620000000e676574006e616d6500006e6f7065",
                "00000000010000000b6e616d6500626f62000032",
            ),
        ],
    );
}

#[test]
fn searches_answer_as_the_original() {
    let server = Running::start(table());
    let mut client = server.connect();
    store_people(&mut client);
    for (instructions, found) in [
        ("cond|age|NUMGE|30", "3;1"),
        ("cond|age|NUMGE|30;order|age|NUMDESC", "1;3"),
        ("addcond|age|NUMGE|30;setorder|name|STRASC;setlimit|1", "3"),
        ("order|name|ASC;max|2|1", "2;4"),
        ("cond||STROREQ|2 3,9", "2;3"),
        ("cond|name|OREQ|bob,zed cat", "2;4;1"),
        ("cond|tags|STRAND|red blue", "1"),
        ("cond|text|FTSPH|HELLO  WORLD", "1"),
        ("cond|text|FTSOR|ecole there", "2;3"),
        ("cond|text|FTSEX|hello !! there", "1"),
        ("cond|age|~NUMEQ|40", "2;3;4"),
        ("cond|nope|!EQ|x;limit|-1|1", "2;3;4"),
        ("cond|age|NUMGE|30;get|age||nope", "age|33||3;age|40||1"),
        ("cond|name|EQ|bob;get", "|2|name|bob|age|25|tags|blue,green|text|hello there"),
        ("cond|age|NUMBT|20 30;count", "1"),
        ("limit|0", ""),
        ("limit|2;count", "2"),
        ("cond|age|BOGUS|7;count", "4"),
        ("cond|age|>=|30;next;cond|tags|STROR|blue;mstype|ISECT", "1"),
        ("cond|age|>=|30;next;cond|tags|STROR|blue;mstype|DIFF", "3"),
        ("cond|age|>=|30;next;cond|tags|STROR|blue", "3;1;2"),
        (
            "cond|age|>=|30;hint",
            "3;1;||[[HINT]]\nusing an index: \"age\" asc (NUMGT/NUMGE)\nresult set size: 2\nleaving the natural order\n",
        ),
        (
            "hint;limit|1",
            "1;||[[HINT]]\nscanning the whole table\nlimited matching: 1\nresult set size: 1\nleaving the natural order\n",
        ),
        ("cond|age|NUMGE|39;out;get|name", "name|zed"),
        (
            "cond|age|NUMGE|30;out;count;hint",
            "1;||[[HINT]]\nusing an index: \"age\" asc (NUMGT/NUMGE)\nresult set size: 1\nleaving the natural order\npost treatment: get=1, put=0, out=1\n",
        ),
        ("out", ""),
        ("count", "0"),
    ] {
        assert_eq!(search(&mut client, instructions), found, "{instructions}");
    }
}

#[test]
fn empty_key_means_a_new_number() {
    let server = Running::start(table());
    let mut client = server.connect();
    assert_eq!(misc(&mut client, "genuid", &[]), Some(vec!["1".into()]));
    for mode in [TyrantPutMode::Put, TyrantPutMode::Keep, TyrantPutMode::Cat] {
        put(&mut client, mode, "", "a\0b", true);
    }
    ask(&mut client, &TyrantRequest::AddInt { key: b"", delta: 7 }, &[0, 0, 0, 0, 7]);
    assert_eq!(search(&mut client, "order||ASC"), "2;3;4;5");
    assert_eq!(search(&mut client, "cond|_num|NUMEQ|7"), "5");
    for function in ["put", "putkeep", "putcat", "get", "out", "getpart", "iterinit"] {
        assert_eq!(misc(&mut client, function, &["", "a", "b"]), None, "{function}");
    }
}

#[test]
fn definitions_of_indexes_are_hidden() {
    let server = Running::start(table());
    let mut client = server.connect();
    store_people(&mut client);
    ask(&mut client, &TyrantRequest::RNum, b"\0\0\0\0\0\0\0\0\x04");
    for request in
        [TyrantRequest::Get { key: b"" }, TyrantRequest::VSiz { key: b"" }, TyrantRequest::Out { key: b"" }]
    {
        ask(&mut client, &request, &[1]);
    }
    ask(&mut client, &TyrantRequest::IterInit, &[0]);
    for key in [b'1', b'2', b'3', b'4'] {
        ask(&mut client, &TyrantRequest::IterNext, &[0, 0, 0, 0, 1, key]);
    }
    ask(&mut client, &TyrantRequest::IterNext, &[1]);
    let fwmkeys = TyrantRequest::FwmKeys { prefix: b"", limit: Some(1) };
    ask(&mut client, &fwmkeys, b"\0\0\0\0\x01\0\0\0\x011");
    assert_eq!(misc(&mut client, "regex", &["^$"]), Some(vec![]));
    assert_eq!(misc(&mut client, "iterinit", &["nope"]), None);
    assert_eq!(misc(&mut client, "iterinit", &["4"]), Some(vec![]));
    ask(&mut client, &TyrantRequest::IterNext, b"\0\0\0\0\x014");
    ask(&mut client, &TyrantRequest::Vanish, &[0]);
    ask(&mut client, &TyrantRequest::RNum, &[0; 9]);
    // The indexes remain.
    assert_eq!(misc(&mut client, "setindex", &["age", "+DEC"]), None);
}

#[test]
fn rows_are_stored_as_the_original_does() {
    let server = Running::start(table());
    let mut client = server.connect();
    let get = |client: &mut Client, value: &str| {
        let mut reply = vec![0, 0, 0, 0, value.len() as u8];
        reply.extend_from_slice(value.as_bytes());
        ask(client, &TyrantRequest::Get { key: b"k" }, &reply);
    };
    for (mode, value, is_stored, row) in [
        (TyrantPutMode::Put, "a\0b\0c", true, "a\0b"),
        (TyrantPutMode::Cat, "a\0x\0d\0e", true, "a\0b\0d\0e"),
        (TyrantPutMode::Keep, "n\0ew", false, "a\0b\0d\0e"),
        (TyrantPutMode::Put, "\0z", false, "a\0b\0d\0e"),
        (TyrantPutMode::Put, "a\0b\0c\0d\0a\0e", true, "a\0e\0c\0d"),
        (TyrantPutMode::Put, "abc", true, ""),
    ] {
        put(&mut client, mode, "k", value, is_stored);
        get(&mut client, row);
    }
    ask(&mut client, &TyrantRequest::AddInt { key: b"k", delta: 5 }, &[0, 0, 0, 0, 5]);
    ask(&mut client, &TyrantRequest::AddInt { key: b"k", delta: -7 }, &[0, 255, 255, 255, 254]);
    get(&mut client, "_num\0-2");
    let mut ask = |name: &str, arguments: &[&str]| misc(&mut client, name, arguments);
    let list = |fields: &[&str]| Some(fields.iter().map(|field| (*field).to_owned()).collect::<Vec<_>>());
    assert_eq!(ask("put", &["k", "a", "b", "odd"]), list(&[]));
    assert_eq!(ask("putcat", &["k", "a", "9", "c", "3"]), list(&[]));
    assert_eq!(ask("get", &["k"]), list(&["a", "b", "c", "3"]));
    assert_eq!(ask("putkeep", &["k", "a", "b"]), None);
    assert_eq!(ask("put", &["k"]), list(&[]));
    assert_eq!(ask("get", &["k"]), list(&[]));
    assert_eq!((ask("out", &["k"]), ask("out", &["k"]), ask("get", &["k"])), (list(&[]), None, None));
    assert_eq!(ask("putlist", &["p", "a\0b", "q", "c\0d\0e"]), list(&[]));
    assert_eq!(ask("getlist", &["p", "q", "r"]), list(&["p", "a\0b", "q", "c\0d"]));
    assert_eq!(ask("getpart", &["p", "2", "1"]), list(&["b"]));
    assert_eq!((ask("range", &["p"]), ask("putdup", &["p", "x"])), (None, None));
    for (arguments, is_done) in [
        (&["n", "LEX"][..], true),
        (&["n", "+LEX"], false),
        (&["n", "OPT"], true),
        (&["z", "BOGUS"], false),
        (&["z", "VOID"], false),
        (&["z", "OPT"], false),
        (&["n", "VOID", "m"], true),
        (&["n", "+DEC"], true),
        (&[], true),
    ] {
        assert_eq!(ask("setindex", arguments).is_some(), is_done, "{arguments:?}");
    }
}

/// `PUT /` replaced the definitions of the indexes.
#[test]
fn http_does_not_reach_the_definitions() {
    let server = Running::start(ServerOptions { databases: table().databases, ..all_of_tyrant("") });
    let mut client = server.connect();
    store_people(&mut client);
    let mut exchange = |request: &str, status: &str| {
        client.send(request.as_bytes());
        let first = client.line();
        assert_eq!(first.trim_end(), format!("HTTP/1.1 {status}"), "{request}");
        let mut len = 0;
        loop {
            let line = client.line();
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some(text) = line.strip_prefix("Content-Length: ") {
                len = text.parse().unwrap();
            }
        }
        client.take(len)
    };
    assert_eq!(exchange("GET /3 HTTP/1.1\r\n\r\n", "200 OK")[..8], *b"name\0ann");
    exchange("PUT / HTTP/1.1\r\nContent-Length: 6\r\n\r\nname\0x", "201 Created");
    for method in ["GET", "DELETE", "HEAD"] {
        exchange(&format!("{method} / HTTP/1.1\r\n\r\n"), "404 Not Found");
    }
    assert_eq!(misc(&mut client, "setindex", &["age", "+DEC"]), None);
    assert_eq!(search(&mut client, "cond|name|EQ|x;count"), "1");
}

#[test]
fn removals_by_a_search_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let database = DatabaseName::parse(&format!("{}/x.tct", folder.path().display())).unwrap();
        let data = database.path.clone().map(|path| DataDirectoryOptions::new(path, SyncPolicy::Always));
        let databases = DatabaseOptions { database: Some(database), data, ..tyrant().databases };
        Running::start(ServerOptions { databases, ..tyrant() })
    };
    let server = start();
    let mut client = server.connect();
    store_people(&mut client);
    assert_eq!(search(&mut client, "cond|age|NUMGE|30;out;count"), "2");
    drop((client, server));
    let server = start();
    let mut client = server.connect();
    assert_eq!(
        search(&mut client, "cond|name|BW|b;get|name;hint").split('\n').nth(1),
        Some("using an index: \"name\" asc (STRBW)")
    );
    assert_eq!(search(&mut client, "order||DESC"), "4;2");
}

/// HTTP executed its methods on the stored bytes of a table. `PUT /` overwrote the definitions of
/// the indexes, `DELETE /` removed them, `GET /` showed them, and `X-TT-PDMODE: 2` joined the bytes
/// of two rows. On fixed databases a long value was refused instead of being cut.
#[test]
fn http_changes_tables_as_the_binary_protocol() {
    let server = Running::start(with_http("mem:table"));
    let client = &mut server.connect();
    store_people(client);
    http(client, "GET / HTTP/1.1\r\n\r\n", "404 Not Found", "Not Found\n");
    http(client, "HEAD / HTTP/1.1\r\n\r\n", "404 Not Found", "");
    http(client, "DELETE / HTTP/1.1\r\n\r\n", "404 Not Found", "Not Found\n");
    let put = |key: &str, mode: u8, row: &str| {
        let len = row.len();
        format!("PUT /{key} HTTP/1.1\r\nX-TT-PDMODE: {mode}\r\nContent-Length: {len}\r\n\r\n{row}")
    };
    http(client, &put("", 0, "name\0eve\0age\x0077"), "201 Created", "Created\n");
    assert_eq!(search(client, "cond|age|NUMEQ|77;get|name"), "name|eve");
    http(client, &put("k", 0, "a\0b"), "201 Created", "Created\n");
    http(client, &put("k", 2, "a\0x\0c\0d"), "201 Created", "Created\n");
    http(client, "GET /k HTTP/1.1\r\n\r\n", "200 OK", "a\0b\0c\0d");
    http(client, &put("k", 1, "a\0z"), "409 Conflict", "Conflict\n");
    http(client, "DELETE /k HTTP/1.1\r\n\r\n", "200 OK", "OK\n");
    let hint = search(client, "cond|age|NUMGE|30;hint");
    assert!(hint.contains("using an index: \"age\""), "{hint}");
}

#[test]
fn http_cuts_values_of_fixed_databases() {
    let server = Running::start(with_http("mem:fixed#width=4"));
    let client = &mut server.connect();
    let put = "PUT /7 HTTP/1.1\r\nContent-Length: 6\r\n\r\nabcdef";
    http(client, put, "201 Created", "Created\n");
    http(client, "GET /7 HTTP/1.1\r\n\r\n", "200 OK", "abcd");
}
