//! Many threads move money between accounts in transactions: the sum stays the same.
//!
//! ```text
//! cargo run -p todana --example bank
//! ```

use std::thread;
use todana::{Db, Records, Result};

const ACCOUNTS: u64 = 20;
const THREADS: u64 = 4;
const TRANSFERS: u64 = 200;

fn account(number: u64) -> Vec<u8> {
    format!("account:{number}").into_bytes()
}

/// Moves an amount. Returns false and changes nothing if the balance is too low.
fn transfer(db: &Db, from: u64, to: u64, amount: i64) -> Result<bool> {
    let transaction = db.begin()?;
    if transaction.increment(&account(from), -amount, None)? < 0 {
        transaction.abort();
        return Ok(false);
    }
    transaction.increment(&account(to), amount, None)?;
    transaction.commit()?;
    Ok(true)
}

fn total(db: &Db) -> Result<i64> {
    // In a transaction, so that no amount moves during the addition.
    let transaction = db.begin()?;
    let mut total = 0;
    for item in transaction.prefix(b"account:") {
        total += std::str::from_utf8(&item?.1).ok().and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    }
    Ok(total)
}

pub(crate) fn main() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let place = folder.path().join("bank.tree");
    let place = place.to_string_lossy();
    let db = Db::open(&place)?;
    for number in 0..ACCOUNTS {
        db.set(&account(number), b"100")?;
    }
    thread::scope(|scope| {
        let tellers: Vec<_> = (0..THREADS)
            .map(|teller| {
                let db = &db;
                scope.spawn(move || {
                    for turn in 0..TRANSFERS {
                        let (from, to) = ((turn * 7 + teller) % ACCOUNTS, (turn * 3 + teller * 5) % ACCOUNTS);
                        transfer(db, from, to, (turn % 40) as i64)?;
                    }
                    Ok::<(), todana::Error>(())
                })
            })
            .collect();
        tellers.into_iter().try_for_each(|teller| teller.join().expect("no teller panics"))
    })?;
    let before = total(&db)?;
    drop(db);
    let after = total(&Db::open(&place)?)?;
    println!("{before} in all, and {after} after it was opened again");
    assert_eq!((before, after), (ACCOUNTS as i64 * 100, ACCOUNTS as i64 * 100));
    Ok(())
}
