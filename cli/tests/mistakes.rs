//! Mistakes of new users, and the messages about them. Each message here once did not exist, used
//! the wording of Rust, or guessed wrong.

mod running;

use running::{RunningServer, TestFolder, expect, refused, run, text, todana};
use std::io::Write;
use std::net::TcpListener;

/// A command, its exit code, and its standard error; `{S}` is the address of a server.
const SAID: &[(&str, i32, &str)] = &[
    ("get nope", 1, "todana: nope: no such record\n"),
    ("get a nope b never", 1, "todana: nope: no such record\ntodana: never: no such record\n"),
    ("get nope -q", 1, ""),
    ("delete nope a never", 1, "todana: nope: no such record\ntodana: never: no such record\n"),
    ("delete nope --quiet", 1, ""),
    ("incr nope", 1, "todana: nope: no such record\n"),
    ("decr nope 2", 1, "todana: nope: no such record\n"),
    ("touch nope 5m", 1, "todana: nope: no such record\n"),
    ("touch nope --ttl 5m -q", 1, ""),
    ("set b 1 --add", 1, "todana: b: not stored: the record exists already\n"),
    ("set nope 1 --replace", 1, "todana: nope: not stored: no such record\n"),
    ("set nope 1 --append", 1, "todana: nope: not stored: no such record\n"),
    ("set nope 1 --cas 5", 1, "todana: nope: not stored: no such record\n"),
    ("set b 1 --cas 5", 1, "todana: b: not stored: the record has another version\n"),
    ("set b 1 --cas 5 -q", 1, ""),
];

#[test]
fn misses_are_named() {
    let folder = TestFolder::new();
    let server = RunningServer::start(&["--admin-port", "0"]);
    for place in [server.address.clone(), folder.path("x.hash"), folder.path("x.tree")] {
        for key in ["a", "b"] {
            expect(&["set", key, key, "-S", &place], 0);
        }
        for (line, code, said) in SAID {
            let words: Vec<&str> = line.split(' ').chain(["-S", &place]).collect();
            let output = run(&words);
            assert_eq!(
                (output.status.code(), text(&output.stderr)),
                (Some(*code), said.to_string()),
                "{line}"
            );
        }
        // The other records were removed, and existing ones are printed.
        assert_eq!(expect(&["list", &place], 0), "b\n");
        let several = run(&["get", "b", "nope", "b", "-S", &place]);
        assert_eq!(text(&several.stdout), "b\nb\n");
        assert_eq!(expect(&["get", "b", "b", "--keys", "-S", &place], 0), "b\tb\nb\tb\n");
        assert_eq!(expect(&["get", "b", "-S", &place], 0), "b");
    }
}

#[test]
fn numbers_and_times_have_units() {
    let folder = TestFolder::new();
    let server = RunningServer::start(&["--admin-port", "0"]);
    let not_a_time = "must be seconds, or a number with s, m, h, d or w (90, 5m, 1h, 2d)";
    for (line, problem) in [
        ("set a 1 --ttl abc", format!("invalid value 'abc' for '--ttl <TTL>': {not_a_time}")),
        ("set a 1 --flags x", "invalid value 'x' for '--flags <FLAGS>': must be a whole number".into()),
        (
            "set a 1 --cas 99999999999999999999",
            "invalid value '99999999999999999999' for '--cas <VERSION>': out of range".into(),
        ),
        ("set a 1 --cas 1.5", "invalid value '1.5' for '--cas <VERSION>': must be a whole number".into()),
        ("incr a 1.5", "invalid value '1.5' for '[BY]': must be a whole number".into()),
        ("list --limit many", "invalid value 'many' for '--limit <COUNT>': must be a whole number".into()),
        ("bench --keys 1k", "invalid value '1k' for '--keys <KEYS>': must be a whole number".into()),
        (
            "bench replay uniform --requests x",
            "invalid value 'x' for '--requests <N>': must be a whole number".into(),
        ),
        ("touch a soon", format!("invalid value 'soon' for '[TIME]': {not_a_time}")),
        ("flush --delay x", format!("invalid value 'x' for '--delay <DELAY>': {not_a_time}")),
    ] {
        let said = refused(&line.split(' ').collect::<Vec<_>>(), 2);
        assert!(said.starts_with(&format!("error: {problem}\n")), "{line}: {said}");
    }
    for place in [server.address.clone(), folder.path("x.hash")] {
        let at = |line: &str| run(&line.split(' ').chain(["-S", &place]).collect::<Vec<_>>());
        for line in ["set a 1 --ttl 5m", "set a 1 --ttl 60d", "touch a 1h", "touch a --ttl 2w", "touch a 0"] {
            let output = at(line);
            assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{line}");
            assert_eq!(text(&at("get a").stdout), "1", "{line}");
        }
        let gone = "todana: --ttl -1: the record expires immediately, unless the server has negative_exptime=sliding\n";
        assert_eq!(text(&at("set a 1 --ttl -1").stderr), gone);
        assert_eq!(at("get a").status.code(), Some(1));
        let past = "todana: --ttl 5000000: values above 30 days are Unix times, and this one has passed; write 40d for a duration\n";
        assert_eq!(text(&at("set a 1 --ttl 5000000").stderr), past);
        assert_eq!(text(&at("incr n --initial 7").stdout), "7\n");
        assert_eq!(text(&at("incr n 2 --initial 7").stdout), "9\n");
        assert_eq!(text(&at("decr m --initial 3").stdout), "3\n");
    }
    let limit = |text: &str| {
        let shown = expect(&["config", "show", "--memory-limit", text, "--idle-timeout", "5m"], 0);
        assert!(shown.contains("idle-timeout = \"5m\""), "{shown}");
        shown.lines().find(|line| line.starts_with("memory-limit")).unwrap().to_string()
    };
    assert!(limit("1G").starts_with("memory-limit = \"1G\""));
    assert!(limit("512").starts_with("memory-limit = 512"));
    assert!(RunningServer::start(&["-m", "1G"]).banner[0].contains(", 1024 MiB, "));
    assert!(refused(&["serve", "-m", "1k"], 2).contains("must be at least 1 MiB"));
}

#[test]
fn commands_of_other_tools_are_understood_or_answered() {
    let folder = TestFolder::new();
    folder.import("x.hash", "a\t1\n");
    assert!(folder.expect(&["info", "x.hash"], 0).starts_with("kind "));
    assert_eq!(folder.expect(&["keys", "x.hash"], 0), "a\n");
    folder.expect(&["del", "a", "-S", "x.hash"], 0);
    assert_eq!(expect(&["version"], 0), expect(&["--version"], 0));
    for (typed, meant) in [
        ("gte", "did you mean `todana get`?"),
        ("sta", "did you mean `todana stats`?"),
        ("scan", "use `todana list`"),
        ("monitor", "use `todana log --follow`"),
        ("server", "use `todana serve`"),
        ("save", "use `todana checkpoint`"),
        ("repl", "use `todana shell`"),
    ] {
        let said = refused(&[typed], 2);
        let hint = format!("error: unrecognized subcommand '{typed}'\n\n  tip: {meant}\n");
        assert!(said.starts_with(&hint), "{said}");
    }
    assert!(!refused(&["xyzzyplugh"], 2).contains("tip:"));
    for option in ["-u", "-d", "-k", "-r"] {
        let said = refused(&["serve", option, "nobody"], 2);
        let tip =
            format!("tip: {option} is an option of memcached; use `todana as memcached {option} nobody`");
        assert!(said.contains(&tip), "{said}");
    }
}

#[test]
fn wrong_servers_are_explained() {
    let server = RunningServer::start(&[]);
    let metrics = server.banner[0].split("http://").nth(1).unwrap().split('/').next().unwrap().to_string();
    let said = refused(&["get", "a", "-S", &metrics], 3);
    assert!(said.starts_with("todana: the server speaks HTTP; "), "{said}");
    for (address, port) in [("127.0.0.1:99999", "99999"), ("localhost:abc", "abc")] {
        let said = refused(&["get", "a", "-S", address], 2);
        assert!(said.contains(&format!("port {port} must be a number from 0 to 65535")), "{said}");
    }
    assert_eq!(
        refused(&["stats", "foo", "-S", &server.address], 2),
        "todana: stats foo: unknown group; the groups are items, slabs, sizes, settings, conns, databases, detail on|off|dump, cachedump CLASS LIMIT, reset\n"
    );
    let large = "v".repeat(100_000);
    let small = RunningServer::start(&["-I", "8k", "--admin-port", "0"]);
    let said = refused(&["set", "a", &large, "-S", &small.address], 3);
    assert!(said.ends_with(
        "`todana stats settings` shows the limit (item_size_max), and `serve -I SIZE` raises it\n"
    ));
    for words in [&["checkpoint"][..], &["backup", "target"], &["log"]] {
        let said = text(&server.run(words).stderr);
        assert!(
            said.ends_with("without --data-dir; `todana dump` copies its records\n"),
            "{words:?}: {said}"
        );
    }
    // This server accepts connections and never replies.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hung.local_addr().unwrap().to_string();
    let said = refused(&["ping", "-S", &address], 3);
    assert_eq!(said, format!("todana: {address}: the server does not answer\n"));
}

#[test]
fn every_data_command_accepts_the_server_option() {
    let folder = TestFolder::new();
    let server = RunningServer::start(&["--admin-port", "0"]);
    let lines = folder.path("lines.tsv");
    std::fs::write(&lines, "a\t1\n").unwrap();
    let by_option = |words: &[&str]| folder.expect(&[words, &["-S", &server.address]].concat(), 0);
    let by_variable = |words: &[&str]| server.expect(words, 0);
    type RunCommand<'w> = &'w dyn Fn(&[&str]) -> String;
    let ways: [RunCommand<'_>; 2] = [&by_option, &by_variable];
    for at in ways {
        at(&["import", &lines]);
        assert_eq!(
            (at(&["count"]), at(&["list"]), at(&["export"])),
            ("1\n".into(), "a\n".into(), "a\t1\n".into())
        );
        let target = folder.path("out.tsv");
        at(&["export", &target]);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "a\t1\n");
        let facts = at(&["inform"]);
        assert!(facts.lines().count() < 12 && facts.contains("records       1\n"), "{facts}");
        at(&["flush"]);
    }
    // A directory is never a host. The message says how to name a server.
    std::fs::create_dir(folder.path("empty")).unwrap();
    for words in [&["count", "empty"][..], &["get", "a", "-S", "empty"], &["check", "empty"]] {
        let said = folder.run(words);
        assert!(text(&said.stderr).contains(" data directory"), "{words:?}: {}", text(&said.stderr));
    }
    assert!(folder.complaint(&["count", "x.hash", "-S", &server.address], 2).contains("give only one"));
}

#[test]
fn unusable_files_are_named() {
    let folder = TestFolder::new();
    let server = RunningServer::start(&["--admin-port", "0"]);
    std::fs::write(folder.path("broken.tsv"), "no tab\n").unwrap();
    std::fs::write(folder.path("half.tsv"), "a\t1\nno tab\n").unwrap();
    folder.import("x.hash", "a\t1\n");
    for place in [server.address.as_str(), "x.hash"] {
        let at = |words: &[&str]| folder.complaint(&[words, &["-S", place]].concat(), 3);
        assert_eq!(at(&["dump", "gone/x.tsv"]), "todana: gone/x.tsv: the directory gone does not exist\n");
        assert!(at(&["load", "gone.tsv"]).starts_with("todana: gone.tsv: No such file"));
        let broken = folder.complaint(&["load", "broken.tsv", "-S", place], 2);
        assert!(broken.starts_with("todana: broken.tsv") && broken.lines().count() == 1, "{broken}");
        let half = folder.complaint(&["load", "half.tsv", "-S", place], 2);
        assert!(
            half.starts_with("todana: half.tsv") && half.contains("\n1 record loaded, 0 expired"),
            "{half}"
        );
        let output = folder.run(&["dump", "one.tsv", "-S", place]);
        assert_eq!(text(&output.stderr), "1 record written\n");
    }
}

#[test]
fn unknown_variables_draw_a_warning() {
    let warned = |name: &str| {
        let output = todana().args(["config", "show"]).env(name, "1").output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        text(&output.stderr)
    };
    assert_eq!(warned("TODANA_PROT"), "todana: TODANA_PROT: unknown variable; did you mean TODANA_PORT?\n");
    assert_eq!(warned("TODANA_SERVER"), "");
    assert_eq!(warned("TODANA_PASSWORD"), "");
    assert_eq!(warned("TODANA_ENTIRELY_ELSE"), "todana: TODANA_ENTIRELY_ELSE: unknown variable\n");
}

#[test]
fn excessive_memory_limit_draws_a_warning() {
    let mut server = RunningServer::start(&["-m", "100000000", "--admin-port", "0"]);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut server.stdout, &mut line).unwrap();
    assert!(
        line.starts_with("warning: -m 100000000: exceeds the ") && line.ends_with(" of this machine\n"),
        "{line}"
    );
}

#[test]
fn config_show_accepts_options_like_serve() {
    let folder = TestFolder::new();
    std::fs::File::create(folder.path("t.toml")).unwrap().write_all(b"port = 5\n").unwrap();
    for words in
        [&["config", "show", "--config", "t.toml"][..], &["config", "show", "--", "--config", "t.toml"]]
    {
        let shown = folder.expect(words, 0);
        assert!(
            shown.lines().any(|line| line.starts_with("port = 5 ") && line.ends_with("# file")),
            "{shown}"
        );
    }
    assert!(folder.expect(&["config", "show", "-m", "70"], 0).contains("memory-limit = 70 "));
}

#[test]
fn help_refers_only_to_installed_things() {
    for command in ["load", "dump", "list", "stats", "get"] {
        let help = expect(&[command, "--help"], 0);
        assert!(!help.contains("docs/"), "{command}: {help}");
    }
    let help = expect(&["stats", "--help"], 0);
    for group in ["items", "slabs", "sizes", "settings", "conns", "databases", "detail", "cachedump", "reset"]
    {
        assert!(help.contains(group), "{group}");
    }
    assert!(expect(&["load", "--help"], 0).contains("KEY, tab, VALUE"));
    assert!(expect(&["get", "--help"], 0).contains("without a newline"));
}

#[test]
fn damage_is_reported_with_advice() {
    let folder = TestFolder::new();
    for name in ["x.hash", "x.tree"] {
        folder.import(name, "a\t1\n");
    }
    let segment = std::fs::read_dir(folder.path("x.hash"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "segment"))
        .unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let hint = "; `todana salvage x.hash TARGET` recovers the intact records into a new database\n";
    assert!(folder.complaint(&["count", "x.hash"], 3).ends_with(hint));
    let serve = ["serve", "-p", "-1", "--admin-port", "0", "x.hash"];
    assert!(folder.complaint(&serve, 3).ends_with(hint));

    let data = format!("{}/tree/data.mdb", folder.path("x.tree"));
    let mut bytes = std::fs::read(&data).unwrap();
    let page = 4096;
    for start in [0, page] {
        bytes[start + 20..start + 24].fill(0x58);
    }
    std::fs::write(&data, bytes).unwrap();
    let said = folder.complaint(&["count", "x.tree"], 3);
    assert!(said.contains("is damaged: its version is impossible"), "{said}");
    assert!(said.ends_with("; `todana restore` creates a new tree from a backup\n"), "{said}");
}

#[test]
fn stop_and_hangup_are_logged() {
    let folder = TestFolder::new();
    let tokens = folder.path("tokens");
    std::fs::write(&tokens, "alice:s3cret\n").unwrap();
    for (options, said) in [
        (
            &[][..],
            "SIGHUP: nothing to reload: no certificates, users or scripts are in use, and options are read only at the start",
        ),
        (&["-Y", &tokens], "SIGHUP: reloaded users; options are read only at the start"),
    ] {
        let mut command = todana();
        command.args(["serve", "-p", "-1", "--admin-port", "0"]).args(options);
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        running::banner(&mut std::io::BufReader::new(child.stdout.take().unwrap()));
        let mut log = std::io::BufReader::new(child.stderr.take().unwrap());
        let signal = |name: &str| {
            let status =
                std::process::Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
            assert!(status.unwrap().success());
        };
        let mut line = || {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut log, &mut line).unwrap();
            line
        };
        signal("HUP");
        let first = line();
        assert!(first.contains(" INFO ") && first.ends_with(&format!("{said}\n")), "{first}");
        signal("TERM");
        let last = line();
        assert!(last.contains(" INFO ") && last.ends_with("stopped\n"), "{last}");
        assert_eq!(line(), "");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn result_lines_describe_the_result() {
    let folder = TestFolder::new();
    let (data, backup, again) = (folder.path("data"), folder.path("backup"), folder.path("again"));
    let server = RunningServer::start(&["--admin-port", "0", "--data-dir", &data]);
    server.expect(&["set", "a", "1"], 0);
    server.expect(&["checkpoint"], 0);
    let said = server.expect(&["backup", &backup], 0);
    assert!(said.starts_with(&format!("{backup}: a checkpoint of 1 record, and ")), "{said}");
    assert!(said.contains(" after it; ") && said.contains(" bytes, as of 20"), "{said}");
    let said = expect(&["restore", &backup, &again], 0);
    assert!(said.starts_with(&format!("{again}: 1 record restored, last changed 20")), "{said}");
    folder.import("x.hash", "a\t1\n");
    let output = folder.run(&["compact", "x.hash"]);
    let said = text(&output.stderr);
    assert!(said.starts_with("x.hash: nothing to compact, ") || said.contains(" before, "), "{said}");
}
