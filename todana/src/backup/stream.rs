//! The stream's format: header and pieces (docs/format/backup.md, section 3).

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
pub(super) struct Header {
    pub(super) identity: DatabaseIdentity,
    pub(super) start: LogPosition,
    /// Bytes of files that are likely to follow.
    pub(super) likely: u64,
}

/// The kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File = 1,
    Bytes = 2,
    End = 3,
}

impl Header {
    /// The CRC in its last four bytes is the initial value for the first piece.
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = FORMAT.begin(&self.identity);
        bytes[40..48].copy_from_slice(&self.start.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.likely.to_le_bytes());
        sealed(bytes)
    }

    /// Decodes a header; the error is the reason of a refusal.
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, String> {
        let identity = FORMAT.check(bytes, &[36, 56])?;
        Ok(Header { identity, start: LogPosition(eight(bytes, 40)), likely: eight(bytes, 48) })
    }
}

/// Appends a piece. `crc` is the CRC of the previous piece, and becomes that of this one.
pub(super) fn put(kind: Kind, content: &[u8], crc: &mut u32, out: &mut Vec<u8>) {
    debug_assert!(content.len() <= CONTENT_LEN_MAX);
    let mut frame = [0; FRAME_LEN];
    frame[4] = kind as u8;
    frame[8..].copy_from_slice(&(content.len() as u32).to_le_bytes());
    *crc = crc_of(*crc, &frame, content);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&frame);
    out.extend_from_slice(content);
}

/// Returns the kind and length of a piece, before its CRC is checked. `None` if it cannot be a
/// piece.
pub(super) fn frame(bytes: &[u8; FRAME_LEN]) -> Option<(Kind, usize)> {
    let kind = match bytes[4] {
        1 => Kind::File,
        2 => Kind::Bytes,
        3 => Kind::End,
        _ => return None,
    };
    let len = u32::from_le_bytes(bytes[8..].try_into().expect("four bytes")) as usize;
    (bytes[5..8] == [0; 3] && len <= CONTENT_LEN_MAX).then_some((kind, len))
}

/// Returns the CRC that a piece must have.
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
        let header = Header { identity, start: LogPosition(2), likely: 3 };
        let bytes = header.encode();
        assert_eq!(&bytes[..16], b"TODANABS\x01\0\0\0\x40\0\0\0");
        assert_eq!(&bytes[16..40], b"0123456789abcdef\x07\0\0\0\0\0\0\0");
        assert_eq!(&bytes[40..60], b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(Header::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged).is_err(), "bit {bit}");
        }
        let (mut crc, mut out) = (5, Vec::new());
        put(Kind::Bytes, b"abc", &mut crc, &mut out);
        assert_eq!(&out[4..], b"\x02\0\0\0\x03\0\0\0abc");
        assert_eq!(crc.to_le_bytes(), out[..4]);
        assert_eq!(crc, crc32c::crc32c(b"\x05\0\0\0\x02\0\0\0\x03\0\0\0abc"));
        assert_eq!(frame(out.first_chunk().unwrap()), Some((Kind::Bytes, 3)));
    }
}
