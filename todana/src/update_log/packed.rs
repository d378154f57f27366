//! Entries in a shorter form, for a connection (docs/protocol/replication.md, "Packed entries").
//!
//! ```text
//! part  = checksums of the entries, XORed (4) | entry ...
//! entry = head(1) | length of the content (varint, only if the head says so) | rest of the content
//! head  = bits 0-6: number of bytes at the start of the content that are those of the entry before
//!         bit 7:    the length of the content follows; otherwise it is that of the entry before
//! ```
//!
//! Neighbours in a log often have keys with the same beginning, so this form needs about half of
//! the bytes of small records. A compressor would need less for others, but costs the sender 5 to
//! 10 % of a set (benches/record, 2026-11-27). The sender reads no checksums but those of the log,
//! so damage to its log is found by the receiver, which computes the checksum of each entry.

use super::entry::{self, ByteReader, FRAME_LEN, LogPosition, put_varint};

/// The longest content that is packed. Longer entries gain nothing, and would have to wait in
/// memory until they are complete.
const CONTENT_LEN_MAX: usize = 16 << 10;
/// The maximum number of bytes that an entry has in common with the one before.
const SHARED_MAX: usize = 0x7f;
const HAS_LEN: u8 = 0x80;
const CHECKSUMS_LEN: usize = 4;
/// The maximum length of the log in one message, so that a message cannot grow without limit.
const UNPACKED_LEN_MAX: usize = 1 << 20;

/// Bytes of a log for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPart<'p> {
    /// The bytes as they lie in the log. Entries may be divided.
    Plain(&'p [u8]),
    /// Complete entries in the shorter form.
    Packed(&'p [u8]),
}

/// Divides the bytes of a log into parts for messages.
pub struct LogPacker {
    /// The position of the next byte that is not in a part.
    position: LogPosition,
    bytes: Vec<u8>,
    /// How many of `bytes` are in parts.
    at: usize,
    /// The number of bytes until the end of an entry that is not packed.
    plain_left: u64,
    packed: Vec<u8>,
}

impl LogPacker {
    /// Creates a packer for the bytes from a position between two entries on.
    pub fn new(from: LogPosition) -> LogPacker {
        LogPacker { position: from, bytes: Vec::new(), at: 0, plain_left: 0, packed: Vec::new() }
    }

    /// Returns a buffer to which the caller appends the next bytes of the log.
    pub fn input(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.at);
        self.at = 0;
        &mut self.bytes
    }

    /// Returns the next part and its position. Returns `None` if the rest is an incomplete entry.
    pub fn next_part(&mut self) -> Option<(LogPosition, LogPart<'_>)> {
        let from = self.position;
        if self.plain_left == 0 {
            self.pack();
            if !self.packed.is_empty() {
                return Some((from, LogPart::Packed(&self.packed)));
            }
            // An entry that cannot be packed is sent as it is, up to its end.
            let frame = self.bytes[self.at..].first_chunk::<FRAME_LEN>()?;
            let size = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
            if is_packable(size) && self.bytes.len() - self.at < FRAME_LEN + size {
                return None;
            }
            self.plain_left = (FRAME_LEN + size) as u64;
        }
        let unread = &self.bytes[self.at..];
        let len = usize::try_from(self.plain_left).unwrap_or(usize::MAX).min(unread.len());
        self.at += len;
        self.plain_left -= len as u64;
        self.position.0 += len as u64;
        (len > 0).then_some((from, LogPart::Plain(&unread[..len])))
    }

    /// Packs the next entries, up to one that is incomplete or too long.
    fn pack(&mut self) {
        self.packed.clear();
        let (mut before, mut checksums): (&[u8], u32) = (&[], 0);
        while let Some((frame, rest)) = self.bytes[self.at..].split_first_chunk::<FRAME_LEN>() {
            let size = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
            let Some(content) = rest.get(..size).filter(|_| is_packable(size)) else { break };
            checksums ^= u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
            if self.packed.is_empty() {
                self.packed.extend_from_slice(&[0; CHECKSUMS_LEN]);
            }
            let shared = shared_len(before, content).min(SHARED_MAX);
            if size == before.len() {
                self.packed.push(shared as u8);
            } else {
                self.packed.push(shared as u8 | HAS_LEN);
                put_varint(size as u64, &mut self.packed);
            }
            self.packed.extend_from_slice(&content[shared..]);
            before = content;
            self.at += FRAME_LEN + size;
            self.position.0 += (FRAME_LEN + size) as u64;
        }
        if let Some(sum) = self.packed.first_chunk_mut() {
            *sum = checksums.to_le_bytes();
        }
    }
}

fn is_packable(size: usize) -> bool {
    (1..=CONTENT_LEN_MAX).contains(&size)
}

/// Returns the number of bytes at the start of `a` and `b` that are the same.
fn shared_len(a: &[u8], b: &[u8]) -> usize {
    let (words_a, words_b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let words = words_a.iter().zip(words_b).take_while(|(a, b)| a == b).count() * 8;
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// Appends the entries of a packed part as they were in the log, of which they are at `position`.
/// Returns `None` if the bytes are not a packed part, or if a checksum was another one.
pub(super) fn unpack(packed: &[u8], seed: u32, position: LogPosition, out: &mut Vec<u8>) -> Option<()> {
    let (sum, entries) = packed.split_first_chunk::<CHECKSUMS_LEN>()?;
    let mut checksums = u32::from_le_bytes(*sum);
    let (first, mut before, mut rest) = (out.len(), 0..0, ByteReader(entries));
    while !rest.0.is_empty() {
        let head = rest.byte()?;
        let len = if head & HAS_LEN != 0 { usize::try_from(rest.varint()?).ok()? } else { before.len() };
        let (shared, offset) = (usize::from(head & !HAS_LEN), out.len() - first);
        if !is_packable(len) || shared > before.len() || offset > UNPACKED_LEN_MAX {
            return None;
        }
        let own = rest.take(len.checked_sub(shared)?)?;
        let position = LogPosition(position.0.checked_add(offset as u64)?);
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(&[0; FRAME_LEN - 4]);
        let start = out.len();
        out.extend_from_within(before.start..before.start + shared);
        out.extend_from_slice(own);
        before = start..out.len();
        let crc = entry::crc_of_frame(seed, position, len as u32);
        let crc = crc32c::crc32c_append(crc, &out[before.clone()]);
        out[start - 4..start].copy_from_slice(&crc.to_le_bytes());
        checksums ^= crc;
    }
    (checksums == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::super::{DatabaseIdentity, EntryDecoder, LogChange, LogEntry, encode, seal_entries};
    use super::*;
    use todana_core::Record;

    const ID: [u8; 16] = [7; 16];

    /// Returns a log with values of these lengths, whose first entry is at `from`.
    fn log(mut from: LogPosition, lens: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, &len) in lens.iter().enumerate() {
            let (key, value) = (format!("key:{number:012}"), vec![number as u8; len]);
            let record = Record::new(&value, Default::default());
            encode(&LogEntry::own(LogChange::Put { key: key.as_bytes(), record }), false, &mut bytes);
        }
        let seed = DatabaseIdentity { server_id: 0, database_id: ID }.seed();
        seal_entries(&mut bytes, seed, &mut from, None, LogPosition(0), 0);
        bytes
    }

    /// Sends a log in pieces of this length. Returns the keys and the values that arrive, and the
    /// number of bytes in messages.
    fn send(from: LogPosition, log: &[u8], piece_len: usize) -> (Vec<(Vec<u8>, usize)>, usize) {
        let (mut packer, mut entries) = (LogPacker::new(from), EntryDecoder::new(ID, from));
        let (mut found, mut sent, mut position) = (Vec::new(), 0, from);
        for piece in log.chunks(piece_len) {
            packer.input().extend_from_slice(piece);
            while let Some((at, part)) = packer.next_part() {
                assert_eq!(at, position);
                position = match part {
                    LogPart::Plain(bytes) => {
                        sent += bytes.len();
                        entries.push(bytes);
                        LogPosition(position.0 + bytes.len() as u64)
                    }
                    LogPart::Packed(bytes) => {
                        sent += bytes.len();
                        entries.push_packed(bytes).unwrap()
                    }
                };
                while let Some((_, entry)) = entries.next_entry().unwrap() {
                    let LogChange::Put { key, record } = entry.change else { panic!("{entry:?}") };
                    found.push((key.to_vec(), record.value.len()));
                }
            }
        }
        assert_eq!(position.0, from.0 + log.len() as u64);
        (found, sent)
    }

    #[test]
    fn packed_entries_arrive_as_they_were() {
        let from = LogPosition(513);
        let lens = [8, 8, 9, 0, 300, CONTENT_LEN_MAX, 8, 70_000, 1, 1];
        let log = log(from, &lens);
        let expected: Vec<_> =
            (0..).map(|number| format!("key:{number:012}").into_bytes()).zip(lens).collect();
        for piece_len in [1, 7, 4096, 64 << 10, log.len()] {
            assert_eq!(send(from, &log, piece_len).0, expected, "{piece_len}");
        }
    }

    /// The bytes are those of the example in docs/protocol/replication.md.
    #[test]
    fn packed_entries_have_the_documented_bytes() {
        let (mut log, mut from) = (Vec::new(), LogPosition(0));
        for (key, value) in [(b"k1", b"a"), (b"k2", b"b")] {
            let record = Record::new(value, Default::default());
            encode(&LogEntry::own(LogChange::Put { key, record }), false, &mut log);
        }
        let seed = DatabaseIdentity { server_id: 0, database_id: ID }.seed();
        seal_entries(&mut log, seed, &mut from, None, LogPosition(0), 0);
        let mut packer = LogPacker::new(LogPosition(0));
        packer.input().extend_from_slice(&log);
        let (first, second) = (&log[4..8], &log[log.len() - 9..log.len() - 5]);
        let sum: Vec<u8> = first.iter().zip(second).map(|(first, second)| first ^ second).collect();
        let expected = &[&sum, &b"\x80\x05\x01\x02k1a\x032b"[..]].concat();
        assert_eq!(packer.next_part(), Some((LogPosition(0), LogPart::Packed(expected))));
        assert_eq!(packer.next_part(), None);
    }

    /// One byte, and what differs from the key and the value before.
    #[test]
    fn small_record_needs_few_bytes() {
        let log = log(LogPosition(0), &[8; 100]);
        let (found, sent) = send(LogPosition(0), &log, log.len());
        assert_eq!((found.len(), log.len()), (100, 3400));
        assert!(sent < 100 * 12, "{sent}");
    }

    /// The receiver must find damage on the disk of the sender.
    #[test]
    fn damage_to_the_log_is_found() {
        let log = log(LogPosition(0), &[8; 3]);
        for at in 0..log.len() {
            let mut damaged = log.clone();
            damaged[at] ^= 1 << (at % 8);
            let mut packer = LogPacker::new(LogPosition(0));
            let mut entries = EntryDecoder::new(ID, LogPosition(0));
            packer.input().extend_from_slice(&damaged);
            let (mut found, mut is_found) = (0, false);
            while let Some((_, part)) = packer.next_part() {
                match part {
                    LogPart::Plain(bytes) => entries.push(bytes),
                    LogPart::Packed(bytes) => is_found |= entries.push_packed(bytes).is_err(),
                }
                while let (false, Ok(Some(_))) = (is_found, entries.next_entry()) {
                    found += 1;
                }
            }
            // A changed length can make an entry look incomplete.
            assert!(found < 3, "byte {at}: {is_found}");
        }
    }

    #[test]
    fn no_packed_bytes_panic_or_need_much_memory() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..50_000 {
            let packed: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
            let mut out = Vec::new();
            let _ = unpack(&packed, 0, LogPosition(random.u64(..)), &mut out);
            assert!(out.len() <= 40 * (SHARED_MAX + FRAME_LEN + 1));
        }
        let mut packed = vec![0, 0, 0, 0, HAS_LEN, 0x7f];
        packed.extend_from_slice(&[1; 0x7f]);
        packed.resize(1 << 20, 0x7f);
        let mut out = Vec::new();
        assert_eq!(unpack(&packed, 0, LogPosition(0), &mut out), None);
        assert!(out.len() < 2 * UNPACKED_LEN_MAX);
    }
}
