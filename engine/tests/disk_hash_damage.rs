//! A record whose bytes have changed on disk: what is overwritten or removed is gone, and nothing else is.

use std::path::Path;
use todana_core::{Action, Attributes, Durable, Engine, Record, Visitor};
use todana_engine::{DiskHash, DiskHashOptions};

/// Stores a value, whatever was there.
struct Set<'v>(&'v [u8]);

impl Visitor for Set<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

/// Opens with segments of so many bytes.
fn open(path: &Path, segment_bytes_min: u64) -> DiskHash {
    let options =
        DiskHashOptions { seed: Some(3), segment_bytes_min, buffer_bytes: 4096, ..Default::default() };
    DiskHash::open(path, options).unwrap()
}

fn value_of(hash: &DiskHash, key: &[u8]) -> Option<Vec<u8>> {
    let mut found = None;
    hash.view(key, &mut |record| found = Some(record.value.to_vec())).unwrap();
    found
}

/// Changes a bit of the first place in the segments where these bytes stand.
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

#[test]
fn a_damaged_segment_goes_before_the_clear_that_emptied_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cleared.hash");
    let hash = open(&path, 64 << 10);
    hash.visit(b"crane", &mut Set(b"one whose bytes will change")).unwrap();
    for round in 0..15 {
        hash.visit(b"filler", &mut Set(&[round; 3000])).unwrap();
    }
    hash.close().unwrap();
    drop(hash);
    spoil(&path, b"one whose bytes");

    let hash = open(&path, 4096);
    for round in 0..20 {
        hash.visit(b"filler", &mut Set(&[round; 3000])).unwrap();
        while hash.maintain() {}
    }
    assert!(hash.trouble().is_some(), "compaction has not met the damage");
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
