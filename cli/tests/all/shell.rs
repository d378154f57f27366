//! `todana shell`: batches of commands, and the prompt in a pseudo-terminal.

use crate::running;

use running::{RunningServer, TestFolder, TextClient, WAIT_MAX, eventually, stop, text, todana};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

fn start() -> RunningServer {
    RunningServer::start(&["-t", "2", "--admin-port", "0"])
}

/// Runs a shell with these words and this standard input.
fn batch(folder: &TestFolder, words: &[&str], input: &str) -> Output {
    let mut command = todana();
    command.arg("shell").args(words).current_dir(folder.0.path());
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Runs a shell that must end with this exit code. Returns its output and its messages.
fn ran(folder: &TestFolder, words: &[&str], input: &str, code: i32) -> (String, String) {
    let output = batch(folder, words, input);
    let (printed, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{printed}{said}");
    (printed, said)
}

#[test]
fn batch_runs_commands_on_a_server() {
    let (folder, server) = (TestFolder::new(), start());
    let input = "set page {\"a\": [1,\n  2]}\n# a comment\nSET k 'two words' --ttl 1h\nget page k\nget k --json\n\
                 set lines \"a\\tb\\n\\x1b\"\nget lines\nincr n --initial 5\ndelete k\ncount\nwatch -n 0 --count 2 get n\nexit\nget gone\n";
    let (printed, said) = ran(&folder, &[&server.address], input, 0);
    let expected = "{\"a\": [1,\\n  2]}\ntwo words\n\
                    {\"bytes\":9,\"flags\":0,\"key\":\"k\",\"value\":\"two words\"}\n\
                    a\\tb\\n\\x1b\n5\n3\n5\n5\n";
    assert_eq!((printed.as_str(), said.as_str()), (expected, ""));
    // An open connection serves all commands of a shell on records.
    let mut client = TextClient::connect(&server);
    let before: u64 = client.stat("total_connections").parse().unwrap();
    ran(&folder, &[&server.address], "set a 1\nset b 2\nget a b\ntouch a 1h\nincr a\n", 0);
    assert_eq!(client.stat("total_connections").parse(), Ok(before + 1));
    stop(server);
}

#[test]
fn connection_that_was_idle_is_opened_again() {
    let (folder, server) =
        (TestFolder::new(), RunningServer::start(&["-t", "2", "--admin-port", "0", "--idle-timeout", "1"]));
    let mut command = todana();
    command.args(["shell", &server.address]).current_dir(folder.0.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"incr n --initial 5\n").unwrap();
    eventually("the idle connection is closed", || TextClient::connect(&server).stat("idle_kicks") == "1");
    input.write_all(b"incr n\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("5\n6\n", Some(0)));
    stop(server);
}

#[test]
fn first_failure_ends_a_batch() {
    let (folder, server) = (TestFolder::new(), start());
    let at = server.address.as_str();
    for (input, code, complaint) in [
        ("set a 1\n\nget gone\nset b 2\n", 1, "todana: gone: no such record\ntodana: line 3: exit code 1\n"),
        ("set a 1\ngte a\nset b 2\n", 2, "todana: line 2: gte: unknown command; did you mean `get`?\n"),
        ("set a x\nincr a\nset b 2\n", 3, "todana: line 2: the server says: CLIENT_ERROR "),
        ("set a 1\nset b {2\n", 2, "todana: line 2: the command is not complete; "),
        ("get \"\\xzz\"\n", 2, "todana: line 1: \\x: needs two hexadecimal digits\n"),
        ("set b -\n", 2, "todana: line 1: -: standard input has the commands of the shell; "),
        ("load -\n", 2, "todana: line 1: -: standard input has the commands of the shell; name a file\n"),
    ] {
        let (printed, said) = ran(&folder, &[at], input, code);
        assert_eq!(printed, "", "{input}");
        assert!(said.starts_with(complaint), "{input}: {said}");
    }
    let (printed, said) = ran(&folder, &[at, "--keep-going"], "get gone\nset b 2\ngte\nget b\n", 1);
    assert_eq!(printed, "2\n");
    assert!(said.contains("todana: line 1: exit code 1\ntodana: line 3: gte: "), "{said}");
    let (_, said) = ran(&folder, &["127.0.0.1:1"], "get a\n", 3);
    assert!(said.starts_with("todana: line 1: ") && said.contains("is the server running?"), "{said}");
    stop(server);
}

#[test]
fn shell_works_on_databases_and_connects() {
    let (folder, server) = (TestFolder::new(), start());
    let at = server.address.as_str();
    let input = format!(
        "set b 1\nset a 2\nlist --values --db ./x.tree\ncount\ncount ./x.tree\nstats --json\nload more.tsv\nlist\n\
         connect {at}\nping\nset here 1\nget a -S ./other.hash\n"
    );
    std::fs::write(folder.path("more.tsv"), "c\t3\n").unwrap();
    folder.import("other.hash", "a\tfrom the hash\n");
    let (printed, said) = ran(&folder, &["./x.tree"], &input.replace(" --db ./x.tree", ""), 0);
    let facts = printed.lines().nth(4).unwrap();
    assert!(facts.contains("\"kind\":\"disk:tree\"") && facts.contains("\"records\":2"), "{facts}");
    let expected = format!(
        "a\t2\nb\t1\n2\n2\n{facts}\na\nb\nc\n{at} answers: version {}\nfrom the hash\n",
        TextClient::connect(&server).stat("version")
    );
    assert_eq!(
        (printed.as_str(), said.as_str()),
        (expected.as_str(), "1 record loaded, 0 expired skipped\n")
    );
    assert_eq!(server.expect(&["get", "here"], 0), "1");
    // A database that does not exist is created by the first command that stores.
    let (_, said) = ran(&folder, &["./new.hash"], "get a\n", 3);
    assert_eq!(said, "todana: line 1: ./new.hash: does not exist\n");
    ran(&folder, &["./new.hash"], "set a 1\nget a\n", 0);
    stop(server);
}

/// A shell in a pseudo-terminal of 10 rows.
struct TerminalShell {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// The bytes that were printed after those that a test has found.
    rest: Vec<u8>,
    /// All bytes.
    all: Vec<u8>,
}

impl TerminalShell {
    fn start(folder: &TestFolder, pager: &str, words: &[&str]) -> TerminalShell {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&main).and_then(|()| unlockpt(&main)).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let open = || {
            let other = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
            Stdio::from(other)
        };
        let sized = Command::new("stty").args(["rows", "10", "cols", "80"]).stdin(open()).status();
        assert!(sized.unwrap().success());
        // With a controlling terminal, Ctrl-C becomes a signal.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_todana")).args(words).current_dir(folder.0.path());
        command.env("TERM", "xterm").env("XDG_STATE_HOME", folder.path("state")).env("PAGER", pager);
        command.env_remove("TODANA_SERVER").env_remove("TODANA_USER").env_remove("TODANA_PASSWORD");
        let child = command.stdin(open()).stdout(open()).stderr(open()).spawn().unwrap();
        let keyboard = File::from(main);
        let (mut from, (to, screen)) = (keyboard.try_clone().unwrap(), channel());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                if to.send(bytes[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
        TerminalShell { child, keyboard, screen, rest: Vec::new(), all: Vec::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the text is printed.
    fn expect(&mut self, wanted: &str) {
        loop {
            let found = self.rest.windows(wanted.len()).position(|bytes| bytes == wanted.as_bytes());
            if let Some(at) = found {
                self.rest.drain(..at + wanted.len());
                return;
            }
            let Ok(bytes) = self.screen.recv_timeout(WAIT_MAX) else {
                panic!("{wanted:?} is missing: {}", String::from_utf8_lossy(&self.all));
            };
            self.rest.extend_from_slice(&bytes);
            self.all.extend_from_slice(&bytes);
        }
    }

    /// Types a command and waits until this text is printed, and then for the prompt.
    fn run(&mut self, command: &str, printed: &str) {
        self.press(command);
        self.press("\r");
        self.expect(printed);
        self.expect("> ");
    }

    /// Presses Ctrl-D. Returns all that was printed.
    fn end(mut self) -> String {
        self.press("\x04");
        assert!(self.child.wait().unwrap().success());
        while let Ok(bytes) = self.screen.try_recv() {
            self.all.extend_from_slice(&bytes);
        }
        String::from_utf8_lossy(&self.all).into_owned()
    }
}

#[test]
fn prompt_edits_completes_and_remembers() {
    let (folder, server) = (TestFolder::new(), start());
    let mut client = TextClient::connect(&server);
    client.set("user:17", b"first\nsecond");
    client.set("hostile", b"a\x1b]0;owned\x07b\xff\xc2\x9b1m");
    let at = server.address.clone();
    let mut shell = TerminalShell::start(&folder, "", &["shell", &at]);
    shell.expect(&format!("{at} answers: version "));
    shell.expect(&format!("{at}> "));
    // Tab completes the command and the key.
    shell.press("ge\tus\t");
    shell.run("", "\r\nfirst\r\nsecond\r\n");
    shell.run("get hostile", "\r\na\\x1b]0;owned\\x07b\\xff\\xc2\\x9b1m\r\n");
    shell.run("set doc {\"a\": [1,\r 2]}", "\r\n");
    shell.run("get doc", "\r\n{\"a\": [1,\r\n 2]}\r\n");
    shell.run("get gone", "todana: gone: no such record\r\n");
    shell.run("gte", "todana: gte: unknown command; did you mean `get`?\r\n");
    shell.run(" get hidden:line", "no such record\r\n");
    shell.run("connect todana://ada:geheim@127.0.0.1:1", "is the server running?");
    shell.run(&format!("connect {at}"), "answers: version ");
    shell.run("help time", "Run a command, and print its duration");
    shell.run("time count", "\r\n3\r\ntime: ");
    shell.press("half a line\x03");
    shell.expect(&format!("{at}> "));
    shell.run("get user:17", "second\r\n");
    let printed = shell.end();
    assert!(!printed.contains("\x1b]0;") && !printed.contains('\x07'), "{printed:?}");

    let history = folder.path("state/todana/history");
    assert_eq!(std::fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
    let lines = std::fs::read_to_string(&history).unwrap();
    assert!(
        lines.contains("get hostile\n") && !lines.contains("geheim") && !lines.contains("hidden"),
        "{lines}"
    );
    // The next shell has the lines of the former one.
    let mut shell = TerminalShell::start(&folder, "", &["shell", &at]);
    shell.expect("> ");
    shell.run("\x1b[A", "second\r\n");
    shell.end();
    stop(server);
}

#[test]
fn long_output_is_paged_and_watch_ends() {
    let (folder, server) = (TestFolder::new(), start());
    let mut client = TextClient::connect(&server);
    for number in 0..12 {
        client.set(&format!("key:{number}"), b"1");
    }
    let at = server.address.clone();
    let mut shell = TerminalShell::start(&folder, "sed 's/^/paged /'", &["shell", &at]);
    shell.expect("> ");
    shell.run("list", "paged key:");
    shell.run("count", "\r\n12\r\n");
    shell.press("watch -n 3600 count\r");
    shell.expect("\x1b[H\x1b[J12\r\n");
    shell.press("\x03");
    shell.expect("> ");
    shell.run("get key:3", "\r\n1\r\n");
    assert!(!shell.end().contains("paged 12"));
    stop(server);
}

#[test]
fn terminal_without_arguments_opens_a_shell() {
    let folder = TestFolder::new();
    folder.import("x.hash", "a\t1\n");
    let mut shell = TerminalShell::start(&folder, "", &[]);
    shell.expect("`connect HOST:PORT` uses another server");
    shell.expect("127.0.0.1:11211> ");
    shell.run("connect ./x.hash", "\r\n");
    shell.press("get \t");
    shell.run("", "\r\n1\r\n");
    shell.end();
}
