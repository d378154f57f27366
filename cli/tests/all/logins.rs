//! Logins as administrators set them up: files with users, the command that writes these files, and
//! a server that reloads them.

use crate::running;

use running::{RunningServer, eventually, text, todana};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// This time is longer than any machine needs. It only ends a test that hangs.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn password(words: &[&str], typed: &str) -> Output {
    let mut command = todana();
    command.arg("password").args(words);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // If the user is invalid, the command ends before it reads anything.
    let _ = child.stdin.take().unwrap().write_all(typed.as_bytes());
    child.wait_with_output().unwrap()
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream
}

/// Returns the status of a login over the binary protocol.
fn sasl(stream: &mut TcpStream, user: &str, password: &str) -> u8 {
    let body = format!("PLAIN\0{user}\0{password}");
    let mut packet = vec![0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, body.len() as u8];
    packet.extend([0; 12]);
    packet.extend(body.as_bytes());
    stream.write_all(&packet).unwrap();
    let mut header = [0; 24];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; usize::from(header[11])];
    stream.read_exact(&mut body).unwrap();
    header[7]
}

/// Returns the reply to a login in the text protocol.
fn token(address: &str, token: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "set x 0 0 {}\r\n{token}\r\n", token.len()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[test]
fn password_is_hashed_into_a_private_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let file = path.to_str().unwrap();
    for (user, typed) in [("alice", "secret\n"), ("bob", "two words"), ("alice", "changed\r\n")] {
        let output = password(&[user, "--file", file], typed);
        assert_eq!(
            (output.status.code(), text(&output.stdout), text(&output.stderr)),
            (Some(0), "".into(), "".into())
        );
    }
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let lines = fs::read_to_string(&path).unwrap();
    let users: Vec<&str> =
        lines.lines().filter_map(|line| line.split_once(":$argon2id$v=19$")).map(|it| it.0).collect();
    assert_eq!(users, ["alice", "bob"], "{lines}");
    assert!(!lines.contains("secret") && !lines.contains("words"));

    let printed = text(&password(&["carol"], "secret").stdout);
    assert!(printed.starts_with("carol:$argon2id$") && printed.ends_with('\n'), "{printed}");

    let server = RunningServer::start(&["-S", "--password-file", file]);
    let mut stream = connect(&server.address);
    assert_eq!(sasl(&mut stream, "alice", "secret"), 0x20);
    assert_eq!(sasl(&mut stream, "alice", "changed"), 0);
    assert_eq!(sasl(&mut stream, "bob", "two words"), 0);
    assert_eq!(sasl(&mut stream, "carol", "secret"), 0x20);
    fs::write(&path, format!("{lines}{printed}")).unwrap();
    server.signal("HUP");
    eventually("carol is let in", || sasl(&mut stream, "carol", "secret") == 0);
}

#[test]
fn invalid_passwords_are_refused() {
    for (user, typed, message) in [
        ("alice", "", "the password is empty"),
        ("alice", "\n", "the password is empty"),
        ("alice", "two\nlines\n", "the password must be one line of text"),
        ("alice", "nul\0", "the password must be one line of text"),
        (
            "al:ice",
            "secret",
            "user \"al:ice\": the name must not be empty, begin with #, or contain a colon or control characters",
        ),
    ] {
        let output = password(&[user], typed);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(text(&output.stderr), format!("todana: {message}\n"));
        assert_eq!(text(&output.stdout), "");
    }
    let long = "p".repeat(5000);
    assert_eq!(text(&password(&["a"], &long).stderr), "todana: the password is longer than 4096 bytes\n");
}

#[test]
fn incomplete_login_options_are_refused() {
    for (words, message) in [
        (&["-S"][..], "-S: needs a file of users; add --password-file FILE"),
        (&["--password-file", "/x"], "--password-file: needs -S"),
        (
            &["-S", "--password-file", "/x", "-Y", "/x"],
            "-Y: cannot be combined with -S and --password-file; use one file of users",
        ),
    ] {
        let output = todana().arg("serve").args(["-p", "-1"]).args(words).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), format!("todana: {message}\n")));
    }
    for words in [&["-S", "--password-file", "/nowhere"][..], &["-Y", "/nowhere"]] {
        let output = todana().arg("serve").args(["-p", "-1"]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{words:?}");
        assert!(text(&output.stderr).contains("/nowhere"), "{}", text(&output.stderr));
    }
}

#[test]
fn signal_reloads_text_users() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    fs::write(&path, "alice:secret\n").unwrap();
    let server = RunningServer::start(&["--auth-file", path.to_str().unwrap()]);
    assert_eq!(token(&server.address, "alice secret"), "STORED\r\n");
    fs::write(&path, "alice:changed\n").unwrap();
    server.signal("HUP");
    eventually("the new password", || token(&server.address, "alice changed") == "STORED\r\n");
    assert_eq!(token(&server.address, "alice secret"), "CLIENT_ERROR authentication failure\r\n");
}

/// Starts a server under memcached's name on a port that the system chooses. Returns it with its
/// address.
fn memcached(folder: &Path, words: &[&str], passwords: Option<&Path>) -> (std::process::Child, String) {
    let (name, ports) = (folder.join("memcached"), folder.join("ports"));
    let _ = symlink(env!("CARGO_BIN_EXE_todana"), &name);
    let mut command = Command::new(name);
    command.args(["-u", "root", "-p", "-1", "-l", "127.0.0.1"]).args(words);
    command.env("MEMCACHED_PORT_FILENAME", &ports).env_remove("MEMCACHED_SASL_PWDB");
    if let Some(path) = passwords {
        command.env("MEMCACHED_SASL_PWDB", path);
    }
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    eventually("the file with the ports", || ports.exists());
    let port = fs::read_to_string(&ports).unwrap();
    fs::remove_file(ports).unwrap();
    (child, port.trim_end().replace("TCP INET: ", "127.0.0.1:"))
}

#[test]
fn memcached_options_and_plain_password_file_work() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "alice:secret\nbob:other\n").unwrap();
    let (mut child, address) = memcached(folder.path(), &["-S"], Some(&users));
    let mut stream = connect(&address);
    assert_eq!(sasl(&mut stream, "alice", "other"), 0x20);
    assert_eq!(sasl(&mut stream, "bob", "other"), 0);
    child.kill().unwrap();
    child.wait().unwrap();

    let (mut child, address) = memcached(folder.path(), &["-Y", users.to_str().unwrap()], None);
    assert_eq!(token(&address, "alice secret"), "STORED\r\n");
    assert_eq!(token(&address, "alice other"), "CLIENT_ERROR authentication failure\r\n");
    fs::write(&users, "alice:other\n").unwrap();
    let status = Command::new("kill").args(["-s", "HUP", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    eventually("the new password", || token(&address, "alice other") == "STORED\r\n");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The output of Debian's `db_dump -p` for a database that `saslpasswd2 -c` has filled. memcached
/// with SASL reads its users from such a database.
const SASLDB: &str = "VERSION=3\nformat=print\ntype=hash\nh_nelem=4\ndb_pagesize=4096\nHEADER=END\n \
    alice\\00example.org\\00userPassword\n sec\\\\ret \\c3\\a9\n carol\\00a.example\\00userPassword\n x y \n \
    carol\\00b.example\\00userPassword\n z\nDATA=END\n";

#[test]
fn sasldb_users_log_in_under_memcached_name() {
    let output = password(&["--from-sasldb"], SASLDB);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, &output.stdout).unwrap();
    let (mut child, address) = memcached(folder.path(), &["-S"], Some(&users));
    for (user, password, status) in [
        ("alice", "sec\\ret é", 0),
        ("alice@example.org", "sec\\ret é", 0),
        ("alice", "sec\\\\ret é", 0x20),
        ("carol@a.example", "x y ", 0),
        ("carol@b.example", "z", 0),
        ("carol@b.example", "x y ", 0x20),
        ("carol", "z", 0x20),
    ] {
        assert_eq!(sasl(&mut connect(&address), user, password), status, "{user} {password}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn bad_sasldb_dump_prints_no_user() {
    let incomplete = SASLDB.replace("DATA=END\n", "");
    let strange = SASLDB.replace(" carol", " c:rol");
    for (dump, message) in [
        (incomplete, "standard input: not a complete dump; pipe `db_dump -p /etc/sasldb2` into it"),
        (strange, "user \"c:rol@a.example\": the name must not be empty"),
    ] {
        let output = password(&["--from-sasldb"], &dump);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
}

#[test]
fn memcached_messages_about_user_files_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("memcached");
    symlink(env!("CARGO_BIN_EXE_todana"), &name).unwrap();
    let malformed = folder.path().join("malformed");
    fs::write(&malformed, "alice\n").unwrap();
    let malformed = malformed.to_str().unwrap();
    for (words, message) in [
        (
            &["-Y", "/nowhere"][..],
            "Could not open authfile [/nowhere] for reading, error No such file or directory\n".to_string(),
        ),
        (
            &["-Y", malformed],
            format!("Authfile [{malformed}] has a malformed entry. Should be 'user:password'\n"),
        ),
        (
            &["-S"],
            "MEMCACHED_SASL_PWDB must name a file of users (`todana password USER` writes its lines); for example made \
             of Cyrus' database by: db_dump -p /etc/sasldb2 | todana password --from-sasldb > users\n\
             Error initializing sasl.\n"
                .to_string(),
        ),
    ] {
        let mut command = Command::new(&name);
        command.args(["-u", "root", "-p", "-1"]).args(words).env_remove("MEMCACHED_SASL_PWDB");
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), message));
    }
}
