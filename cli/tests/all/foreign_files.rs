//! Files of Kyoto Tycoon and Kyoto Cabinet are read, written, truncated and damaged.
//!
//! `cabinet-*` are databases of kcpolymgr 1.2.76. `lzo.ktss` and `lzma.ktss` were written with the
//! compressors of ktserver, and ktserver has read them. All other files in `fixtures/kyoto` were
//! created by ktserver 0.9.56 and kcpolymgr 1.2.76. They contain japan=tokyo, a record `mortal`
//! that expires after the second 4000000000, and a record with the empty key. The log also contains
//! a record that was removed again, a record that had expired on arrival, and pk=pv in database 1,
//! whose values have no expiry.
//!
//! If TODANA_KTSERVER names a ktserver, it reads the files written here, and the other way round.

use crate::running;

use running::{RunningServer, TestFolder, TextClient, expect, refused, run, text};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const RECORDS: &str = "\tempty\njapan\ttokyo\nmortal\tx\\ny\\\\z\\x01\t0\t4000000001\n";

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kyoto");
    folder.join(name).to_str().unwrap().to_string()
}

/// Returns the messages of a `load`, and the records of the new database.
fn loaded(folder: &TestFolder, words: &[&str], code: i32) -> (String, String) {
    let database = folder.path(&format!("{}.tree", fastrand::u64(..)));
    let said = refused(&[&["load", "--db", &database], words].concat(), code);
    let dumped = if Path::new(&database).exists() {
        expect(&["dump", "-", "--db", &database], 0)
    } else {
        String::new()
    };
    (said, dumped)
}

#[test]
fn original_files_are_read_with_their_times() {
    let folder = TestFolder::new();
    for (name, stamp) in
        [("plain.ktss", "01795319893316000000"), ("zlib.ktss", "01795319894656000000"), ("timed.kcss", "")]
    {
        let (said, dumped) = loaded(&folder, &[&fixture(name)], 0);
        assert_eq!(dumped, RECORDS, "{name}");
        let stamp = if stamp.is_empty() { String::new() } else { format!("as of the time stamp {stamp}\n") };
        assert_eq!(said, format!("3 records loaded, 0 expired skipped\n{stamp}"));
    }
    for name in ["persistent.ktss", "bare.kcss"] {
        assert_eq!(loaded(&folder, &["--bare", &fixture(name)], 0).1, "pk\tpv\n");
        let (said, dumped) = loaded(&folder, &[&fixture(name)], 3);
        assert!(said.contains("a value is too short for the time before it; use --bare"), "{said}");
        assert_eq!(dumped, "");
    }
}

/// A database file of Kyoto Cabinet could once be loaded only through Kyoto Cabinet's own tools,
/// which a machine may no longer have.
#[test]
fn kyoto_cabinet_files_load_with_every_compression() {
    let folder = TestFolder::new();
    let names = ["plain.kch", "lzo.kch", "gz.kch", "lzma.kct", "def.kct"];
    let all: Vec<String> = names
        .iter()
        .map(|name| {
            let (said, dumped) = loaded(&folder, &["--bare", &fixture(&format!("cabinet-{name}"))], 0);
            assert_eq!(said, "9 records loaded, 0 expired skipped\n", "{name}");
            dumped
        })
        .collect();
    for (dumped, name) in all.iter().zip(names) {
        assert!(dumped.contains("\nkey5\tshort\n") && !dumped.contains("key3"), "{name}: {dumped}");
        assert!(dumped.contains(&format!("\nkey8\tvalue 8 {}\n", "x".repeat(32))), "{name}: {dumped}");
        assert!(dumped.contains("\nempty\t\n"), "{name}: {dumped}");
        assert_eq!(*dumped, all[0], "{name}");
    }
    let (said, dumped) = loaded(&folder, &[&fixture("timed.kch")], 0);
    assert_eq!(
        (&*said, &*dumped),
        ("2 records loaded, 0 expired skipped\n", "immortal\tforever\nmortal\tlater\t0\t3795364221\n")
    );
}

#[test]
fn damaged_database_file_names_the_place() {
    let folder = TestFolder::new();
    let file = folder.path("casket.kch");
    let whole = std::fs::read(fixture("cabinet-plain.kch")).unwrap();
    // With fewer bytes, the format cannot be detected.
    for len in (6..whole.len()).step_by(37) {
        std::fs::write(&file, &whole[..len]).unwrap();
        let said = refused(&["load", "--bare", &file, "--db", &folder.path("cut.tree")], 3);
        assert!(said.contains("byte ") && said.contains("it is cut"), "{len}: {said}");
    }
    for name in ["cabinet-lzma.kct", "cabinet-lzo.kch"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        for at in (0..whole.len()).step_by(41) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            std::fs::write(&file, &damaged).unwrap();
            let output = run(&["load", "--bare", &file, "--db", &folder.path("damaged.tree")]);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 2 | 3)), "{name}, byte {at}: {code:?} {}", text(&output.stderr));
        }
    }
}

#[test]
fn snapshots_of_every_compressor_are_read() {
    let folder = TestFolder::new();
    let dumps = ["lzo.ktss", "lzma.ktss"].map(|name| loaded(&folder, &[&fixture(name)], 0).1);
    assert!(
        dumps[0].starts_with("key0\tvalue value value value value 0\t0\t2000000001\nkey1\t"),
        "{dumps:?}"
    );
    assert_eq!(dumps[0].lines().count(), 40);
    assert_eq!(dumps[0], dumps[1]);
}

#[test]
fn values_without_times_are_not_truncated() {
    let folder = TestFolder::new();
    let file = folder.path("text.kcss");
    std::fs::write(&file, b"KCSS\n\0\0\x01\x0bksome value!\xff").unwrap();
    let (said, dumped) = loaded(&folder, &[&file], 3);
    assert!(said.contains("byte 6: no likely time before a value; use --bare"), "{said}");
    assert!(!said.contains("loaded"), "{said}");
    assert_eq!(dumped, "");
    assert_eq!(loaded(&folder, &["--bare", &file], 0).1, "k\tsome value!\n");
    // The letters `some ` are read as a time.
    assert_eq!(loaded(&folder, &["--timed", &file], 0).1, "k\tvalue!\t0\t495790679329\n");
    // The value is a number, as `increment` stores it. As a time it would have passed long ago.
    std::fs::write(&file, b"KCSS\n\0\0\x01\x08n\0\0\0\0\0\0\0\x05\xff").unwrap();
    let (said, _) = loaded(&folder, &[&file], 3);
    assert!(said.contains("no likely time before a value"), "{said}");
}

#[test]
fn written_files_equal_those_of_the_originals() {
    let folder = TestFolder::new();
    let database = folder.path("from.tree");
    expect(&["load", &fixture("plain.ktss"), "--db", &database], 0);
    let dump = |words: &[&str]| {
        let file = folder.path("out");
        expect(&[&["dump", &file, "--db", &database], words].concat(), 0);
        let bytes = std::fs::read(&file).unwrap();
        (loaded(&folder, &[&[&*file], &words[2..]].concat(), 0).1, bytes)
    };
    // These are the same records, in the order of their keys.
    let (japan, mortal, empty) = (
        &b"\x05\x0ajapan\xff\xff\xff\xff\xfftokyo"[..],
        &b"\x06\x0bmortal\0\xee\x6b\x28\0x\ny\\z\x01"[..],
        &b"\0\x0a\xff\xff\xff\xff\xffempty"[..],
    );
    let of = |mark: &[u8]| [mark, empty, mark, japan, mark, mortal].concat();
    let (again, bytes) = dump(&["--format", "kcss"]);
    assert_eq!((again.as_str(), bytes), (RECORDS, [b"KCSS\n\0", &of(b"\0")[..], b"\xff"].concat()));
    let (again, bytes) = dump(&["--format", "ktss"]);
    assert_eq!(again, RECORDS);
    assert_eq!(bytes[..10], *b"KTSS\n\0\0\0\0\0");
    assert_eq!(bytes[18..34], [3u64.to_be_bytes(), 42u64.to_be_bytes()].concat());
    assert_eq!(bytes[34..], of(b"\xcc"));
    let (again, bytes) = dump(&["--format", "ktss-zlib"]);
    assert_eq!((again.as_str(), &bytes[6..10]), (RECORDS, &b"\x87\x45\x45\x10"[..]));
    assert_eq!(bytes[18..26], 3u64.to_be_bytes());
    let without_times = RECORDS.replace("\t0\t4000000001", "");
    let (again, _) = dump(&["--format", "kcss", "--bare"]);
    assert_eq!(again, without_times);
}

#[test]
fn unsupported_attributes_are_reported() {
    let folder = TestFolder::new();
    folder.import("./x.tree", "a\t1\t7\t4000000000\nb\t2\t7\t4000000000~300\n");
    let said = |words: &[&str]| folder.complaint(&[&["dump", "out", "--db", "./x.tree"], words].concat(), 0);
    assert_eq!(
        said(&["--format", "ktss"]),
        "todana: 2 of the records had client flags, which this format does not store\n\
         todana: 1 of the records had a sliding expiry, which becomes a fixed time in this format\n2 records written\n"
    );
    assert!(said(&["--format", "tsv-hex"]).contains("2 of the records had an expiry time"));
    assert!(
        folder
            .complaint(&["dump", "-", "--bare", "--db", "./x.tree"], 2)
            .contains("--bare: needs the format ktss or kcss")
    );
}

#[test]
fn truncated_file_names_place_and_loaded_records() {
    let folder = TestFolder::new();
    let file = folder.path("cut");
    let database = folder.path("cut.tree");
    // These are the offsets of the records in both files.
    for (name, starts) in [("plain.ktss", [34, 52, 72]), ("timed.kcss", [6, 24, 44])] {
        let whole = std::fs::read(fixture(name)).unwrap();
        for len in 6..whole.len() {
            std::fs::write(&file, &whole[..len]).unwrap();
            let said = refused(&["load", &file, "--db", &database], 3);
            let last = whole.len() - usize::from(name == "timed.kcss");
            let count = starts[1..].iter().chain([&last]).filter(|end| **end <= len).count();
            let counted =
                if count == 1 { "1 record loaded".into() } else { format!("{count} records loaded") };
            let is_counted =
                if count == 0 { !said.contains(" loaded") } else { said.contains(&format!("\n{counted}")) };
            assert!(is_counted, "{name} {len}: {said}");
            let is_between = name == "plain.ktss" && starts.contains(&len);
            let at = starts.iter().rev().find(|start| **start <= len).copied().unwrap_or(0);
            let printed = if is_between {
                said.contains("its head announces 3")
            } else if name == "plain.ktss" {
                said.contains(&format!("offset {at}: the file is truncated"))
            } else if count == 3 {
                said.contains("it is cut")
            } else {
                said.contains(&format!("byte {at}: the file ends")) && said.contains("it is cut")
            };
            assert!(printed, "{name} {len}: {said}");
        }
    }
}

#[test]
fn file_with_huge_lengths_ends_at_its_end() {
    let folder = TestFolder::new();
    let file = folder.path("claims");
    let head = [&b"KTSS\n\0\0\0\0\0"[..], &[0xFF; 24]].concat();
    for (claim, said) in [
        (&b"\xcc\x84\x80\x80\x80\x00\x00"[..], "offset 34: the file is truncated"),
        (b"\xcc\xff\xff\xff\xff\x7f\x00", "offset 34: a record is too long"),
        (b"\xcd\x01\x01", "offset 34: no record begins here"),
    ] {
        std::fs::write(&file, [&head, claim].concat()).unwrap();
        let printed = loaded(&folder, &[&file], 3).0;
        assert!(printed.contains(said), "{printed}");
    }
    let mut packed = std::fs::read(fixture("zlib.ktss")).unwrap();
    packed[34..38].copy_from_slice(&0x7FFF_FFFFu32.to_be_bytes());
    std::fs::write(&file, &packed).unwrap();
    let printed = loaded(&folder, &[&file], 3).0;
    assert!(printed.contains("offset 34: the file is truncated"), "{printed}");
    packed[6..10].copy_from_slice(b"\x89\xf4\xe5\xc4");
    std::fs::write(&file, &packed).unwrap();
    let printed = loaded(&folder, &[&file], 3).0;
    assert!(printed.contains("unsupported compression"), "{printed}");
}

#[test]
fn listings_of_kyoto_tools_are_read() {
    let folder = TestFolder::new();
    let file = folder.path("list");
    std::fs::write(&file, "japan\ttokyo\nback\\slash\t\\n\n").unwrap();
    let (said, dumped) = loaded(&folder, &["--format", "tsv-raw", &file], 0);
    assert_eq!(
        (&*said, &*dumped),
        ("2 records loaded, 0 expired skipped\n", "back\\\\slash\t\\\\n\njapan\ttokyo\n")
    );
    std::fs::write(&file, "a\tb\tc\n").unwrap();
    assert!(loaded(&folder, &["--format", "tsv-raw", &file], 2).0.contains("line 1: more than two columns"));
    let listed = "\t65 6D 70 74 79\t9223372036854775807\n6A 61 70 61 6E\t74 6F 6B 79 6F\t9223372036854775807\n\
                  6D 6F 72 74 61 6C\t78 0A 79 5C 7A 01\t4000000000\n61\t62\t1000000000\n";
    std::fs::write(&file, listed).unwrap();
    let (said, dumped) = loaded(&folder, &["--format", "tsv-hex", &file], 0);
    assert_eq!((&*said, &*dumped), ("3 records loaded, 1 expired skipped\n", RECORDS));
    folder.import("./x.tree", "a\\tb\tx\n\t\n");
    assert_eq!(
        folder.expect(&["dump", "--format", "tsv-hex", "-", "--db", "./x.tree"], 0),
        "\t\n61 09 62\t78\n"
    );
}

#[test]
fn update_log_is_replayed_from_a_time() {
    let folder = TestFolder::new();
    let log = fixture("ulog");
    let (said, dumped) = loaded(&folder, &[&log], 0);
    assert_eq!(dumped, RECORDS);
    let printed =
        "4 records loaded, 1 expired skipped, 1 removed\nas of the time stamp 01795319892384000000\n";
    assert_eq!(said, printed);
    let listed = expect(&["log", &log, "--values", "whole"], 0);
    assert_eq!(
        listed.lines().next().unwrap(),
        "1795319892299000000\t2026-11-22T03:58:12.299Z\t7\tput\tjapan\tdb=0 size=5\ttokyo"
    );
    assert_eq!(listed.lines().count(), 7, "{listed}");
    for line in [
        "\tput\tmortal\tdb=0 size=6 expiry=4000000001\tx\\ny\\\\z\\x01",
        "\tremove\tgone\tdb=0\t",
        "\tput\tpast\tdb=0 size=1 expiry=1000000001\t1",
    ] {
        assert!(listed.lines().any(|listed| listed.ends_with(line)), "{line}: {listed}");
    }
    // Reading starts at the third change, by the time stamp of its line.
    let third = listed.lines().nth(2).unwrap().split('\t').next().unwrap().to_string();
    assert_eq!(expect(&["log", &log, "--from", &third], 0).lines().count(), 5);
    assert_eq!(loaded(&folder, &[&log, "--since", &third], 0).1, "\tempty\n");
    assert_eq!(loaded(&folder, &[&log, "--since", "2027-01-01T00:00:00Z"], 0).1, "");
    assert_eq!(loaded(&folder, &[&log, "--bare", "--of-database", "1"], 0).1, "pk\tpv\n");
    let segments = expect(&["log", &log, "--segments"], 0);
    assert_eq!(segments, "0000000001.ulog\t233\t1795319892384000000\t2026-11-22T03:58:12.384Z\n");
    assert!(refused(&["log", &log, "--follow"], 2).contains("--replicate"));
}

#[test]
fn torn_tail_is_skipped_and_cut_file_fails() {
    let folder = TestFolder::new();
    let whole = std::fs::read(fixture("ulog/0000000001.ulog")).unwrap();
    let log = folder.path("log");
    std::fs::create_dir(&log).unwrap();
    let file = format!("{log}/0000000001.ulog");
    std::fs::write(&file, [&whole[..], &whole[17..40]].concat()).unwrap();
    let (said, dumped) = loaded(&folder, &[&log], 0);
    assert!(said.contains("byte 233: 23 bytes of an unfinished change are left out"), "{said}");
    assert_eq!(dumped, RECORDS);
    let output = run(&["log", &log]);
    assert!(text(&output.stderr).contains("byte 233: 23 bytes"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 7);
    std::fs::write(&file, &whole[..200]).unwrap();
    let (said, _) = loaded(&folder, &[&log], 3);
    assert!(said.contains("\n4 records loaded") && said.contains("byte 177: the file ends before"), "{said}");
    let nothing = folder.path("nothing");
    std::fs::create_dir(&nothing).unwrap();
    assert!(loaded(&folder, &[&nothing], 2).0.contains("there are no files NUMBER.ulog"));
}

#[test]
fn server_loads_and_dumps_foreign_files() {
    let (server, folder) = (RunningServer::start(&["mem:tree"]), TestFolder::new());
    let output = server.run(&["load", &fixture("plain.ktss")]);
    // memcached's protocol cannot carry an empty key.
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.starts_with("2 records loaded, 0 expired skipped, 1 refused\n"), "{said}");
    assert!(said.contains("record 3: the key is empty"), "{said}");
    assert_eq!(server.expect(&["get", "japan"], 0), "tokyo");
    let file = folder.path("out.ktss");
    server.expect(&["dump", &file, "--format", "ktss"], 0);
    let dumped = loaded(&folder, &[&file], 0).1;
    assert!(dumped.starts_with("japan\ttokyo\nmortal\tx\\ny\\\\z\\x01\t0\t"), "{dumped}");
    let output = server.run(&["load", &fixture("ulog")]);
    assert!(text(&output.stderr).contains("1 removed"), "{}", text(&output.stderr));
}

/// A real ktserver, if the environment names one.
struct RealKtserver {
    child: Child,
    port: u16,
}

impl RealKtserver {
    fn binary() -> Option<PathBuf> {
        let binary = std::env::var_os("TODANA_KTSERVER").map(PathBuf::from);
        if binary.is_none() {
            eprintln!("skipped: TODANA_KTSERVER names no ktserver");
        }
        binary
    }

    fn start(binary: &Path, folder: &TestFolder, words: &[&str]) -> RealKtserver {
        // ktserver cannot choose a port itself, and reads ports above 32767 as negative.
        let mut free = std::iter::repeat_with(|| fastrand::u16(20_000..32_000))
            .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let port = free.next().unwrap();
        let child = Command::new(binary)
            .args(["-host", "127.0.0.1", "-port", &port.to_string(), "-log", &folder.path("log")])
            .args(words)
            .current_dir(folder.0.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        running::eventually("the real server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        RealKtserver { child, port }
    }

    fn get(&self, path: &str) -> String {
        use std::io::{Read, Write};
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_string()
    }

    fn stop(mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for RealKtserver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn real_ktserver_and_todana_read_each_other() {
    let Some(binary) = RealKtserver::binary() else { return };
    let folder = TestFolder::new();
    let lines: String = (0..20_000)
        .map(|n| format!("key{n:05}\t{}{n}\t0\t{}\n", "v".repeat(n % 200), 4_000_000_000u64 + n as u64))
        .collect();
    folder.import("./from.tree", &lines);
    for (format, packing) in [("ktss", &[][..]), ("ktss-zlib", &["-bgsc", "zlib"])] {
        for name in ["bgs", "real.kct"] {
            let _ = std::fs::remove_dir_all(folder.path(name));
            let _ = std::fs::remove_file(folder.path(name));
        }
        std::fs::create_dir(folder.path("bgs")).unwrap();
        let file = folder.path("bgs/00000000.ktss");
        expect(&["dump", &file, "--format", format, "--db", &folder.path("from.tree")], 0);
        let words = [&["-bgs", "bgs"], packing, &["real.kct"]].concat();
        let server = RealKtserver::start(&binary, &folder, &words);
        assert!(server.get("/rpc/status").contains("count\t20000\n"));
        assert!(server.get("/rpc/get?key=key00007").contains("value\tvvvvvvv7\nxt\t4000000006\n"));
        // ktserver writes a snapshot when it ends.
        std::fs::remove_file(&file).unwrap();
        server.stop();
        assert_eq!(loaded(&folder, &[&file], 0).1, lines, "{format}");
    }
}

/// A replica that continues from a dump misses no change of the second in which the dump was made.
#[test]
fn snapshot_stamp_precedes_its_second() {
    let folder = TestFolder::new();
    let (database, file) = (folder.path("from.tree"), folder.path("out.ktss"));
    expect(&["load", &fixture("plain.ktss"), "--db", &database], 0);
    let seconds = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let before = seconds();
    expect(&["dump", &file, "--format", "ktss", "--db", &database], 0);
    let after = seconds();
    let head = std::fs::read(&file).unwrap();
    let stamp = u64::from_be_bytes(head[10..18].try_into().unwrap());
    assert_eq!(stamp % 1_000_000_000, 999_999_999);
    assert!((before - 2..=after - 2).contains(&(stamp / 1_000_000_000)), "{before} {stamp} {after}");
}

/// The missing file contained a removal, so the removed record once came back.
#[test]
fn log_with_a_missing_file_is_refused() {
    let folder = TestFolder::new();
    let log = folder.path("ulog");
    std::fs::create_dir(&log).unwrap();
    for number in [2, 3, 5] {
        let name = format!("{log}/{number:010}.ulog");
        std::fs::copy(fixture("ulog/0000000001.ulog"), name).unwrap();
    }
    let (said, _) = loaded(&folder, &[&log], 3);
    assert!(said.contains("0000000005.ulog: the previous file, number 4, is missing"), "{said}");
    assert!(said.contains("0000000002.ulog: the log begins here; earlier changes are missing"), "{said}");
    std::fs::copy(fixture("ulog/0000000001.ulog"), format!("{log}/0000000004.ulog")).unwrap();
    let (said, dumped) = loaded(&folder, &[&log], 0);
    assert_eq!(dumped, RECORDS, "{said}");
    // With `--since`, files that end before that time are not needed.
    std::fs::remove_file(format!("{log}/0000000003.ulog")).unwrap();
    let (said, _) = loaded(&folder, &[&log, "--since", "2030-01-01T00:00:00Z"], 0);
    assert!(!said.contains("missing") && !said.contains("begins here"), "{said}");
}

/// Records were once loaded without their flags, by which clients distinguish packed values from
/// text, and there was no warning.
#[test]
fn lost_flags_of_snapshots_are_reported_once() {
    let folder = TestFolder::new();
    let (said, snapshots) = (folder.path("said"), folder.path("b"));
    for (flags, times) in [(0, 0), (7, 1)] {
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$0\" \"$@\" 2> \"$SAID\"", env!("CARGO_BIN_EXE_todana")])
            .env("SAID", &said);
        let server = RunningServer::start_as(command, &["--admin-port", "0", "--snapshots", &snapshots]);
        let mut client = TextClient::connect(&server);
        for key in ["a", "b"] {
            assert_eq!(client.ask(&format!("set {key} {flags} 0 1\r\nx\r\n")), "STORED\r\n");
        }
        running::stop(server);
        let said = std::fs::read_to_string(&said).unwrap();
        assert_eq!(said.matches("snapshots: client flags").count(), times, "{said}");
    }
}
