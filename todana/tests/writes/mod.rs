//! Writes that are determined by their numbers: from the number of writes of a writer, the expected
//! records can be computed.
//!
//! Each writer has its own records. All writers share accounts, between which transactions move
//! amounts. The balances show whether a transaction was applied in part, twice, or to a state that
//! another transaction has changed since.

use crate::crash_disk::Dice;
use crate::table_indexes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use todana::{Db, Record, Records, Result, Ttl};

const KEYS: u64 = 12;
const ACCOUNTS: u64 = 5;
/// The number of a writer that runs alone, and sometimes removes all records.
pub(crate) const ALONE: u64 = 0;
/// The number of a writer that also runs alone. Some of its values are millions of bytes long.
pub(crate) const LONG: u64 = 1_000;
/// The values of the writers from this number on have at most 64 bytes.
pub(crate) const SHORT: u64 = 2_000;

/// The expected value of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Value {
    /// The bytes, shared between the states in which the record has this value.
    bytes: Arc<Vec<u8>>,
    flags: u32,
    /// True if the record has a time to live.
    is_mortal: bool,
}

pub(crate) type FoundRecords = BTreeMap<Vec<u8>, Value>;

/// This time is so long that no record expires during the test.
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
    /// Writes in a transaction that is aborted.
    Aborted(Vec<Write>),
    Clear,
}

/// Returns a key whose digits form a number, so that databases of numbered records take it.
fn own_key(writer: u64, dice: &mut Dice) -> Vec<u8> {
    format!("{writer}:1{:02}", dice.roll(KEYS)).into_bytes()
}

/// Returns the key whose digits form this number.
fn key_of_digits(number: u64) -> Vec<u8> {
    match number {
        ..1000 if number <= ACCOUNTS => format!("account:{number}"),
        _ => format!("{}:{:03}", number / 1000, number % 1000),
    }
    .into_bytes()
}

impl Write {
    /// Returns a random write to the writer's own records.
    fn own(writer: u64, number: u64, dice: &mut Dice) -> Write {
        let key = own_key(writer, dice);
        let len = match dice.roll(300) {
            _ if writer >= SHORT => dice.roll(40) as usize,
            0..6 if writer == LONG => 1_000_000 + dice.roll(3_000_000) as usize,
            // Such a long value is stored in memory of its own and written from there.
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
            3..6 if writer < SHORT => Write::Append { key, piece: format!("+{number}").into_bytes() },
            3..8 => Write::Touch { key, ttl },
            _ => {
                // A table has this value in a column.
                let value = [b"n\0", number.to_string().as_bytes(), &vec![number as u8; len]].concat();
                Write::Set { key, value, flags: dice.roll(3) as u32, ttl }
            }
        }
    }

    fn moving(dice: &mut Dice) -> Write {
        let from = dice.roll(ACCOUNTS);
        let to = (from + 1 + dice.roll(ACCOUNTS - 1)) % ACCOUNTS;
        let account = |number| format!("account:{}", number + 1).into_bytes();
        Write::Move { from: account(from), to: account(to), amount: 1 + dice.roll(100) as i64 }
    }

    fn make(&self, records: &impl Records) -> Result<()> {
        match self {
            Write::Set { key, value, flags, ttl } => records.set_with(key, value, *ttl, *flags),
            Write::Touch { key, ttl } => records.touch(key, *ttl).map(|_| ()),
            Write::Append { key, piece } => records.append(key, piece),
            Write::Remove { key } => records.remove(key).map(|_| ()),
            Write::Move { from, to, amount } => {
                // The balances are read and then written, as programs do.
                let (left, right) = (balance(records.get(from)?), balance(records.get(to)?));
                records.set(from, (left - amount).to_string().as_bytes())?;
                records.set(to, (right + amount).to_string().as_bytes())
            }
        }
    }

    fn note(self, found: &mut FoundRecords) {
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
    /// Returns the operation with this number. Numbers start at 1.
    fn of(writer: u64, number: u64) -> Operation {
        let mut dice = Dice::new(writer << 40 | number);
        let several = |dice: &mut Dice| -> Vec<Write> {
            (0..1 + dice.roll(5)).map(|_| Write::own(writer, number, dice)).collect()
        };
        match dice.roll(100) {
            0 if [ALONE, LONG, SHORT].contains(&writer) => Operation::Clear,
            0..5 => Operation::Aborted(several(&mut dice)),
            5..40 => {
                let mut writes = several(&mut dice);
                // Each operation sets a record that shows that it took place.
                let (key, value) = (own_key(writer, &mut dice), number.to_string().into_bytes());
                writes.push(Write::Set { key, value, flags: 0, ttl: Ttl::Never });
                (0..dice.roll(3)).for_each(|_| writes.push(Write::moving(&mut dice)));
                Operation::Together(writes)
            }
            _ => Operation::Single(Write::own(writer, number, &mut dice)),
        }
    }
}

/// Executes the writer's operation with this number. When this returns, the operation is
/// acknowledged.
pub(crate) fn make(db: &Db, writer: u64, number: u64) -> Result<()> {
    let within = |writes: Vec<Write>| {
        let transaction = db.begin()?;
        writes.iter().try_for_each(|write| write.make(&transaction)).map(|()| transaction)
    };
    match Operation::of(writer, number) {
        Operation::Single(write) => write.make(db),
        Operation::Together(writes) => within(writes)?.commit(),
        Operation::Aborted(writes) => {
            within(writes)?.abort();
            Ok(())
        }
        Operation::Clear => db.clear(),
    }
}

/// Applies the operation to the expected records.
pub(crate) fn note(found: &mut FoundRecords, writer: u64, number: u64) {
    match Operation::of(writer, number) {
        Operation::Single(write) => write.note(found),
        Operation::Together(writes) => writes.into_iter().for_each(|write| write.note(found)),
        Operation::Aborted(_) => {}
        Operation::Clear => found.clear(),
    }
}

/// Returns all records of a database. The definitions of a table are left out.
pub(crate) fn found(db: &Db) -> FoundRecords {
    let mut found = FoundRecords::new();
    let is_numbered = db.database().engine().numbered().is_some();
    let mut see = |key: &[u8], record: Record<'_>| {
        let key = match is_numbered {
            true => key_of_digits(std::str::from_utf8(key).unwrap().parse().unwrap()),
            false => key.to_vec(),
        };
        let value = Value {
            bytes: Arc::new(record.value.to_vec()),
            flags: record.attributes.flags,
            is_mortal: record.attributes.expiry.at().is_some(),
        };
        if !key.is_empty() {
            found.insert(key, value);
        }
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

/// Defines the indexes of a table that has none.
pub(crate) fn define_indexes(db: &Db) {
    if db.database().engine().indexed().is_some_and(|indexed| indexed.indexes().is_empty()) {
        db.set(b"", b"\0LEXICAL\0n\0DECIMAL").unwrap();
    }
}

/// Checks the indexes of a table, after the first opening has defined them.
pub(crate) fn check_indexes(db: &Db) {
    define_indexes(db);
    let Some(indexed) = db.database().engine().indexed() else { return };
    let live = || db.iter().keys().count() as u64;
    // A sweep in the middle of the check would remove expired rows with their entries.
    while indexed.indexes().iter().any(|index| !index.is_complete) || live() < db.count() {
        db.database().request_sweep();
        db.database().maintain();
    }
    let check = || table_indexes::assert_indexes_follow_from_rows(db.database().engine());
    // The thread for upkeep may have removed an expired row, but not yet its entries.
    let is_right = |_| catch_unwind(AssertUnwindSafe(check)).is_ok();
    if !(0..1000).any(is_right) {
        check();
    }
}

/// Describes the difference, for a message.
pub(crate) fn difference(found: &FoundRecords, expected: &FoundRecords) -> String {
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
