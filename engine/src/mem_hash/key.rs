//! Defines a key to be searched for, with its form and its hash.

use super::quotient::{HEAD_LEN, NumberPermutation, TEXT_CLASS};
use todana_core::decimal;

/// The secret seeds of the hash. They keep clients from choosing keys that collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashSeeds {
    numbers: NumberPermutation,
    text: rapidhash::v3::RapidSecrets,
    shard_bits: u32,
    /// The number of seeds that the hash had before these.
    pub(crate) generation: u32,
}

impl HashSeeds {
    /// Derives the secrets of a hash with `2^shard_bits` shards from a seed.
    pub(crate) fn new(seed: u64, shard_bits: u32) -> HashSeeds {
        let text = rapidhash::v3::RapidSecrets::seed(seed);
        let derive = |n: u64| rapidhash::v3::rapidhash_v3_seeded(&n.to_le_bytes(), &text);
        HashSeeds { numbers: NumberPermutation::new(derive), text, shard_bits, generation: 0 }
    }

    /// Returns the number of the decimal text with this quotient, if there is one.
    #[inline]
    pub(super) fn number(&self, class: u8, quotient: u64) -> Option<u64> {
        self.numbers.number(class, quotient)
    }

    /// Returns the hash of a key that is decimal text.
    #[inline]
    pub(super) fn of_quotient(&self, class: u8, quotient: u64) -> u64 {
        self.numbers.hash(class, quotient, 0, self.shard_bits)
    }

    /// Returns the hash of a key that is other text, from its quotient and the bytes after its
    /// head.
    #[inline]
    pub(super) fn of_text_quotient(&self, quotient: u64, rest: &[u8]) -> u64 {
        self.numbers.hash(TEXT_CLASS, quotient, self.of_rest(rest), self.shard_bits)
    }

    /// Returns the head of a text, from its quotient and the bytes after its head.
    #[inline]
    pub(super) fn text_head(&self, quotient: u64, rest: &[u8]) -> [u8; HEAD_LEN] {
        self.numbers.text_head(quotient, self.of_rest(rest))
    }

    #[inline]
    fn of_rest(&self, rest: &[u8]) -> u64 {
        rapidhash::v3::rapidhash_v3_seeded(rest, &self.text)
    }
}

/// Returns the head of a text, which its quotient replaces, and the other bytes.
#[inline]
pub(super) fn head_and_rest(text: &[u8]) -> ([u8; HEAD_LEN], &[u8]) {
    match text.split_first_chunk() {
        Some((head, rest)) => (*head, rest),
        None => {
            let mut head = [0; HEAD_LEN];
            head[..text.len()].copy_from_slice(text);
            (head, &[])
        }
    }
}

/// The form in which a bucket stores a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyForm {
    /// Decimal text of 1 to 19 digits. All such keys have this form.
    Number { class: u8, quotient: u64 },
    /// Any other text.
    Text { quotient: u64 },
}

/// A key that is prepared for searching.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) hash: u64,
    pub(super) form: KeyForm,
    /// The generation of the seeds by which the key was hashed.
    pub(crate) generation: u32,
}

impl<'a> Key<'a> {
    #[inline]
    pub(crate) fn new(text: &'a [u8], seeds: &HashSeeds) -> Key<'a> {
        let generation = seeds.generation;
        match decimal::pack(text) {
            Some(number) => {
                let (class, quotient) = seeds.numbers.quotient(text.len(), number);
                let hash = seeds.of_quotient(class, quotient);
                Key { text, hash, form: KeyForm::Number { class, quotient }, generation }
            }
            None => {
                let (head, rest) = head_and_rest(text);
                let rest = seeds.of_rest(rest);
                let quotient = seeds.numbers.text_quotient(head, rest);
                let hash = seeds.numbers.hash(TEXT_CLASS, quotient, rest, seeds.shard_bits);
                Key { text, hash, form: KeyForm::Text { quotient }, generation }
            }
        }
    }

    /// Returns the part of the hash that a stub stores. This part also selects the bucket.
    #[inline]
    pub(crate) fn fingerprint(&self) -> u32 {
        self.hash as u32
    }
}
