//! Acknowledged writes survive a killed process although they were never synced. Writes that were
//! not acknowledged may be lost.
//!
//! Writes were once collected in the memory of the process for up to half of the time of `--sync`,
//! and were lost with it: 5,000 of 5,000 writes. Kyoto Tycoon and Kyoto Cabinet lose none.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
mod kept;

use crash_disk::{CrashDisk, Dice, Op, State};
use kept::{CrashDiskDatabase, DATA, StoredRecords, open, options};
use std::path::{Path, PathBuf};
use std::time::Duration;
use todana::update_log::{LogOptions, SyncPolicy};

const NOW: u64 = 1_700_000_000;

/// Nothing is synced before the close.
fn unsynced() -> LogOptions {
    LogOptions { segment_len: 20_000, ..options(SyncPolicy::Every(Duration::from_secs(3600))) }
}

fn recent() -> PathBuf {
    Path::new(DATA).join("log/recent")
}

/// Waits as a server does before it sends a reply.
fn acknowledge(kept: &CrashDiskDatabase) {
    kept.log().wait(kept.logged()).unwrap();
}

fn records(state: State) -> StoredRecords {
    open(&CrashDisk::with(state), NOW, unsynced()).unwrap().records()
}

#[test]
fn killed_process_leaves_every_acknowledged_write() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, unsynced()).unwrap();
    let mut dice = Dice::new(1);
    for number in 0..400 {
        let key = format!("key {}", dice.roll(40));
        let len = match dice.roll(40) {
            // Such a value has memory of its own, and does not fit into the ring.
            0 => 70_000,
            // Such a value does not fit into the ring.
            1 => 5_000,
            2..10 => 500,
            _ => dice.roll(30) as usize,
        };
        kept.set(key.as_bytes(), &vec![b'v'; len]);
        acknowledge(&kept);
        if number % 7 == 0 {
            assert_eq!(records(disk.state()), kept.records(), "after write {number}");
        }
    }
    assert!(disk.state().files().contains_key(&recent()));
    let expected = kept.records();
    kept.log().close().unwrap();
    assert!(!disk.state().files().contains_key(&recent()), "the log has all of it");
    assert_eq!(records(disk.state()), expected);
}

/// A process is killed again before it has written the entries that the previous process left in
/// the ring.
#[test]
fn writes_of_killed_processes_outlive_the_next_ones() {
    let disk = CrashDisk::new();
    let mut expected = StoredRecords::new();
    for life in 0..6 {
        let kept = open(&disk, NOW, unsynced()).unwrap();
        assert_eq!(kept.records(), expected, "life {life}");
        for number in 0..life * 3 {
            kept.set(format!("{life}:{number}").as_bytes(), b"value");
        }
        acknowledge(&kept);
        expected = kept.records();
        kept.kill();
        disk.come_up(None);
    }
}

/// Two processes write different entries at the same positions, and a power failure loses them in
/// the log. In the ring, the entries of the first process are still present.
#[test]
fn ring_of_an_earlier_opening_is_not_read() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, unsynced()).unwrap();
    let empty = disk.state();
    kept.set(b"first", b"one of the first opening");
    kept.set(b"lost!", b"another one, lost with the power");
    acknowledge(&kept);
    let old_ring = disk.state().files()[&recent()].clone();

    let mut state = empty;
    state.take_away(&recent());
    let disk = CrashDisk::with(state);
    let kept = open(&disk, NOW, unsynced()).unwrap();
    let new_ring = disk.state().files()[&recent()].clone();
    assert_eq!(old_ring.len(), new_ring.len());
    kept.set(b"FIRST", b"one of the later opening");
    acknowledge(&kept);
    let mut state = disk.state();
    let mut ring = state.files()[&recent()].clone();
    let end = ring.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    ring[end..].copy_from_slice(&old_ring[end..]);
    assert_ne!(ring, state.files()[&recent()], "there is more of the old one");
    state.put(&recent(), ring);
    let found = records(state);
    assert_eq!(found.keys().map(Vec::as_slice).collect::<Vec<_>>(), [b"FIRST"]);
}

/// If the memory of the ring's file cannot be shared, the ring is written by system calls. If that
/// fails too, the log is written before replies.
#[test]
fn log_is_written_first_without_shared_memory() {
    let disk = CrashDisk::new();
    drop(open(&disk, NOW, unsynced()).unwrap());
    disk.fault(|op| match op {
        Op::SetLen { .. } => Err(std::io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    let kept = open(&disk, NOW, unsynced()).unwrap();
    for number in 0..20 {
        kept.set(format!("key {number}").as_bytes(), b"value");
        acknowledge(&kept);
        assert_eq!(records(disk.state()), kept.records(), "after write {number}");
    }
}

/// A ring with arbitrary bytes of any length yields only acknowledged entries.
#[test]
fn damaged_ring_yields_entries_before_the_damage() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, unsynced()).unwrap();
    let mut moments = vec![kept.records()];
    for number in 0..12 {
        kept.set(format!("key {number}").as_bytes(), b"value");
        acknowledge(&kept);
        moments.push(kept.records());
    }
    let (state, ring) = (disk.state(), disk.state().files()[&recent()].clone());
    let end = ring.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    for at in (0..end).step_by(3) {
        let mut state = state.clone();
        let mut bytes = ring.clone();
        bytes[at] ^= 0x55;
        state.put(&recent(), bytes);
        assert!(moments.contains(&records(state)), "byte {at}");
    }
    for len in [0, 1, 7, 100, end - 1] {
        let mut state = state.clone();
        state.put(&recent(), ring[..len].to_vec());
        assert!(moments.contains(&records(state)), "{len} bytes");
    }
}
