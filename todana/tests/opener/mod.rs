//! Opens fuzz input as a data directory.
//!
//!     kind(1) | rest
//!
//!     kind mod 8:
//!         0  rest is the identity
//!         1  rest is a segment
//!         2  rest follows the header of a segment
//!         3, 7  damage(1) place(2), then contents of entries, each after its length(1); their
//!            checksums are right, unless damage flips a bit or truncates the end
//!         4  rest is a checkpoint
//!         5  damage(1) place(2) head(3), then blocks of a checkpoint as in `blocks`; all
//!            checksums are right
//!         6  len(2), `len` bytes as for 5, and the rest as for 3, at the position of the later log
#![allow(dead_code)] // Each test uses its part.

use crate::crash_disk::{CrashDisk, Op, State};
use crate::kept::{CrashDiskDatabase, DATA, open, options};
use std::path::Path;
use std::sync::Arc;
use todana::update_log::{LogTail, SyncPolicy};
use todana::verify;
use todana_core::{ErrorKind, Result};

pub(crate) const NOW: u64 = 1_700_000_000;
pub(crate) const DATABASE_ID: &[u8; 16] = b"0123456789abcdef";

/// Opens the directory. Either it is damaged, or it can be opened again with the same contents. If
/// the opening reports damage, so does a verification of all files.
pub(crate) fn open_any(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let mut state = State::default();
    for directory in ["log", "checkpoints"] {
        let path = Path::new(DATA).join(directory);
        state.apply(&Op::MakeDirectory { path }).expect("nothing is in its way");
    }
    let kind = kind % 8;
    let segment = match kind {
        1 => Some(rest.to_vec()),
        2 => Some([&header()[..], rest].concat()),
        3 | 7 => Some(entries(rest)),
        6 => Some(entries(split(rest).1)),
        _ => None,
    };
    let checkpoint = match kind {
        4 => Some(rest.to_vec()),
        5 => Some(blocks(rest)),
        6 => Some(blocks(split(rest).0)),
        _ => None,
    };
    let identity = if kind == 0 { rest.to_vec() } else { identity() };
    state.put(&Path::new(DATA).join("identity"), identity);
    if let Some(segment) = segment {
        state.put(&Path::new(DATA).join("log/00000000000000000000.log"), segment);
    }
    if let Some(checkpoint) = checkpoint {
        state.put(&Path::new(DATA).join("checkpoints/00000000000000000000.checkpoint"), checkpoint);
    }
    let disk = CrashDisk::with(state.clone());
    let verified = verify(Arc::new(disk), Path::new(DATA), &mut |_| ());
    let Some(first) = judge(open(&CrashDisk::with(state.clone()), NOW, options(SyncPolicy::Never))) else {
        assert!(verified.is_err() || !verified.unwrap().damages.is_empty());
        return salvage(state);
    };
    let refused = [&first.opened.refused[..], &first.opened.spare].concat();
    assert!(refused.iter().all(|why| why.contains("/data/") && why.contains(" at offset ")), "{refused:?}");
    let damages = verified.expect("it can be opened").damages;
    // If a file has two damages, either may be reported, because several threads search for them.
    assert_eq!(damages.len(), refused.len(), "{damages:?} {refused:?}");
    let (records, end) = (first.records(), first.opened.end);
    // A checkpoint with one key in two blocks has fewer records than it states.
    let stated = first.opened.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.records);
    let repeats_keys = stated > 0 && stated + first.opened.entries > records.len() as u64;
    let state = first.disk.state();
    first.kill();
    let second =
        judge(open(&CrashDisk::with(state), NOW, options(SyncPolicy::Never))).expect("it was opened before");
    if repeats_keys {
        // Several threads load the blocks of a checkpoint, so either record of such a key may
        // remain. The log after a real checkpoint has the last one.
        assert!(second.records().keys().eq(records.keys()));
    } else {
        assert_eq!(second.records(), records);
    }
    assert_eq!((second.opened.end, &second.opened.tail), (end, &LogTail::Clean));
    second.kill();
}

/// Opens a directory with a checkpoint of these blocks.
pub(crate) fn open_checkpoint(bytes: &[u8]) -> Result<CrashDiskDatabase> {
    let mut state = State::default();
    for directory in ["log", "checkpoints"] {
        let path = Path::new(DATA).join(directory);
        state.apply(&Op::MakeDirectory { path }).expect("nothing is in its way");
    }
    state.put(&Path::new(DATA).join("identity"), identity());
    state.put(&Path::new(DATA).join("checkpoints/00000000000000000000.checkpoint"), blocks(bytes));
    open(&CrashDisk::with(state), NOW, options(SyncPolicy::Never))
}

/// Salvages the damaged directory, or reports that it is not a database.
fn salvage(state: State) {
    let disk = CrashDisk::with(state);
    match crate::kept::salvage(&disk, NOW) {
        Ok(_) => judge(open(&crate::kept::salvaged(&disk), NOW, options(SyncPolicy::Never)))
            .expect("it was made")
            .kill(),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
    }
}

/// Splits the input in two. The first two bytes are the length of the first part.
pub(crate) fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else { return (b"", b"") };
    rest.split_at(rest.len().min(u16::from_le_bytes(*len).into()))
}

fn judge(outcome: Result<CrashDiskDatabase>) -> Option<CrashDiskDatabase> {
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

pub(crate) fn identity() -> Vec<u8> {
    let mut bytes = b"TODANAID\x01\0\0\0\x07\0\0\0".to_vec();
    bytes.extend_from_slice(DATABASE_ID);
    with_checksum(bytes)
}

pub(crate) fn header() -> Vec<u8> {
    header_at(0)
}

/// Returns the header of the segment that begins at this position.
pub(crate) fn header_at(start: u64) -> Vec<u8> {
    let mut bytes = b"TODANALG\x01\0\0\0\x40\0\0\0".to_vec();
    bytes.extend_from_slice(DATABASE_ID);
    bytes.extend_from_slice(b"\x07\0\0\0\x01\0\0\0");
    bytes.extend_from_slice(&start.to_le_bytes());
    bytes.resize(60, 0);
    with_checksum(bytes)
}

pub(crate) fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

pub(crate) fn entries(bytes: &[u8]) -> Vec<u8> {
    entries_at(0, bytes)
}

/// Returns the segment that begins at this position.
pub(crate) fn entries_at(start: u64, bytes: &[u8]) -> Vec<u8> {
    let mut segment = header_at(start);
    let Some(([damage, place @ ..], mut rest)) = bytes.split_first_chunk::<3>() else { return segment };
    while let Some((len, behind)) = rest.split_first() {
        let (content, behind) = behind.split_at(behind.len().min((*len).into()));
        rest = behind;
        let size = (content.len() as u32).to_le_bytes();
        let position = start.wrapping_add(segment.len() as u64 - 64).to_le_bytes();
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

/// Returns true if a bit of `number` is set.
fn has(number: u8, bit: u8) -> bool {
    number >> bit & 1 == 1
}

/// Returns a checkpoint with these blocks: `shape(1) records(1) len(2) content`, each.
///
/// shape: bits 0-1 the kind, where 0 means buckets in an image; 2-3: 0 or 1 the content as it is, 2
/// compressed here, 3 declared as a zstd frame of 4 times the length. head: the first byte's bits:
/// 0 a version, 1 a planned clear, 2 the engine's own seed, 3 another one, 4 an image, 5-7 its
/// number of shards as a power of 2; the second byte: the number of buckets as a power of 2; the
/// third: how far the log must reach. damage: 0 truncated at `place`, 1 a bit flipped there, 2 a
/// footer with more records, 3 with more blocks, 4 with more content; otherwise none.
pub(crate) fn blocks(bytes: &[u8]) -> Vec<u8> {
    let until = bytes.get(5).copied().unwrap_or_default();
    blocks_at(0, until.into(), bytes)
}

/// Returns such a checkpoint whose log begins and ends at these positions, whatever its head
/// states.
pub(crate) fn blocks_at(start: u64, until: u64, bytes: &[u8]) -> Vec<u8> {
    let Some(([damage, place @ .., head, buckets, _], mut rest)) = bytes.split_first_chunk::<6>() else {
        return Vec::new();
    };
    let place = usize::from(u16::from_le_bytes(*place));
    let is_image = has(*head, 4);
    let mut file = b"TODANACP".to_vec();
    file.extend_from_slice(&[1 + u8::from(is_image), 0, 0, 0, 0x60, 0, 0, 0]);
    file.extend_from_slice(DATABASE_ID);
    file.extend_from_slice(&[7, 0, 0, 0, if is_image { 2 } else { 0 }, 0, 0, 0]);
    let seed = if has(*head, 2) { 1 } else { 99 };
    let buckets = if has(*head, 2) || has(*head, 3) { 1 << (buckets % 64) } else { 0 };
    let numbers = [
        start,
        NOW * 1000,
        if has(*head, 0) { 5 << 32 } else { 0 },
        if has(*head, 1) { NOW + 10 } else { 0 },
        if buckets == 0 { 0 } else { seed },
        buckets,
    ];
    numbers.iter().for_each(|number: &u64| file.extend_from_slice(&number.to_le_bytes()));
    let shards = if is_image { 1u32 << (head >> 5) } else { 0 };
    file.extend_from_slice(&shards.to_le_bytes());
    let mut file = with_checksum(file);
    let header_crc: [u8; 4] = file[92..].try_into().expect("four bytes");
    let (mut count, mut records_all, mut content_all) = (0u64, 0u64, 0u64);
    while let Some(([shape, records, len @ ..], behind)) = rest.split_first_chunk::<4>() {
        let len = usize::from(u16::from_le_bytes(*len));
        let (content, behind) = behind.split_at(behind.len().min(len));
        rest = behind;
        let (method, stored, content_len) = match shape >> 2 & 3 {
            2 => (1, zstd::bulk::compress(content, 1).expect("anything can be compressed"), content.len()),
            3 => (1, content.to_vec(), content.len() * 4),
            _ => (0, content.to_vec(), content.len()),
        };
        let kind = if is_image && shape & 3 == 0 { 4 } else { shape & 3 };
        let mut frame = vec![kind, method, 0, 0];
        for number in [stored.len(), content_len, usize::from(*records)] {
            frame.extend_from_slice(&(number as u32).to_le_bytes());
        }
        let offset = (file.len() as u64).to_le_bytes();
        let crc = crc32c::crc32c(&[&header_crc[..], &offset, &frame, &stored].concat());
        file.extend_from_slice(&[&crc.to_le_bytes()[..], &frame, &stored].concat());
        count += 1;
        records_all += u64::from(*records);
        content_all += content_len as u64;
    }
    let lie = |which: u8| if *damage == which { 1 << (place % 64) } else { 0u64 };
    let mut footer = b"TODANAEC".to_vec();
    let offset = file.len() as u64;
    let numbers = [
        count.wrapping_add(lie(3)),
        records_all.wrapping_add(lie(2)),
        offset,
        until,
        content_all.wrapping_add(lie(4)),
    ];
    numbers.iter().for_each(|number| footer.extend_from_slice(&number.to_le_bytes()));
    footer.extend_from_slice(&[0; 4]);
    let crc = crc32c::crc32c(&[&header_crc[..], &footer].concat());
    file.extend_from_slice(&footer);
    file.extend_from_slice(&crc.to_le_bytes());
    match damage {
        0 => file.truncate(place % file.len()),
        1 => {
            let bit = place % (file.len() * 8);
            file[bit / 8] ^= 1 << (bit % 8);
        }
        _ => {}
    }
    file
}
