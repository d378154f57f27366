//! The instructions of a search in a table: any bytes find the same rows with indexes as without.
//!
//! The input is a byte with the number of rows, and parts that end with the byte 0xFF: first the
//! rows (columns separated by NUL bytes), then the instructions.
use std::ops::ControlFlow;
use todana::table::{IndexKind, Row, SearchOptions, Table};
use todana::tyrant::TableSearch;
use todana::{Db, Result};
use todana_protocol::tyrant::FieldBuffer;

pub(crate) fn play(input: &[u8]) {
    let Some((rows, rest)) = input.split_first() else { return };
    let parts: Vec<&[u8]> = rest.split(|&byte| byte == 0xFF).collect();
    let (rows, instructions) = parts.split_at(parts.len().min(usize::from(rows % 8)));
    let fields = FieldBuffer::from_iter(instructions.iter().copied());
    let Some(search) = TableSearch::parse(fields.list()).filter(|search| !search.removes()) else { return };
    let with_indexes =
        found(&search, rows, &[IndexKind::Lexical, IndexKind::Decimal, IndexKind::Token, IndexKind::QGram]);
    let without = found(&search, rows, &[]);
    match (with_indexes, without) {
        (Ok(one), Ok(other)) => {
            // Without an order, a limit may select other rows.
            let has_limit = instructions
                .iter()
                .any(|words| words.windows(3).any(|word| word == b"max" || word == b"lim"));
            assert_eq!(one.len(), other.len());
            assert!(has_limit || one == other, "{one:?} with indexes, {other:?} without");
        }
        (one, other) => assert_eq!(one.is_err(), other.is_err()),
    }
}

/// Returns the elements that a search finds, sorted, except the hint. Each column of one letter
/// has one of the indexes, in turn.
fn found(search: &TableSearch, rows: &[&[u8]], indexes: &[IndexKind]) -> Result<Vec<Vec<u8>>> {
    let table = Table::new(&Db::open("mem:table")?)?;
    for (column, kind) in ["a", "b", "c", "d"].into_iter().zip(indexes) {
        table.set_index(column.as_bytes(), Some(*kind))?;
    }
    for (number, bytes) in rows.iter().enumerate() {
        let Ok(row) = Row::from_bytes(bytes) else { continue };
        let columns: Vec<(&[u8], &[u8])> = row.columns().collect();
        table.put(format!("{number}").as_bytes(), &columns)?;
    }
    table.finish_indexes();
    let mut elements = Vec::new();
    search.perform(table.db().database(), SearchOptions::default(), &mut |_, _| Ok(()), &mut |element| {
        if !element.starts_with(b"\0\0[[HINT]]") {
            elements.push(element.to_vec());
        }
        ControlFlow::Continue(())
    })?;
    elements.sort();
    Ok(elements)
}
