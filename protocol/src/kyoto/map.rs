//! Builds the parameter maps of requests. Names and values stay in the input and are not copied,
//! unless they need decoding.

use super::columns::{ColumnEncoding, decode_percent};
use memchr::{memchr, memchr2};

/// The memory in which a request is decoded, besides the input. It can be reused. Each worker needs
/// a scratch, or each request if several requests are decoded at the same time.
#[derive(Debug, Default)]
pub struct MapScratch {
    entries: Vec<MapEntry>,
    /// Decoded text.
    text: Vec<u8>,
    /// True if each name is greater than the previous one.
    is_sorted: bool,
}

/// The number of bytes of text whose memory is kept between requests. `KEPT_ENTRIES` is the same
/// for the number of entries.
const KEPT_LEN: usize = 1 << 16;
const KEPT_ENTRIES: usize = 1 << 12;

/// A pair of a map.
#[derive(Clone, Copy, Debug)]
struct MapEntry {
    name: TextRange,
    value: TextRange,
}

/// A range of the input or of the scratch's text. Requests are far shorter than 2^31 bytes.
#[derive(Clone, Copy, Debug)]
struct TextRange {
    start: u32,
    len: u32,
}

/// The bit in `start` that marks a range of the scratch's text.
const DECODED: u32 = 1 << 31;

impl TextRange {
    fn of_input(start: usize, end: usize) -> TextRange {
        TextRange { start: start as u32, len: (end - start) as u32 }
    }

    fn of_text(start: usize, end: usize) -> TextRange {
        TextRange { start: start as u32 | DECODED, len: (end - start) as u32 }
    }

    #[inline]
    fn get<'a>(self, input: &'a [u8], text: &'a [u8]) -> &'a [u8] {
        let (source, start) = match self.start & DECODED {
            0 => (input, self.start as usize),
            _ => (text, (self.start & !DECODED) as usize),
        };
        &source[start..start + self.len as usize]
    }
}

/// Names and values, sorted by name; each name occurs once.
#[derive(Clone, Copy, Default)]
pub struct ParameterMap<'a> {
    entries: &'a [MapEntry],
    input: &'a [u8],
    text: &'a [u8],
}

impl std::fmt::Debug for ParameterMap<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        f.debug_map().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

impl PartialEq for ParameterMap<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for ParameterMap<'_> {}

impl<'a> ParameterMap<'a> {
    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the value of a name, in logarithmic time.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        let (mut low, mut high) = (0, self.entries.len());
        // Most maps have few pairs, and comparing lengths first is cheaper than a binary search.
        if high <= 8 {
            let found = self.entries.iter().find(|entry| self.name_of(entry) == name)?;
            return Some(found.value.get(self.input, self.text));
        }
        while low < high {
            let middle = low.midpoint(high);
            match self.name_of(&self.entries[middle]).cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => {
                    return Some(self.entries[middle].value.get(self.input, self.text));
                }
            }
        }
        None
    }

    /// Returns the pairs, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        let ParameterMap { entries, input, text } = *self;
        entries.iter().map(move |entry| (entry.name.get(input, text), entry.value.get(input, text)))
    }

    fn name_of(&self, entry: &MapEntry) -> &'a [u8] {
        entry.name.get(self.input, self.text)
    }
}

/// Methods that build a map. All offsets refer to the input from which the map will borrow.
impl MapScratch {
    /// Removes all entries, and releases the memory of a large request.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.text.clear();
        if self.text.capacity() > KEPT_LEN {
            self.text = Vec::new();
        }
        if self.entries.capacity() > KEPT_ENTRIES {
            self.entries = Vec::new();
        }
        self.is_sorted = true;
    }

    /// Returns the text, in which a request's body can be assembled.
    pub(super) fn text_mut(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Returns the finished map and the text. [`sort_entries`](Self::sort_entries) must have been
    /// called before.
    pub(super) fn map<'a>(&'a self, input: &'a [u8]) -> (ParameterMap<'a>, &'a [u8]) {
        (ParameterMap { entries: &self.entries, input, text: &self.text }, &self.text)
    }

    /// Adds the pairs of a query or a form. The bytes from `start` to `end` are in `input` if
    /// `of_input` is true, otherwise in the text.
    pub(super) fn add_form(&mut self, input: &[u8], of_input: bool, start: usize, end: usize) {
        let mut at = start;
        while at < end {
            let rest = if of_input { &input[at..end] } else { &self.text[at..end] };
            let pair_end = at + memchr2(b'&', b';', rest).unwrap_or(rest.len());
            let pair = &rest[..pair_end - at];
            let from = at + pair.iter().take_while(|&&byte| (1..=b' ').contains(&byte)).count();
            at = pair_end + 1;
            if from == pair_end {
                continue;
            }
            let pair = if of_input { &input[from..pair_end] } else { &self.text[from..pair_end] };
            let split = memchr(b'=', pair).map(|at| from + at);
            let name = self.percent(input, of_input, from, split.unwrap_or(pair_end));
            let value = self.percent(input, of_input, split.map_or(pair_end, |split| split + 1), pair_end);
            self.push(input, MapEntry { name, value });
        }
    }

    /// Adds the pairs of a form in a body. The body ends at its first NUL.
    pub(super) fn add_form_body(&mut self, input: &[u8], of_input: bool, start: usize, end: usize) {
        let body = if of_input { &input[start..end] } else { &self.text[start..end] };
        let end = memchr(0, body).map_or(end, |len| start + len);
        self.add_form(input, of_input, start, end);
    }

    /// Adds the lines of a TSV body. The bytes from `start` to `end` are in `input` if `of_input`
    /// is true, otherwise in the text.
    pub(super) fn add_tsv(&mut self, input: &[u8], of_input: bool, start: usize, end: usize) {
        let piece = if of_input { TextRange::of_input } else { TextRange::of_text };
        let mut at = start;
        while at < end {
            let rest = if of_input { &input[at..end] } else { &self.text[at..end] };
            let Some(len) = memchr2(b'\t', b'\n', rest) else { return };
            if rest[len] == b'\n' {
                // A line without a tab is skipped.
                at += len + 1;
                continue;
            }
            let value_rest = &rest[len + 1..];
            let value_len = memchr(b'\n', value_rest).unwrap_or(value_rest.len());
            let value = value_rest[..value_len].strip_suffix(b"\r").unwrap_or(&value_rest[..value_len]);
            let value_at = at + len + 1;
            let entry =
                MapEntry { name: piece(at, at + len), value: piece(value_at, value_at + value.len()) };
            at = value_at + value_len + 1;
            self.push(input, entry);
        }
    }

    /// Adds a pair whose name and value are ranges of the input.
    pub(super) fn add(&mut self, input: &[u8], name: (usize, usize), value: (usize, usize)) {
        let entry = MapEntry {
            name: TextRange::of_input(name.0, name.1),
            value: TextRange::of_input(value.0, value.1),
        };
        self.push(input, entry);
    }

    /// Decodes all columns.
    pub(super) fn decode_columns(&mut self, input: &[u8], encoding: ColumnEncoding) {
        // Of equal names before decoding, the last value counts. Of names that become equal by
        // decoding, the value of the name that was greatest before decoding counts.
        self.sort_entries(input);
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            let name = self.decode_piece(input, encoding, entry.name);
            let value = self.decode_piece(input, encoding, entry.value);
            self.entries[index] = MapEntry { name, value };
        }
        self.is_sorted = false;
    }

    /// Sorts the pairs by name, and keeps only the last of several pairs with the same name.
    pub(super) fn sort_entries(&mut self, input: &[u8]) {
        if self.is_sorted {
            return;
        }
        let text = &self.text;
        let name = |entry: &MapEntry| entry.name.get(input, text);
        if !self.entries.windows(2).all(|pair| name(&pair[0]) < name(&pair[1])) {
            // The sort is stable, so the last pair with a name stays the last.
            self.entries.sort_by(|one, other| name(one).cmp(name(other)));
            self.entries.dedup_by(|later, kept| {
                let is_same = name(later) == name(kept);
                if is_same {
                    kept.value = later.value;
                }
                is_same
            });
        }
        self.is_sorted = true;
    }

    fn push(&mut self, input: &[u8], entry: MapEntry) {
        // A request that repeats a name must not use more memory for each repetition, so duplicates
        // are removed before the memory grows. Reserving as many entries as remain keeps this sort
        // rare.
        if self.entries.len() == self.entries.capacity()
            && self.entries.len() >= KEPT_ENTRIES
            && !self.is_sorted
        {
            self.sort_entries(input);
            self.entries.reserve(self.entries.len());
        }
        // This check comes after the sort, because the last entry then has the greatest name.
        if self.is_sorted
            && self
                .entries
                .last()
                .is_some_and(|last| last.name.get(input, &self.text) >= entry.name.get(input, &self.text))
        {
            self.is_sorted = false;
        }
        self.entries.push(entry);
    }

    fn percent(&mut self, input: &[u8], of_input: bool, start: usize, end: usize) -> TextRange {
        let piece = if of_input { TextRange::of_input(start, end) } else { TextRange::of_text(start, end) };
        self.decode_piece(input, ColumnEncoding::Percent, piece)
    }

    /// Returns the decoded text as a range: the same range if decoding does not change the text,
    /// otherwise a new range of the scratch's text.
    fn decode_piece(&mut self, input: &[u8], encoding: ColumnEncoding, piece: TextRange) -> TextRange {
        if encoding.is_identity(piece.get(input, &self.text)) {
            return piece;
        }
        let start = self.text.len();
        if piece.start & DECODED == 0 {
            encoding.decode(piece.get(input, &[]), &mut self.text);
        } else {
            let encoded = piece.get(input, &self.text).to_vec();
            encoding.decode(&encoded, &mut self.text);
        }
        TextRange::of_text(start, self.text.len())
    }

    /// Appends a percent-decoded text and returns the offset at which it begins. Returns `None` if
    /// decoding does not change the text.
    pub(super) fn add_decoded(&mut self, encoded: &[u8]) -> Option<usize> {
        if ColumnEncoding::Percent.is_identity(encoded) {
            return None;
        }
        let start = self.text.len();
        decode_percent(encoded, &mut self.text);
        Some(start)
    }
}
