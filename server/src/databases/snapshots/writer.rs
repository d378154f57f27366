//! Writes records to a snapshot file.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::{self, Write};
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::compression::SNAPSHOT_DEFLATE;
use todana_protocol::kyoto::snapshot::{CHUNK_LEN, SnapshotHead, put_chunk, put_record};

/// The compression of the records of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotCompression {
    /// No compression.
    #[default]
    None,
    /// The records are compressed by zlib, in chunks.
    Zlib,
}

/// The compression level of the original. Its reader accepts any level.
const LEVEL: u32 = 6;

/// Writes a snapshot. It buffers about a megabyte of records, or the longest record if that is
/// longer.
pub struct SnapshotWriter<W> {
    out: W,
    packing: SnapshotCompression,
    gathered: Vec<u8>,
    packed: Vec<u8>,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins a snapshot, and chooses the value of the field `check` in its header.
    pub fn begin(
        mut out: W,
        head: SnapshotHead,
        packing: SnapshotCompression,
    ) -> io::Result<SnapshotWriter<W>> {
        let check = match packing {
            SnapshotCompression::None => 0,
            SnapshotCompression::Zlib => SNAPSHOT_DEFLATE,
        };
        out.write_all(&SnapshotHead { check, ..head }.to_bytes())?;
        Ok(SnapshotWriter { out, packing, gathered: Vec::new(), packed: Vec::new() })
    }

    /// Buffers a record. Does not write to the file, so it may be called under a lock.
    pub fn put(&mut self, key: &[u8], stored: &StoredValue<'_>) {
        put_record(key, stored, &mut self.gathered);
    }

    /// Returns true if the buffered records should be written.
    pub fn is_due(&self) -> bool {
        self.gathered.len() >= CHUNK_LEN
    }

    /// Writes the buffered records.
    pub fn write(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        match self.packing {
            SnapshotCompression::None => self.out.write_all(&self.gathered)?,
            SnapshotCompression::Zlib => {
                self.packed.clear();
                let mut encoder = DeflateEncoder::new(&mut self.packed, Compression::new(LEVEL));
                encoder.write_all(&self.gathered)?;
                encoder.finish()?;
                // The original's compressor appends this byte, and its reader removes it.
                self.packed.push(0);
                let mut chunk = Vec::with_capacity(4 + self.packed.len());
                put_chunk(&self.packed, &mut chunk);
                self.out.write_all(&chunk)?;
            }
        }
        self.gathered.clear();
        // The memory of a long value is freed, so that the buffer does not stay large.
        self.gathered.shrink_to(2 * CHUNK_LEN);
        self.packed.shrink_to(2 * CHUNK_LEN);
        Ok(())
    }

    /// Writes the buffered records and the end, and returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.write()?;
        self.out.flush()?;
        Ok(self.out)
    }
}
