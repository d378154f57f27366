//! Finds the shapes of keys in a sample.

use super::{FIELDS_MAX, KeyPart, KeyShape, KeyShapes, SHAPES_MAX, UUID_LEN, put_uuid};
use crate::hex_digits::is_hex_digit;
use rapidhash::RapidHashMap;
use std::cmp::Reverse;
use todana_core::decimal;

/// A shape is kept if at least one in this many sampled keys has it.
const KEYS_ONE_IN: usize = 64;
/// A common beginning of keys is used if at least one in this many keys has it.
const BEGINNINGS_ONE_IN: usize = 16;
/// The minimum number of bytes that a shape saves in each key, because a stored key names its
/// shape.
const SAVED_MIN: usize = 3;
/// The maximum number of punctuation marks of one key after which a common beginning may end.
const BEGINNINGS_MAX: usize = 16;
/// The minimum length of a hexadecimal field.
const HEX_LEN_MIN: usize = 8;
/// The maximum length of a hexadecimal field.
const HEX_LEN_MAX: usize = 128;

/// Returns the shapes of keys that are frequent in a sample and that have none of the known shapes,
/// the most useful first. The time grows with the total length of the keys, and with the number of
/// shapes.
pub fn find_shapes(keys: &[&[u8]], known: &KeyShapes) -> Vec<KeyShape> {
    let mut unknown: Vec<&[u8]> =
        keys.iter().copied().filter(|key| known.encode(key, &mut Vec::new()).is_none()).collect();
    let free = SHAPES_MAX - known.len();
    let mut found = by_fields(&unknown, keys.len() / KEYS_ONE_IN);
    found.truncate(free);
    unknown.retain(|key| !found.iter().any(|shape| shape.encode(key, &mut Vec::new())));
    let free = free - found.len();
    found.extend(by_beginning(unknown, keys.len() / BEGINNINGS_ONE_IN).into_iter().take(free));
    found
}

/// Returns the shapes with fields of digits that at least `keys_min` keys have.
fn by_fields(keys: &[&[u8]], keys_min: usize) -> Vec<KeyShape> {
    let mut counts: RapidHashMap<Vec<KeyPart>, (usize, usize)> = RapidHashMap::default();
    // The engines pack plain numbers anyway.
    for key in keys.iter().filter(|key| decimal::pack(key).is_none()) {
        let Some(parts) = divide(key) else { continue };
        let Some(shape) = KeyShape::new(parts.clone()) else { continue };
        let mut stored = Vec::new();
        if shape.encode(key, &mut stored) {
            let (count, saved) = counts.entry(parts).or_default();
            *count += 1;
            *saved += key.len().saturating_sub(stored.len());
        }
    }
    let is_useful = |(count, saved): (usize, usize)| count >= keys_min.max(2) && saved >= SAVED_MIN * count;
    let mut useful: Vec<(Vec<KeyPart>, usize)> = counts
        .into_iter()
        .filter(|&(_, counts)| is_useful(counts))
        .map(|(parts, (_, saved))| (parts, saved))
        .collect();
    useful.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
    useful.into_iter().filter_map(|(parts, _)| KeyShape::new(parts)).collect()
}

/// Returns the shapes of a common beginning, which ends with a punctuation mark, that at least
/// `keys_min` keys have.
fn by_beginning(mut keys: Vec<&[u8]>, keys_min: usize) -> Vec<KeyShape> {
    let mut found = Vec::new();
    loop {
        let mut counts: RapidHashMap<&[u8], usize> = RapidHashMap::default();
        for &key in &keys {
            let ends = key.iter().enumerate().filter(|(_, byte)| byte.is_ascii_punctuation());
            ends.take(BEGINNINGS_MAX).for_each(|(at, _)| *counts.entry(&key[..=at]).or_default() += 1);
        }
        let frequent =
            counts.into_iter().filter(|&(text, count)| count >= keys_min.max(2) && text.len() >= SAVED_MIN);
        let best = frequent.max_by_key(|&(text, count)| ((text.len() - 1) * count, text));
        let Some((text, _)) = best else { return found };
        found.extend(KeyShape::new(vec![KeyPart::Literal(text.into()), KeyPart::Rest]));
        keys.retain(|key| !key.starts_with(text));
    }
}

/// Divides a key into literals and fields. Returns `None` if it has no fields or too many.
fn divide(key: &[u8]) -> Option<Vec<KeyPart>> {
    let (mut parts, mut literal, mut fields, mut at) = (Vec::new(), Vec::new(), 0, 0);
    while at < key.len() {
        let digits = key[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let Some((field, len)) = field_at(key, at, digits) else {
            // Only the last digits of a long run are a field.
            let len = digits.saturating_sub(decimal::DIGITS_MAX).max(1);
            literal.extend_from_slice(&key[at..at + len]);
            at += len;
            continue;
        };
        if !literal.is_empty() {
            parts.push(KeyPart::Literal(std::mem::take(&mut literal).into()));
        }
        parts.push(field);
        fields += 1;
        if fields > FIELDS_MAX {
            return None;
        }
        at += len;
    }
    if !literal.is_empty() {
        parts.push(KeyPart::Literal(literal.into()));
    }
    (fields > 0).then_some(parts)
}

/// Returns the field that begins at `at`, and its length. `digits` is the number of digits there.
fn field_at(key: &[u8], at: usize, digits: usize) -> Option<(KeyPart, usize)> {
    // A hexadecimal field begins and ends with a word.
    let begins_word = at == 0 || !key[at - 1].is_ascii_alphanumeric();
    if begins_word {
        let is_uuid = |uuid: &[u8]| put_uuid(uuid, &mut Vec::new());
        if key.get(at..at + UUID_LEN).is_some_and(is_uuid) {
            return Some((KeyPart::Uuid, UUID_LEN));
        }
        let len = key[at..].iter().take_while(|&&byte| is_hex_digit(byte)).count();
        let run = &key[at..at + len];
        let ends_word = !key.get(at + len).is_some_and(u8::is_ascii_alphanumeric);
        let is_hex = (HEX_LEN_MIN..=HEX_LEN_MAX).contains(&len)
            && len.is_multiple_of(2)
            && ends_word
            && run.iter().any(u8::is_ascii_digit)
            && run.iter().any(u8::is_ascii_lowercase);
        if is_hex {
            return Some((KeyPart::Hex(len as u8), len));
        }
    }
    (1..=decimal::DIGITS_MAX).contains(&digits).then_some((KeyPart::Digits, digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(keys: &[String]) -> Vec<KeyShape> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        find_shapes(&keys, &KeyShapes::default())
    }

    fn literal(text: &str) -> KeyPart {
        KeyPart::Literal(text.as_bytes().into())
    }

    #[test]
    fn frequent_shapes_are_found() {
        let uuid = |n: u32| format!("session:{n:08x}-0000-4000-8000-{n:012x}");
        let words = ["tea", "salt", "rice"];
        let keys: Vec<String> = (0..300)
            .flat_map(|n| {
                let page = format!("page:/{}{}", words[n as usize % 3], words[n as usize / 7 % 3]);
                [format!("user:{n}:profile"), uuid(n), page]
            })
            .collect();
        let shapes = found(&keys);
        let expected = [
            vec![literal("session:"), KeyPart::Uuid],
            vec![literal("user:"), KeyPart::Digits, literal(":profile")],
            vec![literal("page:/"), KeyPart::Rest],
        ];
        let expected = expected.map(|parts| KeyShape::new(parts).unwrap());
        assert_eq!(shapes, expected);
    }

    #[test]
    fn known_and_rare_shapes_are_not_found() {
        let mut keys: Vec<String> = (0..500).map(|n| format!("user:{n}")).collect();
        keys.push("item:1".into());
        let mut known = KeyShapes::default();
        let shapes = found(&keys);
        assert_eq!(shapes.len(), 1);
        shapes.into_iter().for_each(|shape| known.add(shape));
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        assert_eq!(find_shapes(&keys, &known), []);
    }

    #[test]
    fn random_keys_have_no_shape() {
        let mut random = fastrand::Rng::with_seed(3);
        let keys: Vec<String> = (0..500).map(|_| (0..12).map(|_| random.lowercase()).collect()).collect();
        assert_eq!(found(&keys), []);
        assert_eq!(found(&[]), []);
    }

    /// A long run of digits was once searched again from each of its bytes, and each beginning up
    /// to a punctuation mark was counted. This test then took hours.
    #[test]
    fn long_keys_are_divided_in_one_pass() {
        let digits = |n: u64| format!("{}{}", "7".repeat(1 << 20), 100_000 + n);
        let marks = |n: u64| format!("{}{n}", "/".repeat(1 << 20));
        let shapes = found(&(0..4).map(digits).collect::<Vec<_>>());
        let (beginning, field) = (literal(&"7".repeat((1 << 20) - 13)), KeyPart::Digits);
        assert_eq!(shapes, [KeyShape::new(vec![beginning, field]).unwrap()]);
        let shapes = found(&(0..4).map(marks).collect::<Vec<_>>());
        let (beginning, field) = (literal(&"/".repeat(1 << 20)), KeyPart::Digits);
        assert_eq!(shapes, [KeyShape::new(vec![beginning, field]).unwrap()]);
        let keys: Vec<String> = (0..4).map(|_| "/".repeat(1 << 20)).collect();
        let shapes = found(&keys);
        let beginning = literal(&"/".repeat(BEGINNINGS_MAX));
        assert_eq!(shapes, [KeyShape::new(vec![beginning, KeyPart::Rest]).unwrap()]);
    }

    #[test]
    fn plain_numbers_need_no_shape() {
        let keys: Vec<String> = (0..500).map(|n: u64| (n << 33).to_string()).collect();
        assert_eq!(found(&keys), []);
    }
}
