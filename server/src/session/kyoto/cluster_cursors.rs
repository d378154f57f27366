//! Executes calls that use a cursor of a database on a cluster. They wait for the cluster, so they
//! are background jobs.

use super::answers::{CallResult, NO_RECORD, failure};
use super::scripts::ScriptPairs;
use crate::execution::ClusterRecords;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use todana::Records;
use todana::kyoto::{CursorEntry, KyotoCursor};
use todana_core::Result as Outcome;
use todana_protocol::kyoto::{CallFailure, DatabaseError, Procedure, ProcedureCall};

/// The most cursors of a connection.
const CURSORS_MAX: usize = 1024;

/// A cursor, which the connection shares with the job that moves it.
pub(super) type ClusterCursor = Arc<Mutex<KyotoCursor<ClusterRecords>>>;

/// The cursors of a connection in databases on clusters, by their numbers.
#[derive(Default)]
pub(super) struct ClusterCursorTable(HashMap<u64, ClusterCursor>);

impl ClusterCursorTable {
    pub(super) fn get(&self, number: u64) -> Option<ClusterCursor> {
        self.0.get(&number).cloned()
    }

    /// Adds a cursor. Returns `None` if the connection has too many.
    pub(super) fn insert(
        &mut self,
        number: u64,
        cursor: KyotoCursor<ClusterRecords>,
    ) -> Option<ClusterCursor> {
        if self.0.len() >= CURSORS_MAX {
            return None;
        }
        let cursor = Arc::new(Mutex::new(cursor));
        self.0.insert(number, Arc::clone(&cursor));
        Some(cursor)
    }

    pub(super) fn remove(&mut self, number: u64) -> bool {
        self.0.remove(&number).is_some()
    }
}

/// Returns true if a procedure uses the record or the place of a cursor.
pub(super) fn moves_cursor(procedure: Procedure) -> bool {
    matches!(
        procedure,
        Procedure::CursorJump
            | Procedure::CursorJumpBack
            | Procedure::CursorStep
            | Procedure::CursorStepBack
            | Procedure::CursorSetValue
            | Procedure::CursorRemove
            | Procedure::CursorGetKey
            | Procedure::CursorGetValue
            | Procedure::CursorGet
            | Procedure::CursorSeize
    )
}

/// A call that uses a cursor, with its parameters.
pub(super) struct CursorTask {
    pub(super) cursor: ClusterCursor,
    procedure: Procedure,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    time: u64,
    steps: bool,
}

impl CursorTask {
    /// Creates the task of a call. `time` is that of the records that it stores.
    pub(super) fn new(
        cursor: ClusterCursor,
        procedure: Procedure,
        call: &ProcedureCall<'_>,
        time: u64,
    ) -> CursorTask {
        let own = |name| call.optional(name).map(<[u8]>::to_vec);
        CursorTask {
            cursor,
            procedure,
            key: own(b"key"),
            value: own(b"value"),
            time,
            steps: call.flag(b"step"),
        }
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Vec::len) + self.value.as_ref().map_or(0, Vec::len)
    }

    /// Executes the call. Returns the pairs of its answer.
    pub(super) fn perform(&self) -> Result<ScriptPairs, CallFailure<'static>> {
        let mut cursor = self.cursor.lock();
        let key = self.key.as_deref();
        match self.procedure {
            Procedure::CursorJump => {
                at_record(match key {
                    Some(key) => cursor.jump(key),
                    None => cursor.first(),
                })?;
            }
            Procedure::CursorJumpBack | Procedure::CursorStepBack => {
                if !cursor.records().is_ordered() {
                    return Err(CallFailure::Database(DatabaseError::NotImplemented));
                }
                at_record(match key {
                    _ if self.procedure == Procedure::CursorStepBack => cursor.step_back(),
                    Some(key) => cursor.jump_back(key),
                    None => cursor.last(),
                })?;
            }
            Procedure::CursorStep => at_record(cursor.step())?,
            Procedure::CursorSetValue => {
                let value = self.value.as_deref().ok_or(CallFailure::InvalidParameters)?;
                at_record(cursor.replace(value, self.time, self.steps))?;
            }
            Procedure::CursorRemove => {
                cursor.take().map_err(failure)?.ok_or(NO_RECORD)?;
            }
            Procedure::CursorSeize => return Ok(pairs(cursor.take().map_err(failure)?.ok_or(NO_RECORD)?)),
            procedure => {
                let entry = cursor.read(self.steps).map_err(failure)?.ok_or(NO_RECORD)?;
                return Ok(match procedure {
                    Procedure::CursorGetKey => vec![(b"key".to_vec(), entry.key)],
                    Procedure::CursorGetValue => vec![(b"value".to_vec(), entry.value)],
                    _ => pairs(entry),
                });
            }
        }
        Ok(Vec::new())
    }
}

fn at_record(outcome: Outcome<bool>) -> CallResult {
    if outcome.map_err(failure)? { Ok(()) } else { Err(NO_RECORD) }
}

fn pairs(entry: CursorEntry) -> ScriptPairs {
    let mut pairs = vec![(b"key".to_vec(), entry.key), (b"value".to_vec(), entry.value)];
    pairs.extend(entry.time.map(|time| (b"xt".to_vec(), time.to_string().into_bytes())));
    pairs
}
