//! A directory under construction belongs to one process until it has its final name or is removed.
//! Symbolic links are never followed.

use crate::folder;

use folder::{NOW, disk, drain, empty, files, folder, open, receive};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use todana::backup::BackupReceiver;
use todana::disk::{Disk, File, SystemDisk};
use todana::{Clock, ManualClock, RestorationReport, RestoreOptions, restore, verify};
use todana_core::{ErrorKind, Result, UnixSeconds};

fn stream(folder: &Path) -> Vec<u8> {
    let kept = open(&folder.join("data"), 300);
    for n in 0..20 {
        kept.set(&format!("key {n}"), "value");
        kept.settle();
    }
    drain(kept.start_backup())
}

fn restored(disk: Arc<dyn Disk>, from: &Path, target: &Path) -> Result<RestorationReport> {
    let clock = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let database = empty(&clock);
    let options = RestoreOptions { from: from.into(), target: target.into(), ..RestoreOptions::default() };
    restore(disk, &options, &database, clock as Arc<dyn Clock>, &mut |_| ())
}

#[test]
fn link_in_place_of_a_target_is_refused() {
    let folder = folder();
    let stream = stream(folder.path());
    let path = |name: &str| folder.path().join(name);
    let elsewhere = path("elsewhere");
    fs::create_dir_all(elsewhere.join("log")).unwrap();
    for name in ["log/00000000000000000000.log", "identity", "backup"] {
        fs::write(elsewhere.join(name), "somebody's").unwrap();
    }
    let before = files(&elsewhere);
    let target = path("backup");
    let place = |name: &str| path(&format!("backup{name}"));
    for (link, to) in [
        (".partial", elsewhere.clone()),
        (".partial", path("nothing")),
        (".partial/log", elsewhere.join("log")),
        (".partial/checkpoints", elsewhere.clone()),
        (".partial.lock", elsewhere.join("lock")),
        ("", path("nothing")),
        ("", path("empty")),
    ] {
        fs::create_dir_all(path("empty")).unwrap();
        if link.starts_with(".partial/") {
            fs::create_dir_all(place(".partial")).unwrap();
        }
        symlink(&to, place(link)).unwrap();
        let error = receive(&stream, &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{link}: {error}");
        let name = place(link).display().to_string();
        assert_eq!(error.to_string(), format!("{name}: is a symbolic link, which is not followed"));
        assert_eq!(files(&elsewhere), before, "{link}");
        assert!(before.iter().all(|path| fs::read(path).unwrap() == b"somebody's"));
        assert!(!path("nothing").exists() && fs::read_dir(path("empty")).unwrap().count() == 0);
        // The link is foreign, so it is not removed either.
        assert!(fs::symlink_metadata(place(link)).unwrap().is_symlink(), "{link}");
        fs::remove_file(place(link)).unwrap();
    }
    receive(&stream, &target).unwrap();
}

/// A disk on which another process tries to create the same directory at every operation.
struct ContestedDisk {
    target: PathBuf,
    /// The number of attempts since the lock was taken.
    attempts: AtomicUsize,
    is_locked: Mutex<bool>,
}

impl ContestedDisk {
    fn attempt(&self) {
        if !*self.is_locked.lock().unwrap() {
            return;
        }
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let error = BackupReceiver::create(disk(), &self.target).map(|_| ()).expect_err("it is being made");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
}

impl Disk for ContestedDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.attempt();
        disk().create(path)
    }

    fn open(&self, path: &Path, writable: bool) -> io::Result<Box<dyn File>> {
        self.attempt();
        disk().open(path, writable)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.attempt();
        disk().list(directory)
    }

    fn make_directory(&self, directory: &Path) -> io::Result<()> {
        self.attempt();
        disk().make_directory(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.attempt();
        if to == self.target {
            *self.is_locked.lock().unwrap() = false;
        }
        disk().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.attempt();
        if path.extension().is_some_and(|extension| extension == "lock") {
            *self.is_locked.lock().unwrap() = false;
        }
        disk().remove(path)
    }

    fn remove_directory(&self, directory: &Path) -> io::Result<()> {
        self.attempt();
        disk().remove_directory(directory)
    }

    fn is_link(&self, path: &Path) -> io::Result<bool> {
        self.attempt();
        disk().is_link(path)
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.attempt();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let lock = disk().lock(path)?;
        if path == self.target.with_extension("partial.lock") {
            *self.is_locked.lock().unwrap() = true;
        }
        Ok(lock)
    }
}

#[test]
fn unfinished_target_is_locked() {
    let folder = folder();
    let stream = stream(folder.path());
    let (from, target) = (folder.path().join("backup"), folder.path().join("target"));
    let beset = || {
        Arc::new(ContestedDisk {
            target: target.clone(),
            attempts: AtomicUsize::new(0),
            is_locked: Mutex::new(false),
        })
    };
    receive(&stream, &from).unwrap();
    // A creation that fails.
    let disk = beset();
    let mut receiver = BackupReceiver::create(disk.clone(), &target).unwrap();
    receiver.take(&stream[..stream.len() - 1]).unwrap();
    assert_eq!(receiver.finish(&mut |_| ()).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(disk.attempts.load(Ordering::Relaxed) > 20);
    assert!(!*disk.is_locked.lock().unwrap());
    assert!(!target.exists() && !target.with_extension("partial").exists());
    // A creation that succeeds.
    let disk = beset();
    assert_eq!(restored(disk.clone(), &from, &target).unwrap().records, 20);
    assert!(disk.attempts.load(Ordering::Relaxed) > 40);
    assert_eq!(open(&target, 1 << 20).records().len(), 20);
}

#[test]
fn concurrent_targets_have_at_most_one_winner() {
    let folder = folder();
    let stream = stream(folder.path());
    let from = folder.path().join("backup");
    receive(&stream, &from).unwrap();
    for round in 0..60 {
        let target = folder.path().join(format!("target {round}"));
        let made: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|n| {
                    let (stream, from, target) = (&stream, &from, &target);
                    scope.spawn(move || match n % 3 {
                        0 => receive(stream, target).map(|_| ()),
                        1 => restored(disk(), from, target).map(|_| ()),
                        // The stream ends too early.
                        _ => receive(&stream[..stream.len() * (round + 1) / 61], target).map(|_| ()),
                    })
                })
                .collect();
            let outcomes = threads.into_iter().enumerate().map(|(n, thread)| (n, thread.join().unwrap()));
            outcomes
                .map(|(n, outcome)| match outcome {
                    Ok(()) => 1,
                    Err(error) => {
                        let is_fair = matches!(error.kind(), ErrorKind::Busy | ErrorKind::Invalid)
                            || n % 3 == 2 && error.kind() == ErrorKind::Corrupt;
                        assert!(is_fair, "{error}");
                        0
                    }
                })
                .sum()
        });
        assert!(made <= 1);
        assert!(!target.with_extension("partial").exists());
        assert_eq!(target.exists(), made == 1);
        if made == 1 {
            assert_eq!(verify(disk(), &target, &mut |_| ()).unwrap().damages, Vec::<String>::new());
        }
    }
}

/// If a process has opened the lock file before its removal, it must not hold a lock that no other
/// process sees.
#[test]
fn lock_is_exclusive_though_its_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let (is_held, locked) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while locked.load(Ordering::Relaxed) < 400 {
                    let lock = match SystemDisk.lock(&path) {
                        Ok(lock) => lock,
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                            continue;
                        }
                    };
                    assert!(!is_held.swap(true, Ordering::SeqCst), "two have it");
                    locked.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                    assert!(is_held.swap(false, Ordering::SeqCst));
                    SystemDisk.remove(&path).unwrap();
                    drop(lock);
                }
            });
        }
    });
}
