//! Compresses long values that are not in use, and decompresses those that are read often.
//!
//! This is maintenance in rounds, in steps of about two milliseconds that take at most 2 % of a
//! core. A round visits all huge records of an engine. A value that was neither written nor read in
//! the last rounds is compressed. Values in use stay plain, so that their readers copy and
//! decompress nothing. A set therefore costs nothing more than without compression.
//!
//! Values are compressed outside of the locks. A lock is held only to find a value, and to exchange
//! it if the record still has the same value.

use super::compressed_value::{ChunkCompression, ChunkDecompression, CompressionStep};
use super::stand_in;
use super::table::{HugeTable, UseBounds, ValueWork, WorkSearch};
use crate::arena::{LOAD_STEP_PARTS, MemoryBudget};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_core::SharedBytes;

/// The minimum time from the beginning of a round to that of the next.
const ROUND: Duration = Duration::from_secs(10);
/// The bounds while there is enough memory.
const USUAL: UseBounds = UseBounds { idle_min: 3, decompressions_min: 2 };
/// The bounds while memory is scarce. A value that becomes plain then takes the place of others.
const SCARCE: UseBounds = UseBounds { idle_min: 1, decompressions_min: 20 };
/// The bounds for a load that would not fit otherwise.
const LOADING: UseBounds = UseBounds { idle_min: 0, decompressions_min: u32::MAX };
/// The time after which a step ends.
const WORK_MAX: Duration = Duration::from_millis(2);
/// After a step, there are no more steps for this many times as long as it has worked.
const REST: u32 = 49;

/// The tables of huge records of an engine.
pub(crate) trait HugeTables {
    fn table_count(&self) -> usize;

    /// Calls `see` with a table under its shared lock.
    fn view_table(&self, table: usize, see: &mut dyn FnMut(&HugeTable));

    /// Calls `change` with a table under its exclusive lock. Drops removed values after releasing
    /// the lock.
    fn change_table(&self, table: usize, change: &mut dyn FnMut(&mut HugeTable));
}

/// The state of the compression of an engine's long values.
pub(crate) struct LongValueCompression {
    is_on: bool,
    budget: Arc<MemoryBudget>,
    /// Locked during a step.
    state: Mutex<CompressionRound>,
}

#[derive(Default)]
struct CompressionRound {
    /// The beginning of the current round, or of the last one if `is_under_way` is false.
    began: Option<Instant>,
    is_under_way: bool,
    table: usize,
    index: u32,
    job: Option<ValueJob>,
    rests_until: Option<Instant>,
    /// The bytes that had been added at the last round for a load.
    added_at_load: u64,
}

/// The work on one value.
struct ValueJob {
    table: usize,
    index: u32,
    value: SharedBytes,
    form: NewForm,
}

enum NewForm {
    Compressed(Box<ChunkCompression>),
    Plain(ChunkDecompression),
}

impl LongValueCompression {
    pub(crate) fn new(is_on: bool, budget: Arc<MemoryBudget>) -> LongValueCompression {
        LongValueCompression { is_on, budget, state: Mutex::default() }
    }

    /// Does a step, if one is due.
    pub(crate) fn step(&self, tables: &dyn HugeTables) {
        // Another thread that does a step suffices.
        let Some(mut state) = self.state.try_lock().filter(|_| self.is_on) else { return };
        // A value that nobody else holds has been removed. Its memory must not wait for a step.
        state.job.take_if(|job| Arc::strong_count(&job.value) == 1);
        let now = Instant::now();
        if state.rests_until.is_some_and(|until| now < until) {
            return;
        }
        if !state.is_under_way {
            if state.began.is_some_and(|began| now < began + ROUND) {
                return;
            }
            state.begin(now);
        }
        let bounds = self.bounds();
        while now.elapsed() < WORK_MAX && self.advance(&mut state, tables, bounds) {}
        state.rests_until = Some(now + (now.elapsed() * REST).min(Duration::from_secs(1)));
    }

    /// Finishes the current round, and then does `idle_min + 1` rounds without rests, which suffice
    /// to compress every unused value.
    pub(crate) fn run(&self, tables: &dyn HugeTables) {
        let mut state = self.state.lock();
        while self.is_on && self.advance(&mut state, tables, self.bounds()) {}
        for _ in 0..=USUAL.idle_min {
            state.begin(Instant::now());
            while self.is_on && self.advance(&mut state, tables, self.bounds()) {}
        }
    }

    /// Compresses all values that are not being read, if many were added since the last call.
    /// Other threads that call this method wait meanwhile.
    pub(crate) fn compress_for_load(&self, tables: &dyn HugeTables) {
        if !self.is_on {
            return;
        }
        let mut state = self.state.lock();
        let mut added = 0;
        (0..tables.table_count()).for_each(|table| {
            tables.view_table(table, &mut |table| added += table.added_bytes());
        });
        let step = self.budget.limit().bytes.map_or(0, |limit| limit / LOAD_STEP_PARTS);
        // A clear resets the sum.
        if added.abs_diff(state.added_at_load) <= step {
            return;
        }
        state.added_at_load = added;
        while self.advance(&mut state, tables, LOADING) {}
        state.begin(Instant::now());
        while self.advance(&mut state, tables, LOADING) {}
    }

    fn bounds(&self) -> UseBounds {
        if self.budget.is_tight() { SCARCE } else { USUAL }
    }

    /// Continues a round. Returns false after its end.
    fn advance(&self, state: &mut CompressionRound, tables: &dyn HugeTables, bounds: UseBounds) -> bool {
        if let Some(job) = state.job.take() {
            state.job = job.advance(tables);
            return true;
        }
        if state.table >= tables.table_count() {
            state.is_under_way = false;
            return false;
        }
        let mut search = WorkSearch::End;
        tables.view_table(state.table, &mut |table| search = table.search_work(state.index, bounds));
        match search {
            WorkSearch::Found { index, value, work } => {
                state.index = index + 1;
                state.job = self.begin(tables, (state.table, index), value, work);
            }
            WorkSearch::ContinueAt(index) => state.index = index,
            WorkSearch::End => (state.table, state.index) = (state.table + 1, 0),
        }
        true
    }

    /// Begins the work on a value. Returns `None` if it is impossible or useless.
    fn begin(
        &self,
        tables: &dyn HugeTables,
        (table, index): (usize, u32),
        value: SharedBytes,
        work: ValueWork,
    ) -> Option<ValueJob> {
        let form = match (work, value.plain()) {
            (ValueWork::Compress, Some(plain)) => {
                if !stand_in::prepare(plain.len()) {
                    return None;
                }
                let Some(compression) = ChunkCompression::new(plain, &self.budget) else {
                    tables.view_table(table, &mut |table| table.exclude(index, &value));
                    return None;
                };
                NewForm::Compressed(Box::new(compression))
            }
            (ValueWork::Decompress, None) => {
                // Where writes are refused, the limit's last part stays free for them. An engine
                // that evicts may exceed the limit: its maintenance evicts as many bytes later.
                let reserve = self.budget.limit().bytes.map_or(0, |limit| limit / 32);
                let mut commit = |budget: &MemoryBudget, bytes: usize| {
                    if !budget.refuses() {
                        budget.commit_anyway(bytes);
                        return true;
                    }
                    budget.fits(bytes as u64 + reserve) && budget.commit(bytes)
                };
                NewForm::Plain(ChunkDecompression::new(value.len(), &self.budget, &mut commit)?)
            }
            _ => return None,
        };
        Some(ValueJob { table, index, value, form })
    }
}

impl CompressionRound {
    fn begin(&mut self, now: Instant) {
        (self.began, self.is_under_way, self.table, self.index) = (Some(now), true, 0, 0);
    }
}

impl ValueJob {
    /// Converts a chunk. Returns `None` if the work has ended.
    fn advance(mut self, tables: &dyn HugeTables) -> Option<ValueJob> {
        let ValueJob { table, index, ref value, ref mut form } = self;
        // The record has been removed or has another value, and nobody reads this one.
        if Arc::strong_count(value) == 1 {
            return None;
        }
        match form {
            NewForm::Compressed(compression) => match compression.step(value.plain().unwrap_or_default()) {
                CompressionStep::Working => return Some(self),
                CompressionStep::NoRoom => return None,
                CompressionStep::Useless => {
                    tables.view_table(table, &mut |table| table.exclude(index, value));
                    return None;
                }
                CompressionStep::Done => {}
            },
            NewForm::Plain(decompression) => {
                if decompression.step(&**value) {
                    return Some(self);
                }
            }
        }
        let new = match self.form {
            NewForm::Compressed(compression) => compression.into_shared(),
            NewForm::Plain(decompression) => decompression.into_shared(),
        };
        tables.change_table(table, &mut |table| table.replace_value(index, &self.value, &new));
        None
    }
}
