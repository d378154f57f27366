//! Sums as Kyoto Cabinet makes them: what is added to, and what a missing record begins with.

use super::{Fixed, IncrementOrigin};
use todana_core::{Error, ErrorKind};

/// The reason why there is no sum. The record stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SumFailure {
    Missing,
    NotANumber,
    Range,
}

impl SumFailure {
    /// Returns the error for a record whose numbers take this many bytes.
    pub(crate) fn error(self, key: &[u8], number_len: usize) -> Error {
        let what = match self {
            SumFailure::Missing => "no such record to add to".into(),
            SumFailure::NotANumber => format!("not a number of {number_len} bytes"),
            SumFailure::Range => format!("the sum does not fit into {number_len} bytes"),
        };
        Error::new(ErrorKind::Invalid, format!("record \"{}\": {what}", key.escape_ascii()))
    }
}

/// A sum, and whether it has to be stored: adding 0 to a number that is there only reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sum<T> {
    pub(crate) sum: T,
    pub(crate) is_new: bool,
}

impl IncrementOrigin<i64> {
    /// Returns the sum of the stored number and `delta`.
    pub(crate) fn sum(self, old: Option<&[u8]>, delta: i64) -> Result<Sum<i64>, SumFailure> {
        let number = |value: &[u8]| value.try_into().map(i64::from_be_bytes).ok();
        let old = old.map(|value| number(value).ok_or(SumFailure::NotANumber)).transpose()?;
        let is_new = old.is_none() || delta != 0 || self == IncrementOrigin::Set;
        let from = match (old, self) {
            (None, IncrementOrigin::Try) => return Err(SumFailure::Missing),
            (_, IncrementOrigin::Set) => 0,
            (Some(number), _) | (None, IncrementOrigin::Number(number)) => number,
        };
        let sum = from.checked_add(delta).ok_or(SumFailure::Range)?;
        Ok(Sum { sum, is_new })
    }
}

impl IncrementOrigin<f64> {
    /// Returns the sum of the stored number and `delta`.
    pub(crate) fn sum(self, old: Option<&[u8]>, delta: f64) -> Result<Sum<Fixed>, SumFailure> {
        let number = |value: &[u8]| value.try_into().map(Fixed::from_bytes).ok();
        let old = old.map(|value| number(value).ok_or(SumFailure::NotANumber)).transpose()?;
        let is_new = old.is_none() || delta != 0.0 || self == IncrementOrigin::Set;
        let added = Fixed::from(delta);
        let sum = match (old, self) {
            (None, IncrementOrigin::Try) => return Err(SumFailure::Missing),
            (_, IncrementOrigin::Set) => added,
            (Some(number), _) => number + added,
            // Added before it is taken apart, as in the original: 1.5 and -0.75 are 0 and 0.75, not 1 and -0.25.
            (None, IncrementOrigin::Number(number)) => Fixed::from(number + delta),
        };
        if sum.is_nan() { Err(SumFailure::NotANumber) } else { Ok(Sum { sum, is_new }) }
    }
}
