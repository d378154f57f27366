//! Finds the longest token with which a text begins.
//!
//! ```text
//! first eight bytes -> slot -> candidates with these bytes, longest first
//! first three bytes -> slot -> candidates of three to seven bytes with these, longest first
//! first two bytes   -> row of the first byte -> token of two bytes, or of the first byte alone
//! ```
//!
//! A search compares at most `2 * CANDIDATES_MAX` candidates, so its cost is bounded for any tokens
//! and any text. Most searches compare one or two. One table for all lengths would compare more,
//! because many tokens begin with the same three bytes.

use super::tokens::TokenSpan;

/// The maximum number of tokens of a table that begin with the same prefix.
pub(super) const CANDIDATES_MAX: usize = 32;
/// The number of bytes that select the candidates of each table.
const LONG_PREFIX: usize = 8;
const SHORT_PREFIX: usize = 3;
/// The length of a long prefix and the word after it.
const SEEN_LEN: usize = LONG_PREFIX + 8;
/// The bit of a cell whose token has two bytes.
const IS_PAIR: u16 = 1 << 15;

/// A token of at least `LONG_PREFIX` bytes.
#[derive(Clone, Copy, Debug)]
struct LongCandidate {
    /// The bytes after the prefix, as many as a word holds, and the bits that they take of it.
    word: u64,
    mask: u64,
    /// The last eight bytes. Long tokens with the same prefix often differ only there.
    last_word: u64,
    start: u32,
    len: u16,
    token: u16,
}

/// A token of `SHORT_PREFIX` to `LONG_PREFIX - 1` bytes.
#[derive(Clone, Copy, Debug)]
struct ShortCandidate {
    /// The bytes of the token, and the bits of the word that they take.
    word: u64,
    mask: u64,
    len: u16,
    token: u16,
}

/// The candidates of a prefix. A slot without candidates is empty.
#[derive(Clone, Copy, Debug, Default)]
struct PrefixSlot {
    prefix: u64,
    first: u16,
    count: u16,
}

/// The candidates of each prefix.
#[derive(Debug)]
struct PrefixTable<C> {
    slots: Box<[PrefixSlot]>,
    /// The shift that reduces a hash to the number of a slot.
    shift: u32,
    candidates: Box<[C]>,
}

/// The index of a dictionary's tokens.
#[derive(Debug)]
pub(super) struct TokenMatcher {
    long: PrefixTable<LongCandidate>,
    short: PrefixTable<ShortCandidate>,
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

/// Returns the prefix by which a short token is found.
#[inline]
fn short_prefix(word: u64) -> u64 {
    word & mask(SHORT_PREFIX)
}

impl<C: Copy> PrefixTable<C> {
    /// Indexes candidates by their prefixes. `tokens` holds the prefix, length and candidate of
    /// each token. Of candidates with the same prefix, only the first `CANDIDATES_MAX` are found.
    fn new(mut tokens: Vec<(u64, u16, C)>) -> PrefixTable<C> {
        // The sort is stable, so the first tokens of a prefix remain the first.
        tokens.sort_by_key(|(prefix, ..)| *prefix);
        let mut slots_len = 16;
        while slots_len < 2 * tokens.len() {
            slots_len *= 2;
        }
        let slots = vec![PrefixSlot::default(); slots_len].into();
        let mut table =
            PrefixTable { slots, shift: 64 - slots_len.trailing_zeros(), candidates: Box::default() };
        let mut candidates = Vec::new();
        for group in tokens.chunk_by_mut(|a, b| a.0 == b.0) {
            let count = group.len().min(CANDIDATES_MAX);
            let group = &mut group[..count];
            group.sort_by_key(|(_, len, _)| std::cmp::Reverse(*len));
            let (prefix, first) = (group[0].0, candidates.len() as u16);
            candidates.extend(group.iter().map(|(.., candidate)| *candidate));
            let slot = table.slot_of(prefix);
            table.slots[slot] = PrefixSlot { prefix, first, count: count as u16 };
        }
        table.candidates = candidates.into();
        table
    }

    /// Returns the slot of a prefix, or the empty slot where it would be.
    #[inline]
    fn slot_of(&self, prefix: u64) -> usize {
        let mut slot = (prefix.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize;
        // At most half of the slots are in use.
        while self.slots[slot].count != 0 && self.slots[slot].prefix != prefix {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    #[inline]
    fn candidates(&self, prefix: u64) -> &[C] {
        let slot = self.slots[self.slot_of(prefix)];
        &self.candidates[usize::from(slot.first)..][..usize::from(slot.count)]
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.candidates)
    }
}

impl TokenMatcher {
    /// Indexes tokens by their numbers.
    pub(super) fn new(texts: &[u8], tokens: impl Iterator<Item = (u16, TokenSpan)>) -> TokenMatcher {
        let (mut singles, mut rows) = (Box::new([0; 256]), Box::new([0; 256]));
        let mut cells = vec![0u16; 256];
        let (mut long, mut short) = (Vec::new(), Vec::new());
        for (token, TokenSpan { start, len, .. }) in tokens {
            let text = &texts[start as usize..][..usize::from(len)];
            let word = word_at(text, 0);
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
                _ => match text.last_chunk() {
                    None => {
                        let candidate = ShortCandidate { word, mask: mask(text.len()), len, token };
                        short.push((short_prefix(word), len, candidate));
                    }
                    Some(last) => {
                        let mask = mask(text.len() - LONG_PREFIX);
                        let last_word = u64::from_le_bytes(*last);
                        let seen = word_at(text, LONG_PREFIX);
                        long.push((
                            word,
                            len,
                            LongCandidate { word: seen, mask, last_word, start, len, token },
                        ));
                    }
                },
            }
        }
        let (long, short) = (PrefixTable::new(long), PrefixTable::new(short));
        TokenMatcher { long, short, rows, singles, cells: cells.into() }
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
        let word = word_at(text, at);
        if len_max >= LONG_PREFIX {
            let seen = word_at(text, at + LONG_PREFIX);
            for candidate in self.long.candidates(word) {
                let len = usize::from(candidate.len);
                if (seen ^ candidate.word) & candidate.mask != 0 || len > len_max {
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
        if len_max >= SHORT_PREFIX {
            for candidate in self.short.candidates(short_prefix(word)) {
                let len = usize::from(candidate.len);
                if (word ^ candidate.word) & candidate.mask == 0 && len <= len_max {
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
        self.long.memory_bytes()
            + self.short.memory_bytes()
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
