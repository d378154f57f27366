//! A server whose disk is full, or whose directory is not writable. Writes are refused and counted,
//! reads are served, and nothing acknowledged is lost. When the cause is removed, the server works
//! as before.

use crate::running;

use running::{RunningServer, SmallDisk, TextClient, eventually, has_run as run, text, todana};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const REFUSED: &str = "SERVER_ERROR cannot write the update log\r\n";
/// The ID of a user without rights.
const NOBODY: u32 = 65534;

impl TextClient {
    fn value(&mut self, key: &str) -> Option<Vec<u8>> {
        let head = self.ask(&format!("get {key}\r\n"));
        if head == "END\r\n" {
            return None;
        }
        let len: usize = head.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
        let mut value = vec![0; len + b"\r\nEND\r\n".len()];
        self.0.read_exact(&mut value).unwrap();
        value.truncate(len);
        Some(value)
    }
}

fn options<'a>(directory: &'a Path, sync: &'a str) -> [&'a str; 8] {
    ["--data-dir", directory.to_str().unwrap(), "--sync", sync, "-t", "2", "-m", "64"]
}

/// Writes until a write is refused. Checks the server then, and again after `relieve` has removed
/// the cause. If `is_full` is true, removals must succeed in the meantime.
fn trouble_and_relief(server: &RunningServer, value: &[u8], is_full: bool, mut relieve: impl FnMut()) {
    let mut client = TextClient::connect(server);
    let mut last = 0;
    assert_eq!(client.set("doomed", b"v"), "STORED\r\n");
    let said = loop {
        // Only a few records are overwritten, so that the log grows but the data does not.
        match client.set(&format!("k{}", last % 8), &[last.to_string().as_bytes(), b" ", value].concat()) {
            said if said == "STORED\r\n" => last += 1,
            said => break said,
        }
        assert!(last < 10_000, "it is never refused");
    };
    assert_eq!(said, REFUSED);
    assert!(last > 0);
    let mut client = TextClient::connect(server);
    // A smaller write may have succeeded in the meantime.
    eventually("it is known", || client.stat("todana_log_health") == "stuck");
    let refused_before: u64 = client.stat("todana_log_refusals").parse().unwrap();
    let changes = ["set k 0 0 1\r\nv\r\n", "incr k0 1\r\n", "touch k0 10\r\n"];
    let removals = ["delete doomed\r\n", "flush_all\r\n"];
    for request in changes.into_iter().chain(removals.into_iter().filter(|_| !is_full)) {
        assert_eq!(client.ask(request), REFUSED, "{request}");
    }
    let refused: u64 = client.stat("todana_log_refusals").parse().unwrap();
    assert_eq!(refused - refused_before, if is_full { 3 } else { 5 });
    if is_full {
        assert_eq!(client.ask("delete doomed\r\n"), "DELETED\r\n");
        assert_eq!(client.value("doomed"), None);
    }
    // Reads are served, even if they request versions.
    let number = |value: Vec<u8>| text(&value).split(' ').next().unwrap().parse::<u32>().unwrap();
    let key = format!("k{}", (last - 1) % 8);
    assert_eq!(client.value(&key).map(number), Some(last - 1));
    assert!(client.ask(&format!("mg {key} c\r\n")).starts_with("HD c"));
    relieve();
    eventually("it writes again", || client.stat("todana_log_health") == "well");
    assert_eq!(client.set("after", b"v"), "STORED\r\n");
    assert_eq!(client.value(&key).map(number), Some(last - 1));
}

/// Checks that the records of `trouble_and_relief` survive a kill.
fn survives_a_kill(mut server: RunningServer, start: impl Fn() -> RunningServer) {
    let mut client = TextClient::connect(&server);
    let all = |client: &mut TextClient| ["k0", "k1", "k2", "k3", "after"].map(|key| client.value(key));
    let before = all(&mut client);
    assert_eq!(before[4].as_deref(), Some(&b"v"[..]));
    // With `--sync always`, an acknowledged write proves that all earlier ones are on disk.
    assert_eq!(client.set("last", b"v"), "STORED\r\n");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(server);
    let server = start();
    assert_eq!(all(&mut TextClient::connect(&server)), before);
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout == b"0\n")
}

#[test]
fn full_disk_refuses_writes_until_it_has_room() {
    let Some(small) = SmallDisk::mount("size=8m") else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    // This foreign file fills the disk, and is removed later.
    let ballast = small.path("ballast");
    fs::write(&ballast, vec![0; 2 << 20]).unwrap();
    let directory = small.path("data");
    let start = || RunningServer::start(&options(&directory, "always"));
    let server = start();
    trouble_and_relief(&server, &[b'v'; 10_000], true, || fs::remove_file(&ballast).unwrap());
    survives_a_kill(server, start);
}

#[test]
fn file_size_limit_acts_like_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("data");
    let start = || RunningServer::start(&options(&directory, "always"));
    let server = start();
    let limit =
        |limit: &str| run("prlimit", &["--pid", &server.child.id().to_string(), &format!("--fsize={limit}")]);
    if !limit("1000000:unlimited") {
        eprintln!("skipped: there is no prlimit here");
        return;
    }
    trouble_and_relief(&server, &[b'v'; 10_000], false, || assert!(limit("unlimited:unlimited")));
    survives_a_kill(server, start);
}

/// Creates a folder that belongs to the user nobody and contains the executable. Returns `None` if
/// that is impossible.
fn nobodys() -> Option<(tempfile::TempDir, PathBuf)> {
    if !is_root() || !run("setpriv", &["--version"]) {
        eprintln!("skipped: only root can run a server as somebody else, with setpriv");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let directory = folder.path().join("data");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
    // The executable is copied, because nobody may not be able to reach the original.
    let copy = folder.path().join("todana");
    // Another process copies it. If this process had the file open for writing while another thread
    // forks, the file could not be executed.
    assert!(run("cp", &[env!("CARGO_BIN_EXE_todana"), copy.to_str().unwrap()]));
    Some((folder, directory))
}

fn as_nobody(folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let nobody = NOBODY.to_string();
    command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups"]).arg(folder.join("todana"));
    command.current_dir(folder);
    command
}

/// If the log could not start its next segment, it once refused all changes, although the current
/// segment had room.
#[test]
fn log_continues_in_its_segment_without_directory_rights() {
    let Some((folder, directory)) = nobodys() else { return };
    let start = || RunningServer::start_as(as_nobody(folder.path()), &options(&directory, "always"));
    let server = start();
    let log = directory.join("log");
    let segments = || {
        let names = fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| Path::new(name).extension().is_some_and(|is| is == "log")).count()
    };
    chown(&log, Some(0), Some(0)).unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o755)).unwrap();
    let mut client = TextClient::connect(&server);
    let value = vec![b'v'; 1_000_000];
    // A segment has 64 MiB.
    for number in 0..70 {
        assert_eq!(client.set(&format!("k{}", number % 4), &value), "STORED\r\n", "{number}");
    }
    assert_eq!((segments(), client.stat("todana_log_health").as_str()), (1, "well"));
    chown(&log, Some(NOBODY), Some(NOBODY)).unwrap();
    eventually("it begins another one", || {
        assert_eq!(client.set("after", b"v"), "STORED\r\n");
        segments() > 1
    });
    survives_a_kill(server, start);
}

#[test]
fn unusable_directory_is_named_at_the_start() {
    let refused = |mut command: Command, directory: &Path| {
        let words = ["serve", "-p", "-1", "--admin-port", "0", "--data-dir", directory.to_str().unwrap()];
        let output = command.args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let said = refused(todana(), &file);
    assert!(said.contains(&format!("{}: is a file; a data directory is needed", file.display())), "{said}");
    if let Some(small) = SmallDisk::mount("ro") {
        let said = refused(todana(), &small.path("data"));
        assert!(said.contains("/data: cannot create it: Read-only file system"), "{said}");
    } else {
        eprintln!("skipped: no file system can be mounted here");
    }
    if let Some((folder, directory)) = nobodys() {
        chown(&directory, Some(0), Some(0)).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        let said = refused(as_nobody(folder.path()), &directory);
        assert!(
            said.contains(&format!("{}/", directory.display())) && said.contains("Permission denied"),
            "{said}"
        );
    }
}

#[test]
fn second_server_on_a_directory_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("data");
    let start = || RunningServer::start(&options(&directory, "always"));
    let server = start();
    let mut client = TextClient::connect(&server);
    assert_eq!(client.set("before", b"v"), "STORED\r\n");
    let files = || {
        let mut names: Vec<_> =
            fs::read_dir(directory.join("log")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();
    let second =
        todana().args(["serve", "-p", "-1", "--admin-port", "0"]).args(options(&directory, "never")).output();
    let second = second.unwrap();
    assert_eq!(second.status.code(), Some(3));
    let said = text(&second.stderr);
    assert!(said.contains(&format!("{}: is open in another process", directory.display())), "{said}");
    assert_eq!(files(), before);
    assert_eq!(client.set("after", b"v"), "STORED\r\n");
    survives_a_kill(server, start);
}

/// While the file blocks the reading thread, this thread does not notice a signal. The first signal
/// waits, and the second ends the process.
#[test]
fn second_signal_ends_a_loading_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = RunningServer::start(&options(folder.path(), "always"));
    assert_eq!(TextClient::connect(&server).set("k", b"v"), "STORED\r\n");
    server.signal("TERM");
    assert!(server.child.wait().unwrap().success());
    // The file gets a hole that takes hours to read.
    let segment = fs::read_dir(folder.path().join("log")).unwrap().next().unwrap().unwrap().path();
    fs::File::options().write(true).open(&segment).unwrap().set_len(1 << 43).unwrap();
    let mut command = todana();
    command.args(["serve", "-v", "-p", "-1", "--admin-port", "-1"]).args(options(folder.path(), "always"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let pages = said.find_map(|line| Some(line.split_once("http://")?.1.trim_end_matches('/').to_string()));
    let pages = pages.expect("the address of the pages");
    eventually("it reads", || {
        let Ok(mut stream) = TcpStream::connect(&pages) else { return false };
        let mut answer = String::new();
        let asked = stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n");
        asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && answer.ends_with("loading\n")
    });
    let signal = |id: u32| assert!(run("kill", &["-s", "TERM", &id.to_string()]));
    signal(child.id());
    assert!(said.any(|line| line.contains("stopping")));
    assert_eq!(child.try_wait().unwrap(), None);
    signal(child.id());
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}
