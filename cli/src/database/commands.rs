//! Commands on whole databases: count, list, copy, merge, compact, check, and import and export of
//! files.

use super::key_range::{KeyRange, walk};
use super::transfer::{StoreRecord, export, import};
use super::{expect_database, expect_no_truncation, open};
use crate::amount::amount;
use crate::command_output::CommandOutput;
use crate::command_target::{CommandTarget, LocalDatabase, names_database};
use crate::dump::{RecordSelection, dump, walk_servers};
use crate::formats::{DumpOptions, LoadOptions};
use crate::interruption_flag::InterruptionFlag;
use crate::load::load;
use crate::open_target::{CommandPlace, OpenDatabase, OpenTarget};
use crate::progress::{progress, records as records_bar};
use crate::server_options::{ServerOptions, ServerTarget};
use crate::{CommandFailure, salvage, statistics, tsv, verify};
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana::disk::SystemDisk;
use todana::table::visible_records;
use todana::{Action, DatabaseName, DatabaseStorage, Db, DbOptions, Record, Records, refuse_overlap};
use todana_core::Attributes;

/// A server or a database, and the options to reach the server.
#[derive(Debug, Args)]
pub(crate) struct DatabaseArgument {
    /// The database (./x.hash, ./x.tree, or a data directory) or the server (host:port); or use -S
    #[arg(value_name = "DB")]
    place: Option<CommandTarget>,
    #[command(flatten)]
    server: ServerOptions,
}

impl DatabaseArgument {
    /// Returns the place of the records: that of the arguments, or that of a shell.
    fn find<'t>(&self, place: &'t mut CommandPlace<'_>) -> Result<&'t mut OpenTarget, CommandFailure> {
        place.of(&self.server, self.place.as_ref())
    }
}

/// The arguments for a database and a file, both optional.
#[derive(Debug, Args)]
pub(crate) struct DatabaseAndFile {
    /// The database (./x.hash, ./x.tree, or a data directory) or the server (host:port); or use -S
    #[arg(value_name = "DB")]
    first: Option<OsString>,
    /// The file; - is standard input or output [default: -]. With -S the file is the only argument
    #[arg(value_name = "FILE")]
    second: Option<OsString>,
    #[command(flatten)]
    server: ServerOptions,
}

impl DatabaseAndFile {
    /// Returns the database and the file. A single word is the file if `-S` is given. Without `-S`,
    /// it is the database if it has the form of one, and otherwise the file.
    fn find<'t>(
        &self,
        target: &'t mut CommandPlace<'_>,
    ) -> Result<(&'t mut OpenTarget, PathBuf), CommandFailure> {
        let (place, file) = match (&self.first, &self.second) {
            (Some(first), None) if self.server.has_server() || !names_database(first) => (None, Some(first)),
            (first, second) => (first.as_ref(), second.as_ref()),
        };
        let place =
            place.map(|word| word.to_string_lossy().parse().map_err(CommandFailure::usage)).transpose()?;
        let file = file.map_or_else(|| "-".into(), PathBuf::from);
        Ok((target.of(&self.server, place.as_ref())?, file))
    }
}

/// Commands on whole databases.
#[derive(Debug, Subcommand)]
pub(crate) enum DatabaseCommand {
    /// Show kind, records and bytes of a database, as `stats` does (until the next version)
    #[command(hide = true, alias = "info")]
    Inform {
        #[command(flatten)]
        of: DatabaseArgument,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print the number of records
    Count {
        #[command(flatten)]
        of: DatabaseArgument,
    },
    /// Print the keys of a database; the keys of a tree in order
    #[command(
        visible_alias = "keys",
        after_help = "Examples:\n  todana list ./users.tree --prefix a --limit 10\n  todana list ./users.tree --from k --to m --values\n  todana list ./users.tree --reverse --limit 1\n\nControl characters and backslashes in keys and values are escaped: \\\\ \\t \\n \\r \\xHH."
    )]
    List {
        #[command(flatten)]
        of: DatabaseArgument,
        /// Only keys with this prefix
        #[arg(long)]
        prefix: Option<OsString>,
        /// Only keys from this one on
        #[arg(long, value_name = "KEY")]
        from: Option<OsString>,
        /// Only keys before this one
        #[arg(long, value_name = "KEY")]
        to: Option<OsString>,
        /// At most this number of keys
        #[arg(long, value_name = "COUNT")]
        limit: Option<u64>,
        /// Print the keys in descending order; needs a tree
        #[arg(long)]
        reverse: bool,
        /// Print values too, after a tab
        #[arg(long)]
        values: bool,
    },
    /// Store the records of a file, as `load` does (until the next version)
    #[command(hide = true)]
    Import {
        #[command(flatten)]
        to: DatabaseAndFile,
        #[command(flatten)]
        options: LoadOptions,
    },
    /// Write all records to a file, as `dump` does (until the next version)
    #[command(hide = true)]
    Export {
        #[command(flatten)]
        of: DatabaseAndFile,
        #[command(flatten)]
        options: DumpOptions,
    },
    /// Copy a database to a new one, which may be of another kind; the copy is compact
    #[command(
        after_help = "Examples:\n  todana copy ./carts.hash /backup/carts.hash\n  todana copy ./carts.hash ./carts.tree\n  todana copy ./carts.hash 'cassandra://10.0.0.1/carts#replication=3'"
    )]
    Copy {
        /// The database to copy
        #[arg(value_name = "DB")]
        from: CommandTarget,
        /// The new database, which must not exist
        #[arg(value_name = "TO")]
        to: CommandTarget,
    },
    /// Store the records of other databases in one; if a key occurs more than once, its last record
    /// is kept
    #[command(after_help = "Example:\n  todana merge ./all.tree ./monday.tree ./tuesday.hash")]
    Merge {
        /// The database that receives the records; created if it does not exist
        #[arg(value_name = "DB")]
        to: CommandTarget,
        /// The databases to read, in this order; they stay unchanged
        #[arg(value_name = "FROM", required = true)]
        from: Vec<CommandTarget>,
        /// Keep records that exist, instead of overwriting them
        #[arg(long)]
        keep: bool,
    },
    /// Rewrite a database so that the disk space of removed and overwritten records becomes free
    Compact {
        /// The database
        #[arg(value_name = "DB")]
        place: CommandTarget,
    },
    /// Check as `verify` does (until the next version)
    #[command(hide = true)]
    Check {
        /// The database
        #[arg(value_name = "DB")]
        place: CommandTarget,
    },
}

/// Runs a command at the place that it names, or else at the place of a shell.
pub(crate) fn run(
    command: DatabaseCommand,
    place: &mut CommandPlace<'_>,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    match command {
        DatabaseCommand::Inform { of, json } => match of.find(place)? {
            OpenTarget::Database(database) => inform(database, json, out),
            OpenTarget::Servers(servers) => statistics::inform(servers.only()?, json, out),
        },
        DatabaseCommand::Count { of } => {
            let count = match of.find(place)? {
                OpenTarget::Database(database) => visible_records(database.open(false)?.database()),
                OpenTarget::Servers(servers) => statistics::count(servers.targets())?,
            };
            writeln!(out, "{count}")?;
            Ok(())
        }
        DatabaseCommand::List { of, prefix, from, to, limit, reverse, values } => {
            let bytes = |word: Option<OsString>| word.map(|word| word.as_bytes().to_vec());
            let range = KeyRange { prefix: bytes(prefix), from: bytes(from), to: bytes(to), reverse };
            let limit = limit.unwrap_or(u64::MAX);
            match of.find(place)? {
                OpenTarget::Database(database) => list(database, &range, limit, values, out),
                OpenTarget::Servers(_) if range.reverse => Err(CommandFailure::usage(
                    "--reverse: a server lists its keys in no order; needs a .tree database",
                )),
                OpenTarget::Servers(servers) => {
                    list_of_servers(servers.targets(), &range, limit, values, out)
                }
            }
        }
        DatabaseCommand::Import { to, options } => match to.find(place)? {
            (OpenTarget::Database(database), file) => import(database, &file, &options),
            (OpenTarget::Servers(servers), file) => load(servers, &file, &options),
        },
        DatabaseCommand::Export { of, options } => match of.find(place)? {
            (OpenTarget::Database(database), file) => export(database, &file, options),
            (OpenTarget::Servers(servers), file) => dump(servers.targets(), &file, options),
        },
        DatabaseCommand::Copy { from, to } => {
            copy(database(&from, COPIES)?, database(&to, "`todana load` stores records in a server")?)
        }
        DatabaseCommand::Merge { to, from, keep } => {
            let to = database(&to, "`todana load` stores records in a server")?;
            let from = from
                .iter()
                .map(|from| database(from, COPIES))
                .collect::<Result<Vec<&LocalDatabase>, CommandFailure>>()?;
            merge(to, &from, keep)
        }
        DatabaseCommand::Compact { place } => compact(database(&place, "a server compacts by itself")?),
        DatabaseCommand::Check { place } => {
            let hint = "`todana backup` copies a running server's, and `todana verify` checks the backup";
            match database(&place, hint)? {
                LocalDatabase::Named(name) => check(name),
                LocalDatabase::DataDirectory(path) => verify::run(&verify::VerifyArguments::of(path)),
            }
        }
    }
}

/// Returns the database that the word names. Fails if the word names a server; the error ends with
/// `hint`, which names the command to use instead.
fn database<'p>(place: &'p CommandTarget, hint: &str) -> Result<&'p LocalDatabase, CommandFailure> {
    match place {
        CommandTarget::Database(local) => Ok(local),
        CommandTarget::Server(_) | CommandTarget::Ring(_) => {
            Err(CommandFailure::usage(format!("{place}: is a server, not a database on disk; {hint}")))
        }
    }
}

/// The hint for a command that copies from databases on disk only.
const COPIES: &str = "`todana backup` and `todana dump` copy a server's records";

pub(super) fn inform(
    database: &mut OpenDatabase,
    json: bool,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    let local = database.name.clone();
    let db = database.open(false)?;
    let status = db.status();
    let path = local.path();
    let kind = match &local {
        LocalDatabase::Named(name) => name.kind.word(),
        LocalDatabase::DataDirectory(_) => "data directory",
    };
    let mut facts: Vec<(&str, serde_json::Value)> = vec![
        ("kind", kind.into()),
        ("path", path.display().to_string().into()),
        ("records", visible_records(db.database()).into()),
        ("live_bytes", status.live_bytes.into()),
        ("disk_bytes", size_of(path)?.into()),
        ("ordered", db.database().engine().ordered().is_some().into()),
    ];
    if let Some(durable) = db.database().engine().durable() {
        let usage = durable.disk_usage();
        facts.push(("record_files", usage.files.into()));
        facts.push(("record_bytes", usage.bytes.into()));
        facts.push(("openings", durable.open_count().into()));
    }
    if let Some(tree) = db.database().engine().checkpointed() {
        facts.push(("tree_bytes", tree.file_bytes().into()));
    }
    if json {
        let object: serde_json::Map<_, _> =
            facts.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        writeln!(out, "{}", serde_json::Value::Object(object))?;
        return Ok(());
    }
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        writeln!(out, "{name:width$}  {value}")?;
    }
    Ok(())
}

/// Returns the disk space of a directory's files, counted in blocks, because the file of a tree has
/// holes.
pub(crate) fn size_of(path: &Path) -> Result<u64, CommandFailure> {
    let named = |error: io::Error| CommandFailure::trouble(format!("{}: {error}", path.display()));
    let mut sum = 0;
    for entry in std::fs::read_dir(path).map_err(named)? {
        let entry = entry.map_err(named)?;
        let metadata = entry.metadata().map_err(named)?;
        sum += if metadata.is_dir() {
            size_of(&entry.path())?
        } else {
            std::os::unix::fs::MetadataExt::blocks(&metadata) * 512
        };
    }
    Ok(sum)
}

fn list(
    database: &mut OpenDatabase,
    range: &KeyRange,
    limit: u64,
    values: bool,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    let db = database.open(false)?;
    let mut out = io::BufWriter::new(out);
    let mut left = limit;
    if left == 0 {
        return Ok(());
    }
    let is_table = db.name().kind.is_table();
    walk(db, range, &mut |record| {
        // The empty key holds the definitions of a table's indexes.
        if is_table && record.key.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        // Each of several values has its own line.
        for value in record.record().values().take(if values { usize::MAX } else { 1 }) {
            tsv::escape(&mut out, &record.key)?;
            if values {
                out.write_all(b"\t")?;
                tsv::escape(&mut out, value)?;
            }
            out.write_all(b"\n")?;
        }
        left -= 1;
        Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    out.flush()?;
    Ok(())
}

/// Lists the keys of a server, which are not ordered.
fn list_of_servers(
    servers: &[ServerTarget],
    range: &KeyRange,
    limit: u64,
    values: bool,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    if limit == 0 {
        return Ok(());
    }
    let mut out = io::BufWriter::new(out);
    let mut left = limit;
    let is_table = statistics::is_table(&servers[0])?;
    // The empty key holds the definitions of a table's indexes.
    let is_wanted = |key: &[u8]| range.has(key) && !(is_table && key.is_empty());
    let wanted = RecordSelection { keys: &is_wanted, values };
    let left_out = walk_servers(servers, &wanted, &mut |key, value, _, _| {
        tsv::escape(&mut out, key)?;
        if values {
            out.write_all(b"\t")?;
            tsv::escape(&mut out, value)?;
        }
        out.write_all(b"\n")?;
        left -= 1;
        Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    out.flush()?;
    left_out.fail_if_any()
}

/// Stores all records of one database in another, except existing ones if `keeps` is true. Returns
/// the number of records read.
fn copy_records(from: &Db, to: &Db, keeps: bool) -> Result<u64, CommandFailure> {
    let bar = records_bar(from.count());
    let mut copied = 0;
    walk(from, &KeyRange::default(), &mut |record| {
        // Versions have a meaning only within their own database.
        let attributes = Attributes { version: 0, access: None, ..record.attributes };
        let stored = Record { attributes, ..record.record() };
        to.database().expect_storable(&record.key, &stored)?;
        let put = Action::Put(stored);
        to.visit(&record.key, &mut StoreRecord { put, keeps })?;
        copied += 1;
        bar.set_position(copied);
        Ok(ControlFlow::Continue(()))
    })?;
    bar.finish_and_clear();
    Ok(copied)
}

fn copy(from: &LocalDatabase, to: &LocalDatabase) -> Result<(), CommandFailure> {
    let to = to.named("a copy must be a database on disk or on a cluster")?;
    if let Some(copied) = copy_of_cluster(from, to) {
        return copied;
    }
    let path = to.path.as_deref().unwrap_or(Path::new(""));
    expect_new(to)?;
    refuse_overlap([from.path()], path)?;
    let source = open(from, false)?;
    let interruption = InterruptionFlag::watch()?;
    let bar = records_bar(source.count());
    let copied = source.copy_unless(&to.to_string(), &mut |copied| {
        bar.set_position(copied);
        if interruption.check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    interruption.check()?;
    let copied = copied.map_err(|error| super::open_failure(error, path))?;
    bar.finish_and_clear();
    eprintln!("{} copied", amount(copied, "record"));
    Ok(())
}

/// Copies from or to a database on a cluster. Returns `None` if neither database is on one.
fn copy_of_cluster(from: &LocalDatabase, to: &DatabaseName) -> Option<Result<(), CommandFailure>> {
    let source = match from {
        LocalDatabase::Named(name) if name.cluster.is_some() => Some(name),
        _ => None,
    };
    if source.is_none() && to.cluster.is_none() {
        return None;
    }
    Some(match (source, &to.cluster) {
        (Some(_), Some(_)) => Err(CommandFailure::usage(
            "one of the two databases must be on disk; copy from the cluster to disk, and from there to the other",
        )),
        #[cfg(feature = "cassandra")]
        (None, _) => super::cluster_copy::copy_to(from, to),
        #[cfg(feature = "cassandra")]
        (Some(source), None) => expect_new(to).and_then(|()| super::cluster_copy::copy_from(source, to)),
        #[cfg(not(feature = "cassandra"))]
        _ => Err(CommandFailure::usage(
            "this build cannot connect to a cluster; build it with --features cassandra",
        )),
    })
}

/// Fails if something exists at the path of a new database.
fn expect_new(to: &DatabaseName) -> Result<(), CommandFailure> {
    let path = to.path.as_deref().unwrap_or(Path::new(""));
    match path.symlink_metadata() {
        Ok(_) => Err(CommandFailure::usage(format!(
            "{}: exists already; existing files are never replaced",
            path.display()
        ))),
        Err(_) => Ok(()),
    }
}

fn merge(to: &LocalDatabase, from: &[&LocalDatabase], keeps: bool) -> Result<(), CommandFailure> {
    for local in from {
        if local.path() == to.path() {
            return Err(CommandFailure::usage(format!("{local}: cannot be merged into itself")));
        }
        if let LocalDatabase::Named(name) = local {
            expect_no_truncation(name)?;
        }
        expect_database(local.path())?;
    }
    let target = open(to, true)?;
    let mut merged = 0;
    for name in from {
        merged += copy_records(&open(name, false)?, &target, keeps)?;
    }
    target.sync()?;
    eprintln!("{} merged; the database has {} now", amount(merged, "record"), target.count());
    Ok(())
}

fn compact(local: &LocalDatabase) -> Result<(), CommandFailure> {
    let path = local.path();
    expect_database(path)?;
    let instead = match local {
        LocalDatabase::Named(name) if name.kind.storage() != DatabaseStorage::FilesAndLog => None,
        LocalDatabase::Named(name) => Some(format!(
            "{name}: trees reuse free pages but never shrink the file; `todana copy {name} NEW.tree` writes a compact copy"
        )),
        LocalDatabase::DataDirectory(_) => Some(format!(
            "{local}: its server keeps the log short; `todana restore {local} NEW` writes a data directory with a single checkpoint"
        )),
    };
    if let Some(instead) = instead {
        return Err(CommandFailure::usage(instead));
    }
    let before = size_of(path)?;
    let db = open(local, false)?;
    let bar = progress(None, "{spinner} compacting, {bytes} on disk");
    while db.database().maintain() {
        bar.set_position(db.database().engine().durable().map_or(0, |durable| durable.disk_usage().bytes));
    }
    db.sync()?;
    drop(db);
    bar.finish_and_clear();
    let after = size_of(path)?;
    if after < before {
        eprintln!("{local}: {before} bytes on disk before, {after} now");
    } else {
        eprintln!("{local}: nothing to compact, {after} bytes on disk");
    }
    Ok(())
}

/// Checks every checksum of a database on disk that no server has open.
pub(crate) fn check(name: &DatabaseName) -> Result<(), CommandFailure> {
    let damaged = |error: &dyn std::fmt::Display| {
        // If the line cannot be written, the exit code still reports the damage.
        let _ = writeln!(io::stdout(), "damaged: {error}");
        CommandFailure::miss()
    };
    let path = name.path.as_deref().unwrap_or(Path::new(""));
    expect_no_truncation(name)?;
    expect_database(path)?;
    let bar = progress(None, "reading {spinner} {bytes} {bytes_per_sec}");
    let verified = todana::verify(Arc::new(SystemDisk), path, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    let verified = match verified {
        Err(error) if error.kind() == todana_core::ErrorKind::Corrupt => return Err(damaged(&error)),
        verified => verified.map_err(|error| super::open_failure(error, path))?,
    };
    if !verified.damages.is_empty() {
        verified.damages.iter().for_each(|damage| drop(damaged(damage)));
        // `salvage` is suggested only if it can help: from a tree whose pages are damaged, it
        // recovers nothing.
        if name.kind.storage() == DatabaseStorage::Files || verified.tree.is_some() {
            let _ = writeln!(io::stdout(), "{}", salvage::advice(path));
        }
        return Err(CommandFailure::miss());
    }
    let db = match DbOptions::default().read_only().open(&name.to_string()) {
        Ok(db) => super::print_notes(db),
        Err(error) if error.kind() == todana_core::ErrorKind::Corrupt => return Err(damaged(&error)),
        Err(error) => return Err(super::open_failure(error, path)),
    };
    let bar = records_bar(db.count());
    let (mut place, mut checked, mut bytes) = (None, 0u64, 0u64);
    loop {
        // The scan also returns expired records.
        let scanned = db.database().engine().read_all(place.take(), &mut |key, record| {
            checked += 1;
            bytes += (key.len() + record.value.len()) as u64;
            bar.set_position(checked);
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(None) => break,
            Ok(next) => place = next,
            Err(error) => {
                bar.finish_and_clear();
                return Err(match error.kind() {
                    todana_core::ErrorKind::Corrupt => damaged(&error),
                    _ => error.into(),
                });
            }
        }
    }
    bar.finish_and_clear();
    if checked < db.count() {
        return Err(damaged(&format!("only {checked} of {} can be read", amount(db.count(), "record"))));
    }
    let without_checksum = verified.tree.map_or(0, |tree| tree.without_checksum);
    let doubt = match without_checksum {
        0 => String::new(),
        _ => {
            let count = amount(without_checksum, "record");
            format!("; {count} without a checksum: `todana copy {name} NEW.tree` adds them")
        }
    };
    let checked = amount(checked, "record");
    writeln!(io::stdout(), "intact: {checked}, {bytes} bytes of keys and values{doubt}")?;
    Ok(())
}
