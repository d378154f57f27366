//! Compares answers with those that were captured from the original, byte for byte. Only the
//! version and the date may differ.

use crate::running;

use running::{Client, Running, options};
use todana::DatabaseName;
use todana_server::{DatabaseOptions, DatabaseSpec, KyotoOptions, ProtocolOptions, ServerOptions};

fn start(first: &str, further: &[&str]) -> Running {
    let further =
        further.iter().map(|name| DatabaseSpec { name: DatabaseName::parse(name).unwrap(), data: None });
    let database = Some(DatabaseName::parse(first).unwrap());
    Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { spoken: todana_server::KyotoMode::Beside, ..options().protocols.kyoto },
            ..options().protocols
        },
        databases: DatabaseOptions { database, further: further.collect(), ..options().databases },
        ..options()
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.chars().filter(|c| !c.is_whitespace()).collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Sends a request and compares the answer with the expected one, in which `...` stands for the
/// headers that vary.
fn exchange(client: &mut Client, request: &[u8], expected: &str) {
    client.send(request);
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.extend(client.take(1));
    }
    let head = String::from_utf8(answer).unwrap();
    let (status, rest) = head.split_once("\r\n").unwrap();
    let rest = rest.strip_prefix("Server: KyotoTycoon/").expect("the version comes first");
    let (_, rest) = rest.split_once("\r\nDate: ").expect("the date comes second");
    let (date, rest) = rest.split_once("\r\n").unwrap();
    assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    let head = format!("{status}\r\n...{rest}");
    let body_len = expected.split_once("\r\n\r\n").unwrap().1.chars().count();
    let answer = head + &client.take(body_len).iter().map(|&byte| char::from(byte)).collect::<String>();
    assert_eq!(answer, expected, "{}", request.escape_ascii());
}

fn call(name: &str, content: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head =
        format!("POST /rpc/{name} HTTP/1.1\r\nContent-Type: {content}\r\nContent-Length: {len}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

const TSV: &str = "text/tab-separated-values";

fn answered(status: &str, content: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n...Content-Length: {}\r\nContent-Type: {content}\r\n\r\n{body}", body.len())
}

#[test]
fn a_record_is_stored_and_read() {
    let server = start(":", &[]);
    let mut client = server.connect();
    exchange(
        &mut client,
        b"POST /rpc/set HTTP/1.1\r\nHost: x\r\nContent-Type: text/tab-separated-values\r\nContent-Length: 22\r\n\r\nkey\tjapan\nvalue\ttokyo\n",
        "HTTP/1.1 200 OK\r\n...Content-Length: 0\r\nContent-Type: text/tab-separated-values\r\n\r\n",
    );
    exchange(
        &mut client,
        b"GET /rpc/get?key=japan HTTP/1.1\r\n\r\n",
        "HTTP/1.1 200 OK\r\n...Content-Length: 12\r\nContent-Type: text/tab-separated-values\r\n\r\nvalue\ttokyo\n",
    );
    for (request, status, body) in [
        ("get?key=none", "450 Logical Inconsistency", "ERROR\tDB: 7: no record: no record\n"),
        ("get", "400 Bad Request", "ERROR\tinvalid parameters\n"),
        ("nosuch", "501 Not Implemented", "ERROR\tnot implemented: nosuch\n"),
    ] {
        let request = format!("GET /rpc/{request} HTTP/1.1\r\n\r\n");
        exchange(&mut client, request.as_bytes(), &answered(status, TSV, body));
    }
}

#[test]
fn maps_are_encoded_as_the_original_does() {
    let server = start(":", &[]);
    let mut client = server.connect();
    let percent = "text/tab-separated-values; colenc=U";
    for (content, body, expected) in [
        ("text/tab-separated-values; colenc=B", &b"YQ==\tYgBj\n"[..], "a\tb%00c\n"),
        ("text/tab-separated-values; colenc=U", b"a%00\tb%20+c\n", "a%00\tb%20%20c\n"),
        ("text/tab-separated-values; colenc=Q", b"a=09b\tc=3Dd\n", "a%09b\tc%3dd\n"),
        ("application/x-www-form-urlencoded", b"k=a%09b&e=&n;z=1", "e\t\nk\ta%09b\nn\t\nz\t1\n"),
        (TSV, b"a\tb\tc\nnotab\nk\t\n\tv\r\nlast\tno-newline", "\tv\na\tb%09c\nk\t\nlast\tno-newline\n"),
    ] {
        exchange(&mut client, &call("echo", content, body), &answered("200 OK", percent, expected));
    }
}

#[test]
fn numbers_are_stored_as_the_original_does() {
    let server = start(":", &[]);
    let mut client = server.connect();
    for (name, body, expected) in [
        ("increment", "key\tn\nnum\t5\n", "num\t5\n"),
        ("increment", "key\tn\nnum\t-7\n", "num\t-2\n"),
        ("increment_double", "key\td\nnum\t1.5\n", "num\t1.500000\n"),
    ] {
        exchange(&mut client, &call(name, TSV, body.as_bytes()), &answered("200 OK", TSV, expected));
    }
    let raw: String = bytes("76616c7565 09 fffffffffffffffe 0a").into_iter().map(char::from).collect();
    let head = format!("HTTP/1.1 200 OK\r\n...Content-Length: 15\r\nContent-Type: {TSV}\r\n\r\n");
    exchange(&mut client, &call("get", TSV, b"key\tn\n"), &(head + &raw));
    let base64 = "text/tab-separated-values; colenc=B";
    let stored = |expected| answered("200 OK", base64, expected);
    exchange(&mut client, &call("get", TSV, b"key\td\n"), &stored("dmFsdWU=\tAAAAAAAAAAEAAca/UmNAAA==\n"));
    let sum = call("increment_double", TSV, b"key\td\nnum\t-3.25\n");
    exchange(&mut client, &sum, &answered("200 OK", TSV, "num\t-1.750000\n"));
    exchange(&mut client, &call("get", TSV, b"key\td\n"), &stored("dmFsdWU=\t//////////4AAONfqTGgAA==\n"));
    for (key, numbers, expected) in [
        ("i", &["inf"][..], "7fffffffffffffff0000000000000000"),
        ("j", &["-inf"], "80000000000000000000000000000000"),
        ("k", &["0.25", "-0.5"], "0000000000000000ffff1ca056ce6000"),
    ] {
        for number in numbers {
            client.send(&call("increment_double", TSV, format!("key\t{key}\nnum\t{number}\n").as_bytes()));
            while client.line() != "\r\n" {}
            client.line();
        }
        let get = ["ba 00000000 00000001 0000 00000001", &format!("{:02x}", key.as_bytes()[0])].concat();
        client.send(&bytes(&get));
        let answer = [
            "ba 00000001 0000 00000001 00000010 000000ffffffffff",
            &format!("{:02x}", key.as_bytes()[0]),
            expected,
        ];
        client.expect(&bytes(&answer.concat()));
    }
}

#[test]
fn keys_are_found_in_order_in_a_tree() {
    let server = start("%", &[]);
    let mut client = server.connect();
    let set = call("set_bulk", TSV, b"_apricot\t\n_apple\t\n_banana\t\n");
    exchange(&mut client, &set, &answered("200 OK", TSV, "num\t3\n"));
    let found = answered("200 OK", TSV, "_apple\t0\n_apricot\t1\nnum\t2\n");
    exchange(&mut client, &call("match_prefix", TSV, b"prefix\tap\n"), &found);
}

#[test]
fn resources_are_stored_and_read() {
    let server = start(":", &[]);
    let mut client = server.connect();
    let port = server.addresses[0].port();
    exchange(
        &mut client,
        b"PUT /xt1 HTTP/1.1\r\nX-Kt-Xt: 2000000000\r\nContent-Length: 5\r\n\r\nhello",
        &format!(
            "HTTP/1.1 201 Created\r\n...Content-Length: 0\r\nLocation: http://localhost:{port}/xt1\r\n\r\n"
        ),
    );
    exchange(
        &mut client,
        b"GET /xt1 HTTP/1.1\r\n\r\n",
        "HTTP/1.1 200 OK\r\n...Content-Length: 5\r\nX-Kt-Xt: Wed, 18 May 2033 03:33:20 GMT\r\n\r\nhello",
    );
    exchange(
        &mut client,
        b"GET /none HTTP/1.1\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\n...Content-Length: 0\r\nX-Kt-Error: DB: 7: no record: no record\r\n\r\n",
    );
}

#[test]
fn bulk_requests_are_answered_byte_for_byte() {
    let server = start(":", &[":", ":", ":#ktopts=p"]);
    let mut client = server.connect();
    for (request, answer) in [
        (
            "b8 00000000 00000002 0000 00000005 00000005 7fffffffffffffff 6a6170616e 746f6b796f
             0000 00000002 00000001 ffffffff88ca6c00 6b32 76",
            "b8 00000002",
        ),
        (
            "ba 00000000 00000003 0000 00000005 6a6170616e 0000 00000004 6e6f7065 0000 00000002 6b32",
            "ba 00000002 0000 00000005 00000005 000000ffffffffff 6a6170616e 746f6b796f
             0000 00000002 00000001 0000000077359400 6b32 76",
        ),
        ("b9 00000000 00000002 0000 00000005 6a6170616e 0000 00000004 6e6f7065", "b9 00000001"),
        ("b8 00000000 00000001 0003 00000001 00000001 7fffffffffffffff 70 71", "b8 00000001"),
        (
            "ba 00000000 00000001 0003 00000001 70",
            "ba 00000001 0003 00000001 00000001 7fffffffffffffff 70 71",
        ),
        ("ba 00000000 00000001 0063 00000001 70", "ba 00000000"),
        ("b4 00000000 00000006 00000000 6e6f73756368", "bf"),
    ] {
        client.send(&bytes(request));
        client.expect(&bytes(answer));
    }
    client.send(&bytes("b8 00000000 00000001 0000 10000001 00000000 7fffffffffffffff"));
    assert_eq!(client.rest(), [0xBF]);
}
