//! Runs: temporary files with pairs in the order of their keys.
//!
//! ```text
//! run = { key_len + 1 (4) key { value_len + 1 (4) value } 0 (4) } 0 (4)
//! ```
//!
//! This is not a file format: only the process that wrote a run reads it.

use std::fs::File;
use std::io::{BufReader, BufWriter, Error as IoError, Read, Seek, SeekFrom, Write};
use std::path::Path;
use todana_core::{Error, ErrorKind, Result};

const WRITE_BUFFER: usize = 256 << 10;
const READ_BUFFER: usize = 128 << 10;

pub(super) struct SortedRun(File);

pub(super) struct RunWriter(BufWriter<File>);

fn file_error(error: IoError) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("map-reduce: temporary file: {error}"))
}

impl RunWriter {
    pub(super) fn new(directory: Option<&Path>) -> Result<RunWriter> {
        let file = match directory {
            Some(directory) => tempfile::tempfile_in(directory),
            None => tempfile::tempfile(),
        };
        Ok(RunWriter(BufWriter::with_capacity(WRITE_BUFFER, file.map_err(file_error)?)))
    }

    pub(super) fn key(&mut self, key: &[u8]) -> Result<()> {
        self.piece(key)
    }

    pub(super) fn value(&mut self, value: &[u8]) -> Result<()> {
        self.piece(value)
    }

    /// Writes the mark after the values of a key.
    pub(super) fn end(&mut self) -> Result<()> {
        self.0.write_all(&[0; 4]).map_err(file_error)
    }

    fn piece(&mut self, piece: &[u8]) -> Result<()> {
        // A key or value in a table is never longer than this type allows.
        let len = piece.len() as u32 + 1;
        self.0.write_all(&len.to_le_bytes()).and_then(|()| self.0.write_all(piece)).map_err(file_error)
    }

    pub(super) fn finish(mut self) -> Result<SortedRun> {
        self.end()?;
        let mut file = self.0.into_inner().map_err(|error| file_error(error.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(file_error)?;
        Ok(SortedRun(file))
    }
}

pub(super) struct RunReader {
    input: BufReader<File>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl RunReader {
    pub(super) fn new(run: SortedRun) -> RunReader {
        RunReader { input: BufReader::with_capacity(READ_BUFFER, run.0), key: Vec::new(), value: Vec::new() }
    }

    /// Reads the next key. All values of the previous key must have been read. Returns false at the
    /// end of the run.
    pub(super) fn next_key(&mut self) -> Result<bool> {
        piece(&mut self.input, &mut self.key)
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Reads the next value of the current key. Returns false after the last value.
    pub(super) fn next_value(&mut self) -> Result<bool> {
        piece(&mut self.input, &mut self.value)
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.value
    }
}

/// Reads a key or a value. Returns false if it finds an end mark instead.
fn piece(input: &mut BufReader<File>, into: &mut Vec<u8>) -> Result<bool> {
    let mut len = [0; 4];
    input.read_exact(&mut len).map_err(file_error)?;
    let Some(len) = u32::from_le_bytes(len).checked_sub(1) else { return Ok(false) };
    into.clear();
    input.take(u64::from(len)).read_to_end(into).map_err(file_error)?;
    Ok(true)
}
