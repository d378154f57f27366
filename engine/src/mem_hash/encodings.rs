//! Defines the dictionaries and key shapes with which a hash stores its records.
//!
//! A group of records names its shape and its dictionary by their numbers (see `group`); 0 means
//! that keys or values are stored as they are. While new encodings are installed, some shards still
//! have the old ones. A number means the same in both while a record refers to it.

use super::key::HashSeeds;
use crate::dictionary::{SAMPLED_LEN_MAX, TrainedDictionary, VALUE_LEN_MAX};
use crate::key_shape::{KeyShape, KeyShapes};
use std::cell::Cell;
use std::ops::AddAssign;
use std::sync::Arc;
use todana_core::EncodingStatus;

/// The kinds of values that have dictionaries of their own, by length.
pub(super) const VALUE_CLASSES: usize = 3;
/// The minimum lengths of the values of each class but the first.
const CLASS_LENS: [usize; VALUE_CLASSES - 1] = [400, SAMPLED_LEN_MAX];
/// The maximum number of dictionaries of one class that exist at the same time. The older ones
/// exist until no record refers to them.
const VERSIONS_MAX: usize = 3;
const DICTIONARIES_MAX: usize = VALUE_CLASSES * VERSIONS_MAX;
/// A buffer longer than this is freed after use.
const RETAINED_MAX: usize = 128 << 10;

/// Returns the class of values of this length.
#[inline]
pub(super) fn value_class(len: usize) -> usize {
    CLASS_LENS.iter().filter(|&&min| len >= min).count()
}

/// The dictionaries and key shapes of a hash. They do not change: others replace them.
#[derive(Clone)]
pub(super) struct RecordEncodings {
    shapes: KeyShapes,
    /// The dictionary with number n is at index n - 1.
    dictionaries: [Option<Arc<TrainedDictionary>>; DICTIONARIES_MAX],
    /// The numbers of the dictionaries for new values; 0 for none.
    current: [u8; VALUE_CLASSES],
}

impl RecordEncodings {
    /// Creates encodings that store records as they are.
    pub(super) const fn new() -> RecordEncodings {
        RecordEncodings {
            shapes: KeyShapes::new(),
            dictionaries: [const { None }; DICTIONARIES_MAX],
            current: [0; VALUE_CLASSES],
        }
    }

    pub(super) fn shapes(&self) -> &KeyShapes {
        &self.shapes
    }

    /// Returns the dictionary for new values of a class.
    pub(super) fn current(&self, class: usize) -> Option<&TrainedDictionary> {
        self.dictionary(self.current[class])
    }

    /// Returns the dictionary with a number.
    #[inline]
    pub(super) fn dictionary(&self, number: u8) -> Option<&TrainedDictionary> {
        self.dictionaries.get(usize::from(number).wrapping_sub(1))?.as_deref()
    }

    /// Returns the numbers for the status of the engine.
    pub(super) fn status(&self) -> EncodingStatus {
        let dictionaries = || self.dictionaries.iter().flatten();
        EncodingStatus {
            key_shapes: self.shapes.len() as u64,
            dictionaries: dictionaries().count() as u64,
            dictionary_bytes: dictionaries().map(|dictionary| dictionary.memory_bytes() as u64).sum(),
            ..EncodingStatus::default()
        }
    }

    /// Appends the stored form of a key. Returns the number of its shape, or 0 if it has none; then
    /// nothing is appended.
    #[inline]
    pub(super) fn put_key(&self, key: &[u8], out: &mut Vec<u8>) -> u8 {
        self.shapes.encode(key, out).map_or(0, |shape| shape + 1)
    }

    /// Appends the key that `stored` encodes in this shape.
    #[inline]
    pub(super) fn append_key(&self, shape: u8, stored: &[u8], key: &mut Vec<u8>) {
        let is_key = self.shape(shape).decode(stored, key);
        debug_assert!(is_key);
    }

    /// Returns the key that `stored` encodes in this shape.
    #[inline]
    pub(super) fn key<'a>(&self, shape: u8, stored: &[u8], buffer: &'a mut PlainBuffer) -> &'a [u8] {
        let text = buffer.text();
        text.clear();
        self.append_key(shape, stored, text);
        text
    }

    /// Returns true if `stored` encodes this key in this shape.
    #[inline]
    pub(super) fn is_key(&self, shape: u8, stored: &[u8], key: &[u8]) -> bool {
        self.shape(shape).is_form_of(stored, key)
    }

    /// Returns the length of the key that `stored` encodes in this shape.
    #[inline]
    pub(super) fn key_len(&self, shape: u8, stored: &[u8]) -> usize {
        self.key(shape, stored, &mut PlainBuffer::default()).len()
    }

    fn shape(&self, shape: u8) -> &KeyShape {
        self.shapes.get(shape - 1).expect("shapes of stored keys exist")
    }

    /// Appends the stored form of a value. Returns the number of its dictionary, or 0 if it has
    /// none; then the value is appended as it is.
    #[inline]
    pub(super) fn put_value(&self, value: &[u8], out: &mut Vec<u8>) -> u8 {
        self.put_encoded(value, out, |dictionary, out| dictionary.encode(value, out))
    }

    /// Does what `put_value` does for the value of a stored record, which has the form of the
    /// dictionary `old`.
    pub(super) fn put_value_again(&self, value: &[u8], old: u8, out: &mut Vec<u8>) -> u8 {
        self.put_encoded(value, out, |dictionary, out| dictionary.encode_again(value, old != 0, out))
    }

    #[inline]
    fn put_encoded(
        &self,
        value: &[u8],
        out: &mut Vec<u8>,
        encode: impl FnOnce(&TrainedDictionary, &mut Vec<u8>) -> bool,
    ) -> u8 {
        let number = self.current[value_class(value.len())];
        match self.dictionary(number) {
            Some(dictionary) if encode(dictionary, out) => number,
            _ => {
                out.extend_from_slice(value);
                0
            }
        }
    }

    /// Returns the stored form of a value and the number of its dictionary, or the value and 0.
    /// `old` is the present dictionary if the value is that of a stored record.
    pub(super) fn stored_value<'a>(
        &self,
        value: &'a [u8],
        old: Option<u8>,
        buffer: &'a mut PlainBuffer,
    ) -> (&'a [u8], u8) {
        if !self.may_shorten(value.len()) {
            return (value, 0);
        }
        let stored = buffer.text();
        stored.clear();
        let dictionary = match old {
            None => self.put_value(value, stored),
            Some(old) => self.put_value_again(value, old, stored),
        };
        (stored, dictionary)
    }

    /// Returns true if a value should be encoded outside of the lock of a shard.
    pub(super) fn is_slow_for(&self, value: &[u8]) -> bool {
        let class = value_class(value.len());
        class == VALUE_CLASSES - 1
            && self.current(class).is_some_and(|dictionary| dictionary.is_slow_for(value))
    }

    /// Returns true if there is a dictionary for values of this length.
    #[inline]
    pub(super) fn may_shorten(&self, value_len: usize) -> bool {
        value_len <= VALUE_LEN_MAX && self.current[value_class(value_len)] != 0
    }

    /// Returns the value that `stored` encodes.
    #[inline]
    pub(super) fn value<'a>(
        &self,
        dictionary: u8,
        stored: &'a [u8],
        buffer: &'a mut PlainBuffer,
    ) -> &'a [u8] {
        if dictionary == 0 { stored } else { self.decoded(dictionary, stored, buffer) }
    }

    /// Returns the value that `stored` encodes with this dictionary, which must not be 0.
    #[inline]
    pub(super) fn decoded<'a>(&self, dictionary: u8, stored: &[u8], buffer: &'a mut PlainBuffer) -> &'a [u8] {
        let dictionary = self.dictionary(dictionary).expect("dictionaries of stored values exist");
        dictionary.decode(stored, buffer.text()).expect("stored values are intact")
    }

    /// Returns the length of the value that `stored` encodes.
    #[inline]
    pub(super) fn value_len(&self, dictionary: u8, stored: &[u8]) -> usize {
        if dictionary == 0 {
            return stored.len();
        }
        let dictionary = self.dictionary(dictionary).expect("dictionaries of stored values exist");
        dictionary.decoded_len(stored).expect("stored values are intact")
    }

    /// Returns true if values of this dictionary need no recoding: new values use it, or it is 0
    /// and no class has one.
    #[inline]
    pub(super) fn is_current(&self, dictionary: u8) -> bool {
        if dictionary == 0 { self.current == [0; VALUE_CLASSES] } else { self.current.contains(&dictionary) }
    }

    /// Adds a dictionary for new values of a class. Returns false if too many older ones are in
    /// use.
    pub(super) fn adopt(&mut self, class: usize, dictionary: TrainedDictionary) -> bool {
        let slots = &mut self.dictionaries[class * VERSIONS_MAX..][..VERSIONS_MAX];
        let Some(index) = slots.iter().position(Option::is_none) else { return false };
        slots[index] = Some(Arc::new(dictionary));
        self.current[class] = (class * VERSIONS_MAX + index + 1) as u8;
        true
    }

    /// Adds a shape for new keys.
    pub(super) fn add_shape(&mut self, shape: KeyShape) {
        self.shapes.add(shape);
    }

    /// Removes the dictionaries that are not used for new values. No record may refer to them.
    pub(super) fn drop_old(&mut self) {
        for (number, dictionary) in (1..).zip(&mut self.dictionaries) {
            if !self.current.contains(&number) {
                *dictionary = None;
            }
        }
    }
}

/// A value, and its stored form, for a write that is repeated with it.
pub(super) struct EncodedValue {
    encodings: Arc<RecordEncodings>,
    value: Box<[u8]>,
    stored: Vec<u8>,
    dictionary: u8,
}

impl EncodedValue {
    pub(super) fn new(value: Box<[u8]>, encodings: Arc<RecordEncodings>) -> EncodedValue {
        let mut stored = Vec::new();
        let dictionary = encodings.put_value(&value, &mut stored);
        EncodedValue { encodings, value, stored, dictionary }
    }

    /// Returns the stored form and the number of its dictionary, or 0, if the value has this form
    /// with these encodings.
    pub(super) fn form_of(&self, value: &[u8], encodings: &Arc<RecordEncodings>) -> Option<(&[u8], u8)> {
        let is_form = Arc::ptr_eq(&self.encodings, encodings) && *self.value == *value;
        is_form.then_some((&self.stored, self.dictionary))
    }
}

/// The plain and the stored size of the records that were written to buckets and blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WrittenBytes {
    pub(super) plain: u64,
    pub(super) stored: u64,
}

impl WrittenBytes {
    /// Returns what was written after `earlier`.
    pub(super) fn since(self, earlier: WrittenBytes) -> WrittenBytes {
        WrittenBytes { plain: self.plain - earlier.plain, stored: self.stored - earlier.stored }
    }
}

impl AddAssign for WrittenBytes {
    fn add_assign(&mut self, more: WrittenBytes) {
        self.plain += more.plain;
        self.stored += more.stored;
    }
}

/// The encodings of records that are stored as they are.
pub(super) static PLAIN_ENCODINGS: RecordEncodings = RecordEncodings::new();

/// The secrets and the encodings by which records are read.
#[derive(Clone, Copy)]
pub(super) struct RecordContext<'a> {
    pub(super) seeds: &'a HashSeeds,
    pub(super) encodings: &'a RecordEncodings,
}

impl<'a> RecordContext<'a> {
    /// Returns the context of records that are stored as they are.
    pub(super) fn plain(seeds: &'a HashSeeds) -> RecordContext<'a> {
        RecordContext { seeds, encodings: &PLAIN_ENCODINGS }
    }
}

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A buffer for a key or a value as text. Long text takes the buffer of this thread on first use,
/// and returns it on drop.
#[derive(Default)]
pub(super) struct PlainBuffer {
    pub(super) digits: [u8; 20],
    text: Vec<u8>,
}

impl PlainBuffer {
    #[inline]
    fn text(&mut self) -> &mut Vec<u8> {
        if self.text.capacity() == 0 {
            // A thread that is ending has no buffer any more.
            self.text = BUFFER.try_with(Cell::take).unwrap_or_default();
        }
        &mut self.text
    }
}

impl Drop for PlainBuffer {
    #[inline]
    fn drop(&mut self) {
        if (1..=RETAINED_MAX).contains(&self.text.capacity()) {
            let text = std::mem::take(&mut self.text);
            let _ = BUFFER.try_with(|buffer| buffer.set(text));
        }
    }
}
