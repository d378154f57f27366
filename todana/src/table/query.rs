//! A query: conditions, an order and a limit.

use super::condition::{CompiledCondition, expect_few_patterns};
use super::{Condition, ConditionOperator};
use todana_core::Result;

/// The order of the rows that a query finds. Rows without the column come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueryOrder {
    /// In the order of the bytes of the text.
    TextAscending,
    /// In the reverse order of the bytes of the text.
    TextDescending,
    /// In ascending order of the number at the start of the text. A text without a number counts
    /// as 0.
    NumberAscending,
    /// In descending order of the number at the start of the text.
    NumberDescending,
}

impl QueryOrder {
    /// Parses a name or a number of Tokyo Cabinet. Case does not matter.
    pub fn parse(word: &[u8]) -> Option<QueryOrder> {
        let word = word.to_ascii_uppercase();
        Some(match word.as_slice() {
            b"STRASC" | b"STR" | b"ASC" | b"0" => QueryOrder::TextAscending,
            b"STRDESC" | b"DESC" | b"1" => QueryOrder::TextDescending,
            b"NUMASC" | b"NUM" | b"2" => QueryOrder::NumberAscending,
            b"NUMDESC" | b"3" => QueryOrder::NumberDescending,
            _ => return None,
        })
    }

    /// Returns true for the orders by number.
    pub fn is_numeric(self) -> bool {
        matches!(self, QueryOrder::NumberAscending | QueryOrder::NumberDescending)
    }

    /// Returns true for the reverse orders.
    pub fn is_descending(self) -> bool {
        matches!(self, QueryOrder::TextDescending | QueryOrder::NumberDescending)
    }
}

/// A query for rows: all conditions must hold.
///
/// ```
/// use todana::Db;
/// use todana::table::{ConditionOperator, IndexKind, Query, QueryOrder, Table};
///
/// let table = Table::new(&Db::open("mem:table")?)?;
/// table.set_index(b"age", Some(IndexKind::Decimal))?;
/// table.put(b"1", &[("name", "ann"), ("age", "33"), ("tags", "red,blue")])?;
/// table.put(b"2", &[("name", "bob"), ("age", "25"), ("tags", "green")])?;
/// table.put(b"3", &[("name", "zed"), ("age", "40"), ("tags", "blue")])?;
/// let query = Query::new()
///     .filter(b"age", ConditionOperator::NumberAtLeast, b"30")
///     .filter(b"tags", ConditionOperator::HasAnyWord, b"blue yellow")
///     .order_by(b"age", QueryOrder::NumberDescending)
///     .limit(10);
/// let mut names = Vec::new();
/// for found in table.search(&query)? {
///     let (_key, row) = found?;
///     names.push(String::from_utf8_lossy(row.get(b"name").unwrap_or_default()).into_owned());
/// }
/// assert_eq!(names, ["zed", "ann"]);
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The column and the order by which the rows are sorted. The empty name means the key of the
    /// row. Without an order, rows are returned in the order of the index that finds them, or of
    /// their keys.
    pub order: Option<(Vec<u8>, QueryOrder)>,
    /// The largest number of rows that are returned. `None` means all.
    pub limit: Option<u64>,
    /// The number of rows at the start of the result that are not returned.
    pub skip: u64,
}

impl Query {
    /// Creates a query for all rows.
    pub fn new() -> Query {
        Query::default()
    }

    /// Adds a condition on a column. The empty name means the key of the row.
    #[must_use]
    pub fn filter(self, column: &[u8], operator: ConditionOperator, expression: &[u8]) -> Query {
        self.condition(Condition::new(column, operator, expression))
    }

    /// Adds a condition that rows must not satisfy. A row without the column does not satisfy it,
    /// so the row is found.
    #[must_use]
    pub fn exclude(self, column: &[u8], operator: ConditionOperator, expression: &[u8]) -> Query {
        self.condition(Condition::new(column, operator, expression).negated())
    }

    /// Adds a condition.
    #[must_use]
    pub fn condition(mut self, condition: Condition) -> Query {
        self.conditions.push(condition);
        self
    }

    /// Sets the order of the rows by a column. The empty name means the key of the row.
    #[must_use]
    pub fn order_by(self, column: &[u8], order: QueryOrder) -> Query {
        Query { order: Some((column.to_vec(), order)), ..self }
    }

    /// Sets the largest number of rows that are returned.
    #[must_use]
    pub fn limit(self, limit: u64) -> Query {
        Query { limit: Some(limit), ..self }
    }

    /// Sets the number of rows at the start of the result that are not returned.
    #[must_use]
    pub fn skip(self, skip: u64) -> Query {
        Query { skip, ..self }
    }

    /// Returns the number of matching rows that are needed: the skipped ones and the returned ones.
    /// `None` means all.
    pub(super) fn matches_max(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_add(self.skip))
    }

    pub(super) fn compile(&self) -> Result<Vec<CompiledCondition>> {
        expect_few_patterns(self.conditions.iter())?;
        self.conditions.iter().cloned().map(CompiledCondition::new).collect()
    }
}
