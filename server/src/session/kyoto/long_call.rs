//! Executes long calls: searches through all keys, the removal of expired records, and
//! synchronization.

use super::answer_memory::{AnswerMemoryError, CollectedAnswer};
use super::answers::{CallAnswer, NO_PERMISSION, failure};
use super::call_context::{CallContext, local, place};
#[cfg(feature = "cassandra")]
use super::cluster_cursors::{CursorTask, moves_cursor};
use super::command;
use super::database_image::DatabaseImage;
use super::scripts::ScriptPairs;
use super::session::KyotoSession;
use crate::databases::ServedDatabase;
use crate::databases::pending_commits::DatabaseCommits;
#[cfg(feature = "cassandra")]
use crate::execution::ClusterRecords;
use crate::execution::LocalDatabase;
use crate::session::worker_context::WorkerContext;
use crate::shared::SharedState;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "cassandra")]
use todana::kyoto::KyotoCursor;
use todana::kyoto::translate;
use todana::{KeySymbols, Records, ScanDirection};
use todana_core::{
    Error, ErrorKind, Operation, Record, Reply, Result as Outcome, ScanPosition, SweepAim, Visitor,
};
use todana_protocol::kyoto::{
    self, AnswerStatus, CallFailure, DatabaseError, Procedure, ProcedureCall, ScriptCall, binary,
};

/// The largest number of records that a brief call reads.
const BRIEF_RECORDS: u64 = 4096;
/// The largest number of bytes that a brief call reads.
const BRIEF_BYTES: u64 = 1 << 20;
/// The largest number of byte comparisons in a brief search for similar keys.
const BRIEF_PAIRS: u64 = 1 << 22;
/// The longest regular expression of a brief call, because long ones take long to compile.
const BRIEF_PATTERN: usize = 256;
/// The longest pattern or word of a search. Longer ones are refused.
const PATTERN_LEN_MAX: usize = 64 << 10;
/// The number of records between two checks for cancellation.
const STEP_RECORDS: usize = 2048;
/// The memory of a name or a value in addition to its bytes, at least.
const KEY_OVERHEAD: usize = size_of::<Vec<u8>>();
/// The memory of a short key in a search for similar keys, until the nearest keys are known.
const SIMILAR_LEN: usize = 96;
/// The largest number of keys that a search for similar keys returns.
const SIMILAR_MAX: usize = 1 << 20;

/// The failure of an answer for which there is no memory now, because other answers use it.
const NO_MEMORY: CallFailure<'static> = CallFailure::Detailed {
    status: AnswerStatus::InternalError,
    error: DatabaseError::SystemError,
    detail: "too many large answers wait for their readers",
};

impl From<AnswerMemoryError> for CallFailure<'static> {
    fn from(lack: AnswerMemoryError) -> Self {
        match lack {
            AnswerMemoryError::TooLarge => TOO_LARGE,
            AnswerMemoryError::Busy => NO_MEMORY,
            AnswerMemoryError::Cancelled => failure(Error::new(ErrorKind::Closed, "the call was cancelled")),
        }
    }
}

/// The failure of an answer that needs more memory than all answers together may use.
pub(super) const TOO_LARGE: CallFailure<'static> = CallFailure::Detailed {
    status: AnswerStatus::InternalError,
    error: DatabaseError::SystemError,
    detail: "the answer is larger than it may be",
};

/// A call that may take long, with its parameters.
pub(super) struct LongCall {
    local: LocalDatabase,
    task: LongTask,
}

enum LongTask {
    Prefix {
        prefix: Vec<u8>,
        limit: usize,
    },
    Regex {
        pattern: Vec<u8>,
        limit: usize,
    },
    Similar {
        origin: Vec<u8>,
        range: usize,
        symbols: KeySymbols,
        limit: usize,
    },
    Vacuum,
    Synchronize {
        command: Option<Vec<u8>>,
    },
    /// Removes files of the update logs of all databases.
    RemoveLogs {
        until: u64,
    },
    ScriptCall {
        name: Vec<u8>,
        input: ScriptPairs,
    },
    #[cfg(feature = "cassandra")]
    Cursor(CursorTask),
}

/// The result of a long call.
pub(super) enum LongCallResult {
    Nothing,
    /// The found keys. The value of each is its number among them, in decimal digits.
    Keys(CollectedAnswer),
    /// The output of a script.
    Output(ScriptPairs),
    /// The pairs of an answer.
    #[cfg(feature = "cassandra")]
    Pairs(ScriptPairs),
}

/// Returns true if the procedure may take long.
pub(super) fn may_take_long(procedure: Option<Procedure>) -> bool {
    use Procedure::{MatchPrefix, MatchRegex, MatchSimilar, PlayScript, Synchronize, UlogRemove, Vacuum};
    matches!(
        procedure,
        Some(MatchPrefix | MatchRegex | MatchSimilar | Vacuum | Synchronize | UlogRemove | PlayScript)
    )
}

impl CallContext {
    /// Returns the work of a call that may take long.
    pub(super) fn long_call(
        &self,
        context: &WorkerContext,
        call: &ProcedureCall<'_>,
    ) -> Result<LongCall, CallFailure<'static>> {
        if call.procedure == Some(Procedure::UlogRemove) {
            let task = LongTask::RemoveLogs { until: self.logs_to_remove(call)? };
            return Ok(LongCall { local: local(context, 0)?.clone(), task });
        }
        if call.procedure == Some(Procedure::PlayScript) {
            self.counters().script.add(1);
            let name = call.required(b"name")?;
            if name.is_empty() || !name.iter().all(u8::is_ascii_alphanumeric) {
                return Err(CallFailure::InvalidParameters);
            }
            return self.script(context, name, call.records());
        }
        let database = self.database(call.target())?;
        let short = |text: &[u8]| match text.len() {
            0..=PATTERN_LEN_MAX => Ok(text.to_vec()),
            _ => Err(CallFailure::InvalidParameters),
        };
        let limit = call.max().map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        // Returns this parameter of a search. Fails if searches are not allowed.
        let sought = |name: &[u8]| {
            let sought = call.required(name).and_then(short)?;
            self.counters().misc.add(1);
            if self.shared.options.limits.dump_allowed { Ok(sought) } else { Err(NO_PERMISSION) }
        };
        let task = match call.procedure {
            Some(Procedure::MatchPrefix) => LongTask::Prefix { prefix: sought(b"prefix")?, limit },
            Some(Procedure::MatchRegex) => LongTask::Regex { pattern: sought(b"regex")?, limit },
            Some(Procedure::MatchSimilar) => {
                let range = call.integer(b"range").filter(|&range| range >= 0).unwrap_or(1);
                let range = usize::try_from(range).unwrap_or(usize::MAX);
                let symbols = if call.flag(b"utf") { KeySymbols::Characters } else { KeySymbols::Bytes };
                LongTask::Similar { origin: sought(b"origin")?, range, symbols, limit }
            }
            Some(Procedure::Synchronize) => {
                self.counters().misc.add(1);
                // An empty command name stands for no command, because the Java client always sends
                // a name.
                let command = call.optional(b"command").filter(|command| !command.is_empty());
                LongTask::Synchronize { command: command.map(short).transpose()? }
            }
            _ => {
                self.counters().misc.add(1);
                LongTask::Vacuum
            }
        };
        Ok(LongCall { local: place(context, database)?.clone(), task })
    }

    /// Returns the work of a call that uses a cursor of a database on a cluster; `None` for any
    /// other call.
    #[cfg(feature = "cassandra")]
    pub(super) fn cluster_cursor(
        &self,
        session: &mut KyotoSession,
        context: &WorkerContext,
        call: &ProcedureCall<'_>,
    ) -> Option<Result<LongCall, CallFailure<'static>>> {
        let (procedure, number) = (call.procedure?, call.cursor()?);
        let database = self.database(call.target());
        if !moves_cursor(procedure) || session.cursors.contains(number) {
            return None;
        }
        let existing = session.cluster_cursors.get(number);
        let cursor = match existing {
            Some(cursor) => cursor,
            None => {
                let database = database.as_ref().copied().ok()?;
                let records = ClusterRecords::of(&self.shared, database)?;
                let cursor = KyotoCursor::new(records, &self.shared.databases[database].name);
                match session.cluster_cursors.insert(number, cursor) {
                    Some(cursor) => cursor,
                    None => return Some(Err(CallFailure::NoSuchCursor)),
                }
            }
        };
        if !self.shared.options.limits.dump_allowed {
            return Some(Err(NO_PERMISSION));
        }
        self.counters().misc.add(1);
        let task = LongTask::Cursor(CursorTask::new(cursor, procedure, call, self.time(call)));
        Some(place(context, database.unwrap_or(0)).map(|local| LongCall { local: local.clone(), task }))
    }

    /// Returns `None`, because this build has no databases on clusters.
    #[cfg(not(feature = "cassandra"))]
    pub(super) fn cluster_cursor(
        &self,
        _session: &mut KyotoSession,
        _context: &WorkerContext,
        _call: &ProcedureCall<'_>,
    ) -> Option<Result<LongCall, CallFailure<'static>>> {
        None
    }

    /// Returns the work of a script in the binary protocol.
    pub(super) fn binary_script(
        &self,
        context: &WorkerContext,
        script: &ScriptCall<'_>,
    ) -> Result<LongCall, CallFailure<'static>> {
        self.counters().script.add(1);
        self.script(context, script.name, script.input.iter())
    }

    fn script<'i>(
        &self,
        context: &WorkerContext,
        name: &[u8],
        input: impl Iterator<Item = (&'i [u8], &'i [u8])>,
    ) -> Result<LongCall, CallFailure<'static>> {
        if !self.shared.kyoto.scripts.has_program() {
            return Err(CallFailure::SCRIPTING_DISABLED);
        }
        let input = input.map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let task = LongTask::ScriptCall { name: name.to_vec(), input };
        Ok(LongCall { local: local(context, 0)?.clone(), task })
    }
}

/// Writes the answer to a call.
pub(super) fn write_answer(
    done: Result<LongCallResult, CallFailure<'static>>,
    pairs: &mut kyoto::AnswerPairs,
    answer: &mut CallAnswer<'_>,
) {
    match done {
        Err(failure) => answer.failed(failure),
        Ok(LongCallResult::Nothing) => answer.done(&[]),
        Ok(LongCallResult::Keys(keys)) => answer.done_with_many(keys),
        #[cfg(feature = "cassandra")]
        Ok(LongCallResult::Pairs(output)) => {
            pairs.clear();
            output.iter().for_each(|(name, value)| pairs.push(name, value));
            answer.done_with(pairs);
        }
        Ok(LongCallResult::Output(output)) => {
            pairs.clear();
            output.iter().for_each(|(name, value)| pairs.push_record(name, value));
            answer.done_with(pairs);
        }
    }
}

/// Writes the answer to a script in the binary protocol.
pub(super) fn write_binary_answer(
    done: Result<LongCallResult, CallFailure<'static>>,
    output: &mut crate::transport::output::ConnectionOutput,
) {
    match done {
        Ok(LongCallResult::Output(pairs)) => {
            let pairs = pairs.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
            binary::put_script_answer(pairs, output);
        }
        _ => binary::put_error(output),
    }
}

impl LongCall {
    /// Returns the number of bytes that the call holds.
    pub(super) fn len(&self) -> usize {
        let given = match &self.task {
            LongTask::Prefix { prefix: given, .. }
            | LongTask::Regex { pattern: given, .. }
            | LongTask::Similar { origin: given, .. } => given.len(),
            LongTask::Synchronize { command } => command.as_ref().map_or(0, Vec::len),
            LongTask::ScriptCall { name, input } => {
                let of = |(name, value): &(Vec<u8>, Vec<u8>)| 2 * KEY_OVERHEAD + name.len() + value.len();
                name.len() + input.iter().map(of).sum::<usize>()
            }
            #[cfg(feature = "cassandra")]
            LongTask::Cursor(task) => task.len_bytes(),
            LongTask::Vacuum | LongTask::RemoveLogs { .. } => 0,
        };
        size_of::<LongCall>() + given
    }

    /// Returns true if the call has no effect besides its answer.
    pub(super) fn only_reads(&self) -> bool {
        match &self.task {
            LongTask::Prefix { .. } | LongTask::Regex { .. } | LongTask::Similar { .. } => true,
            LongTask::Vacuum
            | LongTask::Synchronize { .. }
            | LongTask::RemoveLogs { .. }
            | LongTask::ScriptCall { .. } => false,
            #[cfg(feature = "cassandra")]
            LongTask::Cursor(_) => false,
        }
    }

    pub(super) fn is_script(&self) -> bool {
        matches!(self.task, LongTask::ScriptCall { .. })
    }

    /// Returns true if the call takes so little time that a worker can execute it.
    pub(super) fn is_brief(&self) -> bool {
        let served = self.local.served();
        if served.is_on_cluster() {
            return false;
        }
        let status = served.database.status();
        let is_small = is_small(served);
        let is_ordered = || served.database.engine().ordered().is_some();
        match &self.task {
            LongTask::Prefix { limit, .. } => is_small || is_ordered() && *limit as u64 <= BRIEF_RECORDS,
            LongTask::Regex { pattern, .. } => is_small && pattern.len() <= BRIEF_PATTERN,
            LongTask::Similar { origin, .. } => {
                is_small && status.plain_bytes().saturating_mul(origin.len() as u64) <= BRIEF_PAIRS
            }
            LongTask::Vacuum => is_small,
            #[cfg(feature = "cassandra")]
            LongTask::Cursor(_) => false,
            // The duration of these calls is unknown.
            LongTask::RemoveLogs { .. } | LongTask::ScriptCall { .. } => false,
            LongTask::Synchronize { command } => command.is_none() && served.database.durability().is_none(),
        }
    }

    /// Executes the call. With `may_wait`, the thread may wait for memory until the call is
    /// cancelled.
    pub(super) fn perform(
        &self,
        shared: &Arc<SharedState>,
        cancelled: &Arc<AtomicBool>,
        may_wait: bool,
        changes: &mut DatabaseCommits,
    ) -> Result<LongCallResult, CallFailure<'static>> {
        let is_cancelled: &dyn Fn() -> bool = &|| cancelled.load(Ordering::Relaxed);
        let served = self.local.served();
        let keys = WantedKeys { served, waits: may_wait.then_some(is_cancelled) };
        match &self.task {
            #[cfg(feature = "cassandra")]
            LongTask::Cursor(task) => task.perform().map(LongCallResult::Pairs),
            LongTask::Prefix { prefix, limit } => {
                self.gather(shared, &keys, keys.prefix(prefix).keys(), *limit)
            }
            LongTask::Regex { pattern, limit } => {
                let regex = regex::bytes::Regex::new(&translate(pattern));
                let regex = regex.map_err(|_| CallFailure::COMPILATION_FAILED)?;
                let matches = |key: &Outcome<Vec<u8>>| key.as_ref().map_or(true, |key| regex.is_match(key));
                self.gather(shared, &keys, keys.iter().keys().filter(matches), *limit)
            }
            LongTask::Similar { origin, range, symbols, limit } => {
                // The search keeps all keys until the nearest are known.
                let _turn = (!is_small(served)).then(|| CollectedAnswer::turn(shared));
                let bound = SIMILAR_MAX.min(shared.memory.held_max() as usize / SIMILAR_LEN);
                let most = (*limit).min(bound);
                let found = keys.match_similar(origin, *range, *symbols, most).map_err(failure)?;
                if found.len() == bound && *limit > bound {
                    return Err(TOO_LARGE);
                }
                keys.collect(shared, found.into_iter().map(|(key, _)| Ok(key)), most)
            }
            LongTask::RemoveLogs { until } => {
                super::replication::remove_logs(shared, *until).map(|()| LongCallResult::Nothing)
            }
            LongTask::ScriptCall { name, input } => {
                shared.kyoto.scripts.play(shared, name, input, cancelled, changes).map(LongCallResult::Output)
            }
            LongTask::Vacuum => {
                served.database.refuse_if_read_only().map_err(failure)?;
                let now = served.database.now();
                let mut place = None;
                if let Some(perishable) = served.database.engine().sweepable() {
                    loop {
                        let mut is_over = |expiry: todana::Expiry| !expiry.is_live(now);
                        let swept = perishable
                            .sweep(place, STEP_RECORDS, SweepAim::Tidiness, &mut is_over)
                            .map_err(failure)?;
                        place = swept.next;
                        if place.is_none() || is_cancelled() {
                            break;
                        }
                    }
                }
                Ok(LongCallResult::Nothing)
            }
            LongTask::Synchronize { command } => {
                served.database.sync().map_err(failure)?;
                let Some(command) = command else { return Ok(LongCallResult::Nothing) };
                if served.is_on_cluster() {
                    return Err(CallFailure::POSTPROCESSING_FAILED);
                }
                let directory = shared.options.protocols.kyoto.commands.as_deref();
                let (Some(directory), Some(_turn)) = (directory, shared.kyoto.commands.turn()) else {
                    return Err(CallFailure::POSTPROCESSING_FAILED);
                };
                let image =
                    DatabaseImage::write(shared, self.local.number(), cancelled).map_err(|error| {
                        tracing::warn!("synchronize: cannot write the backup for the command: {error}");
                        CallFailure::POSTPROCESSING_FAILED
                    })?;
                let data = served.data.as_ref().filter(|place| !place.is_for_replicas);
                let path = match (&image, data) {
                    (Some(image), _) => image.path().display().to_string(),
                    (None, Some(place)) => place.directory.display().to_string(),
                    (None, None) => super::report::path(served),
                };
                match command::run(directory, command, &path, is_cancelled) {
                    true => Ok(LongCallResult::Nothing),
                    false => Err(CallFailure::POSTPROCESSING_FAILED),
                }
            }
        }
    }

    /// Collects the first matching keys. A small unordered database returns them in byte order,
    /// because tests of Kyoto Tycoon's clients expect each key before the longer keys that begin
    /// with it.
    fn gather(
        &self,
        shared: &Arc<SharedState>,
        all: &WantedKeys<'_>,
        keys: impl Iterator<Item = Outcome<Vec<u8>>>,
        limit: usize,
    ) -> Result<LongCallResult, CallFailure<'static>> {
        if all.is_ordered() || !is_small(all.served) {
            let _turn = (limit as u64 > BRIEF_RECORDS).then(|| CollectedAnswer::turn(shared));
            return all.collect(shared, keys, limit);
        }
        let mut found = keys.collect::<Outcome<Vec<_>>>().map_err(failure)?;
        found.sort_unstable();
        all.collect(shared, found.into_iter().map(Ok), limit)
    }
}

fn is_small(served: &ServedDatabase) -> bool {
    let status = served.database.status();
    !served.is_on_cluster() && status.records <= BRIEF_RECORDS && status.plain_bytes() <= BRIEF_BYTES
}

/// Reads the keys of a database until the call is cancelled.
struct WantedKeys<'k> {
    served: &'k ServedDatabase,
    waits: Option<&'k dyn Fn() -> bool>,
}

impl WantedKeys<'_> {
    /// Collects the first keys, each with its number, and then the total number of keys.
    fn collect(
        &self,
        shared: &Arc<SharedState>,
        keys: impl Iterator<Item = Outcome<Vec<u8>>>,
        limit: usize,
    ) -> Result<LongCallResult, CallFailure<'static>> {
        let mut found = CollectedAnswer::new(shared);
        for key in keys.take(limit) {
            let (key, place) = (key.map_err(failure)?, found.len());
            let place = itoa::Buffer::new().format(place).to_owned();
            found.push(b"_", &key, place.as_bytes(), self.waits)?;
        }
        let count = itoa::Buffer::new().format(found.len()).to_owned();
        found.push(b"", b"num", count.as_bytes(), self.waits)?;
        Ok(LongCallResult::Keys(found))
    }

    fn is_wanted(&self) -> Outcome<()> {
        if self.waits.is_some_and(|is_cancelled| is_cancelled()) {
            return Err(Error::new(ErrorKind::Closed, "the call was cancelled"));
        }
        Ok(())
    }
}

impl Records for WantedKeys<'_> {
    fn execute(&self, _: &Operation<'_>, _: &mut dyn FnMut(Reply<'_>)) -> Outcome<()> {
        Err(Error::new(ErrorKind::Invalid, "only keys can be read here"))
    }

    fn visit(&self, _: &[u8], _: &mut dyn Visitor) -> Outcome<()> {
        Err(Error::new(ErrorKind::Invalid, "only keys can be read here"))
    }

    fn is_ordered(&self) -> bool {
        #[cfg(feature = "cassandra")]
        if let Some(remote) = self.served.remote() {
            return remote.is_ordered();
        }
        self.served.database.engine().ordered().is_some()
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Outcome<Option<ScanPosition>> {
        self.is_wanted()?;
        let mut left = STEP_RECORDS;
        // The scan stops after a number of records, so that cancellation is checked in between.
        let mut step = |key: &[u8], record: Record<'_>| {
            left = left.saturating_sub(1);
            match see(key, record) {
                ControlFlow::Continue(()) if left > 0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        };
        #[cfg(feature = "cassandra")]
        if let Some(remote) = self.served.remote() {
            return remote.scan(from, &mut step);
        }
        // Values are not read here, and need not be decompressed.
        let (mut place, mut has_broken) = (from, false);
        loop {
            place = self.served.database.scan_keys_group(place, &mut |key, attributes| {
                let flow = step(key, Record::new(&[], *attributes));
                has_broken = flow.is_break();
                flow
            })?;
            if place.is_none() || has_broken {
                return Ok(place);
            }
        }
    }

    fn walk(
        &self,
        heading: ScanDirection,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Outcome<()> {
        self.is_wanted()?;
        #[cfg(feature = "cassandra")]
        if let Some(remote) = self.served.remote() {
            return remote.walk(heading, from, see);
        }
        self.served.database.walk(heading, from, see)
    }
}
