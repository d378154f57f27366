//! Executes the commands in Tokyo Tyrant's update logs.

use super::{
    AddValuesVisitor, CutVisitor, RemoveValuesVisitor, ShiftVisitor, SumVisitor, TableSearch, put_lists,
};
use crate::Database;
use crate::table::{
    ColumnSumVisitor, IndexChange, IndexVisitor, Row, RowPutMode, RowRemover, RowVisitor, SearchOptions,
    new_row_number_by,
};
use std::borrow::Cow;
use std::ops::ControlFlow;
use todana_core::{Action, Attributes, Error, ErrorKind, NumberedEngine, Record, Result, Visitor};
use todana_protocol::tyrant::{FieldList, LoggedCommand, TyrantPutMode, TyrantRequest};

/// The most bytes of keys that a search may sort, as in a server.
const SORTED_BYTES_MAX: usize = 1 << 28;

/// The place where the commands of an update log are executed.
pub trait LoggedTarget<'d> {
    /// Runs a visitor on a record.
    fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()>;
    /// Removes all records.
    fn clear(&mut self) -> Result<()>;
    /// Writes all changes to disk.
    fn sync(&mut self) -> Result<()>;
    /// Returns the database of the target. `None` means a hash elsewhere.
    fn database(&self) -> Option<&'d Database> {
        None
    }
}

/// Whether a command had the same outcome as in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedOutcome {
    /// The outcome is the same, or cannot be compared.
    AsLogged,
    /// The command has succeeded here and failed in the log, or the other way round.
    Different,
}

/// Executes a command of an update log. Fails if the target cannot be changed now.
pub fn apply_logged<'d>(
    command: &LoggedCommand<'_>,
    target: &mut dyn LoggedTarget<'d>,
) -> Result<AppliedOutcome> {
    let database = target.database();
    let is_done = match (LoggedChanges { target, database }).execute(&command.request) {
        // If the command cannot succeed at this target, for example because the key is too long,
        // trying again does not help.
        Err(error) if error.kind() == ErrorKind::Invalid && !error.is_refused_write() => Some(false),
        outcome => outcome?,
    };
    let is_same = match command.request {
        // A command that failed in the log may succeed here, because the target has other numbers.
        TyrantRequest::AddInt { .. } | TyrantRequest::AddDouble { .. } => {
            !command.is_done || is_done == Some(true)
        }
        _ => is_done.is_none_or(|is_done| is_done == command.is_done),
    };
    Ok(if is_same { AppliedOutcome::AsLogged } else { AppliedOutcome::Different })
}

struct LoggedChanges<'t, 'd> {
    target: &'t mut dyn LoggedTarget<'d>,
    database: Option<&'d Database>,
}

impl LoggedChanges<'_, '_> {
    /// Executes a request. Returns true if it succeeds, and `None` if it does not change records.
    fn execute(&mut self, request: &TyrantRequest<'_>) -> Result<Option<bool>> {
        if self.database.is_some_and(|database| database.engine().indexed().is_some())
            && let Some(outcome) = self.execute_on_table(request)?
        {
            return Ok(Some(outcome));
        }
        match *request {
            TyrantRequest::Put { mode, key, value } => self.put(mode, key, value).map(Some),
            TyrantRequest::PutShl { key, value, width } => {
                self.visit(key, &mut ShiftVisitor::new(value, width as usize)).map(|()| Some(true))
            }
            TyrantRequest::Out { key } => self.out(key).map(Some),
            TyrantRequest::AddInt { key, delta } => {
                let mut visitor = SumVisitor::new(delta);
                self.visit(key, &mut visitor)?;
                Ok(Some(visitor.sum().is_some()))
            }
            TyrantRequest::AddDouble { key, delta } => {
                let mut visitor = SumVisitor::new(delta);
                self.visit(key, &mut visitor)?;
                Ok(Some(visitor.sum().is_some()))
            }
            TyrantRequest::Sync => self.target.sync().map(|()| Some(true)),
            TyrantRequest::Vanish => self.target.clear().map(|()| Some(true)),
            TyrantRequest::Misc { name, arguments, .. } => self.misc(name, arguments),
            // The target has its own tuning, so that of the log is ignored. No other commands are
            // logged.
            _ => Ok(None),
        }
    }

    /// Executes a function of `misc`. Functions that only read are ignored.
    fn misc(&mut self, name: &[u8], arguments: FieldList<'_>) -> Result<Option<bool>> {
        let may_have_several = self.database.is_some_and(Database::holds_value_lists);
        let is_done = match (name, arguments.get(0), arguments.get(1)) {
            // Other kinds of databases do not have these functions.
            (b"putdup" | b"putdupback", ..) if !may_have_several => false,
            (b"putdup", Some(key), Some(value)) => {
                self.visit(key, &mut AddValuesVisitor::last(&[value])).map(|()| true)?
            }
            (b"putdupback", Some(key), Some(value)) => {
                self.visit(key, &mut AddValuesVisitor::first(&[value])).map(|()| true)?
            }
            (b"putlist", ..) if may_have_several => {
                let put =
                    &mut |key: &[u8], values: &[&[u8]]| self.visit(key, &mut AddValuesVisitor::last(values));
                put_lists(arguments, put).map(|()| true)?
            }
            (b"outlist", ..) if may_have_several => {
                for key in arguments {
                    self.visit(key, &mut RemoveValuesVisitor::default())?;
                }
                true
            }
            (b"put", Some(key), Some(value)) => self.put(TyrantPutMode::Put, key, value)?,
            (b"putkeep", Some(key), Some(value)) => self.put(TyrantPutMode::Keep, key, value)?,
            (b"putcat", Some(key), Some(value)) => self.put(TyrantPutMode::Cat, key, value)?,
            (b"out", Some(key), _) => self.out(key)?,
            (b"putlist", ..) => {
                let mut pairs = arguments.iter();
                while let (Some(key), Some(value)) = (pairs.next(), pairs.next()) {
                    self.put(TyrantPutMode::Put, key, value)?;
                }
                true
            }
            (b"outlist", ..) => {
                for key in arguments {
                    self.out(key)?;
                }
                true
            }
            (b"vanish", ..) => self.target.clear().map(|()| true)?,
            (b"sync", ..) => self.target.sync().map(|()| true)?,
            _ => return Ok(None),
        };
        Ok(Some(is_done))
    }

    /// Executes a command whose effect on a table differs from that on other databases. Returns
    /// `None` for other commands.
    fn execute_on_table(&mut self, request: &TyrantRequest<'_>) -> Result<Option<bool>> {
        let is_done = match *request {
            TyrantRequest::Put { mode, key, value } => {
                let mode = match mode {
                    TyrantPutMode::Put | TyrantPutMode::NoReply => RowPutMode::Put,
                    TyrantPutMode::Keep => RowPutMode::Keep,
                    TyrantPutMode::Cat => RowPutMode::AddMissing,
                };
                self.put_row(mode, key, &Row::from_bytes(value)?)?
            }
            TyrantRequest::AddInt { key, delta } => self.add_to_row(key, f64::from(delta))?,
            TyrantRequest::AddDouble { key, delta } => self.add_to_row(key, delta)?,
            // The record with the empty key holds the definitions of the indexes.
            TyrantRequest::Out { key: b"" } | TyrantRequest::PutShl { key: b"", .. } => false,
            TyrantRequest::Misc { name, arguments, .. } => return self.misc_on_table(name, arguments),
            _ => return Ok(None),
        };
        Ok(Some(is_done))
    }

    fn misc_on_table(&mut self, name: &[u8], arguments: FieldList<'_>) -> Result<Option<bool>> {
        let is_done = match (name, arguments.get(0)) {
            (b"put" | b"putkeep" | b"putcat" | b"out", Some(b"")) => false,
            (b"put", Some(key)) => self.put_row(RowPutMode::Put, key, &columns(arguments)?)?,
            (b"putkeep", Some(key)) => self.put_row(RowPutMode::Keep, key, &columns(arguments)?)?,
            (b"putcat", Some(key)) => self.put_row(RowPutMode::AddMissing, key, &columns(arguments)?)?,
            (b"putlist", _) => {
                let (mut pairs, mut is_done) = (arguments.iter(), true);
                while let (Some(key), Some(value)) = (pairs.next(), pairs.next()) {
                    is_done &=
                        !key.is_empty() && self.put_row(RowPutMode::Put, key, &Row::from_bytes(value)?)?;
                }
                is_done
            }
            (b"outlist", _) if arguments.iter().any(<[u8]>::is_empty) => false,
            (b"setindex", _) => {
                let (mut pairs, mut is_done) = (arguments.iter(), true);
                while let (Some(column), Some(kind)) = (pairs.next(), pairs.next()) {
                    let Some(change) = IndexChange::parse(kind) else { return Ok(Some(false)) };
                    let mut visitor = IndexVisitor::new(column, change);
                    self.target.visit(b"", &mut visitor)?;
                    is_done &= visitor.is_done;
                }
                is_done
            }
            (b"search" | b"metasearch", _) => match TableSearch::parse(arguments) {
                Some(search) if !search.removes() => return Ok(None),
                Some(search) => self.remove_rows(&search)?,
                None => false,
            },
            _ => return Ok(None),
        };
        Ok(Some(is_done))
    }

    /// Returns the key, or a new number for the empty one.
    fn key_or_number<'k>(&mut self, key: &'k [u8]) -> Result<Cow<'k, [u8]>> {
        if !key.is_empty() {
            return Ok(Cow::Borrowed(key));
        }
        let indexed = self.database.and_then(|database| database.engine().indexed());
        let indexed = indexed.ok_or_else(|| Error::new(ErrorKind::Invalid, "the database is no table"))?;
        let number = new_row_number_by(indexed, |key, visitor| self.target.visit(key, visitor))?;
        Ok(Cow::Owned(number.to_string().into_bytes()))
    }

    /// Removes the rows that a search finds.
    fn remove_rows(&mut self, search: &TableSearch) -> Result<bool> {
        let Some(database) = self.database else { return Ok(false) };
        let options = SearchOptions { bytes_max: SORTED_BYTES_MAX, ..SearchOptions::default() };
        let remove = &mut |key: &[u8], remover: &mut RowRemover| self.target.visit(key, remover);
        search.perform(database, options, remove, &mut |_| ControlFlow::Continue(())).map(|()| true)
    }

    /// Stores a row, under a new number if the key is empty.
    fn put_row(&mut self, mode: RowPutMode, key: &[u8], row: &Row) -> Result<bool> {
        let key = &self.key_or_number(key)?;
        let mut visitor = RowVisitor::new(mode, row);
        self.target.visit(key, &mut visitor)?;
        Ok(visitor.is_stored)
    }

    fn add_to_row(&mut self, key: &[u8], delta: f64) -> Result<bool> {
        let key = &self.key_or_number(key)?;
        let mut visitor = ColumnSumVisitor::new(delta);
        self.target.visit(key, &mut visitor)?;
        Ok(visitor.sum.is_some())
    }

    fn put(&mut self, mode: TyrantPutMode, key: &[u8], value: &[u8]) -> Result<bool> {
        match mode {
            TyrantPutMode::Put | TyrantPutMode::NoReply => {
                self.visit(key, &mut PutVisitor { value }).map(|()| true)
            }
            TyrantPutMode::Keep => {
                let mut visitor = KeepVisitor { value, is_stored: false };
                self.visit(key, &mut visitor)?;
                Ok(visitor.is_stored)
            }
            // A shift that keeps all bytes is an append.
            TyrantPutMode::Cat => self.visit(key, &mut ShiftVisitor::new(value, usize::MAX)).map(|()| true),
        }
    }

    fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let numbered = self.database.and_then(|database| database.engine().numbered());
        match numbered.map(NumberedEngine::width) {
            Some(width) => self.target.visit(key, &mut CutVisitor::new(visitor, width)),
            None => self.target.visit(key, visitor),
        }
    }

    fn out(&mut self, key: &[u8]) -> Result<bool> {
        let mut visitor = OutVisitor { is_found: false };
        self.visit(key, &mut visitor)?;
        Ok(visitor.is_found)
    }
}

/// Returns the columns after the key. A last name without a value is dropped.
fn columns(arguments: FieldList<'_>) -> Result<Row> {
    let (mut columns, mut row) = (arguments.iter().skip(1), Row::default());
    while let (Some(name), Some(value)) = (columns.next(), columns.next()) {
        row.put(name, value)?;
    }
    Ok(row)
}

/// Stores a value in place of the first one.
struct PutVisitor<'v> {
    value: &'v [u8],
}

impl Visitor for PutVisitor<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.value, Attributes::default()))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

/// Stores a record unless the key exists.
struct KeepVisitor<'v> {
    value: &'v [u8],
    is_stored: bool,
}

impl Visitor for KeepVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_stored = old.is_none();
        let record = Record::new(self.value, Attributes::default());
        if self.is_stored { Action::Put(record) } else { Action::Keep }
    }
}

/// Removes a record, and notes whether it existed.
struct OutVisitor {
    is_found: bool,
}

impl Visitor for OutVisitor {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_found = old.is_some();
        if self.is_found { Action::Remove } else { Action::Keep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tyrant::ValuesVisitor;
    use crate::{Db, Records};
    use todana_protocol::tyrant::FieldBuffer;

    struct DbTarget<'d>(&'d Db);

    impl<'d> LoggedTarget<'d> for DbTarget<'d> {
        fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
            self.0.visit(key, visitor)
        }

        fn clear(&mut self) -> Result<()> {
            self.0.clear()
        }

        fn sync(&mut self) -> Result<()> {
            Ok(())
        }

        fn database(&self) -> Option<&'d Database> {
            Some(self.0.database())
        }
    }

    #[test]
    fn outcome_is_compared_with_the_log() {
        use AppliedOutcome::{AsLogged, Different};
        let db = Db::open("mem:hash").unwrap();
        let mut target = DbTarget(&db);
        let list = FieldBuffer::from_iter([&b"a"[..], b"1", b"b", b"2", b"odd"]);
        let (keys, none) = (FieldBuffer::from_iter([&b"b"[..]]), FieldBuffer::default());
        let misc = |name, arguments| TyrantRequest::Misc { name, options: 0, arguments };
        let put = |mode, value| TyrantRequest::Put { mode, key: b"a", value };
        let mut apply =
            |request, is_done| apply_logged(&LoggedCommand { request, is_done }, &mut target).unwrap();
        let outcomes = [
            apply(misc(b"putlist", list.list()), true),
            apply(misc(b"outlist", keys.list()), true),
            apply(put(TyrantPutMode::Keep, b"x"), false),
            apply(put(TyrantPutMode::Keep, b"x"), true),
            apply(put(TyrantPutMode::Cat, b"23456"), true),
            apply(TyrantRequest::PutShl { key: b"a", value: b"7", width: 3 }, true),
            apply(TyrantRequest::Out { key: b"b" }, true),
            apply(TyrantRequest::AddInt { key: b"a", delta: 1 }, true),
            apply(TyrantRequest::AddInt { key: b"a", delta: 1 }, false),
            apply(TyrantRequest::AddDouble { key: b"d", delta: 0.5 }, false),
            apply(TyrantRequest::Optimize { tuning: b"bnum=7" }, false),
            apply(misc(b"get", keys.list()), true),
            apply(misc(b"out", none.list()), false),
            apply(misc(b"putdup", list.list()), false),
            apply(misc(b"putdupback", list.list()), true),
        ];
        let expected = [
            AsLogged, AsLogged, AsLogged, Different, AsLogged, AsLogged, Different, Different, AsLogged,
            AsLogged, AsLogged, AsLogged, AsLogged, AsLogged, Different,
        ];
        assert_eq!(outcomes, expected);
        assert_eq!(target.0.get(b"a").unwrap().unwrap(), b"567");
        assert_eq!(target.0.get(b"d").unwrap().unwrap(), 0.5f64.to_le_bytes());
        let vanish = LoggedCommand { request: TyrantRequest::Vanish, is_done: true };
        assert_eq!(apply_logged(&vanish, &mut target).unwrap(), AsLogged);
        assert_eq!(target.0.count(), 0);
    }
    #[test]
    fn values_of_a_tree_follow_the_log() {
        let db = Db::open("mem:tree").unwrap();
        let mut target = DbTarget(&db);
        let mut misc = |name: &'static [u8], words: &str| {
            let arguments = FieldBuffer::from_iter(words.split(' ').map(str::as_bytes));
            let request = TyrantRequest::Misc { name, options: 0, arguments: arguments.list() };
            let outcome = apply_logged(&LoggedCommand { request, is_done: true }, &mut target).unwrap();
            assert_eq!(outcome, AppliedOutcome::AsLogged, "{words}");
            let mut values = Vec::new();
            let mut see = |value: &[u8]| values.push(String::from_utf8(value.to_vec()).unwrap());
            db.visit(b"k", &mut ValuesVisitor::new(&mut see)).unwrap();
            values.join(" ")
        };
        assert_eq!(misc(b"putlist", "k b a 1 a 2 k c k d"), "b c d");
        assert_eq!(misc(b"putdup", "k e"), "b c d e");
        assert_eq!(misc(b"putdupback", "k a"), "a b c d e");
        assert_eq!(misc(b"put", "k A"), "A b c d e");
        assert_eq!(misc(b"putcat", "k +"), "A+ b c d e");
        assert_eq!(misc(b"out", "k"), "b c d e");
        assert_eq!(misc(b"outlist", "a k none"), "");
        assert_eq!(db.count(), 0);
    }

    #[test]
    fn logged_search_removes_its_rows() {
        let db = Db::open("mem:table").unwrap();
        for (key, row) in [(b"a", b"n\x001"), (b"b", b"n\x002"), (b"c", b"n\x003")] {
            db.set(key, row).unwrap();
        }
        let apply = |words: &[&str]| {
            let arguments = FieldBuffer::from_iter(words.iter().map(|words| words.as_bytes()));
            let request = TyrantRequest::Misc { name: b"search", options: 0, arguments: arguments.list() };
            apply_logged(&LoggedCommand { request, is_done: true }, &mut DbTarget(&db)).unwrap()
        };
        let above_one = "addcond\0n\0NUMGT\x001";
        for (words, left) in [(&[above_one, "get"][..], 3), (&[above_one, "out", "count"], 1)] {
            assert_eq!(apply(words), AppliedOutcome::AsLogged);
            assert_eq!(db.count(), left, "{words:?}");
        }
        let too_many = vec!["next"; 100];
        assert_eq!(apply(&too_many), AppliedOutcome::Different);
    }
}
