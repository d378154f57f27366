//! Writes a number with its noun, for messages.

/// Returns a number with its noun: `1 record`, `2 records`, `2 entries`.
pub(crate) fn amount(number: u64, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        for (number, noun, expected) in
            [(0, "record", "0 records"), (1, "record", "1 record"), (2, "entry", "2 entries")]
        {
            assert_eq!(amount(number, noun), expected);
        }
    }
}
