//! Reads and writes Kyoto Tycoon's snapshots (`.ktss`). Each database has a file of its own.
//!
//! ```text
//! file = 4B 54 53 53 0A 00  check:u32 timestamp:u64 count:u64 size:u64   the head, 34 bytes
//!        { record }*             if check is 0, up to the end of the file
//!        { len:u32 chunk }*      otherwise; a chunk is a compressed sequence of complete records
//!
//! record = CC key_len:varnum value_len:varnum key stored_value
//! ```
//!
//! `check` identifies the compressor (see [`super::compression`]). The caller compresses and
//! decompresses the chunks.

use super::framed::{self, FramedRecord};
use super::message::StoredValue;
use crate::ReplySink;

const MAGIC: [u8; 6] = *b"KTSS\n\0";
const RECORD: u8 = 0xCC;

/// The length of a file's head, in bytes.
pub const HEAD_LEN: usize = 34;

/// The offset of the record count in a file.
pub const COUNT_AT: u64 = 18;

/// The number of bytes collected for a chunk before it is compressed.
pub const CHUNK_LEN: usize = 1 << 20;

/// The longest compressed chunk that is accepted, in bytes. Compression does not make a chunk with
/// the longest record much longer.
const PACKED_LEN_MAX: usize = 1 << 31;

/// The head of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The identification of the compressor; 0 for none.
    pub check: u32,
    /// The timestamp of the newest update in the file.
    pub timestamp: u64,
    /// The number of records when the snapshot began.
    pub count: u64,
    /// The size of the database at that time, in bytes. Nothing depends on this number.
    pub size: u64,
}

impl SnapshotHead {
    /// Returns the bytes of the head.
    pub fn to_bytes(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6..10].copy_from_slice(&self.check.to_be_bytes());
        bytes[10..18].copy_from_slice(&self.timestamp.to_be_bytes());
        bytes[18..26].copy_from_slice(&self.count.to_be_bytes());
        bytes[26..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    /// Parses a head; returns `None` if it is invalid.
    pub fn parse(bytes: &[u8; HEAD_LEN]) -> Option<SnapshotHead> {
        let number = |from: usize, to: usize| {
            bytes[from..to].iter().fold(0, |number: u64, &byte| number << 8 | u64::from(byte))
        };
        (bytes[..6] == MAGIC).then(|| SnapshotHead {
            check: number(6, 10) as u32,
            timestamp: number(10, 18),
            count: number(18, 26),
            size: number(26, 34),
        })
    }
}

/// Returns the name of a database's file.
pub fn file_name(database: u32) -> String {
    format!("{database:08}.ktss")
}

/// Writes a record into a file without compression, or into the text of a chunk.
pub fn put_record(key: &[u8], stored: &StoredValue<'_>, out: &mut impl ReplySink) {
    framed::put(RECORD, key, stored, out);
}

/// Writes a compressed chunk.
pub fn put_chunk(packed: &[u8], out: &mut impl ReplySink) {
    out.put(&(packed.len() as u32).to_be_bytes());
    out.put(packed);
}

/// The reader of a file, or of the records of a decompressed chunk: a few words of state, no
/// buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotReader {
    content: SnapshotContent,
    /// The offset of the unread bytes in the file or chunk.
    at: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum SnapshotContent {
    /// Before the head.
    #[default]
    Head,
    /// In records, which continue up to the end.
    Records,
    /// In compressed chunks, which continue up to the end.
    Chunks,
}

/// The result of decoding the unread bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStep<'a> {
    /// The head.
    Head {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The head.
        head: SnapshotHead,
    },
    /// A record.
    Record {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The key.
        key: &'a [u8],
        /// The value, preceded by its expiry unless the database is persistent.
        stored: StoredValue<'a>,
    },
    /// A compressed chunk, which must be decompressed and read by [`SnapshotReader::of_chunk`].
    Chunk {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The compressed bytes.
        packed: &'a [u8],
    },
    /// More bytes are needed. If there are no more bytes, the file ends here. The end is correct if
    /// the head has been read and no byte is unread ([`SnapshotReader::may_end`]).
    NeedMore {
        /// The number of bytes that are missing at least; never 0.
        at_least: usize,
    },
    /// The file is damaged at this offset.
    Damaged {
        /// The offset in the file or the chunk.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
}

impl SnapshotReader {
    /// Creates the reader of a decompressed chunk.
    pub fn of_chunk() -> SnapshotReader {
        SnapshotReader { content: SnapshotContent::Records, at: 0 }
    }

    /// Decodes the next step from `input`, which must contain all unread bytes.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> SnapshotStep<'a> {
        if input.is_empty() {
            return SnapshotStep::NeedMore { at_least: 1 };
        }
        let step = match self.content {
            SnapshotContent::Head => self.decode_head(input),
            SnapshotContent::Records => match framed::read(RECORD, input) {
                FramedRecord::Whole { len, key, value } => {
                    SnapshotStep::Record { consumed: len, key, stored: StoredValue::raw(value) }
                }
                FramedRecord::Partial { at_least } => SnapshotStep::NeedMore { at_least },
                FramedRecord::Damaged(what) => SnapshotStep::Damaged { offset: self.at, what },
            },
            SnapshotContent::Chunks => self.decode_chunk(input),
        };
        match step {
            SnapshotStep::Head { consumed, .. }
            | SnapshotStep::Record { consumed, .. }
            | SnapshotStep::Chunk { consumed, .. } => self.at += consumed as u64,
            SnapshotStep::NeedMore { .. } | SnapshotStep::Damaged { .. } => {}
        }
        step
    }

    /// Returns true if the file may end with these bytes unread.
    pub fn may_end(&self, unread: &[u8]) -> bool {
        unread.is_empty() && !matches!(self.content, SnapshotContent::Head)
    }

    /// Returns the offset of the unread bytes in the file or chunk.
    pub fn offset(&self) -> u64 {
        self.at
    }

    fn decode_head<'a>(&mut self, input: &'a [u8]) -> SnapshotStep<'a> {
        let Some(head) = input.first_chunk::<HEAD_LEN>() else {
            return SnapshotStep::NeedMore { at_least: HEAD_LEN - input.len() };
        };
        let Some(head) = SnapshotHead::parse(head) else {
            return SnapshotStep::Damaged { offset: 0, what: "not a snapshot of Kyoto Tycoon" };
        };
        self.content = if head.check == 0 { SnapshotContent::Records } else { SnapshotContent::Chunks };
        SnapshotStep::Head { consumed: HEAD_LEN, head }
    }

    fn decode_chunk<'a>(&self, input: &'a [u8]) -> SnapshotStep<'a> {
        let Some((len, rest)) = input.split_first_chunk::<4>() else {
            return SnapshotStep::NeedMore { at_least: 4 - input.len() };
        };
        let len = u32::from_be_bytes(*len) as usize;
        if len > PACKED_LEN_MAX {
            return SnapshotStep::Damaged { offset: self.at, what: "a chunk is too long" };
        }
        match rest.get(..len) {
            Some(packed) => SnapshotStep::Chunk { consumed: 4 + len, packed },
            None => SnapshotStep::NeedMore { at_least: len - rest.len() },
        }
    }
}
