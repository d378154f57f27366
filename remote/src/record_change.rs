//! Operations that change a record depending on its state.
//!
//! ```text
//! one operation, decided by the row's existence or token -> one conditional write
//! other operations -> the row is read, the operations are computed one after the other by the
//!                     visitors of a database, and the result is stored if the row is the same
//! ```
//!
//! An attempt without an answer is neither executed nor not executed. A serial read settles it: the
//! row has the token of the attempt (executed), or still the token before it (tried again), or
//! another one (unknown: the client gets an error). The serial read also keeps the attempt from
//! taking effect later, unless its coordinator has not even begun.

use crate::cluster::{Cluster, ConditionalOutcome, NewRow, RowCondition};
use crate::outcome::RequestFailure;
use crate::row::{RowLifetime, StoredRow};
use crate::token::{RowToken, VERSION_END};
use std::time::{Duration, Instant};
use todana::{DetachedChange, execute_detached};
use todana_core::{
    Attributes, Delete, Expiry, Operation, OwnedOperation, OwnedReply, RefusalReason, Reply, StaleMarks,
    Store, StoreMode, StoredReply, Visitor,
};

/// The time after which an operation is not tried again.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(8);
/// The longest wait before the next attempt, if other servers write the same record.
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// Executes operations on one record, in their order, with one write. Returns their replies.
pub(crate) async fn execute_on_record(
    cluster: &Cluster,
    key: &[u8],
    operations: &[&OwnedOperation],
) -> Vec<OwnedReply> {
    if let [operation] = operations
        && let Some(write) = DirectWrite::of(cluster, &operation.borrowed())
    {
        match write {
            Err(refusal) => return vec![refused(refusal)],
            Ok(write) => {
                if let Some(reply) = write.execute(cluster, key).await {
                    return vec![reply];
                }
            }
        }
    }
    RecordChange { cluster, key, operations, unsettled: Vec::new(), seen: None }.execute().await
}

fn refused(refusal: RefusalReason) -> OwnedReply {
    OwnedReply::new(Reply::Refused(refusal))
}

fn all_refused(operations: &[&OwnedOperation], refusal: RefusalReason) -> Vec<OwnedReply> {
    operations.iter().map(|_| refused(refusal)).collect()
}

/// Returns the version that a store gives to its record, or a new one.
pub(crate) fn version_of(cluster: &Cluster, given: Option<u64>) -> Result<u64, RefusalReason> {
    match given {
        Some(version) if version >= VERSION_END => Err(RefusalReason::NotOnCluster),
        Some(version) => Ok(version),
        None => Ok(cluster.clock.version()),
    }
}

/// A write whose condition needs no earlier read.
struct DirectWrite<'o> {
    /// The row to write; `None` if the row is removed.
    row: Option<NewRow<'o>>,
    condition: RowCondition,
    applied: Reply<'static>,
    not_applied: Reply<'static>,
    /// True if a client has chosen the version, so that versions do not show the order of writes.
    has_given_version: bool,
}

impl<'o> DirectWrite<'o> {
    /// Returns the write of an operation; `None` if the operation must read first.
    fn of(cluster: &Cluster, operation: &Operation<'o>) -> Option<Result<DirectWrite<'o>, RefusalReason>> {
        match operation {
            Operation::Store(store) => DirectWrite::of_store(cluster, store).transpose(),
            Operation::Delete(Delete { compare: None, mark_stale: false, drop_value: false, .. }) => {
                Some(Ok(DirectWrite {
                    row: None,
                    condition: RowCondition::Exists,
                    applied: Reply::Deleted,
                    not_applied: Reply::NotFound,
                    has_given_version: false,
                }))
            }
            _ => None,
        }
    }

    fn of_store(cluster: &Cluster, store: &Store<'o>) -> Result<Option<DirectWrite<'o>>, RefusalReason> {
        let (condition, not_applied) = match (store.mode, store.compare) {
            (StoreMode::Set, None) => (RowCondition::Always, Reply::NotStored),
            (StoreMode::Add, None) => (RowCondition::Absent, Reply::NotStored),
            (StoreMode::Replace, None) => (RowCondition::Exists, Reply::NotStored),
            (StoreMode::Set | StoreMode::Replace, Some(version))
                if !store.stale_if_older && (1..VERSION_END).contains(&version) =>
            {
                (RowCondition::Token(RowToken::new(version, 0, StaleMarks::default())), Reply::Exists)
            }
            _ => return Ok(None),
        };
        let version = version_of(cluster, store.version)?;
        let lifetime = RowLifetime::asked(store.ttl, cluster.now())?;
        if lifetime == RowLifetime::Over && condition != RowCondition::Always {
            return Ok(None);
        }
        let token = RowToken::new(version, 0, StaleMarks::default());
        let stored = StoredReply { version, value_len: store.value.len() as u64 };
        Ok(Some(DirectWrite {
            row: Some(NewRow { value: store.value, flags: store.flags, token, lifetime }),
            condition,
            applied: Reply::Stored(stored),
            not_applied,
            has_given_version: store.version.is_some(),
        }))
    }

    async fn attempt(&self, cluster: &Cluster, key: &[u8]) -> Result<ConditionalOutcome, RequestFailure> {
        match &self.row {
            None => cluster.remove_if(key, self.condition).await,
            Some(row) if row.lifetime == RowLifetime::Over => {
                // The record has expired already. If there was none, there is nothing to remove.
                cluster.remove_if(key, RowCondition::Exists).await.map(|_| ConditionalOutcome::Applied)
            }
            Some(row) => cluster.write_if(key, row, self.condition).await,
        }
    }

    /// Executes the write. Returns `None` if the operation must read first after all.
    async fn execute(&self, cluster: &Cluster, key: &[u8]) -> Option<OwnedReply> {
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        let mut is_unsettled = false;
        let unknown = || Some(refused(RefusalReason::OutcomeUnknown));
        loop {
            match self.attempt(cluster, key).await {
                Ok(ConditionalOutcome::Applied) => return Some(OwnedReply::new(self.applied)),
                Ok(ConditionalOutcome::NotApplied(found)) => {
                    let is_own = |row: &NewRow<'_>| is_unsettled && found == Some(row.token);
                    if self.row.as_ref().is_some_and(is_own) {
                        return Some(OwnedReply::new(self.applied));
                    }
                    if is_unsettled {
                        return unknown();
                    }
                    return match (self.condition, found) {
                        // A touch or a mark has changed the token, but not the version.
                        (RowCondition::Token(wanted), Some(found)) if wanted.version() == found.version() => {
                            None
                        }
                        (RowCondition::Token(_), None) => Some(OwnedReply::new(Reply::NotFound)),
                        _ => Some(OwnedReply::new(self.not_applied)),
                    };
                }
                Err(RequestFailure::Unknown) => is_unsettled = true,
                Err(_) if is_unsettled => {}
                Err(failure) => return Some(refused(failure.refusal())),
            }
            match self.settle(cluster, key).await {
                Some(true) => return Some(OwnedReply::new(self.applied)),
                Some(false) if Instant::now() < deadline => {}
                _ => return unknown(),
            }
        }
    }

    /// Reads the row after an attempt without an answer. Returns true if the attempt has succeeded,
    /// false if it has not, and `None` if that cannot be known.
    async fn settle(&self, cluster: &Cluster, key: &[u8]) -> Option<bool> {
        let found = cluster.read(key, true).await.ok()?;
        match (&self.row, found, self.condition) {
            (Some(row), Some(found), _) if found.token == row.token => Some(true),
            // The row that must not exist does not exist, and the row to remove exists.
            (Some(_), None, RowCondition::Absent) | (None, Some(_), _) => Some(false),
            (Some(_), Some(found), RowCondition::Token(old)) if found.token == old => Some(false),
            (Some(row), Some(found), RowCondition::Exists | RowCondition::Always)
                if !self.has_given_version && found.token.version() < row.token.version() =>
            {
                Some(false)
            }
            (Some(_), None, RowCondition::Always) => Some(false),
            _ => None,
        }
    }
}

/// Operations on one record that are computed from the row that was read.
struct RecordChange<'c> {
    cluster: &'c Cluster,
    key: &'c [u8],
    operations: &'c [&'c OwnedOperation],
    /// The attempts without an answer: the token of each (`None` for a removal) and the replies.
    unsettled: Vec<(Option<RowToken>, Vec<OwnedReply>)>,
    /// The token before the last attempt without an answer; `None` inside if there was no row.
    seen: Option<Option<RowToken>>,
}

/// The result of the operations, computed from a row.
struct ComputedRow {
    /// The row afterwards.
    row: Option<StoredRow>,
    is_changed: bool,
    replies: Vec<OwnedReply>,
}

impl RecordChange<'_> {
    async fn execute(mut self) -> Vec<OwnedReply> {
        let deadline = Instant::now() + OPERATION_TIMEOUT;
        let mut backoff = Duration::from_millis(2);
        loop {
            let is_serial = !self.unsettled.is_empty();
            let row = match self.cluster.read(self.key, is_serial).await {
                Ok(row) => row,
                Err(_) if is_serial && Instant::now() < deadline => {
                    pause(&mut backoff).await;
                    continue;
                }
                Err(failure) => return self.failed(failure),
            };
            if is_serial && let Some(replies) = self.settled(row.as_ref()) {
                return replies;
            }
            let computed = self.compute(row.clone());
            if !computed.is_changed {
                return computed.replies;
            }
            match self.store(row.as_ref(), &computed).await {
                Ok(ConditionalOutcome::Applied) => return computed.replies,
                Ok(ConditionalOutcome::NotApplied(_)) => {}
                Err(RequestFailure::Unknown) => {
                    self.seen = Some(row.map(|row| row.token));
                    self.unsettled.push((computed.row.map(|row| row.token), computed.replies));
                }
                Err(failure) => return self.failed(failure),
            }
            if Instant::now() >= deadline {
                return match self.unsettled.is_empty() {
                    true => all_refused(self.operations, RefusalReason::Overloaded),
                    false => all_refused(self.operations, RefusalReason::OutcomeUnknown),
                };
            }
            pause(&mut backoff).await;
        }
    }

    fn failed(&self, failure: RequestFailure) -> Vec<OwnedReply> {
        let refusal = match self.unsettled.is_empty() {
            true => failure.refusal(),
            false => RefusalReason::OutcomeUnknown,
        };
        all_refused(self.operations, refusal)
    }

    /// Compares a row that was read serially with the attempts without an answer. Returns the
    /// replies if the operations must not be tried again.
    fn settled(&mut self, row: Option<&StoredRow>) -> Option<Vec<OwnedReply>> {
        let token = row.map(|row| row.token);
        if token.is_some()
            && let Some(index) = self.unsettled.iter().position(|(attempt, _)| *attempt == token)
        {
            return Some(self.unsettled.swap_remove(index).1);
        }
        let is_unchanged = self.seen == Some(token);
        (!is_unchanged).then(|| all_refused(self.operations, RefusalReason::OutcomeUnknown))
    }

    /// Executes the operations one after the other on the row that was read.
    fn compute(&self, old: Option<StoredRow>) -> ComputedRow {
        let old_token = old.as_ref().map(|row| row.token);
        let mut computed = ComputedRow { row: old, is_changed: false, replies: Vec::new() };
        for operation in self.operations {
            let (version, now) = (self.cluster.clock.version(), self.cluster.now());
            let record = computed.row.as_ref().map(StoredRow::record);
            let (reply, change) = execute_detached(&operation.borrowed(), record, now, version);
            let reply = match computed.apply(change, version) {
                Ok(()) => reply,
                Err(refusal) => refused(refusal),
            };
            computed.replies.push(reply);
        }
        // The token must differ from the old one, so that an attempt can be recognised.
        if let Some(row) = &mut computed.row
            && computed.is_changed
            && old_token == Some(row.token)
        {
            row.token = RowToken::new(row.token.version(), row.token.touches() + 1, row.token.marks());
        }
        computed
    }

    /// Stores the computed row if the row is still the one that was read.
    async fn store(
        &self,
        old: Option<&StoredRow>,
        computed: &ComputedRow,
    ) -> Result<ConditionalOutcome, RequestFailure> {
        let condition = match old {
            Some(old) if old.token != RowToken::default() => RowCondition::Token(old.token),
            _ => RowCondition::Absent,
        };
        let Some(row) = &computed.row else {
            return match condition {
                RowCondition::Token(_) => self.cluster.remove_if(self.key, condition).await,
                _ if old.is_some() => self.cluster.remove_if(self.key, RowCondition::Exists).await,
                // The row was created and removed again.
                _ => Ok(ConditionalOutcome::Applied),
            };
        };
        let lifetime = RowLifetime::of(row.expiry, self.cluster.now());
        if lifetime == RowLifetime::Over && old.is_none() {
            return Ok(ConditionalOutcome::Applied);
        }
        let row = NewRow { value: &row.value, flags: row.flags, token: row.token, lifetime };
        self.cluster.write_if(self.key, &row, condition).await
    }
}

impl ComputedRow {
    /// Applies a change. `version` is the version of a changed record that has none yet.
    fn apply(&mut self, change: DetachedChange, version: u64) -> Result<(), RefusalReason> {
        let (value, attributes) = match change {
            DetachedChange::Keep => return Ok(()),
            DetachedChange::Remove => {
                (self.row, self.is_changed) = (None, true);
                return Ok(());
            }
            DetachedChange::Put { value, attributes } => (Some(value), attributes),
            DetachedChange::Retag(attributes) => (None, attributes),
        };
        if matches!(attributes.expiry, Expiry::Sliding { .. }) || attributes.version >= VERSION_END {
            return Err(RefusalReason::NotOnCluster);
        }
        let old = self.row.take();
        let token = new_token(old.as_ref(), &attributes, version);
        let value = value.or(old.map(|old| old.value)).unwrap_or_default();
        let (flags, expiry) = (attributes.flags, attributes.expiry);
        self.row = Some(StoredRow { value, flags, token, expiry });
        self.is_changed = true;
        Ok(())
    }
}

/// Returns the token of a changed record. A touch, a mark, and a change that keeps the version
/// count as touches.
fn new_token(old: Option<&StoredRow>, attributes: &Attributes, version: u64) -> RowToken {
    let before = old.map_or(RowToken::default(), |old| old.token);
    let keeps = attributes.version == before.version() && before.version() != 0;
    match keeps {
        true => RowToken::new(before.version(), before.touches() + 1, attributes.marks),
        false if attributes.version == 0 => RowToken::new(version, 0, attributes.marks),
        false => RowToken::new(attributes.version, 0, attributes.marks),
    }
}

/// Waits for a random time before the next attempt, and doubles the longest wait.
async fn pause(backoff: &mut Duration) {
    let micros = backoff.as_micros() as u64;
    tokio::time::sleep(Duration::from_micros(fastrand::u64(micros / 2..=micros))).await;
    *backoff = (*backoff * 2).min(BACKOFF_MAX);
}

/// Calls a visitor on a record, and stores its change if the record is still the same; otherwise
/// begins again.
pub(crate) async fn visit(
    cluster: &Cluster,
    key: &[u8],
    visitor: &mut dyn Visitor,
) -> Result<(), RequestFailure> {
    let deadline = Instant::now() + OPERATION_TIMEOUT;
    let mut backoff = Duration::from_millis(2);
    loop {
        let row = cluster.read(key, false).await?;
        let change = DetachedChange::by(visitor, row.as_ref().map(StoredRow::record));
        let mut computed = ComputedRow { row: row.clone(), is_changed: false, replies: Vec::new() };
        if computed.apply(change, cluster.clock.version()).is_err() {
            return Err(RequestFailure::Refused);
        }
        if !computed.is_changed {
            return Ok(());
        }
        let change = RecordChange { cluster, key, operations: &[], unsettled: Vec::new(), seen: None };
        match change.store(row.as_ref(), &computed).await? {
            ConditionalOutcome::Applied => return Ok(()),
            ConditionalOutcome::NotApplied(_) if Instant::now() < deadline => pause(&mut backoff).await,
            ConditionalOutcome::NotApplied(_) => return Err(RequestFailure::NotExecuted),
        }
    }
}
