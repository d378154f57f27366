//! The visitor of `addint` and `adddouble`. The numbers are stored as on the original's machines,
//! with the lowest byte first.

use super::kept_attributes;
use todana_core::{Action, Record, Visitor};

/// A number, as it is stored in a value.
pub trait StoredNumber: Copy {
    /// The length of the value in bytes.
    const LEN: usize;

    /// Decodes a value. Returns `None` if it is not a number of this type.
    fn from_value(value: &[u8]) -> Option<Self>;
    /// Encodes the number in the first `LEN` bytes of the result.
    fn to_value(self) -> [u8; 8];
    /// Returns the sum of both numbers, or `None` if the sum is not a number.
    fn plus(self, other: Self) -> Option<Self>;
}

/// The integers of `addint`. A sum that is too large wraps around.
impl StoredNumber for i32 {
    const LEN: usize = 4;

    fn from_value(value: &[u8]) -> Option<i32> {
        value.try_into().map(i32::from_le_bytes).ok()
    }

    fn to_value(self) -> [u8; 8] {
        u64::from(self as u32).to_le_bytes()
    }

    fn plus(self, other: i32) -> Option<i32> {
        Some(self.wrapping_add(other))
    }
}

/// The numbers of `adddouble`. If a sum is not a number, it is not stored.
impl StoredNumber for f64 {
    const LEN: usize = 8;

    fn from_value(value: &[u8]) -> Option<f64> {
        value.try_into().map(f64::from_le_bytes).ok()
    }

    fn to_value(self) -> [u8; 8] {
        self.to_le_bytes()
    }

    fn plus(self, other: f64) -> Option<f64> {
        Some(self + other).filter(|sum| !sum.is_nan())
    }
}

/// Adds to a number. A missing record counts as 0 and is created, even if 0 is added.
pub struct SumVisitor<N: StoredNumber> {
    delta: N,
    zero: N,
    sum: Option<N>,
    value: [u8; 8],
}

impl<N: StoredNumber + Default> SumVisitor<N> {
    /// Creates the visitor, which adds `delta`.
    pub fn new(delta: N) -> SumVisitor<N> {
        SumVisitor { delta, zero: N::default(), sum: None, value: [0; 8] }
    }

    /// Returns the sum after the visit. Returns `None` if the value is not a number of this type,
    /// or if the sum is not a number.
    pub fn sum(&self) -> Option<N> {
        self.sum
    }
}

impl<N: StoredNumber> Visitor for SumVisitor<N> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let number = old.map_or(Some(self.zero), |record| N::from_value(record.value));
        self.sum = number.and_then(|number| number.plus(self.delta));
        let Some(sum) = self.sum else { return Action::Keep };
        self.value = sum.to_value();
        Action::Put(Record::new(&self.value[..N::LEN], kept_attributes(old)))
    }
}

#[cfg(test)]
mod tests {
    use super::SumVisitor;
    use crate::{Db, Records};

    #[test]
    fn integers_wrap_and_need_four_bytes() {
        let db = Db::open("mem:hash").unwrap();
        let add = |key: &[u8], delta: i32| {
            let mut visitor = SumVisitor::new(delta);
            db.visit(key, &mut visitor).unwrap();
            visitor.sum()
        };
        assert_eq!(add(b"n", 0), Some(0));
        assert_eq!(add(b"n", 5), Some(5));
        assert_eq!(add(b"n", -7), Some(-2));
        assert_eq!(db.get(b"n").unwrap().unwrap(), [0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(add(b"n", i32::MIN), Some(i32::MAX - 1));
        db.set(b"text", b"12345").unwrap();
        assert_eq!(add(b"text", 1), None);
        assert_eq!(db.get(b"text").unwrap().unwrap(), b"12345");
    }

    #[test]
    fn doubles_need_eight_bytes_and_a_sum() {
        let db = Db::open("mem:hash").unwrap();
        let add = |delta: f64| {
            let mut visitor = SumVisitor::new(delta);
            db.visit(b"d", &mut visitor).unwrap();
            visitor.sum()
        };
        assert_eq!(add(f64::NAN), None);
        assert_eq!(db.get(b"d").unwrap(), None);
        assert_eq!(add(1.5), Some(1.5));
        assert_eq!(add(-2.25), Some(-0.75));
        assert_eq!(db.get(b"d").unwrap().unwrap(), [0, 0, 0, 0, 0, 0, 0xe8, 0xbf]);
        assert_eq!(add(f64::INFINITY), Some(f64::INFINITY));
        assert_eq!(add(f64::NEG_INFINITY), None);
        assert_eq!(db.get(b"d").unwrap().unwrap(), f64::INFINITY.to_le_bytes());
    }
}
