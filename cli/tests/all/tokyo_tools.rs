//! The executable under the names of Tokyo Tyrant's tools: their output and exit codes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any machine needs; it only ends a hanging test.
const TIME_MAX: Duration = Duration::from_secs(60);

/// A server in a folder of its own, and the port at which it listens.
struct ServerPlace {
    folder: TempDir,
    server: Child,
    port: String,
}

impl Drop for ServerPlace {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Runs a tool and returns its exit code, its output and its errors.
fn run(folder: &Path, tool: &str, words: &[&str], input: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_todana"));
    command.args(["as", tool]).args(words).current_dir(folder);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

impl ServerPlace {
    fn new(words: &[&str]) -> ServerPlace {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let server = Command::new(env!("CARGO_BIN_EXE_todana"))
            .args(["as", "ttserver", "-host", "127.0.0.1", "-port", "-1", "-log", "log"])
            .args(words)
            .current_dir(folder.path())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let text = loop {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.contains("listening started") {
                break text;
            }
            assert!(start.elapsed() < TIME_MAX, "the server did not start");
            std::thread::sleep(Duration::from_millis(5));
        };
        let line = text.lines().find(|line| line.contains("server configuration: ")).unwrap();
        let port = line.rsplit('=').next().unwrap().to_owned();
        ServerPlace { folder, server, port }
    }

    /// Runs tcrmgr: `VERB OPTION... -- ARGUMENT...`, with the port and the host put in.
    fn ask(&self, line: &str) -> (i32, String) {
        let (verb_and_options, arguments) = line.split_once("--").unwrap_or((line, ""));
        let mut words: Vec<&str> = verb_and_options.split_whitespace().collect();
        words.splice(1..1, ["-port", &self.port]);
        words.push("127.0.0.1");
        words.extend(arguments.split_whitespace().map(|word| if word == "''" { "" } else { word }));
        let (code, output, errors) = run(self.folder.path(), "tcrmgr", &words, "");
        (code, output + &errors)
    }

    fn expect(&self, line: &str, output: &str) {
        assert_eq!(self.ask(line), (0, output.to_owned()), "{line}");
    }

    fn expect_error(&self, line: &str, error: &str) {
        assert_eq!(self.ask(line), (1, format!("tcrmgr: error: {error}\n")), "{line}");
    }
}

#[test]
fn commands_on_records_print_what_original_prints() {
    let place = ServerPlace::new(&["+"]);
    place.expect("put -- one first", "");
    place.expect("get -- one", "first\n");
    place.expect("get -pz -- one", "first");
    place.expect("get -px -- one", "66 69 72 73 74\n");
    place.expect_error("get -- two", "7: no record found");
    place.expect_error("put -dk -- one x", "6: existing record");
    place.expect("put -dc -- one ++", "");
    place.expect("put -ds 5 -- one 9", "");
    place.expect("get -- one", "st++9\n");
    place.expect("put -dai -- n 5", "5\n");
    place.expect("put -dai -- n -7", "-2\n");
    place.expect_error("put -dai -- one 1", "6: existing record");
    place.expect("put -dad -- d 1.5", "1.500000\n");
    place.expect("put -sx -- 00FF 0A0D", "");
    place.expect("get -sx -px -- 00FF", "0A 0D\n");
    place.expect("put -sep | -- row a|b", "");
    place.expect("get -px -- row", "61 00 62\n");
    place.expect("get -sep | -- row", "a|b\n");
    place.expect("mget -- one nosuch one", "one\tst++9\none\tst++9\n");
    place.expect("out -- one", "");
    place.expect_error("out -- one", "7: no record found");
    place.expect("vanish", "");
    assert_eq!(place.ask("inform").1.lines().next(), Some("record number: 0"));
    assert!(place.ask("inform -st").1.starts_with("version\t1.1.41\nlibver\t324\n"));
}

#[test]
fn lists_and_functions_print_one_element_a_line() {
    let script = "function echo(key, value) return key .. ':' .. value end";
    let place = ServerPlace::new(&["-ext", &format!("@{script}"), "+"]);
    for key in ["b", "a", "ab"] {
        place.expect(&format!("put -- {key} v{key}"), "");
    }
    place.expect("list", "a\nab\nb\n");
    place.expect("list -m 2 -pv", "a\tva\nab\tvab\n");
    place.expect("list -fm a -pv -px", "61\t76 61\n61 62\t76 61 62\n");
    place.expect("list -fm a -m 1", "a\n");
    place.expect("misc -mnu -- getlist a nosuch b", "a\nva\nb\nvb\n");
    place.expect("misc -- put c vc", "");
    place.expect_error("misc -- nosuch", "9999: miscellaneous error");
    place.expect("ext -xlr -- echo k v", "k:v\n");
    place.expect_error("ext -- nosuch", "9999: miscellaneous error");
    place.expect("sync", "");
    place.expect("optimize -- bnum=5", "");
    place.expect("copy -- copy.tcb", "");
    place.expect("setmst -- ''", "");
    place.expect_error("restore -ts 1 -- nodir", "9999: miscellaneous error");
    place.expect_error("restore -ts 1 -- ..", "9999: miscellaneous error");
}

#[test]
fn log_is_restored_from_a_time_stamp() {
    let place = ServerPlace::new(&["*"]);
    let text = "1000\t7:0\tput\tC8 10 00 00 00 01 00 00 00 01 61 31 00\n\
                2000\t7:0\tput\tC8 10 00 00 00 01 00 00 00 01 62 32 00\n\
                3000\t7:0\tout\tC8 20 00 00 00 01 61 00\n\
                4000\t7:0\tputcat\tC8 12 00 00 00 01 00 00 00 01 62 33 00\n";
    fs::create_dir(place.folder.path().join("ulog")).unwrap();
    assert_eq!(run(place.folder.path(), "ttulmgr", &["import", "ulog"], text).0, 0);
    // The removal finds no record, unlike in the log.
    place.expect_error("restore -rcc -ts 1001 -- ulog", "9999: miscellaneous error");
    place.expect("vanish", "");
    place.expect("restore -ts 1001 -- ulog", "");
    place.expect("get -- b", "23\n");
    place.expect("vanish", "");
    place.expect("restore -rcc -- ulog", "");
    place.expect("get -- b", "23\n");
    place.expect_error("get -- a", "7: no record found");
}

#[test]
fn files_are_imported_and_pages_are_read() {
    let place = ServerPlace::new(&["*"]);
    fs::write(place.folder.path().join("t.tsv"), "A\tv1\nbad\nC\tv2\tx\n\nD\t\n").unwrap();
    place.expect("importtsv -- t.tsv", " (00000003)\n");
    place.expect("get -- C", "v2\tx\n");
    place.expect("importtsv -nr -sc -- t.tsv", " (00000003)\n");
    place.expect("get -- a", "v1\n");
    let url = format!("http://127.0.0.1:{}/a", place.port);
    let http = |words: &[&str]| run(place.folder.path(), "tcrmgr", words, "");
    assert_eq!(http(&["http", &url]).1, "v1");
    let head = "HTTP/1.1 200 OK\nContent-Type: application/octet-stream\nContent-Length: 2\n\nv1";
    assert_eq!(http(&["http", "-ih", "-ah", "X-TT-PDMODE", "1", &url]).1, head);
}

#[test]
fn wrong_command_lines_print_the_usage() {
    let folder = tempfile::tempdir().unwrap();
    for (tool, words) in [
        ("tcrmgr", &[][..]),
        ("tcrmgr", &["nosuch"]),
        ("tcrmgr", &["get"]),
        ("tcrmgr", &["get", "host"]),
        ("tcrmgr", &["get", "-nosuch", "host", "key"]),
        ("ttulmgr", &[]),
        ("ttulmgr", &["export"]),
        ("ttservctl", &["nosuch"]),
    ] {
        let (code, output, errors) = run(folder.path(), tool, words, "");
        assert_eq!((code, output.as_str()), (1, ""), "{words:?}");
        assert!(errors.contains("usage"), "{errors}");
    }
    let (code, _, errors) = run(folder.path(), "tcrmgr", &["get", "-port", "1", "127.0.0.1", "k"], "");
    assert_eq!((code, errors.as_str()), (1, "tcrmgr: error: 3: connection refused\n"));
    let (code, output, _) = run(folder.path(), "tcrmgr", &["version"], "");
    assert!(code == 0 && output.starts_with("Tokyo Tyrant version 1.1.41 (324:0.91) for Linux"));
}

#[test]
fn update_log_is_exported_as_it_was_imported() {
    let folder = tempfile::tempdir().unwrap();
    let text = "1000\t7:0\tput\tC8 10 00 00 00 01 00 00 00 01 6B 76 00\n";
    assert_eq!(run(folder.path(), "ttulmgr", &["import", "."], text).0, 0);
    assert_eq!(run(folder.path(), "ttulmgr", &["export", "."], "").1, text);
    assert_eq!(run(folder.path(), "ttulmgr", &["export", "-ts", "1001", "."], "").1, "");
    assert_eq!(run(folder.path(), "ttulmgr", &["import", "missing"], text).0, 1);
}

#[test]
fn control_program_starts_and_stops_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("data");
    let control = |verb: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_todana"))
            .args(["as", "ttservctl", verb])
            .env("basedir", &directory)
            .env("port", "-1")
            .env("logfile", folder.path().join("log"))
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, output) = control("start");
    assert!(code == 0 && output.ends_with("Done\n"), "{output}");
    let start = Instant::now();
    while !fs::read_to_string(folder.path().join("log")).unwrap_or_default().contains("listening started") {
        assert!(start.elapsed() < TIME_MAX);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(control("start").0, 1);
    assert_eq!(control("hup").0, 0);
    let (code, output) = control("stop");
    assert!(code == 0 && output.ends_with("Done\n"), "{output}");
    assert_eq!(control("stop").0, 1);
}

/// Runs commands of one tool in a folder, and expects their output.
fn expect_all(tool: &str, lines: &[(&str, i32, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t.tsv"), "A\tv1\nbad\n\nC\tv2\n").unwrap();
    for (line, code, output) in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (found_code, found, errors) = run(folder.path(), tool, &words, "");
        assert_eq!((found_code, found + &errors), (*code, (*output).to_owned()), "{tool} {line}");
    }
}

#[test]
fn hash_tool_prints_what_original_prints() {
    expect_all(
        "tchmgr",
        &[
            ("get x.tch k", 1, "tchmgr: x.tch: 3: file not found\n"),
            ("create -tl x.tch 100 4 10", 0, ""),
            ("put x.tch k v", 0, ""),
            ("put -dk x.tch k v", 1, "tchmgr: x.tch: 21: existing record\n"),
            ("put -dc -nl x.tch k w", 0, ""),
            ("get x.tch k", 0, "vw\n"),
            ("get -px x.tch k", 0, "76 77\n"),
            ("put -dai x.tch n 5", 0, "5\n"),
            ("put -dad x.tch d -2.25", 0, "-2.250000\n"),
            ("put -dai x.tch k 5", 1, "tchmgr: x.tch: 21: existing record\n"),
            ("out x.tch n", 0, ""),
            ("out x.tch n", 1, "tchmgr: x.tch: 22: no record found\n"),
            ("out x.tch d", 0, ""),
            ("list -pv x.tch", 0, "k\tvw\n"),
            ("importtsv -sc x.tch t.tsv", 0, " (00000002)\n"),
            ("get x.tch c", 0, "v2\n"),
            ("list -fm a -pv x.tch", 0, "a\tv1\n"),
            ("optimize x.tch", 0, ""),
            // A path without a suffix.
            ("create plain", 0, ""),
            ("put plain k v", 0, ""),
            ("get plain k", 0, "v\n"),
            ("get t.tsv k", 1, "tchmgr: t.tsv: 2: is a file; a database is a directory\n"),
        ],
    );
}

#[test]
fn tree_and_fixed_tools_list_in_order() {
    expect_all(
        "tcbmgr",
        &[
            ("create x.tcb", 0, ""),
            ("put x.tcb b 2", 0, ""),
            ("put x.tcb a 1", 0, ""),
            ("put x.tcb c 3", 0, ""),
            ("list x.tcb", 0, "a\nb\nc\n"),
            ("list -m 2 -pv x.tcb", 0, "a\t1\nb\t2\n"),
            ("list -rb b c x.tcb", 0, "b\nc\n"),
            ("put -dd x.tcb b 3", 0, ""),
            ("put -db x.tcb b 1", 0, ""),
            ("list -rb b b -pv x.tcb", 0, "b\t1\nb\t2\nb\t3\n"),
            ("list -m 3 x.tcb", 0, "a\nb\nb\n"),
            ("importtsv x.tcb t.tsv", 0, " (00000002)\n"),
            ("importtsv x.tcb t.tsv", 0, " (00000002)\n"),
            ("list -fm C -pv -px x.tcb", 0, "43\t76 32\n43\t76 32\n"),
        ],
    );
    expect_all(
        "tcfmgr",
        &[
            ("create x.tcf 16", 0, ""),
            ("put x.tcf 10 ten", 0, ""),
            ("put x.tcf 9 nine", 0, ""),
            ("get x.tcf 9", 0, "nine\n"),
            ("list -pv x.tcf", 0, "9\tnine\n10\tten\n"),
            ("list -pv -px x.tcf", 0, "9\t6E 69 6E 65\n10\t74 65 6E\n"),
            ("put -dd x.tcf 9 x", 1, "tcfmgr: x.tcf: 2: invalid operation\n"),
        ],
    );
}

/// The dump of a key with several values once contained the stored form of the list.
#[test]
fn text_contains_all_values_of_a_key() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&["create", "x.tcb"][..], &["put", "x.tcb", "k", "1"], &["put", "-dd", "x.tcb", "k", "2"]] {
        assert_eq!(run(folder.path(), "tcbmgr", words, "").0, 0);
    }
    let print = |words: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_todana")).args(words).current_dir(folder.path()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(print(&["dump", "-", "--db", "./x.tcb"]), "k\t1\nk\t2\t\t\t+\n");
    assert_eq!(print(&["list", "--values", "./x.tcb"]), "k\t1\nk\t2\n");
}

#[test]
fn table_tool_prints_columns() {
    expect_all(
        "tctmgr",
        &[
            ("create x.tct", 0, ""),
            ("put x.tct p1 name ann age 3", 0, ""),
            ("put -dc x.tct p1 name bob city oslo", 0, ""),
            ("get x.tct p1", 0, "name\tann\nage\t3\ncity\toslo\n"),
            ("list -pv x.tct", 0, "p1\tname\tann\tage\t3\tcity\toslo\n"),
            (
                "list -pv -px x.tct",
                0,
                "70 31\t6E 61 6D 65\t61 6E 6E\t61 67 65\t33\t63 69 74 79\t6F 73 6C 6F\n",
            ),
            ("put x.tct p2", 0, ""),
            ("list -fm p2 -pv x.tct", 0, "p2\n"),
            ("put -dk x.tct p1 a b", 1, "tctmgr: x.tct: 21: existing record\n"),
            ("out x.tct p1", 0, ""),
            ("list x.tct", 0, "p2\n"),
        ],
    );
}

/// The record with the definitions of indexes was listed as a row with an empty key.
#[test]
fn table_tool_hides_index_definitions() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("{}#idx=name:LEXICAL", folder.path().join("x.tct").display());
    drop(todana::Db::open(&name).unwrap());
    let print = |words: &[&str]| run(folder.path(), "tctmgr", words, "").1;
    print(&["put", "x.tct", "p1", "name", "ann"]);
    assert_eq!(print(&["list", "x.tct"]), "p1\n");
    assert!(print(&["inform", "x.tct"]).contains("\nrecord number: 1\n"));
}

#[test]
fn abstract_tool_works_on_each_kind() {
    for path in ["x.tch", "x.tcb", "x.tcf"] {
        expect_all(
            "tcamgr",
            &[
                (&format!("create {path}"), 0, ""),
                (&format!("put {path} 5 v"), 0, ""),
                (&format!("get {path} 5"), 0, "v\n"),
                (&format!("get {path} 6"), 1, &format!("tcamgr: {path}: error\n")),
            ],
        );
    }
}
