//! Plans a query: selects the indexes that find its candidates, and describes the plan in Tokyo
//! Cabinet's words.

use super::condition::{CompiledCondition, TextTest};
use super::full_text::FullTextExpression;
use super::posting::{Posting, TermPosting, count_entries};
use super::{IndexKind, Query, QueryOrder};
use std::collections::HashSet;
use todana_core::{IndexedEngine, Result};
use todana_engine::table::{GRAM_CHARS, TERM_LEN_MAX, TermRange, grams};

/// The most entries that are counted to compare two indexes. With this many candidates or more, a
/// condition does not reduce the rows enough to matter.
const ESTIMATE_MAX: usize = 512;
/// The most parts of a phrase that are searched in a q-gram index.
const GRAMS_MAX: usize = 8;

/// The source of the candidates: the rows that may match.
#[derive(Clone, Debug)]
pub(super) enum Access {
    /// Rows with keys that have this prefix, in the order of the keys.
    Rows { prefix: Vec<u8>, is_descending: bool },
    /// The rows with these keys.
    Keys(Vec<Vec<u8>>),
    /// The rows in ranges of an index, in the order of the index.
    Ranges(IndexRanges),
    /// The rows that have certain terms in their indexes.
    Postings(Posting),
}

/// Ranges of an index, in their order.
#[derive(Clone, Debug)]
pub(super) struct IndexRanges {
    pub(super) column: Vec<u8>,
    pub(super) kind: IndexKind,
    pub(super) ranges: Vec<TermRange>,
    pub(super) is_descending: bool,
    /// True if the rows without the column follow. They are not in the index.
    pub(super) has_rest: bool,
}

/// How a query finds its rows.
#[derive(Clone, Debug)]
pub(super) struct QueryPlan {
    pub(super) access: Access,
    /// True if the candidates are not in the order of the query, so that the result is sorted.
    pub(super) sorts: bool,
    /// True if all candidates match, as far as the entries of the indexes are exact.
    pub(super) is_exact: bool,
    /// The description of the plan.
    pub(super) lines: Vec<String>,
}

/// An index that can be used for a condition.
struct ConditionIndex {
    access: Access,
    column: Vec<u8>,
    /// The name of this search in Tokyo Cabinet.
    label: &'static str,
    /// The word `asc`, `skip` or `inverted`, if the direction does not follow from `access`.
    direction_label: Option<&'static str>,
    /// True if the terms of the index show whether a row satisfies the condition.
    is_exact: bool,
    estimate: usize,
}

impl QueryPlan {
    /// Chooses the indexes for a query.
    pub(super) fn new(
        query: &Query,
        conditions: &[CompiledCondition],
        indexed: &dyn IndexedEngine,
        rows: u64,
    ) -> Result<QueryPlan> {
        let mut indexes = indexed.indexes();
        indexes.retain(|index| index.is_complete);
        let mut usable: Vec<ConditionIndex> = Vec::new();
        for compiled in conditions {
            let condition = &compiled.condition;
            if condition.is_negated || !condition.uses_index {
                continue;
            }
            let index = indexes.iter().find(|index| index.column == condition.column);
            let found = index.and_then(|index| ConditionIndex::of(compiled, index.kind));
            usable.extend(found.or_else(|| ConditionIndex::of_key(compiled)));
        }
        // A single index need not be compared with others, unless the order of the query may need
        // another index.
        if usable.len() > 1 || query.order.is_some() && query.limit.is_some() {
            for index in &mut usable {
                index.estimate = index.access.estimate(indexed)?;
            }
        }
        let order_index = query.order.as_ref().and_then(|(column, order)| {
            let kind = if order.is_numeric() { IndexKind::Decimal } else { IndexKind::Lexical };
            let has_index = indexes.iter().any(|index| index.column == *column && index.kind == kind);
            has_index.then_some(kind)
        });
        let best = (0..usable.len()).min_by_key(|&at| usable[at].estimate);
        let Some(best) = best else { return Ok(QueryPlan::without_conditions(query, order_index, rows)) };
        if usable[best].estimate >= ESTIMATE_MAX && query.limit.is_some() {
            let is_ordered = |at: &usize| {
                query
                    .order
                    .as_ref()
                    .is_some_and(|(column, order)| usable[*at].access.has_order(column, *order))
            };
            if let Some(at) = (0..usable.len()).find(is_ordered) {
                return Ok(QueryPlan::with_index(query, usable.swap_remove(at), None, conditions.len()));
            }
            if order_index.is_some() {
                return Ok(QueryPlan::without_conditions(query, order_index, rows));
            }
        }
        let main = usable.swap_remove(best);
        // A second index is used only if the first one leaves many rows. Otherwise it costs more
        // than it saves.
        let is_wide = main.estimate >= ESTIMATE_MAX && main.posting().is_some();
        let auxiliary = usable.into_iter().filter(|other| is_wide && other.posting().is_some());
        let auxiliary = auxiliary.min_by_key(|other| other.estimate);
        Ok(QueryPlan::with_index(query, main, auxiliary, conditions.len()))
    }

    fn with_index(
        query: &Query,
        mut main: ConditionIndex,
        auxiliary: Option<ConditionIndex>,
        conditions: usize,
    ) -> QueryPlan {
        let mut lines = Vec::new();
        let mut decided = usize::from(main.is_exact);
        if let Some(auxiliary) = auxiliary
            && let (Some(one), Some(other)) = (main.posting(), auxiliary.posting())
        {
            lines.push(format!("using an auxiliary index: {}", auxiliary.description()));
            main.access = Access::Postings(Posting::All(vec![one, other]));
            decided += usize::from(auxiliary.is_exact);
        }
        let sorts = match &query.order {
            Some((column, order)) if main.access.has_order(column, *order) => {
                main.access.set_direction(order.is_descending());
                false
            }
            order => order.is_some(),
        };
        lines.push(format!("using an index: {}", main.description()));
        QueryPlan { access: main.access, sorts, is_exact: decided == conditions, lines }
    }

    /// Plans a query if no condition has an index: uses the index of the order, or reads all rows.
    fn without_conditions(query: &Query, order_index: Option<IndexKind>, rows: u64) -> QueryPlan {
        // Each entry of an index costs a search for its row. If many rows are wanted, sorting all
        // rows is cheaper.
        let is_short = query.matches_max().is_some_and(|max| max < rows / 8);
        if let (Some((column, order)), Some(kind), true) = (&query.order, order_index, is_short) {
            let is_descending = order.is_descending();
            let ranges = vec![TermRange::all()];
            let direction = if is_descending { "desc" } else { "asc" };
            let name = String::from_utf8_lossy(column);
            let lines = vec![format!("using an index: \"{name}\" {direction} (order)")];
            let column = column.clone();
            let ranges = IndexRanges { column, kind, ranges, is_descending, has_rest: true };
            return QueryPlan { access: Access::Ranges(ranges), sorts: false, is_exact: false, lines };
        }
        let mut access = Access::Rows { prefix: Vec::new(), is_descending: false };
        let sorts = match &query.order {
            Some((column, order)) if access.has_order(column, *order) => {
                access.set_direction(order.is_descending());
                false
            }
            order => order.is_some(),
        };
        QueryPlan { access, sorts, is_exact: false, lines: vec!["scanning the whole table".into()] }
    }
}

impl Access {
    /// Returns true if the candidates can be returned in this order.
    fn has_order(&self, column: &[u8], order: QueryOrder) -> bool {
        match self {
            Access::Rows { .. } => column.is_empty() && !order.is_numeric(),
            Access::Ranges(ranges) => {
                let kind = if order.is_numeric() { IndexKind::Decimal } else { IndexKind::Lexical };
                ranges.column == column && ranges.kind == kind
            }
            Access::Keys(_) | Access::Postings(_) => false,
        }
    }

    fn set_direction(&mut self, descends: bool) {
        match self {
            Access::Rows { is_descending, .. } => *is_descending = descends,
            Access::Ranges(ranges) => {
                if ranges.is_descending != descends {
                    ranges.ranges.reverse();
                }
                ranges.is_descending = descends;
            }
            Access::Keys(_) | Access::Postings(_) => {}
        }
    }

    /// Returns the approximate number of candidates, at most `ESTIMATE_MAX`.
    fn estimate(&self, indexed: &dyn IndexedEngine) -> Result<usize> {
        match self {
            Access::Rows { .. } => Ok(ESTIMATE_MAX),
            Access::Keys(keys) => Ok(keys.len().min(ESTIMATE_MAX)),
            Access::Postings(posting) => posting.estimate(indexed, ESTIMATE_MAX),
            Access::Ranges(IndexRanges { column, kind, ranges, .. }) => {
                let mut sum = 0;
                for range in ranges {
                    sum += count_entries(indexed, column, *kind, range, ESTIMATE_MAX - sum)?;
                }
                Ok(sum)
            }
        }
    }
}

impl ConditionIndex {
    /// Returns how an index of this kind is used for a condition, or `None` if it cannot be used.
    fn of(compiled: &CompiledCondition, kind: IndexKind) -> Option<ConditionIndex> {
        let column = compiled.condition.column.as_slice();
        let expression = compiled.condition.expression.as_slice();
        let ranges = |ranges: Vec<TermRange>, is_descending: bool| {
            let column = column.to_vec();
            Access::Ranges(IndexRanges { column, kind, ranges, is_descending, has_rest: false })
        };
        let terms = |words: &[Vec<u8>]| -> Vec<Posting> {
            let term = |word: &Vec<u8>| TermPosting::new(column, kind, TermRange::of_text(word));
            words.iter().map(|word| Posting::Term(term(word))).collect()
        };
        let (access, label, direction_label) = match (kind, &compiled.test) {
            (IndexKind::Lexical, TextTest::Equals) => {
                (ranges(vec![TermRange::of_text(expression)], false), "STREQ", Some("asc"))
            }
            (IndexKind::Lexical, TextTest::Begins) => {
                (ranges(vec![TermRange::of_prefix(expression)], false), "STRBW", Some("asc"))
            }
            (IndexKind::Lexical, TextTest::EqualsAnyWord(words)) => {
                let all = sorted(words).iter().map(|word| TermRange::of_text(word)).collect();
                (ranges(all, false), "STROREQ", Some("skip"))
            }
            (IndexKind::Decimal, TextTest::Above(from)) => {
                (ranges(vec![TermRange::of_numbers(*from, f64::INFINITY)], false), "NUMGT/NUMGE", None)
            }
            (IndexKind::Decimal, TextTest::Below(to)) => {
                (ranges(vec![TermRange::of_numbers(f64::NEG_INFINITY, *to)], true), "NUMLT/NUMLE", None)
            }
            (IndexKind::Decimal, TextTest::Between(from, to)) => {
                let range = vec![TermRange::of_numbers(*from, *to)];
                match (*from == f64::NEG_INFINITY, *to == f64::INFINITY) {
                    _ if from == to => (ranges(range, false), "NUMEQ", Some("asc")),
                    (true, false) => (ranges(range, true), "NUMLT/NUMLE", None),
                    (false, true) => (ranges(range, false), "NUMGT/NUMGE", None),
                    _ => (ranges(range, false), "NUMBT", Some("asc")),
                }
            }
            (IndexKind::Decimal, TextTest::AnyNumber(numbers)) => {
                let mut numbers: Vec<f64> = numbers.iter().map(|number| number + 0.0).collect();
                numbers.sort_by(f64::total_cmp);
                numbers.dedup();
                let all = numbers.iter().map(|number| TermRange::of_numbers(*number, *number)).collect();
                (ranges(all, false), "NUMOREQ", Some("skip"))
            }
            // The rows of one word are in the order of the index.
            (IndexKind::Token, TextTest::HasAllWords(words)) if words.len() == 1 => (
                ranges(sorted(words).iter().map(|word| TermRange::of_text(word)).collect(), false),
                "STRAND",
                Some("inverted"),
            ),
            (IndexKind::Token, TextTest::HasAnyWord(words)) if words.len() == 1 => (
                ranges(sorted(words).iter().map(|word| TermRange::of_text(word)).collect(), false),
                "STROR",
                Some("inverted"),
            ),
            (IndexKind::Token, TextTest::HasAllWords(words)) if !words.is_empty() => {
                (Access::Postings(Posting::All(terms(&sorted(words)))), "STRAND", Some("inverted"))
            }
            (IndexKind::Token, TextTest::HasAnyWord(words)) => {
                (Access::Postings(Posting::Any(terms(&sorted(words)))), "STROR", Some("inverted"))
            }
            (IndexKind::QGram, TextTest::FullText(expression)) => {
                (Access::Postings(full_text_posting(column, expression)?), "FTS", Some("inverted"))
            }
            _ => return None,
        };
        let (column, is_exact) = (column.to_vec(), is_decided_by_terms(compiled));
        Some(ConditionIndex { access, column, label, direction_label, is_exact, estimate: 0 })
    }

    /// Returns how the order of the keys is used for a condition on the key, or `None` if it cannot
    /// be used.
    fn of_key(compiled: &CompiledCondition) -> Option<ConditionIndex> {
        if !compiled.condition.column.is_empty() {
            return None;
        }
        let expression = compiled.condition.expression.clone();
        let (access, label, direction_label) = match &compiled.test {
            TextTest::Equals => (Access::Keys(vec![expression]), "STREQ", "asc"),
            TextTest::EqualsAnyWord(words) => (Access::Keys(sorted(words)), "STROREQ", "skip"),
            TextTest::Begins => (Access::Rows { prefix: expression, is_descending: false }, "STRBW", "asc"),
            _ => return None,
        };
        Some(ConditionIndex {
            access,
            column: Vec::new(),
            label,
            direction_label: Some(direction_label),
            is_exact: false,
            estimate: 0,
        })
    }

    /// Returns the candidates as a set of keys, if they are found in the order of their keys.
    fn posting(&self) -> Option<Posting> {
        match &self.access {
            Access::Postings(posting) => Some(posting.clone()),
            Access::Ranges(ranges) if matches!(self.label, "STREQ" | "NUMEQ" | "STRAND" | "STROR") => {
                let IndexRanges { column, kind, ranges, .. } = ranges;
                Some(Posting::Term(TermPosting::new(column, *kind, ranges.first()?.clone())))
            }
            _ => None,
        }
    }

    fn description(&self) -> String {
        let direction = match &self.access {
            Access::Ranges(IndexRanges { is_descending: true, .. }) => "desc",
            _ => "asc",
        };
        let name = String::from_utf8_lossy(&self.column);
        format!("\"{name}\" {} ({})", self.direction_label.unwrap_or(direction), self.label)
    }
}

/// Returns true if the terms of an index show whether a row satisfies a condition. Terms hold only
/// the first bytes of a long text, and a range of numbers includes its ends.
fn is_decided_by_terms(compiled: &CompiledCondition) -> bool {
    let is_short = |text: &[u8]| text.len() < TERM_LEN_MAX;
    match &compiled.test {
        TextTest::Equals | TextTest::Begins => is_short(&compiled.condition.expression),
        TextTest::HasAllWords(words) | TextTest::HasAnyWord(words) | TextTest::EqualsAnyWord(words) => {
            words.iter().all(|word| is_short(word))
        }
        TextTest::Between(..) | TextTest::AnyNumber(_) => true,
        _ => false,
    }
}

fn sorted(words: &HashSet<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut words: Vec<_> = words.iter().cloned().collect();
    words.sort_unstable();
    words
}

/// Returns the rows that contain parts of all phrases. Returns `None` if the phrases are too short
/// to be in the index.
fn full_text_posting(column: &[u8], expression: &FullTextExpression) -> Option<Posting> {
    if !expression.can_match() {
        return Some(Posting::Any(Vec::new()));
    }
    let units = expression.units.iter().filter(|unit| !unit.is_excluded).filter_map(|unit| {
        let phrases = unit.phrases.iter().map(|phrase| phrase_posting(column, phrase));
        phrases.collect::<Option<Vec<Posting>>>().map(Posting::Any)
    });
    let units: Vec<Posting> = units.collect();
    (!units.is_empty()).then_some(Posting::All(units))
}

/// Returns the rows that contain parts of a phrase. The parts cover the complete phrase if their
/// number allows.
fn phrase_posting(column: &[u8], phrase: &[u8]) -> Option<Posting> {
    let all: Vec<&[u8]> = grams(phrase).collect();
    let last = *all.last()?;
    let chars = last.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
    if chars < GRAM_CHARS {
        return None;
    }
    let mut pieces: Vec<&[u8]> = all.iter().step_by(GRAM_CHARS).take(GRAMS_MAX - 1).copied().collect();
    pieces.push(last);
    pieces.sort_unstable();
    pieces.dedup();
    let term = |piece: &[u8]| TermPosting::new(column, IndexKind::QGram, TermRange::of_text(piece));
    Some(Posting::All(pieces.into_iter().map(|piece| Posting::Term(term(piece))).collect()))
}
