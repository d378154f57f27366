//! Finds the longest token with which a text begins.
//!
//! ```text
//! first three bytes -> slot -> candidates with these bytes, longest first
//! first two bytes   -> row of the first byte -> token of two bytes, or of the first byte alone
//! ```
//!
//! A search compares at most `CANDIDATES_MAX` candidates, so its cost is bounded for any tokens and
//! any text.

use super::tokens::TokenSpan;

/// The maximum number of tokens of three or more bytes that begin with the same three bytes.
pub(super) const CANDIDATES_MAX: usize = 32;
/// The number of bytes that select the candidates.
const PREFIX_LEN: usize = 3;
/// The length of the prefix and the word after it.
const SEEN_LEN: usize = PREFIX_LEN + 8;
/// The bit of a cell whose token has two bytes.
const IS_PAIR: u16 = 1 << 15;

/// A token of at least `PREFIX_LEN` bytes.
#[derive(Clone, Copy, Debug)]
struct TokenCandidate {
    /// The bytes after the prefix, as many as a word holds.
    word: u64,
    /// The last eight bytes of a token that is longer than `SEEN_LEN`. Long tokens with the same
    /// prefix often differ only there.
    last_word: u64,
    start: u32,
    len: u16,
    token: u16,
}

/// The candidates of a prefix. A slot without candidates is empty.
#[derive(Clone, Copy, Debug, Default)]
struct PrefixSlot {
    prefix: u32,
    first: u16,
    count: u16,
}

/// The index of a dictionary's tokens.
#[derive(Debug)]
pub(super) struct TokenMatcher {
    slots: Box<[PrefixSlot]>,
    /// The shift that reduces a hash to the number of a slot.
    shift: u32,
    candidates: Box<[TokenCandidate]>,
    /// The row of each first byte. Row 0 is unused by tokens of two bytes.
    rows: Box<[u16; 256]>,
    /// For each first byte, its token.
    singles: Box<[u16; 256]>,
    /// Rows of 256 cells. A cell is the token of two bytes, with `IS_PAIR`; 0 if there is none.
    cells: Box<[u16]>,
}

/// Returns the eight bytes from `at` on. Bytes after the end of the text are zero.
#[inline]
fn word_at(text: &[u8], at: usize) -> u64 {
    if let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk()) {
        return u64::from_le_bytes(*chunk);
    }
    let rest = text.get(at..).unwrap_or_default();
    match text.last_chunk() {
        // The last eight bytes of the text contain the rest.
        Some(chunk) if !rest.is_empty() => u64::from_le_bytes(*chunk) >> (8 * (8 - rest.len())),
        _ => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

#[inline]
fn mask(len: usize) -> u64 {
    if len >= 8 { u64::MAX } else { (1 << (8 * len)) - 1 }
}

impl TokenMatcher {
    /// Indexes tokens by their numbers. Of tokens that begin with the same three bytes, only the
    /// first `CANDIDATES_MAX` are found.
    pub(super) fn new(texts: &[u8], tokens: impl Iterator<Item = (u16, TokenSpan)>) -> TokenMatcher {
        let (mut singles, mut rows) = (Box::new([0; 256]), Box::new([0; 256]));
        let mut cells = vec![0u16; 256];
        let mut longer: Vec<(u32, TokenCandidate)> = Vec::new();
        for (token, TokenSpan { start, len, .. }) in tokens {
            let text = &texts[start as usize..][..usize::from(len)];
            match *text {
                [] => {}
                [only] => singles[usize::from(only)] = token,
                [first, second] => {
                    let row = &mut rows[usize::from(first)];
                    if *row == 0 {
                        *row = (cells.len() / 256) as u16;
                        cells.resize(cells.len() + 256, 0);
                    }
                    cells[usize::from(*row) * 256 + usize::from(second)] = token | IS_PAIR;
                }
                _ => {
                    let prefix = word_at(text, 0) as u32 & 0xFF_FFFF;
                    let word = word_at(text, PREFIX_LEN);
                    let last_word = text.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
                    longer.push((prefix, TokenCandidate { word, last_word, start, len, token }));
                }
            }
        }
        // The sort is stable, so the first tokens of a prefix remain the first.
        longer.sort_by_key(|(prefix, _)| *prefix);
        let mut slots_len = 16;
        while slots_len < 2 * longer.len() {
            slots_len *= 2;
        }
        let mut matcher = TokenMatcher {
            slots: vec![PrefixSlot::default(); slots_len].into(),
            shift: 32 - slots_len.trailing_zeros(),
            candidates: Box::default(),
            rows,
            singles,
            cells: cells.into(),
        };
        let mut candidates = Vec::new();
        for group in longer.chunk_by(|a, b| a.0 == b.0) {
            let first = candidates.len();
            candidates.extend(group.iter().take(CANDIDATES_MAX).map(|(_, candidate)| *candidate));
            candidates[first..].sort_by_key(|candidate| std::cmp::Reverse(candidate.len));
            let slot = matcher.slot_of(group[0].0);
            let count = (candidates.len() - first) as u16;
            matcher.slots[slot] = PrefixSlot { prefix: group[0].0, first: first as u16, count };
        }
        matcher.candidates = candidates.into();
        matcher
    }

    /// Returns the slot of a prefix, or the empty slot where it would be.
    #[inline]
    fn slot_of(&self, prefix: u32) -> usize {
        let mut slot = (prefix.wrapping_mul(0x9E37_79B1) >> self.shift) as usize;
        // At most half of the slots are in use.
        while self.slots[slot].count != 0 && self.slots[slot].prefix != prefix {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// Returns the longest token with which the text continues at `at`, and its length. `texts`
    /// must be the one from which the matcher was created. There must be a byte at `at`.
    #[inline]
    pub(super) fn longest_at(&self, texts: &[u8], text: &[u8], at: usize) -> (u16, usize) {
        self.longest_below(texts, text, at, usize::MAX)
    }

    /// Does the same as `longest_at` among the tokens that are shorter than `len_end`, which must
    /// be at least 2.
    #[inline]
    pub(super) fn longest_below(&self, texts: &[u8], text: &[u8], at: usize, len_end: usize) -> (u16, usize) {
        let rest = text.len() - at;
        let len_max = rest.min(len_end - 1);
        if len_max >= PREFIX_LEN {
            let slot = self.slots[self.slot_of(word_at(text, at) as u32 & 0xFF_FFFF)];
            let word = word_at(text, at + PREFIX_LEN);
            let candidates = &self.candidates[usize::from(slot.first)..][..usize::from(slot.count)];
            for candidate in candidates {
                let len = usize::from(candidate.len);
                if (word ^ candidate.word) & mask(len - PREFIX_LEN) != 0 || len > len_max {
                    continue;
                }
                if len <= SEEN_LEN {
                    return (candidate.token, len);
                }
                let start = candidate.start as usize;
                let is_equal = word_at(text, at + len - 8) == candidate.last_word
                    && (len <= SEEN_LEN + 8
                        || text[at + SEEN_LEN..at + len - 8] == texts[start + SEEN_LEN..start + len - 8]);
                if is_equal {
                    return (candidate.token, len);
                }
            }
        }
        let first = usize::from(text[at]);
        if len_max >= 2 {
            let cell = self.cells[usize::from(self.rows[first]) * 256 + usize::from(text[at + 1])];
            if cell & IS_PAIR != 0 {
                return (cell & !IS_PAIR, 2);
            }
        }
        (self.singles[first], 1)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots)
            + size_of_val(&*self.candidates)
            + size_of_val(&*self.rows)
            + size_of_val(&*self.singles)
            + size_of_val(&*self.cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn found_token_is_the_longest_one(
            words in proptest::collection::btree_set("[ab]{2,14}", 0..60),
            text in "[abc]{1,40}",
            len_end in prop_oneof![Just(usize::MAX), 2..10usize],
        ) {
            let singles = (0..=255u8).map(|byte| vec![byte]);
            let tokens: Vec<Vec<u8>> = singles.chain(words.iter().map(|word| word.clone().into_bytes())).collect();
            let (mut texts, mut spans) = (Vec::new(), Vec::new());
            for (number, token) in tokens.iter().enumerate() {
                spans.push((number as u16, TokenSpan::plain(texts.len() as u32, token.len() as u16)));
                texts.extend_from_slice(token);
            }
            let matcher = TokenMatcher::new(&texts, spans.into_iter());
            let is_crowded = words.iter().any(|word| {
                word.len() >= 3 && words.iter().filter(|other| other.starts_with(&word[..3])).count() > CANDIDATES_MAX
            });
            for at in 0..text.len() {
                let (token, len) = matcher.longest_below(&texts, text.as_bytes(), at, len_end);
                prop_assert_eq!(&tokens[usize::from(token)], &text.as_bytes()[at..at + len]);
                let fitting = tokens.iter().filter(|token| token.len() < len_end);
                let longest = fitting.filter(|token| text.as_bytes()[at..].starts_with(token)).map(Vec::len).max();
                prop_assert!(is_crowded || longest == Some(len), "{:?} {}", longest, len);
            }
        }
    }

    #[test]
    fn words_end_with_the_text() {
        let text = b"0123456789";
        assert_eq!(word_at(text, 0), u64::from_le_bytes(*b"01234567"));
        assert_eq!(word_at(text, 7), u64::from_le_bytes(*b"789\0\0\0\0\0"));
        assert_eq!((word_at(text, 10), word_at(text, 99), word_at(b"ab", 1)), (0, 0, u64::from(b'b')));
    }
}
