//! Exports searches for keys by prefix, regular expression and similarity.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_OK, answer, invalid};
use crate::open_database::{self, DatabaseHandle};
use crate::raw::{Bytes, BytesList, CText, NumberList};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use todana::{KeySymbols, Records, Result};

/// Distances count bytes.
pub const TODANA_BYTES: c_int = 0;
/// Distances count characters of UTF-8.
pub const TODANA_CHARACTERS: c_int = 1;

/// Returns up to `limit` keys that begin with `prefix`. The caller frees them:
/// todana_free(keys.items).
#[unsafe(no_mangle)]
pub extern "C" fn todana_match_prefix(
    db: *mut DatabaseHandle,
    prefix: Bytes,
    limit: usize,
    keys: Option<&mut MaybeUninit<BytesList>>,
) -> c_int {
    answer(|| {
        let keys = keys.must()?;
        let found =
            open_database::with(db, |open_database| open_database.match_prefix(prefix.as_slice()?, limit))?;
        keys.put(list(found)?);
        Ok(TODANA_OK)
    })
}

/// Returns up to `limit` keys in which a regular expression matches. The caller frees them. Reads
/// all keys. TODANA_INVALID: the regular expression is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn todana_match_regex(
    db: *mut DatabaseHandle,
    pattern: CText,
    limit: usize,
    keys: Option<&mut MaybeUninit<BytesList>>,
) -> c_int {
    answer(|| {
        let keys = keys.must()?;
        let pattern = pattern.as_str()?.ok_or_else(|| invalid("the pattern is NULL"))?;
        let found = open_database::with(db, |open_database| open_database.match_regex(pattern, limit))?;
        keys.put(list(found)?);
        Ok(TODANA_OK)
    })
}

/// Returns up to `limit` keys that are most similar to `key`, the most similar first. The distance
/// of a key is the number of symbols (TODANA_BYTES or TODANA_CHARACTERS) that must be inserted,
/// removed or replaced; it is at most `distance_max`. Stores the distances in `distances`, unless
/// it is NULL. The caller frees both lists. Reads all keys.
#[unsafe(no_mangle)]
pub extern "C" fn todana_match_similar(
    db: *mut DatabaseHandle,
    key: Bytes,
    distance_max: usize,
    symbols: c_int,
    limit: usize,
    keys: Option<&mut MaybeUninit<BytesList>>,
    distances: Option<&mut MaybeUninit<NumberList>>,
) -> c_int {
    answer(|| {
        let keys = keys.must()?;
        let symbols = match symbols {
            TODANA_BYTES => KeySymbols::Bytes,
            TODANA_CHARACTERS => KeySymbols::Characters,
            other => return Err(invalid(format!("there are no symbols of kind {other}"))),
        };
        let similar = open_database::with(db, |open_database| {
            open_database.match_similar(key.as_slice()?, distance_max, symbols, limit)
        })?;
        let (found, far): (Vec<_>, Vec<_>) = similar.into_iter().unzip();
        if distances.is_some() {
            distances.put(NumberList::give(&far)?);
        }
        keys.put(list(found)?);
        Ok(TODANA_OK)
    })
}

fn list(keys: Vec<Vec<u8>>) -> Result<BytesList> {
    BytesList::give(&keys.into_iter().map(Some).collect::<Vec<_>>())
}
