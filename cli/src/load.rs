//! `todana load`: stores the records of a file in a running server, or in those of a ring.

use crate::CommandFailure;
use crate::formats::{FileChange, LoadOptions, LoadTally, LoadedRecord, StoreProblem, read};
use crate::record_servers::RecordServers;
use crate::time_to_live::now;
use crate::tsv;
use std::path::Path;
use todana::tyrant::{AppliedOutcome, LoggedTarget, apply_logged};
use todana::{Action, Record, Visitor};
use todana_client::{Error, WriteOutcome, needs_base64};
use todana_core::{Attributes, ErrorKind};

/// The most requests that are sent before their replies are read.
const AHEAD: usize = 512;
/// The number of bytes that are collected before they are sent.
const SEND_BYTES: usize = 64 << 10;

/// Stores the records of a file in the servers of their keys. The changes of an update log of Kyoto
/// Tycoon are applied in their order.
pub(crate) fn load(
    servers: &mut RecordServers,
    file: &Path,
    options: &LoadOptions,
) -> Result<(), CommandFailure> {
    // All servers must be reached before the first record is stored.
    let states = (0..servers.targets().len()).map(|server| {
        servers.connection(server)?;
        Ok(ServerState::default())
    });
    let states = states.collect::<Result<_, CommandFailure>>()?;
    let mut load = ServersLoad { servers, states };
    let mut tally = LoadTally::default();
    // If a part of the file is unreadable, the records before it are stored and counted.
    let read = read(file, options, &mut tally, &mut |change, tally| load.take(change, tally));
    let sent = load.await_all(&mut tally);
    let outcome = read.and(sent);
    tally.report(true, outcome.as_ref().err());
    outcome.map_err(CommandFailure::silent)?;
    tally.fail_if_refused("the server")
}

struct ServersLoad<'a> {
    servers: &'a mut RecordServers,
    /// The state of each server.
    states: Vec<ServerState>,
}

#[derive(Default)]
struct ServerState {
    /// The number of requests whose replies have not been read.
    waiting: usize,
    /// True if the server supports meta commands; `None` until a key needs them.
    takes_meta: Option<bool>,
}

impl ServersLoad<'_> {
    fn take(&mut self, change: FileChange<'_>, tally: &mut LoadTally) -> Result<(), StoreProblem> {
        match change {
            FileChange::Put(record) => self.put(&record, tally),
            FileChange::AddValue { .. } => {
                let what = "the key has several values, and only a tree (--db) stores them";
                Err(StoreProblem::ToRecord(what.into()))
            }
            FileChange::Remove(key) => {
                let server = self.servers.server_of(key);
                self.await_replies(server, tally)?;
                match self.servers.connection(server)?.delete(key) {
                    Ok(outcome) => tally.removed += u64::from(outcome == WriteOutcome::Done),
                    Err(Error::Invalid(_)) => {
                        return Err(StoreProblem::ToRecord("no request can carry the key to remove".into()));
                    }
                    Err(error) => return Err(error.into()),
                }
                Ok(())
            }
            FileChange::Clear => {
                for server in 0..self.states.len() {
                    self.await_replies(server, tally)?;
                    self.servers.connection(server)?.simple("flush_all")?;
                }
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
        let server = self.servers.server_of(key);
        if needs_base64(key) {
            if self.states[server].takes_meta.is_none() {
                self.await_replies(server, tally)?;
                self.states[server].takes_meta = Some(self.servers.connection(server)?.takes_meta()?);
            }
            if self.states[server].takes_meta == Some(false) {
                tally.refused += 1;
                return Ok(());
            }
        }
        let connection = self.servers.connection(server)?;
        let written = match expiry.span_s {
            0 => {
                let exptime = i32::try_from(expiry.at).unwrap_or(i32::MAX);
                connection.write_any(key, value, flags, exptime)
            }
            span_s => connection.write_sliding(key, value, flags, span_s),
        };
        match written {
            Ok(()) => {}
            Err(Error::Invalid(_)) => {
                let what = "the key is empty or too long for a request";
                return Err(StoreProblem::ToRecord(what.into()));
            }
            Err(error) => return Err(error.into()),
        }
        let is_full = connection.unsent_len() >= SEND_BYTES;
        self.states[server].waiting += 1;
        if is_full || self.states[server].waiting >= AHEAD {
            self.await_replies(server, tally)?;
        }
        Ok(())
    }

    /// Sends the collected requests to all servers, and reads the replies.
    fn await_all(&mut self, tally: &mut LoadTally) -> Result<(), CommandFailure> {
        (0..self.states.len()).try_for_each(|server| self.await_replies(server, tally))
    }

    /// Sends the collected requests to a server, and reads the replies to all of them.
    fn await_replies(&mut self, server: usize, tally: &mut LoadTally) -> Result<(), CommandFailure> {
        let waiting = std::mem::take(&mut self.states[server].waiting);
        if waiting == 0 {
            return Ok(());
        }
        let connection = self.servers.connection(server)?;
        connection.flush()?;
        for _ in 0..waiting {
            match connection.read_outcome() {
                Ok(WriteOutcome::Done) => tally.loaded += 1,
                Ok(_) | Err(Error::Refused(_)) => tally.refused += 1,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A server as the target of Tokyo Tyrant's commands. A command that needs the old value reads it
/// first, so that changes of other clients in between are lost, and so is the expiry of the record.
struct ServerTarget<'t, 'a> {
    load: &'t mut ServersLoad<'a>,
    tally: &'t mut LoadTally,
    /// The reason why the last change was not made.
    problem: Option<StoreProblem>,
}

impl ServerTarget<'_, '_> {
    fn change(&mut self, key: &[u8], visitor: &mut dyn Visitor) -> Result<(), StoreProblem> {
        let mut found = None;
        if !visitor.overwrites() {
            let server = self.load.servers.server_of(key);
            self.load.await_replies(server, self.tally)?;
            self.load.servers.connection(server)?.read_any(&[key], |_, outcome| {
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
