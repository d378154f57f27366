//! When a dictionary is trained, and from what.
//!
//! ```text
//! entries of the log, here and there -> values -> seven of u64_at: zstd's trainer -> dictionary
//!                                              -> the eighth: is it better than what there is?
//! ```
//!
//! It runs within [`Engine::maintain`](todana_core::Engine::maintain) and holds no lock on records meanwhile, but takes its caller's time: some 0.1 s for a sample
//! of 1 MiB [Nov 2026, virtual machine]. It is done a few times in a database's life: when there is enough to learn from, when there is sixteen times as much as
//! then, and when what is written has become unlike what the dictionary was made from.

use super::DiskHash;
use super::compression::{ThreadCached, ValueCompressor, ValueDecompressor};
use super::dictionary::{self, DICTIONARIES_MAX, ValueDictionary};
use super::entry::{self, PUT};
use super::shard::{PAGES, SHARDS};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Error, Result};
use zstd::zstd_safe::train_from_buffer;

/// More bytes of values do not make a better dictionary, but a slower trainer.
const SAMPLE_MAX: usize = 1 << 20;
/// Of a long value the beginning is learnt from.
const VALUE_MAX: usize = 4 << 10;
/// So much of the log is read at a place that was chosen at random.
const STRETCH_LEN: u64 = 16 << 10;
/// Places looked at.
const STRETCHES_MAX: usize = 256;
/// With fewer values there is nothing to learn.
const VALUES_MIN: usize = 32;
/// One of so many values is kept from the trainer, to judge by.
const JUDGED: usize = 8;
const LEN_MIN: usize = 256;
const LEN_MAX: usize = 32 << 10;
/// What zstd calls a dictionary's id.
const ID: std::ops::Range<usize> = 4..8;
/// A dictionary is taken if with it what is stored is at most this share of what it is without.
const GAIN: f64 = 0.95;
/// Another one is tried when what is stored has become so many times as long for what was given.
const WORSE: f64 = 1.1;
/// And when there is so many times as much to learn from.
const GROWTH: u64 = 16;

/// How values of a [`DiskHash`] are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueCompression {
    /// A dictionary is made as soon as the log has so many bytes, from half as many of them (1 MiB at most).
    pub trained_at_bytes: u64,
}

impl Default for ValueCompression {
    fn default() -> Self {
        ValueCompression { trained_at_bytes: 2 << 20 }
    }
}

/// What is known about how well values are compressed.
pub(super) struct DictionaryTraining {
    options: ValueCompression,
    /// Nothing is to be done before so many bytes have been appended.
    due_at: AtomicU64,
    /// Of values that were compressed, or looked at to that end, since it was last judged: before, and as they are stored.
    plain: AtomicU64,
    stored: AtomicU64,
    state: Mutex<TrainingState>,
    trouble: Mutex<Option<Error>>,
}

#[derive(Default)]
struct TrainingState {
    /// What stored values are of the given ones, with the dictionary that there is.
    share: Option<f64>,
    /// Tried again when the log has so many bytes.
    grown_at: u64,
}

/// Values to learn from, one behind the other, and to judge by.
#[derive(Default)]
struct ValueSample {
    learnt: Vec<u8>,
    lens: Vec<usize>,
    judged: Vec<Vec<u8>>,
    count: usize,
}

impl ValueSample {
    fn add(&mut self, value: &[u8]) {
        let value = &value[..value.len().min(VALUE_MAX)];
        self.count += 1;
        if self.count.is_multiple_of(JUDGED) {
            self.judged.push(value.to_vec());
        } else {
            self.learnt.extend_from_slice(value);
            self.lens.push(value.len());
        }
    }

    /// What the values to judge by take, stored with this dictionary, or without one.
    fn cost(&self, dictionary: Option<&ValueDictionary>) -> usize {
        let mut compressor = ThreadCached::<ValueCompressor>::take();
        let cost =
            |value: &Vec<u8>| compressor.compress_with(value, dictionary).map_or(value.len(), <[u8]>::len);
        self.judged.iter().map(cost).sum()
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
            trouble: Mutex::new(None),
        }
    }

    /// Takes note of a value that was to be compressed. For long ones a dictionary does little.
    #[inline]
    pub(super) fn note(&self, plain: usize, stored: usize) {
        if plain > VALUE_MAX {
            return;
        }
        self.plain.fetch_add(plain as u64, Ordering::Relaxed);
        self.stored.fetch_add(stored as u64, Ordering::Relaxed);
    }

    pub(super) fn trouble(&self) -> Option<Error> {
        self.trouble.lock().clone()
    }

    /// Whether a dictionary should be looked for.
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
        if share > before * WORSE {
            // If nothing better is found, this is how it is from now on.
            state.share = Some(share);
            return true;
        }
        false
    }
}

impl DiskHash {
    /// Makes a dictionary if one is wanted.
    pub(super) fn train_if_due(&self) {
        let Some(training) = &self.training else { return };
        let appended = self.log.appended();
        if appended < training.due_at.load(Ordering::Relaxed) || self.is_closed.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut state) = training.state.try_lock() else { return };
        training.due_at.store(appended + training.options.trained_at_bytes / 2, Ordering::Relaxed);
        let outcome = self.train(training, &mut state);
        *training.trouble.lock() = outcome.err();
    }

    fn train(&self, training: &DictionaryTraining, state: &mut TrainingState) -> Result<()> {
        let count = self.dictionaries.count();
        if count > self.log.dictionaries() {
            // It could not be brought into use last time.
            return self.use_last();
        }
        let log_bytes = self.log.bytes();
        if count == DICTIONARIES_MAX || !training.is_wanted(state, count > 0, log_bytes) {
            return Ok(());
        }
        // Where nothing comes of it, twice as much may be worth it.
        state.grown_at = log_bytes.saturating_mul(if count > 0 { GROWTH } else { 2 });
        let sample = self.sample((training.options.trained_at_bytes / 2).min(SAMPLE_MAX as u64) as usize)?;
        let path = self.log.directory.join(dictionary::dictionary_name(count + 1));
        let Some(content) = learn(&sample) else { return Ok(()) };
        let found = ValueDictionary::new(path, content.clone())?;
        let (_, current) = self.dictionaries.current();
        let with = sample.cost(Some(&found));
        let without = sample.cost(current).min(sample.cost(None));
        if with as f64 > without as f64 * GAIN {
            return Ok(());
        }
        let whose = (self.log.opening.identity, self.log.opening.count);
        dictionary::store(&*self.log.disk, &self.log.directory, whose, count + 1, &content)?;
        self.dictionaries.add(found);
        self.use_last()?;
        let plain: usize = sample.judged.iter().map(Vec::len).sum();
        state.share = Some(with as f64 / plain.max(1) as f64);
        state.grown_at = log_bytes.saturating_mul(GROWTH);
        training.plain.store(0, Ordering::Relaxed);
        training.stored.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Begins a segment that counts the last dictionary; only then it is compressed with.
    fn use_last(&self) -> Result<()> {
        self.log.lock().begin_segment(self.dictionaries.count())?;
        self.dictionaries.use_newest();
        Ok(())
    }

    /// Values of the log from places all over the index. Some may have been replaced or removed since.
    fn sample(&self, bytes_max: usize) -> Result<ValueSample> {
        let mut sample = ValueSample::default();
        let mut decompressor = ThreadCached::<ValueDecompressor>::take();
        let mut bytes = vec![0; STRETCH_LEN as usize];
        // What was learnt from must not be what is judged by.
        let mut taken: Vec<(u64, std::ops::Range<u64>)> = Vec::new();
        // Not at random, but unlike each other, and the same wherever the same was done.
        let mut dice = self.log.appended() | 1;
        for _ in 0..STRETCHES_MAX {
            if sample.learnt.len() >= bytes_max {
                break;
            }
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            let Some((segment, from)) = self.place_near(dice) else { continue };
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
            while let Some((head, entry)) = entry::whole(&bytes[at..there], segment.seed_at(from + at as u64))
            {
                at += head.len;
                if head.kind != PUT {
                    continue;
                }
                let stored = head.value(entry);
                match head.encoding {
                    None => sample.add(stored),
                    // One that is damaged is told when it is read.
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

    /// Where some record is.
    fn place_near(&self, dice: u64) -> Option<(std::sync::Arc<super::segment::Segment>, u64)> {
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

/// A dictionary made of a sample; `None` if there is nothing to learn from it.
fn learn(sample: &ValueSample) -> Option<Vec<u8>> {
    if sample.lens.len() < VALUES_MIN {
        return None;
    }
    let len = (sample.learnt.len() / 16).clamp(LEN_MIN, LEN_MAX);
    let mut content = Vec::with_capacity(len);
    train_from_buffer(&mut content, &sample.learnt, &sample.lens).ok()?;
    // So that frames do not carry it: the entry says which dictionary it is.
    content.get_mut(ID)?.fill(0);
    Some(content)
}
