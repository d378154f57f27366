//! The program under the name `ktserver`, as start scripts, agents and clients use it.

use crate::ktserver_running;

use ktserver_running::{KtserverFolder, WAIT_MAX, eventually, ports, read};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn help_and_version_are_printed_under_both_spellings() {
    let place = KtserverFolder::new();
    for word in ["--help", "-h"] {
        let output = place.run(&[word]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        for option in [
            "-host", "-port", "-tout", "-th", "-log", "-li", "-ls", "-le", "-lz", "-ulog", "-ulim", "-uasi",
            "-sid", "-ord", "-oat", "-oas", "-onl", "-otl", "-onr", "-asi", "-ash", "-bgs", "-bgsi", "-bgsc",
            "-dmn", "-pid", "-cmd", "-scr", "-mhost", "-mport", "-rts", "-riv", "-plsv", "-plex", "-pldb",
            "ktopts=p", "ktcapcnt", "ktcapsiz",
        ] {
            assert!(text.contains(option), "{option}");
        }
        assert!(text.lines().all(|line| line.len() <= 120), "too wide");
    }
    let version = Command::new(env!("CARGO_BIN_EXE_todana")).args(["as", "ktserver", "--version"]).output();
    let version = String::from_utf8(version.unwrap().stdout).unwrap();
    assert!(version.starts_with("Kyoto Tycoon 0.9.56 (2.19) on Linux ("), "{version}");
}

/// The variable once decided whether workers use io_uring, although ktserver has no such setting.
#[test]
fn variables_of_todana_serve_have_no_effect() {
    let place = KtserverFolder::new();
    let rings = |variable: Option<&str>| {
        let log = place.path("ringlog");
        let _ = fs::remove_file(&log);
        let mut command = place.command(&["-host", "127.0.0.1", "-port", "-1", "-th", "1", "-log", &log]);
        if let Some(value) = variable {
            command.env("TODANA_IO", value);
        }
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        eventually("the server's start", || read(&log).contains("the server has started"));
        // The worker has created its ring before it replies.
        let mut client = TcpStream::connect(("127.0.0.1", ports(&read(&log))[0])).unwrap();
        client.set_read_timeout(Some(WAIT_MAX)).unwrap();
        client.write_all(b"GET /rpc/void HTTP/1.1\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        let links = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
        let links = links.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        let count = links.filter(|link| link.to_string_lossy().contains("io_uring")).count();
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        assert!(child.wait().unwrap().success());
        count
    };
    let expected = rings(None);
    for value in ["epoll", "nonsense"] {
        assert_eq!(rings(Some(value)), expected, "TODANA_IO={value}");
    }
}

#[test]
fn impossible_settings_are_refused_without_leftovers() {
    let place = KtserverFolder::new();
    fs::write(place.path("casket.kch"), "KC\n").unwrap();
    for name in ["casket.kcd", "casket.kcf"] {
        fs::create_dir(place.path(name)).unwrap();
        fs::write(place.path(&format!("{name}/__KCDIR__")), "64\n").unwrap();
    }
    for (words, printed) in [
        (&["casket.kch"][..], "casket.kch: is a file"),
        (&["casket.kcd"], "casket.kcd is a database of Kyoto Cabinet"),
        (&["%", "casket.kcf#pccap=1m"], "casket.kcf is a database of Kyoto Cabinet"),
        (&["-mhost", "m", "-sid", "1"], "-mhost m: "),
        (&["-bgs", "b", "-bgsc", "lzo"], "-bgsc lzo: "),
        (&["-scr", "nix.lua"], "nix.lua cannot be read: "),
        (&["-pldb", "p.so"], "-pldb p.so: "),
        (&["-plsv", "ktplugservvoid.so"], "-plsv ktplugservvoid.so: "),
        (&["-plsv", "ktplugservmemc.so", "-plex", "opts=q"], "queues need an ordered first database"),
        (&["-plsv", "ktplugservmemc.so", "-plex", "opts=qr", "%"], "queues cannot be read-only"),
        (&["-plsv", "ktplugservmemc.so", "-plex", "opts=q", "-ord", "%"], "queues cannot be read-only"),
        (&["-cmd", "nowhere"], "-cmd nowhere: "),
        (&["-log", "nowhere/log"], "-log nowhere/log: "),
        (&["-port", "0"], "-port 0: "),
        (&["-x"], "-x: unknown option"),
        (&["-dmn", "-pid", "p"], "-pid p: "),
        (&["x.txt"], "database \"x.txt\": "),
        (&["e.kch#opts=c#zcomp=arc#zkey=hush"], "zcomp=arc: encryption is not supported"),
        (&["e.kch#zkey=hush"], "zkey=...\": zkey: encryption is not supported"),
        (&["-ord", "x.kch"], "x.kch: does not exist"),
    ] {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("ktserver: ") && stderr.contains(printed), "{words:?}: {stderr}");
    }
    let mut names: Vec<_> =
        fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["casket.kcd", "casket.kcf", "casket.kch", "ktserver"]);
    for name in ["casket.kcd", "casket.kcf"] {
        assert_eq!(fs::read_dir(place.path(name)).unwrap().count(), 1, "{name}");
    }
}

#[test]
fn occupied_port_is_reported_before_the_background() {
    let place = KtserverFolder::new();
    let server = place.start(&[]);
    let port = server.ports[0].to_string();
    let output = place.run(&["-host", "127.0.0.1", "-port", &port, "-dmn"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(&format!("127.0.0.1:{port}")), "{stderr}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("[ERROR]: "));
}

#[test]
fn its_port_speaks_only_kyoto_tycoon() {
    let place = KtserverFolder::new();
    let server = place.start(&[]);
    assert_eq!(server.ask("PUT", "/japan", "tokyo").0, 201);
    assert_eq!(server.ask("GET", "/japan", ""), (200, "tokyo".into()));
    assert_eq!(server.call("get?key=japan"), "value\ttokyo\n");
    assert_eq!(server.field("status", "path"), ":");
    // In HTTP, a command of memcached is an unknown method, and a packet of memcached's binary
    // protocol has a wrong magic byte.
    assert_eq!(server.last_words(0, b"get japan\r\n"), "");
    assert_eq!(server.last_words(0, b"version\r\n"), "");
    assert_eq!(server.last_words(0, b"\x80\x0b\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), "");
    // Clients send methods in lower case and paths without a slash.
    assert!(server.last_words(0, b"GET japan HTTP/1.1\r\nConnection: close\r\n\r\n").ends_with("tokyo"));
    // The connection has used HTTP before. Now it sends a bulk get of one key in the binary
    // protocol.
    let mut stream = server.connect(0);
    stream.write_all(b"GET /nix HTTP/1.1\r\n\r\n\xba\0\0\0\0\0\0\0\x01\0\0\0\0\0\x05japan").unwrap();
    let mut got = Vec::new();
    let end = b"\0\0\0\x05japantokyo";
    while !got.windows(5).any(|window| window == b"tokyo") {
        let mut piece = [0; 512];
        let len = stream.read(&mut piece).unwrap();
        assert!(len > 0, "closed behind {got:?}");
        got.extend_from_slice(&piece[..len]);
    }
    assert!(got.starts_with(b"HTTP/1.1 404 Not Found\r\n") && got.ends_with(&end[4..]));
    server.stop();
}

#[test]
fn databases_have_names_and_tuning() {
    let place = KtserverFolder::new();
    let disk = place.path("casket.kct");
    let server = place.start(&["-oas", "%#ktopts=p", "*#ktcapcnt=10", ":#ktcapsiz=64m", &disk]);
    assert_eq!(server.field("status?DB=0", "ktopts"), "2");
    assert_eq!(server.field("status?DB=0", "type"), "33");
    assert_eq!(server.field("status?DB=1", "ktcapcnt"), "10");
    assert_eq!(server.field("status?DB=2", "ktcapsiz"), (64 << 20).to_string());
    for number in 0..30 {
        server.call(&format!("set?DB=1&key=k{number}&value=v"));
    }
    assert_eq!(server.field("status?DB=1", "count"), "10");
    // A database with ktopts=p stores no expiry.
    server.call("set?DB=0&key=k&value=v&xt=100");
    assert_eq!(server.call("get?DB=0&key=k"), "value\tv\n");
    server.call("set?DB=casket.kct&key=k&value=v");
    server.stop();
    // The database is found again, and a read-only server writes nothing.
    let server = place.start(&["-ord", &disk]);
    assert_eq!(server.call("get?key=k"), "value\tv\n");
    let refused = (500, "ERROR\tDB: 4: no permission: permission denied\n".to_owned());
    for call in ["set?key=k&value=w", "remove?key=k", "clear", "increment?key=n&num=1", "cur_remove?CUR=1"] {
        assert_eq!(server.ask("POST", &format!("/rpc/{call}"), ""), refused, "{call}");
    }
    assert_eq!((server.ask("PUT", "/k", "w").0, server.ask("DELETE", "/k", "").0), (500, 500));
    let bulk = b"\xb8\0\0\0\0\0\0\0\x01\0\0\0\0\0\x01\0\0\0\x01\x7f\xff\xff\xff\xff\xff\xff\xffkw";
    let mut stream = server.connect(0);
    stream.write_all(bulk).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"\xbf");
    assert_eq!(server.call("get?key=k"), "value\tv\n");
    server.stop();
}

#[test]
fn partial_request_times_out_idle_connection_stays() {
    let place = KtserverFolder::new();
    let server = place.start(&["-tout", "1", "-th", "1"]);
    let mut patient = server.connect(0);
    assert_eq!(server.last_words(0, b"GET /k HT"), "");
    let upload = b"PUT /k HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf";
    assert!(!server.last_words(0, upload).contains("201"));
    // This connection was opened first, and was idle for all that time.
    patient.write_all(b"GET /k HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    patient.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer:?}");
    assert_eq!(server.field("report", "serv_thread_count"), "1");
}

#[test]
fn log_has_the_requested_kinds() {
    let place = KtserverFolder::new();
    for (level, kinds) in [("-li", &["SYSTEM", "INFO"][..]), ("-ls", &["SYSTEM"])] {
        let server = place.start(&[level, "-onr"]);
        server.call("void");
        eventually("the end of the connection", || {
            level == "-ls" || read(&server.log).contains("connection closed")
        });
        let log = server.log.clone();
        server.stop();
        let text = read(&log);
        for line in text.lines() {
            let (time, rest) = line.split_once(": [").unwrap_or_else(|| panic!("{line}"));
            assert!(time.len() == 27 && time.ends_with('Z'), "{line}");
            assert!(kinds.contains(&rest.split(']').next().unwrap()), "{line}");
        }
        assert_eq!(text.contains("[INFO]"), kinds.contains(&"INFO"));
        // The lines contain the client's address.
        let of_connections: Vec<_> = text.lines().filter(|line| line.contains("]: connection ")).collect();
        assert_eq!(of_connections.is_empty(), level == "-ls");
        assert!(of_connections.iter().all(|line| line.contains(" peer=tcp:127.0.0.1:")), "{text}");
        for printed in ["[START]: pid=", "opening a database: path=:", "-onr has no effect", "[FINISH]: pid="]
        {
            assert!(text.contains(printed), "{printed}: {text}");
        }
        fs::remove_file(log).unwrap();
    }
    // At the silent levels the log does not contain the port, so it must be fixed. A second server
    // on the port ends, which proves that the first one has started.
    for level in ["-le", "-lz"] {
        let pid = place.path("pid");
        let mut child =
            place.command(&["-port", "-1", level, "-pid", &pid]).stdout(Stdio::piped()).spawn().unwrap();
        eventually("the pid file", || !read(&pid).is_empty());
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
        let mut printed = String::new();
        child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(printed, "");
        assert!(!fs::exists(&pid).unwrap());
    }
}

#[test]
fn signals_stop_it_or_reopen_its_log() {
    let place = KtserverFolder::new();
    let pid = place.path("pid");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut server = place.start(&["-pid", &pid]);
        assert_eq!(read(&pid), format!("{}\n", server.child.id()));
        let old = place.path("log.1");
        fs::rename(&server.log, &old).unwrap();
        server.signal(Signal::SIGUSR1);
        eventually("the new log", || read(&server.log).contains("reopened"));
        assert!(!read(&old).contains("reopened"));
        assert_eq!(server.ask("GET", "/k", "").0, 404);
        server.signal(signal);
        assert!(server.end().success(), "{signal}");
        assert!(read(&server.log).contains("[FINISH]: pid="));
        assert!(!fs::exists(&pid).unwrap());
        fs::remove_file(&server.log).unwrap();
    }
}

#[test]
fn daemon_runs_in_the_background() {
    let place = KtserverFolder::new();
    let (log, pid, disk) = (place.path("log"), place.path("pid"), place.path("x.kch"));
    let words = ["-host", "127.0.0.1", "-port", "-1", "-dmn", "-log", &log, "-pid", &pid, &disk];
    assert!(place.run(&words).status.success());
    eventually("the start", || read(&log).contains("the server has started"));
    let number: i32 = read(&pid).trim().parse().unwrap();
    let is_there = || kill(Pid::from_raw(number), None).is_ok();
    assert!(is_there() && fs::read_link(format!("/proc/{number}/cwd")).unwrap().as_os_str() == "/");
    let mut stream = TcpStream::connect(("127.0.0.1", ports(&read(&log))[0])).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(b"PUT /k HTTP/1.1\r\nConnection: close\r\nContent-Length: 1\r\n\r\nv").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer:?}");
    // The log is rotated, and the server keeps running.
    fs::rename(&log, place.path("log.1")).unwrap();
    kill(Pid::from_raw(number), Signal::SIGHUP).unwrap();
    eventually("the new log", || read(&log).contains("reopened"));
    kill(Pid::from_raw(number), Signal::SIGTERM).unwrap();
    eventually("its end", || read(&log).contains("[FINISH]: ") && !is_there());
    assert!(!fs::exists(&pid).unwrap());
    let server = place.start(&[&disk]);
    assert_eq!(server.ask("GET", "/k", ""), (200, "v".into()));
}

/// Names that the original accepts once made the start fail, and an unknown word was ignored
/// without a message.
#[test]
fn names_are_accepted_as_by_the_original() {
    let place = KtserverFolder::new();
    fs::write(place.path("empty.kch"), "").unwrap();
    let log = place.path("log");
    let names = ["x#type=kct", "abc#type=:", "t.kct#zcomp=def", "u.kct#opts=c", "empty.kch", "*#capcn=9"];
    let server = place.start(&[&["-log", &log][..], &names].concat());
    for number in 0..names.len() {
        server.call(&format!("set?DB={number}&key=k&value=v"));
        assert_eq!(
            server.ask("POST", &format!("/rpc/get?DB={number}&key=k"), ""),
            (200, "value\tv\n".into())
        );
    }
    assert!(fs::metadata(place.path("x")).unwrap().is_dir());
    assert!(read(&log).contains("capcn: unknown word; did you mean capcnt?"));
}

#[test]
fn synchronize_runs_commands_of_its_directory() {
    let place = KtserverFolder::new();
    let commands = place.path("commands");
    fs::create_dir(&commands).unwrap();
    let command = format!("{commands}/keep");
    fs::write(&command, format!("#!/bin/sh\necho \"$1\" > {commands}/told\n")).unwrap();
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
    let server = place.start(&["-cmd", &commands]);
    server.call("synchronize?command=keep");
    assert_eq!(read(&format!("{commands}/told")), ":\n");
    assert_eq!(server.ask("POST", "/rpc/synchronize?command=nix", "").0, 500);
}

const ECHO: &str =
    "function echo(input, output) for name, value in pairs(input) do output[name] = value end return 0 end\n";

#[test]
fn script_is_callable_over_both_protocols_and_reloads() {
    let place = KtserverFolder::new();
    let script = place.path("s.lua");
    fs::write(&script, ECHO).unwrap();
    let server = place.start(&["-scr", "s.lua"]);
    assert_eq!(server.call("play_script?name=echo&_a=1&_b=2"), "_a\t1\n_b\t2\n");
    let echo = |name: &[u8]| {
        let mut stream = server.connect(0);
        stream
            .write_all(&[b"\xb4\0\0\0\0\0\0\0\x04\0\0\0\x01", name, b"\0\0\0\x01\0\0\0\x01a1"].concat())
            .unwrap();
        let mut got = vec![0; 1];
        stream.read_exact(&mut got).unwrap();
        if got == [0xb4] {
            got.resize(15, 0);
            stream.read_exact(&mut got[1..]).unwrap();
        }
        got
    };
    assert_eq!(echo(b"echo"), b"\xb4\0\0\0\x01\0\0\0\x01\0\0\0\x01a1");
    assert_eq!(echo(b"nope"), b"\xbf");
    // A script with errors changes nothing; a correct one replaces the old one.
    fs::write(&script, "function (\n").unwrap();
    server.signal(Signal::SIGUSR1);
    eventually("the complaint", || {
        read(&server.log).contains("script: not reloaded, the old one stays in use: ")
    });
    assert_eq!(server.call("play_script?name=echo&_a=1"), "_a\t1\n");
    fs::write(&script, "function hello(input, output) output.said = 'hello' return 0 end").unwrap();
    server.signal(Signal::SIGUSR1);
    eventually("the new script", || read(&server.log).contains("script: reloaded"));
    assert_eq!(server.call("play_script?name=hello"), "_said\thello\n");
    let gone = (501, "ERROR\tno such scripting procedure\n".to_owned());
    assert_eq!(server.ask("POST", "/rpc/play_script?name=echo", ""), gone);
    server.stop();
}

#[test]
fn script_error_is_reported_with_its_line() {
    let place = KtserverFolder::new();
    let script = place.path("s.lua");
    fs::write(&script, format!("{ECHO}x = = 1\n")).unwrap();
    for daemon in [&[][..], &["-dmn"]] {
        let output = place.run(&[&["-port", "-1", "-scr", &script], daemon].concat());
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(&format!("{script}:2: ")), "{stderr}");
    }
}

const PLUGIN: [&str; 2] = ["-plsv", "/usr/libexec/ktplugservmemc.so"];

#[test]
fn plug_in_serves_memcached_clients() {
    let place = KtserverFolder::new();
    let server =
        place.start(&[&PLUGIN[..], &["-plex", "host=127.0.0.1#port=-1#opts=f#tout=5#th=2", "%"]].concat());
    let said = |words: &str| server.last_words(1, format!("{words}quit\r\n").as_bytes());
    // The replies are those of the original, byte by byte.
    for (words, answer) in [
        ("set k 5 0 3\r\nabc\r\nget k\r\n", "STORED\r\nVALUE k 5 3\r\nabc\r\nEND\r\n"),
        ("gets k nix k\r\n", "VALUE k 5 3\r\nabc\r\nVALUE k 5 3\r\nabc\r\nEND\r\n"),
        ("append k 0 0 1\r\nx\r\n", "ERROR\r\nERROR\r\n"),
        ("incr k 5\r\nget k\r\n", "5\r\nVALUE k 5 1\r\n5\r\nEND\r\n"),
        ("decr k 50\r\ndecr k x\r\n", "0\r\n0\r\n"),
        ("incr nix 5\r\nincr k\r\n", "NOT_FOUND\r\nCLIENT_ERROR invalid parameters\r\n"),
        (
            "get\r\nset k\r\ndelete\r\n",
            "END\r\nCLIENT_ERROR invalid parameters\r\nCLIENT_ERROR invalid parameters\r\n",
        ),
        ("set k 0 0 3\nabc\nget k\n", "STORED\r\nVALUE k 0 3\r\nabc\r\nEND\r\n"),
        ("delete k\r\ndelete k 0\r\n", "DELETED\r\nNOT_FOUND\r\n"),
        (
            "add z 0 0 1 noreply\r\n1\r\nadd z 0 0 1\r\n2\r\nreplace y 0 0 1\r\n1\r\nreplace z 7 0 2\r\n18\r\nget z y\r\n",
            "NOT_STORED\r\nNOT_STORED\r\nSTORED\r\nVALUE z 7 2\r\n18\r\nEND\r\n",
        ),
        ("incr z 9223372036854775807\r\nincr z 1 noreply\r\nget z\r\n", "0\r\nVALUE z 7 1\r\n1\r\nEND\r\n"),
        ("set n 0 0 4\r\n 12x\r\nincr n 3\r\n", "STORED\r\n15\r\n"),
        ("set z -1 0 1\r\n1\r\nget z\r\n", "STORED\r\nVALUE z 4294967295 1\r\n1\r\nEND\r\n"),
        ("version\r\n", "VERSION KyotoTycoon/0.9.56\r\n"),
        ("verbosity 1\r\nGET z\r\n\r\n", "ERROR\r\nERROR\r\nERROR\r\n"),
        ("set k 0 0 3\r\nabcd\r\n", ""),
        ("set k 0 0 -1\r\n", ""),
    ] {
        assert_eq!(said(words), answer, "{words:?}");
    }
    // Other protocols see the flags after the value. A value that is too short has no flags.
    said("set k 258 0 1\r\nv\r\n");
    assert_eq!(server.ask("GET", "/k", ""), (200, "v\0\0\u{1}\u{2}".into()));
    server.ask("PUT", "/k", "abc");
    assert_eq!(said("get k\r\n"), "VALUE k 0 3\r\nabc\r\nEND\r\n");
    // 30 days and a second still count as a relative time here. `incr` keeps the expiry.
    said("set t 0 2592001 1\r\n1\r\nincr t 1\r\n");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let xt: u64 = server.field("check?key=t", "xt").parse().unwrap();
    assert!(xt > now && xt <= now + 2_592_001, "{xt}");
    let stats = said("stats\r\n");
    for name in [
        "pid",
        "uptime",
        "time",
        "version",
        "pointer_size",
        "curr_connections",
        "threads",
        "curr_items",
        "bytes",
        "db_count",
        "db_path",
        "db_type",
        "set_hits",
        "get_misses",
        "decr_hits",
        "cmd_set",
        "cmd_flush",
    ] {
        assert!(stats.contains(&format!("STAT {name} ")), "{name}: {stats}");
    }
    assert!(stats.ends_with("END\r\n") && stats.contains("STAT incr_misses 1\r\n"), "{stats}");
    assert_eq!(said("flush_all 10\r\nget k\r\n"), "OK\r\nEND\r\n");
    assert_eq!(server.field("status", "count"), "0");
}

#[test]
fn plug_in_drops_flags_and_writes_by_option() {
    let place = KtserverFolder::new();
    let server = place.start(&[&PLUGIN[..], &["-plex", "host=127.0.0.1#port=-1"]].concat());
    let stored = server.last_words(1, b"set k 5 0 3\r\nabc\r\nget k\r\nquit\r\n");
    assert_eq!(stored, "STORED\r\nVALUE k 0 3\r\nabc\r\nEND\r\n");
    assert_eq!(server.ask("GET", "/k", ""), (200, "abc".into()));
    server.stop();
    let server = place.start(&[&PLUGIN[..], &["-plex", "host=127.0.0.1#port=-1#opts=r"]].concat());
    server.ask("PUT", "/k", "abc");
    let refused = "SERVER_ERROR server is read-only\r\n";
    let words = b"set k 0 0 1\r\nx\r\ndelete k\r\nincr k 1\r\nflush_all\r\nget k\r\nquit\r\n";
    assert_eq!(server.last_words(1, words), refused.repeat(4) + "VALUE k 0 3\r\nabc\r\nEND\r\n");
}

#[test]
fn plug_in_has_queues_if_enabled() {
    let place = KtserverFolder::new();
    let words = ["-plex", "host=127.0.0.1#port=-1#opts=fq#qtout=0.05", "%"];
    let server = place.start(&[&PLUGIN[..], &words].concat());
    let said = |words: &str| server.last_words(1, format!("{words}quit\r\n").as_bytes());
    assert_eq!(said("set q 7 0 1\r\na\r\nset q 0 0 2\r\nbc\r\n"), "STORED\r\nSTORED\r\n");
    assert_eq!(
        said("get q q q\r\ndelete q\r\ndelete p\r\n"),
        "VALUE q 7 1\r\na\r\nVALUE q 0 2\r\nbc\r\nEND\r\nDELETED\r\nNOT_FOUND\r\n"
    );
    // The first message was acknowledged, the second was not.
    eventually("it is back", || server.field("status", "count") == "1");
    assert_eq!(said("get q\r\nget q\r\ndelete q\r\n"), "VALUE q 0 2\r\nbc\r\nEND\r\nEND\r\nDELETED\r\n");
    // Other commands work as they do without queues.
    assert_eq!(said("add n 0 0 1\r\n1\r\nincr n 1\r\ndelete n\r\n"), "STORED\r\n2\r\nNOT_FOUND\r\n");
    assert_eq!(server.field("status", "count"), "1");
    server.stop();
}

#[test]
fn long_get_of_a_slow_reader_is_complete() {
    let place = KtserverFolder::new();
    let server = place.start(&[&PLUGIN[..], &["-plex", "host=127.0.0.1#port=-1"]].concat());
    let value = "v".repeat(100_000);
    assert_eq!(server.ask("PUT", "/k", &value).0, 201);
    let words = format!("get{}\r\nquit\r\n", " k".repeat(500));
    let answer = server.last_words(1, words.as_bytes());
    let one = format!("VALUE k 0 100000\r\n{value}\r\n");
    assert_eq!(answer.len(), one.len() * 500 + "END\r\n".len());
    assert!(answer.ends_with("\r\nEND\r\n") && answer.starts_with(&one));
}
