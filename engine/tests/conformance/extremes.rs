//! The shortest and longest keys, values and buffers.

use crate::model::{Decided, Decision, name, view};
use crate::subject::{Subject, put, remove};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use todana_core::{
    Action, Attributes, Engine, ErrorKind, Expiry, LONG_VALUE_LEN, Record, Result, SharedBytes, UnixSeconds,
    ValueBuffer, Visitor,
};

/// The key length that every engine must accept.
const KEY_LEN_AT_LEAST: usize = 1024;

pub(crate) fn keys_of_any_length_are_distinct_or_refused(subject: &Subject) {
    let mut engine = subject.fresh();
    let lens = (0..70).chain([
        127,
        128,
        129,
        250,
        251,
        254,
        255,
        256,
        257,
        300,
        510,
        511,
        512,
        513,
        1000,
        1022,
        1023,
        1024,
        1025,
        1977,
        1978,
        1979,
        1980,
        1981,
        1982,
        1983,
        2048,
        4095,
        4096,
        4097,
        16_383,
        16_384,
        65_534,
        65_535,
        65_536,
        65_537,
        70_000,
        1 << 20,
    ]);
    let mut kept = Vec::new();
    for len in lens {
        // Two keys of each length, which differ only in their last byte.
        for last in if len == 0 { vec![0] } else { vec![b'k', b'l'] } {
            let mut key = vec![b'k'; len];
            key.splice(len.saturating_sub(1).., (len > 0).then_some(last));
            let value = format!("{len} {last}").into_bytes();
            let mut visitor = Decided::new(Decision::Put(value.clone(), Attributes::default()));
            match engine.visit(&key, &mut visitor) {
                Ok(()) => kept.push((key, value)),
                Err(error) => {
                    assert!(len > KEY_LEN_AT_LEAST, "{}: {error}", name(&key));
                    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                    assert_eq!(visitor.applied, None);
                    assert_eq!(view(&*engine, &key), None);
                    assert_eq!(engine.status().records, kept.len() as u64);
                }
            }
        }
    }
    for _ in 0..2 {
        for (key, value) in &kept {
            assert!(view(&*engine, key) == Some((value.clone(), Attributes::default())), "{}", name(key));
        }
        let mut found = BTreeSet::new();
        let next = engine.scan(None, &mut |key, _| {
            found.insert(key.to_vec());
            ControlFlow::Continue(())
        });
        assert_eq!(next.unwrap(), None);
        assert!(found.iter().eq(kept.iter().map(|(key, _)| key).collect::<BTreeSet<_>>()), "all are scanned");
        engine.reopen();
    }
    for (key, _) in kept.iter().step_by(2) {
        assert!(remove(&*engine, key), "{}", name(key));
    }
    engine.reopen();
    for (n, (key, _)) in kept.iter().enumerate() {
        assert_eq!(view(&*engine, key).is_some(), n % 2 == 1, "{}", name(key));
    }
    assert_eq!(engine.status().records, kept.len() as u64 / 2);
}

/// Returns lengths around every size at which an engine might change its layout.
fn value_lens() -> Vec<usize> {
    let mut lens: Vec<usize> = (0..20).collect();
    for border in [
        64,
        127,
        128,
        255,
        256,
        300,
        400,
        512,
        1024,
        1200,
        2000,
        4096,
        16_384,
        65_536,
        LONG_VALUE_LEN,
        1 << 20,
    ] {
        lens.extend(border - 2..=border + 2);
    }
    lens.push(5_000_000);
    lens.sort_unstable();
    lens.dedup();
    lens
}

fn bytes(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(31) ^ (n >> 8) as u8 ^ salt).collect()
}

fn some_attributes(n: usize) -> Attributes {
    let sliding = Expiry::Sliding { at: UnixSeconds(5_000_000_000), span_s: u32::MAX };
    match n % 3 {
        0 => Attributes::default(),
        1 => Attributes { flags: u32::MAX, version: u64::MAX, ..Attributes::default() },
        _ => Attributes { expiry: sliding, version: 1, ..Attributes::default() },
    }
}

pub(crate) fn values_of_any_length_are_returned_unchanged(subject: &Subject) {
    let mut engine = subject.fresh();
    let lens = value_lens();
    for (n, &len) in lens.iter().enumerate() {
        put(&*engine, len.to_string().as_bytes(), &bytes(len, 1), some_attributes(n));
    }
    for _ in 0..2 {
        for (n, &len) in lens.iter().enumerate() {
            let found = view(&*engine, len.to_string().as_bytes());
            assert!(found == Some((bytes(len, 1), some_attributes(n))), "a value of {len} bytes");
        }
        engine.reopen();
    }
}

pub(crate) fn a_value_can_change_between_all_lengths(subject: &Subject) {
    let mut engine = subject.fresh();
    let lens = [0, 1, 8, 60, 300, 1500, 5000, 70_000, 200_000];
    for (round, &from) in lens.iter().enumerate() {
        for (n, &to) in lens.iter().enumerate() {
            let key = format!("{round}");
            put(&*engine, key.as_bytes(), &bytes(from, 1), some_attributes(n));
            put(&*engine, key.as_bytes(), &bytes(to, 2), some_attributes(n + 1));
            let mut visitor = Decided::new(Decision::Retag(some_attributes(n + 2)));
            engine.visit(key.as_bytes(), &mut visitor).unwrap();
            if n % 3 == 0 {
                engine.reopen();
            }
            let found = view(&*engine, key.as_bytes());
            assert!(found == Some((bytes(to, 2), some_attributes(n + 2))), "from {from} to {to} bytes");
        }
    }
    assert_eq!(engine.status().records, lens.len() as u64);
}

fn fill(engine: &dyn Engine, buffer: &mut dyn ValueBuffer) -> Result<()> {
    while buffer.filled() < buffer.len() {
        let (at, left) = (buffer.filled(), (buffer.len() - buffer.filled()).min(100_000));
        let room = engine.room(buffer, left)?;
        assert!((1..=left).contains(&room.len()), "{} of {left}", room.len());
        let len = room.len();
        room.iter_mut().enumerate().for_each(|(n, byte)| *byte = (at + n) as u8);
        buffer.advance(len);
    }
    Ok(())
}

struct PutShared(SharedBytes);

impl Visitor for PutShared {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        let record = Record::new(self.0.plain().unwrap(), Attributes::default());
        Action::Put(Record { shared: Some(&self.0), ..record })
    }
}

pub(crate) fn a_buffer_becomes_the_value(subject: &Subject) {
    let mut engine = subject.fresh();
    // Shared bytes of a foreign type are accepted too.
    let foreign: SharedBytes = std::sync::Arc::new(bytes(300_000, 3));
    engine.visit(b"foreign", &mut PutShared(foreign)).unwrap();
    assert!(view(&*engine, b"foreign") == Some((bytes(300_000, 3), Attributes::default())));
    for len in [LONG_VALUE_LEN, 1 << 20, 3_000_001] {
        let mut buffer = match engine.buffer(len) {
            Ok(buffer) => buffer,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Invalid, "an engine without buffers says so: {error}");
                return;
            }
        };
        assert_eq!((buffer.len(), buffer.filled()), (len, 0));
        fill(&*engine, &mut *buffer).unwrap();
        assert!(engine.room(&mut *buffer, 10).unwrap().is_empty(), "a full one has no more room");
        engine.visit(len.to_string().as_bytes(), &mut PutShared(buffer.into_shared())).unwrap();
        let expected: Vec<u8> = (0..len).map(|n| n as u8).collect();
        for _ in 0..2 {
            assert!(
                view(&*engine, len.to_string().as_bytes()) == Some((expected.clone(), Attributes::default()))
            );
            engine.reopen();
        }
        // A buffer that is given up leaves nothing in use.
        let mut buffer = engine.buffer(len).unwrap();
        engine.room(&mut *buffer, 1000).unwrap()[0] = 1;
        buffer.advance(1);
        drop(buffer);
    }
    assert_eq!(engine.status().records, 4);
}

pub(crate) fn too_long_keys_and_values_are_refused(subject: &Subject) {
    let engine = subject.fresh();
    put(&*engine, b"key", b"old", Attributes::default());
    // Zeros from the system: untouched memory costs nothing.
    let value: SharedBytes = std::sync::Arc::new(vec![0u8; (1 << 30) + 1]);
    let error = engine.visit(b"key", &mut PutShared(value)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(view(&*engine, b"key"), Some((b"old".to_vec(), Attributes::default())));
    let key = vec![0; (1 << 28) + 1];
    let mut visitor = Decided::new(Decision::Put(Vec::new(), Attributes::default()));
    let error = engine.visit(&key, &mut visitor).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(visitor.applied, None);
    assert_eq!(engine.status().records, 1);
}
