//! Defines engines whose keys are numbers.

use crate::{Record, Result};
use std::ops::{ControlFlow, RangeInclusive};

/// An engine whose keys are decimal numbers from 1 to a largest number. Its values have at most a
/// fixed length.
///
/// A key is canonical: digits without a leading zero. The engine refuses to store a record under
/// any other key, and never finds a record under such a key. [`Engine::scan`](crate::Engine::scan)
/// shows the records in ascending order of their numbers.
pub trait NumberedEngine: Send + Sync {
    /// Returns the largest length of a value. A write of a longer value fails with `Invalid`.
    fn width(&self) -> usize;

    /// Returns the largest number. A write under a higher number fails with `Invalid`.
    fn number_max(&self) -> u64;

    /// Shows the records whose numbers are in a range, in descending order if `is_descending`,
    /// otherwise in ascending order. Ends after the last record, or when `see` breaks. A record
    /// that exists during the entire walk is shown exactly once. Locks are held over small groups
    /// of records. `see` runs under these locks: it must be brief and must not call the engine.
    fn walk_numbers(
        &self,
        numbers: RangeInclusive<u64>,
        is_descending: bool,
        see: &mut dyn FnMut(u64, Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;
}

/// Returns the number of a canonical key, or `None` for any other key.
///
/// ```
/// use todana_core::number_of_key;
///
/// assert_eq!(number_of_key(b"1070"), Some(1070));
/// assert_eq!(number_of_key(b"18446744073709551615"), Some(u64::MAX));
/// let others: [&[u8]; 5] = [b"", b"0", b"07", b"7a", b"18446744073709551616"];
/// assert!(others.iter().all(|key| number_of_key(key).is_none()));
/// ```
#[inline]
pub fn number_of_key(key: &[u8]) -> Option<u64> {
    if key.first().is_none_or(|&first| first == b'0') {
        return None;
    }
    key.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        let number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
        (digit < 10).then_some(number)
    })
}

/// Returns the key of a number. The key is written to `text`.
///
/// ```
/// assert_eq!(todana_core::key_of_number(1070, &mut [0; 20]), b"1070");
/// ```
#[inline]
pub fn key_of_number(mut number: u64, text: &mut [u8; 20]) -> &[u8] {
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &text[start..];
        }
    }
}
