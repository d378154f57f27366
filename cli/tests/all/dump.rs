//! `dump` and `load` lose no records, and `dump` changes none.

use crate::running;

use running::{RunningServer, text, todana};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// This time is longer than any machine needs. It only ends a test that hangs.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A connection on which a test plays the server or a client: it sends bytes and expects others.
struct ScriptedConnection(TcpStream);

impl ScriptedConnection {
    fn open(server: &RunningServer) -> ScriptedConnection {
        ScriptedConnection::over(TcpStream::connect(&server.address).unwrap())
    }

    fn over(stream: TcpStream) -> ScriptedConnection {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        ScriptedConnection(stream)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn expect(&mut self, bytes: &[u8]) {
        let mut received = vec![0; bytes.len()];
        self.0.read_exact(&mut received).unwrap();
        assert_eq!(received.escape_ascii().to_string(), bytes.escape_ascii().to_string());
    }

    fn ask(&mut self, request: &[u8], reply: &[u8]) {
        self.send(request);
        self.expect(reply);
    }
}

/// Starts a server whose behaviour `play` determines. `play` receives the connections that a
/// command opens, in order.
fn scripted_server<const N: usize>(
    play: impl FnOnce([ScriptedConnection; N]) + Send + 'static,
) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        play([(); N].map(|()| ScriptedConnection::over(listener.accept().unwrap().0)))
    });
    (address, server)
}

/// Answers the requests of a dump before the first value: for the number of records, for the
/// support of meta commands, and for the keys.
fn list(keys: &mut ScriptedConnection, values: &mut ScriptedConnection, meta: &[u8], listed: &[u8]) {
    values.expect(b"stats\r\n");
    values.send(b"STAT curr_items 2\r\nEND\r\n");
    values.expect(b"mg IA== b u\r\n");
    values.send(meta);
    keys.expect(b"lru_crawler metadump all\r\n");
    keys.send(listed);
}

fn dump(address: &str, path: &Path) -> Output {
    todana().arg("dump").arg(path).args(["-S", address]).output().unwrap()
}

fn sorted_lines(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let mut lines: Vec<Vec<u8>> = bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.sort();
    lines
}

/// Returns the names of the files in a directory.
fn files(directory: &Path) -> Vec<String> {
    let files = std::fs::read_dir(directory).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// Dumps once left out keys with control bytes and keys that need base64, and exited with code 0.
#[test]
fn keys_of_any_bytes_survive_dump_and_load() {
    let (from, to) = (RunningServer::start(&[]), RunningServer::start(&[]));
    let (mut old, mut new) = (ScriptedConnection::open(&from), ScriptedConnection::open(&to));
    old.ask(b"set plain 1 2000000001 1\r\n1\r\n", b"STORED\r\n");
    // These keys can be written as text. Some have the minimum length, others a length whose base64
    // would be too long.
    let long = [&b"\x01\r\t\x7f\xff"[..], &[b'k'; 245]].concat();
    for key in [&b"a\tb"[..], b"\x01", b"\x7f", b"k\rk", b"k\r", b"\xff\x80", &long] {
        old.ask(&[b"set ", key, b" 7 2000000000 2\r\n\r\n\r\n"].concat(), b"STORED\r\n");
    }
    // The keys are `a b`, `a LF b`, a blank, `a NUL b`, and 186 blanks. They have flags and expiry.
    let blanks = "ICAg".repeat(62);
    for key in ["YSBi", "YQpi", "IA==", "YQBi", &blanks] {
        old.ask(format!("ms {key} 2 b F4294967295 T2000000000\r\n\t\n\r\n").as_bytes(), b"HD\r\n");
    }

    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("first.tsv"), directory.path().join("second.tsv"));
    let dumped = dump(&from.address, &first);
    assert_eq!((dumped.status.code(), text(&dumped.stderr)), (Some(0), "13 records written\n".into()));
    for line in [
        "plain\t1\t1\t2000000001",
        "a\\tb\t\\r\\n\t7\t2000000000",
        "k\\r\t\\r\\n\t7\t2000000000",
        "a b\t\\t\\n\t4294967295\t2000000000",
        "a\\x00b\t\\t\\n\t4294967295\t2000000000",
    ] {
        assert!(sorted_lines(&first).contains(&line.as_bytes().to_vec()), "{line}");
    }

    let loaded = to.run(&["load", first.to_str().unwrap()]);
    let printed = "13 records loaded, 0 expired skipped, 0 refused\n";
    assert_eq!((loaded.status.code(), text(&loaded.stderr)), (Some(0), printed.into()));
    new.ask(
        &[b"get ", &long[..], b"\r\n"].concat(),
        &[b"VALUE ", &long[..], b" 7 2\r\n\r\n\r\nEND\r\n"].concat(),
    );
    for key in ["YSBi", "YQpi", "IA==", "YQBi", &blanks] {
        new.ask(format!("mg {key} b f v\r\n").as_bytes(), b"VA 2 f4294967295\r\n\t\n\r\n");
    }
    assert_eq!(dump(&to.address, &second).status.code(), Some(0));
    assert_eq!(sorted_lines(&second), sorted_lines(&first), "flags and expiry too");
}

#[test]
fn dump_with_omitted_record_names_it_and_fails() {
    let server = RunningServer::start(&[]);
    // For memcached 1.6.18, a NUL ends the line. The key is too long for base64.
    let key = [&[b'k'; 249][..], b"\0"].concat();
    let mut wire = ScriptedConnection::open(&server);
    wire.ask(&[b"set ", &key[..], b" 0 0 1\r\nx\r\n"].concat(), b"STORED\r\n");
    wire.ask(b"set other 0 0 1\r\ny\r\n", b"STORED\r\n");
    let output = server.run(&["dump", "-"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "other\ty\n".into()));
    let expected = format!(
        "1 record written\ntodana: 1 record left out; for example \"{}\\x00\": no request can carry the key\n",
        "k".repeat(249)
    );
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn server_without_base64_is_dumped_except_binary_keys() {
    let (address, server) = scripted_server(|[mut keys, mut values]: [ScriptedConnection; 2]| {
        list(
            &mut keys,
            &mut values,
            b"ERROR\r\n",
            b"key=a%20b exp=-1 la=1\nkey=c%09 exp=2000000000 la=1\nEND\r\n",
        );
        values.expect(b"get c\t\r\n");
        values.send(b"VALUE c\t 5 1\r\nx\r\nEND\r\n");
        values.expect(b"mg YSBi b f v u\r\n");
        values.send(b"ERROR\r\n");
    });
    let output = dump(&address, Path::new("-"));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "c\\t\tx\t5\t2000000000\n".into()));
    let error = text(&output.stderr);
    assert!(error.contains("1 record left out; for example \"a b\": the server says: ERROR"), "{error}");
    server.join().unwrap();
}

/// If a server does not understand such a write, it executes the value as commands.
#[test]
fn base64_keys_are_not_sent_without_support() {
    let (address, server) = scripted_server(|[mut wire]: [ScriptedConnection; 1]| {
        wire.expect(b"set a 0 0 1\r\n1\r\n");
        wire.send(b"STORED\r\n");
        wire.expect(b"mg IA== b u\r\n");
        wire.send(b"ERROR\r\n");
        wire.expect(b"set b 0 0 1\r\n2\r\n");
        wire.send(b"STORED\r\n");
        assert_eq!(wire.0.read(&mut [0]).unwrap(), 0, "nothing else is sent");
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.tsv");
    std::fs::write(&path, "a\t1\nx y\tflush_all\nn\\nl\tflush_all\nb\t2\n").unwrap();
    let output = todana().arg("load").arg(&path).args(["-S", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let error = text(&output.stderr);
    assert!(error.starts_with("2 records loaded, 0 expired skipped, 2 refused\n"), "{error}");
    server.join().unwrap();
}

/// 64 values were once collected before the first was written: gigabytes, if the values are large.
#[test]
fn value_is_written_before_the_next_arrives() {
    const LARGE: usize = 1 << 20;
    let (written, first_is_written) = std::sync::mpsc::channel::<()>();
    let (address, server) = scripted_server(move |[mut keys, mut values]: [ScriptedConnection; 2]| {
        list(&mut keys, &mut values, b"EN\r\n", b"key=a exp=-1 size=1048576 \nkey=b exp=-1 size=1 \nEND\r\n");
        values.expect(b"mg a f v u\r\nmg b f v u\r\n");
        values.send(format!("VA {LARGE} f0\r\n{}\r\n", "x".repeat(LARGE)).as_bytes());
        first_is_written.recv().expect("the first value is written");
        values.send(b"VA 1 f0\r\ny\r\n");
    });
    let mut child = todana()
        .args(["dump", "-", "-S", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = vec![0; 2 + LARGE];
    stdout.read_exact(&mut first).expect("the first record, without the second");
    assert!(first == [&b"a\t"[..], &[b'x'; LARGE]].concat());
    written.send(()).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("\nb\ty\n", Some(0)));
    server.join().unwrap();
}

/// The existing file was once truncated before the server was contacted.
#[test]
fn failed_dump_leaves_only_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keep.tsv");
    std::fs::write(&path, "precious\t1\n").unwrap();
    let check = |output: Output, part: &str| {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(error.contains(part), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious\t1\n");
        assert_eq!(files(directory.path()), ["keep.tsv"]);
    };
    // This port was free a moment ago, and no server listens on it.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    check(dump(&nobody, &path), "cannot connect");

    let (address, server) = scripted_server(|[mut keys, mut values]: [ScriptedConnection; 2]| {
        list(&mut keys, &mut values, b"EN\r\n", b"ERROR metadump not allowed\r\n");
    });
    check(dump(&address, &path), "metadump not allowed");
    server.join().unwrap();

    let (address, server) = scripted_server(|[mut keys, mut values]: [ScriptedConnection; 2]| {
        list(&mut keys, &mut values, b"EN\r\n", b"key=a exp=-1 \nkey=b exp=-1 \nEND\r\n");
        values.expect(b"mg a f v u\r\nmg b f v u\r\n");
        values.send(b"VA 1 f0\r\nx\r\n");
    });
    check(dump(&address, &path), "the server closed the connection");
    server.join().unwrap();
}

#[test]
fn dump_replaces_link_targets_and_keeps_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let server = RunningServer::start(&[]);
    server.expect(&["set", "k", "v"], 0);
    let directory = tempfile::tempdir().unwrap();
    let (link, target) = (directory.path().join("link.tsv"), directory.path().join("target.tsv"));
    std::fs::write(&target, "old\t1\n").unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o604)).unwrap();
    symlink("target.tsv", &link).unwrap();
    server.expect(&["dump", link.to_str().unwrap()], 0);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "k\tv\n");
    assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o604);
    // A device cannot be replaced by a rename, so it is written directly.
    assert_eq!(server.expect(&["dump", "/dev/stdout"], 0), "k\tv\n");
}

#[test]
fn sliding_record_stays_sliding() {
    let server = RunningServer::start(&["-o", "negative_exptime=sliding,debug_commands"]);
    let mut wire = ScriptedConnection::open(&server);
    wire.ask(b"debugtime p\r\nset s 7 -300 1\r\na\r\nset n 0 0 1\r\nb\r\n", b"OK\r\nSTORED\r\nSTORED\r\n");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dump.tsv");
    let file = file.to_str().unwrap();
    server.expect(&["dump", file], 0);
    let dumped = std::fs::read_to_string(file).unwrap();
    assert!(dumped.lines().any(|line| line.starts_with("s\ta\t7\t") && line.ends_with("~300")), "{dumped}");
    wire.ask(b"flush_all\r\n", b"OK\r\n");
    server.expect(&["load", file], 0);
    wire.ask(b"debugtime +299\r\nmg s v f t\r\nmg n t\r\n", b"OK\r\nVA 1 f7 t300\r\na\r\nHD t-1\r\n");
    wire.ask(b"debugtime +300\r\nmg s v\r\nmg n t\r\n", b"OK\r\nEN\r\nHD t-1\r\n");
}

/// A dump once read as clients do, so it extended sliding expiries and changed the hit ratio.
#[test]
fn dump_disturbs_nothing_it_reads() {
    let server = RunningServer::start(&["-o", "negative_exptime=sliding,debug_commands"]);
    let mut wire = ScriptedConnection::open(&server);
    wire.ask(b"debugtime p\r\nset s 7 -300 1\r\na\r\nset n 0 0 1\r\nb\r\n", b"OK\r\nSTORED\r\nSTORED\r\n");
    // This record is stale, so the next reader should recompute it.
    wire.ask(b"set stale 0 0 1\r\nc\r\nmd stale I T1000\r\n", b"STORED\r\nHD\r\n");
    // The first request for an access time starts the tracking of accesses.
    wire.ask(b"mg n h u\r\nset f 0 0 1\r\nd\r\n", b"HD h0\r\nSTORED\r\n");
    wire.ask(b"debugtime +100\r\n", b"OK\r\n");
    let counts = || {
        let stats = server.expect(&["stats"], 0);
        let names = ["cmd_get", "get_hits", "get_misses", "cmd_touch"];
        let lines = stats.lines().filter(|line| names.contains(&line.split(' ').next().unwrap_or("")));
        lines.map(str::to_string).collect::<Vec<_>>()
    };
    let before = counts();
    assert_eq!(before.len(), 4, "{before:?}");
    let dumped = server.expect(&["dump", "-"], 0);
    assert_eq!(dumped.lines().count(), 4, "{dumped}");
    assert_eq!(counts(), before);
    wire.ask(b"mg s t u\r\nmg f h l u\r\n", b"HD t200\r\nHD h0 l100\r\n");
    wire.ask(b"mg stale v\r\nmg stale v\r\n", b"VA 1 X W\r\nc\r\nVA 1 Z X\r\nc\r\n");
}
