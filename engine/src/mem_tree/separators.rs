//! Defines lists of keys that divide a range of keys. One such list finds a leaf within a segment,
//! another finds a segment.
//!
//! Invariants: the keys ascend strictly, and all begin with `prefix`. The first eight bytes after
//! the prefix are in `heads`, so that a search over some hundred keys stays within a few cache
//! lines and rarely reads a complete key.

use super::leaf::{common_len, key_head};

#[derive(Clone, Debug, Default)]
pub(super) struct SeparatorList {
    prefix: Vec<u8>,
    heads: Vec<u64>,
    /// The offset in `text` at which each key ends. The keys in `text` lack the prefix.
    ends: Vec<u32>,
    text: Vec<u8>,
}

impl SeparatorList {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    #[inline]
    fn rest(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.text[start..self.ends[index] as usize]
    }

    pub(super) fn get(&self, index: usize) -> Vec<u8> {
        [&self.prefix, self.rest(index)].concat()
    }

    /// Returns the number of separators that are at most `key`.
    #[inline]
    pub(super) fn up_to(&self, key: &[u8]) -> usize {
        self.find(key, |rest, key| rest <= key)
    }

    /// Returns the number of separators below `key`.
    pub(super) fn below(&self, key: &[u8]) -> usize {
        self.find(key, |rest, key| rest < key)
    }

    #[inline]
    fn find(&self, key: &[u8], counts: impl Fn(&[u8], &[u8]) -> bool) -> usize {
        let key = match &self.prefix[..] {
            // Comparing an empty slice costs 100 ns where the C library uses masked loads (glibc,
            // AVX-512) and the slice has a dangling address, as in an empty vector (AMD EPYC,
            // 2026-11-22).
            [] => key,
            prefix => match key.strip_prefix(prefix) {
                Some(key) => key,
                None => return if key < prefix { 0 } else { self.len() },
            },
        };
        let head = key_head(key);
        let low = self.heads.partition_point(|&other| other < head);
        if self.heads.get(low).is_none_or(|&other| other != head) {
            return low;
        }
        let (mut low, mut high) = (low, low + self.heads[low..].partition_point(|&other| other == head));
        while low < high {
            let middle = (low + high) / 2;
            if counts(self.rest(middle), key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Inserts `key` before the separator at `index`.
    pub(super) fn insert(&mut self, index: usize, key: &[u8]) {
        if self.heads.is_empty() {
            self.prefix = key.to_vec();
        } else if !key.starts_with(&self.prefix) {
            self.shorten(common_len(&self.prefix, key));
        }
        let rest = &key[self.prefix.len()..];
        let at = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.text.splice(at..at, rest.iter().copied());
        self.heads.insert(index, key_head(rest));
        self.ends.insert(index, at as u32);
        self.ends[index..].iter_mut().for_each(|end| *end += rest.len() as u32);
    }

    /// Shortens the prefix to `len` bytes.
    fn shorten(&mut self, len: usize) {
        let all: Vec<Vec<u8>> = (0..self.len()).map(|index| self.get(index)).collect();
        self.prefix.truncate(len);
        self.text.clear();
        for (index, key) in all.iter().enumerate() {
            let rest = &key[len..];
            self.text.extend_from_slice(rest);
            self.heads[index] = key_head(rest);
            self.ends[index] = self.text.len() as u32;
        }
    }

    pub(super) fn remove(&mut self, index: usize) {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        let len = self.ends[index] as usize - start;
        self.text.drain(start..start + len);
        self.heads.remove(index);
        self.ends.remove(index);
        self.ends[index..].iter_mut().for_each(|end| *end -= len as u32);
    }

    /// Removes and returns the separators from `index` on.
    pub(super) fn split_off(&mut self, index: usize) -> SeparatorList {
        let mut off = SeparatorList::default();
        // The new prefix is the common prefix of the first and the last key, which is the longest
        // possible one.
        if index < self.len() {
            let (first, last) = (self.get(index), self.get(self.len() - 1));
            let shared = if index + 1 == self.len() { first.len() } else { common_len(&first, &last) };
            off.prefix = first[..shared].to_vec();
        }
        for from in index..self.len() {
            let key = self.get(from);
            off.insert(from - index, &key);
        }
        self.heads.truncate(index);
        self.ends.truncate(index);
        self.text.truncate(self.ends.last().map_or(0, |&end| end as usize));
        if self.len() > 1 {
            let shared = common_len(&self.get(0), &self.get(self.len() - 1));
            if shared > self.prefix.len() {
                self.lengthen(shared);
            }
        }
        for vector in [&mut self.heads, &mut off.heads] {
            vector.shrink_to_fit();
        }
        off
    }

    /// Lengthens the prefix to `len` bytes. All keys must have these bytes in common.
    fn lengthen(&mut self, len: usize) {
        let all: Vec<Vec<u8>> = (0..self.len()).map(|index| self.get(index)).collect();
        self.prefix = all[0][..len].to_vec();
        self.text.clear();
        for (index, key) in all.iter().enumerate() {
            self.text.extend_from_slice(&key[len..]);
            self.heads[index] = key_head(&key[len..]);
            self.ends[index] = self.text.len() as u32;
        }
    }

    /// Appends `middle` and then all separators of `other`. These must be greater than the existing
    /// ones.
    pub(super) fn append(&mut self, middle: &[u8], other: &SeparatorList) {
        self.insert(self.len(), middle);
        for index in 0..other.len() {
            self.insert(self.len(), &other.get(index));
        }
    }

    /// Returns the memory that the list uses.
    pub(super) fn bytes(&self) -> usize {
        self.prefix.capacity() + self.heads.capacity() * 8 + self.ends.capacity() * 4 + self.text.capacity()
    }
}

/// Returns the shortest key that is greater than `left` and at most `right`.
pub(super) fn between<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    debug_assert!(left < right);
    &right[..common_len(left, right) + 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn check(separators: &SeparatorList, model: &[Vec<u8>], probes: &[Vec<u8>]) {
        let all: Vec<Vec<u8>> = (0..separators.len()).map(|index| separators.get(index)).collect();
        assert_eq!(all, model);
        for probe in probes.iter().chain(model) {
            assert_eq!(separators.up_to(probe), model.iter().filter(|key| *key <= probe).count());
            assert_eq!(separators.below(probe), model.iter().filter(|key| *key < probe).count());
        }
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            "[ab]{0,12}".prop_map(String::into_bytes),
            "user:profile:[0-3]{0,10}".prop_map(String::into_bytes),
            proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..11),
        ]
    }

    proptest! {
        #[test]
        fn keys_are_found_as_in_a_sorted_list(
            keys in proptest::collection::vec((key(), any::<bool>()), 1..60),
            probes in proptest::collection::vec(key(), 20),
            at in 0usize..60,
        ) {
            let mut model = BTreeSet::new();
            let mut separators = SeparatorList::default();
            for (key, stays) in &keys {
                if model.insert(key.clone()) {
                    separators.insert(separators.below(key), key);
                }
                if !stays {
                    model.remove(key);
                    separators.remove(separators.below(key));
                }
            }
            let mut model: Vec<Vec<u8>> = model.into_iter().collect();
            check(&separators, &model, &probes);
            let at = at.min(model.len());
            let off = separators.split_off(at);
            let other = model.split_off(at);
            check(&separators, &model, &probes);
            check(&off, &other, &probes);
            if let Some((middle, _)) = other.split_first() {
                let mut rest = off;
                rest.remove(0);
                separators.append(middle, &rest);
                model.extend(other);
                check(&separators, &model, &probes);
            }
        }
    }

    #[test]
    fn between_is_as_short_as_can_be() {
        for (left, right, expected) in [
            ("a", "b", "b"),
            ("abc", "abd", "abd"),
            ("ab", "abc", "abc"),
            ("", "x", "x"),
            ("abc", "bxyz", "b"),
        ] {
            assert_eq!(between(left.as_bytes(), right.as_bytes()), expected.as_bytes());
        }
    }
}
