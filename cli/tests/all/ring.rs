//! `-S ring:...`: commands on the records of several servers.

use crate::running;

use running::{RunningServer, TestFolder, expect, refused, run, stop, text};

/// Returns three servers, and their list.
fn servers() -> ([RunningServer; 3], String) {
    let servers = [(); 3].map(|()| RunningServer::start(&[]));
    let list = servers.each_ref().map(|server| server.address.clone()).join(",");
    (servers, list)
}

#[test]
fn ring_and_proxy_find_the_same_records() {
    let (servers, list) = servers();
    for (options, words) in [
        ("", &[][..]),
        (",ring=pymemcache", &["--ring", "pymemcache"]),
        (
            ",ring=twemproxy,hash=md5,hash-tag={}",
            &["--ring", "twemproxy", "--hash", "md5", "--hash-tag", "{}"],
        ),
    ] {
        let words = [&["--servers", &list, "-l", "127.0.0.1:0"], words].concat();
        let (proxy, ring) = (RunningServer::start_proxy(&words), format!("ring:{list}{options}"));
        for n in 0..20 {
            let (ours, its) = (format!("{{{n}}}:r"), format!("p:{n}"));
            expect(&["set", &ours, &n.to_string(), "-S", &ring], 0);
            assert_eq!(proxy.expect(&["get", &ours], 0).trim_end(), n.to_string());
            proxy.expect(&["set", &its, &n.to_string()], 0);
            assert_eq!(expect(&["get", &its, "-S", &ring], 0).trim_end(), n.to_string());
        }
        stop(proxy);
    }
    servers.into_iter().for_each(stop);
}

#[test]
fn commands_use_the_server_of_each_key() {
    let (servers, list) = servers();
    let ring = format!("ring:{list},ring=gomemcache");
    let on_ring = |words: &[&str], code| expect(&[words, &["-S", &ring]].concat(), code);
    let keys: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for key in &keys {
        on_ring(&["set", key, key], 0);
    }
    let counts = servers.each_ref().map(|server| server.expect(&["count"], 0).trim().parse::<u64>().unwrap());
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!(on_ring(&["count"], 0), "9\n");
    assert_eq!(on_ring(&[&["get"], &keys[..]].concat(), 0), "0\n1\n2\n3\n4\n5\n6\n7\n8\n");
    assert_eq!(on_ring(&["incr", "8", "34"], 0), "42\n");
    assert_eq!(on_ring(&["decr", "new", "--initial", "5"], 0), "5\n");
    on_ring(&["touch", "8", "1h"], 0);
    on_ring(&["delete", "8", "new"], 0);
    on_ring(&["get", "8"], 1);
    let mut listed: Vec<String> = on_ring(&["list"], 0).lines().map(String::from).collect();
    listed.sort();
    assert_eq!(listed, keys[..8]);
    assert_eq!(on_ring(&["list", "--limit", "5"], 0).lines().count(), 5);
    let printed = on_ring(&["ping"], 0);
    for (line, server) in printed.lines().zip(&servers) {
        assert!(line.starts_with(&format!("{} answers: version ", server.address)), "{printed}");
    }
    servers.into_iter().for_each(stop);
}

#[test]
fn dump_of_a_ring_is_loaded_into_another() {
    let (servers, list) = servers();
    let folder = TestFolder::new();
    let (ring, file) = (format!("ring:{list}"), folder.path("all.tsv"));
    let lines: String = (1..2000).map(|n| format!("key:{n}\tvalue {n}\n")).collect();
    std::fs::write(&file, lines + "a b\tin base64\n").unwrap();
    assert_eq!(
        text(&run(&["load", &file, "-S", &ring]).stderr),
        "2000 records loaded, 0 expired skipped, 0 refused\n"
    );
    assert_eq!(expect(&["get", "key:7", "-S", &ring], 0), "value 7");
    assert_eq!(text(&run(&["dump", &file, "-S", &ring]).stderr), "2000 records written\n");
    expect(&["flush", "--yes", "-S", &ring], 0);
    assert_eq!(expect(&["count", "-S", &ring], 0), "0\n");
    let other = format!("ring:{list},ring=todana");
    expect(&["load", &file, "-S", &other], 0);
    for server in &servers {
        let count: u64 = server.expect(&["count"], 0).trim().parse().unwrap();
        assert!((500..900).contains(&count), "{count}");
    }
    assert_eq!(expect(&["get", "key:1999", "-S", &other], 0), "value 1999");
    servers.into_iter().for_each(stop);
}

#[test]
fn commands_that_need_one_server_refuse_a_ring() {
    for words in [
        &["stats"][..],
        &["backup", "./copy"],
        &["log"],
        &["checkpoint"],
        &["bench"],
        &["compact", "ring:a,b"],
        &["get", "k", "--database", "1"],
        &["list", "--reverse"],
    ] {
        let words = match words {
            ["compact", ..] => words.to_vec(),
            _ => [words, &["-S", "ring:a,b"]].concat(),
        };
        let said = refused(&words, 2);
        let is_named =
            said.contains("ring:a:11211,b:11211: is a") || said.contains("--database: needs a server");
        assert!(is_named || said.contains("--reverse: "), "{words:?}: {said}");
    }
    let said = refused(&["get", "k", "-S", "ring:a,b,ring=ketama"], 2);
    assert!(said.contains("\"ketama\": unknown ring; known: libmemcached"), "{said}");
}

#[test]
fn server_that_is_down_is_named() {
    let (servers, list) = servers();
    let [gone, .., last] = servers;
    let address = gone.address.clone();
    let ring = format!("ring:{list},ring=gomemcache");
    stop(gone);
    // The CRC-32 of foo leaves 2 after a division by 3.
    expect(&["set", "foo", "1", "-S", &ring], 0);
    assert_eq!(last.expect(&["get", "foo"], 0).trim_end(), "1");
    for words in [&["count"][..], &["flush", "--yes"], &["get", "foo", "a", "b", "c", "d"]] {
        let said = refused(&[words, &["-S", &ring]].concat(), 3);
        assert!(said.contains(&format!("cannot connect to {address}")), "{words:?}: {said}");
    }
    assert_eq!(last.expect(&["get", "foo"], 0).trim_end(), "1");
    stop(last);
}
