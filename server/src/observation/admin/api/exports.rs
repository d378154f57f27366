//! Starts checkpoints and backups, and reports their progress.

use super::{ApiError, ApiResult};
use crate::databases::exports::ExportProgress;
use crate::execution::LocalDatabase;
use crate::observation::admin::http::HttpStatus;
use crate::shared::SharedState;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use todana::refuse_overlap;
use todana_protocol::memcached::{ExportKind, ExportRequest};

/// The checkpoint or backup that was requested last.
#[derive(Default)]
pub(super) struct RequestedExport(Mutex<Option<StartedExport>>);

struct StartedExport {
    what: &'static str,
    database: String,
    began: Instant,
    /// The time that it took, once that was seen.
    took: Option<Duration>,
    progress: Arc<ExportProgress>,
}

impl RequestedExport {
    /// Starts a checkpoint of a database.
    pub(super) fn checkpoint(&self, shared: &SharedState, local: &LocalDatabase) -> ApiResult {
        self.start(shared, local, "checkpoint", ExportKind::Checkpoint, PathBuf::new())
    }

    /// Starts a backup of a database to a new directory.
    pub(super) fn backup(&self, shared: &SharedState, local: &LocalDatabase) -> ApiResult {
        let options = shared.options.observation.admin.as_ref();
        let Some(directory) = options.and_then(|options| options.backups.clone()) else {
            let why = "start the server with --admin-backups DIR to allow backups";
            return Err(ApiError::new(HttpStatus::Forbidden, why));
        };
        let time = todana::moment::text(crate::process::unix_time().as_secs() * 1000);
        let name: String =
            local.served().name.label().chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let target = directory.join(format!("{name}-{time}"));
        if let Some(own) = shared.persistence.exports.directory(local.number()) {
            refuse_overlap([own.path()], &target)?;
        }
        self.start(shared, local, "backup", ExportKind::Backup { rate: None }, target)
    }

    fn start(
        &self,
        shared: &SharedState,
        local: &LocalDatabase,
        name: &'static str,
        what: ExportKind,
        target: PathBuf,
    ) -> ApiResult {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_some_and(|last| last.progress.outcome.get().is_none()) {
            return Err(ApiError::new(
                HttpStatus::Conflict,
                "another checkpoint or backup is not complete yet",
            ));
        }
        let request = ExportRequest { database: local.number() as u32, what };
        let database = &local.served().database;
        let progress = shared.persistence.exports.start_here(request, database, target).map_err(|why| {
            ApiError::new(HttpStatus::Conflict, why.strip_prefix("SERVER_ERROR ").unwrap_or(why))
        })?;
        let database = local.served().name.label().to_string();
        let started =
            last.insert(StartedExport { what: name, database, began: Instant::now(), took: None, progress });
        Ok(started.state())
    }

    /// Returns the state of the last one, or null.
    pub(super) fn state(&self) -> Value {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_mut().map_or(Value::Null, StartedExport::state)
    }
}

impl StartedExport {
    fn state(&mut self) -> Value {
        let outcome = self.progress.outcome.get();
        if outcome.is_some() && self.took.is_none() {
            self.took = Some(self.began.elapsed());
        }
        let bytes = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
        json!({
            "what": self.what,
            "database": self.database,
            "done": bytes(&self.progress.done),
            "total": bytes(&self.progress.total),
            "seconds": self.took.unwrap_or_else(|| self.began.elapsed()).as_secs_f64(),
            "outcome": outcome.and_then(|outcome| outcome.as_ref().ok()),
            "error": outcome.and_then(|outcome| outcome.as_ref().err()),
        })
    }
}
