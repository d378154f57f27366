//! The operators of conditions.

/// The operator of a condition: how a column is compared with the expression of the condition. "The
/// text" is the text of the column.
///
/// Words are separated by spaces and commas. A number is read from the start of a text; if there is
/// none, it is 0. Full-text operators compare folded texts, in which case, accents and width are
/// removed and each run of blanks is one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionOperator {
    /// The text equals the expression.
    TextEquals,
    /// The text contains the expression.
    TextContains,
    /// The text begins with the expression.
    TextBegins,
    /// The text ends with the expression.
    TextEnds,
    /// The words of the text include all words of the expression.
    HasAllWords,
    /// The words of the text include at least one word of the expression.
    HasAnyWord,
    /// The text is one of the words of the expression.
    EqualsAnyWord,
    /// The text matches an extended POSIX regular expression. If the expression starts with `*`,
    /// case is ignored.
    MatchesPattern,
    /// The number in the text equals that of the expression.
    NumberEquals,
    /// The number in the text is greater than that of the expression.
    NumberAbove,
    /// The number in the text is greater than that of the expression, or equal.
    NumberAtLeast,
    /// The number in the text is less than that of the expression.
    NumberBelow,
    /// The number in the text is less than that of the expression, or equal.
    NumberAtMost,
    /// The number in the text is between the two numbers of the expression, which may have any
    /// order and are included.
    NumberBetween,
    /// The number in the text equals one of the numbers of the expression.
    EqualsAnyNumber,
    /// The text contains the expression as a phrase.
    FullTextPhrase,
    /// The text contains all words of the expression. The words are not folded, so they must be
    /// given in lower case.
    FullTextAllWords,
    /// The text contains at least one word of the expression. The words are not folded, so they
    /// must be given in lower case.
    FullTextAnyWord,
    /// The text matches an expression of words and quoted phrases that are combined by `&&`, `||`
    /// and `!!`. The first word must not be excluded.
    FullTextExpression,
}

/// The operators with Tokyo Cabinet's names, in the order of its numbers.
#[rustfmt::skip]
const NAMES: [(ConditionOperator, &[&str]); 19] = [
    (ConditionOperator::TextEquals, &["STREQ", "STR", "EQ"]),
    (ConditionOperator::TextContains, &["STRINC", "INC"]),
    (ConditionOperator::TextBegins, &["STRBW", "BW"]),
    (ConditionOperator::TextEnds, &["STREW", "EW"]),
    (ConditionOperator::HasAllWords, &["STRAND", "AND"]),
    (ConditionOperator::HasAnyWord, &["STROR", "OR"]),
    (ConditionOperator::EqualsAnyWord, &["STROREQ", "OREQ"]),
    (ConditionOperator::MatchesPattern, &["STRRX", "RX"]),
    (ConditionOperator::NumberEquals, &["NUMEQ", "NUM", "=", "=="]),
    (ConditionOperator::NumberAbove, &["NUMGT", ">"]),
    (ConditionOperator::NumberAtLeast, &["NUMGE", ">="]),
    (ConditionOperator::NumberBelow, &["NUMLT", "<"]),
    (ConditionOperator::NumberAtMost, &["NUMLE", "<="]),
    (ConditionOperator::NumberBetween, &["NUMBT"]),
    (ConditionOperator::EqualsAnyNumber, &["NUMOREQ"]),
    (ConditionOperator::FullTextPhrase, &["FTSPH", "FTS"]),
    (ConditionOperator::FullTextAllWords, &["FTSAND"]),
    (ConditionOperator::FullTextAnyWord, &["FTSOR"]),
    (ConditionOperator::FullTextExpression, &["FTSEX"]),
];

/// This number is added to the number of an operator to negate it.
const NEGATED: u32 = 1 << 24;
/// This number is added to the number of an operator to forbid indexes.
const WITHOUT_INDEX: u32 = 1 << 25;

/// An operator in the form that users of Tokyo Cabinet write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedOperator {
    /// The operator.
    pub operator: ConditionOperator,
    /// True if the condition is negated.
    pub is_negated: bool,
    /// True if the condition may use an index.
    pub uses_index: bool,
}

impl ConditionOperator {
    /// All operators.
    pub const ALL: [ConditionOperator; 19] = {
        let mut all = [ConditionOperator::TextEquals; 19];
        let mut at = 0;
        while at < all.len() {
            all[at] = NAMES[at].0;
            at += 1;
        }
        all
    };

    /// Returns the name of the operator in Tokyo Cabinet.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1[0]
    }

    /// Parses a name or number of Tokyo Cabinet's, in any case. A leading `~` or `!` negates, and
    /// then a leading `+` forbids indexes.
    ///
    /// ```
    /// use todana::table::ConditionOperator;
    ///
    /// let parsed = ConditionOperator::parse(b"~STREQ").unwrap();
    /// assert_eq!((parsed.operator, parsed.is_negated), (ConditionOperator::TextEquals, true));
    /// assert!(ConditionOperator::parse(b"STREQUAL").is_none());
    /// ```
    pub fn parse(word: &[u8]) -> Option<ParsedOperator> {
        let (word, is_negated) = match word {
            [b'~' | b'!', rest @ ..] => (rest, true),
            _ => (word, false),
        };
        let (word, uses_index) = match word {
            [b'+', rest @ ..] => (rest, false),
            _ => (word, true),
        };
        let word = std::str::from_utf8(word).ok()?;
        if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
            let number: u32 = word.parse().ok()?;
            let operator = NAMES.get((number & !(NEGATED | WITHOUT_INDEX)) as usize)?.0;
            let is_negated = is_negated || number & NEGATED != 0;
            let uses_index = uses_index && number & WITHOUT_INDEX == 0;
            return Some(ParsedOperator { operator, is_negated, uses_index });
        }
        let is_meant = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(word));
        let operator = NAMES.iter().find(|(_, names)| is_meant(names))?.0;
        Some(ParsedOperator { operator, is_negated, uses_index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_names_and_numbers() {
        for (number, operator) in ConditionOperator::ALL.into_iter().enumerate() {
            assert_eq!(operator as usize, number);
            let plain = ParsedOperator { operator, is_negated: false, uses_index: true };
            assert_eq!(ConditionOperator::parse(operator.name().to_lowercase().as_bytes()), Some(plain));
            assert_eq!(ConditionOperator::parse(number.to_string().as_bytes()), Some(plain));
        }
        let parsed = |word: &str| ConditionOperator::parse(word.as_bytes());
        let (operator, is_negated) = (ConditionOperator::TextEquals, true);
        assert_eq!(parsed("!+EQ"), Some(ParsedOperator { operator, is_negated, uses_index: false }));
        assert_eq!(parsed("50331648"), Some(ParsedOperator { operator, is_negated, uses_index: false }));
        for unknown in ["", "~", "+~EQ", "~!EQ", "= ", "99x", "19", "BT"] {
            assert_eq!(parsed(unknown), None, "{unknown}");
        }
    }
}
