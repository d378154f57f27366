//! Repairs what a fuzzer has thought of: a data directory of several files, none of which needs to fit the others.
//!
//!     head(1), then files: shape(1) position(8) len(2) content
//!
//! head: bit 0: the identity is damaged, bit 1: it is missing; bits 2 and 3: the same of the directories `checkpoints` and `log`.
//! shape mod 4: 0 a segment of these bytes, 1 a segment of these entries, 2 a checkpoint of these bytes, 3 a checkpoint: until(8) and
//! blocks. The entries and blocks are those of `opener`, at this position; bits 2 to 4 of the shape set: the position is as it is, else
//! it is modulo 1,024 and so is until.

use crate::crash_disk::{CrashDisk, Op, State};
use crate::kept::{DATA, open, options};
use crate::opener::{NOW, blocks_at, entries_at, identity};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::update_log::Sync;
use todana::{Clock, Database, ManualClock, Remedy, Repair, RestoreOptions, repair, restore_damaged, verify};
use todana_core::{ErrorKind, UnixSeconds};
use todana_engine::{MemHash, MemHashOptions};

/// What a repair may write: far more than it has read.
const CAPACITY: u64 = 4 << 20;

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Looking changes nothing; what is told is done; what is repaired opens, and nothing more is wrong with it; no file that was there is
/// lost. What is whole of it becomes a directory elsewhere, or nothing does.
pub(crate) fn repair_any(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first() else { return };
    let state = directory(*head, rest);
    let before = state.files();
    let disk = CrashDisk::with(state.clone());
    let found = repair(Arc::new(disk.clone()), Path::new(DATA), false);
    assert!(disk.state().files() == before, "looking has changed something");
    rescue(state.clone());
    disk.limit(CAPACITY);
    let done = repair(Arc::new(disk.clone()), Path::new(DATA), true);
    let (found, done) = match (found, done) {
        (Ok(found), Ok(done)) => (found, done),
        // It takes more than there is.
        (Ok(_), Err(error)) if error.to_string().contains("no storage space") => return,
        (Ok(found), Err(error)) => panic!("{error}, though it was found that {found:?}"),
        (Err(error), Err(the_same)) => {
            assert_eq!(error.to_string(), the_same.to_string());
            // Nothing at all is in it, or it cannot be told whose it is.
            let is_none =
                error.kind() == ErrorKind::Unavailable && error.to_string().contains("is no data directory");
            assert!(error.kind() == ErrorKind::Corrupt || is_none, "{error}");
            return;
        }
        (Err(error), Ok(done)) => panic!("{error}, though it was done: {done:?}"),
    };
    // Which of two damages of one checkpoint is told may differ: threads look for them.
    let told = |repair: &Repair| -> Vec<(PathBuf, u64, String)> {
        let told = repair.remedies.iter();
        told.map(|one| (one.finding.path.clone(), one.finding.lost, one.remedy.clone())).collect()
    };
    assert_eq!(told(&found), told(&done));
    assert_eq!(found.unmended, done.unmended);
    let after = disk.state().files();
    kept(&before, &after);
    let again = repair(Arc::new(disk.clone()), Path::new(DATA), false).expect("it was repaired");
    // Of a checkpoint the blocks are kept whose checksums are right. What they are right of may be nonsense here, as no damage makes it,
    // and is found at the second look.
    let is_kept = |one: &Remedy| one.remedy.starts_with("mended: ");
    if done.remedies.iter().any(is_kept) && !again.remedies.is_empty() {
        return;
    }
    assert_eq!(again.remedies.len() as u64, done.unmended, "{again:?} after {done:?}");
    disk.heal();
    let verified = verify(Arc::new(disk.clone()), Path::new(DATA), &mut |_| ()).expect("it was repaired");
    if done.unmended > 0 {
        return;
    }
    assert_eq!(verified.damages, Vec::<String>::new(), "after {done:?}");
    match open(&disk, NOW, options(Sync::Never)) {
        Ok(opened) => {
            assert_eq!(opened.opened.refused, Vec::<String>::new());
            opened.kill();
        }
        Err(error) => panic!("{error} after {done:?}"),
    }
}

fn directory(head: u8, mut rest: &[u8]) -> State {
    let mut state = State::default();
    let mut make = |directory: &str| {
        let path = Path::new(DATA).join(directory);
        state.apply(&Op::MakeDirectory { path }).expect("nothing is in its way");
    };
    if head & 4 == 0 {
        make("checkpoints");
    }
    if head & 8 == 0 {
        make("log");
    }
    if head & 2 == 0 {
        let mut identity = identity();
        identity[20] ^= head & 1;
        state.put(&Path::new(DATA).join("identity"), identity);
    }
    while let Some(([shape, position_and_len @ ..], behind)) = rest.split_first_chunk::<11>() {
        let (position, len) = position_and_len.split_at(8);
        let len = u16::from_le_bytes(len.try_into().expect("two bytes"));
        let (content, behind) = behind.split_at(behind.len().min(len.into()));
        rest = behind;
        let is_near = shape & 0x1c != 0x1c;
        let near = |bytes: &[u8]| {
            let number = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            if is_near { number % 1024 } else { number }
        };
        let position = near(position);
        let (part, bytes) = match shape % 4 {
            0 => ("log", content.to_vec()),
            1 => ("log", entries_at(position, content)),
            2 => ("checkpoint", content.to_vec()),
            _ => {
                let Some((until, content)) = content.split_first_chunk::<8>() else { continue };
                ("checkpoint", blocks_at(position, near(until), content))
            }
        };
        let folder = if part == "log" { "log" } else { "checkpoints" };
        if head & if part == "log" { 8 } else { 4 } == 0 {
            state.put(&Path::new(DATA).join(folder).join(format!("{position:020}.{part}")), bytes);
        }
    }
    state
}

/// What is no longer under its name is there under another one.
fn kept(before: &Files, after: &Files) {
    for (path, bytes) in before {
        let stays = after.get(path) == Some(bytes);
        let name = format!("{}.damaged", path.display());
        let is_aside = |(other, kept): (&PathBuf, &Vec<u8>)| {
            other.to_str().is_some_and(|other| other.starts_with(&name)) && kept == bytes
        };
        assert!(stays || after.iter().any(is_aside), "{} is lost", path.display());
    }
}

/// Makes a directory of what is whole.
fn rescue(state: State) {
    let before = state.files();
    let disk = CrashDisk::with(state);
    disk.limit(CAPACITY);
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(UnixSeconds(NOW)));
    let options = MemHashOptions { shards: Some(1), seed: Some(1), ..MemHashOptions::default() };
    let engine = MemHash::new(options).expect("there is room");
    let database = Database::new(Box::new(engine), Arc::clone(&clock));
    let options =
        RestoreOptions { from: DATA.into(), target: "/restored".into(), ..RestoreOptions::default() };
    let outcome = restore_damaged(Arc::new(disk.clone()), &options, &database, clock, &mut |_| ());
    disk.heal();
    let (own, others): (Files, Files) =
        disk.state().files().into_iter().partition(|(path, _)| path.starts_with(DATA));
    assert!(own == before, "what is damaged has been changed");
    match outcome {
        Ok(_) => {
            assert!(others.keys().all(|path| path.starts_with("/restored")), "{:?}", others.keys());
            let verified = verify(Arc::new(disk), Path::new("/restored"), &mut |_| ()).expect("it was made");
            assert_eq!(verified.damages, Vec::<String>::new());
        }
        Err(error) => {
            assert_eq!(others, Files::new(), "{error}");
            let is_full = error.to_string().contains("no storage space");
            let is_none = error.to_string().contains("is no data directory");
            assert!(error.kind() == ErrorKind::Corrupt || is_full || is_none, "{:?} {error}", error.kind());
        }
    }
}
