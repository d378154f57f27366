//! Numbers of 16 bytes: an integer part and a fraction, both with the sign of the number.
//!
//! Source: `protocols/kyoto-tycoon.md`, section 7; 300 sums agree with the original.

use std::ops::Add;

/// A fraction is stored as a multiple of 10^-15.
const UNITS: i64 = 1_000_000_000_000_000;

/// A number with a fraction as Kyoto Cabinet stores it: the integer part, and the fraction in units
/// of 10^-15. Both are truncated towards zero.
///
/// ```
/// use todana::kyoto::FixedPoint;
///
/// let sum = FixedPoint::from(1.5) + FixedPoint::from(-3.25);
/// assert_eq!(f64::from(sum), -1.75);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedPoint {
    whole: i64,
    fraction: i64,
}

const INFINITE: FixedPoint = FixedPoint { whole: i64::MAX, fraction: 0 };
const NEGATIVE_INFINITE: FixedPoint = FixedPoint { whole: i64::MIN, fraction: 0 };
const NO_NUMBER: FixedPoint = FixedPoint { whole: i64::MIN, fraction: i64::MIN };

impl FixedPoint {
    /// Decodes the stored bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> FixedPoint {
        let both = u128::from_be_bytes(bytes);
        FixedPoint { whole: (both >> 64) as i64, fraction: both as i64 }
    }

    /// Encodes the number for storage.
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.whole as u64) << 64 | u128::from(self.fraction as u64)).to_be_bytes()
    }

    /// Returns true if this is not a number.
    pub fn is_nan(self) -> bool {
        self == NO_NUMBER
    }

    fn is_infinite(self) -> bool {
        self.whole == i64::MAX || self == NEGATIVE_INFINITE
    }
}

impl From<f64> for FixedPoint {
    /// Converts a number. If its integer part is too large, it becomes infinite.
    fn from(number: f64) -> FixedPoint {
        if number.is_nan() {
            return NO_NUMBER;
        }
        // A number outside of the range becomes the least or the greatest integer, which stand for
        // infinity.
        let whole = number.trunc() as i64;
        if whole == i64::MAX {
            return INFINITE;
        }
        if whole == i64::MIN {
            return NEGATIVE_INFINITE;
        }
        let fraction = number.fract();
        // This computation is exact: a fraction is mantissa / 2^shift with a mantissa below 2^53,
        // and 10^15 is below 2^50.
        let bits = fraction.abs().to_bits();
        let exponent = (bits >> 52) as u32;
        let mantissa = if exponent == 0 { bits << 1 } else { bits & ((1 << 52) - 1) | 1 << 52 };
        let shift = 1075 - exponent;
        let units = if shift < 128 { (u128::from(mantissa) * UNITS as u128) >> shift } else { 0 };
        let units = units as i64;
        FixedPoint { whole, fraction: if fraction < 0.0 { -units } else { units } }
    }
}

impl From<FixedPoint> for f64 {
    fn from(number: FixedPoint) -> f64 {
        match number {
            NO_NUMBER => f64::NAN,
            NEGATIVE_INFINITE => f64::NEG_INFINITY,
            FixedPoint { whole: i64::MAX, .. } => f64::INFINITY,
            FixedPoint { whole, fraction } => whole as f64 + fraction as f64 / UNITS as f64,
        }
    }
}

impl Add for FixedPoint {
    type Output = FixedPoint;

    /// Adds the integer parts and the fractions separately. If the sum of the fractions is 1 or
    /// more, it is carried to the integer part, but a negative sum is not. Infinity stays infinite,
    /// and a sum out of range becomes infinite.
    fn add(self, other: FixedPoint) -> FixedPoint {
        if self.is_nan() || other.is_nan() {
            return NO_NUMBER;
        }
        if self.is_infinite() {
            return self;
        }
        if other.is_infinite() {
            return other;
        }
        let mut fraction = self.fraction.saturating_add(other.fraction);
        let mut carried = 0;
        if fraction >= UNITS {
            (fraction, carried) = (fraction - UNITS, 1);
        }
        let whole = self.whole.checked_add(other.whole).and_then(|whole| whole.checked_add(carried));
        match whole {
            Some(i64::MAX) => INFINITE,
            Some(whole) => FixedPoint { whole, fraction },
            None if self.whole < 0 => NEGATIVE_INFINITE,
            None => INFINITE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(number: f64) -> (i64, i64) {
        let FixedPoint { whole, fraction } = FixedPoint::from(number);
        (whole, fraction)
    }

    #[test]
    fn both_parts_truncate_towards_zero() {
        assert_eq!(parts(0.3), (0, 299_999_999_999_999));
        assert_eq!(parts(-0.3), (0, -299_999_999_999_999));
        assert_eq!(parts(-1.75), (-1, -750_000_000_000_000));
        assert_eq!(parts(5e-324), (0, 0));
        assert_eq!(parts(f64::MIN_POSITIVE / 2.0), (0, 0));
        assert_eq!(parts(1e-300), (0, 0));
        assert_eq!(parts(1e-15), (0, 1));
        assert_eq!(parts(9e-16), (0, 0));
        assert_eq!(parts(0.0), (0, 0));
        assert_eq!(parts(-0.0), (0, 0));
        assert_eq!(parts(1e18), (1_000_000_000_000_000_000, 0));
        assert_eq!(parts(1e19), (i64::MAX, 0));
        assert_eq!(parts(1e30), (i64::MAX, 0));
        assert_eq!(parts(-1e300), (i64::MIN, 0));
    }

    #[test]
    fn fraction_is_carried_and_not_borrowed() {
        let sum = |a: f64, b: f64| {
            let FixedPoint { whole, fraction } = FixedPoint::from(a) + FixedPoint::from(b);
            (whole, fraction)
        };
        assert_eq!(sum(0.75, 0.5), (1, 250_000_000_000_000));
        assert_eq!(sum(1.5, 0.75), (2, 250_000_000_000_000));
        assert_eq!(sum(0.25, -0.5), (0, -250_000_000_000_000));
        assert_eq!(sum(1.0, -0.25), (1, -250_000_000_000_000));
    }

    #[test]
    fn extreme_numbers_are_infinite() {
        let (infinite, negative) = (FixedPoint::from(f64::INFINITY), FixedPoint::from(f64::NEG_INFINITY));
        assert_eq!(f64::from(infinite + negative), f64::INFINITY);
        assert_eq!(f64::from(negative + FixedPoint::from(1.0)), f64::NEG_INFINITY);
        assert_eq!(f64::from(FixedPoint::from(9e18) + FixedPoint::from(9e18)), f64::INFINITY);
        assert_eq!(f64::from(FixedPoint::from(-9e18) + FixedPoint::from(-9e18)), f64::NEG_INFINITY);
        assert!(f64::from(FixedPoint::from(f64::NAN) + infinite).is_nan());
        let stored = [0x80, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0];
        assert!((FixedPoint::from_bytes(stored) + FixedPoint::from(1.0)).is_nan());
        assert_eq!(FixedPoint::from(f64::NAN).to_bytes(), stored);
        // Any sixteen bytes must be accepted.
        let _ = f64::from(FixedPoint::from_bytes([0x80; 16]) + FixedPoint::from_bytes([0x7F; 16]));
    }
}
