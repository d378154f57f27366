//! The sampled records, and the limits of the sampling.

use crate::amount::amount;
use crate::progress::records as records_bar;
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

/// The most bytes of values that are kept, so that large values do not fill the memory.
const BYTES_MAX: u64 = 256 << 20;
/// The largest value that `todana serve` accepts by default.
const VALUE_LEN_MAX: usize = 1 << 20;
/// The longest key of memcached's protocols.
const KEY_LEN_MAX: usize = 250;

/// A record of the sampled server.
pub(super) struct SampledRecord {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) flags: u32,
    /// True if the record expires, or `None` if the server does not say so.
    pub(super) expires: Option<bool>,
}

/// The figures of a server.
pub(super) struct SampledServer {
    /// Its name and version.
    pub(super) name: String,
    /// The number of its records.
    pub(super) records: u64,
    /// The bytes that it uses, and where this figure is from.
    pub(super) memory: Option<(u64, &'static str)>,
    /// Notes on data that does not carry over, and on parts that the sample does not cover.
    pub(super) notes: Vec<String>,
}

/// Records, up to a number and a time.
pub(super) struct RecordSample {
    pub(super) all: Vec<SampledRecord>,
    pub(super) took: Duration,
    wanted: u64,
    bytes: u64,
    start: Instant,
    time: Duration,
    bar: ProgressBar,
}

impl RecordSample {
    /// Returns an empty sample.
    pub(super) fn new(wanted: u64, time: Duration) -> RecordSample {
        let (start, bar) = (Instant::now(), records_bar(wanted));
        RecordSample { all: Vec::new(), took: Duration::ZERO, wanted, bytes: 0, start, time, bar }
    }

    /// Adds a record. Returns false if the sample is complete.
    pub(super) fn add(&mut self, record: SampledRecord) -> bool {
        self.bytes += (record.key.len() + record.value.len()) as u64;
        self.all.push(record);
        self.bar.set_position(self.len());
        !self.is_complete()
    }

    /// Returns true if there are enough records, or the time is over.
    pub(super) fn is_complete(&self) -> bool {
        self.len() >= self.wanted || self.bytes >= BYTES_MAX || self.start.elapsed() >= self.time
    }

    /// Ends the sampling.
    pub(super) fn finish(&mut self) {
        self.took = self.start.elapsed();
        self.bar.finish_and_clear();
    }

    /// Returns the number of records that were asked for.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted
    }

    pub(super) fn len(&self) -> u64 {
        self.all.len() as u64
    }

    pub(super) fn average_key(&self) -> f64 {
        self.all.iter().map(|record| record.key.len() as f64).sum::<f64>() / self.all.len() as f64
    }

    pub(super) fn average_value(&self) -> f64 {
        self.all.iter().map(|record| record.value.len() as f64).sum::<f64>() / self.all.len() as f64
    }

    /// Returns the share of records that expire, if the server says so.
    pub(super) fn expiring_percent(&self) -> Option<f64> {
        let known: Vec<bool> = self.all.iter().filter_map(|record| record.expires).collect();
        let expiring = known.iter().filter(|expires| **expires).count();
        (!known.is_empty()).then(|| expiring as f64 * 100.0 / known.len() as f64)
    }

    /// Returns the half width of the interval that contains the average size of all records with a
    /// probability of 95 %, in percent of that size.
    pub(super) fn spread_percent(&self) -> f64 {
        let size = |record: &SampledRecord| (record.key.len() + record.value.len()) as f64;
        let (count, sum) = (self.all.len() as f64, self.all.iter().map(size).sum::<f64>());
        let mean = sum / count;
        let squares: f64 = self.all.iter().map(|record| (size(record) - mean).powi(2)).sum();
        let deviation = (squares / (count - 1.0).max(1.0)).sqrt();
        1.96 * deviation / count.sqrt() / mean.max(1.0) * 100.0
    }

    /// Returns notes about records that need an option or another protocol.
    pub(super) fn notes(&self) -> Vec<String> {
        let large = self.all.iter().filter(|record| record.value.len() > VALUE_LEN_MAX).count();
        let is_odd =
            |key: &[u8]| key.len() > KEY_LEN_MAX || key.iter().any(|&byte| byte <= b' ' || byte == 0x7F);
        let odd = self.all.iter().filter(|record| is_odd(&record.key)).count();
        let mut notes = Vec::new();
        if large > 0 {
            notes.push(format!("{} of the sample above 1 MiB need -I", amount(large as u64, "value")));
        }
        if odd > 0 {
            notes.push(format!(
                "{} of the sample can be used by meta commands in base64 or Kyoto Tycoon's protocols only",
                amount(odd as u64, "key")
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &[u8], len: usize, expires: Option<bool>) -> SampledRecord {
        SampledRecord { key: key.to_vec(), value: vec![b'v'; len], flags: 0, expires }
    }

    #[test]
    fn sample_ends_at_its_limits() {
        let mut sample = RecordSample::new(3, Duration::from_secs(3600));
        assert!(sample.add(record(b"a", 1, Some(true))) && sample.add(record(b"b c", 3, Some(false))));
        assert!(!sample.add(record(b"d", 2 << 20, Some(false))));
        assert_eq!((sample.len(), sample.average_key()), (3, 5.0 / 3.0));
        assert!((sample.expiring_percent().unwrap() - 33.333).abs() < 0.01);
        let notes = sample.notes();
        assert!(
            notes[0].starts_with("1 value of the sample above 1 MiB") && notes[1].starts_with("1 key "),
            "{notes:?}"
        );
        let mut late = RecordSample::new(3, Duration::ZERO);
        assert!(!late.add(record(b"a", 1, None)) && late.expiring_percent().is_none());
    }

    #[test]
    fn equal_records_have_no_spread() {
        let mut sample = RecordSample::new(100, Duration::from_secs(3600));
        assert!((0..10).all(|_| sample.add(record(b"key", 97, None))));
        assert_eq!(sample.spread_percent(), 0.0);
        sample.add(record(b"key", 997, None));
        assert!(sample.spread_percent() > 50.0);
    }
}
