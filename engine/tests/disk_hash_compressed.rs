//! Compressed values: they are returned unchanged, whatever is done with the record and however the
//! database is opened.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;

use crash_disk::CrashDisk;
use crash_session::{Records, get, records, set};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{
    Action, Attributes, DurableEngine, Engine, ErrorKind, Expiry, FrozenKind, Record, SharedBytes,
    UnixSeconds, Visitor,
};
use todana_engine::disk::{Disk, SystemDisk};
use todana_engine::{DiskHash, DiskHashOptions, ValueCompression};

fn options(compresses: bool) -> DiskHashOptions {
    DiskHashOptions {
        seed: Some(3),
        segment_bytes_min: 64 << 10,
        buffer_bytes: 8 << 10,
        compression: compresses.then_some(ValueCompression { trained_at_bytes: 128 << 10 }),
        ..DiskHashOptions::default()
    }
}

fn open(path: &Path) -> DiskHash {
    DiskHash::open(path, options(true)).unwrap()
}

/// Returns a value like those of applications: some hundred bytes, most of which all values share.
fn value(n: u64) -> Vec<u8> {
    let (id, city) = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15), ["Lisbon", "Oslo", "Kyoto"][n as usize % 3]);
    format!(
        "{{\"user_id\":{n},\"session\":\"{id:016x}\",\"city\":\"{city}\",\"active\":{},\"roles\":[\"reader\",\"editor\"],\"score\":{}}}",
        n.is_multiple_of(2),
        id % 1000
    )
    .into_bytes()
}

fn key(n: u64) -> Vec<u8> {
    format!("user:{n}").into_bytes()
}

/// Fills the database, with maintenance in between.
fn fill(hash: &DiskHash, numbers: std::ops::Range<u64>) {
    for n in numbers {
        set(hash, &key(n), &value(n)).unwrap();
        if n.is_multiple_of(100) {
            hash.maintain();
        }
    }
}

fn expected(numbers: std::ops::Range<u64>) -> Records {
    numbers.map(|n| (key(n), (value(n), Attributes::default()))).collect()
}

fn dictionaries(path: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|ending| ending == "dictionary")).collect();
    found.sort();
    found
}

struct Does<'d>(Action<'d>, Vec<Vec<u8>>);

impl Visitor for Does<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.1.extend(old.map(|old| old.value.to_vec()));
        self.0
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.1.extend(now.map(|now| now.value.to_vec()));
    }
}

/// Applies an action to a record. Returns its value as shown before and after.
fn visit(hash: &DiskHash, key: &[u8], action: Action<'_>) -> Vec<Vec<u8>> {
    let mut visitor = Does(action, Vec::new());
    hash.visit(key, &mut visitor).unwrap();
    visitor.1
}

#[test]
fn similar_values_shrink_and_are_readable_without_compression() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let hash = open(&path);
    fill(&hash, 0..4000);
    assert_eq!(records(&hash), expected(0..4000));
    hash.close().unwrap();
    let plain: usize = (0..4000).map(|n| value(n).len()).sum();
    let first = dictionaries(&path);
    assert!(!first.is_empty(), "no dictionary was made");
    drop(hash);
    for compresses in [false, true, false] {
        let hash = DiskHash::open(&path, options(compresses)).unwrap();
        assert_eq!(hash.notes(), &[] as &[String]);
        assert_eq!(records(&hash), expected(0..4000));
        // New values are written as the option says.
        let before = hash.disk_usage().live_bytes;
        fill(&hash, 0..4000);
        assert_eq!(records(&hash), expected(0..4000));
        let live = hash.disk_usage().live_bytes;
        if compresses {
            assert!(live * 2 < plain as u64, "{live} bytes of {plain}; before {before}");
        } else {
            assert!(live > plain as u64, "{live} bytes of {plain}");
        }
        hash.close().unwrap();
    }
    assert_eq!(dictionaries(&path)[0], first[0]);
}

#[test]
fn visitor_sees_the_uncompressed_value() {
    let folder = tempfile::tempdir().unwrap();
    let hash = open(&folder.path().join("x.hash"));
    fill(&hash, 0..2000);
    let put = |value: &[u8]| {
        let action = Action::Put(Record::new(value, Attributes::default()));
        visit(&hash, b"user:7", action)
    };
    assert_eq!(put(&value(8)), [value(7), value(8)]);
    assert_eq!(put(b"short"), [value(8), b"short".to_vec()]);
    assert_eq!(put(&[b'x'; 5000]), [b"short".to_vec(), vec![b'x'; 5000]]);
    let shared: SharedBytes = Arc::new(b"shared ".repeat(100_000));
    let record =
        Record { shared: Some(&shared), ..Record::new(shared.plain().unwrap(), Attributes::default()) };
    assert_eq!(visit(&hash, b"user:7", Action::Put(record)), [vec![b'x'; 5000], b"shared ".repeat(100_000)]);
    let live = hash.disk_usage().live_bytes;
    let attributes = Attributes { expiry: Expiry::At(UnixSeconds(9)), ..Attributes::default() };
    let seen = visit(&hash, b"user:7", Action::Retag(attributes));
    assert_eq!(seen, [b"shared ".repeat(100_000), b"shared ".repeat(100_000)]);
    assert!(hash.disk_usage().live_bytes < live + 100, "what was retagged is stored as it was");
    let mut found = None;
    hash.view(b"user:7", &mut |record| found = Some((record.value.to_vec(), record.attributes))).unwrap();
    assert_eq!(found, Some((b"shared ".repeat(100_000), attributes)));
    assert_eq!(visit(&hash, b"user:7", Action::Remove), [b"shared ".repeat(100_000)]);
    // A value may be derived from the old one.
    struct Doubles;
    impl Visitor for Doubles {
        fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record {
                attributes: Attributes { flags: 5, ..Attributes::default() },
                ..old.unwrap()
            })
        }
    }
    hash.visit(b"user:8", &mut Doubles).unwrap();
    assert_eq!(get(&hash, b"user:8"), Some(value(8)));
}

#[test]
fn a_batch_stores_and_retags_what_is_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let hash = open(&path);
    fill(&hash, 0..2000);
    let attributes = Attributes { flags: 3, ..Attributes::default() };
    let (long, text) = (vec![b'y'; 40_000], value(5));
    let put = |value| Action::Put(Record::new(value, Attributes::default()));
    hash.apply(&[
        (b"user:1", Action::Retag(attributes)),
        (b"user:2", put(&long)),
        (b"user:3", Action::Remove),
        (b"new", put(&text)),
    ])
    .unwrap();
    let mut expected = expected(0..2000);
    expected.get_mut(&key(1)).unwrap().1 = attributes;
    expected.insert(key(2), (long.clone(), Attributes::default()));
    expected.remove(&key(3));
    expected.insert(b"new".to_vec(), (text.clone(), Attributes::default()));
    assert_eq!(records(&hash), expected);
    hash.flush().unwrap();
    drop(hash);
    assert_eq!(records(&open(&path)), expected);
}

#[test]
fn copy_and_frozen_files_contain_dictionaries() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy, frozen) =
        (folder.path().join("x.hash"), folder.path().join("copy.hash"), folder.path().join("frozen.hash"));
    let hash = open(&path);
    fill(&hash, 0..3000);
    hash.copy(&copy).unwrap();
    let files = hash.freeze().unwrap();
    fill(&hash, 3000..3100);
    assert!(files.iter().any(|file| file.kind == FrozenKind::Dictionary));
    let kinds: Vec<bool> = files.iter().map(|file| file.kind == FrozenKind::Dictionary).collect();
    assert!(kinds.is_sorted(), "those with records come first");
    std::fs::create_dir(&frozen).unwrap();
    for file in &files {
        let mut bytes = vec![0; file.len as usize];
        assert_eq!(file.content.read_at(0, &mut bytes).unwrap(), bytes.len());
        std::fs::write(frozen.join(file.content.path().file_name().unwrap()), bytes).unwrap();
    }
    for place in [&copy, &frozen] {
        assert_eq!(dictionaries(place).len(), dictionaries(&path).len());
        for segment in std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()) {
            if segment.extension().is_some_and(|ending| ending == "segment") {
                let number = segment.file_stem().unwrap().to_str().unwrap().parse().unwrap();
                DiskHash::examine_segment(&SystemDisk, &segment, number).unwrap();
            }
        }
        assert_eq!(records(&open(place)), expected(0..3000));
    }
}

/// Creates a closed database of 2,000 records.
fn make(path: &Path) {
    let hash = open(path);
    fill(&hash, 0..2000);
    hash.close().unwrap();
}

#[test]
fn missing_or_damaged_dictionary_refuses_the_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    make(&path);
    let dictionary = dictionaries(&path).remove(0);
    let whole = std::fs::read(&dictionary).unwrap();
    let refused = |what: &str| {
        let error = DiskHash::open(&path, options(false)).err().expect("it is damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        assert!(text.contains("001.dictionary, offset ") && text.contains(what), "{text}");
    };
    for at in [3, 20, 44, 57, 63, 64, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        std::fs::write(&dictionary, damaged).unwrap();
        refused("checksum");
    }
    std::fs::remove_file(&dictionary).unwrap();
    refused("missing");
    // A dictionary of another database is not accepted.
    let other = folder.path().join("other.hash");
    make(&other);
    std::fs::copy(dictionaries(&other).remove(0), &dictionary).unwrap();
    refused("another database");
    std::fs::write(&dictionary, whole).unwrap();
    assert_eq!(records(&open(&path)), expected(0..2000));
}

#[test]
fn unused_dictionary_is_removed_and_its_number_reused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    make(&path);
    let there = dictionaries(&path).len();
    let unused = path.join(format!("{:03}.dictionary", there + 1));
    std::fs::write(&unused, b"as a crash may leave it").unwrap();
    std::fs::write(path.join("009.dictionary.partial"), b"as a crash may leave it").unwrap();
    let hash = open(&path);
    assert_eq!(dictionaries(&path).len(), there);
    assert!(!path.join("009.dictionary.partial").exists());
    assert_eq!(records(&hash), expected(0..2000));
}

#[test]
fn new_dictionary_is_trained_when_values_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let hash = open(&path);
    fill(&hash, 0..3000);
    let before = dictionaries(&path).len();
    let other = |n: u64| {
        let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("<order number='{n}'><customer>{id:x}</customer><shipped carrier='post' tracking='{n:09}'/><total currency='EUR'>{}</total></order>", id % 9999).into_bytes()
    };
    for n in 0..40_000 {
        set(&hash, format!("order:{}", n % 4000).as_bytes(), &other(n)).unwrap();
        if n.is_multiple_of(100) {
            hash.maintain();
        }
    }
    let after = dictionaries(&path).len();
    assert!(after > before, "{before} and {after}");
    assert!(after < before + 5, "{after} dictionaries for two kinds of values");
    let mut all = expected(0..3000);
    let orders = (36_000..40_000)
        .map(|n| (format!("order:{}", n % 4000).into_bytes(), (other(n), Attributes::default())));
    all.extend(orders);
    assert_eq!(records(&hash), all);
    drop(hash);
    assert_eq!(records(&open(&path)), all);
}

#[test]
fn noise_makes_no_dictionary() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let hash = open(&path);
    let mut random = fastrand::Rng::with_seed(1);
    let mut model = BTreeMap::new();
    for n in 0..4000u64 {
        let noise: Vec<u8> = (0..200).map(|_| random.u8(..)).collect();
        set(&hash, &key(n), &noise).unwrap();
        model.insert(key(n), (noise, Attributes::default()));
        if n.is_multiple_of(50) {
            hash.maintain();
        }
    }
    assert_eq!(dictionaries(&path), Vec::<PathBuf>::new());
    assert_eq!(records(&hash), model);
}

#[test]
fn entry_with_wrong_length_can_be_overwritten() {
    let disk = CrashDisk::new();
    let compressing = |disk: &CrashDisk| {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        DiskHash::open(Path::new(crash_session::DATA), DiskHashOptions { disk, ..options(true) }).unwrap()
    };
    let hash = compressing(&disk);
    let text = b"one and the same ".repeat(40);
    set(&hash, b"crane", &text).unwrap();
    set(&hash, b"other", b"value").unwrap();
    hash.sync().unwrap();
    hash.close().unwrap();
    drop(hash);
    let mut state = disk.state();
    let path = Path::new(crash_session::DATA).join("0000000001.segment");
    let mut content = state.files()[&path].clone();
    // CRC, tag, lengths, second tag, dictionary, plain length: 680 as a varint.
    let at = content.windows(5).position(|bytes| bytes == b"crane").unwrap() - 11;
    assert_eq!(
        content[at + 4..at + 11],
        [0x80, 5, content[at + 6], 0x10, 0, 0xa8, 5],
        "the entry is another one"
    );
    content[at + 9] ^= 1;
    let len = (11 + 5 + usize::from(content[at + 6])).next_multiple_of(8);
    let seed = crc32c::crc32c(&content[..60]) ^ (at / 8) as u32;
    let crc = crc32c::crc32c_append(seed, &content[at + 4..at + len]);
    content[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    state.put(&path, content);

    let hash = compressing(&CrashDisk::with(state));
    let told = |error: todana_core::Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(&format!("0000000001.segment, offset {at}: ")), "{error}");
    };
    told(hash.view(b"crane", &mut |_| ()).unwrap_err());
    told(hash.visit(b"crane", &mut Does(Action::Keep, Vec::new())).unwrap_err());
    told(hash.scan(None, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap_err());
    let mut whole = Vec::new();
    let scanned = hash.scan_skipping_damaged(None, &mut |key, _| {
        whole.push(key.to_vec());
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!((scanned.unwrap(), whole), (None, vec![b"other".to_vec()]));
    struct Overwrites;
    impl Visitor for Overwrites {
        fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
            assert_eq!(old, None);
            Action::Put(Record::new(b"whole again", Attributes::default()))
        }
        fn overwrites(&self) -> bool {
            true
        }
    }
    hash.visit(b"crane", &mut Overwrites).unwrap();
    assert_eq!(get(&hash, b"crane"), Some(b"whole again".to_vec()));
    assert_eq!(hash.damaged_records().unwrap().0, 1);
}

#[test]
fn salvage_restores_compressed_values_with_intact_dictionary() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let hash = open(&path);
    fill(&hash, 0..3000);
    fill(&hash, 0..500);
    hash.close().unwrap();
    drop(hash);
    let salvage = |name: &str| {
        let into = DiskHash::open(&folder.path().join(name), options(false)).unwrap();
        let found = DiskHash::salvage(&SystemDisk, &path, false, Some(&into), &mut |_| ()).unwrap();
        (found, records(&into))
    };
    let (found, saved) = salvage("whole.hash");
    assert_eq!((found.damaged, found.lost_records), (0, 0), "{found:?}");
    assert_eq!(saved, expected(0..3000));

    let dictionary = dictionaries(&path).remove(0);
    let mut bytes = std::fs::read(&dictionary).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&dictionary, bytes).unwrap();
    for _ in 0..2 {
        let (found, saved) = salvage(if dictionary.exists() { "damaged.hash" } else { "missing.hash" });
        assert!(found.damages.iter().any(|damage| damage.path == dictionary), "{found:?}");
        assert_eq!(found.lost_records, 3000 - saved.len() as u64);
        // Records written before there was a dictionary are there; no older value of an overwritten
        // record is back.
        assert!(!saved.is_empty() && saved.len() < 2500, "{}", saved.len());
        assert!((0..500).all(|n| !saved.contains_key(&key(n))));
        let all = expected(0..3000);
        assert!(saved.iter().all(|(key, record)| all.get(key) == Some(record)));
        // Without an engine to write to, the report is the same.
        let only_told = DiskHash::salvage(&SystemDisk, &path, false, None, &mut |_| ()).unwrap();
        assert_eq!(only_told, found);
        let _ = std::fs::remove_file(&dictionary);
    }
}
