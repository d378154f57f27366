//! A database that was restored from a backup never assigns a version that was assigned after the
//! backup.

use crate::saved;

use saved::back_up;
use std::path::Path;
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::{
    Clock, CompareOutcome, Database, DatabaseName, Db, ManualClock, Records, RestoreOptions, UnixSeconds,
};
use todana_engine::{MemHash, MemHashOptions};

fn open(path: &Path) -> Db {
    match path.extension() {
        Some(_) => saved::open(path),
        None => todana::DbOptions::default().data_dir(path).open("mem:hash").unwrap(),
    }
}

fn restore(from: &Path, to: &Path, now: u64) {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(now)));
    let options = RestoreOptions { from: from.into(), target: to.into(), ..RestoreOptions::default() };
    if to.extension().is_some() {
        let name = DatabaseName::parse(to.to_str().unwrap()).unwrap();
        todana::restore(Arc::new(SystemDisk), &options, &name, clock, &mut |_| ()).unwrap();
        return;
    }
    let engine = MemHash::new(MemHashOptions::default()).unwrap();
    let database = Database::new(Box::new(engine), Arc::clone(&clock));
    todana::restore(Arc::new(SystemDisk), &options, &database, clock, &mut |_| ()).unwrap();
}

/// Writes a record and reads its version, so that a version is assigned.
fn token(db: &Db, value: &[u8]) -> u64 {
    db.set(b"key", value).unwrap();
    let version = db.get_record(b"key").unwrap().unwrap().version;
    assert!(version > 0);
    version
}

/// Returns true if a compare-and-set with this version succeeds.
fn fits(db: &Db, version: u64) -> bool {
    db.compare_and_set(b"key", b"by an old token", version).unwrap() == CompareOutcome::Stored
}

#[test]
fn later_version_never_matches_after_restore() {
    const YEAR_LATER: u64 = 1_767_225_600 + 365 * 86_400;
    for (from, to) in
        [("x.hash", &["a.hash", "b.hash"]), ("x.tree", &["a.tree", "b.hash"]), ("x", &["a", "b.tree"])]
    {
        let folder = tempfile::tempdir().unwrap();
        let (original, saved) = (folder.path().join(from), folder.path().join("saved"));
        let db = open(&original);
        let before = token(&db, b"1");
        back_up(&db, &saved);
        let mut old = Vec::new();
        // The original database continues, and is opened several more times.
        old.extend((0..5).map(|_| token(&db, b"2")));
        drop(db);
        for _ in 0..5 {
            let db = open(&original);
            old.extend((0..5).map(|_| token(&db, b"3")));
        }
        // A restored database does the same, and so does another one that is restored later from
        // the same backup. The clock of the first two does not show the right time.
        let mut last = 0;
        for (number, now) in [1000, YEAR_LATER, YEAR_LATER + 100].into_iter().enumerate() {
            let again = folder.path().join(format!("{number}{}", to[number % 2]));
            restore(&saved, &again, now);
            for opening in 0..3 {
                let db = open(&again);
                // A version from before the backup is valid until its record is written.
                if opening == 0 && number == 0 {
                    assert!(fits(&db, before), "{from} {to:?}");
                }
                let mut shown = Vec::new();
                for n in 0..20u32 {
                    let new = token(&db, &n.to_le_bytes());
                    let expected = *old.iter().max().unwrap();
                    assert!(new > expected, "{from} {to:?}: {new:x} and {expected:x}");
                    let fitting = old.iter().find(|&&old| fits(&db, old));
                    assert_eq!(fitting, None, "{from} {to:?} {number} {opening}");
                    assert!(new > last);
                    last = new;
                    shown.push(new);
                }
                old.extend(shown);
            }
        }
    }
}
