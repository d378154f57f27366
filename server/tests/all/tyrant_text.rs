//! Tests text and HTTP requests on the port of Tokyo Tyrant's binary protocol, mixed on one
//! connection.

use crate::running;
use crate::tyrant_client;

use running::{Client, Running};
use tyrant_client::{all_of_tyrant, hex, tyrant};

const NOT_FOUND: &str =
    "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nNot Found\n";
const CREATED: &str =
    "HTTP/1.1 201 Created\r\nContent-Type: text/plain\r\nContent-Length: 8\r\n\r\nCreated\n";

fn ask(client: &mut Client, request: &str, reply: &str) {
    client.send(request.as_bytes());
    client.expect(reply.as_bytes());
}

fn value(bytes: &str) -> String {
    let len = bytes.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {len}\r\n\r\n{bytes}"
    )
}

/// Vector 14.9, and the same with HTTP, however the requests are divided.
#[test]
fn protocols_mix_on_one_connection() {
    let requests = [
        &hex("c8100000000100000001 6231")[..],
        b"get b\r\n",
        &hex("c8300000000162"),
        b"GET /b HTTP/1.1\r\n\r\n",
        b"set c 7 0 1\r\n2\r\n",
        b"PUT /d HTTP/1.1\r\nContent-Length: 1\r\n\r\n3",
        &hex("c8300000000163"),
        b"gets d missing\r\nget c\r\n",
    ]
    .concat();
    let expected = [
        &hex("00")[..],
        b"VALUE b 0 1\r\n1\r\nEND\r\n",
        &hex("000000000131"),
        value("1").as_bytes(),
        b"STORED\r\n",
        CREATED.as_bytes(),
        &hex("000000000132"),
        b"VALUE d 0 1 ",
    ]
    .concat();
    for len in [usize::MAX, 7, 1] {
        let server = Running::start(all_of_tyrant(""));
        let mut client = server.connect();
        requests.chunks(len.min(requests.len())).for_each(|piece| client.send(piece));
        client.expect(&expected);
        let rest = client.take(1 + 2 + 3 + 5 + "VALUE c 7 1\r\n2\r\nEND\r\n".len());
        assert!(rest.ends_with(b"\r\n3\r\nEND\r\nVALUE c 7 1\r\n2\r\nEND\r\n"), "{rest:?}");
    }
}

/// A binary request after the block of a refused item was read as a line of text.
#[test]
fn binary_request_follows_a_discarded_block() {
    let head = b"set big 0 0 2000000\r\n".to_vec();
    let block = [vec![b'v'; 2_000_000], b"\r\n".to_vec()].concat();
    for len in [usize::MAX, 100_000] {
        let server = Running::start(tyrant());
        let mut client = server.connect();
        let requests = [&head[..], &block, &hex("c8100000000100000001 6231"), b"get b\r\n"].concat();
        requests.chunks(len.min(requests.len())).for_each(|piece| client.send(piece));
        client.expect(b"SERVER_ERROR object too large for cache\r\n\0VALUE b 0 1\r\n1\r\nEND\r\n");
    }
}

#[test]
fn binary_requests_follow_text_beside_other_protocols() {
    let server = Running::start(tyrant());
    let mut client = server.connect();
    client.send(&[b"set b 0 0 1\r\n1\r\n", &hex("c8300000000162")[..], b"get b\r\n"].concat());
    client.expect(b"STORED\r\n\0\0\0\0\x011VALUE b 0 1\r\n1\r\nEND\r\n");
    // HTTP is not spoken here.
    client.send(b"GET /b HTTP/1.1\r\n\r\n");
    assert_eq!(client.rest(), b"");
}

#[test]
fn http_methods_are_commands() {
    let server = Running::start(all_of_tyrant(""));
    let client = &mut server.connect();
    ask(client, "GET /k HTTP/1.1\r\n\r\n", NOT_FOUND);
    ask(client, "HEAD /k HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n\r\n");
    ask(client, "PUT /k HTTP/1.1\r\nContent-Length: 2\r\n\r\nv1", CREATED);
    let conflict = "HTTP/1.1 409 Conflict\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nConflict\n";
    ask(client, "PUT /k HTTP/1.1\r\nX-TT-PDMODE: 1\r\nContent-Length: 2\r\n\r\nv2", conflict);
    ask(client, "PUT /k HTTP/1.1\r\nX-TT-PDMODE: 2\r\nContent-Length: 2\r\n\r\nv3", CREATED);
    ask(client, "GET http://host:1/%6b HTTP/1.1\r\n\r\n", &value("v1v3"));
    let head = value("v1v3");
    ask(client, "HEAD /k HTTP/1.1\r\n\r\n", head.strip_suffix("v1v3").unwrap());
    let done = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nOK\n";
    ask(client, "DELETE /k HTTP/1.1\r\n\r\n", done);
    ask(client, "DELETE /k HTTP/1.1\r\n\r\n", NOT_FOUND);
    let bad =
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\r\nBad Request\n";
    ask(client, "POST /k HTTP/1.1\r\n\r\n", bad);
    client.send(b"OPTIONS / HTTP/1.1\r\n\r\n");
    client.expect(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nAllow: OPTIONS, GET, HEAD, PUT, POST, DELETE\r\nX-TT-VERSION: 1.1.41\r\nX-TT-LIBVER: 324\r\n");
}

#[test]
fn http_connection_ends_as_its_request_says() {
    let server = Running::start(all_of_tyrant(""));
    for request in ["GET /k HTTP/1.0\r\n\r\n", "GET /k HTTP/1.1\r\nConnection: close\r\n\r\n"] {
        let client = &mut server.connect();
        ask(client, request, NOT_FOUND);
        assert_eq!(client.rest(), b"");
    }
    let client = &mut server.connect();
    ask(client, "GET /k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", NOT_FOUND);
    ask(client, "GET /k HTTP/1.1\r\n\r\n", NOT_FOUND);
    client.send(b"GET / HTTP/2.0\r\n\r\n");
    assert_eq!(client.rest(), b"");
}

#[test]
fn functions_are_called_over_http() {
    let server = Running::start(all_of_tyrant(""));
    let client = &mut server.connect();
    let post = |name: &str, body: &str| {
        format!("POST / HTTP/1.1\r\nX-TT-MNAME: {name}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let form = |body: &str| {
        let len = body.len();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {len}\r\n\r\n{body}"
        )
    };
    ask(client, &post("putlist", "a=k&b=v%2b1&c=l&d=w"), &form(""));
    ask(client, &post("getlist", "a=l&b=k"), &form("res1=l&res2=w&res3=k&res4=v%2B1"));
    // The engine shares the bytes of a long value with replies.
    let long = "v".repeat(300_000);
    ask(client, &format!("PUT /long HTTP/1.1\r\nContent-Length: 300000\r\n\r\n{long}"), CREATED);
    ask(client, &post("get", "a=long"), &form(&format!("res1={long}")));
    let failed = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\nContent-Length: 22\r\n\r\nInternal Server Error\n";
    ask(client, &post("unknown", ""), failed);
    let script = "POST /k HTTP/1.1\r\nX-TT-XNAME: unknown\r\nX-TT-MNAME: get\r\n\r\n";
    ask(client, script, failed);
    // Many records, so that another thread searches them.
    let records: String = (0..10_000).map(|number| format!("set r{number} 0 0 1 noreply\r\nv\r\n")).collect();
    client.send(records.as_bytes());
    ask(client, &post("regex", "a=^r1234$"), &form("res1=r1234&res2=v"));
}

#[test]
fn text_clients_see_versions_and_statistics_of_tyrant() {
    let server = Running::start(all_of_tyrant(""));
    let client = &mut server.connect();
    ask(client, "version\r\n", "VERSION 1.1.41\r\n");
    ask(client, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    let statistics = client.stats("");
    assert_eq!(statistics[0].0, "pid");
    assert_eq!(statistics.len(), 21);
    let of = |name: &str| statistics.iter().find(|(other, _)| other == name).map(|(_, value)| &value[..]);
    assert_eq!([of("cmd_set"), of("cmd_set_hits"), of("curr_items")], [Some("1"); 3]);
}

#[test]
fn masked_commands_are_refused_in_each_protocol() {
    let server = Running::start(all_of_tyrant("put,get,rnum,mget,misc,stat"));
    let client = &mut server.connect();
    for (request, reply) in [
        ("c810 00000001 00000001 6b 76", "01"),
        ("c811 00000001 00000001 6b 76", "00"),
        ("c830 00000001 6b", "01"),
        ("c831 00000001 00000001 6b", "0000000000"),
        ("c890 00000003 00000000 00000001 676574 00000001 6b", "0000000000"),
        ("c880", "00 0000000000000000"),
        ("c838 00000001 6b", "0000000001"),
    ] {
        client.send(&hex(request));
        client.expect(&hex(reply));
    }
    ask(client, "set k 0 0 1\r\nv\r\n", "CLIENT_ERROR forbidden\r\n");
    ask(client, "get k\r\n", "END\r\n");
    ask(client, "add k 0 0 1\r\nv\r\n", "NOT_STORED\r\n");
    let forbidden =
        "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nForbidden\n";
    ask(client, "GET /k HTTP/1.1\r\n\r\n", forbidden);
    ask(client, "PUT /k HTTP/1.1\r\nContent-Length: 1\r\n\r\nv", forbidden);
    client.send(&hex("c888"));
    client.expect(&[0]);
    let len = u32::from_be_bytes(client.take(4).try_into().unwrap());
    let text = String::from_utf8(client.take(len as usize)).unwrap();
    assert!(text.starts_with("cnt_put\t2\ncnt_putkeep\t2\n"), "{text}");
}

/// Masks covered only the commands that Tokyo Tyrant has. With `-mask all`, a client could still
/// list all keys, export all records, watch events and change the limits of the server.
#[test]
fn masks_refuse_commands_without_a_counterpart() {
    for mask in ["all", "rnum"] {
        let server = Running::start(all_of_tyrant(mask));
        let client = &mut server.connect();
        for command in [
            "lru_crawler metadump all",
            "lru_crawler mgdump all",
            "lru_crawler enable",
            "cache_memlimit 64",
            "verbosity 1",
            "watch fetchers",
            "shutdown",
            "refresh_certs",
        ] {
            ask(client, &format!("{command}\r\n"), "CLIENT_ERROR forbidden\r\n");
        }
        ask(client, "mn\r\n", "MN\r\n");
        ask(client, "bogus\r\n", "ERROR\r\n");
        client.send(b"quit\r\n");
        assert_eq!(client.rest(), b"");
    }
}
