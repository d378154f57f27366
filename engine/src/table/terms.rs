//! The terms of a text in an index, encoded so that their bytes have the order of the index.
//!
//! ```text
//! lexical         escaped, the first TERM_LEN_MAX bytes of the text
//! decimal         the number as 8 bytes: its bits, inverted for numbers below zero, else with the sign bit set
//! token, q-gram   escaped, one term for each word or piece
//!
//! escaped         each byte, 00 as 00 ff | 00 00
//! ```
//!
//! A term is never the beginning of another one, so that the key of the row can follow it.

use super::folding::fold;
use std::ops::Bound;
use todana_core::{IndexEntry, IndexKind};

/// The bytes of a text or a word that an index holds. Longer texts share an entry with others that
/// begin alike: a query checks the rows anyway, and sorts those of equal terms itself.
pub const TERM_LEN_MAX: usize = 256;

/// The longest encoded term: two bytes for each NUL byte, and two at the end.
pub(super) const ENCODED_TERM_LEN_MAX: usize = 2 * TERM_LEN_MAX + 2;

/// The characters of a piece in a q-gram index.
pub const GRAM_CHARS: usize = 3;

/// Returns the words of a text: what spaces and commas separate.
pub fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| b" ,".contains(byte)).filter(|word| !word.is_empty())
}

/// Returns the number at the start of a text, after blanks and control characters; 0 if there is
/// none. A number has no exponent, as in Tokyo Cabinet.
pub fn number(text: &[u8]) -> f64 {
    let text = &text[text.iter().take_while(|&&byte| byte <= b' ').count()..];
    let digits = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let signed = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let rest = &text[signed..];
    if rest.len() >= 3 && rest[..3].eq_ignore_ascii_case(b"inf") {
        return if text.starts_with(b"-") { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let mut end = signed + digits(signed);
    if text.get(end) == Some(&b'.') {
        end += 1 + digits(end + 1);
    }
    std::str::from_utf8(&text[..end]).ok().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// Calls `see` with each encoded term of a text. Terms may repeat.
pub(super) fn terms(kind: IndexKind, text: &[u8], see: &mut dyn FnMut(&[u8])) {
    let mut term = Vec::new();
    let mut put = |text: &[u8]| {
        term.clear();
        escape(text, &mut term);
        see(&term);
    };
    match kind {
        IndexKind::Lexical => put(text),
        IndexKind::Decimal => see(&encoded_number(number(text))),
        IndexKind::Token => words(text).for_each(put),
        IndexKind::QGram => grams(&fold(text)).for_each(put),
    }
}

/// Returns the pieces of a folded text. A text with fewer characters is one piece.
pub fn grams(folded: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_start = |&at: &usize| at == folded.len() || folded[at] & 0xc0 != 0x80;
    let starts: Vec<usize> = (0..=folded.len()).filter(is_start).collect();
    let last = starts.len().saturating_sub(GRAM_CHARS + 1);
    (0..=last).filter_map(move |at| {
        let end = starts.get(at + GRAM_CHARS).copied().unwrap_or(folded.len());
        let piece = &folded[*starts.get(at)?..end];
        (!piece.is_empty()).then_some(piece)
    })
}

/// Returns the most terms that a text can have. Terms that repeat are counted.
pub fn terms_max(kind: IndexKind, text: &[u8]) -> usize {
    match kind {
        IndexKind::Lexical | IndexKind::Decimal => 1,
        IndexKind::Token => words(text).count(),
        IndexKind::QGram => text.iter().filter(|byte| *byte & 0xc0 != 0x80).count(),
    }
}

/// Returns the number in eight bytes that sort like numbers. Both zeros are equal.
fn encoded_number(number: f64) -> [u8; 8] {
    const SIGN: u64 = 1 << 63;
    let bits = (number + 0.0).to_bits();
    (if bits & SIGN == 0 { bits | SIGN } else { !bits }).to_be_bytes()
}

fn escape(text: &[u8], term: &mut Vec<u8>) {
    escape_open(&text[..text.len().min(TERM_LEN_MAX)], term);
    term.extend_from_slice(&[0, 0]);
}

fn escape_open(text: &[u8], term: &mut Vec<u8>) {
    for &byte in text {
        term.push(byte);
        if byte == 0 {
            term.push(0xff);
        }
    }
}

/// Returns the length of the term at the start of a position.
pub(super) fn term_len(kind: IndexKind, position: &[u8]) -> usize {
    if kind == IndexKind::Decimal {
        return position.len().min(8);
    }
    let mut at = 0;
    while let Some(zero) = position[at..].iter().position(|&byte| byte == 0) {
        at += zero + 2;
        if position.get(at - 1) != Some(&0xff) {
            break;
        }
    }
    at.min(position.len())
}

/// A range of positions that contains every entry of the rows in question, and possibly others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TermRange {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
}

impl TermRange {
    /// Returns the range of all entries.
    pub fn all() -> TermRange {
        TermRange { from: Bound::Unbounded, to: Bound::Unbounded }
    }

    /// Returns the range of one text, word or piece.
    pub fn of_text(text: &[u8]) -> TermRange {
        let mut term = Vec::new();
        escape(text, &mut term);
        TermRange::of_beginning(term)
    }

    /// Returns the range of the texts that begin with these bytes.
    pub fn of_prefix(prefix: &[u8]) -> TermRange {
        let mut term = Vec::new();
        escape_open(&prefix[..prefix.len().min(TERM_LEN_MAX)], &mut term);
        TermRange::of_beginning(term)
    }

    /// Returns the range of the numbers between two, both included.
    pub fn of_numbers(from: f64, to: f64) -> TermRange {
        let to = TermRange::of_beginning(encoded_number(to).to_vec()).to;
        TermRange { from: Bound::Included(encoded_number(from).to_vec()), to }
    }

    /// Returns the part of the range of one text, word, piece or number that begins with the key of
    /// this row.
    pub fn from_key(&self, key: &[u8]) -> TermRange {
        let from = match &self.from {
            Bound::Included(term) => Bound::Included([term, key].concat()),
            other => other.clone(),
        };
        TermRange { from, to: self.to.clone() }
    }

    fn of_beginning(from: Vec<u8>) -> TermRange {
        let mut to = from.clone();
        while to.pop_if(|byte| *byte == 0xff).is_some() {}
        let to = match to.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(to)
            }
            None => Bound::Unbounded,
        };
        TermRange { from: Bound::Included(from), to }
    }

    /// Returns the bounds.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.from.as_ref().map(Vec::as_slice), self.to.as_ref().map(Vec::as_slice))
    }

    /// Leaves the part after an entry, in the direction of the scan.
    pub fn continue_after(&mut self, entry: &IndexEntry, is_descending: bool) {
        let bound = Bound::Excluded(entry.position.clone());
        *(if is_descending { &mut self.to } else { &mut self.from }) = bound;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_terms(kind: IndexKind, text: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        terms(kind, text, &mut |term| all.push(term.to_vec()));
        all
    }

    #[test]
    fn numbers_are_read_from_the_front() {
        let read = ["12", "\x01 -3.5x", "+7", "1e3", "1e", ".5", "abc", "", "-", "-inf", "0x10", "1.2.3"]
            .map(|text| number(text.as_bytes()));
        assert_eq!(read, [12.0, -3.5, 7.0, 1.0, 1.0, 0.5, 0.0, 0.0, 0.0, f64::NEG_INFINITY, 0.0, 1.2]);
    }

    #[test]
    fn encoded_terms_have_the_order_of_the_index() {
        let numbers = [f64::NEG_INFINITY, -1e9, -1.5, -0.0, 1e-9, 2.0, 10.0, f64::INFINITY];
        assert!(numbers.map(encoded_number).is_sorted_by(|one, other| one < other));
        assert_eq!(encoded_number(0.0), encoded_number(-0.0));
        let texts: [&[u8]; 6] = [b"", b"\0", b"\0a", b"a", b"a\0", b"aa"];
        let encoded = texts.map(|text| all_terms(IndexKind::Lexical, text).concat());
        assert!(encoded.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn positions_consist_of_term_and_key() {
        for key in [&b""[..], b"k", b"\0\0", b"\xff"] {
            for (kind, text) in [
                (IndexKind::Lexical, &b"a\0b"[..]),
                (IndexKind::Lexical, b""),
                (IndexKind::Decimal, b"17"),
                (IndexKind::Token, b"word"),
                (IndexKind::QGram, b"abc"),
            ] {
                let term = all_terms(kind, text).concat();
                let position = [&term, key].concat();
                assert_eq!(term_len(kind, &position), term.len(), "{kind:?} {text:?} {key:?}");
            }
        }
    }

    #[test]
    fn pieces_are_three_characters_long() {
        let pieces = |text: &str| -> Vec<String> {
            grams(text.as_bytes()).map(|piece| String::from_utf8(piece.to_vec()).unwrap()).collect()
        };
        assert_eq!(pieces("abcde"), ["abc", "bcd", "cde"]);
        assert_eq!(pieces("äöüß"), ["äöü", "öüß"]);
        assert_eq!((pieces("ab"), pieces("")), (vec!["ab".to_owned()], vec![]));
    }

    #[test]
    fn ranges_contain_the_terms_meant() {
        let holds = |range: &TermRange, term: &[u8]| {
            let (from, to) = range.bounds();
            (match from {
                Bound::Included(from) => from <= term,
                Bound::Excluded(from) => from < term,
                Bound::Unbounded => true,
            }) && (match to {
                Bound::Included(to) => term <= to,
                Bound::Excluded(to) => term < to,
                Bound::Unbounded => true,
            })
        };
        let lexical = |text: &[u8]| all_terms(IndexKind::Lexical, text).concat();
        let exact = TermRange::of_text(b"ab");
        assert!(holds(&exact, &[&lexical(b"ab")[..], b"key\xff"].concat()));
        assert!(!holds(&exact, &lexical(b"abc")) && !holds(&exact, &lexical(b"aa")));
        let prefix = TermRange::of_prefix(b"a\xff");
        assert!(holds(&prefix, &lexical(b"a\xff\xff")) && !holds(&prefix, &lexical(b"b")));
        let numbers = TermRange::of_numbers(-2.0, 10.0);
        let decimal = |text: &[u8]| [&all_terms(IndexKind::Decimal, text).concat()[..], b"\xff\xff"].concat();
        assert!([&b"-2"[..], b"0", b"10"].iter().all(|text| holds(&numbers, &decimal(text))));
        assert!(![&b"-2.1"[..], b"10.5"].iter().any(|text| holds(&numbers, &decimal(text))));
        let long = vec![b'x'; TERM_LEN_MAX + 10];
        assert!(holds(&TermRange::of_text(&long), &lexical(&long)));
    }
}
