//! Commands on a database on a cluster that no operation expresses. They wait for the cluster, so
//! they are background jobs.

use super::records_seen::expect_wanted;
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::AtomicBool;
use todana::tyrant::{ShiftVisitor, SumVisitor};
use todana::{Records, ScanDirection};
use todana_core::{Error, ErrorKind, Result};
use todana_protocol::tyrant::{FieldBuffer, TyrantRequest, reply};

/// The number of records between two checks for cancellation.
const STEP_RECORDS: usize = 512;

/// A command, with its parameters.
pub(super) enum ClusterTask {
    /// `putshl`: appends a piece and keeps the end of the value.
    Shift { key: Vec<u8>, piece: Vec<u8>, width: usize },
    /// `addint`.
    AddInt { key: Vec<u8>, delta: i32 },
    /// `adddouble`.
    AddDouble { key: Vec<u8>, delta: f64 },
    /// `fwmkeys`: keys by their beginning.
    Prefix { prefix: Vec<u8>, limit: usize },
}

impl ClusterTask {
    /// Returns the task of a request; `None` if the request is none of these commands.
    pub(super) fn of(request: &TyrantRequest<'_>) -> Option<ClusterTask> {
        Some(match *request {
            TyrantRequest::PutShl { key, value, width } => {
                ClusterTask::Shift { key: key.to_vec(), piece: value.to_vec(), width: width as usize }
            }
            TyrantRequest::AddInt { key, delta } => ClusterTask::AddInt { key: key.to_vec(), delta },
            TyrantRequest::AddDouble { key, delta } => ClusterTask::AddDouble { key: key.to_vec(), delta },
            TyrantRequest::FwmKeys { prefix, limit } => {
                let limit = limit.map_or(usize::MAX, |limit| limit as usize);
                ClusterTask::Prefix { prefix: prefix.to_vec(), limit }
            }
            _ => return None,
        })
    }

    pub(super) fn only_reads(&self) -> bool {
        matches!(self, ClusterTask::Prefix { .. })
    }

    pub(super) fn len_bytes(&self) -> usize {
        match self {
            ClusterTask::Shift { key, piece, .. } => key.len() + piece.len(),
            ClusterTask::AddInt { key, .. } | ClusterTask::AddDouble { key, .. } => key.len(),
            ClusterTask::Prefix { prefix, .. } => prefix.len(),
        }
    }

    /// Does the work and writes the reply.
    pub(super) fn perform(
        &self,
        shared: &SharedState,
        is_cancelled: &AtomicBool,
        list_len_max: usize,
        output: &mut ConnectionOutput,
    ) {
        #[cfg(feature = "cassandra")]
        if let Some(remote) = shared.databases.primary().remote() {
            return self.perform_on(remote, shared, is_cancelled, list_len_max, output);
        }
        let _ = (shared, is_cancelled, list_len_max);
        reply::put_status(false, output);
    }

    #[cfg_attr(not(feature = "cassandra"), allow(dead_code, reason = "only a cluster executes these"))]
    fn perform_on(
        &self,
        records: &impl Records,
        shared: &SharedState,
        is_cancelled: &AtomicBool,
        list_len_max: usize,
        output: &mut ConnectionOutput,
    ) {
        match self {
            ClusterTask::Shift { key, piece, width } => {
                let visited = records.visit(key, &mut ShiftVisitor::new(piece, *width));
                reply::put_status(visited.is_ok(), output);
            }
            ClusterTask::AddInt { key, delta } => {
                let mut visitor = SumVisitor::new(*delta);
                match records.visit(key, &mut visitor).ok().and_then(|()| visitor.sum()) {
                    Some(sum) => reply::put_integer(sum, output),
                    None => reply::put_status(false, output),
                }
            }
            ClusterTask::AddDouble { key, delta } => {
                let mut visitor = SumVisitor::new(*delta);
                match records.visit(key, &mut visitor).ok().and_then(|()| visitor.sum()) {
                    Some(sum) => reply::put_real(sum, output),
                    None => reply::put_status(false, output),
                }
            }
            ClusterTask::Prefix { prefix, limit } => {
                let len_max = usize::try_from(shared.memory.held_max() / 4).unwrap_or(usize::MAX);
                let len_max = list_len_max.min(len_max);
                if !shared.options.limits.dump_allowed {
                    return reply::put_status(false, output);
                }
                match keys_with(records, prefix, *limit, len_max, is_cancelled) {
                    Ok(keys) => reply::put_keys(&keys.list(), output),
                    Err(_) => reply::put_status(false, output),
                }
            }
        }
    }
}

/// Returns the first keys that begin with a prefix: in the order of the keys, if there is one.
fn keys_with(
    records: &impl Records,
    prefix: &[u8],
    limit: usize,
    len_max: usize,
    is_cancelled: &AtomicBool,
) -> Result<FieldBuffer> {
    let (mut keys, mut left, mut is_too_long) = (FieldBuffer::default(), limit, false);
    let (mut seen, mut wanted) = (0, Ok(()));
    let is_ordered = records.is_ordered();
    let mut see = |key: &[u8]| {
        seen += 1;
        if seen % STEP_RECORDS == 0 {
            wanted = expect_wanted(is_cancelled);
        }
        let fits = key.starts_with(prefix);
        if left == 0 || wanted.is_err() || is_ordered && !fits {
            return ControlFlow::Break(());
        }
        if fits {
            is_too_long |= keys.len_bytes() + key.len() + size_of::<u32>() > len_max;
            if is_too_long {
                return ControlFlow::Break(());
            }
            keys.push(key);
            left -= 1;
        }
        ControlFlow::Continue(())
    };
    if is_ordered {
        records.walk(ScanDirection::Up, Bound::Included(prefix), &mut |key, _| see(key))?;
    } else {
        records.scan(None, &mut |key, _| see(key))?;
    }
    wanted?;
    match is_too_long {
        true => Err(Error::new(ErrorKind::Full, "the reply is longer than it may be")),
        false => Ok(keys),
    }
}
