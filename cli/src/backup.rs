//! `todana backup`: a consistent copy of a database, with its place in the update log.

use crate::Failure;
use crate::data::progress;
use crate::moment;
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::backup::{BackedUp, Backup, Receiver};
use todana::disk::SystemDisk;
use todana::update_log::Tail;
use todana::{DataDirectory, Progress};
use todana_core::ErrorKind;

pub(crate) const AFTER_HELP: &str = "\
A backup is a directory of its own: a checkpoint, the update log behind it, and
a list of both with their checksums. It has its name only once all of it is on
disk and has been read again. What is there already is not replaced.

Examples:
  todana backup /var/lib/todana /backup/monday
  todana verify /backup/monday
  todana restore /backup/monday /var/lib/todana.new";

/// What `backup` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The data directory, which no server has open
    #[arg(value_name = "DIR")]
    source: OsString,
    /// Where the backup is to be; made, with those above it
    target: PathBuf,
}

/// What a backup is made of.
enum Source {
    /// A data directory of no server.
    Directory(PathBuf),
    /// A server at work, by its address.
    Server(String),
}

impl Source {
    /// What is there as a directory is one; what looks like an address else is one.
    fn of(source: &OsStr) -> Source {
        let path = PathBuf::from(source);
        match source.to_str() {
            Some(text) if text.contains("://") || text.starts_with("unix:") => Source::Server(text.into()),
            Some(text) if !path.exists() && !text.contains('/') && text.contains(':') => {
                Source::Server(text.into())
            }
            _ => Source::Directory(path),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match Source::of(&arguments.source) {
        Source::Directory(directory) => of_directory(&directory, &arguments.target),
        Source::Server(address) => Err(Failure::usage(format!(
            "{address}: this program cannot make a backup of a server at work yet"
        ))),
    }
}

fn of_directory(directory: &Path, target: &Path) -> Result<(), Failure> {
    let opened = DataDirectory::open_existing(Arc::new(SystemDisk), directory);
    let opened = opened.map_err(|error| match error.kind() {
        ErrorKind::Busy => Failure::trouble(format!(
            "{} is in use by a server: give the server's address instead, and it is backed up at work",
            directory.display()
        )),
        _ => error.into(),
    })?;
    let checking = bar("checking");
    let mut backup = Backup::of_rest(&opened, &mut |done| checking.set_position(done))?;
    checking.finish_and_clear();
    for why in backup.refused() {
        eprintln!(
            "todana: a checkpoint is damaged, the one before it and a longer log take its place: {why}"
        );
    }
    if let Tail::Torn { path, offset, len } = backup.tail() {
        eprintln!(
            "todana: {} at offset {offset}: {len} bytes of writes that were not finished are left out",
            path.display()
        );
    }
    take(target, &mut |bytes| {
        let goes_on = backup.next(bytes)?;
        Ok((goes_on, backup.progress()))
    })
}

/// Appends some more of a stream, and says whether there may be more and how far it has come.
pub(crate) type Next<'n> = dyn FnMut(&mut Vec<u8>) -> Result<(bool, Progress), Failure> + 'n;

/// Writes a backup from a stream.
pub(crate) fn take(target: &Path, next: &mut Next<'_>) -> Result<(), Failure> {
    let mut receiver = Receiver::create(Arc::new(SystemDisk), target)?;
    let bar = bar("writing");
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let (goes_on, progress) = next(&mut bytes)?;
        receiver.take(&bytes)?;
        bar.set_length(progress.done + progress.remaining);
        bar.set_position(progress.done);
        if !goes_on {
            break;
        }
    }
    let checking = receiver.progress().done;
    bar.set_message("checking");
    bar.set_length(checking);
    let backed_up = receiver.finish(&mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    report(&backed_up, target)
}

fn report(backed_up: &BackedUp, target: &Path) -> Result<(), Failure> {
    let BackedUp { start, end, made_ms, records, len, .. } = backed_up;
    let checkpoint = match records {
        0 => String::new(),
        records => format!("a checkpoint of {records} records, "),
    };
    writeln!(
        std::io::stdout(),
        "{}: {checkpoint}the log from {} to {}, {len} bytes, as of {}",
        target.display(),
        start.0,
        end.0,
        moment::text(*made_ms),
    )?;
    Ok(())
}

fn bar(what: &'static str) -> indicatif::ProgressBar {
    let bar = progress(Some(0), "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}");
    bar.set_message(what);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_directories() {
        for text in ["todana://host:11211", "todanas://h", "unix:/run/t", "127.0.0.1:11211", "[::1]:11211"] {
            assert!(matches!(Source::of(OsStr::new(text)), Source::Server(_)), "{text}");
        }
        for text in ["/var/lib/todana", "data", "./a:b", "/tmp", "dir/x:1"] {
            assert!(matches!(Source::of(OsStr::new(text)), Source::Directory(_)), "{text}");
        }
    }
}
