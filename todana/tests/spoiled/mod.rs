//! Salvages fuzz input: a data directory of several files that need not belong together.
//!
//!     head(1), then files: shape(1) position(8) len(2) content
//!
//! head: bit 0: the identity is damaged, bit 1: it is missing; bits 2 and 3: the same for the
//! directories `checkpoints` and `log`. shape mod 4: 0 a segment of these bytes, 1 a segment of
//! these entries, 2 a checkpoint of these bytes, 3 a checkpoint: until(8) and blocks. The entries
//! and blocks have the form of `opener`, at this position. If bits 2 to 4 of the shape are set, the
//! position is used as it is; otherwise it and `until` are taken modulo 1,024.

use crate::crash_disk::{CrashDisk, Op, State};
use crate::kept::{DATA, open, options, salvage, salvaged};
use crate::opener::{NOW, blocks_at, entries_at, identity};
use std::path::Path;
use std::sync::Arc;
use todana::update_log::SyncPolicy;
use todana::verify;
use todana_core::ErrorKind;

/// The most bytes that a salvage may write: far more than it has read.
const CAPACITY: u64 = 4 << 20;

/// Salvages the input. Either the intact part becomes a new directory without damage, or the
/// salvage fails. The source stays unchanged.
pub(crate) fn salvage_any(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first() else { return };
    let disk = CrashDisk::with(directory(*head, rest));
    disk.limit(CAPACITY);
    let outcome = salvage(&disk, NOW);
    disk.heal();
    match outcome {
        Ok(_) => {
            let made = salvaged(&disk);
            let verified = verify(Arc::new(made.clone()), Path::new(DATA), &mut |_| ()).expect("it was made");
            assert_eq!(verified.damages, Vec::<String>::new());
            open(&made, NOW, options(SyncPolicy::Never)).expect("nothing in it is damaged").kill();
        }
        Err(error) => {
            let files = disk.state().files();
            assert!(files.keys().all(|path| path.starts_with(DATA)), "{error}: {:?}", files.keys());
            let is_full = error.to_string().contains("no storage space");
            let is_none = error.to_string().contains("is not a data directory");
            assert!(error.kind() == ErrorKind::Corrupt || is_full || is_none, "{:?} {error}", error.kind());
        }
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
