//! A master warns that its replicas receive records without client flags. Without flags, a web
//! framework reads values as other types.

use crate::running;

use running::{RunningServer, TextClient, WAIT_MAX, todana};
use std::fs::{File, read_to_string};
use std::process::Stdio;
use std::time::Instant;

/// Waits until another process has done something.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "waited in vain for {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn master_warns_once_per_replica_losing_flags() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let log = path("log");
    let words = ["--data-dir", &path("master"), "--sync", "always", "--server-id", "1", "--admin-port", "0"];
    let master = RunningServer::start_logging(todana(), &words, Stdio::from(File::create(&log).unwrap()));
    let replica = RunningServer::start(&[
        "--data-dir",
        &path("replica"),
        "--server-id",
        "2",
        "--admin-port",
        "0",
        "--replicate",
        &master.address,
        "--replica-position",
        &path("position"),
    ]);
    let (mut writer, mut reader) = (TextClient::connect(&master), TextClient::connect(&replica));
    let mut set = |key: &str, flags: u32| {
        assert_eq!(writer.ask(&format!("set {key} {flags} 0 1\r\n7\r\n")), "STORED\r\n");
    };
    let mut comes = |key: &str| {
        eventually(key, || {
            let answer = reader.ask(&format!("get {key}\r\n"));
            let found = answer == format!("VALUE {key} 0 1\r\n");
            if found {
                assert_eq!([reader.line(), reader.line()], ["7\r\n", "END\r\n"]);
            }
            found
        });
    };
    let warning = "replica: receives records without their client flags";
    let warnings = || read_to_string(&log).unwrap().matches(warning).count();
    set("plain", 0);
    comes("plain");
    assert_eq!(warnings(), 0);
    for key in ["n", "m"] {
        set(key, 2);
        comes(key);
    }
    assert_eq!(warnings(), 1);
    assert_eq!(TextClient::connect(&master).stat("todana_replica_flags_lost"), "2");
    drop(reader);
    running::stop(replica);
    let gone = "replica: was sent records without their client flags before it disconnected";
    eventually("the count at the end", || {
        read_to_string(&log).unwrap().lines().any(|line| line.contains(gone) && line.contains("records=2"))
    });
    running::stop(master);
}
