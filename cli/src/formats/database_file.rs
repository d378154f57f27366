//! Reads database files of Kyoto Cabinet: hash (`.kch`) and tree (`.kct`).
//!
//! Records are passed on in the order of the file. Memory is needed for one decompressed value at a
//! time, up to one gigabyte.

use super::record_reader::RecordReader;
use crate::CommandFailure;
use std::io::Read;
use todana::kyoto::UnreadBytes;
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::compression::Compression;
use todana_protocol::kyoto::database_file::{
    DatabaseFileKind, DatabaseReader, DatabaseStep, is_leaf, leaf_records,
};
use todana_server::decompressed;

/// The longest accepted value, in bytes.
const VALUE_LEN_MAX: u64 = 1 << 30;

/// The reason why some records of a leaf could not be read.
enum LeafFailure {
    Damaged(&'static str),
    Failed(CommandFailure),
}

impl From<&'static str> for LeafFailure {
    fn from(what: &'static str) -> Self {
        LeafFailure::Damaged(what)
    }
}

impl RecordReader<'_, '_> {
    /// Passes on the records of a database file.
    pub(super) fn database_file<R: Read>(
        &mut self,
        mut window: UnreadBytes<R>,
    ) -> Result<(), CommandFailure> {
        let mut reader = DatabaseReader::default();
        let (mut kind, mut compression) = (DatabaseFileKind::Hash, None);
        let mut buffer = Vec::new();
        loop {
            let at = reader.offset();
            match reader.decode(window.unread()) {
                DatabaseStep::Head { consumed, head } => {
                    (kind, compression) = (head.kind, head.compression);
                    if !head.is_closed {
                        eprintln!(
                            "todana: {}: the database is open or was not closed; changes not yet written to the file are missing",
                            self.file.display()
                        );
                    }
                    window.consume(consumed);
                }
                DatabaseStep::Passed { consumed } => window.consume(consumed),
                DatabaseStep::Record { consumed, key, value } => {
                    if kind == DatabaseFileKind::Hash || is_leaf(key) {
                        let value = self.decompress(compression, value, at, &mut buffer)?;
                        match kind {
                            DatabaseFileKind::Hash => {
                                self.put(&format_args!("byte {at}"), key, &StoredValue::raw(value))?;
                            }
                            DatabaseFileKind::Tree => self.leaf(value, at)?,
                        }
                    }
                    window.consume(consumed);
                }
                DatabaseStep::NeedMore { at_least } => {
                    if window.read_more(at_least).map_err(|error| self.io(error))? == 0 {
                        return Err(self.cut(at));
                    }
                }
                DatabaseStep::End => return Ok(()),
                DatabaseStep::Damaged { offset, what } => return Err(self.at_byte(offset, &what)),
            }
        }
    }

    /// Returns a value without its compression.
    fn decompress<'v>(
        &self,
        compression: Option<Compression>,
        value: &'v [u8],
        at: u64,
        buffer: &'v mut Vec<u8>,
    ) -> Result<&'v [u8], CommandFailure> {
        let Some(compression) = compression else { return Ok(value) };
        buffer.clear();
        let outcome = decompressed(compression, value).take(VALUE_LEN_MAX + 1).read_to_end(buffer);
        match outcome {
            Ok(len) if len as u64 > VALUE_LEN_MAX => Err(self.at_byte(at, &"a value is longer than 1 GiB")),
            Ok(_) => Ok(buffer),
            Err(error) => Err(self.at_byte(at, &format_args!("a value cannot be decompressed: {error}"))),
        }
    }

    fn leaf(&mut self, leaf: &[u8], at: u64) -> Result<(), CommandFailure> {
        let mut see = |key: &[u8], value: &[u8]| {
            self.put(&format_args!("leaf at byte {at}"), key, &StoredValue::raw(value))
                .map_err(LeafFailure::Failed)
        };
        leaf_records(leaf, &mut see).map_err(|failure| match failure {
            LeafFailure::Damaged(what) => self.at_byte(at, &what),
            LeafFailure::Failed(failure) => failure,
        })
    }
}
