//! The similarity of keys by Levenshtein distance: how many symbols must be inserted, removed or
//! replaced to turn one key into the other.

use std::collections::BinaryHeap;

/// The unit that counts as one symbol of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeySymbols {
    /// Each byte is a symbol.
    #[default]
    Bytes,
    /// Each UTF-8 character is a symbol, and so is each byte that is not part of a character.
    Characters,
}

impl KeySymbols {
    /// Splits a key into symbols. Bytes that are not part of a character become numbers above all
    /// characters.
    fn of(self, key: &[u8], into: &mut Vec<u32>) {
        const AFTER_CHARACTERS: u32 = 0x11_0000;
        into.clear();
        match self {
            KeySymbols::Bytes => into.extend(key.iter().map(|&byte| u32::from(byte))),
            KeySymbols::Characters => {
                for chunk in key.utf8_chunks() {
                    into.extend(chunk.valid().chars().map(u32::from));
                    into.extend(chunk.invalid().iter().map(|&byte| AFTER_CHARACTERS + u32::from(byte)));
                }
            }
        }
    }
}

/// Collects the keys that are most similar to a given key.
pub(crate) struct ClosestKeys {
    symbols: KeySymbols,
    pattern: Vec<u32>,
    distance_max: usize,
    limit: usize,
    /// The least similar key is on top.
    best: BinaryHeap<(usize, Vec<u8>)>,
    other: Vec<u32>,
    row: Vec<usize>,
}

impl ClosestKeys {
    pub(crate) fn new(key: &[u8], distance_max: usize, symbols: KeySymbols, limit: usize) -> ClosestKeys {
        let mut pattern = Vec::new();
        symbols.of(key, &mut pattern);
        let (best, other, row) = (BinaryHeap::new(), Vec::new(), Vec::new());
        ClosestKeys { symbols, pattern, distance_max, limit, best, other, row }
    }

    pub(crate) fn offer(&mut self, key: &[u8]) {
        if self.limit == 0 {
            return;
        }
        // If enough keys were collected, a key counts only if it is closer than the worst of them.
        let max = match self.best.peek() {
            Some((worst, _)) if self.best.len() >= self.limit => *worst,
            _ => self.distance_max,
        };
        // A character has at most four bytes, so this is the least number of symbols.
        let len_min = if self.symbols == KeySymbols::Bytes { key.len() } else { key.len() / 4 };
        if len_min > self.pattern.len().saturating_add(max)
            || key.len().saturating_add(max) < self.pattern.len()
        {
            return;
        }
        self.symbols.of(key, &mut self.other);
        if let Some(distance) = distance(&self.pattern, &self.other, max, &mut self.row) {
            // A scan may return a key twice.
            if self.best.iter().any(|(_, other)| other == key) {
                return;
            }
            self.best.push((distance, key.to_vec()));
            if self.best.len() > self.limit {
                self.best.pop();
            }
        }
    }

    /// Returns the keys with their distances: the most similar first, and keys of equal distance in
    /// their own order.
    pub(crate) fn into_sorted(self) -> Vec<(Vec<u8>, usize)> {
        self.best.into_sorted_vec().into_iter().map(|(distance, key)| (key, distance)).collect()
    }
}

/// Returns the distance if it is at most `max`. The cost is proportional to the length of `one`
/// times `max`, whatever the length of `other`.
fn distance(one: &[u32], other: &[u32], max: usize, row: &mut Vec<usize>) -> Option<usize> {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[same..], &other[same..]);
    let same = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[..one.len() - same], &other[..other.len() - same]);
    if one.len().abs_diff(other.len()) > max {
        return None;
    }
    let max = max.min(one.len().max(other.len()));
    let beyond = max + 1;
    row.clear();
    row.extend((0..=other.len()).map(|at| at.min(beyond)));
    for (up, symbol) in one.iter().enumerate() {
        // A path that leaves this band around the diagonal costs more than `max`.
        let (from, to) = (up.saturating_sub(max), up.saturating_add(max + 1).min(other.len()));
        let mut diagonal = row[from];
        row[from] = if from == 0 { (up + 1).min(beyond) } else { beyond };
        let mut least = row[from];
        for at in from..to {
            let above = row[at + 1];
            let replaced = diagonal + usize::from(*symbol != other[at]);
            row[at + 1] = replaced.min(row[at] + 1).min(above + 1).min(beyond);
            least = least.min(row[at + 1]);
            diagonal = above;
        }
        if least > max {
            return None;
        }
    }
    row.last().copied().filter(|&distance| distance <= max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the distance by the textbook algorithm.
    fn plain(one: &[u32], other: &[u32]) -> usize {
        let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
        for i in 0..=one.len() {
            for j in 0..=other.len() {
                rows[i][j] = match (i, j) {
                    (0, j) => j,
                    (i, 0) => i,
                    _ => (rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]))
                        .min(rows[i - 1][j] + 1)
                        .min(rows[i][j - 1] + 1),
                };
            }
        }
        rows[one.len()][other.len()]
    }

    proptest! {
        #[test]
        fn banded_distance_equals_the_plain_one(
            one in prop::collection::vec(0u32..4, 0..12),
            other in prop::collection::vec(0u32..4, 0..12),
            max in 0usize..14,
        ) {
            let expected = Some(plain(&one, &other)).filter(|&distance| distance <= max);
            prop_assert_eq!(distance(&one, &other, max, &mut Vec::new()), expected);
        }
    }

    #[test]
    fn unlimited_distance_is_computed() {
        let (one, other) = ([1, 2, 3], [4, 5, 6, 7]);
        assert_eq!(distance(&one, &other, usize::MAX, &mut Vec::new()), Some(4));
    }
}
