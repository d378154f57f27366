//! A checkpoint on its way to a replica: the master writes it to a connection instead of a file,
//! and the replica reads its records as they arrive.
//!
//! Invariants: no record is returned before the checksum of its block has been verified. The bytes
//! that the decoder keeps are those of one block, or of one long record.

use super::columns::RowReader;
use super::frame::{
    self, BLOCK_FRAME_LEN, BlockFrame, BlockKind, BlockMethod, CheckpointFooter, CheckpointHeader,
    FOOTER_LEN, HEADER_LEN,
};
use super::reader::long_head;
use super::writer::{CheckpointSink, WorkPacer, write};
use super::{CheckpointCompression, CheckpointForm, CheckpointOptions};
use crate::update_log::{DatabaseIdentity, LogPosition};
use crate::{DataDirectory, Database};
use std::io::{self, IoSlice};
use std::sync::atomic::AtomicBool;
use todana_core::{Attributes, Error, ErrorKind, ImageForm, Record, Result, UnixSeconds};

/// Describes a checkpoint that has been sent or received completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferredCheckpoint {
    /// The database that the checkpoint belongs to.
    pub identity: DatabaseIdentity,
    /// The position from which the log must be applied to the records.
    pub start: LogPosition,
    /// The records are consistent once the log has been applied up to this position.
    pub until: LogPosition,
    /// The number of records.
    pub records: u64,
    /// The highest version that the database had given to a record.
    pub version: u64,
    /// The time of a planned clear.
    pub planned_clear: Option<UnixSeconds>,
    /// True if the checkpoint is an image.
    pub is_image: bool,
}

impl TransferredCheckpoint {
    fn of(header: &CheckpointHeader, footer: &CheckpointFooter) -> TransferredCheckpoint {
        TransferredCheckpoint {
            identity: header.identity,
            start: header.start,
            until: footer.until,
            records: footer.records,
            version: header.version,
            planned_clear: header.planned_clear,
            is_image: header.image.is_some(),
        }
    }
}

/// The length of the pauses, as a multiple of the working time between them. With 8, a copy took
/// twice as long, and other clients of the master did not have a measurably lower latency
/// (benches/record, 2026-11-27).
const RESTS: u32 = 3;

/// The most bytes that are sent between two pauses. The kernel works on them as long as on copying
/// them from the engine.
const SENT_LEN: usize = 16 << 10;

/// Passes a checkpoint of the database to `send`, piece by piece, while the database is in use.
/// `form` is one that the receiver can read. The log is on disk up to the position `until` before
/// this function returns. The caller must hold the log ([`DataDirectory::hold`]) from a position
/// before the call on. Fails with `Unavailable` if `send` fails.
pub fn send_checkpoint(
    directory: &DataDirectory,
    database: &Database,
    form: CheckpointForm,
    send: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<TransferredCheckpoint> {
    let compression = CheckpointCompression::Zstd(1);
    // The receiver is often slower, so longer pauses cost nothing.
    let options = CheckpointOptions { form, compression, rests: RESTS, ..CheckpointOptions::default() };
    let written =
        write(database, directory.identity(), &options, &AtomicBool::new(false), &mut PieceSink { send })?;
    Ok(TransferredCheckpoint::of(&written.header, &written.footer))
}

struct PieceSink<'s> {
    send: &'s mut dyn FnMut(&[u8]) -> io::Result<()>,
}

impl CheckpointSink for PieceSink<'_> {
    fn write(&mut self, pieces: &mut [IoSlice<'_>], pacer: &mut WorkPacer) -> io::Result<()> {
        for piece in pieces.iter().flat_map(|piece| piece.chunks(SENT_LEN)) {
            (self.send)(piece)?;
            pacer.rest();
        }
        Ok(())
    }
}

/// Reads a checkpoint as it arrives, in pieces of any length.
#[derive(Default)]
pub struct CheckpointDecoder {
    bytes: Vec<u8>,
    /// The number of `bytes` that have been read.
    at: usize,
    /// The offset of the next byte in the checkpoint.
    offset: u64,
    header: Option<CheckpointHeader>,
    long: Option<PartialRecord>,
    tally: DecodedTally,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    content: Vec<u8>,
    end: Option<TransferredCheckpoint>,
}

/// A long record, of which some pieces have arrived.
struct PartialRecord {
    attributes: Attributes,
    key_len: usize,
    len: usize,
    /// The key and the value, as far as they have arrived.
    bytes: Vec<u8>,
}

#[derive(Default, PartialEq)]
struct DecodedTally {
    blocks: u64,
    records: u64,
    content_len: u64,
}

/// Receives the records of a checkpoint.
pub trait CheckpointTarget {
    /// Called before the first record. `form` is that of the image, if the checkpoint is one.
    fn begin(&mut self, form: Option<&ImageForm>) -> Result<()>;

    /// Stores a record.
    fn put(&mut self, key: &[u8], record: Record<'_>) -> Result<()>;

    /// Stores the records of a block of the image, and returns their number. Fails with `Corrupt`
    /// if the block is not intact.
    fn put_buckets(&mut self, form: &ImageForm, block: &[u8]) -> Result<u64>;
}

impl CheckpointDecoder {
    /// Appends the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns true if the bytes so far are those of an image.
    pub fn is_image(&self) -> bool {
        self.header.is_some_and(|header| header.image.is_some())
    }

    /// Passes the records of all complete blocks to `target`. Returns the description of the
    /// checkpoint after its last record. Fails with `Corrupt` if the bytes are not a checkpoint,
    /// and with the error of `target`.
    pub fn read_records(
        &mut self,
        target: &mut dyn CheckpointTarget,
    ) -> Result<Option<TransferredCheckpoint>> {
        while self.end.is_none() && self.read_part(target)? {}
        if self.end.is_some() && self.at < self.bytes.len() {
            return Err(self.damaged("bytes follow the footer"));
        }
        Ok(self.end)
    }

    /// Reads the next header, block or footer. Returns false if it is incomplete.
    fn read_part(&mut self, target: &mut dyn CheckpointTarget) -> Result<bool> {
        let unread = &self.bytes[self.at..];
        let Some(header) = self.header else {
            let Some(bytes) = unread.first_chunk::<HEADER_LEN>() else { return Ok(false) };
            let header = CheckpointHeader::decode(bytes).map_err(|why| self.damaged(&why))?;
            self.header = Some(header);
            self.advance(HEADER_LEN);
            target.begin(header.image_form().as_ref())?;
            return Ok(true);
        };
        let Some(bytes) = unread.first_chunk::<BLOCK_FRAME_LEN>() else { return Ok(false) };
        let Some(frame) = BlockFrame::decode(bytes) else { return self.read_footer(&header) };
        let len = BLOCK_FRAME_LEN + frame.stored_len as usize;
        let Some(stored) = unread.get(BLOCK_FRAME_LEN..len) else { return Ok(false) };
        if !BlockFrame::is_intact(bytes, frame::seed(header.crc(), self.offset), stored) {
            return Err(self.damaged("the checksum of a block differs"));
        }
        self.content.clear();
        match frame.method {
            BlockMethod::Plain => self.content.extend_from_slice(stored),
            BlockMethod::Zstd => {
                let content_len = frame.content_len as usize;
                self.content.resize(content_len, 0);
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd::bulk::Decompressor::new().map_err(|_| unreadable())?),
                };
                let len = zstd.decompress_to_buffer(stored, &mut self.content[..]);
                if !len.is_ok_and(|len| len == content_len) {
                    return Err(self.damaged("a block cannot be decompressed"));
                }
            }
        }
        self.tally.blocks += 1;
        self.tally.records += u64::from(frame.records);
        self.tally.content_len += u64::from(frame.content_len);
        self.read_block(&frame, target)?;
        self.advance(len);
        Ok(true)
    }

    /// Reads the block whose content is in `content`.
    fn read_block(&mut self, frame: &BlockFrame, target: &mut dyn CheckpointTarget) -> Result<()> {
        match (frame.kind, &mut self.long) {
            (BlockKind::Records, None) => {
                let malformed =
                    || self.damaged("a block does not contain the number of records that it gives");
                let mut rows = RowReader::new(&self.content, frame.records as usize).ok_or_else(malformed)?;
                while !rows.is_done() {
                    let row = rows.next_row().ok_or_else(malformed)?;
                    target.put(row.key.bytes(), Record::new(row.value.bytes(), row.attributes))?;
                }
                return Ok(());
            }
            (BlockKind::Buckets, None) => {
                let form = self.header.and_then(|header| header.image_form());
                let form = form.ok_or_else(|| self.damaged("buckets outside of an image"))?;
                if target.put_buckets(&form, &self.content)? != u64::from(frame.records) {
                    return Err(self.damaged("a block does not contain the records that it gives"));
                }
                return Ok(());
            }
            (BlockKind::Long, None) if frame.records == 1 => {
                let (attributes, key_len, value_len) =
                    long_head(&self.content).ok_or_else(|| self.damaged("a long record is malformed"))?;
                let len = key_len + value_len;
                self.long = Some(PartialRecord { attributes, key_len, len, bytes: Vec::new() });
            }
            (BlockKind::Piece, Some(long)) if frame.records == 0 => {
                long.bytes.extend_from_slice(&self.content);
            }
            _ => return Err(self.damaged("a piece of a long record is missing, or belongs to no record")),
        }
        let Some(long) = self.long.take_if(|long| long.bytes.len() >= long.len) else { return Ok(()) };
        if long.bytes.len() > long.len {
            return Err(self.damaged("a long record is malformed"));
        }
        let (key, value) = long.bytes.split_at(long.key_len);
        target.put(key, Record::new(value, long.attributes))
    }

    fn read_footer(&mut self, header: &CheckpointHeader) -> Result<bool> {
        let Some(bytes) = self.bytes[self.at..].first_chunk::<FOOTER_LEN>() else { return Ok(false) };
        let footer = CheckpointFooter::decode(bytes, header.crc());
        let footer = footer.filter(|footer| footer.offset == self.offset && footer.until >= header.start);
        let footer = footer.ok_or_else(|| self.damaged("neither a block nor the footer"))?;
        let CheckpointFooter { blocks, records, content_len, .. } = footer;
        if self.tally != (DecodedTally { blocks, records, content_len }) || self.long.is_some() {
            return Err(self.damaged("the footer does not match the contents"));
        }
        self.end = Some(TransferredCheckpoint::of(header, &footer));
        self.advance(FOOTER_LEN);
        Ok(true)
    }

    fn advance(&mut self, len: usize) {
        self.at += len;
        self.offset += len as u64;
    }

    fn damaged(&self, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("checkpoint at offset {}: {what}", self.offset))
    }
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Unavailable, "checkpoint: no memory to decompress it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataOptions, SystemClock};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use todana_core::{Action, Engine, Expiry};
    use todana_engine::{MemHash, MemHashOptions, MemTree, MemTreeOptions, read_bucket_block};

    type RecordsByKey = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

    #[derive(Default)]
    struct CollectedRecords(RecordsByKey);

    impl CheckpointTarget for CollectedRecords {
        fn begin(&mut self, _: Option<&ImageForm>) -> Result<()> {
            Ok(())
        }

        fn put(&mut self, key: &[u8], record: Record<'_>) -> Result<()> {
            self.0.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
            Ok(())
        }

        fn put_buckets(&mut self, form: &ImageForm, block: &[u8]) -> Result<u64> {
            read_bucket_block(form, block, &mut |key, record| self.put(key, record))
        }
    }

    fn engine(form: CheckpointForm) -> Box<dyn Engine> {
        match form {
            CheckpointForm::Image => Box::new(MemHash::new(MemHashOptions::default()).unwrap()),
            CheckpointForm::Portable => Box::new(MemTree::new(MemTreeOptions::default()).unwrap()),
        }
    }

    /// Returns a checkpoint, and the records in it.
    fn checkpoint(form: CheckpointForm) -> (Vec<u8>, TransferredCheckpoint, RecordsByKey) {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::new(engine(form), Arc::new(SystemClock));
        let directory =
            DataDirectory::open(Arc::new(todana_engine::disk::SystemDisk), folder.path()).unwrap();
        directory.restore(&database, Arc::new(SystemClock), &DataOptions::default(), &mut |_| ()).unwrap();
        let counters = database.worker_counters();
        let mut records = RecordsByKey::new();
        for number in 0..2000u32 {
            let value = vec![number as u8; if number == 7 { 300_000 } else { number as usize % 90 }];
            let attributes = Attributes {
                flags: number % 5,
                version: u64::from(number % 3),
                expiry: if number % 2 == 0 {
                    Expiry::Never
                } else {
                    Expiry::At(UnixSeconds(4_000_000_000 + u64::from(number)))
                },
                ..Attributes::default()
            };
            let key = format!("key{number}").into_bytes();
            let put = Action::Put(Record::new(&value, attributes));
            database.visit_record(&counters, &key, &mut crate::OverwriteVisitor(put)).unwrap();
            records.insert(key, (value, attributes));
        }
        let mut bytes = Vec::new();
        let sent = send_checkpoint(&directory, &database, form, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        (bytes, sent.unwrap(), records)
    }

    const FORMS: [CheckpointForm; 2] = [CheckpointForm::Image, CheckpointForm::Portable];

    #[test]
    fn checkpoint_is_decoded_in_pieces_of_any_length() {
        for form in FORMS {
            let (bytes, sent, records) = checkpoint(form);
            for len in [1, 19, 4096, bytes.len()] {
                let mut decoder = CheckpointDecoder::default();
                let mut found = CollectedRecords::default();
                let mut end = None;
                for piece in bytes.chunks(len) {
                    assert_eq!(end, None);
                    decoder.push(piece);
                    end = decoder.read_records(&mut found).unwrap();
                }
                assert_eq!(end, Some(sent));
                assert!(found.0 == records);
            }
            assert_eq!(sent.records, 2000);
        }
    }

    #[test]
    fn changed_byte_of_a_transfer_is_found() {
        for form in FORMS {
            let (bytes, _, records) = checkpoint(form);
            let mut random = fastrand::Rng::with_seed(5);
            for _ in 0..200 {
                let mut damaged = bytes.clone();
                damaged[random.usize(..bytes.len())] ^= 1 << random.u8(..8);
                let mut decoder = CheckpointDecoder::default();
                decoder.push(&damaged);
                // A damaged length can make the rest look incomplete.
                let mut found = CollectedRecords::default();
                assert!(!matches!(decoder.read_records(&mut found), Ok(Some(_))));
                assert!(found.0.iter().all(|(key, record)| records[key] == *record));
            }
        }
    }
}
