//! Defines a key to be searched for, with its stored form and its hash.

pub(crate) use crate::record::KEY_VARIABLE;
use crate::record::number_of;
use todana_core::decimal;

/// The stored length of a key, indexed by the form of the key. The form is the upper half of a
/// record's header byte.
///
/// Forms 0 to 7 are decimal text packed into 1 to 8 bytes. Forms 8 to 13 are plain bytes of a fixed
/// length. Form 14 is plain bytes after their length.
pub(crate) const KEY_LENS: [u8; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 4, 8, 12, 16, 20, 32, 0];

/// The secret seeds of the hash. They keep clients from choosing keys that collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashSeeds {
    number: [u64; 2],
    text: rapidhash::v3::RapidSecrets,
    /// The number of seeds that the hash had before these.
    pub(crate) generation: u32,
}

impl HashSeeds {
    pub(crate) fn new(seed: u64) -> HashSeeds {
        let text = rapidhash::v3::RapidSecrets::seed(seed);
        let derive = |n: u64| rapidhash::v3::rapidhash_v3_seeded(&n.to_le_bytes(), &text);
        // The second number is odd, so that no multiplication is by zero.
        HashSeeds { number: [derive(1), derive(2) | 1], text, generation: 0 }
    }

    /// Returns the hash of a packed number, computed by two folded multiplications as in the wyhash
    /// family.
    #[inline]
    fn of_number(&self, number: u64) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product >> 64) as u64 ^ product as u64
        };
        let once = fold(number ^ self.number[0], self.number[1]);
        fold(once ^ self.number[0], 0x9E37_79B9_7F4A_7C15 ^ number)
    }

    /// Returns the hash of plain bytes.
    #[inline]
    fn of_text(&self, text: &[u8]) -> u64 {
        rapidhash::v3::rapidhash_v3_seeded(text, &self.text)
    }

    /// Returns the hash of a key in its stored form.
    #[inline]
    pub(crate) fn of_stored(&self, form: u8, stored: &[u8]) -> u64 {
        if form < 8 { self.of_number(number_of(stored)) } else { self.of_text(stored) }
    }
}

/// A key that is prepared for searching.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) hash: u64,
    pub(crate) form: u8,
    /// The length of the key in a record.
    pub(crate) stored_len: usize,
    /// The first eight stored bytes of the key, and a mask of the bytes that exist.
    word: u64,
    mask: u64,
    /// The generation of the seeds by which the key was hashed.
    pub(crate) generation: u32,
}

impl<'a> Key<'a> {
    #[inline]
    pub(crate) fn new(text: &'a [u8], seeds: &HashSeeds) -> Key<'a> {
        let mask_of = |len: usize| if len >= 8 { u64::MAX } else { (1 << (8 * len)) - 1 };
        if let Some(number) = decimal::pack(text) {
            let stored_len = decimal::byte_len(number);
            return Key {
                text,
                hash: seeds.of_number(number),
                form: stored_len as u8 - 1,
                stored_len,
                word: number,
                mask: mask_of(stored_len),
                generation: seeds.generation,
            };
        }
        let form = match text.len() {
            4 => 8,
            8 => 9,
            12 => 10,
            16 => 11,
            20 => 12,
            32 => 13,
            _ => KEY_VARIABLE,
        };
        Key {
            text,
            hash: seeds.of_text(text),
            form,
            stored_len: text.len(),
            word: number_of(&text[..text.len().min(8)]),
            mask: mask_of(text.len()),
            generation: seeds.generation,
        }
    }

    /// Returns the part of the hash that a stub stores. This part also selects the bucket.
    #[inline]
    pub(crate) fn fingerprint(&self) -> u32 {
        self.hash as u32
    }

    /// Appends the stored form of the key.
    pub(crate) fn put_stored(&self, out: &mut Vec<u8>) {
        if self.form < 8 {
            out.extend_from_slice(&self.word.to_le_bytes()[..self.stored_len]);
        } else {
            out.extend_from_slice(self.text);
        }
    }

    /// Returns true if the stored key at `at` equals this key. The two must have the same form and
    /// length. At least eight bytes must be readable at `at`; each chunk of an arena has eight
    /// additional bytes for this.
    #[inline]
    pub(crate) fn is_at(&self, bytes: &[u8], at: usize) -> bool {
        let word = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        word & self.mask == self.word
            && (self.stored_len <= 8 || bytes[at + 8..at + self.stored_len] == self.text[8..])
    }
}
