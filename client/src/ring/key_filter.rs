//! Selects the part of a key that a ring hashes.

use super::RingError;

/// Selects the part of a key that is hashed. The key itself is sent as it is.
///
/// First the first matching prefix of `hash-without` is removed, then the part between the two
/// characters of `hash-tag` is selected, and then what precedes `hash-stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFilter {
    without: Vec<Vec<u8>>,
    tag: Option<[u8; 2]>,
    stop: Vec<u8>,
}

impl KeyFilter {
    /// Creates a filter. An empty text disables its part. Fails if a tag does not have two bytes.
    pub fn new(tag: &str, stop: &str, without: &[String]) -> Result<KeyFilter, RingError> {
        let tag = match *tag.as_bytes() {
            [] => None,
            [opening, closing] => Some([opening, closing]),
            _ => return Err(RingError(format!("hash tag {tag:?}: must be two characters, as {{}}"))),
        };
        if without.iter().any(String::is_empty) {
            return Err(RingError("hash-without: a prefix is empty".into()));
        }
        let without = without.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
        Ok(KeyFilter { without, tag, stop: stop.as_bytes().to_vec() })
    }

    /// Returns the part of a key that is hashed. An empty tag, as in `{}key`, selects the empty
    /// part if `with_empty_tags`, and otherwise the complete key.
    #[inline]
    pub fn hashed_part<'k>(&self, key: &'k [u8], with_empty_tags: bool) -> &'k [u8] {
        let mut part = key;
        if let Some(rest) = self.without.iter().find_map(|prefix| part.strip_prefix(&prefix[..])) {
            part = rest;
        }
        if let Some([opening, closing]) = self.tag
            && let Some(start) = part.iter().position(|byte| *byte == opening)
            && let Some(len) = part[start + 1..].iter().position(|byte| *byte == closing)
            && (len > 0 || with_empty_tags)
        {
            part = &part[start + 1..][..len];
        }
        if !self.stop.is_empty()
            && let Some(end) = part.windows(self.stop.len()).position(|window| window == self.stop)
        {
            part = &part[..end];
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_part_follows_tag_stop_and_prefix() {
        let filter = KeyFilter::new("{}", "|#|", &["app1:".into(), "app".into()]).unwrap();
        for (key, part) in [
            ("key", "key"),
            ("{u1}:name", "u1"),
            ("x{u2}y{z}", "u2"),
            ("{}empty", "{}empty"),
            ("{open", "{open"),
            ("}{a}", "a"),
            ("route|#|rest", "route"),
            ("{a|#|b}", "a"),
            ("app1:key", "key"),
            ("app2:{t}", "t"),
            ("", ""),
        ] {
            assert_eq!(filter.hashed_part(key.as_bytes(), false), part.as_bytes(), "{key}");
        }
        assert_eq!(filter.hashed_part(b"{}empty", true), b"");
        let same = KeyFilter::new("$$", "", &[]).unwrap();
        assert_eq!(same.hashed_part(b"$tag$a", false), b"tag");
        for tag in ["{", "{}}", "\u{e9}x"] {
            assert!(KeyFilter::new(tag, "", &[]).unwrap_err().to_string().contains("two characters"));
        }
        assert!(KeyFilter::new("", "", &[String::new()]).is_err());
    }
}
