//! Trains the encodings of a hash, and gives its records the forms of new encodings.
//!
//! ```text
//! waiting -- there is much more data, or it is stored less well --> sampling
//! sampling -- up to a megabyte of values of each class --> training, one class after another
//! training -- new encodings --> recoding, bucket by bucket in the order of a scan --> waiting
//! ```
//!
//! All of this is maintenance, in steps of some tens of milliseconds at most. No lock is held for
//! longer than for one bucket, or for one of its long records. New encodings are used for new
//! records at once. The old ones are dropped when no record refers to them any more.

use super::MemHash;
use super::encodings::{RecordEncodings, VALUE_CLASSES, WrittenBytes, value_class};
use super::group::BUCKET_RECORD_MAX;
use crate::arena::LoadPressure;
use crate::dictionary::{SampleTraining, TrainingSample, TrainingStep};
use crate::key_shape::find_shapes;
use crate::raw::trim_allocator;
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_core::{EncodingStatus, Record, decimal};

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
/// The maximum number of sampled keys, in which shapes are searched, and of their bytes.
const KEYS_SAMPLED: usize = 4096;
const KEY_BYTES_SAMPLED: usize = 512 << 10;
/// Longer keys have no shape: their records lie in blocks, or a shape would save little.
const KEY_LEN_SAMPLED: usize = BUCKET_RECORD_MAX / 2;
/// The maximum number of buckets and of bytes of values that one step reads.
const BUCKETS_SAMPLED: usize = 512;
const STEP_BYTES: u64 = 2 << 20;
/// The maximum number of records and of bytes of values that are read for one sample. The values of
/// a class that is rarer than one in some hundred are not sampled enough for a dictionary.
const RECORDS_READ: u64 = 64 << 10;
const BYTES_READ: u64 = 64 << 20;
/// The time after which a step of recoding ends. Maintenance is called ten times a second.
const WORK_MAX: Duration = Duration::from_millis(2);
/// The time for which recoding interrupts a load, unless all records must be recoded.
const LOAD_WORK_MAX: Duration = Duration::from_millis(100);
/// Recoding rests for this many times as long as it has worked.
const REST: u32 = 49;
/// If there was no memory for some records, all are recoded again after this time.
const REPEATED_AFTER: Duration = Duration::from_secs(10);

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
    /// The time at which all records are recoded again.
    repeats_at: Option<Instant>,
    /// The sums of all writes at the last check of their ratio.
    written: WrittenBytes,
    /// The ratio of stored to plain bytes with the current encodings.
    ratio: Option<f64>,
}

enum RecodingStage {
    Waiting,
    Sampling(Box<RecordSamples>),
    Training(Box<ClassTraining>),
    Recoding(RecodingPass),
}

/// The state of a pass over all records.
#[derive(Default)]
struct RecodingPass {
    /// The position of the current bucket, and the fingerprint in it from which on to continue.
    place: u64,
    fingerprint: u32,
    /// True if there was no memory for some record, so that old encodings may still be in use.
    is_incomplete: bool,
}

/// A sample of keys and of the values of each class.
#[derive(Default)]
struct RecordSamples {
    place: u64,
    /// The position at which the sample began, once it has gone on from there.
    began: Option<u64>,
    keys: Vec<Box<[u8]>>,
    key_bytes: usize,
    values: [TrainingSample; VALUE_CLASSES],
    is_full: [bool; VALUE_CLASSES],
    records_read: u64,
    bytes_read: u64,
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
            repeats_at: None,
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

    /// Trains encodings and stores all records with them, if that is due. Other threads that call
    /// this method wait meanwhile.
    ///
    /// With `LoadPressure::NearLimit`, it is due earlier, because there is hardly any memory for
    /// more records. While more records fit, or when records are evicted already, a call for a load
    /// ends after `LOAD_WORK_MAX`, and the next one continues. The other end of a connection would
    /// not wait for a pass over all records.
    pub(super) fn recode_at_once(&self, pressure: LoadPressure) {
        if !self.recoding.is_on {
            return;
        }
        let mut state = self.recoding.state.lock();
        let began = Instant::now();
        let may_continue_later = match pressure {
            LoadPressure::None => false,
            LoadPressure::Expected => true,
            LoadPressure::NearLimit => self.budget.notes_uses(),
        };
        let is_over = || may_continue_later && began.elapsed() >= LOAD_WORK_MAX;
        state.is_near_limit = pressure == LoadPressure::NearLimit;
        while self.take_recoding_step(&mut state, false) && !is_over() {}
        state.is_near_limit = false;
    }

    /// Does a step. Returns true if another one is due at once.
    fn take_recoding_step(&self, state: &mut RecodingState, rests: bool) -> bool {
        state.stage = match std::mem::replace(&mut state.stage, RecodingStage::Waiting) {
            RecodingStage::Waiting => {
                if self.is_due(state) {
                    let place = state.sampled_to;
                    RecodingStage::Sampling(Box::new(RecordSamples { place, ..RecordSamples::default() }))
                } else if state.repeats_at.take_if(|at| *at <= Instant::now()).is_some() {
                    RecodingStage::Recoding(RecodingPass::default())
                } else {
                    return false;
                }
            }
            RecodingStage::Sampling(mut samples) => {
                if self.sample_more(&mut samples) {
                    RecodingStage::Sampling(samples)
                } else {
                    state.sampled_to = samples.place;
                    let newest = RecordEncodings::clone(&self.recoding.newest.lock());
                    RecodingStage::Training(Box::new(ClassTraining::new(*samples, newest)))
                }
            }
            RecodingStage::Training(mut training) => {
                if training.step() {
                    RecodingStage::Training(training)
                } else {
                    // While the allocator holds memory of the training, there is less for records.
                    trim_allocator();
                    // If training finds nothing, it may succeed with more data.
                    state.due_at = due_after(self.stored_bytes());
                    if training.is_new {
                        self.install(training.encodings);
                        // Only what is written from here on has the new encodings.
                        (state.ratio, state.written) = (None, self.written());
                        RecodingStage::Recoding(RecodingPass::default())
                    } else {
                        RecodingStage::Waiting
                    }
                }
            }
            RecodingStage::Recoding(mut pass) => {
                let rests = rests && self.budget.fits(0);
                let began = Instant::now();
                if rests && state.rests_until.is_some_and(|until| began < until) {
                    state.stage = RecodingStage::Recoding(pass);
                    return false;
                }
                let has_more = self.recode_buckets(&mut pass);
                let worked = began.elapsed();
                state.rests_until = Some(began + (worked * REST).min(Duration::from_secs(1)));
                if has_more {
                    RecodingStage::Recoding(pass)
                } else {
                    state.repeats_at = pass.is_incomplete.then(|| Instant::now() + REPEATED_AFTER);
                    if !pass.is_incomplete {
                        self.drop_old_encodings();
                    }
                    RecodingStage::Waiting
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
        // After a removal of many records, others may follow.
        state.due_at = state.due_at.min(due_after(stored));
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

    /// Returns the bytes of all records that can have an encoding, as they are stored.
    fn stored_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.read().encodable_bytes()).sum()
    }

    /// Reads more buckets. Returns false if the sample is complete.
    fn sample_more(&self, samples: &mut RecordSamples) -> bool {
        let began = *samples.began.get_or_insert(samples.place);
        let bytes_before = samples.bytes_read;
        for _ in 0..BUCKETS_SAMPLED {
            let place = samples.place;
            let (next, _) = self.scan_bucket(place, &mut |key, record| {
                samples.push(key, record);
                ControlFlow::Continue(())
            });
            samples.place = next.unwrap_or(0);
            // The sample is complete as well when it has gone round once.
            let is_round = match next {
                Some(next) => place < began && next >= began,
                // The last bucket may lie before the beginning, if the hash has been cleared since.
                None => began == 0 || place < began,
            };
            if is_round || samples.is_complete() {
                return false;
            }
            if samples.bytes_read - bytes_before >= STEP_BYTES {
                break;
            }
        }
        true
    }

    /// Gives the records of some buckets the forms of the current encodings. Returns false after
    /// the last bucket.
    fn recode_buckets(&self, pass: &mut RecodingPass) -> bool {
        let began = Instant::now();
        while began.elapsed() < WORK_MAX {
            if !self.recode_records(pass) {
                return false;
            }
        }
        true
    }

    /// Does the same for some records of one bucket.
    fn recode_records(&self, pass: &mut RecodingPass) -> bool {
        let (shard, hash) = super::bucket_block::hash_of(pass.place, self.shard_bits);
        let recoded =
            MemHash::change(&self.shards[shard].0, |shard| shard.recode_bucket_of(hash, pass.fingerprint));
        pass.is_incomplete |= recoded.outcome.is_err();
        if let Some(fingerprint) = recoded.next {
            pass.fingerprint = fingerprint;
            return true;
        }
        let last = super::bucket_block::last_place(pass.place, self.shard_bits, recoded.bits);
        pass.fingerprint = 0;
        last.checked_add(1).map(|place| pass.place = place).is_some()
    }

    /// Removes the encodings to which no record refers any more.
    fn drop_old_encodings(&self) {
        let mut encodings = RecordEncodings::clone(&self.recoding.newest.lock());
        encodings.drop_old();
        self.install(encodings);
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

/// Returns the number of bytes of all records from which on training is repeated, if there are
/// `stored` bytes now.
fn due_after(stored: u64) -> u64 {
    stored.max(FIRST_BYTES).saturating_mul(GROWTH)
}

impl RecordSamples {
    /// Adds a record. Long values have neither a shape nor a dictionary.
    fn push(&mut self, key: &[u8], record: Record<'_>) {
        self.records_read += 1;
        if record.shared.is_some() {
            return;
        }
        let has_space = self.keys.len() < KEYS_SAMPLED && self.key_bytes + key.len() <= KEY_BYTES_SAMPLED;
        if has_space && key.len() <= KEY_LEN_SAMPLED {
            self.keys.push(key.into());
            self.key_bytes += key.len();
        }
        self.bytes_read += record.value.len() as u64;
        // Numbers are stored in fewer bytes anyway.
        if decimal::pack(record.value).is_none() {
            let class = value_class(record.value.len());
            self.is_full[class] |= !self.values[class].push(record.value);
        }
    }

    /// Returns true if no more records must be read.
    fn is_complete(&self) -> bool {
        self.is_full == [true; VALUE_CLASSES]
            || self.records_read >= RECORDS_READ
            || self.bytes_read >= BYTES_READ
    }
}

impl ClassTraining {
    fn new(mut samples: RecordSamples, mut encodings: RecordEncodings) -> ClassTraining {
        let keys = std::mem::take(&mut samples.keys);
        let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dictionary::TrainedDictionary;
    use crate::mem_hash::MemHashOptions;
    use crate::mem_hash::group;
    use crate::mem_hash::key::Key;
    use crate::mem_hash::uses::UseKind;
    use todana_core::{Action, Attributes, Engine, Visitor};

    struct Put<'a>(&'a [u8]);

    impl Visitor for Put<'_> {
        fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record::new(self.0, Attributes::default()))
        }
    }

    /// Returns text of some words of a vocabulary, or noise.
    fn long_value(n: u64, is_noise: bool) -> Vec<u8> {
        let mut words = fastrand::Rng::with_seed(7);
        let words: Vec<String> =
            (0..200).map(|_| format!("{:012}", words.u64(..1_000_000_000_000))).collect();
        let mut random = fastrand::Rng::with_seed(n);
        if is_noise {
            return (0..40_000).map(|_| random.u8(..)).collect();
        }
        (0..3333).flat_map(|_| words[random.usize(..words.len())].bytes()).collect()
    }

    fn trained(values: impl Iterator<Item = Vec<u8>>) -> TrainedDictionary {
        let mut sample = TrainingSample::default();
        values.for_each(|value| assert!(sample.push(&value)));
        let mut training = SampleTraining::new(sample).unwrap();
        loop {
            match training.step(None) {
                TrainingStep::Working => {}
                TrainingStep::Useless => panic!("the values resemble each other"),
                TrainingStep::Useful(dictionary) => return *dictionary,
            }
        }
    }

    #[test]
    fn lock_is_released_between_long_records() {
        let options = MemHashOptions { seed: Some(3), shards: Some(1), ..MemHashOptions::default() };
        let hash = MemHash::new(options).unwrap();
        for n in 0..30 {
            hash.visit(&[n], &mut Put(&long_value(n.into(), n % 3 == 0))).unwrap();
        }
        let mut stored = hash.stored_bytes();
        for version in 1..4 {
            let mut encodings = RecordEncodings::clone(&hash.recoding.newest.lock());
            assert!(encodings.adopt(2, trained((1000..1256).map(|n| long_value(n, false)))), "{version}");
            hash.install(encodings);
            let (mut pass, mut locks, mut changes) = (RecodingPass::default(), 0, 0);
            loop {
                let has_more = hash.recode_records(&mut pass);
                let now = hash.stored_bytes();
                // No more than one record has changed.
                assert!(stored.abs_diff(now) < 40_000, "{stored} {now}");
                changes += u64::from(now != stored);
                stored = now;
                locks += 1;
                if !has_more {
                    break;
                }
            }
            assert!(!pass.is_incomplete && (30..60).contains(&locks), "{locks}");
            assert_eq!(changes, if version == 1 { 20 } else { 0 });
            hash.drop_old_encodings();
            assert_eq!(hash.recoding.status().dictionaries, 1);
            assert!((400_000..400_000 + 20 * 14_000).contains(&stored), "{stored}");
            for n in 0..30 {
                let mut is_equal = false;
                let value = long_value(n.into(), n % 3 == 0);
                hash.view(&[n], &mut |record| is_equal = record.value == value).unwrap();
                assert!(is_equal, "{n}");
            }
        }
    }

    /// The number of a key shape was once taken for the number of records of an encoded group, so
    /// that most of its records counted as the newest ones.
    #[test]
    fn uses_of_encoded_records_count() {
        let value = br#"{"name":"Amara","country":"Norway","language":"en","plan":"free"}"#;
        let mut encodings = RecordEncodings::new();
        assert!(encodings.adopt(0, trained((0..4096).map(|n| [value, n.to_string().as_bytes()].concat()))));
        for count in 4..16u8 {
            let options = MemHashOptions { seed: Some(3), shards: Some(1), ..MemHashOptions::default() };
            let hash = MemHash::new(options).unwrap();
            hash.install(encodings.clone());
            (0..count).for_each(|n| hash.visit(&[b'k', n], &mut Put(value)).unwrap());
            let mut shard = hash.shards[0].0.write();
            let (end, _) = group::measure(shard.bytes_of(0), &shard.address(0));
            shard.begin_marks(0, end);
            let mut kinds = vec![None; count.into()];
            for n in 0..count {
                let text = [b'k', n];
                let location = shard.find(0, &Key::new(&text, &shard.seeds));
                let index = location.place().unwrap().index as usize;
                kinds[index] = shard.use_at(0, &location).map(|used| used.kind);
            }
            // A quarter, rounded as in the definition of the window.
            let newest = (0..count).filter(|newer| f32::from(*newer) + 0.5 < f32::from(count) / 4.0).count();
            let (before, window) = kinds.split_at(usize::from(count) - newest);
            assert!(before.iter().all(|kind| *kind == Some(UseKind::Counted)), "{count}: {kinds:?}");
            assert!(window.iter().all(|kind| *kind == Some(UseKind::Read)), "{count}: {kinds:?}");
        }
    }

    fn push(samples: &mut RecordSamples, key: &[u8], value: &[u8]) {
        samples.push(key, Record::new(value, Attributes::default()));
    }

    /// Keys of a MiB were once copied to the sample, and made the search for shapes take hours.
    #[test]
    fn long_keys_are_not_sampled() {
        let mut samples = RecordSamples::default();
        for key in [vec![b'7'; 1 << 20], vec![b'/'; 1 << 20], vec![b'k'; KEY_LEN_SAMPLED + 1]] {
            push(&mut samples, &key, b"value");
        }
        assert_eq!((samples.keys.len(), samples.key_bytes), (0, 0));
        (0..KEYS_SAMPLED).for_each(|_| push(&mut samples, &[b'/'; KEY_LEN_SAMPLED], b"value"));
        assert_eq!(samples.keys.len(), KEY_BYTES_SAMPLED / KEY_LEN_SAMPLED);
        assert_eq!(samples.keys.iter().map(|key| key.len()).sum::<usize>(), KEY_BYTES_SAMPLED);
        let mut samples = RecordSamples::default();
        (0..2 * KEYS_SAMPLED).for_each(|_| push(&mut samples, b"short", b"value"));
        assert_eq!(samples.keys.len(), KEYS_SAMPLED);
    }

    #[test]
    fn sample_ends_with_bounded_work() {
        let mut samples = RecordSamples::default();
        let mut records = 0;
        while !samples.is_complete() {
            push(&mut samples, b"key", b"a short value");
            records += 1;
        }
        assert_eq!(records, RECORDS_READ);
        let mut samples = RecordSamples::default();
        while !samples.is_complete() {
            push(&mut samples, b"key", &[7; 64 << 10]);
        }
        assert_eq!(samples.bytes_read, BYTES_READ);
        // All classes are full long before.
        let mut samples = RecordSamples::default();
        while !samples.is_complete() {
            for len in [390, 1000, 4096] {
                push(&mut samples, b"key", &vec![7; len]);
            }
        }
        assert!(samples.records_read < RECORDS_READ && samples.is_full == [true; VALUE_CLASSES]);
    }
}
