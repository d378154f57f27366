//! A backup contains exactly the records that the database had at the end of the backup's log.
//! Changed or missing parts of a backup are reported, in the stream and on disk.

use crate::folder;

use folder::{FolderDatabase, NOW, disk, drain, files, folder, open, receive};
use std::fs;
use std::path::Path;
use todana::backup::{BackupReceiver, BackupSender};
use todana::{DataDirectory, verify};
use todana_core::ErrorKind;

/// Copies a backup without its manifest, so that it looks like a data directory.
fn as_data_directory(backup: &Path, to: &Path) {
    for path in files(backup) {
        let name = path.strip_prefix(backup).unwrap();
        if name != Path::new("backup") {
            fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// Returns a database with a few records in several segments, and the stream of a backup of it.
fn small(folder: &Path) -> (FolderDatabase, Vec<u8>) {
    let kept = open(&folder.join("data"), 150);
    for n in 0..4 {
        kept.set(&format!("key {n}"), &format!("value {n}"));
        kept.settle();
    }
    let mut backup = kept.start_backup();
    let mut stream = Vec::new();
    backup.next(&mut stream).unwrap();
    for n in 4..8 {
        kept.set(&format!("key {n}"), &format!("value {n}"));
        kept.settle();
    }
    kept.delete("key 1");
    while backup.next(&mut stream).unwrap() {}
    (kept, stream)
}

#[test]
fn backup_under_writes_has_all_records() {
    let folder = folder();
    let (kept, stream) = small(folder.path());
    let had = kept.records();
    assert_eq!(had.len(), 7);
    kept.set("too late", "1");
    let target = folder.path().join("backup");
    let backed_up = receive(&stream, &target).unwrap();
    assert_eq!((backed_up.records, backed_up.created_ms), (4, NOW * 1000));
    assert!(backed_up.start < backed_up.end);
    assert!(!folder.path().join("backup.partial").exists());
    let verified = verify(disk(), &target, &mut |_| ()).unwrap();
    assert_eq!((verified.damages, verified.backup.as_ref()), (vec![], Some(&backed_up)));
    assert_eq!(verified.log.1, backed_up.end);
    let copy = folder.path().join("copy");
    as_data_directory(&target, &copy);
    assert_eq!(open(&copy, 1 << 20).records(), had);
    // The stream is received in one piece, and byte by byte.
    let slowly = folder.path().join("slowly");
    let mut receiver = BackupReceiver::create(disk(), &slowly).unwrap();
    for byte in &stream {
        assert!(!receiver.is_over());
        receiver.take(std::slice::from_ref(byte)).unwrap();
    }
    assert!(receiver.is_over());
    assert_eq!(receiver.finish(&mut |_| ()).unwrap(), backed_up);
    for (one, other) in files(&target).iter().zip(files(&slowly)) {
        assert_eq!(fs::read(one).unwrap(), fs::read(other).unwrap());
    }
}

#[test]
fn idle_directory_is_backed_up_without_a_checkpoint() {
    let folder = folder();
    let data = folder.path().join("data");
    for (round, has_checkpoint) in [false, true, true].into_iter().enumerate() {
        let kept = open(&data, 200);
        for n in 0..6 {
            kept.set(&format!("key {round} {n}"), "value");
            kept.settle();
        }
        if has_checkpoint {
            kept.directory.checkpoint(&kept.database).unwrap();
        }
        kept.set(&format!("last {round}"), "value");
        let had = kept.records();
        drop(kept);
        let directory = DataDirectory::open_existing(disk(), &data).unwrap();
        let backup = BackupSender::of_rest(&directory, &mut |_| ()).unwrap();
        let target = folder.path().join(format!("backup {round}"));
        let backed_up = receive(&drain(backup), &target).unwrap();
        assert_eq!(backed_up.records > 0, has_checkpoint);
        assert_eq!(backed_up.created_ms, NOW * 1000);
        let copy = folder.path().join(format!("copy {round}"));
        as_data_directory(&target, &copy);
        assert_eq!(open(&copy, 1 << 20).records(), had);
    }
}

#[test]
fn empty_directory_is_backed_up() {
    let folder = folder();
    let data = folder.path().join("data");
    let directory = DataDirectory::open(disk(), &data).unwrap();
    let stream = drain(BackupSender::of_rest(&directory, &mut |_| ()).unwrap());
    let target = folder.path().join("backup");
    assert_eq!(receive(&stream, &target).unwrap().files, 1);
    assert_eq!(verify(disk(), &target, &mut |_| ()).unwrap().damages, Vec::<String>::new());
}

#[test]
fn truncated_stream_is_refused_and_leaves_nothing() {
    let folder = folder();
    let (_kept, stream) = small(folder.path());
    let target = folder.path().join("backup");
    let before = fs::read_dir(folder.path()).unwrap().count();
    for len in 0..stream.len() {
        let error = receive(&stream[..len], &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}: {error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before, "{len}");
    }
    let error = receive(&[&stream[..], b"x"].concat(), &target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    receive(&stream, &target).unwrap();
}

#[test]
fn no_flipped_bit_of_a_stream_goes_unseen() {
    let folder = folder();
    let (_kept, stream) = small(folder.path());
    let target = folder.path().join("backup");
    for at in 0..stream.len() {
        let mut damaged = stream.clone();
        damaged[at] ^= 1 << (at % 8);
        let error = receive(&damaged, &target).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
        assert!(!target.exists());
    }
}

#[test]
fn stored_backup_detects_flipped_bits_and_truncation() {
    let folder = folder();
    let (_kept, stream) = small(folder.path());
    let target = folder.path().join("backup");
    receive(&stream, &target).unwrap();
    let assert_damaged = |path: &Path, bytes: &[u8], story: &str| {
        fs::write(path, bytes).unwrap();
        let verified = verify(disk(), &target, &mut |_| ()).unwrap();
        let name = path.to_str().unwrap();
        assert!(verified.damages.iter().any(|damage| damage.contains(name)), "{story}: {verified:?}");
    };
    let mut places = 0;
    for path in files(&target).iter().filter(|path| !path.ends_with("lock")) {
        let bytes = fs::read(path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_damaged(path, &damaged, &format!("byte {at} of {path:?}"));
            assert_damaged(path, &bytes[..at], &format!("{path:?} cut off at {at}"));
            places += 1;
        }
        fs::write(path, &bytes).unwrap();
    }
    assert!(places > 500);
    assert_eq!(verify(disk(), &target, &mut |_| ()).unwrap().damages, Vec::<String>::new());
}

#[test]
fn existing_target_stays_and_remains_are_removed() {
    let folder = folder();
    let (_kept, stream) = small(folder.path());
    let target = folder.path().join("backup");
    let other = BackupReceiver::create(disk(), &target).unwrap();
    let kind = |target: &Path| receive(&stream, target).unwrap_err().kind();
    assert_eq!(kind(&target), ErrorKind::Busy);
    drop(other);
    // A killed process has left half of a backup and no lock.
    fs::create_dir_all(folder.path().join("backup.partial/log")).unwrap();
    fs::write(folder.path().join("backup.partial/log/00000000000000000000.log"), "half").unwrap();
    fs::write(folder.path().join("backup.partial/identity"), "half").unwrap();
    fs::create_dir(&target).unwrap();
    receive(&stream, &target).unwrap();
    assert_eq!(kind(&target), ErrorKind::Invalid);
    fs::write(folder.path().join("file"), "").unwrap();
    assert_eq!(kind(&folder.path().join("file")), ErrorKind::Invalid);
    // The backup cannot be opened as a database either.
    let error = DataDirectory::open(disk(), &target).err().unwrap();
    assert!(error.to_string().contains("todana restore"), "{error}");
}

#[test]
fn backup_holds_its_log_until_the_end() {
    let folder = folder();
    let kept = open(&folder.path().join("data"), 100);
    kept.set("before", "1");
    let mut backup = kept.start_backup();
    // Checkpoints are written in the meantime, which do not need the log before them.
    for n in 0..6 {
        kept.set(&format!("key {n}"), "1");
        kept.directory.checkpoint(&kept.database).unwrap();
    }
    let mut stream = Vec::new();
    while backup.next(&mut stream).unwrap() {}
    let target = folder.path().join("backup");
    let backed_up = receive(&stream, &target).unwrap();
    assert_eq!(backed_up.records, 1);
    let copy = folder.path().join("copy");
    as_data_directory(&target, &copy);
    assert_eq!(open(&copy, 1 << 20).records(), kept.records());
    drop(backup);
    kept.clock.advance(1);
    kept.directory.checkpoint(&kept.database).unwrap();
    kept.set("after", "1");
    kept.directory.checkpoint(&kept.database).unwrap();
    let left = files(&folder.path().join("data/log")).len();
    assert!(left <= 3, "{left} segments are left");
}

/// Each file matches the manifest, but the files belong to two databases.
#[test]
fn foreign_identity_in_a_backup_is_reported() {
    let folder = folder();
    let (_kept, stream) = small(folder.path());
    let target = folder.path().join("backup");
    receive(&stream, &target).unwrap();
    let mut list = fs::read(target.join("backup")).unwrap();
    list[32] ^= 1;
    let end = list.len() - 4;
    let crc = crc32c::crc32c(&list[..end]);
    list[end..].copy_from_slice(&crc.to_le_bytes());
    fs::write(target.join("backup"), list).unwrap();
    let damages = verify(disk(), &target, &mut |_| ()).unwrap().damages;
    let name = target.join("identity").display().to_string();
    assert_eq!(damages, [format!("{name} at offset 0: the identity is not that of the backup")]);
}
