//! Reads update logs of Tokyo Tyrant: the directory of ttserver's -ulog, or the text that `ttulmgr
//! export` and `todana log --format ttulog` print.

use super::{ChangeSink, FileChange, LoadOptions, LoadTally, StoreProblem};
use crate::CommandFailure;
use crate::progress::bytes_read;
use indicatif::ProgressBar;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use todana::tyrant::{LogFileEnd, TyrantLogFile, log_files, read_log_file};
use todana_protocol::tyrant::LoggedCommand;
use todana_protocol::tyrant::log_text::{LINE_LEN_MAX, LogLine, parse_line};
use todana_protocol::tyrant::update_log::LogRecord;

/// Time stamps of Tokyo Tyrant count microseconds.
pub(crate) const STAMPS_A_MS: u64 = 1_000;
/// The number of digits of a time stamp, as in the position file of a replica.
const STAMP_DIGITS: usize = 16;
/// In an option, a time stamp below this number counts microseconds. Others count nanoseconds, as
/// those of Kyoto Tycoon.
const LEAST_NANOSECONDS: u64 = 100_000_000_000_000_000;

/// Returns the files of a log in order. Returns none if the directory is not a log of Tokyo Tyrant.
pub(crate) fn files(directory: &Path) -> Result<Vec<TyrantLogFile>, CommandFailure> {
    log_files(directory).map_err(|error| CommandFailure::of_file(directory, error))
}

/// Receives each record of a log: the file, the offset in the file, and the record.
pub(crate) type LogRecordSink<'s> =
    dyn FnMut(&Path, &dyn Display, &LogRecord<'_>) -> Result<(), CommandFailure> + 's;

/// Passes on the records of all files. Fails at bytes that are not a record.
pub(crate) fn each(files: &[TyrantLogFile], see: &mut LogRecordSink<'_>) -> Result<(), CommandFailure> {
    let bar = bytes_read(Some(files.iter().map(|file| file.len).sum()));
    for file in files {
        each_of(&file.path, &bar, see)?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn each_of(path: &Path, bar: &ProgressBar, see: &mut LogRecordSink<'_>) -> Result<(), CommandFailure> {
    let failed = |error| CommandFailure::of_file(path, error);
    let input = bar.wrap_read(File::open(path).map_err(failed)?);
    let end = read_log_file(input, failed, &mut |offset, record| {
        see(path, &format_args!("byte {offset}"), record)
    })?;
    let LogFileEnd { offset, unfinished_len, is_malformed } = end;
    let path = path.display();
    if is_malformed {
        return Err(CommandFailure::trouble(format!("{path}, byte {offset}: no record begins here")));
    }
    if unfinished_len > 0 {
        eprintln!(
            "todana: {path}, byte {offset}: {unfinished_len} bytes of an unfinished record are left out"
        );
    }
    Ok(())
}

/// Passes on the commands in the files of a directory.
pub(super) fn read_directory(
    directory: &Path,
    options: &LoadOptions,
    tally: &mut LoadTally,
    see: &mut ChangeSink<'_>,
) -> Result<(), CommandFailure> {
    let files = files(directory)?;
    if files.is_empty() {
        return Err(CommandFailure::usage(format!(
            "{}: is not an update log of Tokyo Tyrant; there are no files NUMBER.ulog with 8 digits",
            directory.display()
        )));
    }
    each(&files, &mut |path, place, record| show(path, place, record, options, tally, see))
}

/// Passes on the commands in a text.
pub(super) fn read_text(
    path: &Path,
    input: impl Read,
    options: &LoadOptions,
    tally: &mut LoadTally,
    see: &mut ChangeSink<'_>,
) -> Result<(), CommandFailure> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    let (mut line, mut body) = (Vec::new(), Vec::new());
    for number in 1u64.. {
        line.clear();
        let mut limited = input.by_ref().take(LINE_LEN_MAX as u64);
        if limited.read_until(b'\n', &mut line).map_err(|error| CommandFailure::of_file(path, error))? == 0 {
            break;
        }
        let place = format_args!("line {number}");
        match parse_line(line.trim_ascii_end(), &mut body) {
            LogLine::Record(record) => show(path, &place, &record, options, tally, see)?,
            LogLine::Damaged => tally.refuse(|| format!("{}, {place}: a damaged record", path.display())),
            LogLine::Malformed => {
                return Err(CommandFailure::trouble(format!(
                    "{}, {place}: is not a record of an update log",
                    path.display()
                )));
            }
        }
    }
    Ok(())
}

fn show(
    path: &Path,
    place: &dyn Display,
    record: &LogRecord<'_>,
    options: &LoadOptions,
    tally: &mut LoadTally,
    see: &mut ChangeSink<'_>,
) -> Result<(), CommandFailure> {
    if record.stamp_micros < options.since.map_or(0, micros) {
        return Ok(());
    }
    (tally.timestamp, tally.timestamp_digits) = (Some(record.stamp_micros), Some(STAMP_DIGITS));
    let refused = |what: &dyn Display| format!("{}, {place}: {what}", path.display());
    let Some(command) = LoggedCommand::parse(record.body) else {
        tally.refuse(|| refused(&"a damaged record"));
        return Ok(());
    };
    match see(FileChange::Command(&command), tally) {
        Ok(()) => Ok(()),
        Err(StoreProblem::ToRecord(what)) => {
            tally.refuse(|| refused(&what));
            Ok(())
        }
        Err(StoreProblem::ToAll(failure)) => Err(failure),
    }
}

/// Converts the time stamp of an option to microseconds.
fn micros(stamp: u64) -> u64 {
    if stamp < LEAST_NANOSECONDS { stamp } else { stamp / 1_000 }
}
