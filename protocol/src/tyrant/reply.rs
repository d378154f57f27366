//! Writes replies of the binary protocol. A reply begins with a status byte: 0 for success, 1 for
//! failure.
//!
//! Nothing follows the status of a failure, except for `misc` ([`put_fields`]).

use super::fields::{FieldList, put_list};
use super::number;
use crate::ReplySink;
use todana_core::SharedBytes;

/// The status byte of a success.
pub const SUCCESS: u8 = 0;
/// The status byte of a failure.
pub const FAILURE: u8 = 1;

/// The length of a status and the number of elements after it, in bytes.
pub const COUNT_LEN: usize = 5;

/// Writes the reply of a command without a result, or the failure of any command but `misc`.
#[inline]
pub fn put_status(is_done: bool, out: &mut impl ReplySink) {
    out.put(&[if is_done { SUCCESS } else { FAILURE }]);
}

/// Writes a byte string: the value of `get`, the key of `iternext`, the result of `ext`, or the
/// text of `stat`. `shared` holds the same bytes if their owner shares them.
#[inline]
pub fn put_value(value: &[u8], shared: Option<&SharedBytes>, out: &mut impl ReplySink) {
    put_len(value.len(), out);
    put_bytes(value, shared, out);
}

/// Writes a length: the reply of `vsiz`.
#[inline]
pub fn put_len(len: usize, out: &mut impl ReplySink) {
    out.put(&count_head(len as u32));
}

/// Returns the beginning of the reply to `mget` or `fwmkeys`. The records or keys follow it.
#[inline]
pub fn count_head(count: u32) -> [u8; COUNT_LEN] {
    let mut head = [SUCCESS; COUNT_LEN];
    head[1..].copy_from_slice(&count.to_be_bytes());
    head
}

/// Writes a record of `mget`.
#[inline]
pub fn put_record(key: &[u8], value: &[u8], shared: Option<&SharedBytes>, out: &mut impl ReplySink) {
    let mut head = [0; 8];
    head[..4].copy_from_slice(&(key.len() as u32).to_be_bytes());
    head[4..].copy_from_slice(&(value.len() as u32).to_be_bytes());
    out.put(&head);
    out.put(key);
    put_bytes(value, shared, out);
}

/// Writes the keys of `fwmkeys`.
pub fn put_keys(keys: &FieldList<'_>, out: &mut impl ReplySink) {
    put_status(true, out);
    put_list(keys, out);
}

/// Writes the sum of `addint`.
pub fn put_integer(sum: i32, out: &mut impl ReplySink) {
    put_status(true, out);
    out.put(&sum.to_be_bytes());
}

/// Writes the sum of `adddouble`.
pub fn put_real(sum: f64, out: &mut impl ReplySink) {
    put_status(true, out);
    out.put(&number::encode(sum));
}

/// Writes the number of `rnum` or `size`.
pub fn put_number(number: u64, out: &mut impl ReplySink) {
    put_status(true, out);
    out.put(&number.to_be_bytes());
}

/// Writes the reply of `misc`: the status and the list, which must be empty after a failure.
pub fn put_fields(is_done: bool, fields: &FieldList<'_>, out: &mut impl ReplySink) {
    put_status(is_done, out);
    put_list(&if is_done { *fields } else { FieldList::default() }, out);
}

#[inline]
fn put_bytes(bytes: &[u8], shared: Option<&SharedBytes>, out: &mut impl ReplySink) {
    match shared {
        Some(shared) => out.share(shared),
        None => out.put(bytes),
    }
}
