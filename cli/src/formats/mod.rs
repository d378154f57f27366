//! Record files: the formats that `load` reads and `dump` writes.
//!
//! ```text
//! tsv       one record per line, escaped                       docs/format/tsv.md
//! tsv-raw   one record per line, not escaped                   `list -pv` of Kyoto's tools
//! tsv-hex   one record per line, hexadecimal                   `list -pv -px` of Kyoto's tools
//! ktss      a snapshot of Kyoto Tycoon, plain or compressed    starts with KTSS\n\0
//! kcss      a dump of Kyoto Cabinet                            starts with KCSS\n\0
//! kc        a database file of Kyoto Cabinet (.kch, .kct)      starts with KC\n\0
//! tcbmgr    a tree, one value per line, hexadecimal           `tcbmgr list -pv -px`
//! tcfmgr    numbered records, values in hexadecimal            `tcfmgr list -pv -px`
//! tctmgr    a table, one row per line, hexadecimal             `tctmgr list -pv -px`
//! ulog      an update log of Kyoto Tycoon                      a directory with files NUMBER.ulog
//! ttulog    an update log of Tokyo Tyrant                      such a directory (8 digits), or text
//! ```
//!
//! Invariant: a file is read piece by piece. If it is damaged, all records before the damage are
//! loaded.

mod database_file;
mod load_tally;
mod output_file;
mod record_reader;
mod record_writer;
pub(crate) mod ttulog;
pub(crate) mod ulog;

pub(crate) use load_tally::LoadTally;
pub(crate) use record_reader::read;
pub(crate) use record_writer::RecordWriter;

use crate::{CommandFailure, tsv};
use clap::{Args, ValueEnum};
use todana::kyoto::NEVER;
use todana_protocol::kyoto::expiry;
use todana_protocol::tyrant::LoggedCommand;

/// The format of a file to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormat {
    /// Tab-separated text, escaped
    Tsv,
    /// Tab-separated text without escapes, as printed by `list -pv` of Kyoto's tools
    TsvRaw,
    /// Tab-separated text in hexadecimal, as printed by `list -pv -px` of Kyoto's tools, also with
    /// -pt (expiry times), and of Tokyo's tchmgr and tcrmgr
    TsvHex,
    /// The list of a tree, as printed by Tokyo Cabinet's `tcbmgr list -pv -px`; a key may have
    /// several values
    Tcbmgr,
    /// The list of numbered records, as printed by Tokyo Cabinet's `tcfmgr list -pv -px`
    Tcfmgr,
    /// The list of a table, as printed by Tokyo Cabinet's `tctmgr list -pv -px`
    Tctmgr,
    /// A snapshot of Kyoto Tycoon, plain or compressed by zlib, lzo or lzma
    Ktss,
    /// A dump of Kyoto Cabinet (`kcpolymgr dump`)
    Kcss,
    /// A database file of Kyoto Cabinet: .kch or .kct
    Kc,
    /// An update log of Kyoto Tycoon: the directory of ktserver's -ulog
    Ulog,
    /// An update log of Tokyo Tyrant: the directory of ttserver's -ulog, or the text of `ttulmgr
    /// export`
    Ttulog,
}

/// The format of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DumpFormat {
    /// Tab-separated text, escaped
    #[default]
    Tsv,
    /// Tab-separated text in hexadecimal, for `import -sx` of Kyoto's tools; without expiry times
    TsvHex,
    /// A snapshot of Kyoto Tycoon (ktserver -bgs)
    Ktss,
    /// A snapshot of Kyoto Tycoon, compressed by zlib (ktserver -bgsc zlib)
    KtssZlib,
    /// A dump of Kyoto Cabinet (`kcpolymgr load`)
    Kcss,
}

/// The options for reading a file.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LoadOptions {
    /// The format of the file [default: detected by the first bytes, otherwise tsv]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<InputFormat>,
    /// ktss, kcss, kc, ulog: values are stored without an expiry, as in Kyoto Cabinet and in
    /// ktserver's databases with ktopts=p (otherwise ktserver stores the expiry in five bytes
    /// before each value)
    #[arg(long)]
    pub(crate) bare: bool,
    /// ktss, kcss, kc, ulog: read the first five bytes of each value as its expiry, even if the
    /// date is unlikely
    #[arg(long, conflicts_with = "bare")]
    pub(crate) timed: bool,
    /// ulog, ttulog: apply only changes from this time on: RFC 3339, Unix seconds, or a time stamp
    /// of the log
    #[arg(long, value_name = "TIME", value_parser = ulog::stamp)]
    pub(crate) since: Option<u64>,
    /// ulog: apply the changes of this database, by its number [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) of_database: Option<u16>,
}

/// The options for writing a file.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct DumpOptions {
    /// The format of the file
    #[arg(long, value_name = "FORMAT", default_value = "tsv")]
    pub(crate) format: DumpFormat,
    /// ktss, kcss: write values without an expiry, for Kyoto Cabinet's own databases and ktserver's
    /// with ktopts=p
    #[arg(long)]
    pub(crate) bare: bool,
}

impl LoadOptions {
    /// Splits a value as Kyoto Tycoon stores it into expiry and value.
    fn split<'v>(&self, stored: &'v [u8]) -> Result<(tsv::TsvExpiry, &'v [u8]), &'static str> {
        if self.bare {
            return Ok((tsv::TsvExpiry::default(), stored));
        }
        let Some((time, value)) = expiry::split_stored(stored) else {
            return Err("a value is too short for the time before it; use --bare for values without times");
        };
        // Five bytes are refused as a time if they are 0 or too large. Text is always too large,
        // and small numbers start with zeros, so values without an expiry are detected.
        if !self.timed && (time == 0 || (time < NEVER && time > u64::from(u32::MAX))) {
            return Err(
                "no likely time before a value; use --bare for values without times, --timed to accept any time",
            );
        }
        Ok((expiry_of(time), value))
    }
}

/// Returns the expiry of a record that is live until the end of this second.
fn expiry_of(time: u64) -> tsv::TsvExpiry {
    tsv::TsvExpiry { at: if time >= NEVER { 0 } else { time + 1 }, span_s: 0 }
}

/// A change that a file contains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileChange<'a> {
    /// Stores a record.
    Put(LoadedRecord<'a>),
    /// Adds a value after those that a key of a tree has.
    AddValue { key: &'a [u8], value: &'a [u8] },
    /// Removes a record.
    Remove(&'a [u8]),
    /// Removes all records.
    Clear,
    /// Executes a command of Tokyo Tyrant.
    Command(&'a LoggedCommand<'a>),
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
    /// This record cannot be stored, but others may be. The reader of the file adds the place to
    /// the message.
    ToRecord(String),
    /// No further record can be stored.
    ToAll(CommandFailure),
}

impl<E: Into<CommandFailure>> From<E> for StoreProblem {
    fn from(error: E) -> Self {
        StoreProblem::ToAll(error.into())
    }
}

/// Receives the changes of a file.
pub(crate) type ChangeSink<'s> = dyn FnMut(FileChange<'_>, &mut LoadTally) -> Result<(), StoreProblem> + 's;
