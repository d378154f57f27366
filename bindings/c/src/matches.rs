//! Keys by what they look like.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{Out, TODANA_OK, answer, invalid};
use crate::home::{self, Database};
use crate::raw::{Bytes, List, Numbers, Text};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use todana::{KeySymbols, Records, Result};

/// A distance counts bytes.
pub const TODANA_BYTES: c_int = 0;
/// A distance counts characters of UTF-8.
pub const TODANA_CHARACTERS: c_int = 1;

/// The keys that begin with `prefix`, at most `limit` of them; for the caller to free: todana_free(keys.items).
#[unsafe(no_mangle)]
pub extern "C" fn todana_match_prefix(
    db: *mut Database,
    prefix: Bytes,
    limit: usize,
    keys: Option<&mut MaybeUninit<List>>,
) -> c_int {
    answer(|| {
        let keys = keys.must()?;
        let found = home::with(db, |home| home.match_prefix(prefix.as_slice()?, limit))?;
        keys.put(list(found)?);
        Ok(TODANA_OK)
    })
}

/// The keys in which a regular expression matches somewhere, at most `limit` of them; for the caller to free. All keys are looked at.
/// TODANA_INVALID: it is no regular expression.
#[unsafe(no_mangle)]
pub extern "C" fn todana_match_regex(
    db: *mut Database,
    pattern: Text,
    limit: usize,
    keys: Option<&mut MaybeUninit<List>>,
) -> c_int {
    answer(|| {
        let keys = keys.must()?;
        let pattern = pattern.as_str()?.ok_or_else(|| invalid("the pattern is NULL"))?;
        let found = home::with(db, |home| home.match_regex(pattern, limit))?;
        keys.put(list(found)?);
        Ok(TODANA_OK)
    })
}

/// The keys that are most like `key`, the best first, at most `limit` of them, and, unless `distances` is NULL, how many symbols
/// (TODANA_BYTES or TODANA_CHARACTERS) have to be inserted, removed or replaced: at most `distance_max`. Both are for the caller to free. All
/// keys are looked at.
#[unsafe(no_mangle)]
pub extern "C" fn todana_match_similar(
    db: *mut Database,
    key: Bytes,
    distance_max: usize,
    symbols: c_int,
    limit: usize,
    keys: Option<&mut MaybeUninit<List>>,
    distances: Option<&mut MaybeUninit<Numbers>>,
) -> c_int {
    answer(|| {
        let keys = keys.must()?;
        let symbols = match symbols {
            TODANA_BYTES => KeySymbols::Bytes,
            TODANA_CHARACTERS => KeySymbols::Characters,
            other => return Err(invalid(format!("there are no symbols of kind {other}"))),
        };
        let similar =
            home::with(db, |home| home.match_similar(key.as_slice()?, distance_max, symbols, limit))?;
        let (found, far): (Vec<_>, Vec<_>) = similar.into_iter().unzip();
        if distances.is_some() {
            distances.put(Numbers::give(&far)?);
        }
        keys.put(list(found)?);
        Ok(TODANA_OK)
    })
}

fn list(keys: Vec<Vec<u8>>) -> Result<List> {
    List::give(&keys.into_iter().map(Some).collect::<Vec<_>>())
}
