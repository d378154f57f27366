//! Maps as they come in: names and values, found in a request without copying what stands there as it is meant.

use super::columns::{ColumnEncoding, decode_percent};
use memchr::{memchr, memchr2};

/// What decoding needs beside the input; one for each worker (or each request that is looked at at the same time), used
/// again and again.
#[derive(Debug, Default)]
pub struct MapScratch {
    entries: Vec<MapEntry>,
    /// What had to be decoded first.
    text: Vec<u8>,
    /// Whether each name among the entries is greater than the one before it.
    is_settled: bool,
}

/// What a scratch may keep between requests, in bytes of text, and in entries.
const KEPT_LEN: usize = 1 << 16;
const KEPT_ENTRIES: usize = 1 << 12;

/// A pair of a map.
#[derive(Clone, Copy, Debug)]
struct MapEntry {
    name: TextRange,
    value: TextRange,
}

/// A stretch of the input or of the scratch's text. Requests are bounded far below 2^31 bytes.
#[derive(Clone, Copy, Debug)]
struct TextRange {
    start: u32,
    len: u32,
}

/// Set in `start`: of the scratch's text.
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

/// Names and values, sorted by name, each name once.
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
    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a name; the time grows with the logarithm of the number of pairs.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        let (mut low, mut high) = (0, self.entries.len());
        // Few pairs are the rule, and comparing lengths first is cheaper than comparing.
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

    /// The pairs, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        let ParameterMap { entries, input, text } = *self;
        entries.iter().map(move |entry| (entry.name.get(input, text), entry.value.get(input, text)))
    }

    fn name_of(&self, entry: &MapEntry) -> &'a [u8] {
        entry.name.get(self.input, self.text)
    }
}

/// The making of a map. All offsets are those of the input that the map is to borrow from.
impl MapScratch {
    /// Nothing is in it; what a big request has made it take is given back.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.text.clear();
        if self.text.capacity() > KEPT_LEN {
            self.text = Vec::new();
        }
        if self.entries.capacity() > KEPT_ENTRIES {
            self.entries = Vec::new();
        }
        self.is_settled = true;
    }

    /// Its text alone, to put a request's body together in.
    pub(super) fn text_mut(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// The map that has been made, once [`settle`](Self::settle)d; and the text.
    pub(super) fn map<'a>(&'a self, input: &'a [u8]) -> (ParameterMap<'a>, &'a [u8]) {
        (ParameterMap { entries: &self.entries, input, text: &self.text }, &self.text)
    }

    /// Adds the pairs of a query or a form, of `input` if `of_input`, else of the text.
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

    /// Adds the pairs of a form that is a body, which the first NUL ends.
    pub(super) fn add_form_body(&mut self, input: &[u8], of_input: bool, start: usize, end: usize) {
        let body = if of_input { &input[start..end] } else { &self.text[start..end] };
        let end = memchr(0, body).map_or(end, |len| start + len);
        self.add_form(input, of_input, start, end);
    }

    /// Adds the lines of a TSV body, of `input` if `of_input`, else of the text.
    pub(super) fn add_tsv(&mut self, input: &[u8], of_input: bool, start: usize, end: usize) {
        let piece = if of_input { TextRange::of_input } else { TextRange::of_text };
        let mut at = start;
        while at < end {
            let rest = if of_input { &input[at..end] } else { &self.text[at..end] };
            let Some(len) = memchr2(b'\t', b'\n', rest) else { return };
            if rest[len] == b'\n' {
                // A line without a tab.
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

    /// Adds a pair of the input.
    pub(super) fn add(&mut self, input: &[u8], name: (usize, usize), value: (usize, usize)) {
        let entry = MapEntry {
            name: TextRange::of_input(name.0, name.1),
            value: TextRange::of_input(value.0, value.1),
        };
        self.push(input, entry);
    }

    /// Decodes every column that is there.
    pub(super) fn decode_columns(&mut self, input: &[u8], encoding: ColumnEncoding) {
        // Of equal names the last counts before they are decoded, and among those that become equal the greatest.
        self.settle(input);
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            let name = self.decode_piece(input, encoding, entry.name);
            let value = self.decode_piece(input, encoding, entry.value);
            self.entries[index] = MapEntry { name, value };
        }
        self.is_settled = false;
    }

    /// Sorts the pairs by name and leaves of equal names the last.
    pub(super) fn settle(&mut self, input: &[u8]) {
        if self.is_settled {
            return;
        }
        let text = &self.text;
        let name = |entry: &MapEntry| entry.name.get(input, text);
        if !self.entries.windows(2).all(|pair| name(&pair[0]) < name(&pair[1])) {
            // Stable, so the last of equal names stays the last.
            self.entries.sort_by(|one, other| name(one).cmp(name(other)));
            self.entries.dedup_by(|later, kept| {
                let is_same = name(later) == name(kept);
                if is_same {
                    kept.value = later.value;
                }
                is_same
            });
        }
        self.is_settled = true;
    }

    fn push(&mut self, input: &[u8], entry: MapEntry) {
        // Names that come again and again must not take memory each time; and room is made for as many as are left, so
        // that this sorting is rare.
        if self.entries.len() == self.entries.capacity()
            && self.entries.len() >= KEPT_ENTRIES
            && !self.is_settled
        {
            self.settle(input);
            self.entries.reserve(self.entries.len());
        }
        // Behind that: what has just been sorted ends with its greatest name.
        if self.is_settled
            && self
                .entries
                .last()
                .is_some_and(|last| last.name.get(input, &self.text) >= entry.name.get(input, &self.text))
        {
            self.is_settled = false;
        }
        self.entries.push(entry);
    }

    fn percent(&mut self, input: &[u8], of_input: bool, start: usize, end: usize) -> TextRange {
        let piece = if of_input { TextRange::of_input(start, end) } else { TextRange::of_text(start, end) };
        self.decode_piece(input, ColumnEncoding::Percent, piece)
    }

    /// A piece decoded: itself, if it says the same, else a new one in the text.
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

    /// Adds a percent-decoded text, and tells where it begins, if it says anything else than itself.
    pub(super) fn add_decoded(&mut self, encoded: &[u8]) -> Option<usize> {
        if ColumnEncoding::Percent.is_identity(encoded) {
            return None;
        }
        let start = self.text.len();
        decode_percent(encoded, &mut self.text);
        Some(start)
    }
}
