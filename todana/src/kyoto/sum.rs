//! Computes sums as Kyoto Cabinet does, and their start value if the record is missing.

use super::{FixedPoint, IncrementOrigin};
use todana_core::{Error, ErrorKind};

/// The reason why a sum cannot be computed. The record stays unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SumError {
    Missing,
    NotANumber,
    Range,
}

impl SumError {
    /// Returns the error for a record whose number should have this many bytes.
    pub(crate) fn error(self, key: &[u8], number_len: usize) -> Error {
        let what = match self {
            SumError::Missing => "no such record to add to".into(),
            SumError::NotANumber => format!("not a number of {number_len} bytes"),
            SumError::Range => format!("the sum does not fit into {number_len} bytes"),
        };
        Error::new(ErrorKind::Invalid, format!("record \"{}\": {what}", key.escape_ascii()))
    }
}

/// A sum, and whether it must be stored. Adding 0 to an existing number stores nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IncrementSum<T> {
    pub(crate) sum: T,
    pub(crate) is_new: bool,
}

impl IncrementOrigin<i64> {
    /// Returns the sum of the stored number and `delta`.
    pub(crate) fn sum(self, old: Option<&[u8]>, delta: i64) -> Result<IncrementSum<i64>, SumError> {
        let number = |value: &[u8]| value.try_into().map(i64::from_be_bytes).ok();
        let old = old.map(|value| number(value).ok_or(SumError::NotANumber)).transpose()?;
        let is_new = old.is_none() || delta != 0 || self == IncrementOrigin::Set;
        let from = match (old, self) {
            (None, IncrementOrigin::Try) => return Err(SumError::Missing),
            (_, IncrementOrigin::Set) => 0,
            (Some(number), _) | (None, IncrementOrigin::Number(number)) => number,
        };
        let sum = from.checked_add(delta).ok_or(SumError::Range)?;
        Ok(IncrementSum { sum, is_new })
    }
}

impl IncrementOrigin<f64> {
    /// Returns the sum of the stored number and `delta`.
    pub(crate) fn sum(self, old: Option<&[u8]>, delta: f64) -> Result<IncrementSum<FixedPoint>, SumError> {
        let number = |value: &[u8]| value.try_into().map(FixedPoint::from_bytes).ok();
        let old = old.map(|value| number(value).ok_or(SumError::NotANumber)).transpose()?;
        let is_new = old.is_none() || delta != 0.0 || self == IncrementOrigin::Set;
        let added = FixedPoint::from(delta);
        let sum = match (old, self) {
            (None, IncrementOrigin::Try) => return Err(SumError::Missing),
            (_, IncrementOrigin::Set) => added,
            (Some(number), _) => number + added,
            // As in the original, the numbers are added before the sum is split into parts: 1.5 and
            // -0.75 give 0 and 0.75, not 1 and -0.25.
            (None, IncrementOrigin::Number(number)) => FixedPoint::from(number + delta),
        };
        if sum.is_nan() { Err(SumError::NotANumber) } else { Ok(IncrementSum { sum, is_new }) }
    }
}
