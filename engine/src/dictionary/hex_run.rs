//! Finds runs of hexadecimal digits, such as hashes and random tokens, which are stored
//! packed. They rarely repeat, so a token with a text would not shorten them.

use crate::hex_digits::is_hex_digit;
use std::ops::Range;

/// The minimum length of a run. Shorter runs are left to other tokens.
pub(super) const HEX_LEN_MIN: usize = 8;
/// The maximum length of a run.
pub(super) const HEX_LEN_MAX: usize = 128;

/// The lengths of runs that have a token.
#[derive(Debug, Default)]
pub(super) struct HexRuns {
    /// The number of digits and the token of each length.
    lens: Vec<(usize, u16)>,
}

impl HexRuns {
    pub(super) fn add(&mut self, digits: usize, token: u16) {
        self.lens.push((digits, token));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Returns the first run from `from` on whose length has a token, and the token.
    #[inline]
    pub(super) fn next(&self, text: &[u8], mut from: usize) -> Option<(Range<usize>, u16)> {
        loop {
            let run = next_run(text, from)?;
            if let Some(&(_, token)) = self.lens.iter().find(|(digits, _)| *digits == run.len()) {
                return Some((run, token));
            }
            from = run.end;
        }
    }
}

/// Returns the next run of at least `HEX_LEN_MIN` digits from `from` on that has an even length and
/// contains a letter. Numbers are not such runs: the beginning of a number often repeats, and then
/// other tokens are shorter.
#[inline]
pub(super) fn next_run(text: &[u8], from: usize) -> Option<Range<usize>> {
    // A run of this length contains every eighth byte, so the others need not be read.
    let mut probe = from + HEX_LEN_MIN - 1;
    while probe < text.len() {
        if !is_hex_digit(text[probe]) {
            probe += HEX_LEN_MIN;
            continue;
        }
        let before = text[from..probe].iter().rev().take_while(|&&byte| is_hex_digit(byte)).count();
        let after = text[probe..].iter().take_while(|&&byte| is_hex_digit(byte)).count();
        let run = probe - before..probe + after;
        let is_suitable = (HEX_LEN_MIN..=HEX_LEN_MAX).contains(&run.len())
            && run.len().is_multiple_of(2)
            && text[run.clone()].iter().any(|byte| *byte >= b'a');
        if is_suitable {
            return Some(run);
        }
        probe = run.end + HEX_LEN_MIN;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Finds runs by looking at every byte.
    fn plain_next_run(text: &[u8], from: usize) -> Option<Range<usize>> {
        let mut start = from;
        while start < text.len() {
            let len = text[start..].iter().take_while(|&&byte| is_hex_digit(byte)).count();
            let run = start..start + len;
            let has_letter = text[run.clone()].iter().any(u8::is_ascii_lowercase);
            if (HEX_LEN_MIN..=HEX_LEN_MAX).contains(&len) && len % 2 == 0 && has_letter {
                return Some(run);
            }
            start = run.end + 1;
        }
        None
    }

    proptest! {
        #[test]
        fn runs_are_those_of_the_plain_search(text in "([0-9a-f]{0,20}[gG :]?){0,8}") {
            let (mut from, mut runs) = (0, 0);
            while let Some(run) = next_run(text.as_bytes(), from) {
                prop_assert_eq!(Some(run.clone()), plain_next_run(text.as_bytes(), from));
                from = run.end;
                runs += 1;
                prop_assert!(runs <= text.len());
            }
            prop_assert_eq!(plain_next_run(text.as_bytes(), from), None);
        }
    }

    #[test]
    fn numbers_and_odd_runs_are_not_found() {
        for text in ["1234567890", "abcdefa", "abcdef123", "ABCDEF12", ""] {
            assert_eq!(next_run(text.as_bytes(), 0), None, "{text}");
        }
        assert_eq!(next_run(b"id=deadbeef;", 0), Some(3..11));
    }
}
