//! Salvages a damaged checkpoint. Each block has its own checksum, so intact blocks are recognised
//! and kept.
//!
//! The header must be intact, because all checksums depend on it. Only a single changed bit of the
//! header is corrected, by trying each bit. After a damaged block, the next block is searched first
//! at the place where the damaged block should end, and then at each later byte. A long record is
//! kept only if all its pieces are intact.

use super::frame::{
    self, BLOCK_FRAME_LEN, BlockFrame, BlockKind, BlockMethod, CONTENT_LEN_MAX, CheckpointFooter,
    CheckpointHeader, FOOTER_LEN, HEADER_LEN,
};
use super::reader::long_head;
use super::writer::unwritable;
use crate::disk::{Disk, File};
use crate::update_log::{DatabaseIdentity, LogPosition};
use std::io::{self, IoSlice};
use std::path::Path;
use todana_core::Result;

/// Bytes that are read and searched at once.
const WINDOW_LEN: usize = 256 << 10;
/// The most bytes that are searched for the next block. A file in which every byte looks like the
/// start of a block was not damaged by accident.
const SEARCH_MAX: u64 = 4 << 30;

/// The intact part of a damaged checkpoint.
pub(crate) struct SalvagedCheckpoint {
    pub(crate) header: CheckpointHeader,
    /// The log is needed up to this position. If the position is unknown, this is the position of
    /// the checkpoint itself.
    pub(crate) until: LogPosition,
    /// The number of intact records.
    pub(crate) records: u64,
    /// The number of lost records, if known.
    pub(crate) lost: Option<u64>,
}

/// A damaged file with a known header.
struct DamagedCheckpoint {
    file: Box<dyn File>,
    header: CheckpointHeader,
    footer: Option<CheckpointFooter>,
    /// The offset at which the last block ends at the latest.
    end: u64,
    searched: u64,
}

/// The intact blocks of one step, and the number of their records: one block of records, or a long
/// record with its pieces.
struct IntactRange {
    offset: u64,
    end: u64,
    records: u64,
}

/// A long record of which some pieces have not been found yet.
struct UnfinishedRecord {
    offset: u64,
    missing: u64,
}

/// Reports which part of a damaged checkpoint is intact. If `into` is given, writes that part as a
/// new checkpoint to this file, which must not exist. Returns `None` if nothing can be read. Fails
/// with `Unavailable` if the file cannot be written.
pub(crate) fn salvage_checkpoint(
    disk: &dyn Disk,
    path: &Path,
    identity: DatabaseIdentity,
    start: LogPosition,
    into: Option<&Path>,
) -> Result<Option<SalvagedCheckpoint>> {
    let Some(mut damaged) = DamagedCheckpoint::open(disk, path, identity, start) else { return Ok(None) };
    let units = damaged.units();
    let records = units.iter().map(|unit| unit.records).sum();
    let until = damaged.footer.as_ref().map_or(start, |footer| footer.until);
    let lost = damaged.footer.as_ref().map(|footer| footer.records.saturating_sub(records));
    if let Some(into) = into {
        let file = disk.create(into).map_err(unwritable)?;
        damaged.write(&units, until, &*file).map_err(unwritable)?;
    }
    Ok(Some(SalvagedCheckpoint { header: damaged.header, until, records, lost }))
}

impl DamagedCheckpoint {
    fn open(
        disk: &dyn Disk,
        path: &Path,
        identity: DatabaseIdentity,
        start: LogPosition,
    ) -> Option<DamagedCheckpoint> {
        let file = disk.open(path, false).ok()?;
        let len = file.len().ok()?;
        let mut bytes = [0; HEADER_LEN];
        let got = file.read_at(0, &mut bytes).ok()?;
        let header = intact_header(bytes).filter(|_| got == HEADER_LEN)?;
        if header.identity.database_id != identity.database_id || header.start != start {
            return None;
        }
        let offset = len.saturating_sub(FOOTER_LEN as u64).max(HEADER_LEN as u64);
        let mut bytes = [0; FOOTER_LEN];
        let got = file.read_at(offset, &mut bytes).unwrap_or(0);
        let footer = CheckpointFooter::decode(&bytes, header.crc()).filter(|_| got == FOOTER_LEN);
        let footer = footer.filter(|footer| footer.offset == offset);
        let end = if footer.is_some() { offset } else { len };
        Some(DamagedCheckpoint { file, header, footer, end, searched: 0 })
    }

    fn units(&mut self) -> Vec<IntactRange> {
        let (mut units, mut offset) = (Vec::new(), HEADER_LEN as u64);
        let mut unfinished: Option<UnfinishedRecord> = None;
        let mut stored = Vec::new();
        while offset < self.end {
            let Some((frame, end)) = self.block(offset, &mut stored) else {
                unfinished = None;
                offset = self.next_block(offset, &mut stored);
                continue;
            };
            match frame.kind {
                BlockKind::Records | BlockKind::Buckets => {
                    unfinished = None;
                    units.push(IntactRange { offset, end, records: frame.records.into() });
                }
                BlockKind::Long => {
                    let missing = long_len(&frame, &stored);
                    unfinished = missing.map(|missing| UnfinishedRecord { offset, missing });
                }
                BlockKind::Piece => {
                    unfinished = unfinished.and_then(|long| {
                        let missing = long.missing.checked_sub(frame.content_len.into())?;
                        Some(UnfinishedRecord { missing, ..long })
                    });
                }
            }
            if let Some(long) = unfinished.take_if(|long| long.missing == 0) {
                units.push(IntactRange { offset: long.offset, end, records: 1 });
            }
            offset = end;
        }
        units
    }

    /// Returns the block at an offset and the end of the block, if the block is intact. Puts its
    /// stored content into `stored`.
    fn block(&self, offset: u64, stored: &mut Vec<u8>) -> Option<(BlockFrame, u64)> {
        let mut bytes = [0; BLOCK_FRAME_LEN];
        let got = self.file.read_at(offset, &mut bytes).ok()?;
        let frame = BlockFrame::decode(&bytes).filter(|_| got == BLOCK_FRAME_LEN)?;
        let end = offset + BLOCK_FRAME_LEN as u64 + u64::from(frame.stored_len);
        if end > self.end {
            return None;
        }
        stored.resize(frame.stored_len as usize, 0);
        let got = self.file.read_at(offset + BLOCK_FRAME_LEN as u64, stored).ok()?;
        let is_intact = got == stored.len()
            && BlockFrame::is_intact(&bytes, frame::seed(self.header.crc(), offset), stored);
        is_intact.then_some((frame, end))
    }

    /// Returns the offset of the next intact block after a damaged one, or the end of the blocks if
    /// there is none.
    fn next_block(&mut self, offset: u64, stored: &mut Vec<u8>) -> u64 {
        let mut bytes = [0; BLOCK_FRAME_LEN];
        let got = self.file.read_at(offset, &mut bytes).unwrap_or(0);
        if let Some(frame) = BlockFrame::decode(&bytes).filter(|_| got == BLOCK_FRAME_LEN) {
            let behind = offset + BLOCK_FRAME_LEN as u64 + u64::from(frame.stored_len);
            if behind == self.end || self.block(behind, stored).is_some() {
                return behind;
            }
        }
        let mut window = vec![0; WINDOW_LEN];
        let mut from = offset + 1;
        while from < self.end && self.searched < SEARCH_MAX {
            let got = self.file.read_at(from, &mut window).unwrap_or(0);
            for (at, bytes) in window[..got].windows(BLOCK_FRAME_LEN).enumerate() {
                let bytes = bytes.first_chunk().expect("as long as a frame");
                let Some(frame) = BlockFrame::decode(bytes) else { continue };
                self.searched += u64::from(frame.stored_len) + BLOCK_FRAME_LEN as u64;
                let found = from + at as u64;
                if self.searched < SEARCH_MAX && self.block(found, stored).is_some() {
                    return found;
                }
            }
            // If a part of the file cannot be read, the search continues after that part.
            let step = if got < BLOCK_FRAME_LEN { WINDOW_LEN } else { got - BLOCK_FRAME_LEN + 1 };
            from += step as u64;
        }
        self.end
    }

    fn write(&self, units: &[IntactRange], until: LogPosition, to: &dyn File) -> io::Result<()> {
        let crc = self.header.crc();
        to.write_at(0, &mut [IoSlice::new(&self.header.encode())])?;
        let mut footer =
            CheckpointFooter { blocks: 0, records: 0, offset: HEADER_LEN as u64, until, content_len: 0 };
        let mut stored = Vec::new();
        for unit in units {
            let mut offset = unit.offset;
            while offset < unit.end {
                let block = self.block(offset, &mut stored);
                let (frame, end) = block.ok_or(io::ErrorKind::UnexpectedEof)?;
                let bytes = frame.encode(frame::seed(crc, footer.offset), &stored);
                to.write_at(footer.offset, &mut [IoSlice::new(&bytes), IoSlice::new(&stored)])?;
                footer.blocks += 1;
                footer.records += u64::from(frame.records);
                footer.offset += end - offset;
                footer.content_len += u64::from(frame.content_len);
                offset = end;
            }
        }
        to.write_at(footer.offset, &mut [IoSlice::new(&footer.encode(crc))])?;
        to.sync()
    }
}

/// Decodes the header. If it is damaged, tries to correct a single changed bit.
fn intact_header(bytes: [u8; HEADER_LEN]) -> Option<CheckpointHeader> {
    let with_bit_changed = |bit: usize| {
        let mut changed = bytes;
        changed[bit / 8] ^= 1 << (bit % 8);
        CheckpointHeader::decode(&changed).ok()
    };
    CheckpointHeader::decode(&bytes).ok().or_else(|| (0..HEADER_LEN * 8).find_map(with_bit_changed))
}

/// Returns the total length of the pieces of a long record, or `None` if its head cannot be read.
fn long_len(frame: &BlockFrame, stored: &[u8]) -> Option<u64> {
    let unpacked = match frame.method {
        BlockMethod::Plain => None,
        BlockMethod::Zstd => Some(zstd::bulk::decompress(stored, CONTENT_LEN_MAX).ok()?),
    };
    let (_, key_len, value_len) = long_head(unpacked.as_deref().unwrap_or(stored))?;
    Some((key_len + value_len) as u64)
}
