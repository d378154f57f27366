//! Reads Kyoto Cabinet's database files: the hash database (`.kch`) and the tree database (`.kct`),
//! which stores its nodes as records of a hash database.
//!
//! ```text
//! offset  size
//!    0     4  "KC\n\0"
//!    7     1  compressor (see `compression`)
//!    8     1  0x30: a hash; 0x31: a tree
//!    9     1  A: each record begins at a multiple of 2^A
//!   10     1  F: the table of free blocks has room for 2^F entries; no table if F is 0
//!   11     1  bit 0: an offset has 4 bytes, otherwise 6
//!             bit 1: a record has one link, otherwise two
//!             bit 2: values are compressed
//!   16     8  number of buckets
//!   24     1  bit 0: the file is open, or was not closed properly; bit 1: the file is broken
//!   32     8  number of records
//!   40     8  length of the file in bytes
//!   64        the table of free blocks: 6 * 2^F + 2 * W + 2 bytes, if F > 0
//!             the buckets: W bytes each
//!             the records, from the next multiple of 2^A on
//!
//! W       = the bytes of an offset: 4 or 6
//! record  = CC padding_len:u8 | padding_len:u16, below 0x8000
//!           link:W link:W?  key_len:varnum value_len:varnum key value padding
//! free    = DD DD len/2^A:W EE EE ...       a free block of `len` bytes
//! ```
//!
//! Numbers are big-endian. Records and free blocks follow one another without a gap. They are read
//! in this order, so the buckets are not needed.
//!
//! The key of a record in a tree shows the purpose of the record: a leaf (`L...`), an inner node
//! (`I...`) or the metadata of the tree (`@`). The value of a leaf is `prev:varnum next:varnum`,
//! the numbers of the neighbouring leaves, and then `{ key_len:varnum value_len:varnum key value
//! }*`.
//!
//! Source: the headers of Kyoto Cabinet 1.2.76 (kchashdb.h, kcplantdb.h) and files that its tools
//! write.

use super::compression::{Compression, UNCOMPRESSED};
use super::varnum;

const MAGIC: [u8; 4] = *b"KC\n\0";
const HEAD_LEN: usize = 64;
const RECORD: u8 = 0xCC;
const FREE: [u8; 2] = [0xDD; 2];
const PADDING: u8 = 0xEE;
/// The longest key and the longest stored value that are accepted, in bytes.
const LEN_MAX: u64 = 1 << 30;

/// The kind of a database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseFileKind {
    /// A hash database (`.kch`).
    Hash,
    /// A tree database (`.kct`).
    Tree,
}

/// The properties in a file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseHead {
    /// The kind of database.
    pub kind: DatabaseFileKind,
    /// The compressor of the values. In a tree, the values are the leaves.
    pub compression: Option<Compression>,
    /// False if a program has the file open, or did not close it properly.
    pub is_closed: bool,
    /// The number of records in a hash, or the number of leaves and inner nodes in a tree.
    pub records: u64,
}

/// The reader of a file: a few words of state, no buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct DatabaseReader {
    /// The offset of the unread bytes in the file.
    at: u64,
    /// The offset of the next record or free block.
    next: u64,
    layout: Option<FileLayout>,
}

/// The layout of the records in a file.
#[derive(Clone, Copy, Debug)]
struct FileLayout {
    /// The size of an offset in bytes.
    width: usize,
    has_two_links: bool,
    align_power: u8,
    /// The end of the records, in bytes from the beginning of the file.
    end: u64,
}

/// The result of decoding the unread bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseStep<'a> {
    /// The head.
    Head {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The head.
        head: DatabaseHead,
    },
    /// Bytes that contain no record. The caller must drop them.
    Passed {
        /// The consumed bytes of the input, at least 1.
        consumed: usize,
    },
    /// A record.
    Record {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The key.
        key: &'a [u8],
        /// The value as stored, possibly compressed.
        value: &'a [u8],
    },
    /// More bytes are needed. If the file has no more bytes, it is truncated.
    NeedMore {
        /// The number of bytes that are missing at least; never 0.
        at_least: usize,
    },
    /// The last record was read before.
    End,
    /// The file is damaged at this offset, or the kind of file is not supported.
    Damaged {
        /// The offset in the file.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
}

impl DatabaseReader {
    /// Returns the next step from `input`, which must contain all unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> DatabaseStep<'a> {
        let Some(layout) = self.layout else { return self.head(input) };
        let passed = (self.next - self.at).min(input.len() as u64) as usize;
        if passed > 0 {
            self.at += passed as u64;
            return DatabaseStep::Passed { consumed: passed };
        }
        if self.at >= layout.end {
            return DatabaseStep::End;
        }
        if self.next > self.at {
            return DatabaseStep::NeedMore { at_least: 1 };
        }
        match layout.block(input) {
            Ok(block) if self.at + block.len > layout.end => {
                DatabaseStep::Damaged { offset: self.at, what: "a record reaches beyond the end of the file" }
            }
            Ok(FileBlock { len, content: Some((consumed, key, value)) }) => {
                self.next = self.at + len;
                self.at += consumed as u64;
                DatabaseStep::Record { consumed, key, value }
            }
            Ok(FileBlock { len, content: None }) => {
                self.next = self.at + len;
                self.decode(input)
            }
            Err(BlockError::Partial { at_least }) => DatabaseStep::NeedMore { at_least },
            Err(BlockError::Damaged(what)) => DatabaseStep::Damaged { offset: self.at, what },
        }
    }

    /// Returns the offset of the unread bytes in the file.
    pub fn offset(&self) -> u64 {
        self.at
    }

    fn head<'a>(&mut self, input: &[u8]) -> DatabaseStep<'a> {
        let Some(bytes) = input.first_chunk::<HEAD_LEN>() else {
            return DatabaseStep::NeedMore { at_least: HEAD_LEN - input.len() };
        };
        match read_head(bytes) {
            Ok((head, layout, records_at)) => {
                (self.at, self.next) = (HEAD_LEN as u64, records_at);
                self.layout = Some(layout);
                DatabaseStep::Head { consumed: HEAD_LEN, head }
            }
            Err(what) => DatabaseStep::Damaged { offset: 0, what },
        }
    }
}

/// Reads the head of a file: the properties, the layout of the records, and the offset of the first
/// record.
fn read_head(bytes: &[u8; HEAD_LEN]) -> Result<(DatabaseHead, FileLayout, u64), &'static str> {
    let number = |at: usize| number(&bytes[at..at + 8]);
    let (align_power, free_power, options) = (bytes[9], bytes[10], bytes[11]);
    if bytes[..4] != MAGIC {
        return Err("not a database of Kyoto Cabinet");
    }
    let kind = match bytes[8] {
        0x30 => DatabaseFileKind::Hash,
        0x31 => DatabaseFileKind::Tree,
        _ => return Err("neither a hash nor a tree database"),
    };
    let compression = match bytes[7] {
        _ if options & 4 == 0 => None,
        UNCOMPRESSED => None,
        check => Some(Compression::of_database(check).ok_or(
            "the values are encrypted or compressed in an unknown way; `kcpolymgr dump` writes a file that can be loaded",
        )?),
    };
    if align_power > 15 || free_power > 20 {
        return Err("the head is damaged");
    }
    let width = if options & 1 == 0 { 6 } else { 4 };
    let free_blocks = if free_power == 0 { 0 } else { (6 << free_power) + 2 * width as u64 + 2 };
    let (buckets, end) = (number(16), number(40));
    let records_at = buckets
        .checked_mul(width as u64)
        .and_then(|len| len.checked_add(HEAD_LEN as u64 + free_blocks))
        .and_then(|at| at.checked_next_multiple_of(1 << align_power))
        .filter(|at| *at <= end)
        .ok_or("the head is damaged: the buckets reach beyond the end of the file")?;
    let is_closed = bytes[24] & 3 == 0;
    let head = DatabaseHead { kind, compression, is_closed, records: number(32) };
    let layout = FileLayout { width, has_two_links: options & 2 == 0, align_power, end };
    Ok((head, layout, records_at))
}

/// A record with its padding, or a free block.
struct FileBlock<'a> {
    /// The length of the block in the file, in bytes.
    len: u64,
    /// The length of the block without its padding, the key and the value; `None` for a free block.
    content: Option<(usize, &'a [u8], &'a [u8])>,
}

/// The reason why no block could be read.
enum BlockError {
    Partial { at_least: usize },
    Damaged(&'static str),
}

impl FileLayout {
    /// Reads the block at the beginning of `input`.
    fn block<'a>(&self, input: &'a [u8]) -> Result<FileBlock<'a>, BlockError> {
        let &[first, second, ref rest @ ..] = input else {
            return Err(BlockError::Partial { at_least: 2 - input.len() });
        };
        if [first, second] == FREE {
            return self.free_block(rest);
        }
        let padding = match first {
            RECORD => u64::from(second),
            0x01..0x80 => u64::from(u16::from_be_bytes([first, second])),
            _ => return Err(BlockError::Damaged("no record begins here")),
        };
        let links = self.width * if self.has_two_links { 2 } else { 1 };
        let rest =
            rest.get(links..).ok_or(BlockError::Partial { at_least: links - rest.len().min(links) + 2 })?;
        let (key_len, rest) = length(rest)?;
        let (value_len, rest) = length(rest)?;
        let content = rest.get(..key_len + value_len).ok_or(BlockError::Partial {
            at_least: (key_len + value_len).saturating_sub(rest.len()).max(1),
        })?;
        let (key, value) = content.split_at(key_len);
        let consumed = input.len() - rest.len() + content.len();
        Ok(FileBlock { len: consumed as u64 + padding, content: Some((consumed, key, value)) })
    }

    fn free_block<'a>(&self, rest: &[u8]) -> Result<FileBlock<'a>, BlockError> {
        let missing = (self.width + 2).saturating_sub(rest.len());
        if missing > 0 {
            return Err(BlockError::Partial { at_least: missing });
        }
        let (len, rest) = rest.split_at(self.width);
        let len = number(len).checked_shl(u32::from(self.align_power)).unwrap_or(0);
        if rest[..2] != [PADDING; 2] || len < self.width as u64 + 4 {
            return Err(BlockError::Damaged("a free block is damaged"));
        }
        Ok(FileBlock { len, content: None })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn length(bytes: &[u8]) -> Result<(usize, &[u8]), BlockError> {
    match varnum::read(bytes) {
        varnum::VarnumRead::Whole(len, _) if len > LEN_MAX => {
            Err(BlockError::Damaged("a record is too long"))
        }
        varnum::VarnumRead::Whole(len, taken) => Ok((len as usize, &bytes[taken..])),
        varnum::VarnumRead::Partial => Err(BlockError::Partial { at_least: 1 }),
        varnum::VarnumRead::Malformed => Err(BlockError::Damaged("a length is too long")),
    }
}

/// Returns true if a record of a tree's file is a leaf. The key decides.
pub fn is_leaf(key: &[u8]) -> bool {
    key.first() == Some(&b'L')
}

/// A function that receives key and value of a record.
type LeafRecordCallback<'s, E> = dyn FnMut(&[u8], &[u8]) -> Result<(), E> + 's;

/// Shows the records of a decompressed leaf in order. If the leaf is damaged, shows the records
/// before the damage and then fails.
pub fn leaf_records<E: From<&'static str>>(
    leaf: &[u8],
    see: &mut LeafRecordCallback<'_, E>,
) -> Result<(), E> {
    let damaged = || E::from("a leaf is damaged");
    let take = |bytes: &mut &[u8]| match varnum::read(bytes) {
        varnum::VarnumRead::Whole(number, taken) => {
            *bytes = &bytes[taken..];
            usize::try_from(number).ok()
        }
        _ => None,
    };
    let mut rest = leaf;
    // The numbers of the previous and the next leaf are not needed.
    take(&mut rest).ok_or_else(damaged)?;
    take(&mut rest).ok_or_else(damaged)?;
    while !rest.is_empty() {
        let key_len = take(&mut rest).ok_or_else(damaged)?;
        let value_len = take(&mut rest).ok_or_else(damaged)?;
        let (key, after) = rest.split_at_checked(key_len).ok_or_else(damaged)?;
        let (value, after) = after.split_at_checked(value_len).ok_or_else(damaged)?;
        see(key, value)?;
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a hash database with 6-byte offsets, alignment 8, one bucket and no table of free
    /// blocks. The records begin at offset 72.
    fn file(options: u8, blocks: &[&[u8]]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0, 0, 0, UNCOMPRESSED, 0x30, 3, 0, options, 0, 0, 0, 0]);
        bytes.extend(1u64.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.extend(2u64.to_be_bytes());
        let len: usize = blocks.iter().map(|block| block.len()).sum();
        bytes.extend((72 + len as u64).to_be_bytes());
        bytes.resize(72, 0);
        blocks.iter().for_each(|block| bytes.extend_from_slice(block));
        bytes
    }

    const FIRST: &[u8] = b"\xCC\x04\0\0\0\0\0\0\0\0\0\0\0\0\x01\x03kone\xEE\0\0\0";
    const FREE_BLOCK: &[u8] = b"\xDD\xDD\0\0\0\0\0\x02\xEE\xEE\0\0\0\0\0\0";
    const SECOND: &[u8] = b"\xCC\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\x06k2second";

    /// The key and the value of a record.
    type KeyAndValue = (Vec<u8>, Vec<u8>);

    /// Reads a file in pieces of `step` bytes. Returns the records, and the error if there was one.
    fn read(bytes: &[u8], step: usize) -> (Vec<KeyAndValue>, Result<(), (u64, &'static str)>) {
        let (mut reader, mut records) = (DatabaseReader::default(), Vec::new());
        let (mut start, mut end) = (0, 0);
        loop {
            match reader.decode(&bytes[start..end]) {
                DatabaseStep::Head { consumed, .. } | DatabaseStep::Passed { consumed } => start += consumed,
                DatabaseStep::Record { consumed, key, value } => {
                    records.push((key.to_vec(), value.to_vec()));
                    start += consumed;
                }
                DatabaseStep::NeedMore { at_least } => {
                    assert!(at_least > 0);
                    if end == bytes.len() {
                        return (records, Err((reader.offset(), "cut")));
                    }
                    end = (end + step).min(bytes.len());
                }
                DatabaseStep::End => return (records, Ok(())),
                DatabaseStep::Damaged { offset, what } => return (records, Err((offset, what))),
            }
        }
    }

    #[test]
    fn records_are_read_from_any_pieces() {
        let bytes = file(0, &[FIRST, FREE_BLOCK, SECOND]);
        let expected = vec![(b"k".to_vec(), b"one".to_vec()), (b"k2".to_vec(), b"second".to_vec())];
        for step in [1, 2, 3, 7, 64, 1000] {
            assert_eq!(read(&bytes, step), (expected.clone(), Ok(())), "{step}");
        }
    }

    #[test]
    fn truncated_file_ends_at_its_last_complete_record() {
        let bytes = file(0, &[FIRST, SECOND]);
        for len in 0..bytes.len() {
            let (records, end) = read(&bytes[..len], 1000);
            assert!(end.is_err(), "{len}");
            assert_eq!(records.len(), usize::from(len >= 72 + FIRST.len() - 4), "{len}");
        }
    }

    #[test]
    fn damage_is_reported_with_its_offset() {
        let damaged = |at: usize, byte: u8| {
            let mut bytes = file(0, &[FIRST, FREE_BLOCK, SECOND]);
            bytes[at] = byte;
            read(&bytes, 1000).1.unwrap_err()
        };
        let second = 72 + FIRST.len() + FREE_BLOCK.len();
        assert_eq!(damaged(0, b'X'), (0, "not a database of Kyoto Cabinet"));
        assert_eq!(damaged(8, 0x40), (0, "neither a hash nor a tree database"));
        assert_eq!(damaged(9, 99), (0, "the head is damaged"));
        assert_eq!(damaged(16, 0xFF).0, 0);
        assert_eq!(damaged(second, 0), (second as u64, "no record begins here"));
        assert_eq!(damaged(second + 15, 0x7F).1, "cut");
        assert_eq!(damaged(72 + FIRST.len() + 7, 0xFF).1, "a record reaches beyond the end of the file");
        assert_eq!(damaged(72 + FIRST.len() + 8, 0), (72 + FIRST.len() as u64, "a free block is damaged"));
        assert_eq!(damaged(73, 0xFF).1, "a record reaches beyond the end of the file", "by its padding");
    }

    #[test]
    fn unknown_compressor_is_refused_only_for_compressed_values() {
        let mut bytes = file(4, &[FIRST]);
        assert_eq!(read(&bytes, 1000).1, Ok(()), "compressed by nothing");
        bytes[7] = 0x77;
        assert!(read(&bytes, 1000).1.unwrap_err().1.starts_with("the values are encrypted"));
        bytes[11] = 0;
        assert_eq!(read(&bytes, 1000).1, Ok(()));
    }

    #[test]
    fn leaf_records_are_shown_up_to_the_damage() {
        let leaf = b"\x00\x07\x01\x02k12\x02\x00ab";
        let shown = |leaf: &[u8]| {
            let mut records = Vec::new();
            let mut see = |key: &[u8], value: &[u8]| -> Result<(), String> {
                records.push((key.to_vec(), value.to_vec()));
                Ok(())
            };
            let outcome = leaf_records(leaf, &mut see);
            (records.len(), outcome)
        };
        assert_eq!(shown(leaf), (2, Ok(())));
        assert_eq!(shown(&leaf[..2]), (0, Ok(())));
        for len in [0, 1, 3, 4, 5, 6] {
            assert_eq!(shown(&leaf[..len]), (0, Err("a leaf is damaged".to_string())), "{len}");
        }
        assert_eq!(shown(&leaf[..9]), (1, Err("a leaf is damaged".to_string())));
    }
}
