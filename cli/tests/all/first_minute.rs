//! The first minute of a user whose machine already runs a memcached. The README's tour once ended
//! with `todana flush` on memcached's port: `todana serve` could not start on that port, so the
//! tour emptied the memcached. A server that was open to the network printed no warning, and
//! suggested 0.0.0.0 as an address to connect to.

use crate::running;

use running::{RunningServer, TestFolder, run, stop, text};
use std::io::{BufRead, Write};
use std::process::{Output, Stdio};

/// Runs a command at a terminal, with this text typed.
fn at_a_terminal(words: &[&str], typed: &str) -> Output {
    let line = [&[env!("CARGO_BIN_EXE_todana")], words].concat().join(" ");
    let mut command = std::process::Command::new("script");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]).env_remove("TODANA_SERVER").env("NO_COLOR", "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn readme_tour_never_touches_port_of_memcached() {
    let readme = include_str!("../../../README.md");
    let tour = readme.split("```console\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(tour.contains("11311") && !tour.contains("11211") && !tour.contains("flush"), "{tour}");
    let help = text(&run(&["--help"]).stdout);
    let examples = help.split("Examples:").nth(1).unwrap().split("\n\n").next().unwrap();
    assert!(examples.contains("-p 11311") && !examples.contains("11211"), "{examples}");
}

#[test]
fn ping_waits_for_a_server() {
    let folder = TestFolder::new();
    let socket = folder.path("socket");
    let place = format!("unix:{socket}");
    assert!(running::refused(&["ping", "-S", &place], 3).contains("cannot connect"));
    let mut ping = running::todana().args(["ping", "--wait", "1h", "-S", &place]).spawn().unwrap();
    let server = RunningServer::start(&["-s", &socket, "--admin-port", "0"]);
    assert!(ping.wait().unwrap().success());
    drop(server);
}

#[test]
fn flush_asks_at_a_terminal_and_obeys_scripts() {
    let folder = TestFolder::new();
    let server = RunningServer::start(&["--admin-port", "0"]);
    let database = folder.path("x.hash");
    for place in [server.address.as_str(), &database] {
        let flush = ["flush", "-S", place];
        let left = || running::expect(&["count", place], 0);
        let fill = || ["a", "b"].map(|key| running::expect(&["set", key, "1", "-S", place], 0));
        fill();
        for typed in ["n\n", "\n", "nonsense\n"] {
            let output = at_a_terminal(&flush, typed);
            let shown = text(&output.stdout);
            assert_eq!(output.status.code(), Some(1), "{typed:?}: {shown}");
            assert!(shown.contains(&format!("{place}: remove 2 records? [y/N] ")), "{shown}");
            assert!(shown.ends_with("todana: flush: not confirmed, nothing was removed\r\n"), "{shown:?}");
            assert_eq!(left(), "2\n");
        }
        assert_eq!(at_a_terminal(&flush, "y\n").status.code(), Some(0));
        assert_eq!(left(), "0\n");
        fill();
        let output = at_a_terminal(&[&flush[..], &["--yes"]].concat(), "");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()));
        assert_eq!(left(), "0\n");
        fill();
        assert_eq!(running::expect(&flush, 0), "");
        assert_eq!(left(), "0\n");
    }
}

#[test]
fn bench_refuses_a_place_that_holds_records() {
    let folder = TestFolder::new();
    let (server, empty) =
        (RunningServer::start(&["--admin-port", "0"]), RunningServer::start(&["--admin-port", "0"]));
    let database = folder.path("x.hash");
    let small = ["--requests", "10", "--keys", "10"];
    for place in [server.address.as_str(), &database] {
        running::expect(&["set", "precious", "1", "-S", place], 0);
        let refusal = format!(
            "todana: {place}: holds 1 record; the benchmark would add its own records; --force allows that\n"
        );
        let bench = [&["bench", place][..], &small].concat();
        assert_eq!(running::refused(&bench, 2), refusal);
        assert_eq!(running::expect(&["count", place], 0), "1\n");
        if place == server.address {
            let second = [&["bench", &empty.address, "--vs", place][..], &small].concat();
            assert_eq!(running::refused(&second, 2), refusal);
            let replay = [&["bench", "replay", "uniform", place][..], &small].concat();
            assert_eq!(running::refused(&replay, 2), refusal);
            assert_eq!(running::expect(&["count", &empty.address], 0), "0\n");
        }
        running::expect(&[&bench[..], &["--force"]].concat(), 0);
        assert_eq!(running::expect(&["count", place], 0), "11\n");
    }
}

/// Returns the complete standard output of a server that is stopped.
fn complete_banner(options: &[&str]) -> String {
    let mut server = RunningServer::start(&[&["--admin-port", "0"], options].concat());
    let mut lines = server.banner.concat();
    server.signal("TERM");
    let mut line = String::new();
    while server.stdout.read_line(&mut line).unwrap() > 0 {
        lines.push_str(&std::mem::take(&mut line));
    }
    stop(server);
    lines
}

#[test]
fn banner_warns_of_an_open_server() {
    let folder = TestFolder::new();
    let tokens = folder.path("tokens");
    std::fs::write(&tokens, "alice:s3cret\n").unwrap();
    let open = complete_banner(&["-l", "0.0.0.0"]);
    let port = open.lines().nth(1).unwrap().strip_prefix("listening on 0.0.0.0:").unwrap().to_string();
    let warning = format!(
        "warning: 0.0.0.0:{port}: anyone who can reach it can read and write; require logins (-S or -Y), or listen on this machine only (-l 127.0.0.1)"
    );
    assert_eq!(open.lines().last(), Some(warning.as_str()));
    let example =
        format!("try: todana set hello world -S 127.0.0.1:{port} && todana get hello -S 127.0.0.1:{port}");
    assert_eq!(open.lines().nth(2), Some(example.as_str()));
    for guarded in [&["-l", "127.0.0.1"][..], &["-l", "0.0.0.0", "-Y", &tokens]] {
        assert!(!complete_banner(guarded).contains("warning"), "{guarded:?}");
    }
    assert!(complete_banner(&["-l", "127.0.0.1,0.0.0.0"]).contains("warning: 0.0.0.0:"));
}

#[test]
fn banner_shows_the_limit_of_each_database() {
    let folder = TestFolder::new();
    let (hash, tree) = (folder.path("a.hash"), folder.path("b.tree"));
    let shown = complete_banner(&[&hash]);
    assert!(!shown.contains("MiB") && !shown.contains("evicting"), "{shown}");
    let line =
        format!("database: {hash}, disk:hash, no limit; no data found, starting a new database; --sync 1000");
    assert!(shown.contains(&line), "{shown}");
    let shown = complete_banner(&["mem:hash", &format!("{tree}#capcnt=7"), "-m", "32"]);
    assert!(shown.lines().next().unwrap().contains(", 32 MiB, then evicting, "), "{shown}");
    assert!(shown.contains("database 0: mem:hash, 32 MiB, then evicting, lost at exit\n"), "{shown}");
    assert!(shown.contains("b.tree#capcnt=7, disk:tree, at most 7 records, in "), "{shown}");
    assert!(complete_banner(&["-m", "32"]).contains(", 32 MiB, then evicting, "));
}
