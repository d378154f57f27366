//! Translates extended POSIX regular expressions to the syntax of the crate `regex`. They match
//! bytes, and a bracket expression has no escapes.

/// The names of character classes.
const CLASSES: [&str; 12] = [
    "alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
    "xdigit",
];

/// Translates an extended POSIX pattern to the syntax of `bytes::Regex` of the crate `regex`. An
/// invalid pattern stays invalid.
///
/// ```
/// let regex = regex::bytes::Regex::new(&todana::kyoto::translate(b"[[:digit:]]+$")).unwrap();
/// assert!(regex.is_match(b"user:17"));
/// ```
pub fn translate(pattern: &[u8]) -> String {
    // A dot matches any byte, and each byte outside of ASCII is a character of its own, as without
    // a locale.
    let mut text = String::from("(?s-u)");
    let mut rest = pattern;
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'[' => rest = bracket(after, &mut text),
            b'\\' => {
                let Some((escaped, after)) = after.split_first() else {
                    text.push('\\');
                    break;
                };
                rest = after;
                match escaped {
                    b'w' | b'W' | b's' | b'S' | b'b' | b'B' | b'1'..=b'9' => {
                        text.push('\\');
                        text.push(char::from(*escaped));
                    }
                    b'<' => text.push_str(r"\b{start}"),
                    b'>' => text.push_str(r"\b{end}"),
                    b'`' => text.push_str(r"\A"),
                    b'\'' => text.push_str(r"\z"),
                    other => literal(*other, &mut text),
                }
            }
            byte if byte.is_ascii_graphic() || *byte == b' ' => text.push(char::from(*byte)),
            byte => literal(*byte, &mut text),
        }
    }
    text
}

/// Translates a bracket expression, of which `[` has been read. Returns the rest of the pattern.
fn bracket<'p>(mut rest: &'p [u8], text: &mut String) -> &'p [u8] {
    text.push('[');
    if let [b'^', after @ ..] = rest {
        text.push('^');
        rest = after;
    }
    let mut is_first = true;
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b']' if !is_first => {
                text.push(']');
                return rest;
            }
            b'[' if matches!(rest.first(), Some(b':')) => {
                let len = rest.windows(2).position(|two| two == b":]").map_or(0, |at| at + 2);
                let (class, after) = rest.split_at(len);
                let name =
                    class.get(1..len.saturating_sub(2)).and_then(|name| std::str::from_utf8(name).ok());
                match name.filter(|name| CLASSES.contains(name)) {
                    Some(name) => text.push_str(&format!("[:{name}:]")),
                    // An unknown class name is an error in the original. The range `z-a` makes the
                    // translated pattern invalid, too.
                    None => text.push_str("z-a"),
                }
                rest = after;
            }
            b'-' if !is_first && rest.first().is_some_and(|&next| next != b']') => text.push('-'),
            byte => literal(*byte, text),
        }
        is_first = false;
    }
    // The end of the bracket expression is missing, which makes the translated pattern invalid,
    // too.
    rest
}

/// Appends a byte that has no special meaning.
fn literal(byte: u8, text: &mut String) {
    if byte.is_ascii_alphanumeric() {
        text.push(char::from(byte));
    } else {
        text.push_str(&format!(r"\x{byte:02X}"));
    }
}

#[cfg(test)]
mod tests {
    use super::translate;

    #[test]
    fn posix_pattern_matches_like_the_original() {
        let cases: [(&[u8], &[u8], bool); 22] = [
            (b"^a.c$", b"a\nc", true),
            (b"^a.c$", b"a\xFFc", true),
            (b"^a.c$", b"abbc", false),
            (b"[a\\]$", b"\\", true),
            (b"[]x]", b"]", true),
            (b"[^]x]", b"x]", false),
            (b"[[:digit:]]{2}", b"a12", true),
            (b"[[:digit:]x]", b"x", true),
            (b"^[a-c]+$", b"abc", true),
            (b"[a-]", b"-", true),
            (b"[-a]", b"-", true),
            (b"[[a]", b"[", true),
            (b"[a&&b]", b"&", true),
            (b"\\.", b"a", false),
            (b"\\d", b"1", false),
            (b"\\d", b"d", true),
            ("é".as_bytes(), "né".as_bytes(), true),
            (b"\xE9", b"n\xE9", true),
            (b"[\xE9]", b"\xE9", true),
            (b"a|b", b"xb", true),
            (b"\\<b", b"a b", true),
            (b"(ab){2}", b"abab", true),
        ];
        for (pattern, key, matches) in cases {
            let regex = regex::bytes::Regex::new(&translate(pattern)).unwrap();
            assert_eq!(regex.is_match(key), matches, "{}, {}", pattern.escape_ascii(), key.escape_ascii());
        }
        for wrong in [&b"("[..], b"[a", b"[[:nope:]]", b"a\\", b"*", b"(a)\\1", b"[[:a"] {
            assert!(regex::bytes::Regex::new(&translate(wrong)).is_err(), "{}", wrong.escape_ascii());
        }
    }
}
