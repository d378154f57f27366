//! Generates keys, values and operations from a seed, so that a run can be repeated.

use crate::record_shape::RecordShape;
use std::fmt;
use std::str::FromStr;
use todana_protocol::memcached::client::{self, InvalidRequest, MetaField, MetaRequest, TextStore};

/// The maximum length of a value. It is the highest limit to which a server can be set.
const VALUE_LEN_MAX: usize = 1 << 30;
/// The maximum length of a value from an unbounded distribution. It is close to the default limit
/// of a server.
const LOGNORMAL_LEN_MAX: f64 = 1_000_000.0;

/// The distribution of value lengths in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueSize {
    Fixed(usize),
    /// Uniform, from the first length to the second length.
    Uniform(usize, usize),
    /// Zipf's law, from the first length on. Short values are more frequent.
    Zipf(usize, ZipfLaw),
    /// Lognormal, with this median and this standard deviation of the natural logarithm.
    Lognormal(f64, f64),
    /// The value is a copy of the key.
    Key,
}

/// The maximum length of the value of a replayed object.
const OBJECT_LEN_MAX: usize = 1 << 20;

impl FromStr for ValueSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not N, LO-HI, zipf:LO-HI[:S], lognormal:MEDIAN[:SIGMA] or `key` (bytes, at most 1 GiB)"
            )
        };
        let len =
            |text: &str| text.parse::<usize>().ok().filter(|&len| len <= VALUE_LEN_MAX).ok_or_else(wrong);
        let range = |text: &str| {
            let (low, high) = text.split_once('-').ok_or_else(wrong)?;
            let (low, high) = (len(low)?, len(high)?);
            if low <= high { Ok((low, high)) } else { Err("LO must not exceed HI".to_string()) }
        };
        let factor = |text: &str| {
            text.parse::<f64>().ok().filter(|factor| *factor > 0.0 && *factor < 10.0).ok_or_else(wrong)
        };
        match text.split_once(':') {
            None if text == "key" => Ok(ValueSize::Key),
            None if text.contains('-') => range(text).map(|(low, high)| ValueSize::Uniform(low, high)),
            None => len(text).map(ValueSize::Fixed),
            Some(("uniform", rest)) => range(rest).map(|(low, high)| ValueSize::Uniform(low, high)),
            Some(("zipf", rest)) => {
                let (rest, exponent) = rest.split_once(':').unwrap_or((rest, "1"));
                let (low, high) = range(rest)?;
                Ok(ValueSize::Zipf(low, ZipfLaw::new((high - low) as u64 + 1, factor(exponent)?)))
            }
            Some(("lognormal", rest)) => {
                let (median, sigma) = rest.split_once(':').unwrap_or((rest, "1"));
                let median = len(median)?.max(1) as f64;
                Ok(ValueSize::Lognormal(median, factor(sigma)?))
            }
            Some(_) => Err(wrong()),
        }
    }
}

impl fmt::Display for ValueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueSize::Fixed(len) => write!(f, "{len}"),
            ValueSize::Uniform(low, high) => write!(f, "uniform:{low}-{high}"),
            ValueSize::Zipf(low, zipf) => {
                write!(f, "zipf:{low}-{}:{}", low + zipf.keys as usize - 1, zipf.exponent)
            }
            ValueSize::Lognormal(median, sigma) => write!(f, "lognormal:{median}:{sigma}"),
            ValueSize::Key => f.write_str("key"),
        }
    }
}

impl ValueSize {
    /// Reads the sizes of values that a replay can repeat for each object.
    pub(crate) fn of_objects(text: &str) -> Result<ValueSize, String> {
        match text.parse()? {
            size @ ValueSize::Fixed(0..=OBJECT_LEN_MAX) => Ok(size),
            ValueSize::Lognormal(median, sigma) if median <= OBJECT_LEN_MAX as f64 => {
                Ok(ValueSize::Lognormal(median, sigma))
            }
            _ => Err(format!("not a number up to {OBJECT_LEN_MAX}, nor lognormal:MEDIAN[:SIGMA]")),
        }
    }

    /// Returns the size of the value of an object, which is always the same.
    pub(crate) fn of_object(&self, id: u64) -> usize {
        self.pick(&mut fastrand::Rng::with_seed(id ^ 0x5EED_0F51_2E00))
    }

    pub(crate) fn pick(&self, random: &mut fastrand::Rng) -> usize {
        match self {
            ValueSize::Fixed(len) => *len,
            ValueSize::Uniform(low, high) => random.usize(low..=high),
            ValueSize::Zipf(low, zipf) => low + zipf.pick(random) as usize - 1,
            ValueSize::Lognormal(median, sigma) => {
                let len = median * (sigma * normal(random)).exp();
                len.round().clamp(1.0, LOGNORMAL_LEN_MAX.max(*median)) as usize
            }
            ValueSize::Key => 0,
        }
    }
}

/// Returns a number from the standard normal distribution (Box and Muller, 1958).
fn normal(random: &mut fastrand::Rng) -> f64 {
    // 1 - [0, 1) is never 0, so its logarithm is finite.
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// The contents of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ValueKind {
    /// Letters
    Text,
    /// Random bytes
    Random,
}

/// The commands to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CommandSet {
    /// get and set
    Text,
    /// mg and ms
    Meta,
}

/// The distribution of requested keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum KeyDistribution {
    Uniform,
    Zipf(f64),
}

impl FromStr for KeyDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "uniform" => Ok(KeyDistribution::Uniform),
            None if text == "zipf" => Ok(KeyDistribution::Zipf(0.99)),
            Some(("zipf", exponent)) => match exponent.parse::<f64>() {
                Ok(exponent) if exponent > 0.0 && exponent < 10.0 => Ok(KeyDistribution::Zipf(exponent)),
                _ => Err("the exponent must lie between 0 and 10".into()),
            },
            _ => Err("there are uniform, zipf and zipf:S".into()),
        }
    }
}

impl fmt::Display for KeyDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyDistribution::Uniform => f.write_str("uniform"),
            KeyDistribution::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

/// The ratio of gets to sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GetSetRatio {
    gets: u32,
    sets: u32,
}

impl FromStr for GetSetRatio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not GETS:SETS");
        let (gets, sets) = text.split_once(':').ok_or_else(wrong)?;
        let ratio = GetSetRatio {
            gets: gets.parse().map_err(|_| wrong())?,
            sets: sets.parse().map_err(|_| wrong())?,
        };
        if ratio.gets.checked_add(ratio.sets).is_some_and(|sum| sum > 0) { Ok(ratio) } else { Err(wrong()) }
    }
}

impl fmt::Display for GetSetRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.gets, self.sets)
    }
}

/// A generator of key numbers from 1 to `keys`.
#[derive(Clone, Debug)]
pub(crate) struct KeyPicker {
    keys: u64,
    /// The law of the distribution, or `None` for a uniform distribution.
    zipf: Option<ZipfLaw>,
    stride: u64,
}

impl KeyPicker {
    pub(crate) fn new(distribution: KeyDistribution, keys: u64) -> KeyPicker {
        let zipf = match distribution {
            KeyDistribution::Uniform => None,
            KeyDistribution::Zipf(exponent) => Some(ZipfLaw::new(keys, exponent)),
        };
        KeyPicker { keys, zipf, stride: stride(keys) }
    }

    /// Returns the number of a random key.
    pub(crate) fn pick(&self, random: &mut fastrand::Rng) -> u64 {
        match &self.zipf {
            None => random.u64(1..=self.keys),
            Some(zipf) => self.scatter(zipf.pick(random)),
        }
    }

    /// Returns the key of a rank. Each rank has another key, and the most frequent keys are not
    /// neighbours.
    fn scatter(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.stride) % u128::from(self.keys)) as u64 + 1
    }
}

/// Returns a step that visits all keys before it repeats a key, because it has no common divisor
/// with their number. A step near the golden ratio keeps successive keys far apart.
fn stride(keys: u64) -> u64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let divisor = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let first = ((keys as f64 * GOLDEN) as u64).max(1);
    // The search ends at 1 at the latest.
    (first..).find(|&stride| divisor(stride, keys) == 1).unwrap_or(1)
}

/// Zipf's law by rejection inversion (Hoermann and Derflinger, 1996). Time and memory do not depend
/// on the number of keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ZipfLaw {
    keys: f64,
    exponent: f64,
    h_low: f64,
    h_high: f64,
    threshold: f64,
}

impl ZipfLaw {
    fn new(keys: u64, exponent: f64) -> ZipfLaw {
        let mut zipf = ZipfLaw { keys: keys as f64, exponent, h_low: 0.0, h_high: 0.0, threshold: 0.0 };
        zipf.h_low = zipf.h(1.5) - 1.0;
        zipf.h_high = zipf.h(keys as f64 + 0.5);
        zipf.threshold = 2.0 - zipf.h_inverse(zipf.h(2.5) - 2f64.powf(-exponent));
        zipf
    }

    /// Returns the integral of x^-exponent.
    fn h(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { x.ln() } else { (x.powf(power) - 1.0) / power }
    }

    fn h_inverse(&self, y: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { y.exp() } else { (1.0 + y * power).max(f64::MIN_POSITIVE).powf(1.0 / power) }
    }

    /// Returns a random rank from 1 to the number of keys.
    fn pick(&self, random: &mut fastrand::Rng) -> u64 {
        loop {
            let u = self.h_low + random.f64() * (self.h_high - self.h_low);
            let x = self.h_inverse(u);
            let rank = x.round().clamp(1.0, self.keys);
            if rank - x <= self.threshold || u >= self.h(rank + 0.5) - rank.powf(-self.exponent) {
                return rank as u64;
            }
        }
    }
}

/// The format of a key.
#[derive(Clone, Debug)]
pub(crate) struct KeyFormat {
    pub(crate) prefix: String,
    /// The number of digits, with leading zeros. 0 means as many digits as the number needs.
    pub(crate) width: usize,
}

impl KeyFormat {
    pub(crate) fn put(&self, out: &mut Vec<u8>, number: u64) {
        // The number is formatted by hand, because the generator must be cheap: it shares
        // processors with the server that it measures.
        let mut digits = [0; 20];
        let (mut at, mut rest) = (digits.len(), number);
        while rest > 0 || at == digits.len() {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.extend_from_slice(self.prefix.as_bytes());
        out.resize(out.len() + self.width.saturating_sub(digits.len() - at), b'0');
        out.extend_from_slice(&digits[at..]);
    }
}

/// The next operation of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkloadOperation {
    Get(u64),
    Set(u64),
}

/// The complete description of keys, values and operations.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(crate) keys: u64,
    /// The shape of keys and values. The next three fields then have no effect.
    pub(crate) records: Option<RecordShape>,
    pub(crate) shape: KeyFormat,
    pub(crate) value_size: ValueSize,
    pub(crate) value_kind: ValueKind,
    pub(crate) picker: KeyPicker,
    pub(crate) ratio: GetSetRatio,
    pub(crate) protocol: CommandSet,
    pub(crate) seed: u64,
    pub(crate) verify: bool,
}

impl Workload {
    /// Returns the next operation of a random mix. Keys are numbered from 1.
    pub(crate) fn next(&self, random: &mut fastrand::Rng) -> WorkloadOperation {
        let key = self.picker.pick(random);
        let GetSetRatio { gets, sets } = self.ratio;
        if random.u32(0..gets + sets) < gets {
            WorkloadOperation::Get(key)
        } else {
            WorkloadOperation::Set(key)
        }
    }

    /// Appends the key with a number.
    pub(crate) fn put_key(&self, out: &mut Vec<u8>, key: u64) {
        match &self.records {
            Some(shape) => shape.put_key(key, out),
            None => self.shape.put(out, key),
        }
    }

    /// Appends the value of a key. A key always has the same value.
    pub(crate) fn put_value(&self, out: &mut Vec<u8>, key: u64) {
        if let Some(shape) = &self.records {
            return shape.put_value(key, out);
        }
        let mut random = fastrand::Rng::with_seed(self.seed ^ key.wrapping_mul(0xD134_2543_DE82_EF95));
        if self.value_size == ValueSize::Key {
            return self.shape.put(out, key);
        }
        let from = out.len();
        out.resize(from + self.value_size.pick(&mut random), 0);
        random.fill(&mut out[from..]);
        if self.value_kind == ValueKind::Text {
            // The letters are almost uniformly distributed, which is enough here.
            out[from..].iter_mut().for_each(|byte| *byte = b'a' + (u32::from(*byte) * 26 / 256) as u8);
        }
    }

    /// Returns the mean length of key and value together, over up to a thousand keys.
    pub(crate) fn record_bytes(&self) -> f64 {
        let count = self.keys.min(1000);
        let mut out = Vec::new();
        for number in 0..count {
            let key = 1 + (u128::from(self.keys - 1) * u128::from(number) / u128::from(count)) as u64;
            self.put_key(&mut out, key);
            self.put_value(&mut out, key);
        }
        out.len() as f64 / count as f64
    }

    /// Writes the request. `key` and `value` are scratch buffers. Fails if the format of keys
    /// produces an invalid key.
    pub(crate) fn put_request(
        &self,
        out: &mut Vec<u8>,
        operation: WorkloadOperation,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), InvalidRequest> {
        key.clear();
        value.clear();
        match operation {
            WorkloadOperation::Get(number) => {
                self.put_key(key, number);
                match self.protocol {
                    CommandSet::Text => client::put_words(out, "get", &[key]),
                    CommandSet::Meta => MetaRequest::get(out, key)?.want(MetaField::Value).end(),
                }
            }
            WorkloadOperation::Set(number) => {
                self.put_key(key, number);
                self.put_value(value, number);
                match self.protocol {
                    CommandSet::Text => {
                        client::put_store(out, &TextStore { key, value, ..TextStore::default() }, false)
                    }
                    CommandSet::Meta => MetaRequest::set(out, key, value)?.end(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_follows_its_law() {
        for exponent in [0.7, 0.99, 1.0, 1.3] {
            let zipf = ZipfLaw::new(1000, exponent);
            let mut random = fastrand::Rng::with_seed(42);
            let draws = 400_000;
            let mut counts = vec![0u32; 1001];
            (0..draws).for_each(|_| counts[zipf.pick(&mut random) as usize] += 1);
            let norm: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1usize, 2, 3, 10, 100] {
                let expected = (rank as f64).powf(-exponent) / norm * f64::from(draws);
                let found = f64::from(counts[rank]);
                // The tolerance is five standard deviations. The seed is fixed.
                assert!(
                    (found - expected).abs() < 5.0 * expected.sqrt() + 1.0,
                    "{exponent} {rank}: {found} {expected}"
                );
            }
        }
    }

    #[test]
    fn ranks_map_to_distinct_keys() {
        // 100,000 is the default and a multiple of 2 and 5. 2^n and n! have more divisors in common
        // with other numbers.
        for keys in [1, 2, 3, 10, 4096, 40_320, 99_999, 100_000] {
            let picker = KeyPicker::new(KeyDistribution::Zipf(0.99), keys);
            let mut found: Vec<u64> = (1..=keys).map(|rank| picker.scatter(rank)).collect();
            if keys == 100_000 {
                // The ten most frequent keys are not neighbours.
                let mut hot = found[..10].to_vec();
                hot.sort();
                assert!(hot.windows(2).all(|pair| pair[1] - pair[0] > 1000), "{hot:?}");
            }
            found.sort();
            assert!(found.into_iter().eq(1..=keys), "{keys}");
        }
    }

    #[test]
    fn sizes_follow_their_distributions() {
        let sizes = |text: &str| {
            let size: ValueSize = text.parse().unwrap();
            let mut random = fastrand::Rng::with_seed(7);
            let mut sizes: Vec<usize> = (0..100_001).map(|_| size.pick(&mut random)).collect();
            sizes.sort();
            sizes
        };
        let lognormal = sizes("lognormal:500:0.5");
        // 68.27 % of a normal distribution lie within one standard deviation of its median.
        assert!((490..=510).contains(&lognormal[50_000]), "{}", lognormal[50_000]);
        let (low, high) = (500.0 * (-0.5f64).exp(), 500.0 * 0.5f64.exp());
        let within = lognormal.iter().filter(|&&size| (low..high).contains(&(size as f64))).count();
        assert!((67_700..=68_800).contains(&within), "{within}");
        let zipf = sizes("zipf:20-120:1");
        assert_eq!((zipf[0], *zipf.last().unwrap()), (20, 120));
        let norm: f64 = (1..=101).map(|rank| 1.0 / f64::from(rank)).sum();
        let shortest = zipf.iter().filter(|&&size| size == 20).count() as f64;
        assert!((shortest - 100_001.0 / norm).abs() < 700.0, "{shortest}");
        assert_eq!(sizes("uniform:3-5")[50_000], 4);
        assert_eq!("uniform:3-5".parse::<ValueSize>(), "3-5".parse());
    }

    #[test]
    fn parsed_options_are_displayed_unchanged() {
        for text in ["5", "uniform:1-9", "zipf:20-120:0.9", "lognormal:500:0.5", "key"] {
            assert_eq!(text.parse::<ValueSize>().map(|size| size.to_string()).as_deref(), Ok(text));
        }
        for text in ["uniform", "zipf:1.2"] {
            assert_eq!(text.parse::<KeyDistribution>().map(|keys| keys.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("10:1".parse::<GetSetRatio>().map(|ratio| ratio.to_string()).as_deref(), Ok("10:1"));
    }

    #[test]
    fn keys_have_the_requested_width() {
        let key = |prefix: &str, width, number| {
            let mut out = Vec::new();
            KeyFormat { prefix: prefix.into(), width }.put(&mut out, number);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(key("", 8, 42), "00000042");
        assert_eq!(key("user:", 0, 42), "user:42");
        assert_eq!(key("", 2, 12345), "12345");
        assert_eq!(key("", 0, 0), "0");
        assert_eq!(key("", 20, u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn values_have_the_requested_sizes_and_are_stable() {
        let workload = |value_size| Workload {
            keys: 10,
            records: None,
            shape: KeyFormat { prefix: "k:".into(), width: 4 },
            value_size,
            value_kind: ValueKind::Random,
            picker: KeyPicker::new(KeyDistribution::Uniform, 10),
            ratio: "10:1".parse().unwrap(),
            protocol: CommandSet::Text,
            seed: 1,
            verify: false,
        };
        let value = |workload: &Workload, key| {
            let mut value = Vec::new();
            workload.put_value(&mut value, key);
            value
        };
        assert_eq!(value(&workload(ValueSize::Key), 7), b"k:0007");
        let sized = workload("20-22".parse().unwrap());
        let lens: Vec<usize> = (0..100).map(|key| value(&sized, key).len()).collect();
        assert!((20..=22).all(|len| lens.contains(&len)) && lens.iter().all(|len| (20..=22).contains(len)));
        assert_eq!(value(&sized, 5), value(&sized, 5));
        assert_ne!(value(&workload(ValueSize::Fixed(16)), 5), value(&workload(ValueSize::Fixed(16)), 6));
        let shaped = Workload { records: Some(RecordShape::Number), ..workload(ValueSize::Fixed(16)) };
        let mut key = Vec::new();
        shaped.put_key(&mut key, 7);
        assert_eq!((&*key, &*value(&shaped, 7)), (&b"00000007"[..], &b"00000007"[..]));
    }

    #[test]
    fn invalid_options_are_refused() {
        for text in [
            "",
            "x",
            "5-1",
            "1-",
            "1073741825",
            "zipf:5",
            "zipf:1-5:0",
            "lognormal:x",
            "lognormal:5:11",
            "normal:5",
        ] {
            assert!(text.parse::<ValueSize>().is_err(), "{text}");
        }
        for text in ["1", "0:0", "a:b", "-1:1"] {
            assert!(text.parse::<GetSetRatio>().is_err(), "{text}");
        }
        for text in ["zipf:0", "zipf:x", "normal"] {
            assert!(text.parse::<KeyDistribution>().is_err(), "{text}");
        }
    }
}
