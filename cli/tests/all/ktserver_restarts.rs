//! The data of a server under the name `ktserver` after any kind of end, with snapshots, update
//! logs and masters.

use crate::ktserver_running;

use ktserver_running::{KtserverFolder, KtserverProcess, eventually, read};
use nix::sys::signal::Signal;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the value of a key in the first database.
fn value(server: &KtserverProcess, key: &str) -> Option<String> {
    let (status, body) = server.ask("GET", &format!("/{key}"), "");
    (status == 200).then_some(body)
}

fn put(server: &KtserverProcess, key: &str, value: &str) {
    assert_eq!(server.ask("PUT", &format!("/{key}"), value).0, 201);
}

fn crash(mut server: KtserverProcess) {
    server.signal(Signal::SIGKILL);
    server.end();
}

/// The stored position once was that of the lost records, so the master did not send them again.
#[test]
fn replica_without_a_log_refetches_lost_records() {
    let place = KtserverFolder::new();
    let master = place.start(&["-ulog", "u", "-sid", "1", "%"]);
    let port = master.ports[0].to_string();
    let base = ["-mhost", "127.0.0.1", "-mport", &port, "-rts", "rts", "-riv", "10", "-sid", "2"];
    let kinds = [&[][..], &["-bgs", "b", "-bgsi", "0.1"], &["-bgs", "b", "-bgsi", "1000"]];
    for (number, snapshots) in kinds.into_iter().enumerate() {
        let folder = KtserverFolder::new();
        let words = [&base[..], snapshots, &["%"]].concat();
        put(&master, "a", "1");
        put(&master, "b", "1");
        let mut replica = folder.start(&words);
        for round in 0..3 {
            // A new replica reads the whole log, so no key may be one of an earlier replica.
            let key = format!("round{round}-{number}");
            put(&master, &key, "1");
            let stamp = |rts: String| rts.trim().parse().unwrap_or(0u64);
            let before = stamp(read(&folder.path("rts")));
            eventually("the replica", || value(&replica, &key).is_some());
            eventually("its position", || stamp(read(&folder.path("rts"))) > before);
            if round == 1 {
                replica.stop();
            } else {
                crash(replica);
            }
            if round == 1 {
                master.call("remove?key=b");
            }
            replica = folder.start(&words);
            put(&master, "last", &key);
            eventually("the master's last word", || value(&replica, "last").as_ref() == Some(&key));
            assert_eq!(value(&replica, "a").as_deref(), Some("1"), "{snapshots:?}, {round}");
            assert_eq!(value(&replica, &key).as_deref(), Some("1"), "{snapshots:?}, {round}");
            assert_eq!(value(&replica, "b").is_some(), round == 0, "{snapshots:?}, {round}");
        }
    }
}

/// Only the count in the head shows that the file is cut off, and the next snapshot would replace
/// it.
#[test]
fn snapshot_cut_between_records_is_refused() {
    let place = KtserverFolder::new();
    for packing in [&[][..], &["-bgsc", "zlib"]] {
        let directory = format!("b{}", packing.len());
        let words = [&["-bgs", &directory][..], packing].concat();
        let server = place.start(&words);
        // The value needs more than one compressed chunk.
        let value_ = "v".repeat(200_000);
        for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            put(&server, key, &value_);
        }
        server.call("set?key=dead&value=v&xt=-1");
        server.call("remove?key=a");
        server.stop();
        let path = place.path(&format!("{directory}/00000000.ktss"));
        let whole = fs::read(&path).unwrap();
        let len = match packing.is_empty() {
            true => whole.len() - (1 + 1 + 3 + 1 + 5 + 200_000),
            // The file keeps the head and the first chunk.
            false => 38 + u32::from_be_bytes(whole[34..38].try_into().unwrap()) as usize,
        };
        assert!(len < whole.len());
        for bytes in [&whole[..len], &whole[..34]] {
            fs::write(&path, bytes).unwrap();
            let output = place.run(&["-port", "-1", "-bgs", &directory]);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{packing:?}");
            assert!(stderr.contains("00000000.ktss: ends after "), "{stderr}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        fs::write(&path, &whole).unwrap();
        let server = place.start(&words);
        assert_eq!((value(&server, "a"), value(&server, "h")), (None, Some(value_)));
    }
}

/// The server once served a part of the snapshot. A later start read the snapshot again and
/// overwrote newer changes.
#[test]
fn interrupted_snapshot_loads_completely_before_serving() {
    let place = KtserverFolder::new();
    let server = place.start(&["-bgs", "b"]);
    put(&server, "old", "1");
    server.stop();
    let log = ["-ulog", "u", "-sid", "1", "-oas"];
    let with_snapshots = [&log[..], &["-bgs", "b"]].concat();
    crash(place.start(&with_snapshots));
    let (mark, snapshot) = (place.path("u/00000000/reading-snapshot"), place.path("b/00000000.ktss"));
    fs::write(&mark, "").unwrap();
    let refused = |words: &[&str]| {
        let output = place.run(&[&["-port", "-1"], words].concat());
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            stderr.contains("reading-snapshot: ") && stderr.contains("while it read a snapshot"),
            "{stderr}"
        );
    };
    refused(&log);
    fs::rename(&snapshot, place.path("away")).unwrap();
    refused(&with_snapshots);
    // With this option, the server starts without the rest of the snapshot.
    fs::remove_file(&mark).unwrap();
    let server = place.start(&log);
    put(&server, "old", "2");
    crash(server);
    fs::rename(place.path("away"), &snapshot).unwrap();
    let server = place.start(&with_snapshots);
    assert_eq!(value(&server, "old").as_deref(), Some("2"));
}

/// The log once restored older data, and the snapshot with the newer data was replaced.
#[test]
fn newer_snapshot_than_the_log_is_not_ignored() {
    let place = KtserverFolder::new();
    let with_log = ["-bgs", "b", "-ulog", "u", "-sid", "1"];
    let server = place.start(&with_log);
    put(&server, "key", "1");
    server.stop();
    // If there is a log, the snapshot may have any age.
    let server = place.start(&with_log);
    let opened = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    server.stop();
    eventually("the next second", || {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() > opened
    });
    let server = place.start(&["-bgs", "b"]);
    put(&server, "key", "2");
    server.stop();
    let path = place.path("b/00000000.ktss");
    let kept = fs::read(&path).unwrap();
    let output = place.run(&[&["-port", "-1"], &with_log[..]].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("b/00000000.ktss: ")
            && stderr.contains("u/00000000/log")
            && stderr.contains("remove one"),
        "{stderr}"
    );
    assert_eq!(fs::read(&path).unwrap(), kept);
    fs::remove_dir_all(place.path("u")).unwrap();
    let server = place.start(&with_log);
    assert_eq!(value(&server, "key").as_deref(), Some("2"));
}

/// The success for the other database once cleared the failure, so the failure was reported again
/// each time.
#[test]
fn failed_snapshot_is_reported_once_per_database() {
    let place = KtserverFolder::new();
    for name in ["b/00000000.ktss.tmp", "b/00000000.ktss.tmp/in the way"] {
        fs::create_dir_all(place.path(name)).unwrap();
    }
    let server = place.start(&["-bgs", "b", "-bgsi", "0.1", ":", "%"]);
    let count = |name| server.field("report", name).parse::<u64>().unwrap();
    eventually("some rounds", || count("snap_failed") >= 3 && count("snap_made") >= 3);
    assert!(server.field("report", "snap_trouble").contains("00000000.ktss.tmp"));
    assert_eq!(read(&server.log).matches("snapshot: cannot be written").count(), 1);
    fs::remove_dir_all(place.path("b/00000000.ktss.tmp")).unwrap();
    eventually("the end of the trouble", || !server.call("report").contains("snap_trouble"));
    assert!(fs::exists(place.path("b/00000000.ktss")).unwrap());
}

/// The first five bytes of each value were once read as its time, and the next snapshot lacked
/// them.
#[test]
fn snapshot_without_times_is_not_read_as_timed() {
    let place = KtserverFolder::new();
    let server = place.start(&["-bgs", "b", ":#ktopts=p"]);
    put(&server, "key", "some text");
    server.stop();
    let path = place.path("b/00000000.ktss");
    let kept = fs::read(&path).unwrap();
    let output = place.run(&["-port", "-1", "-bgs", "b", ":"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("00000000.ktss: ")
            && stderr.contains("record 1 does not begin with a plausible time"),
        "{stderr}"
    );
    assert_eq!(fs::read(&path).unwrap(), kept);
    let server = place.start(&["-bgs", "b", ":#ktopts=p"]);
    assert_eq!(value(&server, "key").as_deref(), Some("some text"));
    server.call("set?key=far&value=v&xt=99999999999");
    server.stop();
    let _ = fs::remove_file(&path);
    // Times that clients use for "never" are accepted.
    let server = place.start(&["-bgs", "b", ":"]);
    server.call("set?key=far&value=v&xt=99999999999");
    server.stop();
    let server = place.start(&["-bgs", "b", ":"]);
    assert_eq!(value(&server, "far").as_deref(), Some("v"));
}

/// Two servers once removed each other's temporary files, and replaced complete files by incomplete
/// ones.
#[test]
fn snapshot_directory_belongs_to_one_server() {
    let place = KtserverFolder::new();
    let server = place.start(&["-bgs", "b"]);
    put(&server, "key", "1");
    let other = KtserverFolder::new();
    let directory = place.path("b");
    let output = other.run(&["-port", "-1", "-bgs", &directory]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains(&format!("{directory}: another server writes its snapshots there")), "{stderr}");
    server.stop();
    assert_eq!(value(&other.start(&["-bgs", &directory]), "key").as_deref(), Some("1"));
}
