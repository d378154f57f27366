//! Shapes of keys: the text that many keys have in common, and the kinds of the fields between.
//!
//! ```text
//! user:1234567:profile          = "user:" digits ":profile"      stored: 3 bytes
//! session:01234567-89ab-...     = "session:" uuid                stored: 16 bytes
//! page:/articles/how-to-swim    = "page:/articles/" rest         stored: 11 bytes
//!
//! stored key = field ...
//! field      = digits, if it is the last field    packed number, little-endian, without zeros
//!            | digits                             packed number, LEB128
//!            | hex of n digits                    n / 2 bytes
//!            | uuid                               16 bytes
//!            | rest                               the bytes as they are
//! ```
//!
//! Invariants: a key has one stored form at most in a shape, and different keys have different
//! ones. Shapes are only added, and a key has the first shape that matches, so its shape never
//! changes once it has one.
//!
//! Not here: buckets and hashes. A key is hashed as text, so that its bucket does not depend on
//! shapes.

mod finding;

pub use finding::find_shapes;

use crate::hex_digits::{hex_digits_of, is_hex_digit, pack_hex};
use todana_core::decimal;

/// The maximum number of shapes.
pub const SHAPES_MAX: usize = 255;
/// The maximum number of fields of a shape.
const FIELDS_MAX: usize = 4;
/// The length of a UUID as text.
const UUID_LEN: usize = 36;
/// The offsets of the hyphens in a UUID.
const UUID_HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// The bytes of each group of digits.
const UUID_GROUPS: [std::ops::Range<usize>; 5] = [0..4, 4..6, 6..8, 8..10, 10..16];

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeyPart {
    /// This text.
    Literal(Box<[u8]>),
    /// One to 19 decimal digits.
    Digits,
    /// This number of lower-case hexadecimal digits, which is even.
    Hex(u8),
    /// A UUID in lower case.
    Uuid,
    /// Any bytes, up to the end of the key.
    Rest,
}

/// A shape of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyShape {
    parts: Box<[KeyPart]>,
    /// The index of the last field.
    last_field: usize,
}

impl KeyShape {
    /// Creates a shape. Literals and fields alternate, and there must be a field. `Rest` must be
    /// the last part.
    pub(crate) fn new(parts: Vec<KeyPart>) -> Option<KeyShape> {
        let is_field = |part: &KeyPart| !matches!(part, KeyPart::Literal(_));
        let last_field = parts.iter().rposition(is_field)?;
        let fields = parts.iter().filter(|part| is_field(part)).count();
        let rest_is_last = parts.iter().rev().skip(1).all(|part| *part != KeyPart::Rest);
        // Digits that follow another field could belong to either.
        let is_divided = parts.windows(2).all(|pair| is_field(&pair[0]) != is_field(&pair[1]));
        let is_valid = fields <= FIELDS_MAX && rest_is_last && is_divided;
        is_valid.then_some(KeyShape { parts: parts.into(), last_field })
    }

    /// Appends the stored form of a key. Returns false, and appends nothing, if the key has another
    /// shape.
    #[inline]
    pub fn encode(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        let from = out.len();
        let matches = self.encode_parts(key, out).is_some();
        if !matches {
            out.truncate(from);
        }
        matches
    }

    #[inline]
    fn encode_parts(&self, key: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let mut rest = key;
        for (index, part) in self.parts.iter().enumerate() {
            rest = match part {
                KeyPart::Literal(text) => rest.strip_prefix(&**text)?,
                KeyPart::Digits => {
                    let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                    let (digits, after) = rest.split_at(len);
                    let number = decimal::pack(digits)?;
                    if index == self.last_field {
                        out.extend_from_slice(&number.to_le_bytes()[..decimal::byte_len(number)]);
                    } else {
                        crate::record::put_varint(out, number);
                    }
                    after
                }
                KeyPart::Hex(len) => {
                    let (digits, after) = rest.split_at_checked(usize::from(*len))?;
                    // A longer run has another length, and so another shape.
                    if after.first().copied().is_some_and(is_hex_digit) {
                        return None;
                    }
                    pack_hex(digits, out).then_some(after)?
                }
                KeyPart::Uuid => {
                    let (uuid, after) = rest.split_at_checked(UUID_LEN)?;
                    put_uuid(uuid, out).then_some(after)?
                }
                KeyPart::Rest => {
                    out.extend_from_slice(rest);
                    &[]
                }
            }
        }
        rest.is_empty().then_some(())
    }

    /// Appends the key with a stored form. Returns false if no key has this form; `key` may then
    /// have additional bytes.
    #[inline]
    pub fn decode(&self, stored: &[u8], key: &mut Vec<u8>) -> bool {
        self.decode_parts(stored, key).is_some()
    }

    #[inline]
    fn decode_parts(&self, stored: &[u8], key: &mut Vec<u8>) -> Option<()> {
        let mut rest = stored;
        for (index, part) in self.parts.iter().enumerate() {
            match part {
                KeyPart::Literal(text) => key.extend_from_slice(text),
                KeyPart::Digits if index == self.last_field => {
                    let number = little_endian(rest)?;
                    if number > decimal::NUMBER_MAX || decimal::byte_len(number) != rest.len() {
                        return None;
                    }
                    key.extend_from_slice(decimal::unpack(number, &mut [0; 20]));
                    rest = &[];
                }
                KeyPart::Digits => {
                    let (number, after) = varint(rest)?;
                    key.extend_from_slice(decimal::unpack(number, &mut [0; 20]));
                    rest = after;
                }
                KeyPart::Hex(len) => {
                    let (packed, after) = rest.split_at_checked(usize::from(*len) / 2)?;
                    put_digits(packed, key);
                    rest = after;
                }
                KeyPart::Uuid => {
                    let (packed, after) = rest.split_first_chunk::<16>()?;
                    for (group, range) in UUID_GROUPS.into_iter().enumerate() {
                        if group > 0 {
                            key.push(b'-');
                        }
                        put_digits(&packed[range], key);
                    }
                    rest = after;
                }
                KeyPart::Rest => {
                    key.extend_from_slice(rest);
                    rest = &[];
                }
            }
        }
        rest.is_empty().then_some(())
    }

    /// Returns true if `stored` is the stored form of a key.
    #[inline]
    pub fn is_form_of(&self, stored: &[u8], key: &[u8]) -> bool {
        self.strip_parts(stored, key) == Some(())
    }

    #[inline]
    fn strip_parts(&self, stored: &[u8], key: &[u8]) -> Option<()> {
        let (mut rest, mut unseen) = (stored, key);
        for (index, part) in self.parts.iter().enumerate() {
            unseen = match part {
                KeyPart::Literal(text) => unseen.strip_prefix(&**text)?,
                KeyPart::Digits => {
                    let number;
                    (number, rest) = if index == self.last_field {
                        (little_endian(rest)?, &[][..])
                    } else {
                        varint(rest)?
                    };
                    if number > decimal::NUMBER_MAX {
                        return None;
                    }
                    unseen.strip_prefix(decimal::unpack(number, &mut [0; 20]))?
                }
                KeyPart::Hex(len) => {
                    let packed;
                    (packed, rest) = rest.split_at_checked(usize::from(*len) / 2)?;
                    strip_digits(unseen, packed)?
                }
                KeyPart::Uuid => {
                    let packed;
                    (packed, rest) = rest.split_first_chunk::<16>()?;
                    for (group, range) in UUID_GROUPS.into_iter().enumerate() {
                        if group > 0 {
                            unseen = unseen.strip_prefix(b"-")?;
                        }
                        unseen = strip_digits(unseen, &packed[range])?;
                    }
                    unseen
                }
                KeyPart::Rest => {
                    let unseen = unseen.strip_prefix(rest)?;
                    rest = &[];
                    unseen
                }
            };
        }
        (rest.is_empty() && unseen.is_empty()).then_some(())
    }

    /// Returns true if keys of this shape can begin with a byte.
    fn may_begin_with(&self, byte: u8) -> bool {
        match &self.parts[0] {
            KeyPart::Literal(text) => text.first() == Some(&byte),
            KeyPart::Digits => byte.is_ascii_digit(),
            KeyPart::Hex(_) | KeyPart::Uuid => is_hex_digit(byte),
            KeyPart::Rest => true,
        }
    }
}

fn little_endian(bytes: &[u8]) -> Option<u64> {
    (1..=8).contains(&bytes.len()).then(|| crate::record::number_of(bytes))
}

/// Returns a packed number and the bytes after it. Returns `None` if it is incomplete, not of the
/// shortest form, or not that of a text.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (mut number, mut shift) = (0u64, 0);
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7F);
        number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
        if byte < 0x80 {
            let is_shortest = byte != 0 || index == 0;
            return (is_shortest && number <= decimal::NUMBER_MAX).then(|| (number, &bytes[index + 1..]));
        }
        shift += 7;
    }
    None
}

/// Appends a UUID, which must have the right length. Returns false if it is none.
#[inline]
fn put_uuid(uuid: &[u8], out: &mut Vec<u8>) -> bool {
    let mut digits = [0; 32];
    let mut to = &mut digits[..];
    for range in [0..8, 9..13, 14..18, 19..23, 24..36] {
        let (group, rest) = to.split_at_mut(range.len());
        group.copy_from_slice(&uuid[range]);
        to = rest;
    }
    UUID_HYPHENS.iter().all(|&at| uuid[at] == b'-') && pack_hex(&digits, out)
}

fn put_digits(packed: &[u8], key: &mut Vec<u8>) {
    packed.iter().for_each(|&byte| key.extend_from_slice(&hex_digits_of(byte)));
}

/// Returns the text after the digits of bytes. Returns `None` if it does not begin with them.
#[inline]
fn strip_digits<'t>(text: &'t [u8], packed: &[u8]) -> Option<&'t [u8]> {
    let (digits, rest) = text.split_at_checked(2 * packed.len())?;
    let are_equal =
        packed.iter().zip(digits.as_chunks::<2>().0).all(|(&byte, pair)| hex_digits_of(byte) == *pair);
    are_equal.then_some(rest)
}

/// The shapes of a database.
#[derive(Clone, Debug, Default)]
pub struct KeyShapes {
    shapes: Vec<KeyShape>,
    /// For each first byte, the numbers of the shapes of keys that can begin with it. Empty if
    /// there are no shapes.
    by_first: Vec<Vec<u8>>,
}

impl KeyShapes {
    /// Creates an empty set.
    pub const fn new() -> KeyShapes {
        KeyShapes { shapes: Vec::new(), by_first: Vec::new() }
    }

    /// Adds a shape, unless there are too many.
    pub fn add(&mut self, shape: KeyShape) {
        let Some(number) =
            u8::try_from(self.shapes.len()).ok().filter(|&number| usize::from(number) < SHAPES_MAX)
        else {
            return;
        };
        self.by_first.resize(256, Vec::new());
        for (first, numbers) in (0..=u8::MAX).zip(&mut self.by_first) {
            if shape.may_begin_with(first) {
                numbers.push(number);
            }
        }
        self.shapes.push(shape);
    }

    /// Returns the shape with a number.
    #[inline]
    pub fn get(&self, number: u8) -> Option<&KeyShape> {
        self.shapes.get(usize::from(number))
    }

    /// Returns the number of shapes.
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Returns true if there are no shapes.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Appends the stored form of a key. Returns the number of its shape, or `None` if it has none.
    #[inline]
    pub fn encode(&self, key: &[u8], out: &mut Vec<u8>) -> Option<u8> {
        let numbers = self.by_first.get(usize::from(*key.first()?))?;
        numbers.iter().copied().find(|&number| self.shapes[usize::from(number)].encode(key, out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn literal(text: &str) -> KeyPart {
        KeyPart::Literal(text.as_bytes().into())
    }

    fn shape(parts: &[KeyPart]) -> KeyShape {
        KeyShape::new(parts.to_vec()).unwrap()
    }

    fn stored(shape: &KeyShape, key: &str) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        shape.encode(key.as_bytes(), &mut out).then_some(out)
    }

    fn shapes() -> Vec<KeyShape> {
        vec![
            shape(&[literal("user:"), KeyPart::Digits, literal(":profile")]),
            shape(&[literal("session:"), KeyPart::Uuid]),
            shape(&[
                literal("rate:"),
                KeyPart::Digits,
                literal("."),
                KeyPart::Digits,
                literal("."),
                KeyPart::Digits,
                literal("."),
                KeyPart::Digits,
            ]),
            shape(&[KeyPart::Hex(16), literal("/"), KeyPart::Rest]),
            shape(&[literal("page:"), KeyPart::Rest]),
        ]
    }

    #[test]
    fn stored_keys_are_as_short_as_their_fields() {
        let [user, session, rate, hex, page] = &shapes()[..] else { panic!("five") };
        assert_eq!(stored(user, "user:7:profile"), Some(vec![7]));
        assert_eq!(stored(user, "user:1234567:profile").map(|stored| stored.len()), Some(3));
        let uuid = stored(session, "session:01234567-89ab-4def-8123-456789abcdef").unwrap();
        assert_eq!(
            uuid,
            [1, 0x23, 0x45, 0x67, 0x89, 0xab, 0x4d, 0xef, 0x81, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]
        );
        assert_eq!(stored(rate, "rate:1.2.3.4"), Some(vec![1, 2, 3, 4]));
        assert_eq!(stored(hex, "00000000000000ff/x"), Some(vec![0, 0, 0, 0, 0, 0, 0, 255, b'x']));
        assert_eq!(stored(page, "page:"), Some(vec![]));
    }

    #[test]
    fn keys_of_other_shapes_are_refused() {
        let [user, session, rate, hex, _] = &shapes()[..] else { panic!("five") };
        for key in [
            "",
            "user:",
            "user::profile",
            "user:1:profil",
            "user:1:profile2",
            "user:12345678901234567890:profile",
        ] {
            assert_eq!(stored(user, key), None, "{key}");
        }
        for key in
            ["session:01234567-89AB-4def-8123-456789abcdef", "session:0123456789ab-4def-8123-456789abcdef0"]
        {
            assert_eq!(stored(session, key), None, "{key}");
        }
        assert_eq!((stored(rate, "rate:1.2.3"), stored(hex, "00000000000000ff0/")), (None, None));
    }

    #[test]
    fn shapes_with_ambiguous_parts_are_refused() {
        for parts in [
            vec![],
            vec![literal("a")],
            vec![KeyPart::Digits, KeyPart::Digits],
            vec![KeyPart::Rest, literal("a")],
            vec![literal("a"), literal("b"), KeyPart::Digits],
        ] {
            assert_eq!(KeyShape::new(parts.clone()), None, "{parts:?}");
        }
    }

    #[test]
    fn first_matching_shape_is_taken() {
        let mut shapes = KeyShapes::default();
        shapes.add(shape(&[literal("user:"), KeyPart::Digits]));
        shapes.add(shape(&[literal("user:"), KeyPart::Rest]));
        let number = |key: &str| shapes.encode(key.as_bytes(), &mut Vec::new());
        assert_eq!([number("user:1"), number("user:x"), number("other")], [Some(0), Some(1), None]);
        assert_eq!((number(""), shapes.len()), (None, 2));
    }

    fn key() -> impl Strategy<Value = String> {
        prop_oneof![
            "user:[0-9]{1,20}:profile",
            "session:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "rate:[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,19}",
            "[0-9a-f]{16}/.{0,10}",
            "page:.{0,20}",
            "[a-f0-9:.]{0,20}",
        ]
    }

    proptest! {
        #[test]
        fn every_key_comes_back(key in key()) {
            for shape in shapes() {
                let Some(stored) = stored(&shape, &key) else { continue };
                let mut decoded = Vec::new();
                prop_assert!(shape.decode(&stored, &mut decoded));
                prop_assert_eq!(&decoded, key.as_bytes());
                prop_assert!(shape.is_form_of(&stored, key.as_bytes()));
                decoded[0] ^= 1;
                prop_assert!(!shape.is_form_of(&stored, &decoded));
                prop_assert!(!shape.is_form_of(&stored, &key.as_bytes()[1..]));
            }
        }

        #[test]
        fn hostile_stored_key_is_refused_or_exact(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            for shape in shapes() {
                let mut key = Vec::new();
                if shape.decode(&bytes, &mut key) {
                    prop_assert!(shape.is_form_of(&bytes, &key));
                    let mut stored = Vec::new();
                    // A run of digits that follows a hexadecimal one can continue it.
                    if shape.encode(&key, &mut stored) {
                        prop_assert_eq!(&stored, &bytes);
                    }
                }
            }
        }
    }
}
