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
    let line = line.trim_ascii_end_spaces();
    let start = line.iter().rposition(|&byte| byte == b' ').map_or(0, |at| at + 1);
    &line[start..]
}

/// Whether the last word is `noreply`. The caller sees to it that it is not the command or the key.
#[inline]
pub(super) fn ends_in_noreply(line: &[u8]) -> bool {
    let line = line.trim_ascii_end_spaces();
    line.ends_with(b" noreply")
}

trait TrimSpaces {
    /// Without trailing spaces; other blanks are ordinary bytes here.
    fn trim_ascii_end_spaces(&self) -> &[u8];
}

impl TrimSpaces for [u8] {
    #[inline]
    fn trim_ascii_end_spaces(&self) -> &[u8] {
        let mut rest = self;
        while let [before @ .., b' '] = rest {
            rest = before;
        }
        rest
    }
}
