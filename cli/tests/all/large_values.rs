//! Long values stay within the memory limit of the process. The memory is measured on a separate
//! process.

use crate::running;

use running::{RunningServer, TextClient, eventually};
use std::io::Read;

/// The most anonymous memory at `-m 64`: the limit, and 8 MiB for short-lived memory between two
/// measurements of the server, whose interval is longer on a busy machine.
const PEAK_MIB: u64 = 72;

impl TextClient {
    /// Returns true if the record exists. Its value must then be this one.
    fn holds(&mut self, key: &str, value: &[u8]) -> bool {
        let line = self.ask(&format!("get {key}\r\n"));
        if line == "END\r\n" {
            return false;
        }
        assert_eq!(line, format!("VALUE {key} 0 {}\r\n", value.len()));
        let mut answer = vec![0; value.len() + 7];
        self.0.read_exact(&mut answer).unwrap();
        assert!(answer[..value.len()] == *value && answer.ends_with(b"\r\nEND\r\n"), "the value of {key}");
        true
    }

    fn number(&mut self, name: &str) -> u64 {
        self.stat(name).parse().unwrap()
    }

    fn fill(&mut self, records: u32) {
        for n in 0..records {
            self.send(format!("set small:{n} 0 0 20 noreply\r\n{n:020}\r\n").as_bytes());
        }
        assert_eq!(self.ask("mn\r\n"), "MN\r\n");
    }
}

fn assert_peak(server: &RunningServer) {
    let peak_mib = server.anonymous_peak_mib();
    assert!(peak_mib <= PEAK_MIB, "{peak_mib} MiB");
}

fn value(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 31 + salt) >> 3) as u8).collect()
}

#[test]
fn values_of_half_the_memory_are_stored() {
    for (item_size_max, len) in [("16m", 16_000_000), ("32m", (32 << 20) - 100)] {
        let server = RunningServer::start(&["-m", "64", "-I", item_size_max, "-t", "2"]);
        let mut client = TextClient::connect(&server);
        client.fill(100_000);
        for n in 0..6 {
            let value = value(len, n);
            assert_eq!(client.set(&format!("large:{n}"), &value), "STORED\r\n", "the {n}th of {len} bytes");
            assert!(client.holds(&format!("large:{n}"), &value));
        }
        assert_peak(&server);
    }
}

/// The values together exceed the memory for uploads, so some are refused. Memory is full of
/// records, but those are evicted, so no more values are refused than necessary.
#[test]
fn half_of_eight_concurrent_uploads_succeed() {
    let server = RunningServer::start(&["-m", "64", "-I", "8m", "-t", "2"]);
    let mut other = TextClient::connect(&server);
    for n in 0..12 {
        assert_eq!(other.set(&format!("stored:{n}"), &value(6_000_000, n)), "STORED\r\n");
    }
    assert!(other.number("evictions") > 0, "it is full");
    let value = value(6_000_000, 1);
    let mut uploads: Vec<TextClient> = (0..8).map(|_| TextClient::connect(&server)).collect();
    for (n, upload) in uploads.iter_mut().enumerate() {
        upload.send(format!("set large:{n} 0 0 6000000\r\n").as_bytes());
    }
    for piece in value.chunks(50_000) {
        uploads.iter_mut().for_each(|upload| upload.send(piece));
    }
    let mut stored = 0;
    for (n, upload) in uploads.iter_mut().enumerate() {
        let answer = upload.ask("\r\n");
        assert!(
            answer == "STORED\r\n" || answer == "SERVER_ERROR Out of memory during read\r\n",
            "{answer:?}"
        );
        let is_stored = answer == "STORED\r\n";
        stored += u32::from(is_stored);
        assert_eq!(other.holds(&format!("large:{n}"), &value), is_stored);
    }
    // In nearly every run, four are stored. The process measures its memory at intervals, so it may
    // briefly accept one more.
    assert!((3..8).contains(&stored), "{stored} stored");
    for (n, upload) in uploads.iter_mut().enumerate() {
        assert_eq!(upload.set(&format!("large:{n}"), &value), "STORED\r\n");
        assert!(other.holds(&format!("large:{n}"), &value));
    }
    assert_peak(&server);
}

#[test]
fn concurrent_uploads_stay_within_memory_and_get_replies() {
    let server = RunningServer::start(&["-m", "64", "-I", "8m", "-t", "2"]);
    let mut other = TextClient::connect(&server);
    other.fill(300_000);
    let mut uploads: Vec<TextClient> = (0..64).map(|_| TextClient::connect(&server)).collect();
    let value = value(4_000_000, 1);
    for (n, upload) in uploads.iter_mut().enumerate() {
        upload.send(format!("set large:{n} 0 0 4000000\r\n").as_bytes());
    }
    // The values are sent in turns, so that all uploads are in progress together.
    for piece in value.chunks(100_000) {
        uploads.iter_mut().for_each(|upload| upload.send(piece));
    }
    let (mut stored, mut refused) = (0, 0);
    for (n, upload) in uploads.iter_mut().enumerate() {
        let answer = upload.ask("\r\n");
        match answer.as_str() {
            "STORED\r\n" => {
                stored += 1;
                assert!(other.holds(&format!("large:{n}"), &value));
            }
            "SERVER_ERROR Out of memory during read\r\n"
            | "SERVER_ERROR out of memory storing object\r\n" => {
                refused += 1;
                assert!(!other.holds(&format!("large:{n}"), &value));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(upload.ask("mn\r\n"), "MN\r\n");
    }
    assert!(stored >= 2 && refused >= 1, "{stored} stored, {refused} refused");
    assert_peak(&server);
    assert_eq!(other.number("read_buf_bytes"), 0);
    // After that there is room again.
    assert_eq!(other.set("last", &value), "STORED\r\n");
}

#[test]
fn stalled_uploads_hold_only_what_they_sent() {
    let server = RunningServer::start(&["-m", "64", "-t", "2"]);
    let mut other = TextClient::connect(&server);
    other.fill(1_000_000);
    let before = other.number("curr_items");
    let mut stalled: Vec<TextClient> = (0..200).map(|_| TextClient::connect(&server)).collect();
    let read = other.number("bytes_read");
    // The announcement of a value needs no memory. Values up to a 64th of the limit count as short,
    // and may exceed their share.
    stalled.iter_mut().for_each(|client| client.send(b"set k 0 0 1040000\r\n0123456789"));
    eventually("bytes_read", || other.number("bytes_read") >= read + 200 * 29);
    assert!(other.number("read_buf_bytes") < 200 * 64);
    assert!(other.number("curr_items") >= before - before / 100);
    stalled.iter_mut().for_each(|client| client.send(&[b'v'; 900_000]));
    eventually("bytes_read", || other.number("bytes_read") >= read + 200 * 900_000);
    let held = other.number("read_buf_bytes");
    // Uploads get half of the memory that the process leaves for records and uploads. Half of the
    // records stay, minus the held memory.
    assert!((20 << 20..32 << 20).contains(&held), "{held} bytes are held");
    assert!(
        other.number("curr_items") > before * 2 / 5,
        "{} of {before} are left",
        other.number("curr_items")
    );
    assert_peak(&server);
    // The uploads that hold memory are still in time, and all of the memory is returned.
    let mut stored = 0;
    for client in &mut stalled {
        client.send(&[b'v'; 139_990]);
        stored += u32::from(client.ask("\r\n") == "STORED\r\n");
        assert_eq!(client.ask("mn\r\n"), "MN\r\n");
    }
    assert!(stored >= 8, "{stored} stored");
    assert_eq!(other.number("read_buf_bytes"), 0);
}

/// Without eviction, an upload is refused at once if it cannot fit, or later if others have taken
/// the memory. A refused `set` then loses the old value. Other commands keep it.
#[test]
fn refused_upload_loses_only_sets() {
    let server = RunningServer::start(&["-M", "-m", "64", "-I", "30m", "-t", "2"]);
    let mut client = TextClient::connect(&server);
    // Far enough from the limit both ways: another 29 MB would be 71 MB, a third value of 12 MB is
    // 54 of the 67.
    // (It was 65, which sometimes fitted since program code is not counted.)
    assert_eq!(client.set("first", &value(24_000_000, 1)), "STORED\r\n");
    assert_eq!(client.set("second", &value(18_000_000, 2)), "STORED\r\n");
    for key in ["set", "add", "replace", "append", "ms", "ms C"] {
        assert_eq!(client.set(&key.replace(' ', "-"), b"old"), "STORED\r\n");
    }
    for (line, keeps) in [
        ("set set 0 0 29000000", false),
        ("add add 0 0 29000000", true),
        ("replace replace 0 0 29000000", true),
        ("append append 0 0 29000000", true),
        ("ms ms 29000000", false),
        ("ms ms-C 29000000 C5", true),
    ] {
        let key = line.split(' ').nth(1).unwrap();
        client.send(format!("{line}\r\n").as_bytes());
        client.send(&vec![b'v'; 29_000_000]);
        assert_eq!(client.ask("\r\n"), "SERVER_ERROR out of memory storing object\r\n", "{line}");
        assert_eq!(client.holds(key, b"old"), keeps, "{line}");
    }
    // Half of the value is sent, then another client takes the memory, and then the rest is sent.
    let mut other = TextClient::connect(&server);
    for (line, keeps) in [("set add 0 0 12000000", false), ("replace replace 0 0 12000000", true)] {
        let key = line.split(' ').nth(1).unwrap();
        client.send(format!("{line}\r\n").as_bytes());
        client.send(&vec![b'v'; 6_000_000]);
        eventually("read_buf_bytes", || other.number("read_buf_bytes") >= 6_000_000);
        let mut filler = 0;
        while other.set(&format!("filler:{filler}"), &[b'f'; 500_000]) == "STORED\r\n" {
            filler += 1;
        }
        client.send(&vec![b'v'; 6_000_000]);
        assert_eq!(client.ask("\r\n"), "SERVER_ERROR Out of memory during read\r\n", "{line}");
        assert_eq!(client.ask("mn\r\n"), "MN\r\n");
        assert_eq!(client.holds(key, b"old"), keeps, "{line}");
        for n in 0..filler {
            assert_eq!(other.ask(&format!("delete filler:{n}\r\n")), "DELETED\r\n");
        }
    }
    assert_eq!(client.number("read_buf_bytes"), 0);
    assert_peak(&server);
}
