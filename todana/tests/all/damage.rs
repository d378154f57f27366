//! A damaged log is never served: the opening fails and names file and offset. If the damage looks
//! like the remains of a crash, the opening yields an earlier state and reports the part that was
//! cut off.

use crate::crash_disk;
use crate::kept;

use crash_disk::{CrashDisk, Dice, State};
use kept::{CrashDiskDatabase, DATA, StoredRecords, open, options};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::update_log::{LogOptions, LogReader, LogTail, SyncPolicy};
use todana_core::{Delete, ErrorKind, Operation};

const NOW: u64 = 1_700_000_000;

/// The contents of a log and the state at each of its positions.
struct WrittenLog {
    state: State,
    moments: Vec<(u64, StoredRecords)>,
}

/// Creates three segments of small records. Each record is written and synced separately.
/// `is_closed` closes the log regularly.
fn log(disk: &CrashDisk, is_closed: bool, value: &str) -> WrittenLog {
    let always = LogOptions { segment_len: 250, ..options(SyncPolicy::Always) };
    let kept = open(disk, NOW, always).unwrap();
    let mut moments = vec![(0, StoredRecords::new())];
    for n in 0..14u8 {
        if n % 5 == 4 {
            kept.run(Operation::Delete(Delete { key: &[b'a' + n - 2], ..Delete::default() }));
        } else {
            kept.set(&[b'a' + n], format!("{value} {n}").as_bytes());
        }
        let end = kept.log().end();
        kept.log().wait(end).unwrap();
        moments.push((end.0, kept.records()));
    }
    end(kept, is_closed);
    WrittenLog { state: disk.state(), moments }
}

fn end(kept: CrashDiskDatabase, is_closed: bool) {
    if is_closed {
        kept.log().close().unwrap();
    } else {
        kept.kill();
    }
}

#[derive(Debug, PartialEq)]
enum OpeningVerdict {
    /// The opening failed with this message.
    Damaged(String),
    /// The opening yielded an earlier state, and reported that.
    Cut,
    /// The opening reported nothing, and the log ended where it had ended or could have ended.
    Unseen,
}

impl WrittenLog {
    /// Opens the damaged log. It must never yield a state that never existed.
    fn judge(&self, state: State, story: &str) -> OpeningVerdict {
        let kept = match open(&CrashDisk::with(state), NOW, options(SyncPolicy::Never)) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{story}: {error}");
                return OpeningVerdict::Damaged(error.to_string());
            }
            Ok(kept) => kept,
        };
        let position = kept.opened.end.0;
        let moment = self.moments.partition_point(|(end, _)| *end <= position) - 1;
        assert_eq!(kept.records(), self.moments[moment].1, "{story}");
        let is_cut = kept.opened.tail != LogTail::Clean;
        kept.kill();
        if is_cut { OpeningVerdict::Cut } else { OpeningVerdict::Unseen }
    }

    fn segments(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = self.state.files();
        files.retain(|path, _| path.extension().is_some_and(|extension| extension == "log"));
        files
    }
}

fn assert_names(message: &str, path: &Path, story: &str) {
    assert!(message.contains(path.to_str().unwrap()) && message.contains("at offset "), "{story}: {message}");
}

#[test]
fn no_flipped_bit_goes_unseen() {
    for is_closed in [true, false] {
        let log = log(&CrashDisk::new(), is_closed, "value");
        let files = log.state.files();
        assert_eq!(log.segments().len(), 3);
        for (path, bytes) in &files {
            for bit in 0..bytes.len() * 8 {
                let story = format!("closed: {is_closed}, bit {} of byte {} of {path:?}", bit % 8, bit / 8);
                let mut state = log.state.clone();
                state.flip(path, bit);
                match log.judge(state, &story) {
                    OpeningVerdict::Damaged(message) => assert_names(&message, path, &story),
                    // A torn write can leave only a bit at the end of a block in this state.
                    OpeningVerdict::Cut => {
                        let mut bytes = bytes.clone();
                        bytes[bit / 8] ^= 1 << (bit % 8);
                        let block_end = bytes.len().min((bit / 8 / 512 + 1) * 512);
                        assert!(bytes[bit / 8..block_end].iter().all(|&byte| byte == 0), "{story}");
                    }
                    OpeningVerdict::Unseen => panic!("{story} went unseen"),
                }
            }
        }
    }
}

#[test]
fn truncated_file_shows_only_written_records() {
    for is_closed in [true, false] {
        let log = log(&CrashDisk::new(), is_closed, "value");
        let last = log.segments().into_keys().next_back().unwrap();
        for (path, bytes) in &log.state.files() {
            for len in 0..bytes.len() {
                let story = format!("closed: {is_closed}, {path:?} cut off at {len}");
                let mut state = log.state.clone();
                state.put(path, bytes[..len].to_vec());
                let verdict = log.judge(state, &story);
                match &verdict {
                    OpeningVerdict::Damaged(message) => assert_names(message, path, &story),
                    // A crash can leave this in the last segment after its header was on disk.
                    _ => assert!(*path == last && len >= 64, "{story}: {verdict:?}"),
                }
                // Zeros stand in place of bytes that were promised to be on disk.
                let mut state = log.state.clone();
                let mut zeroed = bytes[..len].to_vec();
                zeroed.resize(bytes.len(), 0);
                // If the byte was already zero, as the last byte of the header may be, nothing
                // changes.
                let Some(changed_at) = zeroed.iter().zip(bytes).position(|(zero, byte)| zero != byte) else {
                    continue;
                };
                state.put(path, zeroed);
                let story = format!("{story}, zeros behind");
                match log.judge(state, &story) {
                    OpeningVerdict::Damaged(message) => assert_names(&message, path, &story),
                    verdict => {
                        let is_behind = *path == last && changed_at >= 64;
                        assert!(is_behind && verdict == OpeningVerdict::Cut, "{story}: {verdict:?}")
                    }
                }
            }
        }
    }
}

#[test]
fn segments_in_the_wrong_place_are_damage() {
    let log = log(&CrashDisk::new(), true, "value");
    let segments: Vec<(PathBuf, Vec<u8>)> = log.segments().into_iter().collect();
    let judge = |change: &dyn Fn(&mut State), story: &str| {
        let mut state = log.state.clone();
        change(&mut state);
        log.judge(state, story)
    };
    let assert_damaged = |verdict: OpeningVerdict, path: &Path, story: &str| match verdict {
        OpeningVerdict::Damaged(message) => assert_names(&message, path, story),
        other => panic!("{story}: {other:?}"),
    };
    for (n, (path, _)) in segments.iter().enumerate() {
        for (m, (_, other)) in segments.iter().enumerate().filter(|(m, _)| *m != n) {
            let story = format!("segment {m} in the place of {n}");
            assert_damaged(judge(&|state| state.put(path, other.clone()), &story), path, &story);
        }
    }
    // This is a copy under the name of another segment.
    let name = Path::new(DATA).join("log/00000000000000000777.log");
    let copy = |state: &mut State| state.put(&name, segments[2].1.clone());
    assert!(matches!(judge(&copy, "a copy"), OpeningVerdict::Damaged(_)));
    // The error names the segment before the gap.
    assert_damaged(judge(&|state| state.take_away(&segments[1].0), "the second"), &segments[0].0, "missing");
    match judge(&|state| state.take_away(&segments[0].0), "the first is missing") {
        OpeningVerdict::Damaged(message) => {
            assert!(message.contains("does not go back to position 0"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    // A file that is not a segment is ignored.
    let stranger = Path::new(DATA).join("log/notes.txt");
    let verdict = judge(&|state| state.put(&stranger, b"hello".to_vec()), "a stranger");
    assert_eq!(verdict, OpeningVerdict::Unseen);
}

#[test]
fn foreign_entries_are_never_served() {
    let ours = log(&CrashDisk::new(), true, "value");
    let theirs = log(&CrashDisk::new(), true, "VALUE");
    let (ours_segments, theirs_segments) = (ours.segments(), theirs.segments());
    for (path, bytes) in &ours_segments {
        let their_bytes = &theirs_segments[path];
        assert_eq!(bytes.len(), their_bytes.len());
        let mut state = ours.state.clone();
        state.put(path, their_bytes.clone());
        match ours.judge(state, "their segment") {
            OpeningVerdict::Damaged(message) => {
                assert!(message.contains("belongs to another database"), "{message}")
            }
            other => panic!("{other:?}"),
        }
        // The segment has the header of this database, and entries of another one.
        let mut state = ours.state.clone();
        state.put(path, [&bytes[..64], &their_bytes[64..]].concat());
        assert_ne!(ours.judge(state, "their entries"), OpeningVerdict::Unseen);
    }
}

#[test]
fn entries_copied_elsewhere_are_not_served() {
    let log = log(&CrashDisk::new(), true, "value");
    for (path, bytes) in &log.segments() {
        for from in (64..bytes.len() - 40).step_by(7) {
            for to in
                (64..bytes.len() - 40).step_by(11).filter(|to| bytes[*to..to + 40] != bytes[from..from + 40])
            {
                let mut damaged = bytes.clone();
                damaged.copy_within(from..from + 40, to);
                let mut state = log.state.clone();
                state.put(path, damaged);
                let verdict = log.judge(state, &format!("{path:?}: 40 bytes from {from} to {to}"));
                assert_ne!(verdict, OpeningVerdict::Unseen, "{path:?}: 40 bytes from {from} to {to}");
            }
        }
    }
}

#[test]
fn large_log_detects_flipped_bits() {
    let disk = CrashDisk::new();
    let kept = open(&disk, NOW, LogOptions { segment_len: 128 << 10, ..options(SyncPolicy::Never) }).unwrap();
    let mut dice = Dice::new(7);
    for n in 0..40_000u32 {
        let value = vec![b'v'; dice.roll(300) as usize];
        kept.set(format!("key {n}").as_bytes(), &value);
        if n % 500 == 0 {
            kept.log().sync_to(kept.log().end()).unwrap();
        }
    }
    let identity = kept.directory.identity();
    kept.log().close().unwrap();
    let mut files = disk.state().files();
    files.retain(|path, _| path.extension().is_some_and(|extension| extension == "log"));
    let lens: Vec<(PathBuf, usize)> = files.into_iter().map(|(path, bytes)| (path, bytes.len())).collect();
    assert!(lens.len() > 20);
    let disk_too: Arc<CrashDisk> = Arc::new(disk.clone());
    for _ in 0..10_000 {
        let (path, len) = &lens[dice.roll(lens.len() as u64) as usize];
        let bit = dice.roll(*len as u64 * 8) as usize;
        disk.damage(|state| state.flip(path, bit));
        let start = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let from = todana::update_log::LogPosition(start);
        let mut outcome = LogReader::open(disk_too.clone(), path.parent().unwrap(), identity, from);
        let error = loop {
            match &mut outcome {
                Err(error) => break error.clone(),
                Ok(reader) => match reader.next_entry() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("bit {bit} of {path:?} went unseen"),
                    Err(error) => break error,
                },
            }
        };
        assert_names(&error.to_string(), path, &format!("bit {bit}"));
        disk.damage(|state| state.flip(path, bit));
    }
}
