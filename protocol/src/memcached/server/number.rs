//! Parses numbers. The formats differ between fields, and clients depend on the differences, so
//! each format has its own function.

use super::frame::VALUE_LEN_MAX;

/// Parses a version of `cas`, the amount of `incr` and `decr`, and the numbers of the meta flags
/// `C`, `E`, `D` and `J`: unsigned 64 bits, digits only.
#[inline]
pub(super) fn unsigned(word: &[u8]) -> Option<u64> {
    // 19 digits cannot overflow.
    if word.len() > 19 {
        return unsigned_long(word);
    }
    if word.is_empty() {
        return None;
    }
    let mut number = 0;
    for &byte in word {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some(number)
}

/// Parses the meta flag `F` and the length of a login token: unsigned 32 bits, digits only.
#[inline]
pub(super) fn unsigned_32(word: &[u8]) -> Option<u32> {
    unsigned(word).and_then(|number| u32::try_from(number).ok())
}

#[cold]
fn unsigned_long(word: &[u8]) -> Option<u64> {
    word.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Parses times outside of storage commands, and the meta flags `T`, `N` and `R`: signed 32 bits,
/// at most 11 characters, no `+`.
#[inline]
pub(super) fn signed(word: &[u8]) -> Option<i32> {
    const LEN_MAX: usize = "-2147483648".len();
    if word.len() > LEN_MAX {
        return None;
    }
    let number = match word {
        [b'-', digits @ ..] => -(unsigned(digits)? as i64),
        _ => unsigned(word)? as i64,
    };
    i32::try_from(number).ok()
}

/// Parses the span of a sliding expiry in the meta flag `A`: 1 to 2^31 - 1 seconds.
#[inline]
pub(super) fn span(word: &[u8]) -> Option<u32> {
    signed(word).and_then(|seconds| u32::try_from(seconds).ok()).filter(|&seconds| seconds > 0)
}

/// Parses the length of a data block. It must not be negative and must leave room for the line end.
#[inline]
pub(super) fn value_len(word: &[u8]) -> Option<usize> {
    let len = usize::try_from(signed(word)?).ok()?;
    (len <= VALUE_LEN_MAX).then_some(len)
}

/// Parses the client's flags in the text commands: unsigned 64 bits as C's `strtoul` reads them,
/// without `-`. The lower 32 bits are kept.
#[inline]
pub(super) fn client_flags(word: &[u8]) -> Option<u32> {
    let number = unsigned(word).or_else(|| match c_number(word)? {
        (false, magnitude) => Some(magnitude),
        (true, _) => None,
    })?;
    Some(number as u32)
}

/// Parses the expiry time of storage commands: signed 64 bits as C's `strtol` reads them. The lower
/// 32 bits are kept.
#[inline]
pub(super) fn expiry(word: &[u8]) -> Option<i32> {
    if let Some(number) = unsigned(word) {
        return i64::try_from(number).ok().map(|number| number as i32);
    }
    let number = match c_number(word)? {
        (false, magnitude) => i64::try_from(magnitude).ok()?,
        (true, magnitude) => 0i64.checked_sub_unsigned(magnitude)?,
    };
    Some(number as i32)
}

/// Returns the sign and the magnitude as C's `strtol` reads them: blanks and a sign may precede the
/// digits, and any bytes may follow a blank after the digits. A space is not such a blank, because
/// it ends the word.
#[cold]
fn c_number(word: &[u8]) -> Option<(bool, u64)> {
    let is_blank = |byte: &u8| matches!(byte, b'\t'..=b'\r');
    let start = word.iter().position(|byte| !is_blank(byte))?;
    let (negative, digits) = match &word[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let end = digits.iter().position(is_blank).unwrap_or(digits.len());
    Some((negative, unsigned(&digits[..end])?))
}
