//! A foreign file that has the name of the log's next segment.
//!
//! Such a file was once replaced silently. If it could not be replaced, no message named it,
//! although nothing could be written any longer.

use crate::crash_disk;
use crate::kept;

use crash_disk::CrashDisk;
use kept::{CrashDiskDatabase, DATA, open, options};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use todana::update_log::{LogOptions, SyncPolicy};

const NOW: u64 = 1_700_000_000;

fn log() -> LogOptions {
    LogOptions { segment_len: 500, ..options(SyncPolicy::Always) }
}

fn set(kept: &CrashDiskDatabase, number: usize) -> todana_core::Result<()> {
    kept.set(format!("key {number}").as_bytes(), b"value");
    kept.log().wait(kept.logged())
}

/// Creates a database whose next write needs a new segment. Returns it, the number of its records,
/// and the path of that segment.
fn full_segment(disk: &CrashDisk) -> (CrashDiskDatabase, usize, PathBuf) {
    let kept = open(disk, NOW, log()).unwrap();
    let mut number = 0;
    while kept.log().written().0 < 500 {
        set(&kept, number).unwrap();
        number += 1;
    }
    let next = Path::new(DATA).join(format!("log/{:020}.log", kept.log().written().0));
    (kept, number, next)
}

#[test]
fn beginning_of_a_segment_is_replaced() {
    for len in [0, 7, 47, 63] {
        for ending in ["", ".partial"] {
            let disk = CrashDisk::new();
            let (kept, number, next) = full_segment(&disk);
            let header = disk.state().files()[&Path::new(DATA).join(format!("log/{:020}.log", 0))].clone();
            let mut bytes = header[..64].to_vec();
            bytes[40..48].copy_from_slice(&kept.log().written().0.to_le_bytes());
            let name = PathBuf::from(format!("{}{ending}", next.display()));
            disk.damage(|state| state.put(&name, bytes[..len].to_vec()));
            set(&kept, number).unwrap();
            let expected = kept.records();
            assert_eq!(expected.len(), number + 1);
            kept.kill();
            disk.come_up(Some(1));
            assert_eq!(open(&disk, NOW, log()).unwrap().records(), expected, "{len} bytes{ending}");
        }
    }
}

#[test]
fn foreign_file_stays_and_is_named() {
    for bytes in [b"a letter to somebody".to_vec(), vec![0; 64], vec![b'x'; 5000]] {
        let disk = CrashDisk::new();
        let (kept, number, next) = full_segment(&disk);
        disk.damage(|state| state.put(&next, bytes.clone()));
        let error = set(&kept, number).unwrap_err().to_string();
        assert!(error.contains(next.to_str().unwrap()) && error.contains("move the file away"), "{error}");
        assert_eq!(disk.state().files()[&next], bytes);
        disk.damage(|state| state.take_away(&next));
        let deadline = Instant::now() + Duration::from_secs(60);
        while kept.log().wait(kept.logged()).is_err() {
            assert!(Instant::now() < deadline, "it is tried again");
            std::thread::yield_now();
        }
        let expected = kept.records();
        kept.kill();
        disk.come_up(Some(1));
        assert_eq!(open(&disk, NOW, log()).unwrap().records(), expected);
    }
}
