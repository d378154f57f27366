//! Copies records between a database on disk and a database on a cluster.

use super::key_range::{KeyRange, walk};
use super::open;
use super::refusal::refused;
use super::transfer::StoreRecord;
use crate::CommandFailure;
use crate::amount::amount;
use crate::command_target::LocalDatabase;
use crate::interruption_flag::InterruptionFlag;
use crate::progress::{progress, records as records_bar};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use todana::{Action, DatabaseName, DbOptions, Expiry, Record, Records, Ttl};
use todana_core::{Attributes, Operation, OwnedOperation, OwnedReply, RefusalReason, Reply, Store};
use todana_remote::RemoteDatabase;

/// The records that are being stored on the cluster at the same time.
const IN_FLIGHT: usize = 128;
/// The number of times that a record is stored again if its outcome is unknown.
const ATTEMPTS_MAX: u32 = 5;

/// A record that is being stored, with the number of attempts so far.
struct StoringRecord {
    key: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    expiry: Expiry,
    attempts: u32,
}

/// A record, and the reply to its store.
type StoringReply = (StoringRecord, OwnedReply);

impl StoringRecord {
    fn submit(self, remote: &RemoteDatabase, replies: &Sender<StoringReply>) {
        let ttl = self.expiry.at().map_or(Ttl::Never, |at| Ttl::At(at.0));
        let store = Store { key: &self.key, value: &self.value, flags: self.flags, ttl, ..Store::default() };
        let operation = OwnedOperation::new(&Operation::Store(store));
        let replies = replies.clone();
        // The receiver is dropped only after a failure, when the replies do not matter.
        remote.submit(operation, Box::new(move |reply| drop(replies.send((self, reply)))));
    }
}

/// Waits for one reply. If the record may not have been stored, stores it again.
fn settle_one(
    remote: &RemoteDatabase,
    (sender, receiver): (&Sender<StoringReply>, &Receiver<StoringReply>),
) -> Result<bool, CommandFailure> {
    let (mut record, reply) =
        receiver.recv().map_err(|_| CommandFailure::trouble("the cluster did not answer"))?;
    match reply.borrowed() {
        Reply::Stored(_) => Ok(true),
        // Storing the same record again changes nothing.
        Reply::Refused(RefusalReason::OutcomeUnknown | RefusalReason::Unreachable)
            if record.attempts < ATTEMPTS_MAX =>
        {
            record.attempts += 1;
            record.submit(remote, sender);
            Ok(false)
        }
        other => Err(refused(&other)),
    }
}

/// Copies the records of a database on disk to an empty database on a cluster.
pub(super) fn copy_to(from: &LocalDatabase, to: &DatabaseName) -> Result<(), CommandFailure> {
    let source = open(from, false)?;
    let remote = RemoteDatabase::open(to)?;
    let mut is_empty = true;
    remote.scan(None, &mut |_, _| {
        is_empty = false;
        ControlFlow::Break(())
    })?;
    if !is_empty {
        return Err(CommandFailure::usage(format!(
            "{to}: holds records already; copy to a keyspace without records"
        )));
    }
    let interruption = InterruptionFlag::watch()?;
    let bar = records_bar(source.count());
    let (sender, receiver) = channel();
    let (mut waiting, mut copied) = (0usize, 0u64);
    let mut settle = |waiting: &mut usize| -> Result<(), CommandFailure> {
        if settle_one(&remote, (&sender, &receiver))? {
            *waiting -= 1;
            copied += 1;
            bar.set_position(copied);
        }
        Ok(())
    };
    walk(&source, &KeyRange::default(), &mut |record| {
        interruption.check()?;
        if record.attributes.has_value_list {
            return Err(CommandFailure::trouble(format!(
                "key {}: has several values, and a database on a cluster stores one",
                record.key.escape_ascii()
            )));
        }
        if matches!(record.attributes.expiry, Expiry::Sliding { .. }) {
            return Err(CommandFailure::trouble(format!(
                "key {}: has a sliding expiry, and a database on a cluster has none",
                record.key.escape_ascii()
            )));
        }
        while waiting >= IN_FLIGHT {
            settle(&mut waiting)?;
        }
        let Attributes { flags, expiry, .. } = record.attributes;
        let (key, value) = (record.key.clone(), record.record().value.to_vec());
        StoringRecord { key, value, flags, expiry, attempts: 0 }.submit(&remote, &sender);
        waiting += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    while waiting > 0 {
        interruption.check()?;
        settle(&mut waiting)?;
    }
    bar.finish_and_clear();
    eprintln!("{} copied", amount(copied, "record"));
    Ok(())
}

/// Copies the records of a database on a cluster to a new database on disk.
pub(super) fn copy_from(from: &DatabaseName, to: &DatabaseName) -> Result<(), CommandFailure> {
    let path = to.path.as_deref().unwrap_or(Path::new(""));
    let remote = RemoteDatabase::open(from)?;
    let copied = copy_new(&remote, to);
    if copied.is_err() {
        // The directory did not exist before, so nothing else is in it.
        let _ = std::fs::remove_dir_all(path);
    }
    eprintln!("{} copied", amount(copied?, "record"));
    Ok(())
}

fn copy_new(remote: &RemoteDatabase, to: &DatabaseName) -> Result<u64, CommandFailure> {
    let target = DbOptions::default().open(&to.to_string())?;
    let interruption = InterruptionFlag::watch()?;
    let bar = progress(None, "{spinner} {pos} records {per_sec} {elapsed}");
    let (mut copied, mut place) = (0, None);
    loop {
        let mut failure = None;
        place = remote.scan(place, &mut |key, record| {
            let attributes = Attributes { version: 0, ..record.attributes };
            let put = Action::Put(Record { attributes, ..record });
            let stored = target
                .visit(key, &mut StoreRecord { put, keeps: false })
                .map_err(CommandFailure::from)
                .and_then(|()| interruption.check());
            match stored {
                Ok(()) => {
                    copied += 1;
                    bar.set_position(copied);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        if place.is_none() {
            break;
        }
    }
    target.sync()?;
    bar.finish_and_clear();
    Ok(copied)
}
