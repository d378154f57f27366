//! Keys that are numbers: their intervals, and searches through them.
//!
//! Not here: the meaning of a key, also of `min`, `max`, `prev` and `next`
//! ([`Database::number_of`]).

use super::records_seen::expect_wanted;
use crate::session::worker_context::WorkerContext;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::AtomicBool;
use todana::{Database, ScanDirection};
use todana_core::{NumberedEngine, Record, Result, key_of_number, number_of_key};
use todana_protocol::tyrant::FieldList;

/// Returns the width of values, if the keys are numbers.
#[inline]
pub(super) fn width(context: &WorkerContext) -> Option<usize> {
    context.shared.databases.primary().database.engine().numbered().map(NumberedEngine::width)
}

/// Returns true unless a key is not the number of a record. The original refuses a list with such a
/// key.
pub(super) fn are_numbers(context: &WorkerContext, keys: FieldList<'_>) -> bool {
    let database = &context.shared.databases.primary().database;
    let is_number =
        |key: &[u8]| key != b"prev" && key != b"next" && matches!(number(database, key), Ok(Some(_)));
    width(context).is_none() || keys.iter().all(is_number)
}

/// Returns the number of a key, if it is not too high.
fn number(database: &Database, key: &[u8]) -> Result<Option<u64>> {
    let number_max = database.engine().numbered().map_or(0, NumberedEngine::number_max);
    Ok(database.number_of(key)?.filter(|&number| number <= number_max))
}

/// Returns the numbers of an interval: `[` or `(`, a key, `,`, a key, `]` or `)`. Returns `None`
/// for another text, or if a key is not a number.
pub(super) fn interval(database: &Database, text: &[u8]) -> Result<Option<RangeInclusive<u64>>> {
    let Some((from, to)) = ends_of_interval(text) else { return Ok(None) };
    let ends = (number(database, from.key)?, number(database, to.key)?);
    let (Some(first), Some(last)) = ends else { return Ok(None) };
    Ok(Some(first + u64::from(from.is_open)..=last - u64::from(to.is_open)))
}

#[derive(Debug, PartialEq, Eq)]
struct IntervalEnd<'t> {
    key: &'t [u8],
    /// The number itself is not in the interval.
    is_open: bool,
}

fn ends_of_interval(text: &[u8]) -> Option<(IntervalEnd<'_>, IntervalEnd<'_>)> {
    let (bracket, rest) = text.trim_ascii_start().split_first()?;
    let comma = rest.iter().position(|&byte| byte == b',')?;
    let (first, rest) = (&rest[..comma], &rest[comma + 1..]);
    let end = rest.iter().position(|byte| b"])".contains(byte))?;
    let is_open = *bracket == b'(';
    (is_open || *bracket == b'[').then_some((
        IntervalEnd { key: first.trim_ascii(), is_open },
        IntervalEnd { key: rest[..end].trim_ascii(), is_open: rest[end] == b')' },
    ))
}

/// Returns the numbers that `range` means: from `first` on, up to but not including `end`. A word
/// is no end. Returns `None` if `first` is not a number.
pub(super) fn range(
    database: &Database,
    first: Option<&[u8]>,
    end: Option<&[u8]>,
) -> Result<Option<RangeInclusive<u64>>> {
    let Some(first) = first.map_or(Ok(Some(1)), |key| number(database, key))? else { return Ok(None) };
    let digits = end.filter(|end| end.iter().any(u8::is_ascii_digit));
    let end = digits.map_or(Ok(None), |key| database.number_of(key))?;
    Ok(Some(first..=end.map_or(u64::MAX, |end| end - 1)))
}

/// Returns the number at which an iterator begins: that of a key, or of the first record after it.
/// Returns `None` if the key is not a number, or no record is left.
pub(super) fn first_from(database: &Database, key: &[u8], is_cancelled: &AtomicBool) -> Result<Option<u64>> {
    let Some(from) = number(database, key)? else { return Ok(None) };
    let mut found = None;
    see_numbers(database, from..=u64::MAX, is_cancelled, &mut |key, _| {
        found = number_of_key(key);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Shows the live records with these numbers, in ascending order, until `see` breaks. Fails with
/// `Closed` once the search is cancelled.
pub(super) fn see_numbers(
    database: &Database,
    numbers: RangeInclusive<u64>,
    is_cancelled: &AtomicBool,
    see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let (mut from, to) = numbers.into_inner();
    let (mut has_broken, mut text) = (false, [0; 20]);
    loop {
        let last = database.walk_numbers_group(ScanDirection::Up, from..=to, &mut |number, record| {
            let outcome = see(key_of_number(number, &mut text), record);
            has_broken = outcome.is_break();
            outcome
        })?;
        match last {
            Some(last) if !has_broken && last < to => from = last + 1,
            _ => return Ok(()),
        }
        expect_wanted(is_cancelled)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_as_in_the_original() {
        let ends = |text: &'static str| {
            ends_of_interval(text.as_bytes()).map(|(from, to)| (from.key, from.is_open, to.key, to.is_open))
        };
        for (text, expected) in [
            ("[min,max]", Some((&b"min"[..], false, &b"max"[..], false))),
            ("(7,101]", Some((b"7", true, b"101", false))),
            (" [ 1 , 7 )x", Some((b"1", false, b"7", true))),
            ("[,7]", Some((b"", false, b"7", false))),
            ("[1,7", None),
            ("[1 7]", None),
            ("{1,7}", None),
            ("7", None),
            ("", None),
        ] {
            assert_eq!(ends(text), expected, "{text}");
        }
    }
}
