//! Tests the JSON interface of the admin page, and the headers that protect the page.

use crate::running;

use running::{Running, WAIT_MAX, eventually, options};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Instant;
use todana_server::{
    AdminOptions, DataDirectoryOptions, DatabaseName, DatabaseOptions, DatabaseSpec, LimitOptions,
    ListenOptions, ObservationOptions, Server, ServerOptions, SyncPolicy,
};

/// A response: status, head and body.
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    body: String,
}

fn start(admin: AdminOptions, databases: &[&str]) -> Running {
    let admin = Some(AdminOptions { port: 0, is_required: true, ..admin });
    let mut names = databases.iter().map(|name| DatabaseName::parse(name).unwrap());
    let database = names.next();
    let further = names.map(|name| DatabaseSpec { name, data: None }).collect();
    let databases = DatabaseOptions { database, further, ..options().databases };
    let observation = ObservationOptions { admin, ..options().observation };
    Running::start(ServerOptions { observation, databases, ..options() })
}

pub(crate) fn request(server: &Running, line: &str, headers: &str, body: &[u8]) -> Response {
    let mut stream = TcpStream::connect(server.admin_addresses[0]).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let len = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    write!(stream, "{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{len}{headers}\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head: head.into(), body: body.into() }
}

fn json(response: &Response) -> serde_json::Value {
    serde_json::from_str(&response.body).unwrap_or_else(|error| panic!("{error}: {}", response.body))
}

fn get(server: &Running, path: &str) -> serde_json::Value {
    let response = request(server, &format!("GET {path}"), "", b"");
    assert_eq!(response.status, 200, "{path}: {}", response.body);
    json(&response)
}

fn store(server: &Running, keys: &[String]) {
    let mut client = server.connect();
    for key in keys {
        client.send(format!("set {key} 5 0 1\r\nv\r\n").as_bytes());
        client.expect(b"STORED\r\n");
    }
}

fn numbered(numbers: std::ops::Range<u32>, name: impl Fn(u32) -> String) -> Vec<String> {
    numbers.map(name).collect()
}

#[test]
fn page_is_for_browsers_and_guarded() {
    let server = start(AdminOptions::default(), &[]);
    let browser = "User-Agent: Mozilla/5.0\r\n";
    let page = request(&server, "GET /", browser, b"");
    assert_eq!(page.status, 200);
    assert!(page.body.starts_with("<!doctype html>") && page.body.contains("page.js"), "{}", page.body);
    assert!(
        page.head.contains("\r\nContent-Security-Policy: default-src 'none'; script-src 'self';"),
        "{}",
        page.head
    );
    assert!(
        page.head.contains("\r\nX-Content-Type-Options: nosniff\r\n") && !page.head.contains("Set-Cookie")
    );
    let plain = request(&server, "GET /", "", b"");
    assert!(plain.body.starts_with("todana: /metrics"), "{}", plain.body);
    let mut sum = 0;
    for (path, kind) in
        [("/page.js", "text/javascript"), ("/page.css", "text/css"), ("/uplot.js", "text/javascript")]
    {
        let file = request(&server, &format!("GET {path}"), browser, b"");
        assert!(file.head.contains(&format!("\r\nContent-Type: {kind}")), "{path}: {}", file.head);
        sum += file.body.len();
    }
    assert!(sum < 150_000, "{sum} bytes");
    let foreign = request(&server, "GET /api/status", "Origin: http://evil.example\r\n", b"");
    assert_eq!((foreign.status, foreign.head.contains("Access-Control")), (403, false));
    let rebound = "GET /api/status HTTP/1.1\r\nHost: evil.example\r\nUser-Agent: Mozilla/5.0\r\nConnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(server.admin_addresses[0]).unwrap();
    stream.write_all(rebound.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[test]
fn status_has_figures_and_databases() {
    let server = start(AdminOptions::default(), &["mem:hash", "t=mem:tree"]);
    store(&server, &["a".into(), "b".into()]);
    let status = get(&server, "/api/status");
    assert_eq!(status["figures"]["curr_items"], 2);
    assert_eq!(status["figures"]["cmd_set"], 2);
    let names: Vec<_> = status["databases"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["mem:hash", "t"]);
    let figures = get(&server, "/api/figures");
    let curr_items = figures.as_array().unwrap().iter().find(|one| one["name"] == "curr_items").unwrap();
    assert_eq!(curr_items["meaning"], "Records held.");
    // The server may notice the end of `store`'s connection after its last reply.
    eventually("no connection", || get(&server, "/api/connections")["count"] == 0);
}

#[test]
fn searches_find_all_keys_page_by_page() {
    let server = start(AdminOptions::default(), &["mem:hash", "mem:tree"]);
    let keys = numbered(0..1000, |number| format!("user:{number}:x"));
    store(&server, &keys);
    let mut found = Vec::new();
    let (mut after, mut requests) = (String::new(), 0);
    loop {
        let page = get(&server, &format!("/api/records?pattern=user:*:x&limit=100&after={after}"));
        found.extend(
            page["records"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap().to_string()),
        );
        requests += 1;
        match page["next"].as_str() {
            Some(next) => after = next.to_string(),
            None => break,
        }
    }
    assert!(requests > 1);
    found.sort();
    let mut all = keys.clone();
    all.sort();
    assert_eq!(found, all);
    let one = get(&server, "/api/records?pattern=user:7:?");
    assert_eq!(one["records"][0]["key"], "user:7:x");
    assert_eq!((&one["records"][0]["flags"], &one["records"][0]["value_len"]), (&5.into(), &1.into()));
    let mut client = server.connect();
    client.set(b"long", &[b'x'; 2000]);
    let large = get(&server, "/api/records?min_len=2000");
    assert_eq!(
        (large["records"].as_array().unwrap().len(), &large["records"][0]["key"]),
        (1, &"long".into())
    );
    for (path, status) in [
        ("/api/records?after=z", 400),
        ("/api/records?limit=x", 400),
        ("/api/records?db=9", 404),
        ("/api/record", 400),
        ("/api/record?key=none", 404),
        ("/api/none", 404),
    ] {
        let response = request(&server, &format!("GET {path}"), "", b"");
        assert_eq!((response.status, json(&response)["error"].is_string()), (status, true), "{path}");
    }
}

#[test]
fn tree_is_searched_from_the_prefix_on() {
    let server = start(AdminOptions { may_write: true, ..AdminOptions::default() }, &["mem:tree"]);
    store(&server, &numbered(0..2000, |number| format!("{number:04}")));
    let page = get(&server, "/api/records?pattern=150*&limit=1000");
    let found: Vec<_> =
        page["records"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect();
    assert_eq!(found, numbered(1500..1510, |number| number.to_string()));
    assert!(page["next"].is_null());
    assert!(page["seen"].as_u64().unwrap() <= 11, "{page}");
}

#[test]
fn hot_keys_are_counted_by_database() {
    let server = start(AdminOptions::default(), &["mem:hash", "mem:hash"]);
    let mut client = server.connect();
    for number in 0..40 {
        client.set(format!("k{}", number % 20).as_bytes(), b"v");
        client.set(b"hot", b"v");
    }
    let keys = get(&server, "/api/hot-keys");
    assert_eq!((&keys["keys"][0]["key"], &keys["keys"][0]["requests"]), (&"hot".into(), &40.into()));
    assert_eq!(keys["keys"].as_array().unwrap().len(), 21);
    assert_eq!(get(&server, "/api/hot-keys?db=1")["keys"].as_array().unwrap().len(), 0);
}

#[test]
fn server_with_x_lists_no_keys() {
    let admin = Some(AdminOptions { port: 0, is_required: true, ..AdminOptions::default() });
    let limits = LimitOptions { dump_allowed: false, ..options().limits };
    let observation = ObservationOptions { admin, ..options().observation };
    let server = Running::start(ServerOptions { observation, limits, ..options() });
    store(&server, &["a".into()]);
    assert_eq!(request(&server, "GET /api/records", "", b"").status, 403);
    assert_eq!(get(&server, "/api/record?key=a")["value_len"], 1, "a known key can be read");
}

#[test]
fn records_change_only_where_allowed() {
    let closed = start(AdminOptions::default(), &[]);
    store(&closed, &["a".into()]);
    assert_eq!(request(&closed, "DELETE /api/record?key=a", "", b"").status, 403);
    assert_eq!(get(&closed, "/api/record?key=a")["value_base64"], "dg==");

    let server = start(AdminOptions { may_write: true, ..AdminOptions::default() }, &[]);
    let key = "k%00%ff";
    let put = request(&server, &format!("PUT /api/record?key={key}&flags=7&ttl=100"), "", b"x\0y");
    assert_eq!(put.status, 200, "{}", put.body);
    let record = json(&request(&server, &format!("POST /api/record?key={key}"), "", b""));
    assert_eq!(
        (&record["value_base64"], &record["flags"], &record["id"]),
        (&"eAB5".into(), &7.into(), &"k%00%FF".into())
    );
    assert!((90..=100).contains(&record["ttl_s"].as_u64().unwrap()), "{record}");
    let version = record["version"].as_str().unwrap();
    assert_ne!(version, "0");
    let again = request(&server, &format!("PUT /api/record?key={key}&version={version}"), "", b"second");
    assert_eq!(again.status, 200, "{}", again.body);
    let late = request(&server, &format!("DELETE /api/record?key={key}&version={version}"), "", b"");
    assert_eq!((late.status, &json(&late)["error"]), (409, &"the record has changed meanwhile".into()));
    assert_eq!(request(&server, &format!("DELETE /api/record?key={key}"), "", b"").status, 200);
    assert_eq!(request(&server, &format!("GET /api/record?key={key}"), "", b"").status, 404);
    let large = vec![b'x'; 1 << 20];
    assert_eq!(
        request(&server, "PUT /api/record?key=large", "", &large).status,
        409,
        "above the limit of a record"
    );
    assert_eq!(request(&server, "PUT /api/record?key=", "", b"x").status, 400);
}

/// Many connections that send parts of requests, or nothing, close each other, not those of
/// clients.
#[test]
fn thousand_admin_connections_harm_no_clients() {
    let server = start(AdminOptions::default(), &[]);
    let mut client = server.connect();
    let mut open = VecDeque::new();
    for number in 0..1000 {
        let mut stream = TcpStream::connect(server.admin_addresses[0]).unwrap();
        let parts: [&[u8]; 4] = [
            b"",
            b"GET /api/",
            b"PUT /api/record?key=a HTTP/1.1\r\nContent-Length: 1000000\r\n\r\nx",
            b"\xff\r\n\r\n",
        ];
        // The server may have closed it already.
        let _ = stream.write_all(parts[number % parts.len()]);
        open.push_back(stream);
        if open.len() > 400 {
            open.pop_front();
        }
        client.send(b"set a 0 0 1\r\nv\r\nget a\r\n");
        client.expect(b"STORED\r\nVALUE a 0 1\r\nv\r\nEND\r\n");
    }
    assert_eq!(get(&server, "/api/status")["figures"]["curr_items"], 1);
}

/// Starts a server that keeps its data in `folder/data` and may write backups to `folder/backups`.
fn start_with_data(folder: &Path) -> Running {
    let backups = Some(folder.join("backups"));
    let admin =
        AdminOptions { port: 0, is_required: true, may_write: true, backups, ..AdminOptions::default() };
    let data = Some(DataDirectoryOptions::new(folder.join("data"), SyncPolicy::Always));
    let observation = ObservationOptions { admin: Some(admin), ..options().observation };
    let databases = DatabaseOptions { data, ..options().databases };
    Running::start(ServerOptions { observation, databases, ..options() })
}

/// Waits until the file of the log of slow requests has this text.
fn wait_for_log(folder: &Path, text: &str) {
    let file = folder.join("data/slow-requests.jsonl");
    let began = Instant::now();
    while !std::fs::read_to_string(&file).is_ok_and(|log| log.contains(text)) {
        assert!(began.elapsed() < WAIT_MAX, "{text}");
        std::thread::yield_now();
    }
}

#[test]
fn large_requests_are_listed_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_with_data(folder.path());
    let (mut client, value) = (server.connect(), "x".repeat(300_000));
    client.send(format!("set small 0 0 1\r\nx\r\nset big 0 0 300000\r\n{value}\r\n").as_bytes());
    client.expect(b"STORED\r\nSTORED\r\n");
    client.send(b"get big\r\n");
    client.expect(format!("VALUE big 0 300000\r\n{value}\r\nEND\r\n").as_bytes());
    wait_for_log(folder.path(), "\"get\"");
    drop((client, server));
    let server = start_with_data(folder.path());
    let list = get(&server, "/api/slow-requests");
    let large: Vec<_> =
        list["requests"].as_array().unwrap().iter().filter(|one| one["why"] == "large").collect();
    assert_eq!(large.len(), 2, "{list}");
    assert_eq!((&large[0]["operation"], &large[0]["key"]), (&"get".into(), &"big".into()), "{list}");
    assert!(large[0]["sent"].as_u64().unwrap() >= 300_000, "{list}");
    assert_eq!(
        (&large[1]["operation"], &large[1]["value_len"]),
        (&"store".into(), &300_000.into()),
        "{list}"
    );
    assert_eq!((&list["slow_ms"], &list["large_bytes"]), (&10.into(), &(256 << 10).into()));
}

#[test]
fn checkpoint_and_backup_report_their_result() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_with_data(folder.path());
    store(&server, &numbered(0..100, |number| format!("k{number}")));
    assert_eq!(get(&server, "/api/export"), serde_json::Value::Null);
    let outcome = |what: &str| {
        let started = request(&server, &format!("POST /api/{what}"), "", b"");
        assert_eq!(started.status, 200, "{}", started.body);
        let began = Instant::now();
        loop {
            let state = get(&server, "/api/export");
            assert_eq!(
                (&state["what"], &state["error"]),
                (&what.into(), &serde_json::Value::Null),
                "{state}"
            );
            if let Some(outcome) = state["outcome"].as_str() {
                break outcome.to_string();
            }
            assert!(began.elapsed() < WAIT_MAX, "{state}");
        }
    };
    let text = outcome("checkpoint");
    assert!(text.starts_with("a checkpoint of 100 records, "), "{text}");
    let text = outcome("backup");
    let (directory, rest) = text.split_once(": a backup of ").unwrap();
    assert!(rest.starts_with("100 records, "), "{text}");
    assert!(Path::new(directory).starts_with(folder.path().join("backups")), "{text}");
    assert!(Path::new(directory).join("backup").is_file());
    // Neither is possible without files.
    let server = start(AdminOptions { may_write: true, ..AdminOptions::default() }, &[]);
    for (what, status, why) in [("checkpoint", 409, "--data-dir"), ("backup", 403, "--admin-backups")] {
        let refused = request(&server, &format!("POST /api/{what}"), "", b"");
        assert_eq!(refused.status, status, "{}", refused.body);
        assert!(refused.body.contains(why), "{}", refused.body);
    }
}

#[test]
fn token_is_needed_where_clients_need_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "0123456789abcdef\nsecond line\n").unwrap();
    let server = start(AdminOptions { token_file: Some(file.clone()), ..AdminOptions::default() }, &[]);
    assert_eq!(request(&server, "GET /api/status", "", b"").status, 401);
    assert_eq!(request(&server, "GET /api/events", "Authorization: Bearer x\r\n", b"").status, 401);
    let right = "Authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(request(&server, "GET /api/status", right, b"").status, 200);
    assert_eq!(request(&server, "GET /healthz", "", b"").status, 200, "monitoring needs no token");
    // The body is not awaited.
    let body_to_come = "Content-Length: 1048576\r\n";
    for (line, status) in [("PUT /api/record?key=a", 401), ("PUT /metrics", 405)] {
        let refused = request(&server, line, body_to_come, b"");
        assert_eq!(refused.status, status, "{}", refused.head);
    }
    std::fs::write(&file, "short\n").unwrap();
    let admin = Some(AdminOptions { token_file: Some(file), is_required: true, ..AdminOptions::default() });
    let observation = ObservationOptions { admin, ..options().observation };
    let listen = ListenOptions { port: 0, ..options().listen };
    let error = Server::bind(ServerOptions { observation, listen, ..options() }).err().unwrap();
    assert!(error.to_string().contains("16 characters"), "{error}");
}

#[test]
fn events_show_changes_of_figures() {
    let server = start(AdminOptions::default(), &[]);
    let mut stream = TcpStream::connect(server.admin_addresses[0]).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    let mut buffer = [0; 65536];
    let mut stored = false;
    // Each event has the figures at its time, so one of the next events shows the record.
    while !text.contains("\"curr_items\":1,") {
        let len = stream.read(&mut buffer).unwrap();
        assert!(len > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
        if !stored && text.contains("\"curr_items\":0,") {
            store(&server, &["a".into()]);
            stored = true;
        }
    }
    assert!(
        text.contains("Content-Type: text/event-stream\r\n") && text.contains("\n\nevent: status\ndata: {"),
        "{text}"
    );
}
