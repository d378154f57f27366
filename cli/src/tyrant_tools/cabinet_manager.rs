//! `tchmgr`, `tcbmgr`, `tcfmgr`, `tctmgr` and `tcamgr`: commands on a database that no server uses.
//!
//! The suffix of a path selects the kind of the database, or the tool does if there is none.
//! Options for buckets, pages and locks are accepted without effect. Tuning of the originals that
//! changes the meaning of a database (comparators, codecs of programs) is refused.

use super::ToolFailure;
use super::number::{number_in, whole_in};
use super::tool_output::ValueForm;
use super::tsv_input;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use todana::table::visible_records;
use todana::tyrant::{AddValuesVisitor, SumVisitor};
use todana::{DatabaseName, Db, Records};
use todana_core::{Modify, Operation, ValueChange};
use todana_server::DatabaseKind;

/// The version that is printed for scripts.
const VERSION: &str = "Tokyo Cabinet version 1.4.48 (911:1.0) for Linux";

const USAGE: [&str; 9] = [
    "create path [tuning...]",
    "inform path",
    "put [-sx] [-sep chr] [-dk|-dc|-dd|-db|-dai|-dad] path key value",
    "out [-sx] [-sep chr] path key",
    "get [-sx] [-sep chr] [-px] [-pz] path key",
    "list [-sep chr] [-m num] [-pv] [-px] [-fm str] [-rb bkey ekey] path",
    "optimize path",
    "importtsv [-sc] path [file]",
    "version",
];

/// Options without effect: those without a value, and those with one.
const IGNORED: [&str; 10] = ["-nl", "-nb", "-tl", "-td", "-tb", "-tt", "-tx", "-tz", "-df", "-bk"];

/// The kind of database that a tool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CabinetTool {
    Hash,
    Tree,
    Fixed,
    Table,
    /// Any kind. The suffix of the path selects it.
    Abstract,
}

impl CabinetTool {
    /// Returns the name of the kind for a path without a suffix, and in the output.
    fn words(self) -> Option<(&'static str, &'static str)> {
        match self {
            CabinetTool::Hash => Some(("hash", "hash")),
            CabinetTool::Tree => Some(("tree", "btree")),
            CabinetTool::Fixed => Some(("fixed", "fixed")),
            CabinetTool::Table => Some(("table", "table")),
            CabinetTool::Abstract => None,
        }
    }

    fn is_of(self, kind: DatabaseKind) -> bool {
        match self {
            CabinetTool::Hash => kind == DatabaseKind::DiskHash,
            CabinetTool::Tree => kind == DatabaseKind::DiskTree,
            CabinetTool::Fixed => kind == DatabaseKind::DiskFixed,
            CabinetTool::Table => kind == DatabaseKind::DiskTable,
            CabinetTool::Abstract => !kind.is_in_memory(),
        }
    }
}

/// The options of all commands.
#[derive(Default)]
struct CabinetOptions {
    form: ValueForm,
    put_mode: Option<&'static str>,
    has_no_line_end: bool,
    count_max: Option<usize>,
    shows_values: bool,
    prefix: Option<String>,
    range: Option<(String, String)>,
    is_lowered: bool,
}

pub(super) fn run(tool: CabinetTool, program: &str, words: Vec<String>) -> Result<(), ToolFailure> {
    let usage = || ToolFailure::usage(program, "commands on a database of Todana", &USAGE);
    let mut words = words.into_iter();
    let verb = words.next().ok_or_else(usage)?;
    if verb == "version" {
        println!("{VERSION} (Todana {})", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    let (mut options, mut places) = (CabinetOptions::default(), Vec::new());
    while let Some(word) = words.next() {
        if places.is_empty() && word.starts_with('-') {
            options.option(&word, &mut words).ok_or_else(usage)?;
        } else {
            places.push(word);
        }
    }
    let (path, arguments) = places.split_first().ok_or_else(usage)?;
    let is_table = tool == CabinetTool::Table;
    let needed = match verb.as_str() {
        "put" if is_table => 1..=usize::MAX,
        "put" => 2..=2,
        "get" | "out" => 1..=1,
        "importtsv" => 0..=1,
        "create" | "optimize" => 0..=5,
        "inform" | "list" => 0..=0,
        _ => return Err(usage()),
    };
    if !needed.contains(&arguments.len()) {
        return Err(usage());
    }
    let name = tool.name(path, &verb, arguments)?;
    let database = Cabinet { tool, path, options };
    let db = Db::open(&name).map_err(|error| database.failure(&error))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    database.perform(&verb, &db, arguments, &mut out)?;
    out.flush()?;
    if !matches!(verb.as_str(), "get" | "list" | "inform") {
        db.sync().map_err(|error| database.failure(&error))?;
    }
    Ok(())
}

impl CabinetOptions {
    fn option(&mut self, option: &str, words: &mut impl Iterator<Item = String>) -> Option<()> {
        match option {
            "-sx" => self.form.reads_hex = true,
            "-px" => self.form.writes_hex = true,
            "-sep" => self.form.separator = Some(*words.next()?.as_bytes().first()?),
            "-dk" => self.put_mode = Some("-dk"),
            "-dc" => self.put_mode = Some("-dc"),
            "-dd" => self.put_mode = Some("-dd"),
            "-db" => self.put_mode = Some("-db"),
            "-dai" => self.put_mode = Some("-dai"),
            "-dad" => self.put_mode = Some("-dad"),
            "-pz" => self.has_no_line_end = true,
            "-pv" => self.shows_values = true,
            "-sc" => self.is_lowered = true,
            "-m" => self.count_max = usize::try_from(words.next()?.parse::<i64>().ok()?).ok(),
            "-fm" => self.prefix = Some(words.next()?),
            "-rb" => self.range = Some((words.next()?, words.next()?)),
            _ if IGNORED.contains(&option) => {}
            _ => return None,
        }
        Some(())
    }
}

impl CabinetTool {
    /// Returns the name of the database. Fails if it does not exist, unless the command creates it.
    fn name(self, path: &str, verb: &str, arguments: &[String]) -> Result<String, ToolFailure> {
        let missing = || ToolFailure(format!(": {path}: 3: file not found"));
        let invalid = |problem: &str| ToolFailure(format!(": {path}: 2: {problem}"));
        let with_type =
            self.words().map_or_else(|| path.to_owned(), |(word, _)| format!("{path}#type={word}"));
        let named = DatabaseName::parse_as_original(path).is_ok_and(|name| self.is_of(name.kind));
        let text = if named { path.to_owned() } else { with_type };
        let name = DatabaseName::parse_as_original(&text).map_err(|error| invalid(&error.to_string()))?;
        if !self.is_of(name.kind) {
            return Err(invalid("the tool is for databases of another kind"));
        }
        let place = name.path.as_deref().unwrap_or(Path::new(path));
        if place.is_file() {
            let problem = todana::cabinet_file_problem(place);
            return Err(invalid(&problem.unwrap_or_else(|| "is a file; a database is a directory".into())));
        }
        if verb != "create" && !place.exists() {
            return Err(missing());
        }
        let tuning = match (self, verb) {
            (CabinetTool::Fixed, "create") => {
                let words = ["width", "limsiz"].iter().zip(arguments);
                words.map(|(name, value)| format!("#{name}={value}")).collect()
            }
            _ => String::new(),
        };
        Ok(text + &tuning)
    }
}

/// A database that a tool works on.
struct Cabinet<'p> {
    tool: CabinetTool,
    path: &'p str,
    options: CabinetOptions,
}

impl Cabinet<'_> {
    fn failure(&self, error: &todana::Error) -> ToolFailure {
        ToolFailure(format!(": {}: 9999: {error}", self.path))
    }

    /// Returns the failure for a condition that does not hold.
    fn unmet(&self, code: u32, text: &str) -> ToolFailure {
        match self.tool {
            CabinetTool::Abstract => ToolFailure(format!(": {}: error", self.path)),
            _ => ToolFailure(format!(": {}: {code}: {text}", self.path)),
        }
    }

    fn perform(
        &self,
        verb: &str,
        db: &Db,
        arguments: &[String],
        out: &mut impl Write,
    ) -> Result<(), ToolFailure> {
        let form = self.options.form;
        let key = arguments.first().map_or_else(Vec::new, |key| form.bytes(key));
        match verb {
            "inform" => self.inform(db, out),
            "put" => self.put(db, &key, &arguments[1..], out),
            "out" => match db.remove(&key).map_err(|error| self.failure(&error))? {
                true => Ok(()),
                false => Err(self.unmet(22, "no record found")),
            },
            "get" => {
                let value = db.get(&key).map_err(|error| self.failure(&error))?;
                let value = value.ok_or_else(|| self.unmet(22, "no record found"))?;
                if self.tool == CabinetTool::Table {
                    return self.put_columns(&value, out);
                }
                form.put(&value, out)?;
                if !self.options.has_no_line_end {
                    writeln!(out)?;
                }
                Ok(())
            }
            "list" => self.list(db, out),
            "optimize" => {
                while db.database().maintain() {}
                Ok(())
            }
            "importtsv" => self.import(db, arguments.first(), out),
            _ => Ok(()),
        }
    }

    fn inform(&self, db: &Db, out: &mut impl Write) -> Result<(), ToolFailure> {
        let kind = match (self.tool.words(), db.name().kind) {
            (Some((_, word)), _) => word,
            (None, DatabaseKind::DiskTree) => "B+ tree database",
            (None, DatabaseKind::DiskFixed) => "fixed-length database",
            (None, DatabaseKind::DiskTable) => "table database",
            (None, _) => "hash database",
        };
        writeln!(out, "path: {}\ndatabase type: {kind}", self.path)?;
        writeln!(out, "record number: {}", visible_records(db.database()))?;
        let word = if self.tool == CabinetTool::Abstract { "size" } else { "file size" };
        let path = db.name().path.as_deref().unwrap_or(Path::new(self.path));
        writeln!(out, "{word}: {}", crate::database::size_of(path).unwrap_or(0))?;
        Ok(())
    }

    fn put(&self, db: &Db, key: &[u8], values: &[String], out: &mut impl Write) -> Result<(), ToolFailure> {
        let failure = |error: todana::Error| self.failure(&error);
        let columns: Vec<Vec<u8>> = values.iter().map(|value| self.options.form.bytes(value)).collect();
        let value = columns.join(&0);
        let text = values.first().map_or("", String::as_str);
        match self.options.put_mode {
            None => db.set(key, &value).map_err(failure)?,
            Some("-dk") => {
                if !db.add(key, &value).map_err(failure)? {
                    return Err(self.unmet(21, "existing record"));
                }
            }
            Some("-dc") if self.tool == CabinetTool::Table => {
                let table = todana::table::Table::new(db).map_err(failure)?;
                let row = todana::table::Row::from_bytes(&value).map_err(failure)?;
                let columns: Vec<_> = row.columns().collect();
                table.add_columns(key, &columns).map_err(failure)?;
            }
            Some("-dc") => {
                let change = ValueChange::Append(&value);
                let operation = Operation::Modify(Modify { key, ttl: None, change });
                db.execute(&operation, &mut |_| ()).map_err(failure)?;
            }
            Some(mode @ ("-dd" | "-db")) => {
                if self.tool != CabinetTool::Tree {
                    return Err(self.unmet(2, "invalid operation"));
                }
                let values = [value.as_slice()];
                let mut visitor = match mode {
                    "-dd" => AddValuesVisitor::last(&values),
                    _ => AddValuesVisitor::first(&values),
                };
                db.visit(key, &mut visitor).map_err(failure)?;
            }
            Some("-dai") => {
                let mut visitor = SumVisitor::new(whole_in(text) as i32);
                db.visit(key, &mut visitor).map_err(failure)?;
                let sum = visitor.sum().ok_or_else(|| self.unmet(21, "existing record"))?;
                writeln!(out, "{sum}")?;
            }
            Some(_) => {
                let mut visitor = SumVisitor::new(number_in(text));
                db.visit(key, &mut visitor).map_err(failure)?;
                let sum = visitor.sum().ok_or_else(|| self.unmet(21, "existing record"))?;
                writeln!(out, "{sum:.6}")?;
            }
        }
        Ok(())
    }

    /// Prints the columns of a row, one per line.
    fn put_columns(&self, row: &[u8], out: &mut impl Write) -> Result<(), ToolFailure> {
        let fields: Vec<&[u8]> = row.split(|&byte| byte == 0).collect();
        for column in fields.chunks_exact(2) {
            self.options.form.put(column[0], out)?;
            out.write_all(b"\t")?;
            self.options.form.put(column[1], out)?;
            writeln!(out)?;
        }
        Ok(())
    }

    fn list(&self, db: &Db, out: &mut impl Write) -> Result<(), ToolFailure> {
        let CabinetOptions { form, prefix, range, count_max, .. } = &self.options;
        let prefix = prefix.as_ref().map_or_else(Vec::new, |prefix| form.bytes(prefix));
        let range = range.as_ref().map(|(first, last)| (form.bytes(first), form.bytes(last)));
        let (mut left, mut outcome) = (count_max.unwrap_or(usize::MAX), Ok(()));
        let is_table = db.name().kind.is_table();
        let mut see = |key: &[u8], record: todana_core::Record<'_>| {
            // The empty key holds the definitions of a table's indexes.
            let is_wanted = !(is_table && key.is_empty())
                && key.starts_with(&prefix)
                && range
                    .as_ref()
                    .is_none_or(|(first, last)| key >= first.as_slice() && key <= last.as_slice());
            for value in record.values().take(if is_wanted { left } else { 0 }) {
                left -= 1;
                outcome = outcome.clone().and_then(|()| self.put_record(key, value, out));
            }
            if left > 0 && outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let walked = db.for_each_stored(&mut see);
        walked.map_err(|error| self.failure(&error))?;
        outcome
    }

    fn put_record(&self, key: &[u8], value: &[u8], out: &mut impl Write) -> Result<(), ToolFailure> {
        let form = self.options.form;
        match self.tool {
            // Like the original, the tool prints numbers in decimal.
            CabinetTool::Fixed => out.write_all(key)?,
            _ => form.put(key, out)?,
        }
        if self.options.shows_values && self.tool == CabinetTool::Table {
            let has_columns = !value.is_empty();
            for field in value.split(|&byte| byte == 0).filter(|_| has_columns) {
                out.write_all(b"\t")?;
                form.put(field, out)?;
            }
        } else if self.options.shows_values {
            out.write_all(b"\t")?;
            form.put(value, out)?;
        }
        writeln!(out)?;
        Ok(())
    }

    /// Stores the lines of a file. Lines without a tab are skipped.
    fn import(&self, db: &Db, path: Option<&String>, out: &mut impl Write) -> Result<(), ToolFailure> {
        tsv_input::import(path, self.options.is_lowered, out, |key, value| {
            if self.tool == CabinetTool::Table {
                value.iter_mut().filter(|byte| **byte == b'\t').for_each(|byte| *byte = 0);
            }
            let stored = match self.tool {
                // Like the original, the tool adds a value to those of the key.
                CabinetTool::Tree => db.visit(key, &mut AddValuesVisitor::last(&[&*value])),
                _ => db.set(key, value),
            };
            stored.map_err(|error| self.failure(&error))
        })
    }
}
