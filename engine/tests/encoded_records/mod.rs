//! Plays fuzz input as writes to a hash in memory that has dictionaries and key shapes.
//!
//!     input = step ...
//!     step  = action(1) | key(1) | version(1)
//!
//! The lowest three bits of `action` select it, and the others the kind of the value. The bytes of
//! some values are those of the rest of the input.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{LazyLock, Mutex};
use todana_core::{Action, Attributes, Engine, Expiry, ImagedEngine, Record, UnixSeconds, Visitor};
use todana_engine::{MemHash, MemHashOptions, read_bucket_block};

/// A hash that has been trained, and is cleared for each input.
static TRAINED: LazyLock<Mutex<MemHash>> = LazyLock::new(|| {
    let options = MemHashOptions { seed: Some(3), shards: Some(2), ..MemHashOptions::default() };
    let hash = MemHash::new(options).unwrap();
    for (kind, count) in [(0, 4000), (1, 1500), (2, 1000), (3, 300)] {
        for n in 0..count {
            let key = key(u32::from(kind) * 10_000 + n);
            hash.visit(&key, &mut Put(&value(kind, n, &[]), Attributes::default())).unwrap();
        }
    }
    hash.recode();
    let encoding = hash.status().encoding;
    assert!(encoding.dictionaries == 3 && encoding.key_shapes > 1, "{encoding:?}");
    Mutex::new(hash)
});

struct Put<'a>(&'a [u8], Attributes);

impl Visitor for Put<'_> {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, self.1))
    }

    fn ignores_value(&self) -> bool {
        self.0.len().is_multiple_of(2)
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        assert!(now.is_some_and(|record| record.value == self.0 && record.attributes == self.1));
    }
}

struct Retag(Attributes);

impl Visitor for Retag {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        if old.is_some() { Action::Retag(self.0) } else { Action::Keep }
    }
}

struct Remove;

impl Visitor for Remove {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Remove
    }
}

fn key(n: u32) -> Vec<u8> {
    match n % 4 {
        0 => format!("user:{n}:profile"),
        1 => format!("session:{n:08x}-0000-4000-8000-{n:012x}"),
        2 => n.to_string(),
        _ => format!("{}{n}", "k".repeat((n % 700) as usize)),
    }
    .into_bytes()
}

/// Returns a value: short, of some hundred bytes, a number, long, noise, or the bytes of the input.
fn value(kind: u8, n: u32, input: &[u8]) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(n.into());
    let mut name = || ["Amara", "Olga", "Pedro", "Li"][random.usize(..4)];
    let profile = |n: u32, name: &str| format!(r#"{{"id":{n},"name":"{name}","city":"{}"}}"#, n % 100);
    match kind {
        0 => profile(n, name()).into_bytes(),
        1 => (n..n + 15).map(|n| profile(n, name())).collect::<String>().into_bytes(),
        2 => (n * 7).to_string().into_bytes(),
        3 => (n..n + 150 + n % 1000).map(|n| profile(n, name())).collect::<String>().into_bytes(),
        4 => (0..n * 300 % 70_000).map(|_| random.u8(..)).collect(),
        _ => input.repeat(1 + n as usize % 50),
    }
}

fn attributes(n: u8) -> Attributes {
    match n % 4 {
        0 => Attributes { flags: n.into(), ..Attributes::default() },
        1 => Attributes {
            expiry: Expiry::At(UnixSeconds(1000)),
            version: 1 + u64::from(n),
            ..Attributes::default()
        },
        _ => Attributes::default(),
    }
}

/// Changes records as an input says, and compares all of them with a model.
pub(crate) fn change_any(bytes: &[u8]) {
    let hash = TRAINED.lock().unwrap();
    hash.clear(&mut || ()).unwrap();
    let mut model = BTreeMap::new();
    let mut rest = bytes;
    while let Some((&[action, number, version], after)) = rest.split_first_chunk() {
        rest = after;
        let key = key(number.into());
        match action & 7 {
            0 => {
                hash.visit(&key, &mut Remove).unwrap();
                model.remove(&key);
            }
            1 => {
                hash.visit(&key, &mut Retag(attributes(version))).unwrap();
                model.entry(key).and_modify(|(_, of)| *of = attributes(version));
            }
            2 => drop(hash.maintain()),
            _ => {
                let value = value(action >> 3 & 7, version.into(), &rest[..rest.len().min(2000)]);
                hash.visit(&key, &mut Put(&value, attributes(version))).unwrap();
                model.insert(key, (value, attributes(version)));
            }
        }
    }
    let mut scanned = BTreeMap::new();
    let end = hash.scan(None, &mut |key, record| {
        scanned.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
        ControlFlow::Continue(())
    });
    assert!(end.unwrap().is_none() && scanned == model);
    for (key, (value, attributes)) in &model {
        let mut is_equal = false;
        hash.view(key, &mut |record| is_equal = record.value == value && record.attributes == *attributes)
            .unwrap();
        assert!(is_equal);
    }
    let status = hash.status();
    let plain = |(key, (value, attributes)): (&Vec<u8>, &(Vec<u8>, Attributes))| {
        (key.len() + value.len() + if attributes.flags == 0 { 0 } else { 4 }) as u64
    };
    assert_eq!(
        status.classes.iter().map(|class| class.plain_bytes).sum::<u64>(),
        model.iter().map(plain).sum()
    );
    // An image contains the same records as they are.
    let form = hash.image_form();
    let (mut block, mut from, mut copied) = (Vec::new(), None, BTreeMap::new());
    loop {
        let mut see = |key: &[u8], record: Record<'_>| {
            copied.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
        };
        from = hash.copy_buckets(&form, from, &|_| false, &mut block, &mut see).unwrap().next;
        if from.is_none() {
            break;
        }
    }
    let read = read_bucket_block(&form, &block, &mut |key, record| {
        copied.insert(key.to_vec(), (record.value.to_vec(), record.attributes));
        Ok(())
    });
    assert_eq!(read.err(), None);
    assert!(copied == model);
}
