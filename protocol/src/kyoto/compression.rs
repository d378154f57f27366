//! Names the compressors of Kyoto Cabinet and Kyoto Tycoon for records and chunks. The caller
//! compresses and decompresses.
//!
//! A file identifies its compressor by the checksum of a fixed text that was compressed by it. A
//! database file contains eight bits of the checksum, and a snapshot contains 32 bits.

/// A compressor of Kyoto Cabinet or Kyoto Tycoon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Raw deflate (`zcomp=zlib`, the default).
    Deflate,
    /// Deflate with zlib's head and checksum (`zcomp=def`).
    Zlib,
    /// Deflate with gzip's head and checksum (`zcomp=gz`).
    Gzip,
    /// LZO1X (`zcomp=lzo`).
    Lzo,
    /// An .xz stream (`zcomp=lzma`).
    Lzma,
}

/// The identification of a database file without compression.
pub const UNCOMPRESSED: u8 = 0xBC;

const OF_DATABASES: [(u8, Compression); 5] = [
    (0xB4, Compression::Deflate),
    (0xEC, Compression::Zlib),
    (0x05, Compression::Gzip),
    (0x78, Compression::Lzo),
    (0x13, Compression::Lzma),
];

/// The `check` of snapshots whose chunks are compressed by raw deflate of level 6. In such a
/// snapshot, a NUL after the compressed data belongs to the chunk.
pub const SNAPSHOT_DEFLATE: u32 = 0x8745_4510;

const OF_SNAPSHOTS: [(u32, Compression); 3] = [
    (SNAPSHOT_DEFLATE, Compression::Deflate),
    (0xD786_54F1, Compression::Lzo),
    (0x7C16_79EC, Compression::Lzma),
];

impl Compression {
    /// Returns the compressor of a database file, or `None` for an unknown number, such as that of
    /// a cipher.
    pub fn of_database(check: u8) -> Option<Compression> {
        OF_DATABASES.iter().find(|(known, _)| *known == check).map(|(_, compression)| *compression)
    }

    /// Returns the compressor of a snapshot, or `None` for an unknown number.
    pub fn of_snapshot(check: u32) -> Option<Compression> {
        OF_SNAPSHOTS.iter().find(|(known, _)| *known == check).map(|(_, compression)| *compression)
    }
}
