//! Snapshots of Kyoto Tycoon's: one file a database.
//!
//! ```text
//! 4B 54 53 53 0A 00   check:u32 timestamp:u64 count:u64 size:u64       34 bytes
//! check is 0:   { CC key_len:varnum value_len:varnum key stored_value }*    to the end of the file
//! else:         { len:u32 chunk }*     compressed, each of whole records as above
//! ```
//!
//! Compressing and decompressing chunks is the caller's: see [`super::compression`].

use super::framed::{self, FramedRecord};
use super::message::StoredValue;
use crate::ReplySink;

const MAGIC: [u8; 6] = *b"KTSS\n\0";
const RECORD: u8 = 0xCC;

/// The length of a file's head, in bytes.
pub const HEAD_LEN: usize = 34;

/// Where in a file the number of its records stands.
pub const COUNT_AT: u64 = 18;

/// How much is gathered for a chunk before it is packed, in bytes.
pub const CHUNK_LEN: usize = 1 << 20;

/// The longest packed chunk that is taken, in bytes: the longest record does not become much longer by packing.
const PACKED_LEN_MAX: usize = 1 << 31;

/// The head of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Which compressor packed it; 0 if none did.
    pub check: u32,
    /// The time stamp of the newest update that is in it.
    pub timestamp: u64,
    /// How many records there were when it began.
    pub count: u64,
    /// How long the database was then, in bytes; nothing depends on it.
    pub size: u64,
}

impl SnapshotHead {
    /// As it is written.
    pub fn to_bytes(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6..10].copy_from_slice(&self.check.to_be_bytes());
        bytes[10..18].copy_from_slice(&self.timestamp.to_be_bytes());
        bytes[18..26].copy_from_slice(&self.count.to_be_bytes());
        bytes[26..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    /// Reads one; `None` if it is none.
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

/// The name of a database's file.
pub fn file_name(database: u32) -> String {
    format!("{database:08}.ktss")
}

/// Writes a record, into the file or into what becomes a chunk.
pub fn put_record(key: &[u8], stored: &StoredValue<'_>, out: &mut impl ReplySink) {
    framed::put(RECORD, key, stored, out);
}

/// Writes a chunk that has been packed.
pub fn put_chunk(packed: &[u8], out: &mut impl ReplySink) {
    out.put(&(packed.len() as u32).to_be_bytes());
    out.put(packed);
}

/// The reader of a file, or of the records of an unpacked chunk: a few words of state, no buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotReader {
    content: SnapshotContent,
    /// Where in the file or chunk the unread bytes begin.
    at: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum SnapshotContent {
    /// The head comes first.
    #[default]
    Head,
    /// Records, to the end.
    Records,
    /// Packed chunks, to the end.
    Chunks,
}

/// The outcome of looking at the unread bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStep<'a> {
    /// The head; the first `consumed` bytes of the input are done with.
    Head {
        /// Bytes done with.
        consumed: usize,
        /// The head.
        head: SnapshotHead,
    },
    /// A record; the first `consumed` bytes of the input are done with.
    Record {
        /// Bytes done with.
        consumed: usize,
        /// The key.
        key: &'a [u8],
        /// The value, behind its time unless the database is persistent.
        stored: StoredValue<'a>,
    },
    /// A packed chunk, to be unpacked and read by [`SnapshotReader::of_chunk`].
    Chunk {
        /// Bytes done with.
        consumed: usize,
        /// What is packed.
        packed: &'a [u8],
    },
    /// At least so many more bytes are needed. If there are none, the file ends here, which is well if none is unread and
    /// the head has been read ([`SnapshotReader::may_end`]).
    NeedMore {
        /// At least 1.
        at_least: usize,
    },
    /// It is damaged here.
    Damaged {
        /// Where, counted from the beginning of the file or the chunk.
        offset: u64,
        /// How.
        what: &'static str,
    },
}

impl SnapshotReader {
    /// The reader of an unpacked chunk.
    pub fn of_chunk() -> SnapshotReader {
        SnapshotReader { content: SnapshotContent::Records, at: 0 }
    }

    /// The next step from `input`, the unread bytes.
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

    /// Whether the file may end where these bytes are unread.
    pub fn may_end(&self, unread: &[u8]) -> bool {
        unread.is_empty() && !matches!(self.content, SnapshotContent::Head)
    }

    /// Where in the file or chunk the unread bytes begin.
    pub fn offset(&self) -> u64 {
        self.at
    }

    fn decode_head<'a>(&mut self, input: &'a [u8]) -> SnapshotStep<'a> {
        let Some(head) = input.first_chunk::<HEAD_LEN>() else {
            return SnapshotStep::NeedMore { at_least: HEAD_LEN - input.len() };
        };
        let Some(head) = SnapshotHead::parse(head) else {
            return SnapshotStep::Damaged { offset: 0, what: "this is no snapshot of Kyoto Tycoon's" };
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
