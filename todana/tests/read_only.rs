//! Read-only databases: several readers at a time, never beside a writer, and no change on disk.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use todana::update_log::{LogOptions, SyncPolicy};
use todana::{DataOptions, Db, DbOptions, ErrorKind, Records, Result, Ttl, UpdateAction};

/// A database on disk of each kind.
#[derive(Clone, Copy, Debug)]
enum DiskDatabase {
    DataDir,
    Hash,
    Tree,
}

const PLACES: [DiskDatabase; 3] = [DiskDatabase::DataDir, DiskDatabase::Hash, DiskDatabase::Tree];

impl DiskDatabase {
    fn path(self, folder: &Path) -> PathBuf {
        folder.join(match self {
            DiskDatabase::DataDir => "data",
            DiskDatabase::Hash => "carts.hash",
            DiskDatabase::Tree => "carts.tree",
        })
    }

    fn open_with(self, folder: &Path, options: &DbOptions) -> Result<Db> {
        let path = self.path(folder);
        match self {
            DiskDatabase::DataDir => options.clone().data_dir(path).open("mem:hash"),
            DiskDatabase::Hash | DiskDatabase::Tree => options.open(path.to_str().unwrap()),
        }
    }

    fn write(self, folder: &Path) -> Result<Db> {
        self.open_with(folder, &DbOptions::default())
    }

    fn read(self, folder: &Path) -> Result<Db> {
        self.open_with(folder, &DbOptions::default().read_only())
    }
}

fn refusal<T>(outcome: Result<T>) -> (ErrorKind, String) {
    let error = outcome.err().expect("it is refused");
    (error.kind(), error.to_string())
}

/// Returns every file below a directory with its bytes and modification time.
fn image(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files.extend(image(&entry));
            files.insert(entry.clone(), (Vec::new(), fs::metadata(&entry).unwrap().modified().unwrap()));
        } else {
            let changed = fs::metadata(&entry).unwrap().modified().unwrap();
            files.insert(entry.clone(), (fs::read(&entry).unwrap(), changed));
        }
    }
    files
}

fn contents(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    db.iter().map(|item| item.unwrap()).collect()
}

fn fill(db: &Db, count: u32) {
    for number in 0..count {
        db.set(format!("key {number}").as_bytes(), format!("value {number}").as_bytes()).unwrap();
    }
}

#[test]
fn readers_share_a_database_and_keep_writers_out() {
    for place in PLACES {
        let folder = tempfile::tempdir().unwrap();
        let writer = place.write(folder.path()).unwrap();
        fill(&writer, 1000);
        let expected = contents(&writer);
        let (kind, message) = refusal(place.read(folder.path()));
        assert_eq!(kind, ErrorKind::Busy, "{place:?}");
        assert!(message.contains("is open for writing"), "{message}");
        drop(writer);

        let (one, other) = (place.read(folder.path()).unwrap(), place.read(folder.path()).unwrap());
        let (kind, message) = refusal(place.write(folder.path()));
        assert_eq!(kind, ErrorKind::Busy, "{place:?}");
        assert!(message.contains("is open for reading"), "{message}");
        assert_eq!(contents(&one), expected);
        drop(one);
        assert_eq!(refusal(place.write(folder.path())).0, ErrorKind::Busy, "{place:?}");
        let third = place.read(folder.path()).unwrap();
        assert_eq!((contents(&other), contents(&third)), (expected.clone(), expected.clone()));
        drop((other, third));

        let writer = place.write(folder.path()).unwrap();
        writer.set(b"more", b"1").unwrap();
        drop(writer);
        assert_eq!(contents(&place.read(folder.path()).unwrap()).len(), expected.len() + 1);
    }
}

/// Returns the newest log file of a database.
fn last_log(path: &Path) -> PathBuf {
    let folder = if path.join("log").is_dir() { path.join("log") } else { path.to_path_buf() };
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|end| end == "log" || end == "segment");
    files.filter(is_log).max().unwrap()
}

#[test]
fn readers_after_a_killed_writer_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, lines) = start("writes_until_it_is_killed", folder.path());
    assert_eq!(
        lines.take_while(|line| !line.ends_with("written")).filter(|line| line.contains("FAILED")).count(),
        0
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for number in (0..500).filter(|&number| number != 7) {
        expected.insert(format!("key {number}").into(), format!("value {number}").into());
    }
    for place in PLACES {
        let before = image(folder.path());
        let (one, other) = (place.read(folder.path()).unwrap(), place.read(folder.path()).unwrap());
        assert_eq!((contents(&one), contents(&other)), (expected.clone(), expected.clone()), "{place:?}");
        drop((one, other));
        assert_eq!(image(folder.path()), before, "{place:?}");

        drop(place.write(folder.path()).unwrap());
        let end = last_log(&place.path(folder.path()));
        let bytes = [fs::read(&end).unwrap(), vec![0x55; 21]].concat();
        fs::write(&end, bytes).unwrap();
        let before = image(folder.path());
        assert_eq!(contents(&place.read(folder.path()).unwrap()), expected, "{place:?}");
        assert_eq!(image(folder.path()), before, "{place:?}");
        // A writer finds the same records.
        assert_eq!(contents(&place.write(folder.path()).unwrap()), expected, "{place:?}");
    }
}

#[test]
fn read_only_operations_change_nothing() {
    for place in PLACES {
        let folder = tempfile::tempdir().unwrap();
        let writer = place.write(folder.path()).unwrap();
        fill(&writer, 100);
        writer.touch(b"key 1", Ttl::Sliding(1000)).unwrap();
        writer.touch(b"key 2", Ttl::At(1)).unwrap();
        writer.set(b"number", b"1").unwrap();
        drop(writer);
        let before = image(folder.path());

        let db = place.read(folder.path()).unwrap();
        let refused = [
            db.set(b"a", b"1"),
            db.add(b"a", b"1").map(drop),
            db.set(b"key 1", &[b'v'; 100_000]),
            db.append(b"key 1", b"1").map(drop),
            db.remove(b"key 1").map(drop),
            db.remove(b"missing").map(drop),
            db.touch(b"key 1", Ttl::Never).map(drop),
            db.increment(b"number", 1, None).map(drop),
            db.update(b"key 1", &mut |_| UpdateAction::Remove),
            db.update(b"key 2", &mut |_| UpdateAction::Value(b"again".to_vec())),
            db.clear(),
            db.checkpoint(),
            db.begin().map(drop),
        ];
        for (number, outcome) in refused.into_iter().enumerate() {
            let (kind, message) = refusal(outcome);
            assert_eq!(kind, ErrorKind::Invalid, "{place:?} {number}");
            assert!(message.ends_with("was opened for reading only"), "{place:?} {number}: {message}");
        }
        // A writer would store the version and the access that these reads cause.
        assert!(db.get_record(b"key 1").unwrap().is_some());
        assert_eq!(db.get(b"key 2").unwrap(), None);
        db.update(b"key 2", &mut |old| {
            assert!(old.is_none());
            UpdateAction::Keep
        })
        .unwrap();
        let snapshot = db.snapshot().unwrap();
        assert_eq!(snapshot.iter().count(), 100);
        db.sync().unwrap();
        let copy = folder
            .path()
            .join(format!("copy.{}", if matches!(place, DiskDatabase::Tree) { "tree" } else { "hash" }));
        db.copy(copy.to_str().unwrap()).unwrap();
        assert_eq!(contents(&Db::open(copy.to_str().unwrap()).unwrap()), contents(&db), "{place:?}");
        fs::remove_dir_all(copy).unwrap();
        drop((snapshot, db));
        let mut after = image(folder.path());
        let lacks_copy =
            |files: &mut BTreeMap<PathBuf, _>| files.retain(|path, _| path.parent() != Some(folder.path()));
        let mut before = before;
        lacks_copy(&mut after);
        lacks_copy(&mut before);
        assert_eq!(after, before, "{place:?}");
    }
}

/// A reader once created the file `lock` in a copy that lacked it, and removed it afterwards, so it
/// wrote to the copy.
#[test]
fn copy_without_lock_is_read_unchanged_and_guarded() {
    for place in PLACES {
        let folder = tempfile::tempdir().unwrap();
        let writer = place.write(folder.path()).unwrap();
        fill(&writer, 10);
        drop(writer);
        let lock = place.path(folder.path()).join("lock");
        fs::remove_file(&lock).unwrap();
        let before = image(folder.path());
        let (one, other) = (place.read(folder.path()).unwrap(), place.read(folder.path()).unwrap());
        assert_eq!(contents(&one), contents(&other));
        assert_eq!(image(folder.path()), before, "{place:?}");
        let (kind, message) = refusal(place.write(folder.path()));
        assert_eq!(kind, ErrorKind::Busy);
        assert!(message.contains("is open for reading"), "{message}");
        drop((one, other));
        let writer = place.write(folder.path()).unwrap();
        assert_eq!(refusal(place.read(folder.path())).0, ErrorKind::Busy);
        drop(writer);
    }
}

#[test]
fn missing_database_is_not_created_for_reading() {
    for place in PLACES {
        let folder = tempfile::tempdir().unwrap();
        let (kind, message) = refusal(place.read(folder.path()));
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(message.contains("does not exist"), "{message}");
        fs::create_dir(place.path(folder.path())).unwrap();
        let (_, message) = refusal(place.read(folder.path()));
        assert!(message.contains(place.path(folder.path()).to_str().unwrap()), "{message}");
        assert!(image(folder.path()).keys().all(|path| path.is_dir()), "{place:?}");
    }
}

const FOLDER: &str = "TODANA_TEST_READ_ONLY_FOLDER";

/// Starts a test of this file as a separate process, in a folder. Returns the process and the lines
/// that it prints.
fn start(test: &str, folder: &Path) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env(FOLDER, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    (child, lines)
}

/// The program of a process that writes and is killed.
#[test]
fn writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    // With this interval, all changes are only in memory that survives the process.
    let log = LogOptions { sync: SyncPolicy::Every(Duration::from_secs(3600)), ..LogOptions::default() };
    let unsynced = DbOptions::default().data_options(DataOptions { log, ..DataOptions::default() });
    for place in PLACES {
        let db = place.open_with(folder.as_ref(), &unsynced).unwrap();
        fill(&db, 500);
        db.remove(b"key 7").unwrap();
        std::mem::forget(db);
    }
    println!("written");
    let _ = std::io::stdin().read(&mut [0]);
}

/// The program of a second process, which reads.
#[test]
fn reads_until_its_input_ends() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    for place in PLACES {
        let db = place.read(folder.as_ref()).unwrap();
        println!("found {}", db.iter().count());
        // The process keeps all databases open.
        std::mem::forget(db);
    }
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn processes_read_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    PLACES.iter().for_each(|place| fill(&place.write(folder.path()).unwrap(), 100));
    let own: Vec<Db> = PLACES.iter().map(|place| place.read(folder.path()).unwrap()).collect();
    let read = || {
        let (child, mut lines) = start("reads_until_its_input_ends", folder.path());
        let found: Vec<String> = lines.by_ref().filter(|line| line.contains("found ")).take(3).collect();
        assert!(found.iter().all(|line| line.ends_with("found 100")), "{found:?}");
        (child, lines)
    };
    let children = [read(), read()];
    assert!(own.iter().all(|db| db.iter().count() == 100));
    drop(own);
    for place in PLACES {
        assert_eq!(refusal(place.write(folder.path())).0, ErrorKind::Busy, "{place:?}");
    }
    for (mut child, lines) in children {
        drop(child.stdin.take());
        assert_eq!(lines.filter(|line| line.contains("FAILED")).count(), 0);
        assert!(child.wait().unwrap().success());
    }
    for place in PLACES {
        place.write(folder.path()).unwrap().set(b"more", b"1").unwrap();
    }
}
