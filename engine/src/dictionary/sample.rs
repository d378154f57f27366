//! Collects values of one kind, trains a dictionary on most of them, and tries it on the others.

use super::frames::FrameDictionary;
use super::token_training::TokenTraining;
use super::{StoredForm, TrainedDictionary, VALUE_LEN_MIN};
use std::ops::Range;

/// The maximum size of a sample. A larger one makes training slower but dictionaries hardly better.
pub const SAMPLE_BYTES_MAX: usize = 1 << 20;
/// One of this number of values is not used for training but to measure the result.
const TRIED_ONE_IN: usize = 8;
/// Training needs this number of values.
const VALUES_MIN: usize = 256;
/// Frames of zstd are tried on values of at least this length on average. Below, tokens are always
/// shorter.
const FRAME_LEN_MIN: usize = 400;
/// A dictionary is adopted if values become shorter by one of this many parts.
const GAIN_PARTS: usize = 10;
/// Frames are preferred to tokens, which are several times as fast, if values become shorter by one
/// of this many parts, and are at most half as long as before.
const FRAME_GAIN_PARTS: usize = 10;

/// Values of one kind.
#[derive(Debug, Default)]
pub struct TrainingSample {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TrainingSample {
    /// Adds a value. Returns false if the sample is full.
    pub fn push(&mut self, value: &[u8]) -> bool {
        if self.bytes.len() + value.len() > SAMPLE_BYTES_MAX {
            return false;
        }
        if value.len() >= VALUE_LEN_MIN {
            self.bytes.extend_from_slice(value);
            self.ends.push(self.bytes.len());
        }
        true
    }

    /// Returns the number of bytes of all values.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the ranges of the values that are tried, or of the others.
    fn ranges(&self, tried: bool) -> Vec<Range<usize>> {
        let starts = std::iter::once(&0).chain(&self.ends);
        let ranges = starts.zip(&self.ends).map(|(&start, &end)| start..end).enumerate();
        ranges
            .filter(|(index, _)| index.is_multiple_of(TRIED_ONE_IN) == tried)
            .map(|(_, range)| range)
            .collect()
    }
}

/// The training of a dictionary on a sample, in steps of some tens of milliseconds.
pub struct SampleTraining {
    sample: TrainingSample,
    tokens: TokenTraining,
}

/// The result of a step of a training.
pub enum TrainingStep {
    /// More steps are needed.
    Working,
    /// No dictionary makes the values shorter by a tenth than the current one does.
    Useless,
    /// A dictionary to use from now on.
    Useful(Box<TrainedDictionary>),
}

impl SampleTraining {
    /// Begins to train on a sample. Returns `None` if the sample has too few values.
    pub fn new(sample: TrainingSample) -> Option<SampleTraining> {
        if sample.ends.len() < VALUES_MIN {
            return None;
        }
        let tokens = TokenTraining::new(&sample.bytes, &sample.ranges(false));
        Some(SampleTraining { sample, tokens })
    }

    /// Does a step. `current` is the dictionary in use. Must not be called after the last step.
    pub fn step(&mut self, current: Option<&TrainedDictionary>) -> TrainingStep {
        let TrainingSample { bytes, ends } = &self.sample;
        let Some(tokens) = self.tokens.step(bytes) else { return TrainingStep::Working };
        let tried: Vec<&[u8]> = self.sample.ranges(true).into_iter().map(|range| &bytes[range]).collect();
        let plain_len: usize = tried.iter().map(|value| value.len()).sum();
        let mut best = TrainedDictionary { form: StoredForm::Tokens(tokens) };
        let mut best_len = stored_len(&best, &tried);
        if bytes.len() / ends.len() >= FRAME_LEN_MIN
            && let Some(frames) = FrameDictionary::train(bytes, &self.sample.ranges(false))
        {
            let frames = TrainedDictionary { form: StoredForm::Frames(frames) };
            let len = stored_len(&frames, &tried);
            if len < best_len - best_len / FRAME_GAIN_PARTS && len <= plain_len / 2 {
                (best, best_len) = (frames, len);
            }
        }
        let current_len = match current {
            Some(current) => stored_len(current, &tried),
            None => plain_len,
        };
        let is_useful = best_len <= current_len - current_len / GAIN_PARTS;
        if is_useful { TrainingStep::Useful(Box::new(best)) } else { TrainingStep::Useless }
    }
}

/// Returns the length of all values as they would be stored.
fn stored_len(dictionary: &TrainedDictionary, values: &[&[u8]]) -> usize {
    let mut out = Vec::new();
    let len = |value: &&[u8]| {
        out.clear();
        if dictionary.encode(value, &mut out) { out.len() } else { value.len() }
    };
    values.iter().map(len).sum()
}
