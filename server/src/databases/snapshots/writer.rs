//! Records to a file.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::{self, Write};
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::compression::SNAPSHOT_DEFLATE;
use todana_protocol::kyoto::snapshot::{CHUNK_LEN, SnapshotHead, put_chunk, put_record};

/// How the records of a snapshot are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// They are not.
    #[default]
    None,
    /// By zlib, in chunks.
    Zlib,
}

/// Level of the original's; its reader takes any.
const LEVEL: u32 = 6;

/// Writes a snapshot. Holds about a megabyte of records, and the longest one.
pub struct SnapshotWriter<W> {
    out: W,
    packing: Packing,
    gathered: Vec<u8>,
    packed: Vec<u8>,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins one; what stands as `check` in the head is chosen here.
    pub fn begin(mut out: W, head: SnapshotHead, packing: Packing) -> io::Result<SnapshotWriter<W>> {
        let check = match packing {
            Packing::None => 0,
            Packing::Zlib => SNAPSHOT_DEFLATE,
        };
        out.write_all(&SnapshotHead { check, ..head }.to_bytes())?;
        Ok(SnapshotWriter { out, packing, gathered: Vec::new(), packed: Vec::new() })
    }

    /// Gathers a record: nothing is written, so it may be called where nothing may wait.
    pub fn put(&mut self, key: &[u8], stored: &StoredValue<'_>) {
        put_record(key, stored, &mut self.gathered);
    }

    /// Enough is gathered to be written.
    pub fn is_due(&self) -> bool {
        self.gathered.len() >= CHUNK_LEN
    }

    /// Writes what is gathered.
    pub fn write(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        match self.packing {
            Packing::None => self.out.write_all(&self.gathered)?,
            Packing::Zlib => {
                self.packed.clear();
                let mut encoder = DeflateEncoder::new(&mut self.packed, Compression::new(LEVEL));
                encoder.write_all(&self.gathered)?;
                encoder.finish()?;
                // The original's packer leaves it there, and its reader takes it off.
                self.packed.push(0);
                let mut chunk = Vec::with_capacity(4 + self.packed.len());
                put_chunk(&self.packed, &mut chunk);
                self.out.write_all(&chunk)?;
            }
        }
        self.gathered.clear();
        // A long value must not be paid for by all that follow.
        self.gathered.shrink_to(2 * CHUNK_LEN);
        self.packed.shrink_to(2 * CHUNK_LEN);
        Ok(())
    }

    /// Writes the rest and returns what was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.write()?;
        self.out.flush()?;
        Ok(self.out)
    }
}
