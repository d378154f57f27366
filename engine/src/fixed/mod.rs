//! Records of numbers: keys are the numbers from 1 on, and values have at most a fixed length.
//!
//! ```text
//! array    FixedArray: short values in memory, each in the slot of its number
//! segment  the slots of 2,048 consecutive numbers
//! tree     FixedTree: longer values in memory, and all values on disk, in an ordered engine
//! ```
//!
//! Both engines implement [`NumberedEngine`](todana_core::NumberedEngine). They refuse keys that
//! are not canonical numbers. Not here: other spellings of numbers, and `min`, `max`, `prev` and
//! `next`, which are in `todana`.

mod array;
mod segment;
mod tree;

pub use array::{FixedArray, FixedArrayOptions};
pub use tree::{FixedLayout, FixedTree};

use todana_core::{Action, Error, ErrorKind, Result, Visitor, number_of_key};

/// Returns the number of a key, unless it is higher than the largest one.
#[inline]
fn number_of(key: &[u8], number_max: u64) -> Option<u64> {
    number_of_key(key).filter(|&number| number <= number_max)
}

/// Runs a visitor on a key under which no record can exist. Fails with `Invalid` if the visitor
/// stores one.
#[cold]
fn visit_no_number(key: &[u8], number_max: u64, visitor: &mut dyn Visitor) -> Result<()> {
    match visitor.visit(None) {
        Action::Put(_) => {
            let shown = key[..key.len().min(40)].escape_ascii();
            let message = format!("key \"{shown}\": must be a number from 1 to {number_max}");
            Err(Error::new(ErrorKind::Invalid, message))
        }
        Action::Keep | Action::Retag(_) | Action::Remove => Ok(()),
    }
}

/// Returns the error of a value that is too long.
#[cold]
fn too_long(number: u64, len: usize, width: usize) -> Error {
    let message = format!("record {number}: value of {len} bytes is longer than the width of {width}");
    Error::new(ErrorKind::Invalid, message)
}
