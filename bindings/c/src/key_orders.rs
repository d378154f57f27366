//! Exports orders of keys that differ from the order of their bytes.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_OK, answer, invalid};
use crate::raw::Bytes;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use todana::{KeyOrder, Result};

/// The order of the bytes, descending.
pub const TODANA_LEXICAL_DESCENDING: c_int = 0;
/// The order of the decimal numbers with which the keys begin, ascending.
pub const TODANA_DECIMAL: c_int = 1;
/// The order of the decimal numbers with which the keys begin, descending.
pub const TODANA_DECIMAL_DESCENDING: c_int = 2;
/// The order of sort keys that the program computes: todana_stored_key_by().
pub const TODANA_BY_SORT_KEY: c_int = 3;

/// Returns the stored form of a key. An ordered database sorts the stored forms by their bytes,
/// which gives the keys the requested order. Use the stored form as the key in all calls. The
/// caller frees it. `order`: TODANA_LEXICAL_DESCENDING, ...
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

/// Returns the stored form of a key with a sort key. The program must always compute the same sort
/// key for the same key. Keys with equal sort keys are sorted by their bytes.
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

/// Returns the key of a stored form. The caller frees it. TODANA_INVALID: no key has this stored
/// form in this order.
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
