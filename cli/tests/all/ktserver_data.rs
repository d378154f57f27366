//! The data of a server under the name `ktserver`: snapshots, update logs, replication.

use crate::ktserver_running;
use crate::running;

use ktserver_running::{KtserverFolder, KtserverProcess, eventually, read};
use nix::sys::signal::Signal;
use std::fs;
use std::process::{Command, Stdio};

/// Returns the value of a key in the first database.
fn value(server: &KtserverProcess, key: &str) -> Option<String> {
    let (status, body) = server.ask("GET", &format!("/{key}"), "");
    (status == 200).then_some(body)
}

fn put(server: &KtserverProcess, key: &str, value: &str) {
    assert_eq!(server.ask("PUT", &format!("/{key}"), value).0, 201);
}

/// Returns the number of records in the first database.
fn count(server: &KtserverProcess) -> u64 {
    server.field("status", "count").parse().unwrap()
}

fn crash(mut server: KtserverProcess) {
    server.signal(Signal::SIGKILL);
    server.end();
}

#[test]
fn clean_exit_writes_a_snapshot() {
    let place = KtserverFolder::new();
    for packing in [&[][..], &["-bgsc", "zlib"]] {
        let directory = format!("snapshots{}", packing.len());
        let words = [&["-bgs", &directory][..], packing, &["%", ":#ktopts=p", "x.kct"]].concat();
        let server = place.start(&words);
        for number in 0..5000 {
            put(&server, &format!("k{number}"), &format!("v{number}"));
        }
        server.call("set?key=mortal&value=m&xt=-2000000000");
        server.call("set?DB=1&key=p&value=q");
        server.call("set?DB=2&key=t&value=u");
        server.stop();
        let mut names: Vec<_> = fs::read_dir(place.path(&directory))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["00000000.ktss", "00000001.ktss", "snapshots.lock"]);
        let bytes = fs::read(place.path(&format!("{directory}/00000000.ktss"))).unwrap();
        assert!(bytes.starts_with(b"KTSS\n\0"));
        assert_eq!(bytes[6..10] == [0; 4], packing.is_empty());
        // A snapshot can be read whatever compression the next one has.
        let server = place.start(&["-bgs", &directory, "%", ":#ktopts=p", "x.kct"]);
        assert_eq!(count(&server), 5001);
        assert_eq!(value(&server, "k4999").as_deref(), Some("v4999"));
        assert_eq!(server.call("get?key=mortal"), "value\tm\nxt\t2000000000\n");
        assert_eq!(server.call("get?DB=1&key=p"), "value\tq\n");
        assert_eq!(server.call("get?DB=2&key=t"), "value\tu\n");
        server.stop();
    }
}

#[test]
fn failed_snapshot_keeps_the_last_one() {
    let place = KtserverFolder::new();
    let (file, partial) = (place.path("b/00000000.ktss"), place.path("b/00000000.ktss.tmp"));
    let words = ["-bgs", "b", "-bgsi", "0.1", "-th", "1"];
    let server = place.start(&words);
    let made = |server: &KtserverProcess| server.field("report", "snap_made").parse::<u64>().unwrap();
    put(&server, "k", "v");
    let before = made(&server);
    eventually("two snapshots", || made(&server) >= before + 2);
    assert_eq!(server.field("report", "snap_failed"), "0");
    // This directory is an obstacle that the server cannot remove.
    eventually("an obstacle", || fs::create_dir(&partial).is_ok());
    fs::write(format!("{partial}/x"), "").unwrap();
    eventually("a failure", || server.field("report", "snap_failed") != "0");
    assert!(server.field("report", "snap_trouble").contains("00000000.ktss.tmp"));
    put(&server, "late", "v");
    assert!(read(&server.log).contains("[ERROR]: "));
    let log = server.log.clone();
    crash(server);
    assert_eq!(read(&log).matches("snapshot: cannot be written").count(), 1, "{}", read(&log));
    assert!(fs::exists(&file).unwrap());
    let server = place.start(&words);
    assert_eq!((value(&server, "k").as_deref(), value(&server, "late")), (Some("v"), None));
    fs::remove_dir_all(&partial).unwrap();
    eventually("the next snapshot", || made(&server) > 0);
    assert!(!server.call("report").contains("snap_trouble"));
}

#[test]
fn unwritable_update_log_is_reported_once_with_recovery() {
    let place = KtserverFolder::new();
    let server = place.start(&["-ulog", "u", "-sid", "1", "-uasi", "0.01", "%"]);
    let limit = |limit: &str| {
        let (pid, size) = (server.child.id().to_string(), format!("--fsize={limit}"));
        Command::new("prlimit").args(["--pid", &pid, &size]).status().is_ok_and(|status| status.success())
    };
    if !limit("100000:unlimited") {
        eprintln!("skipped: there is no prlimit here");
        return;
    }
    let value = "v".repeat(10_000);
    let is_taken = || server.ask("PUT", "/key", &value).0 == 201;
    assert!(is_taken());
    // If a change cannot be written, its outcome is unknown, so the server closes the connection
    // without a reply.
    let sent = format!("PUT /key HTTP/1.1\r\nConnection: close\r\nContent-Length: 10000\r\n\r\n{value}");
    eventually("changes are refused", || !server.last_words(0, sent.as_bytes()).contains(" 201 "));
    eventually("the log says so", || read(&server.log).contains("update log: cannot write to it: "));
    assert!(!is_taken());
    assert!(limit("unlimited:unlimited"));
    eventually("it is over", || read(&server.log).contains("writes: accepted again"));
    assert!(is_taken());
    assert_eq!(read(&server.log).matches("[ERROR]: ").count(), 1, "{}", read(&server.log));
    server.stop();
}

#[test]
fn unreadable_snapshot_prevents_the_start_and_stays() {
    let place = KtserverFolder::new();
    let server = place.start(&["-bgs", "b"]);
    put(&server, "key", "value");
    server.stop();
    let path = place.path("b/00000000.ktss");
    let whole = fs::read(&path).unwrap();
    let foreign = [&whole[..6], &[1, 2, 3, 4], &whole[10..]].concat();
    for (bytes, printed) in
        [(&whole[..whole.len() - 1], "the file is truncated"), (&foreign[..], "unsupported compression")]
    {
        fs::write(&path, bytes).unwrap();
        let output = place.run(&["-port", "-1", "-bgs", "b"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr.contains("00000000.ktss") && stderr.contains(printed), "{stderr}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    for name in ["lzo", "lzma", "zstd"] {
        let output = place.run(&["-port", "-1", "-bgs", "b", "-bgsc", name]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8(output.stderr).unwrap().contains(&format!("-bgsc {name}: ")));
    }
}

#[test]
fn snapshot_never_overrides_a_newer_update_log() {
    let place = KtserverFolder::new();
    let server = place.start(&["-bgs", "b"]);
    put(&server, "old", "1");
    put(&server, "gone", "1");
    server.stop();
    let path = place.path("b/00000000.ktss");
    let kept = fs::read(&path).unwrap();
    let words = ["-bgs", "b", "-ulog", "u", "-sid", "1", "-oas"];
    let server = place.start(&words);
    assert_eq!(count(&server), 2);
    put(&server, "old", "2");
    assert_eq!(server.ask("DELETE", "/gone", "").0, 204);
    crash(server);
    // The previous snapshot still exists, but is not read ...
    assert_eq!(fs::read(&path).unwrap(), kept);
    let server = place.start(&words);
    assert_eq!((value(&server, "old").as_deref(), value(&server, "gone")), (Some("2"), None));
    crash(server);
    // ... unless a crash interrupted its loading.
    fs::write(place.path("u/00000000/reading-snapshot"), "").unwrap();
    let server = place.start(&words);
    assert_eq!((value(&server, "old").as_deref(), value(&server, "gone").as_deref()), (Some("1"), Some("1")));
    server.stop();
    assert!(!fs::exists(place.path("u/00000000/reading-snapshot")).unwrap());
}

#[test]
fn update_log_restores_databases_in_memory() {
    let place = KtserverFolder::new();
    assert_eq!(place.run(&["-port", "-1", "-ulog", "u"]).status.code(), Some(1));
    // A log of the original in this directory is not read, and the server reports that.
    fs::create_dir(place.path("u")).unwrap();
    fs::write(place.path("u/0000000001.ulog"), "").unwrap();
    let words = ["-ulog", "u", "-ulim", "64k", "-uasi", "0.5", "-sid", "1", ":", "%"];
    let server = place.start(&words);
    for number in 0..400 {
        server.call(&format!("set?key=k{number}&value={}", "v".repeat(300)));
    }
    server.call("set?DB=1&key=k&value=v");
    assert!(read(&server.log).contains("[ERROR]: -ulog u: the update logs of Kyoto Tycoon there"));
    let listed = |server: &KtserverProcess| {
        let list = server.call("ulog_list");
        for line in list.lines() {
            let (path, rest) = line.split_once('\t').unwrap();
            assert!(path.contains("u/0000000") && path.ends_with(".ulog"), "{line}");
            let (len, stamp) = rest.split_once(':').unwrap();
            assert!(len.parse::<u64>().is_ok() && stamp.len() == 19, "{line}");
        }
        list.lines().count()
    };
    eventually("a second file", || {
        put(&server, "k0", "more");
        listed(&server) >= 3
    });
    server.call("ulog_remove?ts=now");
    server.stop();
    let server = place.start(&words);
    assert_eq!((count(&server), server.field("status?DB=1", "count").as_str()), (400, "1"));
    crash(server);
    let none = place.start(&[":"]);
    assert_eq!(count(&none), 0);
    let refused = (400, "ERROR\tno update log allows no replication\n".to_owned());
    for call in ["ulog_list", "ulog_remove"] {
        assert_eq!(none.ask("POST", &format!("/rpc/{call}"), ""), refused);
    }
}

/// Starts a replica in another folder than the master's.
fn follower(master: &KtserverProcess, words: &[&str]) -> (KtserverFolder, KtserverProcess) {
    let place = KtserverFolder::new();
    let port = master.ports[0].to_string();
    let base = ["-mhost", "127.0.0.1", "-mport", &port, "-rts", "rts", "-riv", "10", "-sid", "2"];
    let server = place.start(&[&base[..], words].concat());
    (place, server)
}

#[test]
fn replica_follows_through_restarts_of_both() {
    let place = KtserverFolder::new();
    let words = ["-ulog", "u", "-sid", "1", "%"];
    let master = place.start(&words);
    put(&master, "a", "1");
    put(&master, "b", "1");
    let (folder, replica) = follower(&master, &["-ulog", "u", "%"]);
    eventually("the replica", || value(&replica, "b").is_some());
    assert_eq!(replica.field("report", "repl_master_host"), "127.0.0.1");
    assert_eq!(replica.field("report", "repl_master_port"), master.ports[0].to_string());
    assert_eq!(replica.field("report", "repl_interval"), "0.010000");
    eventually("its position", || read(&folder.path("rts")).len() == 21);
    replica.stop();
    let position: u64 = read(&folder.path("rts")).trim().parse().unwrap();
    assert!(position > 1_700_000_000_000_000_000, "{position}");
    // While the replica is stopped, a record is removed, and the master restarts.
    master.call("remove?key=a");
    put(&master, "c", "1");
    master.stop();
    let master = place.start(&words);
    assert_eq!((value(&master, "a"), value(&master, "b").as_deref()), (None, Some("1")));
    put(&master, "d", "1");
    // If there is a file for the position, a client can name the master later.
    let replica = folder.start(&["-rts", "rts", "-riv", "10", "-sid", "2", "-ulog", "u", "%"]);
    assert_eq!(value(&replica, "a").as_deref(), Some("1"));
    replica.call(&format!("tune_replication?host=127.0.0.1&port={}&iv=20", master.ports[0]));
    eventually("what was missed", || value(&replica, "d").is_some());
    let found = ["a", "b", "c"].map(|key| value(&replica, key));
    assert_eq!(found, [None, Some("1".into()), Some("1".into())]);
    assert_eq!(replica.field("report", "repl_interval"), "0.020000");
    let alone = KtserverFolder::new();
    let alone = alone.start(&[]);
    assert_eq!(alone.ask("POST", "/rpc/tune_replication?host=127.0.0.1", "").0, 501);
}

#[test]
fn scripts_and_snapshots_work_under_the_own_name() {
    let folder = running::TestFolder::new();
    let (script, snapshots) = (folder.path("s.lua"), folder.path("b"));
    fs::write(&script, "function hello(input, output) output.said = 'hello' return 0 end").unwrap();
    let words = ["--script", &script, "--snapshots", &snapshots, "--snapshot-packing", "zlib", "mem:tree"];
    let server = running::RunningServer::start(&words);
    let ask = |server: &running::RunningServer, target: &str, origin: &str| {
        let mut client = running::TextClient::connect(server);
        client.send(format!("GET /rpc/{target} HTTP/1.1\r\n{origin}Connection: close\r\n\r\n").as_bytes());
        let mut lines = vec![client.line()];
        while !lines.last().unwrap().is_empty() {
            lines.push(client.line());
        }
        lines.concat()
    };
    assert!(ask(&server, "play_script?name=hello", "").ends_with("_said\thello\n"));
    ask(&server, "set?key=k&value=v", "");
    running::stop(server);
    assert!(fs::exists(folder.path("b/00000000.ktss")).unwrap());
    let page = "Origin: http://elsewhere.example\r\nSec-Fetch-Site: cross-site\r\n";
    let server = running::RunningServer::start(&["--snapshots", &snapshots, "mem:hash"]);
    assert!(ask(&server, "get?key=k", "").ends_with("value\tv\n"));
    let refused = ask(&server, "get?key=k", page);
    assert!(!refused.contains("value"), "{refused}");
    running::stop(server);
    let server = running::RunningServer::start(&["--snapshots", &snapshots, "--allow-pages"]);
    assert!(ask(&server, "get?key=k", page).ends_with("value\tv\n"));
    running::stop(server);
}

/// Returns the executable of Kyoto Tycoon's server, if TODANA_KTSERVER names it.
fn original() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("TODANA_KTSERVER").map(Into::into);
    if path.is_none() {
        eprintln!("skipped: TODANA_KTSERVER names no ktserver");
    }
    path
}

/// Returns a port that was free a moment ago. It is below 32768, because the original supports no
/// others.
fn low_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_768);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Starts the original, which cannot let the system choose a port.
fn start_original(program: &std::path::Path, place: &KtserverFolder, words: &[&str]) -> KtserverProcess {
    for _ in 0..20 {
        let free = low_port();
        let log = place.path(&format!("original-{free}"));
        let port = free.to_string();
        let base = ["-host", "127.0.0.1", "-port", &port, "-log", &log, "-ls"];
        let mut command = std::process::Command::new(program);
        let command = command.args([&base[..], words].concat()).current_dir(place.folder.path());
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut has_ended = false;
        eventually("the original's start", || {
            has_ended = child.try_wait().unwrap().is_some();
            has_ended || read(&log).contains("listening server socket started")
        });
        if !has_ended {
            return KtserverProcess { child, ports: vec![free], log };
        }
    }
    panic!("the original cannot be started: {words:?}")
}

#[test]
fn original_and_todana_read_each_others_snapshots() {
    let Some(program) = original() else { return };
    for packing in [&[][..], &["-bgsc", "zlib"]] {
        let place = KtserverFolder::new();
        for directory in ["b", "c"] {
            fs::create_dir(place.path(directory)).unwrap();
        }
        let words = [&["-bgs", "b", "-bgsi", "1"][..], packing, &["%", ":#ktopts=p"]].concat();
        let ours = place.start(&words);
        for number in 0..3000 {
            put(&ours, &format!("k{number:05}"), &"v".repeat(number % 900));
        }
        ours.call("set?key=mortal&value=m&xt=-2000000000");
        ours.call("set?DB=1&key=p&value=q");
        ours.stop();
        let theirs = start_original(&program, &place, &words);
        assert_eq!(count(&theirs), 3001);
        assert_eq!(value(&theirs, "k02999").map(|value| value.len()), Some(2999 % 900));
        assert_eq!(theirs.call("get?key=mortal"), "value\tm\nxt\t2000000000\n");
        assert_eq!(theirs.call("get?DB=1&key=p"), "value\tq\n");
        crash(theirs);
        // With today's C library, the original hangs when it writes snapshots of databases in
        // memory. Snapshots of databases on disk have the same format.
        let words = [&["-bgs", "c", "-bgsi", "0.5"][..], packing, &["x.kct", "y.kch#ktopts=p"]].concat();
        let theirs = start_original(&program, &place, &words);
        for number in 0..3000 {
            put(&theirs, &format!("k{number:05}"), &"w".repeat(number % 900));
        }
        theirs.call("set?key=mortal&value=m&xt=-2000000000");
        theirs.call("set?DB=1&key=p2&value=q2");
        let modified = |name: &str| fs::metadata(place.path(name)).and_then(|found| found.modified()).ok();
        let now = std::time::SystemTime::now();
        let is_newer = |name: &str| modified(name).is_some_and(|at| at > now);
        // Both snapshots were started and finished since then.
        eventually("its snapshots", || is_newer("c/00000000.ktss") && is_newer("c/00000001.ktss"));
        let last = modified("c/00000001.ktss");
        eventually("its snapshots again", || modified("c/00000001.ktss") > last);
        crash(theirs);
        let ours = place.start(&["-bgs", "c", "%", ":#ktopts=p"]);
        assert_eq!(count(&ours), 3001);
        assert_eq!(value(&ours, "k02999"), Some("w".repeat(2999 % 900)));
        assert_eq!(ours.call("get?key=mortal"), "value\tm\nxt\t2000000000\n");
        assert_eq!(ours.call("get?DB=1&key=p2"), "value\tq2\n");
        for name in ["x.kct", "y.kch"] {
            fs::remove_file(place.path(name)).unwrap();
        }
    }
}

#[test]
fn original_and_todana_replicate_each_other() {
    let Some(program) = original() else { return };
    let place = KtserverFolder::new();
    // If an option is repeated, its last value counts.
    let port = low_port().to_string();
    let ours = place.start(&["-port", &port, "-ulog", "u", "-sid", "1", "%", ":"]);
    for number in 0..500 {
        put(&ours, &format!("k{number}"), "v");
    }
    let other = KtserverFolder::new();
    fs::create_dir(other.path("u")).unwrap();
    let theirs = start_original(
        &program,
        &other,
        &["-mhost", "127.0.0.1", "-mport", &port, "-rts", "rts", "-sid", "2", "-ulog", "u", "%", ":"],
    );
    ours.call("remove?key=k7");
    ours.call("set?DB=1&key=second&value=s&xt=-2000000000");
    // Changes of two databases have no common order.
    let has_all = |server: &KtserverProcess| {
        let has_second = server.ask("POST", "/rpc/get?DB=1&key=second", "").0 == 200;
        has_second && count(server) == 499 && value(server, "k7").is_none()
    };
    eventually("the original", || has_all(&theirs));
    let third = KtserverFolder::new();
    let port = theirs.ports[0].to_string();
    let last = third.start(&["-mhost", "127.0.0.1", "-mport", &port, "-rts", "rts", "-sid", "3", "%", ":"]);
    eventually("the end of the chain", || has_all(&last));
    assert_eq!(last.call("get?DB=1&key=second"), "value\ts\nxt\t2000000000\n");
}
