//! Segments: the files of the log, with their names and headers (docs/format/update-log.md, section
//! 1).

use super::entry::LogPosition;
use crate::disk::Disk;
use crate::file_header::{HeaderFormat, eight, four, sealed};
use std::path::Path;

/// The identity of a database. All its files contain the identity, so that files of two databases
/// are never mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseIdentity {
    /// The ID of the server, which is the origin of the changes that its clients make. Never 0.
    pub server_id: u32,
    /// The ID of the database.
    pub database_id: [u8; 16],
}

impl DatabaseIdentity {
    /// Returns the initial value of the entries' checksums. It is computed from the database's ID,
    /// which clients do not know, so no client can store a value whose bytes look like a valid
    /// entry.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.database_id)
    }
}

pub(crate) const HEADER_LEN: usize = 64;
const FORMAT: HeaderFormat<HEADER_LEN> =
    HeaderFormat { magic: *b"TODANALG", version: 3, oldest: 1, what: "segment of an update log" };

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) identity: DatabaseIdentity,
    /// How many times the database had been opened when the segment was created.
    pub(crate) openings: u32,
    pub(crate) start: LogPosition,
    pub(crate) created_ms: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = FORMAT.begin(&self.identity);
        bytes[36..40].copy_from_slice(&self.openings.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.start.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.created_ms.to_le_bytes());
        sealed(bytes)
    }

    /// Decodes a header. The error is a text that states the problem.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<SegmentHeader, String> {
        let identity = FORMAT.check(bytes, &[56])?;
        let (openings, start) = (four(bytes, 36), LogPosition(eight(bytes, 40)));
        Ok(SegmentHeader { identity, openings, start, created_ms: eight(bytes, 48) })
    }
}

/// Returns the header of a segment that is not part of an open log.
pub(crate) fn segment_header(
    identity: DatabaseIdentity,
    start: LogPosition,
    created_ms: u64,
) -> [u8; HEADER_LEN] {
    SegmentHeader { identity, openings: 1, start, created_ms }.encode()
}

/// Returns the highest number of openings in the readable headers of a directory's segments.
pub(crate) fn openings_of(disk: &dyn Disk, directory: &Path) -> u32 {
    let names = disk.list(directory).unwrap_or_default();
    let segments = names.iter().filter(|name| start_of(name).is_some());
    let headers = segments.filter_map(|name| header_of(disk, &directory.join(name)));
    headers.map(|header| header.openings).max().unwrap_or_default()
}

/// Returns the time at which the segment that starts at `start` was created, or 0 if the time is
/// unknown.
pub(crate) fn created_ms(disk: &dyn Disk, directory: &Path, start: LogPosition) -> u64 {
    header_of(disk, &directory.join(name_of(start))).map_or(0, |header| header.created_ms)
}

fn header_of(disk: &dyn Disk, path: &Path) -> Option<SegmentHeader> {
    let mut bytes = [0; HEADER_LEN];
    let got = disk.open(path, false).ok()?.read_at(0, &mut bytes).ok()?;
    SegmentHeader::decode(&bytes).ok().filter(|_| got == HEADER_LEN)
}

/// Returns the name of the segment that starts at `start`.
pub(crate) fn name_of(start: LogPosition) -> String {
    format!("{:020}.log", start.0)
}

/// Returns the position at which the segment with this name starts, or `None` if the name is not
/// that of a segment.
pub(crate) fn start_of(name: &str) -> Option<LogPosition> {
    position_of(name, ".log")
}

/// Returns the position in the name of a file with this suffix.
pub(crate) fn position_of(name: &str, suffix: &str) -> Option<LogPosition> {
    let digits = name.strip_suffix(suffix)?;
    let is_position = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_position.then(|| digits.parse().ok().map(LogPosition)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader {
        identity: DatabaseIdentity { server_id: 7, database_id: *b"0123456789abcdef" },
        openings: 3,
        start: LogPosition(0x0102_0304),
        created_ms: 1_800_000_000_123,
    };

    #[test]
    fn segment_header_round_trips_and_detects_flipped_bits() {
        let bytes = HEADER.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(HEADER));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn segment_header_has_the_documented_layout() {
        let bytes = HEADER.encode();
        assert_eq!(&bytes[..16], b"TODANALG\x03\0\0\0\x40\0\0\0");
        assert_eq!(&bytes[16..40], b"0123456789abcdef\x07\0\0\0\x03\0\0\0");
        assert_eq!(&bytes[40..48], b"\x04\x03\x02\x01\0\0\0\0");
        assert_eq!(bytes[48..56], 1_800_000_000_123u64.to_le_bytes());
        assert_eq!(&bytes[56..60], b"\0\0\0\0");
    }

    #[test]
    fn only_names_of_twenty_digits_are_segments() {
        assert_eq!(name_of(LogPosition(42)), "00000000000000000042.log");
        assert_eq!(start_of("00000000000000000042.log"), Some(LogPosition(42)));
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
