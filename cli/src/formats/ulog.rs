//! Reads update logs of Kyoto Tycoon: the directory of ktserver's -ulog.

use super::record_reader::{RecordReader, at_least};
use super::{ChangeSink, FileChange, LoadOptions, LoadTally};
use crate::CommandFailure;
use crate::progress::bytes_read;
use crate::time_to_live::now;
use indicatif::ProgressBar;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use todana::kyoto::UnreadBytes;
use todana::moment;
use todana_protocol::kyoto::message::{self, UpdateMessage};
use todana_protocol::kyoto::update_log::{HEAD_LEN, LogFileHead, LogFileReader, LogFileStep, file_number};

/// Time stamps of Kyoto Tycoon count nanoseconds.
pub(crate) const STAMPS_PER_MS: u64 = 1_000_000;
/// The smallest number that an option interprets as a time stamp. Smaller numbers are Unix seconds,
/// which reach this number in three million years.
const STAMP_MIN: u64 = 100_000_000_000_000;

/// Parses the time stamp of an option: a time, or a time stamp as in the log.
pub(crate) fn stamp(text: &str) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(stamp) if stamp >= STAMP_MIN => Ok(stamp),
        _ => moment::parse(text).map(|unix_ms| unix_ms.saturating_mul(STAMPS_PER_MS)),
    }
}

/// Converts a time stamp to Unix milliseconds.
pub(crate) fn unix_ms(stamp: u64) -> u64 {
    stamp / STAMPS_PER_MS
}

/// One file of an update log.
pub(crate) struct UpdateLogFile {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    /// The number in the name of the file. Files are numbered from 1, and the oldest may have been
    /// removed.
    number: u64,
}

/// Returns the files of a log in order. Returns none if the directory is not a log of Kyoto Tycoon.
pub(crate) fn files(directory: &Path) -> Result<Vec<UpdateLogFile>, CommandFailure> {
    let failed = |error| CommandFailure::of_file(directory, error);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Some(number) = entry.file_name().to_str().and_then(file_number) {
            let len = entry.metadata().map_err(failed)?.len();
            files.push(UpdateLogFile { path: entry.path(), len, number });
        }
    }
    files.sort_by_key(|file| file.number);
    Ok(files)
}

/// Returns the files of a log in order. Fails if there are none.
fn expect_files(directory: &Path) -> Result<Vec<UpdateLogFile>, CommandFailure> {
    let files = files(directory)?;
    match files.is_empty() {
        true => Err(CommandFailure::usage(format!(
            "{}: is not an update log of Kyoto Tycoon; there are no files NUMBER.ulog",
            directory.display()
        ))),
        false => Ok(files),
    }
}

/// Reads the head of a file.
pub(crate) fn head(file: &UpdateLogFile) -> Result<LogFileHead, CommandFailure> {
    let failed = |error| CommandFailure::of_file(&file.path, error);
    let mut window = UnreadBytes::new(File::open(&file.path).map_err(failed)?);
    at_least(&mut window, HEAD_LEN).map_err(failed)?;
    window.unread().first_chunk().and_then(LogFileHead::parse).ok_or_else(|| {
        CommandFailure::trouble(format!("{}, byte 0: not an update log of Kyoto Tycoon", file.path.display()))
    })
}

/// Passes on the changes of one database.
pub(super) fn read(
    directory: &Path,
    options: &LoadOptions,
    tally: &mut LoadTally,
    see: &mut ChangeSink<'_>,
) -> Result<(), CommandFailure> {
    let database = options.of_database.unwrap_or(0);
    let now = now();
    let files = expect_files(directory)?;
    if let (Some(first), None) = (files.first().filter(|first| first.number > 1), options.since) {
        let path = first.path.display();
        eprintln!("todana: {path}: the log begins here; earlier changes are missing");
    }
    each(&files, options.since, &mut |path, offset, timestamp, message| {
        tally.timestamp = Some(timestamp);
        if message.database != database {
            return Ok(());
        }
        let mut reading = RecordReader { file: path, options, tally, see };
        let place = format_args!("byte {offset}");
        match message.change {
            message::UpdateChange::Set { key, stored } => {
                match options.split(stored.as_raw().unwrap_or_default()) {
                    // An expired record is not stored, but it must overwrite an earlier value of
                    // its key. So the key is removed.
                    Ok((expiry, _)) if expiry.at != 0 && expiry.at <= now => {
                        reading.tally.skipped += 1;
                        reading.show(&place, FileChange::Remove(key))
                    }
                    _ => reading.put(&place, key, &stored),
                }
            }
            message::UpdateChange::Remove { key } => reading.show(&place, FileChange::Remove(key)),
            message::UpdateChange::Clear => reading.show(&place, FileChange::Clear),
            // Only replicas of Todana receive lists of values. No log contains them.
            message::UpdateChange::SetList { .. } | message::UpdateChange::Other { .. } => Ok(()),
        }
    })
}

/// Receives each change of a log: its file, offset and time stamp, and the message.
pub(crate) type LoggedChangeSink<'s> =
    dyn FnMut(&Path, u64, u64, &UpdateMessage<'_>) -> Result<(), CommandFailure> + 's;

/// Passes on the changes from a time stamp on. Files that end before it are skipped. Fails if a
/// file between two others is missing.
pub(crate) fn each(
    files: &[UpdateLogFile],
    since: Option<u64>,
    see: &mut LoggedChangeSink<'_>,
) -> Result<(), CommandFailure> {
    let since = since.unwrap_or(0);
    let bar = bytes_read(Some(files.iter().map(|file| file.len).sum()));
    let mut last = None;
    for file in files {
        let before = last.replace(file.number);
        if head(file)?.newest < since {
            bar.inc(file.len);
            continue;
        }
        if before.is_some_and(|before| before.checked_add(1) != Some(file.number)) {
            let (path, missing) = (file.path.display(), file.number - 1);
            return Err(CommandFailure::trouble(format!(
                "{path}: the previous file, number {missing}, is missing"
            )));
        }
        each_of(file, since, &bar, see)?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn each_of(
    file: &UpdateLogFile,
    since: u64,
    bar: &ProgressBar,
    see: &mut LoggedChangeSink<'_>,
) -> Result<(), CommandFailure> {
    let path = &file.path;
    let failed = |error| CommandFailure::of_file(path, error);
    let mut window = UnreadBytes::new(bar.wrap_read(File::open(path).map_err(failed)?));
    let mut decoder = LogFileReader::default();
    let damaged = |offset: u64, what: &str| {
        Err(CommandFailure::trouble(format!("{}, byte {offset}: {what}", path.display())))
    };
    loop {
        let at = decoder.offset();
        match decoder.decode(window.unread()) {
            LogFileStep::Head { consumed, .. } => window.consume(consumed),
            LogFileStep::Record { consumed, timestamp, message } => {
                if timestamp >= since {
                    see(path, at, timestamp, &message)?;
                }
                window.consume(consumed);
            }
            LogFileStep::NeedMore { at_least } => {
                if window.read_more(at_least).map_err(failed)? == 0 {
                    return damaged(at, "the file ends before the length in its head; it is cut");
                }
            }
            LogFileStep::End => {
                let torn = io::copy(&mut window, &mut io::sink()).map_err(failed)?;
                if torn > 0 {
                    let path = path.display();
                    eprintln!("todana: {path}, byte {at}: {torn} bytes of an unfinished change are left out");
                }
                return Ok(());
            }
            LogFileStep::Damaged { offset, what } => return damaged(offset, what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_a_date_or_a_log_stamp() {
        assert_eq!(stamp("1795318853973000000"), Ok(1_795_318_853_973_000_000));
        assert_eq!(stamp("01795318853973000000"), Ok(1_795_318_853_973_000_000));
        assert_eq!(stamp("1795318853"), Ok(1_795_318_853_000_000_000));
        assert_eq!(stamp("2026-11-22T03:40:53.973Z"), Ok(1_795_318_853_973_000_000));
        assert!(stamp("soon").is_err());
    }
}
