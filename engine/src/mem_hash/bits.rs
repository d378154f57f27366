//! Reads and writes columns: numbers of equal width, packed in bits.
//!
//! ```text
//! column = number | number | ...     lowest bit first, from the lowest bit of the first byte on;
//!                                    the last byte is filled up with zeros
//! ```
//!
//! A search compares all numbers in a word at once (SWAR).
//!
//! Invariant: no function reads beyond the slice that it receives, whatever the arguments are.

/// The maximum number of bits that are readable at any bit offset by one access.
const READABLE: u32 = 57;

/// For each width, a word in which the lowest bit of each number is set, for as many numbers as
/// fit.
const LANES: [u64; READABLE as usize / 2 + 1] = {
    let mut lanes = [0; READABLE as usize / 2 + 1];
    let mut width = 1;
    while width < lanes.len() {
        let mut bit = 0;
        while bit + width <= READABLE as usize {
            lanes[width] |= 1 << bit;
            bit += width;
        }
        width += 1;
    }
    lanes
};

/// Returns a number whose lowest `width` bits are set.
#[inline]
pub(super) const fn mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Returns the number of bits that a number needs.
#[inline]
pub(super) const fn width_of(number: u64) -> u32 {
    64 - number.leading_zeros()
}

/// Returns the length of a column in bytes.
#[inline]
pub(super) const fn column_len(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Returns the eight bytes at `at`, with zeros for those beyond the end.
#[inline]
fn word_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(word) => u64::from_le_bytes(*word),
        None => last_word_at(bytes, at),
    }
}

#[cold]
fn last_word_at(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or_default();
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

/// Returns a number of the column at `at`.
#[inline]
pub(super) fn get(bytes: &[u8], at: usize, index: usize, width: u32) -> u64 {
    let bit = index * width as usize;
    let (at, shift) = (at + bit / 8, (bit % 8) as u32);
    let mut number = word_at(bytes, at) >> shift;
    if width + shift > 64 {
        number |= word_at(bytes, at + 8) << (64 - shift);
    }
    number & mask(width)
}

/// New bytes for part of a column.
pub(super) struct ColumnPatch {
    pub(super) at: usize,
    bytes: [u8; 16],
    len: usize,
}

impl ColumnPatch {
    /// Returns the bytes that replace the number at `index` in the column at `at`.
    #[inline]
    pub(super) fn new(bytes: &[u8], at: usize, index: usize, width: u32, number: u64) -> ColumnPatch {
        let bit = index * width as usize;
        let (at, shift) = (at + bit / 8, (bit % 8) as u32);
        let old = u128::from(word_at(bytes, at)) | u128::from(word_at(bytes, at + 8)) << 64;
        let new = old & !(u128::from(mask(width)) << shift) | u128::from(number) << shift;
        ColumnPatch { at, bytes: new.to_le_bytes(), len: (shift + width).div_ceil(8) as usize }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Appends a column, number by number.
pub(super) struct ColumnWriter {
    width: u32,
    /// The bits that do not fill a word yet, and their number.
    word: u64,
    used: u32,
}

impl ColumnWriter {
    #[inline]
    pub(super) fn new(width: u32) -> ColumnWriter {
        ColumnWriter { width, word: 0, used: 0 }
    }

    /// Appends the first `count` numbers of the column at `at`, which has this width. Returns the
    /// writer that continues the new column.
    #[inline]
    pub(super) fn copy(width: u32, bytes: &[u8], at: usize, count: usize, out: &mut Vec<u8>) -> ColumnWriter {
        let bits = count * width as usize;
        out.extend_from_slice(&bytes[at..at + bits / 8]);
        let used = (bits % 8) as u32;
        let word = if used == 0 { 0 } else { u64::from(bytes[at + bits / 8]) & mask(used) };
        ColumnWriter { width, word, used }
    }

    #[inline]
    pub(super) fn put(&mut self, out: &mut Vec<u8>, number: u64) {
        debug_assert!(number <= mask(self.width));
        if self.width == 0 {
            return;
        }
        self.word |= number << self.used;
        let used = self.used + self.width;
        if used < 64 {
            self.used = used;
            return;
        }
        out.extend_from_slice(&self.word.to_le_bytes());
        self.word = if self.used == 0 { 0 } else { number >> (64 - self.used) };
        self.used = used - 64;
    }

    #[inline]
    pub(super) fn end(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.word.to_le_bytes()[..self.used.div_ceil(8) as usize]);
    }
}

/// Returns the index of the first number of the column at `at` that equals `wanted` and for whose
/// index `is_it` returns true.
#[inline]
pub(super) fn find(
    bytes: &[u8],
    at: usize,
    count: usize,
    width: u32,
    wanted: u64,
    mut is_it: impl FnMut(usize) -> bool,
) -> Option<usize> {
    let lanes = LANES.get(width as usize).copied().unwrap_or(0);
    if lanes == 0 {
        return (0..count).find(|&index| get(bytes, at, index, width) == wanted && is_it(index));
    }
    let step = (READABLE / width) as usize;
    let high = lanes << (width - 1);
    let low = mask(step as u32 * width) ^ high;
    let pattern = wanted * lanes;
    let (mut index, mut bit) = (0, 0);
    while index < count {
        let word = word_at(bytes, at + bit / 8) >> (bit % 8) ^ pattern;
        // The addition sets the highest bit of each number that has any lower bit.
        let mut equal = !((word & low).wrapping_add(low) | word) & high;
        while equal != 0 {
            let found = index + equal.trailing_zeros() as usize / width as usize;
            if found >= count {
                return None;
            }
            if is_it(found) {
                return Some(found);
            }
            equal &= equal - 1;
        }
        index += step;
        bit += step * width as usize;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(width: u32, numbers: &[u64]) -> Vec<u8> {
        let mut out = vec![0xEE; 3];
        let mut writer = ColumnWriter::new(width);
        numbers.iter().for_each(|&number| writer.put(&mut out, number));
        writer.end(&mut out);
        assert_eq!(out.len(), 3 + column_len(numbers.len(), width));
        out
    }

    #[test]
    fn column_of_any_width_is_read_and_searched() {
        let mut random = fastrand::Rng::with_seed(3);
        for width in 0..=64 {
            for count in [0, 1, 2, 7, 40, 200] {
                let numbers: Vec<u64> = (0..count).map(|_| random.u64(..) & mask(width)).collect();
                let mut bytes = column(width, &numbers);
                let copied = {
                    let mut out = vec![0xEE; 3];
                    let mut writer = ColumnWriter::copy(width, &bytes, 3, count / 2, &mut out);
                    numbers[count / 2..].iter().for_each(|&number| writer.put(&mut out, number));
                    writer.end(&mut out);
                    out
                };
                assert_eq!(copied, bytes);
                // Once with nothing after the column, and once with other bytes there.
                for _ in 0..2 {
                    for (index, &number) in numbers.iter().enumerate() {
                        assert_eq!(get(&bytes, 3, index, width), number);
                        let first = numbers.iter().position(|&other| other == number);
                        assert_eq!(find(&bytes, 3, count, width, number, |_| true), first, "{width} {count}");
                        let mut offered = Vec::new();
                        let none = find(&bytes, 3, count, width, number, |index| {
                            offered.push(index);
                            false
                        });
                        assert_eq!(none, None);
                        assert!(
                            offered.iter().copied().eq((0..count).filter(|&other| numbers[other] == number))
                        );
                    }
                    let absent = (0..1000).map(|_| random.u64(..) & mask(width));
                    for wanted in absent.filter(|wanted| !numbers.contains(wanted)) {
                        assert_eq!(find(&bytes, 3, count, width, wanted, |_| true), None);
                    }
                    bytes.extend((0..20).map(|_| random.u8(..)));
                }
            }
        }
    }

    #[test]
    fn patch_changes_one_number() {
        let mut random = fastrand::Rng::with_seed(4);
        for width in 0..=64 {
            let mut numbers: Vec<u64> = (0..30).map(|_| random.u64(..) & mask(width)).collect();
            let mut bytes = column(width, &numbers);
            for index in 0..30 {
                numbers[index] = random.u64(..) & mask(width);
                let patch = ColumnPatch::new(&bytes, 3, index, width, numbers[index]);
                bytes[patch.at..patch.at + patch.bytes().len()].copy_from_slice(patch.bytes());
                assert_eq!(bytes, column(width, &numbers));
            }
        }
    }
}
