//! The table: records that are rows of named columns, with indexes on columns.
//!
//! ```text
//! inner engine: 00 | key                     a row; the row with the empty key holds the definitions
//!               01 | index number (2) | term | key   an entry of an index, with an empty value
//!               02                           totals of the rows
//!               02 | index number (2)        an index: kind (1) | state (1) | column
//! ```
//!
//! Rows and index entries are records of one ordered engine. A visit of a row changes the row first
//! and then the entries, by the difference between the old and the new columns. The update log lies
//! above this engine and holds rows only: when it is replayed, the entries follow from the rows.
//!
//! Invariants: after a visit has returned, the row's entries in every complete index are right. In
//! between an entry may be missing or left over, so entries are candidates and queries check the
//! row. A checkpoint of the inner engine holds rows and entries of the same moment, because visits
//! hold `indexes` for reading and a cut holds it for writing.
//!
//! An index that is defined while rows exist is built in steps by `maintain`. If the process ends
//! before that, the next opening builds the index from the start.
//!
//! Lock order: `removing`, `indexes`, a stripe, the inner engine. Not here: queries, which are in
//! `todana`.

mod build;
mod checkpoint;
mod columns;
mod definitions;
mod folding;
mod inner_record;
mod row_visitor;
mod scans;
mod terms;

pub use columns::{column, columns};
pub use definitions::{
    Definition, INDEXES_MAX, are_definitions, definitions, put_definition, reserved_numbers,
};
pub use folding::fold;
pub use inner_record::InnerRecord;
pub use terms::{GRAM_CHARS, TERM_LEN_MAX, TermRange, grams, number, terms_max, words};

use definitions::{Index, IndexState, Indexes};
use parking_lot::{Mutex, RwLock};
use row_visitor::{RowTotals, RowVisitor};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use terms::ENCODED_TERM_LEN_MAX;
use todana_core::{
    Action, Attributes, CheckpointedEngine, ColumnIndex, Engine, EngineStatus, Error, ErrorKind, IndexEntry,
    IndexKind, IndexRange, IndexedEngine, OrderedEngine, Record, Result, RowNumbers, ScanPosition,
    SweepableEngine, ValueBuffer, Visitor,
};

const ROW: u8 = 0;
const ENTRY: u8 = 1;
const STATE: u8 = 2;
/// The longest key of a row: the engine on disk accepts keys of 1 MiB, and those of entries are the
/// longest. Tables in memory have the same limit, so that a replica can be on disk.
const ROW_KEY_LEN_MAX: usize = (1 << 20) - ENTRY_HEAD_LEN - ENCODED_TERM_LEN_MAX;
/// The length of an entry's key before the term.
const ENTRY_HEAD_LEN: usize = 3;
/// The number of locks for visits. Visits of one row exclude each other.
const STRIPES: usize = 64;

/// Rows of columns with indexes, in an ordered engine.
pub struct TableEngine {
    inner: Box<dyn Engine>,
    /// Held for reading by visits, and for writing while definitions change or a cut is made.
    indexes: RwLock<Indexes>,
    stripes: Box<[Mutex<()>]>,
    /// Held while entries of a dropped index are removed.
    removing: Mutex<()>,
    totals: RowTotals,
    numbers: RowNumbers,
    /// True if entries of a row could not be changed, so that entries may be left over.
    has_wrong_entries: AtomicBool,
}

impl TableEngine {
    /// Creates the table over an ordered engine, which holds nothing or the contents of a table.
    /// The engine must neither evict records nor write changes to disk before a checkpoint is
    /// requested.
    pub fn new(inner: Box<dyn Engine>) -> Result<TableEngine> {
        if inner.ordered().is_none() {
            return Err(Error::new(ErrorKind::Invalid, "table: its engine has no order of keys"));
        }
        let table = TableEngine {
            inner,
            indexes: RwLock::default(),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            removing: Mutex::new(()),
            totals: RowTotals::default(),
            numbers: RowNumbers::default(),
            has_wrong_entries: AtomicBool::new(false),
        };
        table.read_state()?;
        Ok(table)
    }

    fn rows_in_order(&self) -> &dyn OrderedEngine {
        self.inner.ordered().expect("it was checked by the constructor")
    }

    fn stripe(&self, key: &[u8]) -> &Mutex<()> {
        &self.stripes[rapidhash::v3::rapidhash_v3(key) as usize % STRIPES]
    }

    /// Changes a row, and then its entries.
    fn visit_row(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        // An entry that is refused after its row was stored would make the update log unreadable.
        if key.len() > ROW_KEY_LEN_MAX {
            let message = format!("table: key of {} bytes is too long: at most {ROW_KEY_LEN_MAX}", key.len());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let indexes = self.indexes.read();
        let _alone = self.stripe(key).lock();
        let mut row = RowVisitor::new(visitor, !indexes.is_empty());
        self.inner.visit(&row_key(key), &mut row)?;
        self.totals.add(&row);
        match row.change() {
            Some(change) => indexes
                .update_entries(&*self.inner, key, change)
                .inspect_err(|_| self.has_wrong_entries.store(true, Ordering::Relaxed)),
            None => Ok(()),
        }
    }

    /// Changes the record of the definitions, and the indexes with it.
    fn visit_definitions(&self, visitor: &mut dyn Visitor) -> Result<()> {
        self.limit_dropped()?;
        let mut indexes = self.indexes.write();
        let mut row = RowVisitor::new(visitor, true);
        self.inner.visit(&row_key(b""), &mut row)?;
        self.totals.add(&row);
        let Some(change) = row.change() else { return Ok(()) };
        let value = change.new.unwrap_or_default();
        self.numbers.note_reserved(reserved_numbers(value));
        let has_rows = self.totals.rows() > u64::from(change.new.is_some());
        indexes.define(&*self.inner, &definitions(value), has_rows)
    }
}

/// Returns the key of a row in the inner engine.
fn row_key(key: &[u8]) -> Vec<u8> {
    let mut row_key = Vec::with_capacity(key.len() + 1);
    row_key.push(ROW);
    row_key.extend_from_slice(key);
    row_key
}

/// Stores a value without attributes.
struct PutValue<'v>(&'v [u8]);

impl Visitor for PutValue<'_> {
    fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn overwrites(&self) -> bool {
        true
    }

    fn ignores_value(&self) -> bool {
        true
    }

    fn ignores_record(&self) -> bool {
        true
    }
}

/// Removes a record.
struct RemoveRecord;

impl Visitor for RemoveRecord {
    fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
        Action::Remove
    }

    fn overwrites(&self) -> bool {
        true
    }

    fn ignores_value(&self) -> bool {
        true
    }

    fn ignores_record(&self) -> bool {
        true
    }
}

impl Engine for TableEngine {
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.inner.view(&row_key(key), see)
    }

    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.inner.peek(&row_key(key), see)
    }

    fn view_shared(&self, key: &[u8], counts: bool, see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.inner.view_shared(&row_key(key), counts, see)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        if key.is_empty() { self.visit_definitions(visitor) } else { self.visit_row(key, visitor) }
    }

    fn wait_for_visits(&self) {
        drop(self.indexes.write());
        self.inner.wait_for_visits();
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        scans::scan(from, see, |from, see| self.inner.scan(from, see))
    }

    fn scan_shared(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        scans::scan(from, see, |from, see| self.inner.scan_shared(from, see))
    }

    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        scans::scan(from, see, |from, see| self.inner.scan_skipping_damaged(from, see))
    }

    /// Removes all rows. The definitions of the indexes and the reserved row numbers stay.
    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        let mut indexes = self.indexes.write();
        let mut kept = None;
        self.inner.peek(&row_key(b""), &mut |record| {
            kept = Some((record.value.to_vec(), record.attributes));
        })?;
        let kept = kept.filter(|(value, _)| !definitions(value).is_empty() || reserved_numbers(value) > 0);
        self.inner.clear(&mut || {
            self.totals.reset();
            cleared();
        })?;
        if let Some((value, attributes)) = kept {
            let mut put = definitions::PutRecord { value: &value, attributes };
            let mut row = RowVisitor::new(&mut put, false);
            self.inner.visit(&row_key(b""), &mut row)?;
            self.totals.add(&row);
        }
        indexes.clear(&*self.inner)
    }

    fn status(&self) -> EngineStatus {
        EngineStatus { records: self.totals.rows(), ..self.inner.status() }
    }

    fn maintain(&self) -> bool {
        let has_more = self.inner.maintain();
        // A step that fails, for lack of space for example, is tried again at the next tick.
        self.build_step().unwrap_or(false) || has_more
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        self.inner.buffer(len)
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        self.inner.room(buffer, len)
    }

    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        Some(self)
    }

    fn checkpointed(&self) -> Option<&dyn CheckpointedEngine> {
        self.inner.checkpointed().is_some().then_some(self)
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        Some(self)
    }

    fn indexed(&self) -> Option<&dyn IndexedEngine> {
        Some(self)
    }
}

impl IndexedEngine for TableEngine {
    fn indexes(&self) -> Vec<ColumnIndex> {
        // A visitor may ask, whose visit holds the lock for reading while a writer waits for it.
        self.indexes.read_recursive().shown()
    }

    fn index_entries(
        &self,
        column: &[u8],
        kind: IndexKind,
        range: IndexRange<'_>,
        is_descending: bool,
        entries_max: usize,
        found: &mut Vec<IndexEntry>,
    ) -> Result<bool> {
        let number = {
            let indexes = self.indexes.read();
            match indexes.find(column, kind) {
                Some(Index { number, state: IndexState::Complete, .. }) => *number,
                _ => return Ok(false),
            }
        };
        scans::entries(self.rows_in_order(), (number, kind), range, is_descending, entries_max, found)?;
        Ok(true)
    }

    fn has_exact_entries(&self) -> bool {
        self.totals.expiring() == 0 && !self.has_wrong_entries.load(Ordering::Relaxed)
    }

    fn row_numbers(&self) -> &RowNumbers {
        &self.numbers
    }
}
