//! Record files: the formats that `load` reads and `dump` writes.
//!
//! ```text
//! tsv       one record a line, escaped         docs/format/tsv.md
//! tsv-raw   one record a line, as it is        `list -pv` of Kyoto's tools
//! tsv-hex   one record a line, hexadecimal     the same with -px
//! ktss      a snapshot of Kyoto Tycoon's       KTSS\n\0, plain or compressed
//! kcss      a dump of Kyoto Cabinet's          KCSS\n\0
//! kc        a database file of Kyoto Cabinet's  KC\n\0, a hash or a tree (.kch, .kct)
//! ulog      an update log of Kyoto Tycoon's    a directory with files NUMBER.ulog
//! ```
//!
//! Invariant: a file is read piece by piece, and all records before a damaged place are loaded.

mod database_file;
mod load_tally;
mod output_file;
mod record_reader;
mod record_writer;
pub(crate) mod ulog;

pub(crate) use load_tally::LoadTally;
pub(crate) use record_reader::read;
pub(crate) use record_writer::RecordWriter;

use crate::{CommandFailure, tsv};
use clap::{Args, ValueEnum};
use todana::kyoto::NEVER;
use todana_protocol::kyoto::expiry;

/// The format of a file to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormat {
    /// Tab-separated text, escaped
    Tsv,
    /// Tab-separated text without escapes, as `list -pv` of Kyoto's tools prints it
    TsvRaw,
    /// The same in hexadecimal (-pv -px), optionally with times (-pt)
    TsvHex,
    /// A snapshot of Kyoto Tycoon, plain or compressed by zlib, lzo or lzma
    Ktss,
    /// A dump of Kyoto Cabinet (`kcpolymgr dump`)
    Kcss,
    /// A database file of Kyoto Cabinet: .kch or .kct
    Kc,
    /// An update log of Kyoto Tycoon: the directory of ktserver's -ulog
    Ulog,
}

/// The format of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DumpFormat {
    /// Tab-separated text, escaped
    #[default]
    Tsv,
    /// Tab-separated text in hexadecimal, for `import -sx` of Kyoto's tools; without times
    TsvHex,
    /// A snapshot of Kyoto Tycoon (ktserver -bgs)
    Ktss,
    /// The same, compressed by zlib (ktserver -bgsc zlib)
    KtssZlib,
    /// A dump of Kyoto Cabinet (`kcpolymgr load`)
    Kcss,
}

/// The options for reading a file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LoadOptions {
    /// The format of the file [default: recognised by the first bytes, otherwise tsv]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<InputFormat>,
    /// ktss, kcss, kc, ulog: values have no time stamp before them, as in Kyoto Cabinet and in
    /// databases with ktopts=p (ktserver stores five bytes of expiry time before each value)
    #[arg(long)]
    pub(crate) bare: bool,
    /// ktss, kcss, kc, ulog: treat the first five bytes of each value as its time, even if the time
    /// is unlikely
    #[arg(long, conflicts_with = "bare")]
    pub(crate) timed: bool,
    /// ulog: only changes from this time on: RFC 3339, Unix seconds, or a time stamp of the log
    #[arg(long, value_name = "TIME", value_parser = ulog::stamp)]
    pub(crate) since: Option<u64>,
    /// ulog: the changes of this database, by number [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) of_database: Option<u16>,
}

/// The options for writing a file.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct DumpOptions {
    /// The format of the file
    #[arg(long, value_name = "FORMAT", default_value = "tsv")]
    pub(crate) format: DumpFormat,
    /// ktss, kcss: write values without expiry times, for Kyoto Cabinet's own databases and those
    /// with ktopts=p
    #[arg(long)]
    pub(crate) bare: bool,
}

impl LoadOptions {
    /// Splits a stored value of Kyoto Tycoon into expiry and value.
    fn split<'v>(&self, stored: &'v [u8]) -> Result<(tsv::TsvExpiry, &'v [u8]), &'static str> {
        if self.bare {
            return Ok((tsv::TsvExpiry::default(), stored));
        }
        let Some((time, value)) = expiry::split_stored(stored) else {
            return Err("a value is too short for the time before it; use --bare for values without times");
        };
        // Text never begins with the bytes of a time of this century. No record has the time 0,
        // with which small numbers begin.
        if !self.timed && (time == 0 || (time < NEVER && time > u64::from(u32::MAX))) {
            return Err(
                "no likely time before a value; use --bare for values without times, --timed to accept any time",
            );
        }
        Ok((expiry_of(time), value))
    }
}

/// Returns the expiry of a record that lives to the end of this second.
fn expiry_of(time: u64) -> tsv::TsvExpiry {
    tsv::TsvExpiry { at: if time >= NEVER { 0 } else { time + 1 }, span_s: 0 }
}

/// A change that a file asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileChange<'a> {
    /// Stores a record.
    Put(LoadedRecord<'a>),
    /// Removes a record.
    Remove(&'a [u8]),
    /// Removes all records.
    Clear,
}

/// A record of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedRecord<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) expiry: tsv::TsvExpiry,
}

/// The reason why a record is not stored.
#[derive(Debug)]
pub(crate) enum StoreProblem {
    /// This record cannot be stored there, others may. The reader of the file adds the place.
    ToRecord(String),
    /// No record can be stored.
    ToAll(CommandFailure),
}

impl<E: Into<CommandFailure>> From<E> for StoreProblem {
    fn from(error: E) -> Self {
        StoreProblem::ToAll(error.into())
    }
}

/// Receives the changes of a file.
pub(crate) type ChangeSink<'s> = dyn FnMut(FileChange<'_>, &mut LoadTally) -> Result<(), StoreProblem> + 's;
