//! `todana proxy`: the servers of keys, and a proxy that serves.

use crate::running;

use running::{RunningServer, TestFolder, eventually, expect, refused, run, stop, text};
use std::io::{Read, Write};
use std::net::TcpListener;

const SERVERS: &str = "cache1.example.com,cache2.example.com,cache3.example.com:11212 name=c";

fn proxy(words: &[&str]) -> String {
    expect(&[&["proxy", "--servers", SERVERS], words].concat(), 0)
}

#[test]
fn place_of_a_key_is_printed() {
    let server = |ring: &str| {
        let printed = proxy(&["--where", "foo", "--ring", ring]);
        printed.lines().nth(1).unwrap().to_string()
    };
    // The MD5 of foo is acbd18db...
    let printed = proxy(&["--where", "foo"]);
    assert!(printed.starts_with("pool    main\nserver  "), "{printed}");
    assert!(printed.contains("\nhash    3675831724\npoint   "), "{printed}");
    assert!(printed.contains("\nnext    "), "{printed}");
    // The CRC-32 of foo is 2356372769, which leaves 2 after a division by 3.
    assert_eq!(server("gomemcache"), "server  c (cache3.example.com:11212)");
    let tagged = proxy(&["--where", "{foo}:a", "--hash-tag", "{}", "--ring", "gomemcache"]);
    assert!(
        tagged.contains("server  c (cache3.example.com:11212)\nhashed  foo\nhash    2356372769\npoint   2\n")
    );
    let twemproxy = proxy(&["--where", "foo", "--ring", "twemproxy", "--hash", "crc32a"]);
    assert!(twemproxy.contains("\nhash    2356372769\n"), "{twemproxy}");
    let printed = proxy(&["--where", "foo", "--ring", "random"]);
    assert_eq!(printed, "pool    main\nserver  another one for each request\n");
    let single = expect(&["proxy", "--servers", "a", "--where", "k"], 0);
    assert_eq!(single, "pool    main\nserver  a:11211\nhash    none\npoint   none\n");
    let weighted = run(&["proxy", "--servers", "a,b weight=2", "--where", "k", "--ring", "gomemcache"]);
    assert_eq!(text(&weighted.stderr), "todana: ring gomemcache: ignores weights\n");
}

#[test]
fn vbucket_of_a_key_is_printed() {
    let folder = TestFolder::new();
    let path = folder.path("map.json");
    let map = r#"{"hashAlgorithm":"CRC","serverList":["a:11210","b:11210"],"vBucketMap":[[0],[0],[0],[1]]}"#;
    std::fs::write(&path, map).unwrap();
    let printed = expect(&["proxy", "--vbuckets", &path, "--where", "foo"], 0);
    assert_eq!(printed, "pool    main\nserver  b:11210\nhash    3187\nslot    3\n");
    std::fs::write(&path, "{}").unwrap();
    assert!(refused(&["proxy", "--vbuckets", &path, "--where", "foo"], 2).contains("hashAlgorithm must be"));
}

#[test]
fn agreement_of_two_rings_is_printed() {
    assert_eq!(
        proxy(&["--compare", "twemproxy", "--ring", "twemproxy"]),
        "twemproxy and twemproxy agree on 100.0 % of 100000 keys\n"
    );
    // Rings that are unrelated agree on a third of the keys.
    let printed = proxy(&["--compare", "todana"]);
    let share: f64 = printed.split(' ').nth(5).unwrap().parse().unwrap();
    assert!((30.0..37.0).contains(&share), "{printed}");
}

#[test]
fn invalid_words_are_named() {
    for (words, problem) in [
        (&["--where", "k"][..], "--servers <LIST>"),
        (&["--servers", "a,a", "--where", "k"], "todana: server a:11211: occurs twice"),
        (&["--servers", "a:x", "--where", "k"], "todana: server \"a:x\": port \"x\" must be"),
        (&["--servers", "a", "--where", "k", "--ring", "ketama"], "libmemcached-plain"),
        (&["--servers", "a", "--where", "k", "--hash", "md6"], "todana: \"md6\": unknown hash; known:"),
        (&["--servers", "a", "--where", "k", "--hash-tag", "{"], "must be two characters"),
    ] {
        let said = refused(&[&["proxy"], words].concat(), 2);
        assert!(said.contains(problem), "{said}");
    }
}

#[test]
fn records_reach_the_servers_of_their_keys() {
    let servers = [(); 3].map(|()| RunningServer::start(&[]));
    let list = servers.each_ref().map(|server| server.address.clone()).join(",");
    let proxy = RunningServer::start_proxy(&["--servers", &list, "-l", "127.0.0.1:0"]);
    for n in 0..20 {
        let (key, value) = (format!("key:{n}"), n.to_string());
        proxy.expect(&["set", &key, &value], 0);
        let printed = expect(&["proxy", "--servers", &list, "--where", &key], 0);
        let place = printed.lines().nth(1).unwrap().strip_prefix("server  ").unwrap();
        let server = servers.iter().find(|server| server.address == place).unwrap();
        assert_eq!(server.expect(&["get", &key], 0).trim_end(), value);
        assert_eq!(proxy.expect(&["get", &key], 0).trim_end(), value);
    }
    stop(proxy);
    servers.into_iter().for_each(stop);
}

#[test]
fn configuration_is_read_again_at_a_signal() {
    let servers = [(); 2].map(|()| RunningServer::start(&[]));
    for (server, value) in servers.iter().zip(["1", "2"]) {
        server.expect(&["set", "x", value], 0);
    }
    let folder = TestFolder::new();
    let (path, socket) = (folder.path("proxy.toml"), folder.path("proxy.sock"));
    let write = |first: &RunningServer, second: &RunningServer| {
        let (first, second) = (&first.address, &second.address);
        let text = format!(
            "[pool.a]\nlisten = \"127.0.0.1:0\"\nservers = [\"{first}\"]\n\
             [pool.b]\nlisten = \"unix:{socket} mode=0770\"\nservers = [\"{second}\"]\n"
        );
        std::fs::write(&path, text).unwrap();
    };
    write(&servers[0], &servers[1]);
    let proxy = RunningServer::start_proxy(&["--config", &path]);
    let tcp = proxy.address.split(',').next().unwrap();
    let value_at = |place: &str| expect(&["get", "x", "-S", place], 0).trim_end().to_string();
    let (of_a, of_b) = (|| value_at(tcp), || value_at(&format!("unix:{socket}")));
    assert_eq!((of_a(), of_b()), ("1".into(), "2".into()));
    write(&servers[1], &servers[0]);
    proxy.signal("HUP");
    eventually("the pools have other servers", || (of_a(), of_b()) == ("2".into(), "1".into()));
    // A file with a problem changes nothing.
    std::fs::write(&path, "[pool.a]\nservers = []\nx = 1\n").unwrap();
    proxy.signal("HUP");
    write(&servers[0], &servers[1]);
    proxy.signal("HUP");
    eventually("the first servers are back", || (of_a(), of_b()) == ("1".into(), "2".into()));
    // The command waits until the proxy has read the file.
    write(&servers[1], &servers[0]);
    expect(&["proxy", "reload", tcp], 0);
    assert_eq!((of_a(), of_b()), ("2".into(), "1".into()));
    std::fs::write(&path, "[pool.a]\nservers = []\n").unwrap();
    let refusal = refused(&["proxy", "reload", tcp], 3);
    assert!(refusal.contains("the configuration is not used, the old one stays"), "{refusal}");
    assert_eq!((of_a(), of_b()), ("2".into(), "1".into()));
    refused(&["proxy", "reload", &servers[0].address], 3);
    stop(proxy);
    servers.into_iter().for_each(stop);
}

#[test]
fn server_is_asked_for_the_list() {
    let servers = [(); 2].map(|()| RunningServer::start(&[]));
    for (server, value) in servers.iter().zip(["1", "2"]) {
        server.expect(&["set", "x", value], 0);
    }
    let endpoint = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = TestFolder::new();
    let path = folder.path("proxy.toml");
    let discover = endpoint.local_addr().unwrap();
    std::fs::write(&path, format!("listen = \"127.0.0.1:0\"\n[pool.a]\ndiscover = \"{discover}\"\n"))
        .unwrap();
    // Each question has another answer.
    let lists = servers.each_ref().map(|server| server.address.replace(':', "||"));
    let answering = std::thread::spawn(move || {
        for list in [&lists[0], &lists[1]] {
            let mut stream = endpoint.accept().unwrap().0;
            let mut question = [0; 26];
            stream.read_exact(&mut question).unwrap();
            assert_eq!(question, *b"config get cluster\r\nquit\r\n");
            let payload = format!("7\n{list}\n");
            write!(stream, "CONFIG cluster 0 {}\r\n{payload}\r\nEND\r\n", payload.len()).unwrap();
        }
    });
    let proxy = RunningServer::start_proxy(&["--config", &path]);
    assert_eq!(proxy.expect(&["get", "x"], 0).trim_end(), "1");
    proxy.signal("HUP");
    eventually("the other server is used", || proxy.expect(&["get", "x"], 0).trim_end() == "2");
    answering.join().unwrap();
    stop(proxy);
    servers.into_iter().for_each(stop);
}

#[test]
fn list_of_servers_is_watched() {
    let servers = [(); 2].map(|()| RunningServer::start(&[]));
    for (server, value) in servers.iter().zip(["1", "2"]) {
        server.expect(&["set", "x", value], 0);
    }
    let folder = TestFolder::new();
    let (path, list) = (folder.path("proxy.toml"), folder.path("servers"));
    std::fs::write(&list, format!("{}\n", servers[0].address)).unwrap();
    std::fs::write(&path, format!("listen = \"127.0.0.1:0\"\n[pool.a]\nservers-file = \"{list}\"\n"))
        .unwrap();
    let proxy = RunningServer::start_proxy(&["--config", &path]);
    assert_eq!(proxy.expect(&["get", "x"], 0).trim_end(), "1");
    std::fs::write(&list, format!("{}\n", servers[1].address)).unwrap();
    eventually("the other server is used", || proxy.expect(&["get", "x"], 0).trim_end() == "2");
    stop(proxy);
    servers.into_iter().for_each(stop);
}
