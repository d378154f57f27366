//! The library as a module of Python: `todana._todana`, which the package `todana` shows to the world.
//!
//! ```text
//! DB, Transaction, Snapshot   what a program holds; all three are Records, which has what they have in common
//! View, Iterator, Cursor      ways through their records
//! source, pace                where records are, and whether they still can be reached: closed, over, on the wrong side of a fork
//! ```
//!
//! Always true: nobody waits for the interpreter while a lock of the library's is held. So whoever holds the interpreter may wait for such a
//! lock, which is let go soon; that is what calls do that take less than giving the interpreter up and getting it back would (`pace`). All
//! else runs detached from it. Who waits for a transaction holds no such lock, and takes the interpreter now and then to see whether there
//! is a Ctrl-C (`interruption`).
//!
//! `unsafe` is in what PyO3's macros make, and nowhere in this crate's own text.
#![forbid(unsafe_code)]

mod conversion;
mod cursor;
mod db;
mod error;
mod fork;
mod interruption;
mod key_order;
mod map_reduce;
mod pace;
mod record;
mod records;
mod source;
mod transaction;
mod transfer;
mod view;
mod visits;

use pyo3::prelude::*;

/// Todana, a key-value store: what is compiled of it. Where Python is built without an interpreter lock, importing it turns the lock on: that
/// nobody else has the interpreter is what much of this relies on.
#[pymodule(gil_used = true)]
mod _todana {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::cursor::Cursor;
    #[pymodule_export]
    use crate::db::Database;
    #[pymodule_export]
    use crate::fork::_after_fork;
    #[pymodule_export]
    use crate::key_order::{original_key, stored_key};
    #[pymodule_export]
    use crate::record::Whole;
    #[pymodule_export]
    use crate::records::Records;
    #[pymodule_export]
    use crate::source::_close_all;
    #[pymodule_export]
    use crate::transaction::{Snapshot, Transaction};
    #[pymodule_export]
    use crate::view::{Iterator, View};
    #[pymodule_export]
    use crate::visits::Removal;

    /// Translates an extended regular expression of POSIX.
    #[pyfunction]
    fn _regex_of_posix(pattern: &[u8]) -> String {
        todana::kyoto::translate(pattern)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("REMOVE", Removal)
    }
}
