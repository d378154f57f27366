//! A condition on a column, and the test whether a row satisfies it.

use super::full_text::{FullTextExpression, contains};
use super::{ConditionOperator, ParsedOperator};
use crate::kyoto::translate;
use regex::bytes::{Regex, RegexBuilder};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use todana_core::{Error, ErrorKind, Result};
use todana_engine::table::{column, fold, number, words};

/// The longest pattern. Longer ones are refused, because compiling them takes long.
const PATTERN_LEN_MAX: usize = 64 << 10;

/// The most memory for a compiled pattern.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// The most patterns of a query, or of the queries of a set operation.
const PATTERNS_MAX: usize = 16;

/// A condition on a column of a row.
///
/// A row that lacks the column does not satisfy a condition, but it does satisfy a negated one. If
/// the name of the column is empty, the condition applies to the key of the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The name of the column.
    pub column: Vec<u8>,
    /// The operator.
    pub operator: ConditionOperator,
    /// The text with which the column is compared. [`ConditionOperator`] states how.
    pub expression: Vec<u8>,
    /// True if a row must not satisfy the condition.
    pub is_negated: bool,
    /// True if an index may be used for the condition.
    pub uses_index: bool,
}

impl Condition {
    /// Creates a condition.
    pub fn new(column: &[u8], operator: ConditionOperator, expression: &[u8]) -> Condition {
        let parsed = ParsedOperator { operator, is_negated: false, uses_index: true };
        Condition::parsed(column, parsed, expression)
    }

    /// Creates a condition with an operator that was parsed from a name or a number of Tokyo
    /// Cabinet.
    pub fn parsed(column: &[u8], operator: ParsedOperator, expression: &[u8]) -> Condition {
        let ParsedOperator { operator, is_negated, uses_index } = operator;
        let (column, expression) = (column.to_vec(), expression.to_vec());
        Condition { column, operator, expression, is_negated, uses_index }
    }

    /// Negates the condition.
    pub fn negated(self) -> Condition {
        Condition { is_negated: !self.is_negated, ..self }
    }

    /// Forbids the use of an index for the condition.
    pub fn without_index(self) -> Condition {
        Condition { uses_index: false, ..self }
    }
}

/// A condition whose expression is parsed.
#[derive(Clone, Debug)]
pub(super) struct CompiledCondition {
    pub(super) condition: Condition,
    pub(super) test: TextTest,
}

/// The test of a column.
#[derive(Clone, Debug)]
pub(super) enum TextTest {
    Equals,
    Contains,
    Begins,
    Ends,
    HasAllWords(HashSet<Vec<u8>>),
    HasAnyWord(HashSet<Vec<u8>>),
    EqualsAnyWord(HashSet<Vec<u8>>),
    /// A compiled pattern. `None` if it is invalid, so that no text matches it.
    Pattern(Option<Regex>),
    Above(f64),
    Below(f64),
    /// A number between these two, both included.
    Between(f64, f64),
    AnyNumber(Vec<f64>),
    FullText(FullTextExpression),
}

impl CompiledCondition {
    /// Parses the expression of a condition. Fails with `Invalid` if a pattern is too long, or
    /// needs too much memory.
    pub(super) fn new(condition: Condition) -> Result<CompiledCondition> {
        use ConditionOperator as Operator;
        let expression = &condition.expression;
        let numbers = || words(expression).map(number).collect::<Vec<_>>();
        let words = || words(expression).map(<[u8]>::to_vec).collect::<HashSet<_>>();
        let only = number(expression);
        let test = match condition.operator {
            Operator::TextEquals => TextTest::Equals,
            Operator::TextContains => TextTest::Contains,
            Operator::TextBegins => TextTest::Begins,
            Operator::TextEnds => TextTest::Ends,
            Operator::HasAllWords => TextTest::HasAllWords(words()),
            Operator::HasAnyWord => TextTest::HasAnyWord(words()),
            Operator::EqualsAnyWord => TextTest::EqualsAnyWord(words()),
            Operator::MatchesPattern => TextTest::Pattern(pattern(expression)?),
            Operator::NumberEquals => TextTest::Between(only, only),
            Operator::NumberAbove => TextTest::Above(only),
            Operator::NumberAtLeast => TextTest::Between(only, f64::INFINITY),
            Operator::NumberBelow => TextTest::Below(only),
            Operator::NumberAtMost => TextTest::Between(f64::NEG_INFINITY, only),
            Operator::NumberBetween => {
                let mut ends = numbers().into_iter();
                let (one, other) = (ends.next().unwrap_or(0.0), ends.next().unwrap_or(0.0));
                TextTest::Between(one.min(other), one.max(other))
            }
            Operator::EqualsAnyNumber => TextTest::AnyNumber(numbers()),
            operator => TextTest::FullText(FullTextExpression::parse(operator, expression)),
        };
        Ok(CompiledCondition { condition, test })
    }

    /// Returns true if a row satisfies the condition. If `is_cancelled` becomes true, the result
    /// may be wrong.
    pub(super) fn matches(&self, key: &[u8], row: &[u8], is_cancelled: Option<&AtomicBool>) -> bool {
        let name = &self.condition.column;
        let text = if name.is_empty() { Some(key) } else { column(row, name) };
        text.is_some_and(|text| self.holds(text, is_cancelled)) != self.condition.is_negated
    }

    fn holds(&self, text: &[u8], is_cancelled: Option<&AtomicBool>) -> bool {
        let expression = self.condition.expression.as_slice();
        match &self.test {
            TextTest::Equals => text == expression,
            TextTest::Contains => contains(text, expression),
            TextTest::Begins => text.starts_with(expression),
            TextTest::Ends => text.ends_with(expression),
            TextTest::HasAllWords(all) => {
                words(text).filter(|word| all.contains(*word)).collect::<HashSet<_>>().len() == all.len()
            }
            TextTest::HasAnyWord(any) => words(text).any(|word| any.contains(word)),
            TextTest::EqualsAnyWord(any) => any.contains(text),
            TextTest::Pattern(pattern) => pattern.as_ref().is_some_and(|pattern| pattern.is_match(text)),
            TextTest::Above(limit) => number(text) > *limit,
            TextTest::Below(limit) => number(text) < *limit,
            TextTest::Between(from, to) => {
                let number = number(text);
                *from <= number && number <= *to
            }
            TextTest::AnyNumber(any) => any.contains(&number(text)),
            TextTest::FullText(expression) => expression.matches(&fold(text), &|| {
                is_cancelled.is_some_and(|is_cancelled| is_cancelled.load(Ordering::Relaxed))
            }),
        }
    }
}

/// Compiles an extended POSIX expression. If it starts with `*`, case is ignored.
fn pattern(expression: &[u8]) -> Result<Option<Regex>> {
    let (expression, ignores_case) = match expression {
        [b'*', expression @ ..] => (expression, true),
        expression => (expression, false),
    };
    if expression.len() > PATTERN_LEN_MAX {
        let message = format!("pattern: is longer than {PATTERN_LEN_MAX} bytes");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let mut pattern = RegexBuilder::new(&translate(expression));
    match pattern.case_insensitive(ignores_case).size_limit(PATTERN_BYTES_MAX).build() {
        Ok(pattern) => Ok(Some(pattern)),
        Err(regex::Error::CompiledTooBig(_)) => {
            let message = format!("pattern: needs more than {PATTERN_BYTES_MAX} bytes of memory");
            Err(Error::new(ErrorKind::Invalid, message))
        }
        Err(_) => Ok(None),
    }
}

/// Fails with `Invalid` if these conditions have too many patterns.
pub(super) fn expect_few_patterns<'c>(conditions: impl Iterator<Item = &'c Condition>) -> Result<()> {
    let is_pattern = |condition: &&Condition| condition.operator == ConditionOperator::MatchesPattern;
    if conditions.filter(is_pattern).count() > PATTERNS_MAX {
        let message = format!("query: has more than {PATTERNS_MAX} patterns");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected results are those of Tokyo Cabinet 1.4.48.
    #[test]
    fn conditions_match_as_the_original() {
        use ConditionOperator as Operator;
        let texts: [&[u8]; 8] = [b"", b"a,b c", b"12 apples", b"-3.5e2x", b"ab", b"1e1", b"inf", b"\x015"];
        for (operator, expression, expected) in [
            (Operator::TextEquals, "", "10000000"),
            (Operator::TextContains, "a", "01101000"),
            (Operator::TextBegins, "a", "01001000"),
            (Operator::TextEnds, "b", "00001000"),
            (Operator::HasAllWords, " ,", "11111111"),
            (Operator::HasAllWords, "c,a", "01000000"),
            (Operator::HasAnyWord, "", "00000000"),
            (Operator::HasAnyWord, "x b", "01000000"),
            (Operator::EqualsAnyWord, "a,b c ab", "00001000"),
            (Operator::MatchesPattern, "*^A[[:alpha:]]$", "00001000"),
            (Operator::MatchesPattern, "(", "00000000"),
            (Operator::NumberEquals, "x", "11001000"),
            (Operator::NumberEquals, "-3.5", "00010000"),
            (Operator::NumberEquals, "1e9", "00000100"),
            (Operator::NumberAbove, "12", "00000010"),
            (Operator::NumberAtLeast, " 12", "00100010"),
            (Operator::NumberBelow, "0", "00010000"),
            (Operator::NumberAtMost, "0", "11011000"),
            (Operator::NumberBetween, "12", "11101101"),
            (Operator::NumberBetween, "-350,,2 9", "11011100"),
            (Operator::EqualsAnyNumber, "12 5", "00100001"),
            (Operator::EqualsAnyNumber, "", "00000000"),
            (Operator::FullTextPhrase, "A", "01101000"),
        ] {
            let condition = Condition::new(b"c", operator, expression.as_bytes());
            let negated = CompiledCondition::new(condition.clone().negated()).unwrap();
            let condition = CompiledCondition::new(condition).unwrap();
            let row = |text: &[u8]| [b"c\0", text].concat();
            let found: String = texts
                .iter()
                .map(|text| {
                    let is_found = condition.matches(b"", &row(text), None);
                    assert_eq!(negated.matches(b"", &row(text), None), !is_found);
                    if is_found { '1' } else { '0' }
                })
                .collect();
            assert_eq!(found, expected, "{operator:?} {expression:?}");
            assert!(!condition.matches(b"", b"d\0x", None) && negated.matches(b"", b"d\0x", None));
        }
    }

    /// An expression of 1 MiB of words took minutes for one row of 1 MiB.
    #[test]
    fn many_words_are_compared_with_many_words() {
        use ConditionOperator as Operator;
        let words =
            |range: std::ops::Range<u32>| range.map(|number| format!("{number:x} ")).collect::<String>();
        let row = [b"c\0", words(0..170_000).as_bytes()].concat();
        for (operator, range, is_match) in [
            (Operator::HasAllWords, 0..170_000, true),
            (Operator::HasAllWords, 1..170_001, false),
            (Operator::HasAnyWord, 169_999..340_000, true),
            (Operator::HasAnyWord, 170_000..340_000, false),
        ] {
            let expression = words(range);
            let condition = Condition::new(b"c", operator, expression.as_bytes());
            let condition = CompiledCondition::new(condition).unwrap();
            assert_eq!(condition.matches(b"", &row, None), is_match, "{operator:?}");
        }
        // Full-text words are parts of words, so that each one is searched in the complete text.
        // Equal ones are searched once, and the search can be cancelled.
        let expression = "zz ".repeat(350_000);
        let condition = Condition::new(b"c", Operator::FullTextAnyWord, expression.as_bytes());
        let condition = CompiledCondition::new(condition).unwrap();
        let TextTest::FullText(parsed) = &condition.test else { panic!("{condition:?}") };
        assert_eq!(parsed.units[0].phrases.len(), 1);
        let expression = words(1_000_000..1_100_000);
        let condition = Condition::new(b"c", Operator::FullTextAnyWord, expression.as_bytes());
        let condition = CompiledCondition::new(condition).unwrap();
        assert!(!condition.matches(b"", &row, Some(&AtomicBool::new(true))));
    }

    /// 1,024 patterns, each of them of up to 10 MiB, were accepted.
    #[test]
    fn memory_and_number_of_patterns_are_limited() {
        let pattern = |text: &str| Condition::new(b"c", ConditionOperator::MatchesPattern, text.as_bytes());
        let error = CompiledCondition::new(pattern("(a{1,200}){1,200}")).unwrap_err();
        assert_eq!(error.to_string(), "pattern: needs more than 1048576 bytes of memory");
        let query =
            |count| (0..count).fold(crate::table::Query::new(), |query, _| query.condition(pattern("a")));
        assert_eq!(query(PATTERNS_MAX).compile().unwrap().len(), PATTERNS_MAX);
        let error = query(PATTERNS_MAX + 1).compile().unwrap_err();
        assert_eq!(error.to_string(), "query: has more than 16 patterns");
        assert!(expect_few_patterns(query(9).conditions.iter().chain(&query(8).conditions)).is_err());
    }
}
