//! Import and export of record files, for a database on disk.

use super::key_range::{KeyRange, walk};
use crate::CommandFailure;
use crate::amount::amount;
use crate::formats::{DumpOptions, FileChange, LoadOptions, LoadTally, RecordWriter, StoreProblem, read};
use crate::open_target::OpenDatabase;
use crate::progress::records as records_bar;
use crate::time_to_live;
use std::ops::ControlFlow;
use std::path::Path;
use todana::tyrant::{AddValuesVisitor, AppliedOutcome, LoggedTarget, apply_logged};
use todana::{Action, Database, Db, Record, Records, Visitor};
use todana_core::{Attributes, ErrorKind};

/// Writes all records of a database to a file.
pub(super) fn export(
    database: &mut OpenDatabase,
    file: &Path,
    options: DumpOptions,
) -> Result<(), CommandFailure> {
    let db = database.open(false)?;
    let mut writer = RecordWriter::create(file, options)?;
    let bar = records_bar(db.count());
    let mut passed = 0u64;
    walk(db, &KeyRange::default(), &mut |record| {
        let mut values = record.record().values();
        let first = values.next().unwrap_or_default();
        writer.put(&record.key, first, record.attributes.flags, record.attributes.expiry.into())?;
        values.try_for_each(|value| writer.put_further(&record.key, value))?;
        passed += 1;
        bar.set_position(passed);
        Ok(ControlFlow::Continue(()))
    })?;
    let written = writer.finish()?;
    bar.finish_and_clear();
    eprintln!("{} written", amount(written, "record"));
    Ok(())
}

/// Stores the records of a file in a database. The changes of an update log of Kyoto Tycoon are
/// applied in their order.
pub(super) fn import(
    database: &mut OpenDatabase,
    file: &Path,
    options: &LoadOptions,
) -> Result<(), CommandFailure> {
    // The file is checked first, so that a wrong path does not create an empty database.
    if file != Path::new("-") {
        file.metadata().map_err(|error| CommandFailure::of_file(file, error))?;
    }
    let db = database.open(true)?;
    let (now, mut tally) = (time_to_live::now(), LoadTally::default());
    let outcome = read(file, options, &mut tally, &mut |change, tally| take(db, now, change, tally));
    // If a part of the file is unreadable, the records before it are stored and counted.
    let synced = db.sync();
    let outcome = outcome.and(synced.map_err(CommandFailure::from));
    tally.report(false, outcome.as_ref().err());
    outcome.map_err(CommandFailure::silent)?;
    tally.fail_if_refused("the database")
}

fn take(db: &Db, now: u64, change: FileChange<'_>, tally: &mut LoadTally) -> Result<(), StoreProblem> {
    let refused = |error: todana_core::Error| match error.kind() {
        ErrorKind::Invalid => StoreProblem::ToRecord(error.to_string()),
        _ => StoreProblem::from(error),
    };
    match change {
        FileChange::Put(record) => {
            if record.expiry.at != 0 && record.expiry.at <= now {
                tally.skipped += 1;
                return Ok(());
            }
            let expiry = record.expiry.into();
            let attributes = Attributes { flags: record.flags, expiry, ..Attributes::default() };
            let put = Action::Put(Record::new(record.value, attributes));
            db.visit(record.key, &mut StoreRecord { put, keeps: false }).map_err(refused)?;
            tally.loaded += 1;
        }
        FileChange::AddValue { key, value } => {
            if !db.database().holds_value_lists() {
                let what = "the key has several values, and only a tree stores them";
                return Err(StoreProblem::ToRecord(what.into()));
            }
            db.visit(key, &mut AddValuesVisitor::last(&[value])).map_err(refused)?;
            tally.loaded += 1;
        }
        FileChange::Remove(key) => {
            tally.removed += u64::from(db.remove(key).map_err(refused)?);
        }
        FileChange::Clear => {
            db.clear()?;
            tally.cleared += 1;
        }
        FileChange::Command(command) => {
            let outcome = apply_logged(command, &mut DbTarget { db, tally }).map_err(refused)?;
            tally.differ += u64::from(outcome == AppliedOutcome::Different);
        }
    }
    Ok(())
}

/// A database on disk as the target of Tokyo Tyrant's commands.
struct DbTarget<'t> {
    db: &'t Db,
    tally: &'t mut LoadTally,
}

impl<'t> LoggedTarget<'t> for DbTarget<'t> {
    fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> todana_core::Result<()> {
        let mut noting = NotingVisitor { inner: visitor, stores: false, removes: false };
        self.db.visit(key, &mut noting)?;
        self.tally.loaded += u64::from(noting.stores);
        self.tally.removed += u64::from(noting.removes);
        Ok(())
    }

    fn clear(&mut self) -> todana_core::Result<()> {
        self.tally.cleared += 1;
        self.db.clear()
    }

    fn sync(&mut self) -> todana_core::Result<()> {
        self.db.sync()
    }

    fn database(&self) -> Option<&'t Database> {
        Some(self.db.database())
    }
}

/// Passes a record to another visitor, and notes whether that stores or removes it.
struct NotingVisitor<'v> {
    inner: &'v mut dyn Visitor,
    stores: bool,
    removes: bool,
}

impl Visitor for NotingVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let action = self.inner.visit(old);
        (self.stores, self.removes) = (matches!(action, Action::Put(_)), action == Action::Remove);
        action
    }

    fn overwrites(&self) -> bool {
        self.inner.overwrites()
    }

    fn sees_value_list(&self) -> bool {
        self.inner.sees_value_list()
    }
}

/// Stores a record with its attributes.
pub(super) struct StoreRecord<'r> {
    pub(super) put: Action<'r>,
    /// Keeps a record that exists instead of overwriting it.
    pub(super) keeps: bool,
}

impl Visitor for StoreRecord<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        if self.keeps && old.is_some() { Action::Keep } else { self.put }
    }

    fn sees_value_list(&self) -> bool {
        true
    }
}
