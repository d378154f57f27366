//! `todana load`: stores the records of a file in a running server.

use crate::CommandFailure;
use crate::formats::{FileChange, LoadOptions, LoadTally, LoadedRecord, StoreProblem, read};
use crate::time_to_live::now;
use crate::tsv;
use std::path::Path;
use todana::tyrant::{AppliedOutcome, LoggedTarget, apply_logged};
use todana::{Action, Record, Visitor};
use todana_client::{Connection, Error, WriteOutcome, needs_base64};
use todana_core::{Attributes, ErrorKind};

/// The most requests that are sent before their replies are read.
const AHEAD: usize = 512;
/// The number of bytes that are collected before they are sent.
const SEND_BYTES: usize = 64 << 10;

/// Stores the records of a file in a server. The changes of an update log of Kyoto Tycoon are
/// applied in their order.
pub(crate) fn load(
    connection: &mut Connection,
    file: &Path,
    options: &LoadOptions,
) -> Result<(), CommandFailure> {
    let mut load = ServerLoad { connection, waiting: 0, takes_meta: None };
    let mut tally = LoadTally::default();
    // If a part of the file is unreadable, the records before it are stored and counted.
    let read = read(file, options, &mut tally, &mut |change, tally| load.take(change, tally));
    let sent = load.await_replies(&mut tally);
    let outcome = read.and(sent);
    tally.report(true, outcome.as_ref().err());
    outcome.map_err(CommandFailure::silent)?;
    tally.fail_if_refused("the server")
}

struct ServerLoad<'a> {
    connection: &'a mut Connection,
    /// The number of requests whose replies have not been read.
    waiting: usize,
    /// True if the server supports meta commands; `None` until a key needs them.
    takes_meta: Option<bool>,
}

impl ServerLoad<'_> {
    fn take(&mut self, change: FileChange<'_>, tally: &mut LoadTally) -> Result<(), StoreProblem> {
        match change {
            FileChange::Put(record) => self.put(&record, tally),
            FileChange::AddValue { .. } => {
                let what = "the key has several values, and only a tree (--db) stores them";
                Err(StoreProblem::ToRecord(what.into()))
            }
            FileChange::Remove(key) => {
                self.await_replies(tally)?;
                match self.connection.delete(key) {
                    Ok(outcome) => tally.removed += u64::from(outcome == WriteOutcome::Done),
                    Err(Error::Invalid(_)) => {
                        return Err(StoreProblem::ToRecord("no request can carry the key to remove".into()));
                    }
                    Err(error) => return Err(error.into()),
                }
                Ok(())
            }
            FileChange::Clear => {
                self.await_replies(tally)?;
                self.connection.simple("flush_all")?;
                tally.cleared += 1;
                Ok(())
            }
            FileChange::Command(command) => {
                let mut target = ServerTarget { load: self, tally, problem: None };
                let outcome = apply_logged(command, &mut target);
                if let Some(problem) = target.problem {
                    return Err(problem);
                }
                tally.differ += u64::from(outcome? == AppliedOutcome::Different);
                Ok(())
            }
        }
    }

    fn put(&mut self, record: &LoadedRecord<'_>, tally: &mut LoadTally) -> Result<(), StoreProblem> {
        let &LoadedRecord { key, value, flags, expiry } = record;
        if expiry.at != 0 && expiry.at <= now() {
            tally.skipped += 1;
            return Ok(());
        }
        if needs_base64(key) {
            if self.takes_meta.is_none() {
                self.await_replies(tally)?;
                self.takes_meta = Some(self.connection.takes_meta()?);
            }
            if self.takes_meta == Some(false) {
                tally.refused += 1;
                return Ok(());
            }
        }
        let written = match expiry.span_s {
            0 => {
                let exptime = i32::try_from(expiry.at).unwrap_or(i32::MAX);
                self.connection.write_any(key, value, flags, exptime)
            }
            span_s => self.connection.write_sliding(key, value, flags, span_s),
        };
        match written {
            Ok(()) => {}
            Err(Error::Invalid(_)) => {
                let what = "the key is empty or too long for a request";
                return Err(StoreProblem::ToRecord(what.into()));
            }
            Err(error) => return Err(error.into()),
        }
        self.waiting += 1;
        if self.connection.unsent_len() >= SEND_BYTES || self.waiting >= AHEAD {
            self.await_replies(tally)?;
        }
        Ok(())
    }

    /// Sends the collected requests, and reads the replies to all requests.
    fn await_replies(&mut self, tally: &mut LoadTally) -> Result<(), CommandFailure> {
        self.connection.flush()?;
        while self.waiting > 0 {
            match self.connection.read_outcome() {
                Ok(WriteOutcome::Done) => tally.loaded += 1,
                Ok(_) | Err(Error::Refused(_)) => tally.refused += 1,
                Err(error) => return Err(error.into()),
            }
            self.waiting -= 1;
        }
        Ok(())
    }
}

/// A server as the target of Tokyo Tyrant's commands. A command that needs the old value reads it
/// first, so that changes of other clients in between are lost, and so is the expiry of the record.
struct ServerTarget<'t, 'c> {
    load: &'t mut ServerLoad<'c>,
    tally: &'t mut LoadTally,
    /// The reason why the last change was not made.
    problem: Option<StoreProblem>,
}

impl ServerTarget<'_, '_> {
    fn change(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<(), StoreProblem> {
        let mut found = None;
        if !visitor.overwrites() {
            self.load.await_replies(self.tally)?;
            self.load.connection.read_any(&[key], |_, outcome| {
                found = Some(outcome.map(|record| (record.value.to_vec(), record.flags)));
            })?;
        }
        let found = match found.transpose() {
            Ok(found) => found,
            Err(Error::Invalid(_) | Error::Refused(_)) => {
                return Err(StoreProblem::ToRecord("no request can carry the key".into()));
            }
            Err(error) => return Err(error.into()),
        };
        let old = found
            .as_ref()
            .map(|(value, flags)| Record::new(value, Attributes { flags: *flags, ..Attributes::default() }));
        match visitor.visit(old) {
            Action::Put(Record { value, attributes, .. }) => {
                let (flags, expiry) = (attributes.flags, tsv::TsvExpiry::default());
                self.load.put(&LoadedRecord { key, value, flags, expiry }, self.tally)
            }
            Action::Remove => self.load.take(FileChange::Remove(key), self.tally),
            _ => Ok(()),
        }
    }

    fn noted(&mut self, outcome: Result<(), StoreProblem>) -> todana_core::Result<()> {
        outcome.map_err(|problem| {
            self.problem = Some(problem);
            todana_core::Error::new(ErrorKind::Unavailable, "the server has not made the change")
        })
    }
}

impl LoggedTarget<'_> for ServerTarget<'_, '_> {
    fn visit(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> todana_core::Result<()> {
        let outcome = self.change(key, visitor);
        self.noted(outcome)
    }

    fn clear(&mut self) -> todana_core::Result<()> {
        let outcome = self.load.take(FileChange::Clear, self.tally);
        self.noted(outcome)
    }

    fn sync(&mut self) -> todana_core::Result<()> {
        Ok(())
    }
}
