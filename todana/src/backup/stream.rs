//! The format of a backup's stream: a header and pieces (docs/format/backup.md, section 3).

use crate::file_header::{HeaderFormat, eight, sealed};
use crate::update_log::{DatabaseIdentity, LogPosition};

pub(super) const HEADER_LEN: usize = 64;
pub(super) const FRAME_LEN: usize = 12;
/// The longest content of a piece.
pub(super) const CONTENT_LEN_MAX: usize = 1 << 20;

const FORMAT: HeaderFormat<HEADER_LEN> =
    HeaderFormat { magic: *b"TODANABS", version: 1, oldest: 1, what: "backup" };

/// The header of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamHeader {
    pub(super) identity: DatabaseIdentity,
    pub(super) start: LogPosition,
    /// The number of bytes of files that will probably follow.
    pub(super) likely: u64,
}

/// The kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    File = 1,
    Bytes = 2,
    End = 3,
}

impl StreamHeader {
    /// Encodes the header. The CRC in its last four bytes is the initial value of the first piece's
    /// CRC.
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = FORMAT.begin(&self.identity);
        bytes[40..48].copy_from_slice(&self.start.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.likely.to_le_bytes());
        sealed(bytes)
    }

    /// Decodes a header. The error is a text that states the problem.
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<StreamHeader, String> {
        let identity = FORMAT.check(bytes, &[36, 56])?;
        Ok(StreamHeader { identity, start: LogPosition(eight(bytes, 40)), likely: eight(bytes, 48) })
    }
}

/// Appends a piece. `crc` is the CRC of the previous piece, and is set to the CRC of the new piece.
pub(super) fn put(kind: PieceKind, content: &[u8], crc: &mut u32, out: &mut Vec<u8>) {
    debug_assert!(content.len() <= CONTENT_LEN_MAX);
    let mut frame = [0; FRAME_LEN];
    frame[4] = kind as u8;
    frame[8..].copy_from_slice(&(content.len() as u32).to_le_bytes());
    *crc = crc_of(*crc, &frame, content);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&frame);
    out.extend_from_slice(content);
}

/// Returns the kind and length of a piece, or `None` if no piece has such a frame. The CRC is not
/// checked here.
pub(super) fn frame(bytes: &[u8; FRAME_LEN]) -> Option<(PieceKind, usize)> {
    let kind = match bytes[4] {
        1 => PieceKind::File,
        2 => PieceKind::Bytes,
        3 => PieceKind::End,
        _ => return None,
    };
    let len = u32::from_le_bytes(bytes[8..].try_into().expect("four bytes")) as usize;
    (bytes[5..8] == [0; 3] && len <= CONTENT_LEN_MAX).then_some((kind, len))
}

/// Returns the correct CRC of a piece; `before` is the CRC of the previous piece.
pub(super) fn crc_of(before: u32, frame: &[u8; FRAME_LEN], content: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&before.to_le_bytes()), &frame[4..]);
    crc32c::crc32c_append(crc, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_format_page() {
        let identity = DatabaseIdentity { server_id: 7, database_id: *b"0123456789abcdef" };
        let header = StreamHeader { identity, start: LogPosition(2), likely: 3 };
        let bytes = header.encode();
        assert_eq!(&bytes[..16], b"TODANABS\x01\0\0\0\x40\0\0\0");
        assert_eq!(&bytes[16..40], b"0123456789abcdef\x07\0\0\0\0\0\0\0");
        assert_eq!(&bytes[40..60], b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(StreamHeader::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(StreamHeader::decode(&damaged).is_err(), "bit {bit}");
        }
        let (mut crc, mut out) = (5, Vec::new());
        put(PieceKind::Bytes, b"abc", &mut crc, &mut out);
        assert_eq!(&out[4..], b"\x02\0\0\0\x03\0\0\0abc");
        assert_eq!(crc.to_le_bytes(), out[..4]);
        assert_eq!(crc, crc32c::crc32c(b"\x05\0\0\0\x02\0\0\0\x03\0\0\0abc"));
        assert_eq!(frame(out.first_chunk().unwrap()), Some((PieceKind::Bytes, 3)));
    }
}
