//! Which keys, values and operations: all from a seed, so that a run can be repeated.

use std::io::Write;
use std::str::FromStr;
use todana_protocol::memcached::client::{self, StoreWords};

/// Bytes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueSize {
    Fixed(usize),
    /// From the first to the second, each as likely.
    Uniform(usize, usize),
    /// The value is the key.
    Key,
}

impl FromStr for ValueSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number =
            |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is not N, LO-HI or `key`"));
        if text == "key" {
            return Ok(ValueSize::Key);
        }
        match text.split_once('-') {
            None => Ok(ValueSize::Fixed(number(text)?)),
            Some((low, high)) => {
                let (low, high) = (number(low)?, number(high)?);
                if low <= high {
                    Ok(ValueSize::Uniform(low, high))
                } else {
                    Err("LO must not exceed HI".into())
                }
            }
        }
    }
}

/// What values are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ValueKind {
    /// Letters
    Text,
    /// Arbitrary bytes
    Random,
}

/// The commands that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// get and set
    Text,
    /// mg and ms
    Meta,
}

/// Which keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distribution {
    Uniform,
    Zipf(f64),
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "uniform" => Ok(Distribution::Uniform),
            None if text == "zipf" => Ok(Distribution::Zipf(0.99)),
            Some(("zipf", exponent)) => match exponent.parse::<f64>() {
                Ok(exponent) if exponent > 0.0 && exponent < 10.0 => Ok(Distribution::Zipf(exponent)),
                _ => Err("the exponent must lie between 0 and 10".into()),
            },
            _ => Err("there are uniform, zipf and zipf:S".into()),
        }
    }
}

/// Gets to sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ratio {
    gets: u32,
    sets: u32,
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not GETS:SETS");
        let (gets, sets) = text.split_once(':').ok_or_else(wrong)?;
        let ratio =
            Ratio { gets: gets.parse().map_err(|_| wrong())?, sets: sets.parse().map_err(|_| wrong())? };
        if ratio.gets.checked_add(ratio.sets).is_some_and(|sum| sum > 0) { Ok(ratio) } else { Err(wrong()) }
    }
}

/// Picks the numbers of keys.
#[derive(Clone, Debug)]
pub(crate) enum Picker {
    Uniform,
    Zipf(Zipf),
}

impl Picker {
    pub(crate) fn new(distribution: Distribution, keys: u64) -> Picker {
        match distribution {
            Distribution::Uniform => Picker::Uniform,
            Distribution::Zipf(exponent) => Picker::Zipf(Zipf::new(keys, exponent)),
        }
    }
}

/// Zipf's law by rejection inversion (Hoermann and Derflinger, 1996): constant time and memory for any number of keys.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    keys: f64,
    exponent: f64,
    h_low: f64,
    h_high: f64,
    threshold: f64,
}

impl Zipf {
    fn new(keys: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { keys: keys as f64, exponent, h_low: 0.0, h_high: 0.0, threshold: 0.0 };
        zipf.h_low = zipf.h(1.5) - 1.0;
        zipf.h_high = zipf.h(keys as f64 + 0.5);
        zipf.threshold = 2.0 - zipf.h_inverse(zipf.h(2.5) - 2f64.powf(-exponent));
        zipf
    }

    /// The integral of x^-exponent.
    fn h(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { x.ln() } else { (x.powf(power) - 1.0) / power }
    }

    fn h_inverse(&self, y: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { y.exp() } else { (1.0 + y * power).max(f64::MIN_POSITIVE).powf(1.0 / power) }
    }

    /// A rank from 1 to the number of keys.
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

/// How a key looks.
#[derive(Clone, Debug)]
pub(crate) struct KeyShape {
    pub(crate) prefix: String,
    /// Digits, with leading zeros; 0 for as many as the number needs.
    pub(crate) width: usize,
}

impl KeyShape {
    pub(crate) fn put(&self, out: &mut Vec<u8>, number: u64) {
        let width = self.width;
        // A Vec takes whatever is written.
        let _ = write!(out, "{}{number:0width$}", self.prefix);
    }
}

/// What a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Get(u64),
    Set(u64),
}

/// The whole of it.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) keys: u64,
    pub(crate) shape: KeyShape,
    pub(crate) value_size: ValueSize,
    pub(crate) value_kind: ValueKind,
    pub(crate) picker: Picker,
    pub(crate) ratio: Ratio,
    pub(crate) protocol: Protocol,
    pub(crate) seed: u64,
    pub(crate) verify: bool,
}

impl Workload {
    /// The next operation of a random mix. Keys are numbered from 1.
    pub(crate) fn next(&self, random: &mut fastrand::Rng) -> Operation {
        let key = match &self.picker {
            Picker::Uniform => random.u64(1..=self.keys),
            // Ranks are scattered over the keys, so that the hot ones are not neighbours.
            Picker::Zipf(zipf) => {
                let rank = zipf.pick(random);
                (u128::from(rank) * 0x9E37_79B9_7F4A_7C15 % u128::from(self.keys)) as u64 + 1
            }
        };
        let Ratio { gets, sets } = self.ratio;
        if random.u32(0..gets + sets) < gets { Operation::Get(key) } else { Operation::Set(key) }
    }

    /// The value of a key, always the same.
    pub(crate) fn put_value(&self, out: &mut Vec<u8>, key: u64) {
        let mut random = fastrand::Rng::with_seed(self.seed ^ key.wrapping_mul(0xD134_2543_DE82_EF95));
        let len = match self.value_size {
            ValueSize::Fixed(len) => len,
            ValueSize::Uniform(low, high) => random.usize(low..=high),
            ValueSize::Key => return self.shape.put(out, key),
        };
        match self.value_kind {
            ValueKind::Text => out.extend((0..len).map(|_| b'a' + random.u8(0..26))),
            ValueKind::Random => {
                let from = out.len();
                out.resize(from + len, 0);
                random.fill(&mut out[from..]);
            }
        }
    }

    /// Writes the request; `key` and `value` lend their room.
    pub(crate) fn put_request(
        &self,
        out: &mut Vec<u8>,
        operation: Operation,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) {
        key.clear();
        match operation {
            Operation::Get(number) => {
                self.shape.put(key, number);
                match self.protocol {
                    Protocol::Text => client::put_words(out, "get", &[key]),
                    Protocol::Meta => client::put_meta(out, "mg", key, "v"),
                }
            }
            Operation::Set(number) => {
                self.shape.put(key, number);
                value.clear();
                self.put_value(value, number);
                match self.protocol {
                    Protocol::Text => client::put_store(out, "set", key, value, StoreWords::default()),
                    Protocol::Meta => client::put_meta_set(out, key, value, ""),
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
            let zipf = Zipf::new(1000, exponent);
            let mut random = fastrand::Rng::with_seed(42);
            let draws = 400_000;
            let mut counts = vec![0u32; 1001];
            (0..draws).for_each(|_| counts[zipf.pick(&mut random) as usize] += 1);
            let norm: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1usize, 2, 3, 10, 100] {
                let expected = (rank as f64).powf(-exponent) / norm * f64::from(draws);
                let found = f64::from(counts[rank]);
                // Five standard deviations of a fixed seed.
                assert!(
                    (found - expected).abs() < 5.0 * expected.sqrt() + 1.0,
                    "{exponent} {rank}: {found} {expected}"
                );
            }
        }
    }

    #[test]
    fn values_are_of_the_asked_sizes_and_always_the_same() {
        let workload = |value_size| Workload {
            keys: 10,
            shape: KeyShape { prefix: "k:".into(), width: 4 },
            value_size,
            value_kind: ValueKind::Random,
            picker: Picker::Uniform,
            ratio: "10:1".parse().unwrap(),
            protocol: Protocol::Text,
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
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in ["", "x", "5-1", "1-"] {
            assert!(text.parse::<ValueSize>().is_err(), "{text}");
        }
        for text in ["1", "0:0", "a:b", "-1:1"] {
            assert!(text.parse::<Ratio>().is_err(), "{text}");
        }
        for text in ["zipf:0", "zipf:x", "normal"] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }
}
