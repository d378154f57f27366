//! Parses numbers at the start of a text, as the original tools do.

/// Returns the number at the start of a text, or 0 if there is none.
pub(super) fn number_in(text: &str) -> f64 {
    let text = text.trim_start();
    let ends = (1..=text.len()).rev().filter(|&end| text.is_char_boundary(end));
    ends.map(|end| &text[..end]).find_map(|text| text.parse().ok()).unwrap_or(0.0)
}

/// Returns the integer at the start of a text, or 0 if there is none.
pub(super) fn whole_in(text: &str) -> i64 {
    todana_protocol::memcached::plugin::number(text.trim_start().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{number_in, whole_in};

    #[test]
    fn numbers_end_where_their_text_does() {
        for (text, number) in
            [("5", 5.0), (" -2.25x", -2.25), (".5", 0.5), ("x", 0.0), ("", 0.0), ("1e3", 1000.0)]
        {
            assert_eq!(number_in(text), number, "{text:?}");
        }
        assert_eq!([whole_in(" -7x"), whole_in("x"), whole_in("12.9")], [-7, 0, 12]);
    }
}
