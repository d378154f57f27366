//! Reads and writes dumps of Kyoto Cabinet (`.kcss`), whose bytes `todana_protocol::kyoto::dump`
//! defines.
//!
//! Invariant: at any time, memory holds one piece of the file and the longest record of that piece.

use super::UnreadBytes;
use std::fmt;
use std::io::{self, Read, Write};
use todana_core::{Error, ErrorKind};
use todana_protocol::kyoto::StoredValue;
use todana_protocol::kyoto::dump::{self, DumpReader, DumpStep};

/// The number of bytes that are collected before they are written.
const PENDING_MAX: usize = 64 << 10;

/// Writes a dump, record by record.
pub struct DumpWriter<W> {
    out: W,
    pending: Vec<u8>,
}

impl<W: Write> DumpWriter<W> {
    /// Starts a dump.
    pub fn begin(out: W) -> DumpWriter<W> {
        let mut pending = Vec::new();
        dump::put_head(&mut pending);
        DumpWriter { out, pending }
    }

    /// Writes a record.
    pub fn put(&mut self, key: &[u8], stored: &StoredValue<'_>) -> io::Result<()> {
        dump::put_record(key, stored, &mut self.pending);
        if self.pending.len() < PENDING_MAX {
            return Ok(());
        }
        self.out.write_all(&self.pending)?;
        self.pending.clear();
        // The memory of a long value is freed here, not only at the end.
        self.pending.shrink_to(2 * PENDING_MAX);
        Ok(())
    }

    /// Writes the end of the dump and returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        dump::put_end(&mut self.pending);
        self.out.write_all(&self.pending)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The reason why a dump was not read to its end. `E` is the error of the function that receives
/// the records.
#[derive(Debug)]
pub enum DumpFailure<E> {
    /// The file cannot be read.
    Unreadable(io::Error),
    /// The file ends within the record that begins at this byte.
    Cut {
        /// The offset from the start of the file.
        offset: u64,
    },
    /// The file is damaged at this byte, or is not a dump.
    Damaged {
        /// The offset from the start of the file.
        offset: u64,
        /// Description of the damage.
        what: &'static str,
    },
    /// The record at this byte is longer than the limit.
    TooLong {
        /// The offset from the start of the file.
        offset: u64,
    },
    /// The function that receives the records returned this error.
    Stopped(E),
}

impl<E: fmt::Display> fmt::Display for DumpFailure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpFailure::Unreadable(error) => write!(f, "cannot read it: {error}"),
            DumpFailure::Cut { offset } => {
                write!(f, "byte {offset}: the file ends within the record that begins here")
            }
            DumpFailure::Damaged { offset, what } => write!(f, "byte {offset}: {what}"),
            DumpFailure::TooLong { offset } => write!(f, "byte {offset}: a record is too long"),
            DumpFailure::Stopped(why) => why.fmt(f),
        }
    }
}

impl From<DumpFailure<Error>> for Error {
    fn from(failure: DumpFailure<Error>) -> Error {
        let kind = match failure {
            DumpFailure::Stopped(error) => return error,
            DumpFailure::Unreadable(_) => ErrorKind::Unavailable,
            DumpFailure::Cut { .. } | DumpFailure::Damaged { .. } => ErrorKind::Corrupt,
            DumpFailure::TooLong { .. } => ErrorKind::Full,
        };
        Error::new(kind, format!("snapshot: {failure}"))
    }
}

/// Receives the records of a dump: the offset of the record, its key, and its value as stored.
pub type SeeDumped<'s, E> = dyn FnMut(u64, &[u8], &StoredValue<'_>) -> Result<(), E> + 's;

/// Calls `see` for each record of a dump. Returns the number of bytes that were read after the end
/// of the dump. If a record states a length above `record_len_max`, it is refused before memory is
/// allocated for it.
pub fn read_dump<E>(
    input: impl Read,
    record_len_max: usize,
    see: &mut SeeDumped<'_, E>,
) -> Result<u64, DumpFailure<E>> {
    let (mut reader, mut source) = (DumpReader::default(), UnreadBytes::new(input));
    loop {
        let offset = reader.offset();
        match reader.decode(source.unread()) {
            DumpStep::Begun { consumed } => source.consume(consumed),
            DumpStep::Record { consumed, key, stored } => {
                see(offset, key, &stored).map_err(DumpFailure::Stopped)?;
                source.consume(consumed);
            }
            DumpStep::NeedMore { at_least } => {
                if source.unread().len().saturating_add(at_least) > record_len_max {
                    return Err(DumpFailure::TooLong { offset });
                }
                if source.read_more(at_least).map_err(DumpFailure::Unreadable)? == 0 {
                    return Err(DumpFailure::Cut { offset });
                }
            }
            DumpStep::End => return Ok(source.unread().len() as u64 - 1),
            DumpStep::Damaged { offset, what } => return Err(DumpFailure::Damaged { offset, what }),
        }
    }
}
