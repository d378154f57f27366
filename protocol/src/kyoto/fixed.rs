//! Real numbers as `increment_double` stores them: a whole part and a fraction in units of 10^-15, of 8 bytes each.

/// The length of a stored number.
const LEN: usize = 16;

const UNITS: i64 = 1_000_000_000_000_000;

/// A stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    whole: i64,
    fraction: i64,
}

impl Fixed {
    const INFINITY: Fixed = Fixed { whole: i64::MAX, fraction: 0 };
    const NEGATIVE_INFINITY: Fixed = Fixed { whole: i64::MIN, fraction: 0 };

    /// The number that is stored so; `None` if this is none.
    pub fn parse(stored: &[u8]) -> Option<Fixed> {
        let stored: &[u8; LEN] = stored.try_into().ok()?;
        let number = u128::from_be_bytes(*stored);
        let fixed = Fixed { whole: (number >> 64) as i64, fraction: number as i64 };
        (fixed != Fixed { whole: i64::MIN, fraction: i64::MIN }).then_some(fixed)
    }

    /// What is stored of a number; `None` if it is not a number. Both parts are cut toward zero, from the exact value.
    pub fn new(number: f64) -> Option<Fixed> {
        if number.is_nan() {
            return None;
        }
        let whole = number.trunc();
        if whole >= i64::MAX as f64 {
            return Some(Fixed::INFINITY);
        }
        if whole <= i64::MIN as f64 {
            return Some(Fixed::NEGATIVE_INFINITY);
        }
        Some(Fixed { whole: whole as i64, fraction: units(number - whole) })
    }

    /// The sum; `None` if it is not a number. What is infinite stays so, whatever is added. The parts are added apart: a
    /// fraction that reaches one is carried, one that is negative stays negative.
    pub fn plus(self, number: f64) -> Option<Fixed> {
        if self.is_infinite() {
            return Some(self);
        }
        let added = Fixed::new(number)?;
        if added.is_infinite() {
            return Some(added);
        }
        let mut fraction = self.fraction.saturating_add(added.fraction);
        let mut whole = i128::from(self.whole) + i128::from(added.whole);
        if fraction >= UNITS {
            whole += 1;
            fraction -= UNITS;
        }
        Some(match i64::try_from(whole) {
            Ok(whole) if whole != i64::MIN && whole != i64::MAX => Fixed { whole, fraction },
            _ if whole > 0 => Fixed::INFINITY,
            _ => Fixed::NEGATIVE_INFINITY,
        })
    }

    /// Its value.
    pub fn value(self) -> f64 {
        match self.whole {
            i64::MAX => f64::INFINITY,
            i64::MIN => f64::NEG_INFINITY,
            whole => whole as f64 + self.fraction as f64 / UNITS as f64,
        }
    }

    /// As it is stored.
    pub fn to_bytes(self) -> [u8; LEN] {
        (u128::from(self.whole as u64) << 64 | u128::from(self.fraction as u64)).to_be_bytes()
    }

    fn is_infinite(self) -> bool {
        matches!(self.whole, i64::MAX | i64::MIN)
    }
}

/// A number below one in units, cut toward zero; exact, as a double's 53 bits times 10^15 fit 128.
fn units(fraction: f64) -> i64 {
    let bits = fraction.abs().to_bits();
    let exponent = (bits >> 52) as i32;
    if exponent == 0 {
        // Far too small.
        return 0;
    }
    let mantissa = u128::from(bits & ((1 << 52) - 1) | 1 << 52);
    let shift = (1075 - exponent) as u32;
    let units = (mantissa * UNITS as u128).checked_shr(shift).unwrap_or(0) as i64;
    if fraction < 0.0 { -units } else { units }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: f64) -> [u8; LEN] {
        Fixed::new(number).unwrap().to_bytes()
    }

    #[test]
    fn parts_are_cut_toward_zero() {
        assert_eq!(Fixed::new(0.3), Some(Fixed { whole: 0, fraction: 299_999_999_999_999 }));
        assert_eq!(Fixed::new(-1.75), Some(Fixed { whole: -1, fraction: -750_000_000_000_000 }));
        assert_eq!(Fixed::new(1e-300), Some(Fixed { whole: 0, fraction: 0 }));
        assert_eq!(Fixed::new(-0.0), Some(Fixed { whole: 0, fraction: 0 }));
        assert_eq!(Fixed::new(f64::MIN_POSITIVE / 2.0), Some(Fixed { whole: 0, fraction: 0 }));
        assert_eq!(Fixed::new(f64::NAN), None);
        assert_eq!(Fixed::new(1e30), Some(Fixed::INFINITY));
    }

    #[test]
    fn infinities_and_negative_fractions_are_stored_as_captured() {
        assert_eq!(bytes(f64::INFINITY), [0x7F, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(f64::NEG_INFINITY), [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let sum = Fixed::new(0.25).and_then(|quarter| quarter.plus(-0.5)).unwrap();
        assert_eq!(sum.to_bytes()[8..], 0xffff_1ca0_56ce_6000_u64.to_be_bytes());
        assert_eq!(sum.value(), -0.25);
    }

    #[test]
    fn a_fraction_that_reaches_one_is_carried() {
        let sum = Fixed::new(1.5).and_then(|number| number.plus(0.75)).unwrap();
        assert_eq!(sum, Fixed { whole: 2, fraction: 250_000_000_000_000 });
        assert_eq!(sum.value(), 2.25);
    }

    #[test]
    fn what_is_infinite_stays_so() {
        let infinite = Fixed::new(f64::INFINITY).unwrap();
        assert_eq!(infinite.plus(f64::NEG_INFINITY), Some(infinite));
        assert_eq!(infinite.plus(f64::NAN), Some(infinite));
        assert_eq!(Fixed::new(1.0).unwrap().plus(f64::NAN), None);
        assert_eq!(Fixed::new(9e18).unwrap().plus(9e18), Some(Fixed::INFINITY));
    }

    #[test]
    fn what_has_another_length_or_is_not_a_number_is_none() {
        assert_eq!(Fixed::parse(b"1.5"), None);
        assert_eq!(Fixed::parse(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Fixed::parse(&bytes(-3.25)), Fixed::new(-3.25));
        assert_eq!(Fixed::parse(&bytes(f64::NEG_INFINITY)).unwrap().value(), f64::NEG_INFINITY);
    }
}
