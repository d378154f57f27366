//! `todana load`: stores the records of a file in a running server.

use crate::CommandFailure;
use crate::formats::{FileChange, LoadOptions, LoadTally, LoadedRecord, StoreProblem, read};
use crate::time_to_live::now;
use std::path::Path;
use todana_client::{Connection, Error, WriteOutcome, needs_base64};

/// Number of requests that may be sent ahead of their replies.
const AHEAD: usize = 512;
/// Number of bytes to collect before sending.
const SEND_BYTES: usize = 64 << 10;

/// Stores the records of a file in a server, or applies the changes of an update log.
pub(crate) fn load(
    connection: &mut Connection,
    file: &Path,
    options: &LoadOptions,
) -> Result<(), CommandFailure> {
    let mut load = ServerLoad { connection, waiting: 0, takes_meta: None };
    let mut tally = LoadTally::default();
    // The records before an unreadable place are loaded and reported.
    let read = read(file, options, &mut tally, &mut |change, tally| load.take(change, tally));
    let sent = load.await_replies(&mut tally);
    let outcome = read.and(sent);
    tally.report(true, outcome.as_ref().err());
    outcome.map_err(CommandFailure::silent)?;
    tally.fail_if_refused("the server")
}

struct ServerLoad<'a> {
    connection: &'a mut Connection,
    /// Number of requests without a reply so far.
    waiting: usize,
    /// `None` until the first key that needs the meta commands.
    takes_meta: Option<bool>,
}

impl ServerLoad<'_> {
    fn take(&mut self, change: FileChange<'_>, tally: &mut LoadTally) -> Result<(), StoreProblem> {
        match change {
            FileChange::Put(record) => self.put(&record, tally),
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

    /// Sends the collected requests and reads all outstanding replies.
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
