//! Damages each file of each fixture in `tests/fixtures` in each way, and salvages the fixture. The
//! number of records must never be lower than in `salvaged.txt`. After an improvement, this command
//! writes the table again:
//!
//!     cargo test -p todana --test salvage_fixtures -- --ignored

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
mod kept;

use crash_disk::{CrashDisk, Op, State};
use kept::{DATA, open, options, salvage, salvaged};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use todana::update_log::SyncPolicy;
use todana_core::StaleMarks;

const NOW: u64 = 1_700_000_000;

/// A name, and a function that changes the bytes of a file; `None` removes the file.
type FileDamage = (&'static str, fn(Vec<u8>) -> Option<Vec<u8>>);

const DAMAGES: [FileDamage; 9] = [
    ("bit in the header", |bytes| with(bytes, 20..21, 0x10)),
    ("bit at a quarter", |bytes| at(bytes, 1, 1, 0x04)),
    ("bit in the middle", |bytes| at(bytes, 2, 1, 0x40)),
    ("bit at three quarters", |bytes| at(bytes, 3, 1, 0x01)),
    ("30 bytes in the middle", |bytes| at(bytes, 2, 30, 0x5a)),
    ("header destroyed", |bytes| with(bytes, 8..40, 0xff)),
    ("cut in the middle", |mut bytes| {
        bytes.truncate(bytes.len() / 2);
        Some(bytes)
    }),
    ("last byte", |bytes| {
        let last = bytes.len() - 1;
        with(bytes, last..last + 1, 0xff)
    }),
    ("missing", |_| None),
];

fn with(mut bytes: Vec<u8>, places: std::ops::Range<usize>, mask: u8) -> Option<Vec<u8>> {
    let end = places.end.min(bytes.len());
    bytes[places.start.min(end)..end].iter_mut().for_each(|byte| *byte ^= mask);
    Some(bytes)
}

fn at(bytes: Vec<u8>, quarter: usize, len: usize, mask: u8) -> Option<Vec<u8>> {
    let from = bytes.len() * quarter / 4;
    with(bytes, from..from + len, mask)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Returns the files of a fixture by their paths in it.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = ["", "log", "checkpoints"].into_iter().flat_map(|part| sorted(&folder.join(part)));
    paths
        .filter(|path| path.is_file() && !path.ends_with("contents"))
        .map(|path| (path.strip_prefix(folder).unwrap().to_path_buf(), fs::read(&path).unwrap()))
        .collect()
}

fn state(files: &[(PathBuf, Vec<u8>)], root: &str) -> State {
    let mut state = State::default();
    for directory in ["log", "checkpoints"] {
        state.apply(&Op::MakeDirectory { path: Path::new(root).join(directory) }).unwrap();
    }
    files.iter().for_each(|(path, bytes)| state.put(&Path::new(root).join(path), bytes.clone()));
    state
}

/// Returns the number of records of a database, and a checksum of them without their versions,
/// which the new database assigns again.
fn records(disk: &CrashDisk) -> String {
    let kept = open(disk, NOW, options(SyncPolicy::Always)).unwrap();
    let (mut count, mut crc) = (0, 0);
    for (key, (value, attributes)) in kept.records() {
        let StaleMarks { stale, token_sent } = attributes.marks;
        // The checksums in the table were computed from this text.
        let marks = format!("Marks {{ stale: {stale}, token_out: {token_sent} }}");
        let reported = format!("{} {:?} {marks} ", attributes.flags, attributes.expiry);
        crc = [&key[..], &value, reported.as_bytes()]
            .iter()
            .fold(crc, |crc, bytes| crc32c::crc32c_append(crc, bytes));
        count += 1;
    }
    kept.kill();
    format!("{count} records {crc:08x}")
}

/// Salvages into a new data directory and describes the result.
fn yielded(state: &State) -> String {
    let disk = CrashDisk::with(state.clone());
    match salvage(&disk, NOW) {
        Ok(_) => records(&salvaged(&disk)),
        Err(error) => format!("nothing, {:?}", error.kind()),
    }
}

fn table() -> String {
    let mut table = String::new();
    for fixture in sorted(&fixtures()).iter().flat_map(|version| sorted(version)) {
        let files = files(&fixture);
        for number in 0..files.len() {
            for (damage, change) in DAMAGES {
                let mut files = files.clone();
                let (path, bytes) = files.remove(number);
                files.extend(change(bytes).map(|bytes| (path.clone(), bytes)));
                let state = state(&files, DATA);
                let yields = yielded(&state);
                let fixture = fixture.strip_prefix(fixtures()).unwrap().display();
                let story = format!("{fixture} {}, {damage}", path.display());
                writeln!(table, "{story}: {yields}").unwrap();
            }
        }
    }
    table
}

fn place() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/salvaged.txt")
}

#[test]
fn salvage_yields_the_records_it_always_did() {
    let expected = fs::read_to_string(place()).unwrap();
    let found = table();
    for (expected, found) in expected.lines().zip(found.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

#[test]
#[ignore = "writes the table"]
fn write_the_table() {
    fs::write(place(), table()).unwrap();
}
