//! Reads the entries of a segment in sequence from its file.

use super::entry::{self, EntryHead, HEAD_MAX};
use super::segment::{LogPosition, Segment};
use crate::disk::File;
use todana_core::Result;

/// The number of bytes per read when the complete segment is needed.
pub(crate) const CHUNK: usize = 512 << 10;
/// Entries longer than this are not read into memory completely.
pub(crate) const IN_MEMORY_MAX: usize = 1 << 20;

/// A function that is called with each entry: its offset, its decoded head, and its bytes. If it
/// returns false, the walk ends before this entry.
pub(crate) type EntryCallback<'s> = dyn FnMut(u64, &EntryHead, &[u8]) -> Result<bool> + 's;

/// Calls `see` with the intact entries from an offset to `limit`. Returns the offset of the first
/// entry that is not intact, or the limit. `chunk_len` is the number of bytes per read; callers
/// that need little data pass a small number. A long entry is passed incomplete, but at least up to
/// the end of its key.
pub(crate) fn walk(
    segment: &Segment,
    from: u64,
    limit: u64,
    chunk_len: usize,
    see: &mut EntryCallback<'_>,
) -> Result<u64> {
    let mut chunk = Vec::new();
    // The chunk contains `there` bytes from offset `base` on.
    let (mut base, mut there) = (from, 0);
    let mut at = from;
    loop {
        let left = limit.saturating_sub(at);
        if left == 0 {
            return Ok(at);
        }
        let mut bytes = &chunk[(at - base) as usize..there];
        let mut head = entry::parse(bytes);
        // This returns true if the head of the entry is not in memory yet, or if the remainder of a
        // short entry is not.
        let lacks = |head: &Option<EntryHead>, there: usize| match head {
            None => there < HEAD_MAX,
            Some(head) => head.len > there && head.len <= IN_MEMORY_MAX && head.len as u64 <= left,
        };
        while lacks(&head, bytes.len()) && (bytes.len() as u64) < left {
            let before = bytes.len();
            let wanted = head.map_or(0, |head| head.len).max(chunk_len).min(left as usize);
            if chunk.len() < wanted {
                chunk.resize(wanted, 0);
            }
            there = segment.read_at(at, &mut chunk[..wanted])?;
            base = at;
            bytes = &chunk[..there];
            head = entry::parse(bytes);
            if there <= before {
                break;
            }
        }
        let Some(head) = head else { return Ok(at) };
        if head.len as u64 > left {
            return Ok(at);
        }
        let seed = segment.seed_at(at);
        let shown = match bytes.get(..head.len) {
            Some(entry) if entry::is_intact(entry, seed) => entry,
            None if head.len > IN_MEMORY_MAX && is_long_entry_intact(segment, at, head.len, seed)? => bytes,
            _ => return Ok(at),
        };
        let mut long_key = Vec::new();
        let key_end = head.key_at + head.key_len;
        let shown = if key_end <= shown.len() {
            shown
        } else {
            long_key.resize(key_end, 0);
            segment.read_at(at, &mut long_key)?;
            &long_key
        };
        if !see(at, &head, shown)? {
            return Ok(at);
        }
        at += head.len as u64;
        if at > base + there as u64 {
            (base, there) = (at, 0);
        }
    }
}

fn is_long_entry_intact(segment: &Segment, at: u64, len: usize, seed: u32) -> Result<bool> {
    let mut piece = vec![0; CHUNK];
    let (mut crc, mut done, mut stored) = (seed, 0, 0);
    while done < len {
        let wanted = CHUNK.min(len - done);
        if segment.read_at(at + done as u64, &mut piece[..wanted])? < wanted {
            return Ok(false);
        }
        let mut bytes = &piece[..wanted];
        if done == 0 {
            stored = entry::u32_at(bytes, 0);
            bytes = &bytes[4..];
        }
        crc = crc32c::crc32c_append(crc, bytes);
        done += wanted;
    }
    Ok(crc == stored)
}

/// Returns the furthest position in the marks after an offset of a file. Marks are searched for at
/// every multiple of 8. `seed` is the CRC of the segment's header.
pub(crate) fn furthest_mark(file: &dyn File, from: u64, seed: u32) -> std::io::Result<LogPosition> {
    const MARK_LEN: usize = 24;
    let len = file.len()?;
    let mut furthest = LogPosition::default();
    let mut chunk = vec![0; CHUNK];
    let mut base = from.next_multiple_of(8);
    while base < len {
        let there = file.read_at(base, &mut chunk)?;
        let mut at = 0;
        while at + MARK_LEN <= there {
            let bytes = &chunk[at..at + MARK_LEN];
            if bytes[4] == entry::MARK && entry::is_intact(bytes, seed ^ ((base + at as u64) / 8) as u32) {
                let mark = LogPosition { number: entry::u64_at(bytes, 8), offset: entry::u64_at(bytes, 16) };
                furthest = furthest.max(mark);
            }
            at += 8;
        }
        if there < CHUNK {
            break;
        }
        base += at as u64;
    }
    Ok(furthest)
}
