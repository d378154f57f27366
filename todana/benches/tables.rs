//! Question: how long do loading a table with three indexes and typical queries take, how much
//! memory and disk does the table need, and how does the time of a query depend on its plan?
//!
//! The table has 1 M rows of five columns, with a lexical, a decimal and a token index. Prints the
//! seconds and the processor seconds of each step. Run: `cargo bench -p todana --bench tables --
//! [PATH.table [ROWS]]`. The table is removed at the end.

use std::path::Path;
use std::time::Instant;
use todana::table::{ConditionOperator, IndexKind, Query, QueryOrder, SearchOptions, Table};
use todana::{Db, Result};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let folder = tempfile::tempdir().expect("a folder for the table");
    let default = folder.path().join("x.table").display().to_string();
    let name = arguments.first().unwrap_or(&default);
    let rows: u32 = arguments.get(1).map_or(1_000_000, |rows| rows.parse().expect("a number of rows"));
    let db = Db::open(name)?;
    let table = Table::new(&db)?;
    for (column, kind) in
        [("name", IndexKind::Lexical), ("age", IndexKind::Decimal), ("tags", IndexKind::Token)]
    {
        table.set_index(column.as_bytes(), Some(kind))?;
    }
    timed("load", || {
        for number in 0..rows {
            let mixed = number.wrapping_mul(2_654_435_761);
            let columns = [
                ("name", format!("user{:07}", mixed % rows)),
                ("age", (number.wrapping_mul(7919) % 100_000).to_string()),
                ("tags", format!("w{},w{}", mixed % 1000, mixed / 1000 % 1000)),
                ("city", format!("city{}", number % 500)),
                ("about", format!("about row {number} of all")),
            ];
            table.put(number.to_string().as_bytes(), &columns)?;
        }
        Ok(u64::from(rows))
    })?;
    timed("sync", || db.sync().map(|()| 0))?;
    timed("checkpoint", || db.checkpoint().map(|()| 0))?;
    timed("equality, 20,000 queries", || {
        let query = |number: u32| {
            let mixed = (number.wrapping_mul(48_271) % rows).wrapping_mul(2_654_435_761);
            let name = format!("user{:07}", mixed % rows);
            Query::new().filter(b"name", ConditionOperator::TextEquals, name.as_bytes())
        };
        count(&table, (0..20_000).map(query))
    })?;
    timed("range with order and limit 10, 2,000 queries", || {
        let query = |number: u32| {
            let from = number * 37 % 99_000;
            let range = format!("{from} {}", from + 500);
            let query = Query::new().filter(b"age", ConditionOperator::NumberBetween, range.as_bytes());
            query.order_by(b"age", QueryOrder::NumberDescending).limit(10)
        };
        count(&table, (0..2000).map(query))
    })?;
    timed("token, 200 queries", || {
        let query = |number: u32| {
            let word = format!("w{}", number * 5 % 1000);
            Query::new().filter(b"tags", ConditionOperator::HasAnyWord, word.as_bytes())
        };
        count(&table, (0..200).map(query))
    })?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .filter(|line| line.starts_with("Rss") || line.starts_with("VmRSS"))
        .for_each(|line| println!("{line}"));
    drop(table);
    drop(db);
    println!("files {} MiB", size_of(Path::new(name)) >> 20);
    let _ = std::fs::remove_dir_all(name);
    Ok(())
}

/// Returns the number of keys that the queries find.
fn count(table: &Table, queries: impl Iterator<Item = Query>) -> Result<u64> {
    let options = SearchOptions { keys_only: true, ..SearchOptions::default() };
    let mut found = 0;
    for query in queries {
        found += table.search_with(&query, options)?.count_rows()?;
    }
    Ok(found)
}

fn timed(what: &str, work: impl FnOnce() -> Result<u64>) -> Result<()> {
    let (begun, used) = (Instant::now(), cpu_seconds());
    let result = work()?;
    println!(
        "{what}: {:.3} s, processor {:.3} s, {result}",
        begun.elapsed().as_secs_f64(),
        cpu_seconds() - used
    );
    Ok(())
}

/// Returns the processor seconds of this process.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn size_of(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return path.metadata().map_or(0, |data| data.len()) };
    entries.flatten().map(|entry| size_of(&entry.path())).sum()
}
