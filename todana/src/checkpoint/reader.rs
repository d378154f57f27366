//! Reads a checkpoint on several threads. Each block is checked before its records are used.

use super::columns::{RowReader, take_attributes};
use super::frame::{
    self, BLOCK_FRAME_LEN, BlockFrame, BlockKind, BlockMethod, CheckpointFooter, CheckpointHeader,
    FOOTER_LEN, HEADER_LEN,
};
use crate::Database;
use crate::disk::{Disk, File};
use crate::update_log::{ByteReader, DatabaseIdentity, LogChange, LogPosition};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use todana_core::{
    Attributes, Error, ErrorKind, ImageForm, LONG_VALUE_LEN, Record, RecordLoad, ScanOrder, SharedBytes,
};
use todana_engine::read_bucket_block;

/// The longest key and the longest value.
const KEY_LEN_MAX: usize = 1 << 28;
const VALUE_LEN_MAX: usize = 1 << 30;
/// The most threads. More of them would mainly wait for each other's locks in the engine.
const THREADS_MAX: usize = 8;
/// The number of records that are loaded together.
const GROUP_LEN: usize = 16;
/// Longer values are rare, so it is unlikely that several threads load one at the same time.
const LONG_LEN_TYPICAL: usize = 1 << 20;
/// How often the progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// The reason why records cannot be loaded.
#[derive(Debug)]
pub(crate) enum CheckpointFailure {
    /// The file is not an intact checkpoint; the text states the problem and the place.
    Damaged(String),
    /// The engine does not accept the records.
    Refused(Error),
}

/// A checkpoint file whose header and footer are valid.
pub(crate) struct CheckpointReader {
    path: PathBuf,
    file: Box<dyn File>,
    header_crc: [u8; 4],
    pub(crate) header: CheckpointHeader,
    pub(crate) footer: CheckpointFooter,
}

/// The blocks that a thread reads in one step: one block of records, or a long record with its
/// pieces.
struct BlockRange {
    offset: u64,
    end: u64,
}

/// The ranges that are assigned to one thread. Threads that have finished their own ranges take
/// some of these.
type ThreadPart<'u> = Mutex<std::slice::Iter<'u, BlockRange>>;

/// The number of records and blocks that the threads have read.
#[derive(Clone, Copy, Default)]
struct ReadTally {
    blocks: u64,
    records: u64,
    content_len: u64,
}

impl CheckpointReader {
    /// Opens a checkpoint. The error is a text that states the problem of the file.
    pub(crate) fn open(
        disk: &dyn Disk,
        path: &Path,
        identity: DatabaseIdentity,
    ) -> Result<CheckpointReader, String> {
        let unreadable = |error: std::io::Error| format!("{}: cannot read it: {error}", path.display());
        let at = |offset: u64, why: &str| format!("{} at offset {offset}: {why}", path.display());
        let file = disk.open(path, false).map_err(unreadable)?;
        let file_len = file.len().map_err(unreadable)?;
        let mut bytes = [0; HEADER_LEN];
        if file.read_at(0, &mut bytes).map_err(unreadable)? < HEADER_LEN {
            return Err(at(0, "the header is cut off"));
        }
        let header = CheckpointHeader::decode(&bytes).map_err(|why| at(0, &why))?;
        if header.identity.database_id != identity.database_id {
            return Err(at(0, "belongs to another database"));
        }
        let offset = file_len.saturating_sub(FOOTER_LEN as u64).max(HEADER_LEN as u64);
        let mut bytes = [0; FOOTER_LEN];
        let got = file.read_at(offset, &mut bytes).map_err(unreadable)?;
        let footer = CheckpointFooter::decode(&bytes, header.crc()).filter(|_| got == FOOTER_LEN);
        let footer = footer.filter(|footer| footer.offset == offset && footer.until >= header.start);
        let footer = footer.ok_or_else(|| at(offset, "the footer is missing or damaged"))?;
        Ok(CheckpointReader { path: path.to_path_buf(), file, header_crc: header.crc(), header, footer })
    }

    /// Returns the length of the file.
    pub(crate) fn len(&self) -> u64 {
        self.footer.offset + FOOTER_LEN as u64
    }

    /// Loads all records into a database, and sets the planned clear and the version. `progress` is
    /// called regularly with the number of bytes read. After a failure, the records that were
    /// loaded before stay in the database.
    pub(crate) fn load(
        &self,
        database: &Database,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), CheckpointFailure> {
        // An ordered load allocates memory for the groups, whose number has not been verified yet,
        // so it is limited first. Each bucket of an image has at least one byte.
        if let Some(form) = self.image_form() {
            database.begin_image_load(&form);
        } else if let Some(ScanOrder { seed, groups }) = self.header.order {
            let groups = groups.min(self.footer.records).min(self.len());
            database.expect(ScanOrder { seed, groups });
        }
        let outcome = self.read_all(Some(database), progress);
        database.engine().end_ordered_load();
        outcome?;
        database.resume(self.header.planned_clear, self.header.version);
        Ok(())
    }

    fn image_form(&self) -> Option<ImageForm> {
        let form = self.header.image_form()?;
        let order = ScanOrder { groups: form.order.groups.min(self.len()), ..form.order };
        Some(ImageForm { order, ..form })
    }

    /// Reads the complete file and checks every checksum.
    pub(crate) fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), CheckpointFailure> {
        self.read_all(None, &mut |done| {
            progress(done);
            ControlFlow::Continue(())
        })
    }

    /// Reads all blocks, until `progress` breaks.
    fn read_all(
        &self,
        database: Option<&Database>,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), CheckpointFailure> {
        let threads = thread::available_parallelism().map_or(2, |threads| threads.get().min(THREADS_MAX));
        // Each thread starts at a different place of the file. Neighbouring records of a checkpoint
        // are neighbours in the engine too, so two threads at the same place would wait for each
        // other.
        let units = self.units()?;
        let part_len = units.len().div_ceil(threads).max(1);
        let parts: Vec<ThreadPart<'_>> =
            units.chunks(part_len).map(|units| Mutex::new(units.iter())).collect();
        let (stops, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut total = ReadTally::default();
        let mut outcome = Ok(());
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            for first in 0..parts.len() {
                let (sender, parts, stops, done) = (sender.clone(), &parts, &stops, &done);
                scope.spawn(move || {
                    let outcome = self.take_units(database, parts, first, stops, done);
                    if outcome.is_err() {
                        stops.store(true, Ordering::Relaxed);
                    }
                    // The receiver exists until all threads have ended.
                    let _ = sender.send(outcome);
                });
            }
            drop(sender);
            loop {
                match receiver.recv_timeout(REPORT_INTERVAL) {
                    Ok(Ok(tally)) => total.add(tally),
                    Ok(Err(failure)) => outcome = Err(failure),
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        if progress(done.load(Ordering::Relaxed)).is_break() {
                            stops.store(true, Ordering::Relaxed);
                            outcome = Err(CheckpointFailure::Refused(cancelled()));
                        }
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
        });
        outcome?;
        let CheckpointFooter { blocks, records, content_len, .. } = self.footer;
        if (total.blocks, total.records, total.content_len) != (blocks, records, content_len) {
            return Err(self.damaged(self.footer.offset, "the footer does not match the contents"));
        }
        match progress(self.len()) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CheckpointFailure::Refused(cancelled())),
        }
    }

    /// Reads ranges in one of the threads, until none remain.
    fn take_units(
        &self,
        database: Option<&Database>,
        parts: &[ThreadPart<'_>],
        first: usize,
        stops: &AtomicBool,
        done: &AtomicU64,
    ) -> Result<ReadTally, CheckpointFailure> {
        let mut blocks = BlockReader { reader: self, zstd: None, stored: Vec::new(), content: Vec::new() };
        let mut tally = ReadTally::default();
        // A thread takes its own ranges first, then ranges of other threads.
        let (before, from) = parts.split_at(first);
        let mut order = from.iter().chain(before).peekable();
        while let Some(part) = order.peek().filter(|_| !stops.load(Ordering::Relaxed)) {
            let next = part.lock().next();
            let Some(unit) = next else {
                order.next();
                continue;
            };
            let len = unit.end - unit.offset;
            if let Some(database) = database {
                database.compress_for_load(RecordLoad { all_bytes: self.footer.content_len, next_bytes: 0 });
            }
            tally.add(blocks.load_unit(unit, database)?);
            done.fetch_add(len, Ordering::Relaxed);
        }
        Ok(tally)
    }

    /// Finds all ranges. Only the frames are read here; their checksums are verified later,
    /// together with the contents.
    fn units(&self) -> Result<Vec<BlockRange>, CheckpointFailure> {
        let (mut units, mut cursor) = (Vec::new(), HEADER_LEN as u64);
        while let Some(unit) = self.next_unit(&mut cursor)? {
            units.push(unit);
        }
        Ok(units)
    }

    fn next_unit(&self, cursor: &mut u64) -> Result<Option<BlockRange>, CheckpointFailure> {
        let offset = *cursor;
        if offset == self.footer.offset {
            return Ok(None);
        }
        let (_, frame, mut end) = self.frame(offset)?;
        if frame.kind == BlockKind::Piece {
            return Err(self.damaged(offset, "a piece that belongs to no record"));
        }
        while frame.kind == BlockKind::Long && end < self.footer.offset {
            let (_, next, next_end) = self.frame(end)?;
            if next.kind != BlockKind::Piece {
                break;
            }
            end = next_end;
        }
        *cursor = end;
        Ok(Some(BlockRange { offset, end }))
    }

    /// Returns the frame at an offset and the end of its block, which is at most the offset of the
    /// footer.
    fn frame(&self, offset: u64) -> Result<([u8; BLOCK_FRAME_LEN], BlockFrame, u64), CheckpointFailure> {
        let mut bytes = [0; BLOCK_FRAME_LEN];
        self.read(offset, &mut bytes)?;
        let frame = BlockFrame::decode(&bytes);
        let frame = frame.ok_or_else(|| self.damaged(offset, "not a block"))?;
        let end = offset + BLOCK_FRAME_LEN as u64 + u64::from(frame.stored_len);
        if end > self.footer.offset {
            return Err(self.damaged(offset, "a block goes beyond the end"));
        }
        Ok((bytes, frame, end))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), CheckpointFailure> {
        match self.file.read_at(offset, into) {
            Ok(len) if len == into.len() => Ok(()),
            Ok(_) => Err(self.damaged(offset, "the file ends here")),
            Err(error) => Err(self.damaged(offset, &format!("cannot read it: {error}"))),
        }
    }

    fn damaged(&self, offset: u64, what: &str) -> CheckpointFailure {
        CheckpointFailure::Damaged(format!("{} at offset {offset}: {what}", self.path.display()))
    }
}

impl ReadTally {
    fn add(&mut self, other: ReadTally) {
        self.blocks += other.blocks;
        self.records += other.records;
        self.content_len += other.content_len;
    }
}

/// The buffers of one thread.
struct BlockReader<'r> {
    reader: &'r CheckpointReader,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    stored: Vec<u8>,
    content: Vec<u8>,
}

impl BlockReader<'_> {
    fn load_unit(
        &mut self,
        unit: &BlockRange,
        database: Option<&Database>,
    ) -> Result<ReadTally, CheckpointFailure> {
        let offset = unit.offset;
        let (frame, end) = self.load(offset)?;
        let mut tally =
            ReadTally { blocks: 1, records: frame.records.into(), content_len: frame.content_len.into() };
        match frame.kind {
            BlockKind::Records if end == unit.end => {
                self.records(offset, frame.records as usize, database)?
            }
            BlockKind::Long if frame.records == 1 => {
                tally.add(self.long(unit, end, database)?);
            }
            BlockKind::Buckets if end == unit.end => self.buckets(offset, tally.records, database)?,
            _ => return Err(self.reader.damaged(offset, "the file changed while it was read")),
        }
        Ok(tally)
    }

    /// Reads and checks the block at an offset, puts its content into `content`, and returns the
    /// end of the block.
    fn load(&mut self, offset: u64) -> Result<(BlockFrame, u64), CheckpointFailure> {
        let reader = self.reader;
        let (bytes, frame, end) = reader.frame(offset)?;
        let into = match frame.method {
            BlockMethod::Plain => &mut self.content,
            BlockMethod::Zstd => &mut self.stored,
        };
        into.resize(frame.stored_len as usize, 0);
        reader.read(offset + BLOCK_FRAME_LEN as u64, into)?;
        if !BlockFrame::is_intact(&bytes, frame::seed(reader.header_crc, offset), into) {
            return Err(reader.damaged(offset, "the checksum of a block differs"));
        }
        if frame.method == BlockMethod::Zstd {
            self.decompress(offset, frame.content_len as usize)?;
        }
        Ok((frame, end))
    }

    fn decompress(&mut self, offset: u64, len: usize) -> Result<(), CheckpointFailure> {
        let wrong = |_| self.reader.damaged(offset, "a block cannot be decompressed");
        if self.zstd.is_none() {
            self.zstd = Some(zstd::bulk::Decompressor::new().map_err(wrong)?);
        }
        let zstd = self.zstd.as_mut().expect("it was made above");
        self.content.resize(len, 0);
        match zstd.decompress_to_buffer(&self.stored, &mut self.content[..]) {
            Ok(got) if got == len => Ok(()),
            Ok(_) => Err(self.reader.damaged(offset, "a block does not have the length that it gives")),
            Err(error) => Err(wrong(error)),
        }
    }

    fn records(
        &self,
        offset: u64,
        records: usize,
        database: Option<&Database>,
    ) -> Result<(), CheckpointFailure> {
        let malformed =
            || self.reader.damaged(offset, "a block does not contain the number of records that it gives");
        let mut rows = RowReader::new(&self.content, records).ok_or_else(malformed)?;
        // If the engine keeps the order of the checkpoint, each record is stored next to the
        // previous one.
        let order = self.reader.header.order;
        let fetches = database.is_some_and(|database| !database.keeps(order));
        let mut group = Vec::with_capacity(GROUP_LEN);
        while !rows.is_done() {
            // The memory where the records of a group will be stored is prefetched while the rest
            // of the group is decoded.
            while group.len() < GROUP_LEN && !rows.is_done() {
                let row = rows.next_row().ok_or_else(malformed)?;
                if let Some(database) = database.filter(|_| fetches) {
                    database.engine().prefetch(row.key.bytes());
                }
                group.push(row);
            }
            for row in group.drain(..) {
                put(database, row.key.bytes(), Record::new(row.value.bytes(), row.attributes))?;
            }
        }
        Ok(())
    }

    /// Loads the buckets in `content`, which must have this number of records.
    fn buckets(
        &self,
        offset: u64,
        records: u64,
        database: Option<&Database>,
    ) -> Result<(), CheckpointFailure> {
        let reader = self.reader;
        let form =
            reader.image_form().ok_or_else(|| reader.damaged(offset, "buckets outside of an image"))?;
        let mut refused = None;
        let mut put = |key: &[u8], record: Record<'_>| {
            put(database, key, record).map_err(|failure| match failure {
                CheckpointFailure::Damaged(why) => Error::new(ErrorKind::Corrupt, why),
                CheckpointFailure::Refused(error) => refused.insert(error).clone(),
            })
        };
        let found = match database {
            Some(database) => database.adopt_buckets(&form, &self.content, &mut put),
            None => read_bucket_block(&form, &self.content, &mut put),
        };
        match (found, refused) {
            (Ok(found), _) if found == records => Ok(()),
            (Ok(_), _) => Err(reader.damaged(offset, "a block does not contain the records that it gives")),
            (Err(_), Some(error)) => Err(CheckpointFailure::Refused(error)),
            (Err(error), None) => Err(reader.damaged(offset, &error.to_string())),
        }
    }

    /// Loads a long record. Its first block, the head, is in `content`.
    fn long(
        &mut self,
        unit: &BlockRange,
        pieces: u64,
        database: Option<&Database>,
    ) -> Result<ReadTally, CheckpointFailure> {
        let reader = self.reader;
        let malformed = || reader.damaged(unit.offset, "a long record is malformed");
        let (attributes, key_len, value_len) = long_head(&self.content).ok_or_else(malformed)?;
        let mut pieces = PieceReader {
            blocks: self,
            offset: pieces,
            end: unit.end,
            at: usize::MAX,
            tally: ReadTally::default(),
        };
        let mut key = Vec::new();
        pieces.extend(&mut key, key_len)?;
        match database {
            // Without a database, the checkpoint is only verified.
            None => pieces.pass(value_len)?,
            Some(database) => {
                // The other threads may load long values, too.
                let others = value_len.min(LONG_LEN_TYPICAL) * (THREADS_MAX - 1);
                database.compress_for_load(RecordLoad {
                    all_bytes: reader.footer.content_len,
                    next_bytes: (value_len + others) as u64,
                });
                let value = pieces.value(database, value_len)?;
                let shared = (value_len >= LONG_VALUE_LEN).then_some(&value);
                let record = Record { value: value.plain().unwrap_or_default(), shared, attributes };
                put(Some(database), &key, record)?;
            }
        }
        if pieces.offset != unit.end || pieces.left() > 0 {
            return Err(malformed());
        }
        Ok(pieces.tally)
    }
}

/// Returns the error of a read that its caller has stopped.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Closed, "data: reading was cancelled")
}

fn put(database: Option<&Database>, key: &[u8], record: Record<'_>) -> Result<(), CheckpointFailure> {
    let Some(database) = database else { return Ok(()) };
    database.replay(&LogChange::Put { key, record }).map_err(CheckpointFailure::Refused)
}

/// Decodes the head of a long record: the attributes, the length of the key, and the length of the
/// value.
pub(super) fn long_head(content: &[u8]) -> Option<(Attributes, usize, usize)> {
    let mut rest = ByteReader(content);
    let tag = rest.byte()?;
    let mut len = || Some(u32::from_le_bytes(rest.take(4)?.try_into().expect("four bytes")) as usize);
    let (key_len, value_len) = (len()?, len()?);
    let attributes = take_attributes(tag, &mut rest)?;
    let is_sound = rest.0.is_empty() && key_len <= KEY_LEN_MAX && value_len <= VALUE_LEN_MAX;
    is_sound.then_some((attributes, key_len, value_len))
}

/// Reads the consecutive pieces of a long record.
struct PieceReader<'b, 'r> {
    blocks: &'b mut BlockReader<'r>,
    /// The offset of the next block; after the last piece, the end of that piece.
    offset: u64,
    end: u64,
    /// How many bytes of the current block have been used.
    at: usize,
    tally: ReadTally,
}

impl PieceReader<'_, '_> {
    /// Returns the number of unused bytes of the current block.
    fn left(&self) -> usize {
        self.blocks.content.len().saturating_sub(self.at)
    }

    /// Returns the next bytes: at least one, and at most `len`.
    fn next(&mut self, len: usize) -> Result<&[u8], CheckpointFailure> {
        while self.left() == 0 {
            let reader = self.blocks.reader;
            if self.offset == self.end {
                return Err(reader.damaged(self.offset, "a long record is cut off"));
            }
            let (frame, end) = self.blocks.load(self.offset)?;
            if frame.kind != BlockKind::Piece || frame.records != 0 || frame.content_len == 0 {
                return Err(reader.damaged(self.offset, "not a piece of a long record"));
            }
            self.tally.add(ReadTally { blocks: 1, records: 0, content_len: frame.content_len.into() });
            (self.offset, self.at) = (end, 0);
        }
        let piece = &self.blocks.content[self.at..];
        let piece = &piece[..len.min(piece.len())];
        self.at += piece.len();
        Ok(piece)
    }

    fn extend(&mut self, into: &mut Vec<u8>, len: usize) -> Result<(), CheckpointFailure> {
        let end = into.len() + len;
        while into.len() < end {
            into.extend_from_slice(self.next(end - into.len())?);
        }
        Ok(())
    }

    fn pass(&mut self, mut len: usize) -> Result<(), CheckpointFailure> {
        while len > 0 {
            len -= self.next(len)?.len();
        }
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), CheckpointFailure> {
        let mut at = 0;
        while at < into.len() {
            let piece = self.next(into.len() - at)?;
            into[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Ok(())
    }

    /// Reads the value. It is read directly into the engine's memory if the engine offers memory
    /// for long values.
    fn value(&mut self, database: &Database, len: usize) -> Result<SharedBytes, CheckpointFailure> {
        let engine = database.engine();
        let mut buffer = match engine.buffer(len) {
            Ok(buffer) if len >= LONG_VALUE_LEN => buffer,
            Err(error) if error.kind() != ErrorKind::Invalid => {
                return Err(CheckpointFailure::Refused(error));
            }
            _ => {
                let mut value = Vec::new();
                self.extend(&mut value, len)?;
                return Ok(std::sync::Arc::new(value));
            }
        };
        while buffer.filled() < len {
            let wanted = len - buffer.filled();
            let room = engine.room(&mut *buffer, wanted).map_err(CheckpointFailure::Refused)?;
            self.fill(room)?;
            let filled = room.len();
            buffer.advance(filled);
        }
        Ok(buffer.into_shared())
    }
}

/// The fields by which a caller chooses among several checkpoints.
impl CheckpointReader {
    pub(crate) fn start(&self) -> LogPosition {
        self.header.start
    }
}
