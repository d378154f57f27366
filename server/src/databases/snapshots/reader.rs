//! Reads the records of a snapshot file.

use super::decompression::decompressed;
use std::fmt;
use std::io::{self, Read};
use todana::kyoto::UnreadBytes;
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::compression::Compression;
use todana_protocol::kyoto::snapshot::{SnapshotHead, SnapshotReader, SnapshotStep};

/// The reason why a snapshot cannot be read completely.
#[derive(Debug)]
pub enum SnapshotError {
    /// The file cannot be read.
    Unreadable(io::Error),
    /// The file is damaged.
    Damaged {
        /// The offset of the damage. In a compressed file, it is the offset of the compressed
        /// chunk.
        offset: u64,
        /// Description of the damage.
        what: String,
    },
    /// The file is compressed in a way that is not supported.
    Foreign,
    /// The receiver of the records cancelled the read.
    Ended(String),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Unreadable(error) => write!(f, "cannot be read: {error}"),
            SnapshotError::Damaged { offset, what } => write!(f, "damaged at offset {offset}: {what}"),
            SnapshotError::Foreign => f.write_str(
                "unsupported compression; plain files and those of zlib, lzo and lzma can be read",
            ),
            SnapshotError::Ended(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for SnapshotError {}

/// Receives the keys of records, and their values as they were stored.
pub(super) type RecordReceiver<'s> = dyn FnMut(&[u8], &StoredValue<'_>) -> Result<(), String> + 's;

/// Passes the header to `begin`, and then each record to `see`, with its value as it was stored.
/// Unless the database is persistent, an expiry time precedes each stored value. Allocates memory
/// for the longest record, and for a compressed chunk, which usually has a megabyte. An error of
/// `see` ends the reading.
pub fn read_snapshot(
    input: impl Read,
    begin: &mut dyn FnMut(SnapshotHead) -> Result<(), String>,
    see: &mut RecordReceiver<'_>,
) -> Result<(), SnapshotError> {
    let mut reader = SnapshotReader::default();
    let mut source = UnreadBytes::new(input);
    let mut compression = None;
    loop {
        let at = reader.offset();
        match reader.decode(source.unread()) {
            SnapshotStep::Head { consumed, head } => {
                compression = Compression::of_snapshot(head.check);
                if head.check != 0 && compression.is_none() {
                    return Err(SnapshotError::Foreign);
                }
                begin(head).map_err(SnapshotError::Ended)?;
                source.consume(consumed);
            }
            SnapshotStep::Record { consumed, key, stored } => {
                see(key, &stored).map_err(SnapshotError::Ended)?;
                source.consume(consumed);
            }
            SnapshotStep::Chunk { consumed, packed } => {
                let compression = compression.expect("only a compressed file has chunks");
                read_chunk(compression, packed, at, see)?;
                source.consume(consumed);
            }
            SnapshotStep::NeedMore { at_least } => {
                if source.read_more(at_least).map_err(SnapshotError::Unreadable)? > 0 {
                    continue;
                }
                if reader.may_end(source.unread()) {
                    return Ok(());
                }
                return Err(SnapshotError::Damaged { offset: at, what: "the file is truncated".into() });
            }
            SnapshotStep::Damaged { offset, what } => {
                return Err(SnapshotError::Damaged { offset, what: what.into() });
            }
        }
    }
}

/// Reads the records of a compressed chunk piece by piece. The length that the chunk states
/// reserves no memory.
fn read_chunk(
    compression: Compression,
    packed: &[u8],
    offset: u64,
    see: &mut RecordReceiver<'_>,
) -> Result<(), SnapshotError> {
    let damaged = |what: String| SnapshotError::Damaged { offset, what };
    let mut reader = SnapshotReader::of_chunk();
    let mut source = UnreadBytes::new(decompressed(compression, packed));
    loop {
        match reader.decode(source.unread()) {
            SnapshotStep::Record { consumed, key, stored } => {
                see(key, &stored).map_err(SnapshotError::Ended)?;
                source.consume(consumed);
            }
            SnapshotStep::NeedMore { at_least } => {
                let more = source.read_more(at_least);
                if more.map_err(|error| damaged(format!("a chunk cannot be decompressed: {error}")))? > 0 {
                    continue;
                }
                if reader.may_end(source.unread()) {
                    return Ok(());
                }
                return Err(damaged("a chunk is truncated".into()));
            }
            SnapshotStep::Damaged { what, .. } => return Err(damaged(format!("in a chunk: {what}"))),
            // These steps cannot occur, because a chunk contains only records.
            SnapshotStep::Head { .. } | SnapshotStep::Chunk { .. } => {
                return Err(damaged("a chunk does not consist of records".into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::snapshots::{SnapshotCompression, SnapshotWriter};

    fn written(packing: SnapshotCompression, records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let head = SnapshotHead { timestamp: 7, count: records.len() as u64, ..SnapshotHead::default() };
        let mut writer = SnapshotWriter::begin(Vec::new(), head, packing).unwrap();
        for (key, value) in records {
            writer.put(key, &StoredValue::with_expiry(2_000_000_000, value));
            if writer.is_due() {
                writer.write().unwrap();
            }
        }
        writer.finish().unwrap()
    }

    /// A key, its time and its value.
    type TimedRecord = (Vec<u8>, u64, Vec<u8>);

    /// Returns the time stamp and the records with their times. Checks that reading byte by byte
    /// gives the same.
    fn found(bytes: &[u8]) -> Result<(u64, Vec<TimedRecord>), String> {
        let (mut timestamp, mut records) = (0, Vec::new());
        let mut begin = |head: SnapshotHead| {
            timestamp = head.timestamp;
            Ok(())
        };
        let mut see = |key: &[u8], stored: &StoredValue<'_>| {
            let (time, value) = stored.split().ok_or("short")?;
            records.push((key.to_vec(), time, value.to_vec()));
            Ok(())
        };
        read_snapshot(bytes, &mut begin, &mut see).map_err(|error| error.to_string())?;
        Ok((timestamp, records))
    }

    #[test]
    fn records_round_trip_uncompressed_and_compressed() {
        let mut records: Vec<_> =
            (0..3000u32).map(|n| (n.to_string().into_bytes(), vec![n as u8; n as usize % 1500])).collect();
        records.push((Vec::new(), vec![9; 3 << 20]));
        let expected: Vec<_> =
            records.iter().map(|(key, value)| (key.clone(), 2_000_000_000, value.clone())).collect();
        for packing in [SnapshotCompression::None, SnapshotCompression::Zlib] {
            let bytes = written(packing, &records);
            assert_eq!(found(&bytes), Ok((7, expected.clone())), "{packing:?}");
            assert_eq!(bytes.len() > 4 << 20, packing == SnapshotCompression::None);
        }
    }

    #[test]
    fn snapshot_of_the_original_is_read() {
        // This file was written by Kyoto Tycoon. It contains japan=tokyo without an expiry, and
        // k2=v with the expiry 2000000000.
        let hex = "4b5453530a008745451018e9d47f1596e90000000000000000020000000000002ff80000001e\
            3bc3ca9595589098f71f044af2b32bf3cf30b1651b31949b4e6128030000";
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
        let never = todana::kyoto::NEVER;
        let expected = vec![
            (b"japan".to_vec(), never, b"tokyo".to_vec()),
            (b"k2".to_vec(), 2_000_000_000, b"v".to_vec()),
        ];
        assert_eq!(found(&bytes), Ok((0x18e9_d47f_1596_e900, expected)));
    }

    #[test]
    fn damage_is_reported_with_its_offset() {
        let record = [(b"key".to_vec(), b"value".to_vec())];
        let plain = written(SnapshotCompression::None, &record);
        for len in 0..plain.len() {
            // A file that ends after its header is valid, but has no records.
            assert_eq!(found(&plain[..len]).is_ok(), len == 34, "{len}");
        }
        let mut wrong = plain.clone();
        wrong[34] = 0;
        assert!(found(&wrong).unwrap_err().contains("offset 34: no record begins here"));
        wrong[6..10].copy_from_slice(&[1, 2, 3, 4]);
        assert!(found(&wrong).unwrap_err().contains("unsupported compression"));
        let packed = written(SnapshotCompression::Zlib, &record);
        for len in 35..packed.len() {
            assert!(found(&packed[..len]).unwrap_err().contains("damaged at offset 34"), "{len}");
        }
        let mut wrong = packed;
        let end = wrong.len();
        wrong[38..end].fill(0xff);
        assert!(found(&wrong).unwrap_err().contains("offset 34"));
    }
}
