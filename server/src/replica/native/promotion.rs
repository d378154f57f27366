//! Promotions: this server becomes the master in a new epoch, or meets a server that has become it
//! (docs/replication.md, "Promotion").
//!
//! Invariants: a server accepts changes in a new epoch only after the epoch is on its disk. A
//! server that has met a later epoch refuses changes until it follows the master of that epoch, or
//! is promoted itself, also after a restart.

use super::branch::to_logged;
use super::replica_side::FollowedDatabase;
use crate::shared::SharedState;
use std::sync::Arc;
use todana::update_log::{Epoch, EpochPlace, EpochStart};
use todana::{DataDirectory, Database, EpochHistory, EpochRole};

/// Returns the directories of the databases that can have epochs, and the databases.
fn logged_databases(shared: &SharedState) -> impl Iterator<Item = (Arc<DataDirectory>, &Arc<Database>)> {
    shared
        .databases
        .iter()
        .enumerate()
        .filter_map(|(index, served)| Some((shared.persistence.exports.directory(index)?, &served.database)))
}

/// Returns the last epoch that this server knows.
pub(crate) fn server_epoch(shared: &SharedState) -> Epoch {
    logged_databases(shared).map(|(directory, _)| directory.epochs().epoch()).max().unwrap_or_default()
}

/// Returns the later epoch of a master that this server has met but does not follow.
pub(crate) fn superseded_by(shared: &SharedState) -> Option<Epoch> {
    let met = logged_databases(shared).map(|(directory, _)| directory.epochs().superseded_by).max();
    met.filter(|&epoch| epoch > server_epoch(shared))
}

/// Returns true if this server was promoted in the last epoch that it knows.
pub(super) fn is_promoted(shared: &SharedState) -> bool {
    superseded_by(shared).is_none()
        && logged_databases(shared).any(|(directory, _)| directory.epochs().role == EpochRole::Promoted)
}

/// Returns true if another server is the master of the last epoch that this server knows.
fn is_former_master(history: &EpochHistory, own: [u8; 16]) -> bool {
    history.superseded_by > history.epoch() || history.starts.last().is_some_and(|last| last.log_id != own)
}

/// Refuses changes of clients if another server has become the master. Called at the start of a
/// server that follows no master in this protocol.
pub(in crate::replica) fn refuse_former_master(shared: &SharedState) {
    for (directory, database) in logged_databases(shared) {
        if is_former_master(&directory.epochs(), directory.identity().database_id) {
            database.set_superseded(true);
            tracing::error!(
                epoch = %directory.epochs().epoch().max(directory.epochs().superseded_by),
                "replication: another server has become the master; this server refuses changes; restart it with \
                 --replicate todana://NEW-MASTER"
            );
        }
    }
}

/// Refuses changes of clients from now on, because a server of this epoch exists. Fails if that
/// cannot be stored; changes are refused nevertheless.
pub(super) fn supersede(shared: &SharedState, epoch: Epoch) -> todana_core::Result<()> {
    let mut outcome = Ok(());
    for (directory, database) in logged_databases(shared) {
        let mut history = directory.epochs();
        if history.epoch().max(history.superseded_by) >= epoch {
            continue;
        }
        database.set_superseded(true);
        history.superseded_by = epoch;
        outcome = outcome.and(directory.store_epochs(history));
        tracing::error!(%epoch, "replication: another server has become the master; this server refuses changes");
    }
    // Replies that wait for replicas are replaced by errors.
    shared.wake_queues.log_advanced();
    outcome
}

/// Begins a new epoch with this server as the master. `followed` are the databases of a replica.
/// Fails with the reason, without an effect, if their records are not complete, unless `is_forced`.
pub(super) fn promote(
    shared: &SharedState,
    followed: &[FollowedDatabase],
    is_forced: bool,
) -> Result<Epoch, String> {
    let epoch = server_epoch(shared).max(superseded_by(shared).unwrap_or_default());
    let epoch = epoch.next(shared.options.databases.replication.server_id);
    begin_all(followed, epoch, is_forced).map(|()| epoch)
}

/// Begins an epoch in all databases of a replica, or in none if their records are not complete.
pub(super) fn begin_all(followed: &[FollowedDatabase], epoch: Epoch, is_forced: bool) -> Result<(), String> {
    let mut all = Vec::new();
    for followed in followed {
        let number = followed.number;
        let Some(directory) = &followed.directory else {
            return Err(format!(
                "database {number} has no update log in which the promotion can be recorded; databases in memory have \
                 one with --data-dir"
            ));
        };
        let is_incomplete = followed.is_copying
            || followed.reapplied_until > 0
            || (followed.place.is_some() && followed.source.is_none());
        if is_incomplete && !is_forced {
            return Err(format!(
                "database {number} does not have all records of its master yet; --force promotes it nevertheless"
            ));
        }
        all.push((directory, &followed.database, followed.source.map(to_logged)));
    }
    for (directory, database, ended) in all {
        begin(directory, database, epoch, ended)?;
    }
    Ok(())
}

/// Begins a new epoch with this server as the master, although it has met another one.
pub(in crate::replica) fn promote_former_master(shared: &SharedState) -> Result<Epoch, String> {
    let Some(met) = superseded_by(shared).or_else(|| {
        let mut all = logged_databases(shared);
        let is_former = all.any(|(own, _)| is_former_master(&own.epochs(), own.identity().database_id));
        is_former.then(|| server_epoch(shared))
    }) else {
        return Err("this server is the master already".into());
    };
    let epoch = met.max(server_epoch(shared)).next(shared.options.databases.replication.server_id);
    for (directory, database) in logged_databases(shared) {
        let (epoch_before, log_id) = (directory.epochs().epoch(), directory.identity().database_id);
        let position = database.log().map(|log| log.end());
        let ended = position.map(|position| EpochPlace { epoch: epoch_before, log_id, position });
        begin(&directory, database, epoch, ended)?;
    }
    Ok(epoch)
}

fn begin(
    directory: &DataDirectory,
    database: &Database,
    epoch: Epoch,
    ended: Option<EpochPlace>,
) -> Result<(), String> {
    if database.awaits_checkpoint() {
        // The records that were copied as an image are in no log.
        directory.checkpoint(database).map_err(|error| error.to_string())?;
    }
    let start = EpochStart { epoch, log_id: directory.identity().database_id, ended };
    directory.begin_epoch(database, start, EpochRole::Promoted).map_err(|error| error.to_string())?;
    directory.note_followed(None);
    database.follow_master(false);
    database.set_superseded(false);
    Ok(())
}
