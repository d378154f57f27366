//! Executes the commands in Tokyo Tyrant's update logs.

use super::{CutVisitor, ShiftVisitor, SumVisitor};
use crate::OverwriteVisitor;
use crate::table::{ColumnSumVisitor, IndexChange, IndexVisitor, Row, RowPutMode, RowVisitor};
use std::borrow::Cow;
use todana_core::{Action, Attributes, Error, ErrorKind, Record, Result, Visitor};
use todana_protocol::tyrant::{FieldList, LoggedCommand, TyrantPutMode, TyrantRequest};

/// The place where the commands of an update log are executed.
pub trait LoggedTarget {
    /// Runs a visitor on a record.
    fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()>;
    /// Removes all records.
    fn clear(&mut self) -> Result<()>;
    /// Writes all changes to disk.
    fn sync(&mut self) -> Result<()>;
    /// Returns true if the target is a table.
    fn is_table(&self) -> bool {
        false
    }
    /// Returns the number of a new row. Fails with `Invalid` if the target is no table.
    fn new_row_number(&mut self) -> Result<u64> {
        Err(Error::new(ErrorKind::Invalid, "the database is no table"))
    }
    /// Returns the length to which the target shortens values, if it does.
    fn width(&self) -> Option<usize> {
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
pub fn apply_logged(command: &LoggedCommand<'_>, target: &mut dyn LoggedTarget) -> Result<AppliedOutcome> {
    let is_done = match (LoggedChanges { target }).execute(&command.request) {
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

struct LoggedChanges<'t> {
    target: &'t mut dyn LoggedTarget,
}

impl LoggedChanges<'_> {
    /// Executes a request. Returns true if it succeeds, and `None` if it does not change records.
    fn execute(&mut self, request: &TyrantRequest<'_>) -> Result<Option<bool>> {
        if self.target.is_table()
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
        let is_done = match (name, arguments.get(0), arguments.get(1)) {
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
            // A search that removes rows is not executed, so the outcome differs.
            (b"search" | b"metasearch", _) => {
                let removes = |words: &[u8]| words == b"out" || words == b"remove";
                return Ok(arguments.iter().any(removes).then_some(false));
            }
            _ => return Ok(None),
        };
        Ok(Some(is_done))
    }

    /// Returns the key, or a new number for the empty one.
    fn key_or_number<'k>(&mut self, key: &'k [u8]) -> Result<Cow<'k, [u8]>> {
        if !key.is_empty() {
            return Ok(Cow::Borrowed(key));
        }
        Ok(Cow::Owned(self.target.new_row_number()?.to_string().into_bytes()))
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
                let record = Record::new(value, Attributes::default());
                self.visit(key, &mut OverwriteVisitor(Action::Put(record))).map(|()| true)
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
        match self.target.width() {
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
    use crate::{Db, Records};
    use todana_protocol::tyrant::FieldBuffer;

    struct DbTarget(Db);

    impl LoggedTarget for DbTarget {
        fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
            self.0.visit(key, visitor)
        }

        fn clear(&mut self) -> Result<()> {
            self.0.clear()
        }

        fn sync(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn outcome_is_compared_with_the_log() {
        use AppliedOutcome::{AsLogged, Different};
        let mut target = DbTarget(Db::open("mem:hash").unwrap());
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
        ];
        let expected = [
            AsLogged, AsLogged, AsLogged, Different, AsLogged, AsLogged, Different, Different, AsLogged,
            AsLogged, AsLogged, AsLogged, AsLogged,
        ];
        assert_eq!(outcomes, expected);
        assert_eq!(target.0.get(b"a").unwrap().unwrap(), b"567");
        assert_eq!(target.0.get(b"d").unwrap().unwrap(), 0.5f64.to_le_bytes());
        let vanish = LoggedCommand { request: TyrantRequest::Vanish, is_done: true };
        assert_eq!(apply_logged(&vanish, &mut target).unwrap(), AsLogged);
        assert_eq!(target.0.count(), 0);
    }
}
