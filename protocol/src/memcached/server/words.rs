//! Splits a line into words, which are separated by spaces. Tabs and all other bytes are ordinary
//! bytes.

/// The remaining words of a line.
#[derive(Clone, Copy)]
pub(super) struct LineWords<'a>(&'a [u8]);

impl<'a> LineWords<'a> {
    /// Creates the words of these bytes.
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        LineWords(bytes)
    }

    /// Returns the remaining bytes, beginning with the next word.
    #[inline]
    pub(super) fn rest(mut self) -> &'a [u8] {
        self.skip_spaces();
        self.0
    }

    /// Returns true if no word is left.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    #[inline]
    fn skip_spaces(&mut self) {
        while let [b' ', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }
}

impl<'a> Iterator for LineWords<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.skip_spaces();
        if self.0.is_empty() {
            return None;
        }
        let (word, rest) = self.0.split_at(word_len(self.0));
        self.0 = rest;
        Some(word)
    }
}

/// Returns the number of bytes before the first space.
///
/// Examines eight bytes at a time. Keys and numbers are so short that a call of `memchr` costs more
/// than it saves.
#[inline]
pub(super) fn word_len(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let mut len = 0;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let chunk = u64::from_le_bytes(chunk.try_into().expect("chunks of 8"));
        let zero_where_space = chunk ^ (ONES * b' ' as u64);
        // The lowest set bit always marks a space. Higher bits may be wrong, but only the lowest
        // bit counts.
        let hits = zero_where_space.wrapping_sub(ONES) & !zero_where_space & HIGHS;
        if hits != 0 {
            return len + hits.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    let tail = chunks.remainder();
    len + tail.iter().position(|&byte| byte == b' ').unwrap_or(tail.len())
}

/// Returns the last word of a line, or an empty word if there is none.
pub(super) fn last_word(line: &[u8]) -> &[u8] {
    let line = without_trailing_spaces(line);
    let start = line.iter().rposition(|&byte| byte == b' ').map_or(0, |at| at + 1);
    &line[start..]
}

/// Returns true if the last word is `noreply`. The caller must ensure that this word is not the
/// command or the key.
#[inline]
pub(super) fn ends_in_noreply(line: &[u8]) -> bool {
    without_trailing_spaces(line).ends_with(b" noreply")
}

/// Returns the line up to its last word. Blanks other than the space are ordinary bytes.
#[inline]
pub(super) fn without_trailing_spaces(mut line: &[u8]) -> &[u8] {
    while let [before @ .., b' '] = line {
        line = before;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{LineWords, word_len};
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn word_len_agrees_with_a_plain_search(
            // Most of these bytes are close to the space, where a wrong borrow between bytes would
            // show.
            bytes in vec(prop_oneof![0x1fu8..0x22, any::<u8>(), 0x9fu8..0xa2], 0..40),
        ) {
            let plain = bytes.iter().position(|&byte| byte == b' ').unwrap_or(bytes.len());
            prop_assert_eq!(word_len(&bytes), plain);
        }

        #[test]
        fn words_agree_with_split(bytes in vec(prop_oneof![Just(b' '), any::<u8>()], 0..60)) {
            let plain: Vec<&[u8]> = bytes.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
            prop_assert_eq!(LineWords::new(&bytes).collect::<Vec<_>>(), plain);
        }
    }
}
