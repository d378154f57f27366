//! Records whose bytes have changed on disk: an overwritten or removed record is gone, and no other
//! record is.

use std::path::{Path, PathBuf};
use todana_core::{Action, Attributes, DurableEngine, Engine, ErrorKind, Record, Visitor};
use todana_engine::{DiskHash, DiskHashOptions};

/// Stores a value, whatever the old record is.
struct Set<'v>(&'v [u8]);

impl Visitor for Set<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

/// Removes a record, whatever it is.
struct Remove;

impl Visitor for Remove {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Remove
    }

    fn overwrites(&self) -> bool {
        true
    }
}

/// Opens the database with segments of this minimum length.
fn open(path: &Path, segment_bytes_min: u64) -> DiskHash {
    open_seeded(path, segment_bytes_min, 3)
}

fn open_seeded(path: &Path, segment_bytes_min: u64, seed: u64) -> DiskHash {
    let options =
        DiskHashOptions { seed: Some(seed), segment_bytes_min, buffer_bytes: 4096, ..Default::default() };
    DiskHash::open(path, options).unwrap()
}

fn value_of(hash: &DiskHash, key: &[u8]) -> Option<Vec<u8>> {
    let mut found = None;
    hash.view(key, &mut |record| found = Some(record.value.to_vec())).unwrap();
    found
}

/// Flips a bit at the first place in the segments where these bytes occur.
fn spoil(folder: &Path, bytes: &[u8]) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "segment") {
            continue;
        }
        let mut content = std::fs::read(&path).unwrap();
        if let Some(at) = content.windows(bytes.len()).position(|window| window == bytes) {
            content[at] ^= 1;
            return std::fs::write(&path, content).unwrap();
        }
    }
    panic!("no segment holds {bytes:?}");
}

/// Overwrites another record until there are further segments, and closes the database.
fn bury(hash: DiskHash) {
    for round in 0..15 {
        hash.visit(b"filler", &mut Set(&[round; 3000])).unwrap();
    }
    hash.close().unwrap();
}

/// Overwrites another record this number of times with maintenance in between, which reaches all
/// segments.
fn churn(hash: &DiskHash, rounds: u8) {
    for round in 0..rounds {
        hash.visit(b"filler", &mut Set(&[round; 3000])).unwrap();
        while hash.maintain() {}
    }
}

#[test]
fn damaged_segment_is_removed_before_its_clear() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cleared.hash");
    let hash = open(&path, 64 << 10);
    hash.visit(b"crane", &mut Set(b"one whose bytes will change")).unwrap();
    bury(hash);
    spoil(&path, b"one whose bytes");

    let hash = open(&path, 4096);
    churn(&hash, 20);
    assert!(hash.maintenance_error().is_some(), "compaction has not met the damage");
    hash.clear(&mut || ()).unwrap();
    for round in 0..20 {
        hash.visit(b"after", &mut Set(&[round; 3000])).unwrap();
        while hash.maintain() {}
    }
    hash.close().unwrap();
    drop(hash);
    std::fs::remove_file(path.join("index")).unwrap();
    let hash = open(&path, 4096);
    assert_eq!(hash.status().records, 1);
    assert_eq!(value_of(&hash, b"after"), Some(vec![19; 3000]));
}

/// The number of short records of which one or two share a part of the index, out of 64, with
/// another record.
const NEIGHBOURS: u32 = 64;

/// Creates a database with a damaged record, "x", and short records after it.
fn among_neighbours(path: &Path, seed: u64, count: u32) {
    let hash = open_seeded(path, 64 << 10, seed);
    // An entry of 48 bytes; those of its neighbours have 16, together no more than the maximum for
    // its size class.
    hash.visit(b"x", &mut Set(&[b'q'; 40])).unwrap();
    for n in 0..count {
        hash.visit(&n.to_be_bytes(), &mut Set(b"y")).unwrap();
    }
    bury(hash);
    spoil(path, &[b'q'; 40]);
}

/// Creates a database with a record, "x", whose length on disk has changed, and a short one after
/// it. Returns the segment.
fn before_a_neighbour(path: &Path, seed: u64) -> PathBuf {
    let hash = open_seeded(path, 64 << 10, seed);
    hash.visit(b"x", &mut Set(&[b'q'; 400])).unwrap();
    hash.visit(&0u32.to_be_bytes(), &mut Set(b"y")).unwrap();
    bury(hash);
    // Its length, of two bytes, becomes 432: longer by the length of the neighbour's entry and
    // twice that.
    let first = path.join("0000000001.segment");
    let mut content = std::fs::read(&first).unwrap();
    let at = content.windows(4).position(|window| window == b"\x90\x03xq").unwrap();
    content[at] = 0xB0;
    std::fs::write(&first, content).unwrap();
    first
}

fn assert_neighbours_are_there(hash: &DiskHash, count: u32) {
    for n in 0..count {
        assert_eq!(value_of(hash, &n.to_be_bytes()), Some(b"y".to_vec()), "neighbour {n}");
    }
}

#[test]
fn neighbours_of_overwritten_damaged_record_survive_reopening() {
    for seed in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("neighbours.hash");
        among_neighbours(&path, seed, NEIGHBOURS);
        let hash = open_seeded(&path, 64 << 10, seed);
        hash.visit(b"x", &mut Set(b"new")).unwrap();
        assert_eq!(hash.damaged_records().unwrap().0, 1);
        hash.close().unwrap();
        drop(hash);
        let hash = open_seeded(&path, 64 << 10, seed);
        assert_neighbours_are_there(&hash, NEIGHBOURS);
        assert_eq!(value_of(&hash, b"x"), Some(b"new".to_vec()));
    }
}

#[test]
fn neighbour_of_removed_damaged_record_survives() {
    // With these seeds the two records are in one part of the index.
    for seed in [41, 180] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("neighbours.hash");
        among_neighbours(&path, seed, 1);
        let first = path.join("0000000001.segment");
        let hash = open_seeded(&path, 4096, seed);
        hash.visit(b"x", &mut Remove).unwrap();
        churn(&hash, 20);
        assert!(!first.exists(), "it is not compacted: {:?}", hash.maintenance_error());
        assert_neighbours_are_there(&hash, 1);
        drop(hash);
        std::fs::remove_file(path.join("index")).unwrap();
        let hash = open_seeded(&path, 4096, seed);
        assert_neighbours_are_there(&hash, 1);
        assert_eq!(value_of(&hash, b"x"), None);
    }
}

/// Stores a value without reading the old one.
struct Ignore<'a>(Action<'a>);

impl Visitor for Ignore<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        self.0
    }

    fn ignores_value(&self) -> bool {
        true
    }
}

fn put(value: &[u8]) -> Action<'_> {
    Action::Put(Record::new(value, Attributes::default()))
}

#[test]
fn neighbour_of_record_with_changed_length_survives() {
    // With these seeds the two records are in one part of the index.
    for (seed, is_reopened) in [(41, false), (180, false), (41, true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("neighbours.hash");
        let first = before_a_neighbour(&path, seed);
        let mut hash = open_seeded(&path, 4096, seed);
        hash.visit(b"x", &mut Ignore(put(b"new"))).unwrap();
        if is_reopened {
            drop(hash);
            hash = open_seeded(&path, 4096, seed);
        }
        churn(&hash, 20);
        assert!(!first.exists(), "it is not compacted: {:?}", hash.maintenance_error());
        assert_neighbours_are_there(&hash, 1);
        assert_eq!(value_of(&hash, b"x"), Some(b"new".to_vec()));
    }
}

#[test]
fn damaged_value_is_replaced_unread_but_never_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cranes.hash");
    let hash = open(&path, 64 << 10);
    for n in 0..3 {
        let value = [&b"one whose bytes will change"[..], &[b'.'; 300]].concat();
        hash.visit(format!("crane{n}").as_bytes(), &mut Set(&value)).unwrap();
    }
    hash.close().unwrap();
    drop(hash);
    (0..3).for_each(|_| spoil(&path, b"one whose bytes"));

    let hash = open(&path, 64 << 10);
    hash.visit(b"crane0", &mut Ignore(put(b"new"))).unwrap();
    hash.visit(b"crane1", &mut Ignore(Action::Remove)).unwrap();
    let attributes = Attributes { flags: 7, ..Attributes::default() };
    let error = hash.visit(b"crane2", &mut Ignore(Action::Retag(attributes))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(value_of(&hash, b"crane0"), Some(b"new".to_vec()));
    assert_eq!(value_of(&hash, b"crane1"), None);
    assert_eq!(hash.view(b"crane2", &mut |_| ()).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// Stores a value whatever the old record is and without reading it, as a plain set does.
struct SetUnseen<'v>(&'v [u8]);

impl Visitor for SetUnseen<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn overwrites(&self) -> bool {
        true
    }

    fn ignores_value(&self) -> bool {
        true
    }
}

#[test]
fn compaction_resumes_after_damage_is_overwritten_unread() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cranes.hash");
    let hash = open(&path, 64 << 10);
    hash.visit(b"crane", &mut Set(&[&b"one whose bytes will change"[..], &[b'.'; 300]].concat())).unwrap();
    hash.visit(b"neighbour", &mut Set(b"y")).unwrap();
    bury(hash);
    spoil(&path, b"one whose bytes");

    let first = path.join("0000000001.segment");
    let hash = open(&path, 4096);
    churn(&hash, 20);
    assert!(first.exists() && hash.maintenance_error().is_some(), "the damage was not met");
    hash.visit(b"crane", &mut SetUnseen(b"new")).unwrap();
    assert_eq!(hash.damaged_records().unwrap().0, 1);
    churn(&hash, 20);
    assert!(!first.exists(), "it is not compacted: {:?}", hash.maintenance_error());
    assert_eq!(hash.maintenance_error(), None);
    assert_eq!(value_of(&hash, b"crane"), Some(b"new".to_vec()));
    assert_eq!(value_of(&hash, b"neighbour"), Some(b"y".to_vec()));
}

#[test]
fn damaged_record_does_not_block_other_compactions() {
    // With these seeds the two records are in one part of the index.
    for seed in [41, 180] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("neighbours.hash");
        let first = before_a_neighbour(&path, seed);
        // The first entry seems longer by the length of the second, and the second is damaged too.
        let mut content = std::fs::read(&first).unwrap();
        // After the first entry, because random numbers before it may look like this.
        let from = content.windows(4).position(|window| window == b"qqqq").unwrap();
        let at = from + content[from..].windows(5).position(|window| window == b"\0\0\0\0y").unwrap();
        content[at + 4] ^= 1;
        std::fs::write(&first, content).unwrap();

        let hash = open_seeded(&path, 4096, seed);
        hash.visit(b"x", &mut Ignore(put(b"new"))).unwrap();
        churn(&hash, 200);
        assert_eq!(hash.maintenance_error().unwrap().kind(), ErrorKind::Corrupt);
        assert_eq!(hash.view(&0u32.to_be_bytes(), &mut |_| ()).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(hash.disk_usage().bytes < 100_000, "{:?}", hash.disk_usage());
    }
}

/// Copies the files that a crash would leave of a database that was just synced.
fn crash(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Creates a closed database of records whose bytes have then changed on disk: "crane0" to
/// "crane9".
fn damaged_cranes(path: &Path) {
    let hash = open(path, 64 << 10);
    for n in 0..10 {
        hash.visit(format!("crane{n}").as_bytes(), &mut Set(b"one whose bytes will change")).unwrap();
    }
    hash.close().unwrap();
    drop(hash);
    (0..10).for_each(|_| spoil(path, b"one whose bytes"));
}

#[test]
fn overwritten_damaged_record_survives_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (path, crashed) = (folder.path().join("cranes.hash"), folder.path().join("crashed.hash"));
    damaged_cranes(&path);
    let hash = open(&path, 64 << 10);
    hash.visit(b"crane1", &mut Set(b"new")).unwrap();
    hash.visit(b"crane2", &mut Remove).unwrap();
    hash.visit(b"other", &mut Set(b"acknowledged")).unwrap();
    hash.sync().unwrap();
    crash(&path, &crashed);
    let hash = open(&crashed, 64 << 10);
    assert_eq!(hash.status().records, 10);
    assert_eq!(value_of(&hash, b"crane1"), Some(b"new".to_vec()));
    assert_eq!(value_of(&hash, b"crane2"), None);
    assert_eq!(value_of(&hash, b"other"), Some(b"acknowledged".to_vec()));
}

#[test]
fn batch_replaces_damaged_records_but_does_not_retag() {
    let folder = tempfile::tempdir().unwrap();
    let (path, crashed) = (folder.path().join("cranes.hash"), folder.path().join("crashed.hash"));
    damaged_cranes(&path);
    let hash = open(&path, 64 << 10);
    let put = Action::Put(Record::new(b"new", Attributes::default()));
    let error =
        hash.apply(&[(b"crane1", put), (b"crane2", Action::Retag(Attributes::default()))]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(hash.damaged_records(), None, "a part of a batch has been made");
    hash.apply(&[(b"crane1", put), (b"crane2", Action::Remove), (b"crane3", Action::Keep), (b"other", put)])
        .unwrap();
    assert_eq!(hash.damaged_records().unwrap().0, 2);
    hash.sync().unwrap();
    crash(&path, &crashed);
    for hash in [hash, open(&crashed, 64 << 10)] {
        assert_eq!(hash.status().records, 10);
        assert_eq!(value_of(&hash, b"crane1"), Some(b"new".to_vec()));
        assert_eq!(value_of(&hash, b"crane2"), None);
        assert_eq!(hash.view(b"crane3", &mut |_| ()).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(value_of(&hash, b"other"), Some(b"new".to_vec()));
    }
}

#[test]
fn damaged_segment_is_dropped_with_its_obsolete_removes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("removes.hash");
    let hash = open(&path, 64 << 10);
    hash.visit(b"gone", &mut Set(b"one that is removed")).unwrap();
    hash.visit(b"long", &mut Set(&[1; 40_000])).unwrap();
    hash.close().unwrap();
    drop(hash);
    let hash = open(&path, 64 << 10);
    hash.visit(b"x", &mut Set(b"one whose bytes will change")).unwrap();
    hash.visit(b"gone", &mut Remove).unwrap();
    bury(hash);
    spoil(&path, b"one whose bytes");

    let second = path.join("0000000002.segment");
    let hash = open(&path, 4096);
    hash.visit(b"x", &mut Set(b"new")).unwrap();
    churn(&hash, 20);
    assert!(second.exists() && hash.maintenance_error().is_some(), "the damage was not met");
    hash.visit(b"long", &mut Set(b"short")).unwrap();
    churn(&hash, 20);
    assert!(!second.exists(), "it is not compacted: {:?}", hash.maintenance_error());
    assert_eq!(hash.maintenance_error(), None);
    assert_eq!(value_of(&hash, b"x"), Some(b"new".to_vec()));
    assert_eq!(value_of(&hash, b"gone"), None);
}

#[test]
fn removed_damaged_record_restores_no_older_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cranes.hash");
    let hash = open(&path, 64 << 10);
    hash.visit(b"crane", &mut Set(b"an older value")).unwrap();
    hash.visit(b"long", &mut Set(&[1; 40_000])).unwrap();
    hash.close().unwrap();
    drop(hash);
    let hash = open(&path, 64 << 10);
    hash.visit(b"crane", &mut Set(b"one whose bytes will change")).unwrap();
    bury(hash);
    // The first byte of the key.
    spoil(&path, b"craneone whose bytes");

    let (first, second) = (path.join("0000000001.segment"), path.join("0000000002.segment"));
    let mut hash = open(&path, 4096);
    hash.scan_skipping_damaged(None, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    assert_eq!(hash.remove_damaged(9).unwrap(), 1);
    for is_reopened in [false, true] {
        if is_reopened {
            drop(hash);
            hash = open(&path, 4096);
        }
        churn(&hash, 20);
        assert_eq!(value_of(&hash, b"crane"), None);
        // A copy has no index: it reports the damage, or does not contain the record.
        let copy = folder.path().join(format!("{is_reopened}.hash"));
        hash.copy(&copy).unwrap();
        match DiskHash::open(&copy, DiskHashOptions::default()) {
            Ok(copied) => assert_eq!(value_of(&copied, b"crane"), None),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
        }
    }
    // When no segment is older, it can be removed.
    assert!(first.exists() && second.exists());
    hash.visit(b"long", &mut Set(b"short")).unwrap();
    churn(&hash, 20);
    assert!(!first.exists() && !second.exists(), "it is not compacted: {:?}", hash.maintenance_error());
    assert_eq!(hash.maintenance_error(), None);
    let copy = folder.path().join("copy.hash");
    hash.copy(&copy).unwrap();
    let copied = DiskHash::open(&copy, DiskHashOptions::default()).unwrap();
    assert_eq!(value_of(&copied, b"crane"), None);
    assert_eq!(value_of(&copied, b"long"), Some(b"short".to_vec()));
}
