//! Trains the encodings of a hash, and gives its records the forms of new encodings.
//!
//! ```text
//! waiting -- there is much more data, or it is stored less well --> sampling
//! sampling -- a megabyte of values --> training, one class of values after another
//! training -- new encodings --> recoding, bucket by bucket in the order of a scan --> waiting
//! ```
//!
//! All of this is maintenance, in steps of some tens of milliseconds at most. No lock is held for
//! longer than for one bucket. New encodings are used for new records at once. The old ones are
//! dropped when no record refers to them any more.

use super::MemHash;
use super::encodings::{RecordEncodings, VALUE_CLASSES, WrittenBytes, value_class};
use crate::dictionary::{SampleTraining, TrainingSample, TrainingStep};
use crate::key_shape::find_shapes;
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_core::{EncodingStatus, decimal};

/// The first encodings are trained when the records take this many bytes.
const FIRST_BYTES: u64 = 2 << 20;
/// Training is repeated when the records take this many times as many bytes.
const GROWTH: u64 = 8;
/// While a load has nearly filled memory, training is repeated when there are this many times fewer
/// bytes.
const EARLIER: u64 = 4;
/// Training is repeated when the ratio of the stored to the plain size of written records has grown
/// by this factor. The ratio is computed after this many bytes.
const DRIFT: f64 = 1.1;
const WRITTEN_BYTES: u64 = 8 << 20;
/// With a lower memory limit, nothing is trained.
const LIMIT_MIN: u64 = 8 << 20;
/// The number of sampled keys, in which shapes are searched.
const KEYS_SAMPLED: usize = 4096;
/// The number of buckets that one step reads at most.
const BUCKETS_SAMPLED: usize = 512;
/// The time after which a step of recoding ends. Maintenance is called ten times a second.
const WORK_MAX: Duration = Duration::from_millis(2);
/// Recoding rests for this many times as long as it has worked.
const REST: u32 = 49;

/// The state of training and recoding.
pub(super) struct Recoding {
    is_on: bool,
    /// Locked during a step.
    state: Mutex<RecodingState>,
    /// The newest encodings. This lock is held only briefly.
    newest: Mutex<Arc<RecordEncodings>>,
}

struct RecodingState {
    stage: RecodingStage,
    /// The number of bytes of all records from which on there is something to do.
    due_at: u64,
    /// True during a load that has filled memory, so that there is something to do earlier.
    is_near_limit: bool,
    /// The position at which the next sample begins.
    sampled_to: u64,
    /// Recoding rests until this time.
    rests_until: Option<Instant>,
    /// The sums of all writes at the last check of their ratio.
    written: WrittenBytes,
    /// The ratio of stored to plain bytes with the current encodings.
    ratio: Option<f64>,
}

enum RecodingStage {
    Waiting,
    Sampling(RecordSamples),
    Training(Box<ClassTraining>),
    Recoding {
        place: u64,
        /// True if there was no memory for some bucket, so that old encodings may still be in use.
        is_incomplete: bool,
    },
}

/// A sample of keys and of the values of each class.
#[derive(Default)]
struct RecordSamples {
    place: u64,
    /// The position at which the sample began, once it has gone on from there.
    began: Option<u64>,
    keys: Vec<Box<[u8]>>,
    values: [TrainingSample; VALUE_CLASSES],
}

/// The training of a dictionary for one class of values.
struct ClassTraining {
    class: usize,
    training: Option<SampleTraining>,
    samples: RecordSamples,
    /// The encodings with what has been trained so far.
    encodings: RecordEncodings,
    is_new: bool,
}

impl Recoding {
    pub(super) fn new(is_on: bool) -> Recoding {
        let state = RecodingState {
            stage: RecodingStage::Waiting,
            due_at: FIRST_BYTES,
            is_near_limit: false,
            sampled_to: 0,
            rests_until: None,
            written: WrittenBytes::default(),
            ratio: None,
        };
        Recoding { is_on, state: Mutex::new(state), newest: Mutex::new(Arc::new(RecordEncodings::new())) }
    }

    /// Returns true if encodings are being trained, or given to records.
    pub(super) fn is_at_work(&self) -> bool {
        self.state.try_lock().is_none_or(|state| !matches!(state.stage, RecodingStage::Waiting))
    }

    /// Returns the numbers for the status of the engine.
    pub(super) fn status(&self) -> EncodingStatus {
        self.newest.lock().status()
    }
}

impl MemHash {
    /// Does a step of training or recoding. Returns true if another one is due at once. `rests`
    /// states that recoding must leave the processor to others most of the time.
    pub(super) fn recode_step(&self, rests: bool) -> bool {
        if !self.recoding.is_on {
            return false;
        }
        // Another thread that does a step suffices.
        let Some(mut state) = self.recoding.state.try_lock() else { return false };
        self.take_recoding_step(&mut state, rests)
    }

    /// Trains encodings and stores all records with them, if that is due. `is_near_limit` states
    /// that it is due earlier, because there is hardly any memory for more records. Other threads
    /// that call this method wait meanwhile.
    pub(super) fn recode_for_load(&self, is_near_limit: bool) {
        if !self.recoding.is_on {
            return;
        }
        let mut state = self.recoding.state.lock();
        state.is_near_limit = is_near_limit;
        let due_before = state.due_at;
        while self.take_recoding_step(&mut state, false) {}
        state.is_near_limit = false;
        if state.due_at != due_before {
            // The first records of a log may differ from later ones, so growth counts from the size
            // that they have now.
            state.due_at = self.stored_bytes().max(FIRST_BYTES).saturating_mul(GROWTH);
        }
    }

    /// Does a step. Returns true if another one is due at once.
    fn take_recoding_step(&self, state: &mut RecodingState, rests: bool) -> bool {
        state.stage = match std::mem::replace(&mut state.stage, RecodingStage::Waiting) {
            RecodingStage::Waiting => {
                if !self.is_due(state) {
                    return false;
                }
                RecodingStage::Sampling(RecordSamples { place: state.sampled_to, ..RecordSamples::default() })
            }
            RecodingStage::Sampling(mut samples) => {
                if self.sample_more(&mut samples) {
                    RecodingStage::Sampling(samples)
                } else {
                    state.sampled_to = samples.place;
                    let newest = RecordEncodings::clone(&self.recoding.newest.lock());
                    RecodingStage::Training(Box::new(ClassTraining::new(samples, newest)))
                }
            }
            RecodingStage::Training(mut training) => {
                if training.step() {
                    RecodingStage::Training(training)
                } else {
                    // If training finds nothing, it may succeed with more data.
                    state.due_at = self.stored_bytes().max(FIRST_BYTES).saturating_mul(GROWTH);
                    if training.is_new {
                        self.install(training.encodings);
                        // Only what is written from here on has the new encodings.
                        (state.ratio, state.written) = (None, self.written());
                        RecodingStage::Recoding { place: 0, is_incomplete: false }
                    } else {
                        RecodingStage::Waiting
                    }
                }
            }
            RecodingStage::Recoding { place, is_incomplete } => {
                let rests = rests && self.budget.fits(0);
                let began = Instant::now();
                if rests && state.rests_until.is_some_and(|until| began < until) {
                    state.stage = RecodingStage::Recoding { place, is_incomplete };
                    return false;
                }
                let (next, is_complete) = self.recode_buckets(place);
                let worked = began.elapsed();
                state.rests_until = Some(began + (worked * REST).min(Duration::from_secs(1)));
                let is_incomplete = is_incomplete || !is_complete;
                match next {
                    Some(place) => RecodingStage::Recoding { place, is_incomplete },
                    None => {
                        if !is_incomplete {
                            let mut encodings = RecordEncodings::clone(&self.recoding.newest.lock());
                            encodings.drop_old();
                            self.install(encodings);
                        }
                        RecodingStage::Waiting
                    }
                }
            }
        };
        true
    }

    /// Returns true if encodings should be trained.
    fn is_due(&self, state: &mut RecodingState) -> bool {
        // Training would take a considerable part of a small memory.
        if self.budget.limit().bytes.is_some_and(|limit| limit < LIMIT_MIN) {
            return false;
        }
        let stored = self.stored_bytes();
        if stored >= if state.is_near_limit { state.due_at / EARLIER } else { state.due_at } {
            return true;
        }
        let written = self.written();
        let since = written.since(state.written);
        if since.plain < WRITTEN_BYTES {
            return false;
        }
        state.written = written;
        let ratio = since.stored as f64 / since.plain as f64;
        let before = *state.ratio.get_or_insert(ratio);
        let has_drifted = ratio > before * DRIFT;
        if has_drifted {
            // If training finds nothing better, this ratio is the new reference.
            state.ratio = Some(ratio);
        }
        has_drifted
    }

    fn written(&self) -> WrittenBytes {
        let mut written = WrittenBytes::default();
        self.shards.iter().for_each(|shard| written += shard.0.read().written);
        written
    }

    /// Returns the bytes of all records as they are stored.
    fn stored_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.read().stored_bytes()).sum()
    }

    /// Reads more buckets. Returns false if the sample is complete.
    fn sample_more(&self, samples: &mut RecordSamples) -> bool {
        let began = *samples.began.get_or_insert(samples.place);
        for _ in 0..BUCKETS_SAMPLED {
            let mut is_full = false;
            let (next, _) = self.scan_bucket(samples.place, &mut |key, record| {
                if samples.keys.len() < KEYS_SAMPLED {
                    samples.keys.push(key.into());
                }
                // Numbers are stored in fewer bytes anyway, and long values have no dictionary.
                if record.shared.is_some() || decimal::pack(record.value).is_some() {
                    return ControlFlow::Continue(());
                }
                is_full |= !samples.values[value_class(record.value.len())].push(record.value);
                ControlFlow::Continue(())
            });
            let last = samples.place;
            samples.place = next.unwrap_or(0);
            // The sample is complete as well when it has gone round once.
            let is_round = match next {
                Some(next) => last < began && next >= began,
                None => began == 0,
            };
            if is_full || is_round {
                return false;
            }
        }
        true
    }

    /// Gives the records of some buckets the forms of the current encodings. Returns the position
    /// at which to continue. The second result is false if there was no memory for some bucket.
    fn recode_buckets(&self, mut place: u64) -> (Option<u64>, bool) {
        let mut is_complete = true;
        let began = Instant::now();
        while began.elapsed() < WORK_MAX {
            let (shard, hash) = super::bucket_block::hash_of(place, self.shard_bits);
            let (bits, outcome) =
                MemHash::change(&self.shards[shard].0, |shard| shard.recode_bucket_of(hash));
            is_complete &= outcome.is_ok();
            let last = super::bucket_block::last_place(place, self.shard_bits, bits);
            match last.checked_add(1) {
                Some(next) => place = next,
                None => return (None, is_complete),
            }
        }
        (Some(place), is_complete)
    }

    /// Uses encodings for new records from now on.
    fn install(&self, encodings: RecordEncodings) {
        let encodings = Arc::new(encodings);
        let old = std::mem::replace(&mut *self.recoding.newest.lock(), Arc::clone(&encodings));
        self.budget.commit_anyway(encodings.status().dictionary_bytes as usize);
        for shard in &self.shards {
            MemHash::lock_exclusive(&shard.0).encodings = Arc::clone(&encodings);
        }
        self.budget.release(old.status().dictionary_bytes as usize);
        // Recoding will regain more than a dictionary takes, but only later.
        if !self.budget.refuses() {
            self.make_room(0);
        }
    }
}

impl ClassTraining {
    fn new(samples: RecordSamples, mut encodings: RecordEncodings) -> ClassTraining {
        let keys: Vec<&[u8]> = samples.keys.iter().map(|key| &**key).collect();
        let shapes = find_shapes(&keys, encodings.shapes());
        let is_new = !shapes.is_empty();
        shapes.into_iter().for_each(|shape| encodings.add_shape(shape));
        ClassTraining { class: 0, training: None, samples, encodings, is_new }
    }

    /// Does a step. Returns false after the last one.
    fn step(&mut self) -> bool {
        let Some(sample) = self.samples.values.get_mut(self.class) else { return false };
        let training = match &mut self.training {
            Some(training) => training,
            none => match SampleTraining::new(std::mem::take(sample)) {
                Some(training) => none.insert(training),
                None => {
                    self.class += 1;
                    return true;
                }
            },
        };
        match training.step(self.encodings.current(self.class)) {
            TrainingStep::Working => return true,
            TrainingStep::Useless => {}
            TrainingStep::Useful(dictionary) => self.is_new |= self.encodings.adopt(self.class, *dictionary),
        }
        self.training = None;
        self.class += 1;
        true
    }
}
