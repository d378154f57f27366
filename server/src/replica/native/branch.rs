//! Follows the epochs of a master (docs/replication.md, "Promotion"): the place that a replica
//! states in the logs of earlier masters, and the changes that only this server has.
//!
//! Invariant: before a database that has changes of its own is replaced by the records of a new
//! master, these changes are in a salvaged log on disk.

use super::reached_place::StoredState;
use super::replica_side::FollowedDatabase;
use std::sync::Arc;
use todana::LastSource;
use todana::update_log::{Epoch, EpochStart, LogPosition};
use todana::{DataDirectory, EPOCHS_MAX, EpochHistory, EpochRole, SalvagedLog};
use todana_core::{Error, ErrorKind, Result};
use todana_protocol::replication::{AnsweredStart, DatabaseAnswer, EpochPlace, EpochRecord, LogPlace};

/// The value of `reapplied_until` if it is only known that changes are applied again. The master
/// then states in a heartbeat how far the records are.
const UNKNOWN: u64 = u64::MAX;

/// The result of leaving the log of an earlier master.
pub(super) enum BranchOutcome {
    /// This server has no changes that the master does not have.
    Nothing,
    /// This server had such changes. They are in this log, and all records must be copied.
    Salvaged(SalvagedLog),
}

/// Returns the place in the form of the protocol.
pub(super) fn to_sent(place: todana::update_log::EpochPlace) -> EpochPlace {
    let place_in_log = LogPlace { database_id: place.log_id, position: place.position.0 };
    EpochPlace { epoch: place.epoch.0, place: place_in_log }
}

/// Returns the place of the protocol in the form of the log.
pub(super) fn to_logged(sent: EpochPlace) -> todana::update_log::EpochPlace {
    let EpochPlace { epoch, place: LogPlace { database_id, position } } = sent;
    todana::update_log::EpochPlace {
        epoch: Epoch(epoch),
        log_id: database_id,
        position: LogPosition(position),
    }
}

/// Returns the beginning of an epoch in the form of the protocol.
pub(super) fn to_record(start: &EpochStart) -> EpochRecord {
    EpochRecord { epoch: start.epoch.0, database_id: start.log_id, ended: start.ended.map(to_sent) }
}

fn to_start(record: &EpochRecord) -> EpochStart {
    EpochStart { epoch: Epoch(record.epoch), log_id: record.database_id, ended: record.ended.map(to_logged) }
}

/// Returns the last places or epochs of a database, so that those of all databases fit into a
/// message. A server that needs an earlier one has no log in common with the other.
pub(super) fn newest<T>(mut all: Vec<T>, databases: usize) -> Vec<T> {
    let kept = (EPOCHS_MAX / databases.max(1)).max(2) + 1;
    all.drain(..all.len().saturating_sub(kept));
    all
}

/// Leaves the log of an earlier master, if the answer of the master does not continue it. Fails if
/// changes of this server would be lost without a trace.
pub(super) fn leave(
    followed: &mut FollowedDatabase,
    answer: &DatabaseAnswer,
    epoch: u64,
) -> Result<BranchOutcome> {
    followed.offered_epochs = answer.epochs.iter().map(to_start).collect();
    let Some(directory) = followed.directory.clone().filter(|_| !followed.is_pair) else {
        return Ok(BranchOutcome::Nothing);
    };
    if answer.start == AnsweredStart::Requested {
        return Ok(BranchOutcome::Nothing);
    }
    if epoch == 0 {
        // Without a promotion, the master continues where this server is, also in another log.
        if matches!(answer.start, AnsweredStart::Branch(_)) {
            followed.set_source(answer.branch);
        }
        return Ok(BranchOutcome::Nothing);
    }
    let outcome = match answer.branch {
        _ if followed.is_copying => BranchOutcome::Nothing,
        Some(branch) => salvage_after(followed, &directory, branch)?,
        None => {
            expect_no_changes(followed, &directory, epoch)?;
            BranchOutcome::Nothing
        }
    };
    let must_copy = answer.start == AnsweredStart::Checkpoint || !followed.knows_path();
    if must_copy || matches!(outcome, BranchOutcome::Salvaged(_)) {
        // The records are no longer those of any place.
        (followed.place, followed.is_copying) = (None, true);
        followed.set_source(None);
        let starts = followed.offered_epochs.clone();
        directory.replace_epochs(&followed.database, starts, EpochRole::Copying)?;
    } else if let Some(branch) = answer.branch {
        directory.return_to(&followed.database, to_logged(branch), Epoch(epoch))?;
        followed.set_source(Some(branch));
    }
    Ok(outcome)
}

/// Writes the changes after a place, if there are any, to a salvaged log.
fn salvage_after(
    followed: &FollowedDatabase,
    directory: &DataDirectory,
    branch: EpochPlace,
) -> Result<BranchOutcome> {
    if followed.path().last() == Some(&branch) {
        return Ok(BranchOutcome::Nothing);
    }
    let Some(from) = directory.position_of(&followed.database, to_logged(branch))? else {
        let why = "the update log of this server does not go back to the changes that only it has; keep a copy \
                   of its data directory elsewhere, and empty it";
        return Err(Error::new(ErrorKind::Invalid, why));
    };
    let salvaged = directory.salvage_after(&followed.database, from)?;
    Ok(salvaged.map_or(BranchOutcome::Nothing, BranchOutcome::Salvaged))
}

/// Fails if this server has changes, of which a master of this epoch knows nothing.
fn expect_no_changes(followed: &FollowedDatabase, directory: &DataDirectory, epoch: u64) -> Result<()> {
    let is_unknown = !followed.path().is_empty() && directory.epochs().epoch().0 < epoch;
    if !is_unknown || followed.database.status().records == 0 {
        return Ok(());
    }
    let is_on_disk = followed.database.engine().durable().is_some();
    if is_on_disk || followed.source.is_some() || directory.has_own_changes(&followed.database)? {
        let why = "it has never had the changes of this server; keep a copy of this server's data directory \
                   elsewhere, and empty it";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    Ok(())
}

impl FollowedDatabase {
    /// Adds the files of the database. If it has applied changes after its stored place, continues
    /// after them. `stored` is the state with which it was created.
    pub(super) fn in_directory(
        mut self,
        directory: Arc<DataDirectory>,
        stored: Option<StoredState>,
    ) -> FollowedDatabase {
        if let Some(StoredState::Place(reached)) = stored.filter(|_| !self.is_pair && !self.is_copying) {
            let end = self.database.log().map_or(0, |log| log.end().0);
            let from = LogPosition(reached.own_end.min(end));
            let mut has_entered = false;
            // If that part of the log is gone, it is unknown how far the records are.
            if let Ok(LastSource { part, position }) = directory.last_source(&self.database, from) {
                let (earlier, place) = (self.source, reached.place);
                has_entered = part.is_some();
                // An epoch that was entered without sources after it: the changes before that had
                // none, or there were none.
                self.source = match (part, position) {
                    (None, _) => earlier,
                    (Some(_), None) => None,
                    (Some((Epoch(epoch), database_id)), Some(position)) => {
                        let is_same =
                            |at: &EpochPlace| (at.epoch, at.place.database_id) == (epoch, database_id);
                        let least = earlier.filter(is_same).map_or(0, |at| at.place.position);
                        let position = position.0.max(least);
                        Some(EpochPlace { epoch, place: LogPlace { database_id, position } })
                    }
                };
                let entered = part.filter(|(_, database_id)| *database_id == place.database_id);
                self.least_source = entered.map(|(Epoch(epoch), _)| EpochPlace { epoch, place }).or(earlier);
            } else {
                (self.source, self.least_source) = (None, self.source);
            }
            if let (Some(source), Some(place)) = (self.source, &mut self.place) {
                if source.place.database_id == place.database_id {
                    place.position = place.position.max(source.place.position);
                } else if Some(source) != reached.source {
                    (self.reapplied_until, self.is_before_own_epoch) = (source.place.position, has_entered);
                }
            } else {
                // It may have had changes of that epoch, or none.
                self.is_before_own_epoch = !directory.epochs().starts.is_empty();
                self.reapplied_until = UNKNOWN;
            }
        }
        if directory.epochs().role == EpochRole::Copying {
            (self.place, self.source, self.is_copying) = (None, None, true);
        }
        self.directory = Some(directory);
        self.note_followed();
        self
    }

    /// Returns true if `path` is known exactly. Otherwise the records may have later changes, too.
    fn knows_path(&self) -> bool {
        self.source.is_some() || self.own_place().is_some()
    }

    /// Returns the end of this server's own log, if its records are those of a former master that
    /// has followed no other one.
    fn own_place(&self) -> Option<EpochPlace> {
        let directory = self.directory.as_ref().filter(|_| !self.is_pair && !self.is_copying)?;
        let (history, log_id) = (directory.epochs(), directory.identity().database_id);
        let is_last = self.place.is_none() && history.starts.last().is_none_or(|last| last.log_id == log_id);
        let position = self.database.log().filter(|_| is_last)?.end();
        Some(to_sent(todana::update_log::EpochPlace { epoch: history.epoch(), log_id, position }))
    }

    /// Returns the places up to which this server has the logs of the masters of its changes. It
    /// states none if it needs a copy, because a master continues after them otherwise.
    pub(super) fn path(&self) -> Vec<EpochPlace> {
        let is_unknown = self.is_pair || self.is_copying || self.wants_copy;
        let Some(directory) = self.directory.as_ref().filter(|_| !is_unknown) else {
            return Vec::new();
        };
        let history = directory.epochs();
        // A server that has entered an epoch has all changes of the earlier ones.
        let least = self.least_source.filter(|at| at.epoch == history.epoch().0);
        match self.source.or(self.own_place()) {
            None if history.starts.is_empty() => Vec::new(),
            current => history.path(current.or(least).map(to_logged)).into_iter().map(to_sent).collect(),
        }
    }

    /// Sets the place in the log of the first master.
    pub(super) fn set_source(&mut self, source: Option<EpochPlace>) {
        self.least_source = if source.is_none() { self.source.or(self.least_source) } else { None };
        (self.source, self.reapplied_until) = (source, 0);
        self.is_before_own_epoch &= source.is_none();
        self.note_followed();
        if let Some(log) = self.database.log() {
            log.set_source(None);
        }
    }

    /// Takes over the place in the log of the first master, which the master has stated. Fails if
    /// the beginning of its epoch has not arrived; the next greeting receives it.
    pub(super) fn note_source(&mut self, stated: Option<EpochPlace>) -> Result<()> {
        let (false, Some(stated)) = (self.is_pair, stated) else { return Ok(()) };
        if let Some(directory) = &self.directory
            && stated.epoch > directory.epochs().epoch().0
        {
            // The records were copied after the beginning of the epoch.
            self.take_offered_epochs(directory, Epoch(stated.epoch), directory.epochs().role)?;
        }
        (self.reapplied_until, self.is_before_own_epoch) = (0, false);
        match &mut self.source {
            Some(at) if (at.epoch, at.place.database_id) == (stated.epoch, stated.place.database_id) => {
                at.place.position = at.place.position.max(stated.place.position);
            }
            source => {
                *source = Some(stated);
                if let Some(directory) = &self.directory {
                    directory.note_source(&self.database, to_logged(stated));
                }
            }
        }
        self.note_followed();
        Ok(())
    }

    /// Takes over the epochs up to this one from the answer of the master. Fails if the master has
    /// entered the epoch after its answer; the next greeting receives it.
    fn take_offered_epochs(&self, directory: &DataDirectory, epoch: Epoch, role: EpochRole) -> Result<()> {
        let mut starts = self.offered_epochs.clone();
        starts.retain(|start| start.epoch <= epoch);
        if starts.last().is_none_or(|last| last.epoch < epoch) {
            return Err(Error::new(ErrorKind::Busy, "the master has entered another epoch"));
        }
        directory.replace_epochs(&self.database, starts, role)
    }

    /// Returns true if the master knows later epochs, but no longer this one.
    fn is_passed_over(&self, start: EpochStart) -> bool {
        let is_known = |known: &EpochStart| (known.epoch, known.log_id) == (start.epoch, start.log_id);
        let knows_later = self.offered_epochs.last().is_some_and(|last| last.epoch > start.epoch);
        knows_later && !self.offered_epochs.iter().any(is_known)
    }

    /// Enters an epoch whose beginning is in the log of the master, in an entry before `end`.
    pub(super) fn enter_epoch(&mut self, start: EpochStart, master: [u8; 16], end: u64) -> Result<()> {
        if let Some(directory) = self.directory.as_ref().filter(|_| !self.is_pair)
            && start.epoch > directory.epochs().epoch()
        {
            let role = match directory.epochs().role {
                EpochRole::Copying => EpochRole::Copying,
                EpochRole::Promoted | EpochRole::Unchanged => EpochRole::Unchanged,
            };
            match start.ended {
                Some(ended) if ended.epoch <= directory.epochs().epoch() => {
                    directory.begin_epoch(&self.database, start, role)?;
                }
                // The master followed a server of that epoch, which was passed over later.
                _ if self.is_passed_over(start) => {
                    self.set_source(None);
                    self.reapplied_until = UNKNOWN;
                    return Ok(());
                }
                // The master only notes the log that it follows, or it entered earlier epochs
                // before its records were copied here.
                _ => self.take_offered_epochs(directory, start.epoch, role)?,
            }
        }
        let (epoch, database_id) = (start.epoch.0, start.log_id);
        let source = match database_id == master {
            true => Some(EpochPlace { epoch, place: LogPlace { database_id, position: end } }),
            false => self.source.filter(|at| (at.epoch, at.place.database_id) == (epoch, database_id)),
        };
        let own = self.directory.as_ref().map(|directory| directory.epochs().epoch());
        let is_before = self.is_before_own_epoch && own.is_some_and(|own| start.epoch < own);
        // Changes that are applied again still are if the master only notes the same log again.
        let is_same = source == self.source;
        let reapplied_until = self.reapplied_until;
        self.set_source(source);
        self.is_before_own_epoch = is_before;
        if is_same || reapplied_until == UNKNOWN {
            self.reapplied_until = reapplied_until;
        }
        Ok(())
    }

    /// Returns the source of an entry that ends at a place in the log of the master and states
    /// `stated` itself.
    pub(super) fn source_of(
        &self,
        master: [u8; 16],
        end: u64,
        stated: Option<LogPosition>,
    ) -> Option<LogPosition> {
        match self.source {
            _ if self.is_pair || self.is_before_own_epoch => None,
            _ if self.is_first_master(master) => Some(LogPosition(end)),
            _ => stated,
        }
    }

    /// Returns true if the next entries of a log of this database ID were written by the first
    /// master. The marks of a server that was itself a replica have another clock.
    pub(super) fn is_first_master(&self, master: [u8; 16]) -> bool {
        !self.is_before_own_epoch && self.source.is_some_and(|source| source.place.database_id == master)
    }

    /// Makes the place in the log of the first master known to the replicas of this server.
    pub(super) fn note_followed(&self) {
        if let Some(directory) = &self.directory {
            // In the first epoch, a new server looks like a former master.
            let own = self.own_place().filter(|own| own.epoch > 0);
            directory.note_followed(self.source.or(own).map(to_logged));
        }
    }

    /// Notes that the copy of all records is complete and stored.
    pub(super) fn end_copy(&self) -> Result<()> {
        match &self.directory {
            Some(directory) if directory.epochs().role == EpochRole::Copying => {
                directory.store_epochs(EpochHistory { role: EpochRole::Unchanged, ..directory.epochs() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana_protocol::replication::{
        CONTENT_LEN_MAX, DATABASES_MAX, DatabaseRequest, FrameDecoder, MasterWelcome, ReplicaHello,
        RequestedStart,
    };

    /// A server once sent messages that no server accepts, after many promotions.
    #[test]
    fn epochs_of_all_databases_fit_into_messages() {
        let place = LogPlace { database_id: [7; 16], position: u64::MAX };
        let places = vec![EpochPlace { epoch: 9, place }; EPOCHS_MAX + 1];
        let epoch = EpochRecord { epoch: 9, database_id: [7; 16], ended: Some(places[0]) };
        for count in [1, 2, 3, 16, 333, DATABASES_MAX] {
            let mut hello = ReplicaHello { user: vec![b'u'; 1024], ..ReplicaHello::default() };
            let mut welcome = MasterWelcome::default();
            for number in 0..count as u16 {
                let path = newest(places.clone(), count);
                let epochs = newest(vec![epoch; EPOCHS_MAX], count);
                assert!(path.len() > 2 && epochs.len() > 2);
                let start = RequestedStart::Place(place);
                hello.databases.push(DatabaseRequest { number, start, bucket_format: 1, path });
                let (start, branch) = (AnsweredStart::Branch(1), Some(places[0]));
                welcome.databases.push(DatabaseAnswer {
                    number,
                    database_id: [7; 16],
                    start,
                    branch,
                    epochs,
                });
            }
            let mut bytes = Vec::new();
            hello.put(&mut bytes);
            assert!(bytes.len() < 190 << 10, "{count}: {}", bytes.len());
            let len = bytes.len();
            welcome.put(&mut bytes);
            assert!(bytes.len() - len <= CONTENT_LEN_MAX, "{count}");
            let mut frames = FrameDecoder::default();
            frames.push(&bytes);
            assert_eq!(ReplicaHello::read(frames.next_content().unwrap().unwrap()), Ok(hello));
            assert_eq!(MasterWelcome::read(frames.next_content().unwrap().unwrap()), Ok(Ok(welcome)));
        }
    }
}
