//! Reads the files of Tokyo Tyrant's update logs.

use crate::kyoto::UnreadBytes;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use todana_protocol::tyrant::update_log::{LogRecord, RecordStep, decode_record, file_number};

/// A file of an update log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TyrantLogFile {
    /// Its number, which is its name.
    pub number: u32,
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
}

/// The end of the records of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFileEnd {
    /// The offset after the last complete record.
    pub offset: u64,
    /// The number of bytes after it that begin a record.
    pub unfinished_len: usize,
    /// True if there are bytes after it that begin no record.
    pub is_malformed: bool,
}

/// Returns the files of a log in their order. Returns none if the directory is not a log of Tokyo
/// Tyrant.
pub fn log_files(directory: &Path) -> io::Result<Vec<TyrantLogFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(file_number) {
            files.push(TyrantLogFile { number, path: entry.path(), len: entry.metadata()?.len() });
        }
    }
    files.sort_by_key(|file| file.number);
    Ok(files)
}

/// Passes the records of a file to `see`, with their offsets, until it fails. `failed` converts an
/// error of reading.
pub fn read_log_file<E>(
    input: impl Read,
    failed: impl Fn(io::Error) -> E,
    see: &mut dyn FnMut(u64, &LogRecord<'_>) -> Result<(), E>,
) -> Result<LogFileEnd, E> {
    let (mut window, mut offset) = (UnreadBytes::new(input), 0);
    loop {
        match decode_record(window.unread()) {
            RecordStep::Record { consumed, record } => {
                see(offset, &record)?;
                window.consume(consumed);
                offset += consumed as u64;
            }
            RecordStep::NeedMore { at_least } => {
                if window.read_more(at_least).map_err(&failed)? == 0 {
                    let unfinished_len = window.unread().len();
                    return Ok(LogFileEnd { offset, unfinished_len, is_malformed: false });
                }
            }
            RecordStep::Malformed => {
                return Ok(LogFileEnd { offset, unfinished_len: 0, is_malformed: true });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_ends_at_its_first_damage() {
        let mut bytes = Vec::new();
        for stamp_micros in 1..=3 {
            LogRecord { stamp_micros, server_id: 7, master_id: 0, body: b"body" }.put(&mut bytes);
        }
        let read = |bytes: &[u8]| {
            let mut seen = Vec::new();
            let end = read_log_file(bytes, |error| error, &mut |offset, record| {
                seen.push((offset, record.stamp_micros));
                Ok(())
            });
            (seen, end.unwrap())
        };
        let all = [(0, 1), (21, 2), (42, 3)];
        let end = |offset, unfinished_len, is_malformed| LogFileEnd { offset, unfinished_len, is_malformed };
        assert_eq!(read(&bytes), (all.to_vec(), end(63, 0, false)));
        assert_eq!(read(&bytes[..50]), (all[..2].to_vec(), end(42, 8, false)));
        bytes[21] = 0;
        assert_eq!(read(&bytes), (all[..1].to_vec(), end(21, 0, true)));
    }
}
