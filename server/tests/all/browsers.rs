//! Tests requests of browsers. A page of another site must not get any data, and neither must a
//! page whose host name may have been made to lead to the server. A link or an image must not
//! change data.
//!
//! In an earlier version, a page whose host name led to the server (DNS rebinding) read all records
//! and cleared them. Browsers mark the requests of such a page as requests of the same site, and
//! they omit `Sec-Fetch-Site` if the server is not a "trustworthy destination" (http://10.0.0.5).
//! An image on any page, `<img src="http://10.0.0.5:11211/rpc/clear">`, cleared the records as
//! well.

use crate::kyoto_client;
use crate::running;

use kyoto_client::{kyoto, watched};
use running::Running;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use todana_server::{KyotoOptions, ProtocolOptions, ServerOptions};

const FIREFOX: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
                       Accept: image/avif,image/webp,*/*\r\nAccept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate\r\n";

/// Sends a request with this line and these headers on a new connection, and returns the status.
fn status(address: SocketAddr, line: &str, headers: &[&str]) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("{line} HTTP/1.1\r\n{}Connection: close\r\n\r\n", headers.concat());
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn rebound_page_reads_and_changes_nothing() {
    let server = Running::start(watched());
    let mut client = server.connect();
    client.set(b"k", b"secret");
    let foreign = "Host: evil.example:11211\r\n";
    for line in
        ["GET /k", "GET /rpc/get?key=k", "GET /rpc/clear", "GET /rpc/set?key=k&value=x", "HEAD /rpc/clear"]
    {
        // The requests are marked as those of the same site, have no mark, or come from a script
        // with another agent name.
        for headers in [
            &[foreign, FIREFOX, "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n"][..],
            &[foreign, FIREFOX],
            &[foreign, "User-Agent: x\r\nAccept-Language: en-US\r\n"],
            &[foreign, "User-Agent: x\r\nDNT: 1\r\n"],
            &[foreign, "User-Agent: x\r\nPriority: u=4\r\n"],
            &[foreign, "User-Agent: x\r\nSec-GPC: 1\r\n"],
        ] {
            assert_eq!(status(server.addresses[0], line, headers), 403, "{line} {headers:?}");
        }
    }
    assert_eq!(status(server.admin_addresses[0], "GET /metrics", &[foreign, FIREFOX]), 403);
    assert_eq!(status(server.admin_addresses[0], "GET /metrics", &[foreign]), 200);
    assert_eq!(status(server.admin_addresses[0], "GET /metrics", &["Host: 127.0.0.1:1\r\n", FIREFOX]), 200);
    client.expect_value(b"k", b"secret");
}

#[test]
fn links_and_images_of_any_page_change_nothing() {
    let server = Running::start(kyoto());
    let mut client = server.connect();
    client.set(b"k", b"v");
    let own = format!("Host: {}\r\n", server.addresses[0]);
    let ask = |line: &str, headers: &str| status(server.addresses[0], line, &[&own, FIREFOX, headers]);
    for line in [
        "GET /rpc/clear",
        "GET /rpc/set?key=k&value=x",
        "GET /rpc/remove?key=k",
        "GET /rpc/seize?key=k",
        "GET /rpc/cur_remove?CUR=1",
        "GET /rpc/increment?key=n&num=1",
        "GET /rpc/synchronize",
        "GET /rpc/vacuum",
        "GET /rpc/play_script?name=x",
        "GET /rpc/tune_replication?host=evil.example",
        "GET /rpc/no_such_procedure",
        "HEAD /rpc/clear",
    ] {
        assert_eq!(ask(line, ""), 403, "{line}");
    }
    // A page of another site may not even read, because the browser names that site.
    for headers in ["Referer: http://evil.example/\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"]
    {
        assert_eq!(ask("GET /k", headers), 403, "{headers}");
        assert_eq!(ask("POST /rpc/clear", headers), 403, "{headers}");
    }
    // The user has typed the address into the browser's address bar.
    assert_eq!(ask("GET /k", "Sec-Fetch-Site: none\r\n"), 200);
    assert_eq!(ask("GET /rpc/match_prefix?prefix=k", ""), 200);
    assert_eq!(ask("GET /rpc/report", ""), 200);
    client.expect_value(b"k", b"v");
}

#[test]
fn other_clients_may_change_by_get() {
    let server = Running::start(kyoto());
    for agent in [
        "",
        "User-Agent: libwww-perl/6.67\r\n",
        "User-Agent: Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.19041.1\r\n",
        "User-Agent: node\r\nAccept-Language: *\r\nSec-Fetch-Mode: cors\r\n",
    ] {
        for host in ["", "Host: cache.example:1978\r\n", "Host: cache\r\n"] {
            let ask = |line: &str| status(server.addresses[0], line, &[host, agent]);
            assert_eq!(ask("GET /rpc/set?key=k&value=v"), 200, "{host} {agent}");
            assert_eq!(ask("GET /k"), 200);
            assert_eq!(ask("GET /rpc/clear"), 200);
        }
    }
}

#[test]
fn configured_names_are_the_only_ones() {
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions { http_hosts: vec!["cache.example".into()], ..watched().protocols },
        ..watched()
    });
    server.connect().set(b"k", b"v");
    for (host, expected) in [
        ("Host: Cache.Example:1978\r\n", 200),
        ("Host: 127.0.0.1\r\n", 200),
        ("Host: [::1]:1978\r\n", 200),
        ("Host: localhost\r\n", 200),
        ("", 200),
        ("Host: evil.example\r\n", 403),
        ("Host: cache.example\r\nHost: evil.example\r\n", 403),
    ] {
        for agent in ["", FIREFOX] {
            assert_eq!(status(server.addresses[0], "GET /k", &[host, agent]), expected, "{host} {agent}");
        }
    }
    assert_eq!(
        status(server.admin_addresses[0], "GET /readyz", &["Host: cache.example:1\r\n", FIREFOX]),
        200
    );
    assert_eq!(status(server.admin_addresses[0], "GET /readyz", &["Host: evil.example\r\n"]), 403);
}

#[test]
fn pages_may_ask_where_they_are_allowed() {
    let server = Running::start(ServerOptions {
        protocols: ProtocolOptions {
            kyoto: KyotoOptions { pages_allowed: true, ..kyoto().protocols.kyoto },
            ..kyoto().protocols
        },
        ..kyoto()
    });
    let headers = ["Host: evil.example\r\n", FIREFOX, "Referer: http://evil.example/\r\n"];
    assert_eq!(status(server.addresses[0], "GET /rpc/set?key=k&value=v", &headers), 200);
}
