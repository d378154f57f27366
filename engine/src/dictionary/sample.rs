//! Collects values of one kind, trains a dictionary on most of them, and tries it on the others.

use super::frames::{self, FrameDictionary};
use super::token_training::TokenTraining;
use super::{StoredForm, TrainedDictionary, VALUE_LEN_MIN};
use std::ops::Range;

/// The maximum size of a sample. A larger one makes training slower but dictionaries hardly better.
pub const SAMPLE_BYTES_MAX: usize = 1 << 20;
/// The length up to which a value is part of a sample. Later parts of long values resemble their
/// beginning more than they resemble other values.
pub const SAMPLED_LEN_MAX: usize = 4 << 10;
/// One of this number of values is not used for training but to measure the result.
const TRIED_ONE_IN: usize = 8;
/// Training needs this number of values.
const VALUES_MIN: usize = 256;
/// Frames of zstd are tried on values of at least this length on average. Below, tokens are always
/// shorter.
const FRAME_LEN_MIN: usize = 400;
/// A dictionary is adopted if values become shorter by one of this many parts.
const SAMPLE_GAIN_PARTS: usize = 10;
/// Frames are preferred to tokens, which are several times as fast, if values become shorter by one
/// of this many parts, and are at most half as long as before.
const FRAME_GAIN_PARTS: usize = 10;
/// The levels of zstd that are tried. The first one is used whose frames are longer than those of
/// the best by less than one of this many parts.
const LEVELS: [i32; 3] = [1, 3, 6];
const LEVEL_GAIN_PARTS: usize = 20;

/// Values of one kind.
#[derive(Debug, Default)]
pub struct TrainingSample {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TrainingSample {
    /// Adds the beginning of a value. Returns false if the sample is full.
    pub fn push(&mut self, value: &[u8]) -> bool {
        let value = &value[..value.len().min(SAMPLED_LEN_MAX)];
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
    /// None if the values are so long that they would take much longer to encode as tokens than as
    /// frames.
    tokens: Option<TokenTraining>,
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
        let has_short = sample.bytes.len() < sample.ends.len() * SAMPLED_LEN_MAX;
        let tokens = has_short.then(|| TokenTraining::new(&sample.bytes, &sample.ranges(false)));
        Some(SampleTraining { sample, tokens })
    }

    /// Does a step. `current` is the dictionary in use. Must not be called after the last step.
    pub fn step(&mut self, current: Option<&TrainedDictionary>) -> TrainingStep {
        let TrainingSample { bytes, ends } = &self.sample;
        let mut tokens = None;
        if let Some(training) = &mut self.tokens {
            tokens = training.step(bytes);
            if tokens.is_none() {
                return TrainingStep::Working;
            }
        }
        let tried: Vec<&[u8]> = self.sample.ranges(true).into_iter().map(|range| &bytes[range]).collect();
        let plain_len: usize = tried.iter().map(|value| value.len()).sum();
        let mut best = tokens.map(|tokens| measured(StoredForm::Tokens(tokens), &tried));
        if bytes.len() / ends.len() >= FRAME_LEN_MIN
            && let Some(frames) = self.train_frames(&tried)
        {
            let is_better = best.as_ref().is_none_or(|(_, best_len)| {
                frames.1 < best_len - best_len / FRAME_GAIN_PARTS && frames.1 <= plain_len / 2
            });
            if is_better {
                best = Some(frames);
            }
        }
        let current_len = match current {
            Some(current) => stored_len(current, &tried),
            None => plain_len,
        };
        match best {
            Some((best, len)) if len <= current_len - current_len / SAMPLE_GAIN_PARTS => {
                TrainingStep::Useful(Box::new(best))
            }
            _ => TrainingStep::Useless,
        }
    }

    /// Trains a dictionary of zstd and chooses its level. Also returns the stored length of the
    /// tried values.
    fn train_frames(&self, tried: &[&[u8]]) -> Option<(TrainedDictionary, usize)> {
        let content = frames::train(&self.sample.bytes, &self.sample.ranges(false))?;
        let frames = LEVELS.iter().filter_map(|&level| FrameDictionary::new(&content, level));
        let levels: Vec<_> = frames.map(|frames| measured(StoredForm::Frames(frames), tried)).collect();
        let first = first_good(levels.iter().map(|(_, len)| *len))?;
        levels.into_iter().nth(first)
    }
}

/// Returns the index of the first length that exceeds the least by less than one of
/// `LEVEL_GAIN_PARTS` parts.
fn first_good(lens: impl Iterator<Item = usize> + Clone) -> Option<usize> {
    let least = lens.clone().min()?;
    lens.clone().position(|len| len < least + least.div_ceil(LEVEL_GAIN_PARTS))
}

/// Returns a dictionary, and the length of all values as it would store them.
fn measured(form: StoredForm, values: &[&[u8]]) -> (TrainedDictionary, usize) {
    let dictionary = TrainedDictionary { form };
    let len = stored_len(&dictionary, values);
    (dictionary, len)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_level_that_is_nearly_best_is_used() {
        let first = |lens: [usize; 3]| first_good(lens.into_iter());
        assert_eq!(first([100, 100, 100]), Some(0));
        assert_eq!(first([104, 101, 100]), Some(0));
        assert_eq!(first([105, 104, 100]), Some(1));
        assert_eq!(first([300, 200, 100]), Some(2));
        assert_eq!(first([100, 200, 300]), Some(0));
    }
}
