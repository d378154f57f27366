//! Dictionaries, with which values that resemble each other are stored in few bytes.
//!
//! ```text
//! sample          values of one kind; the training of a dictionary on most of them, and its trial
//! token_training  chooses the tokens of a dictionary
//! tokens          encodes a value as a sequence of tokens
//! matcher         finds the longest token with which a text begins
//! hex_run         finds runs of hexadecimal digits
//! frames          encodes a value as a frame of zstd
//! ```
//!
//! Values up to about 400 bytes become tokens, which are decoded in about 1 ns for each byte of the
//! stored form. Frames of zstd are smaller for longer values.
//!
//! Not here: which dictionary a stored value needs, and the time at which dictionaries are trained.

mod frames;
mod hex_run;
mod matcher;
mod sample;
mod token_training;
mod tokens;

use frames::{FrameDictionary, FrameEffort};
pub(crate) use frames::{decode_chunk, encode_chunk};
pub use sample::{SAMPLE_BYTES_MAX, SAMPLED_LEN_MAX, SampleTraining, TrainingSample, TrainingStep};
use tokens::TokenDictionary;

/// Shorter values are not encoded.
pub const VALUE_LEN_MIN: usize = 8;
/// Longer values are not encoded.
pub const VALUE_LEN_MAX: usize = 64 << 10;
/// Encoding must save one of this many parts of a value.
const VALUE_GAIN_PARTS: usize = 16;

/// A dictionary for values of one kind.
///
/// ```
/// use todana_engine::dictionary::{SampleTraining, TrainingStep, TrainingSample};
///
/// let city = |n: u64| ["Oslo", "Lima", "Kyoto"][n as usize % 3];
/// let value = |n: u64| format!(r#"{{"id":{n},"city":"{}"}}"#, city(n));
/// let mut sample = TrainingSample::default();
/// (0..1000).for_each(|n| assert!(sample.push(value(n * 37).as_bytes())));
/// let mut training = SampleTraining::new(sample).expect("enough values");
/// let dictionary = loop {
///     match training.step(None) {
///         TrainingStep::Working => {}
///         TrainingStep::Useful(dictionary) => break dictionary,
///         TrainingStep::Useless => panic!("the values resemble each other"),
///     }
/// };
/// let (mut stored, mut buffer) = (Vec::new(), Vec::new());
/// assert!(dictionary.encode(value(7).as_bytes(), &mut stored));
/// assert!(stored.len() < 8);
/// assert_eq!(dictionary.decode(&stored, &mut buffer), Some(value(7).as_bytes()));
/// ```
pub struct TrainedDictionary {
    form: StoredForm,
}

enum StoredForm {
    Tokens(TokenDictionary),
    Frames(FrameDictionary),
}

impl TrainedDictionary {
    /// Appends the stored form of a value. Returns false and appends nothing if that form would be
    /// hardly shorter than the value, or if the value has been compressed before. Long values that
    /// seem to be noise are left alone as well; whether they seem so depends on the values before.
    #[inline]
    pub fn encode(&self, value: &[u8], out: &mut Vec<u8>) -> bool {
        self.encode_with(value, FrameEffort::Low, out)
    }

    /// Does what `encode` does for a value that is already stored. The result does not depend on
    /// other values. `is_encoded` states that the value has a form of another dictionary, so that
    /// it is no noise.
    pub fn encode_again(&self, value: &[u8], is_encoded: bool, out: &mut Vec<u8>) -> bool {
        let effort = if is_encoded { FrameEffort::High } else { FrameEffort::Medium };
        self.encode_with(value, effort, out)
    }

    /// Returns true if `encode` would take much longer than to copy the value.
    pub(crate) fn is_slow_for(&self, value: &[u8]) -> bool {
        match &self.form {
            StoredForm::Tokens(_) => false,
            StoredForm::Frames(frames) => !is_compressed(value) && !frames.skips_next(value.len()),
        }
    }

    #[inline]
    fn encode_with(&self, value: &[u8], effort: FrameEffort, out: &mut Vec<u8>) -> bool {
        if !(VALUE_LEN_MIN..=VALUE_LEN_MAX).contains(&value.len()) || is_compressed(value) {
            return false;
        }
        let len_max = value.len() - value.len() / VALUE_GAIN_PARTS - 1;
        match &self.form {
            StoredForm::Tokens(tokens) => tokens.encode(value, len_max, out),
            StoredForm::Frames(frames) => frames.encode(value, len_max, effort, out),
        }
    }

    /// Decodes a stored form into a buffer, which grows as needed, and returns the value. Returns
    /// `None` if the stored form is damaged.
    #[inline]
    pub fn decode<'b>(&self, stored: &[u8], buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        match &self.form {
            StoredForm::Tokens(tokens) => tokens.decode(stored, VALUE_LEN_MAX, buffer),
            StoredForm::Frames(frames) => frames.decode(stored, VALUE_LEN_MAX, buffer),
        }
    }

    /// Returns the length of the value, or `None` if the stored form is damaged in a way that its
    /// length shows.
    #[inline]
    pub fn decoded_len(&self, stored: &[u8]) -> Option<usize> {
        match &self.form {
            StoredForm::Tokens(tokens) => tokens.decoded_len(stored),
            StoredForm::Frames(_) => frames::content_len(stored),
        }
        .filter(|len| *len <= VALUE_LEN_MAX)
    }

    /// Returns the memory that the dictionary takes.
    pub fn memory_bytes(&self) -> usize {
        match &self.form {
            StoredForm::Tokens(tokens) => tokens.memory_bytes(),
            StoredForm::Frames(frames) => frames.memory_bytes(),
        }
    }

    /// Returns the level of a dictionary of zstd.
    pub fn level(&self) -> Option<i32> {
        if let StoredForm::Frames(frames) = &self.form { Some(frames.level()) } else { None }
    }

    /// Returns the number of tokens, or 0 for a dictionary of zstd.
    pub fn tokens(&self) -> usize {
        match &self.form {
            StoredForm::Tokens(tokens) => tokens.tokens(),
            StoredForm::Frames(_) => 0,
        }
    }
}

/// Returns true if a value begins as the usual formats of compressed data do: gzip, zstd, xz,
/// bzip2, LZ4, snappy, zip, PNG, JPEG, GIF, WebP.
fn is_compressed(value: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 11] = [
        b"\x1f\x8b\x08",
        b"\x28\xb5\x2f\xfd",
        b"\xfd7zXZ\x00",
        b"BZh",
        b"\x04\x22\x4d\x18",
        b"\xff\x06\x00\x00sNaPpY",
        b"PK\x03\x04",
        b"\x89PNG\r\n",
        b"\xff\xd8\xff",
        b"GIF8",
        b"RIFF",
    ];
    // Most texts begin with none of these bytes.
    matches!(value.first(), Some(0x1f | 0x28 | 0xfd | b'B' | 0x04 | 0xff | b'P' | 0x89 | b'G' | b'R'))
        && BEGINNINGS.iter().any(|beginning| value.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::token_training::TokenTraining;
    use super::*;
    use proptest::prelude::*;
    use std::ops::Range;

    /// Returns values one after another, and the range of each.
    fn concatenated(values: &[Vec<u8>]) -> (Vec<u8>, Vec<Range<usize>>) {
        let mut sample = Vec::new();
        let mut push = |value: &Vec<u8>| {
            sample.extend_from_slice(value);
            sample.len() - value.len()..sample.len()
        };
        let ranges = values.iter().map(&mut push).collect();
        (sample, ranges)
    }

    /// Returns a dictionary of tokens for these values, whether it is useful or not.
    fn tokens(values: &[Vec<u8>]) -> TrainedDictionary {
        let (sample, ranges) = concatenated(values);
        let mut training = TokenTraining::new(&sample, &ranges);
        let tokens = (0..100).find_map(|_| training.step(&sample));
        TrainedDictionary { form: StoredForm::Tokens(tokens.expect("the training ends")) }
    }

    fn frames(values: &[Vec<u8>]) -> TrainedDictionary {
        let (sample, ranges) = concatenated(values);
        let content = frames::train(&sample, &ranges).expect("enough values");
        TrainedDictionary { form: StoredForm::Frames(FrameDictionary::new(&content, 3).unwrap()) }
    }

    /// Trains on a sample. Returns `None` if no dictionary is better than the current one.
    fn train(sample: TrainingSample, current: Option<&TrainedDictionary>) -> Option<TrainedDictionary> {
        let mut training = SampleTraining::new(sample)?;
        loop {
            match training.step(current) {
                TrainingStep::Working => {}
                TrainingStep::Useless => return None,
                TrainingStep::Useful(dictionary) => return Some(*dictionary),
            }
        }
    }

    /// Returns values that resemble each other, with hexadecimal runs.
    fn documents(count: u64) -> Vec<Vec<u8>> {
        let document = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            let colour = ["red", "green", "blue"][random.usize(..3)];
            let id = random.u128(..);
            format!(r#"{{"id":{seed},"colour":"{colour}","hash":"{id:032x}","weight":{}}}"#, random.u16(..))
        };
        (0..count).map(|seed| document(seed).into_bytes()).collect()
    }

    /// Checks that a value comes back if it is encoded. Returns the length of its stored form.
    fn round_trip(dictionary: &TrainedDictionary, value: &[u8]) -> Option<usize> {
        let (mut out, mut buffer) = (b"before".to_vec(), vec![0xAA; 3]);
        if !dictionary.encode(value, &mut out) {
            assert_eq!(out, b"before");
            return None;
        }
        let stored = &out[b"before".len()..];
        assert!(stored.len() < value.len());
        assert_eq!(dictionary.decode(stored, &mut buffer), Some(value));
        assert_eq!(dictionary.decoded_len(stored), Some(value.len()));
        Some(stored.len())
    }

    /// Checks that any bytes are decoded to some value or refused.
    fn decode_any(dictionary: &TrainedDictionary, stored: &[u8]) {
        let mut buffer = Vec::new();
        if let Some(value) = dictionary.decode(stored, &mut buffer) {
            assert_eq!(dictionary.decoded_len(stored), Some(value.len()));
        }
        assert!(buffer.len() <= VALUE_LEN_MAX + 1024);
    }

    #[test]
    fn similar_values_become_much_shorter() {
        let (training, others) = (documents(2000), documents(2200).split_off(2000));
        let dictionary = tokens(&training);
        let stored = others.iter().map(|value| round_trip(&dictionary, value).expect("similar"));
        // The 32 hexadecimal digits take 16 bytes, and the two numbers some more.
        let (stored, len) = (stored.sum::<usize>(), others.iter().map(Vec::len).sum::<usize>());
        assert!((17 * others.len()..len / 2).contains(&stored), "{stored} of {len}");
    }

    #[test]
    fn frames_come_back() {
        let dictionary = frames(&documents(2000));
        for value in documents(2100).split_off(2000) {
            assert!(round_trip(&dictionary, &value).is_some());
        }
        let long = documents(500).concat();
        assert!(long.len() > 40_000 && round_trip(&dictionary, &long).is_some());
    }

    /// Found by fuzzing: the length was checked only after text, so a value that ended with a run
    /// of digits was sometimes stored in more bytes than its own.
    #[test]
    fn digits_after_noise_do_not_lengthen_a_value() {
        let dictionary = tokens(&documents(2000));
        for noise in 0..64u8 {
            let value: Vec<u8> =
                (0..noise).map(|n| 0x80 | n).chain(*b"0123456789abcdef0123456789abcdef").collect();
            let stored = round_trip(&dictionary, &value);
            assert_eq!(stored.is_some(), noise < 13, "{noise}: {stored:?}");
        }
    }

    #[test]
    fn long_noise_is_left_alone() {
        let dictionary = frames(&documents(2000));
        let text = documents(300).concat();
        let mut random = fastrand::Rng::with_seed(3);
        let mut noise = |_| -> Vec<u8> { (0..30_000).map(|_| random.u8(..)).collect() };
        assert!(round_trip(&dictionary, &text).is_some());
        assert!((0..100).map(&mut noise).all(|value| round_trip(&dictionary, &value).is_none()));
        // After that noise, only some values are probed, until one of them becomes shorter. A value
        // that is already stored is always probed.
        assert!(dictionary.encode_again(&text, false, &mut Vec::new()));
        assert!((0..3).map(&mut noise).all(|value| round_trip(&dictionary, &value).is_none()));
        let skipped = (0..32).find(|_| round_trip(&dictionary, &text).is_some());
        assert!(skipped.is_some_and(|skipped| (1..16).contains(&skipped)), "{skipped:?}");
        assert!(round_trip(&dictionary, &text).is_some());
        // Noise after a beginning that is not.
        let value = [&text[..2048], &noise(0)].concat();
        assert!(round_trip(&dictionary, &value).is_none());
        // The beginning of an encoded value does not matter.
        let value = [&noise(0)[..2048], &text[..]].concat();
        assert!(!dictionary.encode_again(&value, false, &mut Vec::new()));
        assert!(dictionary.encode_again(&value, true, &mut Vec::new()));
    }

    #[test]
    fn long_values_have_frames_and_a_level() {
        let long = |from: usize| documents(5000)[from..].concat();
        let mut sample = TrainingSample::default();
        (0..256).for_each(|n| assert!(sample.push(&long(n * 15))));
        let dictionary = train(sample, None).expect("similar");
        assert!(matches!(dictionary.level(), Some(1 | 3 | 6)) && dictionary.tokens() == 0);
        let value = &long(77)[..60_000];
        assert!(round_trip(&dictionary, value).is_some_and(|stored| stored < 30_000));
    }

    #[test]
    fn degenerate_samples_yield_working_dictionaries() {
        let mut random = fastrand::Rng::with_seed(1);
        let noise: Vec<Vec<u8>> = (0..300).map(|_| (0..40).map(|_| random.u8(..)).collect()).collect();
        let samples: [Vec<Vec<u8>>; 7] = [
            vec![],
            vec![vec![]; 300],
            vec![b"the only value".to_vec()],
            vec![vec![7; 3000]; 300],
            noise.clone(),
            (0..300u32).map(|n| format!("{:08x}", n.wrapping_mul(0x9E37_79B9)).into_bytes()).collect(),
            vec![(0..=255).collect(); 300],
        ];
        for sample in samples {
            let dictionary = tokens(&sample);
            for value in sample.iter().chain(&noise[..10]).chain(&documents(10)) {
                round_trip(&dictionary, value);
            }
            assert!(dictionary.memory_bytes() < 200 << 10, "{}", dictionary.memory_bytes());
        }
        let repeated = tokens(&vec![vec![7; 3000]; 300]);
        assert!(round_trip(&repeated, &[7; 3000]).is_some_and(|stored| stored < 40));
    }

    #[test]
    fn noise_and_small_samples_have_no_dictionary() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut noise = TrainingSample::default();
        for _ in 0..2000 {
            noise.push(&(0..50).map(|_| random.u8(..)).collect::<Vec<u8>>());
        }
        assert!(train(noise, None).is_none());
        let mut few = TrainingSample::default();
        documents(200).iter().for_each(|value| assert!(few.push(value)));
        assert!(train(few, None).is_none());
        assert!(train(TrainingSample::default(), None).is_none());
    }

    #[test]
    fn new_dictionary_must_beat_the_current_one() {
        let sample = |documents: Vec<Vec<u8>>| {
            let mut sample = TrainingSample::default();
            documents.iter().for_each(|value| assert!(sample.push(value)));
            sample
        };
        let current = train(sample(documents(2000)), None).expect("similar");
        assert!(train(sample(documents(2000)), Some(&current)).is_none());
        let others: Vec<Vec<u8>> =
            documents(2000).iter().map(|value| value.iter().map(u8::to_ascii_uppercase).collect()).collect();
        assert!(train(sample(others), Some(&current)).is_some());
    }

    #[test]
    fn full_sample_refuses_values() {
        let mut sample = TrainingSample::default();
        // Only the beginning of a long value is sampled.
        for _ in 0..SAMPLE_BYTES_MAX / SAMPLED_LEN_MAX {
            assert!(sample.push(&vec![0; 3 * SAMPLED_LEN_MAX]));
        }
        assert!(!sample.push(b"one more") && sample.len_bytes() == SAMPLE_BYTES_MAX);
    }

    #[test]
    fn training_is_repeatable() {
        let encode = || {
            let mut out = Vec::new();
            let dictionary = tokens(&documents(1000));
            documents(1010).iter().for_each(|value| assert!(dictionary.encode(value, &mut out)));
            out
        };
        assert_eq!(encode(), encode());
    }

    #[test]
    fn compressed_values_are_left_alone() {
        let mut values = documents(1000);
        values.iter_mut().for_each(|value| drop(value.splice(0..0, *b"\x1f\x8b\x08")));
        let dictionary = tokens(&values);
        assert_eq!(round_trip(&dictionary, &values[0]), None);
        assert!(round_trip(&dictionary, &values[0][1..]).is_some());
        assert_eq!(round_trip(&dictionary, b"short"), None);
    }

    #[test]
    fn damaged_values_are_refused() {
        for dictionary in [tokens(&documents(1000)), frames(&documents(1000))] {
            let (mut stored, mut buffer) = (Vec::new(), Vec::new());
            assert!(dictionary.encode(&documents(3)[2], &mut stored));
            for len in 0..stored.len() {
                decode_any(&dictionary, &stored[..len]);
            }
            for bit in 0..stored.len() * 8 {
                let mut damaged = stored.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                decode_any(&dictionary, &damaged);
            }
            // A value of many tokens is longer than any value may be.
            let bomb = vec![stored[0]; 1 << 20];
            assert_eq!(dictionary.decode(&bomb, &mut buffer), None);
            assert!(dictionary.decoded_len(&bomb).is_none_or(|len| len <= VALUE_LEN_MAX));
        }
    }

    fn words() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            Just(b"alpha".to_vec()),
            Just(b"\"beta\":".to_vec()),
            Just(b"0123456789abcdef".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..6),
            "[0-9a-f]{0,40}".prop_map(String::into_bytes),
        ];
        proptest::collection::vec(word, 0..12).prop_map(|words| words.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_value_comes_back(
            training in proptest::collection::vec(words(), 0..60),
            others in proptest::collection::vec(words(), 1..20),
            times in 1..8usize,
        ) {
            let training: Vec<Vec<u8>> = std::iter::repeat_n(training, times).flatten().collect();
            let dictionary = tokens(&training);
            for value in training.iter().chain(&others) {
                round_trip(&dictionary, value);
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            stored in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 20),
        ) {
            let (tokens, frames) = (tokens(&documents(300)), frames(&documents(300)));
            for stored in &stored {
                decode_any(&tokens, stored);
                decode_any(&frames, stored);
            }
        }
    }
}
