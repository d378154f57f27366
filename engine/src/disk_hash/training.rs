//! Trains dictionaries.
//!
//! ```text
//! entries at random places of the log -> values -> seven of eight: zstd's trainer -> dictionary
//!                                               -> the eighth: is it better than the current one?
//! ```
//!
//! Training runs within [`Engine::maintain`](todana_core::Engine::maintain). It holds no locks on
//! records, but blocks the caller for about 0.1 s with a sample of 1 MiB (Nov 2026, virtual
//! machine). It happens a few times in the life of a database: when there is enough data, when
//! there is sixteen times as much, and when new values compress worse than the values from which
//! the dictionary was trained.

use super::DiskHash;
use super::compression::{ThreadCached, ValueCompressor, ValueDecompressor};
use super::dictionary::{self, DICTIONARIES_MAX, ValueDictionary};
use super::entry::{self, PUT};
use super::shard::{PAGES, SHARDS};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Error, Result};
use zstd::zstd_safe::train_from_buffer;

/// The maximum size of a sample. More data makes training slower but the dictionary no better.
const SAMPLE_MAX: usize = 1 << 20;
/// The number of bytes at the beginning of each value that are used for training.
const VALUE_MAX: usize = 4 << 10;
/// The length of the log that is read at each random place.
const STRETCH_LEN: u64 = 16 << 10;
/// The maximum number of random places.
const STRETCHES_MAX: usize = 256;
/// The minimum number of values in a sample.
const VALUES_MIN: usize = 32;
/// One of this number of values is excluded from training and used to measure the result.
const JUDGED_ONE_IN: usize = 8;
const LEN_MIN: usize = 256;
const LEN_MAX: usize = 32 << 10;
/// The ID of a dictionary in zstd's format.
const ID: std::ops::Range<usize> = 4..8;
/// A new dictionary is accepted if it reduces the stored size of the values to this fraction or
/// less.
const COST_RATIO_MAX: f64 = 0.95;
/// Training is repeated when the ratio of the stored to the plain size has grown by this factor.
const DRIFT: f64 = 1.1;
/// Training is repeated when the log has grown by this factor.
const GROWTH: u64 = 16;

/// How values of a [`DiskHash`] are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueCompression {
    /// The first dictionary is trained when the log has this length. The sample then has half this
    /// size, but at most 1 MiB.
    pub trained_at_bytes: u64,
}

impl Default for ValueCompression {
    fn default() -> Self {
        ValueCompression { trained_at_bytes: 2 << 20 }
    }
}

/// The state of training, and statistics on compression.
pub(super) struct DictionaryTraining {
    options: ValueCompression,
    /// Training does nothing before this number of bytes has been appended.
    due_at: AtomicU64,
    /// The total plain and the total stored size of new values since the last check of their ratio.
    plain: AtomicU64,
    stored: AtomicU64,
    state: Mutex<TrainingState>,
    last_error: Mutex<Option<Error>>,
}

#[derive(Default)]
struct TrainingState {
    /// The ratio of the stored to the plain size of values with the current dictionary.
    share: Option<f64>,
    /// The length of the log at which training is repeated.
    grown_at: u64,
}

/// Values to train from, one after another, and values to measure the result with.
#[derive(Default)]
struct ValueSample {
    training: Vec<u8>,
    lens: Vec<usize>,
    held_out: Vec<Vec<u8>>,
    count: usize,
}

impl ValueSample {
    fn add(&mut self, value: &[u8]) {
        let value = &value[..value.len().min(VALUE_MAX)];
        self.count += 1;
        if self.count.is_multiple_of(JUDGED_ONE_IN) {
            self.held_out.push(value.to_vec());
        } else {
            self.training.extend_from_slice(value);
            self.lens.push(value.len());
        }
    }

    /// Returns the total stored size of the measured values if they are compressed with this
    /// dictionary, or without one.
    fn cost(&self, dictionary: Option<&ValueDictionary>) -> usize {
        let mut compressor = ThreadCached::<ValueCompressor>::take();
        let cost =
            |value: &Vec<u8>| compressor.compress_with(value, dictionary).map_or(value.len(), <[u8]>::len);
        self.held_out.iter().map(cost).sum()
    }
}

impl DictionaryTraining {
    pub(super) fn new(options: ValueCompression, has_dictionary: bool, log_bytes: u64) -> DictionaryTraining {
        let grown_at =
            if has_dictionary { log_bytes.saturating_mul(GROWTH) } else { options.trained_at_bytes };
        DictionaryTraining {
            options,
            due_at: AtomicU64::new(0),
            plain: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            state: Mutex::new(TrainingState { grown_at, ..TrainingState::default() }),
            last_error: Mutex::new(None),
        }
    }

    /// Counts a value that was compressed, or for which compression was tried. Long values are
    /// ignored because a dictionary hardly affects them.
    #[inline]
    pub(super) fn note(&self, plain: usize, stored: usize) {
        if plain > VALUE_MAX {
            return;
        }
        self.plain.fetch_add(plain as u64, Ordering::Relaxed);
        self.stored.fetch_add(stored as u64, Ordering::Relaxed);
    }

    pub(super) fn last_error(&self) -> Option<Error> {
        self.last_error.lock().clone()
    }

    /// Returns true if a new dictionary should be trained.
    fn is_wanted(&self, state: &mut TrainingState, has_dictionary: bool, log_bytes: u64) -> bool {
        if log_bytes >= state.grown_at {
            return true;
        }
        let plain = self.plain.load(Ordering::Relaxed);
        if !has_dictionary || plain < self.options.trained_at_bytes.saturating_mul(8) {
            return false;
        }
        let share = self.stored.load(Ordering::Relaxed) as f64 / plain as f64;
        self.plain.store(0, Ordering::Relaxed);
        self.stored.store(0, Ordering::Relaxed);
        let before = *state.share.get_or_insert(share);
        if share > before * DRIFT {
            // If training finds nothing better, this ratio is the new reference.
            state.share = Some(share);
            return true;
        }
        false
    }
}

impl DiskHash {
    /// Trains a dictionary if one is due.
    pub(super) fn train_if_due(&self) {
        let Some(training) = &self.training else { return };
        let appended = self.log.appended();
        if appended < training.due_at.load(Ordering::Relaxed) || self.is_closed.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut state) = training.state.try_lock() else { return };
        training.due_at.store(appended + training.options.trained_at_bytes / 2, Ordering::Relaxed);
        let outcome = self.train(training, &mut state);
        *training.last_error.lock() = outcome.err();
    }

    fn train(&self, training: &DictionaryTraining, state: &mut TrainingState) -> Result<()> {
        let count = self.dictionaries.count();
        if count > self.log.dictionaries() {
            // The last attempt stored a dictionary but failed to bring it into use.
            return self.use_newest_dictionary();
        }
        let log_bytes = self.log.bytes();
        if count == DICTIONARIES_MAX || !training.is_wanted(state, count > 0, log_bytes) {
            return Ok(());
        }
        // If training fails, it may succeed with twice as much data.
        state.grown_at = log_bytes.saturating_mul(if count > 0 { GROWTH } else { 2 });
        let sample = self.sample((training.options.trained_at_bytes / 2).min(SAMPLE_MAX as u64) as usize)?;
        let path = self.log.directory.join(dictionary::dictionary_name(count + 1));
        let Some(content) = learn(&sample) else { return Ok(()) };
        let found = ValueDictionary::new(path, content.clone())?;
        let (_, current) = self.dictionaries.current();
        let with = sample.cost(Some(&found));
        let without = sample.cost(current).min(sample.cost(None));
        if with as f64 > without as f64 * COST_RATIO_MAX {
            return Ok(());
        }
        let whose = (self.log.opening.identity, self.log.opening.count);
        dictionary::store(&*self.log.disk, &self.log.directory, whose, count + 1, &content)?;
        self.dictionaries.add(found);
        self.use_newest_dictionary()?;
        let plain: usize = sample.held_out.iter().map(Vec::len).sum();
        state.share = Some(with as f64 / plain.max(1) as f64);
        state.grown_at = log_bytes.saturating_mul(GROWTH);
        training.plain.store(0, Ordering::Relaxed);
        training.stored.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Begins a segment that declares the newest dictionary, and then uses that dictionary for new
    /// values.
    fn use_newest_dictionary(&self) -> Result<()> {
        self.log.lock().begin_segment(self.dictionaries.count())?;
        self.dictionaries.use_newest();
        Ok(())
    }

    /// Collects values at random places of the log. Some of them may be garbage.
    fn sample(&self, bytes_max: usize) -> Result<ValueSample> {
        let mut sample = ValueSample::default();
        let mut decompressor = ThreadCached::<ValueDecompressor>::take();
        let mut bytes = vec![0; STRETCH_LEN as usize];
        // Remembers the places that were used, so that no value is used both for training and for
        // measuring.
        let mut taken: Vec<(u64, std::ops::Range<u64>)> = Vec::new();
        // The pseudo-random sequence is the same for the same history.
        let mut dice = self.log.appended() | 1;
        for _ in 0..STRETCHES_MAX {
            if sample.training.len() >= bytes_max {
                break;
            }
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            let Some((segment, from)) = self.location_of_some_record(dice) else { continue };
            let flushed = segment.flushed.load(Ordering::Acquire);
            let mut end = flushed.min(from + STRETCH_LEN);
            for (_, range) in taken.iter().filter(|(number, _)| *number == segment.number) {
                if range.contains(&from) {
                    end = from;
                } else if range.start > from {
                    end = end.min(range.start);
                }
            }
            if end <= from {
                continue;
            }
            let there = segment.read_at(from, &mut bytes[..(end - from) as usize])?;
            taken.push((segment.number, from..end));
            let mut at = 0;
            while let Some((head, entry)) =
                entry::decode(&bytes[at..there], segment.seed_at(from + at as u64))
            {
                at += head.len;
                if head.kind != PUT {
                    continue;
                }
                let stored = head.value(entry);
                match head.encoding {
                    None => sample.add(stored),
                    // Damage is reported when the record itself is read.
                    Some(encoding) => {
                        if let Ok(plain) = decompressor.decompress(
                            stored,
                            encoding,
                            self.dictionaries.get(encoding.dictionary),
                        ) {
                            sample.add(plain);
                        }
                    }
                }
            }
        }
        Ok(sample)
    }

    /// Returns the location of a record near a random place.
    fn location_of_some_record(&self, dice: u64) -> Option<(std::sync::Arc<super::segment::Segment>, u64)> {
        let first = (dice >> 32) as usize % (SHARDS * PAGES);
        let pages = (first..SHARDS * PAGES).chain(0..first);
        for page in pages {
            let shard = self.read_shard(page / PAGES);
            let slots = &shard.pages[page % PAGES];
            if slots.len() > 0 {
                let at = slots.get(dice as u32 as usize % slots.len()).location();
                return Some((std::sync::Arc::clone(shard.table.get(at.slot)?), u64::from(at.unit) * 8));
            }
        }
        None
    }
}

/// Trains a dictionary. Returns `None` if the sample is too small or too diverse.
fn learn(sample: &ValueSample) -> Option<Vec<u8>> {
    if sample.lens.len() < VALUES_MIN {
        return None;
    }
    let len = (sample.training.len() / 16).clamp(LEN_MIN, LEN_MAX);
    let mut content = Vec::with_capacity(len);
    train_from_buffer(&mut content, &sample.training, &sample.lens).ok()?;
    // The ID is cleared so that compressed frames do not contain it. The entry names the
    // dictionary.
    content.get_mut(ID)?.fill(0);
    Some(content)
}
