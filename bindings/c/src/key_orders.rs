//! Orders of keys other than that of their bytes.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{Out, TODANA_OK, answer, invalid};
use crate::raw::Bytes;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use todana::{KeyOrder, Result};

/// The last by their bytes first.
pub const TODANA_LEXICAL_DESCENDING: c_int = 0;
/// By the decimal number that keys begin with.
pub const TODANA_DECIMAL: c_int = 1;
/// The reverse of that.
pub const TODANA_DECIMAL_DESCENDING: c_int = 2;
/// By sort keys that the program makes: todana_stored_key_by().
pub const TODANA_BY_SORT_KEY: c_int = 3;

/// What a key is stored as, so that ordered databases have it at its place in another order than that of the bytes; for the caller to free.
/// `order`: TODANA_LEXICAL_DESCENDING, ... Where a record is read or written, this is its key.
#[unsafe(no_mangle)]
pub extern "C" fn todana_stored_key(
    order: c_int,
    key: Bytes,
    stored: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    answer(|| {
        let stored = stored.must()?;
        stored.put(Bytes::give(&order_of(order)?.stored(key.as_slice()?))?);
        Ok(TODANA_OK)
    })
}

/// The same for a key that sorts by a sort key, which the program must always make alike; those of one sort key sort by their own bytes.
#[unsafe(no_mangle)]
pub extern "C" fn todana_stored_key_by(
    sort_key: Bytes,
    key: Bytes,
    stored: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    answer(|| {
        let stored = stored.must()?;
        stored.put(Bytes::give(&KeyOrder::stored_by(sort_key.as_slice()?, key.as_slice()?))?);
        Ok(TODANA_OK)
    })
}

/// The key that is stored so; for the caller to free. TODANA_INVALID: the order stores none so.
#[unsafe(no_mangle)]
pub extern "C" fn todana_original_key(
    order: c_int,
    stored: Bytes,
    key: Option<&mut MaybeUninit<Bytes>>,
) -> c_int {
    answer(|| {
        let key = key.must()?;
        key.put(Bytes::give(&order_of(order)?.original(stored.as_slice()?)?)?);
        Ok(TODANA_OK)
    })
}

fn order_of(order: c_int) -> Result<KeyOrder> {
    Ok(match order {
        TODANA_LEXICAL_DESCENDING => KeyOrder::LexicalDescending,
        TODANA_DECIMAL => KeyOrder::Decimal,
        TODANA_DECIMAL_DESCENDING => KeyOrder::DecimalDescending,
        TODANA_BY_SORT_KEY => KeyOrder::BySortKey,
        other => return Err(invalid(format!("there is no order of kind {other}"))),
    })
}
