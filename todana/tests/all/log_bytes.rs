//! Reads the update log as bytes while it is being written.

use crate::folder::swayed_disk;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use swayed_disk::{Sway, Swayed};
use todana::disk::{Disk, SystemDisk};
use todana::update_log::{
    EntryDecoder, LogBytes, LogChange, LogOptions, LogPosition, LogReader, SyncPolicy, segments,
};
use todana::{DataDirectory, DataOptions, Database, SystemClock};
use todana_core::{ErrorKind, Operation, Store};
use todana_engine::{MemHash, MemHashOptions};

fn open(folder: &Path, sync: SyncPolicy) -> (DataDirectory, Database) {
    open_on(Arc::new(SystemDisk), folder, sync)
}

fn open_on(disk: Arc<dyn Disk>, folder: &Path, sync: SyncPolicy) -> (DataDirectory, Database) {
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    let database = Database::new(Box::new(engine), Arc::new(SystemClock));
    let directory = DataDirectory::open(disk, folder).unwrap();
    // Segments are small, so that there are many of them.
    let log = LogOptions { sync, segment_len: 4096, ..LogOptions::default() };
    let options = DataOptions { log, ..DataOptions::default() };
    directory.restore(&database, Arc::new(SystemClock), &options, &mut |_| ()).unwrap();
    (directory, database)
}

fn set(database: &Database, key: &str, value: &[u8]) {
    let store = Store { key: key.as_bytes(), value, ..Store::default() };
    database.execute(&database.worker_counters(), &Operation::Store(store), &mut |_| ());
}

/// Appends the keys and values of the puts in these entries.
fn puts(entries: &mut EntryDecoder, into: &mut Vec<(Vec<u8>, Vec<u8>)>) {
    while let Some((_, entry)) = entries.next_entry().unwrap() {
        if let LogChange::Put { key, record } = entry.change {
            into.push((key.to_vec(), record.value.to_vec()));
        }
    }
}

#[test]
fn log_bytes_follow_all_segments_in_order() {
    for sync in [SyncPolicy::Every(Duration::from_millis(1)), SyncPolicy::Never] {
        let folder = tempfile::tempdir().unwrap();
        let (directory, database) = open(folder.path(), sync);
        let is_over = AtomicBool::new(false);
        let value = |number: usize| vec![number as u8; number % 1500];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let log = database.log().unwrap();
                for number in 0..2000 {
                    set(&database, &format!("key:{number}"), &value(number));
                    if number % 10 == 9 {
                        log.sync_to(log.end()).unwrap();
                    }
                }
                is_over.store(true, Ordering::Release);
            });
            let log = database.log().unwrap();
            let mut bytes = directory.log_bytes(None).unwrap();
            let mut entries = EntryDecoder::new(bytes.identity().database_id, bytes.position());
            let (mut found, mut piece) = (Vec::new(), Vec::new());
            loop {
                let was_over = is_over.load(Ordering::Acquire);
                let until = log.readable();
                while bytes.position() < until {
                    let before = bytes.position();
                    // This position is not the end of an entry.
                    bytes.read(until, 777, &mut piece).unwrap();
                    assert_eq!(bytes.position().0 - before.0, piece.len() as u64);
                    assert!((1..=777).contains(&piece.len()));
                    entries.push(&piece);
                    piece.clear();
                    puts(&mut entries, &mut found);
                }
                // The readable part ends after an entry.
                assert!(entries.is_empty());
                if was_over {
                    break;
                }
                std::thread::yield_now();
            }
            assert_eq!(found.len(), 2000);
            for (number, put) in found.iter().enumerate() {
                assert_eq!(*put, (format!("key:{number}").into_bytes(), value(number)));
            }
        });
        assert!(std::fs::read_dir(folder.path().join("log")).unwrap().count() > 100);
    }
}

#[test]
fn log_being_read_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, database) = open(folder.path(), SyncPolicy::Always);
    let segments = || std::fs::read_dir(folder.path().join("log")).unwrap().count();
    let mut bytes = directory.log_bytes(Some(LogPosition(0))).unwrap();
    let log = database.log().unwrap();
    let write = || {
        for number in 0..40 {
            set(&database, &format!("key:{number}"), &[7; 1000]);
            log.wait(log.end()).unwrap();
        }
        directory.checkpoint(&database).unwrap();
    };
    (0..3).for_each(|_| write());
    let held = segments();
    assert!(held > 20);
    let until = log.readable();
    let mut all = Vec::new();
    while bytes.position() < until {
        bytes.read(until, usize::MAX, &mut all).unwrap();
    }
    assert_eq!(all.len() as u64, until.0);
    // The log that was read is released.
    write();
    assert!(segments() < held, "{} of {held}", segments());
    let error = directory.log_bytes(Some(LogPosition(0))).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("does not go back to position 0, only to "), "{error}");
    let first = directory.log_bytes(None).unwrap().position();
    assert!(first > LogPosition(0));
    let until = log.readable();
    while bytes.position() < until {
        bytes.read(until, usize::MAX, &mut all).unwrap();
    }
    log.close().unwrap();
    // The bytes contain the entries that the library's own reader returns.
    let mut reader =
        LogReader::open(Arc::new(SystemDisk), &folder.path().join("log"), directory.identity(), first)
            .unwrap();
    let mut entries = EntryDecoder::new(directory.identity().database_id, first);
    entries.push(&all[first.0 as usize..]);
    let mut count = 0;
    while let Some(own) = entries.next_entry().unwrap() {
        assert_eq!(Some(own), reader.next_entry().unwrap());
        count += 1;
    }
    assert!(count > 0 && entries.position() == until);
}

#[test]
fn foreign_or_damaged_entries_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (directory, database) = open(folder.path(), SyncPolicy::Always);
    set(&database, "key", b"value");
    let log = database.log().unwrap();
    log.wait(log.end()).unwrap();
    let until = log.readable();
    let mut bytes = Vec::new();
    directory.log_bytes(None).unwrap().read(until, usize::MAX, &mut bytes).unwrap();
    let id = directory.identity().database_id;
    // A mark of 25 bytes, and the record.
    let places: Vec<u64> = (0..=until.0)
        .filter(|&at| {
            let mut bytes = directory.log_bytes(Some(LogPosition(at))).unwrap();
            let is_between = bytes.is_between_entries(until).unwrap();
            assert_eq!(bytes.position(), LogPosition(at));
            is_between
        })
        .collect();
    assert_eq!(places, [0, 25, until.0]);
    let is_whole = |id, from, bytes: &[u8]| {
        let mut entries = EntryDecoder::new(id, from);
        entries.push(bytes);
        while let Ok(Some(_)) = entries.next_entry() {}
        entries.is_empty()
    };
    assert!(is_whole(id, LogPosition(0), &bytes));
    assert!(!is_whole([0; 16], LogPosition(0), &bytes));
    assert!(!is_whole(id, LogPosition(1), &bytes));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_whole(id, LogPosition(0), &damaged), "bit {bit}");
    }
}

/// A function that is called once, before a file of the log is opened or removed.
type FileHook = Box<dyn FnOnce(&Path) + Send>;

/// The machine's disk, with a function that interrupts it.
#[derive(Default)]
struct HookedDisk {
    opens: Mutex<Option<FileHook>>,
    removes: Mutex<Option<FileHook>>,
}

impl HookedDisk {
    fn happens(hook: &Mutex<Option<FileHook>>, path: &Path) {
        if path.extension().is_some_and(|extension| extension == "log") {
            let hook = hook.lock().unwrap().take();
            hook.into_iter().for_each(|hook| hook(path));
        }
    }
}

impl Sway for Arc<HookedDisk> {
    fn opens(&self, path: &Path) {
        HookedDisk::happens(&self.opens, path);
    }

    fn removes(&self, path: &Path) {
        HookedDisk::happens(&self.removes, path);
    }
}

/// Reads everything that is readable.
fn drained(bytes: &mut LogBytes, until: LogPosition) -> u64 {
    let (from, mut all) = (bytes.position(), Vec::new());
    while bytes.position() < until {
        bytes.read(until, usize::MAX, &mut all).unwrap();
    }
    let mut entries = EntryDecoder::new(bytes.identity().database_id, from);
    entries.push(&all);
    while entries.next_entry().unwrap().is_some() {}
    assert!(entries.is_empty());
    all.len() as u64
}

#[test]
fn segment_removed_at_the_start_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(HookedDisk::default());
    let (directory, database) = open_on(Arc::new(Swayed(disk.clone())), folder.path(), SyncPolicy::Always);
    let log = database.log().unwrap();
    for number in 0..40 {
        set(&database, &format!("key:{number}"), &[7; 1000]);
        log.wait(log.end()).unwrap();
    }
    let until = log.readable();
    let first = || segments(&SystemDisk, &folder.path().join("log")).unwrap()[0].start;
    let vanish =
        || *disk.opens.lock().unwrap() = Some(Box::new(|path: &Path| std::fs::remove_file(path).unwrap()));
    for _ in 0..2 {
        let gone = first();
        vanish();
        let mut bytes = directory.log_bytes(None).unwrap();
        assert!(gone < first());
        assert_eq!(bytes.position(), first());
        assert_eq!(drained(&mut bytes, until), until.0 - first().0);
    }
    let gone = first();
    vanish();
    let error = directory.log_bytes(Some(gone)).map(|_| ()).unwrap_err();
    let expected = format!("the update log does not go back to position {}, only to {}", gone.0, first().0);
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Invalid, expected));
}

#[test]
fn reader_start_stops_removals() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(HookedDisk::default());
    let (directory, database) = open_on(Arc::new(Swayed(disk.clone())), folder.path(), SyncPolicy::Always);
    let directory = Arc::new(directory);
    let log = database.log().unwrap();
    let write = || {
        for number in 0..40 {
            set(&database, &format!("key:{number}"), &[7; 1000]);
            log.wait(log.end()).unwrap();
        }
    };
    write();
    directory.checkpoint(&database).unwrap();
    write();
    let (sender, receiver) = std::sync::mpsc::channel();
    let its_own = Arc::clone(&directory);
    let begin = move |_: &Path| sender.send(its_own.log_bytes(None).unwrap()).unwrap();
    *disk.removes.lock().unwrap() = Some(Box::new(begin));
    // The log of the first checkpoint is no longer needed, and is removed segment by segment.
    directory.checkpoint(&database).unwrap();
    let mut bytes = receiver.try_recv().expect("something was removed");
    let (from, until) = (bytes.position(), log.readable());
    assert_eq!(from, LogPosition(0));
    assert_eq!(drained(&mut bytes, until), until.0);
    drop(bytes);
    // The reader does not exist any longer.
    write();
    directory.checkpoint(&database).unwrap();
    assert!(directory.log_bytes(None).unwrap().position() > LogPosition(0));
}
