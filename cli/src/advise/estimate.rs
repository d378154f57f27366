//! The memory that the records take here, measured in a database of this process.

use super::sample::{RecordSample, SampledRecord};
use crate::CommandFailure;
use indicatif::HumanCount;
use todana::{Db, DbOptions, Records};
use todana_core::{Operation, Store, Ttl};

/// The least and the most records, and the most bytes, that are stored for the measurement. In a
/// small database, memory that is reserved for growth would count for much.
const RECORDS_MIN: u64 = 200_000;
const RECORDS_MAX: u64 = 500_000;
const BYTES_MAX: u64 = 256 << 20;
/// The rounds of maintenance before the measurement, and the most steps of each.
const ROUNDS: u32 = 2;
const STEPS_MAX: u32 = 100_000;
/// The memory of a server without records, with four threads (docs/memory.md).
const SERVER_BYTES: f64 = 2.0 * MIB;
/// The room that `-m` leaves for connections and growth.
const ROOM: f64 = 1.15;
const MIB: f64 = 1_048_576.0;
/// The number of digits by which copies of a key differ, if it has these: enough for all copies.
const DIGITS_CHANGED: usize = 6;
/// The expiry of records that expire, in seconds from now.
const EXPIRY_S: i64 = 86_400;

/// The memory that all records take here.
pub(super) struct MemoryEstimate {
    /// Bytes of a server with all records.
    pub(super) bytes: f64,
    /// The number of sampled records, and of all.
    counts: (u64, u64),
    /// The uncertainty, in percent.
    percent: f64,
}

impl MemoryEstimate {
    /// Stores the sample again and again under other keys, up to the number of records of the
    /// server if that is neither small nor large, and measures the memory of the database.
    pub(super) fn of(sample: &RecordSample, records: u64) -> Result<MemoryEstimate, CommandFailure> {
        let db = DbOptions::default().open("mem:hash")?;
        let empty = db.status().committed_bytes;
        let wanted = records.clamp(RECORDS_MIN, RECORDS_MAX).max(sample.len());
        for copy in 0.. {
            for record in &sample.all {
                if db.count() < wanted {
                    store(&db, record, copy)?;
                }
            }
            let is_stuck = db.count() < (copy + 1) * sample.len() / 2;
            if db.count() >= wanted || db.status().live_bytes >= BYTES_MAX || is_stuck {
                break;
            }
        }
        // A server does the same in the background. Memory is compacted completely only if nothing
        // was written since the last round.
        db.database().engine().recode();
        for _ in 0..ROUNDS {
            (0..STEPS_MAX).take_while(|_| db.database().maintain()).for_each(drop);
        }
        let used = db.status().committed_bytes.saturating_sub(empty) as f64;
        let bytes = used / db.count().max(1) as f64 * records as f64 + SERVER_BYTES;
        let percent = if sample.len() >= records { 0.0 } else { sample.spread_percent() };
        Ok(MemoryEstimate { bytes, counts: (sample.len(), records), percent })
    }

    /// Returns the limit for `-m` in MiB.
    pub(super) fn limit_mib(&self) -> u64 {
        ((self.bytes * ROOM / MIB).ceil() as u64).max(64)
    }

    /// Returns the uncertainty as a text.
    pub(super) fn confidence(&self) -> String {
        let (sample, records) = self.counts;
        match sample >= records {
            true => "all records were read".into(),
            false => format!(
                "+-{:.1} % for {} of {} records (95 %, by the spread of their sizes)",
                self.percent,
                HumanCount(sample),
                HumanCount(records)
            ),
        }
    }
}

/// Stores a copy of a record. Its key has the same length, and differs from those of other copies.
fn store(db: &Db, record: &SampledRecord, copy: u64) -> Result<(), CommandFailure> {
    let mut key = record.key.clone();
    if copy > 0 {
        change_key(&mut key, &mut fastrand::Rng::with_seed(copy));
    }
    let ttl = Ttl::from_exptime(if record.expires == Some(true) { EXPIRY_S } else { 0 });
    let put = Store { key: &key, value: &record.value, flags: record.flags, ttl, ..Store::default() };
    // A record that cannot be stored here is not counted.
    Ok(db.execute(&Operation::Store(put), &mut |_| {})?)
}

/// Changes a key in a way that is the same for all keys with digits in the same places. If there
/// are enough digits, only the last of these change, so that the key keeps its shape and its
/// numbers their size. Otherwise all bytes change.
fn change_key(key: &mut [u8], mask: &mut fastrand::Rng) {
    let digits: Vec<usize> = (0..key.len()).filter(|&at| key[at].is_ascii_digit()).collect();
    let Some(last) = digits.last_chunk::<DIGITS_CHANGED>() else {
        key.iter_mut().for_each(|byte| *byte ^= mask.u8(..));
        return;
    };
    for at in *last {
        let begins_number = at.checked_sub(1).is_none_or(|before| !digits.contains(&before));
        let digit = &mut key[at];
        match *digit {
            b'0' if begins_number => {}
            _ if begins_number => *digit = b'1' + (*digit - b'1' + mask.u8(..9)) % 9,
            _ => *digit = b'0' + (*digit - b'0' + mask.u8(..10)) % 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sampled(count: u64, value_len: usize) -> RecordSample {
        let mut sample = RecordSample::new(count, Duration::from_secs(3600));
        for number in 0..count {
            let key = format!("key:{number:08}").into_bytes();
            // Similar values would need less memory, the more of them there are.
            let mut value = vec![0; value_len];
            fastrand::Rng::with_seed(number).fill(&mut value);
            sample.add(SampledRecord { key, value, flags: 0, expires: Some(false) });
        }
        sample
    }

    #[test]
    fn estimate_matches_a_database_with_all_records() {
        let whole = MemoryEstimate::of(&sampled(200_000, 100), 200_000).unwrap();
        let part = MemoryEstimate::of(&sampled(2_000, 100), 200_000).unwrap();
        assert!((part.bytes / whole.bytes - 1.0).abs() < 0.03, "{} {}", part.bytes, whole.bytes);
        // Key, value, and a few bytes for each record.
        let each = (whole.bytes - SERVER_BYTES) / 200_000.0;
        assert!((112.0..140.0).contains(&each), "{each}");
        assert_eq!(whole.confidence(), "all records were read");
        assert!(
            part.confidence().starts_with("+-0.0 % for 2,000 of 200,000 records"),
            "{}",
            part.confidence()
        );
    }

    /// Most records were once measured as they are, because recoding rests between its steps.
    #[test]
    fn similar_values_are_measured_in_their_stored_form() {
        let mut sample = RecordSample::new(5_000, Duration::from_secs(3600));
        for number in 0..5_000 {
            let key = format!("user:{}", 100_000 + number).into_bytes();
            let value = format!(r#"{{"number":{number},"city":"Kyoto","is_open":true}}"#).into_bytes();
            sample.add(SampledRecord { key, value, flags: 0, expires: Some(false) });
        }
        let estimate = MemoryEstimate::of(&sample, 200_000).unwrap();
        // The number in the key, the few bytes of the stored value, and a few for each record.
        let each = (estimate.bytes - SERVER_BYTES) / 200_000.0;
        assert!((14.0..28.0).contains(&each), "{each}");
    }

    #[test]
    fn changed_keys_keep_their_shape() {
        let changed = |key: &str| {
            let mut key = key.as_bytes().to_vec();
            change_key(&mut key, &mut fastrand::Rng::with_seed(3));
            String::from_utf8_lossy(&key).into_owned()
        };
        let keys =
            ["user:123456:profile", "user:999999:profile", "user:100000:profile", "user:000042:profile"];
        for key in keys {
            let other = changed(key);
            let number = &other[5..11];
            assert!(other.starts_with("user:") && other.ends_with(":profile") && other != key, "{other}");
            assert!(number.bytes().all(|byte| byte.is_ascii_digit()), "{other}");
            assert_eq!(number.starts_with('0'), key == "user:000042:profile");
        }
        let others: std::collections::BTreeSet<String> = keys.map(changed).into();
        assert_eq!(others.len(), keys.len());
        assert_ne!(changed("page:about"), "page:about");
    }

    #[test]
    fn short_keys_do_not_hang_the_measurement() {
        let mut sample = RecordSample::new(9, Duration::from_secs(3600));
        sample.add(SampledRecord { key: b"a".to_vec(), value: Vec::new(), flags: 0, expires: None });
        let estimate = MemoryEstimate::of(&sample, 1_000_000).unwrap();
        assert!(estimate.bytes > SERVER_BYTES && estimate.limit_mib() >= 64);
    }
}
