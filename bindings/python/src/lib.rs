//! The Python extension module `todana._todana`, which the package `todana` exports.
//!
//! ```text
//! DB, Transaction, Snapshot   the objects of a program; all three derive from Records
//! Records                     their common methods
//! View, Iterator, Cursor      objects that show one record after another
//! Table, Query, RowSet        rows of a table as dicts, and searches for them
//! Fixed                       records whose keys are numbers
//! source                      access to records, and checks that an object is not closed or forked
//! pace                        decides whether a call releases the interpreter
//! ```
//!
//! Invariant: no thread waits for the interpreter while it holds a lock of the library. A thread
//! that holds the interpreter may therefore wait for such a lock, which is released soon. Short
//! calls do so, because releasing and reacquiring the interpreter would take longer (`pace`). All
//! other calls release the interpreter. A thread that waits for a transaction holds no such lock,
//! and takes the interpreter at intervals to check for Ctrl-C (`interruption`).
//!
//! PyO3's macros generate `unsafe` code. The text of this crate has none.
#![forbid(unsafe_code)]

mod conversion;
mod cursor;
mod db;
mod error;
mod fork;
mod interruption;
mod key_order;
mod map_reduce;
mod numbered;
mod pace;
mod query;
mod record;
mod records;
mod source;
mod table;
mod transaction;
mod transfer;
mod view;
mod visits;

use pyo3::prelude::*;

/// The compiled part of Todana, a key-value store. In a Python that was built without an
/// interpreter lock, importing this module enables the lock, because the module relies on it.
#[pymodule(gil_used = true)]
mod _todana {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::cursor::PyCursor;
    #[pymodule_export]
    use crate::db::PyDatabase;
    #[pymodule_export]
    use crate::fork::_after_fork;
    #[pymodule_export]
    use crate::key_order::{original_key, stored_key};
    #[pymodule_export]
    use crate::numbered::PyFixed;
    #[pymodule_export]
    use crate::query::{PyQuery, RowSet};
    #[pymodule_export]
    use crate::record::PyRecord;
    #[pymodule_export]
    use crate::records::Records;
    #[pymodule_export]
    use crate::source::_close_all;
    #[pymodule_export]
    use crate::table::PyTable;
    #[pymodule_export]
    use crate::transaction::{Snapshot, Transaction};
    #[pymodule_export]
    use crate::view::{PyRecordIterator, PyView};
    #[pymodule_export]
    use crate::visits::RemovalMarker;

    /// Translates an extended regular expression of POSIX.
    #[pyfunction]
    fn _regex_of_posix(pattern: &[u8]) -> String {
        todana::kyoto::translate(pattern)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("REMOVE", RemovalMarker)
    }
}
