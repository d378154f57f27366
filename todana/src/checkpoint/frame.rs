//! The parts of a checkpoint that enclose its records: header, frames of blocks, and footer
//! (docs/format/checkpoint.md).

use crate::file_header::{HeaderFormat, eight, four, sealed};
use crate::update_log::{DatabaseIdentity, LogPosition};
use todana_core::{ImageForm, ScanOrder, UnixSeconds};
use todana_engine::expect_bucket_format;

pub(crate) const HEADER_LEN: usize = 96;
pub(crate) const BLOCK_FRAME_LEN: usize = 20;
pub(crate) const FOOTER_LEN: usize = 56;
/// The longest content of a block.
pub(crate) const CONTENT_LEN_MAX: usize = 1 << 20;

const FORMAT: HeaderFormat<HEADER_LEN> = HeaderFormat {
    magic: *b"TODANACP",
    version: IMAGE_VERSION,
    oldest: PORTABLE_VERSION,
    what: "checkpoint",
};
/// The version of a checkpoint with all records one by one, and that of an image.
const PORTABLE_VERSION: u32 = 1;
const IMAGE_VERSION: u32 = 2;
const END_MAGIC: &[u8; 8] = b"TODANAEC";

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointHeader {
    pub(crate) identity: DatabaseIdentity,
    /// The position from which a reader must replay the log.
    pub(crate) start: LogPosition,
    pub(crate) created_ms: u64,
    /// The highest version assigned so far.
    pub(crate) version: u64,
    pub(crate) planned_clear: Option<UnixSeconds>,
    /// The order of the records, if the engine returned them in a known order.
    pub(crate) order: Option<ScanOrder>,
    /// The layout of the image, if the checkpoint contains buckets. It also has an order then.
    pub(crate) image: Option<ImageLayout>,
}

/// The parts of an [`ImageForm`] beside its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageLayout {
    pub(crate) bucket_format: u32,
    pub(crate) shards: u32,
}

impl CheckpointHeader {
    /// Returns the form of the buckets, if the checkpoint is an image.
    pub(crate) fn image_form(&self) -> Option<ImageForm> {
        let (ImageLayout { bucket_format, shards }, order) = self.image.zip(self.order)?;
        Some(ImageForm { bucket_format, shards, order })
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = FORMAT.begin(&self.identity);
        let version = if self.image.is_some() { IMAGE_VERSION } else { PORTABLE_VERSION };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        if let Some(image) = self.image {
            bytes[36..40].copy_from_slice(&image.bucket_format.to_le_bytes());
            bytes[88..92].copy_from_slice(&image.shards.to_le_bytes());
        }
        bytes[40..48].copy_from_slice(&self.start.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.created_ms.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.version.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.planned_clear.map_or(0, |at| at.0).to_le_bytes());
        if let Some(order) = self.order {
            bytes[72..80].copy_from_slice(&order.seed.to_le_bytes());
            bytes[80..88].copy_from_slice(&order.groups.to_le_bytes());
        }
        sealed(bytes)
    }

    /// Decodes a header. The error is a text that states the problem.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<CheckpointHeader, String> {
        let is_image = four(bytes, 8) == IMAGE_VERSION;
        let identity = FORMAT.check(bytes, if is_image { &[] } else { &[36, 88] })?;
        let image = ImageLayout { bucket_format: four(bytes, 36), shards: four(bytes, 88) };
        if is_image {
            expect_bucket_format(image.bucket_format).map_err(|error| error.to_string())?;
            if !image.shards.is_power_of_two() || eight(bytes, 80) == 0 {
                return Err("the header is not a valid one of an image".into());
            }
        }
        Ok(CheckpointHeader {
            identity,
            start: LogPosition(eight(bytes, 40)),
            created_ms: eight(bytes, 48),
            version: eight(bytes, 56),
            planned_clear: Some(eight(bytes, 64)).filter(|&at| at != 0).map(UnixSeconds),
            order: Some(ScanOrder { seed: eight(bytes, 72), groups: eight(bytes, 80) })
                .filter(|order| order.groups != 0),
            image: Some(image).filter(|_| is_image),
        })
    }

    /// Returns the CRC of the header. All later checksums start with it, so that parts of another
    /// checkpoint fail their check.
    pub(crate) fn crc(&self) -> [u8; 4] {
        self.encode()[92..].try_into().expect("four bytes")
    }
}

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Records = 1,
    Long = 2,
    Piece = 3,
    /// Buckets as they lie in the engine's memory, in an image only.
    Buckets = 4,
}

/// How the content of a block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockMethod {
    Plain = 0,
    Zstd = 1,
}

/// The frame of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockFrame {
    pub(crate) kind: BlockKind,
    pub(crate) method: BlockMethod,
    /// The length of the stored content that follows the frame.
    pub(crate) stored_len: u32,
    pub(crate) content_len: u32,
    pub(crate) records: u32,
}

impl BlockFrame {
    /// Encodes the frame. `seed` is the CRC of the header's CRC and the block's offset.
    pub(crate) fn encode(&self, seed: u32, stored: &[u8]) -> [u8; BLOCK_FRAME_LEN] {
        let mut bytes = [0; BLOCK_FRAME_LEN];
        (bytes[4], bytes[5]) = (self.kind as u8, self.method as u8);
        bytes[8..12].copy_from_slice(&self.stored_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.content_len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.records.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &bytes[4..]), stored);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a frame without checking its CRC. Returns `None` if no block has such a frame.
    pub(crate) fn decode(bytes: &[u8; BLOCK_FRAME_LEN]) -> Option<BlockFrame> {
        let kind = match bytes[4] {
            1 => BlockKind::Records,
            2 => BlockKind::Long,
            3 => BlockKind::Piece,
            4 => BlockKind::Buckets,
            _ => return None,
        };
        let method = match bytes[5] {
            0 => BlockMethod::Plain,
            1 => BlockMethod::Zstd,
            _ => return None,
        };
        let (stored_len, content_len, records) = (four(bytes, 8), four(bytes, 12), four(bytes, 16));
        // A block is stored in compressed form only if that is shorter.
        let is_sound = bytes[6..8] == [0, 0]
            && content_len as usize <= CONTENT_LEN_MAX
            && match method {
                BlockMethod::Plain => stored_len == content_len,
                BlockMethod::Zstd => stored_len < content_len,
            };
        is_sound.then_some(BlockFrame { kind, method, stored_len, content_len, records })
    }

    /// Returns true if the frame and the stored content are intact.
    pub(crate) fn is_intact(bytes: &[u8; BLOCK_FRAME_LEN], seed: u32, stored: &[u8]) -> bool {
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &bytes[4..]), stored);
        crc == four(bytes, 0)
    }
}

/// Returns the initial value of a block's CRC.
pub(crate) fn seed(header_crc: [u8; 4], offset: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header_crc), &offset.to_le_bytes())
}

/// The footer of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointFooter {
    pub(crate) blocks: u64,
    pub(crate) records: u64,
    /// The offset of the footer itself.
    pub(crate) offset: u64,
    /// The log was on disk up to this position when the checkpoint was written.
    pub(crate) until: LogPosition,
    /// The sum of the lengths of all blocks' contents.
    pub(crate) content_len: u64,
}

impl CheckpointFooter {
    pub(crate) fn encode(&self, header_crc: [u8; 4]) -> [u8; FOOTER_LEN] {
        let mut bytes = [0; FOOTER_LEN];
        bytes[..8].copy_from_slice(END_MAGIC);
        let numbers = [self.blocks, self.records, self.offset, self.until.0, self.content_len];
        for (number, into) in numbers.into_iter().zip(bytes[8..48].chunks_exact_mut(8)) {
            into.copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header_crc), &bytes[..52]);
        bytes[52..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a footer. Returns `None` unless it belongs to the checkpoint whose header has this
    /// CRC.
    pub(crate) fn decode(bytes: &[u8; FOOTER_LEN], header_crc: [u8; 4]) -> Option<CheckpointFooter> {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header_crc), &bytes[..52]);
        let is_intact = &bytes[..8] == END_MAGIC && four(bytes, 48) == 0 && crc == four(bytes, 52);
        is_intact.then(|| CheckpointFooter {
            blocks: eight(bytes, 8),
            records: eight(bytes, 16),
            offset: eight(bytes, 24),
            until: LogPosition(eight(bytes, 32)),
            content_len: eight(bytes, 40),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: CheckpointHeader = CheckpointHeader {
        identity: DatabaseIdentity { server_id: 7, database_id: *b"0123456789abcdef" },
        start: LogPosition(0x0102_0304),
        created_ms: 1_800_000_000_123,
        version: 99,
        planned_clear: Some(UnixSeconds(1_900_000_000)),
        order: Some(ScanOrder { seed: 5, groups: 6 }),
        image: None,
    };

    #[test]
    fn header_and_footer_detect_flipped_bits() {
        let image = Some(ImageLayout { bucket_format: 2, shards: 16 });
        for header in [HEADER, CheckpointHeader { image, ..HEADER }] {
            let bytes = header.encode();
            assert_eq!(CheckpointHeader::decode(&bytes), Ok(header));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes;
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(CheckpointHeader::decode(&damaged).is_err(), "bit {bit}");
            }
        }
        let footer =
            CheckpointFooter { blocks: 1, records: 2, offset: 3, until: LogPosition(4), content_len: 5 };
        let bytes = footer.encode(HEADER.crc());
        assert_eq!(CheckpointFooter::decode(&bytes, HEADER.crc()), Some(footer));
        assert_eq!(CheckpointFooter::decode(&bytes, [0; 4]), None);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(CheckpointFooter::decode(&damaged, HEADER.crc()), None, "bit {bit}");
        }
    }

    #[test]
    fn later_header_version_is_reported() {
        let changed = |header: CheckpointHeader, at: usize, byte: u8| {
            let mut bytes = header.encode();
            bytes[at] = byte;
            let crc = crc32c::crc32c(&bytes[..92]);
            bytes[92..].copy_from_slice(&crc.to_le_bytes());
            CheckpointHeader::decode(&bytes).unwrap_err()
        };
        assert_eq!(changed(HEADER, 8, 3), "format version 3; this program knows versions 1 to 2");
        let image = Some(ImageLayout { bucket_format: 2, shards: 16 });
        let image = CheckpointHeader { image, ..HEADER };
        assert_eq!(changed(image, 36, 1), "image of bucket format 1; this program knows format 2");
        assert_eq!(changed(image, 88, 17), "the header is not a valid one of an image");
        assert_eq!(changed(image, 80, 0), "the header is not a valid one of an image");
    }

    #[test]
    fn block_is_intact_only_at_its_offset() {
        let frame = BlockFrame {
            kind: BlockKind::Records,
            method: BlockMethod::Plain,
            stored_len: 3,
            content_len: 3,
            records: 1,
        };
        let bytes = frame.encode(seed(HEADER.crc(), 80), b"abc");
        assert_eq!(BlockFrame::decode(&bytes), Some(frame));
        assert!(BlockFrame::is_intact(&bytes, seed(HEADER.crc(), 80), b"abc"));
        assert!(!BlockFrame::is_intact(&bytes, seed(HEADER.crc(), 81), b"abc"));
        assert!(!BlockFrame::is_intact(&bytes, seed([0; 4], 80), b"abc"));
        assert!(!BlockFrame::is_intact(&bytes, seed(HEADER.crc(), 80), b"abd"));
    }
}
