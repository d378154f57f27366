//! Salvaging a damaged backup yields all records outside of the damaged places, and no record that
//! was never stored.

use crate::folder;

use folder::{disk, drain, folder, open, receive, salvage};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use todana::{FoundDamage, verify};
use todana_core::{ErrorKind, Result};

/// The content of a block is at least this long, and hardly longer.
const BLOCK: usize = 256 << 10;

fn salvaged(from: &Path, target: &Path) -> Result<(Vec<FoundDamage>, BTreeMap<String, String>)> {
    let damages = salvage(from, target)?.damages;
    assert_eq!(verify(disk(), target, &mut |_| ()).unwrap().damages, Vec::<String>::new());
    let records = open(target, 1 << 20).records();
    fs::remove_dir_all(target).unwrap();
    Ok((damages, records))
}

/// Creates a backup with later log and a checkpoint of several blocks. Two of the blocks are of
/// long records with their pieces.
fn backup(folder: &Path) -> (PathBuf, PathBuf, BTreeMap<String, String>) {
    let kept = open(&folder.join("data"), 1 << 20);
    for n in 0..20_000 {
        kept.set(&format!("key {n}"), &format!("the value of number {n}, {:x}", n * 0x9e37));
    }
    for n in 0..2 {
        kept.set(&format!("long {n}"), &format!("{n}").repeat(300_000));
    }
    let stream = drain(kept.start_backup());
    let path = folder.join("backup");
    receive(&stream, &path).unwrap();
    let records = kept.records();
    let checkpoint = fs::read_dir(path.join("checkpoints")).unwrap().next().unwrap().unwrap().path();
    (path, checkpoint, records)
}

fn assert_part(part: &BTreeMap<String, String>, of: &BTreeMap<String, String>, story: &str) {
    assert!(part.iter().all(|(key, value)| of.get(key) == Some(value)), "{story}");
}

#[test]
fn checkpoint_damage_loses_only_its_block() {
    let folder = folder();
    let (backup, checkpoint, had) = backup(folder.path());
    let target = folder.path().join("target");
    let whole = fs::read(&checkpoint).unwrap();
    let (nothing, records) = salvaged(&backup, &target).unwrap();
    assert!(nothing.is_empty() && records == had);
    let before = fs::read_dir(folder.path()).unwrap().count();
    // A record needs at least 30 bytes.
    let most = BLOCK * 5 / 4 / 30;
    let mut places: Vec<usize> = (96..whole.len()).step_by(whole.len() / 23).collect();
    places.extend([96, 97, 100, 104, 108, 112, 116, whole.len() - 57, whole.len() - 56, whole.len() - 1]);
    let mut costs = 0;
    for at in places {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        fs::write(&checkpoint, &damaged).unwrap();
        let story = format!("byte {at} of {}", whole.len());
        let (damages, records) = salvaged(&backup, &target).unwrap();
        assert_part(&records, &had, &story);
        let lost = had.len() - records.len();
        assert!(lost <= most, "{story}: {lost}");
        costs += usize::from(lost > 0);
        let [mended] = damages.try_into().unwrap();
        assert_eq!(mended.finding.path, checkpoint);
        assert!(!mended.finding.what.contains("salvage"), "{}", mended.finding.what);
        // If the footer is lost, the number of records is unknown.
        let reported = if at < whole.len() - 56 {
            format!("{lost} are lost")
        } else {
            "an unknown number is lost".into()
        };
        assert!(mended.outcome.contains(&reported), "{story}: {lost}, {}", mended.outcome);
        // No other files are left beside the result.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
        assert_eq!(fs::read(&checkpoint).unwrap(), damaged);
    }
    assert!(costs > 15, "{costs}");
    // If the file is truncated, everything before the end is salvaged.
    for len in [whole.len() - 1, whole.len() / 2, whole.len() / 5] {
        fs::write(&checkpoint, &whole[..len]).unwrap();
        let (_, records) = salvaged(&backup, &target).unwrap();
        assert_part(&records, &had, &format!("{len}"));
        let expected = had.len() * len / whole.len() / 2;
        assert!(records.len() + most >= expected, "{len}: {}", records.len());
    }
}

#[test]
fn missing_or_added_bytes_lose_only_their_place() {
    let folder = folder();
    let (backup, checkpoint, had) = backup(folder.path());
    let target = folder.path().join("target");
    let whole = fs::read(&checkpoint).unwrap();
    let half = whole.len() / 2;
    // A moved block fails its checksum, which includes the offset. The blocks before it are intact.
    for damaged in
        [[&whole[..half], &whole[half + 7..]].concat(), [&whole[..half], b"more", &whole[half..]].concat()]
    {
        fs::write(&checkpoint, &damaged).unwrap();
        let (_, records) = salvaged(&backup, &target).unwrap();
        assert_part(&records, &had, "moved");
        assert!(records.len() > had.len() / 5, "{} of {}", records.len(), had.len());
    }
    // One changed bit of the header is corrected. Without a header, nothing can be read from the
    // file.
    let mut damaged = whole.clone();
    damaged[50] ^= 1;
    fs::write(&checkpoint, &damaged).unwrap();
    let (damages, records) = salvaged(&backup, &target).unwrap();
    assert!(records == had && damages[0].outcome.ends_with(", 0 are lost"), "{damages:?}");
    damaged[60] ^= 0xff;
    fs::write(&checkpoint, &damaged).unwrap();
    let (damages, records) = salvaged(&backup, &target).unwrap();
    assert_part(&records, &had, "header");
    assert!(damages.iter().any(|damage| damage.outcome == "left out"), "{damages:?}");
}

#[test]
fn only_checkpoint_of_a_directory_is_salvaged() {
    let folder = folder();
    let (backup, _, had) = backup(folder.path());
    // A backup without its manifest is a data directory.
    fs::remove_file(backup.join("backup")).unwrap();
    let path = fs::read_dir(backup.join("checkpoints")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&path, &bytes).unwrap();
    let (damages, records) = salvaged(&backup, &folder.path().join("target")).unwrap();
    assert_eq!(damages.len(), 1, "{damages:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_part(&records, &had, "mended");
    assert!(records.len() > had.len() / 2 && records.len() < had.len());
}

#[test]
fn directory_without_a_database_is_not_salvaged() {
    let folder = folder();
    let target = folder.path().join("target");
    let error = salvaged(&folder.path().join("nothing"), &target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
