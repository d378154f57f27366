//! Reads the inputs of the rows about the server: counters that are summed once for each answer, so
//! that all figures of the answer agree.

use crate::observation::counters::CounterSums;
use crate::replica::FollowState;
use crate::session::kyoto;
use crate::shared::SharedState;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use todana::table::visible_records;
use todana::{Counters, DataDirectory, SweepCounters};
use todana_core::EngineStatus;

/// All inputs, read at nearly the same time. Workers continue to count meanwhile.
pub(crate) struct ServerReadings {
    /// The CPU time in user mode and in the kernel.
    pub(super) cpu_time: (Duration, Duration),
    pub(super) connections: u64,
    /// The sums of the counters since the last reset.
    pub(crate) sums: CounterSums,
    pub(super) kyoto: kyoto::KyotoSums,
    /// The operations on the first database since the last reset.
    pub(super) counters: Counters,
    /// The status of the first database's engine, with counters since the last reset.
    pub(super) status: EngineStatus,
    /// The sweeps of the first database since the last reset.
    pub(super) sweeps: SweepCounters,
    /// The status of the first database's engine, with counters since the start.
    pub(super) engine: EngineStatus,
    /// The synced position and the end of the first database's update log in the data directory.
    pub(super) log: Option<(u64, u64)>,
    /// The data directory, if there is a log.
    pub(super) directory: Option<Arc<DataDirectory>>,
    pub(super) follow_state: FollowState,
}

impl ServerReadings {
    pub(crate) fn take(shared: &SharedState) -> ServerReadings {
        let primary = shared.databases.primary();
        let is_logged = primary.database.engine_sync().is_none() && shared.options.databases.data.is_some();
        // The synced position is read first, so that it never exceeds the end.
        let log = primary.database.log().filter(|_| is_logged).map(|log| (log.synced().0, log.end().0));
        ServerReadings {
            cpu_time: crate::process::cpu_time(),
            connections: shared.observation.connections.current.load(Ordering::Relaxed),
            sums: shared.observation.sums(),
            kyoto: kyoto::KyotoSums::of(&shared.observation.workers),
            counters: primary.database.counters(),
            status: EngineStatus { records: visible_records(&primary.database), ..primary.database.status() },
            sweeps: primary.database.sweeps(),
            engine: primary.database.engine().status(),
            log,
            directory: log.and_then(|_| shared.persistence.exports.directory(0)),
            follow_state: shared.master_link.follow_state(),
        }
    }
}
