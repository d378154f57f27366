//! Visitors that store rows, and numbers for the keys of new rows.

use super::indexes::ReserveNumbers;
use super::{ColumnIndex, Row};
use crate::{Database, Records};
use todana_core::{
    Action, Attributes, Error, ErrorKind, IndexedEngine, Record, Result, Visitor, key_of_number,
};
use todana_engine::table::{column, number, terms_max};

/// How to store a row if its key exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPutMode {
    /// Replaces the existing row.
    Put,
    /// Keeps the existing row.
    Keep,
    /// Adds the columns that the existing row lacks.
    AddMissing,
}

/// Stores a row.
#[derive(Debug)]
pub struct RowVisitor<'r> {
    mode: RowPutMode,
    row: &'r Row,
    new: Row,
    /// True if the row was stored.
    pub is_stored: bool,
}

impl<'r> RowVisitor<'r> {
    /// Creates the visitor for a row.
    pub fn new(mode: RowPutMode, row: &'r Row) -> RowVisitor<'r> {
        RowVisitor { mode, row, new: Row::default(), is_stored: false }
    }
}

impl Visitor for RowVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.is_stored = self.mode != RowPutMode::Keep || old.is_none();
        match old {
            Some(old) if self.mode == RowPutMode::AddMissing => {
                self.new = Row::stored(old.value);
                self.new.add_missing(self.row);
                let attributes = Attributes { version: 0, access: None, ..old.attributes };
                Action::Put(Record::new(self.new.as_bytes(), attributes))
            }
            _ if self.is_stored => Action::Put(Record::new(self.row.as_bytes(), Attributes::default())),
            _ => Action::Keep,
        }
    }

    fn overwrites(&self) -> bool {
        self.mode == RowPutMode::Put
    }
}

/// The most words and characters of a row that indexes may contain.
pub(crate) const ROW_TERMS_MAX: usize = 1 << 20;

/// Returns true unless the indexes of a table would get too many entries for a row.
pub(crate) fn is_indexable(indexed: &dyn IndexedEngine, row: &[u8]) -> bool {
    // No row has more terms than bytes.
    if row.len() <= ROW_TERMS_MAX {
        return true;
    }
    let terms =
        |index: &ColumnIndex| column(row, &index.column).map_or(0, |text| terms_max(index.kind, text));
    indexed.indexes().iter().map(terms).sum::<usize>() <= ROW_TERMS_MAX
}

/// Stores a row of a table by its key. Returns true if it was stored. `records` is the table or a
/// transaction on it. Fails with `Invalid` for the empty key, and as [`Records::visit`] does.
///
/// ```
/// use todana::table::{Row, RowPutMode, Table, store_row};
/// use todana::{Db, Records};
///
/// let db = Db::open("mem:table")?;
/// let transaction = db.begin()?;
/// let row = Row::new(&[("age", "33")])?;
/// assert!(store_row(&transaction, RowPutMode::Keep, b"ann", &row)?);
/// assert!(!store_row(&transaction, RowPutMode::Keep, b"ann", &row)?);
/// transaction.commit()?;
/// assert_eq!(Table::new(&db)?.get(b"ann")?, Some(row));
/// # Ok::<(), todana::Error>(())
/// ```
pub fn store_row(records: &impl Records, mode: RowPutMode, key: &[u8], row: &Row) -> Result<bool> {
    expect_row_key(key)?;
    let mut visitor = RowVisitor::new(mode, row);
    records.visit(key, &mut visitor)?;
    Ok(visitor.is_stored)
}

/// Fails with `Invalid` if no row can have this key. The record with the empty key holds the
/// definitions of the indexes.
pub fn expect_row_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "row: its key is empty"));
    }
    Ok(())
}

/// Returns a number that was not returned for this table before.
pub fn new_row_number(indexed: &dyn IndexedEngine, records: &impl Records) -> Result<u64> {
    new_row_number_by(indexed, |key, visitor| records.visit(key, visitor))
}

/// Returns a number that was not returned for this table before, and under which no row exists: the
/// master of a replica may have given it. `visit` runs a visitor on a record of the table.
pub fn new_row_number_by(
    indexed: &dyn IndexedEngine,
    mut visit: impl FnMut(&[u8], &mut dyn Visitor) -> Result<()>,
) -> Result<u64> {
    let mut skipped = 1;
    loop {
        let number = indexed.row_numbers().next(|end| visit(b"", &mut ReserveNumbers::new(end)))?;
        let mut seen = SeenRow::default();
        visit(key_of_number(number, &mut [0; 20]), &mut seen)?;
        if !seen.exists {
            return Ok(number);
        }
        // Another server has given this number, and the numbers before it. Each time more numbers
        // are skipped, because there may be many.
        indexed.row_numbers().skip_to(number.saturating_add(skipped));
        skipped = skipped.saturating_mul(2);
    }
}

/// Notes whether a row exists.
#[derive(Default)]
struct SeenRow {
    exists: bool,
}

impl Visitor for SeenRow {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.exists = old.is_some();
        Action::Keep
    }
}

/// The column of Tokyo Tyrant's sums.
const NUMBER_COLUMN: &[u8] = b"_num";

/// Adds to the number in the column `_num` of a row, which is decimal text with up to six decimals.
#[derive(Debug)]
pub struct ColumnSumVisitor {
    delta: f64,
    row: Row,
    /// The sum; `None` if it is not a number, so that nothing was stored.
    pub sum: Option<f64>,
}

impl ColumnSumVisitor {
    /// Returns the visitor that adds this number.
    pub fn new(delta: f64) -> ColumnSumVisitor {
        ColumnSumVisitor { delta, row: Row::default(), sum: None }
    }
}

impl Visitor for ColumnSumVisitor {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.row = old.map(|old| Row::stored(old.value)).unwrap_or_default();
        let sum = self.row.get(NUMBER_COLUMN).map_or(0.0, number) + self.delta;
        self.sum = (!sum.is_nan()).then_some(sum);
        let mut text = format!("{sum:.6}");
        if text.contains('.') {
            text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
        }
        if self.sum.is_none() || self.row.put(NUMBER_COLUMN, text.as_bytes()).is_err() {
            return Action::Keep;
        }
        let attributes = old.map(|old| old.attributes).unwrap_or_default();
        Action::Put(Record::new(self.row.as_bytes(), Attributes { version: 0, access: None, ..attributes }))
    }
}

/// Returns the number of records of a database, of any kind, without the definitions of a table's
/// indexes.
pub fn visible_records(database: &Database) -> u64 {
    let is_table = database.engine().indexed().is_some();
    let has_definitions = is_table && database.peek(b"", &mut |_| ()).unwrap_or(false);
    database.status().records.saturating_sub(u64::from(has_definitions))
}

#[cfg(test)]
mod tests {
    use super::ColumnSumVisitor;
    use todana_core::{Action, Attributes, Record, Visitor};

    #[test]
    fn sums_are_decimal_text_in_a_column() {
        for (old, delta, new) in [
            (None, 5.0, "_num\x005"),
            (Some("_num\x005"), 1.5, "_num\x006.5"),
            (Some("_num\x005.5"), 0.000123456789, "_num\x005.500123"),
            (Some("a\0b\0_num\0abc\0z\0y"), 2.0, "a\0b\0_num\x002\0z\0y"),
            (Some("a\0b"), 0.0, "a\0b\0_num\x000"),
            (Some("_num\x0010"), 90.0, "_num\x00100"),
        ] {
            let mut visitor = ColumnSumVisitor::new(delta);
            let old = old.map(|old| Record::new(old.as_bytes(), Attributes::default()));
            let Action::Put(record) = visitor.visit(old) else { panic!("{new}: is not stored") };
            assert_eq!(record.value, new.as_bytes());
        }
    }
}
