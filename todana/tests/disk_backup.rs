//! Backups of databases on disk: consistent, complete, and protected against damage.

mod saved;

use saved::{back_up, open, receive, restore, stream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use todana::disk::SystemDisk;
use todana::{DatabaseName, Db, ErrorKind, Records, RestoreOptions, SystemClock, verify};

/// Opens the database restored from a backup.
fn restored(from: &Path, to: &Path) -> todana::Result<Db> {
    restore(from, to).map(|_| open(to))
}

/// Each transaction changes both accounts and keeps their sum.
#[test]
fn backup_contains_transactions_completely_or_not() {
    const SUM: u64 = 1000;
    for file in ["x.hash", "x.tree"] {
        let folder = tempfile::tempdir().unwrap();
        let db = open(&folder.path().join(file));
        let number = |db: &Db, key: &[u8]| -> u64 {
            String::from_utf8(db.get(key).unwrap().unwrap()).unwrap().parse().unwrap()
        };
        let transfer = |from: u64| {
            let transaction = db.begin().unwrap();
            transaction.set(b"one", from.to_string().as_bytes()).unwrap();
            // This record separates the two accounts on disk.
            transaction.set(b"between", &[b'x'; 5000]).unwrap();
            transaction.set(b"two", (SUM - from).to_string().as_bytes()).unwrap();
            transaction.commit().unwrap();
        };
        transfer(0);
        let (commits, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        // Writes happen only shortly before and during a backup. Otherwise the database would grow
        // without end.
        let writes = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if writes.load(Ordering::Relaxed) {
                        transfer(commits.fetch_add(1, Ordering::SeqCst) % SUM);
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 0..10 {
                let before = commits.load(Ordering::SeqCst);
                writes.store(true, Ordering::Relaxed);
                while commits.load(Ordering::SeqCst) < before + 5 {
                    std::thread::yield_now();
                }
                let bytes = stream(&db);
                writes.store(false, Ordering::Relaxed);
                let saved = folder.path().join(format!("saved{round}"));
                receive(&bytes, &saved).unwrap();
                let again =
                    restored(&saved, &folder.path().join(format!("again{round}{}", &file[1..]))).unwrap();
                assert_eq!(number(&again, b"one") + number(&again, b"two"), SUM, "{file}");
                assert_eq!(again.count(), 3);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn hash_stream_detects_changed_and_missing_bits() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(&folder.path().join("x.hash"));
    for number in 0..50 {
        db.set(format!("key {number}").as_bytes(), format!("value {number}").as_bytes()).unwrap();
    }
    let whole = stream(&db);
    let target = folder.path().join("saved");
    // Only some places are tested, because each backup waits for the disk several times.
    for at in (0..whole.len()).step_by(13) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        let error = receive(&changed, &target).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid), "{at}: {error}");
        assert!(!target.exists());
    }
    for len in (0..whole.len()).step_by(101) {
        assert_eq!(receive(&whole[..len], &target).unwrap_err().kind(), ErrorKind::Corrupt, "{len}");
        assert!(!target.exists());
    }
    receive(&whole, &target).unwrap();
    assert_eq!(restored(&target, &folder.path().join("again.hash")).unwrap().count(), 50);
}

#[test]
fn hash_backup_includes_its_dictionaries() {
    let folder = tempfile::tempdir().unwrap();
    let text = |number: u32| {
        format!(
            "{{\"id\":{number},\"name\":\"user {number}\",\"roles\":[\"reader\",\"editor\"],\"active\":true,\"score\":{}}}",
            number % 977
        )
    };
    let db = Db::open(&format!("{}#zcomp=zstd", folder.path().join("x.hash").display())).unwrap();
    for number in 0..30_000 {
        db.set(format!("key {number}").as_bytes(), text(number).as_bytes()).unwrap();
    }
    while !folder.path().join("x.hash/001.dictionary").exists() {
        db.database().maintain();
    }
    // The dictionary exists shortly before records are compressed with it, and a backup contains
    // only the files that its records need. So several attempts may be necessary.
    let (mut saved, mut attempts) = (folder.path().join("saved"), 0);
    while !saved.join("hash/001.dictionary").exists() {
        attempts += 1;
        assert!(attempts < 100, "no record is compressed by the dictionary");
        saved = folder.path().join(format!("saved {attempts}"));
        for number in 0..1000 {
            db.set(format!("key {number}").as_bytes(), text(number).as_bytes()).unwrap();
        }
        back_up(&db, &saved);
    }
    let check = || verify(Arc::new(SystemDisk), &saved, &mut |_| ()).unwrap().damages;
    assert_eq!(check(), [] as [&str; 0]);
    let again = restored(&saved, &folder.path().join("again.hash")).unwrap();
    assert_eq!(again.count(), 30_000);
    for number in [0, 999, 1000, 29_999] {
        assert_eq!(again.get(format!("key {number}").as_bytes()).unwrap(), Some(text(number).into_bytes()));
    }
    let dictionary = saved.join("hash/001.dictionary");
    let mut bytes = std::fs::read(&dictionary).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&dictionary, bytes).unwrap();
    assert!(check().iter().any(|damage| damage.contains("001.dictionary")), "{:?}", check());
    let error = restore(&saved, &folder.path().join("bad.hash")).expect_err("it is damaged");
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("001.dictionary"), "{error}");
    std::fs::remove_file(&dictionary).unwrap();
    assert!(check().iter().any(|damage| damage.contains("001.dictionary")), "{:?}", check());
    assert!(restore(&saved, &folder.path().join("bad.hash")).is_err());
}

#[test]
fn stored_hash_backup_detects_changed_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(&folder.path().join("x.hash"));
    for number in 0..50 {
        db.set(format!("key {number}").as_bytes(), format!("value {number}").as_bytes()).unwrap();
    }
    let saved = folder.path().join("saved");
    back_up(&db, &saved);
    let check = || verify(Arc::new(SystemDisk), &saved, &mut |_| ()).unwrap();
    let verified = check();
    assert!(verified.damages.is_empty() && verified.hash_segments >= 1, "{verified:?}");
    let segments = std::fs::read_dir(saved.join("hash")).unwrap().map(|entry| entry.unwrap().path());
    for path in segments.chain([saved.join("backup")]) {
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            std::fs::write(&path, &changed).unwrap();
            // Without its manifest, the directory is not recognised as a backup.
            let seen = verify(Arc::new(SystemDisk), &saved, &mut |_| ());
            assert!(seen.is_err() || !seen.unwrap().damages.is_empty(), "{} at {at}", path.display());
            if at % 37 == 0 {
                let target = folder.path().join("again.hash");
                assert!(restore(&saved, &target).is_err(), "{} at {at}", path.display());
                assert!(!target.exists());
            }
        }
        std::fs::write(&path, &bytes).unwrap();
    }
    assert!(check().damages.is_empty());
}

#[test]
fn database_only_in_memory_is_not_backed_up() {
    let error = Db::open("mem:hash").unwrap().backup().err().expect("nothing is kept");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let options = RestoreOptions::default();
    let name = DatabaseName::parse("mem:tree").unwrap();
    let restored = todana::restore(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ());
    assert_eq!(restored.unwrap_err().kind(), ErrorKind::Invalid);
}

/// Changes a byte of the entry that contains `what` in the only segment of a hash.
fn damage_value(hash: &Path, what: &[u8]) {
    let path = std::fs::read_dir(hash).unwrap().map(|entry| entry.unwrap().path());
    let path = path.into_iter().find(|path| path.extension().is_some_and(|end| end == "segment")).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(what.len()).position(|found| found == what).expect("it is on disk");
    bytes[at] ^= 0xff;
    std::fs::write(&path, &bytes).unwrap();
}

/// A damaged entry, even one that was already replaced, once prevented the backup of all others.
#[test]
fn damaged_hash_is_backed_up_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hash");
    let db = open(&path);
    db.set(b"old", b"a value that is replaced").unwrap();
    db.set(b"old", b"new").unwrap();
    db.set(b"other", b"1").unwrap();
    drop(db);
    damage_value(&path, b"a value that is replaced");
    let db = open(&path);
    let saved = folder.path().join("saved");
    let [damage] = receive(&stream(&db), &saved).unwrap().damages.try_into().unwrap();
    assert!(damage.starts_with(&saved.join("hash").display().to_string()), "{damage}");
    let verified = verify(Arc::new(SystemDisk), &saved, &mut |_| ()).unwrap();
    assert_eq!((verified.damages, verified.inherited), (vec![damage], 1));
    // The damaged record is not restored silently: the message names the file of the backup.
    let error = restore(&saved, &folder.path().join("again.hash")).unwrap_err().to_string();
    assert!(error.starts_with(&saved.join("hash").display().to_string()), "{error}");
    assert!(error.contains("damaged before the backup"), "{error}");
    assert!(!folder.path().join("again.hash").exists());
    let target = folder.path().join("target");
    let options = RestoreOptions { from: saved, target: target.clone(), ..RestoreOptions::default() };
    let clock: Arc<dyn todana::Clock> = Arc::new(SystemClock);
    let engine = todana_engine::MemHash::new(todana_engine::MemHashOptions::default()).unwrap();
    let into = todana::Database::new(Box::new(engine), Arc::clone(&clock));
    let error = todana::salvage(Arc::new(SystemDisk), &options, &into, clock, &mut |_| ());
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("NAME.hash"), "{error}");
    assert!(!target.exists());
}
