//! `verify` of a hash on disk whose directory has another name, and signals while a server opens
//! its files.
//!
//! `verify` once mistook a renamed hash for a data directory: if the end was torn it panicked, and
//! otherwise it printed nonsense. A server caught signals before it could handle them: while it
//! waited for a file at its start, only SIGKILL ended it.

use crate::running;

use running::{TestFolder, todana};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

#[test]
fn hash_is_verified_from_within_or_by_name() {
    let folder = TestFolder::new();
    let hash = folder.path("x.hash");
    folder.expect(&["set", "-S", &hash, "key", "value"], 0);
    let mut within = todana();
    let within = within.args(["verify", "."]).current_dir(&hash).output().unwrap();
    assert_eq!(running::text(&within.stdout), folder.expect(&["verify", &hash], 0));

    let other = folder.path("y");
    assert!(Command::new("cp").args(["-r", &hash, &other]).status().unwrap().success());
    let torn = std::fs::read_dir(&other).unwrap().map(|entry| entry.unwrap().path());
    let torn = torn.filter(|path| path.extension().is_some_and(|end| end == "segment")).max().unwrap();
    OpenOptions::new().append(true).open(torn).unwrap().write_all(b"garbagegarbage!!").unwrap();
    let complaint = folder.complaint(&["verify", &other], 3);
    assert!(
        complaint.ends_with("the files of a hash on disk; rename the directory to NAME.hash\n"),
        "{complaint}"
    );
}

#[test]
fn segment_named_file_makes_no_hash() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = running::RunningServer::start(&["--data-dir", &data]);
    assert_eq!(running::TextClient::connect(&server).set("key", b"value"), "STORED\r\n");
    running::stop(server);
    for (number, name) in ["foo.segment", "0000000009.segment"].iter().enumerate() {
        std::fs::write(folder.path(&format!("data/{name}")), "").unwrap();
        assert!(folder.expect(&["verify", &data], 0).contains("log: 1 segment"));
        let salvaged = folder.path(&format!("salvaged-{number}"));
        folder.expect(&["salvage", &data, &salvaged], 0);
        assert_eq!(folder.expect(&["get", "-S", &salvaged, "key"], 0), "value");
    }
}

#[test]
fn signal_ends_a_server_awaiting_a_file() {
    let folder = TestFolder::new();
    let script = folder.path("script.lua");
    assert!(Command::new("mkfifo").arg(&script).status().unwrap().success());
    let mut server = todana()
        .args(["serve", "-p", "0", "--admin-port", "0", "--script", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // This returns when the server has opened the file for reading.
    let held = OpenOptions::new().write(true).open(&script).unwrap();
    assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
    assert_eq!(server.wait().unwrap().signal(), Some(15));
    drop(held);
}
