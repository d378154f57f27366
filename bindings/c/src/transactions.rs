//! Exports the transactions of threads. A transaction is kept until it commits or aborts, or until
//! its thread ends.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{TODANA_OK, answer, invalid};
use crate::open_database::{self, CloseBlocker, DatabaseHandle, RegisteredDatabase};
use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::Arc;
use todana::{Error, ErrorKind, Records, Result, Transaction};

pub(crate) struct ThreadTransaction {
    transaction: Transaction<'static>,
    /// The database of the transaction. This field is dropped last, because the database must stay
    /// open until then.
    open_database: CloseBlocker,
}

impl ThreadTransaction {
    pub(crate) fn records(&self) -> &dyn Records {
        &self.transaction
    }
}

thread_local! {
    /// The open transactions of this thread. There is at most one for each database, and rarely
    /// more than one.
    static OPEN: RefCell<Vec<Rc<ThreadTransaction>>> = const { RefCell::new(Vec::new()) };
}

/// Returns the transaction of this database that this thread has open.
pub(crate) fn of_this_thread(number: usize) -> Option<Rc<ThreadTransaction>> {
    // A thread that is about to end has no transactions any more.
    OPEN.try_with(|open| open.borrow().iter().find(|own| own.open_database.number() == number).cloned())
        .ok()
        .flatten()
}

/// Begins a transaction after no other thread has an open transaction. All calls of this thread
/// with the database then belong to the transaction, until todana_commit() or todana_abort(). Other
/// threads read the old records, and must wait before they write. A thread that ends aborts its
/// transaction. TODANA_BUSY: this thread already has an open transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_begin(db: *mut DatabaseHandle) -> c_int {
    answer(|| {
        open_database::with(db, |open_database: &Arc<RegisteredDatabase>| {
            open_database.with_db(|db| {
                let transaction = db.begin_owned()?;
                keep(Rc::new(ThreadTransaction {
                    transaction,
                    open_database: CloseBlocker::new(open_database),
                }))?;
                Ok(TODANA_OK)
            })
        })
    })
}

/// Applies all changes of this thread's transaction at once, or none of them if the call fails. The
/// transaction has ended in both cases.
#[unsafe(no_mangle)]
pub extern "C" fn todana_commit(db: *mut DatabaseHandle) -> c_int {
    answer(|| {
        let ThreadTransaction { transaction, open_database } =
            open_database::with(db, |open_database| open_database.with_db(|_| take(open_database.number)))?;
        transaction.commit()?;
        drop(open_database);
        Ok(TODANA_OK)
    })
}

/// Discards all changes of this thread's transaction.
#[unsafe(no_mangle)]
pub extern "C" fn todana_abort(db: *mut DatabaseHandle) -> c_int {
    answer(|| {
        drop(open_database::with(db, |open_database| open_database.with_db(|_| take(open_database.number)))?);
        Ok(TODANA_OK)
    })
}

/// Aborts the open transaction of this thread, if there is one.
pub(crate) fn abort_own(number: usize) {
    drop(take(number));
}

fn take(number: usize) -> Result<ThreadTransaction> {
    let own = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        let at = open.iter().position(|own| own.open_database.number() == number)?;
        Some(open.swap_remove(at))
    });
    let own =
        own.ok().flatten().ok_or_else(|| invalid("this thread has no transaction of the database open"))?;
    Rc::try_unwrap(own).map_err(|own| match keep(own) {
        Ok(()) => Error::new(ErrorKind::Busy, "the transaction is at work"),
        Err(error) => error,
    })
}

/// Stores a transaction for this thread. Aborts it if the thread is about to end.
fn keep(own: Rc<ThreadTransaction>) -> Result<()> {
    OPEN.try_with(|open| open.borrow_mut().push(own))
        .map_err(|_| invalid("the thread ends: it keeps no transaction open"))
}
