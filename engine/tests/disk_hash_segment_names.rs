//! A file with the name of a hash's next segment.
//!
//! If the creation of a segment failed, and the removal of its file failed too, every later write
//! was refused until the database was reopened.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;
#[allow(dead_code)]
mod visitor;

use crash_disk::{CrashDisk, Op};
use crash_session::{DATA, open, open_without_reserve, records};
use std::io;
use std::path::{Path, PathBuf};
use todana_core::{DurableEngine, Engine, ErrorKind, Result};
use todana_engine::DiskHash;
use visitor::Set;

fn segment(number: u64) -> PathBuf {
    Path::new(DATA).join(format!("{number:010}.segment"))
}

/// Writes until a write is refused or there is a second segment.
fn fill(hash: &DiskHash, disk: &CrashDisk) -> Result<()> {
    for number in 0..200u32 {
        hash.visit(&number.to_le_bytes(), &mut Set(&[b'v'; 100]))?;
    }
    assert!(disk.state().files().contains_key(&segment(2)));
    Ok(())
}

fn assert_comes_back(hash: &DiskHash, disk: &CrashDisk) {
    fill(hash, disk).unwrap();
    let expected = records(hash);
    assert_eq!(expected.len(), 200);
    assert_eq!(records(&open(&CrashDisk::with(disk.state())).unwrap()), expected);
    hash.sync().unwrap();
    let mut lost = disk.state();
    lost = lost.reboot(1);
    assert_eq!(records(&open(&CrashDisk::with(lost)).unwrap()), expected);
}

#[test]
fn leftover_of_a_failed_creation_is_replaced() {
    // Nothing, a part of its beginning, or its complete beginning was written.
    for room in [0, 30, 64, 70, 1000] {
        let disk = CrashDisk::new();
        let hash = open_without_reserve(&disk).unwrap();
        let path = segment(2);
        let created = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let has = std::sync::Arc::clone(&created);
        disk.fault(move |op| match op {
            Op::Create { path: made } if *made == path => {
                has.store(true, std::sync::atomic::Ordering::SeqCst);
                Ok(())
            }
            Op::Write { offset: 0, .. } if has.load(std::sync::atomic::Ordering::SeqCst) => {
                Err(io::ErrorKind::StorageFull.into())
            }
            Op::Remove { path: gone } if *gone == path => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Ok(()),
        });
        assert_eq!(fill(&hash, &disk).unwrap_err().kind(), ErrorKind::Full);
        assert!(created.load(std::sync::atomic::Ordering::SeqCst));
        disk.heal();
        let mut begun = disk.state().files()[&segment(1)].clone();
        // Its number, and the checksum.
        begun[40..48].copy_from_slice(&2u64.to_le_bytes());
        let crc = crc32c::crc32c(&begun[..60]);
        begun[60..64].copy_from_slice(&crc.to_le_bytes());
        begun.truncate(room.min(80));
        disk.damage(|state| state.put(&segment(2), begun));
        assert_comes_back(&hash, &disk);
    }
}

#[test]
fn foreign_file_stays_and_is_named() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    let own = disk.state().files()[&segment(1)].clone();
    let letter = b"a letter to somebody, longer than the header of a segment, which has 64 bytes".to_vec();
    for foreign in [letter, vec![0; 5000], own] {
        disk.damage(|state| state.put(&segment(2), foreign.clone()));
        let error = fill(&hash, &disk).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("0000000002.segment") && message.contains("move it away"), "{message}");
        assert_eq!(disk.state().files()[&segment(2)], foreign);
    }
    disk.damage(|state| state.take_away(&segment(2)));
    assert_comes_back(&hash, &disk);
}
