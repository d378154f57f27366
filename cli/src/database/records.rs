//! Commands on the records of a database on disk.

use super::refusal::refused;
use crate::CommandFailure;
use crate::command_output::CommandOutput;
use crate::open_target::OpenDatabase;
use crate::record_commands::{self, CounterArguments, QuietOption, RecordCommand};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use todana::{Db, Records};
use todana_client::{FetchedRecord, StoreVerb, TextStore, WriteOutcome};
use todana_core::{
    Arithmetic, ArithmeticDirection, Get, Operation, Reply, ReplyNeeds, Store as Put, StoreMode, Touch, Ttl,
};

/// Runs a command on the records of a database. Returns when its changes are on disk.
pub(crate) fn run(
    command: &RecordCommand,
    database: &mut OpenDatabase,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    let name = database.name.clone();
    match command {
        RecordCommand::Get { wanted, shown, quiet, .. } => {
            let db = database.open(false)?;
            record_commands::get(wanted, *shown, *quiet, &mut |key| get(db, key, shown.versions), out)?;
            if shown.versions {
                db.sync()?;
            }
            Ok(())
        }
        RecordCommand::Set { key, quiet, .. } => {
            let (db, value) = (database.open(true)?, command.value()?);
            let Some(store) = command.store(&value) else { return Ok(()) };
            record_commands::stored(key, store.verb, put(db, &store)?, *quiet)?;
            Ok(db.sync()?)
        }
        RecordCommand::Delete { keys, quiet, .. } => {
            let db = database.open(false)?;
            let outcome = record_commands::delete(keys, *quiet, &mut |key| Ok(db.remove(key)?));
            db.sync()?;
            outcome
        }
        RecordCommand::Incr { sum, quiet, .. } => {
            count(database.open(false)?, sum, ArithmeticDirection::Increment, *quiet, out)
        }
        RecordCommand::Decr { sum, quiet, .. } => {
            count(database.open(false)?, sum, ArithmeticDirection::Decrement, *quiet, out)
        }
        RecordCommand::Touch { key, time, ttl, quiet, .. } => {
            let db = database.open(false)?;
            let ttl = Ttl::from_exptime(time.or(*ttl).unwrap_or(0));
            let is_there =
                execute(db, &Operation::Touch(Touch { key: key.as_bytes(), ttl }), |reply| match reply {
                    Reply::Touched => Some(Ok(true)),
                    Reply::NotFound => Some(Ok(false)),
                    _ => None,
                })?;
            quiet.found(key, is_there)?;
            Ok(db.sync()?)
        }
        RecordCommand::Flush { delay: 0, yes, .. } => {
            let db = database.open(false)?;
            if !yes {
                record_commands::confirm_flush(Some(db.count()), &name)?;
            }
            db.clear()?;
            Ok(db.sync()?)
        }
        RecordCommand::Flush { .. } => {
            Err(CommandFailure::usage(format!("{name}: --delay needs a running server")))
        }
        RecordCommand::Stats { group, json, .. } if group.is_empty() => {
            super::commands::inform(database, *json, out)
        }
        RecordCommand::Stats { .. } => {
            Err(CommandFailure::usage(format!("{name}: a database on disk has no groups of statistics")))
        }
        RecordCommand::Ping { .. } => {
            Err(CommandFailure::usage(format!("{name}: is a database on disk; ping needs a server")))
        }
        RecordCommand::Load { file, options, .. } => super::transfer::import(database, file, options),
        RecordCommand::Dump { file, options, .. } => super::transfer::export(database, file, *options),
    }
}

/// Executes an operation. `answer` converts the reply to the result, and returns `None` for a reply
/// that the operation cannot have.
fn execute<T>(
    db: &Db,
    operation: &Operation<'_>,
    mut answer: impl FnMut(&Reply<'_>) -> Option<Result<T, CommandFailure>>,
) -> Result<T, CommandFailure> {
    let mut outcome = None;
    db.execute(operation, &mut |reply| {
        outcome = Some(answer(&reply).unwrap_or_else(|| Err(refused(&reply))));
    })?;
    outcome.unwrap_or_else(|| Err(CommandFailure::trouble("the database did not answer")))
}

fn get(db: &Db, key: &[u8], version: bool) -> Result<Option<FetchedRecord>, CommandFailure> {
    let get = Get { key, needs: ReplyNeeds { version, access: false }, ..Get::default() };
    execute(db, &Operation::Get(get), |reply| match reply {
        Reply::Hit(hit) => Some(Ok(Some(FetchedRecord {
            key: key.to_vec(),
            value: hit.record.value.to_vec(),
            flags: hit.record.attributes.flags,
            version: version.then_some(hit.record.attributes.version),
        }))),
        Reply::Miss => Some(Ok(None)),
        _ => None,
    })
}

fn put(db: &Db, store: &TextStore<'_>) -> Result<WriteOutcome, CommandFailure> {
    let ttl = Ttl::from_exptime(store.exptime);
    let (mode, compare) = match store.verb {
        StoreVerb::Set => (StoreMode::Set, None),
        StoreVerb::Add => (StoreMode::Add, None),
        StoreVerb::Replace => (StoreMode::Replace, None),
        StoreVerb::Append => (StoreMode::Append, None),
        StoreVerb::Prepend => (StoreMode::Prepend, None),
        StoreVerb::Cas(version) => (StoreMode::Set, Some(version)),
    };
    let put =
        Put { key: store.key, value: store.value, flags: store.flags, ttl, mode, compare, ..Put::default() };
    execute(db, &Operation::Store(put), |reply| match reply {
        Reply::Stored(_) => Some(Ok(WriteOutcome::Done)),
        Reply::NotStored => Some(Ok(WriteOutcome::NotStored)),
        Reply::Exists => Some(Ok(WriteOutcome::Exists)),
        Reply::NotFound => Some(Ok(WriteOutcome::NotFound)),
        _ => None,
    })
}

fn count(
    db: &Db,
    sum: &CounterArguments,
    direction: ArithmeticDirection,
    quiet: QuietOption,
    out: &mut CommandOutput<'_>,
) -> Result<(), CommandFailure> {
    let arithmetic = Arithmetic {
        key: sum.key.as_bytes(),
        delta: sum.by,
        direction,
        vivify: sum.initial.map(|_| Ttl::from_exptime(0)),
        initial: sum.initial.unwrap_or(0),
        ..Arithmetic::default()
    };
    let number = execute(db, &Operation::Arithmetic(arithmetic), |reply| match reply {
        Reply::Number(number) => Some(Ok(Some(number.value))),
        Reply::NotFound => Some(Ok(None)),
        _ => None,
    })?;
    quiet.found(&sum.key, number.is_some())?;
    db.sync()?;
    number.map_or(Ok(()), |number| Ok(writeln!(out, "{number}")?))
}
