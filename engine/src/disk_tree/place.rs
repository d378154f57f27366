//! Converts keys to places and back. A place is the key of a record as LMDB stores it. LMDB's keys
//! have 1 to 511 bytes (docs/format/disk-tree.md, section 2).
//!
//! The place of a key that consists of zeros has one more zero, so that no place is empty. Every
//! other key is its own place. This preserves the order: keys of zeros come before all others, and
//! are ordered by their lengths.

use std::borrow::Cow;

/// The maximum length of an LMDB key. Places of at least this length are in groups of long keys.
pub(super) const PLACE_LEN_MAX: usize = 511;

/// Returns the place of a key.
#[inline]
pub(super) fn of_key(key: &[u8]) -> Cow<'_, [u8]> {
    if key.first().is_none_or(|&first| first == 0) && key.iter().all(|&byte| byte == 0) {
        return Cow::Owned(vec![0; key.len() + 1]);
    }
    Cow::Borrowed(key)
}

/// Returns the key of a place.
#[inline]
pub(super) fn to_key(place: &[u8]) -> &[u8] {
    if place.first() == Some(&0) && place.iter().all(|&byte| byte == 0) {
        return &place[..place.len() - 1];
    }
    place
}

/// Splits a place into its LMDB key and the remainder. The remainder is `None` if the place is too
/// short for a group of long keys.
#[inline]
pub(super) fn split(place: &[u8]) -> (&[u8], Option<&[u8]>) {
    match place.split_at_checked(PLACE_LEN_MAX) {
        Some((key, rest)) => (key, Some(rest)),
        None => (place, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![4 => Just(0u8), 1 => 0u8..3, 1 => any::<u8>()], 0..6)
    }

    proptest! {
        #[test]
        fn places_are_in_the_order_of_their_keys(a in key(), b in key()) {
            prop_assert_eq!(of_key(&a).cmp(&of_key(&b)), a.cmp(&b));
            let place = of_key(&a);
            prop_assert_eq!(to_key(&place), &a[..]);
            prop_assert!(!place.is_empty());
        }
    }
}
