//! `restore`: executes the commands of an update log of Tokyo Tyrant again, which is a directory on
//! the server's disk.
//!
//! The directory must be within the one that the operator names. As in the original, the records of
//! a file end at the first damage.

use super::copies::allowed_place;
use super::records_seen::expect_wanted;
use super::session_state::TyrantSession;
use crate::replica::ServedTarget;
use crate::session::NextAction;
use crate::session::background_jobs::{BackgroundWork, JobAnswer, JobNotDone};
use crate::session::worker_context::WorkerContext;
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use todana::replication::ChangeOrigin;
use todana::tyrant::{AppliedOutcome, apply_logged, log_files, read_log_file};
use todana_core::{Error, ErrorKind, Result};
use todana_protocol::tyrant::update_log::LogRecord;
use todana_protocol::tyrant::{CHECKS_OUTCOMES, LoggedCommand, reply};

/// A call of `restore` as a background job.
struct RestoreCall {
    shared: Arc<SharedState>,
    path: Vec<u8>,
    since_micros: u64,
    /// Fail at the first command whose outcome differs.
    checks_outcomes: bool,
}

impl BackgroundWork for RestoreCall {
    fn len_bytes(&self) -> usize {
        size_of::<RestoreCall>() + self.path.len()
    }

    fn perform(&self, is_cancelled: &Arc<AtomicBool>) -> Option<JobAnswer> {
        let done = self.restore(is_cancelled);
        if let Err(error) = &done {
            tracing::warn!("restore: {error}");
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

impl RestoreCall {
    fn restore(&self, is_cancelled: &AtomicBool) -> Result<()> {
        let directory = std::str::from_utf8(&self.path).ok().map(Path::new);
        let directory = directory.ok_or_else(|| Error::new(ErrorKind::Invalid, "the path is not UTF-8"))?;
        let directory = allowed_place(&self.shared.options.protocols.tyrant, directory)?;
        let unreadable = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("{}: {error}", directory.display()))
        };
        let database = &self.shared.databases.primary().database;
        let worker_counters = database.worker_counters();
        for file in log_files(&directory).map_err(unreadable)? {
            let input = File::open(file.path).map_err(unreadable)?;
            read_log_file(input, unreadable, &mut |_, record| {
                expect_wanted(is_cancelled)?;
                if record.stamp_micros < self.since_micros {
                    return Ok(());
                }
                let origin = ChangeOrigin::new(record.server_id, record.master_id);
                let target =
                    &mut ServedTarget { database, worker_counters: &worker_counters, origin, undo: None };
                self.apply(record, target)
            })?;
        }
        database.sync()
    }

    fn apply(&self, record: &LogRecord<'_>, target: &mut ServedTarget<'_>) -> Result<()> {
        let stamp = record.stamp_micros;
        let outcome = match LoggedCommand::parse(record.body) {
            Some(command) => apply_logged(&command, target)?,
            None => AppliedOutcome::Different,
        };
        if outcome == AppliedOutcome::Different {
            let problem = format!("the command with time stamp {stamp} has another outcome here");
            if self.checks_outcomes {
                return Err(Error::new(ErrorKind::Invalid, problem));
            }
            tracing::warn!("restore: {problem}");
        }
        Ok(())
    }
}

impl TyrantSession {
    /// `restore`: applies an update log.
    pub(super) fn restore(
        &mut self,
        context: &mut WorkerContext,
        path: &[u8],
        since_micros: u64,
        options: u32,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let calls = Arc::clone(&context.shared.tyrant.file_calls);
        let call = RestoreCall {
            shared: Arc::clone(&context.shared),
            path: path.to_vec(),
            since_micros,
            checks_outcomes: options & CHECKS_OUTCOMES != 0,
        };
        self.submit(context, &calls, Box::new(call), true, false).unwrap_or_else(|| {
            reply::put_status(false, output);
            NextAction::Continue
        })
    }
}
