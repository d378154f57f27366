//! Writes a checkpoint while the database is in use.

use super::columns::{ColumnBuilder, put_attributes, tag_of};
use super::frame::{
    self, BLOCK_FRAME_LEN, BlockFrame, CONTENT_LEN_MAX, CheckpointFooter, FOOTER_LEN, HEADER_LEN,
};
use super::frame::{BlockKind, BlockMethod, CheckpointHeader, ImageLayout};
use super::{CheckpointCompression, CheckpointForm, CheckpointOptions};
use crate::Database;
use crate::disk::Disk;
use crate::update_log::{DatabaseIdentity, LogPosition};
use std::io::{self, IoSlice};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use todana_core::{
    Attributes, CopiedBuckets, Engine, Error, ErrorKind, Expiry, ImageForm, ImagedEngine, LONG_VALUE_LEN,
    Record, Result, ScanPosition, SharedBytes, UnixSeconds,
};
use todana_engine::reserve::is_out_of_room;

/// A block of records ends when its content has this length.
const BLOCK_LEN: usize = 256 << 10;
/// A block of buckets ends when its content has this length. With 16 KiB, a copy takes half as long
/// again, and the latency of requests during it stays the same.
const IMAGE_BLOCK_LEN: usize = 64 << 10;
/// How many records are scanned between two readings of the clock.
const GROUP_LEN: usize = 256;
/// A record is still written during this time after its expiry. A touch that read the clock before
/// the expiry may still be in progress, and its log entry is useless without the record.
const EXPIRED_MARGIN_S: u64 = 60;
/// The longest working time between two pauses. A request waits for the rest of it if its thread
/// wakes on the core that does the work. Copying buckets also needs most of the memory's bandwidth.
const WORK_MAX: Duration = Duration::from_millis(1);
const IMAGE_WORK_MAX: Duration = Duration::from_micros(30);
/// The longest pause, however long the disk took before it.
const REST_MAX: Duration = Duration::from_millis(20);

/// The number of blocks with buckets that are written without compression after one that has gained
/// too little by it.
const UNCOMPRESSED_BLOCKS: u32 = 15;
/// The part of the next block that is compressed first then. A complete block takes 0.2 ms.
const TRIED_LEN: usize = 8 << 10;

/// Receives the bytes of a checkpoint, piece by piece.
pub(crate) trait CheckpointSink {
    /// Writes pieces, and perhaps rests between them.
    fn write(&mut self, pieces: &mut [IoSlice<'_>], pacer: &mut WorkPacer) -> io::Result<()>;
}

/// Describes a checkpoint that has been written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenCheckpoint {
    pub(crate) header: CheckpointHeader,
    pub(crate) footer: CheckpointFooter,
}

impl WrittenCheckpoint {
    /// Returns the length of the file.
    pub(crate) fn len(&self) -> u64 {
        self.footer.offset + FOOTER_LEN as u64
    }
}

/// Writes a checkpoint of a database with an update log. Before this function returns, the log is
/// on disk up to the position that the checkpoint needs. Fails with `Unavailable` if the sink or
/// the log fails, and with `Closed` if `stops` becomes true.
pub(crate) fn write(
    database: &Database,
    identity: DatabaseIdentity,
    options: &CheckpointOptions,
    stops: &AtomicBool,
    sink: &mut dyn CheckpointSink,
) -> Result<WrittenCheckpoint> {
    let no_log = || Error::new(ErrorKind::Invalid, "checkpoint: the database has no update log");
    let log = database.log().ok_or_else(no_log)?;
    let checkpoint_start = database.checkpoint_start().ok_or_else(no_log)?;
    let engine = database.engine();
    let imaged = engine.imaged().filter(|_| options.form == CheckpointForm::Image);
    let form = imaged.map(ImagedEngine::image_form);
    let header = CheckpointHeader {
        identity,
        start: checkpoint_start.end,
        created_ms: database.now().0 * 1000,
        version: checkpoint_start.version,
        planned_clear: checkpoint_start.planned_clear,
        order: form.map_or_else(|| engine.scan_order(), |form| Some(form.order)),
        image: form.map(|ImageForm { bucket_format, shards, .. }| ImageLayout { bucket_format, shards }),
    };
    let work_max = if form.is_some() { IMAGE_WORK_MAX } else { WORK_MAX };
    let pacer = WorkPacer { since: Instant::now(), rests: options.rests, work_max };
    let mut blocks = BlockWriter::new(sink, &header, options.compression, pacer)?;
    let mut content = WaitingContent::default();
    let mut place = None;
    loop {
        let removal_time = database.removal_time(database.now());
        let dead_since = UnixSeconds(removal_time.0.saturating_sub(EXPIRED_MARGIN_S));
        place = match imaged.zip(form) {
            Some((imaged, form)) => content.take_buckets(imaged, &form, place, dead_since)?,
            None => content.take_records(engine, place, dead_since)?,
        };
        content.put_due(&mut blocks, place.is_none())?;
        if place.is_none() {
            break;
        }
        if stops.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "checkpoint: cancelled"));
        }
        blocks.pacer.rest();
    }
    let until = database.log_end(log);
    log.sync_to(until)?;
    let footer = blocks.finish(until)?;
    Ok(WrittenCheckpoint { header, footer })
}

/// Writes a checkpoint without records, so that a database can be restored from its log alone from
/// a position on.
pub(crate) fn write_empty(
    disk: &dyn Disk,
    directory: &Path,
    path: &Path,
    identity: DatabaseIdentity,
    start: LogPosition,
) -> Result<()> {
    let header = CheckpointHeader {
        identity,
        start,
        created_ms: 0,
        version: 0,
        planned_clear: None,
        order: None,
        image: None,
    };
    let offset = HEADER_LEN as u64;
    let footer = CheckpointFooter { blocks: 0, records: 0, offset, until: start, content_len: 0 };
    let partial = directory.join("new.checkpoint.partial");
    let write = || -> io::Result<()> {
        let file = disk.create(&partial)?;
        file.write_at(0, &mut [IoSlice::new(&header.encode()), IoSlice::new(&footer.encode(header.crc()))])?;
        file.sync()?;
        disk.rename(&partial, path)?;
        disk.sync_directory(directory)
    };
    write().map_err(unwritable)
}

/// Records that were read from the engine and are not in a block yet.
#[derive(Default)]
struct WaitingContent {
    columns: ColumnBuilder,
    /// Columns of complete blocks, from a bucket with many records of medium length.
    full: Vec<ColumnBuilder>,
    long: Option<Box<LongRecord>>,
    /// Buckets, and the number of their records.
    image: Vec<u8>,
    image_records: usize,
}

impl WaitingContent {
    /// Scans some records. Records that expired before `dead_since` are left out: readers do not
    /// see them, and no later entry of the log revives them.
    fn take_records(
        &mut self,
        engine: &dyn Engine,
        from: Option<ScanPosition>,
        dead_since: UnixSeconds,
    ) -> Result<Option<ScanPosition>> {
        let mut seen = 0;
        engine.scan_shared(from, &mut |key, record| {
            seen += 1;
            if record.attributes.expiry.is_live(dead_since) {
                self.push(key, &record);
            }
            let goes_on = self.long.is_none() && seen < GROUP_LEN && self.columns.len() < BLOCK_LEN;
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    }

    /// Copies some buckets. Records that expired before `dead_since` are left out.
    fn take_buckets(
        &mut self,
        engine: &dyn ImagedEngine,
        form: &ImageForm,
        from: Option<ScanPosition>,
        dead_since: UnixSeconds,
    ) -> Result<Option<ScanPosition>> {
        let mut image = std::mem::take(&mut self.image);
        let is_dead = |expiry: Expiry| !expiry.is_live(dead_since);
        let copied =
            engine.copy_buckets(form, from, &is_dead, &mut image, &mut |key, record| self.push(key, &record));
        self.image = image;
        let CopiedBuckets { records, next } = copied?;
        self.image_records += records as usize;
        Ok(next)
    }

    fn push(&mut self, key: &[u8], record: &Record<'_>) {
        if record.shared.is_some() || key.len() + record.value.len() >= LONG_VALUE_LEN {
            let value = record.shared.cloned().unwrap_or_else(|| Arc::new(record.value.to_vec()));
            let before = self.long.take();
            let next = LongRecord { key: key.to_vec(), value, attributes: record.attributes, before };
            self.long = Some(Box::new(next));
            return;
        }
        self.columns.push(key, record);
        if self.columns.len() >= BLOCK_LEN {
            self.full.push(std::mem::take(&mut self.columns));
        }
    }

    /// Writes the blocks that are complete; at the end, writes everything.
    fn put_due(&mut self, blocks: &mut BlockWriter<'_>, is_end: bool) -> Result<()> {
        let is_due = is_end || self.columns.len() >= BLOCK_LEN || !self.full.is_empty();
        // A bucket is written before its other records, so that it finds its place free.
        if self.image.len() >= IMAGE_BLOCK_LEN || (is_due || self.long.is_some()) && !self.image.is_empty() {
            blocks.put(BlockKind::Buckets, self.image_records, &self.image)?;
            self.image.clear();
            self.image_records = 0;
        }
        while let Some(next) = self.long.take() {
            blocks.put_long(&next)?;
            self.long = next.before;
        }
        for mut columns in self.full.drain(..) {
            blocks.put_records(&mut columns)?;
        }
        if is_due && self.columns.records() > 0 {
            blocks.put_records(&mut self.columns)?;
        }
        Ok(())
    }
}

/// A record that is stored in blocks of its own. The value is shared, so that nothing long is
/// copied under a lock.
struct LongRecord {
    key: Vec<u8>,
    value: SharedBytes,
    attributes: Attributes,
    /// Another long record from the same position of the scan. An engine returns all records at one
    /// position together.
    before: Option<Box<LongRecord>>,
}

/// Inserts pauses between periods of work, so that requests get time.
pub(crate) struct WorkPacer {
    since: Instant,
    rests: u32,
    work_max: Duration,
}

impl WorkPacer {
    /// Pauses, if there has been enough work since the last pause.
    pub(crate) fn rest(&mut self) {
        let worked = self.since.elapsed();
        if worked >= self.work_max {
            let rest = (worked * self.rests).min(REST_MAX);
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
            self.since = Instant::now();
        }
    }
}

/// Writes blocks one after another.
struct BlockWriter<'s> {
    sink: &'s mut dyn CheckpointSink,
    pacer: WorkPacer,
    header_crc: [u8; 4],
    zstd: Option<zstd::bulk::Compressor<'static>>,
    content: Vec<u8>,
    packed: Vec<u8>,
    /// The number of blocks with buckets that are not compressed, because an earlier one has gained
    /// nothing.
    uncompressed_due: u32,
    /// True if the last attempt to compress a block with buckets has gained nothing.
    is_doubtful: bool,
    footer: CheckpointFooter,
}

impl<'s> BlockWriter<'s> {
    fn new(
        sink: &'s mut dyn CheckpointSink,
        header: &CheckpointHeader,
        compression: CheckpointCompression,
        mut pacer: WorkPacer,
    ) -> Result<BlockWriter<'s>> {
        let bytes = header.encode();
        sink.write(&mut [IoSlice::new(&bytes)], &mut pacer).map_err(unwritable)?;
        let zstd = match compression {
            CheckpointCompression::None => None,
            CheckpointCompression::Zstd(level) => {
                Some(zstd::bulk::Compressor::new(level).map_err(unwritable)?)
            }
        };
        let offset = HEADER_LEN as u64;
        let footer =
            CheckpointFooter { blocks: 0, records: 0, offset, until: LogPosition(0), content_len: 0 };
        Ok(BlockWriter {
            sink,
            pacer,
            header_crc: header.crc(),
            zstd,
            content: Vec::new(),
            packed: Vec::new(),
            uncompressed_due: 0,
            is_doubtful: false,
            footer,
        })
    }

    fn put_records(&mut self, columns: &mut ColumnBuilder) -> Result<()> {
        self.content.clear();
        columns.encode(&mut self.content);
        let content = std::mem::take(&mut self.content);
        self.put(BlockKind::Records, columns.records(), &content)?;
        self.content = content;
        columns.clear();
        Ok(())
    }

    fn put_long(&mut self, long: &LongRecord) -> Result<()> {
        let value = &long.value;
        let mut head = vec![tag_of(&long.attributes)];
        head.extend_from_slice(&(long.key.len() as u32).to_le_bytes());
        head.extend_from_slice(&(value.len() as u32).to_le_bytes());
        put_attributes(&long.attributes, &mut head);
        self.put(BlockKind::Long, 1, &head)?;
        for piece in long.key.chunks(BLOCK_LEN) {
            self.put(BlockKind::Piece, 0, piece)?;
        }
        if let Some(plain) = value.plain() {
            for piece in plain.chunks(BLOCK_LEN) {
                self.put(BlockKind::Piece, 0, piece)?;
            }
            return Ok(());
        }
        let (mut at, mut chunk, mut pending) = (0, Vec::new(), Vec::new());
        while at < value.len() {
            value.copy_chunk(at, &mut chunk);
            at += chunk.len();
            pending.extend_from_slice(&chunk);
            if pending.len() >= BLOCK_LEN || at == value.len() {
                let whole =
                    if at == value.len() { pending.len() } else { pending.len() / BLOCK_LEN * BLOCK_LEN };
                for piece in pending[..whole].chunks(BLOCK_LEN) {
                    self.put(BlockKind::Piece, 0, piece)?;
                }
                pending.drain(..whole);
            }
        }
        Ok(())
    }

    fn put(&mut self, kind: BlockKind, records: usize, content: &[u8]) -> Result<()> {
        if content.len() > CONTENT_LEN_MAX {
            return Err(Error::new(ErrorKind::Invalid, "checkpoint: too many records in one bucket"));
        }
        let mut method = BlockMethod::Plain;
        let is_image = kind == BlockKind::Buckets;
        if is_image && self.uncompressed_due > 0 {
            self.uncompressed_due -= 1;
        } else if let Some(zstd) = &mut self.zstd {
            // Numbers in buckets are packed already, and do not compress.
            let gain_min = |len: usize| if is_image { len / 8 } else { 1 };
            let mut gains = |content: &[u8]| -> Result<bool> {
                self.packed.clear();
                self.packed.reserve(zstd::zstd_safe::compress_bound(content.len()));
                let len = zstd.compress_to_buffer(content, &mut self.packed).map_err(unwritable)?;
                Ok(len + gain_min(content.len()) <= content.len())
            };
            let tried = &content[..content.len().min(TRIED_LEN)];
            let is_gain = (!self.is_doubtful || gains(tried)?) && gains(content)?;
            if is_gain {
                method = BlockMethod::Zstd;
            } else if is_image {
                self.uncompressed_due = UNCOMPRESSED_BLOCKS;
            }
            self.is_doubtful = is_image && !is_gain;
            self.pacer.rest();
        }
        let stored = if method == BlockMethod::Zstd { &self.packed[..] } else { content };
        let frame = BlockFrame {
            kind,
            method,
            stored_len: stored.len() as u32,
            content_len: content.len() as u32,
            records: records as u32,
        };
        let frame = frame.encode(frame::seed(self.header_crc, self.footer.offset), stored);
        let pieces = &mut [IoSlice::new(&frame), IoSlice::new(stored)];
        self.sink.write(pieces, &mut self.pacer).map_err(unwritable)?;
        self.footer.blocks += 1;
        self.footer.records += records as u64;
        self.footer.offset += (BLOCK_FRAME_LEN + stored.len()) as u64;
        self.footer.content_len += content.len() as u64;
        Ok(())
    }

    fn finish(mut self, until: LogPosition) -> Result<CheckpointFooter> {
        self.footer.until = until;
        let bytes = self.footer.encode(self.header_crc);
        self.sink.write(&mut [IoSlice::new(&bytes)], &mut self.pacer).map_err(unwritable)?;
        Ok(self.footer)
    }
}

pub(super) fn unwritable(error: io::Error) -> Error {
    let kind = if is_out_of_room(&error) { ErrorKind::Full } else { ErrorKind::Unavailable };
    Error::new(kind, format!("checkpoint: cannot write to it: {error}"))
}
