//! Acknowledged writes of a hash on disk that were not yet written to its files when the process
//! was killed.
//!
//! They were gathered in the memory of the process, so a kill lost up to 256 KiB of them, whatever
//! `--sync` was.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;
mod visitor;

use crash_disk::CrashDisk;
use crash_session::{DATA, open, records};
use std::io;
use std::path::Path;
use todana_core::{Action, Attributes, DurableEngine, Engine, ErrorKind, Record};
use visitor::{Remove, Set};

fn recent(disk: &CrashDisk) -> Option<Vec<u8>> {
    disk.state().files().remove(&Path::new(DATA).join("recent"))
}

#[test]
fn killed_process_loses_no_write() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    let mut expected = crash_session::Records::new();
    for number in 0..700u32 {
        let key = format!("key {}", number % 90);
        let value = "v".repeat(number as usize % 70);
        if number % 7 == 0 {
            hash.visit(key.as_bytes(), &mut Remove).unwrap();
            expected.remove(key.as_bytes());
        } else {
            hash.visit(key.as_bytes(), &mut Set(value.as_bytes())).unwrap();
            expected.insert(key.into_bytes(), (value.into_bytes(), Attributes::default()));
        }
        if number % 23 == 0 {
            // The process is gone; everything that it has written is there.
            let again = CrashDisk::with(disk.state());
            let hash = open(&again).unwrap();
            assert_eq!(records(&hash), expected, "after write {number}");
            assert!(!hash.notes().concat().contains("torn"), "{:?}", hash.notes());
        }
    }
    drop(hash);
    assert_eq!(recent(&disk), None, "a database that was closed has all in its segments");
}

#[test]
fn without_shared_memory_each_write_is_handed_over() {
    let disk = CrashDisk::new();
    // Leave no space for the ring, as on a file system without shared memory.
    disk.limit(8 << 10);
    let hash = open(&disk).unwrap();
    assert_eq!(recent(&disk), None);
    for number in 0..20u32 {
        hash.visit(&number.to_le_bytes(), &mut Set(b"value")).unwrap();
        if number == 10 {
            hash.visit(&3u32.to_le_bytes(), &mut Remove).unwrap();
        }
        let again = open(&CrashDisk::with(disk.state())).unwrap();
        assert_eq!(records(&again), records(&hash), "after write {number}");
    }
}

/// A batch that does not fit into the ring is written at once. If that fails, none of it is there,
/// neither then nor after a kill.
#[test]
fn refused_batch_leaves_nothing() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    hash.visit(b"before", &mut Set(b"value")).unwrap();
    let keys: Vec<String> = (0..200).map(|number| format!("key {number}")).collect();
    let value = [b'v'; 100];
    let changes: Vec<(&[u8], Action<'_>)> = keys
        .iter()
        .map(|key| (key.as_bytes(), Action::Put(Record::new(&value, Attributes::default()))))
        .collect();
    disk.fault(|op| match op {
        crash_disk::Op::Write { bytes, .. } if bytes.len() > 10_000 => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    assert_eq!(hash.apply(&changes).unwrap_err().kind(), ErrorKind::Full);
    disk.heal();
    hash.visit(b"after", &mut Set(b"of another length")).unwrap();
    let found = records(&hash);
    let names: Vec<&[u8]> = found.keys().map(Vec::as_slice).collect();
    assert_eq!(names, [&b"after"[..], b"before"]);
    assert_eq!(records(&open(&CrashDisk::with(disk.state())).unwrap()), found);
    hash.apply(&changes).unwrap();
    assert_eq!(records(&open(&CrashDisk::with(disk.state())).unwrap()).len(), 202);
}

/// A changed bit in the last entries of a database was taken for the result of a crash: an
/// acknowledged, synced record was dropped, and only a note reported it.
#[test]
fn flipped_bit_after_the_last_mark_is_damage() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    let path = Path::new(DATA).join("0000000001.segment");
    let file = |disk: &CrashDisk| disk.state().files()[&path].clone();
    hash.sync().unwrap();
    let begin = file(&disk).len();
    hash.visit(b"one", &mut Set(b"first value")).unwrap();
    hash.apply(&[
        (b"two", Action::Put(Record::new(b"second value", Attributes::default()))),
        (b"three", Action::Put(Record::new(&[b'3'; 300], Attributes::default()))),
    ])
    .unwrap();
    hash.visit(b"one", &mut Remove).unwrap();
    hash.sync().unwrap();
    // As after a kill: no mark states the last sync.
    disk.stop();
    drop(hash);
    let (state, bytes) = (disk.state(), file(&disk));
    assert!(bytes.len() > begin + 350);
    let mut cut_off = 0;
    for bit in begin * 8..bytes.len() * 8 {
        let mut state = state.clone();
        state.flip(&path, bit);
        state.take_away(&Path::new(DATA).join("recent"));
        match open(&CrashDisk::with(state)) {
            Ok(hash) => {
                // Only zeros follow it in its block, as after a crash.
                assert!(bytes[bit / 8] == 0 || bytes[bit / 8] == 1 << (bit % 8), "bit {bit} is not told");
                assert!(!hash.notes().is_empty(), "bit {bit} is cut off in silence");
                cut_off += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}: {error}");
                assert!(error.to_string().contains("has changed"), "bit {bit}: {error}");
            }
        }
    }
    // At most the padding of the last entry.
    assert!(cut_off <= 7 * 8, "{cut_off} bits");
}

/// The next segment could be created but neither written nor removed; the log continued in the
/// segment before it. The opening after a kill read only the last segment, and the writes that only
/// the ring contained were lost.
#[test]
fn beginning_of_the_next_segment_hides_no_write() {
    let disk = CrashDisk::new();
    let hash = open(&disk).unwrap();
    for number in 0..20u32 {
        hash.visit(&number.to_le_bytes(), &mut Set(b"value")).unwrap();
    }
    for len in [0, 7, 63] {
        let mut state = disk.state();
        let header = state.files()[&Path::new(DATA).join("0000000001.segment")][..len].to_vec();
        state.put(&Path::new(DATA).join("0000000002.segment"), header);
        let again = open(&CrashDisk::with(state)).unwrap();
        assert_eq!(records(&again), records(&hash), "{len} bytes of the next segment");
    }
}
