//! Orders of keys other than the order of their bytes. A key is stored in a form whose bytes have
//! the required order. The key can be decoded from the stored form.
//!
//! ```text
//! decimal        number | fraction | key
//! by a sort key  sort key, escaped | key
//! descending     the complement of every byte, escaped, of the stored form in ascending order
//!
//! number   length(1): 0x80 + bytes, or 0x7f - bytes if negative | bytes, big-endian, no leading zeros
//! escaped  each byte, 00 as 00 ff | 00 00
//! ```
//!
//! The packed blocks, logs, snapshots and transactions of ordered databases rely on comparisons of
//! bytes. So an order is encoded in the bytes, and no comparison function of a program can damage a
//! database.

use todana_core::{Error, ErrorKind, Result};

/// An order of keys: one of Kyoto Cabinet's comparators, or by sort keys that the program computes.
///
/// ```
/// use todana::{Db, KeyOrder, Records};
///
/// let db = Db::open("mem:tree")?;
/// for key in ["10", "9", "-1", "9.5"] {
///     db.set(&KeyOrder::Decimal.stored(key.as_bytes()), b"")?;
/// }
/// let stored: Vec<Vec<u8>> = db.iter().keys().collect::<Result<_, _>>()?;
/// let keys = stored.iter().map(|stored| KeyOrder::Decimal.original(stored));
/// let keys = keys.collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(keys, [&b"-1"[..], b"9", b"9.5", b"10"]);
/// # Ok::<(), todana::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyOrder {
    /// In descending order of the bytes (`lexdesc`).
    LexicalDescending,
    /// In ascending order of the decimal number at the start of the key. Spaces before the number,
    /// a sign and a fraction are accepted. Keys with equal numbers are in the order of their bytes
    /// (`dec`).
    Decimal,
    /// The reverse of `Decimal` (`decdesc`).
    DecimalDescending,
    /// In the order of a sort key that the program computes for each key ([`KeyOrder::stored_by`]).
    BySortKey,
}

impl KeyOrder {
    /// Returns the order for the name of a comparator of Kyoto Cabinet: `lexdesc`, `dec`,
    /// `decdesc`, or a longer form. Returns `None` for other names.
    pub fn of_comparator(name: &str) -> Option<KeyOrder> {
        match name {
            "lexdesc" | "lexicaldesc" | "lexicaldescending" => Some(KeyOrder::LexicalDescending),
            "dec" | "decimal" => Some(KeyOrder::Decimal),
            "decdesc" | "decimaldesc" | "decimaldescending" => Some(KeyOrder::DecimalDescending),
            _ => None,
        }
    }

    /// Returns the stored form of a key. An ordered database sorts these forms in this order. With
    /// [`KeyOrder::BySortKey`] the key itself is its sort key.
    pub fn stored(self, key: &[u8]) -> Vec<u8> {
        match self {
            KeyOrder::LexicalDescending => descending(key),
            KeyOrder::Decimal => decimal(key),
            KeyOrder::DecimalDescending => descending(&decimal(key)),
            KeyOrder::BySortKey => KeyOrder::stored_by(key, key),
        }
    }

    /// Returns the stored form of a key with a sort key. Keys with equal sort keys are in the order
    /// of their bytes. If a program computes another sort key for the same key later, it does not
    /// find the record.
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

    /// Returns the key that has this stored form. Fails with `Invalid` if no key has this form in
    /// this order.
    pub fn original(self, stored: &[u8]) -> Result<Vec<u8>> {
        let key = match self {
            KeyOrder::LexicalDescending => ascending(stored),
            KeyOrder::Decimal => after_number(stored).map(<[u8]>::to_vec),
            KeyOrder::DecimalDescending => {
                ascending(stored).and_then(|stored| Some(after_number(&stored)?.to_vec()))
            }
            KeyOrder::BySortKey => unescaped(stored).map(|(_, key)| key.to_vec()),
        };
        let key = key.filter(|key| self == KeyOrder::BySortKey || self.stored(key) == stored);
        key.ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("stored key: it does not have the form of the order {self:?}"),
            )
        })
    }
}

/// Encodes bytes so that their order is preserved and no result is a prefix of another one.
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

/// Decodes escaped bytes. Returns them and the bytes after them.
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

/// Returns the complement of the escaped bytes. The end mark sorts before everything else, so if
/// one key is a prefix of another, the longer one comes first.
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

/// The number of digits of a fraction that count, as in the original.
const FRACTION_DIGITS: usize = 15;

/// Returns the number at the start of a key: the integer part, limited to the range of the type,
/// and the digits after the decimal point.
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

/// Returns the bytes after the encoded number and fraction.
fn after_number(stored: &[u8]) -> Option<&[u8]> {
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

    /// Compares two keys as the comparators of Kyoto Cabinet do.
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
        fn arbitrary_bytes_are_refused_or_decoded(stored in key()) {
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
