//! `copy`: a new database with all records, on the server's disk.
//!
//! ```text
//! a database with files or an update log -> backup of one moment -> restored at the path
//! a database that is only in memory      -> its records one after another
//! ```
//!
//! Clients continue to write meanwhile. The path must be within the directory that the operator
//! names, if one is named, and free: existing files are never replaced. Commands (`@...`) are
//! refused.

use super::records_seen::expect_wanted;
use super::session_state::TyrantSession;
use crate::databases::PRIMARY_DATABASE;
use crate::options::TyrantOptions;
use crate::session::NextAction;
use crate::session::background_jobs::{BackgroundWork, JobAnswer, JobNotDone};
use crate::session::worker_context::WorkerContext;
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use todana::backup::{BackupReceiver, BackupSender};
use todana::disk::SystemDisk;
use todana::{
    Action, DatabaseName, Db, OverwriteVisitor, Record, Records, RestoreOptions, SystemClock, restore,
};
use todana_core::{Attributes, Error, ErrorKind, Result};
use todana_protocol::tyrant::reply;

/// The suffix of the name of the backup from which the copy is made.
const BACKUP_SUFFIX: &str = ".copying";

/// A call of `copy` as a background job.
struct CopyCall {
    shared: Arc<SharedState>,
    path: Vec<u8>,
}

impl BackgroundWork for CopyCall {
    fn len_bytes(&self) -> usize {
        size_of::<CopyCall>() + self.path.len()
    }

    fn perform(&self, is_cancelled: &Arc<AtomicBool>) -> Option<JobAnswer> {
        let done = copy(&self.shared, &self.path, is_cancelled);
        if let Err(error) = &done {
            tracing::warn!("copy: {error}");
        }
        let mut output = ConnectionOutput::default();
        reply::put_status(done.is_ok(), &mut output);
        Some((output, Vec::new()))
    }

    fn not_done(&self, _why: JobNotDone) -> ConnectionOutput {
        let mut output = ConnectionOutput::default();
        reply::put_status(false, &mut output);
        output
    }
}

impl TyrantSession {
    /// `copy`: copies the database.
    pub(super) fn copy(
        &mut self,
        context: &mut WorkerContext,
        path: &[u8],
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let calls = Arc::clone(&context.shared.tyrant.file_calls);
        let call = CopyCall { shared: Arc::clone(&context.shared), path: path.to_vec() };
        self.submit(context, &calls, Box::new(call), true, false).unwrap_or_else(|| {
            reply::put_status(false, output);
            NextAction::Continue
        })
    }
}

fn copy(shared: &SharedState, path: &[u8], is_cancelled: &AtomicBool) -> Result<()> {
    let name = target(shared, path)?;
    let place = name.path.as_deref().ok_or_else(|| invalid("a copy in memory would be lost"))?;
    let served = shared.databases.primary();
    let is_in_files = served.database.engine().durable().is_some();
    // The data directory of a hash on disk holds only the log for replicas, not the records.
    let directory = shared.persistence.exports.directory(PRIMARY_DATABASE).filter(|_| !is_in_files);
    let mut sender = match &directory {
        Some(directory) => BackupSender::start(directory, &served.database, is_cancelled)?,
        None if is_in_files => BackupSender::of_files(Arc::new(SystemDisk), &served.database)?,
        None => return copy_records(shared, &name, place, is_cancelled),
    };
    let mut backup = place.as_os_str().to_owned();
    backup.push(BACKUP_SUFFIX);
    let backup = PathBuf::from(backup);
    let mut receiver = BackupReceiver::create(Arc::new(SystemDisk), &backup)?;
    let mut piece = Vec::new();
    while sender.next(&mut piece)? {
        expect_wanted(is_cancelled)?;
        receiver.take(&piece)?;
        piece.clear();
    }
    receiver.finish(&mut |_| ())?;
    let options =
        RestoreOptions { from: backup.clone(), log: None, until_ms: None, target: place.to_owned() };
    let restored =
        restore(Arc::new(SystemDisk), &options, &name, Arc::new(SystemClock), &mut |_| ()).map(drop);
    if let Err(error) = fs::remove_dir_all(&backup) {
        tracing::warn!("{}: cannot be removed: {error}", backup.display());
    }
    restored
}

/// Copies record by record. Each record is complete, but they are not of one moment.
fn copy_records(
    shared: &SharedState,
    name: &DatabaseName,
    place: &Path,
    is_cancelled: &AtomicBool,
) -> Result<()> {
    let database = &shared.databases.primary().database;
    let target = Db::open(&name.to_string())?;
    let fill = || {
        let is_table = database.engine().indexed().is_some();
        let mut outcome = Ok(());
        database.read_all_stored(None, &mut |key, record| {
            // The definitions of a table's indexes are not a row.
            if outcome.is_ok() && !(is_table && key.is_empty()) {
                outcome = store(&target, key, record).and_then(|()| expect_wanted(is_cancelled));
            }
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        target.sync()
    };
    let outcome = fill();
    drop(target);
    if outcome.is_err() {
        // The target did not exist before.
        let removed = if place.is_dir() { fs::remove_dir_all(place) } else { fs::remove_file(place) };
        if let Err(error) = removed {
            tracing::warn!("{}: the incomplete copy cannot be removed: {error}", place.display());
        }
    }
    outcome
}

fn store(target: &Db, key: &[u8], record: Record<'_>) -> Result<()> {
    target.database().expect_storable(key, &record)?;
    let attributes = Attributes { version: 0, access: None, ..record.attributes };
    target.visit(key, &mut OverwriteVisitor(Action::Put(Record { attributes, ..record })))
}

/// Returns the name of the copy.
fn target(shared: &SharedState, path: &[u8]) -> Result<DatabaseName> {
    let text = std::str::from_utf8(path).map_err(|_| invalid("the path is not UTF-8"))?;
    if text.starts_with('@') {
        return Err(invalid("commands are not run"));
    }
    let own = &shared.databases.primary().name;
    let asked = DatabaseName::parse_as_original(text);
    // A path without a suffix becomes a copy of the same kind. It must be renamed to be opened.
    let has_suffix = asked.is_ok() || own.path.is_none() || text.contains('#');
    let name = if has_suffix { asked? } else { own.at(Path::new(text)) };
    let place = name.path.as_deref().ok_or_else(|| invalid("a copy in memory would be lost"))?;
    let place = allowed_place(&shared.options.protocols.tyrant, place)?;
    if fs::symlink_metadata(&place).is_ok() {
        return Err(invalid(&format!("{}: exists already", place.display())));
    }
    if !has_suffix {
        return Ok(own.at(&place));
    }
    let tuning = text.find('#').map_or("", |at| &text[at..]);
    DatabaseName::parse_as_original(&format!("{}{tuning}", place.display()))
}

/// Returns the complete path of a place. Fails if the operator names a directory and the place is
/// not within it, or if the directory of the place does not exist.
pub(super) fn allowed_place(options: &TyrantOptions, place: &Path) -> Result<PathBuf> {
    let files = options.files.as_deref();
    let files = files.and_then(|files| files.canonicalize().ok());
    let files = files.ok_or_else(|| invalid("no directory is named for files"))?;
    let outside = || invalid(&format!("{}: is not within {}", place.display(), files.display()));
    let name = place.file_name().ok_or_else(outside)?;
    let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = files.join(parent.unwrap_or(Path::new(".")));
    if options.copies_anywhere {
        return match parent.is_dir() {
            true => Ok(parent.join(name)),
            false => Err(invalid(&format!("{}: the directory does not exist", parent.display()))),
        };
    }
    let is_within = parent.canonicalize().is_ok_and(|parent| parent.starts_with(&files));
    let is_link = fs::symlink_metadata(parent.join(name)).is_ok_and(|found| found.is_symlink());
    if is_within && !is_link { Ok(parent.join(name)) } else { Err(outside()) }
}

fn invalid(problem: &str) -> Error {
    Error::new(ErrorKind::Invalid, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_place_is_reported_with_its_problem() {
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path().canonicalize().unwrap();
        let refusal = |copies_anywhere, place: &Path| {
            let options =
                TyrantOptions { files: Some(files.clone()), copies_anywhere, ..TyrantOptions::default() };
            allowed_place(&options, place).unwrap_err().to_string()
        };
        let missing = files.join("missing");
        let place = missing.join("x.tch");
        let problem = format!("{}: the directory does not exist", missing.display());
        assert_eq!(refusal(true, &place), problem);
        assert_eq!(refusal(true, Path::new("missing/x.tch")), problem);
        let problem = format!("{}: is not within {}", place.display(), files.display());
        assert_eq!(refusal(false, &place), problem);
    }
}
