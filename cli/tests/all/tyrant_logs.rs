//! Update logs of Tokyo Tyrant: printed, exported, and loaded. The log is the one that ttserver
//! 1.1.41 has written, and its text is the output of its `ttulmgr export`.

use crate::running;

use running::{RunningServer, TestFolder, expect, refused, text};
use std::io::{Read, Write};
use std::net::TcpStream;

/// The records of the log, and their text.
const RECORDS: [(&str, &str); 7] = [
    (
        "c9000660b96cdbb14f0007000000000010c8100000000300000002616263313200",
        "1795199371817295\t7:0\tput\tC8 10 00 00 00 03 00 00 00 02 61 62 63 31 32 00",
    ),
    (
        "c9000660b96cdceb5e000700000000000fc811000000030000000161626358 01",
        "1795199371897694\t7:0\tputkeep\tC8 11 00 00 00 03 00 00 00 01 61 62 63 58 01",
    ),
    (
        "c9000660b96ce098990007000000000013c81300000003000000010000000261626351 00",
        "1795199372138649\t7:0\tputshl\tC8 13 00 00 00 03 00 00 00 01 00 00 00 02 61 62 63 51 00",
    ),
    (
        "c9000660b96ce81844000700000000000cc8600000000100000005690 0",
        "1795199372630084\t7:0\taddint\tC8 60 00 00 00 01 00 00 00 05 69 00",
    ),
    ("c9000660b96cebc5640007000000000003c87000", "1795199372871012\t7:0\tsync\tC8 70 00"),
    (
        "c9000660b96cee38ba000700000000001ac8900000000300000002707574000000026d6b000000026d7600",
        "1795199373031610\t7:0\tmisc\tC8 90 00 00 00 03 00 00 00 02 70 75 74 00 00 00 02 6D 6B 00 00 00 02 6D 76 00",
    ),
    (
        "c9000660b96e7acf30002c012c0000000dc81000000001000000016232 00",
        "1795199399022384\t44:300\tput\tC8 10 00 00 00 01 00 00 00 01 62 32 00",
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Writes the log, with its last record in a second file, and returns its directory and its text.
fn log(folder: &TestFolder) -> (String, String) {
    let directory = folder.path("ulog");
    std::fs::create_dir(&directory).unwrap();
    let file: Vec<u8> = RECORDS[..6].iter().flat_map(|(hex, _)| bytes(hex)).collect();
    std::fs::write(format!("{directory}/00000001.ulog"), file).unwrap();
    std::fs::write(format!("{directory}/00000002.ulog"), bytes(RECORDS[6].0)).unwrap();
    let text = RECORDS.iter().map(|(_, line)| format!("{line}\n")).collect();
    (directory, text)
}

#[test]
fn log_is_printed_as_ttulmgr_exports_it() {
    let folder = TestFolder::new();
    let (log, text) = log(&folder);
    assert_eq!(expect(&["log", &log, "--format", "ttulog"], 0), text);
    let since = expect(&["log", &log, "--format", "ttulog", "--since", "2026-11-20T18:29:59Z"], 0);
    assert_eq!(since.lines().count(), 1, "{since}");
    let columns = expect(&["log", &log, "--values", "whole"], 0);
    let expected = [
        "1795199371817295\t2026-11-20T18:29:31.817Z\t7\tput\tabc\tsize=2\t12",
        "1795199371897694\t2026-11-20T18:29:31.897Z\t7\tputkeep\tabc\tsize=1 failed\tX",
        "1795199372138649\t2026-11-20T18:29:32.138Z\t7\tputshl\tabc\tsize=1 width=2\tQ",
        "1795199372630084\t2026-11-20T18:29:32.630Z\t7\taddint\ti\tdelta=5\t",
        "1795199372871012\t2026-11-20T18:29:32.871Z\t7\tsync\t\t-\t",
        "1795199373031610\t2026-11-20T18:29:33.031Z\t7\tmisc\tput\targuments=2\t",
        "1795199399022384\t2026-11-20T18:29:59.022Z\t44:300\tput\tb\tsize=1\t2",
    ];
    assert_eq!(columns.lines().collect::<Vec<_>>(), expected);
    assert_eq!(expect(&["log", &log, "--segments"], 0).lines().count(), 2);
    assert!(refused(&["log", &log, "--follow"], 2).contains("--replicate"));
}

#[test]
fn log_and_text_are_loaded_as_commands() {
    let folder = TestFolder::new();
    let (log, text) = log(&folder);
    let file = folder.path("text");
    std::fs::write(&file, text).unwrap();
    let server = RunningServer::start(&[]);
    for source in [&log, &file] {
        let database = folder.path(&format!("{}.tree", fastrand::u64(..)));
        let said = refused(&["load", "--format", "ttulog", source, "--db", &database], 0);
        let stamp = "as of the time stamp 1795199399022384\n";
        assert_eq!(said, format!("5 records loaded, 0 expired skipped\n{stamp}"));
        let records = "abc\t2Q\nb\t2\ni\t\\x05\\x00\\x00\\x00\nmk\tmv\n";
        assert_eq!(expect(&["dump", "-", "--db", &database], 0), records);
        server.expect(&["load", "--format", "ttulog", source], 0);
        assert_eq!(server.expect(&["get", "abc"], 0).trim_end(), "2Q");
        assert_eq!(server.expect(&["get", "mk"], 0).trim_end(), "mv");
    }
    // A directory is recognised by the names of its files.
    let database = folder.path("recognised.tree");
    refused(&["load", &log, "--since", "2026-11-20T18:29:59Z", "--db", &database], 0);
    assert_eq!(expect(&["dump", "-", "--db", &database], 0), "b\t2\n");
}

#[test]
fn damaged_log_is_loaded_up_to_the_damage() {
    let folder = TestFolder::new();
    let (log, _) = log(&folder);
    let first = format!("{log}/00000001.ulog");
    let mut file = std::fs::read(&first).unwrap();
    let begin = bytes(RECORDS[0].0).len();
    file[begin] = 0;
    std::fs::write(&first, &file).unwrap();
    let database = folder.path("x.tree");
    let said = refused(&["load", &log, "--db", &database], 3);
    assert!(said.contains(&format!("00000001.ulog, byte {begin}: no record begins here")), "{said}");
    assert_eq!(expect(&["dump", "-", "--db", &database], 0), "abc\t12\n");
    let text = folder.path("text");
    std::fs::write(&text, "5\t7:0\tsync\tC8 70 00\n6\t7:0\t[broken entry]\nsix\n").unwrap();
    let said = refused(&["load", "--format", "ttulog", &text, "--db", &database], 3);
    assert!(said.contains("text, line 3: is not a record of an update log"), "{said}");
}

#[test]
fn own_log_is_exported_as_absolute_changes() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = RunningServer::start(&["--data-dir", &data, "--sync", "always"]);
    server.expect(&["set", "a", "1"], 0);
    server.expect(&["delete", "a"], 0);
    let exported = expect(&["log", &data, "--format", "ttulog", "--server-id", "9"], 0);
    let lines: Vec<Vec<&str>> = exported.lines().map(|line| line.split('\t').collect()).collect();
    let columns: Vec<&[&str]> = lines.iter().map(|columns| &columns[1..]).collect();
    let expected: [&[&str]; 2] = [
        &["9:0", "put", "C8 10 00 00 00 01 00 00 00 01 61 31 00"],
        &["9:0", "misc", "C8 90 00 00 00 07 00 00 00 01 6F 75 74 6C 69 73 74 00 00 00 01 61 00"],
    ];
    assert_eq!(columns, expected);
    assert!(lines[0][0] < lines[1][0] && lines[0][0].len() == 16, "{exported}");
    assert_eq!(server.expect(&["log", "--format", "ttulog", "--server-id", "9"], 0), exported);
}

/// Sends requests of Tokyo Tyrant's protocol, each of which has an empty reply.
fn send(server: &RunningServer, requests: &[(&str, usize)]) {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    for (request, reply_len) in requests {
        stream.write_all(&bytes(request)).unwrap();
        let mut reply = vec![1; *reply_len];
        stream.read_exact(&mut reply).unwrap();
        assert!(reply.iter().all(|&byte| byte == 0), "{request}: {reply:?}");
    }
}

/// Returns the bodies of an exported log.
fn bodies(exported: &str) -> Vec<&str> {
    exported.lines().map(|line| line.rsplit('\t').next().unwrap()).collect()
}

const OUTLIST: &str = "C8 90 00 00 00 07 00 00 00 01 6F 75 74 6C 69 73 74 00 00 00 01 6B 00";
const PUTLIST: &str = "C8 90 00 00 00 07 00 00 00 04 70 75 74 6C 69 73 74 00 00 00 01 6B 00 00 00 01 62 00 00 \
                       00 01 6B 00 00 00 01 63 00";

#[test]
fn own_log_exports_all_values() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = RunningServer::start(&["mem:tree", "--data-dir", &data, "--sync", "always"]);
    let calls = [
        ("c810 00000001 00000001 6b 61", 1),
        ("c890 00000007 00000000 00000004 7075746c697374 00000001 6b 00000001 62 00000001 6b 00000001 63", 5),
        ("c820 00000001 6b", 1),
        ("c820 00000001 6b", 1),
    ];
    send(&server, &calls);
    let exported = expect(&["log", &data, "--format", "ttulog"], 0);
    let all = PUTLIST.replace("04 70", "06 70").replace(
        "74 00 00 00 01 6B 00 00 00 01 62",
        "74 00 00 00 01 6B 00 00 00 01 61 00 00 00 01 6B 00 00 00 01 62",
    );
    let put = |value: &str| format!("C8 10 00 00 00 01 00 00 00 01 6B {value} 00");
    let (first, last) = (put("61"), put("63"));
    assert_eq!(bodies(&exported), [&first, OUTLIST, &all, OUTLIST, PUTLIST, OUTLIST, &last]);
    let stamps: Vec<u64> = exported.lines().map(|line| line[..16].parse().unwrap()).collect();
    assert!(stamps.is_sorted(), "{exported}");
    assert_eq!(server.expect(&["log", "--format", "ttulog"], 0), exported);
    let columns = server.expect(&["log", "--values", "none"], 0);
    assert!(columns.contains("\tput\tk\tsize=6 values=3\t"), "{columns}");
}

#[test]
fn definitions_of_indexes_are_not_exported() {
    let folder = TestFolder::new();
    let data = folder.path("data");
    let server = RunningServer::start(&["mem:table", "--data-dir", &data, "--sync", "always"]);
    let calls = [
        ("c890 00000008 00000000 00000002 736574696e646578 00000001 63 00000003 6c6578", 5),
        ("c810 00000001 00000003 61 630031", 1),
        ("c810 00000000 00000003 630032", 1),
    ];
    send(&server, &calls);
    let exported = expect(&["log", &data, "--format", "ttulog"], 0);
    let rows =
        ["C8 10 00 00 00 01 00 00 00 03 61 63 00 31 00", "C8 10 00 00 00 01 00 00 00 03 31 63 00 32 00"];
    assert_eq!(bodies(&exported), rows);
}

#[test]
fn dump_of_a_server_counts_further_values() {
    let server = RunningServer::start(&["mem:tree"]);
    let putlist =
        "c890 00000007 00000000 00000004 7075746c697374 00000001 6b 00000001 62 00000001 6b 00000001 63";
    send(&server, &[(putlist, 5)]);
    let output = server.run(&["dump", "-"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), "k\tb\n"));
    let said = text(&output.stderr);
    assert!(said.contains("1 value left out, each after the first of its key"), "{said}");
}
