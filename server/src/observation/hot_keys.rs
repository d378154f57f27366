//! Counts the requests of the keys that are requested most.
//!
//! Each worker has a space-saving sketch: a limited number of keys with their counts. A key that is
//! not among them takes the place and the count of the least one, so a count may be too high by
//! that of the least key, but no frequent key is missing. Above some rate, a worker counts a random
//! sample, each request of it for several, so that counting costs little.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Which requests a worker counts. Counting all takes a fifth of the instructions of a read
/// (callgrind, 2026-11-24).
#[derive(Clone, Copy)]
pub(crate) struct SampleRate {
    /// The number of requests in a second after which a worker counts a sample.
    counted_all: u32,
    /// The mean distance between two requests of a sample. The distances are from 1 to this number
    /// twice, less 1.
    distance: u32,
}

impl SampleRate {
    /// For a proxy, which passes on fewer requests than a server executes.
    pub(crate) const OF_PROXY: SampleRate = SampleRate { counted_all: 1_000, distance: 16 };
    /// For a server: with a million requests in a second, about a thousand are counted, which takes
    /// less than a thousandth of a core.
    pub(crate) const OF_SERVER: SampleRate = SampleRate { counted_all: 100, distance: 1024 };
}

/// The sketches of all workers.
#[derive(Default)]
pub(crate) struct HotKeys(Mutex<Vec<Arc<Mutex<KeySketch>>>>);

/// The counts of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HotKey {
    pub(crate) key: Box<[u8]>,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

impl HotKeys {
    /// Adds the sketch of a worker, which has at most `max` keys.
    pub(crate) fn join(&self, max: usize, rate: SampleRate, now: Instant) -> HotKeyCounter {
        let sketch = Arc::new(Mutex::new(KeySketch { max, ..KeySketch::default() }));
        lock(&self.0).push(Arc::clone(&sketch));
        let sampling = SampleChoice { rate, since: now, counted: 0, skip: 0, random: 1 };
        HotKeyCounter { sketch, is_on: max > 0, requests: sampling, values: sampling }
    }

    /// Halves all counts, so that they show the requests of the last minutes if this is done each
    /// minute.
    pub(crate) fn halve(&self) {
        lock(&self.0).iter().for_each(|sketch| lock(sketch).halve());
    }

    /// Returns the keys of all workers, the most frequent first.
    pub(crate) fn all(&self) -> Vec<HotKey> {
        let mut all: HashMap<Box<[u8]>, HotKey> = HashMap::new();
        for sketch in &*lock(&self.0) {
            for key in &lock(sketch).keys {
                match all.get_mut(&key.key) {
                    None => drop(all.insert(key.key.clone(), key.clone())),
                    Some(sum) => {
                        (sum.requests, sum.bytes) = (sum.requests + key.requests, sum.bytes + key.bytes)
                    }
                }
            }
        }
        let mut all: Vec<HotKey> = all.into_values().collect();
        all.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.key.cmp(&b.key)));
        all
    }
}

/// The sketch of a worker, with the choice of its sample.
pub(crate) struct HotKeyCounter {
    sketch: Arc<Mutex<KeySketch>>,
    is_on: bool,
    requests: SampleChoice,
    values: SampleChoice,
}

impl HotKeyCounter {
    /// Changes the number of keys. The keys that are counted stay if it is not smaller.
    pub(crate) fn set_max(&mut self, max: usize) {
        let mut sketch = lock(&self.sketch);
        if max < sketch.max {
            *sketch = KeySketch::default();
        }
        sketch.max = max;
        self.is_on = max > 0;
    }

    /// Counts a request.
    #[inline]
    pub(crate) fn note_request(&mut self, key: &[u8], len: usize, now: impl FnOnce() -> Instant) {
        if self.is_on
            && let Some(weight) = self.requests.weight(now)
        {
            lock(&self.sketch).note(key, weight, len as u64 * weight);
        }
    }

    /// Adds the bytes of a value in a reply to those of its key, if the key is counted.
    #[inline]
    pub(crate) fn note_value(&mut self, key: &[u8], len: usize, now: impl FnOnce() -> Instant) {
        if self.is_on
            && let Some(weight) = self.values.weight(now)
        {
            lock(&self.sketch).add_bytes(key, len as u64 * weight);
        }
    }
}

/// Chooses the requests that are counted.
#[derive(Clone, Copy)]
struct SampleChoice {
    rate: SampleRate,
    /// The beginning of a second, and the number of requests that were counted since then.
    since: Instant,
    counted: u32,
    /// The number of requests that are passed over.
    skip: u32,
    random: u32,
}

impl SampleChoice {
    /// Returns the number of requests for which the present one is counted, or `None` if it is not.
    #[inline]
    fn weight(&mut self, now: impl FnOnce() -> Instant) -> Option<u64> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.next_weight(now())
    }

    fn next_weight(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.counted) = (now, 0);
        }
        self.counted += 1;
        if self.counted <= self.rate.counted_all {
            return Some(1);
        }
        // The first request of a sample is chosen at random, too.
        let is_chosen = self.counted > self.rate.counted_all + 1;
        // Equal distances would miss keys of requests that come in a pattern (xorshift).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.skip = self.random % (2 * self.rate.distance - 1);
        is_chosen.then_some(u64::from(self.rate.distance))
    }
}

/// A limited number of keys with their counts.
#[derive(Default)]
struct KeySketch {
    max: usize,
    keys: Vec<HotKey>,
    places: HashMap<Box<[u8]>, usize>,
    /// No key has fewer requests, and the keys before `cursor` have more.
    floor: u64,
    cursor: usize,
}

impl KeySketch {
    /// Returns the place of a key with the least requests. Mostly looks at few keys, because many
    /// have as few.
    fn least(&mut self) -> Option<usize> {
        loop {
            let place = self.keys[self.cursor..].iter().position(|key| key.requests <= self.floor);
            if let Some(place) = place {
                self.cursor += place;
                return Some(self.cursor);
            }
            self.floor = self.keys.iter().map(|key| key.requests).min()?;
            self.cursor = 0;
        }
    }

    fn note(&mut self, key: &[u8], requests: u64, bytes: u64) {
        let known = self.places.get(key).copied();
        let place = match known {
            Some(place) => place,
            None if self.keys.len() < self.max => {
                self.keys.push(HotKey { key: key.into(), requests: 0, bytes: 0 });
                self.keys.len() - 1
            }
            None => {
                let Some(least) = self.least() else { return };
                self.places.remove(&self.keys[least].key);
                // The new key keeps the count, because it may have been there before.
                (self.keys[least].key, self.keys[least].bytes) = (key.into(), 0);
                least
            }
        };
        if known.is_none() {
            self.places.insert(key.into(), place);
        }
        self.keys[place].requests += requests;
        self.keys[place].bytes += bytes;
    }

    fn halve(&mut self) {
        for key in &mut self.keys {
            (key.requests, key.bytes) = (key.requests / 2, key.bytes / 2);
        }
        (self.floor, self.cursor) = (0, 0);
    }

    fn add_bytes(&mut self, key: &[u8], bytes: u64) {
        if let Some(place) = self.places.get(key) {
            self.keys[*place].bytes += bytes;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_keys_remain_among_many() {
        let (all, now) = (HotKeys::default(), Instant::now());
        let mut counters = [all.join(10, SampleRate::OF_PROXY, now), all.join(10, SampleRate::OF_PROXY, now)];
        for number in 0..4000 {
            let counter = &mut counters[number % 2];
            // Each counter counts all of up to 1,000 requests in a second.
            let now = now + Duration::from_secs(number as u64 / 250);
            for key in ["a", "b", "a"] {
                counter.note_request(key.as_bytes(), 5, || now);
            }
            counter.note_request(format!("k{number}").as_bytes(), 7, || now);
        }
        let keys = all.all();
        let counts = [0, 1].map(|place| (&*keys[place].key, keys[place].requests, keys[place].bytes));
        assert_eq!(counts, [(&b"a"[..], 8000, 40_000), (b"b", 4000, 20_000)]);
        // The sum of all counts is the number of requests.
        assert_eq!(keys.iter().map(|key| key.requests).sum::<u64>(), 16_000);
        all.halve();
        assert_eq!(all.all()[0].requests, 4000);
        counters[0].note_request(b"new", 1, || now + Duration::from_secs(60));
        assert!(all.all().iter().any(|key| &*key.key == b"new"));
    }

    #[test]
    fn sample_stands_for_all_requests() {
        let (all, now) = (HotKeys::default(), Instant::now());
        let mut counter = all.join(10, SampleRate::OF_PROXY, now);
        for number in 0..1_000_000 {
            counter.note_request(if number % 4 == 0 { b"a" } else { b"b" }, 1, || now);
        }
        let keys = all.all();
        let near = |counted: u64, real: u64| counted.abs_diff(real) < real / 20;
        assert!(near(keys[0].requests, 750_000) && near(keys[1].requests, 250_000), "{keys:?}");
        assert_eq!(keys[0].requests, keys[0].bytes);
        // After a second, all requests are counted again.
        counter.requests.skip = 0;
        let before = all.all()[1].requests;
        (0..3).for_each(|_| counter.note_request(b"a", 1, || now + Duration::from_secs(1)));
        assert_eq!(all.all()[1].requests, before + 3);
    }
}
