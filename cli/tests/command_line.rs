//! The real program: its banner, its commands, its exit codes, its configuration.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn todana() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_todana"));
    // What this machine has set must not decide a test.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TODANA_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

struct Server {
    child: Child,
    banner: Vec<String>,
    address: String,
}

impl Server {
    fn start(options: &[&str]) -> Server {
        let mut child =
            todana().args(["serve", "-p", "-1"]).args(options).stdout(Stdio::piped()).spawn().unwrap();
        let banner: Vec<String> =
            BufReader::new(child.stdout.take().unwrap()).lines().take(3).map(Result::unwrap).collect();
        let address = banner[1].strip_prefix("listening on ").unwrap().to_string();
        Server { child, banner, address }
    }

    fn run(&self, words: &[&str]) -> Output {
        todana().args(words).args(["-S", &self.address]).output().unwrap()
    }

    /// Standard output and exit code.
    fn says(&self, words: &[&str]) -> (String, i32) {
        let output = self.run(words);
        (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn said(text: &str, code: i32) -> (String, i32) {
    (text.to_string(), code)
}

#[test]
fn the_banner_says_in_three_lines_what_where_and_how() {
    let server = Server::start(&["-m", "100", "-t", "2"]);
    assert!(server.banner[0].contains("100 MiB") && server.banner[0].contains("persistence: off"));
    assert!(server.address.starts_with("127.0.0.1:"));
    assert!(server.banner[2].starts_with("try: todana set hello world"));
}

#[test]
fn records_are_set_read_counted_touched_and_removed() {
    let server = Server::start(&[]);
    assert_eq!(server.says(&["set", "hello", "world"]), said("", 0));
    assert_eq!(server.says(&["get", "hello"]), said("world", 0));
    assert_eq!(server.says(&["get", "missing"]), said("", 1));
    assert_eq!(server.says(&["get", "hello", "missing"]), said("world\n", 1));
    assert_eq!(server.says(&["set", "hello", "x", "--add"]), said("", 1));
    assert_eq!(server.says(&["set", "hello", "!", "--append", "--flags", "3"]), said("", 0));
    assert_eq!(server.says(&["get", "hello"]), said("world!", 0));
    assert_eq!(server.says(&["incr", "n"]), said("", 1));
    assert_eq!(server.says(&["set", "n", "5", "--ttl", "1000"]), said("", 0));
    assert_eq!(server.says(&["incr", "n", "7"]), said("12\n", 0));
    assert_eq!(server.says(&["decr", "n", "100"]), said("0\n", 0));
    assert_eq!(server.says(&["touch", "n", "-1"]), said("", 0));
    assert_eq!(server.says(&["get", "n"]), said("", 1));
    assert_eq!(server.says(&["delete", "hello"]), said("", 0));
    assert_eq!(server.says(&["delete", "hello"]), said("", 1));
    server.says(&["set", "v", "1"]);
    let (json, code) = server.says(&["get", "v", "--json"]);
    assert_eq!(code, 0);
    let object: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((object["value"].as_str(), object["bytes"].as_u64()), (Some("1"), Some(1)));
    let version = object["version"].as_u64().unwrap().to_string();
    assert_eq!(server.says(&["set", "v", "2", "--cas", &version]), said("", 0));
    assert_eq!(server.says(&["set", "v", "3", "--cas", &version]), said("", 1));
    assert_eq!(server.says(&["flush"]), said("", 0));
    assert_eq!(server.says(&["get", "v"]), said("", 1));
    let (stats, code) = server.says(&["stats"]);
    assert!(code == 0 && stats.contains("curr_items"), "{stats}");
    assert!(server.says(&["ping"]).0.contains("answers: version 1.6"));
}

#[test]
fn failures_have_their_codes_and_say_why() {
    let server = Server::start(&[]);
    let output = server.run(&["get", "a key with blanks"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("without blanks"));
    let output = server.run(&["set", "big", &"x".repeat(100_000), "--ttl", "x"]);
    assert_eq!(output.status.code(), Some(2));
    let mut lost = todana();
    let output = lost.args(["get", "k", "-S", "127.0.0.1:1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot connect to 127.0.0.1:1"));
    let output = todana().args(["serve", "-m", "3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("(-m)"));
    let output = todana().args(["serve", "-p", server.address.rsplit(':').next().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot listen on"));
}

#[test]
fn what_is_dumped_can_be_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("first.tsv"), directory.path().join("second.tsv"));
    let mut text = String::new();
    for n in 0..3000 {
        text.push_str(&format!("key:{n:05}\tvalue \\t {n} \\x00\\n\t{}\n", n % 3));
    }
    std::fs::write(&first, &text).unwrap();
    let server = Server::start(&[]);
    let output = server.run(&["load", first.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "3000 records loaded, 0 expired ones skipped, 0 refused\n"
    );
    assert_eq!(server.run(&["get", "key:00007"]).stdout, b"value \t 7 \0\n");
    let output = server.run(&["dump", second.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sorted = |text: &str| {
        let mut lines: Vec<String> =
            text.lines().map(|line| line.trim_end_matches("\t0").to_string()).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&std::fs::read_to_string(&second).unwrap()), sorted(&text));
    std::fs::write(&first, "good\tline\nno tab here\n").unwrap();
    let output = server.run(&["load", first.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 2: there is no tab"));
}

/// One option of each kind, set by each of the three ways: (name, value by file, by environment, by flag).
#[test]
fn a_flag_counts_before_the_environment_before_the_file_before_the_default() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("todana.toml");
    let cases = [
        ("memory-limit", "100", "200", "300"),
        ("threads", "1", "2", "3"),
        ("conn-limit", "11", "12", "13"),
        ("max-item-size", "2048", "4096", "8192"),
        ("listen-backlog", "1", "2", "3"),
        ("max-reqs-per-event", "1", "2", "3"),
        ("port", "1", "2", "3"),
        ("unix-mask", "750", "770", "777"),
        ("log-format", "json", "text", "json"),
        ("listen", "127.0.0.2", "127.0.0.3", "127.0.0.4"),
        ("pidfile", "a", "b", "c"),
    ];
    let shown = |command: &mut Command, name: &str| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} = ")))
            .unwrap_or_else(|| panic!("{name}: {text}"));
        let (setting, origin) = line.split_once(" # ").unwrap();
        let value = setting.split_once(" = ").unwrap().1.trim().trim_matches('"').to_string();
        (value, origin.to_string())
    };
    for (name, in_file, in_environment, by_flag) in cases {
        std::fs::write(&file, format!("{name} = \"{in_file}\"\n")).unwrap();
        let variable = format!("TODANA_{}", name.to_uppercase().replace('-', "_"));
        let flag = format!("--{name}={by_flag}");
        let config = ["--config", file.to_str().unwrap()];
        let show = || {
            let mut command = todana();
            command.args(["config", "show", "--"]).args(config);
            command
        };
        assert_eq!(shown(&mut show(), name), (in_file.into(), "file".into()));
        assert_eq!(
            shown(show().env(&variable, in_environment), name),
            (in_environment.into(), "environment".into())
        );
        assert_eq!(
            shown(show().env(&variable, in_environment).arg(&flag), name),
            (by_flag.into(), "flag".into())
        );
    }
    for name in ["disable-evictions", "enable-shutdown", "disable-flush-all"] {
        std::fs::write(&file, format!("{name} = true\n")).unwrap();
        let mut show = todana();
        show.args(["config", "show", "--", "--config", file.to_str().unwrap()]);
        assert_eq!(shown(&mut show, name), ("true".into(), "file".into()));
    }
    assert_eq!(shown(todana().args(["config", "show"]), "threads"), ("4".into(), "default".into()));
}

#[test]
fn a_faulty_file_is_told_by_line_and_nearest_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("todana.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = todana().args(["config", "check", file.to_str().unwrap()]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = check("threads = 2\nmemory-limt = 100\n");
    assert!(code == Some(2) && error.contains("line 2") && error.contains("\"memory-limit\""), "{error}");
    assert_eq!(check("threads = \"many\"\n").0, Some(2));
    assert_eq!(check("threads = \n").0, Some(2));
    assert_eq!(check("threads = 2\nlisten = [\"127.0.0.1\", \"::1\"]\n").0, Some(0));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let commands = [
        "serve", "config", "get", "set", "delete", "incr", "touch", "stats", "flush", "load", "dump", "bench",
    ];
    for shell in ["bash", "zsh", "fish"] {
        let output = todana().args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        commands.iter().for_each(|command| assert!(script.contains(command), "{shell}: {command}"));
    }
    assert!(todana().arg("man").arg(directory.path()).status().unwrap().success());
    for command in commands {
        let page = std::fs::read_to_string(directory.path().join(format!("todana-{command}.1"))).unwrap();
        assert!(page.contains(".SH NAME"), "{command}");
    }
}

#[test]
fn a_signal_or_a_command_stops_it_cleanly() {
    for signal in ["TERM", "INT", "USR1"] {
        let directory = tempfile::tempdir().unwrap();
        let pid_file = directory.path().join("pid");
        let mut server = Server::start(&["-P", pid_file.to_str().unwrap()]);
        server.says(&["set", "k", "v"]);
        assert_eq!(std::fs::read_to_string(&pid_file).unwrap().trim(), server.child.id().to_string());
        server.signal(signal);
        assert_eq!(server.child.wait().unwrap().code(), Some(0), "{signal}");
        assert!(!Path::new(&pid_file).exists());
    }
    let mut server = Server::start(&["-A"]);
    TcpStream::connect(&server.address).unwrap().write_all(b"shutdown\r\n").unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_unix_socket_serves_and_a_stale_one_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("todana.sock");
    let name = path.to_str().unwrap();
    let mut server = Server::start(&["-s", name, "-a", "600"]);
    let address = format!("unix:{name}");
    let run = |words: &[&str]| todana().args(words).args(["-S", &address]).output().unwrap();
    assert!(run(&["set", "k", "v"]).status.success());
    assert_eq!(run(&["get", "k"]).stdout, b"v");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // Somebody answers there.
    assert_eq!(todana().args(["serve", "-s", name]).output().unwrap().status.code(), Some(3));
    server.signal("KILL");
    server.child.wait().unwrap();
    assert!(path.exists());
    let _second = Server::start(&["-s", name]);
    assert!(run(&["set", "k", "v"]).status.success());
}

#[test]
fn the_benchmark_counts_right_and_writes_what_programs_read() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("plot.svg");
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    for protocol in ["text", "meta"] {
        let output = todana()
            .args(["bench", &first.address, "--vs", &second.address, "--requests", "3000", "--keys", "500"])
            .args([
                "--connections",
                "7",
                "--pipeline",
                "4",
                "--verify",
                "--rounds",
                "2",
                "--protocol",
                protocol,
            ])
            .args(["--distribution", "zipf:0.9", "--value-size", "0-100", "--json", "-"])
            .args(["--pid", &first.child.id().to_string(), "--plot", plot.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for server in json["servers"].as_array().unwrap() {
            let rounds = server["rounds"].as_array().unwrap();
            assert_eq!(rounds.len(), 2);
            for round in rounds {
                assert_eq!(round["requests"], 3000);
                assert_eq!(round["errors"], 0);
                assert_eq!(round["hits"], round["gets"]);
            }
        }
        assert!(json["servers"][0]["medians"]["server CPU"]["value"].as_f64().unwrap() > 0.0);
        assert!(std::fs::read_to_string(&plot).unwrap().contains("<polyline"));
    }
    let output = first.run(&["get", "00000007"]);
    assert!(output.status.success());
}

#[test]
fn it_serves_as_it_says_in_the_readme_without_any_argument() {
    // Only that the words are understood: the default port may be taken on this machine.
    let output = todana().args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for option in [
        "-p",
        "-l",
        "-s",
        "-a",
        "-m",
        "-M",
        "-c",
        "-t",
        "-I",
        "-v",
        "-P",
        "-b",
        "-R",
        "TODANA_PORT",
        "Examples:",
    ] {
        assert!(help.contains(option), "{option}");
    }
    let mut rest = String::new();
    todana()
        .arg("--version")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
        .stdout
        .unwrap()
        .read_to_string(&mut rest)
        .unwrap();
    assert!(rest.starts_with("todana 0."));
}
