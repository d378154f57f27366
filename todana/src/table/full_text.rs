//! Parses the expressions of full-text conditions.

use super::ConditionOperator;
use std::collections::HashSet;
use todana_engine::table::{fold, words};

/// The words of a full-text condition. A text matches if it contains at least one word of each
/// unit, and no word of an excluded unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FullTextExpression {
    pub(super) units: Vec<FullTextUnit>,
}

/// A unit: words or phrases of which a text must contain one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FullTextUnit {
    pub(super) phrases: Vec<Vec<u8>>,
    pub(super) is_excluded: bool,
}

impl FullTextExpression {
    /// Parses the expression of an operator. The result has no words if the operator is not a
    /// full-text operator.
    pub(super) fn parse(operator: ConditionOperator, expression: &[u8]) -> FullTextExpression {
        let one = |phrase: Vec<u8>| FullTextUnit { phrases: vec![phrase], is_excluded: false };
        // Equal words are searched once.
        let words = || {
            let mut known = HashSet::new();
            words(expression).filter(move |word| known.insert(*word)).map(<[u8]>::to_vec)
        };
        let units = match operator {
            ConditionOperator::FullTextPhrase => vec![one(fold(expression))],
            ConditionOperator::FullTextAllWords => words().map(one).collect(),
            ConditionOperator::FullTextAnyWord => {
                vec![FullTextUnit { phrases: words().collect(), is_excluded: false }]
            }
            ConditionOperator::FullTextExpression => parse_units(&fold(expression)),
            _ => Vec::new(),
        };
        FullTextExpression { units }
    }

    /// Returns true if a folded text matches. If `is_cancelled` returns true, the result may be
    /// wrong.
    pub(super) fn matches(&self, text: &[u8], is_cancelled: &dyn Fn() -> bool) -> bool {
        let has =
            |unit: &FullTextUnit| unit.phrases.iter().any(|phrase| !is_cancelled() && contains(text, phrase));
        self.can_match() && self.units.iter().all(|unit| !is_cancelled() && has(unit) != unit.is_excluded)
    }

    /// Returns false if no text can match, because there are no words or the first word is
    /// excluded.
    pub(super) fn can_match(&self) -> bool {
        self.units.first().is_some_and(|unit| !unit.is_excluded)
    }
}

/// Returns true if the text contains the bytes.
pub(super) fn contains(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(text, part).is_some()
}

/// Parses words and quoted phrases. `&&`, `||` and `!!` stand before a word or phrase.
fn parse_units(expression: &[u8]) -> Vec<FullTextUnit> {
    let mut units: Vec<FullTextUnit> = Vec::new();
    let (mut is_alternative, mut is_excluded) = (false, false);
    let mut rest = expression;
    while let Some(token) = next_token(&mut rest) {
        match token.as_slice() {
            b"&&" => (is_alternative, is_excluded) = (false, false),
            b"||" => (is_alternative, is_excluded) = (true, false),
            b"!!" => (is_alternative, is_excluded) = (false, true),
            _ => {
                if !is_alternative {
                    units.push(FullTextUnit { phrases: vec![token], is_excluded });
                } else if let Some(last) = units.last_mut() {
                    last.phrases.push(token);
                }
                (is_alternative, is_excluded) = (false, false);
            }
        }
    }
    units
}

/// Takes the next word or quoted phrase. In a phrase, a backslash escapes the next character.
fn next_token(rest: &mut &[u8]) -> Option<Vec<u8>> {
    *rest = &rest[rest.iter().take_while(|&&byte| byte <= b' ').count()..];
    let Some(quoted) = rest.strip_prefix(b"\"") else {
        let len = rest.iter().take_while(|&&byte| byte > b' ').count();
        let (word, after) = rest.split_at(len);
        *rest = after;
        return (!word.is_empty()).then(|| word.to_vec());
    };
    let (mut phrase, mut bytes) = (Vec::new(), quoted.iter());
    while let Some(&byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => phrase.extend(bytes.next()),
            _ => phrase.push(byte),
        }
    }
    *rest = bytes.as_slice();
    Some(phrase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_text_expressions_match_as_the_original() {
        let matches = |expression: &str, text: &str| {
            let parsed =
                FullTextExpression::parse(ConditionOperator::FullTextExpression, expression.as_bytes());
            parsed.matches(&fold(text.as_bytes()), &|| false)
        };
        for (expression, text, expected) in [
            ("HELLO && World", "Hello  World", true),
            ("hello !! world", "hello world", false),
            ("hello !! world", "hello there", true),
            ("hello || ab", "abc abc", true),
            ("\"hello world\"", "hello world", true),
            ("\"world hello\"", "hello world", false),
            ("!! hello", "other", false),
            ("!! xyz && a", "a", false),
            ("|| hello", "hello", false),
            ("hello !! || abc", "abc", true),
            ("hello || && x", "hello", false),
            ("a || b || ab", "b", true),
            ("abc||ab", "abc", false),
            ("", "abc", false),
            ("\"\"", "abc", true),
            ("\"say \\\"hi\"", "I say \"hi\"", true),
        ] {
            assert_eq!(matches(expression, text), expected, "{expression} in {text}");
        }
    }

    #[test]
    fn capitals_in_lists_of_words_never_match() {
        for operator in [ConditionOperator::FullTextAllWords, ConditionOperator::FullTextAnyWord] {
            let matches = |words: &[u8]| {
                FullTextExpression::parse(operator, words).matches(&fold(b"Hello World"), &|| false)
            };
            assert_eq!(
                [&b"hello"[..], b"Hello", b"", b"hello,world"].map(matches),
                [true, false, false, true]
            );
        }
        let phrase = FullTextExpression::parse(ConditionOperator::FullTextPhrase, b"");
        assert!(phrase.matches(b"anything", &|| false));
    }
}
