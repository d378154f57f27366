//! Commands that may take long, as background jobs. A worker executes those that are brief.

use super::TyrantState;
use super::cluster_task::ClusterTask;
use super::iterator::{IteratorStep, SharedIterator};
use super::numbers::{self, see_numbers};
use super::records_seen::{expect_wanted, see_keys, see_records};
use super::search;
use crate::session::background_jobs::{BackgroundWork, JobAnswer, JobLimits, JobNotDone};
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use regex::bytes::{Regex, RegexBuilder};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use todana::kyoto::translate;
use todana::tyrant::TableSearch;
use todana_core::{Error, ErrorKind, Record, Result};
use todana_protocol::tyrant::{FieldBuffer, FieldList, reply};

/// The limits of these jobs.
pub(super) const LIMITS: JobLimits =
    JobLimits { threads: 2, waiting: 1024, bytes: 16 << 20, stack_bytes: None };

/// The longest list in a reply, in bytes.
pub(super) const ANSWER_MAX: usize = 1 << 28;
/// The largest number of records that a brief command reads.
const BRIEF_RECORDS: u64 = 4096;
/// The largest number of bytes that a brief command reads.
const BRIEF_BYTES: u64 = 1 << 20;
/// The largest number of keys that a brief command reads from a large database.
const BRIEF_KEYS: usize = 256;
/// Longer patterns are refused.
const PATTERN_LEN_MAX: usize = 64 << 10;
/// The most memory for a compiled pattern. The time of a search grows with it.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// A command that may take long, with its parameters.
pub(super) struct TyrantTask {
    pub(super) action: TyrantAction,
    /// True for a function of `misc`, whose reply has a list.
    pub(super) is_misc: bool,
}

pub(super) enum TyrantAction {
    /// `sync`.
    Sync,
    /// `fwmkeys`: keys by their beginning.
    Prefix { prefix: Vec<u8>, limit: usize },
    /// `regex`: records by their keys.
    Regex { pattern: Vec<u8>, limit: usize },
    /// `range`: records between two keys.
    Range { first: Option<Vec<u8>>, end: Option<Vec<u8>>, limit: usize },
    /// `search` in a table.
    Search(Box<TableSearch>),
    /// `iterinit` with a key.
    MoveIterator { key: Vec<u8> },
    /// `iternext`: the next record of the iterator; its value only for `misc`.
    NextRecord,
    /// A command on a database on a cluster, which waits for the cluster.
    OnCluster(ClusterTask),
}

impl TyrantTask {
    /// Returns true if it has no effect besides its reply.
    pub(super) fn only_reads(&self) -> bool {
        match &self.action {
            TyrantAction::Sync | TyrantAction::MoveIterator { .. } | TyrantAction::NextRecord => false,
            TyrantAction::OnCluster(task) => task.only_reads(),
            TyrantAction::Search(search) => !search.removes(),
            _ => true,
        }
    }

    /// Does the work and writes the reply, if it is so short that a worker can do it. Returns false
    /// otherwise.
    pub(super) fn perform_if_brief(&self, shared: &SharedState, output: &mut ConnectionOutput) -> bool {
        let is_brief = self.is_brief(shared);
        let is_ordered = || shared.databases.primary().database.engine().ordered().is_some();
        let may_be_brief = match &self.action {
            TyrantAction::NextRecord => true,
            TyrantAction::MoveIterator { .. } => is_ordered(),
            TyrantAction::Prefix { limit, .. } => *limit <= BRIEF_KEYS && is_ordered(),
            _ => false,
        };
        if !is_brief && !may_be_brief {
            return false;
        }
        // A cancelled search ends after its first group of records.
        match self.list(shared, &AtomicBool::new(!is_brief), ANSWER_MAX) {
            Err(error) if error.kind() == ErrorKind::Closed => return false,
            list => self.put_reply(list, output),
        }
        true
    }

    /// Returns true if the work is certainly brief.
    fn is_brief(&self, shared: &SharedState) -> bool {
        let database = &shared.databases.primary().database;
        let is_small = || {
            let status = database.status();
            status.records <= BRIEF_RECORDS && status.plain_bytes() <= BRIEF_BYTES
        };
        match &self.action {
            TyrantAction::Sync => database.durability().is_none(),
            TyrantAction::Prefix { .. } | TyrantAction::Range { .. } | TyrantAction::MoveIterator { .. } => {
                is_small()
            }
            // A search that removes rows waits for the disk.
            TyrantAction::Search(search) => search.is_simple() && !search.removes() && is_small(),
            // A short pattern can be as slow as a long one.
            TyrantAction::Regex { .. } | TyrantAction::NextRecord | TyrantAction::OnCluster(_) => false,
        }
    }

    fn len(&self) -> usize {
        match &self.action {
            TyrantAction::Sync | TyrantAction::NextRecord => 0,
            TyrantAction::OnCluster(task) => task.len_bytes(),
            TyrantAction::Search(search) => search.len_bytes(),
            TyrantAction::Prefix { prefix: given, .. }
            | TyrantAction::Regex { pattern: given, .. }
            | TyrantAction::MoveIterator { key: given } => given.len(),
            TyrantAction::Range { first, end, .. } => [first, end].into_iter().flatten().map(Vec::len).sum(),
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
        if let TyrantAction::OnCluster(task) = &self.action {
            return task.perform(shared, is_cancelled, list_len_max, output);
        }
        self.put_reply(self.list(shared, is_cancelled, list_len_max), output);
    }

    fn put_reply(&self, list: Result<FieldBuffer>, output: &mut ConnectionOutput) {
        match (list, &self.action) {
            (Ok(list), TyrantAction::Prefix { .. }) => reply::put_keys(&list.list(), output),
            (Ok(list), TyrantAction::NextRecord) if !self.is_misc => {
                reply::put_value(list.list().get(0).unwrap_or_default(), None, output);
            }
            (Ok(list), _) if self.is_misc => reply::put_fields(true, &list.list(), output),
            (Ok(_), _) => reply::put_status(true, output),
            (Err(_), _) => self.put_failure(output),
        }
    }

    /// Does the work, and returns the list of its reply.
    fn list(
        &self,
        shared: &SharedState,
        is_cancelled: &AtomicBool,
        list_len_max: usize,
    ) -> Result<FieldBuffer> {
        let served = shared.databases.primary();
        let database = &served.database;
        let is_numbered = database.engine().numbered().is_some();
        let mut found = FoundFields::new(shared, list_len_max);
        match &self.action {
            TyrantAction::Sync => database.sync()?,
            // `perform` executes these.
            TyrantAction::OnCluster(_) => {}
            TyrantAction::Prefix { prefix, limit } if is_numbered => {
                found.left = *limit;
                if let Some(numbers) = numbers::interval(database, prefix)? {
                    see_numbers(database, numbers, is_cancelled, &mut |key, _| found.push(&[key]))?;
                }
            }
            TyrantAction::Prefix { prefix, limit } => {
                let is_ordered = database.engine().ordered().is_some();
                found.left = *limit;
                see_keys(database, prefix, is_cancelled, &mut |key| {
                    if key.starts_with(prefix) {
                        return found.push(&[key]);
                    }
                    if is_ordered { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })?;
            }
            TyrantAction::Regex { pattern, limit } => {
                let regex = compiled(pattern)?;
                found.left = *limit;
                see_records(database, b"", is_cancelled, &mut |key, record| {
                    if regex.is_match(key) {
                        found.push(&[key, record.value])
                    } else {
                        ControlFlow::Continue(())
                    }
                })?;
            }
            TyrantAction::Range { first, end, limit } if is_numbered => {
                found.left = *limit;
                if let Some(numbers) = numbers::range(database, first.as_deref(), end.as_deref())? {
                    let see = &mut |key: &[u8], record: Record<'_>| found.push(&[key, record.value]);
                    see_numbers(database, numbers, is_cancelled, see)?;
                }
            }
            TyrantAction::Range { first, end, limit } => {
                found.left = *limit;
                let first = first.as_deref().unwrap_or_default();
                see_records(database, first, is_cancelled, &mut |key, record| {
                    if end.as_ref().is_some_and(|end| key >= end.as_slice()) {
                        return ControlFlow::Break(());
                    }
                    found.push(&[key, record.value])
                })?;
            }
            TyrantAction::Search(search) => {
                found.left = usize::MAX;
                let bytes_max = found.len_max;
                let spare = &shared.tyrant.spare_counters;
                search::perform(search, database, spare, bytes_max, is_cancelled, &mut |element| {
                    found.push(&[element])
                })?;
            }
            TyrantAction::NextRecord => {
                found.left = 1;
                loop {
                    let step = TyrantState::step_iterator(shared, &mut |key, record| {
                        let fields = [key, record.value];
                        let _ = found.push(if self.is_misc { &fields } else { &fields[..1] });
                    })?;
                    match step {
                        IteratorStep::Shown => break,
                        IteratorStep::Unfinished => expect_wanted(is_cancelled)?,
                        IteratorStep::End => return Err(Error::new(ErrorKind::Invalid, "no record is left")),
                    }
                }
            }
            TyrantAction::MoveIterator { key } => {
                match SharedIterator::beginning_at(database, key, is_cancelled)? {
                    Some(iterator) => *shared.tyrant.iterator.lock() = Some(iterator),
                    // A hash in memory leaves its iterator where it is, and a tree ends it.
                    None if served.name.kind.is_in_memory() && !is_numbered => {
                        if served.name.kind.is_ordered() {
                            *shared.tyrant.iterator.lock() = None;
                        }
                    }
                    None => return Err(Error::new(ErrorKind::Invalid, "there is no such record")),
                }
            }
        }
        found.finish()
    }

    fn put_failure(&self, output: &mut ConnectionOutput) {
        if self.is_misc {
            reply::put_fields(false, &FieldList::default(), output);
        } else {
            reply::put_status(false, output);
        }
    }
}

/// The fields that a search has found, within the bounds of a reply.
struct FoundFields {
    fields: FieldBuffer,
    /// The number of records that may be added.
    left: usize,
    len_max: usize,
    is_too_long: bool,
}

impl FoundFields {
    fn new(shared: &SharedState, list_len_max: usize) -> FoundFields {
        let len_max = list_len_max.min(usize::try_from(shared.memory.held_max() / 4).unwrap_or(usize::MAX));
        FoundFields { fields: FieldBuffer::default(), left: 0, len_max, is_too_long: false }
    }

    /// Adds the fields of a record; breaks if no more may be added.
    fn push(&mut self, fields: &[&[u8]]) -> ControlFlow<()> {
        if self.left == 0 {
            return ControlFlow::Break(());
        }
        let len: usize = fields.iter().map(|field| field.len() + size_of::<u32>()).sum();
        self.is_too_long |= self.fields.len_bytes() + len > self.len_max;
        if self.is_too_long {
            return ControlFlow::Break(());
        }
        fields.iter().for_each(|field| self.fields.push(field));
        self.left -= 1;
        if self.left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(self) -> Result<FieldBuffer> {
        if self.is_too_long {
            return Err(Error::new(ErrorKind::Full, "the reply is longer than it may be"));
        }
        Ok(self.fields)
    }
}

/// Compiles an extended POSIX expression; a `*` before it ignores case.
fn compiled(pattern: &[u8]) -> Result<Regex> {
    let (pattern, ignores_case) = match pattern {
        [b'*', pattern @ ..] => (pattern, true),
        pattern => (pattern, false),
    };
    if pattern.len() > PATTERN_LEN_MAX {
        return Err(Error::new(ErrorKind::Invalid, "the pattern is too long"));
    }
    let mut builder = RegexBuilder::new(&translate(pattern));
    let regex = builder.case_insensitive(ignores_case).size_limit(PATTERN_BYTES_MAX).build();
    regex.map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
}

/// A command as a background job.
pub(super) struct TyrantCall {
    pub(super) shared: Arc<SharedState>,
    pub(super) task: TyrantTask,
}

impl BackgroundWork for TyrantCall {
    fn len_bytes(&self) -> usize {
        size_of::<TyrantCall>() + self.task.len()
    }

    fn perform(&self, is_cancelled: &Arc<AtomicBool>) -> Option<JobAnswer> {
        let mut output = ConnectionOutput::default();
        self.task.perform(&self.shared, is_cancelled, ANSWER_MAX, &mut output);
        Some((output, Vec::new()))
    }

    fn not_done(&self, _why: JobNotDone) -> ConnectionOutput {
        let mut output = ConnectionOutput::default();
        self.task.put_failure(&mut output);
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ListenOptions, ServerOptions};
    use crate::server::Server;

    /// A worker executed short patterns at once. One of 20 bytes takes hours.
    #[test]
    fn worker_never_executes_a_pattern() {
        let listen = ListenOptions { port: 0, ..ListenOptions::default() };
        let server = Server::bind(ServerOptions { listen, ..ServerOptions::default() }).unwrap();
        let search = |instructions: &[&[u8]]| {
            let fields = FieldBuffer::from_iter(instructions.iter().copied());
            TyrantAction::Search(Box::new(TableSearch::parse(fields.list()).unwrap()))
        };
        for (action, is_brief) in [
            (TyrantAction::Prefix { prefix: b"a".to_vec(), limit: 1 }, true),
            (TyrantAction::Regex { pattern: b"a".to_vec(), limit: 1 }, false),
            (search(&[b"addcond\0a\0STREQ\0b"]), true),
            (search(&[b"addcond\0a\0STRRX\0b"]), false),
            (search(&[b"next", b"next"]), false),
            (search(&[b"out"]), false),
        ] {
            let task = TyrantTask { action, is_misc: true };
            let mut output = ConnectionOutput::default();
            assert_eq!(task.perform_if_brief(server.shared(), &mut output), is_brief);
            assert_eq!(output.is_empty(), !is_brief);
        }
        assert!(compiled(b"((a{1,99}){1,99}){1,99}").is_err());
        assert!(compiled(b"*^[a-z]{1,99}$").unwrap().is_match(b"KEY"));
    }
}
