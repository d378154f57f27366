//! Orders of keys other than that of their bytes: a key is stored behind bytes by which it sorts, and comes back from there.
//!
//! ```text
//! decimal        number | fraction | key
//! by a sort key  sort key, escaped | key
//! descending     the complement of every byte, escaped, of what would be stored in the ascending order
//!
//! number   length(1): 0x80 + bytes, or 0x7f - bytes below zero | bytes, big-endian, without leading zeros
//! escaped  each byte, 00 as 00 ff | 00 00
//! ```
//!
//! Ordered databases compare bytes: their packed blocks, logs, snapshots and transactions rely on it. So an order is made of bytes here, and
//! nothing that a program decides while records are compared can damage a database.

use todana_core::{Error, ErrorKind, Result};

/// An order of keys: one of Kyoto Cabinet's comparators, or one by sort keys of a program's own.
///
/// ```
/// use todana::{Db, KeyOrder, Records};
///
/// let db = Db::open("mem:tree")?;
/// for key in ["10", "9", "-1", "9.5"] {
///     db.set(&KeyOrder::Decimal.stored(key.as_bytes()), b"")?;
/// }
/// let stored: Vec<Vec<u8>> = db.iter().keys().collect::<Result<_, _>>()?;
/// let keys = stored.iter().map(|stored| KeyOrder::Decimal.original(stored)).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(keys, [&b"-1"[..], b"9", b"9.5", b"10"]);
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyOrder {
    /// The last by their bytes first (`lexdesc`).
    LexicalDescending,
    /// By the decimal number that they begin with, behind spaces, with sign and fraction; those of one number by their bytes (`dec`).
    Decimal,
    /// The reverse of that (`decdesc`).
    DecimalDescending,
    /// By a sort key that the program makes of each ([`KeyOrder::stored_by`]).
    BySortKey,
}

impl KeyOrder {
    /// Returns the order of a comparator's name in Kyoto Cabinet: `lexdesc`, `dec`, `decdesc`, or a longer one. `None` for others.
    pub fn of_comparator(name: &str) -> Option<KeyOrder> {
        match name {
            "lexdesc" | "lexicaldesc" | "lexicaldescending" => Some(KeyOrder::LexicalDescending),
            "dec" | "decimal" => Some(KeyOrder::Decimal),
            "decdesc" | "decimaldesc" | "decimaldescending" => Some(KeyOrder::DecimalDescending),
            _ => None,
        }
    }

    /// Returns what a key is stored as: ordered databases then have it at its place in this order. With [`KeyOrder::BySortKey`] the key
    /// itself is the sort key.
    pub fn stored(self, key: &[u8]) -> Vec<u8> {
        match self {
            KeyOrder::LexicalDescending => descending(key),
            KeyOrder::Decimal => decimal(key),
            KeyOrder::DecimalDescending => descending(&decimal(key)),
            KeyOrder::BySortKey => KeyOrder::stored_by(key, key),
        }
    }

    /// Returns what a key is stored as that sorts by a sort key; those of one sort key by their own bytes. A program that makes another sort
    /// key of the same key later does not find the record again.
    ///
    /// ```
    /// use todana::KeyOrder;
    ///
    /// let by_length = |key: &[u8]| KeyOrder::stored_by(&key.len().to_be_bytes(), key);
    /// assert!(by_length(b"zz") < by_length(b"aaa"));
    /// assert_eq!(KeyOrder::BySortKey.original(&by_length(b"zz"))?, b"zz");
    /// # Ok::<(), todana::Error>(())
    /// ```
    pub fn stored_by(sort_key: &[u8], key: &[u8]) -> Vec<u8> {
        let mut stored = escaped(sort_key.iter().copied());
        stored.extend_from_slice(key);
        stored
    }

    /// Returns the key that is stored so. Fails with `Invalid` for what this order does not store.
    pub fn original(self, stored: &[u8]) -> Result<Vec<u8>> {
        let key = match self {
            KeyOrder::LexicalDescending => ascending(stored),
            KeyOrder::Decimal => behind_number(stored).map(<[u8]>::to_vec),
            KeyOrder::DecimalDescending => {
                ascending(stored).and_then(|stored| Some(behind_number(&stored)?.to_vec()))
            }
            KeyOrder::BySortKey => unescaped(stored).map(|(_, key)| key.to_vec()),
        };
        let key = key.filter(|key| self == KeyOrder::BySortKey || self.stored(key) == stored);
        key.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("a key that is not stored in the order {self:?}"))
        })
    }
}

/// The bytes so that none is the beginning of another, and their order stays.
fn escaped(bytes: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(bytes.size_hint().0 + 2);
    for byte in bytes {
        escaped.push(byte);
        if byte == 0 {
            escaped.push(0xff);
        }
    }
    escaped.extend_from_slice(&[0, 0]);
    escaped
}

/// The bytes that were escaped, and what comes after them.
fn unescaped(mut stored: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut bytes = Vec::new();
    loop {
        match stored {
            [0, 0, rest @ ..] => return Some((bytes, rest)),
            [0, 0xff, rest @ ..] => {
                bytes.push(0);
                stored = rest;
            }
            [0, ..] | [] => return None,
            [byte, rest @ ..] => {
                bytes.push(*byte);
                stored = rest;
            }
        }
    }
}

/// The complement of what has an end that sorts before all else: the longer one first.
fn descending(bytes: &[u8]) -> Vec<u8> {
    let mut stored = escaped(bytes.iter().copied());
    stored.iter_mut().for_each(|byte| *byte = !*byte);
    stored
}

fn ascending(stored: &[u8]) -> Option<Vec<u8>> {
    let stored: Vec<u8> = stored.iter().map(|byte| !byte).collect();
    let (bytes, rest) = unescaped(&stored)?;
    rest.is_empty().then_some(bytes)
}

fn decimal(key: &[u8]) -> Vec<u8> {
    let (number, fraction) = number_of(key);
    let mut stored = Vec::with_capacity(key.len() + 12);
    put_number(number, &mut stored);
    put_number(fraction, &mut stored);
    stored.extend_from_slice(key);
    stored
}

/// The digits of a fraction that count, as in the original.
const FRACTION_DIGITS: usize = 15;

/// The number that a key begins with: its whole part, the ends of the range for what is beyond them, and the digits behind its point.
fn number_of(key: &[u8]) -> (i64, i64) {
    let start = key.iter().position(|&byte| byte > b' ' && byte != 0x7f).unwrap_or(key.len());
    let key = &key[start..];
    let (is_negative, key) = key.strip_prefix(b"-").map_or((false, key), |rest| (true, rest));
    let signed = |digit: u8| if is_negative { -i64::from(digit - b'0') } else { i64::from(digit - b'0') };
    let count = key.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = key.split_at(count);
    let add = |number: i64, &digit: &u8| number.saturating_mul(10).saturating_add(signed(digit));
    let number = digits.iter().fold(0, add);
    let behind = rest.strip_prefix(b".").unwrap_or_default();
    let digits = behind.iter().take_while(|byte| byte.is_ascii_digit()).chain(std::iter::repeat(&b'0'));
    (number, digits.take(FRACTION_DIGITS).fold(0, add))
}

fn put_number(number: i64, into: &mut Vec<u8>) {
    let magnitude = if number < 0 { !number } else { number };
    let len = 8 - magnitude.leading_zeros() as usize / 8;
    into.push(if number < 0 { 0x7f - len as u8 } else { 0x80 + len as u8 });
    into.extend_from_slice(&number.to_be_bytes()[8 - len..]);
}

/// What comes after number and fraction.
fn behind_number(stored: &[u8]) -> Option<&[u8]> {
    let skip = |stored: &'_ [u8]| -> Option<usize> {
        let first = *stored.first()?;
        let len = if first < 0x80 { 0x7f - first } else { first - 0x80 };
        Some(1 + usize::from(len))
    };
    let stored = stored.get(skip(stored)?..)?;
    stored.get(skip(stored)?..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Ordering;

    const ORDERS: [KeyOrder; 3] =
        [KeyOrder::LexicalDescending, KeyOrder::Decimal, KeyOrder::DecimalDescending];

    /// What the originals' comparators say.
    fn compare(order: KeyOrder, one: &[u8], other: &[u8]) -> Ordering {
        let by_number = || number_of(one).cmp(&number_of(other)).then(one.cmp(other));
        match order {
            KeyOrder::LexicalDescending => other.cmp(one),
            KeyOrder::Decimal => by_number(),
            KeyOrder::DecimalDescending => by_number().reverse(),
            KeyOrder::BySortKey => one.cmp(other),
        }
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let symbol =
            prop_oneof![Just(b' '), Just(b'-'), Just(b'.'), b'0'..=b'9', Just(0u8), Just(0xff), any::<u8>()];
        proptest::collection::vec(symbol, 0..24)
    }

    proptest! {
        #[test]
        fn stored_keys_are_in_order_and_come_back(one in key(), other in key()) {
            for order in ORDERS {
                let (a, b) = (order.stored(&one), order.stored(&other));
                prop_assert_eq!(a.cmp(&b), compare(order, &one, &other), "{:?}", order);
                prop_assert_eq!(order.original(&a).unwrap(), &one[..]);
            }
            let (a, b) = (KeyOrder::stored_by(&one, b"x"), KeyOrder::stored_by(&other, b""));
            prop_assert_eq!(a.cmp(&b), one.cmp(&other).then(Ordering::Greater));
            prop_assert_eq!(KeyOrder::BySortKey.original(&a).unwrap(), b"x");
        }

        #[test]
        fn any_bytes_are_refused_or_come_from_a_key(stored in key()) {
            for order in ORDERS {
                if let Ok(key) = order.original(&stored) {
                    prop_assert_eq!(order.stored(&key), &stored[..]);
                }
            }
            let _ = KeyOrder::BySortKey.original(&stored);
        }
    }

    #[test]
    fn numbers_are_read_as_by_the_original() {
        for (key, number) in [
            ("", (0, 0)),
            ("abc", (0, 0)),
            (" \t\x7f12x", (12, 0)),
            ("-7", (-7, 0)),
            ("- 7", (0, 0)),
            ("+7", (0, 0)),
            ("007.", (7, 0)),
            ("1.25", (1, 250_000_000_000_000)),
            ("-0.5", (0, -500_000_000_000_000)),
            ("1.0000000000000019", (1, 1)),
            ("1.x5", (1, 0)),
            ("9223372036854775807", (i64::MAX, 0)),
            ("99999999999999999999", (i64::MAX, 0)),
            ("-99999999999999999999", (i64::MIN, 0)),
        ] {
            assert_eq!(number_of(key.as_bytes()), number, "{key:?}");
        }
        let mut keys = ["10", "9", "-1.5", "-1", "2", "1.5", "1.05", "0", "x", "-10", "01"];
        keys.sort_by_key(|key| KeyOrder::Decimal.stored(key.as_bytes()));
        assert_eq!(keys, ["-10", "-1.5", "-1", "0", "x", "01", "1.05", "1.5", "2", "9", "10"]);
        keys.sort_by_key(|key| KeyOrder::DecimalDescending.stored(key.as_bytes()));
        assert_eq!(keys, ["10", "9", "2", "1.5", "1.05", "01", "x", "0", "-1", "-1.5", "-10"]);
        assert_eq!(KeyOrder::Decimal.stored(b"7"), b"\x81\x07\x807");
        assert_eq!(KeyOrder::of_comparator("decdesc"), Some(KeyOrder::DecimalDescending));
        assert_eq!(KeyOrder::of_comparator("lex"), None);
    }
}
