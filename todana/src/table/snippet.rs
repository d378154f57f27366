//! Snippets: the places in a text where the words of a query occur, with the text around them.

use super::Query;
use super::full_text::FullTextExpression;
use todana_engine::table::{fold, words};

/// The form of snippets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnippetStyle {
    /// The most characters of the text on each side of a word.
    pub width: usize,
    /// The mark before a word.
    pub before: String,
    /// The mark after a word.
    pub after: String,
    /// The most snippets of a text.
    pub snippets_max: usize,
    /// If the text contains no word, returns the start of the text as the only snippet.
    pub leads: bool,
}

impl Default for SnippetStyle {
    fn default() -> Self {
        let (before, after) = ("[".into(), "]".into());
        SnippetStyle { width: 20, before, after, snippets_max: 8, leads: false }
    }
}

impl Query {
    /// Returns the places in a text where words of the conditions on its column occur. Words are
    /// compared as full-text conditions do. Snippets do not overlap.
    ///
    /// ```
    /// use todana::table::{ConditionOperator, Query, SnippetStyle};
    ///
    /// let query = Query::new().filter(b"text", ConditionOperator::FullTextPhrase, b"lazy dog");
    /// let style = SnippetStyle { width: 6, ..SnippetStyle::default() };
    /// let text = "The quick brown fox jumps over the Lazy dog again and again";
    /// assert_eq!(query.snippets(b"text", text, &style), ["r the [Lazy dog] again"]);
    /// ```
    pub fn snippets(&self, column: &[u8], text: &str, style: &SnippetStyle) -> Vec<String> {
        let mut phrases: Vec<Vec<char>> = Vec::new();
        let conditions = self.conditions.iter().filter(|one| one.column == column && !one.is_negated);
        for condition in conditions {
            let parsed = FullTextExpression::parse(condition.operator, &condition.expression);
            let of_units = parsed.units.iter().filter(|unit| !unit.is_excluded);
            let mut found: Vec<Vec<u8>> = of_units.flat_map(|unit| unit.phrases.clone()).collect();
            if parsed.units.is_empty() {
                found.extend(words(&condition.expression).map(fold));
            }
            let folded = found.iter().map(|phrase| String::from_utf8_lossy(phrase).chars().collect());
            phrases.extend(folded.filter(|phrase: &Vec<char>| !phrase.is_empty()));
        }
        SnippetText::new(text).snippets(&phrases, style)
    }
}

/// A text with its folded characters.
struct SnippetText<'t> {
    text: &'t str,
    /// The folded characters, each with the offset in the text of the character from which it was
    /// made.
    chars: Vec<(char, usize)>,
}

impl<'t> SnippetText<'t> {
    fn new(text: &'t str) -> SnippetText<'t> {
        let mut chars: Vec<(char, usize)> = Vec::new();
        for (at, char) in text.char_indices() {
            if char.is_whitespace() {
                // A run of blanks counts as one blank.
                if chars.last().is_none_or(|(last, _)| *last != ' ') {
                    chars.push((' ', at));
                }
                continue;
            }
            let folded = fold(char.to_string().as_bytes());
            chars.extend(String::from_utf8_lossy(&folded).chars().map(|char| (char, at)));
        }
        SnippetText { text, chars }
    }

    /// Returns the length of the longest phrase that starts at a character.
    fn phrase_len(&self, at: usize, phrases: &[Vec<char>]) -> Option<usize> {
        let is_here = |phrase: &&Vec<char>| {
            let rest = &self.chars[at..];
            rest.len() >= phrase.len() && phrase.iter().zip(rest).all(|(one, (other, _))| one == other)
        };
        phrases.iter().filter(is_here).map(Vec::len).max()
    }

    /// Returns the offset of a character in the text.
    fn offset(&self, at: usize) -> usize {
        self.chars.get(at).map_or(self.text.len(), |(_, offset)| *offset)
    }

    fn snippets(&self, phrases: &[Vec<char>], style: &SnippetStyle) -> Vec<String> {
        let (mut snippets, mut at, mut begin_min) = (Vec::new(), 0, 0);
        while at < self.chars.len() && snippets.len() < style.snippets_max {
            let Some(len) = self.phrase_len(at, phrases) else {
                at += 1;
                continue;
            };
            let begin = at.saturating_sub(style.width).max(begin_min);
            let mut snippet = self.text[self.offset(begin)..self.offset(at)].to_owned();
            let mut end = at + len;
            self.push_marked(&mut snippet, at, end, style);
            // Other words within the width belong to the same snippet.
            let until = (end + style.width).min(self.chars.len());
            let mut plain = end;
            while end < until {
                match self.phrase_len(end, phrases).filter(|len| end + len <= until) {
                    Some(len) => {
                        snippet.push_str(&self.text[self.offset(plain)..self.offset(end)]);
                        self.push_marked(&mut snippet, end, end + len, style);
                        end += len;
                        plain = end;
                    }
                    None => end += 1,
                }
            }
            snippet.push_str(&self.text[self.offset(plain)..self.offset(until)]);
            snippets.push(snippet);
            (at, begin_min) = (until, until);
        }
        if snippets.is_empty() && style.leads {
            snippets.push(self.text[..self.offset(style.width.saturating_mul(2))].to_owned());
        }
        snippets
    }

    fn push_marked(&self, snippet: &mut String, from: usize, to: usize, style: &SnippetStyle) {
        snippet.push_str(&style.before);
        snippet.push_str(&self.text[self.offset(from)..self.offset(to)]);
        snippet.push_str(&style.after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ConditionOperator;

    #[test]
    fn snippets_show_words_in_their_surroundings() {
        let query = Query::new().filter(b"t", ConditionOperator::FullTextAnyWord, b"ecole paris").filter(
            b"other",
            ConditionOperator::FullTextAnyWord,
            b"one",
        );
        let style = SnippetStyle { width: 4, ..SnippetStyle::default() };
        let text = "one École  de PARIS, and far away from it: ｐａｒｉｓ";
        let snippets = query.snippets(b"t", text, &style);
        assert_eq!(
            snippets,
            ["one [École]  de ", "[PARIS], an", "it: [ｐａｒｉｓ]"].map(str::to_owned).to_vec()
        );
        assert!(query.snippets(b"t", "nothing", &style).is_empty());
        let leading = SnippetStyle { leads: true, ..style };
        assert_eq!(query.snippets(b"t", "nothing at all here", &leading), ["nothing "]);
    }
}
