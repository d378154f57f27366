//! Opens data directories in every version of the formats, which are stored in `tests/fixtures`.
//! They must always open, with exactly the contents that are stored beside them. Data of a later
//! version is refused, and the error states the version.
//!
//! Each new version of a format gets a new folder. Existing fixtures are never created again. This
//! command creates the missing ones:
//!
//!     cargo test -p todana --test formats -- --ignored

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
mod kept;

use crash_disk::{CrashDisk, Op, State};
use kept::{CrashDiskDatabase, DATA, open, open_with, options};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use todana::checkpoint::{CheckpointCompression, CheckpointForm, CheckpointOptions};
use todana::update_log::{LogOptions, LogTail, SyncPolicy};
use todana::{DataOptions, Records, verify};
use todana_core::{
    Arithmetic, Attributes, Delete, ErrorKind, Expiry, Get, Operation, ReplyNeeds, Store, StoreMode, Touch,
    Ttl,
};

const NOW: u64 = 1_700_000_000;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Returns the files of a fixture by their paths in a data directory.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for part in ["", "log", "checkpoints"] {
        let Ok(entries) = fs::read_dir(folder.join(part)) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            let name = path.strip_prefix(folder).unwrap();
            if name != Path::new("contents") {
                files.push((Path::new(DATA).join(name), fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

fn state(files: &[(PathBuf, Vec<u8>)]) -> State {
    let mut state = State::default();
    for directory in ["log", "checkpoints"] {
        state.apply(&Op::MakeDirectory { path: Path::new(DATA).join(directory) }).unwrap();
    }
    files.iter().for_each(|(path, bytes)| state.put(path, bytes.clone()));
    state
}

/// Lists all records in order, one per line. A long value is replaced by its length.
fn contents(kept: &CrashDiskDatabase) -> String {
    let mut text = String::new();
    let short = |bytes: &[u8]| match bytes.len() {
        0..100 => bytes.escape_ascii().to_string(),
        len => format!("{} x {}", bytes[0].escape_ascii(), len),
    };
    for (key, (value, attributes)) in kept.records() {
        write!(text, "{} = {}", short(&key), short(&value)).unwrap();
        let Attributes { flags, expiry, version, marks, .. } = attributes;
        match expiry {
            Expiry::Never => {}
            Expiry::At(at) => write!(text, " | expiry {}", at.0).unwrap(),
            Expiry::Sliding { at, span_s } => write!(text, " | expiry {}, sliding {span_s}", at.0).unwrap(),
        }
        for (name, number) in [("flags", u64::from(flags)), ("version", version)] {
            if number != 0 {
                write!(text, " | {name} {number}").unwrap();
            }
        }
        for (name, is_set) in [("stale", marks.stale), ("token out", marks.token_sent)] {
            if is_set {
                write!(text, " | {name}").unwrap();
            }
        }
        text.push('\n');
    }
    text
}

fn assert_opens(folder: &Path) {
    let expected = fs::read_to_string(folder.join("contents")).unwrap();
    let disk = CrashDisk::with(state(&files(folder)));
    let verified = verify(std::sync::Arc::new(disk.clone()), Path::new(DATA), &mut |_| ()).unwrap();
    assert_eq!(verified.damages, [""; 0], "{folder:?}");
    let kept =
        open(&disk, NOW, options(SyncPolicy::Always)).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    assert_eq!(contents(&kept), expected, "{folder:?}");
    assert_eq!((&kept.opened.tail, &kept.opened.refused[..]), (&LogTail::Clean, &[][..]), "{folder:?}");
    // The database accepts writes as well.
    kept.set(b"later", b"1");
    kept.directory.checkpoint(&kept.database).unwrap();
    kept.log().close().unwrap();
    drop(kept);
    let kept = open(&disk, NOW, options(SyncPolicy::Always)).unwrap();
    assert_eq!(kept.get(b"later").unwrap(), b"1", "{folder:?}");
    kept.run(Operation::Delete(Delete { key: b"later", ..Delete::default() }));
    assert_eq!(contents(&kept), expected, "{folder:?}");
    kept.kill();
}

#[test]
fn every_version_opens_with_what_was_written() {
    let mut opened = 0;
    for version in fs::read_dir(fixtures()).unwrap() {
        for folder in fs::read_dir(version.unwrap().path()).unwrap() {
            assert_opens(&folder.unwrap().path());
            opened += 1;
        }
    }
    assert!(opened >= 4);
}

/// Changes the version of a header, and its checksum accordingly.
fn of_version(bytes: &[u8], version: u32, checksum: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..checksum]);
    bytes[checksum..checksum + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn later_format_version_is_refused() {
    let original = files(&fixtures().join("1/zstd"));
    let changed = |suffix: &str, version: u32, checksum: usize| {
        let mut files = original.clone();
        let mut names = Vec::new();
        for (path, bytes) in files.iter_mut().filter(|(path, _)| path.to_str().unwrap().ends_with(suffix)) {
            *bytes = of_version(bytes, version, checksum);
            names.push(path.display().to_string());
        }
        (CrashDisk::with(state(&files)), names)
    };
    for (suffix, version, checksum, known) in
        [("identity", 2, 32, "version 1"), (".log", 4, 60, "versions 1 to 3")]
    {
        let (disk, names) = changed(suffix, version, checksum);
        let error = open(&disk, NOW, options(SyncPolicy::Never)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        // The log is read from the position of the newest checkpoint on.
        let why = format!("format version {version}; this program knows {known}");
        let whys: Vec<String> = names.iter().map(|name| format!("{name} at offset 0: {why}")).collect();
        assert!(whys.iter().any(|why| error.to_string().starts_with(why)), "{error}");
    }
    let (disk, names) = changed(".checkpoint", 3, 92);
    assert_eq!(names.len(), 2);
    let error = open(&disk, NOW, options(SyncPolicy::Never)).err().unwrap().to_string();
    assert!(error.contains("does not go back to position 0"), "{error}");
    for name in names {
        let why = "format version 3; this program knows versions 1 to 2";
        assert!(error.contains(&format!("; {name} at offset 0: {why}")), "{error}");
    }
}

/// The contents of entries as in docs/format/update-log.md, of every kind and with every field.
/// They are written by hand, because the program does not write all of them.
const ENTRIES: [&[u8]; 16] = [
    b"\x00\0\xa0\x85\x8d\x8b\x01\0\0\0\0\0\0\0\0\0\0",
    b"\x01\x05plainvalue",
    b"\x01\x00the empty key",
    // Flags 300.
    b"\x09\x05flags\xac\x02value",
    // Expiry 2^33.
    b"\x11\x06expiry\x80\x80\x80\x80\x20value",
    // The same expiry, sliding by 60 s.
    b"\x31\x07sliding\x80\x80\x80\x80\x20\x3cvalue",
    b"\x41\x07version\x07value",
    // Stale and token sent, from server 5.
    b"\x81\x07\x05\x05marksvalue",
    b"\x01\x08retagged123",
    // All fields.
    b"\xfa\x05\x05\x08retagged\x01\x80\x80\x80\x80\x20\x3c\x09",
    b"\x01\x04goneaway",
    b"\x03\x04gone",
    b"\x06\0\0\0",
    // A planned clear, and its cancellation.
    b"\x05\x80\x80\x80\x80\x20",
    b"\x05\x00",
    b"\x01\x04last1",
];

/// Version 2 added this entry: puts and removals as one transaction.
const TRANSACTION: &[u8] = b"\x07\x08\x01\x03onenew\x06\x03\x04last\x0b\x09\x03two\x05flags";

/// Version 3 added these entries: an epoch with and without its end of the epoch before, and a put
/// with a source.
const EPOCH_ENTRIES: [&[u8]; 3] = [
    b"\x08\x02\0\x01\0\0\0\0\0fedcba9876543210\x01\0\0\0\0\0\0\0fedcba9876543210\x01\x02\0\0\0\0\0\0",
    b"\x08\x02\0\x02\0\0\0\0\0fedcba9876543210",
    b"\x81\x14\x05\xac\x02\x06sourcevalue",
];

/// Creates a log with these entries.
fn by_hand(version: u8, entries: &[&[u8]]) -> Vec<(PathBuf, Vec<u8>)> {
    const ID: &[u8; 16] = b"0123456789abcdef";
    let with_checksum = |mut bytes: Vec<u8>| {
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    };
    let identity = with_checksum([b"TODANAID\x01\0\0\0\x07\0\0\0", &ID[..]].concat());
    let begin = [&b"TODANALG"[..], &[version], b"\0\0\0\x40\0\0\0"].concat();
    let mut header = [&begin[..], &ID[..], b"\x07\0\0\0\x01\0\0\0"].concat();
    header.resize(60, 0);
    let mut segment = with_checksum(header);
    for content in entries {
        let position = (segment.len() as u64 - 64).to_le_bytes();
        let size = (content.len() as u32).to_le_bytes();
        let crc = crc32c::crc32c(&[ID, &position[..], &size, content].concat());
        segment.extend_from_slice(&[&size[..], &crc.to_le_bytes(), content].concat());
    }
    let path = |name: &str| Path::new(DATA).join(name);
    vec![(path("identity"), identity), (path("log/00000000000000000000.log"), segment)]
}

#[test]
fn format_page_entries_equal_the_fixtures() {
    assert_eq!(files(&fixtures().join("1/entries")), by_hand(1, &ENTRIES));
    assert_eq!(files(&fixtures().join("2/entries")), by_hand(2, &with_transaction()));
    assert_eq!(files(&fixtures().join("3/entries")), by_hand(3, &with_epochs()));
}

fn with_epochs() -> Vec<&'static [u8]> {
    with_transaction().into_iter().chain(EPOCH_ENTRIES).collect()
}

fn with_transaction() -> Vec<&'static [u8]> {
    ENTRIES.into_iter().chain([TRANSACTION]).collect()
}

/// Creates records of every kind, in a log of several segments and, if compression is given, two
/// checkpoints.
fn made(compression: Option<CheckpointCompression>, form: CheckpointForm) -> Vec<(PathBuf, Vec<u8>)> {
    let disk = CrashDisk::new();
    let compression_or_none = compression.unwrap_or(CheckpointCompression::None);
    let kept = open_with(
        &disk,
        NOW,
        DataOptions {
            log: LogOptions { segment_len: 600, ..options(SyncPolicy::Always) },
            checkpoints: CheckpointOptions {
                form,
                compression: compression_or_none,
                ..CheckpointOptions::default()
            },
        },
    )
    .unwrap();
    let store = Store::default();
    let shows = ReplyNeeds { version: true, ..ReplyNeeds::default() };
    let checkpoint = || {
        if compression.is_some() {
            kept.directory.checkpoint(&kept.database).unwrap();
        }
    };
    kept.run(Operation::Store(Store { key: b"cleared", value: b"with all", ..store }));
    kept.run(Operation::Flush { at: Ttl::Expired });
    if compression == Some(CheckpointCompression::Zstd(1)) {
        kept.run(Operation::Store(Store { key: b"long", value: &[b'l'; 150_000], flags: 1, ..store }));
        kept.run(Operation::Store(Store { key: &[b'k'; 66_000], value: b"a long key", ..store }));
    }
    for n in 0..40u32 {
        let (key, value) = (format!("{n:08}"), (n * n * 7_919).to_string());
        kept.run(Operation::Store(Store { key: key.as_bytes(), value: value.as_bytes(), ..store }));
    }
    let ttls = [Ttl::Never, Ttl::Seconds(86_400), Ttl::Sliding(86_400)];
    for (n, ttl) in ttls.into_iter().enumerate() {
        for flags in [0, 300, u32::MAX] {
            let key = format!("attributes:{n}:{flags}");
            let needs = if flags == 300 { shows } else { ReplyNeeds::default() };
            kept.run(Operation::Store(Store {
                key: key.as_bytes(),
                value: b"v",
                flags,
                ttl,
                needs,
                ..store
            }));
        }
    }
    checkpoint();
    kept.run(Operation::Store(Store { key: b"text", value: b"what is no number", ..store }));
    kept.run(Operation::Store(Store {
        key: b"text",
        value: b", and more",
        mode: StoreMode::Append,
        ..store
    }));
    kept.run(Operation::Arithmetic(Arithmetic { key: b"00000007", delta: 1, ..Arithmetic::default() }));
    kept.run(Operation::Delete(Delete { key: b"00000008", ..Delete::default() }));
    let transaction = kept.database.begin(&kept.worker_counters).unwrap();
    transaction.set(b"one", b"of several").unwrap();
    transaction.remove(b"00000012").unwrap();
    transaction.set_with(b"two", b"of several", Ttl::Seconds(86_400), 7).unwrap();
    transaction.commit().unwrap();
    kept.run(Operation::Touch(Touch { key: b"00000009", ttl: Ttl::Seconds(100_000) }));
    kept.run(Operation::Get(Get { key: b"00000010", needs: shows, ..Get::default() }));
    kept.run(Operation::Delete(Delete { key: b"00000011", mark_stale: true, ..Delete::default() }));
    kept.run(Operation::Get(Get { key: b"00000011", needs: shows, ..Get::default() }));
    kept.run(Operation::Store(Store { key: b"dies", value: b"1", ttl: Ttl::Expired, ..store }));
    kept.run(Operation::Store(Store { key: b"", value: b"", ..store }));
    kept.run(Operation::Flush { at: Ttl::Seconds(2_000_000_000) });
    checkpoint();
    kept.run(Operation::Store(Store { key: b"behind", value: b"the last one", ..store }));
    kept.log().close().unwrap();
    drop(kept);
    disk.state().files().into_iter().collect()
}

#[test]
#[ignore = "makes the fixtures that are missing"]
fn make_missing_fixtures() {
    let all = [
        // The fixtures of versions 1 and 2 exist already. The program no longer writes them.
        ("3/entries", by_hand(3, &with_epochs())),
        ("3/log", made(None, CheckpointForm::Portable)),
        ("3/plain", made(Some(CheckpointCompression::None), CheckpointForm::Portable)),
        ("3/zstd", made(Some(CheckpointCompression::Zstd(1)), CheckpointForm::Portable)),
        ("3/image", made(Some(CheckpointCompression::Zstd(1)), CheckpointForm::Image)),
    ];
    for (name, files) in all {
        let folder = fixtures().join(name);
        if folder.exists() {
            continue;
        }
        for (path, bytes) in &files {
            let path = folder.join(path.strip_prefix(DATA).unwrap());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let kept = open(&CrashDisk::with(state(&files)), NOW, options(SyncPolicy::Always)).unwrap();
        fs::write(folder.join("contents"), contents(&kept)).unwrap();
        kept.kill();
    }
}
