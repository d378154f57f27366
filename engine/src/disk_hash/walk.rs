//! Going through the entries of a segment, from its file.

use super::entry::{self, EntryHead, HEAD_MAX};
use super::segment::{LogPosition, Segment};
use crate::disk::File;
use todana_core::Result;

/// Read at once where all of a segment is wanted.
pub(crate) const CHUNK: usize = 512 << 10;
/// Longer entries are not in memory as a whole: whoever is shown one has its beginning.
pub(crate) const WHOLE_MAX: usize = 1 << 20;

/// What is shown each entry: its offset, what its beginning says, its bytes; false ends the walk before it.
pub(crate) type EntryCallback<'s> = dyn FnMut(u64, &EntryHead, &[u8]) -> Result<bool> + 's;

/// Shows the whole entries from an offset up to `limit`; returns where the first one is that is not whole, or the limit.
/// `chunk_len`: so much is read at once, which should be what is wanted of it.
/// What is shown is the entry, or of a long one its beginning, up to the end of its key at least.
pub(crate) fn walk(
    segment: &Segment,
    from: u64,
    limit: u64,
    chunk_len: usize,
    see: &mut EntryCallback<'_>,
) -> Result<u64> {
    let mut chunk = Vec::new();
    // What is in the chunk: from `base` on, `there` bytes.
    let (mut base, mut there) = (from, 0);
    let mut at = from;
    loop {
        let left = limit.saturating_sub(at);
        if left == 0 {
            return Ok(at);
        }
        let mut bytes = &chunk[(at - base) as usize..there];
        let mut head = entry::parse(bytes);
        // What is not there yet: the entry's beginning, or the rest of it if it is short enough.
        let lacks = |head: &Option<EntryHead>, there: usize| match head {
            None => there < HEAD_MAX,
            Some(head) => head.len > there && head.len <= WHOLE_MAX && head.len as u64 <= left,
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
            None if head.len > WHOLE_MAX && is_long_entry_intact(segment, at, head.len, seed)? => bytes,
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

/// The furthest position that a mark at or behind an offset of a file tells to be on disk, wherever at a multiple of 8 it
/// stands. `seed`: the CRC of the segment's header.
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
