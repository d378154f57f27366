//! Changes one bit anywhere in a data directory with checkpoints, and truncates files anywhere. The
//! damage is always reported with file and offset, and damaged data is never served. A damaged
//! checkpoint is replaced by the previous one and a longer log.
//!
//! Normally some places of the large directory are tested; `TODANA_CRASH=full` tests 10,000 of
//! them.

#[path = "../../tests/crash_disk/mod.rs"]
mod crash_disk;
mod kept;

use crash_disk::{CrashDisk, Dice, State};
use kept::{CrashDiskDatabase, DATA, StoredRecords, open, open_with, options};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::backup::{BackupReceiver, BackupSender};
use todana::checkpoint::{CheckpointCompression, CheckpointOptions};
use todana::update_log::{LogTail, SyncPolicy};
use todana::{DataDirectory, DataOptions, verify};
use todana_core::{Delete, Error, ErrorKind, Operation, ReplyNeeds, Store, Ttl};

const NOW: u64 = 1_700_000_000;
const WAYS: [CheckpointCompression; 2] = [CheckpointCompression::None, CheckpointCompression::Zstd(1)];

struct TestFiles {
    state: State,
    records: StoredRecords,
    files: Vec<(PathBuf, Vec<u8>)>,
}

fn data(compression: CheckpointCompression) -> DataOptions {
    DataOptions {
        log: options(SyncPolicy::Never),
        checkpoints: CheckpointOptions { compression, ..CheckpointOptions::default() },
    }
}

impl TestFiles {
    fn of(disk: &CrashDisk, kept: CrashDiskDatabase) -> TestFiles {
        let records = kept.records();
        kept.log().close().unwrap();
        let state = disk.state();
        let files = state.files().into_iter().filter(|(path, _)| !path.ends_with("lock")).collect();
        TestFiles { state, records, files }
    }

    /// Creates two checkpoints with records of each kind, each followed by log, in a directory that
    /// was closed regularly.
    fn small(compression: CheckpointCompression) -> TestFiles {
        let disk = CrashDisk::new();
        let kept = open_with(&disk, NOW, data(compression)).unwrap();
        let store = Store { key: b"gone", value: b"soon", ..Store::default() };
        kept.run(Operation::Store(store));
        kept.run(Operation::Store(Store { key: b"counter", value: b"41", ..store }));
        kept.directory.checkpoint(&kept.database).unwrap();
        kept.run(Operation::Delete(Delete { key: b"gone", ..Delete::default() }));
        let needs = ReplyNeeds { version: true, ..ReplyNeeds::default() };
        let (ttl, flags) = (Ttl::Sliding(60), 300);
        kept.run(Operation::Store(Store { key: b"tagged", value: &[b'v'; 60], ttl, flags, needs, ..store }));
        kept.run(Operation::Store(Store { key: b"12345678", value: b"0042", ttl: Ttl::Seconds(9), ..store }));
        // This value is long enough for a block of its own, and short after compression.
        if compression != CheckpointCompression::None {
            kept.run(Operation::Store(Store { key: b"long", value: &[b'l'; 66_000], ..store }));
        }
        kept.directory.checkpoint(&kept.database).unwrap();
        kept.run(Operation::Store(Store { key: b"behind", value: b"all", ..store }));
        TestFiles::of(&disk, kept)
    }

    fn large(compression: CheckpointCompression) -> TestFiles {
        let disk = CrashDisk::new();
        let kept = open_with(&disk, NOW, data(compression)).unwrap();
        let mut dice = Dice::new(5);
        for n in 0..30_000u32 {
            let value: Vec<u8> = (0..dice.roll(60)).map(|_| b'a' + dice.roll(26) as u8).collect();
            kept.set(n.to_string().as_bytes(), &value);
        }
        for n in 0..3u8 {
            let value: Vec<u8> = (0..200_000).map(|_| dice.roll(256) as u8).collect();
            kept.set(&[b'L', n], &value);
        }
        kept.directory.checkpoint(&kept.database).unwrap();
        TestFiles::of(&disk, kept)
    }

    /// Opens the damaged directory. Either the opening fails, or it yields the right records and
    /// reports the damage.
    fn judge(&self, state: State, path: &Path, story: &str) {
        let name = path.display().to_string();
        match open(&CrashDisk::with(state), NOW, options(SyncPolicy::Never)) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{story}: {error}");
                let message = error.to_string();
                assert!(message.starts_with(&name) && message.contains("at offset "), "{story}: {message}");
            }
            Ok(kept) => {
                let reported: Vec<String> =
                    kept.opened.refused.iter().cloned().chain(reported(&kept.opened.tail)).collect();
                assert!(reported.len() == 1 && reported[0].starts_with(&name), "{story}: {reported:?}");
                assert!(reported[0].contains("at offset "), "{story}: {reported:?}");
                assert_eq!(kept.records(), self.records, "{story}");
                kept.kill();
            }
        }
    }
}

fn is_checkpoint(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "checkpoint")
}

fn damages(disk: &CrashDisk) -> Vec<String> {
    let verified = verify(Arc::new(disk.clone()), Path::new(DATA), &mut |_| ()).unwrap();
    verified.damages.into_iter().chain(reported(&verified.tail)).collect()
}

/// Returns the report of a torn tail. If the last mark, which follows all changes, is damaged, it
/// looks like a torn tail.
fn reported(tail: &LogTail) -> Option<String> {
    match tail {
        LogTail::Clean => None,
        LogTail::Torn { path, offset, .. } => Some(format!("{} at offset {offset}: torn", path.display())),
    }
}

#[test]
fn small_files_detect_every_flipped_bit() {
    for compression in WAYS {
        let set = TestFiles::small(compression);
        assert!(set.records.len() >= 4);
        let checkpoints: Vec<&PathBuf> =
            set.files.iter().map(|(path, _)| path).filter(|path| is_checkpoint(path)).collect();
        let (older, newer) = (checkpoints[0], checkpoints[1]);
        let mut flips = 0;
        for (path, bytes) in &set.files {
            // The log contains the long value uncompressed. damage.rs covers every bit of logs, so
            // a sample is enough here.
            let step = if bytes.len() > 10_000 { 1_001 } else { 1 };
            for bit in (0..bytes.len() * 8).step_by(step) {
                let story = format!("{compression:?}, bit {} of byte {} of {path:?}", bit % 8, bit / 8);
                let mut state = set.state.clone();
                state.flip(path, bit);
                flips += 1;
                // A verification of the complete directory reports this damage and nothing else.
                let name = path.display().to_string();
                let disk = CrashDisk::with(state.clone());
                let reported = damages(&disk);
                assert!(reported.len() == 1 && reported[0].starts_with(&name), "{story}: {reported:?}");
                // An opening reads neither the contents of the older checkpoint nor the log before
                // the newer one.
                let start: Option<u64> = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
                let newest: u64 = newer.file_stem().unwrap().to_str().unwrap().parse().unwrap();
                let is_before = !is_checkpoint(path) && start.is_some_and(|start| start < newest);
                if path == older || is_before {
                    let kept = open(&CrashDisk::with(state), NOW, options(SyncPolicy::Never)).unwrap();
                    assert_eq!(kept.records(), set.records, "{story}");
                    kept.kill();
                } else {
                    set.judge(state, path, &story);
                }
            }
        }
        eprintln!("{compression:?}: {flips} flipped bits");
    }
}

#[test]
fn truncated_checkpoint_is_skipped() {
    for compression in WAYS {
        let set = TestFiles::small(compression);
        let (path, bytes) = set.files.iter().rfind(|(path, _)| is_checkpoint(path)).unwrap();
        for len in 0..bytes.len() {
            for is_filled in [false, true] {
                let mut cut = bytes[..len].to_vec();
                if is_filled {
                    cut.resize(bytes.len(), 0);
                }
                if cut == *bytes {
                    continue;
                }
                let story = format!("{compression:?}, cut off at {len}, filled: {is_filled}");
                let mut state = set.state.clone();
                state.put(path, cut);
                assert_eq!(damages(&CrashDisk::with(state.clone())).len(), 1, "{story}");
                set.judge(state, path, &story);
            }
        }
        for behind in [&b"\0"[..], &bytes[..], &bytes[bytes.len() - 56..]] {
            let mut state = set.state.clone();
            state.put(path, [&bytes[..], behind].concat());
            set.judge(state, path, "something stands behind it");
        }
    }
}

#[test]
fn two_damaged_checkpoints_are_an_error() {
    let set = TestFiles::small(CheckpointCompression::None);
    let mut state = set.state.clone();
    let paths: Vec<&PathBuf> =
        set.files.iter().map(|(path, _)| path).filter(|path| is_checkpoint(path)).collect();
    for path in &paths {
        state.flip(path, 200 * 8);
    }
    // The log before the older checkpoint has been removed.
    let first =
        set.files.iter().map(|(path, _)| path).find(|path| path.parent().unwrap().ends_with("log")).unwrap();
    assert_ne!(first.file_name().unwrap(), "00000000000000000000.log");
    let error = open(&CrashDisk::with(state), NOW, options(SyncPolicy::Never)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    for path in paths {
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn large_checkpoint_detects_flipped_bits() {
    let is_full = std::env::var("TODANA_CRASH").is_ok_and(|value| value == "full");
    let flips = if is_full { 10_000 } else { 400 };
    for compression in WAYS {
        let mut set = TestFiles::large(compression);
        let (path, bytes) = set.files.iter().rfind(|(path, _)| is_checkpoint(path)).unwrap().clone();
        assert!(bytes.len() > 1_000_000, "{}", bytes.len());
        // Other tests cover the log.
        for (other, _) in set.files.iter().filter(|(other, _)| other.parent().unwrap().ends_with("log")) {
            set.state.take_away(other);
        }
        let disk = CrashDisk::with(set.state.clone());
        let sound = damages(&disk).len();
        let mut dice = Dice::new(11);
        for _ in 0..flips {
            let bit = dice.roll(bytes.len() as u64 * 8) as usize;
            disk.damage(|state| state.flip(&path, bit));
            let reported = damages(&disk);
            let name = path.display().to_string();
            assert!(
                reported.iter().any(|why| why.starts_with(&name) && why.contains(" at offset ")),
                "bit {bit}"
            );
            disk.damage(|state| state.flip(&path, bit));
        }
        assert_eq!(damages(&disk).len(), sound);
        eprintln!("{compression:?}: {flips} flipped bits in {} bytes", bytes.len());
    }
}

/// Receives a stream on a new disk.
fn receive(stream: &[u8]) -> Result<CrashDisk, Error> {
    let disk = CrashDisk::new();
    let mut receiver = BackupReceiver::create(Arc::new(disk.clone()), Path::new(DATA))?;
    stream.chunks(1 << 16).try_for_each(|bytes| receiver.take(bytes))?;
    receiver.finish(&mut |_| ())?;
    Ok(disk)
}

#[test]
fn large_backup_detects_flipped_bits() {
    let is_full = std::env::var("TODANA_CRASH").is_ok_and(|value| value == "full");
    let flips = if is_full { 10_000u32 } else { 300 };
    let set = TestFiles::large(CheckpointCompression::Zstd(1));
    let mut stream = Vec::new();
    {
        let disk = CrashDisk::with(set.state.clone());
        let directory = DataDirectory::open(Arc::new(disk), Path::new(DATA)).unwrap();
        let mut backup = BackupSender::of_rest(&directory, &mut |_| ()).unwrap();
        while backup.next(&mut stream).unwrap() {}
    }
    let mut dice = Dice::new(13);
    let disk = receive(&stream).unwrap();
    let files: Vec<(PathBuf, usize)> = disk
        .state()
        .files()
        .into_iter()
        .filter(|(_, bytes)| !bytes.is_empty())
        .map(|(path, bytes)| (path, bytes.len()))
        .collect();
    let len: usize = files.iter().map(|(_, len)| len).sum();
    assert!(len > 1_000_000 && damages(&disk).is_empty());
    for n in 0..flips {
        let bit = dice.roll(stream.len() as u64 * 8) as usize;
        // If damage is detected late, everything before it is written first, which takes time.
        if n % 4 == 0 {
            stream[bit / 8] ^= 1 << (bit % 8);
            let error = receive(&stream).err().unwrap_or_else(|| panic!("bit {bit} of the stream"));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit} of the stream: {error}");
            stream[bit / 8] ^= 1 << (bit % 8);
        }
        let mut at = dice.roll(len as u64) as usize;
        let (path, _) = files
            .iter()
            .find(|(_, len)| {
                let is_here = at < *len;
                at -= if is_here { 0 } else { *len };
                is_here
            })
            .unwrap();
        let bit = at * 8 + dice.roll(8) as usize;
        disk.damage(|state| state.flip(path, bit));
        let verified = verify(Arc::new(disk.clone()), Path::new(DATA), &mut |_| ());
        assert!(verified.is_err() || !verified.unwrap().damages.is_empty(), "bit {bit} of {path:?}");
        disk.damage(|state| state.flip(path, bit));
    }
    assert_eq!(damages(&disk), [""; 0]);
    eprintln!("{flips} flipped bits in a backup of {len} bytes, {} in its stream", flips.div_ceil(4));
}
