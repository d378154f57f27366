//! Salvage of a damaged hash on disk: all records outside of the damaged places come back, and no
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use todana_core::{Action, Attributes, DurableEngine, Engine, ErrorKind, Record, Visitor};
use todana_engine::disk::SystemDisk;
use todana_engine::{DiskHash, DiskHashOptions, HashSalvage, MemHash, MemHashOptions};

const HEADER_LEN: usize = 64;

struct Do<'v>(Option<&'v [u8]>);

impl Visitor for Do<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        match self.0 {
            Some(value) => Action::Put(Record::new(value, Attributes { flags: 7, ..Attributes::default() })),
            None => Action::Remove,
        }
    }
}

type Records = BTreeMap<String, String>;

/// The contents, and all values that each key has ever had.
struct Model {
    records: Records,
    had: BTreeMap<String, BTreeSet<String>>,
}

/// Creates a closed database of several segments: current, replaced, removed and long records, and
/// batches.
fn made(path: &Path) -> Model {
    let options =
        DiskHashOptions { seed: Some(3), segment_bytes_min: 4096, buffer_bytes: 4096, ..Default::default() };
    let hash = DiskHash::open(path, options).unwrap();
    let mut model = Model { records: Records::new(), had: BTreeMap::new() };
    let mut set = |key: String, value: String, is_batch: bool| {
        let put = Record::new(value.as_bytes(), Attributes { flags: 7, ..Attributes::default() });
        match is_batch {
            true => hash.apply(&[(key.as_bytes(), Action::Put(put))]).unwrap(),
            false => hash.visit(key.as_bytes(), &mut Do(Some(value.as_bytes()))).unwrap(),
        }
        model.had.entry(key.clone()).or_default().insert(value.clone());
        model.records.insert(key, value);
    };
    for n in 0..300 {
        set(format!("key{n}"), format!("first value of number {n}"), false);
    }
    set("long".into(), "x".repeat(9000), false);
    for n in 0..20 {
        set(format!("key{n}"), format!("second value of {n}, {}", "y".repeat(n * 7)), n % 5 == 0);
    }
    for n in 50..60 {
        hash.visit(format!("key{n}").as_bytes(), &mut Do(None)).unwrap();
        model.records.remove(&format!("key{n}"));
    }
    hash.close().unwrap();
    model
}

fn segments(path: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "segment")).collect();
    segments.sort();
    segments
}

fn salvaged(path: &Path) -> todana_core::Result<(HashSalvage, Records)> {
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    let told = DiskHash::salvage(&SystemDisk, path, false, None, &mut |_| ())?;
    let found = DiskHash::salvage(&SystemDisk, path, false, Some(&engine), &mut |_| ())?;
    assert_eq!(told, found);
    let (mut records, mut place) = (Records::new(), None);
    loop {
        place = engine.scan(place.take(), &mut |key, record| {
            assert_eq!(record.attributes.flags, 7);
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            records.insert(text(key), text(record.value));
            ControlFlow::Continue(())
        })?;
        if place.is_none() {
            return Ok((found, records));
        }
    }
}

/// Asserts that all salvaged records belong to the model, and that missing ones are reported.
fn is_honest(found: &HashSalvage, records: &Records, model: &Model, story: &str) {
    for (key, value) in records {
        assert!(model.had[key].contains(value), "{story}: {key} was never {value}");
        if found.damaged == found.mended {
            assert_eq!(model.records.get(key), Some(value), "{story}: {key}");
        }
    }
    if found.damaged == found.mended {
        let lost = model.records.keys().filter(|key| !records.contains_key(*key)).count() as u64;
        assert_eq!(found.lost_records, lost, "{story}: {found:?}");
    }
}

#[test]
fn salvage_restores_all_intact_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let model = made(&path);
    assert!(segments(&path).len() > 3);
    let (found, records) = salvaged(&path).unwrap();
    assert_eq!(records, model.records);
    assert!(found.damages.is_empty() && found.damaged == 0 && found.unclear == 0, "{found:?}");
    assert_eq!((found.lost_bytes, found.lost_records, found.openings), (0, 0, 1));
}

#[test]
fn changed_bit_is_repaired_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let model = made(&path);
    for segment in segments(&path) {
        let whole = std::fs::read(&segment).unwrap();
        for at in (0..whole.len()).step_by(19) {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            std::fs::write(&segment, &changed).unwrap();
            let story = format!("{} at {at}", segment.display());
            let (found, records) = salvaged(&path).unwrap();
            let [damage] = &found.damages[..] else { panic!("{story}: {found:?}") };
            assert_eq!((&damage.path, damage.is_mended), (&segment, true), "{story}");
            assert!(
                (damage.offset..damage.offset + damage.len).contains(&(at as u64)),
                "{story}: {damage:?}"
            );
            assert!(records == model.records, "{story}");
            assert_eq!((found.mended, found.lost_bytes, found.lost_records), (1, 0, 0), "{story}");
        }
        std::fs::write(&segment, &whole).unwrap();
    }
}

#[test]
fn changed_bytes_cost_only_their_own_entry() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let model = made(&path);
    let mut keys_told = 0;
    for segment in segments(&path) {
        let whole = std::fs::read(&segment).unwrap();
        for at in (HEADER_LEN..whole.len()).step_by(19) {
            let mut changed = whole.clone();
            changed[at] ^= 0x5a;
            std::fs::write(&segment, &changed).unwrap();
            let story = format!("{} at {at}", segment.display());
            let (found, records) = salvaged(&path).unwrap();
            let [damage] = &found.damages[..] else { panic!("{story}: {found:?}") };
            assert_eq!((&damage.path, damage.is_mended), (&segment, false), "{story}");
            assert!(
                (damage.offset..damage.offset + damage.len).contains(&(at as u64)),
                "{story}: {damage:?}"
            );
            is_honest(&found, &records, &model, &story);
            let differs = |(key, value): &(&String, &String)| records.get(*key) != Some(*value);
            let missing = model.records.iter().filter(differs).count();
            // The damaged record, and the one that seems damaged if the damage is in the key.
            assert!(missing <= 2, "{story}: {missing} are missing");
            keys_told += usize::from(found.unclear == 0);
        }
        std::fs::write(&segment, &whole).unwrap();
    }
    // The key is usually readable.
    assert!(keys_told > 800, "{keys_told}");
}

/// Without the beginnings of damaged entries, older values would come back in their place.
#[test]
fn salvage_restores_no_replaced_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let model = made(&path);
    let what = b"second value of 7,";
    for segment in segments(&path) {
        let mut bytes = std::fs::read(&segment).unwrap();
        if let Some(at) = bytes.windows(what.len()).position(|window| window == what) {
            bytes[at] ^= 0xff;
            std::fs::write(&segment, bytes).unwrap();
        }
    }
    let (found, mut records) = salvaged(&path).unwrap();
    assert!(found.damages[0].what.ends_with("its key seems to be \"key7\""), "{found:?}");
    assert_eq!((found.lost_records, found.unclear), (1, 0));
    assert_eq!(records.insert("key7".into(), model.records["key7"].clone()), None);
    assert_eq!(records, model.records);
}

#[test]
fn truncated_or_missing_files_cost_only_their_contents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let model = made(&path);
    let all = segments(&path);
    for segment in &all {
        let whole = std::fs::read(segment).unwrap();
        let is_last = segment == all.last().unwrap();
        let story = segment.display();
        for len in [whole.len() - 1, whole.len() - 9, whole.len() / 2, 63, 0] {
            std::fs::write(segment, &whole[..len]).unwrap();
            let (found, records) = salvaged(&path).unwrap();
            // No other file shows that the last one is too short.
            if !is_last {
                is_honest(&found, &records, &model, &format!("{story}, {len}"));
            }
            assert!(
                is_last || found.damages.iter().any(|damage| damage.path == *segment),
                "{story}: {found:?}"
            );
        }
        for bytes in [0, 0xa5] {
            let mut changed = whole.clone();
            let middle = whole.len() / 2;
            changed[middle..middle + middle.min(600)].fill(bytes);
            std::fs::write(segment, &changed).unwrap();
            let (found, records) = salvaged(&path).unwrap();
            is_honest(&found, &records, &model, &format!("{story} with {bytes}"));
            assert!(records.len() + 45 > model.records.len(), "{story} with {bytes}: {}", records.len());
        }
        // Only the beginning of the first sector remains: the other files show the rest.
        let mut changed = whole.clone();
        changed[..64].fill(0);
        std::fs::write(segment, &changed).unwrap();
        let (found, records) = salvaged(&path).unwrap();
        assert_eq!(records, model.records, "{story}");
        assert!(found.damages[0].what.contains("reconstructed from the rest"), "{found:?}");
        std::fs::remove_file(segment).unwrap();
        let (found, records) = salvaged(&path).unwrap();
        if !is_last {
            is_honest(&found, &records, &model, &format!("without {story}"));
        }
        assert!(is_last || found.damages.iter().any(|damage| damage.what == "the segment is missing"));
        std::fs::write(segment, &whole).unwrap();
    }
    assert_eq!(salvaged(&path).unwrap().1, model.records);
}

#[test]
fn salvage_without_readable_segment_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    std::fs::create_dir(&path).unwrap();
    assert_eq!(salvaged(&path).unwrap_err().kind(), ErrorKind::Corrupt);
    let mut random = fastrand::Rng::with_seed(5);
    let bytes: Vec<u8> = (0..100_000).map(|_| random.u8(..)).collect();
    std::fs::write(path.join("0000000001.segment"), &bytes).unwrap();
    assert_eq!(salvaged(&path).unwrap_err().kind(), ErrorKind::Corrupt);
    std::fs::remove_dir_all(&path).unwrap();
    // Also after an intact beginning.
    let model = made(&path);
    let segment = segments(&path).remove(0);
    let whole = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, [&whole[..whole.len()], &bytes].concat()).unwrap();
    let (found, records) = salvaged(&path).unwrap();
    assert_eq!(
        (found.damages.len(), records),
        (0, model.records),
        "what stands behind its end does not count"
    );
}

#[test]
fn torn_tail_is_no_damage_unless_synced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    made(&path);
    let torn = |path: &Path| DiskHash::salvage(&SystemDisk, path, true, None, &mut |_| ()).unwrap();
    let last = segments(&path).pop().unwrap();
    let whole = std::fs::read(&last).unwrap();
    // The index was written at the end, so everything was on disk.
    std::fs::write(&last, &whole[..whole.len() - 9]).unwrap();
    assert_eq!((torn(&path).damaged, torn(&path).torn), (1, None));
    std::fs::remove_file(path.join("index")).unwrap();
    let found = torn(&path);
    assert_eq!((found.damaged, found.torn.unwrap().path), (0, last.clone()));
    std::fs::write(&last, b"").unwrap();
    let found = torn(&path);
    assert_eq!((found.damaged, found.torn.unwrap().offset), (0, 0));
    // With an intact entry after it, it is damage.
    let mut changed = whole.clone();
    changed[whole.len() / 2..][..9].fill(0xee);
    std::fs::write(&last, &changed).unwrap();
    let found = torn(&path);
    assert_eq!((found.damaged, found.torn), (1, None));
}
