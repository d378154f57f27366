//! Tests numbers, searches, the shared iterator and functions of Tokyo Tyrant's protocol. Each
//! reply must be that of the original server, byte for byte.

use crate::running;
use crate::tyrant_client;

use running::Running;
use todana_protocol::tyrant::{FieldBuffer, TyrantPutMode, TyrantRequest};
use todana_server::{DatabaseName, DatabaseOptions, LimitOptions, ServerOptions};
use tyrant_client::{ask, hex, replay, tyrant};

fn tyrant_on(database: &str) -> ServerOptions {
    let database = Some(DatabaseName::parse(database).unwrap());
    ServerOptions { databases: DatabaseOptions { database, ..tyrant().databases }, ..tyrant() }
}

/// Returns the bytes of a list.
fn list(fields: &[&str]) -> Vec<u8> {
    let list: FieldBuffer = fields.iter().map(|field| field.as_bytes()).collect();
    [&(fields.len() as u32).to_be_bytes()[..], &list.into_bytes()].concat()
}

/// Calls a function of `misc` and expects its success or failure, and its list.
fn misc(client: &mut running::Client, words: &[&str], is_done: bool, fields: &[&str]) {
    let arguments: FieldBuffer = words[1..].iter().map(|word| word.as_bytes()).collect();
    let request = TyrantRequest::Misc { name: words[0].as_bytes(), options: 0, arguments: arguments.list() };
    ask(client, &request, &[&[u8::from(!is_done)][..], &list(fields)].concat());
}

fn put(client: &mut running::Client, records: &[(&str, &str)]) {
    for (key, value) in records {
        let (key, value) = (key.as_bytes(), value.as_bytes());
        ask(client, &TyrantRequest::Put { mode: TyrantPutMode::Put, key, value }, &[0]);
    }
}

#[test]
fn shifts_keep_the_end_of_values() {
    replay(
        tyrant,
        &[
            ("c810 00000003 00000007 616263 31323334353637", "00"),
            ("c8130000000300000002000000046162633839", "00"),
            ("c83000000003616263", "000000000436373839"),
            ("c8130000000300000002000000006162633839", "00"),
            ("c83000000003616263", "0000000000"),
            ("c81300000003000000050000000373686c4142434445", "00"),
            ("c8300000000373686c", "00000000054142434445"),
        ],
    );
}

#[test]
fn sums_are_stored_with_the_lowest_byte_first() {
    replay(
        tyrant,
        &[
            ("c86000000001000000056e", "0000000005"),
            ("c86000000001fffffff96e", "00fffffffe"),
            ("c830000000016e", "0000000004feffffff"),
            ("c810 00000003 00000003 616263 616263", "00"),
            ("c8600000000300000001616263", "01"),
            ("c861000000010000000000000001000000746a52880064", "000000000000000001000000746a528800"),
            ("c86100000001fffffffffffffffeffffffc5cad6bc0064", "000000000000000000ffffff5160843400"),
            ("c8300000000164", "0000000008000000000000e8bf"),
            ("c861000000010000000000000000000000174876e80065", "000000000000000000000000174876e800"),
            ("c8610000000100000000000000000000002e90edd00065", "00000000000000000000000045d964b800"),
            ("c861000000037fffffffffffffff0000000000000000696e66", "007fffffffffffffff0000000000000000"),
            ("c8610000000380000000000000008000000000000000 6e616e", "01"),
        ],
    );
}

#[test]
fn administration_is_answered_byte_for_byte() {
    replay(
        tyrant,
        &[
            ("c870", "00"),
            ("c872", "00"),
            ("c87100000000", "00"),
            ("c871 00000009 626e756d3d31303030", "00"),
            ("c871 00000008 6361706e756d3d39", "01"),
            ("c8780000000000000000000000000000000000000000", "00"),
            ("c87800000009000074920000000000000005000000013132372e302e302e31", "01"),
        ],
    );
}

#[test]
fn functions_are_answered_byte_for_byte() {
    replay(
        tyrant,
        &[
            ("c890000000030000000000000002707574000000026d6b000000026d76", "0000000000"),
            ("c890000000030000000000000001676574000000026d6b", "0000000001000000026d76"),
            ("c890000000030000000100000001676574000000026d6b", "0000000001000000026d76"),
            ("c890000000030000000000000001676574000000046e6f7065", "0100000000"),
            ("c890000000030000000000000000666f6f", "0100000000"),
            (
                "c8900000000700000000000000057075746c697374000000026131000000027631000000026132000000027632000000036f6464",
                "0000000000",
            ),
            (
                "c8900000000700000000000000036765746c697374000000026131000000026e6f000000026132",
                "0000000004000000026131000000027631000000026132000000027632",
            ),
            (
                "c89000000007000000000000000367657470617274000000026d6b00000001310000000131",
                "00000000010000000176",
            ),
        ],
    );
}

#[test]
fn functions_need_their_arguments_and_records() {
    let server = Running::start(tyrant());
    let client = &mut server.connect();
    misc(client, &["put", "k"], false, &[]);
    misc(client, &["putcat", "k", "v"], true, &[]);
    misc(client, &["putcat", "k", "w"], true, &[]);
    misc(client, &["putkeep", "k", "x"], false, &[]);
    misc(client, &["get"], false, &[]);
    misc(client, &["get", "k"], true, &["vw"]);
    misc(client, &["getpart", "k", "2"], false, &[]);
    misc(client, &["getpart", "k"], true, &["vw"]);
    misc(client, &["outlist", "k", "missing"], true, &[]);
    misc(client, &["out", "k"], false, &[]);
    misc(client, &["range"], false, &[]);
    misc(client, &["sync"], true, &[]);
    misc(client, &["vanish"], true, &[]);
    misc(client, &["optimize"], true, &[]);
    misc(client, &["error"], false, &[]);
}

#[test]
fn prefixes_are_searched_within_a_limit() {
    for database in ["mem:hash", "mem:tree"] {
        let server = Running::start(tyrant_on(database));
        let client = &mut server.connect();
        put(client, &[("nr", "yes"), ("k2", "v2")]);
        for (request, reply) in [
            ("c858000000010000000a6b", "0000000001000000026b32"),
            ("c8580000000000000000", "0000000000"),
            ("c85800000001ffffffff7a", "0000000000"),
            ("c85800000002ffffffff6e72", "0000000001000000026e72"),
        ] {
            client.send(&hex(request));
            client.expect(&hex(reply));
        }
    }
}

/// More records than one step reads, so that the search runs on another thread.
#[test]
fn search_of_many_records_finds_all() {
    for database in ["mem:hash", "mem:tree"] {
        let server = Running::start(tyrant_on(database));
        let client = &mut server.connect();
        let mut requests = Vec::new();
        for number in 0..10_000 {
            let key = format!("key {number:05}");
            TyrantRequest::Put { mode: TyrantPutMode::NoReply, key: key.as_bytes(), value: b"v" }
                .encode(&mut requests);
        }
        client.send(&requests);
        let mut search = Vec::new();
        TyrantRequest::FwmKeys { prefix: b"key ", limit: None }.encode(&mut search);
        // The count waits for the search.
        client.send(&[search, hex("c880")].concat());
        client.expect(&[&[0][..], &10_000_u32.to_be_bytes()].concat());
        let reply = client.take(10_000 * (4 + 9));
        let mut keys: Vec<&[u8]> = reply.chunks(13).map(|field| &field[4..]).collect();
        if database == "mem:hash" {
            keys.sort_unstable();
        }
        assert!(keys.iter().enumerate().all(|(number, key)| *key == format!("key {number:05}").as_bytes()));
        client.expect(&hex("00 0000000000002710"));
        misc(
            client,
            &["regex", "^key 0999[89]$"],
            true,
            &match database {
                "mem:tree" => ["key 09998", "v", "key 09999", "v"].to_vec(),
                _ => return,
            },
        );
        misc(client, &["range", "key 00007", "2"], true, &["key 00007", "v", "key 00008", "v"]);
        misc(client, &["range", "key 09998x", "0", "key 09999x"], true, &["key 09999", "v"]);
        misc(client, &["range", "b", "1", "a"], true, &[]);
        misc(client, &["regex", "*^KEY", "1"], true, &["key 00000", "v"]);
        misc(client, &["regex", "^key 00003$", "0"], true, &["key 00003", "v"]);
        misc(client, &["regex", "("], false, &[]);
    }
}

#[test]
fn iterator_is_shared_by_all_connections() {
    let server = Running::start(tyrant_on("mem:tree"));
    let (first, second) = (&mut server.connect(), &mut server.connect());
    put(first, &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
    ask(first, &TyrantRequest::IterNext, &[1]);
    ask(first, &TyrantRequest::IterInit, &[0]);
    ask(first, &TyrantRequest::IterNext, b"\0\0\0\0\x01a");
    ask(second, &TyrantRequest::IterNext, b"\0\0\0\0\x01b");
    // A removed record is passed over.
    ask(second, &TyrantRequest::Out { key: b"c" }, &[0]);
    misc(first, &["iternext"], true, &["d", "4"]);
    misc(first, &["iternext"], false, &[]);
    misc(first, &["iterinit", "aa"], true, &[]);
    ask(second, &TyrantRequest::IterNext, b"\0\0\0\0\x01b");
    ask(second, &TyrantRequest::Vanish, &[0]);
    ask(second, &TyrantRequest::IterInit, &[0]);
    ask(second, &TyrantRequest::IterNext, &[1]);
}

#[test]
fn iterator_visits_each_record_of_a_hash() {
    let server = Running::start(tyrant());
    let client = &mut server.connect();
    let keys: Vec<String> = (100..400).map(|number| number.to_string()).collect();
    keys.iter().for_each(|key| put(client, &[(key, key)]));
    let next = |client: &mut running::Client| {
        client.send(&hex("c851"));
        (client.take(1) == [0]).then(|| {
            client.expect(&3_u32.to_be_bytes());
            String::from_utf8(client.take(3)).unwrap()
        })
    };
    ask(client, &TyrantRequest::IterInit, &[0]);
    let found: Vec<String> = std::iter::from_fn(|| next(client)).collect();
    let mut sorted = found.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, keys);
    // From a record on, the order is the same; from a missing one, the iterator stays.
    misc(client, &["iterinit", &found[150]], true, &[]);
    misc(client, &["iterinit", "missing"], true, &[]);
    let rest: Vec<String> = std::iter::from_fn(|| next(client)).collect();
    assert_eq!(rest, found[150..]);
}

#[test]
fn server_that_forbids_dumps_lists_no_keys() {
    let server = Running::start(ServerOptions {
        limits: LimitOptions { dump_allowed: false, ..tyrant().limits },
        ..tyrant()
    });
    let client = &mut server.connect();
    put(client, &[("k", "v")]);
    ask(client, &TyrantRequest::IterInit, &[1]);
    ask(client, &TyrantRequest::FwmKeys { prefix: b"", limit: None }, &[1]);
    misc(client, &["regex", "k"], false, &[]);
    misc(client, &["iterinit", "k"], false, &[]);
    misc(client, &["iternext"], false, &[]);
    misc(client, &["get", "k"], true, &["v"]);
}

#[test]
fn statistics_count_commands_and_misses() {
    let server = Running::start(tyrant());
    let client = &mut server.connect();
    put(client, &[("k", "v"), ("l", "w")]);
    ask(client, &TyrantRequest::Get { key: b"missing" }, &[1]);
    ask(client, &TyrantRequest::Out { key: b"missing" }, &[1]);
    client.send(&hex("c888"));
    client.expect(&[0]);
    let len = u32::from_be_bytes(client.take(4).try_into().unwrap());
    let text = String::from_utf8(client.take(len as usize)).unwrap();
    for line in [
        "version\t1.1.41",
        "libver\t324",
        "protver\t0.91",
        "type\ton-memory hash",
        "path\t*",
        "rnum\t2",
        "bigend\t0",
        "cnt_put\t2",
        "cnt_get\t1",
        "cnt_repl\t0",
        "cnt_out_miss\t1",
        "cnt_get_miss\t1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let names: Vec<&str> = text.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(names.first(), Some(&"version"));
    assert_eq!(names.last(), Some(&"cnt_get_miss"));
    assert_eq!(names.len(), 19 + 26 + 3);
    client.send(&hex("c881"));
    client.expect(&[0]);
    assert_ne!(client.take(8), [0; 8]);
}
