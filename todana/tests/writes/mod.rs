//! Writes that follow from their numbers: the number of writes of a writer determines the expected
//! records.
//!
//! Each writer has its own records, and all of them share accounts, between which transactions move
//! amounts. The balances reveal a transaction that was applied in part, twice, or to a state that
//! another one has changed since.

use crate::crash_disk::Dice;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use todana::{Db, Record, Records, Result, Ttl};

const KEYS: u64 = 12;
const ACCOUNTS: u64 = 5;
/// This writer runs alone, and sometimes removes everything.
pub(crate) const ALONE: u64 = 0;
/// This writer also runs alone; some of its values are millions of bytes long.
pub(crate) const LONG: u64 = 1_000;

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Value {
    /// Shared between moments.
    bytes: Arc<Vec<u8>>,
    flags: u32,
    /// The record has a time to live.
    is_mortal: bool,
}

pub(crate) type Found = BTreeMap<Vec<u8>, Value>;

/// Long enough that no record expires during the test.
const TTL: Ttl = Ttl::Seconds(1_000_000);

enum Write {
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
        flags: u32,
        ttl: Ttl,
    },
    /// Sets a time to live; the sweep removes expired records.
    Touch {
        key: Vec<u8>,
        ttl: Ttl,
    },
    Append {
        key: Vec<u8>,
        piece: Vec<u8>,
    },
    Remove {
        key: Vec<u8>,
    },
    /// Moves an amount from one account to the other.
    Move {
        from: Vec<u8>,
        to: Vec<u8>,
        amount: i64,
    },
}

enum Operation {
    Single(Write),
    Together(Vec<Write>),
    /// Written in a transaction that is aborted.
    GivenUp(Vec<Write>),
    Clear,
}

fn own_key(writer: u64, dice: &mut Dice) -> Vec<u8> {
    format!("{writer}:{}", dice.roll(KEYS)).into_bytes()
}

impl Write {
    /// A random write to the writer's own records.
    fn own(writer: u64, number: u64, dice: &mut Dice) -> Write {
        let key = own_key(writer, dice);
        let len = match dice.roll(300) {
            0..6 if writer == LONG => 1_000_000 + dice.roll(3_000_000) as usize,
            // Stored in memory of its own, and written from there.
            0 => 100_000,
            1..8 => 5_000,
            _ => dice.roll(150) as usize,
        };
        let ttl = match dice.roll(12) {
            0..3 => TTL,
            3 => Ttl::Expired,
            _ => Ttl::Never,
        };
        match dice.roll(20) {
            0..3 => Write::Remove { key },
            3..6 => Write::Append { key, piece: format!("+{number}").into_bytes() },
            6..8 => Write::Touch { key, ttl },
            _ => {
                let value = [number.to_string().as_bytes(), &vec![number as u8; len]].concat();
                Write::Set { key, value, flags: dice.roll(3) as u32, ttl }
            }
        }
    }

    fn moving(dice: &mut Dice) -> Write {
        let from = dice.roll(ACCOUNTS);
        let to = (from + 1 + dice.roll(ACCOUNTS - 1)) % ACCOUNTS;
        let account = |number| format!("account:{number}").into_bytes();
        Write::Move { from: account(from), to: account(to), amount: 1 + dice.roll(100) as i64 }
    }

    fn make(&self, records: &impl Records) -> Result<()> {
        match self {
            Write::Set { key, value, flags, ttl } => records.set_with(key, value, *ttl, *flags),
            Write::Touch { key, ttl } => records.touch(key, *ttl).map(|_| ()),
            Write::Append { key, piece } => records.append(key, piece),
            Write::Remove { key } => records.remove(key).map(|_| ()),
            Write::Move { from, to, amount } => {
                // Read and then written, as programs do.
                let (left, right) = (balance(records.get(from)?), balance(records.get(to)?));
                records.set(from, (left - amount).to_string().as_bytes())?;
                records.set(to, (right + amount).to_string().as_bytes())
            }
        }
    }

    fn note(self, found: &mut Found) {
        match self {
            Write::Set { key, ttl: Ttl::Expired, .. } | Write::Touch { key, ttl: Ttl::Expired } => {
                found.remove(&key);
            }
            Write::Set { key, value, flags, ttl } => {
                let value = Value { bytes: Arc::new(value), flags, is_mortal: ttl != Ttl::Never };
                found.insert(key, value);
            }
            Write::Touch { key, ttl } => {
                if let Some(value) = found.get_mut(&key) {
                    value.is_mortal = ttl != Ttl::Never;
                }
            }
            Write::Append { key, piece } => {
                Arc::make_mut(&mut found.entry(key).or_default().bytes).extend(piece);
            }
            Write::Remove { key } => drop(found.remove(&key)),
            Write::Move { from, to, amount } => {
                for (key, amount) in [(from, -amount), (to, amount)] {
                    let value = found.entry(key).or_default();
                    let sum = balance(Some(value.bytes.to_vec())) + amount;
                    value.bytes = Arc::new(sum.to_string().into_bytes());
                }
            }
        }
    }
}

fn balance(value: Option<Vec<u8>>) -> i64 {
    let text = String::from_utf8(value.unwrap_or_default()).unwrap();
    if text.is_empty() { 0 } else { text.parse().unwrap() }
}

impl Operation {
    /// Returns the operation of this number; numbers count from 1.
    fn of(writer: u64, number: u64) -> Operation {
        let mut dice = Dice::new(writer << 40 | number);
        let several = |dice: &mut Dice| -> Vec<Write> {
            (0..1 + dice.roll(5)).map(|_| Write::own(writer, number, dice)).collect()
        };
        match dice.roll(100) {
            0 if writer == ALONE || writer == LONG => Operation::Clear,
            0..5 => Operation::GivenUp(several(&mut dice)),
            5..40 => {
                let mut writes = several(&mut dice);
                // In every operation, the record that it sets shows that it happened.
                let (key, value) = (own_key(writer, &mut dice), number.to_string().into_bytes());
                writes.push(Write::Set { key, value, flags: 0, ttl: Ttl::Never });
                (0..dice.roll(3)).for_each(|_| writes.push(Write::moving(&mut dice)));
                Operation::Together(writes)
            }
            _ => Operation::Single(Write::own(writer, number, &mut dice)),
        }
    }
}

/// Executes the writer's write of this number; it is acknowledged when this returns.
pub(crate) fn make(db: &Db, writer: u64, number: u64) -> Result<()> {
    let within = |writes: Vec<Write>| {
        let transaction = db.begin()?;
        writes.iter().try_for_each(|write| write.make(&transaction)).map(|()| transaction)
    };
    match Operation::of(writer, number) {
        Operation::Single(write) => write.make(db),
        Operation::Together(writes) => within(writes)?.commit(),
        Operation::GivenUp(writes) => {
            within(writes)?.abort();
            Ok(())
        }
        Operation::Clear => db.clear(),
    }
}

/// Applies the write to a model.
pub(crate) fn note(found: &mut Found, writer: u64, number: u64) {
    match Operation::of(writer, number) {
        Operation::Single(write) => write.note(found),
        Operation::Together(writes) => writes.into_iter().for_each(|write| write.note(found)),
        Operation::GivenUp(_) => {}
        Operation::Clear => found.clear(),
    }
}

/// Returns all records.
pub(crate) fn found(db: &Db) -> Found {
    let mut found = Found::new();
    let mut see = |key: &[u8], record: Record<'_>| {
        let value = Value {
            bytes: Arc::new(record.value.to_vec()),
            flags: record.attributes.flags,
            is_mortal: record.attributes.expiry.at().is_some(),
        };
        found.insert(key.to_vec(), value);
        ControlFlow::Continue(())
    };
    db.for_each(&mut see).unwrap();
    // The count includes expired records that no sweep has removed.
    assert!(db.count() >= found.len() as u64);
    for (key, value) in &found {
        assert_eq!(db.get(key).unwrap().as_ref(), Some(&*value.bytes), "{}", key.escape_ascii());
    }
    found
}

/// Describes the difference, for a message.
pub(crate) fn difference(found: &Found, expected: &Found) -> String {
    let show = |value: Option<&Value>| match value {
        Some(Value { bytes, flags, is_mortal }) => {
            let shown = &bytes[..bytes.len().min(20)];
            let mortal = if *is_mortal { " mortal" } else { "" };
            format!("{} bytes \"{}\" flags {flags}{mortal}", bytes.len(), shown.escape_ascii())
        }
        None => "nothing".into(),
    };
    let keys: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let differing = keys.into_iter().filter(|key| found.get(*key) != expected.get(*key)).map(|key| {
        format!("{}: {} instead of {}", key.escape_ascii(), show(found.get(key)), show(expected.get(key)))
    });
    differing.collect::<Vec<_>>().join("; ")
}
