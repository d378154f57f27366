//! A directory is opened only as the kind of database that it holds.
//!
//! The directory of a tree with the name of a hash, and the reverse, was once opened as an empty
//! database and written to, even by a `get`. The same happened to a folder of foreign files.

use crate::folder;

use folder::folder;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use todana::{Db, DbOptions, Records};
use todana_core::ErrorKind;

/// Returns the names below a directory and the bytes of the files.
fn all(directory: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(all(&path));
            found.push((path, None));
        } else {
            // LMDB registers its readers in this file.
            let bytes = if path.ends_with("lock.mdb") { Vec::new() } else { fs::read(&path).unwrap() };
            found.push((path, Some(bytes)));
        }
    }
    found.sort();
    found
}

/// Creates a database of a kind with one record, and renames its directory to `path`.
fn made(kind: &str, path: &Path) {
    let first = path.with_file_name(format!("first.{kind}"));
    let db = match kind {
        "data" => DbOptions::default().data_dir(&first).open("mem:hash"),
        _ => Db::open(first.to_str().unwrap()),
    };
    let db = db.unwrap();
    db.set(b"hello", b"world").unwrap();
    db.checkpoint().unwrap();
    db.sync().unwrap();
    drop(db);
    fs::rename(first, path).unwrap();
}

fn opened_as(kind: &str, path: &Path) -> todana::Result<Db> {
    match kind {
        "data" => DbOptions::default().data_dir(path).open("mem:hash"),
        _ => Db::open(path.to_str().unwrap()),
    }
}

#[test]
fn directory_of_another_kind_is_refused_unchanged() {
    for (kind, other, found) in [
        ("tree", "hash", "\"checkpoints\""),
        ("data", "hash", "\"checkpoints\""),
        ("hash", "tree", "\"0000000001.segment\""),
        ("hash", "data", "\"0000000001.segment\""),
        ("data", "tree", "\"checkpoints\""),
        ("tree", "data", "is a tree on disk, not a data directory"),
    ] {
        let folder = folder();
        let path = folder.path().join(format!("x.{other}"));
        made(kind, &path);
        let before = all(&path);
        let Err(error) = opened_as(other, &path) else { panic!("a {kind} was opened as a {other}") };
        assert_eq!(error.kind(), ErrorKind::Invalid, "{kind} as {other}: {error}");
        let said = error.to_string();
        assert!(said.contains(found) && said.contains(path.to_str().unwrap()), "{kind} as {other}: {said}");
        if (kind, other) != ("tree", "data") {
            assert_eq!(all(&path), before, "{kind} as {other}");
        }
        // Under its own name the database can be opened.
        let own = folder.path().join(format!("again.{kind}"));
        fs::rename(&path, &own).unwrap();
        assert_eq!(opened_as(kind, &own).unwrap().get(b"hello").unwrap().as_deref(), Some(&b"world"[..]));
    }
}

#[test]
fn folder_of_foreign_files_is_no_database() {
    for kind in ["hash", "tree"] {
        let folder = folder();
        let path = folder.path().join(format!("x.{kind}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("report.csv"), "1,2\n").unwrap();
        let error = opened_as(kind, &path).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("has foreign files (\"report.csv\")"), "{error}");
        assert_eq!(all(&path).len(), 1);
        fs::remove_file(path.join("report.csv")).unwrap();
        // The root directory of a new volume counts as empty.
        fs::create_dir(path.join("lost+found")).unwrap();
        opened_as(kind, &path).unwrap().set(b"hello", b"world").unwrap();
        // Foreign files beside a database are ignored.
        fs::write(path.join("README"), "mine\n").unwrap();
        assert_eq!(opened_as(kind, &path).unwrap().count(), 1);
    }
}

/// A folder with only a `.gitkeep`, which keeps an empty folder in version control, was once
/// refused as foreign.
#[test]
fn hidden_files_are_in_no_ones_way() {
    const HIDDEN: [&str; 6] =
        [".gitkeep", ".gitignore", ".DS_Store", ".nfs000000000001", ".snapshot", "lost+found"];
    for kind in ["hash", "tree", "data"] {
        let folder = folder();
        let path = folder.path().join(format!("x.{kind}"));
        fs::create_dir(&path).unwrap();
        for name in HIDDEN {
            match name {
                ".snapshot" | "lost+found" => fs::create_dir(path.join(name)).unwrap(),
                _ => fs::write(path.join(name), name).unwrap(),
            }
        }
        assert!(todana::begins_at(&path));
        opened_as(kind, &path).unwrap().set(b"hello", b"world").unwrap();
        assert!(!todana::begins_at(&path));
        assert_eq!(opened_as(kind, &path).unwrap().get(b"hello").unwrap().as_deref(), Some(&b"world"[..]));
        assert_eq!(fs::read(path.join(".gitkeep")).unwrap(), b".gitkeep");
        // A foreign file that is not hidden still prevents the opening.
        if kind != "data" {
            let other = folder.path().join(format!("y.{kind}"));
            fs::create_dir(&other).unwrap();
            for name in [".gitkeep", "report.csv"] {
                fs::write(other.join(name), "").unwrap();
            }
            assert!(opened_as(kind, &other).err().unwrap().to_string().contains("\"report.csv\""));
        }
    }
}

#[test]
fn lock_link_is_not_followed() {
    for kind in ["hash", "data"] {
        let folder = folder();
        let (path, elsewhere) = (folder.path().join(format!("x.{kind}")), folder.path().join("elsewhere"));
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, path.join("lock")).unwrap();
        let error = opened_as(kind, &path).err().unwrap();
        assert!(error.to_string().contains("lock"), "{error}");
        assert!(!elsewhere.exists());
    }
}

/// A pipe in place of a file, or a link to /dev/zero, once made `restore` wait forever. A sparse
/// file of 1 TiB was read completely before its length was compared.
#[test]
fn backup_with_special_files_is_refused() {
    type DamageFiles = fn(&Path);
    let spoils: [(DamageFiles, &str); 3] = [
        (
            |path| {
                fs::remove_file(path).unwrap();
                assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
            },
            "not a regular file",
        ),
        (
            |path| {
                fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink("/dev/zero", path).unwrap();
            },
            "not a regular file",
        ),
        (
            |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 40).unwrap(),
            "the list of the backup says",
        ),
    ];
    for kind in ["tree", "hash"] {
        for (damage, wanted) in &spoils {
            let folder = folder();
            let db = Db::open(folder.path().join(format!("x.{kind}")).to_str().unwrap()).unwrap();
            db.set(b"hello", b"world").unwrap();
            let from = folder.path().join("backup");
            let mut receiver = todana::backup::BackupReceiver::create(folder::disk(), &from).unwrap();
            let (mut backup, mut piece) = (db.backup().unwrap(), Vec::new());
            while backup.next(&mut piece).unwrap() {
                receiver.take(&piece).unwrap();
                piece.clear();
            }
            receiver.finish(&mut |_| ()).unwrap();
            let files = all(&from);
            let is_data = |path: &&PathBuf| {
                let name = path.to_str().unwrap();
                name.ends_with(".log") || name.ends_with(".checkpoint") || name.ends_with(".segment")
            };
            let spoiled = files.iter().map(|(path, _)| path).find(is_data).unwrap();
            damage(spoiled);
            let to = folder.path().join(format!("again.{kind}"));
            let name = todana::DatabaseName::parse(to.to_str().unwrap()).unwrap();
            let options = todana::RestoreOptions { from, ..Default::default() };
            let clock = std::sync::Arc::new(todana::SystemClock);
            let error = todana::restore(
                std::sync::Arc::new(todana::disk::SystemDisk),
                &options,
                &name,
                clock,
                &mut |_| (),
            )
            .err()
            .unwrap();
            assert!(error.to_string().contains(wanted), "{kind}, {}: {error}", spoiled.display());
            assert!(!to.exists());
        }
    }
}

/// A pipe in place of a file once made the opening wait forever.
#[test]
fn pipe_in_place_of_a_file_never_blocks() {
    for kind in ["hash", "tree", "data"] {
        let folder = folder();
        let path = folder.path().join(format!("x.{kind}"));
        made(kind, &path);
        let files: Vec<PathBuf> =
            all(&path).into_iter().map(|(file, _)| file).filter(|file| file.is_file()).collect();
        let passing = ["recent", "log/recent", "tree/unclean"].map(|name| path.join(name));
        for file in files.iter().chain(&passing) {
            let aside = folder.path().join("aside");
            let was_there = fs::rename(file, &aside).is_ok();
            if !std::process::Command::new("mkfifo")
                .arg(file)
                .stderr(Stdio::null())
                .status()
                .unwrap()
                .success()
            {
                continue;
            }
            // The file is refused or ignored.
            drop(opened_as(kind, &path));
            let _ = fs::remove_file(file);
            if was_there {
                fs::rename(&aside, file).unwrap();
            }
        }
    }
}
