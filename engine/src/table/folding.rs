//! Folded texts, as full-text searches compare them.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Returns the text in lower case, without accents, with characters of ordinary width, and with one
/// space for each run of blanks; blanks at both ends are dropped. Bytes that are not UTF-8 become
/// replacement characters.
pub fn fold(text: &[u8]) -> Vec<u8> {
    if text.is_ascii() {
        return joined(text.to_ascii_lowercase().split(is_blank));
    }
    let text = String::from_utf8_lossy(text);
    let folded: String =
        text.nfkd().filter(|&char| !is_combining_mark(char)).flat_map(char::to_lowercase).collect();
    let spaced = folded.replace(|char: char| char.is_whitespace(), " ");
    joined(spaced.as_bytes().split(is_blank))
}

fn is_blank(byte: &u8) -> bool {
    *byte <= b' ' || *byte == 0x7f
}

fn joined<'w>(words: impl Iterator<Item = &'w [u8]>) -> Vec<u8> {
    let mut text = Vec::new();
    for word in words.filter(|word| !word.is_empty()) {
        if !text.is_empty() {
            text.push(b' ');
        }
        text.extend_from_slice(word);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::fold;

    #[test]
    fn folded_text_ignores_case_accents_width_and_blanks() {
        assert_eq!(fold(b"  Hello\t\r\n World "), b"hello world");
        assert_eq!(fold("Ｔｏｄａｎａ　ÉCOLE Straße".as_bytes()), "todana ecole straße".as_bytes());
        assert_eq!(fold(b""), b"");
        assert_eq!(fold(b"\xff"), "\u{fffd}".as_bytes());
    }
}
