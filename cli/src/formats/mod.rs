//! Files of records: what `load` reads and `dump` writes.
//!
//! ```text
//! tsv       one record a line, escaped         docs/format/tsv.md
//! tsv-raw   one record a line, as it is        `list -pv` of Kyoto Tycoon's and Kyoto Cabinet's tools
//! tsv-hex   one record a line, hexadecimal     the same with -px
//! ktss      a snapshot of Kyoto Tycoon's       KTSS\n\0, plain or compressed
//! kcss      a dump of Kyoto Cabinet's          KCSS\n\0
//! kc        a database file of Kyoto Cabinet's  KC\n\0, a hash or a tree (.kch, .kct)
//! ulog      an update log of Kyoto Tycoon's    a directory with files NUMBER.ulog
//! ```
//!
//! Always true: a file is read piece by piece; what stands before the place where it is damaged is loaded, and told of.

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

/// What a file is, for `load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormat {
    /// Tab-separated text, escaped
    Tsv,
    /// Tab-separated text as it is, without escapes: what `list -pv` of Kyoto's tools prints
    TsvRaw,
    /// The same in hexadecimal (-pv -px), perhaps with times (-pt)
    TsvHex,
    /// A snapshot of Kyoto Tycoon's, plain or compressed by zlib, lzo or lzma
    Ktss,
    /// A dump of Kyoto Cabinet's (`kcpolymgr dump`)
    Kcss,
    /// A database file of Kyoto Cabinet's: .kch or .kct
    Kc,
    /// An update log of Kyoto Tycoon's: the directory of ktserver's -ulog
    Ulog,
}

/// What `dump` writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DumpFormat {
    /// Tab-separated text, escaped
    #[default]
    Tsv,
    /// Tab-separated text in hexadecimal, for `import -sx` of Kyoto's tools; without times
    TsvHex,
    /// A snapshot of Kyoto Tycoon's (ktserver -bgs)
    Ktss,
    /// The same, packed by zlib (ktserver -bgsc zlib)
    KtssZlib,
    /// A dump of Kyoto Cabinet's (`kcpolymgr load`)
    Kcss,
}

/// How a file is to be read.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LoadOptions {
    /// What the file is; unless told, its first bytes say so, and text without a mark is tsv
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<InputFormat>,
    /// ktss, kcss, kc, ulog: values stand alone, as Kyoto Cabinet and databases with ktopts=p have them, without the five bytes
    /// of time before them that ktserver stores
    #[arg(long)]
    pub(crate) bare: bool,
    /// ktss, kcss, kc, ulog: the first five bytes of each value are its time, even where they make an unlikely one
    #[arg(long, conflicts_with = "bare")]
    pub(crate) timed: bool,
    /// ulog: from this time on: RFC 3339, Unix seconds, or a time stamp of the log
    #[arg(long, value_name = "TIME", value_parser = ulog::stamp)]
    pub(crate) since: Option<u64>,
    /// ulog: the changes of this database, by its number [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) of_database: Option<u16>,
}

/// How a file is to be written.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct DumpOptions {
    /// What is written
    #[arg(long, value_name = "FORMAT", default_value = "tsv")]
    pub(crate) format: DumpFormat,
    /// ktss, kcss: values stand alone, for Kyoto Cabinet's own databases and those with ktopts=p, and have no time
    #[arg(long)]
    pub(crate) bare: bool,
}

impl LoadOptions {
    /// The expiry and the value of what is stored in a file of Kyoto Tycoon's.
    fn split<'v>(&self, stored: &'v [u8]) -> Result<(tsv::TsvExpiry, &'v [u8]), &'static str> {
        if self.bare {
            return Ok((tsv::TsvExpiry::default(), stored));
        }
        let Some((time, value)) = expiry::split_stored(stored) else {
            return Err("a value is too short for the time before it; --bare takes values as they are");
        };
        // Text never begins as the times of this century do, and no record is given the time 0, with which small numbers begin.
        if !self.timed && (time == 0 || (time < NEVER && time > u64::from(u32::MAX))) {
            return Err(
                "no likely time stands before a value; --bare takes values as they are, --timed any time",
            );
        }
        Ok((expiry_of(time), value))
    }
}

/// When a record dies that lives to the end of this second.
fn expiry_of(time: u64) -> tsv::TsvExpiry {
    tsv::TsvExpiry { at: if time >= NEVER { 0 } else { time + 1 }, span_s: 0 }
}

/// What a file tells to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileChange<'a> {
    /// Stores a record.
    Put(LoadedRecord<'a>),
    /// Removes one.
    Remove(&'a [u8]),
    /// Removes all.
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

/// Why a record is not taken.
#[derive(Debug)]
pub(crate) enum StoreProblem {
    /// It cannot be stored there; others may. The file's reader says where it stands.
    ToRecord(String),
    /// None can.
    ToAll(CommandFailure),
}

impl<E: Into<CommandFailure>> From<E> for StoreProblem {
    fn from(error: E) -> Self {
        StoreProblem::ToAll(error.into())
    }
}

/// Who takes what a file tells.
pub(crate) type ChangeSink<'s> = dyn FnMut(FileChange<'_>, &mut LoadTally) -> Result<(), StoreProblem> + 's;
