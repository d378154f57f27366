//! The words of a line: what stands between spaces. Tabs and all other bytes are ordinary.

/// The words of a line that have not been taken yet.
#[derive(Clone, Copy)]
pub(super) struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    /// The words of these bytes.
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Words(bytes)
    }

    /// What has not been taken yet, from the next word on.
    #[inline]
    pub(super) fn rest(mut self) -> &'a [u8] {
        self.skip_spaces();
        self.0
    }

    /// Whether no word is left.
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

impl<'a> Iterator for Words<'a> {
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

/// How many bytes stand before the first space.
///
/// Eight bytes at a time: keys and numbers are too short for `memchr` to pay for its call.
#[inline]
pub(super) fn word_len(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let mut len = 0;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let chunk = u64::from_le_bytes(chunk.try_into().expect("chunks of 8"));
        let zero_where_space = chunk ^ (ONES * b' ' as u64);
        // The lowest set bit is exact; those above a hit may be false, but only the lowest counts.
        let hits = zero_where_space.wrapping_sub(ONES) & !zero_where_space & HIGHS;
        if hits != 0 {
            return len + hits.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    let tail = chunks.remainder();
    len + tail.iter().position(|&byte| byte == b' ').unwrap_or(tail.len())
}

/// The last word of a line, empty if there is none.
pub(super) fn last_word(line: &[u8]) -> &[u8] {
    let line = without_trailing_spaces(line);
    let start = line.iter().rposition(|&byte| byte == b' ').map_or(0, |at| at + 1);
    &line[start..]
}

/// Whether the last word is `noreply`. The caller sees to it that it is not the command or the key.
#[inline]
pub(super) fn ends_in_noreply(line: &[u8]) -> bool {
    without_trailing_spaces(line).ends_with(b" noreply")
}

/// A line up to its last word; blanks other than the space are ordinary bytes.
#[inline]
fn without_trailing_spaces(mut line: &[u8]) -> &[u8] {
    while let [before @ .., b' '] = line {
        line = before;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{Words, word_len};
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn eight_bytes_at_a_time_find_the_space_that_one_at_a_time_finds(
            // Around the space, where borrows between bytes would show.
            bytes in vec(prop_oneof![0x1fu8..0x22, any::<u8>(), 0x9fu8..0xa2], 0..40),
        ) {
            let plain = bytes.iter().position(|&byte| byte == b' ').unwrap_or(bytes.len());
            prop_assert_eq!(word_len(&bytes), plain);
        }

        #[test]
        fn words_are_those_of_split(bytes in vec(prop_oneof![Just(b' '), any::<u8>()], 0..60)) {
            let plain: Vec<&[u8]> = bytes.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
            prop_assert_eq!(Words::new(&bytes).collect::<Vec<_>>(), plain);
        }
    }
}
