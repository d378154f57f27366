//! A batch that a full disk writes in part and then refuses.
//!
//! The part that had been written remained in the segment after the end of the log. An entry as
//! long as the beginning of the batch then made its records valid at the next opening; and after a
//! kill, the entries in the ring were expected after them.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
#[path = "disk_hash/crash_session.rs"]
#[allow(dead_code)]
mod crash_session;
#[allow(dead_code)]
mod visitor;

use crash_disk::CrashDisk;
use crash_session::{open, open_without_reserve, records};
use todana_core::{Action, Attributes, DurableEngine, Engine, ErrorKind, Record};
use visitor::Set;

/// Refuses a batch of 200 records on a disk with `room` for a part of it.
fn refuse_batch(disk: &CrashDisk, hash: &impl DurableEngine, room: u64) {
    let keys: Vec<String> = (0..200).map(|number| format!("key {number}")).collect();
    let value = [b'v'; 100];
    let changes: Vec<(&[u8], Action<'_>)> = keys
        .iter()
        .map(|key| (key.as_bytes(), Action::Put(Record::new(&value, Attributes::default()))))
        .collect();
    disk.limit(disk.used() + room);
    let error = hash.apply(&changes).unwrap_err();
    disk.heal();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
}

#[test]
fn refused_batch_never_appears_later() {
    for has_ring in [true, false] {
        for len in 0..24 {
            let disk = CrashDisk::new();
            if !has_ring {
                disk.limit(8 << 10);
            }
            let hash = open(&disk).unwrap();
            disk.heal();
            hash.visit(b"key 1", &mut Set(b"of old")).unwrap();
            hash.sync().unwrap();
            refuse_batch(&disk, &hash, 2000);
            hash.visit(b"k", &mut Set(&vec![b'x'; len])).unwrap();
            hash.sync().unwrap();
            let expected = records(&hash);
            assert_eq!(expected.len(), 2);
            let again = open(&CrashDisk::with(disk.state())).unwrap();
            assert_eq!(records(&again), expected, "with a ring: {has_ring}, value of {len} bytes");
        }
    }
}

#[test]
fn write_after_a_refused_batch_outlives_the_process() {
    for room in [0, 100, 1000, 5000, 9000] {
        for len in [0, 5, 40] {
            let disk = CrashDisk::new();
            let hash = open_without_reserve(&disk).unwrap();
            hash.visit(b"before", &mut Set(b"value")).unwrap();
            refuse_batch(&disk, &hash, room);
            hash.visit(b"after", &mut Set(&vec![b'a'; len])).unwrap();
            let expected = records(&hash);
            // The process is killed: everything that was written is there.
            let again = open(&CrashDisk::with(disk.state())).unwrap();
            assert_eq!(records(&again), expected, "room {room}, value of {len} bytes");
        }
    }
}

/// A long write that failed after the mark before it was written left the state that some entries
/// were not in the ring, although all were. Every later write then needed the disk, and was refused
/// although the ring had space for it.
#[test]
fn short_write_after_refused_long_one_succeeds() {
    // One that fits into the ring and one that does not.
    for len in [6 << 10, 20 << 10] {
        let disk = CrashDisk::new();
        let hash = open_without_reserve(&disk).unwrap();
        hash.visit(b"before", &mut Set(b"value")).unwrap();
        // So that the next write begins with a mark.
        hash.sync().unwrap();
        disk.fault(|op| match op {
            crash_disk::Op::Write { .. } => Err(std::io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        });
        for round in 0..3 {
            let error = hash.visit(b"long", &mut Set(&vec![b'l'; len])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            hash.visit(format!("short {round}").as_bytes(), &mut Set(b"value")).unwrap();
        }
        let expected = records(&hash);
        assert_eq!(expected.len(), 4);
        let killed = open(&CrashDisk::with(disk.state())).unwrap();
        assert_eq!(records(&killed), expected);
    }
}
