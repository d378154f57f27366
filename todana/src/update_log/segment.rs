//! Segments: the files of the log, their names and headers (docs/format/update-log.md, section 1).

use super::entry::Position;
use crate::disk::Disk;
use crate::file_header::{Format, eight, four, sealed};
use std::path::Path;

/// Who a database is; its files name it, so that files of two databases are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The server: the origin of what is written here. Not 0.
    pub server_id: u32,
    /// The database.
    pub database_id: [u8; 16],
}

impl Identity {
    /// Where the checksums of entries begin. No client knows the database's id, so none can store a value that holds an entry which
    /// passes for one.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.database_id)
    }
}

pub(crate) const HEADER_LEN: usize = 64;
const FORMAT: Format<HEADER_LEN> =
    Format { magic: *b"TODANALG", version: 2, oldest: 1, what: "segment of an update log" };

/// What stands at the beginning of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) identity: Identity,
    /// How often the database had been opened.
    pub(crate) openings: u32,
    pub(crate) start: Position,
    pub(crate) made_ms: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = FORMAT.begin(&self.identity);
        bytes[36..40].copy_from_slice(&self.openings.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.start.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.made_ms.to_le_bytes());
        sealed(bytes)
    }

    /// Says what is wrong with it otherwise.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, String> {
        let identity = FORMAT.check(bytes, &[56])?;
        let (openings, start) = (four(bytes, 36), Position(eight(bytes, 40)));
        Ok(Header { identity, openings, start, made_ms: eight(bytes, 48) })
    }
}

/// How often the database had been opened by the time of any segment of a directory, as far as their headers can be read.
pub(crate) fn openings_of(disk: &dyn Disk, directory: &Path) -> u32 {
    let names = disk.list(directory).unwrap_or_default();
    let segments = names.iter().filter(|name| start_of(name).is_some());
    let headers = segments.filter_map(|name| header_of(disk, &directory.join(name)));
    headers.map(|header| header.openings).max().unwrap_or_default()
}

/// When the segment that begins there was made; 0 if that cannot be told.
pub(crate) fn made_ms(disk: &dyn Disk, directory: &Path, start: Position) -> u64 {
    header_of(disk, &directory.join(name_of(start))).map_or(0, |header| header.made_ms)
}

fn header_of(disk: &dyn Disk, path: &Path) -> Option<Header> {
    let mut bytes = [0; HEADER_LEN];
    let got = disk.open(path, false).ok()?.read_at(0, &mut bytes).ok()?;
    Header::decode(&bytes).ok().filter(|_| got == HEADER_LEN)
}

/// The name of the segment that begins there.
pub(crate) fn name_of(start: Position) -> String {
    format!("{:020}.log", start.0)
}

/// Where the segment of this name begins; `None` for a file that is no segment.
pub(crate) fn start_of(name: &str) -> Option<Position> {
    position_of(name, ".log")
}

/// The position that a file of this suffix is named by.
pub(crate) fn position_of(name: &str, suffix: &str) -> Option<Position> {
    let digits = name.strip_suffix(suffix)?;
    let is_position = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_position.then(|| digits.parse().ok().map(Position)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        identity: Identity { server_id: 7, database_id: *b"0123456789abcdef" },
        openings: 3,
        start: Position(0x0102_0304),
        made_ms: 1_800_000_000_123,
    };

    #[test]
    fn a_header_comes_back_and_no_flipped_bit_goes_unseen() {
        let bytes = HEADER.encode();
        assert_eq!(Header::decode(&bytes), Ok(HEADER));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_header_lies_as_the_format_page_says() {
        let bytes = HEADER.encode();
        assert_eq!(&bytes[..16], b"TODANALG\x02\0\0\0\x40\0\0\0");
        assert_eq!(&bytes[16..40], b"0123456789abcdef\x07\0\0\0\x03\0\0\0");
        assert_eq!(&bytes[40..48], b"\x04\x03\x02\x01\0\0\0\0");
        assert_eq!(bytes[48..56], 1_800_000_000_123u64.to_le_bytes());
        assert_eq!(&bytes[56..60], b"\0\0\0\0");
    }

    #[test]
    fn only_names_of_twenty_digits_are_segments() {
        assert_eq!(name_of(Position(42)), "00000000000000000042.log");
        assert_eq!(start_of("00000000000000000042.log"), Some(Position(42)));
        for name in [
            "42.log",
            "00000000000000000042.log.partial",
            "+0000000000000000042.log",
            "99999999999999999999.log",
        ] {
            assert_eq!(start_of(name), None, "{name}");
        }
    }
}
