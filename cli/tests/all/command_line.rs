//! The program as users run it: commands, exit codes, configuration, generated pages.

use crate::running;

use running::{RunningServer, banner, text, todana};
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The commands that completions and manual pages must contain.
const COMMANDS: [&str; 23] = [
    "serve",
    "config",
    "get",
    "set",
    "delete",
    "incr",
    "decr",
    "touch",
    "stats",
    "flush",
    "ping",
    "load",
    "dump",
    "checkpoint",
    "backup",
    "restore",
    "log",
    "verify",
    "salvage",
    "bench",
    "top",
    "completions",
    "man",
];

#[test]
fn banner_has_three_lines_and_signals_stop_cleanly() {
    for signal in ["TERM", "INT"] {
        let mut server = RunningServer::start(&["-m", "32", "-t", "2"]);
        assert!(server.banner[0].starts_with("todana "), "{:?}", server.banner);
        assert!(server.banner[0].contains("32 MiB") && server.banner[0].contains("2 threads"));
        assert!(server.banner[2].starts_with("try: "), "{:?}", server.banner);
        assert!(server.banner[2].contains(&server.address), "{:?}", server.banner);
        let port = server.address.strip_prefix("127.0.0.1:").expect("loopback").parse::<u16>().unwrap();
        assert_ne!(port, 0);
        server.expect(&["ping"], 0);
        server.signal(signal);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        let mut rest = String::new();
        server.stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "nothing behind the banner");
    }
}

#[test]
fn top_shows_the_figures_of_a_server() {
    let server = RunningServer::start(&[]);
    server.expect(&["set", "hello", "world"], 0);
    let shown = server.expect(&["top", "--count", "1"], 0);
    for line in [
        "server       todana ",
        "requests/s   get 0  set 0",
        "records      1  evicted",
        "database     mem:hash",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    assert!(!shown.contains('\u{1b}'), "no escape sequences outside of a terminal: {shown}");
}

#[test]
fn hangup_keeps_all_records() {
    let server = RunningServer::start(&[]);
    server.expect(&["set", "hello", "world"], 0);
    for _ in 0..3 {
        server.signal("HUP");
    }
    assert_eq!(server.expect(&["get", "hello"], 0), "world");
}

#[test]
fn records_are_stored_read_counted_and_removed() {
    let server = RunningServer::start(&[]);
    assert_eq!(server.expect(&["set", "hello", "world"], 0), "");
    assert_eq!(server.expect(&["get", "hello"], 0), "world");
    assert_eq!(server.expect(&["get", "missing"], 1), "");
    assert_eq!(server.expect(&["get", "hello", "missing"], 1), "world\n");
    server.expect(&["set", "hello", "other", "--add"], 1);
    server.expect(&["set", "missing", "other", "--replace"], 1);
    server.expect(&["set", "hello", "!", "--append"], 0);
    server.expect(&["set", "hello", ">", "--prepend"], 0);
    assert_eq!(server.expect(&["get", "hello"], 0), ">world!");
    server.expect(&["set", "n", "41", "--flags", "7"], 0);
    assert_eq!(server.expect(&["incr", "n"], 0), "42\n");
    assert_eq!(server.expect(&["decr", "n", "100"], 0), "0\n");
    server.expect(&["incr", "missing"], 1);
    server.expect(&["incr", "hello"], 3);
    server.expect(&["touch", "n", "100"], 0);
    server.expect(&["touch", "missing", "100"], 1);
    server.expect(&["touch", "n", "-1"], 0);
    server.expect(&["get", "n"], 1);
    server.expect(&["delete", "hello"], 0);
    server.expect(&["delete", "hello"], 1);
    server.expect(&["set", "k", "v"], 0);
    server.expect(&["flush"], 0);
    server.expect(&["get", "k"], 1);
}

#[test]
fn version_from_json_works_for_cas() {
    let server = RunningServer::start(&[]);
    server.expect(&["set", "k", "one", "--flags", "9"], 0);
    let line = server.expect(&["get", "k", "--json", "--versions"], 0);
    let object: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&object["value"], &object["flags"], &object["bytes"]), (&"one".into(), &9.into(), &3.into()));
    let version = object["version"].as_u64().unwrap().to_string();
    server.expect(&["set", "k", "two", "--cas", &version], 0);
    server.expect(&["set", "k", "three", "--cas", &version], 1);
    assert_eq!(server.expect(&["get", "k"], 0), "two");
}

/// A version takes space in the record for its lifetime, so a plain read must not create one.
#[test]
fn json_shows_versions_only_on_request() {
    let server = RunningServer::start(&[]);
    server.expect(&["set", "k", "v"], 0);
    let line = server.expect(&["get", "k", "--json"], 0);
    let object: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(object, serde_json::json!({ "key": "k", "value": "v", "flags": 0, "bytes": 1 }));
    server.expect(&["get", "k", "--versions"], 2);
}

#[test]
fn any_bytes_work_and_json_marks_binary_ones() {
    use std::os::unix::ffi::OsStrExt;
    let server = RunningServer::start(&[]);
    let run = |words: &[&[u8]], code| {
        let words = words.iter().map(|word| std::ffi::OsStr::from_bytes(word));
        let output = todana().args(words).env("TODANA_SERVER", &server.address).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        output.stdout
    };
    run(&[b"set", b"k\xFF", b"\x80value"], 0);
    assert_eq!(run(&[b"get", b"k\xFF"], 0), b"\x80value");
    let object: serde_json::Value = serde_json::from_slice(&run(&[b"get", b"k\xFF", b"--json"], 0)).unwrap();
    let expected =
        serde_json::json!({ "key_base64": "a/8=", "value_base64": "gHZhbHVl", "flags": 0, "bytes": 6 });
    assert_eq!(object, expected);
    run(&[b"touch", b"k\xFF", b"100"], 0);
    run(&[b"incr", b"n\xFF"], 1);
    run(&[b"decr", b"n\xFF"], 1);
    run(&[b"delete", b"k\xFF"], 0);
}

#[test]
fn value_may_begin_with_a_dash() {
    let server = RunningServer::start(&[]);
    for value in ["-1", "--", "-x", "--no-such-option"] {
        let words = if value == "--" { vec!["set", "k", "--", "--"] } else { vec!["set", "k", value] };
        server.expect(&words, 0);
        assert_eq!(server.expect(&["get", "k"], 0), value);
    }
    server.expect(&["set", "k", "-2", "--flags", "3"], 0);
    assert_eq!(server.expect(&["get", "k"], 0), "-2");
    server.expect(&["set", "--ttl", "9", "k", "-3"], 0);
    assert_eq!(server.expect(&["get", "k"], 0), "-3");
    server.expect(&["set", "k", "-2", "--no-such-option"], 2);
}

#[test]
fn server_options_before_serve_are_explained() {
    let output = todana().args(["-p", "3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("'-p'") && error.contains("todana serve -p 3"), "{error}");
    let output = todana().args(["get", "k", "--no-such-option"]).output().unwrap();
    assert!(!text(&output.stderr).contains("todana serve"), "{}", text(&output.stderr));
}

#[test]
fn value_may_come_from_standard_input() {
    let server = RunningServer::start(&[]);
    let value: Vec<u8> = (0..100_000u32).map(|n| (n % 256) as u8).collect();
    let mut child =
        todana().args(["set", "binary", "-", "-S", &server.address]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&value).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let output = server.run(&["get", "binary"]);
    assert!(output.stdout == value, "{} bytes", output.stdout.len());
}

#[test]
fn stats_and_ping_print_the_servers_reply() {
    let server = RunningServer::start(&["-m", "48"]);
    let object: serde_json::Value = serde_json::from_str(&server.expect(&["stats", "--json"], 0)).unwrap();
    assert_eq!(object["limit_maxbytes"], 48u64 << 20);
    assert_eq!(object["pid"], server.child.id());
    let plain = server.expect(&["stats", "settings"], 0);
    let line = plain.lines().find(|line| line.starts_with("maxconns ")).expect("maxconns");
    assert_eq!(line.split_whitespace().nth(1), Some("1024"));
    assert!(server.expect(&["ping"], 0).starts_with(&server.address));
}

#[test]
fn usage_errors_and_unreachable_servers_have_exit_codes() {
    for words in [&["get"][..], &["set", "k"], &["nonsense"], &["touch", "k", "soon"], &["serve", "-t", "0"]]
    {
        let output = todana().args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{words:?}");
    }
    // This port was free a moment ago, and no server listens on it.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for words in [&["ping"][..], &["get", "k"], &["set", "k", "v"], &["stats"]] {
        let output = todana().args(words).args(["-S", &port]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{words:?}");
        assert!(text(&output.stderr).contains(&port), "{words:?}: {}", text(&output.stderr));
    }
    let output = todana().args(["get", &"k".repeat(251)]).output().unwrap();
    assert!(matches!(output.status.code(), Some(2 | 3)));
    let server = RunningServer::start(&["-F"]);
    server.expect(&["get", &"k".repeat(251)], 2);
    server.expect(&["flush"], 3);
}

/// `-s s.sock`: the path is relative to the directory of the server, and looks like a host name.
#[test]
fn banner_shows_relative_unix_sockets_as_unix() {
    let directory = tempfile::tempdir().unwrap();
    let in_directory = |words: &[&str]| {
        let mut command = todana();
        command.args(words).current_dir(&directory);
        command
    };
    let mut child = in_directory(&["serve", "-s", "s.sock"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let banner = banner(&mut stdout);
    let server = RunningServer { child, stdout, address: String::new(), banner };
    assert_eq!(server.banner[1], "listening on s.sock\n");
    let tried = server.banner[2].strip_prefix("try: ").unwrap().trim_end();
    let mut printed = Vec::new();
    for line in tried.split(" && ") {
        let words: Vec<&str> = line.strip_prefix("todana ").unwrap().split(' ').collect();
        let output = in_directory(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
        printed.extend(output.stdout);
    }
    assert_eq!(text(&printed), "world");
}

#[test]
fn occupied_port_is_named() {
    let server = RunningServer::start(&[]);
    let output = todana().args(["serve", "-l", &server.address]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains(&server.address), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
}

#[test]
fn unwritable_pid_file_is_named_before_listening() {
    let output = todana().args(["serve", "-p", "-1", "-P", "/nowhere/pid"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("/nowhere/pid"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "", "no banner");
}

#[test]
fn record_file_survives_load_and_dump() {
    let server = RunningServer::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let (input, output) = (directory.path().join("in.tsv"), directory.path().join("out.tsv"));
    let mut lines: Vec<String> = (0..2_000).map(|n| format!("key-{n}\tvalue {n}")).collect();
    lines.push("flagged\tx\t42".into());
    lines.push("escaped\ta\\tb\\nc\\\\d\\x00".into());
    lines.push("lasting\ty\t0\t2000000000".into());
    lines.push("empty\t".into());
    lines.sort();
    std::fs::write(&input, format!("{}\nlong-gone\tz\t0\t1\n", lines.join("\n"))).unwrap();
    let loaded = server.run(&["load", input.to_str().unwrap()]);
    assert_eq!(loaded.status.code(), Some(0));
    assert_eq!(text(&loaded.stderr).trim(), "2004 records loaded, 1 expired skipped, 0 refused");
    assert_eq!(server.run(&["get", "escaped"]).stdout, b"a\tb\nc\\d\0");
    server.expect(&["get", "long-gone"], 1);
    server.expect(&["dump", output.to_str().unwrap()], 0);
    let dumped = std::fs::read_to_string(&output).unwrap();
    let mut dumped: Vec<&str> = dumped.lines().collect();
    dumped.sort_unstable();
    assert_eq!(dumped, lines);
}

#[test]
fn faulty_line_of_a_file_is_named() {
    let server = RunningServer::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("faulty.tsv");
    std::fs::write(&path, "a\t1\nb\t2\nno tab here\n").unwrap();
    let output = server.run(&["load", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("faulty.tsv, line 3: "), "{error}");
    assert!(
        error.starts_with("todana: ")
            && error.ends_with("\n2 records loaded, 0 expired skipped, 0 refused\n")
    );
    assert_eq!(server.expect(&["get", "a", "b"], 0), "1\n2\n");
}

/// Returns the value and the source of an option, as `config show` prints them.
fn shown(output: &Output, name: &str) -> (String, String) {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let line = out.lines().find(|line| line.starts_with(&format!("{name} = ")));
    let (pair, origin) = line.unwrap_or_else(|| panic!("no {name} in {out}")).rsplit_once(" # ").unwrap();
    (pair.split_once(" = ").unwrap().1.trim().to_string(), origin.to_string())
}

#[test]
fn precedence_is_flag_environment_file_default() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("todana.toml");
    let content = "memory-limit = 100\nthreads = 2\nmax-item-size = \"2m\"\ndisable-evictions = true\n";
    std::fs::write(&file, content).unwrap();
    let show = |flags: &[&str], environment: &[(&str, &str)], with_file: bool| {
        let mut command = todana();
        command.args(["config", "show", "--"]).args(flags).envs(environment.iter().copied());
        if with_file {
            command.env("TODANA_CONFIG", &file);
        }
        command.output().unwrap()
    };
    let pair = |value: &str, origin: &str| (value.to_string(), origin.to_string());
    let both = [("TODANA_MEMORY_LIMIT", "200"), ("TODANA_THREADS", "3")];
    let all = show(&["-m", "300"], &both, true);
    assert_eq!(shown(&all, "memory-limit"), pair("300", "flag"));
    assert_eq!(shown(&all, "threads"), pair("3", "environment"));
    assert_eq!(shown(&all, "max-item-size"), pair("\"2m\"", "file"));
    assert_eq!(shown(&all, "disable-evictions"), pair("true", "file"));
    assert_eq!(shown(&all, "conn-limit"), pair("1024", "default"));
    assert_eq!(shown(&show(&[], &both, true), "memory-limit"), pair("200", "environment"));
    assert_eq!(shown(&show(&[], &[], true), "memory-limit"), pair("100", "file"));
    assert_eq!(shown(&show(&[], &[], false), "memory-limit"), pair("64", "default"));
    assert_eq!(shown(&show(&["-M"], &[], false), "disable-evictions"), pair("true", "flag"));
}

#[test]
fn variables_may_be_empty_and_switches_are_words() {
    let show = |environment: &[(&str, &str)]| {
        let mut command = todana();
        command.args(["config", "show"]).envs(environment.iter().copied()).output().unwrap()
    };
    let pair = |value: &str, origin: &str| (value.to_string(), origin.to_string());
    let empty = show(&[("TODANA_PORT", ""), ("TODANA_DISABLE_EVICTIONS", ""), ("TODANA_CONFIG", "")]);
    assert_eq!(shown(&empty, "port"), pair("11211", "default"));
    assert_eq!(shown(&empty, "disable-evictions"), pair("false", "default"));
    for (value, is_set) in [("1", "true"), ("yes", "true"), ("TRUE", "true"), ("0", "false"), ("no", "false")]
    {
        let output = show(&[("TODANA_DISABLE_EVICTIONS", value)]);
        assert_eq!(shown(&output, "disable-evictions"), pair(is_set, "environment"), "{value}");
    }
    let several = show(&[("TODANA_LISTEN", "127.0.0.1,::1"), ("TODANA_VERBOSE", "2")]);
    assert_eq!(shown(&several, "listen"), pair("\"127.0.0.1,::1\"", "environment"));
    assert_eq!(shown(&several, "verbose"), pair("2", "environment"));
}

#[test]
fn wrong_variable_is_named() {
    for (name, value) in [
        ("TODANA_PORT", "70000"),
        ("TODANA_THREADS", "many"),
        ("TODANA_THREADS", "0"),
        ("TODANA_DISABLE_EVICTIONS", "perhaps"),
        ("TODANA_VERBOSE", "true"),
        ("TODANA_LOG_FORMAT", "xml"),
    ] {
        for words in [&["serve"][..], &["config", "show"], &[]] {
            let output = todana().args(words).env(name, value).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{name}={value}");
            let error = text(&output.stderr);
            assert!(error.starts_with(&format!("todana: {name}: ")), "{name}={value}: {error}");
        }
    }
}

/// `serve` parses its own words, but its help still shows the variables.
#[test]
fn serve_help_shows_variables_even_beside_errors() {
    let output = todana().args(["serve", "--help"]).env("TODANA_THREADS", "many").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    assert!(help.contains("Usage: todana serve [OPTIONS]"), "{help}");
    assert!(help.contains("[env: TODANA_PORT=]") && help.contains("[env: TODANA_THREADS=many]"), "{help}");
    let output = todana().args(["help", "serve"]).env("TODANA_THREADS", "many").output().unwrap();
    assert_eq!(text(&output.stdout), help);
}

#[test]
fn config_show_of_a_file_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first.toml"), folder.path().join("second.toml"));
    std::fs::write(&first, "threads = 3\n").unwrap();
    let show = |file: &Path| {
        let output =
            todana().args(["config", "show", "--", "--config", file.to_str().unwrap()]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = show(&first);
    assert!(shown.lines().any(|line| line.starts_with("# config = ") && line.ends_with("# flag")), "{shown}");
    std::fs::write(&second, &shown).unwrap();
    assert!(show(&second).lines().any(|line| line.starts_with("threads = 3 ") && line.ends_with("# file")));
}

#[test]
fn sync_without_persistence_is_wrong_usage() {
    let error_of = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let what = "needs --data-dir DIR or a database on disk";
    assert_eq!(error_of(todana().args(["serve", "--sync", "1000"])), format!("todana: --sync: {what}\n"));
    let by_environment = error_of(todana().arg("serve").env("TODANA_SYNC", "always"));
    assert_eq!(by_environment, format!("todana: TODANA_SYNC: {what}\n"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("todana.toml");
    std::fs::write(&file, "sync = \"never\"\n").unwrap();
    let by_file = error_of(todana().args(["config", "check", file.to_str().unwrap()]));
    assert_eq!(by_file, format!("todana: {}, line 1: {what}\n", file.display()));
}

#[test]
fn several_process_ids_are_not_a_server() {
    let error_of = |words: &[&str]| {
        let output = todana().args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        text(&output.stderr)
    };
    let second = error_of(&["bench", "--pid", "12", "345"]);
    assert_eq!(second, "todana: 345: is not a server; --pid takes a single process id\n");
    assert_eq!(error_of(&["bench", "replay", "zipf", "345", "--pid", "12"]), second);
    let third = error_of(&["bench", "--pid", "12", "345", "678"]);
    assert!(third.contains("--pid takes one process id"), "{third}");
    for list in ["12 345", "12,345"] {
        let error = error_of(&["bench", "--pid", list]);
        assert!(error.contains("there are several; one is measured"), "{error}");
    }
}

#[test]
fn config_show_prints_an_equivalent_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shown.toml");
    let words = ["config", "show", "--", "-m", "99", "-I", "3m", "-t", "7", "-A", "-s", "/nowhere/socket"];
    let first = todana().args(words).output().unwrap();
    std::fs::write(&file, &first.stdout).unwrap();
    let checked = todana().args(["config", "check", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    let second = todana().args(["config", "show"]).env("TODANA_CONFIG", &file).output().unwrap();
    for name in ["memory-limit", "max-item-size", "threads", "enable-shutdown", "unix-socket"] {
        assert_eq!(shown(&second, name), (shown(&first, name).0, "file".into()), "{name}");
    }
}

fn check(directory: &Path, content: &str) -> Output {
    let file = directory.join("todana.toml");
    std::fs::write(&file, content).unwrap();
    todana().args(["config", "check", file.to_str().unwrap()]).output().unwrap()
}

#[test]
fn unknown_key_gets_line_and_suggestion() {
    let directory = tempfile::tempdir().unwrap();
    let output = check(directory.path(), "port = 11300\n\n# a comment\nmemroy-limit = 5\n");
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("todana.toml, line 4: "), "{error}");
    assert!(error.contains("\"memroy-limit\"") && error.contains("\"memory-limit\""), "{error}");
}

#[test]
fn unknown_key_with_known_prefix_has_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let output = check(directory.path(), "threads = 2\nport = 11300\nthread = 3\n");
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("todana.toml, line 3: "), "{error}");
}

#[test]
fn repeated_default_is_shown_as_from_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("todana.toml");
    std::fs::write(&file, "port = 11211\n").unwrap();
    let output = todana().args(["config", "show"]).env("TODANA_CONFIG", &file).output().unwrap();
    assert_eq!(shown(&output, "port"), ("11211".into(), "file".into()));
}

#[test]
fn wrong_usage_of_bench_has_its_exit_code() {
    for words in [["--threads", "0"], ["--key-size", "1"]] {
        let output = todana().arg("bench").args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn impossible_config_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (content, part) in [
        ("port = \n", "line 1"),
        ("threads = 0\n", "-t"),
        ("threads = \"many\"\n", "many"),
        ("port = 70000\n", "70000"),
        ("memory-limit = 8\nmax-item-size = \"5m\"\n", "-I"),
        ("threads = { a = 1 }\n", "line 1"),
    ] {
        let output = check(directory.path(), content);
        assert_eq!(output.status.code(), Some(2), "{content:?}");
        assert!(text(&output.stderr).contains(part), "{content:?}: {}", text(&output.stderr));
    }
    for (content, place) in [
        ("\nthreads = \"many\"\n", "line 2: invalid value 'many'"),
        ("# \nport = 70000\n", "line 2: invalid value '70000'"),
        ("memory-limit = 64\nthreads = 0\n", "line 2: threads must be"),
        ("verbose = true\n", "line 1: verbose must be a number"),
        ("disable-evictions = 2\n", "line 1: disable-evictions must be one of"),
        ("log-format = \"xml\"\n", "line 1: invalid value 'xml' for '--log-format <LOG_FORMAT>' [possible"),
        ("listen = []\n", "line 1: listen must have a value"),
        ("port = [1, 2]\n", "line 1: port must be a single value"),
        ("config = \"other.toml\"\n", "line 1: config is not allowed in a file"),
    ] {
        let output = check(directory.path(), content);
        assert_eq!(output.status.code(), Some(2), "{content:?}");
        let error = text(&output.stderr);
        let file = directory.path().join("todana.toml");
        assert!(error.starts_with(&format!("todana: {}, {place}", file.display())), "{content:?}: {error}");
    }
    // Each line is right on its own; only their combination is wrong.
    let output = check(directory.path(), "memory-limit = 8\nmax-item-size = \"5m\"\n");
    assert!(text(&output.stderr).starts_with("todana: the item size may"), "{}", text(&output.stderr));
    let missing = todana().args(["config", "check", "/nowhere/todana.toml"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("/nowhere/todana.toml"));
}

#[test]
fn completions_contain_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let output = todana().args(["completions", shell]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let script = text(&output.stdout);
        for command in COMMANDS {
            let is_known = script
                .split(|other: char| !other.is_ascii_alphanumeric() && other != '-')
                .any(|word| word == command);
            assert!(is_known, "{shell}: {command}");
        }
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = todana().arg("man").arg(file.join("man1")).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let error = text(&output.stderr);
    assert!(error.contains(file.join("man1").to_str().unwrap()), "{error}");
    let pages = directory.path().join("made").join("man1");
    let status = todana().arg("man").arg(&pages).status().unwrap();
    assert_eq!(status.code(), Some(0));
    let main = std::fs::read_to_string(pages.join("todana.1")).unwrap();
    for command in COMMANDS {
        assert!(main.contains(&format!("todana\\-{command}(1)")), "{command}");
        let page = std::fs::read_to_string(pages.join(format!("todana-{command}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(command), "{command}");
    }
}

#[test]
fn bench_writes_results_as_json() {
    let server = RunningServer::start(&[]);
    for protocol in ["text", "meta"] {
        let words = ["bench", "--requests", "2000", "--keys", "500", "--verify", "--force", "--json", "-"];
        let out = server.expect(&[&words[..], &["--protocol", protocol]].concat(), 0);
        let results: serde_json::Value = serde_json::from_str(&out).unwrap();
        let result = &results["servers"][0];
        assert_eq!(result["server"], server.address);
        let round = &result["rounds"][0];
        let number = |name: &str| round[name].as_u64().unwrap();
        assert_eq!((number("errors"), number("requests")), (0, 2_000), "{protocol}");
        assert_eq!(number("gets") + number("sets"), 2_000);
        assert_eq!(number("hits"), number("gets"), "all keys were stored first");
    }
    // The server by -S, as everywhere, or as an argument.
    for named in [&["-S", &server.address][..], &[&server.address]] {
        let words = ["bench", "--requests", "10", "--keys", "10", "--force", "--json", "-"];
        let output = todana().args(words).args(named).env("TODANA_SERVER", "127.0.0.1:1").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(results["servers"][0]["server"], server.address);
    }
}

#[test]
fn password_in_an_invalid_address_is_not_repeated() {
    let wrong = "todana://a:s3cret%@h";
    for words in
        [vec!["checkpoint", wrong], vec!["get", "-S", wrong, "k"], vec!["bench", wrong], vec!["log", wrong]]
    {
        let output = todana().args(&words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("todana://...@h") && !said.contains("s3cret"), "{words:?}: {said}");
    }
}
