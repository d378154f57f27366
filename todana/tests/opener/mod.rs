//! Opens what a fuzzer has thought of, as a data directory.
//!
//!     kind(1) | rest        kind mod 4:  0  rest is the identity
//!                                        1  rest is a segment
//!                                        2  rest follows a segment's header
//!                                        3  damage(1) place(2), then contents of entries, each behind its length(1); their
//!                                           checksums are right, unless damage says that a bit is flipped or the end cut off

use crate::crash_disk::{CrashDisk, Op, State};
use crate::kept::{DATA, Kept, open, options};
use std::path::Path;
use todana::update_log::{Sync, Tail};
use todana_core::{ErrorKind, Result};

const NOW: u64 = 1_700_000_000;
const DATABASE_ID: &[u8; 16] = b"0123456789abcdef";

/// It opens or is damaged; what has been opened opens again, to the same.
pub(crate) fn open_any(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let mut state = State::default();
    for directory in ["log", "checkpoints"] {
        let path = Path::new(DATA).join(directory);
        state.apply(&Op::MakeDirectory { path }).expect("nothing is in its way");
    }
    let segment = match kind % 4 {
        0 => None,
        1 => Some(rest.to_vec()),
        2 => Some([&header()[..], rest].concat()),
        _ => Some(entries(rest)),
    };
    let identity = if kind % 4 == 0 { rest.to_vec() } else { identity() };
    state.put(&Path::new(DATA).join("identity"), identity);
    if let Some(segment) = segment {
        state.put(&Path::new(DATA).join("log/00000000000000000000.log"), segment);
    }
    let Some(first) = judge(open(&CrashDisk::with(state), NOW, options(Sync::Never))) else { return };
    let (records, end) = (first.records(), first.opened.end);
    let state = first.disk.state();
    first.kill();
    let second =
        judge(open(&CrashDisk::with(state), NOW, options(Sync::Never))).expect("it was opened before");
    assert_eq!(second.records(), records);
    assert_eq!((second.opened.end, &second.opened.tail), (end, &Tail::Clean));
    second.kill();
}

fn judge(outcome: Result<Kept>) -> Option<Kept> {
    match outcome {
        Ok(kept) => Some(kept),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(
                error.to_string().contains("/data/") && error.to_string().contains(" at offset "),
                "{error}"
            );
            None
        }
    }
}

fn identity() -> Vec<u8> {
    let mut bytes = b"TODANAID\x01\0\0\0\x07\0\0\0".to_vec();
    bytes.extend_from_slice(DATABASE_ID);
    with_checksum(bytes)
}

fn header() -> Vec<u8> {
    let mut bytes = b"TODANALG\x01\0\0\0\x40\0\0\0".to_vec();
    bytes.extend_from_slice(DATABASE_ID);
    bytes.extend_from_slice(b"\x07\0\0\0\x01\0\0\0");
    bytes.resize(60, 0);
    with_checksum(bytes)
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn entries(bytes: &[u8]) -> Vec<u8> {
    let Some(([damage, place @ ..], mut rest)) = bytes.split_first_chunk::<3>() else { return header() };
    let mut segment = header();
    while let Some((len, behind)) = rest.split_first() {
        let (content, behind) = behind.split_at(behind.len().min((*len).into()));
        rest = behind;
        let size = (content.len() as u32).to_le_bytes();
        let position = (segment.len() as u64 - 64).to_le_bytes();
        let crc = crc32c::crc32c(&[&DATABASE_ID[..], &position, &size, content].concat());
        segment.extend_from_slice(&size);
        segment.extend_from_slice(&crc.to_le_bytes());
        segment.extend_from_slice(content);
    }
    let place = usize::from(u16::from_le_bytes(*place));
    match damage % 4 {
        0 => segment.truncate(place % segment.len()),
        1 => {
            let bit = place % (segment.len() * 8);
            segment[bit / 8] ^= 1 << (bit % 8);
        }
        _ => {}
    }
    segment
}
