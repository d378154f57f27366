//! Visitors for commands on records that only Tokyo Tyrant has, and its update logs.
//!
//! ```text
//! cut           shortens a value to a maximum length
//! shift         appends to a value, and keeps only its end
//! sum           adds to numbers of 4 and 8 bytes
//! log_files     reads the files of update logs
//! logged        executes the commands of update logs
//! table_search  searches in tables, and removals of their results
//! values        several values of one key
//! ```
//!
//! A changed record keeps its flags and its expiry, but not its version, because a client that has
//! seen the version must notice the new value.

mod cut;
mod log_files;
mod logged;
mod shift;
mod sum;
mod table_search;
mod values;

pub use cut::CutVisitor;
pub use log_files::{LogFileEnd, TyrantLogFile, log_files, read_log_file};
pub use logged::{AppliedOutcome, LoggedTarget, apply_logged};
pub use shift::ShiftVisitor;
pub use sum::{StoredNumber, SumVisitor};
pub use table_search::TableSearch;
pub use values::{AddValuesVisitor, PutValues, RemoveValuesVisitor, ValuesVisitor, put_lists, take_part};

use todana_core::{Attributes, Record};

/// Returns the attributes of a record whose value changes.
fn kept_attributes(old: Option<Record<'_>>) -> Attributes {
    let before = old.map(|record| record.attributes).unwrap_or_default();
    Attributes { version: 0, access: None, ..before }
}
