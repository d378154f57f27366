//! Executes calls about replication: about the files of the update log, and about the master that
//! the server follows.

use super::answers::{CallAnswer, CallResult};
use super::call_context::CallContext;
use crate::replica::{MasterAddress, MasterProtocol};
use crate::shared::SharedState;
use std::time::Duration;
use todana::replication::first_of_second;
use todana::update_log::segments;
use todana_protocol::kyoto::{self, CallFailure, ProcedureCall, TimestampParameter, update_log};

const PORT: u16 = 1978;
const UNREADABLE: CallFailure<'static> = CallFailure::Detailed {
    status: kyoto::AnswerStatus::InternalError,
    error: kyoto::DatabaseError::SystemError,
    detail: "the update log cannot be read",
};

/// Returns the newest possible time stamp in a segment that ended at this time.
fn newest(ended_ms: u64) -> u64 {
    first_of_second(ended_ms / 1000 + 1) - 1
}

/// Removes the files of the update logs that contain no change newer than this time stamp, unless a
/// database or a reader needs them.
pub(super) fn remove_logs(shared: &SharedState, until: u64) -> Result<(), CallFailure<'static>> {
    for (number, served) in shared.databases.iter().enumerate() {
        let Some(directory) =
            shared.persistence.exports.directory(number).filter(|_| served.database.log().is_some())
        else {
            continue;
        };
        let outcome = directory.release_log(&served.database, &|ended_ms| newest(ended_ms) <= until);
        outcome.map_err(|error| {
            tracing::error!("ulog_remove: {error}");
            CallFailure::Other { status: kyoto::AnswerStatus::InternalError, text: "removing a file failed" }
        })?;
    }
    Ok(())
}

impl CallContext {
    /// Sets the master, the position in its log, and the interval between requests for its changes.
    pub(super) fn tune_replication(
        &self,
        call: &ProcedureCall<'_>,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        let has_file = self.shared.options.databases.replication.position_file.is_some();
        if !has_file || !self.shared.master_link.is_changeable() {
            return Err(CallFailure::NO_RTS_FILE);
        }
        let host = call.optional(b"host").filter(|host| !host.is_empty());
        let host = host
            .map(|host| std::str::from_utf8(host).map_err(|_| CallFailure::InvalidParameters))
            .transpose()?;
        let port = call.integer(b"port").map_or(Ok(PORT), u16::try_from);
        let port = port.ok().filter(|&port| port > 0).ok_or(CallFailure::InvalidParameters)?;
        let timestamp = call.moment(b"ts").map(|moment| self.stamp(moment));
        let interval = call.integer(b"iv").and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        self.counters().misc.add(1);
        self.shared.master_link.change(|standing| {
            standing.master = host.map(|host| MasterAddress { host: host.into(), port });
            standing.protocol = MasterProtocol::Kyoto;
            standing.timestamp = timestamp.unwrap_or(standing.timestamp);
            standing.interval = interval.unwrap_or(standing.interval);
        });
        answer.done(&[]);
        Ok(())
    }

    fn stamp(&self, moment: TimestampParameter) -> u64 {
        match moment {
            TimestampParameter::At(stamp) => stamp,
            TimestampParameter::Now => first_of_second(self.now()),
        }
    }

    /// Lists the files of the update logs, under names as in Kyoto Tycoon, because clients check
    /// the suffix.
    pub(super) fn list_logs(
        &self,
        pairs: &mut kyoto::AnswerPairs,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        pairs.clear();
        let mut number = 0;
        for (database, _) in
            self.shared.databases.iter().enumerate().filter(|(_, served)| served.database.log().is_some())
        {
            let Some(directory) = self.shared.persistence.exports.directory(database) else { continue };
            let found = segments(&todana::disk::SystemDisk, &directory.path().join("log"));
            let found = found.map_err(|_| UNREADABLE)?;
            let ends_ms = found.iter().skip(1).map(|next| next.created_ms).chain([self.now() * 1000]);
            for (segment, ended_ms) in found.iter().zip(ends_ms) {
                number += 1;
                let path = directory.path().join(update_log::file_name(number));
                let text = format!("{}:{}", segment.len, newest(ended_ms));
                pairs.push(path.as_os_str().as_encoded_bytes(), text.as_bytes());
            }
        }
        if number == 0 {
            return Err(CallFailure::NO_UPDATE_LOG);
        }
        self.counters().misc.add(1);
        answer.done_with(pairs);
        Ok(())
    }

    /// Returns the time stamp up to which the update logs are removed.
    pub(super) fn logs_to_remove(&self, call: &ProcedureCall<'_>) -> Result<u64, CallFailure<'static>> {
        if self.shared.databases.iter().all(|served| served.database.log().is_none()) {
            return Err(CallFailure::NO_UPDATE_LOG);
        }
        self.counters().misc.add(1);
        Ok(call.moment(b"ts").map_or(u64::MAX, |moment| self.stamp(moment)))
    }
}
