//! Writes a checkpoint while the database is in use.

use super::columns::{ColumnBuilder, put_attributes, tag_of};
use super::frame::{
    self, BLOCK_FRAME_LEN, BlockFrame, CONTENT_LEN_MAX, CheckpointFooter, FOOTER_LEN, HEADER_LEN,
};
use super::frame::{BlockKind, BlockMethod, CheckpointHeader};
use super::{CheckpointCompression, CheckpointOptions};
use crate::Database;
use crate::disk::Disk;
use crate::update_log::{DatabaseIdentity, LogPosition};
use std::io::{self, IoSlice};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use todana_core::{Attributes, Error, ErrorKind, LONG_VALUE_LEN, Result, SharedBytes, UnixSeconds};
use todana_engine::reserve::is_out_of_room;

/// A block of records ends when its content has this length.
const BLOCK_LEN: usize = 256 << 10;
/// How many records are scanned between two readings of the clock.
const GROUP_LEN: usize = 256;
/// A record is still written during this time after its expiry. A touch that read the clock before
/// the expiry may still be in progress, and its log entry is useless without the record.
const EXPIRED_MARGIN_S: u64 = 60;
/// The longest working time between two pauses.
const WORK_MAX: Duration = Duration::from_millis(1);
/// The longest pause, however long the disk took before it.
const REST_MAX: Duration = Duration::from_millis(20);

/// Receives the bytes of a checkpoint, piece by piece.
pub(crate) trait CheckpointSink {
    fn write(&mut self, pieces: &mut [IoSlice<'_>]) -> io::Result<()>;
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
    let header = CheckpointHeader {
        identity,
        start: checkpoint_start.end,
        created_ms: database.now().0 * 1000,
        version: checkpoint_start.version,
        planned_clear: checkpoint_start.planned_clear,
        order: database.engine().scan_order(),
    };
    let mut blocks = BlockWriter::new(sink, &header, options.compression)?;
    let mut pace = WorkPacer { since: Instant::now(), rests: options.rests };
    let mut columns = ColumnBuilder::default();
    let mut place = None;
    loop {
        let mut long = None;
        let mut seen = 0;
        let removal_time = database.removal_time(database.now());
        let dead_since = UnixSeconds(removal_time.0.saturating_sub(EXPIRED_MARGIN_S));
        place = database.engine().scan(place, &mut |key, record| {
            seen += 1;
            let is_long = record.shared.is_some() || key.len() + record.value.len() >= LONG_VALUE_LEN;
            if !record.attributes.expiry.is_live(dead_since) {
                // The record expired long ago: readers do not see it, and no later entry of the log
                // revives it.
            } else if is_long {
                let value = record.shared.cloned().unwrap_or_else(|| Arc::new(record.value.to_vec()));
                let next = LongRecord {
                    key: key.to_vec(),
                    value,
                    attributes: record.attributes,
                    before: long.take(),
                };
                long = Some(Box::new(next));
            } else {
                columns.push(key, &record);
            }
            let goes_on = long.is_none() && seen < GROUP_LEN && columns.len() < BLOCK_LEN;
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        while let Some(next) = long {
            blocks.put_long(&next)?;
            long = next.before;
        }
        if columns.len() >= BLOCK_LEN || (place.is_none() && columns.records() > 0) {
            blocks.put_records(&mut columns)?;
        }
        if place.is_none() {
            break;
        }
        if stops.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "checkpoint: cancelled"));
        }
        pace.rest();
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
    let header =
        CheckpointHeader { identity, start, created_ms: 0, version: 0, planned_clear: None, order: None };
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
struct WorkPacer {
    since: Instant,
    rests: u32,
}

impl WorkPacer {
    fn rest(&mut self) {
        let worked = self.since.elapsed();
        if worked >= WORK_MAX {
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
    header_crc: [u8; 4],
    zstd: Option<zstd::bulk::Compressor<'static>>,
    content: Vec<u8>,
    packed: Vec<u8>,
    footer: CheckpointFooter,
}

impl<'s> BlockWriter<'s> {
    fn new(
        sink: &'s mut dyn CheckpointSink,
        header: &CheckpointHeader,
        compression: CheckpointCompression,
    ) -> Result<BlockWriter<'s>> {
        let bytes = header.encode();
        sink.write(&mut [IoSlice::new(&bytes)]).map_err(unwritable)?;
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
            header_crc: header.crc(),
            zstd,
            content: Vec::new(),
            packed: Vec::new(),
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
        let value = (*long.value).as_ref();
        let mut head = vec![tag_of(&long.attributes)];
        head.extend_from_slice(&(long.key.len() as u32).to_le_bytes());
        head.extend_from_slice(&(value.len() as u32).to_le_bytes());
        put_attributes(&long.attributes, &mut head);
        self.put(BlockKind::Long, 1, &head)?;
        for piece in long.key.chunks(BLOCK_LEN).chain(value.chunks(BLOCK_LEN)) {
            self.put(BlockKind::Piece, 0, piece)?;
        }
        Ok(())
    }

    fn put(&mut self, kind: BlockKind, records: usize, content: &[u8]) -> Result<()> {
        if content.len() > CONTENT_LEN_MAX {
            return Err(Error::new(ErrorKind::Invalid, "checkpoint: too many records in one bucket"));
        }
        let mut method = BlockMethod::Plain;
        if let Some(zstd) = &mut self.zstd {
            self.packed.clear();
            self.packed.reserve(zstd::zstd_safe::compress_bound(content.len()));
            let len = zstd.compress_to_buffer(content, &mut self.packed).map_err(unwritable)?;
            if len < content.len() {
                method = BlockMethod::Zstd;
            }
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
        self.sink.write(&mut [IoSlice::new(&frame), IoSlice::new(stored)]).map_err(unwritable)?;
        self.footer.blocks += 1;
        self.footer.records += records as u64;
        self.footer.offset += (BLOCK_FRAME_LEN + stored.len()) as u64;
        self.footer.content_len += content.len() as u64;
        Ok(())
    }

    fn finish(mut self, until: LogPosition) -> Result<CheckpointFooter> {
        self.footer.until = until;
        let bytes = self.footer.encode(self.header_crc);
        self.sink.write(&mut [IoSlice::new(&bytes)]).map_err(unwritable)?;
        Ok(self.footer)
    }
}

pub(super) fn unwritable(error: io::Error) -> Error {
    let kind = if is_out_of_room(&error) { ErrorKind::Full } else { ErrorKind::Unavailable };
    Error::new(kind, format!("checkpoint: cannot write to it: {error}"))
}
