//! The client commands at servers with logins or TLS: the ways to log in, and the errors without a
//! login.

use crate::memcached_running;
use crate::running;

use running::{RunningServer, text, todana};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const ALICE: [(&str, &str); 2] = [("TODANA_USER", "alice"), ("TODANA_PASSWORD", "two words")];

/// Creates a folder with users for `-Y` and for `-S`.
fn users() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokens"), "alice:two words\n").unwrap();
    let mut child = todana()
        .args(["password", "alice", "--file"])
        .arg(folder.path().join("hashed"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"two words\n").unwrap();
    assert!(child.wait().unwrap().success());
    fs::write(folder.path().join("password"), "two words\n").unwrap();
    folder
}

fn servers(folder: &Path) -> [RunningServer; 2] {
    let path = |name: &str| folder.join(name).display().to_string();
    [
        RunningServer::start(&["-Y", &path("tokens")]),
        RunningServer::start(&["-S", "--password-file", &path("hashed")]),
    ]
}

fn run(address: &str, words: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = todana();
    command.args(words).env("TODANA_SERVER", address).envs(variables.iter().copied());
    command.output().unwrap()
}

/// Returns the output of a successful run.
fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns the error of a failed run, which never shows the password.
fn trouble(output: &Output) -> String {
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), String::new()));
    let error = text(&output.stderr);
    assert!(!error.contains("words"), "{error}");
    error
}

#[test]
fn every_command_logs_in_if_required() {
    let folder = users();
    let dumped = folder.path().join("records.tsv").display().to_string();
    for server in servers(folder.path()) {
        let command = |words: &[&str]| done(&run(&server.address, words, &ALICE));
        command(&["set", "k", "v"]);
        assert_eq!(command(&["get", "k"]), "v");
        command(&["set", "n", "41"]);
        assert_eq!(command(&["incr", "n"]), "42\n");
        command(&["touch", "k", "0"]);
        assert!(command(&["stats"]).contains("curr_items"));
        assert!(command(&["ping"]).contains(" answers: version "));
        command(&["dump", &dumped]);
        command(&["flush"]);
        command(&["load", &dumped]);
        assert_eq!(command(&["get", "n"]), "42");
        let small = ["--requests", "500", "--keys", "50", "--connections", "3"];
        assert!(command(&[&["bench", "--verify", "--force"], &small[..]].concat()).contains("0 errors"));
        command(&["bench", "replay", "uniform", "--requests", "100", "--keys", "10", "--force"]);
        command(&["delete", "k"]);
    }
}

#[test]
fn name_and_password_have_three_sources() {
    let folder = users();
    let password = folder.path().join("password").display().to_string();
    for server in servers(folder.path()) {
        let flags = ["get", "k", "--user", "alice", "--password-file", &password];
        let url = format!("todana://alice:two%20words@{}", server.address);
        done(&run(&server.address, &["set", "k", "v"], &ALICE));
        assert_eq!(done(&run(&server.address, &flags, &[])), "v");
        assert_eq!(done(&run(&url, &["get", "k"], &[])), "v");
        // The URL takes precedence over the environment, and the options over both.
        let wrong = [("TODANA_USER", "alice"), ("TODANA_PASSWORD", "wrong")];
        assert_eq!(done(&run(&url, &["get", "k"], &wrong)), "v");
        let other = format!("todana://mallory:two%20words@{}", server.address);
        assert_eq!(done(&run(&other, &flags, &wrong)), "v");
        let failed = "the server says: CLIENT_ERROR authentication failure";
        assert!(trouble(&run(&other, &["get", "k"], &[])).contains(failed));
        assert!(trouble(&run(&server.address, &["get", "k"], &wrong)).contains(failed));
        assert!(trouble(&run(&server.address, &["bench", "--requests", "10"], &wrong)).contains(failed));
        assert!(
            trouble(&run(&server.address, &["get", "k"], &[]))
                .contains("--user NAME and --password-file FILE")
        );
        // The help shows the variable, but not its value.
        assert!(!done(&run(&url, &["get", "--help"], &[])).contains("words"));
    }
}

#[test]
fn backup_and_checkpoint_need_the_login_too() {
    let folder = users();
    let data = folder.path().join("data").display().to_string();
    let tokens = folder.path().join("tokens").display().to_string();
    let server = RunningServer::start(&["--data-dir", &data, "-Y", &tokens]);
    let backup = folder.path().join("backup").display().to_string();
    done(&run(&server.address, &["set", "k", "v"], &ALICE));
    for words in [&["checkpoint"][..], &["backup", &server.address, &backup], &["log", &server.address]] {
        assert!(trouble(&run(&server.address, words, &[])).contains("--user NAME"), "{words:?}");
    }
    done(&run(&server.address, &["checkpoint"], &ALICE));
    let url = format!("todana://alice:two%20words@{}", server.address);
    done(&run(&url, &["checkpoint"], &[]));
    done(&run(&server.address, &["backup", &server.address, &backup], &ALICE));
    assert!(Path::new(&backup).is_dir());
    assert!(!done(&run(&server.address, &["log", &url], &[])).is_empty());
}

/// Without a login nothing is stored, least of all the password.
#[test]
fn server_without_logins_never_receives_the_password() {
    let server = RunningServer::start(&[]);
    done(&run(&server.address, &["set", "k", "v"], &ALICE));
    let records = done(&run(&server.address, &["dump", "-"], &ALICE));
    let records: Vec<&str> = records.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(records.len(), 1, "{records:?}");
}

#[test]
fn half_a_login_is_wrong_usage() {
    for (words, what) in [
        (
            &["get", "k", "--user", "alice"][..],
            "alice: no password given; use --password-file FILE or TODANA_PASSWORD",
        ),
        (&["get", "k", "--password-file", "/dev/null"], "--password-file: needs a user; add --user NAME"),
        (
            &["bench", "todana://alice@127.0.0.1:1"],
            "alice: no password given; use --password-file FILE or TODANA_PASSWORD",
        ),
    ] {
        let output = run("127.0.0.1:1", words, &[]);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), format!("todana: {what}\n")));
    }
}

/// memcached's SASL works only in the binary protocol, which these commands do not use.
#[test]
fn binary_only_server_is_named_as_such() {
    let folder = users();
    let place = memcached_running::MemcachedFolder::new();
    let mut command: Command = place.command(&["-S"]);
    command.env("MEMCACHED_SASL_PWDB", folder.path().join("hashed"));
    let server = place.start(command);
    let error = trouble(&run(&format!("127.0.0.1:{}", server.port), &["get", "k"], &ALICE));
    assert!(error.contains("it may speak the binary protocol alone"), "{error}");
}

/// Returns the client's error for a server that always sends this reply.
fn error_of(answer: &'static [u8], scheme: &str, words: &[&str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(answer);
        // If unread bytes were left, closing the socket could reset the connection before the
        // client has read the reply.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = trouble(&run(&format!("{scheme}{address}"), words, &[]));
    server.join().unwrap();
    error.replace(&address, "HOST")
}

#[test]
fn tls_mix_up_is_explained_both_ways() {
    let alert = b"\x15\x03\x03\x00\x02\x02\x0a";
    let error = error_of(alert, "", &["get", "k"]);
    assert_eq!(error, "todana: the server speaks TLS: its address is todanas://HOST\n");
    let error = error_of(b"", "", &["get", "k"]);
    assert_eq!(
        error,
        "todana: the server closed the connection without a word: with TLS it is todanas://HOST, or it speaks the binary protocol or Kyoto Tycoon's only\n"
    );
    for answer in [&b"ERROR\r\n"[..], b""] {
        let folder = certificate();
        let ca = folder.path().join("server.pem").display().to_string();
        let error = error_of(answer, "todanas://", &["get", "k", "--tls-ca", &ca]);
        assert!(error.starts_with("todana: cannot connect to todanas://HOST: "), "{error}");
        assert!(error.ends_with("; without TLS it is HOST\n"), "{error}");
    }
}

/// Creates a self-signed certificate.
fn certificate() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    fs::write(folder.path().join("server.pem"), cert.pem() + &signing_key.serialize_pem()).unwrap();
    folder
}

#[test]
fn live_tls_server_causes_the_same_hints() {
    let (folder, other) = (certificate(), certificate());
    let path = |folder: &TempDir| folder.path().join("server.pem").display().to_string();
    let server = RunningServer::start(&["--tls-cert", &path(&folder)]);
    let error = trouble(&run(&server.address, &["get", "k", "--tls-ca", &path(&other)], &[]));
    assert!(error.ends_with("; --tls-ca FILE names its authority, or its own certificate\n"), "{error}");
    let bench = ["bench", "--requests", "10", "--tls-ca", &path(&other)];
    let error = trouble(&run(&server.address, &bench, &[]));
    assert!(error.ends_with("; --tls-ca FILE names its authority, or its own certificate\n"), "{error}");
    let plain = server.address.strip_prefix("todanas://").unwrap();
    let error = trouble(&run(plain, &["get", "k"], &[]));
    assert!(error.contains(&server.address), "{error}");
}
